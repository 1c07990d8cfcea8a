"""Decimals of more than 18 digits in procedures: compiled transactions equal the plain run."""

from __future__ import annotations

from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import InvalidUsageError
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.partitions.placement import Placement
from penstock.procedures.plain.tables import PlainTables
from penstock.procedures.texts import TextNumbers
from tests.long_tests import examples
from tests.samples.streams import through_bytes
from tests.transactions.procedures import (
    comparable,
    contents,
    define,
    events_of,
    interpreted,
    plain,
    results_of,
)

EVENT = "b decimal(38, 6), c decimal(20, 0), w decimal(30, 0), n bigint, cs array<decimal(20, 0)>"
RETURNS = "b decimal(38, 6), c decimal(30, 0), n bigint"
SMALL, LARGE, WHOLE = Decimal("0.050000"), Decimal("1000000000000000000000000000000.000001"), Decimal(10**19)
CONSTANTS = {"SMALL": SMALL, "LARGE": LARGE, "WHOLE": WHOLE}


def shop(source: str, *, plain: bool = False) -> Database:
    database = penstock.database("shop")
    database.table(
        "t", "b decimal(38, 6), c decimal(20, 0), d decimal(38, 0), n bigint", key="b", indexes=["c", "d"]
    )
    database.table("u", "c decimal(38, 0), b decimal(38, 6), n bigint", key=("c", "b"))
    database.procedure(event=EVENT, returns=RETURNS, plain=plain)(define(source, CONSTANTS))
    return database


@st.composite
def sources(draw: Any) -> str:
    def one(*options: str) -> str:
        return str(draw(st.sampled_from(options)))

    def fraction() -> str:
        return one("e.b", "r.b", "SMALL", "LARGE")

    def whole() -> str:
        return one("e.c", "r.c", "WHOLE")

    def condition() -> str:
        return one(
            f"e.b {one('==', '!=')} {fraction()}",
            f"r.d {one('==', '!=')} {whole()}",
            "e.w == r.c",
            "r.d is None",
        )

    def statement() -> list[str]:
        range_text = one("[e.c]", "[e.c:]", "[WHOLE:]", "[:r.c]", "")
        return list(
            draw(st.sampled_from([
                [f"r.c = {whole()}"], [f"r.d = {one('e.c', 'e.w', 'WHOLE', 'r.c', 'r.d')}"], ["r.d = None"],
                [f"if {condition()}:", f"    r.d = {whole()}"], [f"if {condition()}:", '    abort("no")'],
                [f"if (e.c, {fraction()}) not in u:", "    u.insert(c=e.c, b=r.b, n=e.n)"],
                [f"other = t.get({fraction()})", "if other is not None:", f"    other.c = {whole()}"],
                [f"for x in t.by('c'){range_text}:", "    n += 1", "    if x.d == r.d:", "        n += 10"],
                [f"n += len(t.by('d')[{whole()}])"],
                ["last = t.by('d').last()", "if last is not None:", "    last.c = e.c"],
                ["for y in e.cs:", "    if y == r.c:", "        n += 100"],
                ["seen = set()", "seen.add(e.b)", f"if {fraction()} in seen:", "    n += 1000"],
            ]))
        )  # fmt: skip

    body = ["n = 0", "r = t.get(e.b)", "if r is None:", "    r = t.insert(b=e.b, c=e.c, d=e.w, n=e.n)"]
    for _ in range(draw(st.integers(1, 6))):
        body += statement()
    body.append("return r.b, e.w, n")
    return "\n".join(["def wide(e, t, u):", *(f"    {line}" for line in body)]) + "\n"


_fractions = st.sampled_from([SMALL, LARGE, LARGE.copy_negate(), Decimal("0.000000"), Decimal("-0.000001")])
_whole = st.sampled_from([WHOLE, -WHOLE, WHOLE + 1, Decimal(0), Decimal(10**20 - 1), Decimal(-1)])
EVENTS = st.lists(
    st.fixed_dictionaries({
        "b": st.none() | _fractions,
        "c": st.none() | _whole,
        "w": st.none() | _whole,
        "n": st.none() | st.integers(-5, 5),
        "cs": st.none() | st.lists(_whole, max_size=3),
    }),
    max_size=15,
)  # fmt: skip


