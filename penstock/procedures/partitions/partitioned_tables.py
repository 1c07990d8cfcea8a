"""The tables of a database in partitions, and programs that run over them (H-Store §3).

A partition has its own thread and `TableSet`: its rows of the partitioned tables, and a copy of the
replicated tables. A coordinator has another copy of the replicated tables. Invariants:

1. A run of a program has the same results as a serial run of its events in their order.
2. Between runs, the coordinator has all rows of the gathered tables
   (`penstock.procedures.partitions.partitioned_rows`), and no rows of all other partitioned tables. All
   copies of a replicated table are equal.
3. A version does not depend on the partitions, so a database can be opened with any number of partitions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.stream import concat
from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.compiler.values import Found
from penstock.procedures.engine import Run, TableSet
from penstock.procedures.partitions.event_keys import EventKeys
from penstock.procedures.partitions.forwarding import order_by_home, take_rows
from penstock.procedures.partitions.partitioned_rows import GatheredTables, PartitionedRows, find_rows
from penstock.procedures.partitions.placement import place_tables
from penstock.procedures.partitions.predicted.run import PredictedRuns
from penstock.procedures.partitions.routes import Route, find_route
from penstock.procedures.schema import TableSpec
from penstock.procedures.texts import Numbers

if TYPE_CHECKING:
    from penstock.speculating.in_process.speculation import Speculation

__all__ = ["MAX_PARTITIONS", "PartitionedTables", "State"]

T = TypeVar("T")

MAX_PARTITIONS = 64


class PartitionedTables:
    """Tables in partitions, with the interface of `TableSet`. One thread at a time calls it.

    Parameters
    ----------
    specs : iterable of TableSpec
        The tables. Tables without a column to partition by are replicated.
    partitions : int
        The number of partitions.
    ranges : mapping
        See `Database.open`.
    unshared : iterable of str
        The tables that no program accesses; only the first partition has them.
    columns : mapping, optional
        For each table that is partitioned by several columns, these columns.

    Attributes
    ----------
    partition_tables, coordinator, threads
        The tables of each partition, the coordinator's tables, and the thread of each partition.
    transactions : int
        The number of transactions that ran.
    forwarded : int
        The number of transactions that ran on the coordinator.
    gathered : GatheredTables
        The tables whose rows are at the coordinator.
    predicted : PredictedRuns or None
        Runs transactions in the partitions that a predictor names, if there is a predictor.
    speculation : Speculation or None
        Runs other transactions concurrently with forwarded transactions, if partitions speculate.
    is_new, offset, program, request_memory
        See `TableSet`.
    """

    def __init__(
        self,
        specs: Iterable[TableSpec],
        partitions: int,
        ranges: Mapping[str, Sequence[Any]],
        unshared: Iterable[str] = (),
        columns: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self.placements = place_tables(self._specs, partitions, ranges, columns)
        self._unshared = set(unshared)
        self.partition_tables = [TableSet(self._specs.values()) for _ in range(partitions)]
        self.coordinator = TableSet(self._specs.values())
        self.threads = [
            ThreadPoolExecutor(1, thread_name_prefix=f"penstock-partition-{number}")
            for number in range(partitions)
        ]
        self._routes: dict[str, Route] = {}
        self.gathered = GatheredTables(self.partition_tables, self.coordinator, self.placements)
        self.predicted: PredictedRuns | None = None
        self.speculation: Speculation | None = None
        self.transactions = self.forwarded = 0
        self.is_new = True
        self.offset: int | None = None
        self.program: str | None = None
        self.request_memory: Any = None

    def __getitem__(self, name: str) -> PartitionedRows:
        """Return a table."""
        return PartitionedRows([part[name] for part in self._parts_of(name)])

    def _parts_of(self, name: str) -> list[TableSet]:
        """Return the table sets that hold the rows of a table."""
        if name in self.gathered.names:
            return [self.coordinator]
        return self.partition_tables if name in self.placements else self.partition_tables[:1]

    def __contains__(self, name: str) -> bool:
        """Return whether a table exists."""
        return name in self._specs

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.partition_tables)

    @property
    def rows(self) -> int:
        """The number of rows; the rows of replicated tables are counted once."""
        return sum(len(self[name]) for name in self._specs)

    @property
    def size_bytes(self) -> int:
        """The memory of the tables, with all copies of replicated tables."""
        return sum(part.size_bytes for part in (*self.partition_tables, self.coordinator))

    def close(self) -> None:
        """End the threads."""
        for thread in self.threads:
            thread.shutdown()

    def run_each(self, tasks: Mapping[int, Callable[[], T]]) -> dict[int, T]:
        """Run each task in the thread of its partition; a single task runs in the calling thread.

        Even if this method is interrupted, it waits for all tasks. So no partition changes after it returns.
        """
        if len(tasks) == 1:
            return {number: task() for number, task in tasks.items()}
        futures: dict[int, Future[T]] = {
            number: self.threads[number].submit(task) for number, task in tasks.items()
        }
        try:
            return {number: future.result() for number, future in futures.items()}
        finally:
            wait(futures.values())

    # Programs

    def route(self, program: Program | PlainProgram) -> Route:
        """Return where the transactions of a program run."""
        route = self._routes.get(program.digest)
        if route is None:
            route = self._routes[program.digest] = find_route(program, self.placements)
        return route

    def run(
        self,
        program: Program | PlainProgram,
        events: pa.RecordBatch,
        bounds: npt.NDArray[np.int64] | None = None,
    ) -> pa.RecordBatch:
        """Run a transaction or a round for each event; see `TableSet.run`.

        Single-partition transactions run first, each in the thread of its partition. Then the forwarded
        transactions run. `forward` explains why the results are the same as in the order of the events.
        """
        count = events.num_rows if bounds is None else len(bounds) - 1
        self.transactions += count
        if not count:
            return self.coordinator.run(program, events, bounds)
        route = self.route(program)
        if isinstance(program, PlainProgram) or route.obstacle is not None:
            if bounds is None and (predicted := self._run_predicted(program, events)) is not None:
                return predicted
            run_everywhere = partial(self._run_everywhere, program, events, bounds)
            if isinstance(program, PlainProgram) and bounds is None and self.speculation is not None:
                return self.speculation.run_python(program, events, run_everywhere)
            return run_everywhere()
        keys = self.event_keys(program, events)
        is_gathered = any(one.table in self.gathered.names for one in route.keys)
        homes = keys.alone() if is_gathered else keys.homes(self.partitions)
        several = int(np.count_nonzero(homes < 0))
        if several and (predicted := self._run_predicted(program, events)) is not None:
            return predicted
        if self._gathers(program, count - several, several, knows_rows=route.knows_rows):
            run_gathered = partial(self._run_gathered, program, events, bounds)
            if self.speculation is None:
                return run_gathered()
            return self.speculation.time_gathered(program, count, run_gathered)
        homes = keys.homes(self.partitions) if is_gathered else homes
        if not several or self.speculation is None:
            return self._run_split(program, events, homes)
        run_split = partial(self._run_split, program, events, homes)
        return self.speculation.run(program, events, keys, homes, run_split)

    def _run_everywhere(
        self, program: Program | PlainProgram, events: pa.RecordBatch, bounds: npt.NDArray[np.int64] | None
    ) -> pa.RecordBatch:
        """Run transactions that may need any partition."""
        count = events.num_rows if bounds is None else len(bounds) - 1
        if self._gathers(program, 0, count, knows_rows=False):
            return self._run_gathered(program, events, bounds)
        return self._run_forwarded(program, events, range(self.partitions), None, bounds)

    def _run_split(self, program: Program, events: pa.RecordBatch, homes: Numbers) -> pa.RecordBatch:
        """Run single-partition transactions, each in its partition; then run the forwarded transactions."""
        order, back, begins = order_by_home(homes, self.partitions)
        ends = begins.tolist()
        tasks = enumerate(itertools.pairwise(ends[1:]))
        busy = {home: bounds for home, bounds in tasks if bounds[0] < bounds[1]}
        if len(busy) == 1 and not ends[1]:
            return self.partition_tables[next(iter(busy))].run(program, events)
        ordered = take_rows(events, order)
        forwarded = ordered.slice(0, ends[1])
        results = self.run_each({
            home: partial(self.partition_tables[home].run, program, ordered.slice(begin, end - begin))
            for home, (begin, end) in busy.items()
        })  # fmt: skip
        batches = [results[home] for home in busy]
        if forwarded.num_rows:
            keys = self.event_keys(program, forwarded)
            batches.insert(0, self._run_forwarded(program, forwarded, keys.needed(), keys))
        return take_rows(concat(batches), back)

    def _run_predicted(
        self, program: Program | PlainProgram, events: pa.RecordBatch
    ) -> pa.RecordBatch | None:
        """Run transactions by predictions; return None if predictions are missing, wrong or useless."""
        if isinstance(program, PlainProgram) or self.predicted is None:
            return None
        return self.predicted.run(program, events)

    def event_keys(self, program: Program, events: pa.RecordBatch) -> EventKeys:
        """Return the keys of events, if the program's route has no obstacle."""

        def lookup(found: Found, values: Sequence[pa.Array[Any]]) -> tuple[Numbers, pa.RecordBatch]:
            return find_rows(self._parts_of(found.table), found.table, found.index, values)

        return EventKeys(program, self.route(program), events, self.placements, lookup)

    def begin(
        self, program: Program, events: pa.RecordBatch, bounds: npt.NDArray[np.int64] | None = None
    ) -> Run:
        """Raise an error, because strong recovery works with one partition only."""
        raise InvalidUsageError(
            "transactions of strong recovery are repeated in one partition",
            workflow=program.name,
            partitions=self.partitions,
            hint="open the database once with partitions=1, and close it: then nothing is repeated",
        )

    # The coordinator

    def _gathers(
        self, program: Program | PlainProgram, single: int, several: int, *, knows_rows: bool
    ) -> bool:
        """Return whether transactions run over gathered tables; see `GatheredTables.choose`."""
        names = [spec.name for spec in program.tables if spec.name in self.placements]
        asked = several and isinstance(program, Program) and not program.stages  # no predictions for others
        if asked and self.predicted is not None and not self.predicted.declines(program):
            self.gathered.scatter(only_for=names)
            return False
        debt = None
        if self.speculation is not None and knows_rows:
            debt = self.speculation.debt(program, single, several)
        return self.gathered.choose(names, single, several, knows_rows=knows_rows, debt=debt)

    def _run_gathered(
        self, program: Program | PlainProgram, events: pa.RecordBatch, bounds: npt.NDArray[np.int64] | None
    ) -> pa.RecordBatch:
        """Run transactions on the coordinator, which has the rows."""
        self.forwarded += events.num_rows if bounds is None else len(bounds) - 1
        results = self.coordinator.run(program, events, bounds)
        replicated = {spec.name for spec in program.tables} - self.placements.keys()
        self.apply_deltas({name: self.coordinator[name].delta() for name in replicated})
        return results

    def _run_forwarded(
        self,
        program: Program | PlainProgram,
        events: pa.RecordBatch,
        needed: Sequence[int],
        keys: EventKeys | None,
        bounds: npt.NDArray[np.int64] | None = None,
    ) -> pa.RecordBatch:
        """Run transactions on the coordinator: move the rows there, and the changes back."""
        self.forwarded += events.num_rows if bounds is None else len(bounds) - 1
        names = [spec.name for spec in program.tables]
        split = [name for name in names if name in self.placements]
        parts = None if keys is None else self.split_keys(keys)
        copies = self.run_each({number: partial(self.fetch_rows, number, split, parts) for number in needed})
        try:
            for name in split:
                rows = [copy[name] for copy in copies.values() if copy[name].num_rows]
                if rows:
                    self.coordinator[name].upsert(concat(rows), dirty=False)
            results = self.coordinator.run(program, events, bounds)
            self.apply_deltas({name: self.coordinator[name].delta() for name in names})
        finally:
            for name in split:
                self.coordinator.clear(name)
        return results

    def split_keys(self, event_keys: EventKeys) -> dict[str, list[pa.RecordBatch]] | None:
        """Return the keys of the rows to move, by table and partition; None if all rows must move."""
        if not event_keys.route.knows_rows:
            return None
        batches: dict[str, list[pa.RecordBatch]] = {}
        for keys in event_keys.route.keys:
            schema = self._specs[keys.table].key_schema
            columns = [
                column.cast(field.type, safe=False)
                for column, field in zip(event_keys.keys(keys), schema, strict=True)
            ]
            batches.setdefault(keys.table, []).append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return {name: self.placements[name].split(concat(parts)) for name, parts in batches.items()}

    def fetch_rows(
        self, number: int, names: Sequence[str], keys: Mapping[str, Sequence[pa.RecordBatch]] | None
    ) -> dict[str, pa.RecordBatch]:
        """Return, for each table, the rows of a partition with the given keys; all rows if `keys` is None."""
        part = self.partition_tables[number]
        if keys is None:
            return {name: part[name].table() for name in names}
        return {name: part[name].rows_of(keys[name][number]) for name in names}

    def apply_deltas(self, deltas: Mapping[str, Mapping[str, pa.RecordBatch]]) -> None:
        """Apply changes of the coordinator's tables to the partitions."""
        tasks: list[dict[str, tuple[pa.RecordBatch, pa.RecordBatch]]] = [{} for _ in self.partition_tables]
        for name, blocks in deltas.items():
            upserts, tombstones = blocks[f"{name}/upserts"], blocks[f"{name}/tombstones"]
            if not upserts.num_rows and not tombstones.num_rows:
                continue
            placement = self.placements.get(name)
            for task in tasks:
                task[name] = upserts, tombstones
            if placement is not None:
                halves = placement.split(upserts), placement.split(tombstones)
                for task, changes in zip(tasks, zip(*halves, strict=True), strict=True):
                    task[name] = changes
        self.run_each({
            number: partial(self._apply, number, task) for number, task in enumerate(tasks) if task
        })  # fmt: skip

    def _apply(self, number: int, changes: Mapping[str, tuple[pa.RecordBatch, pa.RecordBatch]]) -> None:
        for name, (upserts, tombstones) in changes.items():
            # Only one copy of a replicated table is stored.
            stored = number == 0 or name in self.placements
            self.partition_tables[number][name].change(upserts, tombstones, stored=stored)

    # Rows in, and versions

    def load(self, table: str, rows: pa.RecordBatch) -> None:
        """Insert rows with new keys into a table.

        Raises
        ------
        InvalidUsageError
            If a key exists already; then nothing is inserted.
        """
        self.gathered.scatter()
        placement = self.placements.get(table)
        parts = [rows] * self.partitions if placement is None else placement.split(rows)
        for part, its_rows in zip(self.partition_tables, parts, strict=True):
            part[table].check_new(its_rows)
        for number, (part, its_rows) in enumerate(zip(self.partition_tables, parts, strict=True)):
            # Only one copy of a replicated table is stored.
            part[table].upsert(its_rows, dirty=number == 0 or placement is not None)
        if placement is None:
            self.coordinator[table].upsert(rows, dirty=False)

    def forget_deleted(self) -> None:
        """Forget deleted keys and unused texts; the next delta does not have these keys."""
        for part in (*self.partition_tables, self.coordinator):
            part.forget_deleted()

    def delta(self) -> PUnit:
        """Return the changes since the last call as a p-unit to store."""
        units = [part.delta() for part in (*self.partition_tables, self.coordinator)]
        self.is_new = False
        blocks: dict[str, list[pa.RecordBatch]] = {}
        for unit in units:
            for name, block in unit.blocks.items():
                blocks.setdefault(name, []).append(block)
        joined = {name: concat(parts) for name, parts in blocks.items()}
        return self._unit(units[0], joined)

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state in p-units of bounded size."""
        units: list[PUnit] = []
        for number, part in enumerate((*self.partition_tables, self.coordinator)):
            for unit in part.snapshot():
                blocks = {
                    name: block
                    for name, block in unit.blocks.items()
                    if number == 0 or name.rpartition("/")[0] in self.placements
                }
                if blocks or not units:
                    units.append(self._unit(unit, blocks))
        return iter(units)

    def _unit(self, unit: PUnit, blocks: Mapping[str, pa.RecordBatch]) -> PUnit:
        meta: dict[str, Any] = {**unit.meta, "transactions": self.transactions, "rows": self.rows}
        facts = {"offset": self.offset, "program": self.program}
        meta |= {name: value for name, value in facts.items() if value is not None}
        return PUnit(unit.kind, meta, blocks, packed=True)

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply stored `units` in order, to empty tables or to an older version."""
        self.is_new = False
        self.request_memory = None
        self.gathered.scatter()
        for unit in units:
            parts = (*self.partition_tables, self.coordinator)
            for part, blocks in zip(parts, self._split_blocks(unit), strict=True):
                part.restore([PUnit(unit.kind, unit.meta, blocks)])
        self.transactions = self.partition_tables[0].transactions

    def _split_blocks(self, unit: PUnit) -> list[dict[str, pa.RecordBatch]]:
        """Divide the blocks of a p-unit among the partitions and the coordinator."""
        shares: list[dict[str, pa.RecordBatch]] = [{} for _ in range(self.partitions + 1)]
        for block_name, block in unit.blocks.items():
            name, _, kind = block_name.rpartition("/")
            placement = self.placements.get(name)
            if placement is not None:
                spec = self._specs[name]
                schema = spec.key_schema if kind == "tombstones" else spec.schema
                parts = placement.split(unit.block(block_name, schema))
            else:
                parts = [block] * (1 if name in self._unshared else len(shares))
            for share, part in zip(shares, parts, strict=False):
                share[block_name] = part
        return shares


State = TableSet | PartitionedTables
"""The tables of an open database."""
