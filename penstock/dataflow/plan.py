"""Plan a graph: apply the push-up rules, place p-streams, and move operators into readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import pyarrow as pa

from penstock.dataflow.cost import Choice, choose
from penstock.dataflow.draw import draw, draw_html
from penstock.dataflow.explain import explain
from penstock.dataflow.extremes import keep_extremes
from penstock.dataflow.nodes import (
    Materialize,
    Node,
    PushedScan,
    Select,
    Source,
    Where,
    rebuild,
    topological,
)
from penstock.dataflow.place import fuse, is_pushable, place_p_stream, scan_of, stored_bytes
from penstock.dataflow.rules import merge, prune, push_where, split_conjunctions, to_fixed_point
from penstock.dataflow.statistics import Statistics, flows
from penstock.errors import InvalidUsageError
from penstock.operators.scan.spec import Scan

__all__ = ["Persist", "PhysicalPlan", "StreamPlan", "plan"]

PersistMode: TypeAlias = Literal["auto", "always", "never"]
Persist: TypeAlias = PersistMode | Mapping[str, PersistMode]

_MODES = get_args(PersistMode)


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """One p-stream of a plan.

    Parameters
    ----------
    name : str
        The p-stream's name, taken from its source or from the operator whose output it stores.
    schema : pyarrow.Schema
        The stored columns.
    above : Node
        The operator whose output the p-stream stores.
    source : Source or None
        The source, if one scan can make the p-stream's rows from the source's tuples. If None, a Spark query
        makes the rows.
    ingest : Scan or None
        The scan that makes the p-stream's rows from the source's tuples; None if `source` is None.
    readers : tuple of Scan
        The scans of the p-stream's readers, one for each operator that reads the p-stream.
    """

    name: str
    schema: pa.Schema
    above: Node
    source: Source | None
    ingest: Scan | None
    readers: tuple[Scan, ...]


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """A planned graph.

    Parameters
    ----------
    name : str
        The graph's name.
    logical : Node
        The graph as written.
    root : Node
        The graph that runs. Operators above a `Materialize` run before persistence, a `PushedScan` runs in a
        reader, and Spark runs all other operators.
    changes : tuple of pairs of str
        The changes that the rules made, in order. Each pair has the rule's name and a description.
    choices : tuple of Choice
        The persistence decision for every source.
    statistics : Statistics, optional
        The statistics used for planning.
    """

    name: str
    logical: Node
    root: Node
    changes: tuple[tuple[str, str], ...]
    choices: tuple[Choice, ...]
    statistics: Statistics | None

    def _repr_svg_(self) -> str:
        """Return the drawing for notebooks."""
        return draw(self)

    def _repr_html_(self) -> str:
        """Return the drawing, rules and decisions; notebooks show this HTML instead of `_repr_svg_`."""
        return draw_html(self)

    @property
    def streams(self) -> tuple[StreamPlan, ...]:
        """The plan's p-streams."""
        nodes = list(topological(self.root))
        plans = []
        for node in nodes:
            if isinstance(node, Materialize):
                readers = [
                    below.scan if isinstance(below, PushedScan) else Scan(tuple(node.schema.names))
                    for below in nodes
                    if any(input is node for input in below.inputs)
                ]
                source, ingest = scan_of(node.inputs[0])
                plans.append(
                    StreamPlan(node.name, node.schema, node.inputs[0], source, ingest, tuple(readers))
                )
        return tuple(plans)

    @property
    def remaining(self) -> tuple[Node, ...]:
        """The operators that Spark runs, inputs first."""
        inside: set[int] = set()
        for stream in self.streams:
            if stream.source is not None:
                inside |= {id(node) for node in topological(stream.above)}
        return tuple(
            node
            for node in topological(self.root)
            if id(node) not in inside and not isinstance(node, Source | Materialize | PushedScan)
        )

    def explain(self) -> str:
        """Return the plan as text."""
        return explain(self)


