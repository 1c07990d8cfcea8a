"""Rows by the columns of an index: what users see."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import InvalidUsageError
from penstock.procedures.analysis.operations import operations_of
from penstock.procedures.analysis.routing import routing_attribute, routing_obstacle
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.schema import TableSpec
from tests.transactions.procedures import define, interpreted, tables_of

EVENT = "symbol string, price double, id bigint, n bigint"
ROWS: dict[str, Any] = {
    "symbol": ["b", "a", "a", "é", "a", "b", "z"],
    "id": [1, 2, 3, 4, 5, 6, 7],
    "price": [3.0, -0.0, 2.0, math.nan, 2.0, 0.0, None],
    "kind": ["x", None, "y", "x", "x", "y", "x"],
}


def market() -> Database:
    database = penstock.database("market")
    database.table(
        "orders", "symbol string, id bigint, price double, kind string", key=("symbol", "id"),
        partition_by="symbol", indexes=["price", ("symbol", "price"), "kind"],
    )  # fmt: skip
    database.table("done", "id bigint, count bigint NOT NULL", key="id")
    return database


def declare(body: str, **options: Any) -> Database:
    database = market()
    text = "def tried(e, orders, done):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    program = database.procedure(**{"event": EVENT, **options})(define(text)).program()
    if isinstance(program, Program):
        program.__dict__["kernel"] = interpreted(program)
    return database


def found(rows: str, *, plain: bool = False, **event: Any) -> list[int]:
    """Return the ids of a loop's rows."""
    body = f"n = 0\nfor row in {rows}:\n    done.insert(id=n, count=row.id)\n    n += 1\n"
    with declare(body, plain=plain).open() as db:
        db.load("orders", ROWS)
        result = db.call("tried", **{"symbol": "a", "price": 2.0, "id": 1, "n": 2, **event})
        assert result["rejected"] is None
        return [row["count"] for row in db.table("done").sort_by("id").to_pylist()]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("rows", "ids"),
    [
        ('orders.by("price")', [2, 6, 3, 5, 1, 4]),
        ('reversed(orders.by("price"))', [4, 1, 5, 3, 6, 2]),
        ('orders.by("price").first(e.n)', [2, 6]),
        ('orders.by("price").last(3)', [4, 1, 5]),
        ('orders.by("price").first(-1)', []),
        ('orders.by("price")[0.0:e.price]', [2, 6]),
        ('orders.by("price")[e.price:]', [3, 5, 1, 4]),
        ('orders.by("price")[e.price:e.price]', []),
        ('orders.by("price")[3.5:1.0]', []),
        ('orders.by("price")[2]', [3, 5]),
        ('orders.by("symbol", "price")[e.symbol]', [2, 3, 5]),
        ('reversed(orders.by("symbol", "price")[e.symbol])', [5, 3, 2]),
        ('orders.by("symbol", "price")[e.symbol, 1.0:]', [3, 5]),
        ('orders.by("symbol", "price")[e.symbol, :1.0]', [2]),
        ('reversed(orders.by("symbol", "price")[e.symbol, :2.5])', [5, 3, 2]),
        ('orders.by("symbol", "price")[:"b"]', [2, 3, 5]),
        ('orders.by("symbol", "price")["b":]', [6, 1, 4]),
        ('orders.by("kind")["x"]', [5, 1, 7, 4]),
        ('orders.by("kind")["none"]', []),
    ],
)  # fmt: skip
def test_a_selection_has_its_rows_in_order(rows: str, ids: list[int], plain: bool) -> None:
    assert found(rows, plain=plain) == ids


@pytest.mark.parametrize("plain", [False, True])
def test_ends_and_counts(plain: bool) -> None:
    body = """\
    best = orders.by("symbol", "price")[e.symbol].last()
    worst = orders.by("symbol", "price")[e.symbol].first()
    if best is None or worst is None:
        return None, None, len(orders.by("symbol", "price")[e.symbol])
    return best.id, worst.id, len(orders.by("symbol", "price")[e.symbol, 1.0:])
    """
    with declare(body, plain=plain, returns="best bigint, worst bigint, n bigint").open() as db:
        db.load("orders", ROWS)
        made = [db.call("tried", symbol=one, price=0.0, id=1, n=1) for one in ("a", "b", "none", None)]
    assert [tuple(row.values()) for row in made] == [
        (5, 2, 2, None), (1, 6, 1, None), (None, None, 0, None), (None, None, None, "null"),
    ]  # fmt: skip


def test_a_loop_may_delete_and_change_rows_but_not_what_it_goes_by() -> None:
    body = """\
    for row in orders.by("price")[1.0:]:
        row.kind = "seen"
        if row.symbol == "a":
            del orders[row.symbol, row.id]
    return len(orders.by("kind")["seen"])
    """
    with declare(body, returns="n bigint").open() as db:
        db.load("orders", ROWS)
        assert db.call("tried", symbol="a", price=0.0, id=1, n=1)["n"] == 2
        assert sorted(db.table("orders")["id"].to_pylist()) == [1, 2, 4, 6, 7]


