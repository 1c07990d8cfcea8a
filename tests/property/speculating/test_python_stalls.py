"""Partitions that wait for a procedure in Python run requests, with the results of their order."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import penstock
from penstock.procedures.databases import Database
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.in_process.request_queue import Request, group_requests
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from penstock.speculating.in_process.path_models import Access, PathModel
from penstock.speculating.in_process.python_calls import PythonCall
from penstock.speculating.in_process.speculation import Speculation
from penstock.speculating.in_process.stall_batches import StallBatches, StallTimes
from penstock.speculating.scheduler import StallPoint
from tests.long_tests import LONG

SEEDS = range(30 if LONG else 2)
HALF = 20
TWO: dict[str, Any] = {"partitions": 2, "ranges": {"accounts": [HALF]}}
hooks: list[Callable[[str], None]] = []


def reach(point: str) -> None:
    """Run what a test does at a point of a procedure."""
    for hook in hooks:
        hook(point)


def bank() -> Database:
    """Return a database with procedures in Python, and others."""
    made = penstock.database("stalls")
    made.table(
        "accounts", "id bigint, balance bigint NOT NULL", key="id", partition_by="id", indexes=["balance"]
    )
    made.table("rates", "id bigint, rate bigint NOT NULL", key="id")

    @made.procedure(event="source bigint, target bigint", returns="left bigint", plain=True)
    def move(e: Any, accounts: Any) -> Any:
        mine = accounts[e.source]
        reach("begun")
        accounts[e.target].balance += mine.balance // 2
        mine.balance -= mine.balance // 2
        reach("ended")
        return mine.balance

    @made.procedure(event="id bigint", returns="found bigint", plain=True)
    def follow(e: Any, accounts: Any, rates: Any) -> Any:
        """Read the account that another one names: its key is not an attribute."""
        first = accounts[e.id].balance
        second = accounts[abs(first) % 40]
        if first % 3 == 0:
            accounts[abs(first) % 40].balance += rates[0].rate
        if first % 7 == 0 and (abs(first) + 1) % 40 != e.id:
            del accounts[(abs(first) + 1) % 40]
        return second.balance

    @made.procedure(event="source bigint, target bigint, sends boolean", plain=True)
    def send(e: Any, accounts: Any) -> None:
        accounts[e.source].balance -= 1
        if e.sends:
            accounts[e.target].balance += 1

    @made.procedure(event="id bigint", returns="total bigint", plain=True)
    def count(e: Any, accounts: Any) -> Any:
        total = 0
        for row in accounts.by("balance")[:]:
            total += row.balance
        return total

    @made.procedure(event="id bigint, rate bigint", plain=True)
    def price(e: Any, accounts: Any, rates: Any) -> None:
        rates[0].rate = e.rate
        accounts[e.id].balance += 1

    @made.procedure(event="id bigint, amount bigint", returns="balance bigint")
    def deposit(e: Any, accounts: Any) -> Any:
        accounts[e.id].balance += e.amount
        return accounts[e.id].balance

    @made.procedure(event="id bigint", returns="balance bigint")
    def look(e: Any, accounts: Any) -> Any:
        return accounts[e.id].balance if e.id in accounts else -1

    @made.procedure(event="id bigint")
    def put(e: Any, accounts: Any) -> None:
        if e.id not in accounts:
            accounts.insert(id=e.id, balance=e.id)

    return made


BANK = bank()
NAMES = ("move", "follow", "count", "price", "deposit", "look", "put")
SHARES = (0.1, 0.06, 0.02, 0.02, 0.4, 0.3, 0.1)


def load(db: OpenDatabase) -> None:
    """Insert the first rows."""
    db.load("accounts", {"id": range(2 * HALF), "balance": range(0, 200 * HALF, 100)})
    db.load("rates", {"id": [0], "rate": [5]})


def speculation(db: OpenDatabase) -> Speculation:
    """Return what runs requests beside procedures, with stalls that seem long."""
    state = db._state
    assert isinstance(state, PartitionedTables)
    assert state.speculation is not None
    return state.speculation


def expect_long_stalls(db: OpenDatabase, procedures: tuple[str, ...] = ("move", "follow", "count")) -> None:
    """Let the database expect long stalls, so that requests run in each of them."""
    found = speculation(db)
    for name in procedures:
        digest = BANK.procedures[name].program().digest
        times = found._models.setdefault(digest, (PathModel(), StallTimes()))[1]
        times.whole_s = times.query_s = times.commit_s = 1e3
        times.batch_s = 0.0


def run(db: OpenDatabase, made: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Run requests that all wait in the queue when the first one runs."""
    requests = [Request(name, event) for name, event in made]
    db._run_groups(list(group_requests(requests)))
    return [one.future.exception(60) or one.future.result(60) for one in requests]


