"""Plan batches: find the rows that each transaction accesses, and an order in which transactions may run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.procedures.parallel.access_sets import AccessSets, KeyAccess
from penstock.procedures.parallel.schedule import CHAINS, FIRST_LINE, LEVELS, LINES, SPLIT, STOLEN
from penstock.procedures.parallel.versions import find_levels, find_owners, link_operations, list_operations

if TYPE_CHECKING:
    from penstock.procedures.compiler.program import Program
    from penstock.procedures.engine import TableSet

__all__ = ["MODES", "Plan", "Planner"]

Numbers = npt.NDArray[np.int64]
Mapped = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]
"""Calls a function on each thread, with the number of the thread, and returns the results."""

MODES: Mapping[str, int] = {"chains": CHAINS, "levels": LEVELS, "split": SPLIT}
"""The modes besides ``serial``, and their numbers in kernels."""

_NONE = np.zeros(0, np.int64)
_NO_FLAGS = np.zeros(0, np.bool_)


@dataclass
class Plan:
    """The schedule of a batch, for the parallel kernel; see `penstock.procedures.parallel.schedule`.

    Attributes
    ----------
    versions_of : ndarray
        For each table, the number of versions of rows that the batch makes.
    depth : int
        The number of levels; 0 in other modes.
    """

    mode: int
    threads: int
    first: int
    count: int
    bases: Numbers
    order: Numbers = field(default_factory=lambda: _NONE)
    begins: Numbers = field(default_factory=lambda: _NONE)
    offsets: Numbers = field(default_factory=lambda: _NONE)
    versioned: npt.NDArray[np.bool_] = field(default_factory=lambda: _NO_FLAGS)
    heads: Numbers = field(default_factory=lambda: _NONE)
    transactions: Numbers = field(default_factory=lambda: _NONE)
    rows: Numbers = field(default_factory=lambda: _NONE)
    tables: Numbers = field(default_factory=lambda: _NONE)
    writes: npt.NDArray[np.bool_] = field(default_factory=lambda: _NO_FLAGS)
    following: Numbers = field(default_factory=lambda: _NONE)
    versions: Numbers = field(default_factory=lambda: _NONE)
    pending: Numbers = field(default_factory=lambda: _NONE)
    versions_of: Numbers = field(default_factory=lambda: _NONE)
    depth: int = 0

    def __post_init__(self) -> None:
        self.state = np.zeros(FIRST_LINE + self.threads * LINES, np.int64)
        places = self.count if self.mode == CHAINS else 0
        self.queues = np.zeros((self.threads, places), np.int64)

    @property
    def stolen(self) -> int:
        """The number of transactions that threads took from each other, once all transactions have run."""
        return int(self.state[FIRST_LINE + STOLEN :: LINES].sum())

    def arguments(self, thread: int) -> tuple[Any, ...]:
        """Return the first arguments of the kernel."""
        return (
            self.mode, self.threads, self.first, self.count, self.order, self.begins, self.offsets,
            self.versioned, self.heads, self.state, thread, self.queues, self.transactions, self.rows,
            self.tables, self.writes, self.following, self.versions, self.pending, self.bases,
        )  # fmt: skip


class Planner:
    """Plans the batches of one program over one set of tables.

    Parameters
    ----------
    tables : TableSet
        The tables that the transactions access.
    program : Program
        The program that runs the transactions.
    sets : AccessSets
        The access sets of the program.
    """

    def __init__(self, tables: TableSet, program: Program, sets: AccessSets) -> None:
        self._state, self._program, self._sets = tables, program, sets
        self._access_tables = np.array([access.table for access in sets.accesses], np.int64)
        self._bits = np.array([access.bits for access in sets.accesses], np.int64)
        self._write_bits = np.array([access.write_bits for access in sets.accesses], np.int64)
        self._memory = [_NONE, _NONE, _NONE]
        self._stamp = 0
        self._places: list[int] = []
        place = 0
        for column in program.event:
            self._places.append(place)
            place += (3 if column.is_list else 1) + column.nullable

    def plans(self, tables: TableSet, program: Program) -> bool:
        """Return whether the planner is for these tables and this program."""
        return self._state is tables and self._program.digest == program.digest

    def bits_of(self, events: list[npt.NDArray[Any]], count: int) -> Numbers:
        """Return the bits of each event's accesses; -1 (all bits) if the event does not determine them."""
        facts = self._sets.facts
        bits, unknown = np.zeros(count, np.int64), np.ones(count, np.bool_)
        texts = np.array([self._state.texts.number(text) for text in facts.texts] or [0], np.int64)
        facts.kernel(
            0, count, np.zeros(count, np.int64), np.zeros(2, np.int64), texts, *self._state.undo, *events,
            bits, unknown,
        )  # fmt: skip
        bits[unknown] = -1
        return bits

    def plan(
        self,
        mode: int,
        events: list[npt.NDArray[Any]],
        bits: Numbers,
        begin: int,
        end: int,
        threads: int,
        apply: Mapped,
    ) -> Plan:
        """Plan the events from `begin` up to, but not including, `end`; none of them is exclusive."""
        own_bits = bits[begin:end]
        sizes = [len(self._state[spec.name].live) for spec in self._program.tables]
        bases = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        cuts = [begin + (end - begin) * thread // threads for thread in range(threads + 1)]

        def find(thread: int) -> list[Numbers]:
            return [
                self._find(access, events, cuts[thread], cuts[thread + 1]) for access in self._sets.accesses
            ]

        found = list(apply(find, range(threads)))
        slots = [np.concatenate(parts) for parts in zip(*found, strict=True)]
        starts = self._starts([len(one) for one in slots], events, begin, end)
        all_slots = np.concatenate(slots) if slots else _NONE
        plan = Plan(mode, threads, begin, end - begin, bases)
        accesses = (own_bits, all_slots, starts, self._access_tables, self._bits)
        if mode == SPLIT:
            plan.order = np.empty(plan.count, np.int64)
            find_owners(*accesses, bases, threads, plan.order)
            return plan
        self._grow(int(bases[-1]))
        most = len(all_slots)
        plan.offsets = np.empty(plan.count + 1, np.int64)
        plan.transactions, plan.rows, plan.tables = (np.empty(most, np.int64) for _ in range(3))
        plan.writes = np.empty(most, np.bool_)
        last, stamps, readers = self._memory
        self._stamp += 2
        operations = list_operations(
            *accesses, self._write_bits, bases, last, stamps, self._stamp, plan.offsets, plan.transactions,
            plan.rows, plan.tables, plan.writes,
        )  # fmt: skip
        if mode == LEVELS:
            plan.order, plan.begins = (np.empty(plan.count, np.int64) for _ in range(2))
            levels = np.empty(plan.count, np.int64)
            plan.depth = find_levels(
                plan.offsets, plan.rows, plan.writes, readers, last, stamps, self._stamp + 1, levels,
                plan.order, plan.begins,
            )  # fmt: skip
            return plan
        plan.following, plan.versions = (np.empty(operations, np.int64) for _ in range(2))
        plan.versioned, plan.pending = np.zeros(plan.count, np.bool_), np.empty(plan.count, np.int64)
        heads = np.empty(plan.count + operations, np.int64)
        used = np.array([self._state[spec.name].used for spec in self._program.tables], np.int64)
        next_slots = used.copy()
        count = link_operations(
            operations, plan.offsets, plan.transactions, plan.rows, plan.tables, plan.writes, next_slots,
            last, stamps, self._stamp + 1, plan.following, plan.versions, plan.versioned, plan.pending, heads,
        )  # fmt: skip
        plan.heads, plan.versions_of = heads[:count], next_slots - used
        return plan

    def _find(self, access: KeyAccess, events: list[npt.NDArray[Any]], begin: int, end: int) -> Numbers:
        """Return the slots that an access finds for events, or for the elements of their lists."""
        key = []
        for attribute in access.key:
            place = self._places[attribute]
            values = events[place]
            if self._program.event[attribute].is_list:
                offsets = events[place + 1]
                key.append(values[offsets[begin] : offsets[end]].astype(np.int64))
            else:
                key.append(values[begin:end].astype(np.int64))
        count = max(map(len, key))
        lists = [self._program.event[attribute].is_list for attribute in access.key]
        if any(lists) and not all(lists):
            sizes = np.diff(events[self._places[access.key[lists.index(True)]] + 1][begin : end + 1])
            key = [
                part if is_list else np.repeat(part, sizes) for part, is_list in zip(key, lists, strict=True)
            ]
            count = int(sizes.sum())
        if count == 0:
            return _NONE
        return self._state[self._program.tables[access.table].name].find(key)

    def _starts(self, sizes: list[int], events: list[npt.NDArray[Any]], begin: int, end: int) -> Numbers:
        """Return, for each access and event, where its slots begin among the slots of all accesses."""
        starts = np.empty((len(sizes), end - begin + 1), np.int64)
        base = 0
        for row, access, size in zip(starts, self._sets.accesses, sizes, strict=True):
            of_list = [one for one in access.key if self._program.event[one].is_list]
            if of_list:
                offsets = events[self._places[of_list[0]] + 1]
                row[:] = base + offsets[begin : end + 1] - offsets[begin]
            else:
                row[:] = base + np.arange(end - begin + 1)
            base += size
        return starts

    def _grow(self, rows: int) -> None:
        if len(self._memory[0]) < rows:
            # Stamps of 0 are older than every batch.
            self._memory = [np.zeros(2 * rows, np.int64) for _ in range(3)]
