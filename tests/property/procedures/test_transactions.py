"""Compiled transactions equal the plain run of the same text, in serial order."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import penstock
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.plain.tables import PlainTables
from tests.long_tests import long_but
from tests.samples.streams import through_bytes
from tests.transactions.procedures import (
    EVENTS,
    bank,
    comparable,
    contents,
    define,
    events_of,
    interpreted,
    plain,
    results_of,
    sources,
)


def empty(database: Database) -> TableSet:
    """Return tables whose look-ups are prefetched whatever their size."""
    return TableSet(database.tables.values(), prefetch_index_bytes=0)


CUTS = st.lists(st.tuples(st.integers(0, 25), st.sampled_from(["go on", "restart", "catch up"])), max_size=4)


def check(database: Database, rows: list[dict[str, Any]], cuts: list[tuple[int, str]]) -> None:
    """Run events in micro-batches, with restarts between them; compare with the plain run of all."""
    procedure = database.procedures["random"]
    program, events = procedure.program(), events_of(procedure, rows)
    oracle = PlainTables(database.tables.values())
    expected = [comparable(one) for one in plain(procedure, events, oracle)]
    state, behind = empty(database), empty(database)
    made: list[pa.RecordBatch] = []
    begin, versions = 0, []
    for place, then in [*sorted(cuts), (len(rows), "go on")]:
        end = min(max(place, begin), len(rows))
        made.append(state.run(program, events.slice(begin, end - begin)))
        versions.append(through_bytes(state.delta()))
        if then == "restart":
            units = [through_bytes(unit) for unit in state.snapshot()]
            state = empty(database)
            state.restore(units)
        elif then == "catch up":
            behind.restore(versions)
            versions = []
            assert contents(behind, database) == contents(oracle_after(database, rows[:end]), database)
        begin = end
    assert results_of(made) == expected
    assert contents(state, database) == contents(oracle, database)
    assert state.transactions == len(rows)


def oracle_after(database: Database, rows: list[dict[str, Any]]) -> PlainTables:
    procedure = database.procedures["random"]
    oracle = PlainTables(database.tables.values())
    plain(procedure, events_of(procedure, rows), oracle)
    return oracle


@given(sources(), EVENTS, CUTS)
def test_a_random_procedure_does_what_python_does(
    source: str, rows: list[dict[str, Any]], cuts: list[tuple[int, str]]
) -> None:
    database = bank(source)
    program = database.procedures["random"].program()
    # Numba takes seconds for each; what it compiles is tested below.
    assert isinstance(program, Program)
    program.__dict__["kernel"] = interpreted(program)
    check(database, rows, cuts)


@pytest.mark.long
@given(sources(), EVENTS, CUTS)
def test_machine_code_of_a_random_procedure_does_what_python_does(
    source: str, rows: list[dict[str, Any]], cuts: list[tuple[int, str]]
) -> None:
    check(bank(source), rows, cuts)


COMPILED = {
    "everything": '''
def random(e, a, b, c):
    i = 0
    t = e.s
    for k in e.ks:
        row = a.get(k)
        if row is None:
            a.insert(k=k, x=e.v, n=k, f=e.f, s=t)
        elif row.s == t:
            row.x += e.v * 2
            row.n = row.n + 1
        else:
            del a[k]
            t = None
        i += k
    if (e.k, e.j) in b:
        b[e.k, e.j].x -= i
    else:
        b.insert(k=e.k, j=e.j, x=i, d=e.f / 2)
    if t not in c:
        c.insert(s=t, x=i // e.j, b=e.b)
    if e.b and (i > 3 or e.v % e.j == 1):
        abort("one")
    for r in range(e.j, 3):
        if r == 2:
            continue
        c[t].x = min(r, i) - abs(e.k)
        if e.f > 0.05:
            break
    return i, e.f * i, t, c[t].x
''',
    "indexes": '''
def random(e, a, b, c):
    for r in a.by("s", "x")[e.s, 0:9]:
        r.n = r.k
        if r.k == e.k:
            del a[r.k]
            break
    if e.k not in a:
        a.insert(k=e.k, x=e.v, n=1, f=e.f, s=e.s)
    best = a.by("x").last()
    if best is not None:
        best.f = e.f
        best.x = best.x // 2
    total = 0
    for r in reversed(a.by("f")[0.0:]):
        total += r.k
    for r in a.by("s", "x").first(e.j):
        total -= 1
    if (e.k, e.j) in b:
        b[e.k, e.j].d = e.f
    else:
        b.insert(k=e.k, j=e.j, x=total, d=e.f)
    for q in b.by("d")[e.f:]:
        total += len(b.by("j", "k")[q.j, :3])
    if e.s not in c:
        c.insert(s=e.s, b=e.b, x=e.k)
    last = None
    for p in c.by("s").last(2):
        last = p.s
    if e.b:
        abort("one")
    c[e.s].b = e.k == 1
    lowest = c.by("b")[False].first()
    return total, e.f, last, 0 if lowest is None else lowest.x
''',
    "undo": '''
def random(e, a, b, c):
    for k in e.ks:
        if k in a:
            del a[k]
        a.insert(k=k, x=helper(event(key=0, amount=0), a) if False else 1)
        a.insert(k=k + 10, s=e.s)
    a[e.k].x += 1
    helper(event(key=e.k, amount=e.v), a)
    a[e.j].x += 1
''',
}  # fmt: skip
COMPILED["undo"] = COMPILED["undo"].replace("helper(event(key=0, amount=0), a) if False else 1", "e.v")


@pytest.mark.parametrize("name", long_but(COMPILED, "everything", "indexes"))
@given(rows=EVENTS, cuts=CUTS)
def test_machine_code_does_what_python_does(
    name: str, rows: list[dict[str, Any]], cuts: list[tuple[int, str]]
) -> None:
    check(bank(COMPILED[name]), rows, cuts)


@given(EVENTS, CUTS)
def test_python_runs_a_procedure_over_the_same_tables(
    rows: list[dict[str, Any]], cuts: list[tuple[int, str]]
) -> None:
    check(bank(COMPILED["everything"], plain=True), rows, cuts)


SETS = """
def distinct(e, seen):
    odd = set()
    fresh = 0
    for turn in range(2):
        numbers = set()
        for number in e.numbers:
            if number % 2 == 1:
                odd.add(number)
            if number not in numbers and number not in odd:
                fresh += 1
            numbers.add(number + turn)
        if len(numbers) > 3:
            abort("many")
    return len(odd), fresh
"""


@cache
def _sets() -> Database:
    database = penstock.database("sets")
    database.table("seen", "id bigint", key="id")
    procedure = database.procedure(event="numbers array<bigint>", returns="odd bigint, fresh bigint")
    procedure(define(SETS))
    return database


@given(st.lists(st.lists(st.integers(-(1 << 63), (1 << 63) - 2), max_size=6), max_size=9))
@example([[1, 1, 2, 2, 3], [], [5, 6, 7, 9], [4]])
def test_compiled_sets_are_those_of_python(lists: list[list[int]]) -> None:
    database = _sets()
    procedure = database.procedures["distinct"]
    events = events_of(procedure, [{"numbers": numbers} for numbers in lists])
    state, oracle = empty(database), PlainTables(database.tables.values())
    assert results_of([state.run(procedure.program(), events)]) == plain(procedure, events, oracle)
