"""Column-wise evaluation of expressions on Arrow tables: the reference semantics of a `Scan`.

The evaluator supports columns and fields, literals, comparison, boolean logic, arithmetic of numbers,
``CASE``, ``IF``, ``COALESCE``, ``IN``, ``BETWEEN``, ``LIKE``, casts that cannot fail, and a few functions.
For these its results equal Spark's results in ANSI mode, nulls and NaNs included. `type_of` shows whether an
expression is supported. Spark evaluates all other expressions, including expressions with special rules in
Spark: calculations with decimals, implicit casts, and divisors that may be zero.

Only integer overflow makes an expression fail. A part that may fail is evaluated only for the rows for which
Spark evaluates it: rows that take its branch, or rows for which earlier operands have not decided the result.
If Spark's optimizer may remove a failing part, Spark evaluates the expression (`penstock.sql.folding`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.sql.evaluators import evaluate_node, infer_type, to_column
from penstock.sql.expression import Expression
from penstock.sql.folding import may_drop_failure
from penstock.sql.tree import Tree
from penstock.sql.values import Rows, UnsupportedError

__all__ = [
    "can_fail",
    "constant",
    "evaluate",
    "filter_rows",
    "needs_ansi",
    "project",
    "type_of",
    "type_of_expression",
    "why_unsupported",
]


def evaluate(expression: Expression, table: pa.Table) -> pa.ChunkedArray[Any]:
    """Return the expression's value in each row.

    Raises
    ------
    InvalidUsageError
        If the expression is not supported, or integers overflow.
    """
    try:
        value = evaluate_node(expression.tree, Rows(table))
    except UnsupportedError as error:
        raise InvalidUsageError(
            f"an expression cannot be evaluated outside of Spark: {error}", expression=expression.text
        ) from None
    except pa.ArrowInvalid as error:
        raise InvalidUsageError(f"an expression fails: {error}", expression=expression.text) from None
    return to_column(value, table.num_rows)


def can_fail(expression: Expression, schema: pa.Schema) -> bool:
    """Return whether `evaluate` may raise for some values, because integers overflow."""
    return infer_type(expression.tree, schema.remove_metadata())[1]


def needs_ansi(expression: Expression, schema: pa.Schema) -> bool:
    """Return whether Spark's result may differ from `evaluate` outside of ANSI mode."""
    _, fails, ansi = infer_type(expression.tree, schema.remove_metadata())
    return fails or ansi


def constant(node: Tree) -> pa.Scalar[Any] | None:
    """Return the value of a constant tree; None if the tree reads columns, is null, or is not supported."""
    try:
        value = evaluate_node(node, Rows(pa.table({})))
    except (UnsupportedError, pa.ArrowException):
        return None
    return value if isinstance(value, pa.Scalar) and value.is_valid else None


def type_of(expression: Expression, schema: pa.Schema) -> pa.DataType | None:
    """Return the type of an expression; None if only Spark can evaluate the expression."""
    kind = type_of_expression(expression, schema)
    plain = schema.remove_metadata()
    if kind is None or may_drop_failure(expression.tree, lambda node: infer_type(node, plain)[:2]):
        return None
    return kind


def why_unsupported(expression: Expression, schema: pa.Schema) -> str | None:
    """Return why only Spark can evaluate an expression; None if the reason is unknown."""
    try:
        evaluate_node(expression.tree, Rows(schema.empty_table()))
    except UnsupportedError as error:
        return str(error)
    except (pa.ArrowException, RecursionError):
        return None
    return None


def type_of_expression(expression: Expression, schema: pa.Schema) -> pa.DataType | None:
    """Return the type of an expression over a schema; None if the evaluator does not support the expression.

    Unlike `type_of`, this function accepts expressions from which Spark's optimizer may drop a part that can
    fail.
    """
    if expression.is_column:
        name = expression.columns[0]
        return schema.field(name).type if schema.names.count(name) == 1 else None
    if not expression.deterministic or expression.aggregate:
        return None
    plain = schema.remove_metadata()  # Some versions of Arrow cannot hash metadata.
    kind = infer_type(expression.tree, plain)[0]
    return None if kind is None or pa.types.is_null(kind) or pa.types.is_decimal(kind) else kind


def filter_rows(table: pa.Table, predicate: Expression) -> pa.Table:
    """Return the rows for which the predicate is true.

    Conjuncts are evaluated in order, each on the rows that passed the previous conjuncts.

    Raises
    ------
    InvalidUsageError
        As for `evaluate`, and if the predicate is not boolean.
    """
    for part in predicate.conjuncts():
        keep = evaluate(part, table)
        if keep.type != pa.bool_():
            raise InvalidUsageError("a predicate is not boolean", expression=part.text, type=keep.type)
        table = table.filter(keep)
    return table


def project(table: pa.Table, select: Mapping[str, Expression]) -> pa.Table:
    """Return a table with one column for each expression of `select`.

    Raises
    ------
    InvalidUsageError
        As for `evaluate`.
    """
    columns = {name: evaluate(expression, table) for name, expression in select.items()}
    return pa.table(columns)
