"""Check that the local engine can run a plan."""

from __future__ import annotations

from collections.abc import Iterator

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
from penstock.dataflow.types import UNKNOWN
from penstock.errors import InvalidUsageError
from penstock.operators.scan.lookup import can_be_looked_up
from penstock.sql.evaluate import type_of
from penstock.sql.expression import Expression

__all__ = ["check_local", "find_refusals"]

_HINT = "use engine: spark"
_OPERATORS = (
    Apply, Assemble, Join, Materialize, PushedScan, Select, Sink, Source, StreamTableJoin, Union, UpdateQueue,
    UpdateUnion, Where,
)  # fmt: skip
_STATEFUL = (Apply, Assemble, Join, UpdateQueue, UpdateUnion)


def check_local(root: Node) -> None:
    """Check that the local engine can run a plan.

    Raises
    ------
    InvalidUsageError
        If it cannot, for the first reason found.
    """
    for error in find_refusals(root):
        raise error


def find_refusals(root: Node) -> Iterator[InvalidUsageError]:
    """Yield the reasons why the local engine cannot run a plan."""
    nodes = list(topological(root))
    for node in nodes:
        if (reason := _refusal(node)) is not None:
            yield InvalidUsageError(f"the local engine {reason}", hint=_HINT, node=node.name)
    for end in (root, *(node.inputs[0] for node in nodes if isinstance(node, Materialize))):
        stateful = [node for node in _inside(end) if isinstance(node, _STATEFUL)]
        if len(stateful) > 1:
            yield InvalidUsageError(
                "a query can hold only one window, update queue, union or join of update streams",
                hint=f"persist the output of the first: persist={{{stateful[0].name!r}: 'always'}}",
                node=stateful[1].name,
            )


def _inside(end: Node) -> Iterator[Node]:
    """Yield the nodes of a query, inputs first."""
    if not isinstance(end, Materialize):
        for above in end.inputs:
            yield from _inside(above)
        yield end


def _refusal(node: Node) -> str | None:
    """Return why the local engine cannot run a node; None if it can."""
    if isinstance(node, Transactions):
        return "runs no transactions"
    if isinstance(node, WindowJoin):
        return "joins no windows"
    if isinstance(node, Aggregate) and not isinstance(node.inputs[0], Window):
        return "aggregates no windows by window"
    if isinstance(node, Aggregate | Window):
        return "runs only windows of time in append mode whose aggregates it knows"
    if not isinstance(node, _OPERATORS):
        return f"has no operator {node.label}"
    if isinstance(node, Where):
        return _unknown([node.predicate], node.inputs[0].schema)
    if isinstance(node, Select):
        return _unknown([expression for _, expression in node.columns], node.inputs[0].schema)
    if isinstance(node, UpdateQueue | UpdateUnion | Join) and node.options.late_to is not None:
        return "keeps no late rows (late_to)"
    if isinstance(node, Assemble) and isinstance(node.inputs[0], StreamTableJoin):
        return "looks up no rows between a source and windows"
    if isinstance(node, Assemble) and node.window.options.by_key:
        return "runs only windows in append mode"
    if isinstance(node, StreamTableJoin):
        kinds = [node.columns.field(name).type for name in node.on]
        if not all(map(can_be_looked_up, kinds)):
            return "looks up no floats or nested values"
    return None


def _unknown(expressions: list[Expression], schema: pa.Schema) -> str | None:
    for expression in expressions:
        kinds = {schema.field(name).type for name in expression.columns}
        if UNKNOWN in kinds or type_of(expression, schema) is None:
            return f"cannot evaluate {expression.text}"
    return None
