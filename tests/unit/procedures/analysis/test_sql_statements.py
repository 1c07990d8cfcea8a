"""Statements of SQL in procedures do what their Python does, and others are refused where they stand."""

from __future__ import annotations

import ast
import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import penstock
from penstock.errors import InvalidUsageError
from penstock.procedures.databases import Database
from tests.transactions.procedures import define, interpreted

EVENT = "id bigint, symbol string, low bigint, high bigint, amount bigint, kind bigint"
PYTHON = {
    'x = execute("SELECT price FROM orders WHERE id = ?", e.id)': "x = orders[e.id].price",
    'x = execute("SELECT -(price + ?) * 2 FROM orders WHERE id = ?", e.low, e.id)':
        "x = -(orders[e.id].price + e.low) * 2",
    'row = execute("SELECT * FROM orders WHERE id = ?", e.id)': "row = orders.get(e.id)",
    'n = execute("SELECT count(*) FROM orders WHERE symbol = ? AND price >= ?", e.symbol, e.low)':
        "n = len(orders.by('symbol', 'price')[e.symbol, e.low:])",
    'for row in execute("SELECT * FROM orders WHERE price < ? AND symbol = ? AND price >= 2", e.high, "A"):\n'
    "    pass": "for row in orders.by('symbol', 'price')['A', 2:e.high]:\n    pass",
    'for row in execute("SELECT * FROM orders WHERE symbol = ? ORDER BY price DESC", e.symbol):\n    pass':
        "for row in reversed(orders.by('symbol', 'price')[e.symbol]):\n    pass",
    'for row in execute("SELECT * FROM orders ORDER BY symbol DESC, price DESC LIMIT ?", e.id):\n    pass':
        "for row in orders.by('symbol', 'price').last(e.id):\n    pass",
    'for row in execute("SELECT * FROM orders WHERE symbol = \'it?\' ORDER BY price LIMIT 3"):\n    pass':
        "for row in orders.by('symbol', 'price')['it?'].first(3):\n    pass",
    'execute("DELETE FROM orders WHERE id = ?", e.id)': "del orders[e.id]",
    'execute("DELETE FROM orders WHERE id = ?", execute("SELECT amount FROM orders WHERE id = 3"))':
        "del orders[orders[3].amount]",
    'execute("INSERT INTO orders (id, symbol, price, amount) VALUES (?, ?, 1, NULL)", e.id, e.symbol)':
        "orders.insert(id=e.id, symbol=e.symbol, price=1, amount=None)",
    'execute("UPDATE orders SET price = price + ? WHERE id = ?", e.low, e.id)':
        "sql_row_1 = orders[e.id]\nsql_row_1.price = sql_row_1.price + e.low",
    'execute("UPDATE orders SET price = amount, amount = price WHERE id = ?", e.id)':
        "sql_row_1 = orders[e.id]\nsql_row_2 = sql_row_1.amount\nsql_row_3 = sql_row_1.price\n"
        "sql_row_1.price = sql_row_2\nsql_row_1.amount = sql_row_3",
}  # fmt: skip
REFUSED = {
    "SELECT * FROM orders WHERE price = ?": "no index selects these rows",
    "SELECT price FROM orders WHERE symbol = ?": "SELECT of several rows",
    "SELECT price, amount FROM orders WHERE id = ?": "SELECT has several expressions",
    "SELECT * FROM orders ORDER BY price": "no index selects these rows in this order",
    "SELECT * FROM orders WHERE id = 1 OR id = 2": "WHERE may have only",
    "SELECT * FROM orders, others": "names no table that the procedure takes",
    "SELECT * FROM others": "names no table that the procedure takes",
    "SELECT DISTINCT * FROM orders": "part that is not supported: distinct",
    "SELECT * FROM orders WHERE id = :name": "a placeholder may not have a name",
    "SELECT wrong FROM orders WHERE id = ?": "orders has no column wrong",
    "SELECT price / 2 FROM orders WHERE id = ?": "a value may have only",
    "SELECT FROM WHERE": "cannot be read",
    "UPDATE orders SET price = 1": "WHERE does not name a single row",
    "DELETE FROM orders WHERE id = ?; DELETE FROM orders WHERE id = ?": "execute takes one statement",
    "DELETE FROM orders": "WHERE does not name a single row",
    "INSERT INTO orders VALUES (1, 2, 3, 4)": "INSERT names its columns",
    "INSERT INTO orders (id) SELECT 1": "INSERT names its columns",
    "SELECT * FROM orders WHERE id = ? AND amount = ?": "placeholders and values differ in number: 2, 1",
}


def market() -> Database:
    database = penstock.database("market")
    database.table(
        "orders",
        "id bigint, symbol string NOT NULL, price bigint NOT NULL, amount bigint",
        key="id",
        indexes=["symbol", ("symbol", "price")],
    )
    return database


