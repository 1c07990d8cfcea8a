"""Choose the transactions that a partition runs while a distributed transaction stalls (H-Store §6.3, §6.4).

A distributed transaction holds all its partitions. The partitions wait at three kinds of stall points:

- SP1: the base partition waits for the results of queries at remote partitions;
- SP2: a remote partition waits for the next query;
- SP3: all partitions wait for the messages of the two-phase commit.

The scheduler compares the estimated paths of transactions before they run, and checks their actual paths
afterwards. The scheduler uses no clock and no network; the process or the simulation that runs the
transactions has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from penstock.speculating.rules import UNKNOWN_KEY, ConflictRules, Level, Step

__all__ = ["Mode", "Scheduler", "SpeculativeRun", "Stall", "StallPoint", "Transaction", "steps_at"]

Mode = Literal["none", "tables", "rows", "occ"]
Summary = dict[int, frozenset[int] | None]


class StallPoint(Enum):
    """The reason why a partition waits."""

    QUERY_RESPONSE = "SP1"
    QUERY_REQUEST = "SP2"
    COMMIT = "SP3"


@dataclass(eq=False, slots=True)
class Transaction:
    """A transaction with its estimated path and its actual path.

    Attributes
    ----------
    kind : str
        The procedure's name.
    base : int
        The partition in which the control code runs.
    path, estimate : sequence of Step
        The steps that the transaction executes, and the steps that the estimate expects.
    partitions : frozenset of int
        The partitions that the transaction needs.
    aborts : bool
        Whether the control code rejects the transaction at the end.
    """

    kind: str
    base: int
    path: Sequence[Step]
    estimate: Sequence[Step]
    partitions: frozenset[int]
    aborts: bool = False
    summaries: dict[tuple[bool, str], Summary] = field(default_factory=dict, repr=False)

    @property
    def deviates(self) -> bool:
        """Return whether the path differs from the estimate, in which an unknown key matches any key."""
        return len(self.path) != len(self.estimate) or not all(
            step == guess or (step == guess._replace(key=step.key) and guess.key == UNKNOWN_KEY)
            for step, guess in zip(self.path, self.estimate, strict=True)
        )


def steps_at(steps: Iterable[Step], partition: int, base: int) -> list[Step]:
    """Return a transaction's steps at a partition; steps that any partition can answer run at the base."""
    return [one for one in steps if (base if one.partition < 0 else one.partition) == partition]


@dataclass(eq=False, slots=True)
class SpeculativeRun:
    """The run of a transaction in a partition that a distributed transaction held.

    Attributes
    ----------
    transaction : Transaction
        The transaction that ran.
    point : StallPoint
        The stall point at which it ran.
    is_before : bool
        Whether the transaction precedes the distributed transaction, which had executed nothing in the
        partition yet.
    executed : int
        The number of steps that the distributed transaction had executed before the run, in all partitions.
    """

    transaction: Transaction
    point: StallPoint
    is_before: bool
    executed: int


@dataclass(slots=True)
class Stall:
    """A partition that waits for a distributed transaction.

    Attributes
    ----------
    transaction : Transaction
        The distributed transaction.
    partition : int
        The partition.
    executed : int
        The number of steps that the distributed transaction has executed so far, in all partitions.
    point : StallPoint
        The stall point.
    has_executed : bool
        Whether the partition has run queries before the distributed transaction requested them.
    speculated : list of SpeculativeRun
        The transactions that ran in the partition during the stall, in this order.
    """

    transaction: Transaction
    partition: int
    executed: int = 0
    point: StallPoint = StallPoint.QUERY_REQUEST
    has_executed: bool = False
    speculated: list[SpeculativeRun] = field(default_factory=list)

    def is_before(self) -> bool:
        """Return whether the distributed transaction has executed nothing in the partition yet."""
        done = self.transaction.path[: self.executed]
        return not self.has_executed and not steps_at(done, self.partition, self.transaction.base)


