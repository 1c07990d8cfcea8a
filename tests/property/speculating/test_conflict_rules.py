"""Conflict rules never miss two statements whose order, or whose undoing, can be seen."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.procedures.databases import Database
from penstock.procedures.language import abort
from penstock.procedures.programs.oltp.tpcc import NEW_ORDER, PAYMENT, STOCK_LEVEL, TPCC, transact
from penstock.speculating.rules import (
    UNKNOWN_KEY,
    ConflictRules,
    Step,
    conflict_by_row,
    conflict_by_table,
)
from penstock.speculating.statements import Statement, columns_used, specialize

State = dict[tuple[str, int], dict[str, int]]


Drawn = tuple[Statement, int, int]
"""A statement, its key or the begin of its range, and a value that it writes."""


def make(verb: str, table: str, columns: str) -> Statement:
    """Return a statement."""
    shown = frozenset(columns) if verb in ("read", "select") else frozenset()
    writes = {"write": columns, "insert": "kab", "delete": "kab"}.get(verb, "")
    return Statement(verb, table, shown | {"k"}, frozenset(writes), verb != "select")


STATEMENTS = [
    make(verb, table, columns)
    for table in "tu"
    for verb in ("read", "select", "write", "insert", "delete")
    for columns in ("a", "b", "ab")
]
STATES: list[State] = [
    {},
    {("t", 1): {"a": 0, "b": 1}},
    {("t", 2): {"a": 0, "b": 1}, ("u", 1): {"a": 2, "b": 1}},
    {("t", 1): {"a": 0, "b": 1}, ("t", 2): {"a": 1, "b": 1}, ("t", 3): {"a": 2, "b": 2}},
]


def execute(state: State, drawn: Drawn) -> Any:
    """Execute a statement; return what its transaction sees of it."""
    statement, key, value = drawn
    place = statement.table, key
    if statement.verb == "select":
        return sorted(
            (at[1], *(row[name] for name in sorted(statement.reads - {"k"})))
            for at, row in state.items()
            if at[0] == statement.table and at[1] >= key
        )
    row = state.get(place)
    if statement.verb == "insert":
        if row is None:
            state[place] = {"a": value, "b": value}
    elif row is not None:
        if statement.verb == "read":
            return [row[name] for name in sorted(statement.reads - {"k"})]
        if statement.verb == "delete":
            del state[place]
        else:
            state[place] = row | dict.fromkeys(statement.writes, value)
    return row is None


@pytest.mark.parametrize("state", STATES)
def test_statements_that_do_not_conflict_run_in_any_order(state: State) -> None:
    free = [make("read", "t", "a"), make("select", "t", "b")]
    drawn = [(one, key, 10) for one in STATEMENTS if one.table == "t" for key in (1, 2)]
    others = [(one, key, 11) for one in STATEMENTS for key in (1, 2)]
    count = 0
    for one, other in itertools.product(drawn, others):
        by_row = conflict_by_row(one[0], other[0])
        if by_row == 0 or (by_row == 1 and one[1] != other[1]):
            check_any_order(one, other, state)
            count += 1
    assert count > len(drawn) * len(others) / 3
    assert conflict_by_row(*free) == 0


def check_any_order(one: Drawn, other: Drawn, state: State) -> None:
    """Check that neither statement sees the other, nor that it is undone."""
    first, second, third = dict(state), dict(state), dict(state)
    seen = execute(first, one), execute(first, other)
    swapped = execute(second, other), execute(second, one)
    assert seen == swapped[::-1], (one, other)
    assert first == second, (one, other)
    place = one[0].table, one[1]
    if one[0].changes:
        for undone in (first, second):
            undone.pop(place, None)
            undone.update({place: state[place]} if place in state else {})
        execute(third, other)
        assert first == second == third, (one, other)


def test_rules_are_symmetric_and_those_by_table_are_the_stricter_ones() -> None:
    for a, b in itertools.product(STATEMENTS, STATEMENTS):
        assert conflict_by_row(a, b) == conflict_by_row(b, a)
        assert conflict_by_table(a, b) == conflict_by_table(b, a) == (conflict_by_row(a, b) > 0)
        assert a.changes or b.changes or not conflict_by_table(a, b)


STEPS = st.lists(
    st.tuples(st.sampled_from(STATEMENTS), st.sampled_from([0, 1, 2, UNKNOWN_KEY])), min_size=1, max_size=3
)


@settings(max_examples=200)
@given(one=STEPS, other=STEPS)
def test_summaries_of_steps_conflict_as_their_pairs_do(one: Any, other: Any) -> None:
    rules = ConflictRules(statement for statement, _ in [*one, *other])
    steps = [[Step(rules.number(statement), key, 0) for statement, key in each] for each in (one, other)]

    def pair_conflicts(a: Step, b: Step) -> bool:
        by_row = conflict_by_row(rules.statements[a.statement], rules.statements[b.statement])
        return by_row == 2 or (by_row == 1 and (a.key == b.key or UNKNOWN_KEY in (a.key, b.key)))

    expected = any(pair_conflicts(a, b) for a in steps[0] for b in steps[1])
    assert rules.conflict(*(rules.summarize(each, "rows") for each in steps)) == expected
    by_table = any(conflict_by_table(a[0], b[0]) for a in one for b in other)
    assert rules.conflict(*(rules.summarize(each, "tables") for each in steps)) == by_table


def test_a_kind_of_a_procedure_uses_the_columns_of_its_branch() -> None:
    used = {
        kind: columns_used([specialize(transact.text, "kind", kind)], TPCC.tables)
        for kind in (NEW_ORDER, PAYMENT, STOCK_LEVEL)
    }
    assert used[PAYMENT]["districts"].written == {"ytd"}
    assert used[PAYMENT]["districts"].read == {"name", "ytd"}
    assert used[NEW_ORDER]["districts"].written == {"next_o_id"}
    assert used[STOCK_LEVEL]["stock"].read == {"quantity"}
    assert used[STOCK_LEVEL]["stock"].written == set()
    assert used[NEW_ORDER]["history"].written == used[NEW_ORDER]["history"].read == set()
    assert {"last", "first", "c_id"} <= used[PAYMENT]["customers"].read
    assert "balance" in columns_used([transact.text], TPCC.tables)["customers"].written


def test_a_row_in_a_variable_of_several_tables_counts_for_all_of_them() -> None:
    shop = Database("shop")
    shop.table("a", "k bigint, x bigint, y bigint", key="k")
    shop.table("b", "k bigint, x bigint, z bigint", key="k", indexes=["z"])

    @shop.procedure(event="k bigint, kind bigint", returns="x bigint")
    def use(e: Any, a: Any, b: Any) -> Any:
        row = a[e.k]
        if e.kind == 1:
            row.x += 1
            return row.x
        if e.kind > 5:
            abort("no")
        for other in b.by("z")[2:]:
            other.x = a[e.k].y
        return row.x

    everything = columns_used([use.text], shop.tables)
    assert everything["a"].written == {"x"}
    assert everything["b"].written == {"x"}
    assert everything["b"].read == {"z"}
    one = columns_used([specialize(use.text, "kind", 1)], shop.tables)
    assert one["b"].written == one["b"].read == set()
    two = columns_used([specialize(use.text, "kind", 2)], shop.tables)
    assert (two["a"].written, two["a"].read, two["b"].written) == (set(), {"x", "y"}, {"x"})
