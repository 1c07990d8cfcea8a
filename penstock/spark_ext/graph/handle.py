"""`RunningGraph`: one handle for all queries of a graph."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html import escape
from types import TracebackType
from typing import Any, Literal

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.graph.facts import Markers, StreamFacts, facts_of
from penstock.dataflow import PhysicalPlan, explain
from penstock.dataflow.draw import draw_html
from penstock.errors import PenstockError
from penstock.monitoring.table import MetricsList, html_table
from penstock.spark_ext.api.failure import failure_of, is_without_answer
from penstock.spark_ext.api.metrics import metrics
from penstock.spark_ext.api.stopping import stop_between_batches
from penstock.spark_ext.border.connection import Py4JError
from penstock.spark_ext.forwarding.counts import count_by_operator
from penstock.spark_ext.graph.recovery import GraphRecovery, RecoveryReport
from penstock.spark_ext.graph.stage import QueryTotals, Stage, StageRun

__all__ = ["DRIVER_ENDED", "RESULTS", "GraphProgress", "GraphState", "RunningGraph"]

_LOGGER = logging.getLogger(__name__)

RESULTS = "results"
"""The name of the query that makes a graph's results."""

DRIVER_ENDED = "driver_ended"
"""An attribute of log records: whether the failure only says that Spark's driver has ended."""

_POLL_S = 0.1
_STOP_S = 60.0

GraphState = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class GraphProgress:
    """The counts of a graph's queries, and the progress of its p-streams.

    Parameters
    ----------
    queries : mapping of str to QueryTotals
        The counts of each query since this start of the graph, by name.
    streams : tuple of StreamFacts
        The current facts of the p-streams.
    markers : Markers
        The counts of markers since the first start of the graph.
    recovery : RecoveryReport, optional
        The report of this start's recovery, once it has ended.
    """

    queries: Mapping[str, QueryTotals]
    streams: tuple[StreamFacts, ...]
    markers: Markers
    recovery: RecoveryReport | None


