"""Queued requests of an open database; later requests may run while earlier requests wait."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.procedures.compiler.program import Program, event_schema
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.arrow_rows import arrow_errors, batches_of
from penstock.procedures.in_process.command_log import Call
from penstock.speculating.in_process import Speculation, Waiting

if TYPE_CHECKING:
    from penstock.procedures.in_process.open_programs import OpenPrograms
    from penstock.procedures.in_process.request_queue import Request
    from penstock.procedures.partitions.partitioned_tables import State

__all__ = ["QueuedGroups", "speculated_calls"]

Answer = Callable[[Sequence["Request"], Sequence[dict[str, Any]]], None]


def _speculation(state: State) -> Speculation | None:
    return None if isinstance(state, TableSet) else state.speculation


def speculated_calls(state: State) -> Iterator[Call]:
    """Take the calls that ran concurrently with the last call, in their order, for the log."""
    speculation = _speculation(state)
    if speculation is None:
        return iter(())
    unlogged, speculation.unlogged = speculation.unlogged, []
    return (Call(one.procedure, one.program.digest, one.events.take(pa.array(one.taken))) for one in unlogged)


class QueuedGroups:
    """Groups of requests that run in order, except for requests that ran concurrently with earlier groups.

    Parameters
    ----------
    groups : list
        The groups.
    state : State
        The tables.
    programs : OpenPrograms
        Finds programs.
    """

    def __init__(self, groups: list[Sequence[Request]], state: State, programs: OpenPrograms) -> None:
        self._groups, self._programs = groups, programs
        self._speculation = _speculation(state)
        self._number = 0
        self._waiting: list[tuple[int, Waiting]] = []
        self._unanswered: list[tuple[Sequence[Request], pa.RecordBatch]] = []

    def __iter__(self) -> Iterator[Sequence[Request]]:
        """Yield the requests of each group that have not run."""
        for number in range(len(self._groups)):
            self._number = number
            if self._groups[number]:
                yield self._groups[number]

    @contextlib.contextmanager
    def offer_later(self) -> Iterator[None]:
        """Offer the groups after the current one to the call in this context.

        The caller holds the lock of the database meanwhile: otherwise a call of another thread could take the
        offer before the current group has run.
        """
        if self._speculation is None:
            yield
            return
        self._speculation.offer_groups = partial(self._offer, self._speculation)
        try:
            yield
        finally:
            self._speculation.offer_groups = tuple
            self._leave_out_speculated()

    def _offer(self, speculation: Speculation) -> Iterator[Waiting]:
        """Yield later groups, each once, until a group cannot be checked."""
        speculation.offer_groups = tuple
        for number in range(self._number + 1, len(self._groups)):
            group = self._groups[number]
            if not group:
                continue
            try:
                with arrow_errors(group[0].procedure):
                    rows = pa.RecordBatch.from_struct_array(pa.array([one.attributes for one in group]))
                program = self._programs.find(group[0].procedure, rows.schema)
                if not isinstance(program, Program):
                    return
                batches = batches_of(rows, event_schema(program.event), owner=program.name)
            except PenstockError:  # the group fails again in its turn
                return
            if len(batches) != 1:
                return
            waiting = Waiting(group[0].procedure, program, batches[0])
            self._waiting.append((number, waiting))
            yield waiting

    def _leave_out_speculated(self) -> None:
        """Remove the requests that ran concurrently with the current group from their own groups."""
        for number, waiting in self._waiting:
            if waiting.results is not None:
                group, places = self._groups[number], waiting.taken.tolist()
                self._unanswered.append(([group[place] for place in places], waiting.results))
                taken = set(places)
                self._groups[number] = [one for place, one in enumerate(group) if place not in taken]
        self._waiting = []

    def answer_speculated(self, answer: Answer) -> None:
        """Answer the requests that ran concurrently with the last group."""
        unanswered, self._unanswered = self._unanswered, []
        for group, results in unanswered:
            answer(group, results.to_pylist())
