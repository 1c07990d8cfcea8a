"""A replica has the tables of the process that it follows, and goes on where that one ends."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.checkpointing.p_stream import PStream
from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.errors import FencedError, InvalidUsageError
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process import command_log
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.replicas.lag import Lag
from penstock.procedures.replicas.replica import Replica
from tests.servers.processes import until
from tests.transactions.procedures import define

PUT = """
def put(e, items):
    row = items.get(e.id)
    if row is None:
        items.insert(id=e.id, value=e.value, text=e.text)
    elif e.value < 0:
        del items[e.id]
    else:
        row.value += e.value
        row.text = e.text
    return e.value
"""
NEVER = "1 day"
FIRST = """
def first(e, items, middle):
    row = items.get(e.id)
    if row is None:
        items.insert(id=e.id, value=0, text="first")
    middle.emit(id=e.id)
"""
SECOND = """
def second(e, items):
    items[e.id].value += 1
"""


def shop(put: str = PUT) -> Database:
    database = penstock.database("shop")
    database.table("items", "id bigint, value bigint NOT NULL, text string", key="id", partition_by="id")
    event = "id bigint, value bigint, text string"
    database.procedure(event=event, returns="was bigint", plain=True)(define(put))
    return database


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[OpenDatabase]:
    opened = shop().open(tmp_path)
    yield opened
    with contextlib.suppress(FencedError):
        opened.close()


@pytest.fixture
def replica(tmp_path: Path, db: OpenDatabase) -> Iterator[Replica]:
    with shop().follow(tmp_path, poll_interval=NEVER, partitions=2) as following:
        yield following


def put(db: OpenDatabase, id_: int, value: int) -> dict[str, Any]:
    return db.call("put", id=id_, value=value, text=f"text {value}")


def rows(of: OpenDatabase | Replica) -> list[dict[str, Any]]:
    return of.table("items").sort_by("id").to_pylist()


def flush(db: OpenDatabase) -> None:
    """Write all calls to the p-stream, as the next second would."""
    assert db._log is not None
    db._log.wait(db._log.end)
    db._log._writer.flush()


def kill(db: OpenDatabase) -> None:
    """End as a kill does, with the last calls only in the write-ahead log."""
    log, db._log = db._log, None
    assert log is not None
    with log._changed:
        log._closed = True
        log._changed.notify_all()
    log._thread.join()
    log._writer.abort()


def test_a_replica_follows_by_itself(tmp_path: Path, db: OpenDatabase) -> None:
    with shop().follow(tmp_path, poll_interval="5ms") as following:
        put(db, 1, 5)
        assert until(lambda: rows(following) == [{"id": 1, "value": 5, "text": "text 5"}], 60)
        assert following.lag == Lag(0, 0.0)


def test_it_says_how_far_it_is_behind(replica: Replica, db: OpenDatabase) -> None:
    put(db, 1, 5)
    put(db, 2, 5)
    flush(db)
    replica._follower._stream.refresh()
    lag = replica.lag
    assert lag.calls == 2
    assert lag.seconds > 0
    assert rows(replica) == []
    replica.catch_up()
    assert replica.lag == Lag(0, 0.0)
    assert rows(replica) == rows(db)


def test_what_is_not_in_the_p_stream_is_not_run_before_it_takes_over(
    replica: Replica, db: OpenDatabase
) -> None:
    put(db, 1, 5)
    replica.catch_up()
    assert rows(replica) == []
    with replica.take_over() as new:
        assert rows(new) == [{"id": 1, "value": 5, "text": "text 5"}]


def test_the_other_process_is_fenced_and_acknowledges_nothing(replica: Replica, db: OpenDatabase) -> None:
    put(db, 1, 5)
    with replica.take_over() as new:
        with pytest.raises(FencedError):
            put(db, 1, 7)
        put(new, 1, 8)
        assert rows(new) == [{"id": 1, "value": 13, "text": "text 8"}]
        with pytest.raises(InvalidUsageError, match="the replica is closed"):
            replica.table("items")
        with pytest.raises(InvalidUsageError, match="the replica is closed"):
            replica.take_over()


def test_a_replica_follows_the_replica_that_took_over(
    tmp_path: Path, replica: Replica, db: OpenDatabase
) -> None:
    put(db, 1, 5)
    with shop().follow(tmp_path, poll_interval=NEVER) as second, replica.take_over() as new:
        put(new, 2, 6)
        with second.take_over() as newest:
            assert [row["value"] for row in rows(newest)] == [5, 6]
            with pytest.raises(FencedError):
                put(new, 2, 6)


def test_requests_that_ran_before_are_not_run_again(replica: Replica, db: OpenDatabase) -> None:
    request = pa.table({"id": ["a"], "procedure": ["put"], "arguments": ['{"id":1,"value":3}']})
    first = db.answer(request)
    with replica.take_over() as new:
        assert new.answer(request) == first
        assert rows(new) == [{"id": 1, "value": 3, "text": None}]


_LONG = [pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 30)]


@pytest.mark.parametrize("seed", [0, *_LONG])
def test_it_takes_over_with_the_same_tables_at_any_moment(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first version is a delta of the newest one, whoever wrote that and whatever it had run by then."""
    draw = random.Random(seed)
    restores = 0
    restore = command_log.CommandLog.restore

    def counted(self: command_log.CommandLog, state: TableSet) -> Any:
        nonlocal restores
        restores += 1
        return restore(self, state)

    monkeypatch.setattr(command_log.CommandLog, "restore", counted)
    monkeypatch.setattr(CleanupRule, "allows_trim", lambda *_: False)
    db, expected = shop().open(tmp_path), shop().open()
    for _ in range(3):
        partitions = draw.randint(1, 3)
        speculate = partitions > 1
        following = shop().follow(tmp_path, poll_interval=NEVER, partitions=partitions, speculate=speculate)
        for _ in range(draw.randint(0, 12)):
            id_, value = draw.randrange(4), draw.choice([-1, 1, 2])
            assert put(db, id_, value) == put(expected, id_, value)
            if draw.random() < 0.2:
                flush(db)
            if draw.random() < 0.2:
                db.checkpoint()
            if draw.random() < 0.2:
                following.catch_up()
        if draw.random() < 0.5:
            kill(db)
        db = following.take_over()
        assert f"database shop, {partitions} partition" in db.explain()
        assert ("speculated (rows)" in db.explain()) == speculate
        assert rows(db) == rows(expected)
        if draw.random() < 0.7:
            db.checkpoint()
    kill(db)
    with shop().open(tmp_path) as again:
        assert rows(again) == rows(expected)
    assert restores == 2, "a replica restored tables instead of following"


