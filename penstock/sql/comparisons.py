"""Comparisons of numbers with literals, evaluated in one pass over each column.

A comparison of a column with a literal accepts a closed interval of the column's type, or all values outside
of an interval. A conjunction of intervals is an interval again. The ends encode Spark's rules: NaN equals
itself and is greater than every number, -0.0 is 0.0, and a ``FLOAT`` is compared with other numbers as a
``DOUBLE``. So one kernel, compiled once per type, serves all operators: ``x > 0.1`` of a ``FLOAT`` accepts
NaN, and all numbers from the least ``FLOAT`` greater than 0.1 on.

`penstock.sql.evaluate` defines the semantics and handles all other cases: 64-bit integers against
decimals or floats, which do not compare exactly; integers that no float equals; infinite literals; and
columns with nulls.
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

__all__ = ["Interval", "intervals_of", "mask_of", "union_intervals"]

_INTEGERS: Final = {"int8", "int16", "int32", "int64"}
_FLOATS: Final = {"float": "float32", "double": "float64"}
_TURNED: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "=": "=", "<>": "<>"}
_MAX_EXACT: Final = 1 << 53
"""Every integer up to this is exactly representable as a 64-bit float."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The values of a column for which a condition is true.

    Attributes
    ----------
    column : str
        Name of the column.
    low, high : number of numpy
        The inclusive ends, in the column's type. The interval is empty if `low` is greater.
    nan : bool
        Whether NaN is in the interval.
    inverted : bool
        Whether the condition is true outside of the interval, not inside.
    """

    column: str
    low: Any
    high: Any
    nan: bool = False
    inverted: bool = False


def intervals_of(part: Expression, schema: pa.Schema) -> list[Interval] | None:
    """Convert a conjunct to intervals of columns; None if the conjunct is no comparison with a literal.

    Parameters
    ----------
    part : Expression
        A conjunct of a predicate.
    schema : pyarrow.Schema
        The columns.
    """
    tree = part.tree.unnest()
    if tree.kind == "between":
        value, low, high = tree.parts
        sides = [(">=", value, low), ("<=", value, high)]
    elif tree.kind == "compare" and tree.value in _TURNED:
        sides = [(tree.value, *tree.parts)]
    else:
        return None
    found = [_interval(*side, schema) for side in sides]
    return None if None in found else [interval for interval in found if interval is not None]


def _interval(operator: str, left: Tree, right: Tree, schema: pa.Schema) -> Interval | None:
    left, right = left.unnest(), right.unnest()
    if left.kind != "column":
        operator, left, right = _TURNED[operator], right, left
    literal = constant(right) if left.kind == "column" else None
    if literal is None or left.value not in schema.names:
        return None
    kind, value = schema.field(left.value).type, literal.as_py()
    whole, exact = isinstance(value, int), not pa.types.is_decimal(literal.type)
    if isinstance(value, bool) or (not whole and not _is_number(literal.type)):
        return None
    number = value if exact else as_float(literal, pa.float64()).as_py()
    if str(kind) in _FLOATS:
        if whole and abs(value) > _MAX_EXACT:
            return None
        return _of_floats(left.value, np.dtype(_FLOATS[str(kind)]), operator, float(number))
    if str(kind) not in _INTEGERS or (not whole and kind == pa.int64()):
        return None
    return _of_integers(left.value, np.dtype(str(kind)), operator, number)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) or str(kind) in _FLOATS)


def _of_integers(column: str, kind: np.dtype[Any], operator: str, value: float) -> Interval | None:
    if not math.isfinite(value):
        return None
    least, most = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    number = Fraction(value)
    low = {">": math.floor(number) + 1, "<": least, "<=": least}.get(operator, math.ceil(number))
    high = {"<": math.ceil(number) - 1, ">": most, ">=": most}.get(operator, math.floor(number))
    if low > most or high < least or low > high:
        low, high = 1, 0
    ends = kind.type(max(low, least)), kind.type(min(high, most))
    return Interval(column, ends[0], ends[1], inverted=operator == "<>")


def _of_floats(column: str, kind: np.dtype[Any], operator: str, value: float) -> Interval | None:
    if not math.isfinite(value):
        return None
    low = {">": math.nextafter(value, math.inf), "<": -math.inf, "<=": -math.inf}.get(operator, value)
    high = {"<": math.nextafter(value, -math.inf), ">": math.inf, ">=": math.inf}.get(operator, value)
    # The least float of the column's type not below the number, and the greatest not above it.
    with np.errstate(over="ignore"):
        ends = [kind.type(low), kind.type(high)]
    if float(ends[0]) < low:
        ends[0] = np.nextafter(ends[0], kind.type(math.inf))
    if float(ends[1]) > high:
        ends[1] = np.nextafter(ends[1], kind.type(-math.inf))
    nan = operator in (">", ">=")
    return Interval(column, ends[0], ends[1], nan, inverted=operator == "<>")


def union_intervals(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Intersect the intervals of each column. Inverted intervals stay separate."""
    found: dict[str, Interval] = {}
    others = []
    for interval in intervals:
        known = found.get(interval.column)
        if interval.inverted:
            others.append(interval)
        elif known is None:
            found[interval.column] = interval
        else:
            ends = (max(known.low, interval.low), min(known.high, interval.high))
            found[interval.column] = replace(known, low=ends[0], high=ends[1], nan=known.nan and interval.nan)
    return (*found.values(), *others)


def mask_of(intervals: Iterable[Interval], rows: pa.Table) -> npt.NDArray[np.bool_] | None:
    """Return the mask of rows that satisfy all intervals; None if a column has nulls or another type.

    Parameters
    ----------
    intervals : iterable of Interval
        At least one.
    rows : pyarrow.Table
        Rows with the columns of the intervals.

    Returns
    -------
    numpy.ndarray of bool, (rows,), or None
    """
    # Imported here so that planning does not load the compiler.
    from penstock.sql.comparison_kernels import keep

    columns = []
    for interval in intervals:
        column = rows.column(interval.column)
        if column.null_count:
            return None
        whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        values = whole.to_numpy(zero_copy_only=True)
        if values.dtype != interval.low.dtype:
            return None
        columns.append((interval, values))
    mask = np.empty(rows.num_rows, np.bool_)
    for number, (one, values) in enumerate(columns):
        keep(values, one.low, one.high, one.nan, one.inverted, number == 0, mask)
    return mask
