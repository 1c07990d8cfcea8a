"""Evaluators of expressions on Arrow tables: one for each kind of node, operator and function.

`penstock.sql.evaluate` documents the supported expressions and their semantics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.sql.tree import Tree
from penstock.sql.values import (
    CASTS,
    FLOATS,
    INTEGERS,
    Mask,
    Rows,
    UnsupportedError,
    Value,
    are_exact,
    as_double,
    as_float,
    check_boolean,
    compare_values,
    number_literal,
    string_literal,
    to_common_numbers,
    to_common_type,
)

__all__ = ["evaluate_node", "infer_type", "to_column"]


@lru_cache(maxsize=4096)
def infer_type(node: Tree, schema: pa.Schema) -> tuple[pa.DataType | None, bool, bool]:
    """Return a node's type (None if unsupported), whether it can fail, and whether it needs ANSI mode."""
    rows = Rows(schema.empty_table())
    try:
        value = evaluate_node(node, rows)
    except (UnsupportedError, pa.ArrowException, RecursionError):
        return None, True, True
    return value.type, rows.fails, rows.ansi


def to_column(value: Value, rows: int) -> pa.ChunkedArray[Any]:
    """Return a value as a column of `rows` rows; a constant is repeated."""
    if isinstance(value, pa.Scalar):
        value = pa.repeat(value, rows)
    return value if isinstance(value, pa.ChunkedArray) else pa.chunked_array([value])


def evaluate_node(node: Tree, rows: Rows) -> Value:
    """Return a node's value: an array, or a scalar if it is constant.

    Raises
    ------
    UnsupportedError
        If the evaluator does not support the node or the types of its operands.
    ArrowInvalid
        If integers overflow.
    """
    function = _KINDS.get(node.kind)
    if function is None:
        raise UnsupportedError(f"it uses {node.kind}")
    return function(node, rows)


def _evaluate_operands(node: Tree, rows: Rows) -> list[Value]:
    """Evaluate two operands. Evaluate the second operand only in rows in which the first is not null."""
    left = evaluate_node(node.parts[0], rows)
    if isinstance(left, pa.Scalar) or not left.null_count:
        return [left, evaluate_node(node.parts[1], rows)]
    return [left, _evaluate_where(node.parts[1], rows, pc.is_valid(left))]


def _evaluate_where(node: Tree, rows: Rows, mask: Mask) -> Value:
    """Evaluate a node. If the node can fail, evaluate it only in the rows of `mask`; other rows get nulls."""
    if mask is None or not _can_fail(node, rows):
        return evaluate_node(node, rows)
    bits = to_column(mask, rows.table.num_rows).combine_chunks().to_numpy(zero_copy_only=False)
    part = Rows(rows.table.filter(pa.array(bits)))
    values = to_column(evaluate_node(node, part), part.table.num_rows).combine_chunks()
    rows.fails = True
    return values.take(pa.array(np.cumsum(bits) - 1, mask=~bits))


def _can_fail(node: Tree, rows: Rows) -> bool:
    return infer_type(node, rows.table.schema.remove_metadata())[1]


def _column(node: Tree, rows: Rows) -> Value:
    return rows.column(node.value)


def _field(node: Tree, rows: Rows) -> Value:
    value, name = evaluate_node(node.parts[0], rows), node.value
    if not pa.types.is_struct(value.type) or [field.name for field in value.type].count(name) != 1:
        raise UnsupportedError(f"there is no field {name}")
    return pc.struct_field(value, name)


def _binary(node: Tree, rows: Rows) -> Value:
    function = _OPERATORS.get(node.value)
    if function is None:
        raise UnsupportedError(f"it uses {node.value}")
    return function(node, rows)


def _arithmetic(name: str) -> Callable[[Tree, Rows], Value]:
    def compute(node: Tree, rows: Rows) -> Value:
        left, right = to_common_numbers(rows, *_evaluate_operands(node, rows))
        rows.fails |= left.type in INTEGERS
        return pc.call_function(f"{name}_checked", [left, right])

    return compute


def _divisor(node: Tree, rows: Rows) -> Value:
    value = evaluate_node(node.parts[1], rows)
    if not isinstance(value, pa.Scalar) or not value.is_valid or value.as_py() == 0:
        raise UnsupportedError("it divides by a value that may be zero")
    return value


def _divide(node: Tree, rows: Rows) -> Value:
    left, right = to_common_numbers(rows, evaluate_node(node.parts[0], rows), _divisor(node, rows))
    return pc.divide(as_double(left), as_double(right))


def _int_divide(node: Tree, rows: Rows) -> Value:
    left, right = evaluate_node(node.parts[0], rows), _divisor(node, rows)
    if left.type not in INTEGERS or right.type not in INTEGERS:
        raise UnsupportedError(f"it uses DIV on {left.type} and {right.type}")
    rows.fails |= right.as_py() == -1
    return pc.divide_checked(left.cast(pa.int64()), right.cast(pa.int64()))


