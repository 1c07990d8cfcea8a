"""Measure windows by the number of keys, by size over slide, and by the size of micro-batches.

    python -m benchmarks.windows.windows_growth [--million 4] [--plot FILE.svg]

One process, without Spark, does the work of a map task and a bucket's task: rows to fragments, fragments to
parcels, parcels to windows, and the stored delta. Keys are drawn evenly. Open windows are full before the
first micro-batch, which is not measured. Then micro-batches run until none of its panes is in a window (at
least 3). Figures are million tuples a second of processor time in all of these, and the processor time of the
slowest one; memory, the delta and windows are those of the last one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import machine, pyplot, save
from penstock.checkpointing import encode
from penstock.operators.scan.spec import Fragments, Partial
from penstock.spark_ext.border.parcels import from_parcel
from penstock.spark_ext.border.window_packing import EntryPacker, add_rows, facts_of, row_fragmenter
from penstock.windows.append.time_panes import TimePanes
from penstock.windows.layout import WindowLayout
from penstock.windows.spec import WindowSpec

PARTIALS = (Partial("sum", "value", "sum"), Partial("count", "value", "known"), Partial("count", "*", "rows"))
BATCHES = 3
KEYS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
RATIOS = (1, 4, 16, 60, 240, 900, 3600)
PARTS = (100, 40, 10, 4, 1)


@dataclass(frozen=True)
class Case:
    """One stream of windows: keys, seconds and tuples of a micro-batch, size and slide in seconds."""

    keys: int
    seconds: int
    tuples: int
    size: int
    slide: int


def rows_of(case: Case, number: int) -> pa.RecordBatch:
    """Return a micro-batch."""
    generator, rows = np.random.default_rng(number), case.tuples
    times = (number * case.seconds + np.arange(rows) * case.seconds // rows).astype(np.int64)
    columns = [times, generator.integers(0, case.keys, rows), generator.random(rows)]
    return pa.RecordBatch.from_arrays([pa.array(one) for one in columns], ["time", "key", "value"])


def full_windows(case: Case) -> pa.RecordBatch:
    """Return a tuple of each key in each pane of a window that ends before the first micro-batch."""
    panes = np.arange(-(case.size // case.slide), 0) * case.slide
    times, keys = np.repeat(panes, case.keys), np.tile(np.arange(case.keys), len(panes))
    columns = [pa.array(times), pa.array(keys), pa.array(np.random.default_rng(0).random(len(times)))]
    return pa.RecordBatch.from_arrays(columns, ["time", "key", "value"])


def run(case: Case) -> dict[str, float]:
    """Return throughput, the rows and bytes of state, bytes of the delta, windows of a micro-batch."""
    fragments = Fragments(1000 * case.slide, "time", "s", ("key",), PARTIALS)
    schema = full_windows(case).schema
    fragmenter = row_fragmenter(schema, fragments)
    made = fragmenter.schema
    packer = EntryPacker.build(fragments, made, 1)
    layout = WindowLayout(
        WindowSpec(case.size // case.slide, 1),
        pa.schema([made.field("key")]),
        PARTIALS,
        tuple(made.field(one.name).type for one in PARTIALS),
        {},
        "rows",
    )
    state, took, windows, delta = TimePanes(layout), [], 0, 0
    batches = max(BATCHES, -(-case.size // case.seconds))
    for number in range(-1, batches + 1):
        batch = full_windows(case) if number < 0 else rows_of(case, number)
        begin = time.process_time()
        for first in range(0, batch.num_rows, 1 << 16):
            add_rows(fragmenter, fragments, batch.slice(first, 1 << 16))
        parcels = [
            from_parcel(payload)
            for parcel in packer.pack([fragmenter.finish()])
            for payload in parcel.column(2).to_pylist()
        ]
        done = state.run(parcels, max(facts_of(one)[0] for one in parcels))
        delta = len(encode(state.delta()))
        if number > 0:
            took.append(time.process_time() - begin)
        windows = sum(one.num_rows for one in done.windows)
    return {
        "million a s": case.tuples * len(took) / sum(took) / 1e6,
        "slowest ms": 1000 * max(took),
        "entries": len(state),
        "state MB": state.size_bytes / 1e6,
        "delta MB": delta / 1e6,
        "windows": windows,
    }


def table(
    title: str, cases: dict[int, Case], measure: Callable[[Case], dict[str, float]] = run
) -> dict[int, dict[str, float]]:
    """Print the figures of cases."""
    found: dict[int, dict[str, float]] = {}
    for number, (label, case) in enumerate(cases.items()):
        found[label] = measure(case)
        if not number:
            print(f"\n{title:>14}" + "".join(f"{name:>14}" for name in found[label]))
        print(f"{label:>14}" + "".join(f"{value:14.3f}" for value in found[label].values()), flush=True)
    return found


def plot(
    path: Path,
    found: dict[str, dict[int, dict[str, float]]],
    names: tuple[str, ...] = ("million a s", "state MB"),
) -> None:
    """Draw figures, throughput and state unless told otherwise."""
    plt = pyplot()
    figure, axes = plt.subplots(len(names), len(found), figsize=(12, 3 * len(names)), sharex="col")
    for column, (title, points) in enumerate(found.items()):
        for row, name in enumerate(names):
            axis: Any = axes[row][column]
            axis.plot(list(points), [one[name] for one in points.values()], marker="o")
            axis.set(xscale="log", ylabel=name, ylim=(0, None), xlabel=title if row == len(names) - 1 else "")
            axis.grid(visible=True, alpha=0.3)
    figure.tight_layout()
    save(figure, path)


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--million", type=float, default=4, help="tuples of a micro-batch")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    rows = round(arguments.million * 1e6)
    print(machine())
    run(Case(10, 60, 1000, 10, 10))
    found = {
        "keys": table("keys", {keys: Case(keys, 60, rows, 10, 10) for keys in KEYS}),
        "size / slide": table("size / slide", {ratio: Case(1000, 400, rows, ratio, 1) for ratio in RATIOS}),
        "tuples of a micro-batch": table(
            "tuples", {rows // part: Case(1000, 400 // part, rows // part, 3600, 1) for part in PARTS}
        ),
    }
    if arguments.plot:
        plot(arguments.plot, found)


if __name__ == "__main__":
    main()
