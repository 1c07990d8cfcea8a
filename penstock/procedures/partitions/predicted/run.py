"""Runs transactions in the partitions that a predictor names (H-Store §5.3.3, §5.3.4).

Results and tables are the same as in a serial run in the order of events:

1. If each transaction accesses only the predicted partitions, the order of `plan` has the results of the
   given order.
2. The kernel stops before an access that was not predicted, before an unpredicted write to a replicated
   table, and where a transaction without an undo log is rejected. Then all tables that the program writes are
   replaced by their copies from before the call, and the caller runs the events without predictions.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.stream import concat
from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.compiler.values import AccessMode
from penstock.procedures.engine import TableSet
from penstock.procedures.partitions.predicted.guard_kernels import GUARD_HEAD, plan
from penstock.procedures.partitions.predicted.guards import DEVIATES, can_guard, can_omit_undo, load_guarded
from penstock.procedures.partitions.predicted.prediction import (
    Prediction,
    StoredPredictor,
    TransactionPredictor,
)
from penstock.procedures.partitions.predicted.routing import AttributePredictor
from penstock.procedures.rows import TableRows
from penstock.procedures.texts import Numbers

if TYPE_CHECKING:
    from penstock.procedures.partitions.partitioned_tables import PartitionedTables

__all__ = ["PredictedRuns", "use_predictor"]

MOST_WAVES = 8
"""If a call needs more waves, or moves more rows than it has events, it has one wave and nothing is late."""
MOST_FORWARDED = 0.5
"""If predictions would forward more than this share of a call, one thread is as fast without them."""
MOST_COPIED = 16
"""If the tables to copy or to move have more rows for each event, that takes longer than predictions save."""
USELESS_PAUSE = 31
"""After a call that would be forwarded, this many calls of the program run without predictions."""
_HIGHEST = np.iinfo(np.int64).max

Kernel = Callable[..., int]


def use_predictor(
    state: TableSet | PartitionedTables,
    database: str,
    predictor: StoredPredictor | None,
    routing: Mapping[str, str],
) -> None:
    """Let the transactions of an open database run in the partitions that are predicted, if any are.

    Parameters
    ----------
    state : TableSet or PartitionedTables
        The tables.
    database : str
        The name of the database.
    predictor : StoredPredictor, optional
        The predictor.
    routing : mapping of str to str
        The routing attributes of procedures. The predictor does not predict these procedures.

    Raises
    ------
    InvalidUsageError
        If `predictor` is not a predictor of this database's partitions, or the database has one partition.
    """
    if predictor is None and not routing:
        return
    if predictor is not None and not hasattr(predictor, "bind"):
        raise InvalidUsageError(
            "this is no predictor",
            got=type(predictor).__name__,
            hint='read its file: penstock.Predictor.load("predictor.json")',
        )
    if isinstance(state, TableSet):
        raise InvalidUsageError("a predictor is for partitions", hint="open the database with partitions=2")
    count, placements = state.partitions, state.placements
    bound = None if predictor is None else predictor.bind(database, count, placements)
    if routing:
        bound = AttributePredictor(routing, count, placements, bound)
    if bound is not None:
        state.predicted = PredictedRuns(state, bound, routing)


def tables_written(program: Program) -> list[str]:
    """Return the tables that a program may write."""
    return sorted({access.table for access in program.accesses if access.mode is not AccessMode.READ})


class _DeviationError(Exception):
    """A transaction is not as predicted; `event` is its position in the call."""

    def __init__(self, event: int) -> None:
        super().__init__(event)
        self.event = event


class PredictedRuns:
    """Runs of transactions by predictions, over the tables of a database in partitions.

    Parameters
    ----------
    tables : PartitionedTables
        The tables.
    predictor : TransactionPredictor
        The predictor.
    routing : mapping of str to str
        The routing attributes that the design gives to procedures.

    Attributes
    ----------
    transactions : int
        The number of transactions that ran as predicted.
    forwarded, late, without_undo : int
        The numbers of these transactions that were forwarded; that ran late, in a partition that forwarded
        transactions had finished with while they still ran elsewhere; and that had no undo log.
    wrong : int
        The number of calls with a wrong prediction.
    """

    def __init__(
        self,
        tables: PartitionedTables,
        predictor: TransactionPredictor,
        routing: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._tables, self._predictor, self.routing = tables, predictor, dict(routing)
        self._kernels: dict[str, tuple[Kernel, Kernel | None] | None] = {}
        self._paused: dict[str, int] = {}
        self._declined: set[str] = set()
        self.transactions = self.forwarded = self.late = self.without_undo = self.wrong = 0

    def run(self, program: Program, events: pa.RecordBatch) -> pa.RecordBatch | None:
        """Run the events by predictions; if that is not possible, leave the tables unchanged and return None.

        The result is None, too, if the tables to copy or to move have too many rows, or if too many
        transactions would be forwarded. In the latter case, the next calls of the program run without
        predictions.
        """
        call = self._begin(program, events)
        if call is None:
            self._declined.add(program.digest)
            return None
        self._declined.discard(program.digest)
        self._tables.gathered.scatter()
        try:
            results = call.run()
        except _DeviationError as error:
            self.wrong += 1
            call.put_back()
            self._predictor.correct(error.event, int(call.touched[error.event]))
            return None
        except BaseException:  # an interrupt, too, leaves tables half changed; raised again
            call.put_back()
            raise
        self._predictor.observe(call.touched)
        self.transactions += events.num_rows
        self.forwarded += call.forwarded
        self.late += call.late
        self.without_undo += call.without_undo
        return results

    def declines(self, program: Program | PlainProgram) -> bool:
        """Return whether the last call of a program was not predicted although no prediction was wrong."""
        return program.digest in self._declined

    def _begin(self, program: Program, events: pa.RecordBatch) -> _Call | None:
        """Return a call by predictions; None if there are none, or they would not help, or during a pause."""
        if self._paused.get(program.digest, 0) > 0:
            self._paused[program.digest] -= 1
            return None
        if self._rows_to_copy(program) > MOST_COPIED * events.num_rows:
            return None
        kernels = self._kernels_of(program)
        if kernels is None or (prediction := self._predictor.predict(program, events)) is None:
            return None
        call = _Call(self._tables, program, events, prediction, kernels)
        if call.planned > MOST_FORWARDED * events.num_rows:
            self._paused[program.digest] = USELESS_PAUSE
            return None
        return call

    def _rows_to_copy(self, program: Program) -> int:
        """Return the rows of the tables that a program may write, and of the gathered tables, which move."""
        names = self._tables.gathered.names.union(tables_written(program))
        return sum(len(self._tables[name]) for name in names)

    def _kernels_of(self, program: Program) -> tuple[Kernel, Kernel | None] | None:
        if program.digest not in self._kernels:
            placements = self._tables.placements
            self._kernels[program.digest] = (
                (
                    load_guarded(program, placements, undo=True),
                    load_guarded(program, placements, undo=False) if can_omit_undo(program) else None,
                )
                if can_guard(program, placements)
                else None
            )
        return self._kernels[program.digest]


class _Call:
    """One call, from its copies of tables to its results."""

    def __init__(
        self,
        tables: PartitionedTables,
        program: Program,
        events: pa.RecordBatch,
        prediction: Prediction,
        kernels: tuple[Kernel, Kernel | None],
    ) -> None:
        self._tables, self._program, self._events = tables, program, events
        self._kernels, self._undo = kernels, prediction.undo
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
        self._ends = self._plan(self._most_waves()) or self._plan(None)

    @property
    def planned(self) -> int:
        """The number of transactions that will be forwarded."""
        return int(np.count_nonzero(self._homes < 0))

    def _make_guard(self) -> Numbers:
        """Return the guard of the program's tables; see `GUARD_HEAD`."""
        specs, placements = self._program.tables, self._tables.placements
        guard = [0, self._tables.partitions, _HIGHEST, *(0 for _ in specs)]
        for number, spec in enumerate(specs):
            placement = placements.get(spec.name)
            if placement is not None and placement.ranges is not None:
                guard[GUARD_HEAD + number] = len(guard)
                guard += [len(placement.ranges), *placement.ranges]
        return np.array(guard, np.int64)

    def run(self) -> pa.RecordBatch:
        """Run all events."""
        used = int(np.bitwise_or.reduce(self._masks))
        for number, part in enumerate(self._tables._partitions):
            if used >> number & 1:
                self._copy(part, self._written)
        shared = [name for name in self._written if name not in self._tables.placements]
        self._copy(self._tables._coordinator, shared)
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
        """Return how many waves may have late transactions."""
        route = self._tables.route(self._program)
        if route.obstacle is None and route.knows_rows:
            return MOST_WAVES
        tables = [spec.name for spec in self._program.tables if spec.name in self._tables.placements]
        rows = sum(len(self._tables[name]) for name in tables)
        return min(1 + self._events.num_rows // max(rows, 1), MOST_WAVES)

    def _plan(self, most: int | None) -> list[int]:
        """Set where transactions run; return the ends of waves, or no ends if there are more than `most`.

        If `most` is None, no transaction is late, and there is one wave.
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
        """Restore the tables as of before the call."""
        for part, transactions, copies in self._copies:
            part.put_back(copies, transactions)
        coordinator = self._tables._coordinator
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
        """Run one wave; add its results, and the positions of their events."""
        partitions = range(self._tables.partitions)
        groups = {home: places[(homes == home) & ~late] for home in partitions}
        early = {
            home: partial(self._run_single, home, chosen) for home, chosen in groups.items() if len(chosen)
        }
        for home, results in self._tables._each(early).items():
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
        return self._run(self._tables._partitions[home], places, 1 << home, _HIGHEST)

    def _run_forwarded(
        self, places: Numbers, waiting: Mapping[int, Numbers]
    ) -> tuple[pa.RecordBatch, dict[int, pa.RecordBatch]]:
        """Run transactions on the coordinator; once their rows are read, also run late transactions."""
        tables, program = self._tables, self._program
        allowed = int(np.bitwise_or.reduce(self._masks[places]))
        needed = [number for number in range(tables.partitions) if allowed >> number & 1]
        split = [spec.name for spec in program.tables if spec.name in tables.placements]
        events = self._take(places)
        keys = None
        if tables.route(program).obstacle is None:
            keys = tables._keys_by_partition(tables.event_keys(program, events))
        copies = tables._each({number: partial(tables._fetch, number, split, keys) for number in needed})
        coordinator = tables._coordinator
        for name in split:
            rows = [one[name] for one in copies.values() if one[name].num_rows]
            if rows:
                coordinator[name].upsert(concat(rows), dirty=False)
        futures: dict[int, Future[pa.RecordBatch]] = {
            home: tables._threads[home].submit(self._run_single, home, chosen)
            for home, chosen in waiting.items()
        }
        try:
            writes_all = np.flatnonzero(self._writes[places] == self._every)
            first = int(writes_all[0]) if len(writes_all) else _HIGHEST
            results = self._run(coordinator, places, allowed, first)
        finally:
            wait(futures.values())
        late_results = {home: future.result() for home, future in futures.items()}
        deltas = {spec.name: coordinator[spec.name].delta() for spec in program.tables}
        if waiting:
            self._check_unchanged(deltas, waiting, int(places[0]))
        tables._spread(deltas)
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
                    raise _DeviationError(event)

    def _take(self, places: Numbers) -> pa.RecordBatch:
        return self._events.take(pa.array(places))

    def _run(self, part: TableSet, places: Numbers, allowed: int, first: int) -> pa.RecordBatch:
        """Run transactions over tables; each accesses only the allowed partitions."""
        guard = self._guard.copy()
        guard[0], guard[2] = np.array([allowed], np.uint64).view(np.int64)[0], first
        touched = np.zeros(len(places), np.int64)
        run = part.begin(self._program, self._take(places))
        with_undo, without = self._kernels
        has_undo = without is None or bool(self._undo[places].any())
        kernel = with_undo if has_undo or without is None else without
        begin = 0
        try:
            while begin < len(places):
                part.control[0] = 0
                begin = kernel(begin, len(places), guard, touched, *run.arguments(part.control, part.undo))
                if begin < len(places):
                    if part.control[0] == DEVIATES:
                        raise _DeviationError(int(places[begin]))
                    part.make_room(self._program, int(part.control[0]))
        finally:
            self.touched[places] = touched
        strange = np.flatnonzero(touched.view(np.uint64) & ~self._masks[places])
        if len(strange):
            raise _DeviationError(int(places[strange[0]]))
        part.transactions += len(places)
        if not has_undo:
            self.without_undo += len(places)
        return run.results()
