"""Parts of a graph's checkpoint that both engines write: directory names, readers, the graph's document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.p_stream import PStream
from penstock.dataflow.explain import as_json, explain
from penstock.dataflow.nodes import Materialize, Node, Source, topological
from penstock.dataflow.plan import PhysicalPlan
from penstock.dataflow.shape import shape
from penstock.errors import InvalidUsageError

__all__ = [
    "Reading",
    "check_readers_are_free",
    "check_same_graph",
    "check_same_shape",
    "directory_names",
    "find_graph",
    "graph_document",
    "safe_name",
    "written_sources",
]

_DESTINATION: Final = re.compile(r', (?:bad records|late rows) to [^"]*')
"""The p-stream of an operator's bad records or late rows, which may be another one after every start."""
_SAME_COLUMNS: Final = "use the same columns after the operator as before (in a select or results.projection)"


@dataclass(frozen=True, slots=True)
class Reading:
    """One subscription of a graph to a p-stream.

    Parameters
    ----------
    stream : str
        The p-stream's name in the graph.
    location : str
        The p-stream's location.
    reader : str
        The name with which the graph subscribes to the p-stream.
    """

    stream: str
    location: str
    reader: str


def find_graph(directory: GraphDirectory) -> dict[str, Any] | None:
    """Return the document of a checkpoint's graph; None for a new checkpoint.

    Raises
    ------
    InvalidUsageError
        If the checkpoint belongs to a single query.
    """
    found = directory.newest("graph")
    if found is None and any(facts.name in ("metadata", "offsets") for facts in directory.files.list()):
        raise InvalidUsageError(
            "the checkpoint belongs to a single query, not to a graph",
            hint="start with a new checkpoint",
            checkpoint=directory.location,
        )
    return found


def check_same_graph(
    plan: PhysicalPlan, old: Mapping[str, Any], directory: GraphDirectory, shown: Node | None = None
) -> None:
    """Check that a checkpoint belongs to a plan; `shown` is the graph as its user wrote it, if it differs.

    Raises
    ------
    InvalidUsageError
        If the checkpoint belongs to another graph or plan.
    """
    written = written_sources(old, shown or plan.logical)
    check_same_shape(shape(plan), old["shape"], directory, written)


def written_sources(old: Mapping[str, Any], root: Node) -> tuple[dict[str, str], dict[str, str]]:
    """Return what sources do, by name, as users wrote it: in a checkpoint's document and in a graph."""
    before = old.get("plan", {}).get("as_written", ())
    return (
        {node["name"]: node["does"] for node in before if node["kind"] == Source.label},
        {node.name: node.describe() for node in topological(root) if isinstance(node, Source)},
    )


def check_same_shape(
    new: Sequence[str],
    old: Sequence[str],
    directory: GraphDirectory,
    written: tuple[Mapping[str, str], Mapping[str, str]],
) -> None:
    """Check that the shapes of a plan and of a checkpoint are the same.

    Parameters
    ----------
    new, old : sequence of str
        The shapes.
    directory : GraphDirectory
        The checkpoint.
    written : tuple of mapping
        The result of `written_sources`.

    Raises
    ------
    InvalidUsageError
        If the shapes differ. If only the columns of an operator differ, the error's context names the
        operator as ``operator``.
    """
    new, old = ([_DESTINATION.sub("", line) for line in lines] for lines in (new, old))
    if new == old:
        return
    pairs = zip_longest(old, new, fillvalue="nothing")
    was, now = next((before, other) for before, other in pairs if before != other)
    if (error := _columns_error(was, now)) is not None:
        raise error
    differ = _description(was, written[0]), _description(now, written[1])
    if differ[0] != differ[1]:
        was, now = differ
    raise InvalidUsageError(
        "the checkpoint belongs to another graph, or to another plan of this graph",
        hint="undo the change of the graph, the engine, the statistics or persist, or set another "
        "checkpoint; only the sink, and operators without state after the last p-stream, may change",
        checkpoint=directory.location,
        was=was,
        now=now,
    )


