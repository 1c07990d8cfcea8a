"""The tables and plots of the figures about windows (UpStream Fig. 12 to 14)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from benchmarks.paper.drawing import line, pivot
from benchmarks.paper.window_experiments import OVERLAPPING, OWN, STREAM, TUMBLING

__all__ = ["PLOTS", "SUMMARIES", "TITLES"]

Rows = list[dict[str, Any]]

TITLES = {
    "12": "Execution traces of one key: size 3, slide 1, cost 2 a tuple (staleness in units of time)",
    "13": "Application staleness of one key by window size (in units of time)",
    "14": "Application staleness of EAGER divided by that of LAZY, 10 keys, slide 1, by window size",
}

_STYLES = {
    "AQ": {"color": "#7f7f7f", "marker": "o"},
    "AQ-RWS": {"color": "#c8851b", "marker": "v"},
    "LAZY": {"color": "#3a7fbf", "marker": "s"},
    "EAGER": {"color": "#1c7c4a", "marker": "D", "ls": "--"},
}
_MARKERS = ("o", "s", "v", "D")
_COLOURS = ("#3a7fbf", "#c8851b", "#a23b3b", "#1c7c4a")


def _summary_12(rows: Rows) -> tuple[list[str], list[list[str]]]:
    heads = ["time"]
    for mode in ("lazy", "eager"):
        heads += [f"{mode}: {name}" for name in ("waits", "takes", "result", "queue", "app")]
    cells = {(row["mode"], row["time"]): row for row in rows}
    lines = []
    for time in sorted({row["time"] for row in rows}):
        shown = [str(time)]
        for mode in ("lazy", "eager"):
            row = cells[mode, time]
            shown += [
                f"{row['waits']} W{row['window']}" if row["waits"] else "",
                "" if row["dequeued"] is None else f"{row['dequeued']} ({row['win_spec']})",
                "" if row["result"] is None else f"W{row['result']}",
                str(row["queue_staleness"]),
                str(row["application_staleness"]),
            ]
        lines.append(shown)
    return heads, lines


def _summary_13(rows: Rows) -> tuple[list[str], list[list[str]]]:
    return pivot(
        rows, "size", "size", lambda row: f"{row['windows']}: {row['semantics']}", "application_staleness"
    )


def _summary_14(rows: Rows) -> tuple[list[str], list[list[str]]]:
    short = {OWN: "own", STREAM: "time"}
    return pivot(rows, "size", "size", lambda row: f"{short[row['windows_of']]}: {row['arrivals']}", "ratio")


def _plot_12(axes: list[Any], rows: Rows) -> None:
    for axis, mode, title in zip(axes, ("lazy", "eager"), ("(a) LAZY", "(b) EAGER"), strict=True):
        own = [row for row in rows if row["mode"] == mode]
        for measure, label, colour, dashes in (
            ("application_staleness", "application staleness", "#1c7c4a", "-"),
            ("queue_staleness", "queue staleness", "#3a7fbf", "--"),
        ):
            line(axis, _with_peaks(own, measure), "time", measure, label=label, color=colour, ls=dashes)
        for row in own:
            if row["waits"]:
                axis.annotate(row["waits"], (row["time"], -0.9), ha="center", fontsize=8)
            if row["result"] is not None:
                axis.axvline(row["time"], color="#7f7f7f", lw=0.8)
        axis.set(xlabel="time (I, U: insert, update; line: result)", ylabel="staleness (time units)")
        axis.set(title=title, ylim=(-1.5, 11))
        axis.legend(loc="upper left")


def _with_peaks(rows: Rows, measure: str) -> Rows:
    """Add to the values at the ends of time steps what was reached within a step in which staleness falls."""
    points = rows[:1]
    for before, row in pairwise(rows):
        if 0 < before[measure] >= row[measure]:
            points.append({"time": row["time"], measure: before[measure] + 1})
        points.append(row)
    return points


def _plot_13(axes: list[Any], rows: Rows) -> None:
    titles = ("(a) Tumbling windows", "(b) Overlapping windows")
    for axis, windows, title in zip(axes, (TUMBLING, OVERLAPPING), titles, strict=True):
        own = [row for row in rows if row["windows"] == windows]
        for name in dict.fromkeys(row["semantics"] for row in own):
            points = [row for row in own if row["semantics"] == name]
            line(axis, points, "size", "application_staleness", label=name, **_STYLES[name])
        axis.set(xlabel="window size", ylabel="average application staleness\n(time units)", title=title)
        if windows == OVERLAPPING:
            axis.set_yscale("log")
        axis.legend()


def _plot_14(axes: list[Any], rows: Rows) -> None:
    for axis, measured_in in zip(axes, (OWN, STREAM), strict=True):
        own = [row for row in rows if row["windows_of"] == measured_in]
        names = dict.fromkeys(row["arrivals"] for row in own)
        for name, marker, colour in zip(names, _MARKERS, _COLOURS, strict=False):
            points = [row for row in own if row["arrivals"] == name]
            line(axis, points, "size", "ratio", label=name, marker=marker, color=colour)
        axis.axhline(1.0, color="#7f7f7f", lw=0.8)
        axis.set(xlabel="window size", ylabel="EAGER / LAZY", title=f"Windows over {measured_in}")
        if measured_in == STREAM:
            axis.set_yscale("log")
        axis.legend()


SUMMARIES: dict[str, Callable[[Rows], tuple[list[str], list[list[str]]]]] = {
    "12": _summary_12,
    "13": _summary_13,
    "14": _summary_14,
}
PLOTS: dict[str, Callable[[list[Any], Rows], None]] = {"12": _plot_12, "13": _plot_13, "14": _plot_14}