def _modulo(node: Tree, rows: Rows) -> Value:
    left, right = to_common_numbers(rows, evaluate_node(node.parts[0], rows), _divisor(node, rows))
    if left.type not in INTEGERS:
        raise UnsupportedError("it computes a remainder of floats")
    if right.as_py() == -1:
        return pc.multiply(left, pa.scalar(0, left.type))
    return pc.subtract(left, pc.multiply(pc.divide(left, right), right))


def _unary(node: Tree, rows: Rows) -> Value:
    value = evaluate_node(node.parts[0], rows)
    if node.value == "~" or not (value.type in FLOATS or value.type in INTEGERS):
        raise UnsupportedError(f"it uses {node.value} of {value.type}")
    if node.value == "+":
        return value
    rows.fails |= value.type in INTEGERS
    return pc.negate_checked(value) if value.type in INTEGERS else pc.negate(value)


def _compare(node: Tree, rows: Rows) -> Value:
    if node.value == "<=>":
        left, right = (evaluate_node(part, rows) for part in node.parts)
        equal = pc.fill_null(compare_values(rows, "=", left, right), False)
        return pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
    return compare_values(rows, node.value, *_evaluate_operands(node, rows))


def _logic(node: Tree, rows: Rows) -> Value:
    conjunction = node.kind == "and"
    combine = pc.and_kleene if conjunction else pc.or_kleene
    # Constants come first, because Spark folds them before execution.
    first, *others = sorted(node.parts, key=lambda part: any(node.kind == "column" for node in part.walk()))
    result = check_boolean(evaluate_node(first, rows))
    for part in others:
        undecided = None
        if _can_fail(part, rows):
            undecided = pc.fill_null(result, True) if conjunction else pc.invert(pc.fill_null(result, False))
        result = combine(result, check_boolean(_evaluate_where(part, rows, undecided)))
    return result


def _not(node: Tree, rows: Rows) -> Value:
    return pc.invert(check_boolean(evaluate_node(node.parts[0], rows)))


def _is(node: Tree, rows: Rows) -> Value:
    if node.value != "NULL":
        raise UnsupportedError(f"it uses IS {node.value}")
    return pc.is_null(evaluate_node(node.parts[0], rows))


def _between(node: Tree, rows: Rows) -> Value:
    if any(_can_fail(part, rows) for part in node.parts[1:]):
        value_part, *bounds = node.parts
        ends = zip((">=", "<="), bounds, strict=True)
        parts = (
            replace(node, kind="compare", value=operator, parts=(value_part, end)) for operator, end in ends
        )
        return _logic(replace(node, kind="and", parts=tuple(parts)), rows)
    value, low, high = (evaluate_node(part, rows) for part in node.parts)
    return pc.and_kleene(compare_values(rows, ">=", value, low), compare_values(rows, "<=", value, high))


def _in(node: Tree, rows: Rows) -> Value:
    if any(_can_fail(part, rows) for part in node.parts[1:]):
        kinds = {infer_type(part, rows.table.schema.remove_metadata())[0] for part in node.parts}
        if len(kinds) > 1 and not kinds <= set(INTEGERS):
            raise UnsupportedError("it has a list of values of several types, and one value may fail")
        value_part, *list_parts = node.parts
        equal = (replace(node, kind="compare", value="=", parts=(value_part, other)) for other in list_parts)
        return _logic(replace(node, kind="or", parts=tuple(equal)), rows)
    values = [evaluate_node(part, rows) for part in node.parts]
    # Integers and decimals are compared exactly, so each pair may be compared in a type of its own.
    is_exact = are_exact([value.type for value in values])
    value, *options = values if is_exact else to_common_type(rows, *values)
    return reduce(pc.or_kleene, [compare_values(rows, "=", value, option) for option in options])


def _match(node: Tree, rows: Rows) -> Value:
    value, pattern = (evaluate_node(part, rows) for part in node.parts[:2])
    literal = isinstance(pattern, pa.Scalar) and pattern.is_valid and pattern.type == pa.string()
    if node.value != "LIKE" or value.type != pa.string() or not literal:
        raise UnsupportedError("its pattern is not a literal, or its value is not text")
    return pc.match_like(value, pattern.as_py())


def _choose(conditions: list[Value], values: list[Value], rows: Rows) -> Value:
    """Return, for each row, the value of its first true condition; the last value if none is true."""
    *values, result = to_common_type(rows, *values)
    for condition, value in zip(reversed(conditions), reversed(values), strict=True):
        mask = to_column(condition, rows.table.num_rows) if isinstance(condition, pa.Scalar) else condition
        result = pc.if_else(mask, value, result)
    return result


def _branches(conditions: list[Callable[[Mask], Value]], parts: list[Tree | None], rows: Rows) -> Value:
    """Evaluate a ``CASE`` or ``IF``. Evaluate each condition and value only in the rows that reach it."""
    undecided: Mask = None
    masks: list[Value] = []
    values: list[Value] = []
    for condition, part in zip(conditions, parts, strict=False):
        true = to_column(pc.fill_null(check_boolean(condition(undecided)), False), rows.table.num_rows)
        mask = true if undecided is None else pc.and_(undecided, true)
        values.append(pa.scalar(None) if part is None else _evaluate_where(part, rows, mask))
        masks.append(mask)
        undecided = pc.invert(true) if undecided is None else pc.and_not(undecided, true)
    last = parts[-1]
    values.append(pa.scalar(None) if last is None else _evaluate_where(last, rows, undecided))
    return _choose(masks, values, rows)