@pytest.mark.parametrize(
    ("body", "line", "fact"),
    [
        ('x = orders.by("id").first()', 2, "the table orders has no such index"),
        ('x = done.by("id").first()', 2, "the table done has no such index"),
        ('x = orders.by("price")', 2, "a selection of several rows is not a value"),
        ('x = orders.by("price")[1.0]', 2, "a selection of several rows is not a value"),
        ('x = orders.by("price").first(2)', 2, "several rows are for a loop"),
        ('x = orders.by("price")[e.symbol].first()', 2, "the column price is float, the value is text"),
        ('x = orders.by("price")[1.0, 2.0].first()', 2, "the index has 1 columns"),
        ('x = orders.by("symbol", "price")["a":, 2.0].first()', 2, "a range is of the last column"),
        ('x = orders.by("price")[1.0:2.0:1].first()', 2, "without a step"),
        ('for r in orders.by("price"):\n    r.price = 1.0', 3, "a loop by price changes price"),
        ('for r in orders.by("price"):\n    orders.insert(symbol="a", id=9)', 3, "inserts into orders"),
        ('for r in orders.by("price"):\n    del orders[r.symbol, r.id]\n    r.kind = "x"', 4, "deleted"),
        ('for r in orders.by("price").first(e.price):\n    pass', 2, "a number of rows is integer"),
        ('for r, s in orders.by("price"):\n    pass', 2, "a loop has one variable"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_an_error_with_its_place(body: str, line: int, fact: str) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        declare(body)
    assert fact in str(caught.value)
    assert caught.value.context["line"] == line


@pytest.mark.parametrize(
    ("indexes", "fact"),
    [
        (["none"], "the column of an index is not in the table"),
        (["price", "price"], "the table has this index already"),
        ([("price", "price")], "an index has one to four columns"),
        ("price", "the indexes of a table are a list of columns"),
    ],
)
def test_an_index_that_cannot_be_is_refused(indexes: Any, fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        TableSpec.parse("orders", "id bigint, price double", "id", None, indexes)


@pytest.mark.parametrize(
    ("body", "attribute"),
    [
        ('x = orders.by("symbol", "price")[e.symbol, 1.0:].first()', "symbol"),
        (
            'for r in orders.by("symbol", "price")[e.symbol]:\n    r.kind = orders[e.symbol, r.id].kind',
            "symbol",
        ),
        ('x = orders.by("price").first()', None),
    ],
)
def test_a_selection_within_a_partition_may_run_in_several_buckets(body: str, attribute: str | None) -> None:
    program = declare(body).procedures["tried"].program()
    assert routing_attribute(program) == attribute
    if attribute is None:
        assert "a key that is not an attribute of the event" in (routing_obstacle(program) or "")


def test_operations_name_the_rows_of_an_index() -> None:
    database = declare(
        'for r in orders.by("kind")[e.symbol]:\n    r.price = orders.by("price").last().price + 1.0\n'
    )
    keys = {name: spec.key for name, spec in database.tables.items()}
    read, write = operations_of(database.procedures["tried"].text, keys)
    assert (read.mode, read.target) == ("READ", "orders.by('price')")
    assert (write.mode, write.target) == ("WRITE", "orders.by('kind')[e.symbol]")
    assert write.reads == ("orders.by('price')",)


def test_indexes_may_change_between_restarts() -> None:
    database = market()
    state = TableSet(database.tables.values())
    with database.open() as db:
        db.load("orders", ROWS)
        rows = db.table("orders").to_batches()[0]
    state.load("orders", rows)
    units = [state.delta()]
    plain = TableSpec.parse(
        "orders", "symbol string, id bigint, price double, kind string", ("symbol", "id"), "symbol"
    )
    assert plain.to_json() == database.tables["orders"].to_json()
    again = TableSet([plain, database.tables["done"]])
    again.restore(units)
    assert again["orders"].table().num_rows == 7
    assert again["orders"].size_bytes < state["orders"].size_bytes


def test_an_index_of_many_texts_outlives_forgotten_ones() -> None:
    body = """\
    if e.n > 0:
        orders.insert(symbol=e.symbol, id=e.id, kind="x")
    else:
        del orders[e.symbol, e.id]
    """
    database = declare(body)
    with database.open() as db:
        for begin in range(0, 60, 20):
            tables_of(db)._most_texts = 10
            names = [f"text {i}" for i in range(begin, begin + 20)]
            events = {"symbol": names, "id": range(20), "price": [0.0] * 20}
            db.run("tried", pa.table({**events, "n": [1] * 20}))
            keep = [i for i in range(20) if i % 5]
            gone = {name: [values[i] for i in keep] for name, values in events.items()}
            db.run("tried", pa.table({**gone, "n": [0] * len(keep)}))
        assert len(tables_of(db).texts) < 60
        left = db.table("orders")["symbol"].to_pylist()
        assert sorted(left) == sorted(f"text {i}" for i in range(60) if i % 5 == 0)
        text = 'def order(e, orders, done):\n    n = 0\n    for r in orders.by("kind")["x"]:\n'
        text += "        done.insert(id=n, count=r.id)\n        n += 1\n"
        program = database.procedure(event="n bigint")(define(text)).program()
        program.__dict__["kernel"] = interpreted(program)
        db.call("order", n=1)
        ids = [row["count"] for row in db.table("done").sort_by("id").to_pylist()]
    assert ids == [i % 20 for _, i in sorted((f"text {i}", i) for i in range(60) if i % 5 == 0)]
