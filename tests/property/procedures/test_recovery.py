"""A workflow is recovered from its log, wherever the log ends (S-Store §2.4)."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidUsageError
from penstock.procedures.compiler.program import Program, event_schema
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.command_log import Call, CommandLog
from penstock.procedures.in_process.open_database import OpenDatabase
from tests.long_tests import examples
from tests.transactions.procedures import define, interpreted, tables_of
from tests.transactions.workflows import ROUNDS, Drawn, state_bytes, workflows


class CrashError(Exception):
    """The process ends here."""


@contextmanager
def ending(place: str, appends: int) -> Iterator[None]:
    """Let the process end before or after an append to the log."""
    real, count = CommandLog.append, itertools.count()

    def append(log: CommandLog, call: Call) -> None:
        last = next(count) >= appends
        if last and place == "before":
            raise CrashError
        real(log, call)
        if last:
            raise CrashError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommandLog, "append", append)
        yield


def rounds_of(rows: list[dict[str, Any]], program: Program) -> list[pa.RecordBatch]:
    """Return the events of each round."""
    groups = itertools.groupby(rows, key=lambda row: row["round"])
    schema = event_schema(program.event)
    return [pa.RecordBatch.from_pylist(list(group), schema=schema) for _, group in groups]


def compiled(drawn: Drawn) -> Program:
    """Return the program of a workflow, with a kernel that Python runs."""
    program = drawn.flow.program()
    assert isinstance(program, Program)
    if "kernel" not in program.__dict__:
        program.__dict__["kernel"] = interpreted(program)
    return program


Recovery = Literal["weak", "strong"]
KINDS: st.SearchStrategy[Recovery] = st.sampled_from(["weak", "strong", "strong"])
CRASHES = st.lists(st.tuples(KINDS, st.sampled_from(["before", "after"]), st.integers(0, 6)), max_size=5)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(drawn=workflows(), rows=ROUNDS, crashes=CRASHES, stored=st.integers(0, 3))
def test_a_random_workflow_is_recovered_as_it_was(
    drawn: Drawn, rows: list[dict[str, Any]], crashes: list[tuple[Recovery, str, int]], stored: int
) -> None:
    program, database = compiled(drawn), drawn.database
    rounds = rounds_of(rows, program)
    state = TableSet(database.catalog.all_tables.values())
    expected = {0: state_bytes(state, database)}
    results = []
    for number, batch in enumerate(rounds, 1):
        results.append(state.run(program, batch, np.array([0, batch.num_rows])))
        expected[number] = state_bytes(state, database)
    with tempfile.TemporaryDirectory() as place:
        ended = 0
        for kind, where, appends in [*crashes, ("strong", "after", 1 << 30)]:
            db = database.open(place, recovery=kind)
            done = db._state.transactions
            # The round that broke off is whole, or not there; those that had ended are there.
            assert done in (ended, ended + 1)
            assert state_bytes(tables_of(db), database) == expected[done]
            ended = done
            with ending(where, appends):
                try:
                    for number in range(done + 1, len(rounds) + 1):
                        batch = rounds[number - 1]
                        batch = batch.append_column("batch", pa.array([0] * batch.num_rows))
                        table = db.run("flow", batch, batch="batch")
                        assert table.to_pylist() == results[number - 1].to_pylist()
                        ended = number
                        if stored and number % 4 == stored:
                            db.checkpoint()
                except CrashError:
                    continue
            db.close()
        with database.open(place) as db:
            assert state_bytes(tables_of(db), database) == expected[len(rounds)]


def fork(*, plain: bool = False) -> Database:
    """Return a workflow of three transactions."""
    database = Database("fork")
    database.table("seen", "id bigint, step bigint, name string", key=("id", "step"))
    first, second = database.stream("first", "id bigint, name string"), database.stream("second", "id bigint")
    texts = [
        "def begin(e, seen, first):\n    seen.insert(id=e.id, step=0)\n    first.emit(id=e.id, name=e.name)\n"
        "    if e.id % 3 == 0:\n        abort('three')\n",
        "def go_on(e, seen, second):\n    seen.insert(id=e.id, step=1, name=e.name)\n"
        "    if e.id % 2 == 0:\n        second.emit(id=e.id)\n",
        "def end(e, seen):\n    seen.insert(id=e.id, step=2)\n    return e.id\n",
    ]
    events: list[Any] = ["id bigint, name string", first, second]
    returns = [None, None, "last bigint"]
    procedures = [
        database.procedure(event=event, returns=one, plain=plain)(define(text))
        for text, event, one in zip(texts, events, returns, strict=True)
    ]
    flow = database.workflow("flow", *procedures)
    if not plain:
        compiled(Drawn(database, flow))
    return database


def logged(db: OpenDatabase, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Return the calls that go into the log from now on."""
    calls: list[Call] = []
    real = CommandLog.append

    def append(log: CommandLog, call: Call) -> None:
        calls.append(call)
        real(log, call)

    monkeypatch.setattr(CommandLog, "append", append)
    assert db._log is not None
    return calls


def test_the_log_has_transactions_or_calls(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    events = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"]})
    with fork().open(tmp_path / "weak") as db, monkeypatch.context() as patch:
        calls = logged(db, patch)
        results = db.run("flow", events).to_pylist()
        assert [(one.transaction, one.streams) for one in calls] == [(None, {})]
    with fork().open(tmp_path / "strong", recovery="strong") as db, monkeypatch.context() as patch:
        calls = logged(db, patch)
        assert db.run("flow", events).to_pylist() == results
        found = [(one.transaction, {k: v.to_pylist() for k, v in one.streams.items()}) for one in calls]
        # Of the third event the first transaction was rejected: nothing was emitted, and nothing follows.
        assert found == [
            (0, {}), (1, {"first": [{"id": 1, "name": "a"}]}),
            (0, {}), (1, {"first": [{"id": 2, "name": None}]}), (2, {"second": [{"id": 2}]}),
            (0, {}),
        ]  # fmt: skip


def test_a_round_that_broke_off_ends_when_the_database_is_opened(tmp_path: Any) -> None:
    db = fork().open(tmp_path, recovery="strong")
    with ending("after", 1), pytest.raises(CrashError):
        db.call("flow", id=2, name="b")
    with pytest.raises(InvalidUsageError, match="a call could not be stored"):
        db.call("flow", id=4, name="b")
    for _ in range(2):
        db = fork().open(tmp_path)
        rows = sorted(db.table("seen").to_pylist(), key=lambda row: row["step"])
        assert [(row["id"], row["step"], row["name"]) for row in rows] == [
            (2, 0, None),
            (2, 1, "b"),
            (2, 2, None),
        ]


def test_a_recovery_that_is_not_there_is_refused(tmp_path: Any) -> None:
    wrong: Any = "some"
    with pytest.raises(InvalidUsageError, match="there is no such recovery: recovery=some"):
        fork().open(tmp_path, recovery=wrong)
    with (
        fork(plain=True).open(tmp_path / "plain", recovery="strong") as db,
        pytest.raises(InvalidUsageError, match="a workflow with plain=True has no strong recovery"),
    ):
        db.call("flow", id=1, name="a")


def test_a_plain_workflow_refuses_to_repeat_transactions(tmp_path: Any) -> None:
    db = fork().open(tmp_path, recovery="strong")
    db.call("flow", id=1, name="a")
    with pytest.raises(InvalidUsageError, match="open the database once without plain=True"):
        fork(plain=True).open(tmp_path)
    fork().open(tmp_path).close()
    with fork(plain=True).open(tmp_path) as again:
        assert again.table("seen").num_rows == 2
