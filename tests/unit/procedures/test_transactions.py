"""Databases in this process: what users see, errors above all."""

from __future__ import annotations

import datetime
import pickle
import textwrap
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
from tests.transactions.procedures import define, events_of, interpreted, tables_of

EVENT = "k bigint, v bigint, s string, f double, ks array<bigint>"


def shop() -> Database:
    database = penstock.database("shop")
    database.table(
        "items", "id bigint, price bigint NOT NULL, name string, small tinyint", key="id", partition_by="id"
    )
    database.table("orders", "id bigint, line int, at timestamp, day date", key=("id", "line"))
    return database


def declare(
    database: Database, body: str, tables: str = "items", *, compiled: bool = False, **options: Any
) -> Any:
    """Declare a procedure; unless it is `compiled`, which takes a while, Python runs its kernel."""
    text = f"def tried(e, {tables}):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    procedure = database.procedure(**{"event": EVENT, **options})(define(text))
    if not compiled:
        program = procedure.program()
        program.__dict__["kernel"] = interpreted(program)
    return procedure


def test_a_transfer_commits_or_is_rejected_as_a_whole() -> None:
    bank = penstock.database("bank")
    bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id")
    text = """
def transfer(e, accounts):
    source = accounts[e.source]
    if source.balance < e.amount:
        abort("short")
    source.balance -= e.amount
    accounts[e.target].balance += e.amount
    return source.balance
"""
    event = "source bigint, target bigint, amount bigint"
    bank.procedure(event=event, returns="left bigint")(define(text))
    with bank.open() as db:
        db.load("accounts", {"id": [1, 2], "balance": [100, 0]})
        assert db.call("transfer", source=1, target=2, amount=30) == {"left": 70, "rejected": None}
        assert db.call("transfer", source=1, target=9, amount=30)["rejected"] == "unknown key: accounts"
        assert db.call("transfer", source=1, target=2, amount=71) == {"left": None, "rejected": "short"}
        assert sorted(db.table("accounts")["balance"].to_pylist()) == [30, 70]
        with pytest.raises(InvalidUsageError, match="a row with this key exists already"):
            db.load("accounts", {"id": [3, 1], "balance": [0, 0]})
        with pytest.raises(InvalidUsageError, match="there is no such procedure"):
            db.call("transfers", source=1)
        with pytest.raises(InvalidUsageError, match="lacks an attribute"):
            db.call("transfer", source=1, target=2)