class Scheduler:
    """Chooses speculative transactions for stalls, and verifies them.

    Parameters
    ----------
    rules : ConflictRules
        The rules for conflicts.
    mode : str
        With ``tables`` or ``rows``, the scheduler finds conflicts by table or row, before transactions run.
        With ``occ``, it finds conflicts when the distributed transaction prepares. With ``none``, no
        transaction runs speculatively.
    keeps_order : bool
        If true, results are as if a distributed transaction preceded all transactions that run at its stalls.
        Otherwise results are as in some serial order.

    Attributes
    ----------
    examined : int
        The number of queued transactions that `choose` has examined.
    """

    def __init__(self, rules: ConflictRules, mode: Mode, *, keeps_order: bool = False) -> None:
        self.rules, self.mode, self._keeps_order = rules, mode, keeps_order
        self._level: Level = "tables" if mode == "tables" else "rows"
        self.examined = 0

    def _summary(self, one: Transaction, *, estimated: bool) -> Summary:
        key = estimated, self._level
        found = one.summaries.get(key)
        if found is None:
            steps = one.estimate if estimated else one.path
            found = one.summaries[key] = dict(self.rules.summarize(steps, self._level))
        return found

    def remaining(self, stall: Stall) -> Summary | None:
        """Return the statements with which candidates must not conflict; None if every candidate may run.

        These are the statements that the stalled transaction is estimated to execute in the partition from
        now on, and its changes in the partition so far. At SP3 the stalled transaction executes nothing
        more. A transaction that has executed nothing in the partition has seen nothing, so candidates that
        run now precede it, unless `keeps_order` is true.
        """
        if self.mode == "occ" or stall.point is StallPoint.COMMIT or self._precedes(stall.is_before()):
            return None
        return dict(self.rules.summarize(self._unsafe(stall, stall.executed, estimated=True), self._level))

    def _precedes(self, is_before: bool) -> bool:
        """Return whether candidates precede the stalled transaction, given `Stall.is_before`."""
        return is_before and not self._keeps_order

    def _unsafe(self, stall: Stall, executed: int, *, estimated: bool) -> list[Step]:
        """Return the stalled transaction's changes in the partition so far, and its later steps there.

        Only the first `executed` steps of the transaction count as executed.
        """
        one = stall.transaction
        done = steps_at(one.path[:executed], stall.partition, one.base)
        later = (one.estimate if estimated else one.path)[executed:]
        changed = [step for step in done if self.rules.changes(step)]
        return [*changed, *steps_at(later, stall.partition, one.base)]

    def choose(
        self, stall: Stall, queue: Sequence[Transaction], run_us: Sequence[float], stall_us: float
    ) -> int | None:
        """Return the position in the queue of the first eligible transaction (§6.3.1).

        Parameters
        ----------
        stall : Stall
            The stall.
        queue : sequence of Transaction
            Single-partition transactions that wait for the partition.
        run_us : sequence of float
            The estimated run time of each transaction.
        stall_us : float
            The estimated duration of the stall.
        """
        if self.mode == "none":
            return None
        remaining = self.remaining(stall)
        for place, one in enumerate(queue):
            if self.mode != "occ" and run_us[place] >= stall_us:
                continue
            self.examined += 1
            if remaining is None or not self.rules.conflict(self._summary(one, estimated=True), remaining):
                return place
        return None

    def count_eligible(self, stall: Stall, queue: Sequence[Transaction]) -> int:
        """Return the number of queued transactions that do not conflict (Fig. 6.9b)."""
        remaining = self.remaining(stall)
        if remaining is None:
            return len(queue)
        return sum(not self.rules.conflict(self._summary(one, estimated=True), remaining) for one in queue)

    def note(self, stall: Stall, transaction: Transaction) -> SpeculativeRun:
        """Record that a transaction runs during a stall."""
        done = SpeculativeRun(transaction, stall.point, stall.is_before(), stall.executed)
        stall.speculated.append(done)
        return done

    def must_restart(self, stall: Stall) -> bool:
        """Return whether a distributed transaction that is about to commit must start again (§6.3.2, §6.6.3).

        The distributed transaction must start again if it conflicts with a transaction that ran meanwhile,
        and at least one of the two transactions left its estimated path. With ``occ``, every conflict of
        their accesses counts. Transactions that ran before the distributed transaction executed anything in
        the partition, or after it had executed all its steps, are not checked.
        """
        one = stall.transaction
        optimistic = self.mode == "occ"
        for done in stall.speculated:
            if self._precedes(done.is_before) or done.point is StallPoint.COMMIT:
                continue
            if optimistic:
                unsafe = steps_at(one.path, stall.partition, one.base)
            elif one.deviates or done.transaction.deviates:
                unsafe = self._unsafe(stall, done.executed, estimated=False)
            else:
                continue
            its = self.rules.summarize(done.transaction.path, "rows")
            if self.rules.conflict(its, self.rules.summarize(unsafe, "rows")):
                return True
        return False

    def find_undone(self, stall: Stall) -> list[SpeculativeRun]:
        """Return the transactions to undo when a distributed transaction aborts or starts again.

        A transaction is kept if it ran before the distributed transaction executed anything in the partition.
        A transaction is also kept if it conflicts neither with the distributed transaction nor with an
        earlier transaction that is undone.
        """
        one = stall.transaction
        unsafe = [self.rules.summarize(steps_at(one.path, stall.partition, one.base), "rows")]
        undone = list[SpeculativeRun]()
        for done in stall.speculated:
            its = self.rules.summarize(done.transaction.path, "rows")
            if not self._precedes(done.is_before) and any(
                self.rules.conflict(its, other) for other in unsafe
            ):
                unsafe.append(its)
                undone.append(done)
        return undone
