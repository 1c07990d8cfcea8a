"""Requests run before earlier ones only if no result shows it, and only if that takes less time."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import InvalidUsageError
from penstock.procedures.databases import Database
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.in_process.request_queue import Request, group_requests
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from penstock.speculating.in_process.footprints import Footprints, choose_early
from penstock.speculating.in_process.speculation import Speculation
from penstock.speculating.in_process.trials import FIRST_TRIALS, MAX_LOSS, Trials
from penstock.speculating.rules import conflict_by_row
from penstock.speculating.statements import Statement
from tests.long_tests import LONG

KEY, A, B = frozenset("k"), frozenset("a"), frozenset("b")
STATEMENTS = [
    Statement("read", "t", KEY | A, frozenset(), True),
    Statement("write", "t", KEY, A, True),
    Statement("write", "t", KEY, B, True),
    Statement("select", "t", KEY | B, frozenset(), False),
    Statement("insert", "t", KEY, KEY | A | B, True),
    Statement("write", "u", KEY, A, True),
]
SEEDS = 400 if LONG else 12


def bank() -> Database:
    """Return a database whose transfers need two partitions."""
    made = penstock.database("early")
    made.table("accounts", "id bigint, balance bigint NOT NULL", key="id", partition_by="id")

    @made.procedure(event="source bigint, target bigint", returns="left bigint")
    def transfer(e: Any, accounts: Any) -> Any:
        accounts[e.source].balance -= 1
        accounts[e.target].balance += 1
        return accounts[e.source].balance

    @made.procedure(event="id bigint, amount bigint", returns="balance bigint")
    def deposit(e: Any, accounts: Any) -> Any:
        accounts[e.id].balance += e.amount
        return accounts[e.id].balance

    return made


def speculation(db: OpenDatabase) -> Speculation:
    """Return what runs requests early."""
    state = db._state
    assert isinstance(state, PartitionedTables)
    assert state.speculation is not None
    return state.speculation


def conflict(one: tuple[int, int], other: tuple[int, int], level: str) -> bool:
    """Return whether two accesses conflict."""
    by_row = conflict_by_row(STATEMENTS[one[0]], STATEMENTS[other[0]])
    return by_row > 1 or (by_row == 1 and (level == "tables" or one[1] == other[1]))


@pytest.mark.parametrize("level", ["rows", "tables"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_chosen_transactions_conflict_with_none_that_they_overtake(level: Any, seed: int) -> None:
    draw = np.random.default_rng(seed)
    footprints = Footprints(bank(), {}, level)
    numbers = [footprints.bit(one) for one in STATEMENTS]
    count = 12
    accesses = [
        [(int(draw.integers(6)), int(draw.integers(1, 7))) for _ in range(draw.integers(0, 4))]
        for _ in range(count)
    ]
    waits, wanted, running = (draw.random(count) < share for share in (0.8, 0.6, 0.1))
    expected, conflicts = [], 0
    skipped = [one for place in np.flatnonzero(running).tolist() for one in accesses[place]]
    for place in np.flatnonzero(waits).tolist():
        clashes = any(conflict(one, other, level) for one in accesses[place] for other in skipped)
        conflicts += bool(wanted[place] and clashes)
        if wanted[place] and not clashes:
            expected.append(place)
        else:
            skipped += accesses[place]
    flat = [one for each in accesses for one in each]
    starts = np.cumsum([0, *map(len, accesses)])
    lists = (
        starts,
        np.array([numbers[statement] for statement, _ in flat], np.int64),
        np.array([0 if STATEMENTS[one].verb == "select" else row for one, row in flat], np.int64),
        footprints.same,
        footprints.always,
    )
    marks, chosen = np.zeros(9, np.uint64), np.zeros(count, np.bool_)
    choose_early(*lists, running, np.zeros(count, np.bool_), marks, chosen)
    assert choose_early(*lists, waits, wanted, marks, chosen) == conflicts
    assert np.flatnonzero(chosen).tolist() == expected


def test_statements_that_share_a_number_conflict_with_what_either_of_them_does() -> None:
    footprints = Footprints(bank(), {}, "rows")
    numbers = [footprints.bit(Statement("write", f"t{number}", KEY, A, True)) for number in range(70)]
    assert numbers[66] == numbers[2]
    assert footprints.same[numbers[66]] == 1 << numbers[2]
    read = footprints.bit(Statement("read", "t66", KEY | A, frozenset(), True))
    assert footprints.same[read] & np.uint64(1 << numbers[2])
    assert footprints.same[numbers[2]] & np.uint64(1 << read)


def test_requests_of_many_groups_run_in_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    made, draw = bank(), np.random.default_rng(1)
    requests = [
        Request("transfer", {"source": one, "target": other})
        if one % 4 == 0
        else Request("deposit", {"id": one, "amount": other})
        for one, other in draw.integers(0, 400, (300, 2)).tolist()
    ]
    with made.open(partitions=2, speculate=True) as db, made.open() as serial:
        for one in (db, serial):
            one.load("accounts", {"id": range(400), "balance": [0] * 400})
        sizes = []
        run_group = db._run_group

        def note(group: Any, offer: Any) -> None:
            sizes.append(len(group))
            run_group(group, offer)

        monkeypatch.setattr(db, "_run_group", note)
        groups = list(group_requests(requests))
        db._run_groups(list(groups))
        assert len(sizes) < len(groups) / 2
        found = speculation(db)
        assert found.merged > 100
        assert found.transactions > 0
        assert sum(sizes) + found.transactions == len(requests)
        expected = [serial.call(one.procedure, **one.attributes) for one in requests]
        assert [one.future.result(60) for one in requests] == expected
        assert db.table("accounts").sort_by("id") == serial.table("accounts").sort_by("id")
        assert f"{found.merged} later requests ran in one call with earlier ones" in db.explain()


def test_more_requests_than_are_planned_together_keep_their_order() -> None:
    made = bank()
    requests = [
        Request("deposit", {"id": 1, "amount": 1})
        if n % 3
        else Request("transfer", {"source": 1, "target": 2})
        for n in range(128)
    ]
    with made.open(partitions=2, speculate=True) as db, made.open() as serial:
        for one in (db, serial):
            one.load("accounts", {"id": [1, 2], "balance": [0, 0]})
        db._run_groups(list(group_requests(requests)), max_planned=16)
        expected = [serial.call(one.procedure, **one.attributes) for one in requests]
        assert [one.future.result(60) for one in requests] == expected


def test_requests_with_decimals_and_lists_run_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made = penstock.database("decimals")
    made.table("t", "id bigint, total decimal(9, 2) NOT NULL", key="id", partition_by="id")

    @made.procedure(event="ids array<bigint>, amount decimal(9, 2)", returns="total decimal(9, 2)")
    def add(e: Any, t: Any) -> Any:
        for id_ in e.ids:
            t[id_].total += e.amount
        return t[e.ids[0]].total

    amounts = [Decimal("1"), Decimal("2.5"), Decimal("1e20"), Decimal("0.25")]
    fits = [amounts[0], amounts[1], amounts[3]]
    for wanted in (fits, amounts):
        with made.open(partitions=2, speculate=True) as db, made.open() as serial:
            for one in (db, serial):
                one.load("t", {"id": [1, 2, 3], "total": [Decimal(0)] * 3})
            sizes: list[int] = []
            run_group = db._run_group

            def note(group: Any, offer: Any, run: Any = run_group, found: list[int] = sizes) -> None:
                found.append(len(group))
                run(group, offer)

            monkeypatch.setattr(db, "_run_group", note)
            events = [{"ids": [1, 2, 3][: place % 3 + 1], "amount": one} for place, one in enumerate(wanted)]
            requests = [Request("add", event) for event in events]
            db._run_groups(list(group_requests(requests)))
            for request in requests:
                try:
                    expected: Any = serial.call("add", **request.attributes)
                except InvalidUsageError as error:
                    assert isinstance(request.future.exception(60), type(error))
                else:
                    assert request.future.result(60) == expected
            assert max(sizes) == len(wanted)
            assert db.table("t").sort_by("id") == serial.table("t").sort_by("id")


def play(trials: Trials, times: dict[bool, float], rounds: int) -> tuple[float, int]:
    """Do work in the chosen ways; return its time, and how often the new way was chosen."""
    spent, chosen = 0.0, 0
    for _ in range(rounds):
        new = trials.choose("work", 100)
        trials.note("work", 100, times[new], new=new)
        spent += times[new]
        chosen += new
    return spent, chosen


@pytest.mark.parametrize("factor", [1.05, 1.5, 20.0])
def test_a_slower_way_costs_little(factor: float) -> None:
    trials = Trials()
    play(trials, {True: factor, False: 1.0}, FIRST_TRIALS + 2)
    spent, chosen = play(trials, {True: factor, False: 1.0}, 2_000)
    assert spent <= 2_000 * (1 + MAX_LOSS) + factor
    assert chosen < 2_000 * 0.5


def test_a_faster_way_is_chosen_and_given_up_when_it_becomes_slower() -> None:
    trials = Trials()
    _, chosen = play(trials, {True: 0.5, False: 1.0}, 500)
    assert chosen > 480
    play(trials, {True: 2.0, False: 1.0}, 100)
    _, chosen = play(trials, {True: 2.0, False: 1.0}, 500)
    assert chosen < 20
    _, chosen = play(trials, {True: 0.5, False: 1.0}, 500)
    assert chosen > 300


def test_work_of_other_sizes_is_measured_by_itself() -> None:
    trials = Trials()
    play(trials, {True: 2.0, False: 1.0}, 100)
    assert trials.choose("work", 100_000)
    assert trials.choose("other", 100)


def test_the_time_to_change_ways_is_a_cost_of_trials_and_not_of_the_way() -> None:
    trials, times, switch_s = Trials(), {True: 0.5, False: 1.0}, 5.0
    last = True

    def go(rounds: int) -> tuple[float, int]:
        nonlocal last
        spent, chosen = 0.0, 0
        for _ in range(rounds):
            new = trials.choose("work", 100)
            switched_s = switch_s if new != last else 0.0
            last = new
            trials.note("work", 100, times[new] + switched_s, new=new, switch_s=switched_s)
            spent, chosen = spent + times[new] + switched_s, chosen + new
        return spent, chosen

    go(8_000)
    times[True] = 1.5
    go(2_000)
    spent, chosen = go(3_000)
    assert chosen < 20
    assert spent <= 3_000 * (1 + MAX_LOSS) + 2 * switch_s


def test_one_slow_time_of_the_faster_way_does_not_end_it() -> None:
    trials = Trials()
    play(trials, {True: 1.5, False: 1.0}, FIRST_TRIALS + 2)
    trials.note("work", 100, 4.0, new=False)
    _, chosen = play(trials, {True: 1.5, False: 1.0}, 100)
    assert chosen < 10


def answers(db: OpenDatabase, *asked: tuple[str, dict[str, Any]]) -> list[Any]:
    """Run requests; return their results, or the classes of their errors."""
    requests = [Request(procedure, attributes) for procedure, attributes in asked]
    db._run_groups(list(group_requests(requests)))
    found = []
    for request in requests:
        error = request.future.exception(60)
        found.append(next(iter(request.future.result().values())) if error is None else type(error))
    return found


@pytest.mark.parametrize("speculate", [False, True])
def test_times_are_keys_of_integers_and_integers_of_times(speculate: bool) -> None:
    made = penstock.database("times")
    made.table("t", "id bigint, v bigint NOT NULL", key="id", partition_by="id")
    made.table("s", "day date, v bigint NOT NULL", key="day", partition_by="day")

    @made.procedure(event="d date", returns="v bigint")
    def by_day(e: Any, t: Any) -> Any:
        t[e.d].v += 1
        return t[e.d].v

    @made.procedure(event="n bigint", returns="v bigint")
    def by_number(e: Any, s: Any) -> Any:
        s[e.n].v += 1
        return s[e.n].v

    day = date(1970, 1, 6)
    with made.open(partitions=2, speculate=speculate) as db:
        db.load("t", {"id": [5, 6], "v": [10, 0]})
        db.load("s", {"day": [day, date(1970, 1, 7)], "v": [20, 0]})
        one, other = ("by_day", {"d": day}), ("by_number", {"n": 5})
        assert answers(db, one, other, one, other) == [11, 21, 12, 22]


@pytest.mark.parametrize("speculate", [False, True])
def test_lists_of_an_event_that_is_not_declared_keep_their_own_types(speculate: bool) -> None:
    made = penstock.database("undeclared")
    made.table("t", "id bigint, v bigint NOT NULL", key="id", partition_by="id")

    @made.procedure(returns="n bigint")
    def count(e: Any, t: Any) -> Any:
        n = 0
        for one in e.ids:
            n += t[one].v
        return n

    with made.open(partitions=2, speculate=speculate) as db:
        db.load("t", {"id": [1, 2], "v": [3, 4]})
        found = answers(db, *(("count", {"ids": ids}) for ids in ([1], [], [2])))
        assert found == [3, InvalidUsageError, 4]


def test_statements_are_numbered_by_several_threads_at_once() -> None:
    footprints = Footprints(bank(), {}, "rows")
    statements = [
        [Statement("write", "t", KEY, frozenset([f"{thread}{n}"]), True) for n in range(15)]
        for thread in "ab"
    ]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            for found in pool.map(lambda some: list(map(footprints.bit, some)), statements):
                assert len(set(found)) == 15
    finally:
        sys.setswitchinterval(before)
    assert sorted(footprints._bits.values()) == list(range(30))
