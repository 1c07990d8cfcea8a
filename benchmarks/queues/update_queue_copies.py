"""Update queues by working copy: keys that do not wait in memory, or in RocksDB on local disk.

    python -m benchmarks.queues.update_queue_copies [--rounds N] [--quick] [--only memory rocksdb]
        [--keys N ...]
                                             [--waiting SHARE]

Without Spark: one bucket, a process each, in turn, for several rounds; a figure is the median of all. Tuples
are (key long, time long, value double, text of 16 bytes). All keys were seen before the clock starts.

- ``serve``: what a micro-batch with 100,000 updates of random keys does (a tenth of the keys, if there are
  fewer than a million): enqueue, dequeue all that waits, deliver, settle. With ``--waiting`` a share of the
  keys goes on waiting.
- ``commit``: its delta, encoded and durably written, as `BucketStore.commit` does it, without snapshots.
- ``upserts/s``: updates by the time of both.
- ``snapshot``: the whole state, encoded and durably written; ``load``: reading and restoring it.
- ``RSS``: of the process after the micro-batches, and its highest until then; of both, what it was before
  the first key is included (``at the start``).
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import machine, median, run_contender, scratch
from penstock import _durable
from penstock.checkpointing import decode, encode
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import UpdateStream
from penstock.state_store.tables.working_copy import WorkingCopy, table_maker


def rss_mib() -> float:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


SCHEMA = pa.schema(
    [
        pa.field("key", pa.int64()),
        pa.field("time", pa.int64()),
        pa.field("value", pa.float64()),
        pa.field("text", pa.string()),
    ]
)
STREAM = UpdateStream(SCHEMA, ("key",), "time")
FILL_ROWS = 500_000
KEYS = [1_000_000, 10_000_000]


def arrivals_of(generator: np.random.Generator, numbers: Any, time_us: int) -> Arrivals:
    """Return one update of each of these keys."""
    count = len(numbers)
    text = generator.integers(97, 123, 16 * count, dtype=np.uint8)
    offsets = np.arange(0, 16 * count + 1, 16, dtype=np.int32)
    columns = [
        pa.array(numbers.astype(np.int64) * 2_654_435_761 % (1 << 61)),
        pa.array(np.full(count, time_us)),
        pa.array(generator.random(count)),
        pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)]),
    ]
    return Arrivals.from_rows(STREAM, pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


def micro_batch(queue: UpdateQueue, arrivals: Arrivals | None, now_us: int, waiting: int) -> None:
    """Let updates in and serve all but so many keys."""
    if arrivals is not None:
        queue.enqueue(arrivals, now_us)
    served = queue.dequeue(max(len(queue) - waiting, 0), now_us)
    queue.deliver(served, now_us)
    queue.account_staleness(now_us)


def run_one(copy: WorkingCopy, keys: int, share: float, repeats: int) -> dict[str, Any]:
    """Run one working copy with one number of keys."""
    with scratch("copies") as name:
        directory, generator = Path(name), np.random.default_rng(1)

        def new() -> UpdateQueue:
            return UpdateQueue(STREAM, Policy.IN_PLACE, table=table_maker(copy, directory))

        for _ in range(2):  # the first calls load kernels
            queue = new()
            for now_us in (1, 2):
                micro_batch(queue, arrivals_of(generator, np.arange(2_000), now_us), now_us, 10)
                queue.restore([decode(encode(queue.delta()), "warm-up")])
            list(queue.snapshot())
            queue.close()
        start_mib = rss_mib()
        queue, now_us, waiting = new(), 10, int(share * keys)
        order = generator.permutation(keys)
        for begin in range(0, keys, FILL_ROWS):
            now_us += 1
            micro_batch(
                queue, arrivals_of(generator, order[begin : begin + FILL_ROWS], now_us), now_us, waiting
            )
            queue.delta()
        del order
        assert queue.keys == keys
        batch = min(100_000, keys // 10)
        took: dict[str, list[float]] = {"serve": [], "commit": []}
        written = 0
        for number in range(repeats):
            arrivals = arrivals_of(generator, np.unique(generator.integers(0, keys, batch)), now_us + number)
            begin_s = time.perf_counter()
            micro_batch(queue, arrivals, now_us + number, waiting)
            served_s = time.perf_counter()
            content = encode(queue.delta())
            _durable.publish(directory / f"delta-{number}", content)
            took["serve"].append(served_s - begin_s)
            took["commit"].append(time.perf_counter() - served_s)
            written = len(content)
        del arrivals, content  # type: ignore[possibly-undefined]  # repeats is at least 1
        gc.collect()
        memory = {"start_mib": start_mib, "rss_mib": rss_mib(), "state_mib": queue.size_bytes / 2**20}
        memory["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        memory["disk_mib"] = sum(path.stat().st_size for path in directory.rglob("*.sst")) / 2**20
        begin_s = time.perf_counter()
        parts: list[Path] = []
        for unit in queue.snapshot():
            parts.append(directory / f"snapshot-{len(parts)}")
            _durable.publish(parts[-1], encode(unit))
        took["snapshot"] = [time.perf_counter() - begin_s]
        queue.close()
        queue = new()
        begin_s = time.perf_counter()
        queue.restore(decode(_durable.read(path), path) for path in parts)
        took["load"] = [time.perf_counter() - begin_s]
        assert queue.keys == keys
        queue.close()
    return {"seconds": took, "batch": batch, "delta_bytes": written, **memory}


def main() -> None:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few keys, one round: does it run?")
    parser.add_argument("--only", nargs="*", default=[*WorkingCopy], help="run these working copies only")
    parser.add_argument("--keys", nargs="*", type=int, default=KEYS, help="with these numbers of keys only")
    parser.add_argument("--waiting", type=float, default=0.0, help="the share of the keys that waits")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        repeats = 2 if options.quick else 20
        copy = WorkingCopy(options.contender)
        print(json.dumps(run_one(copy, options.keys[0], options.waiting, repeats)))
        return
    quick = ["--quick"] if options.quick else []
    results: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for _ in range(1 if options.quick else options.rounds):
        for keys in [20_000] if options.quick else options.keys:
            for copy in options.only:
                arguments = ("--contender", copy, "--keys", str(keys), "--waiting", str(options.waiting))
                result = run_contender("queues.update_queue_copies", *arguments, *quick)
                results.setdefault((str(copy), keys), []).append(result)
                print(f"{copy} {keys}: {_summary([result])}", file=sys.stderr, flush=True)
    report(results)


def _summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the medians over all runs: milliseconds of the steps, and the other figures as they are."""
    steps = runs[0]["seconds"]
    medians = {step: 1000 * median([s for run in runs for s in run["seconds"][step]]) for step in steps}
    others = {name: median([run[name] for run in runs]) for name in runs[0] if name != "seconds"}
    rate = {"upserts_per_s": 1000 * others["batch"] / (medians["serve"] + medians["commit"])}
    return {name: round(value, 1) for name, value in (medians | others | rate).items()}


def report(results: dict[tuple[str, int], list[dict[str, Any]]]) -> None:
    """Print one row for each working copy and number of keys."""
    steps = ["serve", "commit", "snapshot", "load"]
    print(f"\n{machine()}\n")
    print(f"{'':8} {'keys':>9} " + " ".join(f"{step + ' ms':>11}" for step in steps)
          + f" {'k upserts/s':>11} {'delta MB':>8} {'RSS MiB':>8} {'peak':>6} {'at the start':>12}"
          f" {'disk MiB':>8}")  # fmt: skip
    for (copy, keys), runs in results.items():
        figures = _summary(runs)
        print(f"{copy:8} {keys:9} " + " ".join(f"{figures[step]:11.1f}" for step in steps)
              + f" {figures['upserts_per_s'] / 1e3:11.0f} {figures['delta_bytes'] / 1e6:8.1f}"
              f" {figures['rss_mib']:8.0f} {figures['peak_mib']:6.0f} {figures['start_mib']:12.0f}"
              f" {figures['disk_mib']:8.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
