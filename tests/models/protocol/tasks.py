"""The tasks that the protocol gives to its driver, and their interface to storage.

Handlers of events return tasks. Whoever schedules them calls `Task.run`, at any time and in any order, and
tells the graph by `PersistentOperatorGraph.completed` when the effect is durable. A crash may come between
any two of these steps. Tasks that were not completed are forgotten by a crash; their effect may be durable
all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tests.models.protocol.lineage import StreamUnit
from tests.models.protocol.vector_clock import VectorClock

__all__ = [
    "AckTask",
    "CheckpointTask",
    "CommitTask",
    "CompleteTask",
    "DiscardTask",
    "DropTask",
    "PersistTask",
    "QueryTask",
    "Storage",
    "Task",
    "TrimTask",
]


class Storage(Protocol):
    """All that survives a crash. Each method is atomic, durable when it returns, and may be repeated."""

    def persist(self, unit: StreamUnit) -> None:
        """Make a p-unit of a stream durable."""

    def units(self, stream: str) -> Sequence[StreamUnit]:
        """Return the durable p-units of a stream, in any order."""

    def trim(self, stream: str, offset: int) -> None:
        """Delete the p-units of a stream that end at `offset` or before."""

    def truncate(self, stream: str, offset: int) -> None:
        """Delete the p-units of a stream that begin at `offset` or after. Only recovery does this."""

    def checkpoint(self, checkpoint: int, operator: str, part: str, content: Any) -> None:
        """Make one p-unit of an operator's snapshot durable."""

    def complete(self, checkpoint: int) -> None:
        """Record that all p-units of a checkpoint are durable."""

    def completed(self) -> Sequence[int]:
        """Return the checkpoints that are complete and not dropped."""

    def last_checkpoint(self) -> int:
        """Return the highest number that any checkpoint has had, also one that was not completed, or 0."""

    def parts(self, checkpoint: int, operator: str) -> Mapping[str, Any]:
        """Return the p-units of an operator's snapshot."""

    def drop(self, below: int) -> None:
        """Delete the records of the checkpoints before `below`: they are no longer complete."""

    def discard(self, operator: str, below: int) -> None:
        """Delete an operator's p-units of the checkpoints before `below`."""

    def prepare(self, sink: str, unit: StreamUnit) -> None:
        """Let a transactional sink store a p-unit, without showing it to readers."""

    def record(self, sink: str, clock: VectorClock) -> None:
        """Record the progress of the operator before a transactional sink."""

    def commit(self, sink: str, unit: StreamUnit) -> None:
        """Show a p-unit to the outside. A sink that is not transactional stores its clock with it."""

    def resolve(self, sink: str, offset: int) -> None:
        """Commit what a transactional sink has prepared up to `offset`, and forget the rest. For recovery."""

    def progress(self, sink: str) -> VectorClock | None:
        """Return the clock that was recorded last, or that the sink stored with its last p-unit."""

    def ack(self, source: str, offset: int) -> None:
        """Tell an external source that nothing before `offset` will be asked for."""

    def acked(self, source: str) -> int:
        """Return the offset from which an external source can send."""


@dataclass(frozen=True, slots=True)
class PersistTask:
    """Make a p-unit of a stream durable."""

    unit: StreamUnit

    def run(self, storage: Storage) -> None:
        """Have the effect."""
        storage.persist(self.unit)


@dataclass(frozen=True, slots=True)
class CheckpointTask:
    """Make one p-unit of a snapshot durable."""

    checkpoint: int
    operator: str
    part: str
    content: Any

    def run(self, storage: Storage) -> None:
        """Have the effect."""
        storage.checkpoint(self.checkpoint, self.operator, self.part, self.content)


@dataclass(frozen=True, slots=True)
class CompleteTask:
    """Record that a checkpoint is complete."""

    checkpoint: int

    def run(self, storage: Storage) -> None:
        """Have the effect."""
        storage.complete(self.checkpoint)


@dataclass(frozen=True, slots=True)
class QueryTask:
    """Let an operator process its queues; the work is done when the task is completed."""

    operator: str

    def run(self, storage: Storage) -> None:
        """Have no durable effect."""


@dataclass(frozen=True, slots=True)
class CommitTask:
    """Bring a p-unit out through a sink: the three phases of a transactional one, or the last alone."""

    sink: str
    unit: StreamUnit
    phase: Literal["prepare", "record", "commit"]

    def run(self, storage: Storage) -> None:
        """Have the effect."""
        match self.phase:
            case "prepare":
                storage.prepare(self.sink, self.unit)
            case "record":
                storage.record(self.sink, self.unit.clock)
            case "commit":
                storage.commit(self.sink, self.unit)


@dataclass(frozen=True, slots=True)
class DropTask:
    """Delete records of checkpoints, before any of their p-units go."""

    below: int

    def run(self, storage: Storage) -> None:
        """Have the effect."""
        storage.drop(self.below)


@dataclass(frozen=True, slots=True)
class DiscardTask:
    """Delete an operator's p-units of old checkpoints."""

    operator: str
    below: int

    def run(self, storage: Storage) -> None:
        """Have the effect."""
        storage.discard(self.operator, self.below)


@dataclass(frozen=True, slots=True)
class TrimTask:
    """Delete p-units of a stream in bulk."""

    stream: str
    offset: int

    def run(self, storage: Storage) -> None:
        """Have the effect."""
        storage.trim(self.stream, self.offset)


@dataclass(frozen=True, slots=True)
class AckTask:
    """Acknowledge tuples to an external source."""

    source: str
    offset: int

    def run(self, storage: Storage) -> None:
        """Have the effect."""
        storage.ack(self.source, self.offset)


Task = (
    PersistTask
    | CheckpointTask
    | CompleteTask
    | QueryTask
    | CommitTask
    | DropTask
    | DiscardTask
    | TrimTask
    | AckTask
)
