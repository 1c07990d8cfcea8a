"""Replay a trace of the runtime through the model of the protocol, step by step.

Each query of a graph is a recovery unit of the model: sources (the p-streams that it reads, or one source of
a row for each micro-batch), one operator, and one sink. A micro-batch is a query task over the rows that
Spark's offset log names, and then a checkpoint. The trace (`penstock.checkpointing.trace`) says what the
runtime did; the model says whether that was allowed:

==================  ==============================================================================
event               the model
==================  ==============================================================================
``commit``          of a source's stream: `receive`, and `PersistTask`; of the sink's: `QueryTask`, and
                    `CommitTask`. Its segments are durable, its rows follow what is there
``planned``         delivers the p-units to the operator: they are durable, and follow the last batch
``checkpointed``    a part of the next checkpoint, whose files are there
a later batch       proves that Spark has committed: markers, `CheckpointTask`, `CompleteTask`
``release``         the release marker has come that far
``trim``            `TrimTask`: all readers have released
``deleted``         no checkpoint that a recovery may ask for has the file
``recovered``       `Recovery`: the operator goes on where the runtime's query does
``found``           a part of the checkpoint that the recovery loads
==================  ==============================================================================

Whether a ``commit`` that was under way when its process was killed took effect is learnt from what follows.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tests.models.protocol import (
    FTOperator,
    OperatorSpec,
    PersistentOperatorGraph,
    Recovery,
    Restart,
    SinkSpec,
    SourceSpec,
    Topology,
)
from tests.models.protocol.tasks import (
    CheckpointTask,
    CommitTask,
    CompleteTask,
    DropTask,
    QueryTask,
    Task,
    TrimTask,
)
from tests.models.world import MemoryStorage

__all__ = ["NotAllowedError", "Replay", "replay", "trace_in"]

_OPERATOR, _SINK, _BATCHES = "operator", "sink", "batches"

Event = Mapping[str, Any]


class NotAllowedError(AssertionError):
    """The model does not allow a step of the runtime."""


def require(allowed: object, why: str, **facts: object) -> None:
    """Refuse a step that the model does not allow."""
    if not allowed:
        raise NotAllowedError(f"{why} {facts}")


def trace_in(file: Path) -> list[Event]:
    """Return the events in a file; the last line may be cut by a kill."""
    events: list[Event] = []
    for line in file.read_text().splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            require(line == file.read_text().splitlines()[-1], "a line of the trace is damaged", line=line)
    return events


def replay(events: Iterable[Event]) -> Replay:
    """Replay a whole trace.

    Raises
    ------
    NotAllowedError
        If the model does not allow a step.
    PenstockError
        If the model finds that a recovery is not possible any more.
    """
    made = Replay()
    for event in events:
        made.step(event)
    return made


class PlannedOperator(FTOperator):
    """An operator whose micro-batches an offset log has planned: no tuple waits for other inputs."""

    def _restart(self, restart: Restart) -> None:
        super()._restart(restart)
        self.ends = dict(self.consumed)

    def _next(self) -> str | None:
        return next((s for s, end in self.ends.items() if self.consumed[s] < end and self.queues[s]), None)


@dataclass
class Results:
    """The function of a query: the rows that each micro-batch gave, with the last row that it read."""

    sources: list[str]
    initial: Any = ()
    made: dict[int, int] = field(default_factory=dict)
    batch: int = 0
    left: int = 0

    def time(self, row: Any) -> int:
        return 0

    def apply(self, state: Any, stream: str, offset: int, row: Any) -> tuple[Any, list[Any]]:
        self.left -= 1
        return state, [] if self.left else [None] * self.made.get(self.batch, 0)

    def needed(self, state: Any) -> dict[str, int]:
        """Depend on all rows, so that only checkpoints release."""
        return dict.fromkeys(self.sources, 0)


class Query:
    """One query of a graph, and its model."""

    def __init__(self, name: str, facts: Event, let_out: Callable[[Query], None]) -> None:
        self.name = name
        self.let_out = let_out
        self.reads = {f"{reader} of {location}": location for location, reader in facts["reads"]}
        self.writes: str | None = facts["writes"]
        self.state: str | None = facts["state"]
        self.sources = list(self.reads) or [_BATCHES]
        self.function = Results(self.sources)
        self.topology = Topology(
            [SourceSpec(one, replayable=one == _BATCHES, retained=True) for one in self.sources],
            [OperatorSpec(_OPERATOR, self.sources, self.function, stateful=True, fault_tolerant=True)],
            [SinkSpec(_SINK, _OPERATOR)],
        )
        self.storage = MemoryStorage()
        self.committed = -1
        self.planned: dict[str, int] = {}
        self.batch_runs = self.queried = False
        self.plans: dict[int, dict[str, int]] = {}
        self.released = dict.fromkeys(self.sources, 0)
        self.versions: dict[str, list[tuple[int, list[str]]]] = defaultdict(list)
        self.gone: set[tuple[str, str]] = set()
        self.recover()

    @property
    def operator(self) -> PlannedOperator:
        operator = self.graph.operators[_OPERATOR]
        assert isinstance(operator, PlannedOperator)
        return operator

    @property
    def batch(self) -> int:
        """The micro-batch that runs."""
        return self.committed + 1

    def recover(self) -> None:
        """Crash, and recover from what is durable."""
        ticks = count()
        recovery = Recovery(self.topology, self.storage, lambda: next(ticks), PlannedOperator)
        recovery.progress_recovery()
        recovery.upstream_requesting()
        for name in recovery.loads:
            recovery.load(name)
        self.graph: PersistentOperatorGraph
        self.graph, tasks, _ = recovery.upstream_replay()
        self.planned, self.batch_runs, self.queried = {}, False, False
        self.run(tasks)

    def run(self, tasks: Iterable[Task]) -> None:
        """Do tasks; tasks of a release wait until the runtime does them."""
        waiting = list(tasks)
        while waiting:
            task = waiting.pop(0)
            match task:
                case QueryTask():
                    continue  # a micro-batch asks for it
                case TrimTask(stream, offset) if stream in self.sources:
                    self.released[stream] = max(self.released[stream], offset)
                    continue
            task.run(self.storage)
            waiting += self.graph.completed(task)
            if isinstance(task, DropTask | CompleteTask | CommitTask):
                waiting += self.pass_up()

    def pass_up(self) -> list[Task]:
        """Deliver release markers, in reverse topological order."""
        tasks: list[Task] = []
        for edge in ((_OPERATOR, _SINK), *((source, _OPERATOR) for source in self.sources)):
            while self.graph._up[edge]:
                tasks += self.graph.deliver(*edge)
        return tasks

    # ------------------------------------------------------------------------------------ micro-batches

    def received(self, source: str, end: int) -> None:
        """Take rows that are durable, up to `end`."""
        at = self.graph.streams[source].end
        if end > at:
            self.run(self.graph.receive(source, at, [None] * (end - at)))

    def plan(self, source: str, start: int, end: int) -> None:
        """Take the rows of a micro-batch, whose plan proves that the batch before is committed."""
        known = self.planned.get(source)
        consumed = self.operator.consumed[source]
        if known is not None and (start, end) == (consumed, known):
            return  # Spark asks again
        if self.batch_runs or known is not None:
            self.commit_batch()
            consumed = self.operator.consumed[source]
        require(start == consumed, "a batch does not follow the last one", at=consumed, start=start)
        before = self.plans.get(self.batch, {}).get(source, end)
        require(before == end, "a batch has other rows when it runs again", was=before, now=end)
        while self.operator.received[source] < end:
            edge = source, _OPERATOR
            require(edge in self.graph.ready(), "rows are read that are not durable", start=start, end=end)
            self.run(self.graph.deliver(*edge))
        self.planned[source] = end
        self.plans.setdefault(self.batch, {})[source] = end

    def query(self, results: int | None = None) -> None:
        """Work through the rows of the micro-batch, which give so many results."""
        if self.queried:
            return
        if self.sources == [_BATCHES]:
            self.received(_BATCHES, self.batch + 1)
            while (_BATCHES, _OPERATOR) in self.graph.ready():
                self.graph.deliver(_BATCHES, _OPERATOR)
            self.planned[_BATCHES] = self.batch + 1
        self.function.batch = self.batch
        if results is not None:
            self.function.made.setdefault(self.batch, results)
        self.function.left = sum(end - self.operator.consumed[s] for s, end in self.planned.items())
        made = self.function.made.get(self.batch, 0)
        self.operator.ends = dict(self.planned)
        if made and not self.function.left:
            # Rows of earlier batches came out: the model has no tuple that gives them.
            self.extra(made)
        self.run(self.operator_ran())
        self.queried = True

    def operator_ran(self) -> list[Task]:
        self.operator.queried = True
        return self.graph.completed(QueryTask(_OPERATOR))

    def extra(self, rows: int) -> None:
        """Write results of a micro-batch without rows."""
        operator = self.operator
        operator.offset += rows
        self.run(operator.stream.write(operator.set_dependencies([None] * rows)))

    def emitted(self, batch: int, offset: int, rows: int) -> None:
        """Let results out."""
        self.commit_before(batch)
        self.batch_runs = True
        out = len(self.storage.output.get(_SINK, ()))
        require(out == offset, "results come twice, or some are missing", out=out, offset=offset)
        self.query(rows)
        while (_OPERATOR, _SINK) in self.graph.ready():
            self.run(self.graph.deliver(_OPERATOR, _SINK))
        out = len(self.storage.output.get(_SINK, ()))
        require(out == offset + rows, "results come twice, or some are missing", out=out, end=offset + rows)

    def commit_before(self, batch: int) -> None:
        """Take the proof that Spark has committed all micro-batches before one."""
        require(batch >= self.committed, "a batch runs that is committed", batch=batch, newest=self.committed)
        while self.committed < batch - 1:
            self.commit_batch()

    def commit_batch(self) -> None:
        """Complete the checkpoint that a micro-batch is, whose results are out by then."""
        self.let_out(self)
        self.query()
        while (_OPERATOR, _SINK) in self.graph.ready():
            self.run(self.graph.deliver(_OPERATOR, _SINK))
        self.graph.begin_checkpoint()
        tasks = self.graph.insert_checkpoint_marker(_OPERATOR)
        assert all(isinstance(task, CheckpointTask) for task in tasks)
        self.run(tasks)
        assert self.graph.checkpoint is None, "it is complete"
        self.committed += 1
        self.planned, self.batch_runs, self.queried = {}, False, False

    # ------------------------------------------------------------------------------------------- state

    def chains(self, location: str) -> list[list[str]]:
        """Return the chains of a bucket that the next recovery may load, or the one after it."""
        versions = self.versions[location]
        newest = max((batch for batch, _ in versions if batch <= self.committed), default=-1)
        return [chain for batch, chain in versions if batch >= newest]

    def checkpointed(self, location: str, batch: int, chain: list[str]) -> None:
        self.commit_before(batch)
        self.batch_runs = True
        lost = [name for name in chain if (location, name) in self.gone]
        require(not lost, "a checkpoint has files that are deleted", location=location, files=lost)
        self.versions[location].append((batch, chain))

    def arrived(self, location: str, batch: int, file: str | None) -> None:
        self.commit_before(batch)
        self.batch_runs = True
        self.found(location, file)

    def found(self, location: str, file: str | None) -> None:
        """Take the newest file of a bucket by its committed pointer."""
        newest = max((batch for batch, _ in self.versions[location] if batch <= self.committed), default=-1)
        known = [chain[-1] for batch, chain in self.versions[location] if batch == newest]
        require(
            file in known if known else file is None,
            "a pointer is not of the newest checkpoint",
            location=location, file=file, known=known,
        )  # fmt: skip

    def deleted(self, location: str, file: str) -> None:
        needed = [chain for chain in self.chains(location) if file in chain]
        require(not needed, "a file is deleted that a recovery needs", location=location, file=file)
        self.gone.add((location, file))


class Replay:
    """All queries of one graph, and the p-streams between them."""

    def __init__(self) -> None:
        self.queries: dict[str, Query] = {}
        self.persisted: set[str] = set()
        self.ends: dict[str, int] = defaultdict(int)
        self.starts: dict[str, int] = defaultdict(int)
        self.released: dict[tuple[str, str], int] = defaultdict(int)
        self.pending: dict[str, list[Event]] = defaultdict(list)
        self.counts: dict[str, int] = defaultdict(int)

    def step(self, event: Event) -> None:
        """Take one event.

        Raises
        ------
        NotAllowedError
            If the model does not allow it.
        """
        facts = {name: value for name, value in event.items() if name != "event"}
        self.counts[event["event"]] += 1
        try:
            getattr(self, f"_on_{event['event']}")(**facts)
        except NotAllowedError as error:
            raise NotAllowedError(f"{error} at {dict(event)}") from None

    def _on_graph(self, graph: str, queries: Mapping[str, Event]) -> None:
        for name, facts in queries.items():
            if name not in self.queries:
                query = self.queries[name] = Query(name, facts, self._let_out)
                for source, location in query.reads.items():
                    query.received(source, self.ends[location])

    def _reads(self, stream: str) -> list[tuple[Query, str]]:
        return [
            (query, source)
            for query in self.queries.values()
            for source, location in query.reads.items()
            if location == stream
        ]

    def _of_state(self, location: str) -> Query:
        name = location.split("/")[-2]
        return next(query for query in self.queries.values() if query.state == name)

    # ------------------------------------------------------------------------------------- p-streams

    def _on_persisted(self, segment: str) -> None:
        self.persisted.add(segment)

    def _on_commit(self, log: str, number: int, **facts: Any) -> None:
        stream = log.removesuffix("/log")
        if facts["offset"] > self.ends[stream]:
            self._resolve(stream, facts["offset"])
        self.pending[stream].append({"number": number, **facts})

    def _on_committed(self, log: str, **entry: Any) -> None:
        stream = log.removesuffix("/log")
        for one in [one for one in self.pending[stream] if entry.items() <= one.items()][-1:]:
            self._commit(stream, one)

    def _resolve(self, stream: str, end: int) -> None:
        """Take commits that were under way, since rows up to `end` are there."""
        while self.ends[stream] < end:
            follows = [one for one in self.pending[stream] if one["offset"] == self.ends[stream] < one["end"]]
            require(follows, "rows are there that nobody committed", stream=stream, end=end)
            self._commit(stream, follows[-1])

    def _let_out(self, query: Query) -> None:
        """Take the commit of a query's results that was under way, for Spark has committed the batch."""
        for one in self.pending.get(query.writes or "", [])[-1:]:
            if one["batch"] == query.batch and one["offset"] == self.ends[query.writes or ""]:
                self._resolve(query.writes or "", one["end"])

    def _commit(self, stream: str, facts: Event) -> None:
        # A commit takes the place of those under its number whose process was killed before the effect.
        self.pending[stream] = [one for one in self.pending[stream] if one["number"] > facts["number"]]
        lost = [name for name in facts["segments"] if name not in self.persisted]
        require(not lost, "a commit is made before its segments are durable", stream=stream, segments=lost)
        if facts["end"] == facts["offset"]:
            return
        end = self.ends[stream]
        require(facts["offset"] == end, "a commit does not follow the last", end=end, offset=facts["offset"])
        self.ends[stream] = facts["end"]
        writers = [query for query in self.queries.values() if query.writes == stream]
        readers = self._reads(stream)
        if not writers and not readers:
            writers = [query for query in self.queries.values() if query.writes is None]
        for query in writers:
            query.writes = stream
            query.emitted(facts["batch"], facts["offset"], facts["end"] - facts["offset"])
        for query, source in readers:
            query.received(source, facts["end"])

    def _on_release(self, stream: str, reader: str, offset: int) -> None:
        for query, source in self._reads(stream):
            if source == f"{reader} of {stream}":
                bound = query.released[source]
                require(offset <= bound, "rows are released before a checkpoint", offset=offset, needed=bound)
        self.released[stream, reader] = max(self.released[stream, reader], offset)

    def _on_trim(self, log: str, number: int, start: int) -> None:
        stream = log.removesuffix("/log")
        for query, source in self._reads(stream):
            bound = self.released[stream, source.removesuffix(f" of {stream}")]
            require(start <= bound, "rows are trimmed before they are released", start=start, released=bound)
            TrimTask(source, start).run(query.storage)
        self.starts[stream] = max(self.starts[stream], start)

    # ------------------------------------------------------------------------------------- queries

    def _on_planned(self, stream: str, reader: str | None, start: int, end: int) -> None:
        for query, source in self._reads(stream):
            if source == f"{reader} of {stream}":
                self._resolve(stream, end)
                query.plan(source, start, end)

    def _on_done(self, stream: str, reader: str | None, end: int) -> None:
        for query, source in self._reads(stream):
            if source == f"{reader} of {stream}" and query.planned.get(source) == end:
                query.commit_batch()

    def _on_arrived(self, location: str, batch: int, file: str | None) -> None:
        self._of_state(location).arrived(location, batch, file)

    def _on_checkpointed(self, location: str, batch: int, chain: list[str]) -> None:
        self._of_state(location).checkpointed(location, batch, chain)

    def _on_deleted(self, location: str, file: str) -> None:
        self._of_state(location).deleted(location, file)

    def _on_found(self, location: str, file: str) -> None:
        self._of_state(location).found(location, file)

    def _on_recovered(self, graph: str, queries: Mapping[str, Event], streams: Mapping[str, Event]) -> None:
        for location, found in streams.items():
            self._resolve(location, found["end"])
        for name, found in queries.items():
            query = self.queries[name]
            query.commit_before(found["committed"] + 1)
            require(
                query.committed == found["committed"], "a recovery does not start from the newest checkpoint",
                query=name, checkpoint=query.committed, committed=found["committed"],
            )  # fmt: skip
            query.recover()
            for source, location in query.reads.items():
                query.received(source, self.ends[location])
                at = streams[location]
                rows = found["rows"].get(at["identity"])
                goes_on = query.operator.received[source]
                needed = query.operator.consumed[source]
                require(
                    rows is None or rows == needed <= goes_on, "a recovery starts at other rows",
                    query=name, rows=rows, model=needed,
                )  # fmt: skip
                require(
                    at["start"] <= needed,
                    "rows are gone that a recovery needs",
                    start=at["start"],
                    needed=needed,
                )
