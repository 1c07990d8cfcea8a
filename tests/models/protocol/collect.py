"""The requests of a recovery. All other data is not needed.

The same function answers both questions. `requests` goes through the graph against the topological order:
each operator is asked for its stream from some offset on, finds where it would have to start again for that,
and asks its inputs in turn. Recovery makes these requests; garbage collection releases all data that is not
requested. The function sees only durable facts, so no recovery needs released data, whenever the crash comes.

There are two places to start from: the last complete checkpoint, or, with empty states, the results that
were committed last, whose lineage says what the next ones depend on. A place from which sources would have
to send what they were told to forget is out; at any time one of the two is left, because all that was
released was before one of them. Both grow, and that one stays (0006, invariants 4 and 5).

Notes
-----
(Scabbard §3.2, §3.3, Fig. 4; cases (ii) and (iii) of §3.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.errors import InternalError
from tests.models.protocol.lineage import Extent, Lineage, consumed, needed
from tests.models.protocol.operator import Restart
from tests.models.protocol.topology import Topology
from tests.models.protocol.vector_clock import VectorClock

__all__ = ["Checkpoint", "Facts", "Requests", "requests", "run_from"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: where each fault-tolerant operator starts again."""

    number: int
    restarts: Mapping[str, Restart]


@dataclass(slots=True)
class Facts:
    """The facts that are known to be durable.

    Parameters
    ----------
    committed : dict of str to VectorClock
        By sink, the clock of the last p-unit that came out, or the origin of its stream.
    checkpoint : Checkpoint, optional
        The last complete one.
    extents : dict of str to list of Extent
        By stream, the durable p-units that were not released.
    acked : dict of str to int
        By source, from where on it sends again.
    """

    committed: dict[str, VectorClock]
    checkpoint: Checkpoint | None
    extents: dict[str, list[Extent]]
    acked: dict[str, int]

    @classmethod
    def none(cls, topology: Topology) -> Facts:
        """Return the facts at the start, when nothing is durable."""
        return cls(
            committed={name: topology.origin(sink.stream) for name, sink in topology.sinks.items()},
            checkpoint=None,
            extents={stream: [] for stream in topology.readers},
            acked=dict.fromkeys(topology.sources, 0),
        )


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a recovery.

    Parameters
    ----------
    checkpoint : int or None
        The checkpoint whose snapshots are loaded; None if states begin empty.
    clocks : dict of str to VectorClock
        By source and by operator that has no snapshot, the clock at which it starts again.
    loads : dict of str to sequence of Extent
        By stream, the durable p-units to load, in order, without a gap.
    offsets : dict of str to int
        From where each reader ``o`` reads each stream ``s``, named ``s<o``.
    lowest : VectorClock
        What is needed at all, named as in a release marker, without the checkpoint.
    """

    checkpoint: int | None
    clocks: dict[str, VectorClock] = field(default_factory=dict)
    loads: dict[str, Sequence[Extent]] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    lowest: VectorClock = field(default_factory=VectorClock)


def run_from(extents: Iterable[Extent], offset: int) -> list[Extent]:
    """Return the p-units that hold a stream from `offset` up to the first gap; none if `offset` is in one."""
    run: list[Extent] = []
    at = offset
    for extent in sorted(extents, key=lambda extent: (extent.offset, extent.end)):
        if extent.end > at and extent.offset <= at:
            run.append(extent)
            at = extent.end
    return run


def requests(topology: Topology, facts: Facts) -> Requests:
    """Return the requests of a recovery that knows these facts.

    Raises
    ------
    InternalError
        If something was released that every recovery needs.
    """
    from_results = _ask(topology, facts, None)
    able = [from_results] if _possible(from_results, facts) else []
    if facts.checkpoint is not None:
        from_checkpoint = _ask(topology, facts, facts.checkpoint)
        if _possible(from_checkpoint, facts):
            able.append(from_checkpoint)
    if not able:
        raise InternalError("something was released that a recovery needs", acked=facts.acked)
    first, last = able[0], able[-1]
    return first if first.lowest.dominates(last.lowest) else last


def _possible(asked: Requests, facts: Facts) -> bool:
    return all(asked.lowest[consumed("", source)] >= acked for source, acked in facts.acked.items())


def _ask(topology: Topology, facts: Facts, checkpoint: Checkpoint | None) -> Requests:
    asked = Requests(checkpoint.number if checkpoint is not None else None)
    wanted: dict[str, list[tuple[int, VectorClock]]] = {stream: [] for stream in topology.readers}
    for name, sink in topology.sinks.items():
        clock = facts.committed[name]
        wanted[sink.stream].append((clock[sink.stream], clock))
        asked.offsets[needed(sink.stream, name)] = clock[sink.stream]
    for operator in reversed(topology.operators):
        spec = topology.operators[operator]
        if checkpoint is not None and spec.fault_tolerant:
            restart = checkpoint.restarts[operator]
            asked.loads[operator] = run_from(facts.extents[operator], restart.end)
        else:
            clock = _offered(operator, facts, wanted, asked)
            restart = Restart.from_clock(operator, topology.inputs(operator), clock)
        for stream in spec.inputs:
            offset = restart.received[stream]
            wanted[stream].append((offset, Lineage(restart.lineage[stream]).at(offset)))
            asked.offsets[needed(stream, operator)] = offset
    lowest = {stream: min(offset for offset, _ in by) for stream, by in wanted.items()}
    for source in topology.sources:
        lowest[consumed("", source)] = _offered(source, facts, wanted, asked)[source]
    return replace(asked, lowest=VectorClock(lowest))


def _offered(
    stream: str, facts: Facts, wanted: Mapping[str, list[tuple[int, VectorClock]]], asked: Requests
) -> VectorClock:
    """Return where the writer of `stream` starts again: after what is durable, or as its readers want."""
    first = min(offset for offset, _ in wanted[stream])
    run = run_from(facts.extents[stream], first)
    asked.loads[stream] = run
    clocks = [run[-1].clock] if run else [clock for _, clock in wanted[stream]]
    clock = clocks[0]
    for other in clocks[1:]:
        clock = clock.meet(other)
    asked.clocks[stream] = clock
    return clock
