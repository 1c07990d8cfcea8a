"""The trigger interval of a query is the least that its buckets chose; the query outlives all failures."""

from __future__ import annotations

import logging
import pickle
import weakref
from inspect import signature
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.spark_ext import pacing
from penstock.spark_ext.pacing import Interval, Intervals, Pace
from penstock.spark_ext.worker import restart

QUERY = SimpleNamespace(id="q", isActive=True)


@pytest.fixture
def intervals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the intervals that are set, each with its query."""
    found: list[tuple[str, int]] = []

    def note(query: Any, interval_ms: int) -> bool:
        found.append((query.id, interval_ms))
        return True

    monkeypatch.setattr(pacing, "set_trigger_interval", note)
    return found


def _merge(pace: Pace, *some: tuple[str, int, int]) -> Intervals:
    merged: Intervals = pace.zero({})
    for query, batch, interval_ms in some:
        merged = pace.addInPlace(merged, {query: Interval(batch, interval_ms)})
    return merged


def test_the_least_interval_of_the_newest_batch_is_set(intervals: list[tuple[str, int]]) -> None:
    pace = Pace()
    pace.follow(QUERY)
    merged = _merge(pace, ("q", 6, 0), ("q", 7, 400), ("q", 7, 300), ("q", 7, 500), ("q", 8, 300))
    assert merged == {"q": Interval(8, 300)}
    assert pace.addInPlace(merged, {}) == merged
    assert pace.addInPlace(merged, {"q": Interval(7, 200)}) == merged  # the answer of a task that came late
    assert intervals == [("q", 0), ("q", 400), ("q", 300)]  # each only once, as a call takes time
    pace.follow(QUERY)  # a restart, with an interval of its own
    pace.addInPlace(merged, {"q": Interval(9, 300)})
    assert intervals[3:] == [("q", 300)]


def test_a_worker_only_merges(intervals: list[tuple[str, int]]) -> None:
    pace = Pace()
    pace.follow(QUERY)
    there = pickle.loads(pickle.dumps(pace))
    assert _merge(there, ("q", 6, 300), ("q", 6, 200)) == {"q": Interval(6, 200)}
    assert intervals == []


def test_two_queries_of_one_dataframe_have_an_interval_each(intervals: list[tuple[str, int]]) -> None:
    pace = Pace()
    pace.follow(QUERY)
    pace.follow(SimpleNamespace(id="other"))
    # Their buckets come in any order.
    merged = _merge(pace, ("q", 1, 0), ("other", 1, 200), ("q", 1, 500), ("other", 1, 300), ("q", 2, 400))
    assert intervals == [("q", 0), ("other", 200), ("q", 400)]
    assert merged == {"q": Interval(2, 400), "other": Interval(1, 200)}


@pytest.mark.parametrize("error", [Py4JError("no such field"), AttributeError("no such field")])
def test_a_failure_is_logged_once_and_the_next_micro_batch_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    tries: list[int] = []
    answers: list[Exception | None] = [error, error, None, error]

    def set_or_fail(query: object, interval_ms: int) -> bool:
        tries.append(interval_ms)
        if (answer := answers.pop(0)) is not None:
            raise answer
        return True

    monkeypatch.setattr(pacing, "set_trigger_interval", set_or_fail)
    pace = Pace()
    pace.follow(QUERY)
    with caplog.at_level(logging.WARNING):
        merged = _merge(pace, ("q", 6, 500), ("q", 6, 400), ("q", 7, 400), ("q", 8, 400), ("q", 9, 0))
    assert merged == {"q": Interval(9, 0)}
    assert tries == [500, 400, 400, 0], "one try of a micro-batch fails"
    assert [record.getMessage() for record in caplog.records] == [
        "the trigger interval cannot be set; each micro-batch tries again [query=q reason=no such field]"
    ]


def test_before_the_first_micro_batch_the_interval_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    executors: list[MagicMock | None] = [None, MagicMock()]
    query = MagicMock(id="q")
    query._jsq.streamingQuery().triggerExecutor.side_effect = executors
    pace = Pace()
    pace.follow(query)
    _merge(pace, ("q", 1, 400), ("q", 2, 400))
    executor = executors[1]
    assert executor is not None
    executor.getClass().getDeclaredField("intervalMs").setLong.assert_called_once_with(executor, 400)


def test_an_ended_query_is_forgotten_and_its_dataframe_may_start_another(
    monkeypatch: pytest.MonkeyPatch, intervals: list[tuple[str, int]]
) -> None:
    class Lost:
        """A query whose JVM has ended."""

        id = "lost"

        def __getattr__(self, name: str) -> bool:
            raise ConnectionRefusedError

    class Context:
        def accumulator(self, value: Intervals, pace: Pace) -> Any:
            return SimpleNamespace(accum_param=pace)

    spark: Any = SimpleNamespace(sparkContext=Context())
    accumulator = pacing.pace_of(spark)
    assert accumulator is not None
    assert pacing.pace_of(spark) is accumulator  # all queries share it: PySpark forgets none
    pace: Any = accumulator.accum_param
    ended: Any = type("Query", (), {"id": "ended", "isActive": True})()
    pacing.follow(ended, spark)
    pacing.follow(Lost(), spark)
    merged = _merge(pace, ("ended", 1, 400), ("unknown", 1, 200))
    assert merged == {"ended": Interval(1, 400)}
    ended.isActive = False
    at = weakref.ref(ended)
    del ended
    pacing.follow(QUERY, spark)
    assert at() is None
    assert set(pace._queries) == {"q"}
    assert pace.addInPlace(merged, {"q": Interval(1, 300)}) == {"q": Interval(1, 300)}
    assert intervals == [("ended", 400), ("q", 300)]


def test_all_triggers_of_this_spark_are_known() -> None:
    triggers = {name.lower() for name in signature(DataStreamWriter.trigger).parameters} - {"self"}
    assert triggers <= restart._TRIGGERS
