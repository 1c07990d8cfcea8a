"""The figures: their axes, the paper's results, and their tables and drawings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import median
from benchmarks.paper.s_store.clients import figure_6, figure_8
from benchmarks.paper.s_store.in_process import figure_5, figure_7
from benchmarks.paper.s_store.linear_road import figure_11
from benchmarks.paper.s_store.recovery import figure_9a, figure_9b
from benchmarks.paper.s_store.scale import Point, Scale
from benchmarks.paper.s_store.spark_redis import figure_10

__all__ = ["FIGURES", "Figure", "draw", "merge", "tell"]

_COLOURS = ("#a23b3b", "#1c7c4a", "#3a7fbf", "#c8851b", "#7f7f7f")
_MARKERS = ("o", "D", "s", "v", "^")


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    Attributes
    ----------
    title : str
        Its title.
    paper : str
        The result in the paper.
    run : callable
        Measures all of its points once.
    at : tuple of str
        The columns that say where a point is; the first is the horizontal axis, others make lines.
    unit : str
        The unit of the others.
    ratio : tuple of str, optional
        The two contenders of the ratio: numerator and denominator.
    log : bool
        Whether the vertical axis is logarithmic.
    drawn : tuple of str
        The columns that are drawn; by default all but places and ratio.
    """

    title: str
    paper: str
    run: Callable[[Scale], list[Point]]
    at: tuple[str, ...]
    unit: str
    ratio: tuple[str, str] | None = None
    log: bool = True
    drawn: tuple[str, ...] = ()

    @property
    def divided(self) -> str:
        """The column of the ratio."""
        return " / ".join(self.ratio or ())


FIGURES: dict[str, Figure] = {
    "5": Figure(
        "triggers in the engine, against a call of the engine for each stage",
        "S-Store is ahead of H-Store with any number of triggers, and by 2.5 times with 10.",
        figure_5,
        ("triggers",),
        "transactions/s",
        ("triggers in the engine", "a call a stage"),
    ),
    "6": Figure(
        "triggers between procedures, against a client that drives the workflow",
        "S-Store runs about ten times as many workflows as H-Store, more with longer workflows.",
        figure_6,
        ("triggers",),
        "workflows/s",
        ("workflow", "client drives"),
    ),
    "7": Figure(
        "native windows, against windows of tables",
        "S-Store has about twice the throughput of H-Store.",
        figure_7,
        ("size", "slide"),
        "transactions/s",
        ("native window", "by hand, a call a query"),
    ),
    "8": Figure(
        "Voter with leaderboard, by votes offered a second",
        "H-Store reaches 500 votes/s, S-Store nearly 3,000; both keep up below.",
        figure_8,
        ("offered", "durable"),
        "votes/s",
        ("workflow", "client drives"),
    ),
    "9a": Figure(
        "workflows that are durable one by one, with weak and strong recovery",
        "Weak recovery has up to four times the throughput of strong; strong slows with each trigger.",
        figure_9a,
        ("triggers",),
        "workflows/s",
        ("weak", "strong"),
        log=False,
    ),
    "9b": Figure(
        "time to recover from a log, with weak and strong recovery",
        "The time of weak recovery is nearly constant, that of strong recovery grows with each trigger.",
        figure_9b,
        ("triggers",),
        "s",
        ("strong", "weak"),
        log=False,
    ),
    "10": Figure(
        "votes with a leaderboard of the last 10 seconds, here and in Spark with Redis",
        "S-Store and Storm are level; Spark is far behind with validated votes, and level without.",
        figure_10,
        ("validated",),
        "votes/s",
        ("penstock", "Spark, Redis"),
        log=False,
        drawn=("penstock", "Spark, Redis"),
    ),
    "11": Figure(
        "Linear Road: latency by expressways on each core, with a threshold of 1 s",
        "16 x-ways on one core, 11 on each of eight.",
        figure_11,
        ("x-ways a core", "cores"),
        "s",
        log=False,
        drawn=("worst latency, s",),
    ),
}
"""The figures by number."""


def merge(figure: Figure, repeats: Sequence[list[Point]]) -> list[Point]:
    """Return the medians of several runs; a ratio is the median of the runs' ratios."""
    merged: list[Point] = []
    for points in zip(*repeats, strict=True):
        first = points[0]
        values = {
            name: value if name in figure.at or isinstance(value, str) else median([p[name] for p in points])
            for name, value in first.items()
        }
        if figure.ratio:
            above, below = figure.ratio
            values[figure.divided] = median([p[above] / p[below] for p in points])
        merged.append(values)
    return merged


def tell(figure: Figure, points: Sequence[Point]) -> list[str]:
    """Return a figure as a table of text."""
    names = list(points[0])
    widths = [max(len(name), 12) for name in names]
    lines = ["  ".join(name.rjust(width) for name, width in zip(names, widths, strict=True))]
    for point in points:
        cells = [_cell(point[name]) for name in names]
        lines.append("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))
    return lines


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:.3g}"


def draw(figure: Figure, points: Sequence[Point], plt: Any) -> Any:
    """Return a plot of a figure."""
    by, *others = figure.at
    contenders = figure.drawn or [name for name in points[0] if name not in (*figure.at, figure.divided)]
    lines = list(dict.fromkeys(tuple(point[name] for name in others) for point in points))
    plot, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
    # A text among numbers, as "all", is no place on an axis of numbers.
    places = list(dict.fromkeys(point[by] for point in points))
    words = any(isinstance(place, str) for place in places)
    for contender, colour, marker in zip(contenders, _COLOURS, _MARKERS, strict=False):
        for number, line in enumerate(lines):
            own = [point for point in points if tuple(point[name] for name in others) == line]
            label = ", ".join([contender, *(f"{n} {v}" for n, v in zip(others, line, strict=True))])
            axis.plot(
                [places.index(point[by]) if words else point[by] for point in own],
                [point[contender] for point in own],
                label=label,
                color=colour,
                marker=marker,
                ls=("-", "--", ":")[number % 3],
            )
    if words:
        axis.set_xticks(range(len(places)), [_cell(place) for place in places])
    elif max(places) > 100 * max(min(places), 1):
        axis.set_xscale("log")
    axis.set(xlabel=by, ylabel=figure.unit, title=figure.title)
    if figure.log:
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.legend(fontsize=8)
    return plot
