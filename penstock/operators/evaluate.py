"""Expressions on Arrow tables, column by column: the plain meaning of what a `Scan` computes.

It knows a part of Spark SQL, chosen so that its results are Spark's own (ANSI mode), nulls and NaNs
included: columns and fields, literals, comparison, boolean logic, arithmetic of numbers, ``CASE``, ``IF``,
``COALESCE``, ``IN``, ``BETWEEN``, ``LIKE``, casts that cannot fail, and a few functions. `type_of` says
whether an expression is in that part: the planner pushes no other, and Spark evaluates the rest. Divisors
must be literals, because both branches of a ``CASE`` are computed, and a division by zero in the wrong one
would fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError
from penstock.operators.expression import Expression

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["as_float", "can_fail", "constant", "evaluate", "filter_rows", "project", "type_of"]

_Value: TypeAlias = Any  # an array or a scalar of pyarrow, which has no types
_Integers: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_LEAST_INEXACT: Final = 1 << 53
"""From it on several whole numbers are the same as doubles."""


class _UnknownError(Exception):
    """The expression is not in the part of Spark SQL that is known here."""


def evaluate(expression: Expression, table: pa.Table) -> pa.ChunkedArray[Any]:
    """Return the expression's value in each row.

    Raises
    ------
    InvalidUsageError
        If the expression is not known here, or integers overflow.
    """
    try:
        value = _value(expression.tree, table)
    except _UnknownError as error:
        raise InvalidUsageError(
            f"an expression cannot be evaluated outside of Spark: {error}", expression=expression.text
        ) from None
    except pa.ArrowInvalid as error:
        raise InvalidUsageError(f"an expression fails: {error}", expression=expression.text) from None
    return _column(value, table.num_rows)


@lru_cache(maxsize=4096)
def can_fail(expression: Expression) -> bool:
    """Say whether there may be values for which `evaluate` raises: those at which integers overflow."""
    return any(type(node).__name__ in _CHECKED for node in expression.tree.walk())


def constant(node: exp.Expr) -> pa.Scalar[Any] | None:
    """Return the value of what uses no column; None if it does, or its value is null or not known."""
    try:
        value = _value(node, pa.table({}))
    except (_UnknownError, pa.ArrowException):
        return None
    return value if isinstance(value, pa.Scalar) and value.is_valid else None


def type_of(expression: Expression, schema: pa.Schema) -> pa.DataType | None:
    """Return the type of an expression over columns of a schema; None if it is not known here."""
    if not expression.deterministic or expression.aggregate:
        return None
    return _type_of(expression, schema.remove_metadata())  # which some versions of Arrow cannot hash


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
def _type_of(expression: Expression, schema: pa.Schema) -> pa.DataType | None:
    try:
        value = _value(expression.tree, schema.empty_table())
    except (_UnknownError, pa.ArrowException):
        return None
    return None if pa.types.is_null(value.type) else value.type


def _column(value: _Value, rows: int) -> pa.ChunkedArray[Any]:
    if isinstance(value, pa.Scalar):
        value = pa.repeat(value, rows)
    return value if isinstance(value, pa.ChunkedArray) else pa.chunked_array([value])


def _value(node: exp.Expr, table: pa.Table) -> _Value:
    kind = type(node).__name__
    function = _FUNCTIONS.get(kind)
    if function is None:
        raise _UnknownError(f"it uses {node.name if kind == 'Anonymous' else node.key.upper()}")
    return function(node, table)


def _parts(node: exp.Expr, table: pa.Table) -> tuple[_Value, _Value]:
    return _value(node.this, table), _value(node.args["expression"], table)


def _of_column(node: exp.Expr, table: pa.Table) -> _Value:
    first, *fields = [part.name for part in node.parts]  # type: ignore[attr-defined]  # of exp.Column
    if first not in table.column_names:
        raise _UnknownError(f"it uses the column {first}, which is not there")
    return reduce(_field, fields, table[first])


def _field(value: _Value, name: str) -> _Value:
    if not pa.types.is_struct(value.type) or name not in [field.name for field in value.type]:
        raise _UnknownError(f"there is no field {name}")
    return pc.struct_field(value, name)


def _dot(node: exp.Expr, table: pa.Table) -> _Value:
    return _field(_value(node.this, table), node.args["expression"].name)


def _literal(node: exp.Expr, table: pa.Table) -> _Value:
    text = node.this
    if node.args["is_string"]:
        return pa.scalar(text, pa.string())
    if text.isdigit():
        for kind in (pa.int32(), pa.int64()):
            if int(text) < 2 ** (kind.bit_width - 1):
                return pa.scalar(int(text), kind)
        raise _UnknownError("a number is too large")
    if "e" in text.lower():
        return pa.scalar(float(text), pa.float64())
    return pa.scalar(Decimal(text))


def _is_float(kind: pa.DataType) -> bool:
    return pa.types.is_float32(kind) or pa.types.is_float64(kind)


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


def _common(left: _Value, right: _Value) -> tuple[_Value, _Value]:
    """Cast two values to the type in which Spark combines them."""
    kinds = (left.type, right.type)
    if kinds[0] == kinds[1] and not pa.types.is_decimal(kinds[0]):
        return left, right
    for kind, other in (kinds, kinds[::-1]):
        if pa.types.is_null(kind):
            return left.cast(other), right.cast(other)
    if kinds[0] in _Integers and kinds[1] in _Integers:
        wide = max(kinds, key=lambda kind: kind.bit_width)
        return left.cast(wide), right.cast(wide)
    numbers = all(_is_float(kind) or kind in _Integers or pa.types.is_decimal(kind) for kind in kinds)
    if numbers and any(_is_float(kind) for kind in kinds):
        return _double(left), _double(right)
    raise _UnknownError(f"it combines {kinds[0]} and {kinds[1]}")


def _numbers(left: _Value, right: _Value) -> tuple[_Value, _Value]:
    left, right = _common(left, right)
    if not (_is_float(left.type) or left.type in _Integers):
        raise _UnknownError(f"it calculates with {left.type}")
    return left, right


def _arithmetic(name: str) -> Callable[[exp.Expr, pa.Table], _Value]:
    def compute(node: exp.Expr, table: pa.Table) -> _Value:
        return pc.call_function(f"{name}_checked", list(_numbers(*_parts(node, table))))

    return compute


def _divisor(node: exp.Expr, table: pa.Table) -> _Value:
    value = _value(node.args["expression"], table)
    if not isinstance(value, pa.Scalar) or not value.is_valid or value.as_py() == 0:
        raise _UnknownError("it divides by what may be zero")
    return value


def _divide(node: exp.Expr, table: pa.Table) -> _Value:
    left, right = _numbers(_double(_value(node.this, table)), _divisor(node, table))
    return pc.divide(left, right)


def _int_divide(node: exp.Expr, table: pa.Table) -> _Value:
    left, right = _value(node.this, table), _divisor(node, table)
    if left.type not in _Integers or right.type not in _Integers:
        raise _UnknownError(f"it divides {left.type} by {right.type} without remainder")
    return pc.divide_checked(left.cast(pa.int64()), right.cast(pa.int64()))


def _modulo(node: exp.Expr, table: pa.Table) -> _Value:
    left, right = _numbers(_value(node.this, table), _divisor(node, table))
    if left.type not in _Integers:
        raise _UnknownError("it takes a remainder of floats")
    if right.as_py() == -1:
        return pc.multiply(left, pa.scalar(0, left.type))
    return pc.subtract(left, pc.multiply(pc.divide(left, right), right))


def _negate(node: exp.Expr, table: pa.Table) -> _Value:
    value = _value(node.this, table)
    if not (_is_float(value.type) or value.type in _Integers or pa.types.is_decimal(value.type)):
        raise _UnknownError(f"it negates {value.type}")
    return pc.negate_checked(value) if value.type in _Integers else pc.negate(value)


def _compare(name: str) -> Callable[[exp.Expr, pa.Table], _Value]:
    def compute(node: exp.Expr, table: pa.Table) -> _Value:
        return _compared(name, *_parts(node, table))

    return compute


def _compared(name: str, left: _Value, right: _Value) -> _Value:
    """Compare as Spark does: NaN equals itself and is greater than every number."""
    if name in ("less", "less_equal"):
        return _compared({"less": "greater", "less_equal": "greater_equal"}[name], right, left)
    if name == "not_equal":
        return pc.invert(_compared("equal", left, right))
    decimals = pa.types.is_decimal(left.type) or pa.types.is_decimal(right.type)
    if decimals and (left.type in _Integers or right.type in _Integers):
        _check_exact(left, right)
        left, right = _double(left), _double(right)
    left, right = _common(left, right)
    if pa.types.is_nested(left.type):
        raise _UnknownError(f"it compares {left.type}")
    if name == "equal" and left.type == pa.string():
        for texts, one in ((left, right), (right, left)):
            if isinstance(texts, pa.ChunkedArray) and isinstance(one, pa.Scalar) and one.is_valid:
                return _are(texts, one.as_py())
    result = pc.call_function(name, [left, right])
    if not _is_float(left.type):
        return result
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    if name == "equal":
        return pc.or_(result, pc.and_(left_nan, right_nan))
    more = pc.and_(left_nan, pc.invert(right_nan)) if name == "greater" else left_nan
    return pc.or_(result, more)


def _check_exact(left: _Value, right: _Value) -> None:
    """Leave decimals to Spark that may lie between whole numbers which are the same as doubles."""
    for decimal, other in ((left, right), (right, left)):
        if other.type == pa.int64() and pa.types.is_decimal(decimal.type):
            small = isinstance(decimal, pa.Scalar) and abs(decimal.as_py() or 0) < _LEAST_INEXACT
            if not small:
                raise _UnknownError("it compares whole numbers of 64 bits with what is no small literal")


def _are(texts: pa.ChunkedArray[Any], text: str) -> pa.ChunkedArray[Any]:
    """Return which texts are `text`, null where there is none, in half of the time that Arrow takes."""
    # Where there is no text to compare, as in a plan that is explained, no compiler is loaded.
    from penstock.compression.arrow import offsets_and_bytes
    from penstock.compression.text import are_equal

    found = []
    for chunk in texts.chunks:
        equal = are_equal(*offsets_and_bytes(chunk), text.encode())
        bits = pa.py_buffer(np.packbits(equal, bitorder="little"))
        same = pa.Array.from_buffers(pa.bool_(), len(chunk), [None, bits])
        found.append(pc.if_else(pc.is_valid(chunk), same, None) if chunk.null_count else same)
    return pa.chunked_array(found, pa.bool_())


def _logic(name: str) -> Callable[[exp.Expr, pa.Table], _Value]:
    def compute(node: exp.Expr, table: pa.Table) -> _Value:
        return pc.call_function(name, [_boolean(part) for part in _parts(node, table)])

    return compute


def _boolean(value: _Value) -> _Value:
    if pa.types.is_null(value.type):
        return value.cast(pa.bool_())
    if value.type != pa.bool_():
        raise _UnknownError(f"it takes {value.type} for true or false")
    return value


def _is(node: exp.Expr, table: pa.Table) -> _Value:
    value, what = _value(node.this, table), type(node.args["expression"]).__name__
    if what == "Null":
        return pc.is_null(value)
    raise _UnknownError(f"it uses IS {what.upper()}")


def _same(node: exp.Expr, table: pa.Table) -> _Value:
    left, right = _parts(node, table)
    equal = pc.fill_null(_compared("equal", left, right), False)
    return pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))


def _between(node: exp.Expr, table: pa.Table) -> _Value:
    value = _value(node.this, table)
    low = _compared("greater_equal", value, _value(node.args["low"], table))
    return pc.and_kleene(low, _compared("less_equal", value, _value(node.args["high"], table)))


def _in(node: exp.Expr, table: pa.Table) -> _Value:
    options = node.args.get("expressions") or []
    if not options:
        raise _UnknownError("it uses IN of what is no list")
    value = _value(node.this, table)
    return reduce(pc.or_kleene, [_compared("equal", value, _value(option, table)) for option in options])


def _like(node: exp.Expr, table: pa.Table) -> _Value:
    value, pattern = _parts(node, table)
    if value.type != pa.string() or not isinstance(pattern, pa.Scalar) or not pattern.is_valid:
        raise _UnknownError("its pattern is not a literal, or what it looks at is no text")
    return pc.match_like(value, pattern.as_py())


def _choose(condition: _Value, yes: _Value, no: _Value, rows: int) -> _Value:
    yes, no = _common(yes, no)
    condition = pc.fill_null(_boolean(condition), False)
    if isinstance(condition, pa.Scalar):
        condition = _column(condition, rows)
    return pc.if_else(condition, yes, no)


def _case(node: exp.Expr, table: pa.Table) -> _Value:
    base, default = node.this, node.args.get("default")
    result = pa.scalar(None) if default is None else _value(default, table)
    for branch in reversed(node.args["ifs"]):
        condition = _value(branch.this, table)
        if base is not None:
            condition = _compared("equal", _value(base, table), condition)
        result = _choose(condition, _value(branch.args["true"], table), result, table.num_rows)
    return result


def _if(node: exp.Expr, table: pa.Table) -> _Value:
    otherwise = node.args.get("false")
    no = pa.scalar(None) if otherwise is None else _value(otherwise, table)
    return _choose(_value(node.this, table), _value(node.args["true"], table), no, table.num_rows)


def _coalesce(node: exp.Expr, table: pa.Table) -> _Value:
    values = [_value(part, table) for part in (node.this, *node.expressions)]
    return reduce(lambda left, right: pc.coalesce(*_common(left, right)), values)


def _cast(node: exp.Expr, table: pa.Table) -> _Value:
    value, name = _value(node.this, table), node.args["to"].sql(dialect="spark").upper()
    wanted = _CASTS.get(name)
    if wanted is None:
        raise _UnknownError(f"it casts to {name}")
    have = value.type
    widens = have in _Integers and wanted in _Integers and have.bit_width <= wanted.bit_width
    if have == wanted or widens or (have in _Integers and _is_float(wanted)):
        return value.cast(wanted, safe=False)
    if _is_float(have) and _is_float(wanted):
        return value.cast(wanted)
    if isinstance(value, pa.Scalar) and pa.types.is_decimal(have) and _is_float(wanted):
        return as_float(value, wanted)
    raise _UnknownError(f"it casts {have} to {name}")


def _function(name: str, *kinds: pa.DataType) -> Callable[[exp.Expr, pa.Table], _Value]:
    """Return what applies a function of pyarrow to one argument of these types."""

    def compute(node: exp.Expr, table: pa.Table) -> _Value:
        value = _value(node.this, table)
        if value.type not in kinds or any(
            part for name, part in node.args.items() if name not in ("this", "expressions", "safe")
        ):
            raise _UnknownError(f"it uses {node.key.upper()} of {value.type}")
        return pc.call_function(name, [value])

    return compute


_Floats: Final = (pa.float32(), pa.float64())
_is_nan: Final = _function("is_nan", *_Floats)

_CASTS: Final[dict[str, pa.DataType]] = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
}

_FUNCTIONS: Final[dict[str, Callable[[Any, pa.Table], _Value]]] = {
    "Column": _of_column,
    "Dot": _dot,
    "Paren": lambda node, table: _value(node.this, table),
    "Literal": _literal,
    "Boolean": lambda node, table: pa.scalar(bool(node.this)),
    "Null": lambda node, table: pa.scalar(None),
    "Add": _arithmetic("add"),
    "Sub": _arithmetic("subtract"),
    "Mul": _arithmetic("multiply"),
    "Div": _divide,
    "IntDiv": _int_divide,
    "Mod": _modulo,
    "Neg": _negate,
    "EQ": _compare("equal"),
    "NEQ": _compare("not_equal"),
    "GT": _compare("greater"),
    "GTE": _compare("greater_equal"),
    "LT": _compare("less"),
    "LTE": _compare("less_equal"),
    "NullSafeEQ": _same,
    "And": _logic("and_kleene"),
    "Or": _logic("or_kleene"),
    "Not": lambda node, table: pc.invert(_boolean(_value(node.this, table))),
    "Is": _is,
    "Between": _between,
    "In": _in,
    "Like": _like,
    "Case": _case,
    "If": _if,
    "Coalesce": _coalesce,
    "Cast": _cast,
    "TryCast": _cast,
    "Abs": _function("abs_checked", *_Integers, *_Floats),
    "Sqrt": _function("sqrt", pa.float64()),
    "IsNan": lambda node, table: pc.fill_null(_is_nan(node, table), False),
    "Length": _function("utf8_length", pa.string()),
}
"""How each kind of sqlglot's nodes is computed."""

_CHECKED: Final = frozenset({"Abs", "Add", "IntDiv", "Mul", "Neg", "Sub"})
"""sqlglot's names of what is calculated with a check for overflow."""