@pytest.mark.parametrize(
    ("body", "line", "column", "fact"),
    [
        ("while True:\n    pass", 2, 5, "no while loop, which may not end"),
        ("x = [1]", 2, 9, "no list"),
        ("x = f'{e.k}'", 2, 9, "no f-string"),
        ("x = e.k ** 2", 2, 9, "no **: procedure"),
        ("x = ~e.k", 2, 9, "no ~: procedure"),
        ("raise KeyError", 2, 5, "Hint: abort("),
        ("global x", 2, 5, "no global: procedure"),
        ("helper(e.k)", 2, 5, "cannot call helper here"),
        ("x = 1\ny = x + e.s", 3, 9, "+ is for numbers, not for text"),
        ("x = items[e.k].colour", 2, 9, "the table items has no colour"),
        ("x = e.missing", 2, 9, "the event has no missing"),
        ("items[e.k].id = 3", 2, 5, "a key cannot be changed"),
        ("items[e.k].price = None", 2, 5, "price is not null"),
        ("items[e.k].price = e.f", 2, 5, "the column price is integer, the value is float"),
        ("x = y", 2, 9, "y is not defined"),
        ("if e.k > 1:\n    x = 1\nz = x", 4, 9, "x may have no value here"),
        ("x = 1\nx = 2.5", 3, 5, "the type of the variable changes from integer to float"),
        ("for k in e.ks:\n    x = k\nz = k", 4, 9, "k may have no value here"),
        ("r = items[e.k]\ndel items[e.v]\nr.price = 1", 4, 5, "the row r may have been deleted"),
        ("r = items[1]\nfor k in e.ks:\n    r.price = 1\n    del items[k]", 4, 9, "may have been deleted"),
        ("import time", 2, 5, "no import"),
        ("x = time.time()", 2, 9, "no clock and no randomness"),
        ("if e.k:\n    pass", 2, 8, "a condition must be a boolean, not integer"),
        ("if e.s < 'b':\n    pass", 2, 8, "< is for numbers"),
        ("x = e.k == e.f", 2, 9, "an integer is compared with a float"),
        ("x = e.f // 2", 2, 9, "// is for integers"),
        ("x = e.k == None", 2, 9, "a value is compared with None"),
        ("abort(e.s)", 2, 5, "abort takes a literal text"),
        ("return 1", 2, 5, "return and returns= differ in their number of values: 1, 0"),
        ("return\nx = 1", 3, 5, "this statement is never reached"),
        ("e.k = 1", 2, 5, "an event cannot be changed"),
        ("x = items[e.k, 1]", 2, 15, "the key of items has 1 columns"),
        ("x = items[e.s]", 2, 15, "the key id of items is integer"),
        ("items.insert(id=e.k)", 2, 5, "the column price is NOT NULL and gets no value"),
        ("print(e.k)", 2, 5, "a procedure cannot call print here"),
        ("e.k + 1", 2, 5, "this statement does nothing"),
        ("items.delete(e.k)", 2, 5, "items has no delete here"),
        ("penstock.abort('no')", 2, 5, "Hint: write abort(...)"),
        ("x = e.s in ('a', 'b')", 2, 9, "`in` is for tables and sets"),
        ("x = sorted(e.ks)", 2, 9, "a procedure cannot call sorted here"),
        ("x = 9223372036854775808", 2, 9, "beyond 64 bits"),
        (
            "x = None\ny = None\nfor i in range(3):\n    if y is not None:\n        items[e.k].price = y\n"
            "    y = x\n    x = 1.5",
            6,
            13,
            "the column price is integer, the value is float",
        ),
        (
            "x = None\ny = None\nfor i in range(3):\n    if y is not None:\n        del items[y]\n"
            "    y = x\n    x = e.s",
            6,
            23,
            "the key id of items is integer",
        ),
        ("x = None\nx = e.f\nx = 1", 4, 5, "the type of the variable changes from float to integer"),
        (
            "x = None\nif e.k > 1:\n    x = items.get(e.k)\nx = 1",
            5,
            5,
            "the type of the variable changes from items",
        ),
    ],
)
def test_what_is_outside_of_the_subset_is_an_error_with_its_place(
    body: str, line: int, column: int, fact: str
) -> None:
    with pytest.raises(InvalidUsageError, match="tried") as caught:
        declare(shop(), body)
    assert fact in str(caught.value)
    assert ". Hint: " in str(caught.value)
    assert (caught.value.context["line"], caught.value.context["column"]) == (line, column)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("items[e.k].price = e.f", "convert it with int(...), or divide with //"),
        ("items[e.k].price = e.k > 1", "write 1 if ... else 0"),
        ("items[e.k].name = e.k", "pass a column, an attribute or a constant that is text"),
        ("x = items[e.s]", "pass a column, an attribute or a constant that is integer"),
        ("x = items[1.5]", "convert it with int(...)"),
        ("x = e.s + 1", "convert it before, and put it into the event"),
        ("x = int(e.s)", "convert it before, and put it into the event"),
        ("x = -e.s", "convert it before, and put it into the event"),
        ("x = abs(e.k > 1)", "write 1 if ... else 0"),
        ("x = e.k == e.s", "pass a column, an attribute or a constant that is integer"),
        ("for i in range(e.f):\n    pass", "convert it with int(...)"),
        ("s = set()\ns.add(e.k)\ns.add(e.k > 1)", "write 1 if ... else 0"),
    ],
)
def test_a_value_of_another_kind_is_told_what_to_write(body: str, hint: str) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        declare(shop(), body)
    assert f"Hint: {hint}" in str(caught.value)


def test_a_function_that_is_no_procedure_is_told_how_to_become_one() -> None:
    helper = define("def helper(e, items):\n    pass\n")
    function = define("def again(e, items):\n    helper(e, items)\n", {"helper": helper})
    with pytest.raises(
        InvalidUsageError, match=r"helper is not a procedure: .*Hint: put @database.procedure before"
    ):
        shop().procedure(event=EVENT)(function)


