"""Durations in the steps of a time."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.steps import steps_of


@pytest.mark.parametrize(
    ("duration", "kind", "unit", "steps"),
    [
        ("0 s", pa.timestamp("us"), None, 0),
        ("1.5 s", pa.timestamp("us", "UTC"), "us", 1_500_000),
        (timedelta(seconds=2), pa.timestamp("s"), None, 2),
        ("48 h", pa.date32(), None, 2),
        ("3 ms", pa.int64(), "ns", 3_000_000),
        ("1 minute", pa.int32(), "s", 60),
    ],
)
def test_a_duration_is_a_number_of_steps(
    duration: str | timedelta, kind: pa.DataType, unit: str | None, steps: int
) -> None:
    assert steps_of("within", duration, kind, unit) == steps


@pytest.mark.parametrize(
    ("duration", "kind", "unit", "message"),
    [
        (
            "1 ms",
            pa.timestamp("s"),
            None,
            "not a multiple of the time column's unit: option=within got=1 ms step=s",
        ),
        ("1 h", pa.date32(), None, "step=day"),
        ("1 s", pa.int64(), None, "an integer time column has an unknown unit"),
        ("1 s", pa.int64(), "m", "an integer time column has an unknown unit: unit='m'"),
        ("1 s", pa.timestamp("us"), "s", "the unit differs from the unit of the time column"),
        ("1 s", pa.float64(), "s", "the time column has an unsupported type: option=within type=double"),
    ],
)
def test_a_duration_that_is_none_is_told(
    duration: str, kind: pa.DataType, unit: str | None, message: str
) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        steps_of("within", duration, kind, unit)
