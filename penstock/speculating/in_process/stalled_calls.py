"""Run a call whose forwarded transactions stall the partitions, and transactions beside it (H-Store §6.1).

The thread of each partition has a queue, and runs in this order:

1. the transactions of the call that must end before the forwarded transactions begin;
2. the queries that fetch the rows of the forwarded transactions;
3. transactions that run beside the forwarded transactions: first transactions of the same call, then later
   requests.

Without step 3, a partition would wait for the queries of other partitions (SP1), then for the coordinator,
which runs the forwarded transactions (SP2). No partition waits for step 1 or 2 of another partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock import _clock
from penstock.operators.update_stream.stream import concat
from penstock.procedures.compiler.program import Program
from penstock.procedures.texts import Numbers
from penstock.speculating.in_process.footprints import Booleans

if TYPE_CHECKING:
    from penstock.procedures.partitions.partitioned_tables import PartitionedTables

__all__ = ["StalledCall", "Task", "split_tasks"]

Task = tuple[Program, pa.RecordBatch, int]
"""A program, events for one partition, and the number of the group of requests to which they belong."""
TaskResult = tuple[int, pa.RecordBatch, Program, float]
"""The group of a task, the results, the program, and the run time in seconds."""
_OWN = -1
"""The number of the group with the call's own transactions."""


