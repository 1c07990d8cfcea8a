"""Decimals and binary columns in procedures: compiled transactions equal the plain run."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import InvalidUsageError
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.plain.tables import PlainTables
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

EVENT = "k binary, d decimal(9, 3), w decimal(18, 0), n bigint, raw binary"
RETURNS = "p decimal(12, 2), raw binary, whole bigint, real double"
CENT = Decimal("0.05")


def shop(source: str, *, plain: bool = False) -> Database:
    database = penstock.database("shop")
    database.table(
        "t",
        "k binary, p decimal(10, 2), q decimal(18, 4) NOT NULL, raw binary",
        key="k",
        indexes=["p", "raw"],
    )
    database.table("u", "p decimal(10, 2), k binary, n bigint", key=("p", "k"))
    database.procedure(event=EVENT, returns=RETURNS, plain=plain)(define(source, {"CENT": CENT}))
    return database


class _Draw:
    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def one(self, options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def decimal(self, most: int, depth: int = 2) -> tuple[str, int]:
        """Return an expression with at most so many digits behind the point, and how many it has."""
        plain = [("e.w", 0), ("CENT", 2), ("r.p", 2), ("e.d", 3), ("r.q", 4)]
        plain = [one for one in plain if one[1] <= most]
        if depth == 0 or self.draw(st.booleans()):
            return self.one(plain)
        (a, x), (b, y) = self.decimal(most, depth - 1), self.decimal(most, depth - 1)
        shape = self.one(["+", "-", "*", "n", "neg", "abs", "min", "if"])
        if shape == "*" and x + y <= most:
            return f"({a} * {b})", x + y
        if shape == "n":
            return f"({a} {self.one(['+', '-', '*'])} {self.one(['e.n', '3'])})", x
        if shape == "neg":
            return f"-{a}", x
        if shape == "abs":
            return f"abs({a})", x
        if shape == "min":
            return f"{self.one(['min', 'max'])}({a}, {b}, e.n)", max(x, y)
        if shape == "if" and x == y:
            return f"({a} if {a} < {b} else {b})", x
        return f"({a} {self.one(['+', '-'])} {b})", max(x, y)

    def condition(self) -> str:
        a, b = self.decimal(4, 1)[0], self.decimal(4, 1)[0]
        sign = self.one(["<", "<=", "==", "!="])
        return str(
            self.one([f"{a} {sign} {b}", f"{a} {sign} e.n", 'e.raw == b"x"', "r.raw != e.raw", "r.p is None"])
        )

    def statement(self) -> list[str]:
        p, q = self.decimal(2)[0], self.decimal(4)[0]
        low, high = (f"(CENT * 20 * {self.one(['e.n', '3', '-1'])})" for _ in range(2))
        return list(
            self.one([
                [f"r.p = {p}"], [f"r.q = {q}"], [f"r.q += {self.decimal(4)[0]}"], ["r.p = None"],
                ["r.raw = e.raw"], ['r.raw = b"x"'], [f"if {self.condition()}:", f"    r.p = {p}"],
                [f"if {self.condition()}:", '    abort("no")'], [f"whole = int({q})"], [f"real = float({q})"],
                ["if (r.p, e.k) not in u:", f"    u.insert(p=r.p, k=r.k, n=int({p}))"],
                [f"for x in t.by('p')[{low} : {high}]:", "    whole += 1"],
                ["whole = len(t.by('raw')[e.raw])"],
                ["first = t.by('p').first()", "if first is not None:", f"    first.q = {self.decimal(4)[0]}"],
            ])
        )  # fmt: skip


@st.composite
def sources(draw: Any) -> str:
    drawing = _Draw(draw)
    body = ["whole = 0", "real = 0.0", "r = t.get(e.k)", "if r is None:"]
    body += ["    r = t.insert(k=e.k, p=e.w, q=e.d, raw=e.raw)"]
    for _ in range(draw(st.integers(1, 6))):
        body += drawing.statement()
    body.append("return r.p, r.raw, whole, real")
    return "\n".join(["def random(e, t, u):", *(f"    {line}" for line in body)]) + "\n"


_decimals = st.integers(-(10**9) + 1, 10**9 - 1).map(lambda one: Decimal(one).scaleb(-3))
_whole = st.one_of(
    st.integers(-3, 3), st.sampled_from([10**17, -(10**17), 10**18 - 1, 10**8 - 1, -(10**8)])
).map(Decimal)
_bytes = st.sampled_from([b"", b"x", b"\x00\xff", b"long bytes"])
EVENTS = st.lists(
    st.fixed_dictionaries({
        "k": st.none() | _bytes,
        "d": st.none() | st.one_of(_decimals, st.sampled_from([Decimal("0.050"), Decimal("0.000")])),
        "w": st.none() | _whole,
        "n": st.none() | st.integers(-5, 5) | st.sampled_from([1 << 62, -(1 << 63)]),
        "raw": st.none() | _bytes,
    }),
    max_size=15,
)  # fmt: skip


def check(database: Database, rows: list[dict[str, Any]], cut: int) -> None:
    procedure = database.procedures["random"]
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


@given(sources(), EVENTS, st.integers(0, 15))
def test_a_random_procedure_of_decimals_does_what_python_does(
    source: str, rows: list[dict[str, Any]], cut: int
) -> None:
    database = shop(source)
    program = database.procedures["random"].program()
    assert isinstance(program, Program)
    program.__dict__["kernel"] = interpreted(program)
    check(database, rows, cut)


COMPILED = """
def random(e, t, u):
    r = t.get(e.k)
    if r is None:
        r = t.insert(k=e.k, p=e.w, q=e.d, raw=e.raw)
    r.q += e.w * CENT * 10 - r.p * 2 + e.d
    whole = 0
    for x in reversed(t.by("p")[: CENT + 3]):
        whole -= int(x.q)
    best = t.by("raw")[e.raw].last()
    if best is not None and best.raw == b"x":
        best.p = min(CENT, e.w) + abs(e.w)
    if r.p is None or r.p > e.n:
        abort("no")
    return r.p, r.raw, whole, float(r.q)
"""


@pytest.mark.parametrize("by_python", [False, True])
@given(rows=EVENTS, cut=st.integers(0, 15))
def test_machine_code_and_python_over_the_same_tables_do_what_python_does(
    by_python: bool, rows: list[dict[str, Any]], cut: int
) -> None:
    check(shop(COMPILED, plain=by_python), rows, cut)


@pytest.mark.parametrize(
    ("body", "fact"),
    [
        ("x = e.d / 2", "/ is not for decimals"),
        ("x = e.d + 0.5", "decimal(3) cannot be combined with float"),
        ("t[e.k].p = e.d", "the column p is decimal(2), the value is decimal(3)"),
        ("t[e.k].p = 0.5", "the column p is decimal(2), the value is float"),
        ("x = e.raw < b'x'", "< is for numbers"),
        ("x = e.raw == 'x'", "binary is compared with text"),
        ("x = t.by('raw')['x'].first()", "the column raw is binary, the value is text"),
        ("x = e.d * e.d * e.d * e.d * e.d * e.d * e.d", "is not supported"),
    ],
)
def test_what_has_no_exact_result_is_an_error(body: str, fact: str) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        shop(f"def random(e, t, u):\n    {body}\n    return None, None, 0, 0.0\n")
    assert fact in str(caught.value)
