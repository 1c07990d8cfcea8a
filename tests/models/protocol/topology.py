"""The shape of a graph: sources, operators and sinks, checked and put in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.errors import InvalidUsageError
from tests.models.protocol.lineage import consumed, needed, passed_on
from tests.models.protocol.operator import Function
from tests.models.protocol.vector_clock import VectorClock

__all__ = ["OperatorSpec", "SinkSpec", "SourceSpec", "Topology"]


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """An external source and its ingress stream.

    Parameters
    ----------
    name : str
        Also the name of the ingress stream.
    replayable : bool
        Whether it sends again what was not acknowledged. If not, each of its p-units is retained.
    retained : bool
        Whether retain markers make p-units of the ingress stream durable, and not ones further down.
    """

    name: str
    replayable: bool = True
    retained: bool = False


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """An operator and the stream that it writes.

    Parameters
    ----------
    name : str
        Also the name of its stream.
    inputs : sequence of str
        Sources and operators; of tuples of equal time those of the first go first.
    function : Function
        What it computes.
    stateful : bool
        Whether its function has a state.
    fault_tolerant : bool
        Whether it is checkpointed. What is not has one input and no state, and is started again by its
        lineage.
    retained : bool
        Whether retain markers make p-units of its stream durable.
    """

    name: str
    inputs: Sequence[str]
    function: Function
    stateful: bool = False
    fault_tolerant: bool = False
    retained: bool = False


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """An external sink of one stream. One that is not transactional stores a clock with each p-unit."""

    name: str
    stream: str
    transactional: bool = False


class Topology:
    """Sources, operators in topological order, and sinks.

    Parameters
    ----------
    sources, operators, sinks : iterable of specs
        Operators in any order.

    Raises
    ------
    InvalidUsageError
        If names are used twice or are not there, there is a cycle, somebody's stream is read by nobody, or an
        operator needs checkpoints and would not have them.

    Notes
    -----
    An operator before a sink, and any downstream of a fault-tolerant one, are fault-tolerant (Scabbard
    §3.1); this is seen to here. A departure: an operator with several inputs has to be, also without a
    state, because how far it is in each of them is one.
    """

    def __init__(
        self, sources: Iterable[SourceSpec], operators: Iterable[OperatorSpec], sinks: Iterable[SinkSpec]
    ) -> None:
        self.sources = {source.name: source for source in sources}
        self.sinks = {sink.name: sink for sink in sinks}
        specs = list(operators)
        names = [*self.sources, *(spec.name for spec in specs), *self.sinks]
        for name in names:
            if names.count(name) > 1 or name == "checkpoint" or not name or set(name) & set("<>|"):
                raise InvalidUsageError("a name is used twice or cannot be one", name=name)
        last = {sink.stream for sink in self.sinks.values()}
        self.operators = self._sorted(
            [replace(spec, fault_tolerant=spec.fault_tolerant or spec.name in last) for spec in specs]
        )
        self.readers: dict[str, list[str]] = {name: [] for name in (*self.sources, *self.operators)}
        for spec in self.operators.values():
            for stream in spec.inputs:
                self.readers[stream].append(spec.name)
        for sink in self.sinks.values():
            if sink.stream not in self.readers:
                raise InvalidUsageError("a sink reads a stream that is not there", sink=sink.name)
            self.readers[sink.stream].append(sink.name)
        for name, readers in self.readers.items():
            if not readers:
                raise InvalidUsageError("nobody reads this stream", stream=name)

    def _sorted(self, specs: list[OperatorSpec]) -> dict[str, OperatorSpec]:
        done: dict[str, OperatorSpec] = {}
        while specs:
            ready = [spec for spec in specs if all(s in self.sources or s in done for s in spec.inputs)]
            if not ready:
                raise InvalidUsageError(
                    "operators read each other or what is not there", operator=specs[0].name
                )
            for spec in ready:
                if not spec.inputs or len(set(spec.inputs)) < len(spec.inputs):
                    raise InvalidUsageError("an operator reads no stream, or one twice", operator=spec.name)
                closed = spec.fault_tolerant or any(s in done and done[s].fault_tolerant for s in spec.inputs)
                if not closed and (spec.stateful or len(spec.inputs) > 1):
                    raise InvalidUsageError(
                        "an operator has to be fault-tolerant",
                        hint="lineage alone cannot start one again that has a state or several inputs",
                        operator=spec.name,
                    )
                done[spec.name] = replace(spec, fault_tolerant=closed)
                specs.remove(spec)
        return done

    @property
    def fault_tolerant(self) -> list[str]:
        """The operators that are checkpointed."""
        return [name for name, spec in self.operators.items() if spec.fault_tolerant]

    def is_border(self, stream: str) -> bool:
        """Return whether no checkpoint marker comes through this stream: its writer is not checkpointed."""
        return stream in self.sources or not self.operators[stream].fault_tolerant

    def entries(self) -> list[str]:
        """Return the operators at which checkpoint markers are inserted."""
        return [o for o in self.fault_tolerant if any(self.is_border(s) for s in self.operators[o].inputs)]

    def retains(self, stream: str) -> bool:
        """Return whether retain markers end at this stream."""
        if stream in self.sources:
            return self.sources[stream].retained or not self.sources[stream].replayable
        return self.operators[stream].retained

    def inputs(self, operator: str) -> dict[str, VectorClock]:
        """Return the streams that an operator reads, with their origins."""
        return {stream: self.origin(stream) for stream in self.operators[operator].inputs}

    def origin(self, stream: str) -> VectorClock:
        """Return the clock before the first tuple of a stream."""
        found = {stream: 0}
        for before, origin in (self.inputs(stream) if stream in self.operators else {}).items():
            found |= {consumed(before, stream): 0, needed(before, stream): 0, **passed_on(origin, stream)}
        return VectorClock(found)
