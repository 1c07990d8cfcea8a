"""Recovery of the whole graph from what is durable, in four phases that are timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import CorruptDataError, InvalidUsageError
from tests.models.protocol.collect import Checkpoint, Facts, Requests, requests
from tests.models.protocol.graph import PersistentOperatorGraph
from tests.models.protocol.lineage import StreamUnit
from tests.models.protocol.operator import FTOperator, Restart, Snapshot
from tests.models.protocol.tasks import Storage, Task
from tests.models.protocol.topology import Topology

__all__ = ["Recovery", "RecoveryReport"]


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The work of a recovery and the seconds that each phase took."""

    checkpoint: int | None
    units_loaded: int
    progress_recovery_s: float
    upstream_requesting_s: float
    data_recovery_s: float
    upstream_replay_s: float


class Recovery:
    """One recovery; a crash in it is followed by another one.

    The driver calls, in this order::

        phase                call                    what it does
        -------------------  ----------------------  ----------------------------------------------------
        progress recovery    progress_recovery()     brings out what was prepared up to the progress
        upstream requesting  upstream_requesting()   deletes p-units behind a gap: they will be made again
        data recovery        load(x) for each of     reads; in any order, also in parallel
                             `loads`
        upstream replay      upstream_replay()       gives the graph, which runs from here on

    Parameters
    ----------
    topology : Topology
        The same as before the crash.
    storage : Storage
        What survived.
    clock : callable
        Returns seconds on a clock that never goes back.
    operator : type
        The operators' type.

    Notes
    -----
    (Scabbard §3.2; Algorithm 1, lines 37 to 40). Sources send again from the end of their ingress streams.
    """

    def __init__(
        self,
        topology: Topology,
        storage: Storage,
        clock: Callable[[], float],
        operator: type[FTOperator] = FTOperator,
    ) -> None:
        self._operator = operator
        self._topology = topology
        self._storage = storage
        self._clock = clock
        self._times = [clock()]
        self._facts = Facts.none(topology)
        self._asked = Requests(None)
        self._restarts: dict[str, Restart] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._units: dict[str, list[StreamUnit]] = {}
        self.loads: list[str] = []

    def _ended(self, phase: int) -> None:
        if len(self._times) != phase:
            raise InvalidUsageError(
                "phases of a recovery follow each other", phase=phase, now=len(self._times)
            )
        self._times.append(self._clock())

    def progress_recovery(self) -> None:
        """Find out which results were committed, which checkpoint is complete, and which p-units are durable.

        Raises
        ------
        CorruptDataError
            If a p-unit of a complete checkpoint is missing.
        """
        topology, storage, facts = self._topology, self._storage, self._facts
        for name, sink in topology.sinks.items():
            clock = storage.progress(name) or topology.origin(sink.stream)
            if sink.transactional:
                storage.resolve(name, clock[sink.stream])
            facts.committed[name] = clock
        if completed := storage.completed():
            number = max(completed)
            self._restarts = {name: self._restart(number, name) for name in topology.fault_tolerant}
            facts.checkpoint = Checkpoint(number, self._restarts)
        for stream in topology.readers:
            facts.extents[stream] = [unit.extent for unit in storage.units(stream)]
        for source in topology.sources:
            facts.acked[source] = storage.acked(source)
        self._ended(1)

    def _restart(self, number: int, operator: str) -> Restart:
        parts = self._storage.parts(number, operator)
        if "restart" not in parts:
            raise CorruptDataError("a checkpoint lacks a p-unit", checkpoint=number, operator=operator)
        restart: Restart = parts["restart"]
        return restart

    def upstream_requesting(self) -> None:
        """Find out which p-units to load and where each operator starts again; delete the useless p-units.

        Raises
        ------
        InternalError
            If something was released that is needed.
        """
        self._asked = asked = requests(self._topology, self._facts)
        for stream in self._topology.readers:
            run = asked.loads[stream]
            end = run[-1].end if run else self._begin(stream)
            self._storage.truncate(stream, end)
            self._facts.extents[stream] = [e for e in self._facts.extents[stream] if e.offset < end]
        self.loads = [*self._topology.operators, *self._topology.sources]
        self._ended(2)

    def _begin(self, stream: str) -> int:
        """Return where the writer of a stream goes on, or where the results in its snapshot end."""
        clock = self._asked.clocks.get(stream)
        return self._restarts[stream].end if clock is None else clock[stream]

    def load(self, name: str) -> None:
        """Load the snapshot of an operator, where it has one, and its stream, or that of a source.

        Raises
        ------
        CorruptDataError
            If a p-unit of a complete checkpoint is missing.
        """
        durable = {unit.extent: unit for unit in self._storage.units(name)}
        units = [durable[extent] for extent in self._asked.loads[name]]
        number = self._asked.checkpoint
        if number is not None and name not in self._asked.clocks:
            try:
                snapshot = Snapshot.from_parts(self._storage.parts(number, name))
            except KeyError as missing:
                raise CorruptDataError(
                    "a checkpoint lacks a p-unit", checkpoint=number, operator=name, part=missing.args[0]
                ) from None
            self._snapshots[name] = snapshot
            units = [*snapshot.results, *units]
        self._units[name] = units

    def upstream_replay(self) -> tuple[PersistentOperatorGraph, list[Task], RecoveryReport]:
        """Return the graph, ready to run, its first tasks, and the report.

        Raises
        ------
        InvalidUsageError
            If something was not loaded.
        """
        if missing := set(self.loads) - set(self._units):
            raise InvalidUsageError("a recovery loads everything first", missing=sorted(missing))
        self._ended(3)
        graph = PersistentOperatorGraph(self._topology, self._operator)
        graph.facts = self._facts
        for name, units in self._units.items():
            graph.streams[name].load_stream(units[0].offset if units else self._begin(name), units)
        clocks = {source: self._asked.clocks[source] for source in self._topology.sources}
        for name, operator in graph.operators.items():
            snapshot = self._snapshots.get(name)
            if snapshot is not None:
                restart = snapshot.restart
            else:
                restart = Restart.from_clock(name, self._topology.inputs(name), self._asked.clocks[name])
            operator.load_state(restart, snapshot, {stream: clocks[stream] for stream in operator.inputs})
            clocks[name] = operator.set_dependencies(()).clock
        tasks = graph.begin(self._asked.offsets, self._storage.last_checkpoint())
        self._ended(4)
        phases = [after - before for before, after in zip(self._times, self._times[1:], strict=False)]
        loaded = sum(map(len, self._units.values()))
        return graph, tasks, RecoveryReport(self._asked.checkpoint, loaded, *phases)
