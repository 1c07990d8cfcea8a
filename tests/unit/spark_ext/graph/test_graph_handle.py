"""The handle of a running graph whose driver ends, over queries that only seem to be Spark's."""

from __future__ import annotations

from collections.abc import Callable
from json import JSONDecodeError
from signal import SIGTERM
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from penstock.dataflow import graph
from penstock.errors import PenstockError, UnavailableError
from penstock.jobs.signals import StopSignals
from penstock.spark_ext.graph.handle import RunningGraph
from penstock.spark_ext.graph.stage import Stage


class _HalfAnswer:
    """A JVM query whose status is the first part of a JSON text."""

    def id(self) -> _HalfAnswer:
        return self

    runId = status = id  # noqa: N815

    def toString(self) -> str:  # noqa: N802
        return "1"

    def json(self) -> str:
        return '{"id'


class _Spark:
    """A session, writer and query in one, whose JVM may end."""

    name, location, id = "prices", "checkpoint", "1"

    def __init__(self) -> None:
        self.error: Exception | None = None

    def start(self) -> _Spark:
        return self

    def __getattr__(self, name: str) -> Any:
        """Answer a request to Spark, unless its JVM has ended."""
        if isinstance(self.error, JSONDecodeError):
            return StreamingQuery(cast(Any, _HalfAnswer())).status
        if self.error is not None:
            raise self.error
        if name == "status":
            return {"message": "", "isTriggerActive": True}
        if name in ("_jsq", "streamingQuery", "analyzedPlan"):
            return self
        return {"isActive": True, "lastProgress": None}.get(name, lambda *_: None)

    def __call__(self) -> _Spark:
        return self


def _started(spark: _Spark) -> RunningGraph:
    stages = [Stage("results", cast(Any, spark), ())]
    any_of = cast(Any, spark)
    return RunningGraph(
        any_of, any_of, any_of, stages, StructType(), in_turn=False, drain=False, recovery=None
    )


def test_a_notebook_shows_the_queries_and_the_plan() -> None:
    plan = graph("<sums>").source("numbers", "n bigint").sink("noop").plan()
    any_of = cast(Any, _Spark())
    stages = [Stage("results", any_of, ())]
    running = RunningGraph(
        any_of, plan, any_of, stages, StructType(), in_turn=False, drain=False, recovery=None
    )
    shown = running._repr_html_()
    assert shown.startswith("<p>graph &lt;sums&gt;: running</p><table>")
    assert "<td>results</td>" in shown
    assert "as planned" in shown
    running._ended.set()


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        Py4JNetworkError("no"),
        Py4JError("o1.x"),
        JSONDecodeError("Unterminated string", '{"id', 1),
    ],
)
def test_a_driver_that_ends_fails_the_graph(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    spark = _Spark()
    running = _started(spark)
    spark.error = error
    with pytest.raises(UnavailableError, match="the JVM of Spark's driver does not answer") as caught:
        running.await_termination(60)
    assert caught.value.hint == "start the graph again with the same checkpoint"
    assert running.state == "failed"
    assert len(caplog.records) == 3
    assert not any(record.exc_info for record in caplog.records), "tracebacks would only repeat the error"
    running.stop()
    for call in (running.status, running.process_all_available):
        with pytest.raises(UnavailableError):
            call()


@pytest.mark.parametrize("cause", [ConnectionRefusedError(111, "Connection refused"), ValueError("no")])
def test_a_signal_hides_only_the_log_of_a_driver_that_has_ended(
    cause: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    spark = _Spark()
    running = _started(spark)
    with StopSignals() as signals:
        signals.received = SIGTERM
        spark.error = cause
        with pytest.raises(PenstockError):
            running.await_termination(60)
        running._thread.join(60)
    assert bool(caplog.records) == isinstance(cause, ValueError)


@pytest.mark.parametrize(
    "call",
    [
        RunningGraph.status,
        RunningGraph.metrics,
        RunningGraph.progress,
        RunningGraph.process_all_available,
        RunningGraph.stop,
    ],
)
def test_whoever_asks_before_the_watcher_is_told_so_too(call: Callable[[RunningGraph], object]) -> None:
    spark = _Spark()
    running = _started(spark)
    with running._lock:
        spark.error = ConnectionRefusedError(111, "Connection refused")
        if call is not RunningGraph.process_all_available:  # which waits for the watcher
            with pytest.raises(UnavailableError, match="the graph cannot be asked"):
                call(running)
    with pytest.raises(UnavailableError):
        running.process_all_available()


def test_a_driver_that_ends_before_the_watcher_begins_fails_the_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark = _Spark()
    begin = spark.start

    def started() -> _Spark:
        spark.error = ConnectionRefusedError(111, "Connection refused")
        return begin()

    monkeypatch.setattr(spark, "start", started)
    with pytest.raises(UnavailableError, match="the JVM of Spark's driver does not answer"):
        _started(spark).await_termination(60)
