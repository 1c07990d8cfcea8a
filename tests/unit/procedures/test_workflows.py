"""Workflows, windows and triggers in this process: what users see, errors above all."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import InvalidUsageError
from penstock.procedures.analysis.routing import routing_attribute, routing_obstacle
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.workflows.workflow import Workflow
from tests.transactions.procedures import define, interpreted

ORDER = "id bigint NOT NULL, amount bigint, prices array<bigint>"
PLACE = """
def place(e, orders, lines):
    orders.insert(id=e.id, amount=e.amount)
    for price in e.prices:
        lines.emit(id=e.id, price=price)
    if e.amount == 13:
        abort("unlucky")
    return len(e.prices)
"""
BILL = """
def bill(e, orders, bills, paid):
    orders[e.id].amount -= e.price
    if orders[e.id].amount < 0:
        abort("too little")
    if e.id not in bills:
        bills.insert(id=e.id, total=0)
    bills[e.id].total += e.price
    paid.emit(id=e.id)
    return bills[e.id].total
"""
SHIP = """
def ship(e, shipped):
    shipped.insert(id=e.id)
"""


def shop(texts: tuple[str, ...] = (PLACE, BILL, SHIP)) -> tuple[Database, list[Any]]:
    database = penstock.database("shop")
    database.table("orders", "id bigint, amount bigint NOT NULL", key="id", partition_by="id")
    database.table("bills", "id bigint, total bigint NOT NULL", key="id", partition_by="id")
    database.table("shipped", "id bigint", key="id", partition_by="id")
    streams = [
        database.stream("lines", "id bigint NOT NULL, price bigint"), database.stream("paid", "id bigint")
    ]  # fmt: skip
    events: list[Any] = [ORDER, *streams]
    returns = ["items bigint", "total bigint", None]
    procedures = [
        database.procedure(event=event, returns=one)(define(text))
        for text, event, one in zip(texts, events, returns, strict=True)
    ]
    return database, procedures


def interpret(flow: Workflow) -> Workflow:
    """Have Python run the kernel, which takes a while to compile."""
    program = flow.program()
    assert isinstance(program, Program)
    program.__dict__["kernel"] = interpreted(program)
    return flow


ORDERS = [
    {"id": 1, "amount": 10, "prices": [3, 4]},
    {"id": 2, "amount": 5, "prices": [4, 4]},
    {"id": 3, "amount": 13, "prices": [1]},
    {"id": 4, "amount": 9, "prices": []},
    {"id": 1, "amount": 9, "prices": [1]},
    {"id": 5, "amount": 9, "prices": [9]},
]


def rows_of(db: Any, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in db.table(name).to_pylist())


def test_each_procedure_of_a_round_is_a_transaction() -> None:
    database, (place, bill, ship) = shop()
    interpret(database.workflow("order", ship, bill, place))
    with database.open() as db:
        made = db.run("order", pa.Table.from_pylist(ORDERS)).to_pylist()
        assert [tuple(row.values()) for row in made] == [
            (2, 7, "ship: duplicate key: shipped"),
            (2, None, "bill: too little"),
            (None, None, "place: unlucky"),
            (0, None, None),
            (None, None, "place: duplicate key: orders"),
            (1, 9, None),
        ]
        # A bill that is not paid is undone; the order, which is committed, stays.
        assert rows_of(db, "orders") == [(1, 3), (2, 5), (4, 9), (5, 0)]
        assert rows_of(db, "bills") == [(1, 7), (5, 9)]
        assert rows_of(db, "shipped") == [(5,)]


def test_nested_procedures_commit_together_or_not_at_all() -> None:
    database, (place, bill, ship) = shop()
    interpret(database.workflow("order", ship, database.nested(bill, place)))
    with database.open() as db:
        made = db.run("order", pa.Table.from_pylist(ORDERS)).to_pylist()
        assert [tuple(row.values()) for row in made] == [
            (2, 7, "ship: duplicate key: shipped"),
            (None, None, "bill: too little"),
            (None, None, "place: unlucky"),
            (0, None, None),
            (None, None, "place: duplicate key: orders"),
            (1, 9, None),
        ]
        assert rows_of(db, "orders") == [(1, 3), (4, 9), (5, 0)]
        assert rows_of(db, "bills") == [(1, 7), (5, 9)]
    database, procedures = shop()
    interpret(database.workflow("order", database.nested(*procedures)))
    with database.open() as db:
        made = db.run("order", pa.Table.from_pylist(ORDERS)).to_pylist()
        assert [row["rejected"] for row in made] == [
            "ship: duplicate key: shipped", "bill: too little", "place: unlucky", None, None, None
        ]  # fmt: skip
        assert rows_of(db, "orders") == [(1, 8), (4, 9), (5, 0)]


def test_several_rejections_of_a_round_are_all_named() -> None:
    database = penstock.database("several")
    database.table("t", "id bigint", key="id")
    streams = [database.stream(name, "id bigint") for name in ("left", "right")]
    database.procedure(event="id bigint")(
        define("def both(e, left, right):\n    left.emit(id=e.id)\n    right.emit(id=e.id)\n")
    )
    database.procedure(event=streams[0])(define("def one(e, t):\n    del t[e.id]\n"))
    database.procedure(event=streams[1])(
        define("def two(e, t):\n    if e.id > 1:\n        abort('big')\n    t.insert(id=e.id)\n")
    )
    interpret(database.workflow("flow", *database.procedures.values()))
    with database.open() as db:
        found = [db.call("flow", id=i)["rejected"] for i in (1, 1, 2, None)]
    assert found == ["one: unknown key: t", None, "one: unknown key: t; two: big",
                     "one: null key: t; two: null"]  # fmt: skip


def test_rows_of_a_round_grow_streams_tables_and_the_undo_log_without_harm() -> None:
    database = penstock.database("grow")
    database.table("a", "id bigint, n bigint NOT NULL", key="id")
    stream = database.stream("out", "id bigint NOT NULL, s string")
    database.procedure(event="id bigint, n bigint, s string", returns="n bigint")(
        define(
            "def make(e, a, out):\n    a.insert(id=-1 - e.id, n=e.n)\n    for i in range(e.n):\n"
            "        out.emit(id=e.id * 1000 + i, s=e.s)\n    return e.n\n"
        )
    )
    database.procedure(event=stream, returns="last string")(
        define(
            "def take(e, a):\n    a.insert(id=e.id, n=1)\n    if e.id % 1000 == 300:\n        abort('many')\n"
            "    return e.s\n"
        )
    )
    flow = interpret(database.workflow("flow", *database.procedures.values()))
    events = pa.table({"id": range(6), "n": [3, 290, 0, 310, 300, 5], "s": list("abcdef")})
    with database.open() as db:
        made = db.run("flow", events).to_pylist()
        rows = db.table("a")
    assert [tuple(row.values()) for row in made] == [
        (3, "a", None), (290, "b", None), (0, None, None), (310, None, "take: many"), (300, "e", None),
        (5, "f", None),
    ]  # fmt: skip
    expected = [i * 1000 + k for i, n in ((0, 3), (1, 290), (4, 300), (5, 5)) for k in range(n)]
    assert sorted(rows["id"].to_pylist()) == sorted([*range(-6, 0), *expected])
    assert flow.program().undo_log  # type: ignore[union-attr]


def test_a_full_undo_log_undoes_earlier_transactions_of_the_round() -> None:
    database = penstock.database("full")
    database.table("a", "id bigint, n bigint NOT NULL", key="id")
    database.table("b", "id bigint, n bigint NOT NULL", key="id")
    stream = database.stream("out", "n bigint NOT NULL")
    # Nothing that follows the write in its transaction may fail, but the log of the next one may be full.
    database.procedure(event="n bigint NOT NULL")(
        define("def first(e, a, out):\n    out.emit(n=e.n)\n    a[0].n += e.n\n")
    )
    database.procedure(event=stream)(
        define("def second(e, b):\n    for i in range(e.n):\n        b[i % 2].n = i\n")
    )
    interpret(database.workflow("flow", *database.procedures.values()))
    with database.open() as db:
        db.load("a", {"id": [0], "n": [0]})
        db.load("b", {"id": [0, 1], "n": [0, 0]})
        assert db.run("flow", pa.table({"n": [3, 1000, 5]}))["rejected"].null_count == 3
        assert rows_of(db, "a") == [(0, 1008)]
        assert rows_of(db, "b") == [(0, 4), (1, 3)]


def test_streams_leave_nothing_in_the_state() -> None:
    database, procedures = shop()
    flow = interpret(database.workflow("order", *procedures))
    state = TableSet(database.catalog.all_tables.values())
    events = pa.RecordBatch.from_pylist(ORDERS, schema=pa.schema([
        pa.field("id", pa.int64(), nullable=False), ("amount", pa.int64()), ("prices", pa.list_(pa.int64())),
    ]))  # fmt: skip
    state.run(flow.program(), events)
    blocks = set(state.delta().blocks)
    assert blocks == {"orders/upserts", "bills/upserts", "shipped/upserts"}


def test_a_workflow_goes_to_the_bucket_of_an_attribute_that_its_streams_keep() -> None:
    database, procedures = shop()
    program = database.workflow("order", *procedures).program()
    assert routing_attribute(program) == "id"
    assert routing_obstacle(program) is None
    changed = PLACE.replace("lines.emit(id=e.id,", "lines.emit(id=e.id + 1,")
    database, procedures = shop((changed, BILL, SHIP))
    program = database.workflow("order", *procedures).program()
    assert routing_attribute(program) is None


def test_a_workflow_is_explained() -> None:
    database, (place, bill, ship) = shop()
    flow = database.workflow("order", ship, database.nested(bill, place))
    lines = flow.explain().splitlines()
    assert lines[0] == f"workflow order (program {flow.program().digest})"
    assert lines[1:5] == [
        "  nested transaction:", "    place takes the event, emits lines", "    bill takes lines, emits paid",
        "  ship takes paid",
    ]  # fmt: skip
    assert "  undo log: yes" in lines
    assert "  route: the bucket of id" in lines
    assert "  sent to the bucket: id, amount, prices" in lines
    assert database.to_json()["workflows"][0]["procedures"] == ["place", "bill", "ship"]


def test_a_window_is_explained_by_its_name_and_not_by_its_tables() -> None:
    database = penstock.database("shop")
    database.window("last", "price bigint NOT NULL", size=3, slide=2)
    text = "def note(e, last):\n    last.insert(price=e.price)\n    return len(last)\n"
    note = database.procedure(event="price bigint", returns="rows bigint")(define(text))
    database.workflow("watch", note)
    explained = database.explain()
    assert "  WINDOW last\n" in explained
    assert "  window: last\n" in explained
    assert "  route: one bucket: the window last is of all rows\n" in explained
    assert "last_" not in explained + json.dumps(database.to_json())


def test_a_digest_knows_the_graph_and_its_transactions() -> None:
    def digest(*, nested: bool, name: str = "order") -> str:
        database, procedures = shop()
        parts = [database.nested(*procedures)] if nested else procedures
        return database.workflow(name, *parts).program().digest

    assert digest(nested=False) == digest(nested=False, name="other")
    assert digest(nested=False) != digest(nested=True)


def test_a_compiled_workflow_travels_to_a_worker() -> None:
    database, procedures = shop()
    program = database.workflow("order", *procedures).program()
    assert isinstance(program, Program)
    assert program.kernel is not None
    other: Program = pickle.loads(pickle.dumps(program))
    state = TableSet(database.catalog.all_tables.values())
    schema = pa.schema([
        pa.field("id", pa.int64(), nullable=False), ("amount", pa.int64()), ("prices", pa.list_(pa.int64())),
    ])  # fmt: skip
    made = state.run(other, pa.RecordBatch.from_pylist(ORDERS, schema=schema)).to_pylist()
    assert [row["rejected"] for row in made] == [
        "ship: duplicate key: shipped", "bill: too little", "place: unlucky", None,
        "place: duplicate key: orders", None,
    ]  # fmt: skip


def tried(body: str, parameters: str = "orders, lines", **options: Any) -> Any:
    database, _ = shop()
    database.window("recent", "id bigint, price bigint NOT NULL", size=3, slide=1)
    text = f"def tried(e, {parameters}):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return database, database.procedure(**{"event": ORDER, **options})(define(text))


@pytest.mark.parametrize(
    ("body", "parameters", "line", "column", "fact", "hint"),
    [
        ("lines.emit(id=e.id, cost=1)", "lines", 2, 5, "lines has no cost", "it has id, price"),
        ("lines.emit(price=1)", "lines", 2, 5, "the column id is NOT NULL and gets no value", None),
        ("lines.emit(id='a')", "lines", 2, 5, "the column id is integer, the value is text", None),
        ("lines.emit(e.id)", "lines", 2, 5, "columns are given by name", "lines.emit(column=value)"),
        ("x = lines.emit(id=1)", "lines", 2, 9, "a stream supports only emit", "lines.emit(column=value)"),
        ("lines.insert(id=1)", "lines", 2, 5, "a stream supports only emit", "lines.emit(column=value)"),
        ("x = lines[e.id]", "lines", 2, 9, "a stream is not a value", "lines.emit(column=value)"),
        ("for row in lines:\n    pass", "lines", 2, 16, "a stream is not a value", None),
        ("pass", "orders, nowhere", 1, 22, "there is no table nowhere", "orders"),
        ("recent.emit(id=1)", "recent", 2, 5, "a window has no emit", "for row in recent"),
        ("x = recent.get(1)", "recent", 2, 9, "a window has no get", "len(recent)"),
        ("x = recent[1]", "recent", 2, 9, "a window is not a value", "for row in recent"),
        ("del recent[1]", "recent", 2, 9, "only rows of tables are deleted", None),
        ("recent.insert(id=1)", "recent", 2, 5, "the column price is NOT NULL and gets no value", None),
        (
            "for row in recent:\n    row.price = 1",
            "recent",
            3,
            9,
            "a row of a window cannot be changed",
            None,
        ),
        ("for row in recent:\n    recent.insert(price=1)", "recent", 3, 9, "inserts into the window", None),
        ("for row in recent:\n    pass\nx = row.price", "recent", 4, 9, "row may have no value here", None),
    ],
)
def test_a_wrong_use_of_a_stream_or_window_is_an_error_with_its_place(
    body: str, parameters: str, line: int, column: int, fact: str, hint: str | None
) -> None:
    with pytest.raises(InvalidUsageError, match="tried") as caught:
        tried(body, parameters)
    assert fact in str(caught.value)
    assert (caught.value.context["line"], caught.value.context["column"]) == (line, column)
    assert caught.value.context["file"].startswith("<procedure")
    if hint is not None:
        assert hint in str(caught.value).partition("Hint: ")[2]


def test_a_procedure_that_emits_does_not_run_alone() -> None:
    database, _ = shop()
    with database.open() as db, pytest.raises(InvalidUsageError, match="runs in a workflow: procedure=place"):
        db.run("place", pa.Table.from_pylist(ORDERS))


def test_a_workflow_that_makes_no_sense_is_refused() -> None:
    database, (place, bill, ship) = shop()
    with pytest.raises(InvalidUsageError, match="no procedure of one takes the stream lines") as caught:
        database.workflow("one", place)
    assert caught.value.context["line"] == 2
    assert "event=lines" in str(caught.value)
    with pytest.raises(InvalidUsageError, match="has no procedures"):
        database.workflow("one")
    with pytest.raises(InvalidUsageError, match="has this procedure twice: workflow=one procedure=ship"):
        database.workflow("one", ship, database.nested(ship))
    with pytest.raises(InvalidUsageError, match="procedures of its database"):
        database.workflow("one", place, shop()[1][1])
    with pytest.raises(InvalidUsageError, match="has this procedure already: procedure=bill"):
        database.workflow("bill", place, bill, ship)
    with pytest.raises(InvalidUsageError, match=r"place\+ship -> bill -> place\+ship"):
        database.workflow("one", database.nested(place, ship), bill)
    again = database.procedure(event=database.catalog.streams["paid"])(define("def again(e):\n    pass\n"))
    with pytest.raises(InvalidUsageError, match="again and ship take the stream paid"):
        database.workflow("one", place, bill, ship, again)
    other = database.procedure(event=ORDER, returns="total bigint")(
        define("def other(e, lines):\n    lines.emit(id=e.id)\n    return 1\n")
    )
    with pytest.raises(InvalidUsageError, match=r"(bill and other|other and bill) return total"):
        database.workflow("one", other, bill, ship)


def test_a_circle_is_refused_with_its_procedures() -> None:
    database = penstock.database("circle")
    streams = {name: database.stream(name, "id bigint") for name in ("a", "b", "c")}
    for name, out in (("a", "b"), ("b", "c"), ("c", "a")):
        text = f"def take_{name}(e, {out}):\n    {out}.emit(id=e.id)\n"
        database.procedure(event=streams[name])(define(text))
    with pytest.raises(InvalidUsageError, match="take_a -> take_b -> take_c -> take_a") as caught:
        database.workflow("round", *database.procedures.values())
    assert caught.value.context["line"] == 1
    assert "acyclic" in str(caught.value)


def test_border_procedures_share_the_event() -> None:
    database = penstock.database("borders")
    database.table("t", "id bigint, n bigint", key="id")
    database.procedure(define("def one(e, t):\n    t.insert(id=e.id, n=1)\n"))
    database.procedure(define("def two(e, t):\n    t[e.id].n += e.more\n"))
    flow = database.workflow("flow", *database.procedures.values())
    with database.open() as db:
        assert db.call("flow", id=3, more=4, other="x") == {"rejected": None}
        assert db.table("t").to_pylist() == [{"id": 3, "n": 5}]
        with pytest.raises(InvalidUsageError, match="the event has no more"):
            db.call("flow", id=3)
    database.procedure(event="id int")(define("def three(e, t):\n    t[e.id].n += 1\n"))
    database.procedure(event="id bigint")(define("def four(e, t):\n    t[e.id].n += 1\n"))
    with pytest.raises(InvalidUsageError, match="the attribute id is int64 here and int32 before"):
        database.workflow("other", database.procedures["three"], database.procedures["four"])
    assert [one.name for one in flow.border] == ["one", "two"]


@pytest.mark.parametrize("plain", [False, True])
def test_rows_of_an_atomic_batch_commit_together(plain: bool) -> None:
    database = penstock.database("batches")
    database.table("t", "id bigint", key="id")
    database.table("sums", "batch string, n bigint NOT NULL", key="batch")
    stream = database.stream("out", "batch string, id bigint")
    database.procedure(event="batch string, id bigint", returns="place bigint", plain=plain)(
        define(
            "def put(e, t, out):\n    out.emit(batch=e.batch, id=e.id)\n"
            "    t.insert(id=e.id)\n    return e.id\n"
        )
    )
    database.procedure(event=stream, returns="n bigint", plain=plain)(
        define(
            "def add(e, sums):\n    if e.batch not in sums:\n        sums.insert(batch=e.batch, n=0)\n"
            "    sums[e.batch].n += e.id\n    if e.id == 7:\n        abort('seven')\n"
            "    return sums[e.batch].n\n"
        )
    )
    flow = database.workflow("flow", *database.procedures.values())
    if not plain:
        interpret(flow)
    rows = [("a", 1), ("a", 2), ("b", 3), ("b", 2), ("b", 4), ("c", 3), ("d", 6), ("d", 7), ("a", 8)]
    events = pa.table({"batch": [one for one, _ in rows], "id": [one for _, one in rows]})
    with database.open() as db:
        made = db.run("flow", events, batch="batch").to_pylist()
        assert sorted(db.table("t")["id"].to_pylist()) == [1, 2, 3, 6, 7, 8]
        assert rows_of(db, "sums") == [("a", 11), ("c", 3)]
        assert db._state.transactions == 5
        with pytest.raises(InvalidUsageError, match=r"there is no such column: column=order\. Hint: "):
            db.run("flow", events, batch="order")
        with pytest.raises(InvalidUsageError, match="only a workflow takes batches"):
            database.procedure(event="id bigint")(define("def alone(e, t):\n    pass\n"))
            db.run("alone", events, batch="batch")
    twice = "put: duplicate key: t"
    assert [tuple(row.values()) for row in made] == [
        (1, None, None), (2, 3, None), (None, None, twice), (None, None, twice), (None, None, twice),
        (3, 3, None), (6, None, "add: seven"), (7, None, "add: seven"), (8, 11, None),
    ]  # fmt: skip


# Windows


def test_a_window_belongs_to_one_procedure() -> None:
    database, _ = tried("recent.insert(price=1)", "recent")
    with pytest.raises(InvalidUsageError, match="the window recent belongs to tried") as caught:
        database.procedure(event=ORDER)(define("def other(e, orders, recent):\n    pass\n"))
    assert (caught.value.context["line"], caught.value.context["column"]) == (1, 22)
    with database.open() as db, pytest.raises(InvalidUsageError, match="there is no such table"):
        db.table("recent")


KEEP = """
def keep(e, w):
    kept = None
    for row in w:
        kept = row
    {insert}
    if kept is None:
        return 0
    return kept.v
