"""A database that speculates gives the results and tables of a serial run, in the order of requests."""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.errors import InternalError, InvalidUsageError
from penstock.procedures.compiler.program import Program
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.in_process.request_queue import Request, group_requests
from penstock.procedures.partitions.forwarding import find_first
from penstock.procedures.partitions.partitioned_rows import MOVE_COST
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from penstock.speculating.in_process import stalled_calls
from penstock.speculating.in_process.speculation import Speculation
from tests.long_tests import LONG
from tests.property.procedures.partitions.test_partitions import BANK, EVENTS, Call, run, tables

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""No shrinking, which takes minutes with databases."""
EXAMPLES = 100 if LONG else 3
NAMES = ("deposit", "transfer", "close_account", "open_account", "give", "pay_all", "store", "move", "order",
         "reward", "set_rate")  # fmt: skip
FIRST: list[Call] = [
    ("open_account", [{"id": id_, "owner": "Ada"} for id_ in range(0, 10, 2)]),
    ("set_rate", [{"currency": "Bo", "rate": 3}]),
    ("store", [{"number": number, "shift": 0} for number in range(0, 30, 3)]),
]


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    """Return calls, most of which have keys that their events name."""
    made = list(FIRST)
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=8)):
        events = draw(st.lists(st.fixed_dictionaries(dict(EVENTS[name])), min_size=1, max_size=12))
        made.append((name, events))
    return made


def speculation(db: OpenDatabase) -> Speculation:
    """Return what runs transactions beside others."""
    found = getattr(db._state, "speculation", None)
    assert isinstance(found, Speculation)
    return found


def partitions_of(db: OpenDatabase) -> list[TableSet]:
    """Return the tables of each partition."""
    assert isinstance(db._state, PartitionedTables)
    return db._state.partition_tables


def program_of(procedure: str) -> Program:
    """Return the program of a procedure."""
    program = BANK.procedures[procedure].program()
    assert isinstance(program, Program)
    return program


def submit(db: OpenDatabase, made: list[Call]) -> list[list[dict[str, Any]]]:
    """Run calls as requests that all wait in the queue when the first one runs."""
    requests = [[Request(name, event) for event in events] for name, events in made]
    db._run_groups(list(group_requests([one for each in requests for one in each])))
    assert speculation(db).unlogged == []
    return [[one.future.result(60) for one in each] for each in requests]


MISFITS: dict[str, dict[str, Any]] = {
    "deposit": {"id": 0, "amount": None},
    "transfer": {"source": 0, "target": 1 << 70, "amount": 1},
    "order": {"buyer": 1 << 40, "currency": "Bo"},
}
"""Requests that do not fit: the last two are grouped with requests that do."""


def answer_of(request: Request) -> object:
    """Return the answer of a request that has run: its results, or the type of its error."""
    error = request.future.exception(0)
    return type(error) if error is not None else request.future.result(0)


def call_alone(db: OpenDatabase, name: str, event: dict[str, Any]) -> object:
    """Return what a request has as its answer, from a call."""
    try:
        return db.call(name, **event)
    except InvalidUsageError as error:
        return type(error)


def submit_beside(
    db: OpenDatabase, made: list[Call], direct: Mapping[int, Call]
) -> tuple[list[object], list[object]]:
    """Run calls as queued requests, and a direct call of another thread just before some of their groups.

    Return the answers of requests and direct calls in the order in which they ran, and those of a database
    that runs all in this order.
    """
    requests = [Request(name, event) for name, events in made for event in events]
    groups = list(group_requests(requests))
    number_of = {id(one): number for number, group in enumerate(groups) for one in group}
    order: list[tuple[str, list[dict[str, Any]], list[Request] | pa.Table]] = []
    noted, left = set[int](), dict(direct)
    run_group = db._run_group

    def note_answered() -> None:
        for one in requests:
            if one.future.done() and id(one) not in noted:
                noted.add(id(one))
                order.append((one.procedure, [one.attributes], [one]))

    def run_beside(group: Sequence[Request], offer: AbstractContextManager[None]) -> None:
        call = left.pop(number_of[id(group[0])], None)
        if call is not None:
            note_answered()
            with ThreadPoolExecutor(1) as thread:
                results = thread.submit(db.run, call[0], pa.Table.from_pylist(call[1])).result(60)
            order.append((*call, results))
        run_group(group, offer)

    with patch.object(db, "_run_group", run_beside):
        db._run_groups(list(groups))
    note_answered()
    assert len(noted) == len(requests)
    with BANK.open() as serial:
        got, expected = list[object](), list[object]()
        for name, events, answers in order:
            if isinstance(answers, list):
                got += map(answer_of, answers)
            else:
                got += answers.to_pylist()
            expected += [call_alone(serial, name, event) for event in events]
        assert tables(db) == tables(serial)
    assert speculation(db).unlogged == []
    return got, expected


@pytest.mark.parametrize("mode", ["rows", pytest.param("tables", marks=pytest.mark.long), "occ"])
@settings(max_examples=EXAMPLES, deadline=None, phases=PHASES)
@given(made=calls(), partitions=st.integers(2, 4))
def test_queued_requests_equal_the_serial_order(mode: str, made: list[Call], partitions: int) -> None:
    with BANK.open() as serial, BANK.open(partitions=partitions, speculate=mode) as db:
        assert submit(db, made) == run(serial, made)
        assert tables(db) == tables(serial)
        assert db._state.transactions == serial._state.transactions


@pytest.mark.parametrize("mode", ["rows", pytest.param("occ", marks=pytest.mark.long)])
@settings(max_examples=EXAMPLES, deadline=None, phases=PHASES)
@given(data=st.data())
def test_direct_calls_and_misfits_keep_the_order(mode: str, data: st.DataObject) -> None:
    made = data.draw(calls())
    for name, events in made:
        if name in MISFITS and data.draw(st.booleans()):
            events.insert(data.draw(st.integers(0, len(events))), MISFITS[name])
    transfers = st.lists(st.fixed_dictionaries(dict(EVENTS["transfer"])), min_size=1, max_size=4)
    direct = data.draw(st.dictionaries(st.integers(3, 8), transfers, max_size=4))
    with BANK.open(partitions=2, speculate=mode) as db:
        got, expected = submit_beside(db, made, {place: ("transfer", one) for place, one in direct.items()})
        assert got == expected


def test_a_direct_call_does_not_overtake_queued_requests() -> None:
    made: list[Call] = [
        *FIRST,
        ("deposit", [{"id": 4, "amount": 7}]),
        ("close_account", [{"id": 4, "heir": 6}]),
        ("deposit", [{"id": 4, "amount": 1}]),
    ]
    with BANK.open(**TWO, speculate=True) as db:
        call = ("transfer", [{"source": 0, "target": 2, "amount": 4}] * 8)
        got, expected = submit_beside(db, made, {4: call})
        assert got == expected


def test_later_groups_wait_for_a_group_of_which_a_request_does_not_fit() -> None:
    transfers = [{"source": 0, "target": 2, "amount": 1}] * 3
    made: list[Call] = [
        *FIRST,
        (
            "transfer",
            [
                *transfers,
                {"source": 0, "target": 1 << 70, "amount": 1},
                {"source": 4, "target": 6, "amount": 9},
            ],
        ),
        ("deposit", [{"id": 4, "amount": -3}]),
    ]
    with BANK.open(**TWO, speculate=True) as db:
        got, expected = submit_beside(db, made, {})
        assert got == expected


@pytest.mark.parametrize("strange", [1 << 70, "\ud800"])
def test_a_request_that_arrow_cannot_hold_fails_alone(tmp_path: Path, strange: object) -> None:
    made: list[Call] = [*LATER[:1], ("deposit", [{"id": 4, "amount": strange}]), *LATER[1:2]]
    with BANK.open(tmp_path / "bank", **TWO, speculate=True) as db:
        run(db, FIRST)
        requests = [Request(name, event) for name, events in made for event in events]
        db._run_groups(list(group_requests(requests)))
        errors = [type(one.future.exception(60)) for one in requests]
        assert errors == [type(None)] * 8 + [InvalidUsageError] + [type(None)] * 4


LATER: list[Call] = [
    ("transfer", [{"source": 0, "target": 2, "amount": 4}] * 8),
    ("deposit", [{"id": id_, "amount": 1} for id_ in (4, 0, 6, 4)]),
    ("store", [{"number": 3, "shift": 0}]),
    ("close_account", [{"id": 6, "heir": 0}]),
    ("deposit", [{"id": 6, "amount": 1}, {"id": 8, "amount": 1}]),
    ("reward", [{"owner": "Ada", "amount": 1}]),
    ("deposit", [{"id": 8, "amount": 5}]),
]
TWO: dict[str, Any] = {"partitions": 2, "ranges": {"accounts": [1], "shelves": [1]}}


def test_later_requests_run_beside_a_transaction_over_several_partitions() -> None:
    with BANK.open() as serial, BANK.open(**TWO, speculate=True) as db:
        assert run(db, FIRST) == run(serial, FIRST)
        before = speculation(db).conflicts
        assert submit(db, LATER) == run(serial, LATER)
        # A deposit to 0 waits for the transfers, and one to 6 until that account is closed. The last one
        # waits for the reward, which may be for anybody.
        assert speculation(db).transactions == 5
        assert speculation(db).conflicts - before >= 2
        assert "5 later requests" in db.explain()
    with BANK.open() as serial, BANK.open(**TWO, speculate="tables") as db:
        assert run(db, FIRST) == run(serial, FIRST)
        assert submit(db, LATER) == run(serial, LATER)
        assert speculation(db).transactions == 1


def test_the_log_has_requests_in_the_order_in_which_they_ran(tmp_path: Path) -> None:
    with BANK.open() as serial, BANK.open(tmp_path / "bank", **TWO, speculate=True) as db:
        assert run(db, FIRST) == run(serial, FIRST)
        assert submit(db, LATER) == run(serial, LATER)
        assert speculation(db).transactions == 5
        shutil.copytree(tmp_path / "bank", tmp_path / "killed")
        with BANK.open(tmp_path / "killed") as replayed:
            assert tables(replayed) == tables(db) == tables(serial)
            assert replayed._state.transactions == serial._state.transactions


def test_optimistic_transactions_that_conflict_are_rolled_back_and_run_again() -> None:
    made: list[Call] = [
        ("transfer", [{"source": 0, "target": 2, "amount": 4}] * 8),
        ("deposit", [{"id": 4, "amount": 1}, {"id": 0, "amount": 1}]),
    ]
    with BANK.open() as serial, BANK.open(**TWO, speculate="occ") as db:
        assert run(db, FIRST) == run(serial, FIRST)
        before = speculation(db).rolled_back
        assert submit(db, made) == run(serial, made)
        assert tables(db) == tables(serial)
        assert (speculation(db).rolled_back - before, speculation(db).transactions) == (2, 0)


BESIDE: list[Call] = [
    ("transfer", [{"source": 0, "target": 2, "amount": 4}, {"source": 4, "target": 6, "amount": 1}]),
    ("deposit", [{"id": 4, "amount": 1}, {"id": 6, "amount": 1}]),
]
"""A transfer over two partitions, one in one partition, and deposits that run beside the former."""


def test_optimistic_transactions_are_undone_if_one_of_them_fails() -> None:
    with BANK.open(**TWO, speculate="occ") as db, BANK.open() as serial:
        run(db, FIRST)
        run(serial, FIRST)
        requests = [Request(name, event) for name, events in BESIDE for event in events]
        partition = partitions_of(db)[1]
        fails, run_program = ["deposit"], partition.run

        def run_or_fail(program: Program, events: pa.RecordBatch) -> pa.RecordBatch:
            results = run_program(program, events)
            if program.name in fails:
                fails.remove(program.name)
                raise InternalError("this fails once")
            return results

        with patch.object(partition, "run", run_or_fail):
            db._run_groups(list(group_requests(requests)))
        errors = [type(one.future.exception(60)) for one in requests]
        assert errors == [InternalError, InternalError, InvalidUsageError, InvalidUsageError]
        assert tables(db) == tables(serial)


def test_no_later_request_runs_again_after_a_call_failed() -> None:
    made: list[Call] = [
        ("transfer", [{"source": 2, "target": -1, "amount": 4}]),
        ("deposit", [{"id": id_, "amount": 1} for id_ in (0, 8, 6)]),
    ]
    with BANK.open(**TWO, speculate=True) as db:
        run(db, FIRST)
        requests = [Request(name, event) for name, events in made for event in events]
        found, (first, second) = speculation(db), partitions_of(db)
        found._times |= {(program_of("transfer").digest, "stalled"): 1.0}
        run_there, ran = second.run, list[list[int]]()

        def fail(program: Program, events: pa.RecordBatch) -> pa.RecordBatch:
            raise InternalError("a partition fails")

        def note(program: Program, events: pa.RecordBatch) -> pa.RecordBatch:
            ran.append(events.column("id").to_pylist())
            return run_there(program, events)

        with patch.object(first, "run", fail), patch.object(second, "run", note):
            db._run_groups(list(group_requests(requests)))
        assert ran == [[8, 6]]
        assert found.transactions == 2
        errors = [one.future.exception(60) for one in requests]
        assert [type(one) for one in errors] == [InternalError] + [InvalidUsageError] * 3
        with pytest.raises(InvalidUsageError, match="a call failed halfway"):
            db.call("deposit", id=8, amount=1)


def test_optimistic_transactions_that_are_rolled_back_are_forwarded_once() -> None:
    conflicting: list[Call] = [BESIDE[0], ("deposit", [{"id": 0, "amount": 1}])]
    with BANK.open(**TWO, speculate="occ") as db:
        run(db, FIRST)
        before = db._state.forwarded
        submit(db, conflicting)
        assert (db._state.forwarded - before, speculation(db).rolled_back) == (1, 1)


def test_one_long_measurement_does_not_end_speculation() -> None:
    with BANK.open(**TWO, speculate=True) as db:
        run(db, FIRST)
        found = speculation(db)
        transfer, deposit = (program_of(name).digest for name, _ in BESIDE)
        found._times |= {(transfer, "stalled"): 1.0, (deposit, "single"): 1.06}
        with patch.object(found, "_note_time"):
            for _ in range(6):
                submit(db, BESIDE)
        assert 0 < found.transactions < 6


def test_times_are_measured_of_all_transactions_and_without_compiling() -> None:
    ticks = defaultdict[int, int](int)
    kernels = {program_of(name).digest: program_of(name).kernel for name, _ in BESIDE}
    loaded: dict[str, int] = {}

    def tick() -> float:
        ticks[threading.get_ident()] += 1
        return float(ticks[threading.get_ident()])

    def load(program: Program) -> Callable[..., int]:
        loaded.setdefault(program.digest, ticks[threading.get_ident()])
        return kernels[program.digest]

    with BANK.open(**TWO, speculate=True) as db:
        run(db, FIRST)
        clock = patch.object(stalled_calls, "_clock", SimpleNamespace(monotonic_s=tick))
        with clock, patch.object(Program, "kernel", property(load)):
            submit(db, [*BESIDE[:1], ("deposit", [{"id": 8, "amount": 1}])])
        assert speculation(db).transactions == 1
        assert loaded.keys() == kernels.keys()
        assert [count % 2 for count in loaded.values()] == [0, 0]
        transfer = program_of("transfer").digest
        assert {(transfer, "stalled"), (transfer, "single")} <= speculation(db)._times.keys()


MIXED: list[Call] = [
    (
        "transfer",
        [
            {"source": 2, "target": 4, "amount": 1},
            {"source": 0, "target": 2, "amount": 2},
            {"source": 6, "target": 8, "amount": 1},
        ],
    )
]
"""A transfer that must precede the transfer over two partitions after it, and one that may run beside it."""


@pytest.mark.parametrize("point", ["SP1", "SP2"])
def test_a_partition_runs_transactions_while_it_waits(point: str) -> None:
    with BANK.open() as serial, BANK.open(**TWO, speculate=True) as db:
        assert isinstance(db._state, PartitionedTables)
        assert run(db, FIRST) == run(serial, FIRST)
        partition, coordinator = partitions_of(db)[1], db._state.coordinator
        run_there, run_forwarded, fetch = partition.run, coordinator.run, db._state.fetch_rows
        ran, done = list[list[int]](), threading.Event()

        def note(program: Program, events: pa.RecordBatch) -> pa.RecordBatch:
            results = run_there(program, events)
            ran.append(events.column("source").to_pylist())
            if ran[-1] == [6]:
                done.set()
            return results

        def fetch_late(number: int, *wanted: Any) -> dict[str, pa.RecordBatch]:
            assert number or point != "SP1" or done.wait(60)
            return fetch(number, *wanted)

        def run_late(*wanted: Any) -> pa.RecordBatch:
            assert done.wait(60)
            return run_forwarded(*wanted)

        with (
            patch.object(partition, "run", note),
            patch.object(db._state, "fetch_rows", fetch_late),
            patch.object(coordinator, "run", run_late),
        ):
            assert run(db, MIXED) == run(serial, MIXED)
        assert ran == [[2], [6]]
        assert speculation(db).beside == 1
        assert tables(db) == tables(serial)
        assert "1 transactions ran beside forwarded ones of their own call" in db.explain()


def test_later_requests_run_while_earlier_ones_are_not_durable(tmp_path: Path) -> None:
    """A database that does not wait for the log before it runs the next request never stalls at SP3."""
    with BANK.open() as serial, BANK.open(tmp_path / "bank", **TWO, speculate=True) as db:
        assert run(db, FIRST) == run(serial, FIRST)
        log, before, go = db._log, db._state.transactions, threading.Event()
        assert log is not None
        append = log._writer.append

        def append_late(calls: pa.Table) -> None:
            assert go.wait(60)
            append(calls)

        with patch.object(log._writer, "append", append_late):
            requests = [Request(name, event) for name, events in LATER for event in events]
            db._run_groups(list(group_requests(requests)))
            assert db._state.transactions == before + len(requests)
            assert not any(one.future.done() for one in requests)
            go.set()
            expected = [one for each in run(serial, LATER) for one in each]
            assert [one.future.result(60) for one in requests] == expected


@pytest.mark.parametrize("seed", range(20))
def test_the_transactions_that_must_be_first_are_found(seed: int) -> None:
    draws = np.random.default_rng(seed)
    needs = [sorted(set(draws.integers(0, 8, draws.integers(0, 4)).tolist())) for _ in range(12)]
    homes = np.where(draws.random(12) < 0.2, -1, 0)
    expected = [False] * 12
    for place in reversed(range(12)):
        later = [n for n in range(place + 1, 12) if homes[n] < 0 or expected[n]]
        shares = any(set(needs[place]) & set(needs[n]) for n in later)
        expected[place] = bool(homes[place] >= 0 and shares)
    starts = np.cumsum([0, *map(len, needs)])
    resources = np.array([one for each in needs for one in each], np.int64)
    assert find_first(starts, resources, homes, np.zeros(8, np.bool_)).tolist() == expected


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_calls_with_own_transactions_beside_equal_the_serial_order(seed: int) -> None:
    draws = np.random.default_rng(seed)
    made = list(FIRST)
    for _ in range(12):
        ids = draws.integers(0, 10, (30, 2)).tolist()
        events = [{"source": one, "target": other, "amount": one % 3} for one, other in ids]
        made.append(("transfer", [one for one in events if draws.random() < 0.3 or one["source"]]))
    with BANK.open() as serial, BANK.open(**TWO, speculate=True) as db:
        assert run(db, made) == run(serial, made)
        assert tables(db) == tables(serial)
        assert speculation(db).beside > 0


def test_tables_are_gathered_by_the_measured_times() -> None:
    with BANK.open(**TWO, speculate=True) as db:
        run(db, FIRST)
        found, transfer = speculation(db), program_of("transfer")
        assert found.move_cost(transfer) == MOVE_COST
        found._times |= {(transfer.digest, "single"): 2.0, (transfer.digest, "moving"): 5.0}
        assert found.move_cost(transfer) == 2.5
        found._times[transfer.digest, "moving"] = 1e6
        assert found.move_cost(transfer) == MOVE_COST


def test_unusable_options_are_refused() -> None:
    with pytest.raises(InvalidUsageError, match=r"no such mode.*speculate='row'.*did you mean"):
        BANK.open(partitions=2, speculate="row")
    with pytest.raises(InvalidUsageError, match="speculation needs partitions"):
        BANK.open(speculate=True)
