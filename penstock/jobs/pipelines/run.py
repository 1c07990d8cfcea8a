"""Run a query, a graph or a pipeline: follow it batch by batch, and stop it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from json import JSONDecodeError
from pathlib import Path
from typing import cast

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock._clock import now_us
from penstock.conf.arguments import check_keywords
from penstock.conf.document import Document
from penstock.conf.pipeline import Pipeline, load_pipeline
from penstock.errors import InternalError, InvalidUsageError, PenstockError
from penstock.jobs.dashboard.dashboard import Dashboard
from penstock.jobs.pipelines.batches import Batch, Totals, batch_printer, summary_line
from penstock.jobs.pipelines.other_queries import report_failures
from penstock.jobs.pipelines.start import start, start_pipeline
from penstock.jobs.session import open_session, session
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
from penstock.spark_ext.api.register import listen, wait_for_metrics
from penstock.spark_ext.api.stopping import stop_between_batches
from penstock.spark_ext.border.connection import Py4JError, is_writer
from penstock.spark_ext.border.spark_versions import HAS_ADMISSION_CONTROL
from penstock.spark_ext.graph.handle import RESULTS, RunningGraph
from penstock.spark_ext.sources.rejected import REFUSAL
from penstock.spark_ext.worker.restart import start_again, was_available_now

__all__ = ["Batch", "StopSignals", "Totals", "follow", "run", "run_pipeline", "run_to_end"]

_POLL_S = 0.25
_MIN_OVERDUE_S = 1.0
"""Running batches are polled, so shorter limits are raised to this time."""
_COUNTS = ("rows_in", "emitted", "conflated", "late", "duplicates", "dropped",
           "committed", "rejected", "waiting_keys")  # fmt: skip

_REFUSAL = re.compile(rf"{re.escape(REFUSAL)}: source=(\S+)")
"""The text of Spark about a bad record of a source, if the source refuses such records."""


def run_pipeline(pipeline: Pipeline | str | Path, spark: SparkSession | None = None) -> RunningGraph:
    """Start a pipeline, which runs as a graph.

    Call this function on the driver. It returns as soon as the pipeline's queries run.

    Parameters
    ----------
    pipeline : Pipeline, str or pathlib.Path
        The pipeline, or its file, or the name of a packaged example.
    spark : pyspark.sql.SparkSession, optional
        The session to run in, to which ``query.spark`` is applied; by default the active session, or a new
        session.

    Returns
    -------
    RunningGraph

    Raises
    ------
    InvalidUsageError
        If the configuration is wrong, or Spark or the graph refuses a section of it.
    """
    if not isinstance(pipeline, Pipeline):
        pipeline = load_pipeline(pipeline)
    if pipeline.engine != "spark":
        raise InvalidUsageError(
            "the pipeline is for another engine", engine=pipeline.engine, hint="use penstock.run(pipeline)"
        )
    spark, _ = open_session(pipeline.query.name, pipeline.query.spark, spark)
    return start_pipeline(spark, pipeline)


class _BatchReader:
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
        return [_batch(report) for report in reports]


def _raise_to_least(promised_s: Mapping[str, float]) -> dict[str, float]:
    return {name: max(limit_s, _MIN_OVERDUE_S) for name, limit_s in promised_s.items()}


def _batch(progress: StreamingQueryProgress) -> Batch:
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
        The query or graph. A graph's batches are the batches of its results query.
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
        return _follow_graph(query, on_batch, signals)
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
    reader = _BatchReader(query)
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


def _follow_graph(running: RunningGraph, on_batch: Callable[[Batch], None], signals: StopSignals) -> Totals:
    running.is_followed = True  # the failure is raised here, so the graph need not report it
    totals = Totals()
    reader: _BatchReader | None = None
    followed = 0
    ended = False
    while not ended:
        batches: list[Batch] = []
        try:
            ended = running.await_termination(_POLL_S)
            if signals.received is not None:
                running.stop()
                ended = True
            starts = running.starts(RESULTS)
            batches += [] if reader is None else reader.new()
            for query in starts[followed:]:  # the earlier ones have ended
                waiting_since_ms = None if followed else running.waiting_since_ms
                reader = _BatchReader(query, running.promised_s, waiting_since_ms)
                batches += reader.new()
            followed = len(starts)
        except (PenstockError, PySparkException, Py4JError, ConnectionError, JSONDecodeError) as error:
            # A signal to all processes, such as systemd's, ends the JVM, too.
            if signals.received is None or not is_without_answer(error.__cause__ or error):
                raise error from None  # the error's text names the cause
            ended = True
        for batch in batches:
            totals = totals.plus(batch)
            on_batch(batch)
    return replace(totals, signal=signals.received)


@check_keywords
def run(
    query: StreamingQuery | RunningGraph | DataStreamWriter | Pipeline,
    *,
    drain: bool = True,
    on_batch: Callable[[Batch], None] | None = None,
) -> Totals:
    """Follow a query, a graph or a pipeline until it ends; print a line for each batch.

    Call this function on the driver's main thread. It returns when

    - the query ends: a query with the trigger ``availableNow`` ends when all its input is read and, with
      `drain`, no key waits (Spark's own ``awaitTermination`` does not notice this end);
    - Ctrl-C or SIGTERM stops it. The running batch has ten seconds to end. Otherwise it is cancelled, and the
      next start with the same checkpoint runs it again. A second signal ends the process at once, with exit
      code 130 or 143.

    After a signal, `run` returns normally. The program chooses its own exit code, such as ``sys.exit(128 +
    totals.signal)``; by default it is 0. If another query of the session fails, `run` says so and goes on.

    Parameters
    ----------
    query : StreamingQuery, RunningGraph, DataStreamWriter or Pipeline
        A query or graph that was started, by ``start()`` or `penstock.start`; or a writer or a pipeline,
        which `run` starts. A pipeline runs in the active session, or in a new session.
    drain : bool
        Whether a query with the trigger ``availableNow`` continues until no key waits. If false, the next
        start serves the waiting keys. A pipeline uses its setting ``query.drain`` instead.
    on_batch : callable, optional
        Called with each `Batch`; by default a line is printed on standard error.

    Returns
    -------
    Totals
        Sums over the batches, the number of keys that still wait, and the signal that stopped the pipeline.

    Raises
    ------
    InvalidUsageError
        If Spark refuses the query, or its checkpoint was made with a different key, policy or number of
        buckets.
    PenstockError
        If the query failed; the error's text names the cause, and its class shows what to do next.

    Examples
    --------
    >>> totals = penstock.run(query)  # doctest: +SKIP
    """
    if isinstance(query, Pipeline):
        return run_to_end(query, on_batch)
    with StopSignals() as signals:
        if is_writer(query):
            query = start(cast("DataStreamWriter", query))
        if not isinstance(query, RunningGraph) and not hasattr(query, "awaitTermination"):
            raise InvalidUsageError(
                "this is no query",
                got=type(query).__name__,
                hint="pass a writer, such as df.writeStream.format('console'), or what its start() returns",
            )
        return _run(cast("StreamingQuery | RunningGraph", query), on_batch, signals, drain=drain)


def _run(
    running: StreamingQuery | RunningGraph,
    on_batch: Callable[[Batch], None] | None,
    signals: StopSignals,
    *,
    drain: bool,
    later_steps: Sequence[str] = (),
) -> Totals:
    """Follow a query or a graph until it ends or a signal stops it; a signal before the call counts, too."""
    with ExitStack() as printer:
        show = on_batch
        if show is None:
            show = printer.enter_context(batch_printer(later_steps=later_steps))
            printer.enter_context(report_failures(running))
        try:
            totals = follow(running, show, signals, drain=drain)
        except BaseException as error:
            running.stop()
            if isinstance(error, PenstockError):
                error.while_running = True
            raise
    if isinstance(running, RunningGraph):
        try:
            wait_for_metrics(running.queries.values())
        except (Py4JError, ConnectionError):
            if totals.signal is None:
                raise
    if on_batch is None:
        print(summary_line(totals, later_steps, shows_waiting=True), file=sys.stderr, flush=True)
    return totals


def run_to_end(
    pipeline: Pipeline,
    on_batch: Callable[[Batch], None] | None = lambda batch: None,
    spark: SparkSession | None = None,
    *,
    document: Document | None = None,
    log_level: str = "FATAL",
    dashboard: Dashboard | None = None,
) -> Totals:
    """Run a pipeline until its queries end or SIGINT or SIGTERM stops it.

    Call this function on the driver's main thread. If it creates a session, it also stops the session.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline to run.
    on_batch : callable, optional
        Called with each batch that ended; if None, a line is printed for each.
    spark : pyspark.sql.SparkSession, optional
        The session to run in; by default the active session, or a new session.
    document : Document, optional
        The positions of the pipeline's fields, for errors.
    log_level : str
        Spark's log level, unless the pipeline or a Spark installation sets it. The failure of a query is
        raised as an exception, so Spark's log would add only the JVM's stack trace.
    dashboard : Dashboard, optional
        Shows the run.

    Raises
    ------
    InvalidUsageError
        If the configuration is wrong, or Spark or the queue refuses a section of it.
    PenstockError
        If a query failed.
    """
    if pipeline.engine == "local":
        # Imported here because it loads the operators, which otherwise only workers load.
        from penstock.jobs.local.run import run_local

        totals = run_local(pipeline, on_batch, document=document, dashboard=dashboard)
        if on_batch is None:
            line = summary_line(totals, pipeline.later_steps, shows_waiting=True)
            print(line, file=sys.stderr, flush=True)
        return totals
    query = pipeline.query
    with (
        session(query.spark, name=query.name, log_level=log_level, spark=spark) as opened,
        StopSignals() as signals,
    ):
        if dashboard is not None and not dashboard.follows_file:
            listen(opened, "the dashboard", dashboard.history.add, query.name)
        running = start_pipeline(opened, pipeline, document)
        if dashboard is not None:
            dashboard.show_checkpoint(running.checkpoint, query.state_location)
        try:
            return _run(running, on_batch, signals, drain=query.drain, later_steps=pipeline.later_steps)
        except InvalidUsageError as error:
            refused = _REFUSAL.match(str(error.context.get("cause")))
            if document is not None and refused is not None:
                error.add_context(pipeline=document.place(tuple(refused[1].split("."))))
            raise
