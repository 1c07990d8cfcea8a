"""Filters, projections and aggregates are pushed down into a p-stream's reader."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidUsageError
from penstock.operators.scan.spec import Fragments, LatestBy, Partial, Scan

_SUM = Partial("sum", "cpu", "sum_cpu")
_FRAGMENTS = Fragments(1_000, "timestamp", "s", ("category",), (_SUM,))
_SCANS = [
    Scan(()),
    Scan(("a", "b"), where="a > 1"),
    Scan(("a", "b"), select={"b": "b", "c": "a + b"}, latest_by=LatestBy(("c",), "b")),
    Scan(("timestamp", "category", "cpu"), "cpu > 0", None, None, _FRAGMENTS),
    Scan(("a", "b"), latest_by=LatestBy(("a",), "b", by_last=True)),
]


@pytest.mark.parametrize("scan", _SCANS)
def test_a_scan_goes_through_json(scan: Scan) -> None:
    again = Scan.from_json(scan.to_json())
    assert again == scan
    assert hash(again) == hash(scan)
    assert "\n" not in scan.to_json()


def test_the_order_of_a_select_survives() -> None:
    scan = Scan(("a",), select={"z": "a", "b": "a", "y": "a"})
    assert Scan.from_json(scan.to_json()).output == ("z", "b", "y")


def test_the_columns_that_leave_are_known() -> None:
    assert _SCANS[3].output == ("pane", "category", "sum_cpu")
    assert _SCANS[2].output == ("b", "c")
    assert _SCANS[1].output == ("a", "b")


@pytest.mark.parametrize(("unit", "steps"), [("s", 5), ("ms", 5_000), ("us", 5_000_000)])
def test_a_pane_is_counted_in_steps_of_its_time(unit: Any, steps: int) -> None:
    assert Fragments(5_000, "t", unit, (), (_SUM,)).pane_steps == steps


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scan(("a", "a")),
        lambda: Scan(("a",), where="  "),
        lambda: Scan(("a",), select={}),
        lambda: Scan(("a",), latest_by=LatestBy(("b",), "a")),
        lambda: Scan(("a",), select={"b": "a"}, latest_by=LatestBy(("b",), "a")),
        lambda: Scan(("timestamp",), fragments=_FRAGMENTS),
        lambda: Scan(("timestamp", "category"), None, None, LatestBy(("category",), "timestamp"), _FRAGMENTS),
        lambda: LatestBy((), "a"),
        lambda: Partial("median", "a", "b"),  # type: ignore[arg-type]  # what is tested
        lambda: Partial("sum", "*", "b"),
        lambda: Partial("sum", "a", ""),
        lambda: Fragments(0, "t", "s", (), (_SUM,)),
        lambda: Fragments(500, "t", "s", (), (_SUM,)),
        lambda: Fragments(1_000, "t", "h", (), (_SUM,)),  # type: ignore[arg-type]  # what is tested
        lambda: Fragments(1_000, "t", "s", (), ()),
        lambda: Fragments(1_000, "t", "s", ("pane",), (_SUM,)),
        lambda: Fragments(1_000, "t", "s", ("sum_cpu",), (_SUM,)),
    ],
)
def test_a_scan_that_contradicts_itself_is_refused(make: Any) -> None:
    with pytest.raises(InvalidUsageError, match="wrong scan"):
        make()


@pytest.mark.parametrize(
    "text",
    ["", "3", "{}", "[]", '{"columns": ["a"], "wher": "a"}'],
)
def test_what_is_no_json_of_a_scan_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsageError):
        Scan.from_json(text)