def plan(name: str, logical: Node, statistics: Statistics | None, persist: Persist) -> PhysicalPlan:
    """Apply the push-up rules to a graph and place its p-streams.

    Parameters
    ----------
    name : str
        The graph's name.
    logical : Node
        The graph as written.
    statistics : Statistics, optional
        Statistics from samples. Without them, sizes follow from column types and assumed selectivities.
    persist : str or mapping of str to str
        ``"always"`` persists all sources, and ``"never"`` persists no source. ``"auto"`` persists sources
        that cannot replay, and sources whose replay costs more than a p-stream. A mapping sets the mode by
        source name; sources that are not in the mapping are ``"auto"``. If the mapping has ``"always"`` for
        an operator that is not a source, the operator's output is persisted.

    Raises
    ------
    InvalidUsageError
        If a name in `persist` matches no operator or several operators, or a mode is unknown.
    """
    modes = _modes(logical, persist)
    root = _pin(logical, {name for name, mode in modes.items() if mode == "always"})
    root, changes = to_fixed_point(root, split_conjunctions, push_where)
    root, notes = prune(root)
    changes += [("prune", note) for note in notes]
    choices = tuple(
        _choice(root, node, modes[node.name], statistics)
        for node in topological(root)
        if isinstance(node, Source)
    )
    root, notes = place_p_stream(root, [choice.source for choice in choices if choice.persisted], statistics)
    changes += [("place_p_stream", note) for note in notes]
    root, merge_notes = to_fixed_point(root, merge)
    changes += merge_notes
    root, notes = keep_extremes(root)
    changes += [("keep_extremes", note) for note in notes]
    root, notes = fuse(root)
    changes += [("fuse", note) for note in notes]
    return PhysicalPlan(name, logical, root, tuple(changes), choices, statistics)


def _modes(root: Node, persist: Persist) -> dict[str, PersistMode]:
    """Return the mode of every source, and of other operators that `persist` names."""
    nodes = list(topological(root))
    sources = [node.name for node in nodes if isinstance(node, Source)]
    mode_by_name: Mapping[str, PersistMode] = (
        dict.fromkeys(sources, persist) if isinstance(persist, str) else persist
    )
    modes: dict[str, PersistMode] = dict.fromkeys(sources, "auto")
    names = [node.name for node in nodes]
    for name, mode in mode_by_name.items():
        if mode not in _MODES:
            raise InvalidUsageError("persist has an unknown value", got=mode, operator=name)
        if names.count(name) != 1:
            fact = "persist names no operator" if name not in names else "persist names several operators"
            raise InvalidUsageError(fact, operator=name, known=", ".join(dict.fromkeys(names)))
        modes[name] = mode
    return modes


def _pin(root: Node, names: set[str]) -> Node:
    """Add a p-stream after each operator with one of these names, except sources."""

    def change(node: Node) -> Node:
        is_pinned = node.name in names and not isinstance(node, Source)
        return Materialize(node.name, (node,)) if is_pinned else node

    return rebuild(root, change)


def _choice(root: Node, source: Source, mode: PersistMode, statistics: Statistics | None) -> Choice:
    if mode != "auto":
        # A pipeline without windows turns auto into never, so the reason must not quote the mode never.
        reason = "persist is always" if mode == "always" else "no p-stream is asked for"
        return Choice(source.name, mode == "always", reason)
    below = [node for node in topological(root) if any(input is source for input in node.inputs)]
    if _reaches_p_stream(root, source):
        return Choice(source.name, False, "a p-stream after a later operator holds its tuples")
    if not source.replayable or source.kind == "p-stream":
        return choose(source, 1, whole=0, needed=0, kept=0, stored=0)
    root_with_stream, _ = place_p_stream(root, [source.name], statistics)
    flow = flows(root_with_stream, statistics)
    stream = next(
        node
        for node in topological(root_with_stream)
        if isinstance(node, Materialize) and node.name == source.name
    )
    source_flow, stored_flow = flow[id(source)], flow[id(stream)]
    rows = source_flow.rows or 1.0
    needed = (
        [node.schema for node in below]
        if all(isinstance(node, Select) for node in below)
        else [source.schema]
    )
    share = sum(len(schema.names) for schema in needed) / len(needed) / len(source.schema.names)
    return choose(
        source,
        _readers(root, source),
        whole=source_flow.bytes,
        needed=source_flow.bytes * share,
        kept=(stored_flow.rows or 0.0) / rows * stored_flow.bytes,
        stored=stored_bytes(stored_flow, statistics) / rows,
    )


def _readers(root: Node, source: Source) -> int:
    """Return how many operators read a source's stream after its first selections and projections."""
    at: Node = source
    while True:
        below = [node for node in topological(root) if any(input is at for input in node.inputs)]
        if len(below) != 1 or not isinstance(below[0], Where | Select):
            return max(1, len(below))
        at = below[0]


def _reaches_p_stream(root: Node, source: Source) -> bool:
    """Return whether only pushable operators are between a source and the p-stream of another operator."""
    at: Node = source
    while True:
        below = [node for node in topological(root) if any(input is at for input in node.inputs)]
        if len(below) != 1:
            return False
        if isinstance(below[0], Materialize):
            return True
        if not is_pushable(below[0]):
            return False
        at = below[0]
