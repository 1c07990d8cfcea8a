"""Forecasts of ``penstock plan`` beside the staleness of real queries.

    python -m benchmarks.freshness.forecasts [--engine local spark] [--seconds 30] [--rate 150]
        [--loads 1 3 10]

A query serves an update queue whose query takes 4 ms a tuple (it sleeps), with a budget of time, or a
freshness contract: in one process on the local engine, or on Spark with two cores and a bucket for each.
The rows come from the source `market` in real time, with 300 keys, of which the most frequent one is
updated 20 times as often as the least frequent one. Each case runs for real and in the simulator, from a
sample of 20 s of the same rows at load 1. The figures that a plan needs, the fixed times of micro-batches
and the cost of a tuple, come from the metrics of a test run at the lowest load, as with ``--metrics``, or
(``own``) of the run itself, which excludes changes of the machine's speed. Staleness is that of the
application, in ms, over time and keys, after the warm-up.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from benchmarks.harness import machine, print_and_save, session
from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.local.pipeline import open_pipeline
from penstock.local_engine.query import LocalBatch
from penstock.market import Market
from penstock.operators.freshness.contract import FreshnessContract
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.staleness import Staleness
from penstock.operators.simulation.forecast import Sample, forecast
from penstock.operators.simulation.micro_batches import Engine
from penstock.operators.update_stream.options import Budget
from penstock.spark_ext.api.metrics import operator_batches
from penstock.units import parse_duration_us

COST_US = 4_000
KEYS, SKEW, SEED = 300, 20, 7
WARM_UP_S = 8
SAMPLE_S = 20
BUDGET = "600ms"
CONTRACT = {"p95": "4 s"}
LIMITS: tuple[Mapping[str, Any], ...] = ({"budget": BUDGET}, {"freshness": CONTRACT})
CORES = {"local": 1, "spark": 2}
OUT = Path(__file__).parents[1] / "results" / "forecasts.txt"

_COLUMNS = "symbol STRING, time TIMESTAMP, price DOUBLE"
_PROGRESS = "spark.sql.streaming.numRecentProgressUpdates"
_POLL_S = 0.002


@dataclass(frozen=True)
class Run:
    """The measurements of a run after its warm-up."""

    staleness: Staleness
    engine: Engine
    batches: int

    @staticmethod
    def of(
        staleness: Sequence[Staleness], batch_ms: Sequence[float], serve_ms: Sequence[float], rows: int
    ) -> Run:
        """Return the run of some micro-batches, with the time of serving in each."""
        if not batch_ms:
            raise InvalidUsageError("no micro-batch began after the warm-up")
        fixed_us = 1000 * np.maximum(np.subtract(batch_ms, serve_ms), 0)
        cost_us = 1000 * float(np.sum(serve_ms)) / max(rows, 1)
        each = tuple(map(round, fixed_us.tolist()))
        return Run(
            Staleness.merge(staleness), Engine(round(fixed_us.mean()), cost_us, 0.0, each), len(batch_ms)
        )


def work(table: pa.Table) -> pa.Table:
    """Stand for an expensive query."""
    time.sleep(COST_US * table.num_rows / 1e6)  # the query itself; nothing is waited for
    return table.select(["symbol", "time", "price"])


def run_in_spark(spark: Any, rate: int, seconds: float, limits: Mapping[str, Any]) -> Run:
    """Run a query on Spark."""
    options = {"rowsPerSecond": rate, "symbols": KEYS, "skew": SKEW, "seed": SEED}
    rows = spark.readStream.format("market").options(**options).load()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        served = penstock.update_queue(
            rows, key="symbol", time="time", arrival="time", policy="freshest", apply=work,
            buckets=CORES["spark"], output_schema=_COLUMNS, state_location=f"{place}/state", **limits,
        )  # fmt: skip
        writer = served.writeStream.format("noop").option("checkpointLocation", f"{place}/checkpoint")
        query = writer.start()
        while not query.recentProgress:
            query.awaitTermination(1)  # the first micro-batch starts workers
        query.awaitTermination(round(WARM_UP_S + seconds))
        query.stop()
        reports = query.recentProgress
    begin = np.datetime64(reports[0].timestamp.rstrip("Z"))
    begin += np.timedelta64(int(reports[0].batchDuration) + 1000 * WARM_UP_S, "ms")
    parts = [
        part
        for report in reports
        for part in operator_batches(report)
        if np.datetime64(report.timestamp.rstrip("Z")) >= begin
    ]
    serve_ms = [part.metrics.budget_used_ms / CORES["spark"] for part in parts]
    found = Run.of(
        [part.metrics.application_staleness for part in parts], [part.batch_ms for part in parts], serve_ms,
        sum(part.metrics.emitted for part in parts),
    )  # fmt: skip
    # Each core served its share of the tuples.
    return replace(found, engine=replace(found.engine, cost_us=CORES["spark"] * found.engine.cost_us))


def run_locally(rate: int, seconds: float, limits: Mapping[str, Any]) -> Run:
    """Run a pipeline on the local engine."""
    done: list[tuple[float, LocalBatch]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        queue = {
            "key": "symbol", "time": "time", "arrival": "time", "policy": "freshest", "buckets": 1,
            "apply": "benchmarks.freshness.forecasts:work", "output_schema": _COLUMNS, **limits,
        }  # fmt: skip
        source = {"type": "market", "rows_per_second": rate, "symbols": KEYS, "skew": SKEW, "seed": SEED}
        query = {"checkpoint": f"{place}/checkpoint"}
        document = {
            "engine": "local",
            "source": source,
            "queue": queue,
            "sink": {"type": "noop"},
            "query": query,
        }
        running = open_pipeline(Pipeline.model_validate(document))
        while not done:
            running.step(lambda batch: done.append((0.0, batch)))  # the first micro-batch compiles kernels
        begin = time.monotonic() + WARM_UP_S
        while (now := time.monotonic()) < begin + seconds:
            if not running.step(lambda batch, now=now: done.append((now, batch))):  # type: ignore[misc]
                time.sleep(_POLL_S)  # polls: the source does not announce its rows
    late = [batch for at, batch in done if at >= begin]
    return Run.of(
        [batch.metrics.application_staleness for batch in late], [batch.duration_ms for batch in late],
        [batch.metrics.budget_used_ms for batch in late], sum(batch.metrics.emitted for batch in late),
    )  # fmt: skip


def simulate(sample: Sample, engine: Engine, load: float, cores: int, limits: Mapping[str, Any]) -> Staleness:
    """Return the staleness that ``penstock plan`` forecasts."""
    contract = limits.get("freshness")
    given = (
        FreshnessContract.parse(contract)
        if contract is not None
        else Budget(duration_us=parse_duration_us(limits["budget"]))
    )
    one = next(forecast(sample, engine, given, loads=[load], cores=[cores], policies=[Policy.FRESHEST]))
    return one.staleness


def report(engine: str, rate: int, seconds: float, loads: list[float]) -> Iterator[str]:
    """Yield the lines of the report of an engine."""
    market = Market(symbols=KEYS, rate=rate, skew=SKEW, seed=SEED, start_us=0)
    sample = Sample.of(pa.Table.from_batches([market.batch(0, SAMPLE_S * rate)]), ["symbol"], "time", "time")
    spark = None
    if engine == "spark":
        spark = session("local[2]", **{_PROGRESS: "10000"})
        penstock.register(spark)

    def run(load: float, limits: Mapping[str, Any]) -> Run:
        if spark is None:
            return run_locally(round(rate * load), seconds, limits)
        return run_in_spark(spark, round(rate * load), seconds, limits)

    cores = CORES[engine]
    yield f"\n{engine}, cores {cores}"
    yield (
        f"{'limit':>16}{'load':>6}{'rows/s':>8}{'batches':>9}{'fixed ms':>10}{'cost ms':>9}{'':>8}"
        + "".join(f"{name:>9}" for name in ("average", "p50", "p95"))
    )
    for limits in LIMITS:
        shown = "p95: 4 s" if "freshness" in limits else BUDGET
        tested: Engine | None = None
        for load in loads:
            real = run(load, limits)
            tested = tested or real.engine
            lines = {"real": real.staleness}
            lines["plan"] = simulate(sample, tested, load, cores, limits)
            lines["own"] = simulate(sample, real.engine, load, cores, limits)
            facts = f"{real.batches:>9}{real.engine.fixed_us / 1000:>10.0f}{real.engine.cost_us / 1000:>9.2f}"
            head = f"{shown:>16}{load:>6g}{rate * load:>8.0f}{facts}"
            figures = {
                name: np.array([one.average_ms, one.percentile_ms(0.5), one.percentile_ms(0.95)])
                for name, one in lines.items()
            }
            for name, line in figures.items():
                yield f"{head if name == 'real' else '':>58}{name:>8}" + "".join(f"{x:9.0f}" for x in line)
            for name in ("plan", "own"):
                with np.errstate(divide="ignore", invalid="ignore"):
                    errors = np.where(figures["real"] >= 1, figures[name] / figures["real"] - 1, 0)
                yield f"{'':>50}{name + ' is off by':>16}" + "".join(f"{x:9.0%}" for x in errors)
    if spark is not None:
        spark.stop()


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", nargs="+", choices=list(CORES), default=list(CORES))
    parser.add_argument("--seconds", type=float, default=30, help="length of a run, after the warm-up")
    parser.add_argument("--rate", type=int, default=150, help="rows a second at load 1")
    parser.add_argument("--loads", type=float, nargs="+", default=[1, 3, 10])
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()

    def lines() -> Iterator[str]:
        yield machine()
        for engine in arguments.engine:
            yield from report(engine, arguments.rate, arguments.seconds, arguments.loads)

    print_and_save(lines(), arguments.out)


if __name__ == "__main__":
    main()
