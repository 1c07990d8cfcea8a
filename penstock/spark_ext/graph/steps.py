"""Selections and projections of a graph as DataFrames."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.dataflow.nodes import Node, Select, Sink, Where
from penstock.sql.expression import select_item
from penstock.windows.finish import Step

__all__ = ["apply_step", "apply_steps", "split_steps", "step_text"]


def split_steps(node: Node) -> tuple[Node, list[Where | Select]]:
    """Return the node that a node's selections and projections follow, and these steps in order."""
    steps: list[Where | Select] = []
    while isinstance(node, Where | Select | Sink):
        if not isinstance(node, Sink):
            steps.insert(0, node)
        node = node.inputs[0]
    return node, steps


def apply_steps(steps: Sequence[Where | Select], rows: DataFrame) -> tuple[DataFrame, list[StructType]]:
    """Apply steps to rows; return the result, and the columns before the steps and after each projection."""
    schemas = [rows.schema]
    for step in steps:
        rows = apply_step(step, rows)
        if isinstance(step, Select):
            schemas.append(rows.schema)
    return rows, schemas


def apply_step(node: Where | Select, rows: DataFrame) -> DataFrame:
    """Apply a step to rows by Spark."""
    if isinstance(node, Where):
        return rows.where(node.predicate.text)
    return rows.selectExpr(*(select_item(name, expression) for name, expression in node.columns))


def step_text(node: Where | Select) -> Step:
    """Return a step as SQL text, which needs no Spark."""
    if isinstance(node, Where):
        return node.predicate.text
    return {name: expression.text for name, expression in node.columns}
