"""Values of expressions with Spark's rules for literals, common types and comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.sql.tree import Tree

__all__ = [
    "CASTS",
    "FLOATS",
    "INTEGERS",
    "Mask",
    "Rows",
    "UnsupportedError",
    "Value",
    "are_exact",
    "as_double",
    "as_float",
    "check_boolean",
    "compare_values",
    "number_literal",
    "string_literal",
    "to_common_numbers",
    "to_common_type",
]

Value: TypeAlias = Any  # a pyarrow array or scalar; pyarrow is untyped
Mask: TypeAlias = "pa.ChunkedArray[Any] | pa.Array[Any] | None"
INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
FLOATS: Final = (pa.float32(), pa.float64())
_MIN_INEXACT: Final = 1 << 53
"""From this integer on, two different integers may become the same double."""
_MAX_DIGITS: Final = 15
"""If two decimals with up to this many digits differ, they also differ as doubles."""


class UnsupportedError(Exception):
    """Raised for expressions outside of the supported part of Spark SQL."""


@dataclass(slots=True)
class Rows:
    """The rows on which an expression is evaluated, and flags that the evaluation sets."""

    table: pa.Table
    fails: bool = False
    """True if a calculation could fail for other values of the same types."""
    ansi: bool = False
    """True if Spark would compute a different type outside of ANSI mode."""

    def column(self, name: str) -> Value:
        """Return a column of the table."""
        if name not in self.table.column_names:
            raise UnsupportedError(f"it uses the column {name}, which does not exist")
        return self.table[name]


def number_literal(node: Tree, rows: Rows) -> Value:
    """Parse a number literal to Spark's type."""
    text = node.value.upper()
    suffix = text.lstrip("-.0123456789E+") if text[-1].isalpha() else ""
    if suffix in _SUFFIXES:
        kind = _SUFFIXES[suffix]
        digits = text.removesuffix(suffix)
        number = float(digits) if kind in FLOATS else int(digits)
        return pa.scalar(_check_fits(number, kind), kind)
    if suffix:
        raise UnsupportedError("it has a number with an unsupported suffix")
    if "E" in text:
        return pa.scalar(_check_fits(float(text), pa.float64()), pa.float64())
    if "." not in text:
        kind = pa.int32() if fits_type(int(text), pa.int32()) else pa.int64()
        return pa.scalar(_check_fits(int(text), kind), kind)
    decimal = Decimal(text)
    _, digits, exponent = decimal.as_tuple()
    if len(digits) > _MAX_DIGITS or -int(exponent) > _MAX_DIGITS:
        raise UnsupportedError("it has a number with too many digits")
    return pa.scalar(decimal)


_SUFFIXES: Final = {"L": pa.int64(), "S": pa.int16(), "Y": pa.int8(), "D": pa.float64()}


def fits_type(number: float, kind: pa.DataType) -> bool:
    if kind in FLOATS:
        return math.isfinite(number)
    return -(2 ** (kind.bit_width - 1)) <= number < 2 ** (kind.bit_width - 1)


def _check_fits(number: float, kind: pa.DataType) -> float:
    if not fits_type(number, kind):
        raise UnsupportedError("a number is too large")
    return number


def string_literal(node: Tree, rows: Rows) -> Value:
    """Parse a string literal without inner quotes or escapes."""
    text = node.value
    if text is None or text[0] != "'" or "\\" in text or "'" in text[1:-1]:
        raise UnsupportedError("it has a text with quotes or escapes")
    return pa.scalar(text[1:-1], pa.string())


def as_float(value: Value, kind: pa.DataType) -> Value:
    """Convert a number to the nearest float, like Spark.

    Arrow casts a third of the shortest decimals to a wrong float: for example, 0.3 to 3 * 0.1. It casts the
    texts of these decimals correctly.
    """
    number = value.cast(pa.string()) if pa.types.is_decimal(value.type) else value
    return number.cast(kind, safe=value.type not in INTEGERS)


def as_double(value: Value) -> Value:
    """Convert a value to ``DOUBLE``."""
    return as_float(value, pa.float64())


def is_comparable(kind: pa.DataType) -> bool:
    """Return whether Spark has the same type and compares its values like Arrow."""
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "us")
    return kind in INTEGERS or kind in FLOATS or kind in (pa.bool_(), pa.string(), pa.date32(), pa.null())


def common_type(kinds: list[pa.DataType]) -> pa.DataType:
    """Return the type in which Spark combines values."""
    distinct = [kind for kind in dict.fromkeys(kinds) if not pa.types.is_null(kind)]
    decimals = [kind for kind in distinct if pa.types.is_decimal(kind)]
    plain_kinds = [kind for kind in distinct if not pa.types.is_decimal(kind)]
    if not all(map(is_comparable, plain_kinds)):
        raise UnsupportedError(f"it combines {', '.join(map(str, distinct))}")
    if not distinct:
        return pa.null()
    if len(distinct) == 1 and not decimals:
        return distinct[0]
    if all(kind in INTEGERS for kind in distinct):
        return max(distinct, key=lambda kind: kind.bit_width)
    floats = any(kind in FLOATS for kind in distinct)
    if floats and all(kind in INTEGERS or kind in FLOATS or kind in decimals for kind in distinct):
        return pa.float64()
    is_number = all(kind in INTEGERS or kind in decimals for kind in distinct)
    advice = "; cast decimals to DOUBLE" if decimals and is_number else ""
    raise UnsupportedError(f"it combines {', '.join(map(str, distinct))}{advice}")


