"""Run procedures in Python over partitions, which run other requests while they wait (H-Store §6.3, §6.4).

The control code runs in the thread of the base partition. All partitions take part in the transaction:

1. Each partition first runs the queries that the transaction is expected to request. The tracking table holds
   their results.
2. The base partition runs the control code. The base waits if the control code needs a row of a different
   partition and the row has not arrived (SP1). The other partitions wait for queries of the base (SP2).
3. Each partition applies the transaction's changes to its rows, and waits for all other partitions (SP3).
4. If a transaction or request left its estimated path, and this may have changed a result, all requests that
   ran beside the transaction are undone, and the transaction starts again.

While a partition waits, it runs requests that the scheduler finds, as one batch. Results are as if all
requests ran in their order, because a request that runs at SP1 or SP2 conflicts with no access of the
transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock import _clock
from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.engine import plain_rows
from penstock.procedures.plain.rounds import PlainRounds
from penstock.procedures.plain.tables import python_rows
from penstock.procedures.rows import from_python
from penstock.speculating.in_process.footprints import Footprints
from penstock.speculating.in_process.path_models import Access, Key, PathModel, statement_of
from penstock.speculating.in_process.plans import EarlyRequests, Offer
from penstock.speculating.in_process.stall_batches import Change, Place, Rows, StallBatches, StallTimes
from penstock.speculating.rules import UNKNOWN_KEY, Step
from penstock.speculating.scheduler import Scheduler, Stall, StallPoint, Transaction
from penstock.speculating.tracking import TrackingTable, find_prefetchable

if TYPE_CHECKING:
    from penstock.procedures.partitions.partitioned_tables import PartitionedTables

__all__ = ["MAX_EVENTS", "PythonCall"]

MAX_RESTARTS = 3
"""After this many restarts, no request runs beside the transaction, so that it ends."""
MAX_EVENTS = 16
"""Calls with more transactions gather their tables, because a message for each row would take longer."""


class PythonCall:
    """One call of a procedure that Python runs.

    Parameters
    ----------
    tables : PartitionedTables
        The tables. No table may be gathered.
    program : PlainProgram
        The procedure's program.
    events : pyarrow.RecordBatch
        The events of the call.
    footprints : Footprints
        Finds the rows of transactions.
    model : PathModel
        Estimates the procedure's path.
    times : StallTimes
        The mean times of the procedure.
    time_of : callable
        Returns the mean time of a single-partition transaction of a program, in seconds.
    offer : Offer or None
        The requests that wait.
    mode : str
        ``rows``, ``tables`` or ``occ``; see `Scheduler`.

    Attributes
    ----------
    early : list of EarlyRequests
        The requests that ran beside the call, in their order.
    batches : StallBatches
        Runs the requests beside the call.
    prefetched, used : int
        The number of prefetched queries, and the number of prefetched results that the transactions used.
    restarts : int
        The number of times that the transaction started again.
    """

    def __init__(
        self,
        tables: PartitionedTables,
        program: PlainProgram,
        events: pa.RecordBatch,
        footprints: Footprints,
        model: PathModel,
        times: StallTimes,
        time_of: Callable[[Program], float],
        offer: Offer | None,
        mode: Any,
    ) -> None:
        self._tables, self._program, self._events = tables, program, events
        self._footprints, self._model, self._times, self._mode = footprints, model, times, mode
        self._specs = {spec.name: spec for spec in program.tables}
        placed = [spec for spec in program.tables if spec.name in tables.placements]
        for spec, verb in itertools.product(placed, ("read", "select", "delete")):
            footprints.bit(statement_of(verb, spec))
            footprints.bit(statement_of(verb, spec, has_key=False))
        self._rules = footprints.rules()
        self._scheduler = Scheduler(self._rules, mode, keeps_order=True)
        self.batches = StallBatches(tables, footprints, self._scheduler, times, time_of, offer)
        self._rows = python_rows(events)
        self._located: dict[tuple[str, Key], tuple[int, int]] = {}
        self._failure: BaseException | None = None
        self.early: list[EarlyRequests] = []
        self.prefetched = self.used = self.restarts = 0

    def run(self) -> pa.RecordBatch | None:
        """Run the transactions. If they change a replicated table, undo all changes and return None."""
        while True:
            results, again = self._attempt()
            if not again:
                return results
            self.restarts += 1

    # Steps

    def _locate(self, table: str, key: Key) -> tuple[int, int]:
        """Return the number of a row, and its partition."""
        if (table, key) not in self._located:
            spec, placement = self._specs[table], self._tables.placements[table]
            columns = [from_python([part], one.type) for part, one in zip(key, spec.key_columns, strict=True)]
            number = self._footprints.number_rows(spec, columns)
            at = [columns[spec.key.index(name)] for name in placement.names]
            self._located[table, key] = int(number[0]), int(placement.partitions_of(placement.columns, at)[0])
        return self._located[table, key]

    def _steps(self, access: Access) -> list[Step]:
        """Return the steps of an access: one step with a key, or a step for each partition without a key."""
        spec = self._specs[access.table]
        if access.key is None:
            number = self._rules.number(statement_of(access.verb, spec, has_key=False))
            return [Step(number, UNKNOWN_KEY, place) for place in range(self._tables.partitions)]
        try:
            row, place = self._locate(access.table, access.key)
        except (pa.ArrowException, OverflowError):  # the column cannot hold the key, so no row has it
            return []
        return [Step(self._rules.number(statement_of(access.verb, spec)), row, place)]

    def _estimate(self) -> tuple[list[Step], dict[Step, Access]]:
        """Return the estimated path, and the access of each step."""
        if self.restarts:  # the transaction probably takes the same path again
            return [step for step, _ in self._path], dict(self._path)
        if not self._model.has_learned:
            every = [Access("delete", name, None) for name in self._specs if name in self._tables.placements]
            return [step for one in every for step in self._steps(one)], {}
        steps, accesses = list[Step](), dict[Step, Access]()
        for event in self._rows:
            for access in self._model.estimate(event):
                for step in self._steps(access):
                    steps.append(step)
                    accesses[step] = access
        return steps, accesses

    # One attempt

    def _attempt(self) -> tuple[pa.RecordBatch | None, bool]:
        tables = self._tables
        estimate, accesses = self._estimate()
        needed = [step.partition for step in estimate]
        base = max(needed, key=needed.count, default=0)
        every = frozenset(range(tables.partitions))
        self._transaction = Transaction(self._program.name, base, (), tuple(estimate), every)
        self._base = base
        self._path: list[tuple[Step, Access]] = []
        self._steps_so_far = self._transaction.path = list[Step]()
        self._first: list[Access] = []
        self._is_first = True
        self._places = [
            Place(Stall(self._transaction, number), part)
            for number, part in enumerate(tables.partition_tables)
        ]
        self._places[base].stall.point = StallPoint.QUERY_RESPONSE
        places = find_prefetchable(self._rules, estimate, base)
        self._table = TrackingTable(self._rules, [estimate[place] for place in places])
        self._prefetched: list[tuple[Access, Future[Any]]] = []
        self.batches.begin_s = _clock.monotonic_s()
        for step in list(self._table.steps):
            access = accesses[step]
            self._places[step.partition].stall.has_executed = True
            future = self._send(step.partition, partial(self._fetch_row, step.partition, access))
            future.add_done_callback(lambda _, step=step: self._table.arrive(step))  # type: ignore[misc]
            self._prefetched.append((access, future))
        self.prefetched += len(self._prefetched)
        others = [number for number in range(tables.partitions) if number != base]
        loops = [tables.threads[number].submit(self._serve, number) for number in others]
        control = tables.threads[base].submit(self._control)
        rows, stays = None, False
        try:
            rows, stays = control.result()
        except BaseException as error:  # an interrupt, too, or the procedure's own error; raised again
            self._failure = self._failure or error
            control.exception()
        finally:
            for place in self._places:
                place.inbox.put(None)
            for loop in loops:
                loop.result()
        if self._failure is not None or not stays:
            for place in self._places:
                self.batches.undo(place)
        if self._failure is not None:
            raise self._failure
        self.early = [one.early for place in self._places for one in place.changes if one.early is not None]
        self._times.note("whole_s", _clock.monotonic_s() - self.batches.begin_s)
        return (rows if stays else None), rows is not None and not stays

    def _control(self) -> tuple[pa.RecordBatch | None, bool]:
        """Run the control code and the commit, in the thread of the base partition.

        Return the results and whether the transaction commits. If a replicated table has changed, the results
        are None.
        """
        program = self._program
        placed = [name for name in self._specs if name in self._tables.placements]
        own = self._tables.partition_tables[self._base]
        plain = PlainRounds(
            program.dependencies,
            {name: partial(self._fetch, name) if name in placed else own[name].fetch for name in self._specs},
            {name: partial(self._scan, name) if name in placed else own[name].scan for name in self._specs},
        )
        results: list[tuple[Any, ...]] = []
        for number in range(self._events.num_rows):
            self._is_first = number == 0
            results += plain.run(program.text, self._events.slice(number, 1), program.results)
            if self._is_first:
                changed = [(name, key) for name in placed for key in plain.tables[name].changed]
                self._first += [Access("delete", name, key) for name, key in changed]
        rows = plain_rows(program, results)
        changes = {
            name: own[name].to_arrow({key: table.rows[key] for key in table.changed})
            for name, table in plain.tables.items()
        }
        if any(plain.tables[name].changed for name in self._specs if name not in placed):
            return None, False
        for name in placed:
            for key in plain.tables[name].changed:
                change = Access("delete", name, key)
                for step in self._steps(change):
                    self._note(step, change)
        return rows, self._commit({name: changes[name] for name in placed})

    def _commit(self, changes: Mapping[str, tuple[pa.RecordBatch, pa.RecordBatch]]) -> bool:
        """Apply the changes in all partitions; return whether the transaction commits (§6.3.2)."""
        begin = _clock.monotonic_s()
        placements = self._tables.placements
        split = {name: [placements[name].split(part) for part in both] for name, both in changes.items()}
        shares = [
            {name: (upserts[number], gone[number]) for name, (upserts, gone) in split.items()}
            for number in range(len(self._places))
        ]
        prepared = [
            self._send(number, partial(self._prepare, number, shares[number]))
            for number in range(len(self._places))
            if number != self._base
        ]
        self._prepare(self._base, shares[self._base])
        for future in prepared:
            self._wait(future)
        self._times.note("commit_s", _clock.monotonic_s() - begin)
        if self._failure is not None:
            raise self._failure
        self._fill_paths()
        stalls = [place.stall for place in self._places]
        if any(map(self._scheduler.must_restart, stalls)) or self._table.out_of_order:
            return False
        self._model.learn(self._rows[0], self._first)
        return True

    def _prepare(self, number: int, changes: Rows) -> None:
        """Apply the transaction's changes in a partition."""
        place = self._places[number]
        old: Rows = {}
        for name, (upserts, gone) in changes.items():
            if upserts.num_rows or gone.num_rows:
                keys = pa.concat_batches([upserts.select(gone.schema.names), gone])
                old[name] = place.part[name].rows_of(keys), keys
        with self.batches.lock:
            place.changes.append(Change(old))
        for name in old:
            place.part[name].change(*changes[name], stored=True)
        with self.batches.lock:
            place.stall.executed, place.stall.point = len(self._path), StallPoint.COMMIT

    # Queries

    def _note(self, step: Step, access: Access) -> int:
        """Add a step to the transaction's path; return the path's length."""
        with self.batches.lock:
            self._path.append((step, access))
            self._steps_so_far.append(step)
            return len(self._path)

    def _fetch(self, table: str, key: Key) -> dict[str, Any] | None:
        """Return a row, for the control code."""
        if self._failure is not None:
            raise self._failure
        access = Access("read", table, key)
        self._learn(access)
        steps = self._steps(access)
        if not steps:
            return None
        (step,) = steps
        executed = self._note(step, access)
        place = self._table.invoke(step)
        if place is not None and self._prefetched[place][0] == access:
            self.used += 1
            return self._wait(self._prefetched[place][1])
        return self._query(step.partition, executed, partial(self._fetch_row, step.partition, access))

    def _scan(self, table: str) -> list[dict[str, Any]]:
        """Return all rows of a table, for the control code."""
        access = Access("select", table, None)
        self._learn(access)
        executed = max([self._note(step, access) for step in self._steps(access)])
        futures = [
            self._send(number, partial(self._execute, number, executed, place.part[table].scan))
            for number, place in enumerate(self._places)
            if number != self._base
        ]
        own = self._places[self._base].part[table].scan
        rows: list[dict[str, Any]] = self._execute(self._base, executed, own)
        return [*rows, *(row for future in futures for row in self._wait(future))]

    def _learn(self, access: Access) -> None:
        if self._is_first:
            self._first.append(access)

    def _fetch_row(self, number: int, access: Access) -> dict[str, Any] | None:
        return self._places[number].part[access.table].fetch(access.key or ())

    def _query(self, number: int, executed: int, query: Callable[[], Any]) -> Any:
        """Run a query in a partition, and wait for its result."""
        if number == self._base:
            return self._execute(number, executed, query)
        return self._wait(self._send(number, partial(self._execute, number, executed, query)))

    def _execute(self, number: int, executed: int, query: Callable[[], Any]) -> Any:
        result = query()
        with self.batches.lock:
            self._places[number].stall.executed = executed
        return result

    # Partitions

    def _send(self, number: int, task: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(task())
            except BaseException as error:  # raised where the result is awaited
                future.set_exception(error)

        self._places[number].inbox.put(run)
        return future

    def _wait(self, future: Future[Any]) -> Any:
        """Wait for another partition (SP1, or SP3 after the changes are applied)."""
        begin = _clock.monotonic_s()
        while not future.done() and self._speculate(self._base):
            pass
        result = future.result()
        if self._places[self._base].stall.point is StallPoint.QUERY_RESPONSE:
            self._times.note("query_s", _clock.monotonic_s() - begin)
        return result

    def _serve(self, number: int) -> None:
        """Run the tasks that a partition receives. While it waits for a task, run requests (SP2, SP3)."""
        inbox = self._places[number].inbox
        while True:
            try:
                task = inbox.get_nowait()
            except Empty:
                if self._speculate(number):
                    continue
                task = inbox.get()
            if task is None:
                return
            task()

    def _speculate(self, number: int) -> bool:
        """Run requests in a partition that waits; return whether a request ran."""
        if self.restarts >= MAX_RESTARTS or self._failure is not None:
            return False
        try:
            return self.batches.run(self._places[number])
        except BaseException as error:  # raised by the control code
            self._failure = error
            return False

    def _fill_paths(self) -> None:
        """Set the paths of requests that ran, if the scheduler has to compare them with the transaction."""
        if self._mode == "occ" or self._transaction.deviates:
            for place in self._places:
                self.batches.fill_paths(place)
