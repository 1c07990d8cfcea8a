"""The metrics of one operator in one micro-batch, together with the metrics of that micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.operators.scheduling.metrics import BatchMetrics

__all__ = ["OperatorBatch"]


@dataclass(frozen=True, slots=True)
class OperatorBatch:
    """The metrics of one operator in one micro-batch, merged over its buckets.

    Attributes
    ----------
    query : str or None
        The query's name.
    query_id : str
        The query's id, which stays the same for all starts with a checkpoint.
    batch_id : int
        The micro-batch's number.
    timestamp : str
        The start of the micro-batch, in ISO 8601.
    operator : str
        The operator's name.
    batch_ms : int
        Time from the micro-batch's trigger to its commit.
    bad_records : int
        The number of records of the pipeline's sources that could not be read.
    spark_ms : mapping of str to int
        The time that Spark spent in each phase of the micro-batch, such as ``addBatch`` and ``walCommit``.
    metrics : BatchMetrics
        The operator's metrics.
    """

    query: str | None
    query_id: str
    batch_id: int
    timestamp: str
    operator: str
    batch_ms: int = 0
    bad_records: int = 0
    spark_ms: Mapping[str, int] = field(default_factory=dict)
    metrics: BatchMetrics = field(default_factory=BatchMetrics)

    def entry(self) -> dict[str, Any]:
        """Return the metrics as an entry of `penstock.metrics`, which is also the form of a metrics file."""
        return {
            "query": self.query,
            "query_id": self.query_id,
            "batch_id": self.batch_id,
            "timestamp": self.timestamp,
            "operator": self.operator,
            "batch_ms": self.batch_ms,
            "bad_records": self.bad_records,
            "spark_ms": dict(self.spark_ms),
            **self.metrics.summary(),
        }
