"""A micro-batch that runs for longer than a freshness contract allows is reported while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.streaming.query import StreamingQuery

from penstock.conf.pipeline import Pipeline
from penstock.jobs.local.pipeline import Places, open_pipeline
from penstock.jobs.pipelines import run
from penstock.local_engine.start import LocalGraph
from penstock.operators.freshness.overdue import Overdue, OverdueTimers, log_overdue

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
    (waiting,) = timers._timers
    assert timers.active
    timers.end()
    assert not timers.active
    assert waiting.finished.is_set()


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


def test_a_timer_that_cannot_start_leaves_no_other_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = _opened(tmp_path, lambda: None)
    (query,) = running.queries
    begin = query.overdue.begin

    def fail(limits: Mapping[str, float]) -> None:
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
    monkeypatch.setattr(run, "batch_metrics", lambda progress: [{"classes": classes}])
    monkeypatch.setattr(run, "_batch", lambda progress: progress.batchId)
    begun: list[dict[str, float]] = []

    class Timers:
        active = False

        def begin(self, limits: dict[str, float]) -> None:
            self.active = True
            begun.append(limits)

        def end(self) -> None:
            self.active = False

    timers = Timers()
    monkeypatch.setattr(run, "OverdueTimers", lambda name: timers)
    reader: Any = run._BatchReader(cast("StreamingQuery", query))
    assert reader.new() == []
    assert not begun  # no metrics yet, so no contract is known
    query.lastProgress = report
    assert reader.new() == [0]
    assert reader.new() == []
    assert begun == [{"gold": 5.0, "other": 1.0}]  # it polls, so a short limit is a second
    query.status = {"isTriggerActive": True, "isDataAvailable": False}
    reader.new()
    assert not timers.active
