"""The persistent operator graph while it runs: channels, sinks, checkpoints and release."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.errors import InvalidUsageError
from tests.models.protocol.collect import Checkpoint, Facts, requests
from tests.models.protocol.lineage import StreamUnit, consumed, needed
from tests.models.protocol.markers import CheckpointMarker, Marker, ReleaseMarker, RetainMarker
from tests.models.protocol.operator import FTOperator, Restart, Send
from tests.models.protocol.p_stream import PStream
from tests.models.protocol.tasks import (
    AckTask,
    CheckpointTask,
    CommitTask,
    CompleteTask,
    DropTask,
    PersistTask,
    QueryTask,
    Task,
)
from tests.models.protocol.topology import Topology
from tests.models.protocol.vector_clock import VectorClock

__all__ = ["PersistentOperatorGraph"]

Edge = tuple[str, str]
"""A stream and one of its readers."""


class PersistentOperatorGraph:
    """All operators of one recovery unit, their channels, and their coordination.

    It does nothing by itself. Its driver calls, in any order: `receive` when a source sends; `deliver` for an
    edge of `ready`, which moves one marker or one p-unit; `completed` for a task whose effect is durable; the
    two ``insert_`` methods when a marker is due. Each call returns the tasks that follow from it.

    Parameters
    ----------
    topology : Topology
        Its shape.
    operator : type
        The operators' type.

    Notes
    -----
    *POG* of (Scabbard Table 1). The coordinator's part, which Algorithm 1 leaves out, is in `completed`:

    1. a checkpoint is complete when all p-units of all snapshots are durable, and then recorded;
    2. whenever something has become durable, `collect.requests` says what a recovery would ask for;
    3. if that is less than before, records of checkpoints that it would not load are deleted;
    4. then release markers start at the sinks, and every owner trims its own p-units.
    """

    def __init__(self, topology: Topology, operator: type[FTOperator] = FTOperator) -> None:
        self.topology = topology
        self.facts = Facts.none(topology)
        self.released = VectorClock()
        self.checkpoint: int | None = None
        self.streams = {
            name: PStream(name, always=name in topology.sources and not topology.sources[name].replayable)
            for name in topology.readers
        }
        self.operators = {
            name: operator(
                name,
                topology.inputs(name),
                spec.function,
                self.streams[name],
                readers=topology.readers[name],
                retains=topology.retains(name),
                origin=topology.origin(name),
            )
            for name, spec in topology.operators.items()
        }
        self._last_checkpoint = 0
        self._missing: set[tuple[str, str]] = set()
        self._restarts: dict[str, Restart] = {}
        self._dropping = False
        self._committing: set[str] = set()
        edges = [(stream, reader) for stream, readers in topology.readers.items() for reader in readers]
        self._down: dict[Edge, deque[Marker]] = {edge: deque() for edge in edges}
        self._up: dict[Edge, deque[ReleaseMarker]] = {edge: deque() for edge in edges}

    def begin(self, offsets: dict[str, int], last_checkpoint: int) -> list[Task]:
        """Subscribe all readers where they begin, named as in `lineage`, and return the first tasks."""
        self._last_checkpoint = last_checkpoint
        for stream, reader in self._down:
            self.streams[stream].subscribe(reader, offsets.get(needed(stream, reader), 0))
        effects = [effect for operator in self.operators.values() for effect in operator.on_notification()]
        return self._sorted(effects) + self.collect()

    def receive(self, source: str, offset: int, rows: Sequence[Any]) -> list[Task]:
        """Take tuples from an external source. Tuples that were received before are dropped.

        Raises
        ------
        InternalError
            If tuples are missing before `offset`.
        """
        clock = VectorClock({source: offset + len(rows)})
        return [*self.streams[source].write(StreamUnit(source, offset, tuple(rows), clock))] if rows else []

    def insert_retain_marker(self, stream: str) -> list[Task]:
        """Have the next p-unit of an ingress stream retained, or of the next streams down which may be."""
        if self.topology.retains(stream):
            self.streams[stream].retain = True
        else:
            for reader in self.topology.readers[stream]:
                self._down[stream, reader].append(RetainMarker())
        return []

    def begin_checkpoint(self) -> int:
        """Return the number of a new checkpoint. Its markers are to be inserted at all `Topology.entries`.

        Raises
        ------
        InvalidUsageError
            If one is under way, or nothing is checkpointed.
        """
        if not self.topology.fault_tolerant:
            raise InvalidUsageError("nothing in this graph is checkpointed")
        if self.checkpoint is not None:
            raise InvalidUsageError("a checkpoint is under way", checkpoint=self.checkpoint)
        self._last_checkpoint += 1
        self.checkpoint = self._last_checkpoint
        self._missing = {(operator, "") for operator in self.topology.fault_tolerant}
        self._restarts = {}
        return self.checkpoint

    def insert_checkpoint_marker(self, operator: str) -> list[Task]:
        """Insert the marker of the checkpoint under way at an operator, for all its inputs that bring none.

        Raises
        ------
        InvalidUsageError
            If none is under way.
        """
        if self.checkpoint is None:
            raise InvalidUsageError("no checkpoint is under way", operator=operator)
        effects: list[Task | Send] = []
        for stream in self.topology.operators[operator].inputs:
            if self.topology.is_border(stream):
                effects += self.operators[operator].on_marker(stream, CheckpointMarker(self.checkpoint))
        return self._sorted(effects)

    def ready(self) -> list[Edge]:
        """Return the edges along which a marker or a p-unit can move."""
        return [
            edge
            for edge in self._down
            if self._up[edge]
            or self._down[edge]
            or (edge[1] not in self._committing and self.streams[edge[0]].read(edge[1]) is not None)
        ]

    def deliver(self, stream: str, reader: str) -> list[Task]:
        """Move what is first on an edge of `ready`: a release marker, else another marker, else a p-unit."""
        edge = stream, reader
        if self._up[edge]:
            return self._release_at(stream, self._up[edge].popleft())
        if self._down[edge]:
            marker = self._down[edge].popleft()
            return (
                self._sorted(self.operators[reader].on_marker(stream, marker))
                if reader in self.operators
                else []
            )
        unit = self.streams[stream].read(reader)
        if unit is None:
            return []
        if reader in self.topology.sinks:
            return self._commit(reader, unit)
        effects = self.operators[reader].on_unit(stream, unit)
        self.streams[stream].acknowledged(reader)
        return self._sorted(effects)

    def _commit(self, sink: str, unit: StreamUnit) -> list[Task]:
        spec = self.topology.sinks[sink]
        committed = self.facts.committed[sink]
        unit = unit.after(committed[spec.stream]).since(committed)
        if not unit.rows:
            self.streams[spec.stream].acknowledged(sink)
            return []
        self._committing.add(sink)
        return [CommitTask(sink, unit, "prepare" if spec.transactional else "commit")]

    def completed(self, task: Task) -> list[Task]:
        """Note that the effect of a task is durable."""
        match task:
            case QueryTask(name):
                operator = self.operators[name]
                return self._sorted([*operator.queried_now(), *operator.on_notification()])
            case PersistTask(unit):
                self.streams[unit.stream].persisted(unit)
                self.facts.extents[unit.stream].append(unit.extent)
            case CheckpointTask(_, name, part, content):
                return self._stored(name, part, content)
            case CompleteTask(number):
                self.facts.checkpoint = Checkpoint(number, self._restarts)
                self.checkpoint = None
            case CommitTask(sink, unit, "prepare"):
                return [CommitTask(sink, unit, "record")]
            case CommitTask(sink, unit, "record"):
                return [CommitTask(sink, unit, "commit")]
            case CommitTask(sink, unit, "commit"):
                self._committing.discard(sink)
                self.streams[unit.stream].acknowledged(sink)
                self.facts.committed[sink] = unit.clock
            case DropTask(below):
                self._dropping = False
                return self._release(below)
            case _:
                return []
        return self.collect()

    def _stored(self, operator: str, part: str, content: Any) -> list[Task]:
        if part == "restart":
            self._restarts[operator] = content
        self._missing.discard((operator, part))
        return [] if self._missing or self.checkpoint is None else [CompleteTask(self.checkpoint)]

    def collect(self) -> list[Task]:
        """Release the tuples that a recovery would not request now, if they are more than before."""
        asked = requests(self.topology, self.facts)
        first = asked.checkpoint
        if first is None:
            first = self.facts.checkpoint.number + 1 if self.facts.checkpoint else self.released["checkpoint"]
            self.facts.checkpoint = None
        clock = self.released.merge(asked.lowest).merge({"checkpoint": first})
        if self.released.dominates(clock):
            return []
        dropped = self.released["checkpoint"]
        self.released = clock
        for stream, extents in self.facts.extents.items():
            self.facts.extents[stream] = [extent for extent in extents if extent.end > clock[stream]]
        for source in self.topology.sources:
            self.facts.acked[source] = clock[consumed("", source)]
        return self._release(dropped)

    def _release(self, dropped: int) -> list[Task]:
        """Start release markers, or first drop the records of checkpoints that are not before `dropped`."""
        if self._dropping:
            return []
        if self.released["checkpoint"] > dropped:
            self._dropping = True
            return [DropTask(self.released["checkpoint"])]
        for name, sink in self.topology.sinks.items():
            self._up[sink.stream, name].append(ReleaseMarker(self.released))
        return []

    def _release_at(self, stream: str, marker: ReleaseMarker) -> list[Task]:
        if stream in self.operators:
            return self._sorted(self.operators[stream].on_marker(stream, marker))
        acked = AckTask(stream, marker.clock[consumed("", stream)])
        return [acked, *self.streams[stream].trim_from(marker.clock[stream])]

    def _sorted(self, effects: Iterable[Task | Send]) -> list[Task]:
        """Put markers into their channels, and return the tasks."""
        tasks: list[Task] = []
        for effect in effects:
            if not isinstance(effect, Send):
                tasks.append(effect)
            elif isinstance(effect.marker, ReleaseMarker):
                self._up[effect.stream, effect.reader].append(effect.marker)
            else:
                self._down[effect.stream, effect.reader].append(effect.marker)
            if isinstance(effect, CheckpointTask):
                self._missing.discard((effect.operator, ""))
                self._missing.add((effect.operator, effect.part))
        return tasks
