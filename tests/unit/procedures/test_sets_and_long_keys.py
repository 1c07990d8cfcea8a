"""Sets of procedures, and keys and indexes of four columns."""

from __future__ import annotations

import pytest

import penstock
from penstock.errors import InvalidUsageError
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.plain.tables import PlainTables
from tests.transactions.procedures import contents, define, events_of, interpreted, plain, results_of
from tests.unit.procedures.test_transactions import declare, shop


def lines() -> Database:
    database = penstock.database("lines")
    database.table(
        "lines",
        "a bigint, b int, c string, d bigint, item bigint, amount bigint",
        key=("a", "b", "c", "d"),
        indexes=[("item", "c", "b", "a"), ("a", "b", "c", "item")],
    )
    return database


BODY = """
def change(e, lines):
    seen = set()
    texts = set()
    found = 0
    key = lines.get((e.a, e.b, e.c, e.d))
    if key is None:
        lines.insert(a=e.a, b=e.b, c=e.c, d=e.d, item=e.item, amount=1)
    elif e.item == 3:
        del lines[e.a, e.b, e.c, e.d]
    else:
        key.item = e.item
        key.amount += 1
    for row in lines.by("a", "b", "c", "item")[e.a, e.b, e.c, 1:]:
        if row.item not in seen:
            found += 1
        seen.add(row.item)
        texts.add(row.c)
    if e.missing is not None or 2 in seen:
        seen.add(e.missing)
    return len(seen), len(texts), found
"""
EVENT = "a bigint, b int, c string, d bigint, item bigint, missing bigint"


def test_sets_and_keys_of_four_columns_give_the_results_of_plain_python() -> None:
    database = lines()
    procedure = database.procedure(event=EVENT, returns="items bigint, texts bigint, found bigint")(
        define(BODY)
    )
    rows = [
        {
            "a": i % 2, "b": i % 3, "c": "xyz"[i * i % 3], "d": i * 7 % 5, "item": i * i % 7,
            "missing": i if i % 11 == 0 else None,
        }
        for i in range(300)
    ]  # fmt: skip
    events = events_of(procedure, rows)
    state, tables = TableSet(database.tables.values()), PlainTables(database.tables.values())
    program = procedure.program()
    program.__dict__["kernel"] = interpreted(program)
    made = results_of([state.run(program, events)])
    assert made == plain(procedure, events, tables)
    assert contents(state, database) == contents(tables, database)
    assert {why for *_, why in made} == {None, "null"}
    assert max(items for items, *_ in made if items is not None) > 2
    again = TableSet(database.tables.values())
    again.restore([state.delta()])
    assert contents(again, database) == contents(state, database)


def test_machine_code_has_sets() -> None:
    database = penstock.database("compiled")
    database.table("t", "a int, b int, c int, d int", key=("a", "b", "c", "d"))
    text = """
def count(e, t):
    s = set()
    for k in e.ks:
        s.add(k % 3)
    if 2 in s and (1, 1, 1, len(s)) not in t:
        t.insert(a=1, b=1, c=1, d=len(s))
    return len(s)
"""
    database.procedure(event="ks array<bigint>", returns="n bigint")(define(text))
    with database.open() as db:
        assert [db.call("count", ks=ks)["n"] for ks in ([], [3, 6, 9], [1, 2, 5], [2, 8])] == [0, 1, 2, 1]
        assert db.table("t")["d"].to_pylist() == [2, 1]


@pytest.mark.parametrize(
    ("body", "line", "column", "fact"),
    [
        ("s = set(e.ks)", 2, 5, "a set is empty at first"),
        ("s = set()\nx = s", 3, 9, "a set is not a value"),
        ("s = set()\nfor x in s:\n    pass", 3, 14, "a set is not a value"),
        ("s = set()\ns.add(e.f)", 3, 11, "a set has no floats"),
        ("s = set()\ns.add(e.k)\ns.add(e.s)", 4, 11, "an element of this set is integer, the value is text"),
        ("s = set()\ns.discard(e.k)", 3, 5, "a set has only add"),
        ("s = set()\ns = 1", 3, 5, "s cannot be assigned"),
        ("s = 1\ns = set()", 3, 5, "the name s is already used"),
        ("if e.k > 1:\n    s = set()\ns.add(e.k)", 4, 5, "s may have no value here"),
        ("items = set()", 2, 5, "the name items is already used"),
    ],
)
def test_other_uses_of_sets_are_errors_with_their_place(body: str, line: int, column: int, fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact) as caught:
        declare(shop(), body)
    assert (caught.value.context["line"], caught.value.context["column"]) == (line, column)


def test_a_key_of_five_columns_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="one to four columns"):
        penstock.database("five").table("t", "a int, b int, c int, d int, e int", key=tuple("abcde"))