def test_unknown_tables_and_recursion_are_errors() -> None:
    with pytest.raises(InvalidUsageError, match="there is no table things"):
        declare(shop(), "pass", tables="things")
    database = shop()
    names: dict[str, Any] = {}
    text = "def again(e, items):\n    again(e, items)\n"
    function = define(text, names)
    function.__globals__["again"] = database.procedure(define("def again(e, items):\n    pass\n"))
    with pytest.raises(InvalidUsageError, match="has this procedure already"):
        database.procedure(event=EVENT)(function)


def rejections(body: str, *events: dict[str, Any], tables: str = "items") -> list[str | None]:
    database = shop()
    declare(database, body, tables)
    rows = {"id": [1, 2], "price": [10, (1 << 63) - 1], "name": ["one", None], "small": [127, None]}
    with database.open() as db:
        db.load("items", rows)
        before = db.table("items").to_pylist()
        found = [db.call("tried", **event)["rejected"] for event in events]
        if None not in found:
            assert db.table("items").to_pylist() == before
    return found


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("items[1].price = 5\nitems[e.v].price = 1", "unknown key: items"),
        ("items[1].price = 5\nitems[e.k].price = 1", "null key: items"),
        ("items[1].price = 5\nitems.insert(id=1, price=1)", "duplicate key: items"),
        ("items[1].price = 5\nitems[2].price += 1", "overflow"),
        ("items[1].price = 5\nitems[1].small += 1", "overflow"),
        ("items[1].price = 5\nitems[1].price = e.v // 0", "division by zero"),
        ("items[1].price = 5\nitems[2].small += 1", "null"),
        ("items[1].price = 5\nx = e.f / 0", "division by zero"),
        ("del items[1]\nitems.insert(id=1, price=2)\nabort('enough')", "enough"),
        ("items[1].price = 5\nr = items.get(9)\nr.price = 1", "no row"),
        ("items[1].price = 5\nx = e.ks[2]", "no element"),
        ("items[1].price = 5\nx = int(e.f * 1e300)", "overflow"),
        ("items[1].price = 5\nfor i in range(3, 0, e.v - 99):\n    pass", "a step of 0"),
    ],
)
def test_a_rejection_names_its_cause_and_undoes_everything(body: str, why: str) -> None:
    assert rejections(body, {"k": None, "v": 99, "s": "x", "f": 1e10, "ks": [1, 2]}) == [why]


@pytest.mark.parametrize(
    ("body", "results"),
    [
        ("best = None\nfor k in e.ks:\n    if best is None or best < k * 0.5:\n        best = k * 0.5",
         [1.0, None]),
        ("r = None\nif e.k > 1:\n    r = items.get(e.k)\nbest = None\nif r is not None:\n"
         "    best = float(r.price)", [None, 7.0]),
        ("r = None\nbest = None\nfor i in range(3):\n    if r is not None:\n        best = float(r.price)\n"
         "    r = items.get(e.k)", [5.0, 7.0]),
        ("best = None\nlast = best\nif last is None:\n    best = e.f", [0.5, 0.5]),
        ("best = None\nnever = None\nfor i in range(2):\n    if never is not None:\n        best = e.f",
         [None] * 2),
        ("best = None\nx = None\nfor i in range(3):\n    best = half(event(n=x), items)\n    x = i",
         [0.5, 0.5]),
    ],
)  # fmt: skip
def test_a_variable_may_be_none_before_it_has_a_kind(body: str, results: list[float | None]) -> None:
    database = shop()
    half = database.procedure(event="n bigint", returns="f double")(
        define("def half(e, items):\n    if e.n is None:\n        return None\n    return e.n / 2\n")
    )
    text = "def tried(e, items):\n" + textwrap.indent(body + "\nreturn best\n", "    ")
    for plain in (False, True):
        name = "tried_by_python" if plain else "tried"
        procedure = database.procedure(event=EVENT, returns="best double", plain=plain)(
            define(text.replace("tried", name), {"half": half})
        )
        if not plain:
            program = procedure.program()
            assert isinstance(program, Program)
            program.__dict__["kernel"] = interpreted(program)
        with database.open() as db:
            db.load("items", {"id": [1, 2], "price": [5, 7], "name": ["a", "b"], "small": [1, 2]})
            found = [db.call(name, k=k, v=1, s="x", f=0.5, ks=ks) for k, ks in ((1, [1, 2, 0]), (2, []))]
        assert found == [{"best": one, "rejected": None} for one in results]


