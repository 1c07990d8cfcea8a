"""Run transactions in partitions that wait for multi-partition transactions (H-Store §6.3).

Transactions over several partitions run at the coordinator, over copies of their rows, while all partitions
wait. Meanwhile, partitions run later requests that need one partition and do not conflict. Results and tables
are the same as in a serial run in the order of the log, which is the order of requests:

1. A transaction that runs beside other transactions does not conflict with them. It also does not conflict
   with a transaction that precedes it in the order of requests but runs after it. So its results are the same
   as in its turn.
2. In each partition, transactions that run beside other transactions keep their order.
3. With ``occ``, conflicts are found afterwards. After a conflict, all tables are restored from copies, and
   the transactions run in their order.

Rejections do not matter: a transaction without conflicts is kept even if the transactions that ran beside it
are rejected.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock import _clock
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.operators.update_stream.stream import concat
from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.compiler.values import AccessMode, Found
from penstock.procedures.engine import TableSet
from penstock.procedures.partitions.partitioned_rows import MOVE_COST
from penstock.procedures.rows import TableRows
from penstock.procedures.texts import Numbers
from penstock.speculating.in_process.footprints import MAX_STATEMENTS, Booleans, Footprint, Footprints
from penstock.speculating.in_process.gather_trials import GatherTrials
from penstock.speculating.in_process.path_models import PathModel
from penstock.speculating.in_process.plans import EarlyRequests, Offer
from penstock.speculating.in_process.python_calls import MAX_EVENTS, PythonCall
from penstock.speculating.in_process.stall_batches import TOO_LONG_DECAY, StallTimes
from penstock.speculating.in_process.stalled_calls import StalledCall, Task, split_tasks
from penstock.speculating.in_process.trials import Trials
from penstock.speculating.rules import Level
from penstock.speculating.scheduler import StallPoint

if TYPE_CHECKING:
    from penstock.procedures.databases import Database
    from penstock.procedures.partitions.event_keys import EventKeys
    from penstock.procedures.partitions.partitioned_tables import PartitionedTables, State
    from penstock.procedures.partitions.routes import Route

__all__ = ["MODES", "Mode", "Speculation", "use_speculation"]

Mode = Literal["rows", "tables", "occ"]
MODES = ("rows", "tables", "occ")
INITIAL_ESTIMATE_S = 1e-6
"""The assumed time of a transaction of a program that has not run yet."""
_NEWEST_WEIGHT = 0.2
"""The weight of the latest time in a mean time."""
_SINGLE, _STALLED, _MOVING = "single", "stalled", "moving"
"""The kinds of a program's times: a single-partition transaction, a forwarded transaction, a move of rows."""

Floats = npt.NDArray[np.float64]


def use_speculation(state: State, database: Database, speculate: bool | str) -> Speculation:
    """Let partitions of an open database run transactions while they wait.

    Raises
    ------
    InvalidUsageError
        If the mode is unknown, or the database has only one partition, or the database has a predictor.
    """
    mode = "rows" if speculate is True else speculate
    if mode not in MODES:
        hint = did_you_mean(str(mode), MODES, "modes")
        raise InvalidUsageError("there is no such mode of speculation", speculate=repr(mode), hint=hint)
    if isinstance(state, TableSet):
        raise InvalidUsageError("speculation needs partitions", hint="open the database with partitions=2")
    if state.predicted is not None:
        raise InvalidUsageError(
            "a database with a predictor does not speculate",
            hint="leave out predictor= and the routing of the design, or speculate=",
        )
    level: Level = "tables" if mode == "tables" else "rows"
    state.speculation = Speculation(state, database, level, optimistic=mode == "occ")
    return state.speculation


