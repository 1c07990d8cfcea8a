"""The last two push-up rules (Scabbard §3.4): place p-streams and fuse operators into their readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import pyarrow as pa

from penstock.dataflow.nodes import (
    Aggregate,
    Assemble,
    Materialize,
    Node,
    PushedScan,
    Select,
    Source,
    StreamTableJoin,
    UpdateQueue,
    Where,
    Window,
    rebuild,
    topological,
)
from penstock.dataflow.rules import Rewritten
from penstock.dataflow.statistics import Flow, Statistics, flows
from penstock.operators.aggregates.decomposition import decompose
from penstock.operators.scan.spec import Fragments, LatestBy, Scan
from penstock.operators.scheduling.policy import Policy
from penstock.operators.types import UNKNOWN, expression_type, scan_schema
from penstock.sql.evaluate import type_of
from penstock.sql.expression import Expression, column, conjunction

__all__ = ["fuse", "is_pushable", "place_p_stream", "scan_of", "stored_bytes"]


def is_pushable(node: Node) -> bool:
    """Return whether Penstock can run an operator itself, before a p-stream or in its reader.

    Selections and projections are pushable if `penstock.sql.evaluate` supports every expression and all
    expressions are deterministic.
    """
    if isinstance(node, Where):
        return type_of(node.predicate, node.inputs[0].schema) == pa.bool_()
    schema = node.inputs[0].schema if node.inputs else pa.schema([])
    return isinstance(node, Select) and all(
        expression_type(expression, schema) != UNKNOWN for _, expression in node.columns
    )


def stored_bytes(flow: Flow, statistics: Statistics | None) -> float:
    """Return the bytes that a p-stream of a flow would store for the whole sample.

    Without a sample, return the bytes for one tuple at each source.
    """
    width = flow.bytes
    if statistics is not None and flow.table is not None and flow.measured:
        width = statistics.stored_bytes(flow.table)
    return (flow.rows or 0.0) * width


def place_p_stream(root: Node, sources: Collection[str], statistics: Statistics | None = None) -> Rewritten:
    """Place each source's p-stream after the pushable operator where the p-stream stores the fewest bytes.

    Parameters
    ----------
    root : Node
        The graph.
    sources : collection of str
        Names of the sources to persist.
    statistics : Statistics, optional
        The measured sizes. Without statistics, sizes follow from column types and assumed selectivities.
    """
    flow = flows(root, statistics)
    readers = Counter(id(input) for node in topological(root) for input in node.inputs)
    below = {id(input): node for node in topological(root) for input in node.inputs}
    best: dict[int, tuple[str, int]] = {}
    notes: list[str] = []
    for source in topological(root):
        if not isinstance(source, Source) or source.name not in sources:
            continue
        chain: list[Node] = [source]
        while readers[id(chain[-1])] == 1 and is_pushable(below[id(chain[-1])]):
            chain.append(below[id(chain[-1])])
        sizes = [stored_bytes(flow[id(node)], statistics) for node in chain]
        at = max(number for number, size in enumerate(sizes) if size <= min(sizes))
        best[id(chain[at])] = (source.name, at)
        share = f"{sizes[at] / sizes[0]:.1%} of the bytes" if sizes[0] else "nothing"
        labels = " and ".join(dict.fromkeys(node.label for node in chain[1 : at + 1])) or "the source"
        notes.append(f"{source.name}: behind {labels}, with {share}")

    rebuilt: dict[int, Node] = {}
    for node in topological(root):
        inputs = tuple(rebuilt[id(input)] for input in node.inputs)
        is_unchanged = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
        new_node = node if is_unchanged else replace(node, inputs=inputs)
        choice = best.get(id(node))
        rebuilt[id(node)] = new_node if choice is None else Materialize(choice[0], (new_node,))
    return rebuilt[id(root)], tuple(notes)


def fuse(root: Node) -> Rewritten:
    """Fuse the operators downstream of a p-stream into its reader, as one `Scan`.

    Selections and projections become the scan's predicate and expressions. The scan may also include

    - the conflation of an update queue: the queue still applies its order and budget; or
    - the fragments of a window aggregate: the aggregate then only assembles fragments. If a lookup precedes
      the window, the fragments are also grouped by the lookup's keys, and the lookup joins fragments.

    The rule also applies to a Parquet source without a p-stream, but only if the scan conflates or makes
    fragments. Spark's own reader is faster for plain rows.
    """
    notes: list[str] = []

    def change(node: Node) -> Node:
        fused = _fuse_node(node)
        if fused is None:
            return node
        notes.append(f"{node.name}: {node.label} in the reader" + _describe_fusion(fused))
        return fused

    return rebuild(root, change), tuple(notes)


def _describe_fusion(node: Node) -> str:
    if isinstance(node, Assemble):
        lookup = " before the lookup" if isinstance(node.inputs[0], StreamTableJoin) else ""
        return f", as fragments of {node.window.pane_ms} ms{lookup}"
    return ", newest of each key" if isinstance(node, UpdateQueue) else ""


def scan_of(node: Node) -> tuple[Source | None, Scan | None]:
    """Return a node's source and a scan that is equivalent to the operators from the source to the node.

    Both are None if no scan is equivalent to them.
    """
    chain: list[Where | Select] = []
    while isinstance(node, Where | Select) and is_pushable(node):
        chain.append(node)
        node = node.inputs[0]
    if not isinstance(node, Source):
        return None, None
    scan = Scan(tuple(node.schema.names))
    for step in reversed(chain):
        scan = _append_to_scan(scan, step)
    return (node, scan) if _selects(scan, node.schema) else (None, None)


def _selects(scan: Scan, schema: pa.Schema) -> bool:
    """Return whether a reader can evaluate the whole predicate of a scan."""
    return scan.where is None or type_of(Expression.parse(scan.where), schema) == pa.bool_()


def _fuse_node(node: Node) -> Node | None:
    above = node.inputs[0] if node.inputs else None
    if isinstance(node, Where | Select) and above is not None:
        scan = _scan(above)
        if scan is None or not is_pushable(node):
            return None
        base, scan = _base(above), _append_to_scan(scan, node)
        return PushedScan(node.name, base, scan) if _selects(scan, base[0].schema) else None
    if isinstance(node, UpdateQueue) and above is not None and node.needs_newest_only:
        base, scan = _split_reduction(above)
        if scan is None:
            return None
        latest = replace(
            scan, latest_by=LatestBy(node.update_key, node.time, by_last=node.options.policy == Policy.FIFO)
        )
        return replace(node, inputs=(PushedScan(f"newest of {node.name}", base, latest),))
    if isinstance(node, Aggregate) and isinstance(above, Window):
        return _fragment(node, above)
    return None


def _base(node: Node) -> tuple[Node, ...]:
    """Return the input of a pushed scan; for any other node, return the node itself."""
    return node.inputs if isinstance(node, PushedScan) else (node,)


def _scan(node: Node) -> Scan | None:
    """Return the scan with which a p-stream's reader produces a node's output; None if no scan can."""
    if isinstance(node, Materialize) or (isinstance(node, Source) and node.kind == "p-stream"):
        return Scan(tuple(node.schema.names))
    if isinstance(node, PushedScan) and node.scan.latest_by is None and node.scan.fragments is None:
        return node.scan
    return None


def _split_reduction(node: Node) -> tuple[tuple[Node, ...], Scan | None]:
    """Return the node that a reader reads, and the scan to which a conflation or fragments can be added.

    The scan is None if no reader can conflate or aggregate the rows of the node.
    """
    scan = _scan(node)
    if scan is not None:
        return _base(node), scan
    source, scan = scan_of(node)
    return ((source,), scan) if source is not None and source.kind == "parquet" else ((), None)


def _selected_columns(scan: Scan) -> dict[str, Expression]:
    if scan.select is None:
        return {name: column(name) for name in scan.columns}
    return {name: Expression.parse(text) for name, text in scan.select.items()}


def _append_to_scan(scan: Scan, node: Where | Select) -> Scan:
    """Return a scan that also runs a selection or projection after its previous steps."""
    select, where = _selected_columns(scan), scan.where
    if isinstance(node, Where):
        predicate = node.predicate.substitute(select)
        predicates = [predicate] if where is None else [Expression.parse(where), predicate]
        where = conjunction(predicates).text
    else:
        select = {name: expression.substitute(select) for name, expression in node.columns}
    return _narrow(scan.columns, where, select)


def _narrow(columns: tuple[str, ...], where: str | None, select: dict[str, Expression]) -> Scan:
    used = set() if where is None else set(Expression.parse(where).columns)
    used.update(name for expression in select.values() for name in expression.columns)
    read = tuple(name for name in columns if name in used)
    is_identity = tuple(select) == read and all(
        expression == column(name) for name, expression in select.items()
    )
    return Scan(
        read, where, None if is_identity else {name: expression.text for name, expression in select.items()}
    )


def _fragment(node: Aggregate, window: Window) -> Assemble | None:
    lookup, above = _split_lookup(window.inputs[0])
    base, scan = _split_reduction(above)
    if window.options.late_to is not None or window.options.delete_when is not None:
        return None  # buckets need whole rows, to write late rows or to delete groups
    if window.separate is not None or scan is None or (window.time_unit == "s" and window.pane_ms % 1000):
        return None
    columns = set(above.schema.names)
    group_by = tuple(name for name in node.group_by if name in columns)
    texts = {name: expression.text for name, expression in node.aggregates}
    used = {name for _, expression in node.aggregates for name in expression.columns}
    if not used | {window.time} <= columns:
        return None
    if lookup is not None:
        group_by += tuple(name for name in lookup.on if name not in group_by)
    reserved = (*group_by, *(() if lookup is None else lookup.columns.names))
    split = decompose(texts, window.time, reserved).add_count(reserved)
    needed = {*group_by, window.time}
    for partial in split.partials:
        needed |= set() if partial.expression == "*" else set(Expression.parse(partial.expression).columns)
    select = {name: expression for name, expression in _selected_columns(scan).items() if name in needed}
    narrow = _narrow(scan.columns, scan.where, select)
    fragments = Fragments(window.pane_ms, window.time, window.time_unit, group_by, split.partials)
    fragments = fragments.add_watermark(window.delay_ms, column(window.time).text)
    scan_with_fragments = replace(narrow, fragments=fragments)
    if any(field.type == UNKNOWN for field in scan_schema(scan_with_fragments, base[0].schema)):
        return None
    if isinstance(base[0], Source) and base[0].kind == "parquet" and not _suits(narrow, base[0]):
        return None
    reader: Node = PushedScan(f"fragments of {node.name}", base, scan_with_fragments)
    if lookup is not None:
        reader = replace(lookup, inputs=(reader,))
    return Assemble(node.name, (reader,), node, split)


def _suits(scan: Scan, files: Source) -> bool:
    """Return whether a scan reads at least one column, and Spark and partials support all their types."""
    kinds = [files.columns.field(name).type for name in scan.columns]
    return bool(kinds) and not any(
        pa.types.is_unsigned_integer(kind) or pa.types.is_float16(kind) for kind in kinds
    )


def _split_lookup(node: Node) -> tuple[StreamTableJoin | None, Node]:
    """Return the lookup above a node and the lookup's input; None and the node itself if there is no lookup.

    Only projections that compute no column may be between the lookup and the node.
    """
    below = node
    while isinstance(below, Select) and all(expression == column(name) for name, expression in below.columns):
        below = below.inputs[0]
    return (below, below.inputs[0]) if isinstance(below, StreamTableJoin) else (None, node)
