"""Runs a pipeline: starts its query, follows it batch by batch, and ends it."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.conf.pipeline import Pipeline, Query, load_pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.build import start, start_graph, writer
from penstock.jobs.session import open_session
from penstock.jobs.signals import StopSignals
from penstock.spark_ext.graph_handle import RESULTS, RunningGraph
from penstock.spark_ext.metrics import ProgressReader, batch_metrics, had_input, is_last
from penstock.spark_ext.register import register, wait_for_metrics
from penstock.spark_ext.stopping import stop_between_batches

__all__ = ["Batch", "StopSignals", "Totals", "follow", "run_pipeline", "run_to_end"]

_POLL_S = 0.25
_COUNTS = ("rows_in", "emitted", "conflated", "late", "dropped", "waiting_keys")


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch that has ended.

    Attributes
    ----------
    number : int
        The batch's id.
    rows_in, emitted, conflated, late, dropped : int
        Rows that came into the queue and what became of them, as in `penstock.metrics`.
    waiting_keys : int
        Keys that wait after the batch.
    duration_ms : int
        Time from the batch's trigger to its commit.
    new_input : bool
        Whether any source had something new. A batch without it only serves keys that wait.
    """

    number: int
    rows_in: int
    emitted: int
    conflated: int
    late: int
    dropped: int
    waiting_keys: int
    duration_ms: int
    new_input: bool = True


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run did, from its start to its end.

    Attributes
    ----------
    batches, rows_in, emitted, conflated, late, dropped : int
        Sums over its batches.
    waiting_keys : int
        Keys that still wait, whose tuples are in the state.
    signal : int or None
        The signal that stopped the run.
    """

    batches: int = 0
    rows_in: int = 0
    emitted: int = 0
    conflated: int = 0
    late: int = 0
    dropped: int = 0
    waiting_keys: int = 0
    signal: int | None = None

    def plus(self, batch: Batch) -> Totals:
        """Return the totals with one more batch."""
        return Totals(
            batches=self.batches + 1,
            rows_in=self.rows_in + batch.rows_in,
            emitted=self.emitted + batch.emitted,
            conflated=self.conflated + batch.conflated,
            late=self.late + batch.late,
            dropped=self.dropped + batch.dropped,
            waiting_keys=batch.waiting_keys,
            signal=self.signal,
        )


def run_pipeline(pipeline: Pipeline | str | Path, spark: SparkSession | None = None) -> StreamingQuery:
    """Start a pipeline.

    Called on the driver. Returns as soon as the query runs. With the trigger available_now and a budget the
    query goes on after its input is used up, because keys may wait; `run_to_end` stops it when none does.

    Parameters
    ----------
    pipeline : Pipeline, str or pathlib.Path
        The pipeline, or its file, or the name of a packaged example.
    spark : pyspark.sql.SparkSession, optional
        The session to run in, to which ``query.spark`` is applied; by default the active one, or a new one.

    Returns
    -------
    pyspark.sql.streaming.StreamingQuery

    Raises
    ------
    InvalidUsageError
        If the configuration is wrong, or Spark or the queue refuses a section of it.
    """
    if not isinstance(pipeline, Pipeline):
        pipeline = load_pipeline(pipeline)
    if pipeline.is_graph:
        part = "persist" if pipeline.persists else "window"
        raise InvalidUsageError(
            f"{part}: it runs as a graph, which may be more than one query", hint="use run_to_end"
        )
    spark, _ = open_session(pipeline.query.name, pipeline.query.spark, spark)
    return _start(pipeline, spark)


def _start(pipeline: Pipeline, spark: SparkSession) -> StreamingQuery:
    return start(writer(spark, pipeline, _prepared(pipeline, spark)))


def _prepared(pipeline: Pipeline, spark: SparkSession) -> str:
    """Make Penstock's parts known to a session; return the checkpoint, a temporary one if none is given."""
    register(spark, metrics_file=pipeline.query.metrics, metrics_query=pipeline.query.name)
    if pipeline.query.checkpoint is not None:
        return pipeline.query.checkpoint
    # The query may outlive its handle, so the directory goes only when the process does.
    temporary = tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True)
    atexit.register(temporary.cleanup)
    return temporary.name


def _new_batches(reader: ProgressReader) -> list[Batch]:
    """Return the batches that ended since the last call, in order."""
    batches = []
    for progress in reader.new():
        served = dict.fromkeys(_COUNTS, 0) | {
            name: entry[name] for entry in batch_metrics(progress) for name in _COUNTS
        }
        batches.append(
            Batch(
                number=progress.batchId,
                duration_ms=progress.durationMs["triggerExecution"],
                new_input=had_input(progress),
                **served,
            )
        )
    return batches


