"""Queued requests of an open database; later requests may run while earlier ones wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.procedures.compiler.program import Program, event_schema
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.arrow_rows import batches_of
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
    """Yield the calls that ran beside the last call, in their order, for the log."""
    speculation = _speculation(state)
    while speculation is not None and speculation.unlogged:
        one = speculation.unlogged.pop(0)
        yield Call(one.procedure, one.program.digest, one.events.take(pa.array(one.taken)))


class QueuedGroups:
    """Groups of requests that run in order, except for requests that ran beside earlier groups.

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
        self._waiting: list[tuple[int, Waiting]] = []

    def __iter__(self) -> Iterator[Sequence[Request]]:
        """Yield the requests of each group that have not run, and offer the later groups."""
        try:
            for number in range(len(self._groups)):
                if self._speculation is not None:
                    self._waiting = []
                    self._speculation.offered = partial(self._offer, self._speculation, number + 1)
                if self._groups[number]:
                    yield self._groups[number]
        finally:
            if self._speculation is not None:
                self._speculation.offered = tuple

    def _offer(self, speculation: Speculation, begin: int) -> Iterator[Waiting]:
        """Yield later groups, until one cannot be checked. Each is offered once while a group runs."""
        speculation.offered = tuple
        for number in range(begin, len(self._groups)):
            group = self._groups[number]
            if not group:
                continue
            try:
                rows = pa.RecordBatch.from_struct_array(pa.array([one.attributes for one in group]))
                program = self._programs.find(group[0].procedure, rows.schema)
                if not isinstance(program, Program):
                    return
                batches = list(batches_of(rows, event_schema(program.event), owner=program.name))
            except (PenstockError, pa.ArrowException, TypeError):  # it fails again in its turn
                return
            if len(batches) != 1:
                return
            waiting = Waiting(group[0].procedure, program, batches[0])
            self._waiting.append((number, waiting))
            yield waiting

    def answer_speculated(self, answer: Answer) -> None:
        """Answer the requests that ran beside the last group, and remove them from their own groups."""
        if self._speculation is None:
            return
        ran, self._speculation.ran = self._speculation.ran, []
        for number, waiting in self._waiting:
            if waiting in ran and waiting.results is not None:
                taken = set(waiting.taken.tolist())
                group = self._groups[number]
                done = [one for place, one in enumerate(group) if place in taken]
                self._groups[number] = [one for place, one in enumerate(group) if place not in taken]
                answer(done, waiting.results.to_pylist())
