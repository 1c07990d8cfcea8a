"""Several queries that one call follows, with queries in the place of Spark's."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.jobs.following import follow
from penstock.jobs.following.batches import Batch, summary_line
from penstock.jobs.signals import StopSignals


def batch(number: int) -> Batch:
    return Batch(number, 1, 1, 0, 0, 0, 0, 1)


class Query:
    """A query that ends after some polls, each of which finds some batches."""

    def __init__(self, name: str | None, polls: int, batches: int) -> None:
        self.name, self.id = name, name
        self.left, self.batches, self.made = polls, batches, 0
        self.polls = self.stops = 0

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - the name in Spark
        self.polls += 1
        self.left -= 1
        return self.left <= 0

    def new(self) -> list[Batch]:
        if self.stops:
            return []
        self.made += self.batches
        return [batch(number) for number in range(self.made - self.batches, self.made)]

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "BatchReader", lambda query: query)
    monkeypatch.setattr(follow, "SparkSession", SimpleNamespace(active=lambda: None))
    monkeypatch.setattr(follow, "was_available_now", lambda query: False)
    monkeypatch.setattr(follow, "wait_for_metrics", lambda queries: None)
    monkeypatch.setattr(follow, "stop_between_batches", lambda query, spark: query.stop())


def run(*queries: Any, on_batch: Any = lambda one: None, signals: StopSignals | None = None) -> Any:
    return follow.follow(queries, on_batch, signals or StopSignals())


def test_a_fast_query_does_not_wait_for_an_idle_one() -> None:
    fast, idle = Query("fast", polls=30, batches=10), Query("idle", polls=1000, batches=0)
    polls: list[int] = []
    totals = run(fast, idle, on_batch=lambda one: polls.append(idle.polls))
    assert (totals.batches, totals.earlier["fast"].batches) == (0, 300)
    assert max(polls) < 30


def test_all_queries_stop_if_one_fails_or_a_batch_is_not_wanted() -> None:
    def fail(one: Batch) -> None:
        raise OSError("no disk")

    queries = [Query(name, polls=5, batches=1) for name in "abc"]
    with pytest.raises(OSError, match="no disk"):
        run(*queries, on_batch=fail)
    assert all(one.stops for one in queries)
    assert [one.polls for one in queries] == [1, 0, 0]


def test_queries_of_one_name_are_all_followed() -> None:
    first, second, last = (Query(name, polls=3, batches=1) for name in ("x", "x", None))
    totals = run(first, second, last)
    assert set(totals.earlier) == {"x", "x (2)"}
    assert [one.batches for one in totals.earlier.values()] == [3, 3]
    assert totals.batches == 3
    queries: list[Any] = [first, second, last, first]
    assert follow.names_of(queries) == ["x", "x (2)", "query 3", "x (4)"]


def test_a_query_without_batches_has_a_line_too() -> None:
    totals = run(*(Query(name, polls=2, batches=0) for name in "abc"))
    assert summary_line(totals, name="c").splitlines() == [f"{name}: no new rows" for name in "abc"]


def test_after_a_signal_each_query_is_stopped_once_and_none_is_polled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signals, together = StopSignals(), list[list[str]]()
    queries = [Query(name, polls=1000, batches=1) for name in "ab"]
    monkeypatch.setattr(
        follow, "_stop_together", lambda running: together.append([one.name for one in running])
    )

    def stop(one: Batch) -> None:
        if one.number == 2:
            signals.received = signal.SIGTERM

    totals = run(*queries, on_batch=stop, signals=signals)
    assert totals.signal == totals.earlier["a"].signal == signal.SIGTERM
    assert all(one.polls <= 3 for one in queries)
    assert together == [["a", "b"]]
