"""Types of expressions, aggregates and partials; `UNKNOWN` if only Spark can determine them."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from penstock.ddl import type_text
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.decomposition import aggregates_of
from penstock.operators.scan.spec import PANE, Partial, Scan
from penstock.sql.evaluate import type_of
from penstock.sql.expression import Expression, column, edit
from penstock.sql.syntax.functions import NEVER_BOOLEAN, OWN_FUNCTION
from penstock.sql.tree import Tree

__all__ = [
    "UNKNOWN",
    "aggregate_type",
    "check_condition",
    "declared_type",
    "expression_type",
    "fixed_bytes",
    "partial_type",
    "scan_schema",
]

UNKNOWN: Final = pa.null()
"""Stands for a column's type that is not known before the graph runs."""

_RETURNS_DOUBLE: Final = frozenset(
    {"avg", "mean", "median", "percentile", "stddev", "stddev_samp", OWN_FUNCTION}
)
_DECLARED: Final = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
}
"""Maps the type name in a cast to the Arrow type."""
_SPELLINGS: Final = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
}
_RETURNS_ARGUMENT_TYPE: Final = frozenset({"min", "max", "first", "last", "first_value", "last_value"})


def expression_type(expression: Expression, schema: pa.Schema) -> pa.DataType:
    """Return the type of an expression over a schema, or `UNKNOWN`."""
    if any(schema.field(name).type == UNKNOWN for name in expression.columns if name in schema.names):
        return UNKNOWN
    return type_of(expression, schema) or UNKNOWN


def declared_type(expression: Expression, schema: pa.Schema) -> pa.DataType:
    """Return the type of an expression, or `UNKNOWN`.

    The type of a cast is known even if only Spark can evaluate the cast, such as ``string(x)``.
    """
    kind = expression_type(expression, schema)
    tree = expression.tree.unnest()
    if kind != UNKNOWN:
        return kind
    if tree.kind == "call":
        return _DECLARED.get(tree.value.upper(), UNKNOWN)
    if tree.kind == "cast":
        name = tree.value[1]
        return _DECLARED.get(_SPELLINGS.get(name, name), UNKNOWN)
    return UNKNOWN


def check_condition(expression: Expression, schema: pa.Schema, option: str, **context: str) -> None:
    """Check that the expression of an option can be true or false.

    Raises
    ------
    InvalidUsageError
        If it has a different type.
    """
    kind = expression_type(expression, schema)
    if not pa.types.is_boolean(kind) and (kind != UNKNOWN or _is_no_condition(expression.tree)):
        known = {} if kind == UNKNOWN else {"type": type_text(kind)}
        raise InvalidUsageError(
            f"{'the ' if option == 'filter' else ''}{option} is not a condition, which is true or false",
            **{option: expression.text},
            **known,
            hint="write a comparison, such as price > 0",
            **context,
        )


def _is_no_condition(tree: Tree) -> bool:
    """Return whether an expression cannot be a condition, whatever types its columns have."""
    tree = tree.unnest()
    if tree.kind == "cast":
        return str(tree.value[1]).upper() != "BOOLEAN"
    if tree.kind == "call":
        return tree.value.lower() in NEVER_BOOLEAN
    return tree.kind in ("binary", "unary", "number", "string", "interval")


def _sum_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else UNKNOWN


def partial_type(partial: Partial, schema: pa.Schema) -> pa.DataType:
    """Return the type of a partial over a schema, or `UNKNOWN`."""
    if partial.kind == "count":
        return pa.int64()
    if partial.kind == "m2":
        return pa.float64()
    kind = expression_type(Expression.parse(partial.expression), schema)
    if kind == UNKNOWN:
        return UNKNOWN
    if partial.kind == "distinct":
        return pa.list_(kind)
    if partial.kind in ("sketch", "kll", "own"):
        return pa.binary()
    return _sum_type(kind) if partial.kind == "sum" else kind


def only_branch(text: str) -> str:
    """Return the value of a ``CASE`` with one branch, which has its type; return any other text unchanged.

    The values of an aggregate with ``FILTER`` are such a ``CASE``.
    """
    tree = Expression.parse(text).tree
    if tree.kind == "case" and tree.value == (False, False) and len(tree.parts) == 2:
        return text[tree.parts[1].start : tree.parts[1].stop]
    return text


def aggregate_type(expression: Expression, schema: pa.Schema) -> pa.DataType:
    """Return the type of an aggregate over a schema, or `UNKNOWN`."""
    fields = list(schema)
    calls: list[tuple[Tree, str]] = []
    for number, call in enumerate(aggregates_of(expression.tree)):
        fields.append(pa.field(f"{number} ", _call_type(expression, call, schema)))
        calls.append((call, column(f"{number} ").text))
    return expression_type(Expression.parse(edit(expression.text, calls)), pa.schema(fields))


def _call_type(expression: Expression, call: Tree, schema: pa.Schema) -> pa.DataType:
    kind = call.value
    if kind in _RETURNS_DOUBLE:
        return pa.float64()
    if kind in ("count", "approx_count_distinct"):
        return pa.int64()
    if kind in ("approx_percentile", "percentile_approx"):
        return expression_type(expression.slice(call.parts[0]), schema)
    if len(call.parts) != 1 or (kind != "sum" and kind not in _RETURNS_ARGUMENT_TYPE):
        return UNKNOWN
    argument_type = expression_type(expression.slice(call.parts[0]), schema)
    return argument_type if kind in _RETURNS_ARGUMENT_TYPE else _sum_type(argument_type)


def fixed_bytes(kind: pa.DataType) -> float | None:
    """Return the bytes of a fixed-size value; None for variable sizes."""
    try:
        return kind.bit_width / 8
    except ValueError:
        return None


def scan_schema(scan: Scan, schema: pa.Schema) -> pa.Schema:
    """Return a reader's output schema for a p-stream with a given schema.

    Raises
    ------
    InvalidUsageError
        If the scan reads a missing column.
    """
    missing = [name for name in scan.columns if name not in schema.names]
    if missing:
        raise InvalidUsageError("a scan reads a missing column", column=missing[0])
    read = pa.schema([schema.field(name) for name in scan.columns])
    texts = scan.select or {name: column(name).text for name in scan.columns}
    output = pa.schema(
        [(name, expression_type(Expression.parse(text), read)) for name, text in texts.items()]
    )
    if scan.fragments is None:
        return output
    fields: list[pa.Field[Any]] = [pa.field(PANE, output.field(scan.fragments.time).type)]
    fields += [output.field(name) for name in scan.fragments.group_by]
    fields += [pa.field(partial.name, partial_type(partial, output)) for partial in scan.fragments.partials]
    return pa.schema(fields)
