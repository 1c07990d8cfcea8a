"""Keyed tables, the working copies of a bucket: memory against rocksdb, from 10 k to 20 M keys.

    python -m benchmarks.state_store [--rounds N] [--quick] [--only memory rocksdb] [--keys N ...]
                                     [--keep FILE] [--plot FILE]

All of it takes a quarter of an hour a round; with ``--keep`` it can be run in parts, of which each adds to
FILE and reports all that is in it, ``--rounds 0`` without running anything.

Without Spark. Each working copy and number of keys runs in a process of its own, in turn, for several
rounds; a figure is the median of all. Rows are (key long, value double, ts timestamp, text of 16 bytes).

- ``put``: 100,000 rows with random keys that are there already (a tenth of the keys, if there are fewer
  than a million).
- ``commit``: the delta of those rows, encoded and durably written: `delta`, `encode`, `_durable.publish`.
  The part that is the disk's is also shown alone.
- ``upserts/s``: 20 times such a put and its `delta`, one after the other, not written.
- ``get``: as many random keys.
- ``snapshot``: the whole state to files; ``restore``: reading, decoding and restoring them.
- ``catch-up``: reading, decoding and restoring 10 deltas of a tenth of such a put each.
- ``RSS``: of the process after the upserts, and its highest until then (RocksDB's files are not mapped).
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import machine, median, pyplot, run_contender, save, scratch
from penstock import _durable
from penstock.checkpointing import decode, encode

SCHEMA = pa.schema(
    [
        pa.field("key", pa.int64()),
        pa.field("value", pa.float64()),
        pa.field("ts", pa.timestamp("us")),
        pa.field("text", pa.string()),
    ]
)


@dataclass(frozen=True)
class Workload:
    """A table of so many keys, and updates of random ones."""

    keys: int
    seed: int = 1

    @property
    def batch(self) -> int:
        """How many rows an update has."""
        return min(100_000, self.keys // 10)

    def fill(self) -> Iterator[pa.RecordBatch]:
        """Return the first rows of all keys, in random order."""
        generator = np.random.default_rng(self.seed)
        order = generator.permutation(self.keys)
        for begin in range(0, self.keys, 500_000):
            yield rows(generator, order[begin : begin + 500_000])

    def updates(self, count: int, size: int) -> Iterator[pa.RecordBatch]:
        """Return batches of rows with random keys."""
        generator = np.random.default_rng(self.seed + 1)
        for _ in range(count):
            yield rows(generator, generator.integers(0, self.keys, size))


def rows(generator: np.random.Generator, numbers: Any) -> pa.RecordBatch:
    """Return rows with the keys of these numbers."""
    count = len(numbers)
    text = generator.integers(97, 123, 16 * count, dtype=np.uint8)
    offsets = np.arange(0, 16 * count + 1, 16, dtype=np.int32)
    columns = [
        pa.array(numbers.astype(np.int64) * 2_654_435_761 % (1 << 61)),
        pa.array(generator.random(count)),
        pa.array(generator.integers(0, 1 << 50, count), pa.timestamp("us")),
        pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def new_table(contender: str, directory: Path) -> Any:
    """Return an empty table."""
    if contender == "memory":
        from penstock.state_store.tables.memory_table import MemoryTable

        return MemoryTable(SCHEMA, ("key",))
    from penstock.state_store.tables.rocksdb_table import RocksdbTable

    return RocksdbTable(SCHEMA, ("key",), scratch=directory)


def rss_mib() -> float:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def warm_up(contender: str, directory: Path) -> None:
    """Load the kernels, so that their first call is not timed."""
    small = Workload(5_000)
    one, other = new_table(contender, directory), new_table(contender, directory)
    for batch in (*small.fill(), *small.updates(2, 1_000)):
        one.put(batch)
        one.get(batch)
    other.restore(one.snapshot())
    one.put(batch)
    one.delete(batch)
    other.restore([decode(encode(one.delta()), "warm-up")])
    one.close()
    other.close()


def run_one(contender: str, workload: Workload, repeats: int) -> dict[str, Any]:
    """Run one working copy with one number of keys."""
    with scratch("state") as name:
        directory = Path(name)
        warm_up(contender, directory)
        took: dict[str, list[float]] = {}

        def timed(what: str, begin: float) -> float:
            now = time.perf_counter()
            took.setdefault(what, []).append(now - begin)
            return now

        table = new_table(contender, directory)
        filling = 0.0
        for batch in workload.fill():
            begin = time.perf_counter()
            table.put(batch)
            table.delta()
            filling += time.perf_counter() - begin
        assert len(table) == workload.keys
        written = 0
        for number, batch in enumerate(workload.updates(repeats, workload.batch)):
            begin = time.perf_counter()
            table.put(batch)
            changed = timed("put", begin)
            content = encode(table.delta())
            encoded = time.perf_counter()
            _durable.publish(directory / f"delta-{number}", content)
            timed("publish", encoded)
            begin = timed("commit", changed)
            written = len(content)
            found = table.get(batch)[1]
            timed("get", begin)
            assert found.all()
        batches = list(workload.updates(20, workload.batch))
        begin = time.perf_counter()
        for batch in batches:
            table.put(batch)
            table.delta()
        sustained = len(batches) * workload.batch / (time.perf_counter() - begin)
        del batches, batch, content
        gc.collect()
        memory = {"rss_mib": rss_mib(), "table_mib": table.size_bytes / 2**20}
        memory["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

        begin = time.perf_counter()
        sizes = []
        for part, unit in enumerate(table.snapshot()):
            content = encode(unit)
            _durable.publish(directory / f"snapshot-{part}", content)
            sizes.append(len(content))
        timed("snapshot", begin)
        deltas = []
        for number, batch in enumerate(workload.updates(10 * repeats, workload.batch // 10)):
            table.put(batch)
            path = directory / f"small-{number}"
            _durable.publish(path, encode(table.delta()))
            deltas.append(path)
        expected = len(table)
        parts = [directory / f"snapshot-{part}" for part in range(len(sizes))]
        for _ in range(1 if workload.keys > 2_000_000 else repeats):
            table.close()
            table = new_table(contender, directory)
            begin = time.perf_counter()
            table.restore(decode(_durable.read(path), path) for path in parts)
            timed("restore", begin)
        for number in range(repeats):
            some = deltas[10 * number : 10 * number + 10]
            begin = time.perf_counter()
            table.restore(decode(_durable.read(path), path) for path in some)
            timed("catch-up", begin)
        assert len(table) == expected
        table.close()
    return {
        "seconds": took,
        "fill_per_s": workload.keys / filling,
        "upserts_per_s": sustained,
        "delta_bytes": written,
        "snapshot_bytes": sum(sizes),
        **memory,
    }


def main() -> None:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="tiny tables, one round: does it run?")
    parser.add_argument("--only", nargs="*", help="run these working copies only")
    parser.add_argument("--keys", nargs="*", type=int, help="with these numbers of keys only")
    parser.add_argument("--keep", type=Path, help="add what is measured to this file, and report all in it")
    parser.add_argument("--plot", type=Path, help="draw the growth to this file")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        repeats = 2 if options.quick else 7
        print(json.dumps(run_one(options.contender, Workload(options.keys[0]), repeats)))
        return
    plan = {
        "memory": [10_000, 100_000, 1_000_000, 10_000_000, 20_000_000],
        "rocksdb": [10_000, 100_000, 1_000_000, 10_000_000, 20_000_000],
    }
    if options.quick:
        plan = {contender: [10_000] for contender in plan}
    quick = ["--quick"] if options.quick else []
    results = kept(options.keep) if options.keep and options.keep.exists() else {}
    for _ in range(1 if options.quick else options.rounds):
        for contender, numbers in plan.items():
            for keys in options.keys or numbers:
                if options.only and contender not in options.only:
                    continue
                arguments = ("--contender", contender, "--keys", str(keys), *quick)
                result = run_contender("state_store", *arguments)
                results.setdefault((contender, keys), []).append(result)
                if options.keep:
                    with options.keep.open("a") as lines:
                        lines.write(json.dumps([contender, keys, result]) + "\n")
                print(f"{contender} {keys}: {_summary([result])}", file=sys.stderr, flush=True)
    report(results)
    if options.plot:
        plot(results, options.plot)


def kept(file: Path) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Return what was measured before, by working copy and number of keys, in their order."""
    results: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for contender, keys, result in sorted(
        map(json.loads, file.read_text().splitlines()), key=lambda run: run[:2]
    ):
        results.setdefault((contender, keys), []).append(result)
    return results


