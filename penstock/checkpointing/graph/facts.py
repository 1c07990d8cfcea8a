"""Read facts from the checkpoint of a graph without Spark: its queries, p-streams and markers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.checkpointing.fields import Fields
from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.p_stream import PStream
from penstock.errors import InvalidUsageError

__all__ = ["GraphFacts", "Markers", "QueryFacts", "ReaderFacts", "StreamFacts", "facts_of"]


@dataclass(frozen=True, slots=True)
class Markers:
    """The number of markers of each kind, since the graph's first start.

    Parameters
    ----------
    retain : int
        The number of batches that the writers of the graph's p-streams have made durable.
    checkpoint : int
        The number of micro-batches that the query of the graph's results has committed.
    release : int
        The number of micro-batches of that query whose rows have been released by all its readers.
    """

    retain: int
    checkpoint: int
    release: int


@dataclass(frozen=True, slots=True)
class ReaderFacts:
    """One subscription of a graph to a p-stream.

    Parameters
    ----------
    name, query : str
        The names of the subscription and of the query that reads.
    released : int
        The number of the first row that the subscription has not released.
    committed : int
        The query has committed all rows before this row, from its first row on.
    lag : int
        The number of durable rows that are in no committed micro-batch yet.
    """

    name: str
    query: str
    released: int
    committed: int
    lag: int


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """One p-stream of a graph.

    Parameters
    ----------
    name, location : str
        The p-stream's name in the graph, and its location.
    own : bool
        Whether the graph writes the p-stream.
    start, end : int
        The first row that is kept, and the number of rows ever written.
    commits, size_bytes : int
        The number of commits and the number of bytes that are kept.
    retained : int
        The number of batches that the p-stream's writers have made durable.
    readers : tuple of ReaderFacts
        The graph's readers. Other readers may also be subscribed.
    """

    name: str
    location: str
    own: bool
    start: int
    end: int
    commits: int
    size_bytes: int
    retained: int
    readers: tuple[ReaderFacts, ...]


@dataclass(frozen=True, slots=True)
class QueryFacts:
    """One of the graph's queries. `planned` and `committed` are -1 if there is no such micro-batch."""

    name: str
    writes: str | None
    planned: int
    committed: int


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """The facts in a graph's checkpoint.

    Parameters
    ----------
    name, location : str
        The graph's name, and its checkpoint.
    queries : tuple of QueryFacts
        The queries in the order of the data flow; the last query writes the results.
    streams : tuple of StreamFacts
        The graph's p-streams.
    markers : Markers
        The counts of markers.
    recovery : mapping, optional
        The report of the newest restart.
    explanation : str
        The plan, as text.
    plan : mapping
        The plan, in the form of `penstock.dataflow.as_json`.
    """

    name: str
    location: str
    queries: tuple[QueryFacts, ...]
    streams: tuple[StreamFacts, ...]
    markers: Markers
    recovery: Mapping[str, Any] | None
    explanation: str
    plan: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return asdict(self)


def facts_of(directory: GraphDirectory) -> GraphFacts:
    """Read the facts in a graph's checkpoint. The graph may be running.

    Raises
    ------
    InvalidUsageError
        If there is no graph, or one of its p-streams does not exist.
    CorruptDataError
        If a file in the checkpoint is damaged.
    UnavailableError
        If the file system refuses.
    """
    document = directory.newest("graph")
    if document is None:
        raise InvalidUsageError(
            "this is not the checkpoint of a graph",
            checkpoint=directory.location,
            hint="pass the checkpoint that the graph was started with",
        )
    fields = Fields(document, directory.files.path_of("graph"))
    named = {entry.name("name"): entry for entry in fields.objects("queries")}
    if not named:
        raise fields.damage_error("queries", "one query or more")
    progress = {name: directory.progress(name) for name in named}
    queries = tuple(
        QueryFacts(name, entry.text_or_none("writes"), progress[name].planned, progress[name].committed)
        for name, entry in named.items()
    )
    streams: list[StreamFacts] = []
    released: list[int] = []
    for entry in fields.objects("streams"):
        stream = PStream(entry.text("location"))
        done = stream.readers()
        readers: list[ReaderFacts] = []
        for each in entry.objects("readers"):
            name, query = each.text("name"), each.text("query")
            if query not in progress:
                raise each.damage_error("query", "the name of a query")
            first = done.get(name, 0)
            committed = max(progress[query].rows.get(stream.identity, 0), first)
            readers.append(ReaderFacts(name, query, first, committed, stream.end - committed))
            if query == queries[-1].name:
                released.append(directory.count_released_batches(query, stream.identity, first))
        commits = stream.log.commits
        streams.append(
            StreamFacts(
                entry.text("name"),
                entry.text("location"),
                entry.flag("own"),
                stream.start,
                stream.end,
                len(commits),
                sum(commit.size_bytes for commit in commits),
                sum(state.batch + 1 for state in stream.log.writers.values()),
                tuple(readers),
            )
        )
    return GraphFacts(
        fields.text("name"),
        directory.location,
        queries,
        tuple(streams),
        Markers(
            retain=sum(stream.retained for stream in streams),
            checkpoint=queries[-1].committed + 1,
            release=min(released, default=0),
        ),
        directory.newest("recovery"),
        fields.text("explanation"),
        fields.plain("plan"),
    )
