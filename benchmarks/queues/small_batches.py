"""The cost of a small micro-batch: Spark's part, and Penstock's part.

    python -m benchmarks.queues.small_batches [--rounds N] [--quick]

Two queries read the same 300 rows a micro-batch and write to the noop sink, with 2 buckets and 2 shuffle
partitions. They run in turn in one JVM, for several rounds, so that both see the same load. The first
round and the first micro-batches of each start are left out.

- ``spark``: a minimal ``applyInPandasWithState``, grouped by bucket.
- ``penstock``: ``update_queue(budget=None)``.

The difference is Penstock's part. Times of the clock depend on the machine's load, processor time much less.
The phases are those of the slowest bucket of each micro-batch, from the operator's metrics; ``commit``
includes two syncs of the disk. `catch-ups` is the share of buckets whose worker had an older state or none.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import (
    REPOSITORY,
    ProcessorProbe,
    Workload,
    median,
    print_and_save,
    report_foot,
    report_head,
    scratch,
    session,
)
from benchmarks.queues.update_queue_speed import build

ROWS, KEYS, WARM_UP = 300, 1_000, 4
PARTS = ("triggerExecution", "latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
PHASES = ("load", "enqueue", "serve", "commit")
CONTENDERS = {"spark": "by-bucket", "penstock": "penstock"}

Figures = dict[str, list[float]]


def run_once(contender: str, spark: Any, directory: Path, probe: ProcessorProbe, found: Figures) -> None:
    """Run all micro-batches once, and add their figures to `found`."""
    reader = spark.readStream.schema("key long, ts timestamp, value double").option("maxFilesPerTrigger", 1)
    with scratch(contender) as name:
        df, mode = build(CONTENDERS[contender], spark, reader.parquet(str(directory)), Path(name))
        writer = df.writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{name}/checkpoint").start()
        query.awaitTermination()
    batches = [one for one in query.recentProgress if one.numInputRows][WARM_UP:]
    for batch in batches:
        for part in PARTS:
            found[part].append(batch.durationMs[part])
        for observed in batch.observedMetrics.values():
            buckets = [json.loads(line) for line in observed["metrics"].splitlines()]
            for phase in PHASES:
                found[phase].append(max(one["duration_ms"][phase] for one in buckets))
            found["catch-ups"].append(statistics.mean(one["catch_ups"] + one["loads"] for one in buckets))
    begin, *_, end = (datetime.fromisoformat(one.timestamp).timestamp() for one in batches)
    for kind, seconds in probe.between(begin, end).items():
        found[f"CPU {kind}"].append(1000 * seconds / (len(batches) - 1))


def report(rounds: int, batches: int) -> Iterator[str]:
    """Yield the lines of the report."""
    yield from report_head(f"python -m benchmarks.queues.small_batches --rounds {rounds}")
    spark = session()
    found: dict[str, Figures] = {contender: defaultdict(list) for contender in CONTENDERS}
    with scratch("small") as name, ProcessorProbe() as probe:
        Workload("small", ROWS, KEYS, 0.0, WARM_UP + batches, files_per_batch=1).write(Path(name))
        for number in range(1 + rounds):
            for contender in sorted(CONTENDERS, reverse=number % 2 == 1):
                figures = found[contender] if number else defaultdict(list)  # Java warms up in the first
                run_once(contender, spark, Path(name), probe, figures)
    spark.stop()
    yield f"{ROWS} rows a micro-batch, 2 buckets, {rounds * batches} micro-batches each; ms"
    yield ""
    yield f"{'':10} {'part':18} {'least':>7} {'q1':>7} {'median':>7} {'q3':>7}"
    for contender, figures in found.items():
        for part, values in figures.items():
            if part != "CPU this":  # it holds the probe
                cells = " ".join(f"{cell:7.1f}" for cell in np.percentile(values, [0, 25, 50, 75]))
                yield f"{contender:10} {part:18} {cells}"
    yield "Penstock's part, ms: " + ", ".join(
        f"{part} {median(found['penstock'][part]) - median(values):.0f}"
        for part, values in found["spark"].items()
        if part in ("triggerExecution", "addBatch", "CPU java", "CPU workers")
    )
    yield from report_foot()


def main() -> None:
    """Print the report; save it unless `--quick` is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="few micro-batches: does it run?")
    options = parser.parse_args()
    if options.quick:
        for line in report(1, 3):
            print(line)
        return
    print_and_save(report(options.rounds, 10), REPOSITORY / "benchmarks" / "results" / "small_batches.txt")


if __name__ == "__main__":
    main()
