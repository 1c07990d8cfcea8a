"""Update queue against Spark's own ways to keep the newest tuple of each key.

    python -m benchmarks.queues.update_queue_speed [--rounds N] [--quick]

All contenders read the same files, one micro-batch of them a trigger, and write to the noop sink, each
in a process of its own, in turn, for several rounds. The figure is the median time of a micro-batch
(Spark's ``triggerExecution``), the first three (Java warms up) left out.

- ``penstock``: ``update_queue(budget=None)`` with its default map-side combine; ``penstock-no-combine``:
  the same without it.
- ``native``: ``groupBy(key).agg(max_by(struct(ts, value), ts))`` in update mode, the newest row whatever
  its columns; ``native-rocksdb``: the same on the RocksDB state store with changelog checkpointing;
  ``native-flat``: ``agg(max(ts), max_by(value, ts))``, for which Spark generates faster code, as long as
  every column is of fixed width.
- ``by-bucket``: rows shuffled as they are to ``applyInPandasWithState`` grouped by bucket.
- ``per-key``: the ``applyInPandasWithState`` program grouped by the update key. It calls Python once a
  key, so it gets smaller batches: 100,000 rows over 10,000 keys.
- ``stateful-empty`` and ``penstock-empty``: micro-batches without new data, in which a minimal
  ``applyInPandasWithState`` or Penstock's queue runs by timeout in both buckets and commits its state.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    ROCKSDB_STATE,
    MemoryProbe,
    Workload,
    batch_seconds,
    machine,
    median,
    run_contender,
    scratch,
    session,
)

MAIN = Workload("5 M rows a batch, 100 k keys, Zipf 0.9", 5_000_000, 100_000, 0.9, 10)
UNIQUE = Workload("2 M rows a batch, 4 M keys, uniform", 2_000_000, 4_000_000, 0.0, 8)
PER_KEY = Workload("100 k rows a batch, 10 k keys", 100_000, 10_000, 0.0, 6)
QUICK = Workload("2 k rows a batch, 100 keys, Zipf 0.9", 2_000, 100, 0.9, 3)


def newest_per_key(key: Any, frames: Any, state: Any) -> Any:
    """Keep the newest row of one key: what a user would write."""
    import pandas as pd

    best = state.get if state.exists else None
    for frame in frames:
        row = frame.loc[frame["micros"].idxmax()]
        if best is None or row["micros"] >= best[0]:
            best = (int(row["micros"]), float(row["value"]))
    state.update(best)
    yield pd.DataFrame({"key": [int(key[0])], "micros": [best[0]], "value": [best[1]]})


def newest_per_bucket(key: Any, frames: Any, state: Any) -> Any:
    """Keep the newest row of each key of a bucket, without state: the cost of the way alone."""
    import pandas as pd

    state.update((0,))
    rows = pd.concat(list(frames)).sort_values("micros").drop_duplicates("key", keep="last")
    yield rows[["key", "micros", "value"]]


def build(contender: str, spark: Any, rows: Any, directory: Path) -> tuple[Any, str]:
    """Return the contender's streaming DataFrame and output mode."""
    from pyspark.sql import functions as sf

    import penstock
    from penstock.spark_ext.border.buckets import bucket_labels

    if contender.startswith("penstock"):
        combine: bool | str = "auto" if contender == "penstock" else False
        queue = penstock.update_queue(
            rows, "key", "ts", policy="fifo", combine=combine, state_location=str(directory / "state")
        )
        return queue, "append"
    if contender.startswith("native"):
        if contender == "native-flat":
            return rows.groupBy("key").agg(sf.max("ts"), sf.max_by("value", "ts")), "update"
        newest = sf.max_by(sf.struct("ts", "value"), "ts").alias("newest")
        return rows.groupBy("key").agg(newest).select("key", "newest.*"), "update"
    plain = rows.select("key", sf.unix_micros("ts").alias("micros"), "value")
    output, kind = "key long, micros long, value double", "micros long, value double"
    if contender == "per-key":
        grouped = plain.groupBy("key")
        return grouped.applyInPandasWithState(newest_per_key, output, kind, "update", "NoTimeout"), "update"
    labels = sf.array(*[sf.lit(label) for label in bucket_labels(2)])
    bucket = sf.get(labels, sf.pmod(sf.hash("key"), sf.lit(2)))
    grouped = plain.withColumn("bucket", bucket).groupBy("bucket")
    stateful = grouped.applyInPandasWithState(newest_per_bucket, output, "n long", "update", "NoTimeout")
    return stateful, "update"


def run_one(contender: str, files: Path, files_per_batch: int) -> dict[str, Any]:
    """Run one contender over all batches in `files`."""
    spark = session(**(ROCKSDB_STATE if contender == "native-rocksdb" else {}))
    reader = spark.readStream.schema("key long, ts timestamp, value double")
    rows = reader.option("maxFilesPerTrigger", files_per_batch).parquet(str(files))
    with scratch("speed") as name, MemoryProbe() as probe:
        directory = Path(name)
        df, mode = build(contender, spark, rows, directory)
        writer = df.writeStream.format("noop").outputMode(mode)
        query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True)
        running = query.start()
        running.awaitTermination()
        seconds = batch_seconds(running)
    spark.stop()
    return {"seconds": seconds, "peak_mib": probe.peak_mib}


