"""Wait until a query or a graph ends, and report its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from json import JSONDecodeError

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from penstock._clock import now_us
from penstock.errors import InternalError, PenstockError
from penstock.jobs.following.batches import Batch, Totals
from penstock.jobs.signals import StopSignals
from penstock.operators.freshness.overdue import OverdueTimers
from penstock.spark_ext.api.failure import failure_of, is_without_answer
from penstock.spark_ext.api.metrics import (
    OBSERVATION_PREFIX,
    ProgressReader,
    bad_records,
    batch_metrics,
    had_input,
    is_last,
)
from penstock.spark_ext.api.register import wait_for_metrics
from penstock.spark_ext.api.stopping import stop_between_batches
from penstock.spark_ext.border.connection import Py4JError
from penstock.spark_ext.border.spark_versions import HAS_ADMISSION_CONTROL
from penstock.spark_ext.graph.handle import RESULTS, RunningGraph
from penstock.spark_ext.worker.restart import start_again, was_available_now

__all__ = ["BatchReader", "batch_of", "follow", "follow_graph"]

_POLL_S = 0.25
_MIN_OVERDUE_S = 1.0
"""Running batches are polled, so shorter limits are raised to this time."""
_COUNTS = ("rows_in", "emitted", "conflated", "late", "duplicates", "dropped",
           "committed", "rejected", "waiting_keys")  # fmt: skip


class BatchReader:
    """Reads each batch of a query once; warns if a running batch takes longer than its contract allows.

    Parameters
    ----------
    query : StreamingQuery
        The query.
    promised_s : mapping of str to float
        The promised staleness in seconds by class, if it is known before the first batch.
    waiting_since_ms : int, optional
        The time since which rows have waited for the first batch.
    """

    def __init__(
        self,
        query: StreamingQuery,
        promised_s: Mapping[str, float] | None = None,
        waiting_since_ms: int | None = None,
    ) -> None:
        self._query, self._progress = query, ProgressReader(query)
        self._overdue = OverdueTimers(query.name or str(query.id))
        self._promised_s = _raise_to_least(promised_s or {})
        self._waiting_since_ms = waiting_since_ms

    def new(self) -> list[Batch]:
        """Return the batches that ended since the last call, in order."""
        reports = self._progress.new()
        if reports:
            self._waiting_since_ms = None
            self._promised_s = _raise_to_least(
                {
                    name: one["promised_ms"] / 1000
                    for served in batch_metrics(reports[-1])
                    for name, one in served.get("classes", {}).items()
                }
            )
        status = self._query.status if self._promised_s and self._query.isActive else {}
        # Rows that wait for the first batch are late even before it runs.
        is_awaited = bool(status) and self._waiting_since_ms is not None
        runs = is_awaited or (status.get("isTriggerActive") and status.get("isDataAvailable"))
        if reports or not runs:
            self._overdue.end()
        if runs and not self._overdue.active:
            since_us = 1000 * self._waiting_since_ms if self._waiting_since_ms is not None else now_us()
            self._overdue.begin(self._promised_s, (now_us() - since_us) / 1e6)
        return [batch_of(report) for report in reports]


def _raise_to_least(promised_s: Mapping[str, float]) -> dict[str, float]:
    return {name: max(limit_s, _MIN_OVERDUE_S) for name, limit_s in promised_s.items()}


def batch_of(progress: StreamingQueryProgress) -> Batch:
    """Return a batch from Spark's report about it."""
    served = batch_metrics(progress)
    counts = {name: sum(entry[name] for entry in served) for name in _COUNTS}
    has_operator = bool(served) or any(
        name.startswith(OBSERVATION_PREFIX) for name in progress.observedMetrics or ()
    )
    if not has_operator:
        counts["rows_in"] = max(progress.numInputRows, 0)
    stale = [entry["application_staleness_ms"] for entry in served]
    return Batch(
        number=progress.batchId,
        duration_ms=progress.durationMs["triggerExecution"],
        new_input=had_input(progress),
        staleness_ms=max((one["avg"] for one in stale), default=0.0),
        staleness_p95_ms=max((one["p95"] for one in stale), default=0.0),
        bad_records=bad_records(progress),
        has_operator=has_operator,
        **counts,
    )