def follow(
    query: StreamingQuery,
    spark: SparkSession,
    on_batch: Callable[[Batch], None],
    signals: StopSignals,
    ends: Callable[[Batch, bool], bool] = lambda batch, first: False,
) -> Totals:
    """Wait for a query to end, and tell of each of its batches.

    Called on the driver's main thread. A signal stops the query once the batch that runs has ended, for
    which it waits a few seconds. A batch that is given up a restart from the checkpoint runs again.

    Parameters
    ----------
    query : pyspark.sql.streaming.StreamingQuery
        The running query.
    spark : pyspark.sql.SparkSession
        The session in which it runs.
    on_batch : callable
        Called with each batch that ended, in order, within a quarter of a second of its end.
    signals : StopSignals
        Asked whether to stop.
    ends : callable
        Says of each batch, and whether it was the first, if it was the last one wanted; the query is then
        stopped.

    Raises
    ------
    pyspark.errors.StreamingQueryException
        If the query failed.
    """
    totals = Totals()
    reader = ProgressReader(query)
    ended = False
    while True:
        failure: StreamingQueryException | None = None
        try:
            # Spark takes parts of a second.
            ended = bool(query.awaitTermination(_POLL_S))  # type: ignore[arg-type]
        except StreamingQueryException as error:
            failure = error
        if signals.received is not None:
            stop_between_batches(query, spark)
        for batch in _new_batches(reader):
            totals = totals.plus(batch)
            on_batch(batch)
            if not ended and ends(batch, totals.batches == 1):
                # The next batch may have begun, and ends before the query stops.
                stop_between_batches(query, spark)
                ended = True
        if failure is not None:
            raise failure
        if ended or signals.received is not None:
            query.stop()  # joins its thread, which may still be tidying up
            for batch in _new_batches(reader):
                totals = totals.plus(batch)
                on_batch(batch)
            return replace(totals, signal=signals.received)


def _follow_graph(
    running: RunningGraph,
    on_batch: Callable[[Batch], None],
    signals: StopSignals,
) -> Totals:
    """Do for a graph what `follow` does for a query; the batches are those of its results.

    Raises
    ------
    PenstockError
        If a query failed.
    """
    totals = Totals()
    reader: ProgressReader | None = None
    ended = False
    while not ended:
        ended = running.await_termination(_POLL_S)
        if signals.received is not None:
            running.stop()
            ended = True
        if reader is None and RESULTS in running.queries:
            reader = ProgressReader(running.queries[RESULTS])
        batches = [] if reader is None else _new_batches(reader)
        for batch in batches:
            totals = totals.plus(batch)
            on_batch(batch)
    return replace(totals, signal=signals.received)


def _ends(query: Query, batch: Batch, first: bool) -> bool:
    return query.trigger == "available_now" and is_last(
        new_input=batch.new_input, waits=batch.waiting_keys > 0, drain=query.drain, first=first
    )


def run_to_end(
    pipeline: Pipeline,
    on_batch: Callable[[Batch], None] = lambda batch: None,
    spark: SparkSession | None = None,
    *,
    log_level: str = "FATAL",
) -> Totals:
    """Run a pipeline until its query ends or SIGINT or SIGTERM stops it.

    Called on the driver's main thread. A session that it makes it also ends.

    Parameters
    ----------
    pipeline : Pipeline
        What to run.
    on_batch : callable
        Called with each batch that ended.
    spark : pyspark.sql.SparkSession, optional
        The session to run in; by default the active one, or a new one.
    log_level : str
        What Spark logs, where neither the pipeline nor a Spark installation says so. A query's failure is
        raised, so its log adds only the stack of the JVM.

    Raises
    ------
    InvalidUsageError
        If the configuration is wrong, or Spark or the queue refuses a section of it.
    pyspark.errors.StreamingQueryException
        If the query failed.
    PenstockError
        If one of the queries of a pipeline with a p-stream or a window failed.
    """
    query = pipeline.query
    with StopSignals() as signals:
        spark, made = open_session(query.name, query.spark, spark, log_level=log_level)
        try:
            signals.take()
            if signals.received is not None:
                return Totals(signal=signals.received)
            if pipeline.is_graph:
                with start_graph(spark, pipeline, _prepared(pipeline, spark)) as graph:
                    totals = _follow_graph(graph, on_batch, signals)
                wait_for_metrics(spark, graph.queries.values())
                return totals
            running = _start(pipeline, spark)
            try:
                totals = follow(running, spark, on_batch, signals, partial(_ends, query))
            except BaseException:
                running.stop()
                raise
            wait_for_metrics(spark, [running])
            return totals
        finally:
            if made:
                spark.stop()
