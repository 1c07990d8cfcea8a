"""One call of predicted transactions: it runs in the partitions, and is undone if a prediction is wrong."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.update_stream.stream import concat
from penstock.procedures.arithmetic import INT64_MAX
from penstock.procedures.compiler.program import Program
from penstock.procedures.compiler.values import AccessMode
from penstock.procedures.engine import Run, TableSet
from penstock.procedures.partitions.predicted.guard_kernels import GUARD_HEAD, plan
from penstock.procedures.partitions.predicted.guards import DEVIATES
from penstock.procedures.partitions.predicted.prediction import Prediction
from penstock.procedures.rows import TableRows
from penstock.procedures.texts import Numbers

if TYPE_CHECKING:
    from penstock.procedures.partitions.partitioned_tables import PartitionedTables

__all__ = ["DeviationError", "Kernel", "PredictedCall", "UndoLog", "tables_written"]

MAX_WAVES = 8
"""The maximum number of waves of a call; see `plan`.

A call that needs more waves runs in one wave, and none of its transactions is late.
"""
UNDO_LOG_IS_FULL = -1
"""The number that a kernel writes to ``control[0]`` if the undo log is full; see `TableSet.make_room`."""
MAX_KEPT_ENTRIES = 1 << 16
"""After a call, an undo log with room for more entries is replaced by a small one, to free its memory."""

Kernel = Callable[..., int]


def tables_written(program: Program) -> list[str]:
    """Return the tables that a program may write."""
    return sorted({access.table for access in program.accesses if access.mode is not AccessMode.READ})


class DeviationError(Exception):
    """A transaction deviated from its prediction; `event` is its position in the call."""

    def __init__(self, event: int) -> None:
        super().__init__(event)
        self.event = event


class UndoLog:
    """The undo log of a partition or of the coordinator, for all transactions of a call.

    Attributes
    ----------
    logged : ndarray of int64
        Two elements: the number of entries; and 1 if entries are kept after their transaction has ended,
        otherwise 0.
    arrays : tuple of ndarray
        The arrays of the undo log in the order of `Program.arguments`.
    run : Run or None
        The last run that wrote entries.
    """

    def __init__(self) -> None:
        self.logged, self.arrays = np.zeros(2, np.int64), Run.own_room()[1]
        self.run: Run | None = None

    def release(self) -> None:
        """Drop the entries after a call."""
        self.run = None
        if len(self.arrays[0]) > MAX_KEPT_ENTRIES:
            self.arrays = Run.own_room()[1]

    def grow(self) -> None:
        """Double the space, and keep the entries."""
        before = self.arrays
        self.arrays = Run.own_room(2 * len(before[0]))[1]
        for array, old in zip(self.arrays, before, strict=True):
            array[: len(old)] = old


class PredictedCall:
    """One call that runs by predictions; copies of tables or undo logs make it possible to undo the call."""

    def __init__(
        self,
        tables: PartitionedTables,
        program: Program,
        events: pa.RecordBatch,
        prediction: Prediction,
        kernels: tuple[Kernel, Kernel | None],
        logs: Mapping[int, UndoLog],
        *,
        copies: bool,
    ) -> None:
        self._tables, self._program, self._events = tables, program, events
        self._kernels, self._undo = kernels, prediction.undo
        self._logs, self._has_copies = logs, copies
        for log in logs.values():
            log.logged[:], log.run = (0, not copies), None
        anywhere = np.uint64(1) << (
            np.arange(events.num_rows, dtype=np.uint64) % np.uint64(tables.partitions)
        )
        needed = prediction.partitions | prediction.written
        self._masks, self._writes = np.where(needed == 0, anywhere, needed), prediction.written
        self.touched = np.zeros(events.num_rows, np.int64)
        self.forwarded = self.late = self.without_undo = 0
        self._every = np.uint64((1 << tables.partitions) - 1)
        self._written = tables_written(program)
        self._copies: list[tuple[TableSet, int, dict[str, TableRows]]] = []
        self._guard = self._make_guard()
        self._homes, self._late = np.zeros(events.num_rows, np.int64), np.zeros(events.num_rows, np.bool_)
        self._ends = self._plan(self._most_waves() if copies else 1) or self._plan(None)

    @property
    def planned(self) -> int:
        """The number of transactions that will be forwarded."""
        return int(np.count_nonzero(self._homes < 0))

    def _make_guard(self) -> Numbers:
        """Return the guard of the program's tables, which still allows no partition; see `GUARD_HEAD`."""
        specs, placements = self._program.tables, self._tables.placements
        guard = [0, self._tables.partitions, INT64_MAX, *(0 for _ in specs)]
        for number, spec in enumerate(specs):
            placement = placements.get(spec.name)
            if placement is not None and placement.ranges is not None:
                guard[GUARD_HEAD + number] = len(guard)
                guard += [len(placement.ranges), *placement.ranges]
        return np.array(guard, np.int64)

    def run(self) -> pa.RecordBatch:
        """Run all events, and return their results."""
        used = int(np.bitwise_or.reduce(self._masks))
        for number, part in enumerate(self._tables.partition_tables):
            if used >> number & 1:
                self._copy(part, self._written if self._has_copies else [])
        shared = [name for name in self._written if name not in self._tables.placements]
        self._copy(self._tables.coordinator, shared)
        count = self._events.num_rows
        batches: list[pa.RecordBatch] = []
        orders: list[Numbers] = []
        for begin, end in itertools.pairwise([0, *self._ends]):
            places = np.arange(begin, end)
            self._wave(places, self._homes[places], self._late[places], batches, orders)
        back = np.empty(count, np.int64)
        back[np.concatenate(orders)] = np.arange(count)
        self._tables.forwarded += self.forwarded
        return concat(batches).take(pa.array(back))

    def _most_waves(self) -> int:
        """Return the maximum number of waves, which is smaller if a wave moves all rows of large tables."""
        route = self._tables.route(self._program)
        if route.obstacle is None and route.knows_rows:
            return MAX_WAVES
        tables = [spec.name for spec in self._program.tables if spec.name in self._tables.placements]
        rows = sum(len(self._tables[name]) for name in tables)
        return min(1 + self._events.num_rows // max(rows, 1), MAX_WAVES)

    def _plan(self, most: int | None) -> list[int]:
        """Set where transactions run, and return the end of each wave.

        If the call needs more than `most` waves, the result is empty. If `most` is None, no transaction is
        late, and one wave is enough.
        """
        ends = [0]
        while ends[-1] < len(self._homes):
            if most is not None and len(ends) > most:
                return []
            rest = slice(ends[-1], None)
            parts = self._masks[rest], self._writes[rest], self._every, most is not None
            ends.append(ends[-1] + plan(*parts, self._homes[rest], self._late[rest]))
        return ends[1:]

    def _copy(self, part: TableSet, names: Sequence[str]) -> None:
        copies = {}
        for name in names:
            rows = part[name]
            shared = {id(one): one for one in (rows.spec, part.texts)}
            copies[name] = copy.deepcopy(rows, shared)
        self._copies.append((part, part.transactions, copies))

    def put_back(self) -> None:
        """Restore the tables to their state before the call."""
        for part in self._tables.partition_tables if not self._has_copies else ():
            log = self._logs[id(part)]
            if log.run is not None and log.logged[0]:
                arguments = log.run.arguments(part.control, log.arrays)
                self._kernels[0](1, 0, self._guard, self.touched, log.logged, *arguments)
        for part, transactions, copies in self._copies:
            part.put_back(copies, transactions)
        coordinator = self._tables.coordinator
        for spec in self._program.tables:
            if spec.name in self._tables.placements:
                coordinator.clear(spec.name)

    def _wave(
        self,
        places: Numbers,
        homes: Numbers,
        late: npt.NDArray[np.bool_],
        batches: list[pa.RecordBatch],
        orders: list[Numbers],
    ) -> None:
        """Run one wave; append its results to `batches`, and the positions of their events to `orders`."""
        partitions = range(self._tables.partitions)
        groups = {home: places[(homes == home) & ~late] for home in partitions}
        early = {
            home: partial(self._run_single, home, chosen) for home, chosen in groups.items() if len(chosen)
        }
        for home, results in self._tables.run_each(early).items():
            batches.append(results)
            orders.append(groups[home])
        forwarded = places[homes < 0]
        if not len(forwarded):
            return
        late_groups = {home: places[(homes == home) & late] for home in partitions}
        waiting = {home: chosen for home, chosen in late_groups.items() if len(chosen)}
        results, late_results = self._run_forwarded(forwarded, waiting)
        batches.append(results)
        orders.append(forwarded)
        for home, one in late_results.items():
            batches.append(one)
            orders.append(waiting[home])
        self.forwarded += len(forwarded)
        self.late += sum(map(len, waiting.values()))

    def _run_single(self, home: int, places: Numbers) -> pa.RecordBatch:
        return self._run(self._tables.partition_tables[home], places, 1 << home, INT64_MAX)

    def _run_forwarded(
        self, places: Numbers, waiting: Mapping[int, Numbers]
    ) -> tuple[pa.RecordBatch, dict[int, pa.RecordBatch]]:
        """Run the forwarded transactions of a wave on the coordinator, and its late transactions.

        Late transactions run in their partitions, as soon as the coordinator has the rows of the forwarded
        transactions. `places` are the forwarded transactions; `waiting` has the late transactions of each
        partition.
        """
        tables, program = self._tables, self._program
        allowed = int(np.bitwise_or.reduce(self._masks[places]))
        needed = [number for number in range(tables.partitions) if allowed >> number & 1]
        split = [spec.name for spec in program.tables if spec.name in tables.placements]
        events = self._take(places)
        keys = None
        if tables.route(program).obstacle is None:
            keys = tables.split_keys(tables.event_keys(program, events))
        copies = tables.run_each(
            {number: partial(tables.fetch_rows, number, split, keys) for number in needed}
        )
        coordinator = tables.coordinator
        for name in split:
            rows = [one[name] for one in copies.values() if one[name].num_rows]
            if rows:
                coordinator[name].upsert(concat(rows), dirty=False)
        futures: dict[int, Future[pa.RecordBatch]] = {
            home: tables.threads[home].submit(self._run_single, home, chosen)
            for home, chosen in waiting.items()
        }
        try:
            writes_all = np.flatnonzero(self._writes[places] == self._every)
            first = int(writes_all[0]) if len(writes_all) else INT64_MAX
            results = self._run(coordinator, places, allowed, first)
        finally:
            wait(futures.values())
        late_results = {home: future.result() for home, future in futures.items()}
        deltas = {spec.name: coordinator[spec.name].delta() for spec in program.tables}
        if waiting:
            self._check_unchanged(deltas, waiting, int(places[0]))
        if not self._has_copies:
            for log in self._logs.values():
                log.logged[0] = 0
        tables.apply_deltas(deltas)
        for name in split:
            coordinator.clear(name)
        coordinator.forget_deleted()
        return results, late_results

    def _check_unchanged(
        self, deltas: Mapping[str, Mapping[str, pa.RecordBatch]], late: Mapping[int, Numbers], event: int
    ) -> None:
        """Check that forwarded transactions wrote nothing to the partitions of late transactions."""
        for blocks in deltas.values():
            for name, block in blocks.items():
                placement = self._tables.placements.get(name.rpartition("/")[0])
                parts = [block] * self._tables.partitions if placement is None else placement.split(block)
                if any(parts[home].num_rows for home in late):
                    raise DeviationError(event)

    def _take(self, places: Numbers) -> pa.RecordBatch:
        return self._events.take(pa.array(places))

    def _run(self, part: TableSet, places: Numbers, allowed: int, first: int) -> pa.RecordBatch:
        """Run transactions over `part`, and return their results.

        `allowed` has a bit for each partition that they may access. Only transactions from `first` on may
        write replicated tables.

        Raises
        ------
        DeviationError
            If a transaction deviates from its prediction.
        """
        guard = self._guard.copy()
        guard[0], guard[2] = np.array([allowed], np.uint64).view(np.int64)[0], first
        touched = np.zeros(len(places), np.int64)
        run = part.begin(self._program, self._take(places))
        with_undo, without = self._kernels
        has_undo = without is None or not self._has_copies or bool(self._undo[places].any())
        log = self._logs[id(part)]
        log.run = run
        kernel = with_undo if has_undo or without is None else without
        begin = 0
        try:
            while begin < len(places):
                part.control[0] = 0
                arguments = run.arguments(part.control, log.arrays)
                begin = kernel(begin, len(places), guard, touched, log.logged, *arguments)
                if begin < len(places):
                    if part.control[0] == DEVIATES:
                        raise DeviationError(int(places[begin]))
                    if part.control[0] == UNDO_LOG_IS_FULL:
                        log.grow()
                    else:
                        part.make_room(self._program, int(part.control[0]))
        finally:
            self.touched[places] = touched
        strange = np.flatnonzero(touched.view(np.uint64) & ~self._masks[places])
        if len(strange):
            raise DeviationError(int(places[strange[0]]))
        part.transactions += len(places)
        if not has_undo:
            self.without_undo += len(places)
        return run.results()
