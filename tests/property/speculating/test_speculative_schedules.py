"""The speculative transactions that a scheduler keeps equal a serial order; tracking tables match queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from benchmarks.paper.h_store.simulation import Cluster
from penstock.speculating.rules import UNKNOWN_KEY, ConflictRules, Step
from penstock.speculating.scheduler import Mode, Scheduler, Stall, StallPoint, Transaction
from penstock.speculating.statements import Statement
from penstock.speculating.tracking import TrackingTable, find_prefetchable
from tests.long_tests import LONG

KEY, A = frozenset("k"), frozenset("a")
READ = Statement("read", "t", KEY | A, frozenset(), True)
WRITE = Statement("write", "t", KEY, A, True)
SCAN = Statement("select", "t", KEY | A, frozenset(), False)
OTHER = Statement("write", "u", KEY, A, True)
RULES = ConflictRules([READ, WRITE, SCAN, OTHER])
KEYS = 3
SEEDS = 4_000 if LONG else 120

Reads = list[object]


def transaction(draws: np.random.Generator, name: str, steps: int, deviates: float) -> Transaction:
    """Return a random transaction at partition 0, whose estimate may be wrong or know no keys."""
    path, estimate = [], []
    for _ in range(steps):
        step = Step(int(draws.integers(4)), int(draws.integers(KEYS)), 0)
        path.append(step)
        guess = step
        if draws.random() < deviates:
            guess = Step(int(draws.integers(4)), int(draws.integers(KEYS)), 0)
        elif draws.random() < 0.2:
            guess = step._replace(key=UNKNOWN_KEY)
        estimate.append(guess)
    return Transaction(name, 0, tuple(path), tuple(estimate), frozenset({0}), bool(draws.random() < 0.2))


@dataclass
class World:
    """Rows, and what each transaction has read of them."""

    rows: dict[tuple[str, int], str]
    reads: dict[str, Reads]

    def execute(self, name: str, step: Step) -> None:
        """Execute a step."""
        statement = RULES.statements[step.statement]
        seen = self.reads.setdefault(name, [])
        if statement.changes:
            self.rows[statement.table, step.key] = f"{name} {len(seen)}"
        elif statement.has_key:
            seen.append(self.rows.get((statement.table, step.key)))
        else:
            seen.append(sorted((at, row) for at, row in self.rows.items() if at[0] == statement.table))


def check_schedule(seed: int, mode: Mode, deviates: float) -> tuple[int, int]:
    """Run a random schedule; return the numbers of kept and undone transactions."""
    draws = np.random.default_rng(seed)
    one = transaction(draws, "distributed", int(draws.integers(1, 5)), deviates)
    queue = [transaction(draws, f"single {n}", int(draws.integers(1, 3)), deviates) for n in range(6)]
    scheduler, stall = Scheduler(RULES, mode), Stall(one, 0)
    world, order = World({}, {}), list[tuple[str, Step]]()

    def speculate() -> None:
        while draws.random() < 0.6:
            place = scheduler.choose(stall, queue, [1.0] * len(queue), 2.0)
            if place is None:
                return
            chosen = queue.pop(place)
            scheduler.note(stall, chosen)
            for step in chosen.path:
                order.append((chosen.kind, step))
                world.execute(*order[-1])

    for step in one.path:
        speculate()
        order.append(("distributed", step))
        world.execute(*order[-1])
        stall.executed += 1
    speculate()
    stall.point = StallPoint.COMMIT
    speculate()
    ends = one.aborts or scheduler.must_restart(stall)
    undone = scheduler.find_undone(stall) if ends else []
    names = {done.transaction.kind for done in undone} | ({"distributed"} if ends else set())
    kept = [done for done in stall.speculated if done.transaction.kind not in names]
    serial = [done.transaction for done in kept if done.is_before]
    serial += [] if "distributed" in names else [one]
    serial += [done.transaction for done in kept if not done.is_before]
    expected = World({}, {})
    for other in serial:
        for step in other.path:
            expected.execute(other.kind, step)
    assert {other.kind: world.reads[other.kind] for other in serial} == expected.reads, seed
    # Undoing puts back the rows of what is undone.
    final = World({}, {})
    for name, step in order:
        if name not in names:
            final.execute(name, step)
    assert {at: row.split()[:-1] for at, row in final.rows.items()} == {
        at: row.split()[:-1] for at, row in expected.rows.items()
    }, seed
    return len(kept), len(undone)


@pytest.mark.parametrize("mode", ["rows", "tables", "occ"])
@pytest.mark.parametrize("deviates", [0.0, 0.3])
def test_what_is_kept_equals_a_serial_order(mode: Mode, deviates: float) -> None:
    counts = [check_schedule(seed, mode, deviates) for seed in range(SEEDS)]
    kept, undone = map(sum, zip(*counts, strict=True))
    assert kept > SEEDS / 2
    assert undone > 0  # of distributed transactions that abort, if no path deviates


def test_a_candidate_that_runs_too_long_is_not_chosen() -> None:
    one = Transaction("d", 0, (Step(0, 1, 0), Step(0, 1, 1)), (), frozenset({0, 1}))
    queue = [Transaction(name, 0, (), (), frozenset({0})) for name in ("long", "short")]
    scheduler, stall = Scheduler(RULES, "rows"), Stall(one, 0)
    assert scheduler.choose(stall, queue, [9.0, 3.0], 5.0) == 1
    assert scheduler.choose(stall, queue, [9.0, 5.0], 5.0) is None
    assert Scheduler(RULES, "none").choose(stall, queue, [1.0, 1.0], 5.0) is None


def test_nothing_reads_the_changes_of_a_transaction_that_may_abort() -> None:
    read, write = 0, 1
    one = Transaction("d", 0, (Step(write, 1, 0), Step(read, 2, 0)), (Step(write, 1, 0), Step(read, 2, 0)),
                      frozenset({0}), aborts=True)  # fmt: skip
    reader = Transaction("reader", 0, (Step(read, 1, 0),), (Step(read, 1, 0),), frozenset({0}))
    other = Transaction("other", 0, (Step(write, 0, 0),), (Step(write, 0, 0),), frozenset({0}))
    scheduler, stall = Scheduler(RULES, "rows"), Stall(one, 0)
    assert scheduler.choose(stall, [reader, other], [1.0, 1.0], 5.0) == 0
    scheduler.note(stall, reader)
    stall.executed = 1
    assert scheduler.choose(stall, [reader, other], [1.0, 1.0], 5.0) == 1
    scheduler.note(stall, other)
    stall.executed, stall.point = 2, StallPoint.COMMIT
    assert scheduler.choose(stall, [reader, other], [1.0, 1.0], 5.0) == 0
    late = Transaction("late", 0, reader.path, reader.path, frozenset({0}))
    noted = scheduler.note(stall, late)
    # What preceded the transaction stays, and so does what does not conflict with it.
    assert scheduler.find_undone(stall) == [noted]


def test_only_reads_with_known_keys_and_no_earlier_change_are_prefetched() -> None:
    read, write, scan, other = range(4)
    steps = [
        Step(read, 1, 1), Step(read, UNKNOWN_KEY, 1), Step(write, 2, 1), Step(read, 2, 1), Step(read, 3, 1),
        Step(read, 4, 0), Step(scan, 5, 1), Step(other, 1, 1), Step(read, 6, -1), Step(read, 7, 2),
    ]  # fmt: skip
    assert find_prefetchable(RULES, steps, 0) == [0, 4, 9]


def test_a_tracking_table_links_equal_queries_by_their_order() -> None:
    read, write = 0, 1
    table = TrackingTable(RULES, [Step(read, 1, 1), Step(read, 1, 1), Step(read, 2, 1)])
    table.arrive(Step(read, 1, 1))
    first, second = table.invoke(Step(read, 1, 1)), table.invoke(Step(read, 1, 1))
    assert (first, second, table.invoke(Step(read, 1, 1))) == (0, 1, None)
    assert table.has_arrived(0)
    assert not table.has_arrived(1)
    assert not table.out_of_order
    assert table.invoke(Step(write, 3, 1)) is None
    assert not table.out_of_order
    table.invoke(Step(write, 2, 1))
    assert table.invoke(Step(read, 2, 1)) == 2
    assert table.out_of_order


@pytest.mark.parametrize("mode", ["none", "rows", "occ"])
@pytest.mark.parametrize("prefetches", [False, True])
def test_a_simulated_cluster_answers_every_client(mode: Mode, prefetches: bool) -> None:
    draws = np.random.default_rng(1)
    work = []
    for number in range(200):
        base = int(draws.integers(4))
        other = int(draws.integers(4)) if number % 3 == 0 else base
        path = tuple(Step(int(draws.integers(4)), int(draws.integers(50)), place) for place in (base, other))
        work.append(Transaction("t", base, path, path, frozenset({base, other}), number % 10 == 0))
    cluster = Cluster(RULES, mode, 4, 2, prefetches=prefetches)
    more = 0 if mode == "none" else 5
    measured = cluster.run(work, work, 16, more)
    assert len(measured.single_us) + len(measured.distributed_us) == measured.committed
    assert measured.committed == 200 if not more else measured.committed > 200
    assert 0 < measured.counted <= measured.committed
    assert len(measured.distributed_us) == sum(len(one.partitions) > 1 for one in work)
    assert not any(one.queue for one in cluster._partitions)
    assert (measured.speculated > 0) == (mode != "none")
    assert (measured.prefetched > 0) == prefetches
    assert all(one.holder is None and not one.queue for one in cluster._partitions)
    assert sum(measured.held_us.values()) > 0
