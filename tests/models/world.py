"""A world for the persistence protocol: toy operators, storage in memory, sources, and crashes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from tests.models.protocol import (
    PersistentOperatorGraph,
    Recovery,
    StreamUnit,
    Task,
    Topology,
    VectorClock,
    requests,
)

Row = tuple[int, int, int]
"""Time, key and value."""


class Stateless:
    initial: Any = ()

    def time(self, row: Row) -> int:
        return row[0]

    def needed(self, state: Any) -> Mapping[str, int]:
        return {}


@dataclass(frozen=True)
class Keep(Stateless):
    """A filter by key."""

    modulus: int = 2

    def apply(self, state: Any, stream: str, offset: int, row: Row) -> tuple[Any, Sequence[Row]]:
        return state, [row] if row[1] % self.modulus == 0 else []


class Add(Stateless):
    """A map."""

    def apply(self, state: Any, stream: str, offset: int, row: Row) -> tuple[Any, Sequence[Row]]:
        return state, [(row[0], row[1], row[2] + 1)]


class Union(Stateless):
    """All inputs in one."""

    def apply(self, state: Any, stream: str, offset: int, row: Row) -> tuple[Any, Sequence[Row]]:
        return state, [row]


class Total(Stateless):
    """A sum by key without a window: its state depends on all that ever came."""

    def apply(self, state: Any, stream: str, offset: int, row: Row) -> tuple[Any, Sequence[Row]]:
        sums = dict(state)
        sums[row[1]] = sums.get(row[1], 0) + row[2]
        sums[stream] = 0
        return tuple(sums.items()), [(row[0], row[1], sums[row[1]])]

    def needed(self, state: Any) -> Mapping[str, int]:
        return {stream: 0 for stream, _ in state if isinstance(stream, str)}


@dataclass(frozen=True)
class Join(Stateless):
    """Pairs of tuples of different streams with one key, at most `window` apart."""

    window: int = 3

    def apply(self, state: Any, stream: str, offset: int, row: Row) -> tuple[Any, Sequence[Row]]:
        kept = tuple(entry for entry in state if entry[2][0] >= row[0] - self.window)
        pairs = [
            (row[0], row[1], 100 * other[2] + row[2])
            for s, _, other in kept
            if s != stream and other[1] == row[1]
        ]
        return (*kept, (stream, offset, row)), pairs

    def needed(self, state: Any) -> Mapping[str, int]:
        low: dict[str, int] = {}
        for stream, offset, _ in state:
            low[stream] = min(low.get(stream, offset), offset)
        return low


@dataclass(frozen=True)
class Window(Stateless):
    """Sums by key of sliding windows; a window closes when a later tuple comes."""

    size: int = 4
    slide: int = 2

    def apply(self, state: Any, stream: str, offset: int, row: Row) -> tuple[Any, Sequence[Row]]:
        results = [
            (start + self.size, key, total)
            for start, _, sums in state
            if start + self.size <= row[0]
            for key, total in sorted(sums)
        ]
        windows = {start: (first, dict(sums)) for start, first, sums in state if start + self.size > row[0]}
        start = row[0] // self.slide * self.slide
        while start > row[0] - self.size:
            _, sums = windows.setdefault(start, ((stream, offset), {}))
            sums[row[1]] = sums.get(row[1], 0) + row[2]
            start -= self.slide
        return tuple((s, *_frozen(windows[s])) for s in sorted(windows)), results

    def needed(self, state: Any) -> Mapping[str, int]:
        return {first[0]: min(f[1] for _, f, _ in state) for _, first, _ in state}


def _frozen(window: tuple[Any, dict[int, int]]) -> tuple[Any, tuple[tuple[int, int], ...]]:
    return window[0], tuple(window[1].items())


def uninterrupted(topology: Topology, sources: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Return the output of each sink if nothing ever fails."""
    streams: dict[str, list[Row]] = {name: list(rows) for name, rows in sources.items()}
    for name, spec in topology.operators.items():
        at, state, results = dict.fromkeys(spec.inputs, 0), spec.function.initial, list[Row]()
        while all(at[s] < len(streams[s]) for s in spec.inputs):
            s = min(spec.inputs, key=lambda s: streams[s][at[s]][0])
            state, made = spec.function.apply(state, s, at[s], streams[s][at[s]])
            at[s] += 1
            results += made
        streams[name] = results
    return {name: streams[sink.stream] for name, sink in topology.sinks.items()}


