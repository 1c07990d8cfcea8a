"""A frozen copy of a table is what the table was, however the table changes until it is converted."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.procedures import texts
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.rows import TableRows
from penstock.procedures.schema import TableSpec

SPEC = TableSpec.parse("t", "id bigint, number int, text string, flag boolean NOT NULL", "id", None)


def rows(draw: random.Random, step: int) -> list[dict[str, object]]:
    return [
        {"id": id_, "number": draw.choice([None, step]), "flag": draw.random() < 0.5,
         "text": draw.choice([None, "a", f"text {step} {id_}"])}
        for id_ in draw.sample(range(200), draw.randint(1, 60))
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_it_holds_the_rows_of_the_moment(seed: int) -> None:
    draw = random.Random(seed)
    state = TableSet([SPEC])
    state._most_texts = 1
    table = state["t"]
    frozen: list[tuple[Callable[[], pa.RecordBatch], pa.RecordBatch]] = []
    for step in range(40):
        made = rows(draw, step)
        table.upsert(pa.RecordBatch.from_pylist(made, SPEC.schema), dirty=True)
        if step % 2:  # at first there are no free slots
            gone: list[int] = draw.sample(range(200), 30)
            table.change(*table.to_arrow({(id_,): None for id_ in gone}), stored=True)
        frozen.append((table.freeze(), table.table()))
        if step % 5 == 0:
            state._most_texts = 1
            state.forget_deleted()
            assert len(state.texts) <= 400
    for convert, then in frozen:
        assert convert().equals(then)
    assert len({then.num_rows for _, then in frozen}) > 5


@pytest.mark.parametrize("most_times", [0, 1 << 30])
def test_distinct_numbers_are_marked_or_sorted(most_times: int) -> None:
    numbers = np.random.default_rng(3).integers(0, 500, 300)
    used, places = texts._ranked(numbers, 1000, most_times=most_times)
    assert used.tolist() == sorted(set(numbers.tolist()))
    assert used[places].tolist() == numbers.tolist()


def test_transactions_run_while_a_snapshot_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    database = penstock.database("bank")
    database.table("t", "id bigint, text string", key="id")
    entered, go = threading.Event(), threading.Event()
    real = TableRows.freeze

    def freeze(self: TableRows) -> Callable[[], pa.RecordBatch]:
        convert = real(self)

        def slow() -> pa.RecordBatch:
            entered.set()
            assert go.wait(60)
            return convert()

        return slow

    with database.open() as db:
        db.load("t", {"id": [1], "text": ["before"]})
        monkeypatch.setattr(TableRows, "freeze", freeze)
        found: list[pa.Table] = []
        reader = threading.Thread(target=lambda: found.append(db.table("t")))
        reader.start()
        assert entered.wait(60)
        done = threading.Event()
        writer = threading.Thread(target=lambda: _load(db, done))
        writer.start()
        assert done.wait(60), "a call waits for a snapshot"
        go.set()
        reader.join()
        writer.join()
        assert found[0].to_pylist() == [{"id": 1, "text": "before"}]
        assert db.table("t").num_rows == 2


def _load(db: OpenDatabase, done: threading.Event) -> None:
    db.load("t", {"id": [2], "text": ["after"]})
    done.set()