class Speculation:
    """Runs transactions beside multi-partition transactions, in an open database.

    Parameters
    ----------
    tables : PartitionedTables
        The tables.
    database : Database
        The database with the procedures.
    level : str
        ``tables`` or ``rows``: whether conflicts are found by table or by row.
    optimistic : bool
        Whether conflicts are found only after the transactions have run.

    Attributes
    ----------
    footprints : Footprints
        Finds the rows of transactions.
    offer : Offer or None
        The requests that wait while a group runs.
    unlogged : list of EarlyRequests
        The requests that ran beside a call and are not yet logged.
    stalls : int
        The number of calls with transactions over several partitions during which later requests waited.
    transactions : int
        The number of later requests that ran beside these calls.
    merged : int
        The number of later requests that ran in one call with earlier requests for the same procedure.
    conflicts : int
        The number of later requests that conflicted.
    rolled_back : int
        The number of transactions that ran beside other transactions and were undone.
    beside : int
        The number of transactions that ran beside forwarded transactions of their own call.
    points, prefetched, used, restarts : dict, int, int, int
        The sums over all calls of procedures in Python; see `StallBatches` and `PythonCall`.
    """

    def __init__(
        self, tables: PartitionedTables, database: Database, level: Level, *, optimistic: bool
    ) -> None:
        self._tables, self._level, self._optimistic = tables, level, optimistic
        self._mode: Mode = "occ" if optimistic else level
        self.footprints = Footprints(database, tables.placements, level)
        self._times: dict[tuple[str, str], float] = {}
        self._trials, self._gathering = Trials(), GatherTrials()
        self._models: dict[str, tuple[PathModel, StallTimes]] = {}
        self._gathered = set[str]()
        self._stalls = True  # False while requests run without speculation, to measure their time
        self.offer: Offer | None = None
        self.unlogged: list[EarlyRequests] = []
        self.stalls = self.transactions = self.merged = self.conflicts = 0
        self.rolled_back = self.beside = self.restarts = self.prefetched = self.used = 0
        self.points = dict.fromkeys(StallPoint, 0)

    def describe(self) -> str:
        """Return the counts as a text."""
        counts = ", ".join(f"{count} at {point.value}" for point, count in self.points.items())
        limit = f"; no more, because there are over {MAX_STATEMENTS} statements"
        limit = limit if self.footprints.shares_numbers else ""
        return (
            f"speculated ({self._mode}): {self.transactions} later requests in {self.stalls} stalls; "
            f"{self.merged} later requests ran in one call with earlier ones; "
            f"{self.conflicts} conflicts, {self.rolled_back} rolled back; "
            f"{self.beside} transactions ran beside forwarded ones of their own call\n"
            f"  beside procedures in Python: {counts}; {self.prefetched} queries before they were requested, "
            f"{self.used} of them used; {self.restarts} restarts{limit}"
        )

    def read(self, program: Program, events: pa.RecordBatch) -> tuple[Footprint, Numbers] | None:
        """Return the accesses and the partitions of transactions; None if they are unknown before the run."""
        route = self._tables.route(program)
        if route.obstacle is not None or _finds(route):
            return None
        keys = self._tables.event_keys(program, events)
        homes = keys.alone() if route.keys else np.zeros(events.num_rows, np.int64)
        return self.footprints.make(program, keys), homes

    @contextlib.contextmanager
    def try_plan(self, requests: int) -> Iterator[bool]:
        """Decide from measured times whether to plan the requests of this context, and measure its time."""
        plans = self._optimistic or self._trials.choose("", requests)
        begin, moved_s = _clock.monotonic_s(), self._tables.gathered.moved_s
        self._stalls = plans
        try:
            yield plans
        finally:
            self._stalls = True
        self._note_trial("", requests, begin, moved_s, new=plans)

    def _note_trial(self, name: str, items: int, begin_s: float, moved_s: float, *, new: bool) -> None:
        """Record the time of work since `begin_s`; before the work, table moves had taken `moved_s`."""
        seconds, switch_s = _clock.monotonic_s() - begin_s, self._tables.gathered.moved_s - moved_s
        self._trials.note(name, items, seconds, new=new, switch_s=switch_s)

    def run(
        self,
        program: Program,
        events: pa.RecordBatch,
        keys: EventKeys,
        homes: Numbers,
        run_split: Callable[[], pa.RecordBatch],
    ) -> pa.RecordBatch:
        """Run the transactions of a call, beside each other and beside later requests if that is faster.

        Parameters
        ----------
        program : Program
            The procedure's program.
        events : pyarrow.RecordBatch
            The events of the call.
        keys : EventKeys
            The keys that the events determine.
        homes : ndarray
            The partition of each event, or a number below 0 if the event needs several partitions.
        run_split : callable
            Runs the transactions without speculation.
        """
        if self._optimistic or self.offer is not None:
            results = self._run_beside(program, events, keys, homes)
            return run_split() if results is None else results
        count, several = events.num_rows, int(np.count_nonzero(homes < 0))
        new = self._gathering.split.choose(self._gathering.name(program.digest, several), count)
        begin = _clock.monotonic_s()
        results = self._run_beside(program, events, keys, homes) if new else run_split()
        spent_s = _clock.monotonic_s() - begin
        self._gathering.note_split(program.digest, several, count, spent_s, beside=new)
        return run_split() if results is None else results

    def time_gathered(
        self, program: Program, count: int, run_gathered: Callable[[], pa.RecordBatch]
    ) -> pa.RecordBatch:
        """Run a call over gathered tables, and record its time."""
        begin = _clock.monotonic_s()
        results = run_gathered()
        if self.offer is None:
            self._gathering.note_gathered(program.digest, count, _clock.monotonic_s() - begin)
        return results

    def run_python(
        self, program: PlainProgram, events: pa.RecordBatch, run_gathered: Callable[[], pa.RecordBatch]
    ) -> pa.RecordBatch:
        """Run a procedure in Python over partitions, or over gathered tables if that takes less time."""
        offer, count = self.offer, events.num_rows
        gathers = count > MAX_EVENTS or self.footprints.shares_numbers or not self._stalls
        if gathers or program.stages or program.digest in self._gathered or not self._is_placed(program):
            return run_gathered()
        new = self._optimistic or offer is not None or self._trials.choose(program.digest, count)
        begin, moved_s = _clock.monotonic_s(), self._tables.gathered.moved_s
        results = self._run_stalling(program, events, offer) if new else None
        self.offer = None
        if new and results is None:  # the procedure changes a replicated table, and probably does so again
            self._gathered.add(program.digest)
        if results is None:
            results, new = run_gathered(), False
        if offer is None:
            self._note_trial(program.digest, count, begin, moved_s, new=new)
        return results

    def _is_placed(self, program: PlainProgram) -> bool:
        """Return whether a procedure uses only declared tables, and at least one partitioned table."""
        names = [spec.name for spec in program.tables]
        return all(map(str.isidentifier, names)) and any(name in self._tables.placements for name in names)

    def _run_stalling(
        self, program: PlainProgram, events: pa.RecordBatch, offer: Offer | None
    ) -> pa.RecordBatch | None:
        self._tables.gathered.scatter()
        model, times = self._models.setdefault(program.digest, (PathModel(), StallTimes()))
        call = PythonCall(
            self._tables, program, events, self.footprints, model, times, self._time_of, offer, self._mode
        )
        self.stalls += offer is not None
        try:
            results = call.run()
        finally:
            self.restarts += call.restarts
            self.rolled_back += call.batches.rolled_back
            self.prefetched += call.prefetched
            self.used += call.used
        for point, number in call.batches.points.items():
            self.points[point] += number
        for one in call.early:
            if offer is not None:
                offer.early.append(one)
            self.unlogged.append(one)
            self._tables.transactions += len(one.done)
            self.transactions += len(one.done)
        if results is not None:
            self._tables.forwarded += events.num_rows
        return results

    def _run_beside(
        self, program: Program, events: pa.RecordBatch, keys: EventKeys, homes: Numbers
    ) -> pa.RecordBatch | None:
        """Run a call with speculation.

        Return None, with unchanged tables, if ``occ`` finds no request to run or finds a conflict afterwards.
        """
        several, single = homes < 0, homes >= 0
        first, finds = single, _finds(keys.route)
        if not self._optimistic and not finds:
            first = keys.first(homes, self._tables.partitions)
        budgets = np.full(self._tables.partitions, self._time_of(program, _STALLED) * int(several.sum()))
        own = homes[single & ~first]
        known_s = self._times.get((program.digest, _SINGLE), 0.0)
        budgets -= np.bincount(own, minlength=len(budgets)) * known_s
        tasks: dict[int, list[Task]] = {}
        chosen, offer = list[EarlyRequests](), self.offer
        self.offer = None
        if offer is not None and offer.plan.waits.any() and len(offer.group) == events.num_rows:
            self.stalls += 1
            chosen = self._choose(offer, offer.group[several], budgets, tasks)
        if self._optimistic and not tasks:
            return None
        copies = self._copy([program, *(one.kind.program for one in chosen)]) if self._optimistic else []
        call = StalledCall(self._tables, program, events, homes, first)
        try:
            call.start(tasks, waits=finds)
            call.run_stalled()
            conflicts = 0
            if self._optimistic and offer is not None:
                taken = [one.kind.places[one.taken] for one in chosen]
                conflicts = offer.plan.count_conflicts(offer.group[several], taken)
            results = call.wait()
        except BaseException:  # an interrupt, too; raised again
            if self._optimistic:
                self._put_back(call, copies)
            else:
                call.finish()
                self._keep(offer, chosen, call.finished())
            raise
        self.conflicts += conflicts
        if conflicts:
            self._put_back(call, copies)
            return None
        count = int(several.sum())
        self._tables.forwarded += count
        self._note_time(program, count, call.moving_s + call.stalled_s, _STALLED)
        call.spread()
        self._keep(offer, chosen, results)
        self.beside += len(own)
        self._note_time(program, count, call.moving_s, _MOVING)
        for one, number, seconds in call.times:
            self._note_time(one, number, seconds)
        return call.results()

    def debt(self, program: Program | PlainProgram, single: int, several: int) -> float | None:
        """Return how a call changes the debt of `GatheredTables`; None if the change is unknown."""
        if self.offer is not None:
            return self.move_cost(program) * several - single
        if self._optimistic:
            return None
        return self._gathering.debt(program.digest, single + several, several, self._tables.gathered)

    def move_cost(self, program: Program | PlainProgram) -> float:
        """Return how many single-partition transactions take as long as moving a transaction's rows."""
        known = self._times.get((program.digest, _MOVING))
        if known is None or (program.digest, _SINGLE) not in self._times:
            return MOVE_COST
        # While tables are gathered, no move is measured. A time that is too high would keep them gathered.
        return min(known / self._times[program.digest, _SINGLE], MOVE_COST)

    def _choose(
        self, offer: Offer, stalled: Numbers, budgets: Floats, tasks: dict[int, list[Task]]
    ) -> list[EarlyRequests]:
        """Choose the requests that run beside a call, and add their tasks to `tasks`."""
        chosen = list[EarlyRequests]()
        for kind, allowed, conflicts, take in offer.plan.choose_beside(stalled, checks=not self._optimistic):
            program = kind.program
            self.conflicts += conflicts
            if any(spec.name in self._tables.gathered.names for spec in program.tables):
                continue
            taken = _limit(allowed, kind.homes, budgets, self._time_of(program))
            if allowed.any() and not taken.any():
                self._times[program.digest, _SINGLE] = self._time_of(program) * TOO_LONG_DECAY
            if taken.any():
                take(taken)
                split_tasks(tasks, program, kind.events, np.flatnonzero(taken), kind.homes, len(chosen))
                chosen.append(EarlyRequests(kind, taken))
            if not (budgets > 0).any():
                break
        return chosen

    def _put_back(
        self, call: StalledCall, copies: Sequence[tuple[TableSet, int, dict[str, TableRows]]]
    ) -> None:
        """Undo the transactions of a call and beside the call, by restoring copies of the tables."""
        call.finish()
        self.rolled_back += call.count
        for part, transactions, tables in copies:
            part.put_back(tables, transactions)

    def _keep(
        self,
        offer: Offer | None,
        chosen: Sequence[EarlyRequests],
        results: Mapping[int, Sequence[tuple[int, pa.RecordBatch]]],
    ) -> None:
        """Keep the results of requests that ran beside a call, in the order of the requests."""
        for number, one in enumerate(chosen):
            if offer is None or number not in results:  # no task of these requests has succeeded
                continue
            ended = [np.flatnonzero(one.taken & (one.kind.homes == home)) for home, _ in results[number]]
            order = np.concatenate(ended)
            rows = concat([batch for _, batch in results[number]])
            one.done, one.results = np.sort(order), rows.take(pa.array(np.argsort(order)))
            offer.plan.waits[one.kind.places[one.done]] = False
            offer.early.append(one)
            self.unlogged.append(one)
            self._tables.transactions += len(order)
            self.transactions += len(order)

    def _copy(self, programs: Iterable[Program]) -> list[tuple[TableSet, int, dict[str, TableRows]]]:
        """Copy all tables that the programs may change, for `_put_back`."""
        names = {
            access.table
            for program in programs
            for access in program.accesses
            if access.mode is not AccessMode.READ
        }
        copies = []
        for part in self._tables.partition_tables:
            tables = {}
            for name in names:
                shared = {id(one): one for one in (part[name].spec, part.texts)}
                tables[name] = copy.deepcopy(part[name], shared)
            copies.append((part, part.transactions, tables))
        return copies

    def _time_of(self, program: Program, kind: str = _SINGLE) -> float:
        return self._times.get((program.digest, kind), INITIAL_ESTIMATE_S)

    def _note_time(self, program: Program, count: int, seconds: float, kind: str = _SINGLE) -> None:
        """Include the time of transactions in the mean time of their program."""
        key, each = (program.digest, kind), max(seconds / count, 1e-9)
        self._times[key] = (1 - _NEWEST_WEIGHT) * self._times.get(key, each) + _NEWEST_WEIGHT * each


def _finds(route: Route) -> bool:
    """Return whether a route uses an index, whose rows earlier transactions may change."""
    return any(isinstance(origin, Found) for keys in route.keys for origin in keys.origins)


def _limit(chosen: Booleans, homes: Numbers, budgets: Floats, each_s: float) -> Booleans:
    """Return the first chosen transactions that fit into each partition's budget; reduce the budgets."""
    kept = np.zeros(len(chosen), np.bool_)
    for home in np.unique(homes[chosen]).tolist():
        places = np.flatnonzero(chosen & (homes == home))[: max(int(budgets[home] / each_s), 0)]
        kept[places] = True
        budgets[home] -= each_s * len(places)
    return kept
