"""Expressions on Arrow tables, column by column: the plain meaning of what a `Scan` computes.

It knows a part of Spark SQL, chosen so that its results are Spark's own (ANSI mode), nulls and NaNs
included: columns and fields, literals, comparison, boolean logic, arithmetic of numbers, ``CASE``, ``IF``,
``COALESCE``, ``IN``, ``BETWEEN``, ``LIKE``, casts that cannot fail, and a few functions. `type_of` says
whether an expression is in that part: the planner pushes no other, and Spark evaluates the rest. Left to
Spark is what would need rules of its own: decimals but for short literals, implicit casts, divisors that may
be zero.

Only the overflow of integers can fail. A part that may is evaluated for those rows only for which Spark
evaluates it: those that take a branch, or that what stands before leaves open. Left to Spark is, too, what
its optimizer may shorten so that a part never fails (`penstock.operators.sql.folding`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache, reduce
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError
from penstock.operators.sql.expression import Expression
from penstock.operators.sql.folding import may_shorten
from penstock.operators.sql.tree import Tree

__all__ = ["as_float", "can_fail", "constant", "evaluate", "filter_rows", "needs_ansi", "project", "type_of"]

_Value: TypeAlias = Any  # an array or a scalar of pyarrow, which has no types
_Mask: TypeAlias = "pa.ChunkedArray[Any] | pa.Array[Any] | None"
_Integers: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_Floats: Final = (pa.float32(), pa.float64())
_LEAST_INEXACT: Final = 1 << 53
"""From it on several whole numbers are the same as doubles."""
_MOST_DIGITS: Final = 15
"""Decimals of so many digits differ from each other also as doubles."""


class _UnknownError(Exception):
    """The expression is not in the part of Spark SQL that is known here."""


@dataclass(slots=True)
class _Rows:
    """What an expression is evaluated on."""

    table: pa.Table
    fails: bool = False
    """Whether something was computed that fails for other values."""
    ansi: bool = False
    """Whether something was computed of which the type is another one without ANSI mode."""

    def column(self, name: str) -> _Value:
        if name not in self.table.column_names:
            raise _UnknownError(f"it uses the column {name}, which is not there")
        return self.table[name]


def evaluate(expression: Expression, table: pa.Table) -> pa.ChunkedArray[Any]:
    """Return the expression's value in each row.

    Raises
    ------
    InvalidUsageError
        If the expression is not known here, or integers overflow.
    """
    try:
        value = _value(expression.tree, _Rows(table))
    except _UnknownError as error:
        raise InvalidUsageError(
            f"an expression cannot be evaluated outside of Spark: {error}", expression=expression.text
        ) from None
    except pa.ArrowInvalid as error:
        raise InvalidUsageError(f"an expression fails: {error}", expression=expression.text) from None
    return _column(value, table.num_rows)


def can_fail(expression: Expression, schema: pa.Schema) -> bool:
    """Say whether there may be values for which `evaluate` raises: those at which integers overflow."""
    return _typed(expression.tree, schema.remove_metadata())[1]


def needs_ansi(expression: Expression, schema: pa.Schema) -> bool:
    """Say whether Spark may compute something else than `evaluate` where it is not in ANSI mode."""
    _, fails, ansi = _typed(expression.tree, schema.remove_metadata())
    return fails or ansi


def constant(node: Tree) -> pa.Scalar[Any] | None:
    """Return the value of what uses no column; None if it does, or its value is null or not known."""
    try:
        value = _value(node, _Rows(pa.table({})))
    except (_UnknownError, pa.ArrowException):
        return None
    return value if isinstance(value, pa.Scalar) and value.is_valid else None


def type_of(expression: Expression, schema: pa.Schema) -> pa.DataType | None:
    """Return the type of an expression over columns of a schema; None if it is not known here."""
    if expression.is_column:
        name = expression.columns[0]
        return schema.field(name).type if schema.names.count(name) == 1 else None
    if not expression.deterministic or expression.aggregate:
        return None
    plain = schema.remove_metadata()  # which some versions of Arrow cannot hash
    found = _typed(expression.tree, plain)[0]
    if found is not None and may_shorten(expression.tree, lambda node: _typed(node, plain)[1]):
        return None
    return None if found is None or pa.types.is_null(found) or pa.types.is_decimal(found) else found


def filter_rows(table: pa.Table, predicate: Expression) -> pa.Table:
    """Return the rows for which the predicate is true.

    Its conjuncts are tried in order, each on the rows that passed those before.

    Raises
    ------
    InvalidUsageError
        As `evaluate`; or if the predicate is not boolean.
    """
    for part in predicate.conjuncts():
        keep = evaluate(part, table)
        if keep.type != pa.bool_():
            raise InvalidUsageError("a predicate is not boolean", expression=part.text, type=keep.type)
        table = table.filter(keep)
    return table


def project(table: pa.Table, select: Mapping[str, Expression]) -> pa.Table:
    """Return a table of the values of expressions.

    Raises
    ------
    InvalidUsageError
        As `evaluate`.
    """
    columns = {name: evaluate(expression, table) for name, expression in select.items()}
    return pa.table(columns)


@lru_cache(maxsize=4096)
def _typed(node: Tree, schema: pa.Schema) -> tuple[pa.DataType | None, bool, bool]:
    """Return the type of a node, None if it is not known here; whether it can fail, and needs ANSI mode."""
    rows = _Rows(schema.empty_table())
    try:
        value = _value(node, rows)
    except (_UnknownError, pa.ArrowException, RecursionError):
        return None, True, True
    return value.type, rows.fails, rows.ansi


def _column(value: _Value, rows: int) -> pa.ChunkedArray[Any]:
    if isinstance(value, pa.Scalar):
        value = pa.repeat(value, rows)
    return value if isinstance(value, pa.ChunkedArray) else pa.chunked_array([value])


def _value(node: Tree, rows: _Rows) -> _Value:
    function = _KINDS.get(node.kind)
    if function is None:
        raise _UnknownError(f"it uses {node.kind}")
    return function(node, rows)


def _values(node: Tree, rows: _Rows) -> list[_Value]:
    """Return the values of two operands; the second is for those rows only in which the first is not null."""
    left = _value(node.parts[0], rows)
    if isinstance(left, pa.Scalar) or not left.null_count:
        return [left, _value(node.parts[1], rows)]
    return [left, _where(node.parts[1], rows, pc.is_valid(left))]


def _where(node: Tree, rows: _Rows, mask: _Mask) -> _Value:
    """Return the value of a node where a mask is true; elsewhere it is null if it could fail there."""
    if mask is None or not _fails(node, rows):
        return _value(node, rows)
    bits = _column(mask, rows.table.num_rows).combine_chunks().to_numpy(zero_copy_only=False)
    part = _Rows(rows.table.filter(pa.array(bits)))
    made = _column(_value(node, part), part.table.num_rows).combine_chunks()
    rows.fails = True
    return made.take(pa.array(np.cumsum(bits) - 1, mask=~bits))


def _fails(node: Tree, rows: _Rows) -> bool:
    return _typed(node, rows.table.schema.remove_metadata())[1]


def _of_column(node: Tree, rows: _Rows) -> _Value:
    return rows.column(node.value)


def _field(node: Tree, rows: _Rows) -> _Value:
    value, name = _value(node.parts[0], rows), node.value
    if not pa.types.is_struct(value.type) or [field.name for field in value.type].count(name) != 1:
        raise _UnknownError(f"there is no field {name}")
    return pc.struct_field(value, name)


def _number(node: Tree, rows: _Rows) -> _Value:
    text = node.value.upper()
    suffix = text.lstrip("-.0123456789E+") if text[-1].isalpha() else ""
    if suffix in _SUFFIXES:
        kind = _SUFFIXES[suffix]
        digits = text.removesuffix(suffix)
        number = float(digits) if kind in _Floats else int(digits)
        return pa.scalar(_fitting(number, kind), kind)
    if suffix:
        raise _UnknownError("it has a number of another kind")
    if "E" in text:
        return pa.scalar(_fitting(float(text), pa.float64()), pa.float64())
    if "." not in text:
        kind = pa.int32() if _fits(int(text), pa.int32()) else pa.int64()
        return pa.scalar(_fitting(int(text), kind), kind)
    decimal = Decimal(text)
    _, digits, exponent = decimal.as_tuple()
    if len(digits) > _MOST_DIGITS or -int(exponent) > _MOST_DIGITS:
        raise _UnknownError("it has a number of many digits")
    return pa.scalar(decimal)


_SUFFIXES: Final = {"L": pa.int64(), "S": pa.int16(), "Y": pa.int8(), "D": pa.float64()}


def _fits(number: float, kind: pa.DataType) -> bool:
    if kind in _Floats:
        return math.isfinite(number)
    return -(2 ** (kind.bit_width - 1)) <= number < 2 ** (kind.bit_width - 1)


def _fitting(number: float, kind: pa.DataType) -> float:
    if not _fits(number, kind):
        raise _UnknownError("a number is too large")
    return number


def _string(node: Tree, rows: _Rows) -> _Value:
    text = node.value
    if text is None or text[0] != "'" or "\\" in text or "'" in text[1:-1]:
        raise _UnknownError("it has a text with quotes or escapes")
    return pa.scalar(text[1:-1], pa.string())


def as_float(value: _Value, kind: pa.DataType) -> _Value:
    """Return a number as a float: the nearest one, as in Spark.

    Of a third of the shortest decimals Arrow takes another one, of 0.3 that which 3 times 0.1 is; but not of
    their texts.
    """
    number = value.cast(pa.string()) if pa.types.is_decimal(value.type) else value
    return number.cast(kind, safe=value.type not in _Integers)


def _double(value: _Value) -> _Value:
    """Return a value as a ``DOUBLE``."""
    return as_float(value, pa.float64())


def _is_comparable(kind: pa.DataType) -> bool:
    """Say whether Spark has the same type and compares its values as Arrow does."""
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "us")
    return kind in _Integers or kind in _Floats or kind in (pa.bool_(), pa.string(), pa.date32(), pa.null())


def _common_type(kinds: list[pa.DataType]) -> pa.DataType:
    """Return the type in which Spark combines values."""
    known = [kind for kind in dict.fromkeys(kinds) if not pa.types.is_null(kind)]
    decimals = [kind for kind in known if pa.types.is_decimal(kind)]
    others = [kind for kind in known if not pa.types.is_decimal(kind)]
    if not all(map(_is_comparable, others)):
        raise _UnknownError(f"it combines {', '.join(map(str, known))}")
    if not known:
        return pa.null()
    if len(known) == 1 and not decimals:
        return known[0]
    if all(kind in _Integers for kind in known):
        return max(known, key=lambda kind: kind.bit_width)
    floats = any(kind in _Floats for kind in known)
    if floats and all(kind in _Integers or kind in _Floats or kind in decimals for kind in known):
        return pa.float64()
    raise _UnknownError(f"it combines {', '.join(map(str, known))}")


def _in_type(value: _Value, kind: pa.DataType) -> _Value:
    if value.type == kind:
        return value
    return _double(value) if kind == pa.float64() and not pa.types.is_null(value.type) else value.cast(kind)


def _common(rows: _Rows, *values: _Value) -> list[_Value]:
    """Cast values to the type in which Spark combines them."""
    for value in values:
        if pa.types.is_decimal(value.type) and not isinstance(value, pa.Scalar):
            raise _UnknownError("it combines decimals")
    kinds = [value.type for value in values]
    kind = _common_type(kinds)
    rows.ansi |= pa.float32() in kinds and pa.float64() not in kinds and kind == pa.float64()
    return [_in_type(value, kind) for value in values]


def _numbers(rows: _Rows, left: _Value, right: _Value) -> list[_Value]:
    both = _common(rows, left, right)
    if both[0].type not in _Integers and both[0].type not in _Floats:
        raise _UnknownError(f"it calculates with {both[0].type}")
    return both


def _binary(node: Tree, rows: _Rows) -> _Value:
    function = _OPERATORS.get(node.value)
    if function is None:
        raise _UnknownError(f"it uses {node.value}")
    return function(node, rows)


def _arithmetic(name: str) -> Callable[[Tree, _Rows], _Value]:
    def compute(node: Tree, rows: _Rows) -> _Value:
        left, right = _numbers(rows, *_values(node, rows))
        rows.fails |= left.type in _Integers
        return pc.call_function(f"{name}_checked", [left, right])

    return compute


def _divisor(node: Tree, rows: _Rows) -> _Value:
    value = _value(node.parts[1], rows)
    if not isinstance(value, pa.Scalar) or not value.is_valid or value.as_py() == 0:
        raise _UnknownError("it divides by what may be zero")
    return value


def _divide(node: Tree, rows: _Rows) -> _Value:
    left, right = _numbers(rows, _value(node.parts[0], rows), _divisor(node, rows))
    return pc.divide(_double(left), _double(right))


def _int_divide(node: Tree, rows: _Rows) -> _Value:
    left, right = _value(node.parts[0], rows), _divisor(node, rows)
    if left.type not in _Integers or right.type not in _Integers:
        raise _UnknownError(f"it divides {left.type} by {right.type} without remainder")
    rows.fails |= right.as_py() == -1
    return pc.divide_checked(left.cast(pa.int64()), right.cast(pa.int64()))


def _modulo(node: Tree, rows: _Rows) -> _Value:
    left, right = _numbers(rows, _value(node.parts[0], rows), _divisor(node, rows))
    if left.type not in _Integers:
        raise _UnknownError("it takes a remainder of floats")
    if right.as_py() == -1:
        return pc.multiply(left, pa.scalar(0, left.type))
    return pc.subtract(left, pc.multiply(pc.divide(left, right), right))


def _unary(node: Tree, rows: _Rows) -> _Value:
    value = _value(node.parts[0], rows)
    if node.value == "~" or not (value.type in _Floats or value.type in _Integers):
        raise _UnknownError(f"it uses {node.value} of {value.type}")
    if node.value == "+":
        return value
    rows.fails |= value.type in _Integers
    return pc.negate_checked(value) if value.type in _Integers else pc.negate(value)


def _compare(node: Tree, rows: _Rows) -> _Value:
    if node.value == "<=>":
        left, right = (_value(part, rows) for part in node.parts)
        equal = pc.fill_null(_compared(rows, "=", left, right), False)
        return pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
    return _compared(rows, node.value, *_values(node, rows))


def _compared(rows: _Rows, operator: str, left: _Value, right: _Value) -> _Value:
    """Compare as Spark does: NaN equals itself and is greater than every number."""
    if operator in ("<", "<="):
        return _compared(rows, {"<": ">", "<=": ">="}[operator], right, left)
    if operator == "<>":
        return pc.invert(_compared(rows, "=", left, right))
    decimals = [value for value in (left, right) if pa.types.is_decimal(value.type)]
    if len(decimals) == 1 and (left.type in _Integers or right.type in _Integers):
        # Whole numbers that are the same as doubles are on the same side of a small number.
        number = decimals[0].as_py() if isinstance(decimals[0], pa.Scalar) else None
        if number is None or abs(number) >= _LEAST_INEXACT:
            raise _UnknownError("it compares whole numbers with decimals")
        left, right = _double(left), _double(right)
    left, right = _common(rows, left, right)
    if operator == "=" and left.type == pa.string():
        for texts, one in ((left, right), (right, left)):
            if isinstance(texts, pa.ChunkedArray) and isinstance(one, pa.Scalar) and one.is_valid:
                return _are(texts, one.as_py())
    if pa.types.is_null(left.type):
        left, right = left.cast(pa.int32()), right.cast(pa.int32())
    result = pc.call_function(_COMPARED[operator], [left, right])
    if left.type not in _Floats:
        return result
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    if operator == "=":
        return pc.or_(result, pc.and_(left_nan, right_nan))
    more = pc.and_(left_nan, pc.invert(right_nan)) if operator == ">" else left_nan
    return pc.or_(result, more)


_COMPARED: Final = {"=": "equal", ">": "greater", ">=": "greater_equal"}


def _are(texts: pa.ChunkedArray[Any], text: str) -> pa.ChunkedArray[Any]:
    """Return which texts are `text`, null where there is none, in half of the time that Arrow takes."""
    # Where there is no text to compare, as in a plan that is explained, no compiler is loaded.
    from penstock.compression.arrow import offsets_and_bytes
    from penstock.compression.kernels.text import are_equal

    found = []
    for chunk in texts.chunks:
        equal = are_equal(*offsets_and_bytes(chunk), text.encode())
        bits = pa.py_buffer(np.packbits(equal, bitorder="little"))
        same = pa.Array.from_buffers(pa.bool_(), len(chunk), [None, bits])
        found.append(pc.if_else(pc.is_valid(chunk), same, None) if chunk.null_count else same)
    return pa.chunked_array(found, pa.bool_())


def _boolean(value: _Value) -> _Value:
    if value.type != pa.bool_():
        raise _UnknownError(f"it takes {value.type} for true or false")
    return value


def _logic(node: Tree, rows: _Rows) -> _Value:
    conjunction = node.kind == "and"
    combine = pc.and_kleene if conjunction else pc.or_kleene
    # Constants are first, because Spark computes them before it runs.
    first, *others = sorted(node.parts, key=lambda part: any(one.kind == "column" for one in part.walk()))
    made = _boolean(_value(first, rows))
    for part in others:
        left = None
        if _fails(part, rows):
            left = pc.fill_null(made, True) if conjunction else pc.invert(pc.fill_null(made, False))
        made = combine(made, _boolean(_where(part, rows, left)))
    return made


def _not(node: Tree, rows: _Rows) -> _Value:
    return pc.invert(_boolean(_value(node.parts[0], rows)))


def _is(node: Tree, rows: _Rows) -> _Value:
    if node.value != "NULL":
        raise _UnknownError(f"it uses IS {node.value}")
    return pc.is_null(_value(node.parts[0], rows))


def _between(node: Tree, rows: _Rows) -> _Value:
    if any(_fails(part, rows) for part in node.parts[1:]):
        one, *others = node.parts
        ends = zip((">=", "<="), others, strict=True)
        parts = (replace(node, kind="compare", value=operator, parts=(one, end)) for operator, end in ends)
        return _logic(replace(node, kind="and", parts=tuple(parts)), rows)
    value, low, high = (_value(part, rows) for part in node.parts)
    return pc.and_kleene(_compared(rows, ">=", value, low), _compared(rows, "<=", value, high))


def _in(node: Tree, rows: _Rows) -> _Value:
    if any(_fails(part, rows) for part in node.parts[1:]):
        kinds = {_typed(part, rows.table.schema.remove_metadata())[0] for part in node.parts}
        if len(kinds) > 1 and not kinds <= set(_Integers):
            raise _UnknownError("it is in a list of several types of which one may fail")
        one, *others = node.parts
        equal = (replace(node, kind="compare", value="=", parts=(one, other)) for other in others)
        return _logic(replace(node, kind="or", parts=tuple(equal)), rows)
    value, *options = _common(rows, *(_value(part, rows) for part in node.parts))
    return reduce(pc.or_kleene, [_compared(rows, "=", value, option) for option in options])


def _match(node: Tree, rows: _Rows) -> _Value:
    value, pattern = (_value(part, rows) for part in node.parts[:2])
    literal = isinstance(pattern, pa.Scalar) and pattern.is_valid and pattern.type == pa.string()
    if node.value != "LIKE" or value.type != pa.string() or not literal:
        raise _UnknownError("its pattern is not a literal, or what it looks at is no text")
    return pc.match_like(value, pattern.as_py())


def _choose(conditions: list[_Value], values: list[_Value], rows: _Rows) -> _Value:
    """Return of each row the value of its first true condition; the last value has no condition."""
    *values, result = _common(rows, *values)
    for condition, value in zip(reversed(conditions), reversed(values), strict=True):
        taken = _column(condition, rows.table.num_rows) if isinstance(condition, pa.Scalar) else condition
        result = pc.if_else(taken, value, result)
    return result


def _branches(conditions: list[Callable[[_Mask], _Value]], parts: list[Tree | None], rows: _Rows) -> _Value:
    """Return a choice of which each part is evaluated only for the rows that get there."""
    left: _Mask = None
    taken: list[_Value] = []
    values: list[_Value] = []
    for condition, part in zip(conditions, parts, strict=False):
        true = _column(pc.fill_null(_boolean(condition(left)), False), rows.table.num_rows)
        here = true if left is None else pc.and_(left, true)
        values.append(pa.scalar(None) if part is None else _where(part, rows, here))
        taken.append(here)
        left = pc.invert(true) if left is None else pc.and_not(left, true)
    last = parts[-1]
    values.append(pa.scalar(None) if last is None else _where(last, rows, left))
    return _choose(taken, values, rows)


def _case(node: Tree, rows: _Rows) -> _Value:
    based, otherwise = node.value
    parts = list(node.parts)
    base = parts.pop(0) if based else None
    default = parts.pop() if otherwise else None

    def condition(when: Tree) -> Callable[[_Mask], _Value]:
        if base is None:
            return lambda left: _where(when, rows, left)
        equal = replace(node, kind="compare", value="=", parts=(base, when))
        return lambda left: _where(equal, rows, left)

    return _branches([condition(when) for when in parts[::2]], [*parts[1::2], default], rows)


def _if(node: Tree, rows: _Rows) -> _Value:
    if len(node.parts) != 3:
        raise _UnknownError("it is no IF of three")
    when, yes, no = node.parts
    return _branches([lambda left: _where(when, rows, left)], [yes, no], rows)


def _coalesce(node: Tree, rows: _Rows) -> _Value:
    if not node.parts or (node.value != "coalesce" and len(node.parts) != 2):
        raise _UnknownError(f"it uses {node.value} of other arguments")
    values = [_value(node.parts[0], rows)]
    left = pc.is_null(values[0])
    for part in node.parts[1:]:
        values.append(_where(part, rows, left))
        left = pc.and_(left, pc.is_null(values[-1]))
    return reduce(pc.coalesce, _common(rows, *values))


def _cast(node: Tree, rows: _Rows) -> _Value:
    value, (_, name) = _value(node.parts[0], rows), node.value
    wanted = _CASTS.get(name)
    if wanted is None:
        raise _UnknownError(f"it casts to {name}")
    have = value.type
    widens = have in _Integers and wanted in _Integers and have.bit_width <= wanted.bit_width
    if have == wanted or widens or (have in _Integers and wanted in _Floats):
        return value.cast(wanted, safe=False)
    if have in _Floats and wanted in _Floats:
        return value.cast(wanted)
    if isinstance(value, pa.Scalar) and pa.types.is_decimal(have) and wanted in _Floats:
        return as_float(value, wanted)
    raise _UnknownError(f"it casts {have} to {name}")


def _call(node: Tree, rows: _Rows) -> _Value:
    function = _FUNCTIONS.get(node.value)
    if function is None or node.modifiers or node.filter is not None:
        raise _UnknownError(f"it uses {node.value}")
    return function(node, rows)


def _function(name: str, *kinds: pa.DataType) -> Callable[[Tree, _Rows], _Value]:
    """Return what applies a function of pyarrow to one argument of these types."""

    def compute(node: Tree, rows: _Rows) -> _Value:
        if len(node.parts) != 1:
            raise _UnknownError(f"it uses {node.value} of several values")
        value = _value(node.parts[0], rows)
        if value.type not in kinds:
            raise _UnknownError(f"it uses {node.value} of {value.type}")
        rows.fails |= name.endswith("_checked") and value.type in _Integers
        return pc.call_function(name, [value])

    return compute


_is_nan: Final = _function("is_nan", *_Floats)

_CASTS: Final[dict[str, pa.DataType]] = {
    **dict.fromkeys(("TINYINT", "BYTE"), pa.int8()),
    **dict.fromkeys(("SMALLINT", "SHORT"), pa.int16()),
    **dict.fromkeys(("INT", "INTEGER"), pa.int32()),
    **dict.fromkeys(("BIGINT", "LONG"), pa.int64()),
    **dict.fromkeys(("FLOAT", "REAL"), pa.float32()),
    "DOUBLE": pa.float64(),
}

_OPERATORS: Final[dict[str, Callable[[Tree, _Rows], _Value]]] = {
    "+": _arithmetic("add"),
    "-": _arithmetic("subtract"),
    "*": _arithmetic("multiply"),
    "/": _divide,
    "DIV": _int_divide,
    "%": _modulo,
}

_FUNCTIONS: Final[dict[str, Callable[[Tree, _Rows], _Value]]] = {
    "if": _if,
    "coalesce": _coalesce,
    "abs": _function("abs_checked", *_Integers, *_Floats),
    "sqrt": _function("sqrt", pa.float64()),
    "isnan": lambda node, rows: pc.fill_null(_is_nan(node, rows), False),
    **dict.fromkeys(("nvl", "ifnull"), _coalesce),
    **dict.fromkeys(
        ("length", "len", "char_length", "character_length"), _function("utf8_length", pa.string())
    ),
}

_KINDS: Final[dict[str, Callable[[Tree, _Rows], _Value]]] = {
    "column": _of_column,
    "field": _field,
    "paren": lambda node, rows: _value(node.parts[0], rows),
    "number": _number,
    "string": _string,
    "boolean": lambda node, rows: pa.scalar(bool(node.value)),
    "null": lambda node, rows: pa.scalar(None),
    "binary": _binary,
    "unary": _unary,
    "compare": _compare,
    "and": _logic,
    "or": _logic,
    "not": _not,
    "is": _is,
    "between": _between,
    "in": _in,
    "match": _match,
    "case": _case,
    "cast": _cast,
    "call": _call,
}
"""How each kind of node is computed."""
