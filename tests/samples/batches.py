"""Metrics of micro-batches, made up."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.monitoring.batch import OperatorBatch
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.scheduling.staleness import Staleness, StalenessMeter

__all__ = ["batch", "staleness"]


def staleness(stretches_us: list[tuple[int, int]], key_time_us: float) -> Staleness:
    """Return the staleness of keys that were from `low` to `high` µs stale, and fresh for the rest."""
    meter = StalenessMeter()
    for low, high in stretches_us:
        meter.add(np.array([-high]), np.array([low - high]), 0)
    return meter.take(key_time_us)


def batch(number: int, *, query: str = "q", operator: str = "queue", **fields: Any) -> OperatorBatch:
    """Return the metrics of a micro-batch of half a second; `fields` are those of `BatchMetrics`."""
    return OperatorBatch(
        query=query,
        query_id="id",
        batch_id=number,
        timestamp=f"2026-01-01T00:{number // 60:02}:{number % 60:02}.250Z",
        operator=operator,
        batch_ms=500,
        bad_records=number % 2,
        spark_ms={"addBatch": 400, "walCommit": 60, "triggerExecution": 500},
        metrics=BatchMetrics(**fields),
    )
