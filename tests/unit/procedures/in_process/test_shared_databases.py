"""Threads share a database in one process: futures, commits in groups, and snapshots."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import FencedError, InvalidUsageError, UnavailableError
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.in_process import request_queue
from penstock.procedures.in_process.request_queue import Request, RequestQueue
from penstock.procedures.in_process.write_ahead_log import WriteAheadLog
from tests.transactions.procedures import define, interpreted

MOVE = """
def move(e, accounts):
    source = accounts[e.source]
    source.balance -= e.amount
    if source.balance < 0:
        abort("short")
    accounts[e.target].balance += e.amount
    return source.balance
"""


def bank() -> Database:
    database = penstock.database("bank")
    database.table("accounts", "id bigint, balance bigint NOT NULL", key="id")
    event = "source bigint, target bigint, amount bigint"
    program = database.procedure(event=event, returns="left bigint")(define(MOVE)).program()
    assert isinstance(program, Program)
    program.__dict__["kernel"] = interpreted(program)
    return database


FIRST = {"id": range(10), "balance": [100] * 10}


def moves(count: int, seed: int = 0) -> list[dict[str, Any]]:
    return [
        {"source": (number * 7 + seed) % 10, "target": (number * 3 + 1) % 10, "amount": (number * 13) % 60}
        for number in range(count)
    ]


@pytest.mark.parametrize("kept", [False, True])
def test_futures_have_what_calls_in_the_same_order_return(tmp_path: Path, kept: bool) -> None:
    expected = bank().open()
    expected.load("accounts", FIRST)
    place = tmp_path / "bank" if kept else None
    with bank().open(place) as db:
        db.load("accounts", FIRST)
        futures = [db.submit("move", **move) for move in moves(500)]
        wrong = db.submit("move", source="much", target=1, amount=2)
        unknown = db.submit("mve", source=1, target=1, amount=2)
        after = db.submit("move", source=1, target=2, amount=0)
        assert [future.result() for future in futures] == [
            expected.call("move", **move) for move in moves(500)
        ]
        assert after.result() == expected.call("move", source=1, target=2, amount=0)
        with pytest.raises(InvalidUsageError):
            wrong.result()
        with pytest.raises(InvalidUsageError, match="there is no such procedure"):
            unknown.result()
        assert db.table("accounts").sort_by("id") == expected.table("accounts").sort_by("id")
    if place is not None:
        with bank().open(place) as again:
            assert again.table("accounts").sort_by("id") == expected.table("accounts").sort_by("id")


def test_values_of_one_group_are_not_converted_to_each_others_types(tmp_path: Path) -> None:
    database = penstock.database("notes")
    database.table("notes", "id bigint, note string", key="id")
    text = "def put(e, notes):\n    notes.insert(id=e.id, note=str(e.note))\n"
    database.procedure(plain=True)(define(text))
    values: list[Any] = [1, 2.5, True, "a", 3, Decimal("1.50"), Decimal("2.5"), 4.0]
    with database.open() as db:
        for future in [db.submit("put", id=number, note=note) for number, note in enumerate(values)]:
            future.result()
        found = [row["note"] for row in db.table("notes").sort_by("id").to_pylist()]
    with database.open() as db:
        for number, note in enumerate(values):
            db.call("put", id=number, note=note)
        assert found == [row["note"] for row in db.table("notes").sort_by("id").to_pylist()]


def test_many_calls_become_durable_in_few_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[int] = []
    append = WriteAheadLog.append
    first, go = threading.Event(), threading.Event()

    def slow(log: WriteAheadLog, offset: int, calls: Any) -> None:
        syncs.append(len(calls))
        first.set()
        assert go.wait(60)
        append(log, offset, calls)

    with bank().open(tmp_path / "bank") as db:
        db.load("accounts", FIRST)
        monkeypatch.setattr(WriteAheadLog, "append", slow)
        with ThreadPoolExecutor(8) as threads:
            calls = [threads.submit(db.call, "move", source=1, target=2, amount=0)]
            assert first.wait(60)
            calls += [threads.submit(db.call, "move", source=2, target=3, amount=0) for _ in range(7)]
            log = db._log
            assert log is not None
            while log.end < 9:  # the load and eight calls
                pass
            assert not any(call.done() for call in calls)
            go.set()
            assert all(call.result()["rejected"] is None for call in calls)
        assert syncs == [1, 7]


def test_a_future_is_done_only_once_its_call_is_durable(tmp_path: Path) -> None:
    db = bank().open(tmp_path / "bank")
    db.load("accounts", FIRST)
    done = [db.submit("move", **move) for move in moves(300)]
    wait(done[:100])
    # The process dies here: what was answered is there.
    answered = [future.result() for future in done if future.done()]
    expected = bank().open()
    expected.load("accounts", FIRST)
    with bank().open(tmp_path / "bank") as again:
        count = again._state.transactions
        assert count >= len(answered)
        assert answered == [expected.call("move", **move) for move in moves(300)][: len(answered)]
        replayed = bank().open()
        replayed.load("accounts", FIRST)
        for move in moves(count):
            replayed.call("move", **move)
        assert again.table("accounts").sort_by("id") == replayed.table("accounts").sort_by("id")
    with pytest.raises(FencedError):
        db.call("move", **moves(1)[0])
    with pytest.raises(FencedError, match=r"another process has opened this database.* call that process"):
        db.submit("move", **moves(1)[0])


def test_snapshots_show_whole_transactions_and_do_not_change(tmp_path: Path) -> None:
    with bank().open(tmp_path / "bank") as db:
        db.load("accounts", FIRST)
        ended = threading.Event()
        sums: list[int] = []

        def look() -> None:
            while not ended.is_set():
                sums.append(sum(db.snapshot().table("accounts")["balance"].to_pylist()))

        reader = threading.Thread(target=look)
        reader.start()
        try:
            before = db.snapshot("accounts")
            rows = before.table("accounts").to_pylist()
            for future in [db.submit("move", **move) for move in moves(3_000)]:
                future.result()
        finally:
            ended.set()
            reader.join()
        assert set(sums) == {1_000}
        assert before.table("accounts").to_pylist() == rows
        assert before.sql("SELECT sum(balance) AS s FROM accounts").to_pylist() == [{"s": 1_000}]
        with pytest.raises(InvalidUsageError, match="DuckDB refuses the query"):
            before.sql("SELECT x FROM accounts")
        with pytest.raises(InvalidUsageError, match="there is no such table"):
            db.snapshot("acounts")


def test_an_error_of_the_disk_reaches_every_future(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = bank().open(tmp_path / "bank")
    db.load("accounts", FIRST)

    def refuse(*_: Any) -> None:
        raise UnavailableError("the disk is full")

    monkeypatch.setattr(WriteAheadLog, "append", refuse)
    futures = [db.submit("move", **move) for move in moves(20)]
    assert all(isinstance(future.exception(), UnavailableError | InvalidUsageError) for future in futures)
    monkeypatch.undo()
    db.close()
    with bank().open(tmp_path / "bank") as again:
        assert again._state.transactions == 0


def test_close_runs_what_is_queued(tmp_path: Path) -> None:
    db = bank().open(tmp_path / "bank", commit_interval="50ms")
    db.load("accounts", FIRST)
    futures = [db.submit("move", **move) for move in moves(200)]
    db.close()
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(InvalidUsageError, match="the database is closed"):
        db.submit("move", **moves(1)[0])


def test_a_full_queue_refuses_or_waits() -> None:
    taken, go = threading.Event(), threading.Event()

    def run(groups: Any) -> None:
        taken.set()
        assert go.wait(60)
        for group in groups:
            request_queue.answer(group, [{} for _ in group])

    queue = RequestQueue(run, most_waiting=2)
    first = queue.put(Request("move", {}))
    assert taken.wait(60)
    second, third = queue.put(Request("move", {})), queue.put(Request("move", {}))
    with pytest.raises(UnavailableError, match="too many requests wait"):
        queue.put(Request("move", {}), refuse=True)
    assert third.cancel()
    late: list[Future[dict[str, Any]]] = []
    waiting = threading.Thread(target=lambda: late.append(queue.put(Request("move", {}))))
    waiting.start()
    go.set()
    waiting.join()
    queue.close()
    assert (first.result(), second.result(), late[0].result()) == ({}, {}, {})
    with pytest.raises(InvalidUsageError, match="the database is closed"):
        queue.put(Request("move", {}))


def test_calls_reach_the_p_stream_and_the_log_ahead_of_it_stays_small(tmp_path: Path) -> None:
    with bank().open(tmp_path / "bank") as db:
        assert db._log is not None
        db._log.calls_for_checkpoint = 50
        db.load("accounts", FIRST)
        for move in moves(120):
            db.submit("move", **move).result()
        (part,) = (tmp_path / "bank" / "wal").iterdir()
        assert part.stat().st_size < 100_000
    assert penstock.PStreamReader(tmp_path / "bank" / "log", start="latest").read() is not None
    assert [path.stat().st_size for path in (tmp_path / "bank" / "wal").iterdir()] == [16]
