"""When a query over what is there now has done what it should, by the reports of Spark."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.operators.metrics import BatchMetrics
from penstock.spark_ext.graph_handle import is_last


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("waiting", [None, 0, 3])
@pytest.mark.parametrize("new", [False, True])
def test_a_batch_without_input_is_the_last_one_unless_what_waits_is_to_be_served(
    new: bool, waiting: int | None, drain: bool
) -> None:
    sources = [SimpleNamespace(startOffset="1", endOffset="1")]
    sources += [SimpleNamespace(startOffset="1", endOffset="2")] if new else []
    told = None if waiting is None else json.dumps(BatchMetrics(waiting_keys=waiting).to_json())
    report: Any = SimpleNamespace(
        sources=sources, observedMetrics={"penstock.queue": {"metrics": told}},
        name="g", id=1, batchId=2, timestamp="", durationMs={},
    )  # fmt: skip
    assert is_last(report, drain=drain, first=False) is (not new and not (drain and waiting))
    assert not is_last(report, drain=drain, first=True), "it may be one that an earlier start planned"
