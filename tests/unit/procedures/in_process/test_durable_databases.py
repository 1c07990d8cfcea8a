"""Databases that a directory keeps are reopened as they were."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import app
from penstock.errors import (
    CorruptDataError,
    FencedError,
    InternalError,
    InvalidUsageError,
    UnavailableError,
)
from penstock.procedures import engine
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.in_process.request_queue import Request
from penstock.procedures.workflows.rejections import take_texts
from penstock.state_store.bucket_store import BucketStore
from tests.transactions.procedures import define, interpreted

MOVE = """
def move(e, accounts):
    source = accounts[e.source]
    source.balance -= e.amount
    if source.balance < 0:
        abort("short")
    if source.balance == 0:
        del accounts[e.source]
    if e.target not in accounts:
        accounts.insert(id=e.target, balance=0, note=e.note)
    accounts[e.target].balance += e.amount
    return accounts.by("balance").last().id
"""


COLUMNS = "id bigint, balance bigint NOT NULL, note string"


def bank(text: str = MOVE, columns: str = COLUMNS) -> Database:
    database = penstock.database("bank")
    database.table("accounts", columns, key="id", indexes=["balance"])
    event = "source bigint, target bigint, amount bigint, note string"
    program = database.procedure(event=event, returns="richest bigint")(define(text)).program()
    assert isinstance(program, Program)
    program.__dict__["kernel"] = interpreted(program)
    return database


def rows(db: OpenDatabase) -> list[dict[str, Any]]:
    return sorted(db.table("accounts").to_pylist(), key=lambda row: row["id"])


def moves(seed: int, count: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {"source": draw.randint(0, 5), "target": draw.randint(0, 9), "amount": draw.randint(0, 40),
         "note": f"note {draw.randint(0, 3)}"}
        for _ in range(count)
    ]  # fmt: skip


FIRST = {"id": range(6), "balance": [100] * 6, "note": ["first"] * 6}


@pytest.mark.parametrize("ends", ["close", "checkpoint", "none"])
def test_a_database_is_reopened_as_it_was(tmp_path: Path, ends: str) -> None:
    expected = bank().open()
    expected.load("accounts", FIRST)
    opened = bank().open(tmp_path / "bank")
    opened.load("accounts", FIRST)
    for round in range(4):
        for move in moves(round, 5):
            assert opened.call("move", **move) == expected.call("move", **move)
        more = pa.Table.from_pylist(moves(100 + round, 20))
        assert opened.run("move", more) == expected.run("move", more)
        if ends == "close":
            opened.close()
        elif ends == "checkpoint" and round % 2:
            opened.checkpoint()
        # A process that dies closes nothing; the next one fences it.
        opened = bank().open(tmp_path / "bank")
        assert rows(opened) == rows(expected)
        assert opened._state.transactions == expected._state.transactions
    opened.close()


def test_a_checkpoint_comes_by_itself_and_releases_calls(tmp_path: Path) -> None:
    with bank().open(tmp_path / "bank") as db:
        assert db._log is not None
        db._log.calls_for_checkpoint = 3
        db.load("accounts", FIRST)
        for move in moves(1, 9):
            db.call("move", **move)
        log = db._log
        assert log is not None
        assert log._calls < 4
        assert log._handle.pointer is not None
        found = rows(db)
    with bank().open(tmp_path / "bank") as db:
        assert rows(db) == found


def test_a_second_process_fences_the_first(tmp_path: Path) -> None:
    first = bank().open(tmp_path / "bank")
    first.load("accounts", FIRST)
    second = bank().open(tmp_path / "bank")
    with pytest.raises(FencedError):
        first.call("move", source=1, target=2, amount=3, note="lost")
    with pytest.raises(FencedError, match=r"another process has opened this database.* call that process"):
        first.call("move", source=1, target=2, amount=3, note="lost")
    first.close()
    assert rows(second)[1]["balance"] == 100
    second.call("move", source=1, target=2, amount=3, note="kept")
    with bank().open(tmp_path / "bank") as third:
        assert rows(third)[1]["balance"] == 97


def test_a_callback_that_calls_a_fenced_database_leaves_it_fenced(tmp_path: Path) -> None:
    move = {"source": 1, "target": 2, "amount": 3, "note": "lost"}
    found: list[BaseException] = []
    retried = threading.Event()

    with bank().open(tmp_path / "bank") as db:
        db.load("accounts", FIRST)
        with bank().open(tmp_path / "bank") as owner:

            def retry(failed: Future[dict[str, Any]]) -> None:
                found.append(failed.exception(0) or AssertionError("the call was acknowledged"))
                try:
                    db.submit("move", **move)
                except FencedError as error:
                    found.append(error)
                retried.set()

            db.submit("move", **move).add_done_callback(retry)
            assert retried.wait(60)
            assert [type(error) for error in found] == [FencedError, FencedError]
            with pytest.raises(FencedError):
                db.call("move", **move)
            assert rows(owner)[1]["balance"] == 100


def test_a_database_that_is_fenced_at_a_checkpoint_stays_fenced(tmp_path: Path) -> None:
    with bank().open(tmp_path / "bank") as db:
        db.load("accounts", FIRST)
        with bank().open(tmp_path / "bank"):
            for _ in range(2):
                with pytest.raises(FencedError, match="another process has opened this database"):
                    db.checkpoint()
            with pytest.raises(FencedError, match="another process has opened this database"):
                db.call("move", source=1, target=2, amount=3, note="lost")


def test_reasons_beyond_the_offsets_of_arrow_are_refused() -> None:
    assert take_texts(["lost"], np.array([1]), most_bytes=4).to_pylist() == ["lost"]
    with pytest.raises(InternalError, match="more than 2 GiB"):
        take_texts(["lost"], np.array([1, 0, 1]), most_bytes=4)


@pytest.mark.parametrize("queued", [False, True])
def test_a_call_with_too_long_reasons_does_not_stay_in_memory_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queued: bool
) -> None:
    one = {"source": 1, "target": 2, "amount": 3, "note": "lost"}
    with bank().open(tmp_path / "bank") as db:
        db.load("accounts", FIRST)

        def fail(*_: object) -> pa.Array[Any]:
            raise InternalError("the reasons for rejections of one batch take more than 2 GiB")

        monkeypatch.setattr(engine, "rejections", fail)
        made = [one, one | {"amount": 1000}]
        with pytest.raises(InternalError, match="more than 2 GiB"):
            if queued:
                db._run_groups([requests := [Request("move", move) for move in made]])
                requests[0].future.result(60)
            db.run("move", pa.Table.from_pylist(made))
        monkeypatch.undo()
        with pytest.raises(InvalidUsageError, match="a call could not be stored"):
            db.call("move", **one)
    with bank().open(tmp_path / "bank") as db:
        assert db.table("accounts").sort_by("id")["balance"].to_pylist() == [100] * 6


def test_a_procedure_in_python_changes_nothing_if_arrow_cannot_hold_its_values(tmp_path: Path) -> None:
    database = bank()
    database.table("notes", "id bigint, note string", key="id")

    @database.procedure(event="id bigint, strange boolean", returns="note string", plain=True)
    def note(e: Any, accounts: Any, notes: Any) -> Any:
        accounts[e.id].balance += 1
        notes.insert(id=e.id, note="\ud800" if e.strange else "new")
        return "\ud800"

    with database.open(tmp_path / "bank") as db:
        db.load("accounts", FIRST)
        for strange in (False, True):
            with pytest.raises(UnicodeEncodeError):
                db.call("note", id=1, strange=strange)
        assert db.table("accounts").sort_by("id")["balance"].to_pylist() == [100] * 6
        assert db.table("notes").num_rows == db._state.transactions == 0


def test_a_changed_procedure_is_refused_while_its_calls_would_be_repeated(tmp_path: Path) -> None:
    changed = MOVE.replace('"short"', '"too little"')
    db = bank().open(tmp_path / "bank")
    db.load("accounts", FIRST)
    db.call("move", source=1, target=2, amount=3, note="a")
    del db
    with pytest.raises(InvalidUsageError, match="the log has calls of another program"):
        bank(changed).open(tmp_path / "bank")
    more, none = penstock.database("bank"), penstock.database("bank")
    for database in (more, none):
        database.table("accounts", COLUMNS, key="id", indexes=["balance"])
    event = "source bigint, target bigint, amount bigint, note string, z int"
    more.procedure(event=event, returns="richest bigint")(define(MOVE))
    for database, why in (
        (more, "procedure=move attribute=z reason=the event lacks an attribute"),
        (none, "procedure=move reason=there is no such procedure"),
    ):
        error = rf"calls of another program: {why}\. Hint: open it once with the procedure as it was"
        with pytest.raises(InvalidUsageError, match=error):
            database.open(tmp_path / "bank")
    bank().open(tmp_path / "bank").close()
    with bank(changed).open(tmp_path / "bank") as db:
        assert db.call("move", source=1, target=2, amount=300, note="a")["rejected"] == "too little"


def test_a_closed_database_takes_no_calls(tmp_path: Path) -> None:
    db = bank().open(tmp_path / "bank")
    db.close()
    with pytest.raises(InvalidUsageError, match="the database is closed"):
        db.load("accounts", FIRST)
    with pytest.raises(InvalidUsageError, match="the database is closed"):
        db.call("move", source=1, target=2, amount=3, note="lost")
    db.close()


def test_a_checkpoint_that_fails_loses_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = bank().open(tmp_path / "bank")
    db.load("accounts", FIRST)

    def refuse(*_: Any) -> None:
        raise UnavailableError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(BucketStore, "_publish", refuse)
        with pytest.raises(UnavailableError):
            db.checkpoint()
    with pytest.raises(InvalidUsageError, match="open the database again"):
        db.call("move", source=1, target=2, amount=3, note="lost")
    db.close()
    with bank().open(tmp_path / "bank") as again:
        assert [row["balance"] for row in rows(again)] == [100] * 6


def test_an_interrupt_between_a_call_and_its_log_ends_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = bank().open(tmp_path / "bank")
    db.load("accounts", FIRST)
    run = TableSet.run

    def interrupted(*arguments: Any) -> Any:
        run(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TableSet, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            db.call("move", source=1, target=2, amount=3, note="lost")
    with pytest.raises(InvalidUsageError, match="open the database again"):
        db.call("move", source=3, target=4, amount=3, note="lost")
    db.close()
    with bank().open(tmp_path / "bank") as again:
        assert [row["balance"] for row in rows(again)] == [100] * 6


@pytest.mark.parametrize(
    "columns",
    [
        {"id": [1], "balance": [2**70]},
        {"id": [1], "balance": [object()]},
        {"id": [1, 2], "balance": [1]},
        {"id": 1, "balance": 1},
        [{"id": 1, "balance": 1}],
        pa.table([[1], [2], [1]], names=["id", "id", "balance"]),
    ],
)
def test_values_that_no_column_holds_are_refused(columns: Any) -> None:
    db = bank().open()
    with pytest.raises(InvalidUsageError):
        db.load("accounts", columns)
    with pytest.raises(InvalidUsageError, match="a column does not fit"):
        db.call("move", source=1, target=2, amount=2**70, note="lost")


def test_an_error_of_a_value_names_its_column_and_not_the_value() -> None:
    db = bank().open()
    with pytest.raises(InvalidUsageError) as caught:
        db.call("move", source=1, target="secret", amount=2, note="lost")
    assert str(caught.value) == (
        "a column does not fit: of=move column=target type=string declared=bigint. "
        "Hint: pass values of bigint."
    )
    with pytest.raises(InvalidUsageError, match=r"a column does not fit: of=accounts column=balance\.$"):
        db.load("accounts", {"id": [1], "balance": [object()]})
    with pytest.raises(InvalidUsageError, match="column=id reason=it has nulls where none may be"):
        db.load("accounts", {"id": [None], "balance": [1]})
    for value, kind in ((1, "int"), ("secret", "str"), (None, "NoneType")):
        with pytest.raises(InvalidUsageError) as caught:
            db.load("accounts", {"id": value, "balance": [1]})
        assert str(caught.value) == (
            f"a column is not a list of values: of=accounts column=id type={kind}. "
            "Hint: pass a list with a value for each row."
        )


@pytest.mark.parametrize("plain", [False, True])
def test_a_key_beyond_its_column_is_of_no_row(plain: bool) -> None:
    database = penstock.database("small")
    database.table("t", "id int, x bigint", key="id")
    text = "def find(e, t):\n    if e.id in t:\n        return 1\n    return t[e.id].x\n"
    program = database.procedure(event="id bigint", returns="x bigint", plain=plain)(define(text)).program()
    if isinstance(program, Program):
        program.__dict__["kernel"] = interpreted(program)
    assert database.open().call("find", id=2**40) == {"x": None, "rejected": "unknown key: t"}


def test_other_tables_are_refused(tmp_path: Path) -> None:
    bank().open(tmp_path / "bank").close()
    with pytest.raises(InvalidUsageError, match="the database at this location has other tables"):
        bank(columns="id bigint, balance int NOT NULL, note string").open(tmp_path / "bank")
    with pytest.raises(InvalidUsageError, match="location has another name: was=bank now=shop"):
        penstock.database("shop").open(tmp_path / "bank")


def test_a_call_that_fails_is_not_repeated(tmp_path: Path) -> None:
    database = bank()
    text = "def fail(e, accounts):\n    accounts[e.id].balance = 'much'\n"
    database.procedure(event="id bigint", plain=True)(define(text))
    db = database.open(tmp_path / "bank")
    db.load("accounts", FIRST)
    with pytest.raises(InvalidUsageError, match="another kind"):
        db.call("fail", id=1)
    with bank().open(tmp_path / "bank") as again:
        assert rows(again) == [
            dict(zip(FIRST, row, strict=True)) for row in zip(*FIRST.values(), strict=True)
        ]


def _damages(data: bytes, draw: random.Random) -> Iterator[bytes]:
    """Give a file cut at its begin, in its middle and at its end, then with a flipped bit."""
    yield from (data[:size] for size in (0, len(data) // 2, len(data) - 1))
    for place in draw.sample(range(len(data)), 4):
        yield data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]


def test_a_damaged_file_is_named_with_the_place_or_not_needed(tmp_path: Path) -> None:
    db = bank().open(tmp_path / "whole")
    db.load("accounts", FIRST)
    db.call("move", **moves(1, 1)[0])
    db.checkpoint()
    for move in moves(2, 2):
        db.call("move", **move)
    expected = rows(db)
    assert db._log is not None
    db._log.close()
    draw = random.Random(5)
    named = set()
    for file in sorted(one for one in (tmp_path / "whole").rglob("*") if one.is_file()):
        name = file.relative_to(tmp_path / "whole")
        for number, data in enumerate(_damages(file.read_bytes(), draw)):
            place = tmp_path / f"{file.name}-{number}"
            shutil.copytree(tmp_path / "whole", place)
            (place / name).chmod(0o600)
            (place / name).write_bytes(data)
            try:
                opened = bank().open(place)
            except CorruptDataError as error:
                assert str(place / name) in str(error)
                assert {"offset", "size_bytes", "format_version"} & error.context.keys(), error
                named.add(name.parts[:-1])
            else:
                assert rows(opened) == expected
                opened.close()
            shutil.rmtree(place)
    # Released calls, and how far a reader has come, are not needed.
    parts = ("log",), ("log", "log"), ("log", "segments"), ("tables",), ("tables", "00000"), ("wal",)
    assert named == set(parts)


def test_gc_takes_a_database_and_never_calls_its_tables_orphans(tmp_path: Path) -> None:
    place = str(tmp_path / "bank")
    with bank().open(place) as db:
        db.load("accounts", FIRST)
    files = sorted((tmp_path / "bank" / "tables").rglob("*"))
    assert CliRunner().invoke(app, ["gc", place]).stdout == "freed 0 files, 0 bytes in 0 of 1 buckets\n"
    kept = CliRunner().invoke(app, ["gc", place, "--orphans"])
    assert kept.stdout.startswith(f"kept: {place}/tables: a database has no checkpoint")
    dropped = CliRunner().invoke(app, ["gc", place, "--orphans", "--drop-query", "bank", "--delete"])
    assert (dropped.exit_code, dropped.stdout) == (2, "")
    assert sorted((tmp_path / "bank" / "tables").rglob("*")) == files


def test_inspect_shows_a_database_in_a_directory(tmp_path: Path) -> None:
    with bank().open(tmp_path / "bank") as db:
        db.load("accounts", FIRST)
        db.call("move", source=1, target=2, amount=3, note="a")
    result = CliRunner().invoke(app, ["inspect", "database", str(tmp_path / "bank"), "--json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["databases"]
    assert (found["tables"][0]["rows"], found["tables"][0]["indexes"]) == (6, [["balance"]])
    assert found["buckets"][0]["transactions"] == 1
