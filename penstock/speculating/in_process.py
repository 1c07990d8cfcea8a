"""Runs transactions in partitions that wait for multi-partition transactions (H-Store §6.3).

While transactions over several partitions run at the coordinator, over copies of their rows, all partitions
wait. Meanwhile, partitions run later requests that need one partition and do not conflict. Results and tables
are the same as in a serial run in the order of the log, which is the order of requests:

1. A transaction that runs concurrently with other transactions conflicts with none of them, nor with an
   earlier transaction that runs after it. So the results are the same as at its place in the order.
2. In each partition, transactions that run concurrently with other transactions keep their order.
3. With ``occ``, conflicts are looked for afterwards. After a conflict, all tables are restored from copies,
   and the transactions run in their order.

Rejections do not matter: a transaction that does not conflict is kept even if the transactions with which it
ran concurrently are rejected.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.stream import concat
from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.compiler.values import AccessMode, Found
from penstock.procedures.engine import TableSet
from penstock.procedures.partitions.partitioned_rows import MOVE_COST
from penstock.procedures.rows import TableRows
from penstock.procedures.texts import Numbers
from penstock.speculating.footprints import Booleans, Footprint, Footprints
from penstock.speculating.rules import Level
from penstock.speculating.stalled_calls import StalledCall, Task, split_tasks
from penstock.sql.expression import did_you_mean

if TYPE_CHECKING:
    from penstock.procedures.databases import Database
    from penstock.procedures.partitions.event_keys import EventKeys
    from penstock.procedures.partitions.partitioned_tables import PartitionedTables, State
    from penstock.procedures.partitions.routes import Route

__all__ = ["MODES", "Mode", "Speculation", "Waiting", "use_speculation"]

Mode = Literal["rows", "tables", "occ"]
MODES = ("rows", "tables", "occ")
MAX_GROUPS_PER_STALL = 16
"""At most this many groups of waiting requests are examined per stall."""
INITIAL_ESTIMATE_S = 1e-6
"""The assumed time of a transaction of a program that has not run yet."""
TOO_LONG_DECAY = 0.95
"""The factor on a program's assumed time when that is too long, so that the program is tried again."""
_WEIGHT = 0.2
"""The weight of the latest time in the mean."""
_SINGLE, _STALLED, _MOVING = "single", "stalled", "moving"
"""A program's times: of a single-partition transaction, of a forwarded one, and to move the latter's rows."""