def cast_value(value: Value, kind: pa.DataType) -> Value:
    if value.type == kind:
        return value
    return as_double(value) if kind == pa.float64() and not pa.types.is_null(value.type) else value.cast(kind)


def to_common_type(rows: Rows, *values: Value) -> list[Value]:
    """Cast values to the type in which Spark combines them."""
    kinds = [value.type for value in values]
    kind = common_type(kinds)
    rows.ansi |= pa.float32() in kinds and pa.float64() not in kinds and kind == pa.float64()
    return [cast_value(value, kind) for value in values]


def to_common_numbers(rows: Rows, left: Value, right: Value) -> list[Value]:
    """Convert two numbers to their common type."""
    numbers = to_common_type(rows, left, right)
    if numbers[0].type not in INTEGERS and numbers[0].type not in FLOATS:
        raise UnsupportedError(f"it calculates with {numbers[0].type}")
    return numbers


def compare_values(rows: Rows, operator: str, left: Value, right: Value) -> Value:
    """Compare like Spark: NaN equals itself and is greater than every number."""
    if operator in ("<", "<="):
        return compare_values(rows, {"<": ">", "<=": ">="}[operator], right, left)
    if operator == "<>":
        return pc.invert(compare_values(rows, "=", left, right))
    left, right = _as_comparable(rows, left, right)
    if operator == "=" and left.type == pa.string():
        for texts, constant in ((left, right), (right, left)):
            if isinstance(texts, pa.ChunkedArray) and isinstance(constant, pa.Scalar) and constant.is_valid:
                return _equal_text(texts, constant.as_py())
    if pa.types.is_null(left.type):
        left, right = left.cast(pa.int32()), right.cast(pa.int32())
    result = pc.call_function(_COMPARED[operator], [left, right])
    if left.type not in FLOATS:
        return result
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    if operator == "=":
        return pc.or_(result, pc.and_(left_nan, right_nan))
    is_greater = pc.and_(left_nan, pc.invert(right_nan)) if operator == ">" else left_nan
    return pc.or_(result, is_greater)


def _as_comparable(rows: Rows, left: Value, right: Value) -> list[Value]:
    """Convert two values to types that Arrow compares as Spark does."""
    decimals = [value for value in (left, right) if pa.types.is_decimal(value.type)]
    if not decimals or not are_exact([left.type, right.type]):
        return to_common_type(rows, left, right)
    if len(decimals) == 1 and isinstance(decimals[0], pa.Scalar):
        # Only integers of 2**53 and beyond change as doubles, and they stay on the same side of this number.
        number = decimals[0].as_py()
        if number is None:
            raise UnsupportedError("it compares whole numbers with a null decimal")
        if abs(number) >= _MIN_INEXACT:
            raise UnsupportedError("it compares whole numbers with a large decimal")
        return [as_double(left), as_double(right)]
    return [value.cast(_DECIMALS.get(value.type, value.type)) for value in (left, right)]


def are_exact(kinds: list[pa.DataType]) -> bool:
    """Return whether Spark compares values of these types as decimals, without rounding.

    Raises
    ------
    UnsupportedError
        If Spark's common decimal type has too few digits for all values.
    """
    if not any(map(pa.types.is_decimal, kinds)) or not all(
        kind in INTEGERS or pa.types.is_decimal128(kind) for kind in kinds
    ):
        return False
    decimals = [_DECIMALS.get(kind, kind) for kind in kinds]
    whole = max(kind.precision - kind.scale for kind in decimals)
    if whole + max(kind.scale for kind in decimals) > _MAX_PRECISION:
        raise UnsupportedError("it compares decimals with too many digits")
    return True


_MAX_PRECISION: Final = 38
_DECIMALS: Final = dict(zip(INTEGERS, (pa.decimal128(digits, 0) for digits in (3, 5, 10, 20)), strict=True))
"""The decimal type to which Spark converts each integer type."""

_COMPARED: Final = {"=": "equal", ">": "greater", ">=": "greater_equal"}


def _equal_text(texts: pa.ChunkedArray[Any], text: str) -> pa.ChunkedArray[Any]:
    """Return whether each text equals `text`, in half of Arrow's time. The result of a null is null."""
    # Imported here, because the import of kernels loads numba, and few expressions compare texts.
    from penstock.compression.arrow import offsets_and_bytes
    from penstock.compression.kernels.text import are_equal

    chunks = []
    for chunk in texts.chunks:
        equal = are_equal(*offsets_and_bytes(chunk), text.encode())
        bits = pa.py_buffer(np.packbits(equal, bitorder="little"))
        equal_values = pa.Array.from_buffers(pa.bool_(), len(chunk), [None, bits])
        chunks.append(
            pc.if_else(pc.is_valid(chunk), equal_values, None) if chunk.null_count else equal_values
        )
    return pa.chunked_array(chunks, pa.bool_())


def check_boolean(value: Value) -> Value:
    """Return a boolean value; refuse a value of any other type."""
    if value.type != pa.bool_():
        raise UnsupportedError(f"it uses {value.type} as a condition")
    return value


CASTS: Final[dict[str, pa.DataType]] = {
    **dict.fromkeys(("TINYINT", "BYTE"), pa.int8()),
    **dict.fromkeys(("SMALLINT", "SHORT"), pa.int16()),
    **dict.fromkeys(("INT", "INTEGER"), pa.int32()),
    **dict.fromkeys(("BIGINT", "LONG"), pa.int64()),
    **dict.fromkeys(("FLOAT", "REAL"), pa.float32()),
    "DOUBLE": pa.float64(),
}