def run_empty(contender: str, batches: int) -> dict[str, Any]:
    """Time micro-batches without new data, after a first one that gave every bucket its state."""
    from pyspark.sql import functions as sf
    from pyspark.sql.streaming.state import GroupStateTimeout

    import penstock

    spark = session()
    workload = Workload("seed", 1_000, 100_000, 0.0, 1)
    with scratch("empty") as name:
        directory = Path(name)
        (directory / "in").mkdir()
        workload.write(directory / "in")
        rows = spark.readStream.schema("key long, ts timestamp, value double").parquet(name + "/in")
        if contender == "penstock-empty":
            # One tuple a trigger leaves work for every batch: each bucket runs, and commits its state.
            df = penstock.update_queue(rows, "key", "ts", budget=2, state_location=str(directory / "state"))
        else:
            plain = rows.select(sf.pmod("key", sf.lit(2)).alias("bucket"), "value")
            df = plain.groupBy("bucket").applyInPandasWithState(
                _touch, "n long", "n long", "append", GroupStateTimeout.ProcessingTimeTimeout
            )
        writer = df.writeStream.format("noop").outputMode("append")
        query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()
        while len(query.recentProgress) < batches and not query.awaitTermination(0.1):  # type: ignore[arg-type]
            pass  # Spark takes parts of a second, and raises what a query fails with
        query.stop()
        if query.exception():
            raise SystemExit(str(query.exception()))
        seconds = [p.durationMs["triggerExecution"] / 1000 for p in query.recentProgress][5:]
    spark.stop()
    return {"seconds": seconds, "peak_mib": {}}


def _touch(key: Any, frames: Any, state: Any) -> Any:
    """Count calls: the least that a stateful function does in a batch."""
    import pandas as pd

    count = state.get[0] + 1 if state.exists else 1
    state.update((count,))
    state.setTimeoutDuration(1)
    yield pd.DataFrame({"n": [count]})


def main() -> None:
    """Run all contenders and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="tiny inputs, one round: does it run?")
    parser.add_argument("--only", nargs="*", help="run these contenders only")
    parser.add_argument("--contender", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--files", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        # More than one only with --quick: they share a JVM.
        found = {}
        for contender in options.contender:
            if contender.endswith("-empty"):
                found[contender] = run_empty(contender, 8 if options.quick else 30)
            else:
                found[contender] = run_one(contender, Path(options.files), 2)
        print(json.dumps(found))
        return
    plan = {
        MAIN: ["penstock", "native", "native-flat", "native-rocksdb", "penstock-no-combine", "by-bucket"],
        UNIQUE: ["penstock", "penstock-no-combine", "native"],
        PER_KEY: ["per-key"],
    }
    if options.quick:
        plan = {QUICK: [*plan[MAIN], "per-key"]}
    rounds = 1 if options.quick else options.rounds
    results: dict[tuple[str, str], list[dict[str, Any]]] = {}
    quick = ["--quick"] if options.quick else []
    for workload, contenders in plan.items():
        chosen = [c for c in contenders if not options.only or c in options.only]
        if not chosen:
            continue
        with scratch("input") as name:
            workload.write(Path(name))
            for _ in range(rounds):
                for together in [chosen] if options.quick else [[contender] for contender in chosen]:
                    found = run_contender(
                        "queues.update_queue_speed", "--contender", *together, "--files", name
                    )
                    for contender, result in found.items():
                        results.setdefault((workload.name, contender), []).append(result)
                        seconds = [round(s, 2) for s in result["seconds"]]
                        print(f"{workload.name}: {contender}: {seconds}", file=sys.stderr, flush=True)
    for contender in ("stateful-empty", "penstock-empty"):
        if not options.only or contender in options.only:
            for _ in range(rounds):
                found = run_contender("queues.update_queue_speed", "--contender", contender, *quick)
                results.setdefault(("empty micro-batch", contender), []).append(found[contender])
    report(results, {w.name: w for w in plan})


def report(results: dict[tuple[str, str], list[dict[str, Any]]], workloads: dict[str, Workload]) -> None:
    """Print one row a contender: seconds a batch, rows a second, ratio to native, memory."""
    print(f"\n{machine()}\n")
    print(f"{'workload':42} {'contender':20} {'s/batch':>8} {'M rows/s':>9} {'native=1':>9} "
          f"{'JVM MiB':>8} {'Python MiB':>10}")  # fmt: skip
    rates: dict[tuple[str, str], float] = {}
    for (workload, contender), runs in results.items():
        seconds = median([second for run in runs for second in run["seconds"]])
        rows = workloads[workload].rows_per_batch if workload in workloads else 0
        rates[workload, contender] = rows / seconds / 1e6
        native = rates.get((workload, "native"))
        if native is None and (workload, "native") in results:
            took = median([s for run in results[workload, "native"] for s in run["seconds"]])
            native = rows / took / 1e6
        ratio = f"{rates[workload, contender] / native:9.2f}" if native and rows else " " * 9
        peak = {k: max(run["peak_mib"].get(k, 0) for run in runs) for k in ("jvm", "python")}
        print(f"{workload:42} {contender:20} {seconds:8.3f} {rates[workload, contender]:9.3f} {ratio} "
              f"{peak['jvm']:8.0f} {peak['python']:10.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