"""


@pytest.mark.parametrize(
    "insert", ["w.insert(at=e.at, v=e.at)", "for q in range(2):\n        w.insert(at=e.at)"]
)
@pytest.mark.parametrize("time", [None, "at"])
def test_a_row_of_a_window_is_not_read_after_an_insert(insert: str, time: str | None) -> None:
    def kept(*, plain: bool) -> Database:
        database = penstock.database("kept")
        database.window("w", "at bigint NOT NULL, v bigint", size=1, slide=1, time=time)
        database.procedure(event="at bigint NOT NULL", returns="v bigint", plain=plain)(
            define(KEEP.format(insert=insert))
        )
        return database

    with pytest.raises(InvalidUsageError, match="the row kept may have been deleted") as caught:
        kept(plain=False)
    assert caught.value.context["line"] == 7 + insert.count("\n")
    with kept(plain=True).open() as db:
        assert db.call("keep", at=1)["v"] == 0
        with pytest.raises(InvalidUsageError, match="is read after an insert into it: window=w column=v"):
            for at in range(2, 5):
                db.call("keep", at=at)


def test_a_row_of_a_window_is_not_kept_from_one_turn_of_a_loop_to_the_next() -> None:
    database = penstock.database("turns")
    database.window("w", "v bigint", size=1, slide=1)
    text = (
        "def turn(e, w):\n    kept = None\n    for row in w:\n        kept = row\n    total = 0\n"
        "    for i in range(3):\n        if kept is not None:\n            total += kept.v\n"
        "        w.insert(v=i)\n    return total\n"
    )
    with pytest.raises(InvalidUsageError, match="the row kept may have been deleted") as caught:
        database.procedure(event="v bigint", returns="v bigint")(define(text))
    assert caught.value.context["line"] == 7


@pytest.mark.parametrize(
    ("size", "slide", "time", "fact"),
    [
        (3, 0, None, "at least one"),
        (3, 4, None, "at least one"),
        (5, 2, "at", "not a multiple"),
        (4, 2, "name", "the time of a window"),
        (4, 2, "nothing", "the time of a window"),
        ("4s", "2s", None, "not an integer"),
        ("4s", "2s", "at", "not an integer"),
        ("4s", "3s", "ts", "not a multiple"),
    ],
)
def test_a_window_of_a_wrong_size_is_refused(size: Any, slide: Any, time: str | None, fact: str) -> None:
    database = penstock.database("sizes")
    columns = "at bigint, name string, ts timestamp"
    with pytest.raises(InvalidUsageError, match=fact):
        database.window("w", columns, size=size, slide=slide, time=time)


def test_names_are_taken_once() -> None:
    database = penstock.database("names")
    database.table("a", "id bigint", key="id")
    database.window("w", "v bigint", size=1, slide=1)
    database.stream("s", "v bigint")
    with pytest.raises(InvalidUsageError, match="has this table already: table=a"):
        database.stream("a", "v bigint")
    with pytest.raises(InvalidUsageError, match="has this table already: table=w_rows"):
        database.table("w_rows", "id bigint", key="id")
    with pytest.raises(InvalidUsageError, match="has this stream already: stream=s"):
        database.window("s", "v bigint", size=1, slide=1)
    with pytest.raises(InvalidUsageError, match="has this window already: window=w"):
        database.table("w", "id bigint", key="id")
    with pytest.raises(InvalidUsageError, match="not a Python identifier"):
        database.stream("no name", "v bigint")


@pytest.mark.parametrize(
    "declare",
    [
        lambda database: database.table("class", "id bigint", key="id"),
        lambda database: database.table("t", "id bigint, pass string", key="id"),
        lambda database: database.stream("yield", "v bigint"),
        lambda database: database.stream("s", "from bigint"),
        lambda database: database.window("with", "v bigint", size=1, slide=1),
        lambda database: database.window("w", "in bigint", size=1, slide=1),
        lambda database: database.procedure(event="None bigint")(define("def p(e):\n    pass\n")),
    ],
)
def test_a_keyword_is_no_name(declare: Callable[[Database], Any]) -> None:
    database = penstock.database("keywords")
    with pytest.raises(InvalidUsageError, match=r"not a Python identifier.*Hint: .*no keyword"):
        declare(database)
    assert not database.catalog.all_tables
    assert not database.procedures


@pytest.mark.parametrize("plain", [True, False])
def test_a_column_may_have_the_name_self(plain: bool) -> None:
    database = penstock.database("selves")
    database.table("t", "self bigint, procedure bigint", key="self")
    database.window("w", "self bigint", size=1, slide=1)
    text = "def put(e, t, w):\n    w.insert(self=e.self)\n    t.insert(self=e.self, procedure=e.procedure)\n"
    database.procedure(event="self bigint, procedure bigint", plain=plain)(define(text))
    with database.open() as db:
        assert db.call("put", self=1, procedure=2) == {"rejected": None}
        assert rows_of(db, "t") == [(1, 2)]


def test_what_was_declared_after_the_database_was_opened_is_no_part_of_it() -> None:
    database = penstock.database("late")
    database.table("t", "id bigint", key="id")
    with database.open() as db:
        database.table("late", "id bigint", key="id")
        database.window("w", "id bigint", size=1, slide=1)
        for name in ("late", "w"):
            procedure = database.procedure(event="id bigint")
            procedure(define(f"def put_{name}(e, {name}):\n    {name}.insert(id=e.id)\n"))
            with pytest.raises(InvalidUsageError, match=f"opened before these tables.*tables={name}"):
                db.call(f"put_{name}", id=1)
        with pytest.raises(InvalidUsageError, match="opened before these tables were declared: tables=late"):
            db.load("late", {"id": [1]})
        with pytest.raises(InvalidUsageError, match="opened before these tables were declared: tables=late"):
            db.table("late")
        database.procedure(event="id bigint")(define("def put(e, t):\n    t.insert(id=e.id)\n"))
        assert db.call("put", id=1) == {"rejected": None}
    with database.open() as db:
        db.call("put_w", id=1)


def test_a_definition_that_fails_leaves_nothing() -> None:
    database = penstock.database("failures")
    database.table("t", "id bigint", key="id")
    database.table("log", "id bigint", key="id")
    database.window("w", "id bigint", size=1, slide=1)
    stream = database.stream("s", "id bigint")
    with pytest.raises(InvalidUsageError, match="the table t has no colour"):
        database.procedure(event="id bigint")(
            define("def bad(e, t, w):\n    w.insert(id=e.id)\n    t[e.id].colour = 1\n")
        )
    with pytest.raises(InvalidUsageError, match="the event has no colour"):
        database.trigger("t")(define("def bad(e):\n    x = e.colour\n"))
    with pytest.raises(InvalidUsageError, match="the event has no colour"):
        database.trigger("w")(define("def bad(e, w, t):\n    t.insert(id=e.colour)\n"))
    emit = database.procedure()(define("def emit(e, s, t):\n    s.emit(id=e.id)\n    t.insert(id=e.name)\n"))
    take = database.procedure(event=stream)(define("def take(e, log):\n    log.insert(id=e.id)\n"))
    flow = database.workflow("flow", emit, take)
    with pytest.raises(InvalidUsageError, match="the key id of t is integer"):
        flow.program(pa.schema([("id", pa.int64()), ("name", pa.string())]))
    # Nothing that runs uses t or w yet: both may get triggers, and w an owner.
    for name in ("t", "w"):
        text = f"def on_{name}(e, log):\n    log.insert(id=e.id)\n"
        database.trigger(name)(define(text))
    database.procedure(event="id bigint")(define("def bad(e, t, w):\n    w.insert(id=e.id)\n"))
    with database.open() as db:
        assert db.call("bad", id=1) == {"rejected": None}
        assert rows_of(db, "log") == [(1,)]


# Triggers


def test_triggers_run_in_the_transaction_that_inserts() -> None:
    database = penstock.database("triggers")
    database.table("t", "id bigint, v float", key="id")
    database.table("log", "id bigint, v double, times bigint NOT NULL", key="id")
    stream = database.stream("out", "id bigint, v tinyint")
    database.trigger("t")(
        define(
            "def note(e, log):\n    log.insert(id=e.id, v=e.v, times=1)\n"
            "    if e.id == 3:\n        abort('3')\n"
        )
    )
    database.trigger(stream)(define("def again(e, log):\n    log[e.id].times += e.v\n"))
    database.procedure(event="id bigint, v double")(
        define("def put(e, t, out):\n    t.insert(id=e.id, v=e.v)\n    out.emit(id=e.id, v=int(e.v))\n")
    )
    database.procedure(event=stream)(define("def take(e, log):\n    log[e.id].times += 100\n"))
    interpret(database.workflow("flow", database.procedures["put"], database.procedures["take"]))
    with database.open() as db:
        found = [db.call("flow", id=i, v=v)["rejected"] for i, v in ((1, 0.1), (2, 7.0), (3, 1.0), (1, 5.0))]
        assert found == [None, None, "put: 3", "put: duplicate key: t"]
        # The trigger sees what the column holds: a float of 32 bits.
        assert rows_of(db, "log") == [(1, 0.10000000149011612, 101), (2, 7.0, 108)]
        assert len(db.table("t")) == 2


def test_triggers_that_cannot_be_are_refused() -> None:
    database, _ = shop()
    with pytest.raises(
        InvalidUsageError, match=r"there is no such table, stream or window: name=nothing\. Hint: "
    ):
        database.trigger("nothing")
    with pytest.raises(InvalidUsageError, match="a procedure that uses orders was compiled before"):
        database.trigger("orders")(define("def note(e, orders):\n    pass\n"))
    database.table("fresh", "id bigint", key="id")
    with pytest.raises(InvalidUsageError, match="the event has no colour"):
        database.trigger("fresh")(define("def note(e):\n    x = e.colour\n"))
    with pytest.raises(InvalidUsageError, match="again calls itself"):
        database.trigger("fresh")(define("def again(e, fresh):\n    fresh.insert(id=e.id + 1)\n"))
    database.table("other", "id bigint", key="id")
    database.trigger("fresh")(define("def there(e, other):\n    other.insert(id=e.id)\n"))
    with pytest.raises(InvalidUsageError, match="back calls itself, maybe through others"):
        database.trigger("other")(define("def back(e, fresh):\n    fresh.insert(id=e.id + 1)\n"))
    database.procedure(event="id bigint")(define("def put(e, fresh):\n    fresh.insert(id=e.id)\n"))
    with database.open() as db:
        assert db.call("put", id=1) == {"rejected": None}
        assert rows_of(db, "other") == [(1,)]
    database.table("short", "id bigint", key="id")
    database.trigger("short")(define("def drop(e, short):\n    del short[e.id]\n"))
    with pytest.raises(InvalidUsageError, match="a trigger on short deletes rows of it"):
        database.procedure(event="id bigint")(define("def fill(e, short):\n    short.insert(id=e.id)\n"))


def test_a_trigger_has_a_name_of_its_own() -> None:
    database = penstock.database("names")
    database.table("log", "name string, times bigint NOT NULL", key="name")
    database.window("w", "id bigint", size=1, slide=1)
    text = 'def note(e, log):\n    log.insert(name="{name}", times=1)\n'
    database.trigger("w")(define(text.format(name="first")))
    with pytest.raises(InvalidUsageError, match="the database has this trigger already: trigger=note"):
        database.trigger("w")(define(text.format(name="second")))
    with pytest.raises(InvalidUsageError, match="the database has this trigger already: trigger=note"):
        database.procedure(event="id bigint")(define("def note(e):\n    pass\n"))
    database.trigger("w")(define(text.format(name="second").replace("note", "notice")))
    procedure = database.procedure(event="id bigint")(define("def put(e, w):\n    w.insert(id=e.id)\n"))
    with pytest.raises(InvalidUsageError, match="the database has this procedure already: procedure=put"):
        database.trigger("log")(define("def put(e):\n    pass\n"))
    program = procedure.program()
    assert isinstance(program, Program)
    program.__dict__["kernel"] = interpreted(program)
    with database.open() as db:
        assert db.call("put", id=1) == {"rejected": None}
        assert sorted(rows_of(db, "log")) == [("first", 1), ("second", 1)]


DROP = "def drop(e, acc):\n    del acc[1]\n"
ADD = """
def add(e, acc, {on}):
    if 1 not in acc:
        acc.insert(id=1, x=5)
    acc[1].x += {value}
