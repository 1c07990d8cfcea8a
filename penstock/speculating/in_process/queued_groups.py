"""Group the queued requests of an open database; later requests may run before or beside earlier requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.command_log import Call
from penstock.procedures.in_process.request_queue import group_requests
from penstock.procedures.texts import Numbers
from penstock.speculating.in_process.plans import Offer, Plan
from penstock.speculating.in_process.speculation import Speculation

if TYPE_CHECKING:
    from penstock.procedures.in_process.open_programs import OpenPrograms
    from penstock.procedures.in_process.request_queue import Request
    from penstock.procedures.partitions.partitioned_tables import State

__all__ = ["QueuedGroups", "speculated_calls"]

MAX_PLANNED = 1 << 12
"""At most this many requests are planned together, except for a single group that is larger."""

MIN_USELESS_CALLS = 4
"""If no request has run early during this many calls, the remaining requests are not planned."""

Answer = Callable[[Sequence["Request"], Sequence[dict[str, Any]]], None]


def _speculation(state: State) -> Speculation | None:
    return None if isinstance(state, TableSet) else state.speculation


def speculated_calls(state: State) -> Iterator[Call]:
    """Take the calls that ran beside the last call and are not logged yet, in their order."""
    speculation = _speculation(state)
    if speculation is None:
        return iter(())
    unlogged, speculation.unlogged = speculation.unlogged, []
    return (
        Call(one.kind.procedure, one.kind.program.digest, one.kind.events.take(pa.array(one.done)))
        for one in unlogged
    )


class QueuedGroups:
    """Groups of requests that run in order, except for requests that may run early.

    Parameters
    ----------
    groups : list
        The groups of requests.
    state : State
        The tables.
    programs : OpenPrograms
        Finds the programs of procedures.
    max_planned : int
        See `MAX_PLANNED`, the default.
    """

    def __init__(
        self,
        groups: list[Sequence[Request]],
        state: State,
        programs: OpenPrograms,
        max_planned: int = MAX_PLANNED,
    ) -> None:
        self._groups, self._programs, self._max_planned = groups, programs, max_planned
        self._speculation = _speculation(state)
        self._offer: Offer | None = None
        self._unanswered: list[tuple[Sequence[Request], pa.RecordBatch]] = []

    def __iter__(self) -> Iterator[Sequence[Request]]:
        """Yield groups of requests that have not run yet."""
        if self._speculation is None or len(self._groups) == 1:
            yield from self._groups
            return
        for groups in _split_for_plans(self._groups, self._max_planned):
            with self._speculation.try_plan(sum(map(len, groups))) as plans:
                if plans and len(groups) > 1:
                    yield from self._planned(groups, self._speculation)
                else:
                    yield from groups

    def _planned(
        self, groups: Sequence[Sequence[Request]], speculation: Speculation
    ) -> Iterator[Sequence[Request]]:
        """Yield the requests of the next call: the first request, and all requests that may run with it."""
        plan = Plan(groups, speculation, self._programs.find)
        early = calls = 0
        while plan.waits.any():
            if calls == MIN_USELESS_CALLS and not early:
                left = zip(plan.requests, plan.waits.tolist(), strict=True)
                yield from group_requests([one for one, waits in left if waits])
                return
            before = int(np.argmax(plan.waits))
            group = plan.take()
            merged = len(group) - _count_first(plan, before, group)
            speculation.merged += merged
            offer = self._offer = Offer(plan, group)
            yield [plan.requests[place] for place in group.tolist()]
            self._offer = None
            early, calls = early + merged + len(offer.early), calls + 1

    @contextlib.contextmanager
    def offer_later(self) -> Iterator[None]:
        """Offer later requests to the call in this context. The call may run them beside its own requests.

        The caller must hold the lock of the database. Otherwise a call of another thread could take the offer
        before the current group has run.
        """
        offer = self._offer
        if self._speculation is None or offer is None:
            yield
            return
        self._speculation.offer = offer
        try:
            yield
        finally:
            self._speculation.offer = None
            for one in offer.early:
                places = one.kind.places[one.done].tolist()
                if one.results is not None:
                    self._unanswered.append(([offer.plan.requests[place] for place in places], one.results))

    def answer_speculated(self, answer: Answer) -> None:
        """Answer the requests that ran beside the last group."""
        unanswered, self._unanswered = self._unanswered, []
        for group, results in unanswered:
            answer(group, results.to_pylist())


def _count_first(plan: Plan, first: int, group: Numbers) -> int:
    """Return how many requests of a group come before the first request that still waits."""
    later = np.flatnonzero(plan.waits[first:])
    return int(np.searchsorted(group, first + later[0])) if len(later) else len(group)


def _split_for_plans(
    groups: Sequence[Sequence[Request]], max_planned: int
) -> Iterator[Sequence[Sequence[Request]]]:
    """Yield consecutive groups that are planned together; see `MAX_PLANNED`."""
    begin = size = 0
    for place, group in enumerate(groups):
        if size and size + len(group) > max_planned:
            yield groups[begin:place]
            begin, size = place, 0
        size += len(group)
    yield groups[begin:]