def _case(node: Tree, rows: Rows) -> Value:
    based, otherwise = node.value
    parts = list(node.parts)
    base = parts.pop(0) if based else None
    default = parts.pop() if otherwise else None

    def condition(when: Tree) -> Callable[[Mask], Value]:
        if base is None:
            return lambda undecided: _evaluate_where(when, rows, undecided)
        equal = replace(node, kind="compare", value="=", parts=(base, when))
        return lambda undecided: _evaluate_where(equal, rows, undecided)

    return _branches([condition(when) for when in parts[::2]], [*parts[1::2], default], rows)


def _if(node: Tree, rows: Rows) -> Value:
    if len(node.parts) != 3:
        raise UnsupportedError("it uses IF without exactly three arguments")
    when, yes, no = node.parts
    return _branches([lambda left: _evaluate_where(when, rows, left)], [yes, no], rows)


def _coalesce(node: Tree, rows: Rows) -> Value:
    if not node.parts or (node.value != "coalesce" and len(node.parts) != 2):
        raise UnsupportedError(f"it uses {node.value} with another number of arguments")
    values = [evaluate_node(node.parts[0], rows)]
    undecided = pc.is_null(values[0])
    for part in node.parts[1:]:
        values.append(_evaluate_where(part, rows, undecided))
        undecided = pc.and_(undecided, pc.is_null(values[-1]))
    return reduce(pc.coalesce, to_common_type(rows, *values))


def _cast(node: Tree, rows: Rows) -> Value:
    value, (_, name) = evaluate_node(node.parts[0], rows), node.value
    target = CASTS.get(name)
    if target is None:
        raise UnsupportedError(f"it casts to {name}")
    source = value.type
    widens = source in INTEGERS and target in INTEGERS and source.bit_width <= target.bit_width
    if source == target or widens or (source in INTEGERS and target in FLOATS):
        return value.cast(target, safe=False)
    if source in FLOATS and target in FLOATS:
        return value.cast(target)
    if pa.types.is_decimal128(source) and target in FLOATS:
        return as_float(value, target)
    raise UnsupportedError(f"it casts {source} to {name}")


def _call(node: Tree, rows: Rows) -> Value:
    function = _FUNCTIONS.get(node.value)
    if function is None or node.modifiers or node.filter is not None:
        raise UnsupportedError(f"it uses {node.value}")
    return function(node, rows)


def _function(name: str, *kinds: pa.DataType) -> Callable[[Tree, Rows], Value]:
    """Return an evaluator that applies a pyarrow function to one argument, which must have one of `kinds`."""

    def compute(node: Tree, rows: Rows) -> Value:
        if len(node.parts) != 1:
            raise UnsupportedError(f"it uses {node.value} without exactly one argument")
        value = evaluate_node(node.parts[0], rows)
        if value.type not in kinds:
            raise UnsupportedError(f"it uses {node.value} of {value.type}")
        rows.fails |= name.endswith("_checked") and value.type in INTEGERS
        return pc.call_function(name, [value])

    return compute


def _named_struct(node: Tree, rows: Rows) -> Value:
    names, parts = node.parts[::2], node.parts[1::2]
    if not parts or len(names) != len(parts) or any(name.kind != "string" for name in names):
        raise UnsupportedError("its struct has no names")
    columns = [to_column(evaluate_node(part, rows), rows.table.num_rows) for part in parts]
    if any(pa.types.is_null(column.type) for column in columns):
        raise UnsupportedError("its struct has a field without a type")
    return pc.make_struct(*columns, field_names=[string_literal(name, rows).as_py() for name in names])


_is_nan: Final = _function("is_nan", *FLOATS)

_OPERATORS: Final[dict[str, Callable[[Tree, Rows], Value]]] = {
    "+": _arithmetic("add"),
    "-": _arithmetic("subtract"),
    "*": _arithmetic("multiply"),
    "/": _divide,
    "DIV": _int_divide,
    "%": _modulo,
}

_FUNCTIONS: Final[dict[str, Callable[[Tree, Rows], Value]]] = {
    "if": _if,
    "coalesce": _coalesce,
    "named_struct": _named_struct,
    "abs": _function("abs_checked", *INTEGERS, *FLOATS),
    "sqrt": _function("sqrt", pa.float64()),
    "isnan": lambda node, rows: pc.fill_null(_is_nan(node, rows), False),
    **dict.fromkeys(("nvl", "ifnull"), _coalesce),
    **dict.fromkeys(
        ("length", "len", "char_length", "character_length"), _function("utf8_length", pa.string())
    ),
}

_KINDS: Final[dict[str, Callable[[Tree, Rows], Value]]] = {
    "column": _column,
    "field": _field,
    "paren": lambda node, rows: evaluate_node(node.parts[0], rows),
    "number": number_literal,
    "string": string_literal,
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
"""The evaluators by kind of node."""