def follow(
    query: StreamingQuery | RunningGraph,
    on_batch: Callable[[Batch], None],
    signals: StopSignals,
    *,
    drain: bool = True,
) -> Totals:
    """Wait until a query or a graph ends, and report each of its batches.

    Call this function on the driver's main thread. After a signal, `follow` stops the query. It waits a few
    seconds for the running batch to end, then cancels the batch. A restart from the checkpoint runs a
    cancelled batch again.

    Parameters
    ----------
    query : pyspark.sql.streaming.StreamingQuery or RunningGraph
        The query or graph.
    on_batch : callable
        Called with each batch, in order, at most a quarter of a second after the batch has ended.
    signals : StopSignals
        The signals that stop the query.
    drain : bool
        Whether a query with the trigger ``availableNow`` continues until no key waits.

    Raises
    ------
    PenstockError
        If the query failed.
    """
    if isinstance(query, RunningGraph):
        return follow_graph(query, on_batch, signals)
    totals = Totals()
    while True:
        before = totals.batches
        try:
            totals, waits = _follow_run(query, on_batch, signals, totals, drain=drain)
        except BaseException:
            query.stop()
            raise
        wait_for_metrics([query])
        # An older Spark ends a query with the trigger availableNow after one micro-batch.
        if HAS_ADMISSION_CONTROL or not waits or signals.received is not None:
            return replace(totals, signal=signals.received)
        if totals.batches == before:
            raise InternalError(
                "keys wait, and a start of the query ran no batch", query=query.name or query.id
            )
        again = start_again(query)
        if again is None:
            return totals
        query = again


def _follow_run(
    query: StreamingQuery,
    on_batch: Callable[[Batch], None],
    signals: StopSignals,
    totals: Totals,
    *,
    drain: bool,
) -> tuple[Totals, bool]:
    """Wait for one run of a query to end; return its totals, and whether keys wait for the next run."""
    spark = SparkSession.active()
    available_now = was_available_now(query)
    reader = BatchReader(query)
    ended = False
    while True:
        failure: StreamingQueryException | None = None
        try:
            # Spark accepts fractions of a second.
            ended = bool(query.awaitTermination(_POLL_S))  # type: ignore[arg-type]
        except StreamingQueryException as error:
            failure = error
        if signals.received is not None:
            stop_between_batches(query, spark)
        for batch in reader.new():
            totals = totals.plus(batch)
            on_batch(batch)
            first, waits = totals.batches == 1, batch.waiting_keys > 0
            last = is_last(new_input=batch.new_input, waits=waits, drain=drain, first=first)
            if available_now and last and not ended:
                # The next batch may have started; it ends before the query stops.
                stop_between_batches(query, spark)
                ended = True
        if failure is not None:
            name = query.name or str(query.id)
            raise failure_of(failure, "the query failed", query=name) from None
        if ended or signals.received is not None:
            query.stop()  # join its thread, which may still be cleaning up
            for batch in reader.new():
                totals = totals.plus(batch)
                on_batch(batch)
            return totals, available_now and drain and totals.waiting_keys > 0


def follow_graph(running: RunningGraph, on_batch: Callable[[Batch], None], signals: StopSignals) -> Totals:
    """Wait until a graph ends, and report the batches of its queries; see `follow`."""
    running.is_followed = True  # the failure is raised here, so the graph need not report it
    totals = Totals()
    readers: dict[str, tuple[int, BatchReader]] = {}
    ended = False
    while not ended:
        batches: list[Batch] = []
        try:
            ended = running.await_termination(_POLL_S)
            if signals.received is not None:
                running.stop()
                ended = True
            for name in running.queries:
                batches += _read_new(running, name, readers)
        except (PenstockError, PySparkException, Py4JError, ConnectionError, JSONDecodeError) as error:
            # A signal to all processes, such as systemd's, ends the JVM, too.
            if signals.received is None or not is_without_answer(error.__cause__ or error):
                raise error from None  # the error's text names the cause
            ended = True
        for batch in batches:
            totals = totals.plus(batch)
            on_batch(batch)
    return replace(totals, signal=signals.received)


def _read_new(
    running: RunningGraph, name: str, readers: dict[str, tuple[int, BatchReader]]
) -> Iterator[Batch]:
    """Yield the new batches of a query of a graph. `readers` has the number of its starts, and the newest."""
    makes_results = name == RESULTS
    followed, reader = readers.get(name, (0, None))
    new = [] if reader is None else reader.new()
    starts = running.starts(name)
    for query in starts[followed:]:  # the earlier ones have ended
        is_awaited = makes_results and not followed
        reader = BatchReader(
            query,
            running.promised_s if makes_results else None,
            running.waiting_since_ms if is_awaited else None,
        )
        new += reader.new()
        readers[name] = len(starts), reader
    for batch in new:
        yield batch if makes_results else replace(batch, query=name)