def check(database: Database, rows: list[dict[str, Any]], cut: int) -> None:
    procedure = database.procedures["wide"]
    program, events = procedure.program(), events_of(procedure, rows)
    oracle = PlainTables(database.tables.values())
    expected = [comparable(one) for one in plain(procedure, events, oracle)]
    state = TableSet(database.tables.values())
    made: list[pa.RecordBatch] = [state.run(program, events.slice(0, cut))]
    units = [through_bytes(unit) for unit in state.snapshot()]
    state = TableSet(database.tables.values())
    state.restore(units)
    made.append(state.run(program, events.slice(cut)))
    assert results_of(made) == expected
    assert contents(state, database) == contents(oracle, database)


@settings(max_examples=examples(10))
@given(sources(), EVENTS, st.integers(0, 15))
def test_a_random_procedure_of_wide_decimals_does_what_python_does(
    source: str, rows: list[dict[str, Any]], cut: int
) -> None:
    database = shop(source)
    program = database.procedures["wide"].program()
    assert isinstance(program, Program)
    program.__dict__["kernel"] = interpreted(program)
    check(database, rows, cut)


COMPILED = """
def wide(e, t, u):
    n = 0
    r = t.get(e.b)
    if r is None:
        r = t.insert(b=e.b, c=e.c, d=e.w, n=e.n)
    for x in reversed(t.by("c")[e.c :]):
        n += 1
        if x.d != WHOLE and x.b != LARGE:
            n += 10
    first = t.by("d")[WHOLE].first()
    if first is not None:
        first.d = e.c
        if (e.c, e.b) not in u:
            u.insert(c=e.c, b=SMALL, n=n)
    if e.b == SMALL:
        abort("small")
    return LARGE if r.d is None else r.b, e.w, n
"""


@pytest.mark.parametrize("by_python", [False, True])
@settings(max_examples=examples(10))
@given(rows=EVENTS, cut=st.integers(0, 15))
def test_machine_code_and_python_do_what_python_does(
    by_python: bool, rows: list[dict[str, Any]], cut: int
) -> None:
    check(shop(COMPILED, plain=by_python), rows, cut)


@pytest.mark.parametrize(
    ("body", "fact", "hint"),
    [
        ("x = e.b + 1", "+ is for numbers, not for decimal(38, 6)", "18 digits, or as double"),
        ("x = 2 * e.b", "* is for numbers, not for decimal(38, 6)", "declare it with up to 18 digits"),
        ("x = -e.b", "- is for numbers, not for decimal(38, 6)", "declare it with up to 18 digits"),
        ("x = abs(e.b)", "abs is for numbers, not for decimal(38, 6)", "declare it with up to 18 digits"),
        ("x = e.c < e.c", "< is for numbers", "with == and !=; for < declare it with up to 18 digits"),
        ("x = min(e.b, e.b)", "< is for numbers", "declare it with up to 18 digits"),
        ("x = int(e.c)", "a decimal(20, 0) cannot be converted", "put it into the event"),
        ("x = e.b == e.c", "decimal(38, 6) is compared with decimal(20, 0)", "6 digits after the point"),
        ("x = e.b == 1", "decimal(38, 6) is compared with integer", "a global Decimal with 6 digits"),
        ("x = e.c == SMALL", "decimal(20, 0) is compared with decimal(6)", "0 digits after the point"),
        ("t[e.b].c = e.w", "the column c is decimal(20, 0), the value is decimal(30, 0)", "0 digits after"),
        ("t[e.b].c = LARGE", "the column c is decimal(20, 0), the value is decimal(38, 6)", "0 digits after"),
        ("t[e.b].c = 1", "the column c is decimal(20, 0), the value is integer", "0 digits after the point"),
        ("x = t.get(e.c)", "the key b of t is decimal(38, 6), the value is decimal(20, 0)", "6 digits after"),
        ("x = len(t.by('c')[1])", "the column c is decimal(20, 0), the value is integer", "0 digits after"),
    ],
)  # fmt: skip
def test_what_needs_the_number_itself_is_refused(body: str, fact: str, hint: str) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        shop(f"def wide(e, t, u):\n    {body}\n    return None, None, 0\n")
    assert fact in str(caught.value)
    assert hint in str(caught.value)
    assert "line=2 column=" in str(caught.value)


