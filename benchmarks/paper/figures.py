"""Draw the figures of the UpStream paper from simulated runs of the operators.

Run it as ``python -m benchmarks.paper [--fast] [--out DIRECTORY] [FIGURE ...]``. Needs no Spark. Cases run
in as many processes as there are CPUs. Each has its own seed, so the numbers do not depend on how many.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.paper import window_figures
from benchmarks.paper.drawing import line, pivot
from benchmarks.paper.experiments import EXPERIMENTS
from benchmarks.paper.scale import Runner, Scale
from penstock._extras import need_extra
from penstock.errors import InvalidUsageError, UnavailableError

__all__ = ["draw", "run", "summary"]

_TITLES = {
    "5": "Application and queue staleness of an IN-PLACE update queue (in numbers of updates)",
    "7": "Application staleness of append and update queues (in numbers of updates)",
    "9": "Gain of LINECUTTING over IN-PLACE, 10 keys, load factor 5 (ratio of queue staleness)",
    **window_figures.TITLES,
    "16": "Memory by skew (usage in locations, effective usage as a share)",
    "17": "Memory by arrival rate, at 10 results/s (usage in locations, effective usage as a share)",
}


def run(figures: list[str], out: Path, fast: bool = False, *, workers: int | None = None) -> int:
    """Simulate `figures`, print a table of each and write it as CSV, SVG and PNG to `out`.

    Parameters
    ----------
    figures : list of str
        Numbers of the paper's figures, such as ``"7"`` or ``"fig7"``; all if empty.
    out : Path
        A directory; made if there is none. Files of these names in it are replaced.
    fast : bool
        Simulate less: rougher numbers in seconds.
    workers : int, optional
        Number of processes; 1 runs all in this one. By default one for each CPU.

    Returns
    -------
    int
        0.

    Raises
    ------
    InvalidUsageError
        If there is no such figure, or no matplotlib.
    UnavailableError
        If `out` cannot be written.
    """
    numbers = _numbers(figures)
    need_extra("plot", "benchmarks.paper")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError("cannot write the figures", directory=out, reason=error.strerror) from error
    console = Console()
    scale = Scale.fast() if fast else Scale()
    with _runner(len(os.sched_getaffinity(0)) if workers is None else workers) as runner:
        for number in numbers:
            table = EXPERIMENTS[number](scale, runner)
            console.print(_rich(number, table))
            try:
                pacsv.write_csv(table, out / f"figure-{number}.csv")
                draw(number, table, out)
            except OSError as error:
                raise UnavailableError(
                    "cannot write the figures", directory=out, reason=error.strerror
                ) from error
    console.print(f"plots and tables: {out}", highlight=False, soft_wrap=True)
    return 0


def _numbers(figures: Sequence[str]) -> list[str]:
    known = {name: number for number in EXPERIMENTS for name in (number, f"fig{number}", f"figure-{number}")}
    unknown = [name for name in figures if name.lower() not in known]
    if unknown:
        raise InvalidUsageError(
            "there is no such figure", figures=unknown, hint=f"choose of {', '.join(EXPERIMENTS)}"
        )
    return list(dict.fromkeys(known[name.lower()] for name in figures)) or list(EXPERIMENTS)


@contextmanager
def _runner(workers: int) -> Iterator[Runner]:
    """Yield a function that runs each case only once: figures 5 and 7, and 16 and 17, share some."""
    if workers <= 1:
        yield _remembering(lambda function, cases: [function(case) for case in cases])
        return
    # Not forked: a process with threads, such as Arrow's, cannot be copied safely.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield _remembering(_in_pool(pool))


def _in_pool(pool: Executor) -> Runner:
    return lambda function, cases: list(pool.map(function, cases))


def _remembering(run: Runner) -> Runner:
    known: dict[tuple[Callable[[Any], Any], Any], Any] = {}

    def remember(function: Callable[[Any], Any], cases: Sequence[Any]) -> list[Any]:
        new = [case for case in cases if (function, case) not in known]
        for case, result in zip(new, run(function, new), strict=True):
            known[function, case] = result
        return [known[function, case] for case in cases]

    return remember


def summary(number: str, table: pa.Table) -> tuple[list[str], list[list[str]]]:
    """Return the heads and rows of the table that is shown for a figure."""
    rows = table.to_pylist()
    if number in window_figures.SUMMARIES:
        return window_figures.SUMMARIES[number](rows)
    if number == "5":
        heads = ["load"]
        for names in ("1 key", "10 keys"):
            heads += [f"{names}: {measure}" for measure in ("application", "queue", "between")]
        cells = {(row["keys"], row["load"]): row for row in rows}
        lines = []
        for load in sorted({row["load"] for row in rows}):
            shown = [f"{load:g}"]
            for keys in (1, 10):
                row = cells[keys, load]
                application, queue = row["application_staleness"], row["queue_staleness"]
                shown += [f"{application:.2f}", f"{queue:.2f}", f"{application - queue:.2f}"]
            lines.append(shown)
        return heads, lines
    if number == "7":
        return pivot(
            rows,
            "load",
            "load",
            lambda row: f"{row['keys']} key{'s' if row['keys'] > 1 else ''}: {row['queue']}",
            "application_staleness",
        )
    if number == "9":
        return pivot(rows, "slow", "slow keys", _variant, "gain")
    by = "theta" if number == "16" else "rate"
    heads = ["theta" if number == "16" else "tuples/s"]
    heads += ["effective: on demand", "effective: naive", "usage: on demand", "usage: naive"]
    measures = ("on_demand_effective", "naive_effective", "on_demand_usage", "naive_usage")
    return heads, [
        [f"{row[by]:g}", *(f"{row[name]:.{2 if 'effective' in name else 1}f}" for name in measures)]
        for row in rows
    ]


def _variant(row: dict[str, Any]) -> str:
    if row["load_of"] == "all keys":
        return "steady keys, load of all"
    return f"{row['arrivals']} keys, cost {row['cost']}"


def _rich(number: str, table: pa.Table) -> Table:
    heads, lines = summary(number, table)
    shown = Table(
        title=f"Figure {number}. {_TITLES[number]}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for head in heads:
        shown.add_column(head.replace(": ", "\n").replace(", ", "\n"), justify="right", no_wrap=True)
    for cells in lines:
        shown.add_row(*cells)
    return shown


_STYLE: Any = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10.0,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.markersize": 4.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
}
_COLOURS = {
    "AQ": "#7f7f7f",
    "AQ-RLS": "#c8851b",
    "UQ-FIFO": "#3a7fbf",
    "UQ-INPLACE": "#1c7c4a",
}


def draw(number: str, table: pa.Table, out: Path) -> None:
    """Write the figure as ``figure-<number>.svg`` and ``.png`` to the directory `out`."""
    with _matplotlib_directory():
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        with mpl.rc_context(_STYLE):
            panels = 1 if number == "9" else 2
            figure = Figure(figsize=(4.6 * panels + (1.4 if panels == 1 else 0), 3.6), layout="constrained")
            FigureCanvasAgg(figure)
            axes = [figure.add_subplot(1, panels, panel + 1) for panel in range(panels)]
            _PLOTS[number](axes, table.to_pylist())
            figure.savefig(out / f"figure-{number}.svg", metadata={"Date": None})
            figure.savefig(out / f"figure-{number}.png", dpi=150)


@contextmanager
def _matplotlib_directory() -> Iterator[None]:
    """Give matplotlib, which caches its fonts, a directory that is there even without a home."""
    if "MPLCONFIGDIR" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="penstock-matplotlib-") as private:
        os.environ["MPLCONFIGDIR"] = private
        try:
            yield
        finally:
            del os.environ["MPLCONFIGDIR"]


def _plot_5(axes: list[Any], rows: list[dict[str, Any]]) -> None:
    for axis, keys, title in zip(axes, (1, 10), ("(a) Single key", "(b) Multiple keys (10)"), strict=True):
        own = [row for row in rows if row["keys"] == keys]
        line(
            axis,
            own,
            "load",
            "application_staleness",
            label="application staleness",
            marker="o",
            color="#1c7c4a",
        )
        line(
            axis,
            own,
            "load",
            "queue_staleness",
            label="queue staleness",
            marker="s",
            ls="--",
            color="#3a7fbf",
        )
        axis.set(xlabel="load factor", ylabel="average staleness (number of updates)", title=title)
        axis.set_ylim(bottom=0)
        axis.legend()


def _plot_7(axes: list[Any], rows: list[dict[str, Any]]) -> None:
    for axis, keys, title in zip(axes, (1, 10), ("(a) Single key", "(b) Multiple keys (10)"), strict=True):
        for (queue, colour), marker in zip(_COLOURS.items(), "ovsD", strict=True):
            own = [row for row in rows if row["keys"] == keys and row["queue"] == queue]
            style = "--" if queue == "UQ-INPLACE" else "-"
            line(
                axis, own, "load", "application_staleness", label=queue, marker=marker, ls=style, color=colour
            )
        axis.set(xlabel="load factor", ylabel="average staleness (number of updates)", title=title)
        axis.set_yscale("log")
        axis.legend()


def _plot_9(axes: list[Any], rows: list[dict[str, Any]]) -> None:
    (axis,) = axes
    styles = (("o", "-", "#1c7c4a"), ("x", ":", "#000000"), ("s", "--", "#3a7fbf"), ("v", "-.", "#c8851b"))
    names = list(dict.fromkeys(_variant(row) for row in rows))
    for name, (marker, dashes, colour) in zip(names, styles, strict=False):
        own = [row for row in rows if _variant(row) == name]
        line(axis, own, "slow", "gain", label=name, marker=marker, ls=dashes, color=colour)
    axis.axhline(1.0, color="#7f7f7f", lw=0.8)
    axis.set(
        xlabel="number of slow updaters (of 10 keys)",
        ylabel="queue staleness ratio\nIN-PLACE / LINECUTTING",
        xticks=range(11),
    )
    axis.legend()


def _plot_memory(axes: list[Any], rows: list[dict[str, Any]], by: str, label: str) -> None:
    for axis, measure, title, unit in (
        (axes[0], "effective", "(a) Effective memory usage", "share of allocated locations in use"),
        (axes[1], "usage", "(b) Memory usage", "allocated locations (of 100 keys)"),
    ):
        line(axis, rows, by, f"on_demand_{measure}", label="on-demand paging", marker="o", color="#1c7c4a")
        line(axis, rows, by, f"naive_{measure}", label="naive", marker="s", ls="--", color="#7f7f7f")
        axis.set(xlabel=label, ylabel=unit, title=title)
        axis.set_ylim(0, 1.05 if measure == "effective" else 110)
        axis.legend(loc="lower right")


def _plot_16(axes: list[Any], rows: list[dict[str, Any]]) -> None:
    _plot_memory(axes, rows, "theta", "Zipf theta of the update rates")


def _plot_17(axes: list[Any], rows: list[dict[str, Any]]) -> None:
    _plot_memory(axes, rows, "rate", "arrival rate (tuples/s; 10 results/s)")


_PLOTS: dict[str, Callable[[list[Any], list[dict[str, Any]]], None]] = {
    "5": _plot_5,
    "7": _plot_7,
    "9": _plot_9,
    **window_figures.PLOTS,
    "16": _plot_16,
    "17": _plot_17,
}
