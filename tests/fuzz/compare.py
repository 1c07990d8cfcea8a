"""Comparing tables of results, whatever the order of their rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

__all__ = ["assert_same_rows"]


def assert_same_rows(found: pa.Table, expected: pa.Table, told: str, *, tolerance: float = 1e-9) -> None:
    """Check that two tables have the same rows, floats about.

    Parameters
    ----------
    told : str
        A text to show with a difference.
    tolerance : float
        Relative, of floats.
    """
    assert found.schema.names == expected.schema.names, told
    left, right = _sorted(found), _sorted(expected)
    assert len(left) == len(right), f"{len(left)} rows, not {len(right)}: {told}\n{_first(left, right)}"
    for one, other in zip(left, right, strict=True):
        assert all(_same(a, b, tolerance) for a, b in zip(one, other, strict=True)), (
            f"{told}\nfound    {one}\nexpected {other}"
        )


def _sorted(table: pa.Table) -> list[tuple[Any, ...]]:
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return sorted(rows, key=lambda row: [_rank(value) for value in row])


def _rank(value: Any) -> tuple[int, Any]:
    """Return a sort key of rows; floats, which may differ a little, are rounded."""
    if value is None:
        return 0, 0
    if isinstance(value, float):
        return (2, 0.0) if math.isnan(value) else (1, float(f"{value + 0.0:.6g}"))
    return 1, value


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(
            one, other, rel_tol=tolerance, abs_tol=tolerance
        )
    return bool(one == other)


def _first(left: Sequence[Any], right: Sequence[Any]) -> str:
    there = set(map(repr, right))
    extra = [row for row in left if repr(row) not in there][:3]
    there = set(map(repr, left))
    missing = [row for row in right if repr(row) not in there][:3]
    return f"only found {extra}\nonly expected {missing}"
