"""Run a query, a graph or a pipeline until it ends or a signal stops it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.conf.arguments import check_keywords
from penstock.conf.document import Document
from penstock.conf.pipeline import Pipeline, load_pipeline
from penstock.errors import InvalidUsageError, PenstockError
from penstock.jobs.dashboard.dashboard import Dashboard
from penstock.jobs.following.batches import Batch, Totals, batch_printer, summary_line
from penstock.jobs.following.follow import follow, names_of
from penstock.jobs.following.other_queries import report_failures
from penstock.jobs.pipelines.start import start, start_pipeline
from penstock.jobs.session import open_session, session
from penstock.jobs.signals import StopSignals
from penstock.spark_ext.api.register import listen, wait_for_metrics
from penstock.spark_ext.border.connection import Py4JError, is_writer
from penstock.spark_ext.graph.handle import RunningGraph
from penstock.spark_ext.sources.rejected import REFUSAL

__all__ = ["Batch", "StopSignals", "Totals", "run", "run_pipeline", "run_to_end"]

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


@check_keywords
def run(
    *queries: StreamingQuery | RunningGraph | DataStreamWriter | Pipeline,
    drain: bool = True,
    on_batch: Callable[[Batch], None] | None = None,
) -> Totals:
    """Follow queries, or a graph or a pipeline, until they end; print a line for each batch.

    Call this function on the driver's main thread. It returns when

    - all queries have ended: a query with the trigger ``availableNow`` ends when all its input is read and,
      with `drain`, no key waits (Spark's own ``awaitTermination`` does not notice this end);
    - Ctrl-C or SIGTERM stops them. The running batches have ten seconds to end. Otherwise they are cancelled,
      and the next start with the same checkpoint runs them again. A second signal ends the process at once,
      with exit code 130 or 143.

    After a signal, `run` returns normally. The program chooses its own exit code, such as ``sys.exit(128 +
    totals.signal)``; by default it is 0. If one of several queries fails, `run` stops the others. If a query
    that was not passed fails, `run` says so and goes on.

    Parameters
    ----------
    *queries : StreamingQuery, RunningGraph, DataStreamWriter or Pipeline
        One or more queries that were started by ``start()``, or their writers, which `run` starts; or one
        graph that `penstock.start` started; or one pipeline, which `run` starts in the active session, or in
        a new session.
    drain : bool
        Whether a query with the trigger ``availableNow`` continues until no key waits. If false, the next
        start serves the waiting keys. A pipeline uses its setting ``query.drain`` instead.
    on_batch : callable, optional
        Called with each `Batch`; by default a line is printed on standard error. Batches of all queries but
        the last have the query's name in `Batch.query`. The last query of a graph makes the results.

    Returns
    -------
    Totals
        Sums over the batches of the last query, the number of its keys that still wait, and the signal that
        stopped the queries. `Totals.earlier` has the totals of the other queries by name, for a graph
        only of those that ran a batch.

    Raises
    ------
    InvalidUsageError
        If Spark refuses the query, or its checkpoint was made with a different key, policy or number of
        buckets.
    PenstockError
        If the query failed; the error's text names the cause, and its class shows what to do next.

    Examples
    --------
    >>> totals = penstock.run(prices, volumes)  # one query or several  # doctest: +SKIP
    """
    if len(queries) == 1 and isinstance(queries[0], Pipeline):
        return run_to_end(queries[0], on_batch)
    for query in queries or (None,):
        if len(queries) > 1 and isinstance(query, RunningGraph | Pipeline):
            raise InvalidUsageError(
                "a graph or a pipeline runs alone", got=type(query).__name__, hint="pass only this one"
            )
        if not (isinstance(query, RunningGraph) or is_writer(query) or hasattr(query, "awaitTermination")):
            raise InvalidUsageError(
                "this is no query",
                got=type(query).__name__,
                hint="pass a writer, such as df.writeStream.format('console'), or what its start() returns",
            )
    with StopSignals() as signals:
        if isinstance(queries[0], RunningGraph):
            return _run(queries[0], on_batch, signals, drain=drain)
        return _run(_start_all(queries), on_batch, signals, drain=drain)


def _start_all(queries: Iterable[Any]) -> list[StreamingQuery]:
    """Start the writers among queries. If Spark refuses one, stop the queries that this call started."""
    with ExitStack() as started:
        running = []
        for query in queries:
            running.append(start(query) if is_writer(query) else query)
            if running[-1] is not query:
                started.callback(running[-1].stop)
        started.pop_all()
    return running


def _run(
    running: Sequence[StreamingQuery] | RunningGraph,
    on_batch: Callable[[Batch], None] | None,
    signals: StopSignals,
    *,
    drain: bool,
    later_steps: Sequence[str] = (),
) -> Totals:
    """Follow queries or a graph until they end or a signal stops them; an earlier signal counts, too."""
    name = ""
    if not isinstance(running, RunningGraph) and len(running) > 1:
        name = names_of(running)[-1]
    with ExitStack() as printer:
        show = on_batch
        if show is None:
            show_named = printer.enter_context(batch_printer(later_steps=later_steps))
            show = lambda batch: show_named(replace(batch, query=batch.query or name))  # noqa: E731
            printer.enter_context(report_failures(running))
        try:
            totals = follow(running, show, signals, drain=drain)
        except BaseException as error:
            for one in [running] if isinstance(running, RunningGraph) else running:
                one.stop()
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
        line = summary_line(totals, later_steps, shows_waiting=True, name=name)
        print(line, file=sys.stderr, flush=True)
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
