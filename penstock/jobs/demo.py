"""``penstock demo``: an overloaded market, through an append queue and through an update queue.

The same stream of trades is sent through an expensive query twice, each time by a Spark streaming query:

- *append queue*: every trade waits its turn in the source, first in, first out;
- *update queue*: only the newest trade of each symbol waits, in `penstock.update_queue` with linecutting.

The cost of a tuple is calibrated on this machine so that trades arrive `LOAD` times as fast as all cores
together can serve them. Both queries may serve for the same time in each trigger.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock._clock import monotonic_s, now_us
from penstock._extras import need_extra
from penstock._kernels import kernel
from penstock.errors import InternalError
from penstock.jobs.dashboard.dashboard import Dashboard, choose_address
from penstock.jobs.observer import Observer, Sample
from penstock.jobs.session import open_session
from penstock.market import NYSE_SKEW, NYSE_SYMBOLS, Market
from penstock.spark_ext.api.metrics import ProgressReader, batch_metrics
from penstock.spark_ext.api.register import listen, register, remove_metrics
from penstock.spark_ext.api.update_queue import update_queue

__all__ = ["LOAD", "run_demo"]

LOAD: Final = 5.0
"""The arrival rate divided by the service rate."""

_CORES: Final = 2
_COST_US: Final = 2_000
_BUDGET_US: Final = 800_000
_RATE: Final = round(LOAD * _CORES * 1_000_000 / _COST_US)
SECONDS: Final = 22
FAST_SECONDS: Final = 8
_LEAD_US: Final = 1_500_000
_CALIBRATING: Final = 6
_GRID_US: Final = 50_000
_QUERIES: Final = ("append queue", "update queue")
_RESULT: Final = "symbol string, seq bigint, price double, option_value double"


@kernel
def _option_values(prices: Any, paths: int, out: Any) -> None:
    """Return the value of a call option on each price, simulated by `paths` random walks."""
    for i in range(prices.shape[0]):
        state = np.uint64(88172645463325252 + i)
        total = 0.0
        for _ in range(paths):
            noise = 0.0
            for _ in range(4):
                state ^= state << np.uint64(13)
                state ^= state >> np.uint64(7)
                state ^= state << np.uint64(17)
                noise += float(state >> np.uint64(11)) * 2.0**-53
            end = prices[i] * (1.0 + 0.2 * (noise - 2.0))
            total += max(end - prices[i], 0.0)
        out[i] = total / paths


@dataclass(frozen=True)
class _Valuation:
    """The expensive query: it computes the value of an option on each trade. Workers run it."""

    paths: int

    def __call__(self, trades: pa.Table) -> pa.Table:
        """Return symbol, seq and price of each trade and the option's value."""
        prices = trades.column("price").to_numpy()
        values = np.empty(len(prices))
        _option_values(prices, self.paths, values)
        return trades.select(["symbol", "seq", "price"]).append_column("option_value", pa.array(values))

    def each(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Apply the query to batches, in the form that ``mapInArrow`` takes."""
        for batch in batches:
            yield from self(pa.Table.from_batches([batch])).to_batches()


@dataclass(frozen=True)
class _Probe:
    """Measures the cost of one random walk in a worker, and loads the queries' dependencies in the worker."""

    paths: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        prices, out = np.full(25, 100.0), np.empty(25)
        _option_values(prices, 1, out)
        begin = monotonic_s()
        _option_values(prices, self.paths, out)
        nanoseconds = (monotonic_s() - begin) * 1e9 / len(prices) / self.paths
        yield pa.RecordBatch.from_pydict({"nanoseconds": pa.array([nanoseconds])})


def _calibrate(spark: SparkSession, work: Path) -> _Valuation:
    """Return the query, with so many random walks that a tuple costs `_COST_US` in an update queue.

    The first guess comes from running the query alone on all cores. Then an update queue runs the query, and
    measures the cost of a tuple together with Spark's other work. The first batches are ignored, because the
    JVM is still compiling then.
    """
    cores = spark.range(_CORES, numPartitions=_CORES)
    nanoseconds = 0.0
    for paths in (1_000, 10_000, 50_000):
        measured = cores.mapInArrow(_Probe(paths), "nanoseconds double").toArrow()
        nanoseconds = float(np.mean(measured.column("nanoseconds").to_numpy()))
    guess = _Valuation(max(round(_COST_US * 1_000 / nanoseconds), 1))
    costs = _warm_up(spark, guess, "update queue", work, batches=_CALIBRATING)[_CALIBRATING // 2 :]
    return _Valuation(max(round(guess.paths * _COST_US / float(np.median(costs))), 1))


@dataclass(slots=True)
class _Outcome:
    """The outcome of one of the two queries."""

    name: str
    seconds: float
    observer: Observer
    start_us: int
    end_us: int
    conflated: int | None = None
    waiting: int = 0
    read: int = 0
    batch_ms: list[int] = field(default_factory=list)
    cost_us: float | None = None

    def samples(self) -> list[Sample]:
        return self.observer.samples(np.arange(self.start_us, self.end_us + 1, _GRID_US))


def run_demo(
    *,
    seconds: int | None = None,
    fast: bool = False,
    out: Path = Path("penstock-demo"),
    dashboard_at: str | None = None,
) -> int:
    """Run the demo; return 0.

    Parameters
    ----------
    seconds : int, optional
        The duration of each of the two queries; 22 by default, 8 with `fast`.
    fast : bool
        Whether to run a short demo.
    out : Path
        The directory for ``staleness.svg`` and ``staleness.png``.
    dashboard_at : str, optional
        The address of the dashboard; see `choose_address`.

    Raises
    ------
    InvalidUsageError
        If there is no matplotlib.
    PenstockError
        If a query fails.
    """
    need_extra("plot", "penstock demo")
    duration = seconds if seconds is not None else (FAST_SECONDS if fast else SECONDS)
    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    address = choose_address(dashboard_at)
    with nullcontext() if address is None else Dashboard("demo", address) as dashboard:
        outcomes = _compare(console, duration, dashboard)
    _report(console, outcomes)
    paths = _plot(outcomes, out)
    console.print("Plot: " + ", ".join(str(path) for path in paths))
    return 0


def _compare(console: Console, duration: int, dashboard: Dashboard | None) -> list[_Outcome]:
    """Run both queries, one after the other, and return their outcomes."""
    if dashboard is not None:
        console.print(f"Dashboard: {dashboard.url}")
    console.print(
        f"A market of {NYSE_SYMBOLS:,} symbols, the most active with {NYSE_SKEW:,.0f} updates for 1 of the "
        f"least; {_RATE:,} trades a second, about {LOAD:g} times what {_CORES} cores can serve."
    )
    with console.status("starting Spark"):
        settings = {
            "spark.master": f"local[{_CORES}]",
            "spark.sql.shuffle.partitions": str(_CORES),
            "spark.driver.memory": "1g",
            "spark.log.level": "OFF",
        }
        spark, ours = open_session("penstock demo", settings)
        register(spark)
        if dashboard is not None:
            listen(spark, "the dashboard", dashboard.history.add)
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True) as work:
            with console.status("calibrating the query"):
                valuation = _calibrate(spark, Path(work) / "calibration")
            return [
                _watch(console, spark, valuation, name, duration, Path(work) / name.split()[0])
                for name in _QUERIES
            ]
    finally:
        if ours:
            spark.stop()
        remove_metrics(spark, stopped=ours)


def _start(
    spark: SparkSession,
    valuation: _Valuation,
    name: str,
    start_us: int,
    deliver: Callable[[DataFrame, int], None],
    work: Path,
) -> StreamingQuery:
    """Start one of the two queries on a market that opens at `start_us`."""
    source = spark.readStream.format("market").options(
        rowsPerSecond=_RATE, symbols=NYSE_SYMBOLS, startTime=start_us, numPartitions=_CORES
    )
    if name == "append queue":
        a_trigger = round(_BUDGET_US * _CORES / _COST_US)
        df = source.option("maxRowsPerTrigger", a_trigger).load().mapInArrow(valuation.each, _RESULT)
    else:
        df = update_queue(
            source.load(), "symbol", "time", policy="linecutting", budget=f"{_BUDGET_US}us",
            apply=valuation, output_schema=_RESULT, arrival="time", state_location=str(work / "state"),
        )  # fmt: skip
    writer = df.writeStream.queryName(name).foreachBatch(deliver)
    return writer.option("checkpointLocation", str(work / "checkpoint")).start()


def _warm_up(
    spark: SparkSession, valuation: _Valuation, name: str, work: Path, *, batches: int = 1
) -> list[float]:
    """Run a query's first batches, during which Spark starts Python workers and the JVM compiles.

    Returns
    -------
    list of float
        The cost of a tuple in each batch, in microseconds, if the query reports it.
    """
    query = _start(spark, valuation, name, now_us(), _discard, work)
    try:
        while (
            query.isActive and sum(progress.numInputRows > 0 for progress in query.recentProgress) < batches
        ):
            query.awaitTermination(1)
        costs = [batch["cost_us"] for progress in query.recentProgress for batch in batch_metrics(progress)]
    finally:
        query.stop()
    _raise_failure(query)
    return [cost for cost in costs if cost]


def _discard(df: DataFrame, _batch: int) -> None:
    df.toArrow()


def _raise_failure(query: StreamingQuery) -> None:
    failure = query.exception()
    if failure is not None:
        raise failure


def _watch(
    console: Console, spark: SparkSession, valuation: _Valuation, name: str, seconds: int, work: Path
) -> _Outcome:
    """Run one query on the stream from its start for `seconds`, with a live view."""
    with console.status(f"warming up: {name}"):
        _warm_up(spark, valuation, name, work / "warm")
    start_us = now_us() + _LEAD_US
    end_us = start_us + seconds * 1_000_000
    market = Market(symbols=NYSE_SYMBOLS, rate=_RATE, start_us=start_us)
    rows = market.batch(0, _RATE * seconds)
    symbols = rows.column("symbol").dictionary_encode()
    observer = Observer(
        symbols.indices.to_numpy().astype(np.int64),
        start_us + np.arange(rows.num_rows, dtype=np.int64) * 1_000_000 // _RATE,
        NYSE_SYMBOLS,
    )
    outcome = _Outcome(name, seconds, observer, start_us, end_us)

    def deliver(df: DataFrame, _batch: int) -> None:
        sequences = df.select("seq").toArrow().column("seq").to_numpy()
        observer.deliver(sequences[sequences < rows.num_rows], now_us())

    query = _start(spark, valuation, name, start_us, deliver, work)
    reader = ProgressReader(query)
    try:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while (moment := now_us()) < end_us and query.isActive:
                _note(outcome, reader, moment)
                live.update(_view(outcome, moment))
                query.awaitTermination(0.25)  # type: ignore[arg-type]  # a fraction works
    finally:
        query.stop()
    _raise_failure(query)
    if moment < end_us:
        raise InternalError("the query ended before its time", query=name)
    _note(outcome, reader, end_us)
    return outcome


def _note(outcome: _Outcome, reader: ProgressReader, moment: int) -> None:
    """Add the query's new metrics to the outcome."""
    for progress in reader.new():
        if progress.numInputRows:
            outcome.batch_ms.append(progress.durationMs["triggerExecution"])
        outcome.read += progress.numInputRows
        for batch in batch_metrics(progress):
            outcome.conflated = (outcome.conflated or 0) + batch["conflated"]
            outcome.waiting = batch["waiting_keys"]
            outcome.cost_us = batch["cost_us"]
    if outcome.name == "append queue":
        outcome.waiting = max(outcome.observer.count_arrived(moment) - outcome.read, 0)


def _view(outcome: _Outcome, moment: int) -> Table:
    observer = outcome.observer
    sample = observer.samples(np.array([moment]))[0]
    elapsed = max(moment - outcome.start_us, 0) / 1e6
    table = Table(title=f"{outcome.name}, {elapsed:.0f} of {outcome.seconds:.0f} s", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("rows in", f"{observer.count_arrived(moment):,}")
    table.add_row("delivered", f"{observer.delivered:,}")
    table.add_row("conflated", _count(outcome.conflated))
    table.add_row("waiting", _waiting_text(outcome))
    table.add_row("batch", f"{np.median(outcome.batch_ms or [0]):,.0f} ms")
    table.add_row("staleness, average", f"{sample.average_ms / 1000:.2f} s")
    table.add_row("staleness, p95", f"{sample.p95_ms / 1000:.2f} s")
    return table


def _waiting_text(outcome: _Outcome) -> str:
    return f"{outcome.waiting:,} " + ("tuples" if outcome.name == "append queue" else "keys")


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _report(console: Console, outcomes: list[_Outcome]) -> None:
    """Print the closing table."""
    table = Table(title="Staleness over all symbols, as the application saw it")
    table.add_column()
    averages = []
    columns = []
    for outcome in outcomes:
        table.add_column(outcome.name, justify="right")
        samples = outcome.samples()
        averages.append(float(np.mean([sample.average_ms for sample in samples])))
        p95 = float(np.mean([sample.p95_ms for sample in samples]))
        columns.append(
            (
                f"{outcome.observer.count_arrived(outcome.end_us):,}",
                f"{outcome.observer.delivered:,}",
                _count(outcome.conflated),
                _waiting_text(outcome),
                f"{averages[-1] / 1000:.2f} s",
                f"{p95 / 1000:.2f} s",
                f"{samples[-1].average_ms / 1000:.2f} s",
            )
        )
    names = ("rows in", "delivered", "conflated", "waiting", "average", "p95", "average at the end")
    for name, values in zip(names, zip(*columns, strict=True), strict=True):
        table.add_row(name, *values)
    console.print(table)
    measured = outcomes[-1].cost_us
    if measured is not None:
        load = _RATE * measured / 1e6 / _CORES
        console.print(
            f"Cost of a tuple: {measured / 1000:.2f} ms, so the load was {load:.1f} times what {_CORES} "
            "cores could serve; this depends on how busy the machine is. On average the update queue was "
            f"{averages[0] / max(averages[1], 1e-9):.1f} times as fresh."
        )


def _plot(outcomes: list[_Outcome], out: Path) -> list[Path]:
    """Draw staleness over time of both queries; return the files."""
    if "MPLCONFIGDIR" not in os.environ and not os.access(Path.home(), os.W_OK):
        os.environ["MPLCONFIGDIR"] = tempfile.mkdtemp(prefix="penstock-matplotlib-")
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for outcome, colour in zip(outcomes, ("tab:red", "tab:blue"), strict=True):
        samples = outcome.samples()
        seconds = [(sample.at_us - outcome.start_us) / 1e6 for sample in samples]
        axes.plot(
            seconds, [s.average_ms / 1000 for s in samples], color=colour, label=f"{outcome.name}, average"
        )
        axes.plot(
            seconds, [s.p95_ms / 1000 for s in samples], color=colour, linestyle="--", linewidth=1,
            label=f"{outcome.name}, 95th percentile",
        )  # fmt: skip
    axes.set_xlabel("time (s)")
    axes.set_ylabel("staleness over all symbols (s)")
    axes.set_title(f"{NYSE_SYMBOLS:,} symbols, {_RATE:,} trades/s, load factor {LOAD:g}, {_CORES} cores")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    paths = [out / "staleness.svg", out / "staleness.png"]
    for path in paths:
        figure.savefig(path, dpi=120)
    plt.close(figure)
    return paths
