"""The metrics of buckets are merged, and survive Spark's reports."""

from __future__ import annotations

import json

import pyarrow as pa

from penstock.operators.scheduling.metrics import BatchMetrics


def test_transactions_are_counted_by_the_reason_of_their_rejection() -> None:
    parts = []
    for reasons in ([None, "no money", None, "no account", "no money"], ["no money"], [None, None], []):
        metrics = BatchMetrics()
        metrics.count_outcomes(pa.array(reasons, pa.string()))
        parts.append(BatchMetrics.from_json(json.loads(json.dumps(metrics.to_json()))))
    merged = BatchMetrics.merge(parts)
    assert merged.committed == 4
    assert merged.summary()["rejections"] == {"no money": 3, "no account": 1}
    assert parts[0].rejections == {"no money": 2, "no account": 1}, "merging leaves the parts"
