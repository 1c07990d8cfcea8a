"""One operator of the graph: its queues, its state, and how it handles markers and p-units."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from penstock.errors import InternalError
from tests.models.protocol.lineage import Lineage, StreamUnit, consumed, needed, of_input, passed_on
from tests.models.protocol.markers import CheckpointMarker, Marker, ReleaseMarker, RetainMarker
from tests.models.protocol.p_stream import PStream
from tests.models.protocol.tasks import CheckpointTask, DiscardTask, QueryTask, Task
from tests.models.protocol.vector_clock import VectorClock

__all__ = ["FTOperator", "Function", "Pending", "Restart", "Send", "Snapshot"]


class Function(Protocol):
    """The function of an operator: deterministic, without side effects, one tuple after the other.

    States are immutable values. The tuples of each input are ordered by `time`, and so are the results.
    """

    @property
    def initial(self) -> Any:
        """The state before the first tuple."""

    def time(self, row: Any) -> int:
        """Return the event time of a tuple of any input."""

    def apply(self, state: Any, stream: str, offset: int, row: Any) -> tuple[Any, Sequence[Any]]:
        """Return the state after one tuple, and the results of it (both functions of Scabbard §2.3)."""

    def needed(self, state: Any) -> Mapping[str, int]:
        """Return, by input, the offset of the first tuple that `state` depends on; none where there is none.

        Applied to the initial state, the tuples from there on, in their order, give `state` again.
        """


@dataclass(frozen=True, slots=True)
class Send:
    """A marker on its way along an edge, down or up by its kind."""

    stream: str
    reader: str
    marker: Marker


@dataclass(frozen=True, slots=True)
class Restart:
    """The position at which an operator restarts: a snapshot without queues, results and state.

    Parameters
    ----------
    offset : int
        The offset in its own stream at which it goes on (*PV out*).
    end : int
        Where its stream ends; it may hold more than its operator has made again.
    received : mapping of str to int
        By input, the tuples that it has and drops when they come again (*PV in*).
    consumed : mapping of str to int
        By input, the tuples that have gone through its function.
    silent : mapping of str to int
        By input, the tuples whose results lie before `offset`: they only make the state again.
    lineage : mapping of str to sequence of (int, VectorClock)
        By input, the clocks of the p-units that its state depends on.
    """

    offset: int
    end: int
    received: Mapping[str, int]
    consumed: Mapping[str, int]
    silent: Mapping[str, int]
    lineage: Mapping[str, Sequence[tuple[int, VectorClock]]]

    @classmethod
    def from_clock(cls, operator: str, inputs: Mapping[str, VectorClock], clock: VectorClock) -> Restart:
        """Return how an operator starts with an empty state at the clock of a p-unit of its own stream.

        `inputs` has its inputs with their origins, which say what each of them depends on.
        """
        begin = {stream: clock[needed(stream, operator)] for stream in inputs}
        return cls(
            offset=clock[operator],
            end=clock[operator],
            received=begin,
            consumed=begin,
            silent={stream: clock[consumed(stream, operator)] for stream in inputs},
            lineage={s: [(begin[s], of_input(clock, operator, origin))] for s, origin in inputs.items()},
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of an operator, *C = (I, R, Θ, PV in, PV out)*, which is made durable in parts."""

    restart: Restart
    state: Any
    results: tuple[StreamUnit, ...]
    queues: Mapping[str, tuple[tuple[int, Any], ...]]

    def parts(self) -> dict[str, Any]:
        """Return the p-units of the snapshot by name."""
        queues = {f"queue {stream}": rows for stream, rows in self.queues.items()}
        return {"restart": self.restart, "state": self.state, "results": self.results, **queues}

    @classmethod
    def from_parts(cls, parts: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot of these p-units.

        Raises
        ------
        KeyError
            If one is missing.
        """
        restart: Restart = parts["restart"]
        queues = {stream: parts[f"queue {stream}"] for stream in restart.received}
        return cls(restart, parts["state"], parts["results"], queues)


@dataclass(slots=True)
class Pending:
    """A snapshot between its first marker and its last."""

    checkpoint: int
    marked: set[str]
    restart: Restart
    state: Any
    results: tuple[StreamUnit, ...]
    queues: dict[str, list[tuple[int, Any]]]
    caught: dict[str, Lineage]


class FTOperator:
    """An operator that takes part in checkpoints.

    It goes by this table::

        state    event                                 next      what it does
        -------  ------------------------------------  --------  ------------------------------------------
        RUNNING  checkpoint marker, not of all inputs  MARKED    notes I, R and state; sends the marker on
        RUNNING  checkpoint marker of the last input   RUNNING   the same, and stores the snapshot
        MARKED   checkpoint marker of the last input   RUNNING   stores the snapshot
        MARKED   p-unit of an input without marker     MARKED    queues it, and notes it in the snapshot
        any      p-unit                                the same  queues what is new of it
        any      a tuple in each queue, or progress    the same  asks for a query
        any      retain marker                         the same  has the next p-unit of its stream retained,
                                                                 or sends the marker on if it may not be
        any      release marker                        the same  trims its p-units; sends the marker up

    Parameters
    ----------
    name : str
        Its name, which is also the name of the stream that it writes.
    inputs : mapping of str to VectorClock
        The streams that it reads, in the order that decides between tuples of equal time, and their origins.
    function : Function
        What it computes.
    stream : PStream
        What it writes.
    readers : sequence of str
        Who reads that.
    retains : bool
        Whether its stream may be retained.
    origin : VectorClock
        The clock before the first tuple of its stream.

    Notes
    -----
    *FTOperator* of (Scabbard Table 1), which runs Algorithm 1; numbers of its lines stand in the bodies. A
    tuple goes through the function when all queues hold one, the earliest first: the order does not depend
    on arrival.
    """

    def __init__(
        self,
        name: str,
        inputs: Mapping[str, VectorClock],
        function: Function,
        stream: PStream,
        *,
        readers: Sequence[str],
        retains: bool,
        origin: VectorClock,
    ) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.function = function
        self.stream = stream
        self.readers = tuple(readers)
        self.retains = retains
        self.released = VectorClock()
        self.queried = False
        self.behind = False
        self._pending: Pending | None = None
        self.queues: dict[str, deque[tuple[int, Any]]] = {stream: deque() for stream in self.inputs}
        self.state = function.initial
        self._restart(Restart.from_clock(name, inputs, origin))

    def _restart(self, restart: Restart) -> None:
        self.offset = restart.offset
        self.received = dict(restart.received)
        self.consumed = dict(restart.consumed)
        self.silent = dict(restart.silent)
        self.lineage = {stream: Lineage(entries) for stream, entries in restart.lineage.items()}

    def on_marker(self, stream: str, marker: Marker) -> list[Task | Send]:
        """Take a marker that came from an input, or for a release marker from a reader (lines 6 to 16)."""
        match marker:
            case CheckpointMarker(checkpoint):
                return self._on_checkpoint(stream, checkpoint)
            case ReleaseMarker(clock):
                return self._on_release(clock)
            case RetainMarker():
                if not self.retains:
                    return self._broadcast(marker)
                self.stream.retain = True  # line 16
                return []

    def _on_checkpoint(self, stream: str, checkpoint: int) -> list[Task | Send]:
        effects: list[Task | Send] = []
        pending = self._pending
        if pending is None:  # lines 9 to 11
            pending = self.prepare_checkpoint(checkpoint)
            effects += self._broadcast(CheckpointMarker(checkpoint))
        pending.marked.add(stream)  # line 8
        if pending.marked == set(self.inputs):  # lines 12 and 13
            effects += self.checkpoint(pending)
            self._pending = None
        return effects

    def prepare_checkpoint(self, checkpoint: int) -> Pending:
        """Note the parts of the snapshot. They never change later, so they are not copied."""
        restart = Restart(
            offset=self.offset,
            end=self.stream.end,
            received=dict(self.received),
            consumed=dict(self.consumed),
            silent=dict(self.silent),
            lineage={stream: lineage.entries for stream, lineage in self.lineage.items()},
        )
        queues = {stream: list(queue) for stream, queue in self.queues.items()}
        caught = {stream: Lineage(entries) for stream, entries in restart.lineage.items()}
        self._pending = Pending(
            checkpoint, set(), restart, self.state, self.stream.checkpoint(), queues, caught
        )
        return self._pending

    def checkpoint(self, pending: Pending) -> list[CheckpointTask]:
        """Return the tasks that store a snapshot whose markers have all come."""
        received = {
            stream: rows[-1][0] + 1 if rows else pending.restart.received[stream]
            for stream, rows in pending.queues.items()
        }
        lineage = {stream: lineage.entries for stream, lineage in pending.caught.items()}
        restart = replace(pending.restart, received=received, lineage=lineage)
        queues = {stream: tuple(rows) for stream, rows in pending.queues.items()}
        parts = Snapshot(restart, pending.state, pending.results, queues).parts()
        return [
            CheckpointTask(pending.checkpoint, self.name, part, content) for part, content in parts.items()
        ]

    def _on_release(self, clock: VectorClock) -> list[Task | Send]:
        if self.released.dominates(clock):
            return []
        effects: list[Task | Send] = []
        effects += self.stream.trim_from(clock[self.name])  # line 15
        if clock["checkpoint"] > self.released["checkpoint"]:
            effects.append(DiscardTask(self.name, clock["checkpoint"]))
        self.released = self.released.merge(clock)
        return effects + self.send_ack(ReleaseMarker(clock))

    def send_ack(self, marker: ReleaseMarker) -> list[Send]:
        """Return release markers for the operators upstream of this one."""
        return [Send(stream, self.name, marker) for stream in self.inputs]

    def on_unit(self, stream: str, unit: StreamUnit) -> list[Task | Send]:
        """Take a p-unit from an input (lines 17 to 25).

        Raises
        ------
        InternalError
            If tuples are missing before it.
        """
        if unit.offset > self.received[stream]:
            raise InternalError(
                "a p-unit leaves a gap", operator=self.name, stream=stream, offset=unit.offset
            )
        if unit.end < self.received[stream]:  # line 19
            return []
        unit = unit.after(self.received[stream])
        rows = list(enumerate(unit.rows, unit.offset))
        pending = self._pending
        if pending is not None and stream not in pending.marked:  # lines 20 and 21
            pending.queues[stream] += rows
            pending.caught[stream].add(unit.end, unit.clock)
        self.queues[stream] += rows
        self.received[stream] = unit.end  # line 25
        self.lineage[stream].add(unit.end, unit.clock)
        self.behind |= not unit.rows
        return self.on_notification()

    def on_notification(self) -> list[Task | Send]:
        """Ask for a query if there is something to do, and none is under way (lines 26 and 27)."""
        if self.queried or not (self.behind or self._next()):
            return []
        self.queried = True
        return [QueryTask(self.name)]

    def queried_now(self) -> list[Task | Send]:
        """Process the queued tuples, and write one p-unit of results (lines 26 to 28).

        Queues, state and results change together, so that every snapshot sees all of it or nothing.
        """
        self.queried = self.behind = False
        results: list[Any] = []
        while (stream := self._next()) is not None:
            offset, row = self.queues[stream].popleft()
            self.state, made = self.function.apply(self.state, stream, offset, row)
            self.consumed[stream] = offset + 1
            if offset >= self.silent[stream]:
                results += made
        self.offset += len(results)
        return [*self.stream.write(self.set_dependencies(results))]

    def _next(self) -> str | None:
        """Return the input whose first tuple is next: the earliest, if all queues have one."""
        if not all(self.queues.values()):
            return None
        return min(self.inputs, key=lambda stream: self.function.time(self.queues[stream][0][1]))

    def set_dependencies(self, results: Sequence[Any]) -> StreamUnit:
        """Return the p-unit of `results` with the clock of what everything after it depends on."""
        low = self.function.needed(self.state)
        clock = {self.name: self.offset}
        for stream in self.inputs:
            begin = min(low.get(stream, self.consumed[stream]), self.consumed[stream])
            self.lineage[stream].forget(begin)
            clock[consumed(stream, self.name)] = max(self.consumed[stream], self.silent[stream])
            clock[needed(stream, self.name)] = begin
            clock |= passed_on(self.lineage[stream].at(begin), self.name)
        return StreamUnit(self.name, self.offset - len(results), tuple(results), VectorClock(clock))

    def latest_offsets(self) -> dict[str, int]:
        """Return, by input, the offset of the next tuple that it has not received."""
        return dict(self.received)

    def load_state(
        self, restart: Restart, snapshot: Snapshot | None, writers: Mapping[str, VectorClock]
    ) -> None:
        """Start again, with the state and the queues of a snapshot or with empty ones.

        `writers` has by input the clock of its writer now. It may be later than this operator knew: what is
        durable up to some p-unit is not made again, even if that p-unit ends in the midst of what came here.
        """
        self._restart(restart)
        for stream, clock in writers.items():
            if clock[stream] <= self.received[stream]:
                self.lineage[stream].add(self.received[stream], clock)
        if snapshot is not None:
            self.state = snapshot.state
            self.queues = {stream: deque(rows) for stream, rows in snapshot.queues.items()}

    def _broadcast(self, marker: Marker) -> list[Task | Send]:
        return [Send(self.name, reader, marker) for reader in self.readers]