@pytest.mark.parametrize("key", ["'a'", "1.5", "True", "(1, 2)"])
@pytest.mark.parametrize("use", ["items.get({})", "items[{}].price = 9", "del items[{}]", "x = {} in items"])
def test_python_refuses_a_key_of_another_kind(key: str, use: str) -> None:
    database = shop()
    procedure = define("def tried(e, items):\n    " + use.format(key) + "\n")
    database.procedure(event="k bigint", plain=True)(procedure)
    with database.open() as db:
        db.load("items", {"id": [0, 1], "price": [5, 7], "name": ["a", "b"], "small": [1, 2]})
        before = db.table("items")
        with pytest.raises(InvalidUsageError, match="a key has another kind than its columns: table=items"):
            db.call("tried", k=1)
        assert db.table("items") == before


UNDERSCORES = """
def put(e, t, w):
    if e._key not in t:
        t.insert(_key=e._key, _table=e._key, _values=0)
    row = t[e._key]
    row._values += e._values
    w.insert(_window=e._key, _inserts=e._values, _values=row._values)
    total = 0
    for one in w:
        total += one._window * one._inserts + one._values - e._key * e._values
    return row._table, total
"""


@pytest.mark.parametrize("plain", [False, True])
def test_columns_may_begin_with_an_underscore(plain: bool) -> None:
    database = penstock.database("d")
    database.table("t", "_key bigint, _table bigint, _values bigint", key="_key")
    database.window("w", "_window bigint, _inserts bigint, _values bigint", size=3, slide=1)
    put = database.procedure(
        event="_key bigint, _values bigint", returns="_table bigint, _sum bigint", plain=plain
    )(define(UNDERSCORES))
    database.workflow("flow", put)
    with database.open() as db:
        made = db.run("flow", {"_key": [1, 2, 1], "_values": [5, 6, 7]}).to_pylist()
        assert [(row["_table"], row["_sum"]) for row in made] == [(1, 5), (2, 4), (1, 26)]
        assert db.table("t").sort_by("_key").to_pylist() == [
            {"_key": 1, "_table": 1, "_values": 12}, {"_key": 2, "_table": 2, "_values": 6},
        ]  # fmt: skip


def test_deleted_rows_and_texts_leave_the_size_bounded() -> None:
    database = shop()
    declare(
        database,
        "items.insert(id=e.k, price=1, name=e.s)\ndel items[e.k]",
        compiled=True,
        event="k bigint, s string",
    )
    sizes = []
    with database.open() as db:
        for begin in range(0, 200_000, 20_000):
            ids = range(begin, begin + 20_000)
            found = db.run("tried", pa.table({"k": ids, "s": [f"text {i}" for i in ids]}))
            assert found["rejected"].null_count == 20_000
            assert len(db._state["items"]) == 0
            sizes.append(tables_of(db)["items"].size_bytes)
            assert len(tables_of(db).texts) <= 1 << 17
        assert sizes == sizes[:1] * 10
        assert sizes[0] < 10_000


def test_more_rows_than_there_is_room_for_grow_the_tables() -> None:
    database = shop()
    declare(database, "for k in e.ks:\n    items.insert(id=k, price=1, name=e.s)\n    items[k].price += k")
    with database.open() as db:
        events = pa.table({
            "k": [1] * 40, "v": [1] * 40, "s": [f"text {i}" for i in range(40)], "f": [1.0] * 40,
            "ks": [list(range(100 * i, 100 * i + 100)) for i in range(40)],
        })  # fmt: skip
        assert db.run("tried", events)["rejected"].null_count == 40
        rows = db.table("items").to_pylist()
    assert sorted((row["id"], row["price"], row["name"]) for row in rows) == [
        (i, i + 1, f"text {i // 100}") for i in range(4000)
    ]


