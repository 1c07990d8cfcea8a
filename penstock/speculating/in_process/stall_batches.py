"""Run batches of requests in a partition while it waits, and undo batches (H-Store §6.3.2)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock import _clock
from penstock.procedures.compiler.program import Program
from penstock.procedures.compiler.values import AccessMode
from penstock.procedures.engine import TableSet
from penstock.speculating.in_process.footprints import Footprint, Footprints
from penstock.speculating.in_process.plans import EarlyRequests, Offer
from penstock.speculating.rules import UNKNOWN_KEY, Step
from penstock.speculating.scheduler import Scheduler, SpeculativeRun, Stall, StallPoint, Transaction

if TYPE_CHECKING:
    from penstock.procedures.partitions.partitioned_tables import PartitionedTables

__all__ = ["TOO_LONG_DECAY", "Change", "Place", "Rows", "StallBatches", "StallTimes"]

TOO_LONG_DECAY = 0.95
"""If a mean time exceeds all stalls, the work does not run. The mean is multiplied by this factor each time,
so that the work is tried again at some point.
"""
FIRST_BATCH_S = 2e-4
"""The fixed time of a batch that is assumed before the first batch."""

_NEWEST_WEIGHT = 0.2
"""The weight of the latest time in a mean time."""

Rows = dict[str, tuple[pa.RecordBatch, pa.RecordBatch]]
"""For each table, the rows before a change, and the keys of all rows that the change may affect."""


@dataclass(slots=True)
class StallTimes:
    """Mean times of a procedure: a whole call, a remote query, a commit, and the fixed time of a batch."""

    whole_s: float = 1e-3
    query_s: float = 1e-4
    commit_s: float = 1e-4
    batch_s: float = FIRST_BATCH_S

    def note(self, name: str, seconds: float) -> None:
        """Include a time in the mean time of this name."""
        setattr(self, name, (1 - _NEWEST_WEIGHT) * getattr(self, name) + _NEWEST_WEIGHT * seconds)


@dataclass(slots=True, eq=False)
class Change:
    """A change of a partition's tables that can be undone.

    If a batch of requests made the change, `done` and `early` describe the batch. Otherwise the transaction
    made the change.
    """

    rows: Rows
    done: SpeculativeRun | None = None
    early: EarlyRequests | None = None


@dataclass(slots=True, eq=False)
class Place:
    """The state of a partition during a call."""

    stall: Stall
    part: TableSet
    inbox: SimpleQueue[Callable[[], None] | None] = field(default_factory=SimpleQueue)
    changes: list[Change] = field(default_factory=list)


class StallBatches:
    """Runs requests in the partitions of one transaction, each in the thread of its partition.

    Parameters
    ----------
    tables : PartitionedTables
        The tables.
    footprints : Footprints
        Finds the rows of transactions.
    scheduler : Scheduler
        Finds conflicts, and checks requests afterwards.
    times : StallTimes
        The mean times of the procedure.
    time_of : callable
        Returns the mean time of a single-partition transaction of a program, in seconds.
    offer : Offer or None
        The requests that wait.

    Attributes
    ----------
    lock : threading.Lock
        Protects stalls, paths and waiting requests.
    begin_s : float
        The time at which the transaction began, in seconds of the monotonic clock.
    points : dict
        The number of requests that ran at each stall point.
    rolled_back : int
        The number of requests that were undone.
    """

    def __init__(
        self,
        tables: PartitionedTables,
        footprints: Footprints,
        scheduler: Scheduler,
        times: StallTimes,
        time_of: Callable[[Program], float],
        offer: Offer | None,
    ) -> None:
        self._tables, self._footprints, self._scheduler = tables, footprints, scheduler
        self._times, self._time_of, self._offer = times, time_of, offer
        self.lock = threading.Lock()
        self.begin_s = 0.0
        self.points = dict.fromkeys(StallPoint, 0)
        self.rolled_back = 0

    def _left_s(self, stall: Stall) -> float:
        """Return the remaining seconds that a stall will probably last."""
        if stall.point is StallPoint.COMMIT:
            return self._times.commit_s
        if stall.point is StallPoint.QUERY_RESPONSE:
            return self._times.query_s
        spent_s = _clock.monotonic_s() - self.begin_s
        return self._times.whole_s - spent_s if spent_s < self._times.whole_s else spent_s

    def run(self, place: Place) -> bool:
        """Run a batch of requests in a partition that waits; return whether a batch ran."""
        offer, number = self._offer, place.stall.partition
        if offer is None:
            return False
        with self.lock:
            stall = place.stall
            left_s = self._left_s(stall) - self._times.batch_s
            accesses, too_long = self._accesses_to_avoid(stall), False
            for kind, allowed in offer.plan.choose_at(number, accesses):
                if not self._tables.route(kind.program).knows_rows:
                    continue
                each_s = self._time_of(kind.program)
                taken = np.zeros(len(allowed), np.bool_)
                taken[np.flatnonzero(allowed)[: max(int(left_s / each_s), 0)]] = True
                if taken.any():
                    break
                too_long = too_long or bool(allowed.any())
            else:
                if too_long and self._times.batch_s > FIRST_BATCH_S:
                    self._times.batch_s *= TOO_LONG_DECAY
                return False
            offer.plan.waits[kind.places[taken]] = False
            early = EarlyRequests(kind, taken)
            batch = Transaction(kind.procedure, number, (), (), frozenset([number]))
            change = Change({}, self._scheduler.note(stall, batch), early)
            place.changes.append(change)
            point = stall.point
        _ = kind.program.kernel  # compile before the time of the batch is measured
        begin = _clock.monotonic_s()
        events = kind.events.filter(pa.array(taken))
        change.rows = self._old_rows(kind.program, events, place)
        early.results = place.part.run(kind.program, events)
        early.done = np.flatnonzero(taken)
        spent_s = _clock.monotonic_s() - begin
        self._times.note("batch_s", max(spent_s - len(early.done) * each_s, 0.0))
        self.points[point] += len(early.done)
        return True

    def _accesses_to_avoid(self, stall: Stall) -> Footprint | None:
        """Return the accesses with which requests must not conflict; None if every request may run."""
        summary = self._scheduler.remaining(stall)
        if not summary:
            return None
        bits, rows = list[int](), list[int]()
        for number, keys in summary.items():
            statement = self._scheduler.rules.statements[number]
            if keys is None:
                statement = statement._replace(has_key=False)
            bit = self._footprints.bit(statement)
            rows += keys or [0]
            bits += [bit] * (len(rows) - len(bits))
        return Footprint(np.zeros(len(bits), np.int64), np.array(bits), np.array(rows, np.int64))

    def _old_rows(self, program: Program, events: pa.RecordBatch, place: Place) -> Rows:
        """Return the current values of the rows that transactions may change."""
        written = {access.table for access in program.accesses if access.mode is not AccessMode.READ}
        keys = self._tables.split_keys(self._tables.event_keys(program, events)) or {}
        its = {name: keys[name][place.stall.partition] for name in written}
        return {name: (place.part[name].rows_of(keys), keys) for name, keys in its.items()}

    def fill_paths(self, place: Place) -> None:
        """Set the paths of the requests that ran in a partition, for the scheduler's checks."""
        for change in place.changes:
            if change.done is None or change.early is None or self._offer is None:
                continue
            found = self._offer.plan.steps_of(change.early.kind, change.early.taken)
            steps = zip(found.bits.tolist(), found.rows.tolist(), strict=True)
            path = tuple(Step(bit, row or UNKNOWN_KEY, place.stall.partition) for bit, row in steps)
            change.done.transaction.path = change.done.transaction.estimate = path

    def undo(self, place: Place) -> None:
        """Undo a transaction's changes in a partition, and all requests that ran beside it, last first.

        Even requests without conflicts are undone. The next attempt may take a different path, and the
        scheduler does not compare this attempt with requests that ran beside an earlier attempt.
        """
        for change in reversed(place.changes):
            for name, (rows, keys) in change.rows.items():
                table = place.part[name]
                table.change(rows, table.rows_of(keys).select(keys.schema.names), stored=True)
            if change.early is not None and self._offer is not None:
                kind, taken = change.early.kind, change.early.taken
                self._offer.plan.waits[kind.places[taken]] = True
                self.rolled_back += int(taken.sum())
        place.changes = []
