"""Comparisons of numbers with literals, evaluated in one pass over each column.

A comparison of a column with a literal accepts all values in a closed interval of the column's type, or all
values outside of such an interval. A conjunction of intervals is an interval again. The ends encode Spark's
rules: NaN equals itself and is greater than every number, -0.0 equals 0.0, and Spark compares a ``FLOAT``
with other numbers as a ``DOUBLE``. So one kernel, compiled once per type, serves all operators. For example,
``x > 0.1`` accepts NaN and, if ``x`` is a ``FLOAT``, all numbers from the smallest ``FLOAT`` above 0.1
upwards.

`penstock.sql.evaluate` defines the semantics and handles all other cases:

- 64-bit integers compared with decimals or floats, because this comparison is not exact;
- float columns compared with integers beyond 2**53;
- infinite literals;
- columns with nulls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.sql.evaluate import constant
from penstock.sql.expression import Expression
from penstock.sql.tree import Tree
from penstock.sql.values import as_float

__all__ = ["Interval", "intersect_intervals", "intervals_of", "mask_of"]

_INTEGERS: Final = {"int8", "int16", "int32", "int64"}
_FLOATS: Final = {"float": "float32", "double": "float64"}
_TURNED: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "=": "=", "<>": "<>"}
_MAX_EXACT: Final = 1 << 53
"""A 64-bit float represents every integer up to this number exactly."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The values of a column for which a condition is true.

    Attributes
    ----------
    column : str
        The column's name.
    low, high : NumPy scalar
        The inclusive ends, in the column's type. The interval is empty if `low` is greater than `high`.
    nan : bool
        Whether the interval contains NaN.
    inverted : bool
        Whether the condition is true outside of the interval instead of inside.
    """

    column: str
    low: Any
    high: Any
    nan: bool = False
    inverted: bool = False


def intervals_of(part: Expression, schema: pa.Schema) -> list[Interval] | None:
    """Convert a conjunct to intervals of columns; return None if it is not a comparison with a literal.

    Parameters
    ----------
    part : Expression
        The conjunct of a predicate.
    schema : pyarrow.Schema
        The columns of the table that the predicate filters.
    """
    tree = part.tree.unnest()
    if tree.kind == "between":
        value, low, high = tree.parts
        sides = [(">=", value, low), ("<=", value, high)]
    elif tree.kind == "compare" and tree.value in _TURNED:
        sides = [(tree.value, *tree.parts)]
    else:
        return None
    intervals = [_interval(*side, schema) for side in sides]
    return None if None in intervals else [interval for interval in intervals if interval is not None]


def _interval(operator: str, left: Tree, right: Tree, schema: pa.Schema) -> Interval | None:
    left, right = left.unnest(), right.unnest()
    if left.kind != "column":
        operator, left, right = _TURNED[operator], right, left
    literal = constant(right) if left.kind == "column" else None
    if literal is None or left.value not in schema.names:
        return None
    kind, value = schema.field(left.value).type, literal.as_py()
    is_integer, exact = isinstance(value, int), not pa.types.is_decimal(literal.type)
    if isinstance(value, bool) or (not is_integer and not _is_number(literal.type)):
        return None
    number = value if exact else as_float(literal, pa.float64()).as_py()
    if str(kind) in _FLOATS:
        if is_integer and abs(value) > _MAX_EXACT:
            return None
        return _float_interval(left.value, np.dtype(_FLOATS[str(kind)]), operator, float(number))
    if str(kind) not in _INTEGERS or (not is_integer and kind == pa.int64()):
        return None
    return _integer_interval(left.value, np.dtype(str(kind)), operator, number)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) or str(kind) in _FLOATS)


def _integer_interval(column: str, kind: np.dtype[Any], operator: str, value: float) -> Interval | None:
    if not math.isfinite(value):
        return None
    least, greatest = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    number = Fraction(value)
    low = {">": math.floor(number) + 1, "<": least, "<=": least}.get(operator, math.ceil(number))
    high = {"<": math.ceil(number) - 1, ">": greatest, ">=": greatest}.get(operator, math.floor(number))
    if low > greatest or high < least or low > high:
        low, high = 1, 0
    ends = kind.type(max(low, least)), kind.type(min(high, greatest))
    return Interval(column, ends[0], ends[1], inverted=operator == "<>")


def _float_interval(column: str, kind: np.dtype[Any], operator: str, value: float) -> Interval | None:
    if not math.isfinite(value):
        return None
    low = {">": math.nextafter(value, math.inf), "<": -math.inf, "<=": -math.inf}.get(operator, value)
    high = {"<": math.nextafter(value, -math.inf), ">": math.inf, ">=": math.inf}.get(operator, value)
    # Round the ends to the column's type: `low` up and `high` down, so that the interval never grows.
    with np.errstate(over="ignore"):
        ends = [kind.type(low), kind.type(high)]
    if float(ends[0]) < low:
        ends[0] = np.nextafter(ends[0], kind.type(math.inf))
    if float(ends[1]) > high:
        ends[1] = np.nextafter(ends[1], kind.type(-math.inf))
    nan = operator in (">", ">=")
    return Interval(column, ends[0], ends[1], nan, inverted=operator == "<>")


def intersect_intervals(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Intersect the intervals of each column. Inverted intervals stay separate."""
    by_column: dict[str, Interval] = {}
    inverted = []
    for interval in intervals:
        previous = by_column.get(interval.column)
        if interval.inverted:
            inverted.append(interval)
        elif previous is None:
            by_column[interval.column] = interval
        else:
            ends = (max(previous.low, interval.low), min(previous.high, interval.high))
            by_column[interval.column] = replace(
                previous, low=ends[0], high=ends[1], nan=previous.nan and interval.nan
            )
    return (*by_column.values(), *inverted)


def mask_of(intervals: Iterable[Interval], rows: pa.Table) -> npt.NDArray[np.bool_] | None:
    """Return the mask of rows that satisfy all intervals; None if a column has nulls or an unexpected type.

    Parameters
    ----------
    intervals : iterable of Interval
        One or more intervals.
    rows : pyarrow.Table
        The rows, with the columns that the intervals name.

    Returns
    -------
    numpy.ndarray of bool, (rows,), or None
    """
    # Imported here so that planning does not load the compiler.
    from penstock.sql.comparison_kernels import restrict_mask

    columns = []
    for interval in intervals:
        column = rows.column(interval.column)
        if column.null_count:
            return None
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        values = array.to_numpy(zero_copy_only=True)
        if values.dtype != interval.low.dtype:
            return None
        columns.append((interval, values))
    mask = np.empty(rows.num_rows, np.bool_)
    for number, (ends, values) in enumerate(columns):
        restrict_mask(values, ends.low, ends.high, ends.nan, ends.inverted, number == 0, mask)
    return mask