Floats = npt.NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Waiting:
    """A group of queued requests for one procedure.

    Attributes
    ----------
    procedure : str
        The name of the procedure.
    program : Program
        The program.
    events : pyarrow.RecordBatch
        The events.
    taken : ndarray of int64
        The positions of the events that have run.
    results : pyarrow.RecordBatch or None
        The results of these events.
    """

    procedure: str
    program: Program
    events: pa.RecordBatch
    taken: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    results: pa.RecordBatch | None = None


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The transactions of a waiting group that run before their turn.

    Attributes
    ----------
    waiting : Waiting
        The group.
    taken : ndarray of bool
        Whether each transaction runs.
    homes : ndarray
        The partition of each transaction.
    footprint : Footprint
        The rows of the group.
    blockers : list of Footprint
        The rows of the transactions that the group overtakes, or that run meanwhile.
    """

    waiting: Waiting
    taken: Booleans
    homes: Numbers
    footprint: Footprint
    blockers: list[Footprint]

    def conflicts(self, level: Level) -> Booleans:
        """Return which of the taken transactions conflict."""
        return self.footprint.take(self.taken).find_conflicts(self.blockers, level)


def use_speculation(state: State, database: Database, speculate: bool | str) -> Speculation:
    """Let partitions of an open database run transactions while they wait.

    Raises
    ------
    InvalidUsageError
        If there is no such mode, or the database has one partition or a predictor.
    """
    mode = "rows" if speculate is True else speculate
    if mode not in MODES:
        hint = did_you_mean(str(mode), MODES, "modes")
        raise InvalidUsageError("there is no such mode of speculation", speculate=repr(mode), hint=hint)
    if isinstance(state, TableSet):
        raise InvalidUsageError("speculation is for partitions", hint="open the database with partitions=2")
    if state.predicted is not None:
        raise InvalidUsageError(
            "a database with a predictor does not speculate",
            hint="leave out predictor= and the routing of the design, or speculate=",
        )
    level: Level = "tables" if mode == "tables" else "rows"
    state.speculation = Speculation(state, database, level, optimistic=mode == "occ")
    return state.speculation


class Speculation:
    """Runs transactions concurrently with multi-partition transactions, in an open database.

    Parameters
    ----------
    tables : PartitionedTables
        The tables.
    database : Database
        The procedures.
    level : str
        How conflicts are found: by ``tables`` or by ``rows``.
    optimistic : bool
        Whether conflicts are found after the transactions have run.

    Attributes
    ----------
    offer_groups : callable
        Returns waiting groups, in their order.
    unlogged : list of Waiting
        The groups with transactions that ran and are not yet logged.
    stalls : int
        The number of calls with transactions over several partitions while requests waited.
    transactions : int
        The number of later requests that ran concurrently with these calls.
    conflicts : int
        The number of later requests that conflicted.
    rolled_back : int
        The number of transactions that ran beside other transactions and were undone.
    beside : int
        The number of transactions that ran beside forwarded transactions of their own call.
    """

    def __init__(
        self, tables: PartitionedTables, database: Database, level: Level, *, optimistic: bool
    ) -> None:
        self._tables, self._level, self._optimistic = tables, level, optimistic
        self._footprints = Footprints(database, tables.placements)
        self._times: dict[tuple[str, str], float] = {}
        self.offer_groups: Callable[[], Iterable[Waiting]] = tuple
        self.unlogged: list[Waiting] = []
        self.stalls = self.transactions = self.conflicts = self.rolled_back = self.beside = 0

    def describe(self) -> str:
        """Return the counts as a text."""
        mode = "occ" if self._optimistic else self._level
        return (
            f"speculated ({mode}): {self.transactions} later requests in {self.stalls} stalls; "
            f"{self.conflicts} conflicts, {self.rolled_back} rolled back; "
            f"{self.beside} transactions ran beside forwarded ones of their own call"
        )

    def run(
        self, program: Program, events: pa.RecordBatch, keys: EventKeys, homes: Numbers
    ) -> pa.RecordBatch | None:
        """Run the transactions of a call, concurrently with each other and with later requests.

        Returns None, and leaves the tables unchanged, if the call should run without speculation.

        Parameters
        ----------
        program : Program
            The program.
        events : pyarrow.RecordBatch
            The events.
        keys : EventKeys
            The keys of the events.
        homes : ndarray
            The partition of each event, or a number below 0 if it needs several partitions.
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
        chosen = list[_Chosen]()
        if offered := list(itertools.islice(self.offer_groups(), MAX_GROUPS_PER_STALL)):
            self.stalls += 1
            stalled = self._footprints.make(program, keys).take(several)
            chosen = self._choose(offered, stalled, budgets, tasks)
        if self._optimistic and not tasks:
            return None
        copies = self._copy([program, *(one.waiting.program for one in chosen)]) if self._optimistic else []
        call = StalledCall(self._tables, program, events, homes, first)
        try:
            call.start(tasks, waits=finds)
            call.run_stalled()
            conflicts = 0
            if self._optimistic:
                conflicts = sum(int(one.conflicts(self._level).sum()) for one in chosen)
            results = call.wait()
        except BaseException:  # an interrupt, too; raised again
            if self._optimistic:
                self._put_back(call, copies)
            else:
                call.finish()
                self._keep(chosen, call.finished())
            raise
        self.conflicts += conflicts
        if conflicts:
            self._put_back(call, copies)
            return None
        count = int(several.sum())
        self._tables.forwarded += count
        call.spread()
        self._keep(chosen, results)
        self.beside += len(own)
        self._note_time(program, count, call.stalled_s, _STALLED)
        self._note_time(program, count, call.moving_s, _MOVING)
        for one, number, seconds in call.times:
            self._note_time(one, number, seconds)
        return call.results()

    def move_cost(self, program: Program | PlainProgram) -> float:
        """Return the time to move a forwarded transaction's rows, in single-partition transactions."""
        known = self._times.get((program.digest, _MOVING))
        if known is None or (program.digest, _SINGLE) not in self._times:
            return MOVE_COST
        # No move is measured while tables are gathered, so a time that is too high would keep them there.
        return min(known / self._times[program.digest, _SINGLE], MOVE_COST)

    def _choose(
        self, offered: Sequence[Waiting], stalled: Footprint, budgets: Floats, tasks: dict[int, list[Task]]
    ) -> list[_Chosen]:
        """Choose transactions of waiting groups, and add their tasks."""
        before, chosen = [stalled], list[_Chosen]()
        for waiting in offered:
            program, events = waiting.program, waiting.events
            route = self._tables.route(program)
            is_gathered = any(spec.name in self._tables.gathered.names for spec in program.tables)
            if route.obstacle is not None or _finds(route) or is_gathered or not (budgets > 0).any():
                break
            keys = self._tables.event_keys(program, events)
            homes = keys.homes(self._tables.partitions)
            footprint = self._footprints.make(program, keys)
            single = homes >= 0
            blockers = [*before, footprint.take(~single)]
            blocked = np.zeros(len(homes), np.bool_)
            if not self._optimistic:
                blocked = footprint.find_blocked(single, blockers, self._level)
                self.conflicts += int(blocked.sum())
            allowed = single & ~blocked
            taken = _limit(allowed, homes, budgets, self._time_of(program))
            if allowed.any() and not taken.any():
                self._times[program.digest, _SINGLE] = self._time_of(program) * TOO_LONG_DECAY
            before.append(footprint.take(~taken))
            if taken.any():
                split_tasks(tasks, program, events, np.flatnonzero(taken), homes, len(chosen))
                chosen.append(_Chosen(waiting, taken, homes, footprint, blockers))
        return chosen

    def _put_back(
        self, call: StalledCall, copies: Sequence[tuple[TableSet, int, dict[str, TableRows]]]
    ) -> None:
        """Undo a call's transactions, and the transactions beside the call, by copies of the tables."""
        call.finish()
        self.rolled_back += call.count
        for part, transactions, tables in copies:
            part.put_back(tables, transactions)

    def _keep(
        self, chosen: Sequence[_Chosen], results: Mapping[int, Sequence[tuple[int, pa.RecordBatch]]]
    ) -> None:
        """Keep the results of waiting groups in the order of their requests."""
        for number, one in enumerate(chosen):
            if number not in results:  # no task of the group has ended
                continue
            ended = [np.flatnonzero(one.taken & (one.homes == home)) for home, _ in results[number]]
            order = np.concatenate(ended)
            rows = concat([batch for _, batch in results[number]])
            one.waiting.taken, one.waiting.results = np.sort(order), rows.take(pa.array(np.argsort(order)))
            self.unlogged.append(one.waiting)
            self._tables.transactions += len(order)
            self.transactions += len(order)

    def _copy(self, programs: Iterable[Program]) -> list[tuple[TableSet, int, dict[str, TableRows]]]:
        """Copy all tables that may change, so that the copies can be put back."""
        names = {
            access.table
            for program in programs
            for access in program.accesses
            if access.mode is not AccessMode.READ
        }
        copies = []
        for part in self._tables._partitions:
            tables = {}
            for name in names:
                shared = {id(one): one for one in (part[name].spec, part.texts)}
                tables[name] = copy.deepcopy(part[name], shared)
            copies.append((part, part.transactions, tables))
        return copies

    def _time_of(self, program: Program, kind: str = _SINGLE) -> float:
        return self._times.get((program.digest, kind), INITIAL_ESTIMATE_S)

    def _note_time(self, program: Program, count: int, seconds: float, kind: str = _SINGLE) -> None:
        """Include the time of transactions in their program's mean."""
        key, each = (program.digest, kind), max(seconds / count, 1e-9)
        self._times[key] = (1 - _WEIGHT) * self._times.get(key, each) + _WEIGHT * each


def _finds(route: Route) -> bool:
    """Return whether a route uses an index, whose rows earlier transactions may change."""
    return any(isinstance(origin, Found) for keys in route.keys for origin in keys.origins)


def _limit(chosen: Booleans, homes: Numbers, budgets: Floats, each_s: float) -> Booleans:
    """Return the first chosen transactions of each partition that fit into its budget; reduce the budget."""
    kept = np.zeros(len(chosen), np.bool_)
    for home in np.unique(homes[chosen]).tolist():
        places = np.flatnonzero(chosen & (homes == home))[: max(int(budgets[home] / each_s), 0)]
        kept[places] = True
        budgets[home] -= each_s * len(places)
    return kept
