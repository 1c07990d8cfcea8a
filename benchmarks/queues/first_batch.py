"""Time, processor time and memory from the start of a program to its first micro-batch.

    python -m benchmarks.queues.first_batch [--rounds N] [--quick]

Each contender is a new process in an empty directory. They run in turn. The figures are of the process and
all below it, at the line that its first micro-batch prints. Memory is the proportional set size.

- ``penstock``: ``penstock run market``, with Penstock's session, kernels and warm workers.
- ``rows``, ``aggregate``, ``python``: programs of Spark alone over its source ``rate``. The first keeps no
  state. The second keeps the newest time of 3,000 keys. The third keeps a count in Python by
  ``applyInPandasWithState``.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.harness import REPOSITORY, median, print_and_save, report_foot, report_head, scratch, usage

SPARK_ALONE = ("rows", "aggregate", "python")
FIRST = "first micro-batch"


def run_spark(contender: str, checkpoint: str) -> None:
    """Run a query of Spark alone that prints a line for each micro-batch, until a signal ends it."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "OFF")
    spark = builder.getOrCreate()
    rows = spark.readStream.format("rate").option("rowsPerSecond", 20_000).load()
    keyed = rows.withColumn("key", F.col("value") % 3_000)
    if contender == "aggregate":
        rows = keyed.groupBy("key").agg(F.max("timestamp").alias("newest"))
    if contender == "python":

        def count(key: Any, parts: Any, state: Any) -> Iterator[Any]:
            state.update(((state.get[0] if state.exists else 0) + sum(map(len, parts)),))
            return iter(())

        grouped = keyed.withColumn("bucket", F.col("key") % 2).groupBy("bucket")
        rows = grouped.applyInPandasWithState(count, "key long", "rows long", "update", "NoTimeout")

    def show(batch: Any, number: int) -> None:
        batch.limit(10).collect()
        print(FIRST, number, flush=True)

    mode = "append" if contender == "rows" else "update"
    writer = rows.writeStream.outputMode(mode).option("checkpointLocation", checkpoint)
    writer.trigger(processingTime="2 seconds").foreachBatch(show).start().awaitTermination()


def measure(contender: str) -> tuple[float, float, float, int]:
    """Run a contender; return seconds, processor seconds, MiB and processes at its first micro-batch."""
    command = [sys.executable, "-m", "benchmarks.queues.first_batch", "--contender", contender, "checkpoint"]
    awaited = FIRST
    if contender == "penstock":
        command, awaited = [sys.executable, "-m", "penstock.cli", "run", "market"], "Batch: 0"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
    environment["PYSPARK_PYTHON"] = sys.executable
    with scratch("first") as place:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=place, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if awaited in line:
                break
        else:
            raise SystemExit("".join(said))
        figures = (time.perf_counter() - start, *usage(process.pid))
        os.killpg(process.pid, signal.SIGINT)
        process.communicate()
    return figures


def report(rounds: int) -> Iterator[str]:
    """Yield the lines of the report."""
    yield from report_head(f"python -m benchmarks.queues.first_batch --rounds {rounds}")
    contenders = ("penstock", *SPARK_ALONE)
    found: dict[str, list[tuple[float, ...]]] = {contender: [] for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            found[contender].append(measure(contender))
    yield f"medians of {rounds} runs"
    yield ""
    yield f"{'contender':10} {'s':>7} {'CPU, s':>7} {'MiB':>7} {'processes':>10}"
    for contender, runs in found.items():
        seconds, spent, mib, count = (median(list(values)) for values in zip(*runs, strict=True))
        yield f"{contender:10} {seconds:7.1f} {spent:7.1f} {mib:7.0f} {count:10.0f}"
    yield from report_foot()


def main() -> None:
    """Print the report; save it unless `--quick` is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one run each, not saved")
    parser.add_argument("--contender", nargs=2, metavar=("NAME", "CHECKPOINT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        run_spark(*options.contender)
    elif options.quick:
        for line in report(1):
            print(line)
    else:
        print_and_save(report(options.rounds), REPOSITORY / "benchmarks" / "results" / "first_batch.txt")


if __name__ == "__main__":
    main()
