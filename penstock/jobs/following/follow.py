"""Wait until a query or a graph ends, and report its batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
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

__all__ = ["BatchReader", "batch_of", "follow", "follow_graph", "names_of"]

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
    queries: Sequence[StreamingQuery] | RunningGraph,
    on_batch: Callable[[Batch], None],
    signals: StopSignals,
    *,
    drain: bool = True,
) -> Totals:
    """Wait until all queries, or a graph, have ended, and report each of their batches.

    Call this function on the driver's main thread. After a signal, `follow` stops the queries. It waits a few
    seconds for the running batches to end, then cancels them. A restart from the checkpoint runs a cancelled
    batch again. If a query fails, the others are stopped.

    Parameters
    ----------
    queries : sequence of pyspark.sql.streaming.StreamingQuery, or RunningGraph
        The queries, or the graph. Batches of all queries but the last have the query's name in `Batch.query`.
    on_batch : callable
        Called with each batch, in the order of its query, soon after the batch has ended.
    signals : StopSignals
        The signals that stop the queries.
    drain : bool
        Whether a query with the trigger ``availableNow`` continues until no key waits.

    Raises
    ------
    PenstockError
        If a query failed.
    """
    if isinstance(queries, RunningGraph):
        return follow_graph(queries, on_batch, signals)
    with ExitStack() as stack:
        *earlier, _ = names_of(queries)
        running: list[_Followed] = []
        for query, name in zip(queries, [*earlier, ""], strict=True):
            one = _Followed(query, name, signals, drain, _POLL_S / len(queries))
            stack.callback(one.close)
            running.append(one)
        # A query without batches has its totals, too.
        totals = Totals(earlier={name: Totals() for name in earlier})
        is_stopped = False
        while running:
            if signals.received is not None and not is_stopped:
                _stop_together([one.query for one in running])
                is_stopped = True
            for one in list(running):
                for batch in one.batches:
                    if batch is None:
                        break
                    named = replace(batch, query=one.name)
                    totals = totals.plus(named)
                    on_batch(named)
                else:
                    running.remove(one)
    return _stopped_by(totals, signals.received)


def names_of(queries: Sequence[StreamingQuery]) -> list[str]:
    """Return a name for each query. Queries of several sessions may have the same name."""
    names: list[str] = []
    for number, query in enumerate(queries, 1):
        name = query.name or f"query {number}"
        names.append(f"{name} ({number})" if name in names else name)
    return names


def _stopped_by(totals: Totals, signal: int | None) -> Totals:
    """Return totals, and those of the other queries, with the signal that stopped the run."""
    earlier = {name: replace(one, signal=signal) for name, one in totals.earlier.items()}
    return replace(totals, signal=signal, earlier=earlier)


def _stop_together(queries: Sequence[StreamingQuery]) -> None:
    """Stop queries at the same time, because each may wait for its running batch."""
    spark = SparkSession.active()
    if len(queries) == 1:
        stop_between_batches(queries[0], spark)
        return
    with ThreadPoolExecutor(len(queries)) as pool:
        list(pool.map(lambda query: stop_between_batches(query, spark), queries))


class _Followed:
    """A query that is followed. An older Spark starts it several times.

    Parameters
    ----------
    query : StreamingQuery
        The query.
    name : str
        The query's name in its batches.
    signals : StopSignals
        The signals after which the caller stops the query.
    drain : bool
        See `follow`.
    wait_s : float
        The time after which `batches` yields None if the query has no new batch.

    Attributes
    ----------
    batches : generator
        Yields each batch of the query, and None after each wait; ends when the query has ended.
    """

    def __init__(
        self, query: StreamingQuery, name: str, signals: StopSignals, drain: bool, wait_s: float
    ) -> None:
        self.query, self.name = query, name
        self._signals, self._drain, self._wait_s = signals, drain, wait_s
        self._is_first = True
        self.batches = self._poll()

    def close(self) -> None:
        """Stop the query, if it still runs."""
        try:
            self.batches.close()
        finally:
            self.query.stop()

    def _poll(self) -> Generator[Batch | None, None, None]:
        """Poll the query. Before Spark 4.2, a query with the trigger ``availableNow`` ends after one batch.

        While keys wait, such a query is started again.
        """
        waits = False
        while True:
            ran = False
            with closing(self._poll_run()) as batches:
                for batch in batches:
                    if batch is not None:
                        ran, waits = True, batch.waiting_keys > 0
                    yield batch
            wait_for_metrics([self.query])
            goes_on = waits and self._drain and self._signals.received is None
            if HAS_ADMISSION_CONTROL or not goes_on or not was_available_now(self.query):
                return
            if not ran:
                raise InternalError(
                    "keys wait, and a start of the query ran no batch",
                    query=self.query.name or self.query.id,
                )
            again = start_again(self.query)
            if again is None:
                return
            self.query = again

    def _poll_run(self) -> Generator[Batch | None, None, None]:
        """Poll one run of the query."""
        query, spark = self.query, SparkSession.active()
        available_now = was_available_now(query)
        reader = BatchReader(query)
        ended = False
        try:
            while not ended:
                failure: StreamingQueryException | None = None
                if self._signals.received is not None:
                    ended = True  # the caller has stopped the query
                else:
                    try:
                        # Spark accepts fractions of a second.
                        ended = bool(query.awaitTermination(self._wait_s))  # type: ignore[arg-type]
                    except StreamingQueryException as error:
                        failure = error
                for batch in reader.new():
                    yield batch
                    first, self._is_first = self._is_first, False
                    waits = batch.waiting_keys > 0
                    last = is_last(new_input=batch.new_input, waits=waits, drain=self._drain, first=first)
                    if available_now and last and not ended:
                        # The next batch may have started; it ends before the query stops.
                        stop_between_batches(query, spark)
                        ended = True
                if failure is not None:
                    name = query.name or str(query.id)
                    raise failure_of(failure, "the query failed", query=name) from None
                yield None
        finally:
            query.stop()  # join its thread, which may still be cleaning up
        yield from reader.new()


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
    return _stopped_by(totals, signals.received)


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
