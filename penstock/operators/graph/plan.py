"""From the graph that was written to the one that runs: rules, p-streams, readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.operators.graph.cost import Choice, choose
from penstock.operators.graph.extremes import keep_extremes
from penstock.operators.graph.nodes import (
    Materialize,
    Node,
    PushedScan,
    Select,
    Source,
    Where,
    rebuild,
    topological,
)
from penstock.operators.graph.place import fuse, place_p_stream, pushable, scan_of, stored_bytes
from penstock.operators.graph.rules import merge, prune, push_where, split_conjunctions, to_fixed_point
from penstock.operators.graph.statistics import Statistics, flows
from penstock.operators.scan.spec import Scan

if TYPE_CHECKING:
    from penstock.operators.graph.builder import Graph

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
        The p-stream's name: that of its source, or of the operator whose output it is.
    schema : pyarrow.Schema
        What it stores.
    above : Node
        What is persisted: the graph that ends before it.
    source : Source or None
        Its source, if nothing but an ingest scan is between; else another query of Spark writes it.
    ingest : Scan or None
        What is done with the source's tuples before they are persisted, by whoever appends them.
    readers : tuple of Scan
        What its readers do, one for each operator that reads it.
    """

    name: str
    schema: pa.Schema
    above: Node
    source: Source | None
    ingest: Scan | None
    readers: tuple[Scan, ...]


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """A graph after the rules.

    Parameters
    ----------
    name : str
        The graph's name.
    logical : Node
        The graph as it was written.
    root : Node
        The graph that runs. What is above a `Materialize` runs before persistence; a `PushedScan` runs in a
        reader; the rest is Spark's.
    changes : tuple of pairs of str
        What the rules did, in order: the rule's name and a line.
    choices : tuple of Choice
        Of every source, whether it is persisted, and why.
    statistics : Statistics, optional
        What it was planned with.
    """

    name: str
    logical: Node
    root: Node
    changes: tuple[tuple[str, str], ...]
    choices: tuple[Choice, ...]
    statistics: Statistics | None

    def _repr_svg_(self) -> str:
        """Return the drawing that a notebook shows."""
        from penstock.operators.graph.draw import draw

        return draw(self)

    @property
    def streams(self) -> tuple[StreamPlan, ...]:
        """Its p-streams."""
        nodes = list(topological(self.root))
        found = []
        for node in nodes:
            if isinstance(node, Materialize):
                readers = [
                    below.scan if isinstance(below, PushedScan) else Scan(tuple(node.schema.names))
                    for below in nodes
                    if any(input is node for input in below.inputs)
                ]
                source, ingest = scan_of(node.inputs[0])
                found.append(
                    StreamPlan(node.name, node.schema, node.inputs[0], source, ingest, tuple(readers))
                )
        return tuple(found)

    @property
    def remaining(self) -> tuple[Node, ...]:
        """The operators that are left for Spark, inputs first."""
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
        """Return it as text."""
        from penstock.operators.graph.explain import explain

        return explain(self)


def plan(graph: Graph, statistics: Statistics | None = None, persist: Persist = "auto") -> PhysicalPlan:
    """Apply the push-up rules to a graph and place its p-streams.

    Parameters
    ----------
    graph : Graph
        What was written.
    statistics : Statistics, optional
        Of samples; without, types and assumed selectivities tell.
    persist : str or mapping of str to str
        ``"always"`` or ``"never"``: whether sources are persisted. ``"auto"``: those that cannot be read
        again, and those of which that costs more than a p-stream. A mapping says it by the names of sources,
        where others are ``"auto"``; ``"always"`` for another operator persists its output where it is.

    Raises
    ------
    InvalidUsageError
        If a name in `persist` is of no operator or of several, or there is no such choice.
    """
    modes = _modes(graph.root, persist)
    root = _pinned(graph.root, {name for name, mode in modes.items() if mode == "always"})
    root, changes = to_fixed_point(root, split_conjunctions, push_where)
    root, notes = prune(root)
    changes += [("prune", note) for note in notes]
    choices = tuple(
        _choice(root, node, modes[node.name], statistics)
        for node in topological(root)
        if isinstance(node, Source)
    )
    root, notes = place_p_stream(root, [one.source for one in choices if one.persisted], statistics)
    changes += [("place_p_stream", note) for note in notes]
    root, merged = to_fixed_point(root, merge)
    changes += merged
    root, notes = keep_extremes(root)
    changes += [("keep_extremes", note) for note in notes]
    root, notes = fuse(root)
    changes += [("fuse", note) for note in notes]
    return PhysicalPlan(graph.name, graph.root, root, tuple(changes), choices, statistics)


