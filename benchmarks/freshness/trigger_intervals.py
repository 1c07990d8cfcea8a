"""The trigger interval that a contract's controller sets on Spark, against a fixed one and none.

    python -m benchmarks.freshness.trigger_intervals [--rounds N] [--seconds N] [--limits MS ...] [--quick]

An update queue of quotes of 300 symbols in 2 buckets, with the policy freshest and a contract, writes to the
noop sink. A tuple takes 2 ms, in which the worker sleeps. At load 0.1, 100 quotes arrive a second, a tenth of
the capacity of both buckets; at load 5, 5,000 do. The contenders run in turn in one JVM, so that all see the
same load of the machine, each with a new checkpoint. The first seconds of each run are left out.

- ``set``: no trigger, so the controller sets the interval after each micro-batch.
- ``fixed``: a processing-time trigger of an eighth of the limit.
- ``none``: a processing-time trigger of 0 seconds, so micro-batches follow each other at once.

Figures are medians of the rounds: processor seconds a minute of Java without its compilers, of the workers
and of the driver's Python, the micro-batches a minute, and application staleness: of the p95 of each
micro-batch the median, and the share of the time and keys within the limit in the end.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from benchmarks.harness import (
    REPOSITORY,
    ProcessorProbe,
    median,
    print_and_save,
    report_foot,
    report_head,
    scratch,
    session,
)
from penstock.spark_ext.api.stopping import stop_between_batches

RESULT = REPOSITORY / "benchmarks" / "results" / "trigger_intervals.txt"
LIMITS_MS = (10_000, 2_000, 500)
LOADS = (0.1, 5)
CONTENDERS = ("set", "fixed", "none")
COST_S, BUCKETS, SYMBOLS = 0.002, 2, 300
WARM_UP_S = 5.0
COLUMNS = ("java", "workers", "this", "batches", "p95, ms", "within")

Figures = dict[str, list[float]]


def work(rows: pa.Table) -> pa.Table:
    """Stand for a query that waits for something else."""
    time.sleep(COST_S * rows.num_rows)  # the query itself; nothing is waited for
    return rows


def run_once(
    contender: str,
    limit_ms: int,
    load: float,
    seconds: float,
    spark: Any,
    probe: ProcessorProbe,
    found: Figures,
) -> None:
    """Run a contender, and add its figures to `found`."""
    reader = spark.readStream.format("market").option("symbols", SYMBOLS).option("realTime", "true")
    quotes = reader.option("rowsPerSecond", round(load * BUCKETS / COST_S)).load()
    with scratch("triggers") as name:
        rows = quotes.selectExpr("*", "time AS arrived")
        df = penstock.update_queue(
            rows, key="symbol", time="time", arrival="arrived", policy="freshest", buckets=BUCKETS,
            freshness={"p95": f"{limit_ms} ms"}, apply=work, output_schema=rows.schema,
            state_location=Path(name) / "state",
        )  # fmt: skip
        writer = df.writeStream.format("noop").option("checkpointLocation", f"{name}/checkpoint")
        if contender != "set":
            interval_ms = limit_ms // 8 if contender == "fixed" else 0
            writer = writer.trigger(processingTime=f"{interval_ms} milliseconds")
        query = writer.start()
        while query.lastProgress is None:
            query.awaitTermination(1)
        query.awaitTermination(round(WARM_UP_S))
        begin, first = time.time(), query.lastProgress.batchId
        query.awaitTermination(round(seconds))
        end = time.time()
        batches = [one for one in penstock.metrics(query) if one["batch_id"] > first]
        stop_between_batches(query, spark)
    for kind, spent in probe.between(begin, end).items():
        found[kind].append(60 * spent / (end - begin))
    found["batches"].append(60 * len(batches) / (end - begin))
    found["p95, ms"].append(median([one["application_staleness_ms"]["p95"] for one in batches]))
    found["within"].append(batches[-1]["classes"]["all"]["within"])


def report(rounds: int, seconds: float, limits: Sequence[int], loads: Sequence[float]) -> Iterator[str]:
    """Yield the lines of the report."""
    yield from report_head(
        f"python -m benchmarks.freshness.trigger_intervals --rounds {rounds} --seconds {seconds:g} "
        f"--limits {' '.join(map(str, limits))} --loads {' '.join(f'{load:g}' for load in loads)}"
    )
    spark = session(**{"spark.sql.streaming.numRecentProgressUpdates": "1000"})
    penstock.register(spark)
    cases = [(limit, load, one) for limit in limits for load in loads for one in CONTENDERS]
    found: dict[tuple[int, float, str], Figures] = {case: defaultdict(list) for case in cases}
    with ProcessorProbe() as probe:
        run_once("none", limits[0], loads[0], seconds, spark, probe, defaultdict(list))  # warms all up
        for _ in range(rounds):
            for limit_ms, load, contender in cases:
                figures = found[limit_ms, load, contender]
                run_once(contender, limit_ms, load, seconds, spark, probe, figures)
                print(limit_ms, load, contender, dict(figures), file=sys.stderr, flush=True)
    yield f"{'limit, ms':>9} {'load':>5} {'trigger':>8}" + "".join(f"{column:>10}" for column in COLUMNS)
    for (limit_ms, load, contender), figures in found.items():
        cells = "".join(f"{median(figures[column]):10.3g}" for column in COLUMNS)
        yield f"{limit_ms:>9} {load:>5g} {contender:>8}{cells}"
    yield from report_foot()


def main() -> None:
    """Print the report; save it unless `--quick` is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--limits", type=int, nargs="+", default=LIMITS_MS, help="in ms")
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS)
    parser.add_argument("--quick", action="store_true", help="short runs: does it run?")
    options = parser.parse_args()
    if options.quick:
        for line in report(1, 4, LIMITS_MS[:1], LOADS[:1]):
            print(line)
        return
    print_and_save(report(options.rounds, options.seconds, options.limits, options.loads), RESULT)


if __name__ == "__main__":
    main()