"""


@pytest.mark.parametrize(
    ("on", "value"),
    [("w", "1 if w.insert(id=e.id) else 2"), ("t", "t.insert(id=e.id).id")],
)
def test_a_row_is_not_changed_by_a_value_that_deletes_it(on: str, value: str) -> None:
    def added(*, plain: bool) -> Database:
        database = penstock.database("deleted")
        database.table("acc", "id bigint, x bigint", key="id")
        database.table("t", "id bigint", key="id")
        database.window("w", "id bigint", size=1, slide=1)
        database.trigger(on)(define(DROP))
        text = ADD.format(on=on, value=value)
        database.procedure(event="id bigint", plain=plain)(define(text))
        return database

    with pytest.raises(InvalidUsageError, match="the value may delete the row of acc that it changes"):
        added(plain=False)
    with (
        added(plain=True).open() as db,
        pytest.raises(InvalidUsageError, match="a row is used after it was deleted: table=acc"),
    ):
        db.call("add", id=1)


@pytest.mark.parametrize("plain", [True, False])
def test_the_target_of_a_change_is_found_once_before_its_value(plain: bool) -> None:
    database = penstock.database("once")
    database.table("acc", "id bigint, x bigint", key="id")
    database.table("t", "id bigint, v bigint", key="id")
    database.trigger("t")(define("def change(e, acc):\n    acc[1].x = 100\n"))
    text = """
def add(e, acc, t):
    t.insert(id=e.id, v=3).v += 4
    acc[1].x = 1
    acc[1].x += t.insert(id=e.id + 1, v=5).v
    return acc[1].x, t[e.id].v
"""
    made = database.procedure(event="id bigint", returns="x bigint, v bigint", plain=plain)(define(text))
    if not plain:
        program = made.program()
        assert isinstance(program, Program)
        program.__dict__["kernel"] = interpreted(program)
    with database.open() as db:
        db.load("acc", {"id": [1], "x": [0]})
        assert db.call("add", id=1) == {"x": 6, "v": 7, "rejected": None}