@dataclass
class MemoryStorage:
    """All that survives a crash, outside included."""

    streams: dict[str, list[StreamUnit]] = field(default_factory=dict)
    snapshots: dict[tuple[int, str, str], Any] = field(default_factory=dict)
    records: set[int] = field(default_factory=set)
    prepared: dict[str, list[StreamUnit]] = field(default_factory=dict)
    recorded: dict[str, VectorClock] = field(default_factory=dict)
    output: dict[str, list[Row]] = field(default_factory=dict)
    acks: dict[str, int] = field(default_factory=dict)

    def copied(self) -> MemoryStorage:
        return MemoryStorage(
            {name: list(units) for name, units in self.streams.items()},
            dict(self.snapshots),
            set(self.records),
            {name: list(units) for name, units in self.prepared.items()},
            dict(self.recorded),
            {name: list(rows) for name, rows in self.output.items()},
            dict(self.acks),
        )

    def persist(self, unit: StreamUnit) -> None:
        self.streams.setdefault(unit.stream, []).append(unit)

    def units(self, stream: str) -> Sequence[StreamUnit]:
        return list(self.streams.get(stream, []))

    def trim(self, stream: str, offset: int) -> None:
        self.streams[stream] = [unit for unit in self.units(stream) if unit.end > offset]

    def truncate(self, stream: str, offset: int) -> None:
        self.streams[stream] = [unit for unit in self.units(stream) if unit.offset < offset]

    def checkpoint(self, checkpoint: int, operator: str, part: str, content: Any) -> None:
        self.snapshots[checkpoint, operator, part] = content

    def complete(self, checkpoint: int) -> None:
        self.records.add(checkpoint)

    def completed(self) -> Sequence[int]:
        return sorted(self.records)

    def last_checkpoint(self) -> int:
        return max([0, *self.records, *(number for number, _, _ in self.snapshots)])

    def parts(self, checkpoint: int, operator: str) -> Mapping[str, Any]:
        return {
            part: content
            for (number, name, part), content in self.snapshots.items()
            if (number, name) == (checkpoint, operator)
        }

    def drop(self, below: int) -> None:
        self.records = {number for number in self.records if number >= below}

    def discard(self, operator: str, below: int) -> None:
        self.snapshots = {
            key: content for key, content in self.snapshots.items() if key[1] != operator or key[0] >= below
        }

    def prepare(self, sink: str, unit: StreamUnit) -> None:
        self.prepared.setdefault(sink, []).append(unit)

    def record(self, sink: str, clock: VectorClock) -> None:
        self.recorded[sink] = clock

    def commit(self, sink: str, unit: StreamUnit) -> None:
        if unit in self.prepared.get(sink, []):
            self.prepared[sink].remove(unit)
        else:
            self.recorded[sink] = unit.clock
        self.output.setdefault(sink, []).extend(unit.rows)

    def resolve(self, sink: str, offset: int) -> None:
        for unit in self.prepared.pop(sink, []):
            if unit.end <= offset:
                self.output.setdefault(sink, []).extend(unit.rows)

    def progress(self, sink: str) -> VectorClock | None:
        return self.recorded.get(sink)

    def ack(self, source: str, offset: int) -> None:
        self.acks[source] = max(self.acked(source), offset)

    def acked(self, source: str) -> int:
        return self.acks.get(source, 0)


CAN_BE_SLOW = ["send", "deliver", "tell", "insert", "PersistTask", "QueryTask", "CommitTask", "DropTask"]
"""Kinds of things that happen, as `World.actions` names them."""


