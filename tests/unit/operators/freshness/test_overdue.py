"""A micro-batch that runs for longer than a freshness contract allows is reported while it runs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.streaming.query import StreamingQuery

from penstock.checkpointing.p_stream import PStreamWriter
from penstock.conf.pipeline import Pipeline
from penstock.jobs.following import follow
from penstock.jobs.local.pipeline import Places, open_pipeline
from penstock.local_engine.start import LocalGraph
from penstock.operators.freshness.overdue import Overdue, OverdueTimers, log_overdue
from penstock.operators.update_stream.stream import UpdateStream

_LONG_S = 3600.0


def test_each_class_is_reported_once_when_its_limit_has_passed() -> None:
    seen: list[Overdue] = []
    both = threading.Barrier(3)

    def report(overdue: Overdue) -> None:
        seen.append(overdue)
        both.wait(60)

    timers = OverdueTimers("prices", report)
    timers.begin({"gold": 0.001, "silver": 0.002, "other": _LONG_S})
    both.wait(60)
    timers.end()
    assert {one.name for one in seen} == {"gold", "silver"}
    assert {one.query for one in seen} == {"prices"}


def test_a_batch_that_has_ended_is_not_reported() -> None:
    timers = OverdueTimers("prices")
    timers.begin({"all": _LONG_S})
    ((_, waiting),) = timers._timers.values()
    assert timers.active
    timers.end()
    assert not timers.active
    assert waiting.finished.is_set()


def test_a_class_that_breaks_sooner_is_reported_sooner_and_once() -> None:
    seen: list[str] = []
    done = threading.Event()

    def report(overdue: Overdue) -> None:
        seen.append(overdue.name)
        done.set()

    timers = OverdueTimers("prices", report)
    timers.begin({"gold": _LONG_S, "other": _LONG_S})
    timers.expect("gold", 2 * _LONG_S)
    timers.expect("gold", -5.0)
    assert done.wait(60)
    timers.expect("gold", -6.0)
    timers._timers["gold"][1].join(60)
    assert seen == ["gold"]
    timers.begin({"gold": 10.0}, age_s=_LONG_S)  # a new micro-batch
    timers._timers["gold"][1].join(60)
    timers.end()
    assert seen == ["gold", "gold"]


def test_an_unknown_class_is_ignored() -> None:
    timers = OverdueTimers("prices")
    timers.begin({"gold": _LONG_S})
    timers.expect("silver", 0.0)
    assert set(timers._timers) == {"gold"}
    timers.end()
    timers.expect("gold", 0.0)
    assert not timers.active


def test_a_timer_that_fires_while_the_micro_batch_ends_reports_nothing() -> None:
    seen: list[Overdue] = []
    timers = OverdueTimers("prices", seen.append)
    timers.begin({"gold": _LONG_S})
    _, timer = timers._timers["gold"]
    timers.end()
    timer.function(*timer.args)  # it was past the point where it can be cancelled
    assert seen == []


def test_the_warning_names_query_class_and_promise(caplog: pytest.LogCaptureFixture) -> None:
    log_overdue(Overdue("prices", "gold", 0.5))
    assert caplog.messages == [
        "promise of freshness broken: a micro-batch still runs [query=prices class=gold promised_ms=500]"
    ]


def _opened(place: Path, write: Callable[[], object]) -> LocalGraph:
    """Return a local query with a contract, whose sink calls `write` for each micro-batch."""

    class Called:
        def write(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> None:
            list(rows)
            write()

    pipeline = Pipeline.model_validate({
        "engine": "local", "source": {"type": "market", "rows_per_second": 1000, "real_time": False,
                   "max_rows_per_trigger": 100},
        "queue": {"key": "symbol", "time": "time", "freshness": {"p95": "50 ms"}},
        "sink": {"type": "noop"}, "query": {"checkpoint": str(place)},
    })  # fmt: skip
    return open_pipeline(pipeline, places=Places(output=lambda schema, checkpoint: Called()))


@pytest.mark.parametrize("step", ["sink", "commit"])
def test_the_local_engine_reports_a_step_that_hangs_until_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    reported = threading.Event()

    def hang() -> None:
        assert reported.wait(60), "a micro-batch ran for a minute, and nobody said so"

    running = _opened(tmp_path, hang if step == "sink" else lambda: None)
    (query,) = running.queries
    query.overdue.report = lambda overdue: reported.set()
    if step == "commit":
        commit = query.log.commit

        def commit_late(*arguments: Any) -> None:
            assert query.overdue.active
            hang()
            commit(*arguments)

        monkeypatch.setattr(query.log, "commit", commit_late)
    assert running.step()
    assert not query.overdue.active


def _open_hourly(place: Path, buckets: int) -> LocalGraph:
    """Return a local query that promises an hour."""
    pipeline = Pipeline.model_validate({
        "engine": "local", "source": {"type": "pstream", "path": str(place / "in")},
        "queue": {"key": "k", "time": "t", "arrival": "at", "freshness": {"p95": "1 h"}, "buckets": buckets},
        "sink": {"type": "noop"}, "query": {"checkpoint": str(place / "checkpoint")},
    })  # fmt: skip
    return open_pipeline(pipeline, places=Places(output=lambda schema, checkpoint: Sink()))


@pytest.mark.parametrize(("late", "told"), [(1, False), (30, True)])
def test_a_small_late_bucket_is_judged_with_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int, told: bool
) -> None:
    """The first bucket alone breaks the promise. If it is small, all keys together keep the promise."""
    schema = pa.schema({"k": pa.string(), "t": pa.int64(), "at": pa.timestamp("us", "UTC")})
    names = [str(n) for n in range(200)]
    rows = pa.record_batch(
        [pa.array(names), pa.array(range(200)), pa.nulls(200, schema.field("at").type)], schema
    )
    bucket = UpdateStream(schema, ("k",), "t").keys(rows).bucket(2)
    first, others = ([name for name, of in zip(names, bucket, strict=True) if of == n] for n in (0, 1))
    now, minute = time.time_ns() // 1000, 60_000_000
    arrived = [now - 120 * minute] * late + [now - 30 * minute] * len(others)
    at = pa.array(arrived).cast(schema.field("at").type)
    with PStreamWriter(tmp_path / "in", schema, threads=1) as writer:
        writer.append(pa.table({"k": first[:late] + others, "t": range(len(arrived)), "at": at}, schema))
    reported = threading.Event()
    monkeypatch.setattr(Sink, "reported", reported)
    monkeypatch.setattr(Sink, "patience_s", 60.0 if told else 0.5)
    running = _open_hourly(tmp_path, 2)
    (query,) = running.queries
    query.overdue.report = lambda overdue: reported.set()
    assert running.step()
    assert reported.is_set() is told
    assert query.newest is not None
    assert query.newest.metrics.freshness["all"].is_kept is not told


@pytest.mark.parametrize("buckets", [1, 4])
def test_a_class_without_keys_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buckets: int
) -> None:
    """Most buckets have no key of the class `gold`, and one class has no key at all."""
    schema = pa.schema({"k": pa.string(), "t": pa.int64()})
    with PStreamWriter(tmp_path / "in", schema, threads=1) as writer:
        writer.append(pa.table({"k": [str(n) for n in range(20)], "t": range(20)}, schema))
    contract = {"p95": {"gold": "1 h", "nobody": "1 h", "other": "1 h"}, "by": "IF(k = '7', 'gold', 'x')"}
    pipeline = Pipeline.model_validate({
        "engine": "local", "source": {"type": "pstream", "path": str(tmp_path / "in")},
        "queue": {"key": "k", "time": "t", "freshness": contract, "buckets": buckets},
        "sink": {"type": "noop"}, "query": {"checkpoint": str(tmp_path / "checkpoint")},
    })  # fmt: skip
    monkeypatch.setattr(Sink, "reported", threading.Event())
    monkeypatch.setattr(Sink, "patience_s", 0.5)
    running = open_pipeline(pipeline, places=Places(output=lambda schema, checkpoint: Sink()))
    (query,) = running.queries
    seen: list[str] = []
    query.overdue.report = lambda overdue: seen.append(overdue.name)
    assert running.step()
    assert seen == []


def _late_rows(place: Path, hours: int) -> LocalGraph:
    """Return a local query that promises an hour, and whose rows arrived some hours ago."""
    schema = pa.schema({"k": pa.string(), "t": pa.int64(), "at": pa.timestamp("us", "UTC")})
    at = pa.array([time.time_ns() // 1000 - hours * 3_600_000_000] * 9).cast(schema.field("at").type)
    with PStreamWriter(place / "in", schema, threads=1) as writer:
        writer.append(pa.table({"k": [str(n) for n in range(9)], "t": range(9), "at": at}, schema))
    return _open_hourly(place, 3)


class Sink:
    """A sink that waits for a report, or for half a second."""

    patience_s = 60.0
    reported = threading.Event()

    def write(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> None:
        list(rows)
        Sink.reported.wait(Sink.patience_s)


@pytest.mark.parametrize(("hours", "told"), [(2, ["all"]), (0, [])])
def test_after_a_restart_late_rows_are_reported_before_the_first_micro_batch_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int, told: list[str]
) -> None:
    """An hour from now is too late: the rows are late when the operator has seen them."""
    seen: list[str] = []
    monkeypatch.setattr(Sink, "reported", threading.Event())
    monkeypatch.setattr(Sink, "patience_s", 60.0 if told else 0.5)
    running = _late_rows(tmp_path, hours)
    (query,) = running.queries

    def report(overdue: Overdue) -> None:
        seen.append(overdue.name)
        Sink.reported.set()

    query.overdue.report = report
    assert running.step()
    assert seen == told
    assert query.newest is not None
    assert query.newest.metrics.freshness["all"].is_kept is not bool(told)
    # The metrics have said it, so the next micro-batch does not say it again.
    monkeypatch.setattr(Sink, "patience_s", 0.5)
    Sink.reported.clear()
    _late_rows(tmp_path, hours)
    assert running.step()
    assert seen == told


def test_a_batch_that_a_restart_repeats_is_as_old_as_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = _late_rows(tmp_path, 0)

    def fail(*arguments: object) -> None:
        raise RuntimeError("the sink is down")

    with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="is down"):
        broken.setattr(Sink, "write", fail)
        running.step()
    (plan,) = tmp_path.glob("checkpoint/queries/*/offsets/0")
    version, facts, *lines = plan.read_text().splitlines()
    told = json.loads(facts)
    told["batchTimestampMs"] -= 7_200_000
    plan.write_text("\n".join([version, json.dumps(told), *lines]))
    reported = threading.Event()
    monkeypatch.setattr(Sink, "reported", reported)
    running = _late_rows(tmp_path, 0)
    (query,) = running.queries
    query.overdue.report = lambda overdue: reported.set()
    assert running.step()
    assert reported.is_set()


def test_a_timer_that_cannot_start_leaves_no_other_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = _opened(tmp_path, lambda: None)
    (query,) = running.queries
    begin = query.overdue.begin

    def fail(limits: Mapping[str, float], age_s: float) -> None:
        begin(dict.fromkeys(limits, _LONG_S))
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(query.overdue, "begin", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        running.step()
    assert not query.overdue.active


def test_on_spark_a_running_batch_is_watched_once_its_contract_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = SimpleNamespace(batchId=0, durationMs={"addBatch": 1, "triggerExecution": 2})
    busy = {"isTriggerActive": True, "isDataAvailable": True}
    query: Any = SimpleNamespace(name="prices", id="0", isActive=True, status=busy, lastProgress=None)
    classes = {"gold": {"promised_ms": 5000}, "other": {"promised_ms": 20}}
    monkeypatch.setattr(follow, "batch_metrics", lambda progress: [{"classes": classes}])
    monkeypatch.setattr(follow, "batch_of", lambda progress: progress.batchId)
    begun: list[dict[str, float]] = []

    class Timers:
        active = False

        def begin(self, limits: dict[str, float], age_s: float) -> None:
            self.active = True
            begun.append(limits)

        def end(self) -> None:
            self.active = False

    timers = Timers()
    monkeypatch.setattr(follow, "OverdueTimers", lambda name: timers)
    reader: Any = follow.BatchReader(cast("StreamingQuery", query))
    assert reader.new() == []
    assert not begun  # no metrics yet, so no contract is known
    query.lastProgress = report
    assert reader.new() == [0]
    assert reader.new() == []
    assert begun == [{"gold": 5.0, "other": 1.0}]  # it polls, so a short limit is a second
    query.status = {"isTriggerActive": True, "isDataAvailable": False}
    reader.new()
    assert not timers.active


def test_on_spark_the_batch_that_a_restart_repeats_is_as_old_as_its_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idle = {"isTriggerActive": False, "isDataAvailable": False}
    query: Any = SimpleNamespace(name="prices", id="0", isActive=True, status=idle, lastProgress=None)
    seen: list[tuple[str, float]] = []
    timers = OverdueTimers("prices", lambda overdue: seen.append((overdue.name, overdue.promised_s)))
    monkeypatch.setattr(follow, "OverdueTimers", lambda name: timers)
    hour_ago_ms = time.time_ns() // 1_000_000 - 3_600_000
    reader: Any = follow.BatchReader(query, {"gold": 5.0, "other": 2 * _LONG_S}, hour_ago_ms)
    reader.new()
    timers._timers["gold"][1].join(60)
    reader.new()
    reader.new()
    assert seen == [("gold", 5.0)]
    assert timers._timers["other"][0] == pytest.approx(time.monotonic() + _LONG_S, abs=60)
    query.lastProgress = SimpleNamespace(batchId=0, durationMs={"addBatch": 1, "triggerExecution": 2})
    monkeypatch.setattr(follow, "batch_metrics", lambda progress: [{"classes": {}}])
    monkeypatch.setattr(follow, "batch_of", lambda progress: progress.batchId)
    assert reader.new() == [0]
    assert not timers.active
