"""Check that the local engine can run a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from penstock.dataflow.nodes import (
    Aggregate,
    Apply,
    Assemble,
    Join,
    Materialize,
    Node,
    PushedScan,
    Select,
    Sink,
    Source,
    StreamTableJoin,
    Transactions,
    Union,
    UpdateQueue,
    UpdateUnion,
    Where,
    Window,
    WindowJoin,
    topological,
)
from penstock.dataflow.runnable import check_runnable
from penstock.errors import InvalidUsageError
from penstock.operators.scan.lookup import can_be_looked_up
from penstock.operators.types import UNKNOWN
from penstock.sql.evaluate import type_of, why_unsupported
from penstock.sql.expression import Expression, unknown_functions

__all__ = ["USE_SPARK", "check_local", "find_refusals"]

USE_SPARK: Final = "use engine: spark"
"""The hint for what the local engine cannot do."""
_OPERATORS = (
    Aggregate, Apply, Assemble, Join, Materialize, PushedScan, Select, Sink, Source, StreamTableJoin,
    Transactions, Union, UpdateQueue, UpdateUnion, Where, Window, WindowJoin,
)  # fmt: skip


def check_local(root: Node) -> None:
    """Check that the local engine can run a plan.

    Raises
    ------
    InvalidUsageError
        If the local engine cannot run the plan. The error has the first reason.
    """
    for error in find_refusals(root):
        raise error


def find_refusals(root: Node) -> Iterator[InvalidUsageError]:
    """Yield the reasons why the local engine cannot run a plan."""
    nodes = list(topological(root))
    for node in nodes:
        try:
            reason = _refusal(node)
        except InvalidUsageError as error:
            yield InvalidUsageError(error.fact, hint=error.hint, node=node.name)
            continue
        if reason is not None:
            yield InvalidUsageError(f"the local engine {reason}", hint=USE_SPARK, node=node.name)
    try:
        check_runnable(root)
    except InvalidUsageError as error:
        yield error


def _refusal(node: Node) -> str | None:
    """Return why the local engine cannot run a node; None if it can run the node.

    Raises
    ------
    InvalidUsageError
        If Spark cannot run the node either, because a function does not exist.
    """
    if not isinstance(node, _OPERATORS):
        return f"has no operator {node.label}"
    if isinstance(node, Where):
        return _unknown([node.predicate], node.inputs[0].schema)
    if isinstance(node, Select):
        return _unknown([expression for _, expression in node.columns], node.inputs[0].schema)
    if isinstance(node, WindowJoin) and node.condition is not None:
        return _unknown([node.condition], node.schema)
    if isinstance(node, Aggregate):
        texts = [one.expression for one in node.decomposition.partials if one.expression != "*"]
        return _unknown([Expression.parse(text) for text in texts], node.inputs[0].schema)
    if isinstance(node, StreamTableJoin):
        kinds = [node.columns.field(name).type for name in node.on]
        if not all(map(can_be_looked_up, kinds)):
            return "looks up no floats or nested values"
    return None


def _unknown(expressions: list[Expression], schema: pa.Schema) -> str | None:
    for expression in expressions:
        kinds = {schema.field(name).type for name in expression.columns}
        if UNKNOWN in kinds or type_of(expression, schema) is None:
            for error in unknown_functions(expression):
                raise error
            reason = why_unsupported(expression, schema)
            return f"cannot evaluate {expression.text}" + (f": {reason}" if reason else "")
    return None