class StalledCall:
    """One call with forwarded transactions.

    Parameters
    ----------
    tables : PartitionedTables
        The tables.
    program : Program
        The procedure's program.
    events : pyarrow.RecordBatch
        The events of the call.
    homes : ndarray
        The partition of each event, or a number below 0 for a forwarded event.
    first : ndarray of bool
        Whether each transaction must end before the forwarded transactions begin.

    Attributes
    ----------
    count : int
        The number of later requests that run beside the call.
    stalled_s, moving_s : float
        The time of the forwarded transactions, and the time to move their rows and changes.
    times : list
        For each task that succeeded, its program, the number of its transactions, and its time in seconds.
    """

    def __init__(
        self,
        tables: PartitionedTables,
        program: Program,
        events: pa.RecordBatch,
        homes: Numbers,
        first: Booleans,
    ) -> None:
        self._tables, self._program, self._events = tables, program, events
        self._split_names = [spec.name for spec in program.tables if spec.name in tables.placements]
        self._several = np.flatnonzero(homes < 0)
        own = [np.flatnonzero(first), np.flatnonzero((homes >= 0) & ~first)]
        self._first = dict[int, list[Task]]()
        self._beside = dict[int, list[Task]]()
        for tasks, places in zip((self._first, self._beside), own, strict=True):
            split_tasks(tasks, program, events, places, homes, _OWN)
        self._places = {
            home: np.concatenate([places[homes[places] == home] for places in own])
            for home in self._first.keys() | self._beside.keys()
        }
        self._futures: list[Future[None]] = []
        self._done: dict[int, list[TaskResult]] = {}
        self._copies: list[dict[str, pa.RecordBatch]] = []
        self._forwarded: pa.RecordBatch | None = None
        self._deltas: dict[str, Mapping[str, pa.RecordBatch]] = {}
        self._own: dict[int, list[pa.RecordBatch]] = {}
        self.count = 0
        self.stalled_s = self.moving_s = 0.0
        self.times: list[tuple[Program, int, float]] = []

    def start(self, tasks: Mapping[int, list[Task]], *, waits: bool) -> None:
        """Queue all work of the partitions, and wait for the rows of the forwarded transactions.

        Parameters
        ----------
        tasks : mapping
            For each partition, the tasks with later requests.
        waits : bool
            Whether to wait for the first transactions, because an index determines the rows to fetch.
        """
        tables = self._tables
        for home, its in self._first.items():
            self._submit(home, its)
        if waits:
            self.finish()
        self._stalled_events = self._events.take(pa.array(self._several))
        keys = tables.event_keys(self._program, self._stalled_events)
        parts = tables.split_keys(keys)
        fetched = {
            number: tables.threads[number].submit(self._fetch, number, parts) for number in keys.needed()
        }
        self.count = sum(events.num_rows for its in tasks.values() for _, events, _ in its)
        try:
            for home in self._beside.keys() | tasks.keys():
                self._submit(home, [*self._beside.get(home, []), *tasks.get(home, [])])
            copies = [future.result() for future in fetched.values()]
        finally:
            wait(fetched.values())
        self._copies = [copy for copy, _ in copies]
        self.moving_s = max((spent for _, spent in copies), default=0.0)

    def _submit(self, home: int, tasks: Sequence[Task]) -> None:
        done = self._done.setdefault(home, [])
        self._futures.append(self._tables.threads[home].submit(self._run, home, tasks, done))

    def _fetch(
        self, number: int, parts: Mapping[str, Sequence[pa.RecordBatch]] | None
    ) -> tuple[dict[str, pa.RecordBatch], float]:
        begin = _clock.monotonic_s()
        rows = self._tables.fetch_rows(number, self._split_names, parts)
        return rows, _clock.monotonic_s() - begin

    def _run(self, home: int, tasks: Sequence[Task], done: list[TaskResult]) -> None:
        for program, events, group in tasks:
            _ = program.kernel  # compile before the time of transactions is measured
            begin = _clock.monotonic_s()
            results = self._tables.partition_tables[home].run(program, events)
            done.append((group, results, program, _clock.monotonic_s() - begin))

    def run_stalled(self) -> None:
        """Move fetched rows to the coordinator, run the forwarded transactions, and keep their changes."""
        coordinator = self._tables.coordinator
        _ = self._program.kernel  # as in `_run`
        begin = _clock.monotonic_s()
        try:
            for name in self._split_names:
                rows = [copy[name] for copy in self._copies if copy[name].num_rows]
                if rows:
                    coordinator[name].upsert(concat(rows), dirty=False)
            moved = _clock.monotonic_s()
            self._forwarded = coordinator.run(self._program, self._stalled_events)
            self.moving_s += moved - begin
            self.stalled_s = _clock.monotonic_s() - moved
            self._deltas = {name: coordinator[name].delta() for name in self._split_names}
        finally:
            for name in self._split_names:
                coordinator.clear(name)

    def finish(self) -> None:
        """Wait until all partitions are idle."""
        wait(self._futures)

    def wait(self) -> dict[int, list[tuple[int, pa.RecordBatch]]]:
        """Wait until all tasks have ended. Return the results of each group with their partitions."""
        self.finish()
        for future in self._futures:
            future.result()
        return self.finished()

    def finished(self) -> dict[int, list[tuple[int, pa.RecordBatch]]]:
        """Return the results of the tasks that succeeded, as `wait` does. All partitions must be idle."""
        found: dict[int, list[tuple[int, pa.RecordBatch]]] = {}
        for home, done in self._done.items():
            for group, results, program, seconds in done:
                self.times.append((program, results.num_rows, seconds))
                if group == _OWN:
                    self._own.setdefault(home, []).append(results)
                else:
                    found.setdefault(group, []).append((home, results))
        return found

    def spread(self) -> None:
        """Apply the changes of the forwarded transactions to the partitions, which are idle."""
        begin = _clock.monotonic_s()
        self._tables.apply_deltas(self._deltas)
        self.moving_s += _clock.monotonic_s() - begin

    def results(self) -> pa.RecordBatch:
        """Return the results of the call's own transactions, in the order of the events."""
        batches = [] if self._forwarded is None else [self._forwarded]
        orders = [self._several]
        for home, its in self._own.items():
            batches += its
            orders.append(self._places[home])
        return concat(batches).take(pa.array(np.argsort(np.concatenate(orders))))


def split_tasks(
    tasks: dict[int, list[Task]],
    program: Program,
    events: pa.RecordBatch,
    places: Numbers,
    homes: Numbers,
    group: int,
) -> None:
    """Add a task to `tasks` for each partition that has events at the given positions."""
    for home in np.unique(homes[places]).tolist():
        chosen = places[homes[places] == home]
        tasks.setdefault(home, []).append((program, events.take(pa.array(chosen)), group))
