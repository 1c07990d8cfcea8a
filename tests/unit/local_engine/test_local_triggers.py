"""The time between micro-batches of a pipeline on the local engine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from penstock.conf.pipeline import Pipeline
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