def run_with(
    hook: Callable[[str], None], db: OpenDatabase, made: list[tuple[str, dict[str, Any]]]
) -> list[Any]:
    """Run requests, and a hook at the points of procedures."""
    hooks.append(hook)
    try:
        return run(db, made)
    finally:
        hooks.remove(hook)


def test_requests_that_run_as_without_speculation_gather_the_tables_of_procedures_in_python() -> None:
    made: list[tuple[str, dict[str, Any]]] = [
        ("move", {"source": 1, "target": 30}),
        ("deposit", {"id": 31, "amount": 1}),
    ]
    with BANK.open(**TWO, speculate=True) as db:
        load(db)
        assert isinstance(db._state, PartitionedTables)
        run(db, made)
        assert db._state.gathered.names == set()
        with patch.object(speculation(db)._trials, "choose", lambda name, _: bool(name)):
            run(db, made)
        assert db._state.gathered.names == {"accounts"}


def call_each(db: OpenDatabase, made: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Run requests one after the other."""
    return [db.call(name, **event) for name, event in made]


def tables(db: OpenDatabase) -> list[Any]:
    """Return all rows."""
    return [db.table(name).sort_by("id").to_pylist() for name in ("accounts", "rates")]


def draw_requests(seed: int) -> list[tuple[str, dict[str, Any]]]:
    """Return requests, a fifth of them for procedures in Python."""
    draw = np.random.default_rng(seed)
    made: list[tuple[str, dict[str, Any]]] = []
    for _ in range(60):
        one, other = draw.integers(0, 2 * HALF, 2).tolist()
        name = str(
            draw.choice(
                ["move", "follow", "count", "price", "deposit", "look", "put"],
                p=[0.1, 0.06, 0.02, 0.02, 0.4, 0.3, 0.1],
            )
        )
        event = {
            "move": {"source": one, "target": other},
            "deposit": {"id": one, "amount": other - HALF},
            "price": {"id": one, "rate": other},
        }.get(name, {"id": one})
        made.append((name, event))
    return made


@pytest.mark.parametrize("mode", ["rows", pytest.param("tables", marks=pytest.mark.long), "occ"])
@pytest.mark.parametrize("seed", SEEDS)
def test_requests_beside_procedures_in_python_equal_the_serial_order(seed: int, mode: str) -> None:
    # In every mode, requests that only read may run beside a procedure that only reads. If no drawn request
    # may run beside the first procedures in Python, the others are not planned.
    reads = [("count", {"id": 0}), *(("look", {"id": id_}) for id_ in (1, HALF + 1, 2, HALF + 2))]
    with BANK.open(**TWO, speculate=mode) as db, BANK.open() as serial:
        load(db)
        load(serial)
        expect_long_stalls(db)
        # Measured times of a few requests would choose at random whether requests are planned.
        with patch.object(speculation(db)._trials, "choose", return_value=True):
            for made in (reads, draw_requests(seed)):
                assert run(db, made) == call_each(serial, made)
                assert tables(db) == tables(serial)
                assert db._state.transactions == serial._state.transactions
                assert speculation(db).transactions > 0


def chases() -> Database:
    """Return a database whose procedures follow accounts or use different columns."""
    made = penstock.database("chases")
    made.table(
        "accounts",
        "id bigint, balance bigint NOT NULL, bonus bigint NOT NULL",
        key="id",
        partition_by="id",
    )
    made.table("rates", "id bigint, rate bigint NOT NULL", key="id")

    @made.procedure(event="id bigint", returns="found bigint", plain=True)
    def chase(e: Any, accounts: Any) -> Any:
        reach("chased")
        return accounts[accounts[accounts[e.id].balance].balance].balance

    @made.procedure(event="id bigint, amount bigint", returns="balance bigint")
    def add(e: Any, accounts: Any) -> Any:
        accounts[e.id].balance += e.amount
        return accounts[e.id].balance

    @made.procedure(event="source bigint, target bigint")
    def copy(e: Any, accounts: Any) -> None:
        accounts[e.target].balance = accounts[e.source].bonus

    @made.procedure(event="rate bigint", plain=True)
    def mark(e: Any, accounts: Any, rates: Any) -> None:
        reach("marked")
        rates[0].rate = e.rate

    return made


CHASES = chases()


def load_chain(db: OpenDatabase) -> None:
    """Let account 4 name account 25, and account 25 name account 30."""
    balances = [{4: 25, 25: 30}.get(id_, id_) for id_ in range(40)]
    db.load("accounts", {"id": range(40), "balance": balances, "bonus": [7] * 40})
    db.load("rates", {"id": [0], "rate": [5]})


class ChaseError(Exception):
    """A procedure fails when it runs again."""


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    "later",
    [
        [("add", {"id": 25, "amount": 1}), ("copy", {"source": 35, "target": 30})],
        [("copy", {"source": 30, "target": 25}), ("add", {"id": 30, "amount": 7})],
    ],
)
def test_a_restart_undoes_all_that_ran_beside_the_procedure(later: list[Any], fails: bool) -> None:
    """The second attempt reads the row of a request that did not conflict with the first, or it fails."""
    made = [("chase", {"id": 4}), *later]
    with CHASES.open(**TWO, speculate=True) as db, CHASES.open() as serial:
        load_chain(db)
        load_chain(serial)
        run(db, [("chase", {"id": 1}), ("add", {"id": 39, "amount": 0})])
        times = speculation(db)._models[CHASES.procedures["chase"].program().digest][1]
        times.whole_s = times.query_s = times.commit_s = 1e3
        times.batch_s = 0.0
        both, ran, chased = threading.Event(), list[str](), list[str]()
        run_batch, fetch = StallBatches.run, PythonCall._fetch

        def note(batches: Any, place: Any) -> bool:
            done = run_batch(batches, place)
            if done and place.stall.partition == 1:
                ran.append("batch")
                if len(ran) == len(later):
                    both.set()
            return done

        def fetch_late(call: PythonCall, table: str, key: Any) -> Any:
            if key == (25,) and not call.restarts:
                assert both.wait(60)
            return fetch(call, table, key)

        def fail_again(point: str) -> None:
            chased.append(point)
            if fails and len(chased) == 2:
                raise ChaseError

        with (
            patch.object(PythonCall, "_fetch", fetch_late),
            patch.object(StallBatches, "run", note),
        ):
            found = run_with(fail_again, db, made)
        expected = call_each(serial, later if fails else made)
        assert found[-len(expected) :] == expected
        assert isinstance(found[0], ChaseError) == fails
        assert tables(db) == tables(serial)
        assert speculation(db).restarts > 0
        assert speculation(db).rolled_back >= len(later)
        assert db._state.transactions == serial._state.transactions + 2 + fails


def test_a_procedure_that_changes_a_replicated_table_is_tried_once() -> None:
    marked = list[str]()
    with CHASES.open(**TWO, speculate=True) as db:
        load_chain(db)
        for rate in range(4):
            run_with(marked.append, db, [("mark", {"rate": rate})])
        assert db.table("rates").to_pylist() == [{"id": 0, "rate": 3}]
    assert len(marked) == 5


def test_a_time_of_batches_that_is_too_long_for_every_stall_decays() -> None:
    with CHASES.open(**TWO, speculate=True) as db:
        load_chain(db)
        tried, run_batch = threading.Event(), StallBatches.run
        times = StallTimes(batch_s=1e6)
        speculation(db)._models[CHASES.procedures["chase"].program().digest] = PathModel(), times
        speculation(db)._models[CHASES.procedures["chase"].program().digest][0].learn(
            {"id": 1}, [Access("read", "accounts", (1,))]
        )

        def note(batches: Any, place: Any) -> bool:
            done = run_batch(batches, place)
            if place.stall.partition == 1:
                tried.set()
            return done

        def wait_here(_: str) -> None:
            assert tried.wait(60)

        with patch.object(StallBatches, "run", note):
            run_with(wait_here, db, [("chase", {"id": 1}), ("add", {"id": 39, "amount": 0})])
        assert times.batch_s < 1e6


def test_explain_names_the_limit_of_statements() -> None:
    made = penstock.database("wide")
    for name in "abcdfghij":
        made.table(name, "id bigint, v bigint NOT NULL", key="id", partition_by="id")

    @made.procedure(event="id bigint", plain=True)
    def change(e: Any, a: Any, b: Any, c: Any, d: Any, f: Any, g: Any, h: Any, i: Any) -> None:
        a[e.id].v += 1

    @made.procedure(event="id bigint", plain=True)
    def change_more(e: Any, j: Any) -> None:
        j[e.id].v += 1

    with made.open(partitions=2, speculate=True) as db:
        for name in "aj":
            db.load(name, {"id": [1], "v": [0]})
        db.call("change", id=1)
        assert "over 32 statements" not in db.explain()
        db.call("change_more", id=1)
        assert "over 32 statements" in db.explain()


MOVE = ("move", {"source": 1, "target": HALF + 1})
DEPOSITS = [("deposit", {"id": id_, "amount": 1}) for id_ in (2, HALF + 2, 1, HALF + 1, 3, HALF + 3)]


class Points:
    """Holds a partition at a stall point until another one has run requests there; then copies the log."""

    def __init__(self, directory: Path, point: StallPoint) -> None:
        self.directory, self.point, self.ran = directory, point, threading.Event()
        self.batches: list[StallPoint] = []
        self.first = threading.Lock()

    def note(self, run_batch: Callable[..., bool], batches: Any, place: Any) -> bool:
        """Run a batch, and note where."""
        point = place.stall.point
        ran = run_batch(batches, place)
        if ran:
            self.batches.append(point)
            if self.first.acquire(blocking=False):
                shutil.copytree(self.directory / "bank", self.directory / "killed")
            self.ran.set()
        return ran

    def hold(self, function: Callable[..., Any], *wanted: Any) -> Any:
        """Wait until requests have run at the point."""
        assert self.ran.wait(60)
        return function(*wanted)


@pytest.mark.parametrize("point", list(StallPoint))
def test_partitions_run_requests_at_each_stall_point(tmp_path: Path, point: StallPoint) -> None:
    """A database that is killed there has all calls before it, and the log has the order of requests."""
    with BANK.open(tmp_path / "bank", **TWO, speculate=True) as db, BANK.open() as serial:
        load(db)
        load(serial)
        first = ("move", {"source": 5, "target": HALF + 5})
        assert run(db, [first]) == call_each(serial, [first])
        expect_long_stalls(db)
        points, before = Points(tmp_path, point), tables(serial)
        run_batch, fetch = StallBatches.run, PythonCall._fetch_row
        prepare = PythonCall._prepare

        def only_at(batches: Any, place: Any) -> bool:
            return place.stall.point is point and points.note(run_batch, batches, place)

        def fetch_late(call: PythonCall, number: int, access: Access) -> Any:
            if number != call._base and point is StallPoint.QUERY_RESPONSE:
                return points.hold(fetch, call, number, access)
            return fetch(call, number, access)

        def prepare_late(call: PythonCall, number: int, changes: Any) -> None:
            if number != call._base and point is StallPoint.COMMIT:
                points.hold(prepare, call, number, changes)
            else:
                prepare(call, number, changes)

        def wait_here(at: str) -> None:
            if at == "begun" and point is StallPoint.QUERY_REQUEST:
                points.hold(lambda: None)

        with (
            patch.object(StallBatches, "run", only_at),
            patch.object(PythonCall, "_fetch_row", fetch_late),
            patch.object(PythonCall, "_prepare", prepare_late),
        ):
            found = run_with(wait_here, db, [MOVE, *DEPOSITS])
        assert found == call_each(serial, [MOVE, *DEPOSITS])
        assert tables(db) == tables(serial)
        tables_after = tables(serial)
        assert set(points.batches) == {point}
        assert speculation(db).points[point] > 0
        assert f" at {point.value}" in db.explain()
        shutil.copytree(tmp_path / "bank", tmp_path / "after")
    for name, expected in (("killed", before), ("after", tables_after)):
        with BANK.open(tmp_path / name) as replayed:
            assert tables(replayed) == expected


def test_a_query_that_ran_early_is_used_and_an_unnecessary_one_is_dropped() -> None:
    with BANK.open(**TWO, speculate=True) as db, BANK.open() as serial:
        load(db)
        load(serial)
        found = speculation(db)
        with patch.object(found._trials, "choose", return_value=True):
            for number, sends in enumerate((True, True, True, False)):
                event = {"source": number, "target": HALF + number, "sends": sends}
                made = [("send", event), DEPOSITS[0]]
                assert run(db, made) == call_each(serial, made)
        assert (found.prefetched, found.used, found.restarts) == (3, 2, 0)
        assert tables(db) == tables(serial)
        assert "3 queries before they were requested, 2 of them used" in db.explain()


def test_a_request_does_not_overtake_a_procedure_that_has_not_reached_its_partition() -> None:
    with BANK.open(**TWO, speculate=True) as db, BANK.open() as serial:
        load(db)
        load(serial)
        expect_long_stalls(db)
        tried, run_batch = threading.Event(), StallBatches.run

        def note(batches: Any, place: Any) -> bool:
            done = run_batch(batches, place)
            if place.stall.partition == 1:
                tried.set()
            return done

        def wait_here(at: str) -> None:
            if at == "begun":
                assert tried.wait(60)

        made = [MOVE, ("deposit", {"id": HALF + 1, "amount": 1})]
        with patch.object(StallBatches, "run", note):
            assert run_with(wait_here, db, made) == call_each(serial, made)
        assert tables(db) == tables(serial)


class StopError(Exception):
    """A procedure fails."""


@pytest.mark.parametrize("at", ["begun", "ended"])
def test_what_ran_beside_a_procedure_that_fails_is_undone_and_runs_again(at: str) -> None:
    with BANK.open(**TWO, speculate=True) as db, BANK.open() as serial:
        load(db)
        load(serial)
        expect_long_stalls(db)
        run(db, [MOVE])
        call_each(serial, [MOVE])
        ran = threading.Event()
        run_batch = StallBatches.run

        def note(batches: Any, place: Any) -> bool:
            done = run_batch(batches, place)
            if done:
                ran.set()
            return done

        def fail(point: str) -> None:
            if point == at:
                assert ran.wait(60)
                raise StopError

        with patch.object(StallBatches, "run", note):
            found = run_with(fail, db, [MOVE, *DEPOSITS])
        assert isinstance(found[0], StopError)
        assert found[1:] == call_each(serial, DEPOSITS)
        assert tables(db) == tables(serial)
        assert speculation(db).rolled_back > 0


def test_a_wrong_estimate_restarts_the_procedure_and_undoes_what_depends_on_it() -> None:
    """The procedure's second key is a balance, which was an attribute's value by chance."""
    with BANK.open(**TWO, speculate=True) as db, BANK.open() as serial:
        for one in (db, serial):
            one.load("accounts", {"id": range(40), "balance": [*range(0, 21), *range(21, 40)]})
            one.load("rates", {"id": [0], "rate": [5]})
        first = ("follow", {"id": 1})
        assert run(db, [first, DEPOSITS[0]]) == call_each(serial, [first, DEPOSITS[0]])
        expect_long_stalls(db)
        made = [("deposit", {"id": 4, "amount": 21})]
        made += [
            ("follow", {"id": 4}),
            *(("deposit", {"id": 25, "amount": 1}),),
            ("look", {"id": 25}),
            ("look", {"id": 30}),
        ]
        held = threading.Event()
        fetch, run_batch = PythonCall._fetch, StallBatches.run

        def fetch_late(call: PythonCall, table: str, key: Any) -> Any:
            if key == (25,) and not call.restarts:
                assert held.wait(60)
            return fetch(call, table, key)

        def note(batches: Any, place: Any) -> bool:
            done = run_batch(batches, place)
            if done and place.stall.partition == 1:
                held.set()
            return done

        with (
            patch.object(PythonCall, "_fetch", fetch_late),
            patch.object(StallBatches, "run", note),
        ):
            found = run(db, made)
        assert found == call_each(serial, made)
        assert tables(db) == tables(serial)
        assert speculation(db).restarts == 1
        assert speculation(db).rolled_back >= 2


def test_paths_are_learned_and_keys_that_differ_are_unknown() -> None:
    model = PathModel()
    assert not model.has_learned
    model.learn({"a": 1, "b": 1}, [Access("read", "t", (1,)), Access("select", "t", None)])
    model.learn({"a": 2, "b": 3}, [Access("read", "t", (3,)), Access("select", "t", None)])
    assert list(model.estimate({"a": 7, "b": 9})) == [
        Access("read", "t", (9,)),
        Access("select", "t", None),
    ]
    assert next(model.estimate({"a": 7, "b": None})).key is None
    model.learn({"a": 2, "b": 3}, [Access("read", "t", (4,)), Access("select", "t", None)])
    assert next(model.estimate({"a": 7, "b": 9})).key is None
