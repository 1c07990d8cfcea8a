"""The shape of a plan: the operators and settings that must stay the same while its checkpoint is used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.dataflow.nodes import (
    Aggregate,
    Assemble,
    Join,
    Materialize,
    Node,
    PushedScan,
    Source,
    Transactions,
    UpdateQueue,
    UpdateUnion,
    Window,
    topological,
)
from penstock.dataflow.plan import PhysicalPlan
from penstock.operators.aggregates.moments import spell_as_before, to_settings
from penstock.operators.scan.spec import Partial
from penstock.operators.update_stream.operator_options import QueueOptions

__all__ = ["shape"]


def shape(plan: PhysicalPlan) -> list[str]:
    """Return the parts of a plan that a checkpoint depends on, as lines of JSON.

    A checkpoint fits every plan with the same lines. Each source, p-stream, operator before a p-stream and
    stateful operator has a line, and so has each scan with fragments or conflation. A line has the columns
    and inputs of its operator. Selections, projections and lookups after the last p-stream may change, and
    so may the sink: committed state does not depend on them.
    """
    nodes = list(topological(plan.root))
    fixed: set[int] = set()
    for node in nodes:
        if isinstance(node, Materialize):
            fixed |= {id(inner) for inner in topological(node)}
    fixed |= {id(node) for node in nodes if _holds(node)}
    below: dict[int, list[int]] = {}
    lines: list[str] = []
    for node in nodes:
        # A node that may change at a restart has no line. Its readers refer to the fixed nodes above it.
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
    lasting = _drop_changeable_settings(node)
    names = {field.name: field.name for field in _stored_schema(lasting)}
    partials = _partials(node)
    names |= {partial.name: str(to_settings(partial)[2]) for partial in partials if partial.name in names}
    return {
        "kind": node.label,
        "name": node.name,
        "does": spell_as_before(lasting.describe(), partials),
        "columns": {names[field.name]: str(field.type) for field in _stored_schema(lasting)},
        "reads": leads,
    }


def _partials(node: Node) -> Sequence[Partial]:
    """Return the partial aggregates that a node computes or combines."""
    if isinstance(node, PushedScan) and node.scan.fragments is not None:
        return node.scan.fragments.without_watermark.partials
    return node.decomposition.partials if isinstance(node, Assemble) else ()


def _stored_schema(node: Node) -> pa.Schema:
    """Return the columns of a node's state, or of its output if it has no state."""
    if isinstance(node, Transactions):
        return node.event
    return node.inputs[0].schema if isinstance(node, UpdateQueue | UpdateUnion) else node.schema


def _drop_changeable_settings(node: Node) -> Node:
    """Return a node without the settings that may change at every start.

    The changeable settings are the budget, the time to live of the keys, the windows that buckets prune, and
    the watermark that readers report.
    """
    if isinstance(node, PushedScan) and node.scan.fragments is not None:
        return replace(node, scan=replace(node.scan, fragments=node.scan.fragments.without_watermark))
    if isinstance(node, UpdateQueue):
        return replace(node, options=_without_lives(replace(node.options, budget=None, freshness=None)))
    if isinstance(node, UpdateUnion):
        return replace(node, options=_without_lives(replace(node.options, freshness=None)))
    if isinstance(node, Join):
        return replace(node, options=replace(node.options, ttl=node.options.ttl and "1 s"))
    if isinstance(node, Window):
        ttl = "1 s" if node.options.on_silent else None
        return replace(node, options=replace(node.options, budget=None, freshness=None, ttl=ttl))
    if isinstance(node, Aggregate):
        return replace(node, extreme=None)
    if isinstance(node, Assemble):
        aggregate = replace(node.aggregate, inputs=(_drop_changeable_settings(node.window),), extreme=None)
        return replace(node, aggregate=aggregate)
    return node


def _without_lives(options: QueueOptions) -> QueueOptions:
    """Return options without the actual times to live, which may change at every start."""
    return replace(options, ttl="1 s" if options.on_silent else None, delete_ttl=None)