def _modes(root: Node, persist: Persist) -> dict[str, PersistMode]:
    """Return what is to be done by the names of sources, and of other operators that have p-streams."""
    nodes = list(topological(root))
    sources = [node.name for node in nodes if isinstance(node, Source)]
    given: Mapping[str, PersistMode] = (
        dict.fromkeys(sources, persist) if isinstance(persist, str) else persist
    )
    modes: dict[str, PersistMode] = dict.fromkeys(sources, "auto")
    names = [node.name for node in nodes]
    for name, mode in given.items():
        if mode not in _MODES:
            raise InvalidUsageError("persist is auto, always or never", got=mode, operator=name)
        if names.count(name) != 1:
            fact = "persist names no operator" if name not in names else "persist names several operators"
            raise InvalidUsageError(fact, operator=name, known=", ".join(dict.fromkeys(names)))
        modes[name] = mode
    return modes


def _pinned(root: Node, names: set[str]) -> Node:
    """Return the graph with a p-stream behind each operator of these names that is no source."""

    def change(node: Node) -> Node:
        pinned = node.name in names and not isinstance(node, Source)
        return Materialize(node.name, (node,)) if pinned else node

    return rebuild(root, change)


def _choice(root: Node, source: Source, mode: PersistMode, statistics: Statistics | None) -> Choice:
    if mode != "auto":
        return Choice(source.name, mode == "always", f"persist is {mode}")
    below = [node for node in topological(root) if any(input is source for input in node.inputs)]
    if _reaches_p_stream(root, source):
        return Choice(source.name, False, "what is made of it is persisted")
    if not source.replayable or source.kind == "p-stream":
        return choose(source, 1, whole=0, needed=0, kept=0, stored=0)
    placed, _ = place_p_stream(root, [source.name], statistics)
    flow = flows(placed, statistics)
    stream = next(
        node for node in topological(placed) if isinstance(node, Materialize) and node.name == source.name
    )
    whole, kept = flow[id(source)], flow[id(stream)]
    rows = whole.rows or 1.0
    needed = (
        [node.schema for node in below]
        if all(isinstance(node, Select) for node in below)
        else [source.schema]
    )
    share = sum(len(schema.names) for schema in needed) / len(needed) / len(source.schema.names)
    return choose(
        source,
        _readers(root, source),
        whole=whole.bytes,
        needed=whole.bytes * share,
        kept=(kept.rows or 0.0) / rows * kept.bytes,
        stored=stored_bytes(kept, statistics) / rows,
    )


def _readers(root: Node, source: Source) -> int:
    """Return how many streams part where first more than one operator reads what comes of a source."""
    at: Node = source
    while True:
        below = [node for node in topological(root) if any(input is at for input in node.inputs)]
        if len(below) != 1 or not isinstance(below[0], Where | Select):
            return max(1, len(below))
        at = below[0]


def _reaches_p_stream(root: Node, source: Source) -> bool:
    """Whether a p-stream of another operator has all that comes of a source, before it is reduced further."""
    at: Node = source
    while True:
        below = [node for node in topological(root) if any(input is at for input in node.inputs)]
        if len(below) != 1:
            return False
        if isinstance(below[0], Materialize):
            return True
        if not pushable(below[0]):
            return False
        at = below[0]
