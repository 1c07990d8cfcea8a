"""What of a plan may not change while its checkpoint lives."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.operators.graph.nodes import (
    Aggregate,
    Assemble,
    Materialize,
    Node,
    PushedScan,
    Source,
    UpdateQueue,
    UpdateUnion,
    Window,
    topological,
)
from penstock.operators.graph.plan import PhysicalPlan

__all__ = ["shape"]


def shape(plan: PhysicalPlan) -> list[str]:
    """Return what a checkpoint depends on, a line of JSON each; the same lines, the same checkpoint.

    These are sources, p-streams with what is done before them, operators with a state, and what makes
    fragments or conflates in a reader, with their columns and what they read. Selections, projections and
    lookups behind the last p-stream, and the sink, may change: what is committed does not depend on them.
    """
    nodes = list(topological(plan.root))
    fixed: set[int] = set()
    for node in nodes:
        if isinstance(node, Materialize):
            fixed |= {id(one) for one in topological(node)}
    fixed |= {id(node) for node in nodes if _holds(node)}
    below: dict[int, list[int]] = {}
    lines: list[str] = []
    for node in nodes:
        # What may change is looked through: what counts is what of the rest it leads to.
        leads = [number for above in node.inputs for number in below[id(above)]]
        if id(node) not in fixed:
            below[id(node)] = leads
            continue
        below[id(node)] = [len(lines)]
        lines.append(json.dumps(_line(node, leads)))
    return [*lines, json.dumps({"kind": "results", "reads": below[id(plan.root)]})]


def _holds(node: Node) -> bool:
    if isinstance(node, PushedScan):
        return node.scan.fragments is not None or node.scan.latest_by is not None
    return node.stateful or isinstance(node, Source)


def _line(node: Node, leads: list[int]) -> dict[str, Any]:
    lasting = _lasting(node)
    return {
        "kind": node.label,
        "name": node.name,
        "does": lasting.describe(),
        "columns": {one.name: str(one.type) for one in _stored(lasting)},
        "reads": leads,
    }


def _stored(node: Node) -> pa.Schema:
    """Return the columns that a node's state has, or that leave it without."""
    return node.inputs[0].schema if isinstance(node, UpdateQueue | UpdateUnion) else node.schema


def _lasting(node: Node) -> Node:
    """Return a node without what may be otherwise at every start.

    That is its budget, what leaves its buckets, and what readers tell of the watermark.
    """
    if isinstance(node, PushedScan) and node.scan.fragments is not None:
        return replace(node, scan=replace(node.scan, fragments=node.scan.fragments.plain))
    if isinstance(node, UpdateQueue):
        return replace(node, options=replace(node.options, budget=None))
    if isinstance(node, Window):
        return replace(node, options=replace(node.options, budget=None))
    if isinstance(node, Aggregate):
        return replace(node, extreme=None)
    if isinstance(node, Assemble):
        aggregate = replace(node.aggregate, inputs=(_lasting(node.window),), extreme=None)
        return replace(node, aggregate=aggregate)
    return node