class World:
    """A graph that runs, is down, or recovers, with its input and its durable data."""

    def __init__(
        self,
        topology: Topology,
        graph: Callable[[Topology], PersistentOperatorGraph] = PersistentOperatorGraph,
    ) -> None:
        self.topology = topology
        self.storage = MemoryStorage()
        self.rows: dict[str, list[Row]] = {name: [] for name in topology.sources}
        self.tasks: list[Task] = []
        self.done: list[Task] = []  # durable, but the graph was not told
        self.entries: list[str] = []
        self.recovery: Recovery | None = None
        self.graph: PersistentOperatorGraph | None = None
        self.recover()

    def fork(self) -> World:
        """Return a world in which everything crashes now."""
        other = copy(self)
        other.storage = self.storage.copied()
        other.rows = {name: list(rows) for name, rows in self.rows.items()}
        other.crash()
        return other

    def crash(self) -> None:
        self.graph, self.recovery, self.tasks, self.done, self.entries = None, None, [], [], []

    def recover_step(self, chosen: int = 0) -> None:
        """Take one step of a recovery: a phase, or the load of one operator."""
        if self.recovery is None:
            ticks = count()
            self.recovery = Recovery(self.topology, self.storage, lambda: next(ticks))
            self.recovery.progress_recovery()
            self.loads: list[str] | None = None
        elif self.loads is None:
            self.recovery.upstream_requesting()
            self.loads = list(self.recovery.loads)
        elif self.loads:
            self.recovery.load(self.loads.pop(chosen % len(self.loads)))
        else:
            self.graph, self.tasks, self.report = self.recovery.upstream_replay()
            self.recovery = None
            for name, source in self.topology.sources.items():
                if not source.replayable:
                    del self.rows[name][self.graph.streams[name].end :]

    def recover(self) -> None:
        while self.graph is None:
            self.recover_step()

    @property
    def running(self) -> PersistentOperatorGraph:
        assert self.graph is not None
        return self.graph

    def emit(self, source: str, rows: Iterable[Row]) -> None:
        self.rows[source] += rows

    def send(self, source: str, limit: int) -> None:
        at = self.running.streams[source].end
        assert at >= self.storage.acked(source), "a source was asked for what it was told to forget"
        self.tasks += self.running.receive(source, at, self.rows[source][at : at + limit])

    def insert_retain_marker(self, source: str) -> None:
        self.tasks += self.running.insert_retain_marker(source)

    def begin_checkpoint(self) -> None:
        if self.running.checkpoint is None and self.topology.fault_tolerant:
            self.running.begin_checkpoint()
            self.entries = self.topology.entries()

    def actions(self) -> list[tuple[str, Callable[[], None]]]:
        """Return all that can happen by itself, each with its kind."""
        graph = self.running
        waiting = [s for s, rows in self.rows.items() if graph.streams[s].end < len(rows)]
        return [
            *(("send", lambda s=s, n=n: self.send(s, n)) for s in waiting for n in (1, 3)),
            *(("deliver", lambda e=e: self.deliver(*e)) for e in graph.ready()),
            *((type(t).__name__, lambda t=t: self.run(t)) for t in self.tasks),
            *(("tell", lambda t=t: self.tell(t)) for t in self.done),
            *(("insert", lambda o=o: self.insert(o)) for o in self.entries),
        ]

    def deliver(self, stream: str, reader: str) -> None:
        self.tasks += self.running.deliver(stream, reader)

    def run(self, task: Task) -> None:
        self.tasks.remove(task)
        task.run(self.storage)
        self.done.append(task)

    def tell(self, task: Task) -> None:
        self.done.remove(task)
        self.tasks += self.running.completed(task)

    def insert(self, operator: str) -> None:
        self.entries.remove(operator)
        self.tasks += self.running.insert_checkpoint_marker(operator)

    def work(self, steps: int, seed: int, slow: Sequence[str] = ()) -> None:
        """Let things happen in some order; the `slow` kinds when nothing else can, and seldom before."""
        random = Random(seed)
        for _ in range(steps):
            actions = self.actions()
            quick = [action for action in actions if action[0] not in slow]
            if quick and random.random() < 0.95:
                actions = quick
            if actions:
                random.choice(actions)[1]()

    def stroll(self, seed: int, events: int) -> None:
        """Do what the state machine does, by chance alone: all of it depends on `seed`."""
        random, time = Random(seed), 0
        slow = random.sample(CAN_BE_SLOW, random.randint(0, 3))
        for _ in range(events):
            source = random.choice(list(self.rows))
            match random.choices(["emit", "retain", "checkpoint", "crash"], [6, 2, 3, 1])[0]:
                case "emit":
                    for _ in range(random.randint(1, 6)):
                        time += random.randint(0, 2)
                        self.emit(source, [(time, random.randint(0, 2), time % 7 + 1)])
                case "retain" if self.graph is not None:
                    self.insert_retain_marker(source)
                case "checkpoint" if self.graph is not None:
                    self.begin_checkpoint()
                case "crash":
                    self.crash()
            if self.graph is None:
                self.recover_step(random.randint(0, 9))
            else:
                self.work(random.choice([1, 3, 10, 30]), random.getrandbits(32), slow)
            self.check_output()
            self.check_recovery()
        self.finish()

    def run_until_idle(self) -> None:
        """Run actions until none is possible."""
        self.recover()
        while self.actions():
            for source in self.rows:
                self.send(source, len(self.rows[source]))
            for edge in self.running.ready():
                self.deliver(*edge)
            for task in list(self.tasks):
                self.run(task)
                self.tell(task)
            for task in list(self.done):
                self.tell(task)
            for operator in list(self.entries):
                self.insert(operator)

    def check_output(self, *, complete: bool = False) -> None:
        """Assert that the output is that of a run without crashes, or a prefix of it."""
        for sink, expected in uninterrupted(self.topology, self.rows).items():
            got = self.storage.output.get(sink, [])
            assert got == (expected if complete else expected[: len(got)]), f"{sink} is not exactly once"

    def check_recovery(self) -> None:
        """Assert that a crash now would lose nothing."""
        other = self.fork()
        other.run_until_idle()
        other.check_output(complete=True)

    def finish(self) -> None:
        """Run to the end, and assert that all results are out and no unneeded data is kept."""
        self.run_until_idle()
        self.begin_checkpoint()
        self.run_until_idle()
        # The first may have been under way.
        self.begin_checkpoint()
        self.run_until_idle()
        self.check_output(complete=True)
        facts = self.running.facts
        asked = requests(self.topology, facts)
        for stream in self.topology.readers:
            kept = {unit.extent for unit in self.storage.units(stream)}
            assert kept == set(asked.loads[stream]), f"p-units of {stream} are kept that nobody needs"
        numbers = {number for number, _, _ in self.storage.snapshots} | self.storage.records
        assert numbers <= {asked.checkpoint}, "p-units of old checkpoints are kept"
        if self.topology.fault_tolerant:
            assert not any(self.storage.streams.values()), "p-units are kept beside the checkpoint"