def _summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the medians over all runs: milliseconds of the steps, and the other figures as they are."""
    steps = runs[0]["seconds"]
    medians = {step: 1000 * median([s for run in runs for s in run["seconds"][step]]) for step in steps}
    others = {name: median([run[name] for run in runs]) for name in runs[0] if name != "seconds"}
    others["peak_mib"] = max(run["peak_mib"] for run in runs)
    return {name: round(value, 1) for name, value in (medians | others).items()}


def report(results: dict[tuple[str, int], list[dict[str, Any]]]) -> None:
    """Print one row for each working copy and number of keys."""
    steps = ["put", "commit", "publish", "get", "snapshot", "restore", "catch-up"]
    print(f"\n{machine()}\n")
    print(f"{'':8} {'keys':>9} " + " ".join(f"{step + ' ms':>11}" for step in steps)
          + f" {'k upserts/s':>11} {'delta MB':>8} {'snap. MB':>8} {'RSS MiB':>8} {'peak':>6}")  # fmt: skip
    for (contender, keys), runs in results.items():
        figures = _summary(runs)
        print(f"{contender:8} {keys:9} " + " ".join(f"{figures[step]:11.1f}" for step in steps)
              + f" {figures['upserts_per_s'] / 1e3:11.0f} {figures['delta_bytes'] / 1e6:8.1f}"
              f" {figures['snapshot_bytes'] / 1e6:8.1f} {figures['rss_mib']:8.0f}"
              f" {figures['peak_mib']:6.0f}")  # fmt: skip


def plot(results: dict[tuple[str, int], list[dict[str, Any]]], file: Path) -> None:
    """Draw time and memory by the number of keys."""
    plt = pyplot()
    panels = {"put": "put, ms", "commit": "commit, ms", "restore": "restore, ms", "rss_mib": "memory, MiB"}
    figure, axes = plt.subplots(1, len(panels), figsize=(3.2 * len(panels), 3.0), layout="constrained")
    for axis, (step, title) in zip(axes, panels.items(), strict=True):
        for contender in dict.fromkeys(contender for contender, _ in results):
            points = [(keys, _summary(runs)[step]) for (c, keys), runs in results.items() if c == contender]
            axis.plot(*zip(*points, strict=True), marker="o", label=contender)
        axis.set(title=title, xlabel="keys", xscale="log", yscale="log")
        axis.grid(visible=True, alpha=0.3)
    axes[0].legend()
    save(figure, file)


if __name__ == "__main__":
    main()