class RunningGraph:
    """A handle for all queries of a started graph, returned by `penstock.start`.

    A thread watches the queries. If a query fails, the thread stops all other queries. With
    ``available_now``, the thread starts a query when all earlier queries that feed it have ended. Spark does
    not end a query that may have timeouts, so the thread ends it. All methods may be called from any thread::

        state      ends when
        ---------  -------------------------------------------------
        running    all queries have ended: finished
                   `stop` was called: stopped
                   a query failed, and all other queries are stopped: failed

    Leaving a ``with`` block stops the graph. Stopping loses nothing: a start with the same checkpoint
    continues.

    Attributes
    ----------
    name : str
        The graph's name.
    plan : PhysicalPlan
        The plan that runs.
    schema : StructType
        The columns of the results.
    checkpoint : str
        The graph's directory.
    promised_s : dict of str to float
        The staleness in seconds that freshness contracts of the results' query promise, by class.
    waiting_since_ms : int or None
        The time since which rows have waited for the first micro-batch of the results' query. None if the
        time is unknown, or there is no promise.
    is_followed : bool
        Whether `penstock.run` raises a failure. If not, a failure is also an error in the log.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: PhysicalPlan,
        directory: GraphDirectory,
        stages: Sequence[Stage],
        schema: StructType,
        *,
        in_turn: bool,
        drain: bool,
        recovery: GraphRecovery | None,
        promised_s: Mapping[str, float] | None = None,
        waiting_since_ms: int | None = None,
    ) -> None:
        self.name = plan.name
        self.plan = plan
        self.schema = schema
        self.checkpoint = directory.location
        self.promised_s = promised_s or {}
        self.waiting_since_ms = waiting_since_ms
        self._spark = spark
        self._directory = directory
        self._recovery = recovery
        self._waiting = list(stages)
        self._names = [stage.name for stage in stages]
        self._writes = {stage.name: "directly" if stage.direct else "through Spark" for stage in stages}
        self._in_turn = in_turn
        self._drain = drain
        self._runs: dict[str, StageRun] = {}
        self._state: GraphState = "running"
        self.is_followed = False
        self._error: PenstockError | None = None
        self._lock = threading.RLock()
        self._ended = threading.Event()
        try:
            self._start_ready()
        except BaseException:
            self._try_to_stop_queries()
            raise
        self._thread = threading.Thread(target=self._watch, name=f"penstock-{self.name}", daemon=True)
        self._thread.start()

    # -------------------------------------------------------------------------------- the watcher

    def _watch(self) -> None:
        try:
            # Spark finds Python data sources by the thread's active session; set it.
            self._spark.createDataFrame([], "nothing int")
            while not self._ended.wait(_POLL_S):
                with self._lock:
                    self._look()
        except Exception as error:
            failure = (
                error if isinstance(error, PenstockError) else self._failure("the graph cannot go on", error)
            )
            with self._lock:
                self._fail(failure)

    def _look(self) -> None:
        """Poll the queries once, and react to failures and ends."""
        if self._ended.is_set():
            return
        # Ask once: a query that ends during this poll may have failed, which the next poll detects.
        ended = {name for name, run in self._runs.items() if not run.query.isActive}
        for name, run in self._runs.items():
            last = run.read()
            if last is not None and self._recovery is not None and name == self._names[-1]:
                self._recovery.record_commit(last.batchId)
            error = run.query.exception() if name in ended else None
            if error is not None:
                self._fail(self._failure("a query of the graph failed", error, query=name))
                return
            if not self._in_turn:
                continue
            if name in ended and self._drain and run.start_again():
                ended.remove(name)
            elif last is not None and run.is_done(last, drain=self._drain):
                # The next batch may have begun. It ends before the query stops.
                stop_between_batches(run.query, self._spark)
        self._start_ready(ended)
        if not self._waiting and ended >= self._runs.keys():
            self._end("finished")

    def _start_ready(self, ended: Collection[str] = ()) -> None:
        """Start the queries whose predecessors have all ended."""
        for stage in list(self._waiting):
            if self._in_turn and not set(stage.after) <= set(ended):
                continue
            try:
                query = stage.writer.start()
            except PenstockError:
                raise
            except Exception as error:
                raise self._failure("a query of the graph cannot start", error, query=stage.name) from None
            self._waiting.remove(stage)
            self._runs[stage.name] = StageRun(stage, query)
            _LOGGER.info("query started [graph=%s query=%s id=%s]", self.name, stage.name, query.id)

    def _failure(self, fact: str, error: Exception, **context: str) -> PenstockError:
        """Return the Penstock error for a query's error."""
        hint = "start the graph again with the same checkpoint" if is_without_answer(error) else None
        if "query" in context and len(self._names) == 1:
            fact, context = fact.replace("a query of the graph", "the query"), {"query": self.name}
        else:
            context = {"graph": self.name, **context}
        failure = failure_of(error, fact, hint=hint, **context)
        failure.__cause__ = error
        return failure

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn Spark's errors of a lost driver into `UnavailableError`."""
        try:
            yield
        except Exception as error:
            if not is_without_answer(error):
                raise
            raise self._failure("the graph cannot be asked", error) from error

    def _fail(self, error: PenstockError) -> None:
        self._error = error
        _LOGGER.log(
            logging.INFO if self.is_followed else logging.ERROR,
            "%s [graph=%s query=%s]", error.fact, self.name, error.context.get("query"),
            extra={DRIVER_ENDED: is_without_answer(error.__cause__ or error)},
        )  # fmt: skip
        try:
            self._try_to_stop_queries()
        finally:
            self._end("failed")

    def _try_to_stop_queries(self) -> None:
        try:
            self._stop_queries()
        except Exception as error:
            self._warn("a query could not be stopped", error)

    def _end(self, state: GraphState) -> None:
        self._state = state
        try:
            for run in self._runs.values():
                run.read()
        except Exception as error:
            self._warn("the last metrics are missing", error)
        finally:
            self._ended.set()
        _LOGGER.info("graph %s [graph=%s]", state, self.name)

    def _warn(self, fact: str, error: Exception) -> None:
        """Log a failure, with a traceback unless it only says that the driver has ended."""
        ended = is_without_answer(error)
        _LOGGER.warning("%s [graph=%s]", fact, self.name, exc_info=not ended, extra={DRIVER_ENDED: ended})

    def _stop_queries(self) -> None:
        """Stop all queries, upstream first, so that later queries can still read their last output."""
        with ExitStack() as stack:
            for run in reversed(self._runs.values()):
                # A query that cannot be stopped must not keep other queries running.
                stack.callback(stop_between_batches, run.query, self._spark)

    # ---------------------------------------------------------------------------------- the caller

    @property
    def queries(self) -> dict[str, StreamingQuery]:
        """Spark's started queries by name; the last query makes the results."""
        with self._lock:
            return {name: run.query for name, run in self._runs.items()}

    def starts(self, name: str) -> list[StreamingQuery]:
        """Return the runs of a query, oldest first. Before Spark 4.2 a query is restarted while keys wait."""
        with self._lock:
            return list(self._runs[name].starts) if name in self._runs else []

    @property
    def state(self) -> GraphState:
        """The graph's state."""
        return self._state

    @property
    def recovery(self) -> RecoveryReport | None:
        """The report of this start's recovery; None if there is no recovery, or until it has ended."""
        return None if self._recovery is None else self._recovery.report

    def status(self) -> dict[str, Any]:
        """Return the graph's state, and the activity of each query.

        Returns
        -------
        dict
            ``graph``, ``state``, ``recovering``, and ``queries``: by name ``active``, ``message``,
            ``micro_batch`` (the newest, or None), and ``writes``: ``"through Spark"``, or ``"directly"`` if
            the operator writes its results into a p-stream.

        Raises
        ------
        UnavailableError
            If Spark's driver has ended.
        """
        with self._lock, self._translate_errors():
            queries: dict[str, Any] = {
                name: {"active": False, "message": "Waits for the queries before it", "micro_batch": None}
                for name in self._names
            }
            for name, run in self._runs.items():
                last = run.query.lastProgress
                queries[name] = {
                    "active": run.query.isActive,
                    "message": run.query.status["message"],
                    "micro_batch": None if last is None else last.batchId,
                }
            for name, query in queries.items():
                query["writes"] = self._writes[name]
            recovering = self._recovery is not None and self._recovery.report is None
            return {"graph": self.name, "state": self._state, "recovering": recovering, "queries": queries}

    def _repr_html_(self) -> str:
        """Return the activity of each query, and the plan, for notebooks."""
        status = self.status()
        rows = [
            [name, query["message"], str(query["micro_batch"]), query["writes"]]
            for name, query in status["queries"].items()
        ]
        table = html_table(("query", "status", "micro-batch", "writes"), rows)
        return f"<p>graph {escape(self.name)}: {status['state']}</p>{table}{draw_html(self.plan)}"

    def metrics(self) -> MetricsList:
        """Return the metrics of the recent micro-batches of all queries, as `penstock.metrics` does.

        Raises
        ------
        UnavailableError
            If Spark's driver has ended.
        """
        with self._translate_errors():
            return metrics(self)

    def explain(self) -> str:
        """Describe the plan, and the share of forwarded transactions in the recent micro-batches.

        Raises
        ------
        UnavailableError
            If Spark's driver has ended.
        """
        with self._translate_errors():
            return explain(self.plan, counts=count_by_operator(self))

    def progress(self) -> GraphProgress:
        """Return the counts of the queries, and the progress of the p-streams.

        Raises
        ------
        CorruptDataError
            If the graph's checkpoint is damaged.
        UnavailableError
            If the file system refuses, or Spark's driver has ended.
        """
        with self._lock, self._translate_errors():
            if not self._ended.is_set():
                self._look()
            queries = {name: QueryTotals() for name in self._names}
            queries |= {name: run.totals for name, run in self._runs.items()}
        facts = facts_of(self._directory)
        return GraphProgress(queries, facts.streams, facts.markers, self.recovery)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the graph has ended, or until the time-out; return whether the graph has ended.

        Raises
        ------
        PenstockError
            If a query failed. The text names the query and the cause. If the cause is a Penstock error, this
            error has its class.
        """
        ended = self._ended.wait(timeout)
        self._raise()
        return ended

    def process_all_available(self) -> None:
        """Wait until the current content of the sources is processed and committed; for tests.

        Raises
        ------
        PenstockError
            If a query failed; see `await_termination`.
        """
        for name in self._names:
            while name not in self._runs and not self._ended.wait(_POLL_S):
                pass
            run = self._runs.get(name)
            try:
                if run is not None and not self._ended.is_set() and run.query.isActive:
                    run.query.processAllAvailable()
            except (PySparkException, Py4JError, ConnectionError):
                self._ended.wait(_STOP_S)  # the watcher reports the failure
            self._raise()
        with self._lock, self._translate_errors():
            self._look()
        self._raise()

    def stop(self) -> None:
        """Stop all queries between two micro-batches, the results query last; idempotent.

        Raises
        ------
        PySparkException
            If Spark cannot stop a query.
        UnavailableError
            If Spark's driver has ended.
        """
        with self._lock, self._translate_errors():
            if self._ended.is_set():
                return
            self._waiting.clear()
            self._stop_queries()
            self._end("stopped")
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def __enter__(self) -> RunningGraph:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
