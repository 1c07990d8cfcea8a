"""Forecasts of ``penstock plan`` beside the staleness of real queries on Spark.

    python -m benchmarks.forecasts [--seconds 40] [--rate 60] [--loads 1 3 10]

A query serves an update queue whose query takes 4 ms a tuple (it sleeps), with two cores, a bucket for each,
and a budget of time, or a freshness contract. The rows of Spark's source `rate` have 300 keys. A first run
with few rows measures the time of a micro-batch without rows; the cost of a tuple is known. Then each case
runs on Spark and in the simulator, from a sample of a minute at the lowest load. Staleness is that of the
application, in ms, over time and keys, without the first seconds of a run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from benchmarks.harness import machine, print_and_save, session
from penstock.operators.freshness.contract import FreshnessContract
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.staleness import Staleness
from penstock.operators.simulation.forecast import Sample, forecast
from penstock.operators.simulation.micro_batches import Engine
from penstock.operators.update_stream.options import Budget
from penstock.spark_ext.api.metrics import operator_batches
from penstock.units import parse_duration_us

COST_US = 4_000
KEYS = 300
CORES = 2
WARM_UP_S = 12
BUDGET = "600ms"
CONTRACT = {"p95": "4 s"}
OUT = Path(__file__).parent / "results" / "forecasts.txt"

_STEP = 2_654_435_761


def keys_of(values: Any) -> Any:
    """Return the key of each row."""
    return values * _STEP // 4096 % KEYS


def work(table: pa.Table) -> pa.Table:
    """Stand for an expensive query."""
    time.sleep(COST_US * table.num_rows / 1e6)  # the query itself; nothing is waited for
    return table


def run_in_spark(spark: Any, rate: int, seconds: float, limits: Mapping[str, Any]) -> tuple[Staleness, float]:
    """Return staleness after the warm-up, and the median time of micro-batches outside of serving in µs."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", rate).load()
    rows = rows.selectExpr(
        f"value * {_STEP} div 4096 % {KEYS} AS key", "value AS time", "timestamp AS arrived"
    )
    with tempfile.TemporaryDirectory() as place:
        served = penstock.update_queue(
            rows, key="key", time="time", arrival="arrived", policy="freshest", apply=work, buckets=CORES,
            output_schema=rows.schema, state_location=f"{place}/state", **limits,
        )  # fmt: skip
        writer = served.writeStream.format("noop").option("checkpointLocation", f"{place}/checkpoint")
        query = writer.start()
        query.awaitTermination(round(WARM_UP_S + seconds))
        query.stop()
        reports = query.recentProgress
    found = [(one, part) for one in reports for part in operator_batches(one)]
    begin = np.datetime64(found[0][0].timestamp.rstrip("Z")) + np.timedelta64(WARM_UP_S, "s")
    late = [part for one, part in found if np.datetime64(one.timestamp.rstrip("Z")) >= begin]
    staleness = Staleness.merge(part.metrics.application_staleness for part in late)
    outside = [1000 * (part.batch_ms - part.metrics.budget_used_ms / CORES) for part in late]
    return staleness, float(np.median(outside))


def simulate(sample: Sample, fixed_us: float, load: float, limits: Mapping[str, Any]) -> Staleness:
    """Return the staleness that ``penstock plan`` forecasts."""
    contract = limits.get("freshness")
    given = (
        FreshnessContract.parse(contract)
        if contract is not None
        else Budget(duration_us=parse_duration_us(limits["budget"]))
    )
    engine = Engine(round(fixed_us), COST_US)
    one = next(forecast(sample, engine, given, loads=[load], cores=[CORES], policies=[Policy.FRESHEST]))
    return one.staleness


def report(rate: int, seconds: float, loads: list[float]) -> Any:
    """Yield the lines of the report."""
    spark = session("local[2]")
    values = np.arange(60 * rate)
    times = pa.array(values * 1_000_000 // rate).view(pa.timestamp("us"))
    sample = Sample.of(
        pa.table({"key": keys_of(values), "time": values, "arrived": times}), ["key"], "time", "arrived"
    )
    _, fixed_us = run_in_spark(spark, 10, seconds / 2, {"budget": BUDGET})
    yield machine()
    yield f"cost of a tuple {COST_US / 1000:g} ms, {KEYS} keys, {CORES} cores; fixed {fixed_us / 1000:.0f} ms"
    yield f"{'limit':>16}{'load':>6}{'rows/s':>8}{'':>8}" + "".join(
        f"{name:>9}" for name in ("average", "p50", "p95")
    )
    for limits in ({"budget": BUDGET}, {"freshness": CONTRACT}):
        shown = "p95: 4 s" if "freshness" in limits else BUDGET
        for load in loads:
            real, _ = run_in_spark(spark, round(rate * load), seconds, limits)
            found = simulate(sample, fixed_us, load, limits)
            lines = [
                np.array([one.average_ms, one.percentile_ms(0.5), one.percentile_ms(0.95)])
                for one in (real, found)
            ]
            for name, line in zip(("Spark", "plan"), lines, strict=True):
                yield f"{shown:>16}{load:>6g}{rate * load:>8.0f}{name:>8}" + "".join(
                    f"{x:9.0f}" for x in line
                )
            with np.errstate(divide="ignore", invalid="ignore"):
                errors = np.where(lines[0] > 0, lines[1] / lines[0] - 1, 0)
            yield f"{'':>30}{'error':>8}" + "".join(f"{x:9.0%}" for x in errors)
    spark.stop()


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=40, help="length of a run, after the warm-up")
    parser.add_argument("--rate", type=int, default=60, help="rows a second at load 1")
    parser.add_argument("--loads", type=float, nargs="+", default=[1, 3, 10])
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    print_and_save(report(arguments.rate, arguments.seconds, arguments.loads), arguments.out)


if __name__ == "__main__":
    main()
