"""The time between micro-batches of a pipeline on the local engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError, PenstockError
from penstock.jobs.following.batches import Totals
from penstock.jobs.local import run
from penstock.local_engine.query import LocalBatch
from penstock.operators.scheduling.metrics import BatchMetrics


@pytest.mark.parametrize(
    ("trigger", "chosen", "begins"),
    [
        (None, [0.0, 300.0, 0.0, 150.0], [0.0, 0.0, 0.3, 0.3]),
        ("1 second", [0.0, 300.0, 0.0, 150.0], [0.0, 1.0, 2.0, 3.0]),
    ],
)
def test_without_a_trigger_the_contract_chooses_the_interval(
    monkeypatch: pytest.MonkeyPatch, trigger: str | None, chosen: list[float], begins: list[float]
) -> None:
    now, seen = [0.0], []

    class Graph:
        def step(self, note: Callable[[LocalBatch], None]) -> bool:
            seen.append(round(now[0], 3))
            metrics = BatchMetrics(interval_ms=chosen[len(seen) - 1])
            note(LocalBatch("results", "id", "queue", len(seen), True, 1.0, metrics))
            if len(seen) == len(chosen):
                os.kill(os.getpid(), signal.SIGTERM)
            return True

    monkeypatch.setattr(run, "open_pipeline", lambda pipeline, document: Graph())
    monkeypatch.setattr(run, "monotonic_s", lambda: now[0])
    monkeypatch.setattr(run, "pause", lambda seconds: now.__setitem__(0, now[0] + seconds))
    pipeline = Pipeline.model_validate({
        "engine": "local", "source": {"type": "market"}, "sink": {"type": "noop"},
        "queue": {"key": "symbol", "time": "time", "freshness": {"p95": "2 s"}},
        "query": {} if trigger is None else {"trigger": trigger},
    })  # fmt: skip
    run.run_local(pipeline, lambda batch: None)
    assert seen == pytest.approx(begins)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_start_that_waits_for_a_server(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def wait_for_a_server(pipeline: Pipeline, document: object) -> None:
        os.kill(os.getpid(), number)
        pytest.fail("the signal has not ended the start")

    monkeypatch.setattr(run, "open_pipeline", wait_for_a_server)
    pipeline = Pipeline.model_validate({
        "engine": "local", "source": {"type": "market"}, "sink": {"type": "noop"},
        "queue": {"key": "symbol", "time": "time"},
    })  # fmt: skip
    assert run.run_local(pipeline, lambda batch: None) == Totals(signal=number)


def test_one_process_at_a_time_runs_with_a_checkpoint(tmp_path: Path) -> None:
    pipeline = Pipeline.model_validate({
        "engine": "local", "queue": {"key": "k", "time": "t"}, "sink": {"type": "noop"},
        "source": {"type": "files", "format": "json", "path": str(tmp_path / "in"), "schema": "k INT, t INT"},
        "query": {"checkpoint": str(tmp_path / "ck"), "trigger": "available_now"},
    })  # fmt: skip
    (tmp_path / "in").mkdir()
    run.run_local(pipeline, lambda batch: None)
    code = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)"
    command = [sys.executable, "-uc", f"{code}; print(); input()", str(tmp_path / "ck")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(InvalidUsageError, match="another process runs with this checkpoint"):
            run.run_local(pipeline, lambda batch: None)
        other.kill()
    run.run_local(pipeline, lambda batch: None)


def test_a_refused_start_leaves_no_checkpoint(tmp_path: Path) -> None:
    pipeline = Pipeline.model_validate({
        "engine": "local", "queue": {"key": "value", "time": "timestamp"}, "sink": {"type": "noop"},
        "source": {"type": "rate"}, "query": {"checkpoint": str(tmp_path / "ck")},
    })  # fmt: skip
    with pytest.raises(PenstockError):
        run.run_local(pipeline, lambda batch: None)
    assert not (tmp_path / "ck").exists()