def test_times_are_integers_in_a_procedure_and_times_outside() -> None:
    database = shop()
    declare(
        database,
        "if (e.k, 1) not in orders:\n"
        "    orders.insert(id=e.k, line=1, at=e.at + 1_000_000, day=e.day + 1)\n"
        "return orders[e.k, 1].at, orders[e.k, 1].day",
        tables="orders",
        event="k bigint, at timestamp, day date",
        returns="at timestamp, day date",
    )
    at = datetime.datetime(2026, 1, 31, 23, 59, 59, tzinfo=datetime.UTC)
    with database.open() as db:
        found = db.call("tried", k=1, at=at, day=datetime.date(2026, 1, 31))
    assert found["at"] == datetime.datetime(2026, 2, 1, tzinfo=datetime.UTC)
    assert found["day"] == datetime.date(2026, 2, 1)


def test_forgotten_texts_do_not_pile_up() -> None:
    database = shop()
    procedure = declare(
        database, "if 1 not in items:\n    items.insert(id=1, price=1)\nitems[1].name = e.s", compiled=True
    )
    state = TableSet(database.tables.values())
    for begin in range(0, 150_000, 50_000):
        rows = [{"k": 1, "v": 1, "s": f"text {i}", "f": 0.0, "ks": []} for i in range(begin, begin + 50_000)]
        state.run(procedure.program(), events_of(procedure, rows))
        state.delta()
    assert state["items"].table().column(2).to_pylist() == ["text 149999"]
    assert len(state.texts) <= 1 << 17


def test_a_program_has_a_digest_of_its_text_constants_and_tables() -> None:
    def digest(body: str, database: Callable[[], Database] = shop) -> str:
        return str(declare(database(), body).program().digest)

    one = digest("items[e.k].price = 1  # a comment")
    assert one == digest("items[e.k].price = (1)")
    assert one != digest("items[e.k].price = 2")


def test_a_program_travels_to_a_worker() -> None:
    database = shop()
    procedure = declare(database, "items[e.k].price += 1", compiled=True, event="k bigint")
    program = procedure.program()
    assert program.kernel is not None
    other: Program = pickle.loads(pickle.dumps(program))
    state = TableSet(database.tables.values())
    made = state.run(other, events_of(procedure, [{"k": 1}]))
    assert made.to_pylist() == [{"rejected": "unknown key: items"}]


@pytest.mark.parametrize(
    ("body", "attribute", "because"),
    [
        ("items[e.k].price = e.v", "k", None),
        ("x = e.k\nitems[x].price = items[e.k].price", "k", None),
        ("items[e.k].price = items[e.v].price", None, "several attributes: k, v"),
        ("items[e.k + 1].price = 1", None, "not an attribute of the event"),
        ("for k in e.ks:\n    items[k].price = 1", None, "not an attribute of the event"),
        ("x = e.k\nif e.v > 1:\n    x = e.v\nitems[x].price = 1", None, "not an attribute of the event"),
    ],
)
def test_the_compiler_finds_the_routing_attribute(
    body: str, attribute: str | None, because: str | None
) -> None:
    program = declare(shop(), body).program()
    assert routing_attribute(program) == attribute
    assert (because or "") in (routing_obstacle(program) or "")
    assert (because is None) == (routing_obstacle(program) is None)


def test_a_table_without_partitions_keeps_transactions_in_one_bucket() -> None:
    program = declare(shop(), "x = orders[e.k, 1].line", tables="orders").program()
    assert routing_obstacle(program) == "the table orders has no partition_by"


def test_an_undo_log_is_kept_only_where_a_failure_may_follow_a_write() -> None:
    assert not declare(shop(), "items[e.k].price += e.v").program().undo_log
    assert not declare(shop(), "if e.v > 3:\n    abort('no')\nitems[1].price = 2").program().undo_log
    assert declare(shop(), "items[e.k].price = 1\nitems[e.v].price = 1").program().undo_log
    assert declare(shop(), "for k in e.ks:\n    items[k].price = 1").program().undo_log


def test_events_of_which_a_procedure_reads_nothing_are_counted() -> None:
    database = shop()

    def tick(e: Any, items: Any) -> Any:
        if 1 in items:
            items[1].price += 1
        else:
            items.insert(id=1, price=1)
        return items[1].price

    database.procedure(returns="price bigint", plain=True)(tick)
    with database.open() as opened:
        assert opened.run("tick", pa.table({"x": [7, 8, 9]}))["price"].to_pylist() == [1, 2, 3]
        assert opened.call("tick", x=1)["price"] == 4
        assert opened.call("tick")["price"] == 5