@pytest.mark.parametrize("scale", [0, 6, 38])
def test_decimals_become_numbers_and_bytes_that_have_their_order(scale: int) -> None:
    kind, digits = pa.decimal128(38, scale), [10**38 - 1, 1 - 10**38, 0, -1, 1, None, 1 << 64, -(1 << 64), 0]
    values = [None if one is None else Decimal(one).scaleb(-scale, Context(prec=40)) for one in digits]
    column = pa.array([Decimal(7).scaleb(-scale), *values], kind).slice(1)
    texts = TextNumbers()
    numbers = texts.numbers(column)
    assert len(texts) == len(set(digits)) - 1
    assert texts.column(numbers, kind, np.array([one is None for one in digits])).equals(column)
    assert texts.known_numbers(column).tolist() == [
        -1 if one is None else n for one, n in zip(digits, numbers, strict=True)
    ]
    known = [one for one in values if one is not None]
    ranks = texts.ranks(numbers[column.is_valid().to_numpy(zero_copy_only=False)])
    assert [known[place] for place in np.argsort(ranks, kind="stable")] == sorted(known)


SUMS = """
def note(e, sums):
    row = sums.get(e.who)
    if row is None:
        row = sums.insert(who=e.who)
    old = row.total
    row.total = e.total
    return old
"""


@pytest.mark.parametrize("partitions", [1, 2])
def test_an_open_database_stores_wide_decimals_and_casts_exactly(tmp_path: Path, partitions: int) -> None:
    database = penstock.database("shop")
    database.table("sums", "who decimal(20, 0), total decimal(38, 6)", key="who", partition_by="who")
    event = "who decimal(20, 0), total decimal(38, 6)"
    database.procedure(event=event, returns="old decimal(38, 6)")(define(SUMS))
    who = Decimal(10**19)
    ranges = {"sums": [who]} if partitions > 1 else None
    with database.open(tmp_path / "shop", partitions=partitions, ranges=ranges) as db:
        db.load("sums", {"who": [who - 1], "total": [Decimal("2.5")]})
        assert db.call("note", who=who - 1, total=LARGE) == {"old": Decimal("2.500000"), "rejected": None}
        assert db.call("note", who=who, total=SMALL)["old"] is None
        assert db.call("note", who=who, total=Decimal("0.1"))["old"] == SMALL
        for misfit in (Decimal("0.0000001"), Decimal(10**32), "x"):
            with pytest.raises(InvalidUsageError, match="a column does not fit"):
                db.call("note", who=who, total=misfit)
    with database.open(tmp_path / "shop", partitions=partitions, ranges=ranges) as db:
        assert sorted(map(tuple, (row.values() for row in db.table("sums").to_pylist()))) == [
            (who - 1, LARGE), (who, Decimal("0.100000")),
        ]  # fmt: skip


def test_equal_decimals_have_one_partition() -> None:
    database = penstock.database("shop")
    spec = database.table("sums", "who decimal(20, 0), total bigint", key="who", partition_by="who")
    values = pa.array([Decimal(10**19), None, Decimal(1), Decimal(10**19)], pa.decimal128(20, 0))
    places = Placement(spec, 7).partitions_of(spec.key_columns, [values])
    assert places[0] == places[3]
    assert Placement(spec, 2, [Decimal(2)]).partitions_of(spec.key_columns, [values]).tolist() == [1, 0, 0, 1]