def test_a_replica_that_is_too_late_loads_the_newest_version(
    tmp_path: Path, replica: Replica, db: OpenDatabase
) -> None:
    for number in range(20):
        put(db, 1, number)
        db.checkpoint()
    assert PStream(tmp_path / "log").start > 0
    put(db, 2, 5)
    flush(db)
    replica.catch_up()
    assert rows(replica) == rows(db)
    put(db, 3, 5)
    with replica.take_over() as new:
        assert len(rows(new)) == 3


def test_a_replica_that_is_too_late_takes_over(replica: Replica, db: OpenDatabase) -> None:
    for number in range(20):
        put(db, 1, number)
        db.checkpoint()
    put(db, 2, 5)
    with replica.take_over() as new:
        assert "database shop, 2 partitions" in new.explain()
        assert rows(new) == [
            {"id": 1, "value": 190, "text": "text 19"},
            {"id": 2, "value": 5, "text": "text 5"},
        ]


@pytest.mark.parametrize("late", [1, 2])
def test_a_version_that_a_fenced_process_wrote_late_changes_nothing(
    tmp_path: Path, replica: Replica, db: OpenDatabase, late: int
) -> None:
    """It holds a part of the log, so the newest version is still that with the greatest offset."""
    put(db, 1, 5)
    db.checkpoint()
    replica.catch_up()
    new = replica.take_over()
    put(new, 1, 5)
    put(new, 2, 5)
    flush(new)
    second = shop().follow(tmp_path, poll_interval=NEVER)
    assert db._log is not None
    db._state.offset, handle = 1, db._log._handle
    for _ in range(late):
        handle = db._log._store.commit(db._state, handle)
    put(new, 3, 5)
    flush(new)
    second.catch_up()
    with second.take_over() as newest:
        assert [row["value"] for row in rows(newest)] == [10, 5, 5]
    with shop().open(tmp_path) as again:
        assert [row["value"] for row in rows(again)] == [10, 5, 5]


@pytest.mark.parametrize("transactions", [1, 2])
def test_it_finishes_a_round_of_strong_recovery(tmp_path: Path, transactions: int) -> None:
    """The first process ends after some transactions of a workflow's round."""

    def counter() -> Database:
        database = shop()
        middle = database.stream("middle", "id bigint")
        first = database.procedure(event="id bigint")(define(FIRST))
        database.workflow("flow", first, database.procedure(event=middle)(define(SECOND)))
        return database

    class EndedError(Exception):
        pass

    db = counter().open(tmp_path, recovery="strong")
    with counter().follow(tmp_path, poll_interval=NEVER) as following:
        db.call("flow", id=1)
        assert db._log is not None
        append, count = db._log.append, 0

        def ends(call: command_log.Call) -> None:
            nonlocal count
            append(call)
            count += 1
            if count == transactions:
                flush(db)
                raise EndedError

        db._log.append = ends  # type: ignore[method-assign]
        with pytest.raises(EndedError):
            db.call("flow", id=2)
        following.catch_up()
        values = [row["value"] for row in rows(following)]
        assert values == [1, transactions - 1]
        with following.take_over(recovery="strong") as new:
            assert [row["value"] for row in rows(new)] == [1, 1]
            kept = rows(new)
    with counter().open(tmp_path) as again:
        assert rows(again) == kept


def test_a_location_without_this_database_cannot_be_followed(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match="there is no database at this location"):
        shop().follow(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    penstock.database("other").open(tmp_path / "other").close()
    with pytest.raises(InvalidUsageError, match="has another name"):
        shop().follow(tmp_path / "other")


def test_a_procedure_that_has_changed_ends_the_replica(tmp_path: Path, db: OpenDatabase) -> None:
    with shop(PUT.replace("row.value += e.value", "row.value = e.value")).follow(
        tmp_path, poll_interval=NEVER
    ) as following:
        put(db, 1, 5)
        flush(db)
        with pytest.raises(InvalidUsageError, match="the log has calls of another program"):
            following.catch_up()