def _description(operator: str, written: Mapping[str, str]) -> str:
    """Return the kind, name and description of an operator from its line in a plan's shape.

    The local engine plans the sources of windows as ``parquet``, because its own readers aggregate. `written`
    has their real kinds.
    """
    if operator == "nothing":
        return operator
    line = json.loads(operator)
    if line["kind"] == Source.label:
        real = _DESTINATION.sub("", written.get(line["name"], line["does"]))
        reader = ", read by Penstock" if "(parquet," in line["does"] else ""
        return f"{'' if line['name'] == Source.label else 'source '}{real}{reader}"
    # An operator without a name of its own is called like its kind.
    return ", ".join(dict.fromkeys(str(line[part]) for part in ("kind", "name", "does") if part in line))


def _columns_error(was: str, now: str) -> InvalidUsageError | None:
    """Return the error for an operator that differs only in its columns; None for other differences."""
    if "nothing" in (was, now):
        return None
    old, new = json.loads(was), json.loads(now)
    before, after = old.pop("columns", None), new.pop("columns", None)
    if old != new or before is None or after is None:
        return None
    types = {name: (before[name], after[name]) for name in after if name in before}
    changed = ", ".join(f"{name} was {type}, is {now}" for name, (type, now) in types.items() if type != now)
    fact, hint = "an operator would keep other columns than in its checkpoint", _SAME_COLUMNS
    if new["kind"] == "source":
        fact, hint = "a source has other columns than in its checkpoint", "set the old columns back"
    return InvalidUsageError(
        fact,
        hint=f"{hint}, or start with a new checkpoint",
        operator=new["name"],
        more=", ".join(name for name in after if name not in before) or "none",
        fewer=", ".join(name for name in before if name not in after) or "none",
        **({"changed": changed} if changed else {}),
    )


def check_readers_are_free(readings: Iterable[Reading], writers: Mapping[str, str]) -> None:
    """Refuse a reader's name that another checkpoint may use: both graphs would release the same rows."""
    for reading in readings:
        if reading.location not in writers and reading.reader in PStream(reading.location).log.readers:
            raise InvalidUsageError(
                "another reader with the graph's name is already subscribed to the p-stream",
                hint="give the graph another name (in a pipeline, query.name). If that reader is gone for "
                f"good, run penstock gc {reading.location} --drop-reader {reading.reader}, which also "
                "deletes the rows that only this reader has kept",
                p_stream=reading.location,
                reader=reading.reader,
            )


def directory_names(results: Node) -> dict[str, str]:
    """Return the directory name of each p-stream that a graph writes, by the p-stream's name."""
    names: dict[str, str] = {}
    for node in topological(results):
        if isinstance(node, Materialize):
            plain = safe_name(node.name)
            used = set(names.values())
            names[node.name] = plain if plain not in used else f"{plain}-{len(names)}"
    return names


def safe_name(name: str) -> str:
    """Return a name that is valid for a directory and a reader."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:80]
    return safe if safe[0] not in ".-" else f"_{safe}"


def graph_document(
    plan: PhysicalPlan,
    readings: Mapping[str, Sequence[Reading]],
    writers: Mapping[str, str],
    shown: PhysicalPlan | None = None,
) -> dict[str, Any]:
    """Return the document of a graph: its shape, its plan, its queries and its p-streams.

    If `shown` is given and has the same p-streams, people see it instead of `plan`.
    """
    if shown is None or [one.name for one in shown.streams] != [one.name for one in plan.streams]:
        shown = plan
    streams: dict[str, dict[str, Any]] = {}
    for query, subscriptions in readings.items():
        for reading in subscriptions:
            entry = {
                "name": reading.stream,
                "location": reading.location,
                "own": reading.location in writers,
                "readers": [],
            }
            streams.setdefault(reading.location, entry)["readers"].append(
                {"name": reading.reader, "query": query}
            )
    locations = {query: location for location, query in writers.items()}
    return {
        "name": plan.name,
        "shape": shape(plan),
        "queries": [{"name": query, "writes": locations.get(query)} for query in readings],
        "streams": list(streams.values()),
        "explanation": explain(shown),
        "plan": as_json(shown),
    }
