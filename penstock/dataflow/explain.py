"""Explain a plan as text, as a tree for terminals or as JSON, with the rows and bytes between operators.

Explanations show the graph as written and the graph as planned.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

from penstock.dataflow.nodes import Materialize, Node, PushedScan, Source, Transactions, topological
from penstock.dataflow.nodes.trigger import find_longest_intervals, find_trigger_interval
from penstock.dataflow.place import stored_bytes
from penstock.dataflow.statistics import Flow, flows
from penstock.operators.scan.spec import Scan
from penstock.procedures.procedure import Procedure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType
    from rich.tree import Tree

    from penstock.dataflow.plan import PhysicalPlan
    from penstock.procedures.analysis.counts import TransactionCounts

__all__ = ["as_json", "explain", "flow_text", "render"]

_WIDTH: Final = 110
_STYLES: Final = {"p-stream": "bold cyan", "scan": "cyan", "source": "bold"}


def explain(
    plan: PhysicalPlan, *, width: int = _WIDTH, counts: Mapping[str, TransactionCounts] | None = None
) -> str:
    """Return a plan as plain text.

    Parameters
    ----------
    plan : PhysicalPlan
        The plan to explain.
    width : int
        The width at which lines wrap.
    counts : mapping, optional
        The transactions that operators have run, by `Node.state_name`.
    """
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=width, color_system=None, highlight=False).print(
        render(plan, counts), crop=False
    )
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def render(plan: PhysicalPlan, counts: Mapping[str, TransactionCounts] | None = None) -> RenderableType:
    """Return a plan for rich's console; see `explain`.

    The root of each tree is the sink, and its leaves are the sources. Each operator shows its selectivity and
    the bytes per output tuple. Selectivities that no sample measured are marked as assumed.
    """
    from rich.console import Group
    from rich.text import Text

    logical_flows, planned_flows = (flows(root, plan.statistics) for root in (plan.logical, plan.root))
    parts: list[RenderableType] = [Text(f"graph {plan.name}\n", "bold")]
    parts += [Text("as written"), _tree(plan.logical, logical_flows, plan), Text()]
    parts += [Text("as planned"), _tree(plan.root, planned_flows, plan), Text()]
    if plan.changes:
        parts.append(Text("rules"))
        parts += [Text(f"  {rule}: {note}") for rule, note in plan.changes]
        parts.append(Text())
    parts.append(Text("persistence"))
    for choice in plan.choices:
        decision = "persisted" if choice.persisted else "not persisted"
        parts.append(Text(f"  {choice.source}: {decision}, as {choice.reason}"))
    if longest := find_longest_intervals(plan.root):
        parts += [Text(), Text("trigger, unless it is set")]
        parts += [Text(f"  {query}: as measured, at most {interval}") for query, interval in longest.items()]
        fixed = find_trigger_interval(plan.root)
        parts.append(Text(f"  with Spark Connect: every {fixed} in all queries, fixed while they run"))
    for text in _procedures(plan, counts).values():
        parts += [Text(), Text(text, no_wrap=True, overflow="ignore")]
    return Group(*parts)


def _procedures(plan: PhysicalPlan, counts: Mapping[str, TransactionCounts] | None = None) -> dict[str, str]:
    """Return the explanations of procedures, by the names of their operators."""
    nodes = [node for node in topological(plan.root) if isinstance(node, Transactions)]
    return {
        node.name: f"{_explain_procedure(node, (counts or {}).get(node.state_name))}\n  input: {_input(node)}"
        for node in nodes
    }


def _explain_procedure(node: Transactions, counts: TransactionCounts | None) -> str:
    # A workflow forwards nothing.
    return (
        node.procedure.explain(counts) if isinstance(node.procedure, Procedure) else node.procedure.explain()
    )


def _input(node: Transactions) -> str:
    """Describe how rows reach the transactions of their bucket."""
    above = node.inputs[0]
    if isinstance(above, PushedScan) and above.scan == Scan(above.scan.columns):
        above = above.inputs[0]
    if not (isinstance(above, Materialize) or (isinstance(above, Source) and above.kind == "p-stream")):
        return "rows pass through Spark"
    if node.buckets == 1:
        return "the bucket's task reads the p-stream"
    if node.forwards:
        return "rows pass through Spark, since each may go to several buckets"
    return "the p-stream's readers pack rows for their buckets"


def _tree(root: Node, flow: dict[int, Flow], plan: PhysicalPlan) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    seen: set[int] = set()

    def grow(node: Node, into: Tree | None) -> Tree:
        line = Text.assemble((node.label, _STYLES.get(node.label, "bold")), " ", node.describe())
        is_repeated = id(node) in seen and bool(node.inputs)
        seen.add(id(node))
        line.append(" (the same as above)" if is_repeated else f"  [{flow_text(node, flow, plan)}]", "dim")
        branch = Tree(line) if into is None else into.add(line)
        if not is_repeated:
            for above in node.inputs:
                grow(above, branch)
        return branch

    return grow(root, None)


def flow_text(node: Node, flow: dict[int, Flow], plan: PhysicalPlan) -> str:
    """Format the output of an operator: its selectivity and the bytes per tuple."""
    node_flow = flow[id(node)]
    parts = []
    passes = _selectivity(node, flow)
    if passes is not None and passes != 1.0:
        parts.append(f"passes {100 * passes:.3g}%" + ("" if node_flow.measured else " (assumed)"))
    parts.append(f"{node_flow.bytes:.4g} B a tuple")
    if isinstance(node, Materialize) and node_flow.table is not None and node_flow.rows:
        parts.append(f"stored in {stored_bytes(node_flow, plan.statistics) / node_flow.rows:.3g}")
    return ", ".join(parts)


def _selectivity(node: Node, flow: dict[int, Flow]) -> float | None:
    rows, came = flow[id(node)].rows, [flow[id(above)].rows for above in node.inputs]
    if rows is None or not came or any(count is None for count in came):
        return None
    total = sum(count for count in came if count is not None)
    return rows / total if total else None


def as_json(plan: PhysicalPlan, counts: Mapping[str, TransactionCounts] | None = None) -> dict[str, Any]:
    """Convert a plan to values that JSON can hold; see `explain`."""
    return {
        "graph": plan.name,
        "as_written": _nodes(plan.logical, plan),
        "as_planned": _nodes(plan.root, plan),
        "rules": [{"rule": rule, "did": note} for rule, note in plan.changes],
        "persistence": [
            {
                "source": choice.source,
                "persisted": choice.persisted,
                "reason": choice.reason,
                "reread_ns": choice.reread_ns,
                "p_stream_ns": choice.p_stream_ns,
            }
            for choice in plan.choices
        ],
        "longest_trigger": find_longest_intervals(plan.root),
        "trigger_on_spark_connect": find_trigger_interval(plan.root),
        "procedures": _procedures(plan, counts),
        "p_streams": [
            {
                "name": stream.name,
                "schema": {field.name: str(field.type) for field in stream.schema},
                "ingest": None if stream.ingest is None else stream.ingest.as_dict(),
                "readers": [scan.as_dict() for scan in stream.readers],
            }
            for stream in plan.streams
        ],
    }


def _nodes(root: Node, plan: PhysicalPlan) -> list[dict[str, Any]]:
    flow, nodes = flows(root, plan.statistics), list(topological(root))
    number = {id(node): at for at, node in enumerate(nodes)}
    descriptions = []
    for node in nodes:
        node_flow = flow[id(node)]
        descriptions.append(
            {
                "id": number[id(node)],
                "inputs": [number[id(above)] for above in node.inputs],
                "name": node.name,
                "kind": node.label,
                "does": node.describe(),
                "columns": {field.name: str(field.type) for field in node.schema},
                "selectivity": _selectivity(node, flow),
                "measured": node_flow.measured or isinstance(node, Source),
                "bytes_per_tuple": node_flow.bytes,
            }
        )
    return descriptions
