"""When a query over the available input has finished its work, and that its runners check this."""

from __future__ import annotations

import json
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import penstock
from penstock.jobs.following import follow
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.spark_ext.api.metrics import is_last
from penstock.spark_ext.graph import handle
from penstock.spark_ext.graph.handle import RunningGraph
from penstock.spark_ext.graph.stage import Stage, StageRun


def report(number: int, *, new: bool, waiting: int | None) -> Any:
    """Return what Spark reports of a micro-batch; of one in which no bucket ran there are no metrics."""
    sources = [SimpleNamespace(startOffset="1", endOffset="1")]
    sources += [SimpleNamespace(startOffset="1", endOffset="2")] if new else []
    told = None if waiting is None else json.dumps(BatchMetrics(waiting_keys=waiting).to_json())
    return SimpleNamespace(
        sources=sources, observedMetrics={"penstock.queue": Row(metrics=told)}, name="q", id=1,
        batchId=number, timestamp="", durationMs={"triggerExecution": 1, "addBatch": 1}, numInputRows=0,
    )  # fmt: skip


class Query:
    """A query that runs micro-batches until it is stopped."""

    def __init__(self, reports: list[Any]) -> None:
        self.recentProgress: list[Any] = []
        self.id, self.runId, self.name = "1", "2", "q"
        self.left = list(reports)
        self.stopped_after: int | None = None
        self.exception = lambda: None
        trigger = SimpleNamespace(toString=lambda: "AvailableNowTrigger")
        self._jsq = SimpleNamespace(
            streamingQuery=lambda: SimpleNamespace(trigger=lambda: trigger, analyzedPlan=lambda: trigger)
        )

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        return self.recentProgress[-1] if self.recentProgress else None

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return bool(self.left) and self.stopped_after is None

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802 - Spark's name
        if self.isActive:
            self.recentProgress.append(self.left.pop(0))
        return not self.isActive

    def stop(self) -> None:
        if self.stopped_after is None:
            self.stopped_after = len(self.recentProgress)


def stop(query: Query, spark: object) -> None:
    query.stop()


# A batch that the start before had planned, then one with input, then nothing new but keys that wait.
REPORTS = [
    report(4, new=False, waiting=None),
    report(5, new=True, waiting=3),
    report(6, new=False, waiting=2),
    report(7, new=False, waiting=0),
    report(8, new=False, waiting=None),
]


@pytest.mark.parametrize(("drain", "last"), [(True, 4), (False, 3)])
def test_a_pipeline_ends_after_the_batch_in_which_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, drain: bool, last: int
) -> None:
    monkeypatch.setattr(follow, "stop_between_batches", stop)
    query: Any = Query(REPORTS)
    monkeypatch.setattr(SparkSession, "active", lambda: None)
    totals = penstock.run(query, drain=drain, on_batch=lambda batch: None)
    assert query.stopped_after == totals.batches == last


@pytest.mark.parametrize(("drain", "last"), [(True, 4), (False, 3)])
def test_a_graph_ends_after_the_batch_in_which_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, drain: bool, last: int
) -> None:
    monkeypatch.setattr(handle, "stop_between_batches", stop)
    query: Any = Query(REPORTS)
    no_writer: Any = None
    results = StageRun(Stage("results", no_writer, (), holds_back=True), query)
    graph: Any = SimpleNamespace(
        _runs={"results": results}, _drain=drain, _in_turn=True, _spark=None, _recovery=None, _waiting=[],
        _ended=Event(), _start_ready=lambda ended: None, _end=lambda state: None,
    )  # fmt: skip
    while query.isActive:
        query.awaitTermination(0)
        RunningGraph._look(graph)
    assert query.stopped_after == last


class Failing(Query):
    """A query that says that it is active, and then fails."""

    def __init__(self) -> None:
        super().__init__([])
        self.asked = 0
        told: Any = lambda: ValueError("broken") if self.asked else None  # noqa: E731
        self.exception = told

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        self.asked += 1
        return self.asked == 1


def test_a_query_that_fails_while_it_is_looked_at_has_failed() -> None:
    query: Any = Failing()
    no_writer: Any = None
    results = StageRun(Stage("results", no_writer, ()), query)
    states: list[str] = []
    graph: Any = SimpleNamespace(
        name="g", _names=["results", "source"],
        _runs={"results": results}, _in_turn=True, _recovery=None, _waiting=[], _ended=Event(),
        _start_ready=lambda ended: None, _end=states.append, _fail=lambda error: states.append(str(error)),
    )  # fmt: skip
    graph._failure = partial(RunningGraph._failure, graph)
    RunningGraph._look(graph)
    assert states == []
    RunningGraph._look(graph)
    assert len(states) == 1
    assert "broken" in states[0]


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("drain", [False, True])
def test_the_first_batch_of_a_start_is_never_the_last(new: bool, waits: bool, drain: bool) -> None:
    assert not is_last(new_input=new, waits=waits, drain=drain, first=True)


def test_a_query_without_an_operator_counts_the_rows_of_its_sources() -> None:
    told = report(0, new=True, waiting=0)
    told.numInputRows = 300
    assert (follow.batch_of(told).has_operator, follow.batch_of(told).rows_in) == (True, 0)
    told.observedMetrics = {}
    assert (follow.batch_of(told).has_operator, follow.batch_of(told).rows_in) == (False, 300)
