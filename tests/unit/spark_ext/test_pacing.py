"""The trigger interval of a query is the least that its buckets chose; the query outlives all failures."""

from __future__ import annotations

import logging
import pickle
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError

from penstock.spark_ext import pacing
from penstock.spark_ext.pacing import Interval, Pace

QUERY = SimpleNamespace(id="q")


@pytest.fixture
def intervals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the intervals that are set."""
    found: list[int] = []
    monkeypatch.setattr(pacing, "set_trigger_interval", lambda query, interval_ms: found.append(interval_ms))
    return found


def _merge(pace: Pace, *some: Interval | None) -> Interval | None:
    merged: Interval | None = None
    for one in some:
        merged = pace.addInPlace(merged, one)
    return merged


def test_the_least_interval_of_the_newest_batch_is_set(intervals: list[int]) -> None:
    pace = Pace()
    pace.follow(QUERY)
    least = Interval("q", 7, 300)
    assert (
        _merge(pace, Interval("q", 6, 0), Interval("q", 7, 400), None, least, Interval("q", 7, 500)) == least
    )
    assert intervals == [0, 400, 300]


def test_a_worker_only_merges(intervals: list[int]) -> None:
    pace = Pace()
    pace.follow(QUERY)
    there = pickle.loads(pickle.dumps(pace))
    assert _merge(there, Interval("q", 6, 300), Interval("q", 6, 200)) == Interval("q", 6, 200)
    assert intervals == []


def test_two_queries_of_one_dataframe_have_an_interval_each(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, int]] = []
    monkeypatch.setattr(pacing, "set_trigger_interval", lambda query, ms: found.append((query.id, ms)))
    pace = Pace()
    pace.follow(QUERY)
    pace.follow(SimpleNamespace(id="other"))
    _merge(pace, Interval("q", 1, 300), Interval("other", 1, 200), Interval("q", 2, 400))
    assert found == [("q", 300), ("other", 200), ("q", 400)]


def test_an_unknown_spark_keeps_its_interval_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(query: object, interval_ms: int) -> None:
        raise Py4JError("no such field")

    monkeypatch.setattr(pacing, "set_trigger_interval", refuse)
    pace = Pace()
    pace.follow(QUERY)
    with caplog.at_level(logging.WARNING):
        assert _merge(pace, Interval("q", 6, 0), Interval("q", 7, 400)) == Interval("q", 7, 400)
    assert [record.getMessage() for record in caplog.records] == [
        "the trigger interval stays [query=q reason=no such field]"
    ]
