"""The attributes of a call become the declared types without loss, or are refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import InvalidUsageError
from penstock.procedures.in_process.arrow_rows import batches_of
from penstock.procedures.in_process.open_database import OpenDatabase

items = penstock.database("items")
items.table("items", "id int, p decimal(10,2), day date, f float", key="id")


@items.procedure(event="p decimal(10,2), day date, f float", returns="p decimal(10,2), day date, f float")
def put(e: Any, items: Any) -> tuple[Any, Any, Any]:
    items.insert(id=1, p=e.p, day=e.day, f=e.f)
    return e.p, e.day, e.f


BASE: dict[str, Any] = {"p": Decimal("1.00"), "day": date(2026, 1, 1), "f": 1.0}


@pytest.fixture
def db() -> Iterator[OpenDatabase]:
    with items.open() as db:
        yield db


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("p", 1, Decimal("1.00")),
        ("p", -99_999_999, Decimal("-99999999.00")),
        ("p", 0.1, Decimal("0.10")),
        ("p", 8_675_309.87, Decimal("8675309.87")),
        ("p", None, None),
        ("day", datetime(2026, 2, 3), date(2026, 2, 3)),
        ("day", datetime(2026, 2, 3, tzinfo=UTC), date(2026, 2, 3)),
        ("f", 2, 2.0),
        ("f", float("inf"), float("inf")),
    ],
)
def test_a_value_that_fits_is_taken(db: OpenDatabase, name: str, value: Any, stored: Any) -> None:
    assert db.call("put", **BASE | {name: value})[name] == stored


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("p", 1.005, "type=double declared=decimal(10, 2) reason=a float has more digits than the decimal"),
        ("p", 100_000_000, "type=bigint declared=decimal(10, 2)"),
        ("p", Decimal("1.005"), "type=decimal(4, 3) declared=decimal(10, 2)"),
        (
            "day",
            datetime(2026, 1, 1, 5),
            "type=timestamp_ntz declared=date reason=a time of day would be lost",
        ),
        ("f", 1e300, "type=double declared=float reason=a number is too large"),
    ],
)
def test_a_value_that_would_lose_a_part_is_refused(
    db: OpenDatabase, name: str, value: Any, reason: str
) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        db.call("put", **BASE | {name: value})
    assert f"column={name} {reason}" in str(caught.value)
    assert db.table("items").num_rows == 0


def test_each_decimal_is_taken_from_the_float_that_python_prints_for_it() -> None:
    texts = [f"{number / 100:.2f}" for number in range(-5_000_000, 5_000_000, 997)] + ["99999999.99"]
    schema = pa.schema({"p": pa.decimal128(10, 2)})
    [rows] = batches_of(pa.table({"p": [float(text) for text in texts]}), schema, owner="put")
    assert rows.column("p").to_pylist() == [Decimal(text) for text in texts]


@pytest.mark.parametrize("text", ["2026-11-27T12:00:00Z", "2026-11-27 12:00:00+02:00", "2026-11-27T12:00:00"])
def test_a_text_is_no_timestamp_with_or_without_a_zone(text: str) -> None:
    kind = pa.schema([("at", pa.timestamp("us", "UTC"))])
    with pytest.raises(
        InvalidUsageError, match=r"type=string declared=timestamp\. Hint: pass values"
    ) as refused:
        batches_of(pa.table({"at": [text]}), kind, owner="act")
    assert refused.value.__cause__ is None
