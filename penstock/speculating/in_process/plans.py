"""Plan waiting requests: find the requests that may run before earlier requests (H-Store §6.3.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.procedures.compiler.program import Program, event_schema
from penstock.procedures.in_process.arrow_rows import arrow_errors, batches_of
from penstock.procedures.in_process.request_queue import GROUPED_TYPES
from penstock.procedures.texts import Numbers
from penstock.speculating.in_process.footprints import Booleans, Footprint, Footprints, choose_early

if TYPE_CHECKING:
    from penstock.procedures.in_process.request_queue import Request
    from penstock.speculating.in_process.speculation import Speculation

__all__ = ["EarlyRequests", "Kind", "Offer", "Plan"]

_SLOTS_PER_ACCESS = 16
"""The number of slots per access; with so many slots, different rows rarely share a slot."""

_DECLARED_TYPES = GROUPED_TYPES | {Decimal, list}
"""Python types whose values Arrow can cast to the type that a procedure declares for an attribute."""

Find = Callable[[str, pa.Schema], object]


@dataclass(slots=True, eq=False)
class Kind:
    """Requests of one procedure whose values have the same types.

    Attributes
    ----------
    procedure, program, events
        The procedure's name, its program, and the events of the requests.
    places : ndarray
        The position of each event's request among all requests of the plan.
    homes : ndarray
        The partition of each request; a number below 0 if the request needs several partitions.
    """

    procedure: str
    program: Program
    events: pa.RecordBatch
    places: Numbers
    homes: Numbers


@dataclass(slots=True, eq=False)
class EarlyRequests:
    """Requests of one kind that run before their turn.

    Attributes
    ----------
    kind : Kind
        All requests of the kind.
    taken : ndarray of bool
        Whether each request of the kind runs early.
    results : pyarrow.RecordBatch or None
        The results of the requests in `done`.
    done : ndarray of int64
        The positions, within the kind, of the requests that have run.
    """

    kind: Kind
    taken: Booleans
    results: pa.RecordBatch | None = None
    done: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))


def _signature(request: Request, footprints: Footprints) -> object:
    """Return a value that all requests of one kind share; the request itself if it fits in no kind."""
    types = tuple(map(type, request.attributes.values()))
    known = _DECLARED_TYPES if footprints.declares_event(request.procedure) else GROUPED_TYPES
    if not known.issuperset(types):
        return request
    return request.procedure, tuple(request.attributes), types


class Plan:
    """The requests that wait, in their order. Requests without conflicts may run early.

    Parameters
    ----------
    groups : sequence
        The requests, grouped by their signatures.
    speculation : Speculation
        Finds the rows that requests may access.
    find : callable
        Returns the program of a procedure for events with the given columns.
    """

    def __init__(self, groups: Sequence[Sequence[Request]], speculation: Speculation, find: Find) -> None:
        self.requests = [one for group in groups for one in group]
        self._footprints = speculation.footprints
        ends = np.cumsum([len(group) for group in groups])
        numbers: dict[object, int] = {}
        of_group = [
            numbers.setdefault(_signature(group[0], self._footprints), len(numbers)) for group in groups
        ]
        self._signatures = np.repeat(np.array(of_group), np.diff(ends, prepend=0))
        self.waits = np.ones(len(self.requests), np.bool_)
        self.kinds: list[Kind | None] = []
        parts = list[tuple[Numbers, Footprint]]()
        for number in range(len(numbers)):
            kind = self._read(np.flatnonzero(self._signatures == number), speculation, find)
            self.kinds.append(kind and kind[0])
            if kind is not None:
                parts.append((kind[0].places, kind[1]))
        self._is_known = np.array([kind is not None for kind in self.kinds])[self._signatures]
        self._sort(parts)

    def _read(self, places: Numbers, speculation: Speculation, find: Find) -> tuple[Kind, Footprint] | None:
        """Return requests of one signature and their accesses; None if the accesses are not known yet."""
        requests = [self.requests[place] for place in places.tolist()]
        procedure = requests[0].procedure
        try:
            with arrow_errors(procedure):
                rows = pa.RecordBatch.from_struct_array(pa.array([one.attributes for one in requests]))
            program = find(procedure, rows.schema)
            if not isinstance(program, Program):
                return None
            batches = batches_of(rows, event_schema(program.event), owner=program.name)
            found = speculation.read(program, batches[0]) if len(batches) == 1 else None
        except (PenstockError, pa.ArrowException):  # the requests run, and fail again, in their turn
            return None
        return found and (Kind(procedure, program, batches[0], places, found[1]), found[0])

    def _sort(self, parts: Sequence[tuple[Numbers, Footprint]]) -> None:
        """Sort the accesses of all kinds by their requests."""
        none = [np.zeros(0, np.int64)]
        owners = np.concatenate([places[one.events] for places, one in parts] or none)
        order = np.argsort(owners, kind="stable")
        self._starts = np.searchsorted(owners[order], np.arange(len(self.requests) + 1))
        self._bits = np.concatenate([one.bits for _, one in parts] or none)[order]
        size = 1 << int(_SLOTS_PER_ACCESS * len(owners)).bit_length()
        self._rows = np.concatenate([one.rows for _, one in parts] or none)[order]
        self._slots = self._rows & (size - 1)
        self._size = size

    def _choose(
        self,
        wanted: Booleans,
        waits: Booleans,
        stalled: Booleans | None = None,
        accesses: Footprint | None = None,
    ) -> tuple[Booleans, int]:
        """Return whether each request may run early, and the number of wanted requests that may not.

        Parameters
        ----------
        wanted, waits : ndarray
            See `choose_early`.
        stalled : ndarray, optional
            Whether each request is part of the call that stalls the partitions.
        accesses : Footprint, optional
            Further accesses with which the chosen requests must not conflict.
        """
        barriers = np.flatnonzero(waits & ~self._is_known)
        end = int(barriers[0]) if len(barriers) else len(waits)
        marks = np.zeros(self._size + 1, np.uint64)
        chosen = np.zeros(len(waits), np.bool_)
        lists = self._starts, self._bits, self._slots, self._footprints.same, self._footprints.always
        if stalled is not None:
            choose_early(*lists, stalled, np.zeros_like(stalled), marks, chosen)
        if accesses is not None:
            bits = np.uint64(1) << accesses.bits.astype(np.uint64)
            np.bitwise_or.at(marks, accesses.rows & (self._size - 1), bits)
            marks[-1] |= np.bitwise_or.reduce(bits, initial=np.uint64(0))
        return chosen, choose_early(*lists, waits[:end], wanted[:end], marks, chosen)

    def take(self) -> Numbers:
        """Take the next requests: the first request, and requests of its signature that may run with it."""
        first = int(np.argmax(self.waits))
        number = self._signatures[first]
        if self._is_known[first]:
            chosen, _ = self._choose(self._signatures == number, self.waits)
        else:
            chosen = self.waits & (self._signatures == number)
            others = np.flatnonzero(self.waits & ~chosen)
            chosen[others[0] if len(others) else len(chosen) :] = False
        self.waits &= ~chosen
        return np.flatnonzero(chosen)

    def choose_beside(
        self, stalled: Numbers, *, checks: bool
    ) -> Iterator[tuple[Kind, Booleans, int, Callable[[Booleans], None]]]:
        """Yield the requests of each kind that may run beside stalled requests.

        Only requests for one partition may run. Each tuple has the kind, whether each of its requests may
        run, the number of conflicting requests, and a function. The caller must call the function with a mask
        of the requests that it will run.

        Parameters
        ----------
        stalled : ndarray
            The positions of the stalled requests.
        checks : bool
            Whether to leave out requests that conflict.
        """
        waits, running = self.waits.copy(), np.zeros_like(self.waits)
        running[stalled] = True
        order = self._signatures[np.flatnonzero(waits)]
        for number in dict.fromkeys(order.tolist()):
            kind = self.kinds[number]
            if kind is None:
                return
            wanted = np.zeros_like(waits)
            wanted[kind.places] = kind.homes >= 0
            if checks:
                chosen, conflicts = self._choose(wanted, waits, running)
            else:
                chosen, conflicts = wanted & waits & ~np.logical_or.accumulate(waits & ~self._is_known), 0

            def run(taken: Booleans, kind: Kind = kind) -> None:
                waits[kind.places[taken]] = False

            yield kind, chosen[kind.places], conflicts, run

    def count_conflicts(self, stalled: Numbers, taken: Sequence[Numbers]) -> int:
        """Return the number of requests in `taken` that conflict with stalled or with earlier requests.

        Parameters
        ----------
        stalled : ndarray
            The positions of the stalled requests.
        taken : sequence of ndarray
            For each kind, the positions of the requests that ran beside the stalled requests.
        """
        waits, running = self.waits.copy(), np.zeros_like(self.waits)
        running[stalled] = True
        conflicts = 0
        for places in taken:
            wanted = np.zeros_like(waits)
            wanted[places] = True
            conflicts += self._choose(wanted, waits, running)[1]
            waits[places] = False
        return conflicts

    def choose_at(self, home: int, accesses: Footprint | None) -> Iterator[tuple[Kind, Booleans]]:
        """Yield each kind, and whether each of its requests may run early in a partition.

        A request may not run if it conflicts with `accesses`. The caller must clear `waits` for the requests
        that it runs.
        """
        for kind in self.kinds:
            if kind is None:
                continue
            at_home = kind.homes == home
            if not self.waits[kind.places[at_home]].any():
                continue
            wanted = np.zeros_like(self.waits)
            wanted[kind.places[at_home]] = True
            yield kind, self._choose(wanted, self.waits, accesses=accesses)[0][kind.places]

    def steps_of(self, kind: Kind, taken: Booleans) -> Footprint:
        """Return the accesses of the taken requests of a kind."""
        chosen = np.zeros_like(self.waits)
        chosen[kind.places[taken]] = True
        kept = np.repeat(chosen, np.diff(self._starts))
        owners = np.repeat(np.arange(len(chosen)), np.diff(self._starts))
        return Footprint(owners[kept], self._bits[kept], self._rows[kept])


@dataclass(slots=True, eq=False)
class Offer:
    """The requests that wait while a group runs.

    Attributes
    ----------
    plan : Plan
        The plan, which has all requests.
    group : ndarray
        The positions of the group's requests in the plan.
    early : list of EarlyRequests
        The requests that ran beside the group.
    """

    plan: Plan
    group: Numbers
    early: list[EarlyRequests] = field(default_factory=list)