def procedure_of(body: str, database: Database, returns: str | None = None) -> Any:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    function = define(f"def change(e, orders):\n{lines}")
    return database.procedure(event=EVENT, returns=returns)(function)


@pytest.mark.parametrize("statement", PYTHON)
def test_a_statement_becomes_its_access(statement: str) -> None:
    text = procedure_of(statement, market()).text
    wanted = ast.parse(PYTHON[statement])
    assert ast.unparse(ast.Module(text.tree.body, [])) == ast.unparse(wanted)


@pytest.mark.parametrize("statement", REFUSED)
def test_what_is_no_access_is_refused_where_it_stands(statement: str) -> None:
    with pytest.raises(InvalidUsageError, match=REFUSED[statement]) as caught:
        values = ", e.id" * min(statement.count("?"), 1)
        call = f'execute("{statement}"{values})'
        reads = statement.startswith("SELECT")
        procedure_of(f"n = 1\nfor x in {call}:\n    pass" if reads else f"n = 1\n{call}", market())
    assert f"line=3 column={14 if reads else 5}" in str(caught.value)
    assert not str(caught.value).endswith("..")


def test_a_statement_of_no_literal_text_or_in_the_wrong_place_is_refused() -> None:
    for body, error in {
        "execute(e.symbol)": "execute takes a literal text",
        'x = execute("DELETE FROM orders WHERE id = 1")': "a statement that writes has no value",
        'execute("SELECT * FROM orders WHERE id = 1")': "nothing uses the rows",
    }.items():
        with pytest.raises(InvalidUsageError, match=error):
            procedure_of(body, market())
    with pytest.raises(InvalidUsageError, match="execute was called outside of a procedure"):
        penstock.execute("SELECT 1")


BODY = """
if e.kind == 0:
    execute(
        "INSERT INTO orders (id, symbol, price, amount) VALUES (?, ?, ?, ?)", e.id, e.symbol, e.low, e.amount
    )
elif e.kind == 1:
    execute("UPDATE orders SET price = amount, amount = price + ? WHERE id = ?", e.amount, e.id)
elif e.kind == 2:
    execute("DELETE FROM orders WHERE id = ?", e.id)
first = 0
for row in execute(
    "SELECT * FROM orders WHERE symbol = ? AND price >= ? AND price < ? ORDER BY price LIMIT 1",
    e.symbol, e.low, e.high,
):
    first = row.price
return execute("SELECT count(*) FROM orders WHERE symbol = ?", e.symbol), first
"""


def test_transactions_of_sql_leave_the_table_that_duckdb_has() -> None:
    database, draw = market(), random.Random(4)
    procedure = procedure_of(BODY, database, "orders bigint, first bigint")
    procedure.program().__dict__["kernel"] = interpreted(procedure.program())
    store = duckdb.connect()
    store.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, symbol VARCHAR, price BIGINT, amount BIGINT)")
    wanted = []
    events = []
    for _ in range(400):
        number, symbol, kind = draw.randrange(40), draw.choice("ABC"), draw.randrange(3)
        low, amount = draw.randrange(20), draw.randrange(20)
        events.append(
            {"id": number, "symbol": symbol, "low": low, "high": low + 9, "amount": amount, "kind": kind}
        )
        exists = store.execute("SELECT count(*) FROM orders WHERE id = ?", [number]).fetchall() != [(0,)]
        if exists == (kind == 0):
            wanted.append({"orders": None, "first": None})
            continue
        if kind == 0:
            store.execute("INSERT INTO orders VALUES (?, ?, ?, ?)", [number, symbol, low, amount])
        elif kind == 1:
            statement = "UPDATE orders SET price = amount, amount = price + ? WHERE id = ?"
            store.execute(statement, [amount, number])
        else:
            store.execute("DELETE FROM orders WHERE id = ?", [number])
        count, first = store.execute(
            "SELECT count(*), coalesce(min(price) FILTER (price >= ? AND price < ?), 0) FROM orders "
            "WHERE symbol = ?",
            [low, low + 9, symbol],
        ).fetchall()[0]  # fmt: skip
        wanted.append({"orders": count, "first": first})
    with database.open() as db:
        found = db.run("change", pa.Table.from_pylist(events))
        assert found.select(["orders", "first"]).to_pylist() == wanted
        assert 50 < found["rejected"].null_count < 350
        rows = db.table("orders").sort_by("id").select(["id", "symbol", "price", "amount"]).to_pylist()
    names = ("id", "symbol", "price", "amount")
    assert rows == [
        dict(zip(names, row, strict=True)) for row in store.sql("FROM orders ORDER BY id").fetchall()
    ]
