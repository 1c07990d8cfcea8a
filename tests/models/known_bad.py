"""Broken persistence protocols. The machine of `tests/property/models/test_protocol.py` must detect each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.models.protocol import FTOperator, PersistentOperatorGraph, PStream, Snapshot, StreamUnit
from tests.models.protocol.tasks import AckTask, CommitTask, CompleteTask, PersistTask, Task
from tests.models.world import Join, MemoryStorage, Total, Window

Patch = pytest.MonkeyPatch


def releases_before_the_commit(patch: Patch) -> None:
    """Regard all p-units that were sent to a sink as written."""
    commit = PersistentOperatorGraph._commit

    def eager(self: PersistentOperatorGraph, sink: str, unit: StreamUnit) -> list[Task]:
        tasks = commit(self, sink, unit)
        self.facts.committed[sink] = unit.clock
        return tasks + self.collect()

    patch.setattr(PersistentOperatorGraph, "_commit", eager)


def completes_a_checkpoint_early(patch: Patch) -> None:
    """Record a checkpoint too early: when each operator has stored only one p-unit of its snapshot."""
    stored = PersistentOperatorGraph._stored

    def eager(self: PersistentOperatorGraph, operator: str, part: str, content: Any) -> list[Task]:
        before = {name for name, _ in self._missing}
        stored(self, operator, part, content)
        if part == "restart":
            self._missing = {missing for missing in self._missing if missing[0] != operator}
        done = before and not self._missing and self.checkpoint is not None
        return [CompleteTask(self.checkpoint or 0)] if done else []

    patch.setattr(PersistentOperatorGraph, "_stored", eager)


def forgets_the_queues(patch: Patch) -> None:
    """Leave I out of snapshots."""
    parts = Snapshot.parts
    patch.setattr(
        Snapshot,
        "parts",
        lambda self: {part: () if part.startswith("queue") else got for part, got in parts(self).items()},
    )


def forgets_the_results(patch: Patch) -> None:
    """Leave R out of snapshots."""
    patch.setattr(PStream, "checkpoint", lambda self: ())


def forgets_what_comes_between_markers(patch: Patch) -> None:
    """Leave p-units of inputs that have not sent their marker out of snapshots."""
    on_unit = FTOperator.on_unit

    def deaf(self: FTOperator, stream: str, unit: StreamUnit) -> Any:
        pending, self._pending = self._pending, None
        effects = on_unit(self, stream, unit)
        self._pending = pending
        return effects

    patch.setattr(FTOperator, "on_unit", deaf)


def takes_what_it_has_already(patch: Patch) -> None:
    """Take p-units again that were received before (PV in)."""
    on_unit = FTOperator.on_unit

    def greedy(self: FTOperator, stream: str, unit: StreamUnit) -> Any:
        self.received[stream] = unit.offset
        return on_unit(self, stream, unit)

    patch.setattr(FTOperator, "on_unit", greedy)


def shows_what_is_out_already(patch: Patch) -> None:
    """Write p-units again that a sink already has, according to its clock."""

    def greedy(self: PersistentOperatorGraph, sink: str, unit: StreamUnit) -> list[Task]:
        if not unit.rows:
            self.streams[unit.stream].acknowledged(sink)
            return []
        self._committing.add(sink)
        return [CommitTask(sink, unit, "prepare" if self.topology.sinks[sink].transactional else "commit")]

    patch.setattr(PersistentOperatorGraph, "_commit", greedy)


def takes_tuples_as_they_arrive(patch: Patch) -> None:
    """Process a tuple before the other inputs have one, without a log of the order."""
    patch.setattr(FTOperator, "_next", lambda self: next((s for s in self.inputs if self.queues[s]), None))


def reads_what_is_not_durable(patch: Patch) -> None:
    """Pass p-units on before they are durable, although their source cannot replay them."""
    write = PStream.write

    def eager(self: PStream, unit: StreamUnit, *, retained: bool = True) -> list[PersistTask]:
        tasks = write(self, unit, retained=retained)
        self._waiting.clear()
        return tasks

    patch.setattr(PStream, "write", eager)
    patch.setattr(PStream, "persisted", lambda self, unit: None)


def releases_what_open_windows_need(patch: Patch) -> None:
    """Compute the needed tuples as if an operator needed none of the tuples that it has consumed."""
    for function in (Join, Total, Window):
        patch.setattr(function, "needed", lambda self, state: {})


def discards_before_the_record_is_dropped(patch: Patch) -> None:
    """Start release markers while a checkpoint that they make useless is still recorded as complete."""
    release = PersistentOperatorGraph._release

    def eager(self: PersistentOperatorGraph, dropped: int) -> list[Task]:
        tasks = release(self, dropped)
        dropping, self._dropping = self._dropping, False
        release(self, self.released["checkpoint"])
        self._dropping = dropping
        return tasks

    patch.setattr(PersistentOperatorGraph, "_release", eager)


def forgets_what_was_prepared(patch: Patch) -> None:
    """Do not roll a transactional sink forward to the recorded progress."""
    patch.setattr(MemoryStorage, "resolve", lambda self, sink, offset: self.prepared.pop(sink, None))


def acknowledges_what_was_received(patch: Patch) -> None:
    """Acknowledge all received tuples to a source."""
    receive = PersistentOperatorGraph.receive

    def eager(self: PersistentOperatorGraph, source: str, offset: int, rows: Any) -> list[Task]:
        tasks = receive(self, source, offset, rows)
        return [*tasks, AckTask(source, self.streams[source].end)]

    patch.setattr(PersistentOperatorGraph, "receive", eager)


def releases_nothing(patch: Patch) -> None:
    """Keep everything for ever."""
    patch.setattr(PersistentOperatorGraph, "_release", lambda self, dropped: [])


# Each with the shape of graph on which it is looked for: one on which it matters.
KNOWN_BAD: dict[str, tuple[Callable[[Patch], None], str]] = {
    protocol.__name__: (protocol, shape)
    for protocol, shape in (
        (releases_before_the_commit, "deep"),
        (completes_a_checkpoint_early, "sum"),
        (forgets_the_queues, "fan in"),
        (forgets_the_results, "fan in"),
        (forgets_what_comes_between_markers, "fan in"),
        (takes_what_it_has_already, "fan out"),
        (shows_what_is_out_already, "fan out"),
        (takes_tuples_as_they_arrive, "fan in"),
        (reads_what_is_not_durable, "sum"),
        (releases_what_open_windows_need, "diamond"),
        (discards_before_the_record_is_dropped, "sum"),
        (forgets_what_was_prepared, "sum"),
        (acknowledges_what_was_received, "sum"),
        (releases_nothing, "sum"),
    )
}
