"""Draw the figures of the designer and the predictor (H-Store Fig. 4.5 to 4.10, 5.10 to 5.12).

    python -m benchmarks.designs.design_drawings [4.5 4.6 4.6f 4.7 4.8 4.9 4.10 5.10 5.11 5.12]

A drawing shows the numbers of its result in `benchmarks/results`. Where lines differ in partitions, those of
the most partitions count.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import REPOSITORY, pyplot, save

__all__ = ["DRAWINGS", "Table", "read"]

RESULTS = REPOSITORY / "benchmarks" / "results"
PLOTS = REPOSITORY / "docs" / "figures"


@dataclass
class Table:
    """A table of a result.

    Attributes
    ----------
    heads : list of str
        The heads of the columns of numbers.
    rows : list of tuple
        The label and the numbers of each line.
    """

    heads: list[str]
    rows: list[tuple[str, list[float]]]

    def column(self, head: str) -> list[float]:
        """Return a column."""
        return [numbers[self.heads.index(head)] for _, numbers in self.rows]

    def of_most_partitions(self) -> Table:
        """Return the lines with the most partitions."""
        most = max(self.column("partitions"))
        at = self.heads.index("partitions")
        return Table(self.heads, [row for row in self.rows if row[1][at] == most])


def read(text: str, first: str, width: int) -> Table:
    """Return the table of a result whose head begins with a word; labels have so many characters."""
    lines = text.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(first))
    heads = _cells(lines[begin][width:])
    rows = []
    for line in lines[begin + 1 :]:
        if not line.strip():
            break
        numbers = [_number(cell) for cell in line[width:].split()]
        rows.append((line[:width].strip(), [one for one in numbers if one is not None]))
    return Table(heads, rows)


def _cells(line: str) -> list[str]:
    """Return the heads of a line; a unit or a name after one space belongs to the head before it."""
    return [cell.strip() for cell in line.replace("/ ", "/").split("  ") if cell.strip()]


def _number(cell: str) -> float | None:
    try:
        return float(cell.rstrip("%").replace(",", ""))
    except ValueError:
        return None


def _text(name: str) -> str:
    return (RESULTS / name).read_text(encoding="utf-8")


def _bars(axis: Any, labels: Sequence[str], series: dict[str, list[float]]) -> None:
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        places = [place + (number - len(series) / 2 + 0.5) * width for place in range(len(labels))]
        axis.bar(places, values, width, label=name)
    axis.set_xticks(range(len(labels)), labels, rotation=40, ha="right")


def _lines(axis: Any, table: Table, xs: Sequence[float], first: int = 0) -> None:
    for label, numbers in table.rows:
        axis.plot(xs, numbers[first : first + len(xs)], marker="o", markersize=3, label=label)


def _draw_5(axis: Any) -> None:
    table = read(_text("designs.txt"), "workload", 16)
    costs: dict[str, dict[str, float]] = {}
    most = max(numbers[0] for _, numbers in table.rows)
    lines = [line for line in _text("designs.txt").splitlines() if len(line) > 30 and line[:16].strip()]
    for line in lines:
        cells = line[16:].split()
        if len(cells) > 4 and cells[0] == f"{most:.0f}":
            costs.setdefault(cells[1], {})[line[:16].strip()] = float(cells[4])
    names = list(dict.fromkeys(name for one in costs.values() for name in one))
    _bars(
        axis, names, {algorithm: [one.get(name, 0.0) for name in names] for algorithm, one in costs.items()}
    )
    axis.set(ylabel=f"cost, {most:.0f} partitions", yscale="log")


def _draw_6(axis: Any) -> None:
    table = read(_text("h_store_fig4_6.txt"), "workload", 16).of_most_partitions()
    names = [label for label, _ in table.rows]
    _bars(axis, names, {name: table.column(name) for name in ("HR+", "SCH", "MFA")})
    axis.set(ylabel=f"transactions in a unit of time,\n{table.column('partitions')[0]:.0f} partitions",
             yscale="log")  # fmt: skip


def _draw_6f(axis: Any) -> None:
    table = read(_text("h_store_fig4_6f.txt"), "partitions", 10)
    _bars(axis, table.heads, dict(table.rows))
    axis.set(ylabel="throughput without both = 1", yscale="log")


def _draw_7(axis: Any) -> None:
    table = read(_text("h_store_fig4_7.txt"), "workload", 16)
    _lines(axis, table, [float(head) for head in table.heads])
    axis.set(xlabel="partitions", ylabel="joined transactions, %", xscale="log")


def _draw_8(axis: Any) -> None:
    table = read(_text("h_store_fig4_8.txt"), "workload", 16)
    for label, numbers in table.rows:
        axis.plot([float(head) for head in table.heads], numbers[::2], marker="o", markersize=3, label=label)
    axis.set(xlabel="partitions", ylabel="seconds of a search", xscale="log", yscale="log")


def _draw_9(axis: Any) -> None:
    for first, prefix in (("seconds of a round", "rounds of "), ("backtracks", "backtracks ")):
        table = read(_text("h_store_fig4_9.txt"), first, 26)
        xs = [float(head.removesuffix(" s")) for head in table.heads]
        for label, numbers in table.rows:
            name = f"{prefix}{label}{' s' if first.startswith('s') else ''}"
            axis.plot(xs, numbers, marker="o", markersize=3, label=name)
    axis.set(xlabel="seconds of the search", ylabel="cost of TPC-E")


def _draw_10(axis: Any) -> None:
    table = read(_text("h_store_fig4_10.txt"), "workload", 16)
    heads = [head for head in table.heads if head.endswith(" s")]
    _lines(axis, table, [float(head.removesuffix(" s")) for head in heads], 1)
    axis.set(xlabel="seconds of the search", ylabel="single-partition transactions, %", xscale="symlog")
    axis.set_xlim(left=0)


def _draw_5_11(axis: Any) -> None:
    table = read(_text("h_store_fig5_11.txt"), " " * 14 + "partitions", 14)
    for number, name in enumerate(dict.fromkeys(label for label, _ in table.rows)):
        part = Table(table.heads, [row for row in table.rows if row[0] == name])
        for mode, style in (("single", ":"), ("global", "--"), ("Houdini", "-")):
            label = f"{name}, {mode}"
            axis.plot(part.column("partitions"), part.column(mode), style, color=f"C{number}", label=label)
    axis.set(xlabel="partitions", ylabel="transactions a second", xscale="log", yscale="log")


def _draw_5_12(axis: Any) -> None:
    table = read(_text("h_store_fig5_12.txt"), "threshold", 14)
    _lines(axis, table, [float(head) for head in table.heads if head[0].isdigit()])
    axis.set(xlabel="threshold", ylabel="transactions a second, 16 partitions", ylim=0)


def _draw_5_10(axis: Any) -> None:
    table = read(_text("houdini_overhead.txt"), " " * 26 + "       us", 26)
    parts = table.heads[1:-1]
    bottom = [0.0] * len(table.rows)
    for part in parts:
        shares = table.column(part)
        axis.barh([label for label, _ in table.rows], shares, left=bottom, label=part)
        bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
    axis.set(xlabel="share of the CPU time, %")


DRAWINGS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "4.5": ("Cost of designs", _draw_5),
    "4.6": ("Throughput of designs, virtual time", _draw_6),
    "4.6f": ("TATP without routes and a replicated index, virtual time", _draw_6f),
    "4.7": ("Workload compression", _draw_7),
    "4.8": ("Time of a search", _draw_8),
    "4.9": ("Limits of a round", _draw_9),
    "4.10": ("Progress of a search", _draw_10),
    "5.10": ("Parts of a transaction's time", _draw_5_10),
    "5.11": ("Throughput by the number of partitions, virtual time", _draw_5_11),
    "5.12": ("Throughput by the threshold, virtual time", _draw_5_12),
}


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figures", nargs="*", choices=[*DRAWINGS, []], default=[])
    parser.add_argument("--plots", type=Path, default=PLOTS, help="where plots go")
    options = parser.parse_args()
    plt = pyplot()
    plt.rcParams["svg.fonttype"] = "none"
    for number in options.figures or DRAWINGS:
        title, draw = DRAWINGS[number]
        figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
        draw(axis)
        axis.set_title(f"H-Store, Fig. {number}: {title}", fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
        save(figure, options.plots / f"h-store-{number.replace('.', '-')}.svg")
        plt.close(figure)


if __name__ == "__main__":
    main()
