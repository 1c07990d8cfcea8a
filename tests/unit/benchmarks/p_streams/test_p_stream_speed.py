"""The benchmark of p-streams counts the micro-batches that ran while there was a writer, and no others."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.p_streams.p_stream_speed import sustained


def _batch(begins: float, start: int, end: int) -> Any:
    source = SimpleNamespace(
        startOffset=json.dumps({"offset": start, "identity": "x"}),
        endOffset=json.dumps({"offset": end, "identity": "x"}),
    )
    moment = datetime.fromtimestamp(begins, UTC).isoformat()
    return SimpleNamespace(timestamp=moment, numInputRows=min(1, end - start), sources=[source])


def test_the_pace_is_that_of_micro_batches_beside_a_writer() -> None:
    batches = [
        _batch(9, 100, 100),  # found nothing
        _batch(10, 100, 110),  # began with the writer
        _batch(11, 110, 310),
        _batch(12, 310, 510),
        _batch(13, 510, 710),  # is not done when the writer ends
        _batch(14, 710, 1100),  # has no writer beside it
    ]
    assert sustained(batches, 13.5) == pytest.approx(400 / 2 / 1000)
    assert sustained(batches, 12.5) == pytest.approx(200 / 1 / 1000)
    assert math.isnan(sustained(batches, 11.5))
