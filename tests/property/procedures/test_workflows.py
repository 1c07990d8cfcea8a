"""Workflows keep both order constraints, and equal the plain run of the same text in serial order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import InternalError
from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.engine import TableSet, event_schema
from penstock.procedures.plain.rounds import PlainRounds
from penstock.procedures.procedure import Procedure
from penstock.procedures.workflows.batches import batch_bounds
from penstock.procedures.workflows.rejections import take_texts
from penstock.procedures.workflows.workflow import Workflow
from tests.samples.streams import through_bytes
from tests.transactions.procedures import comparable, define, interpreted, results_of
from tests.transactions.workflows import (
    ROUNDS,
    Drawn,
    NaiveWindow,
    ScheduleError,
    check_schedule,
    state_bytes,
    workflows,
)

CUTS = st.lists(st.tuples(st.integers(0, 25), st.sampled_from(["go on", "restart", "catch up"])), max_size=4)


def program_of(one: Procedure | Workflow) -> Program | PlainProgram:
    """Return a program whose kernel Python runs: Numba would take seconds for each."""
    program = one.program()
    if isinstance(program, Program):
        program.__dict__["kernel"] = interpreted(program)
    return program


def bounds_of(events: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return where the rounds of events begin, by their numbers."""
    if "round" not in events.schema.names:
        return np.arange(events.num_rows + 1)
    return batch_bounds(events.column("round"), "round")


def run_in_batches(
    drawn: Drawn, events: pa.RecordBatch, cuts: list[tuple[int, str]]
) -> tuple[list[tuple[Any, ...]], TableSet]:
    """Run rounds in micro-batches, with restarts between them; return the results and the state."""
    program, tables = program_of(drawn.flow), drawn.database.catalog.all_tables.values()
    state = TableSet(tables)
    made: list[pa.RecordBatch] = []
    versions = []
    begin, bounds = 0, bounds_of(events)
    rounds = len(bounds) - 1
    for place, then in [*sorted(cuts), (rounds, "go on")]:
        end = min(max(place, begin), rounds)
        first, last = int(bounds[begin]), int(bounds[end])
        part = bounds[begin : end + 1] - first if rounds < events.num_rows else None
        made.append(state.run(program, events.slice(first, last - first), part))
        versions.append(through_bytes(state.delta()))
        if then == "catch up" and isinstance(drawn.flow, Workflow):
            # A version has whole rounds and nothing else.
            _, expected = oracle(drawn, events.slice(0, last))
            behind = TableSet(tables)
            behind.restore(versions)
            found, wanted = state_bytes(behind, drawn.database), state_bytes(expected, drawn.database)
            assert {name: found[name] for name in wanted} == wanted
        if then != "go on":
            units = [through_bytes(one) for one in state.snapshot()] if then == "restart" else versions
            state = TableSet(tables)
            state.restore(units)
        begin = end
    assert state.transactions == rounds
    return results_of(made), state


def oracle(drawn: Drawn, events: pa.RecordBatch) -> tuple[list[tuple[Any, ...]], PlainRounds]:
    """Run the texts by Python, one round after the other."""
    assert isinstance(drawn.flow, Workflow)
    stages = drawn.flow.stages
    dependencies = drawn.database.catalog.find_dependencies([one.text for one in stages])
    tables = PlainRounds(dependencies)
    return [comparable(row) for row in tables.run_workflow(stages, events, bounds_of(events))], tables


@given(workflows(), ROUNDS, CUTS)
def test_a_random_workflow_does_what_python_does(
    drawn: Drawn, rows: list[dict[str, Any]], cuts: list[tuple[int, str]]
) -> None:
    events = pa.RecordBatch.from_pylist(rows, schema=event_schema(drawn.flow.program().event))
    results, state = run_in_batches(drawn, events, cuts)
    expected, tables = oracle(drawn, events)
    assert results == expected
    found, wanted = state_bytes(state, drawn.database), state_bytes(tables, drawn.database)
    assert {name: found[name] for name in wanted} == wanted


@given(workflows(), ROUNDS, CUTS)
def test_a_random_workflow_keeps_both_orders(
    drawn: Drawn, rows: list[dict[str, Any]], cuts: list[tuple[int, str]]
) -> None:
    events = pa.RecordBatch.from_pylist(rows, schema=event_schema(drawn.flow.program().event))
    _, state = run_in_batches(drawn, events, cuts)
    log = state["log"].table().sort_by("seq").to_pylist()
    assert [row["seq"] for row in log] == list(range(1, len(log) + 1))
    check_schedule([(f"p{row['stage']}", row["round"]) for row in log], drawn.edges, drawn.groups)


@given(workflows(plain=True), ROUNDS, CUTS)
def test_python_runs_a_workflow_over_the_same_tables(
    drawn: Drawn, rows: list[dict[str, Any]], cuts: list[tuple[int, str]]
) -> None:
    events = pa.RecordBatch.from_pylist(rows, schema=event_schema(drawn.flow.program().event))
    results, state = run_in_batches(drawn, events, cuts)
    expected, tables = oracle(drawn, events)
    assert results == expected
    found, wanted = state_bytes(state, drawn.database), state_bytes(tables, drawn.database)
    assert {name: found[name] for name in wanted} == wanted


def test_the_checker_knows_correct_schedules_from_others() -> None:
    edges, groups = [("a", "b"), ("a", "c")], [["b", "c"]]
    for correct in (
        [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("c", 2), ("b", 2)],
        [("a", 1), ("a", 2), ("b", 1), ("c", 1), ("b", 2), ("c", 2)],
        [("a", 1), ("b", 1), ("b", 1), ("a", 2), ("c", 2)],
    ):
        check_schedule(correct, edges, groups)
    for wrong, why in (
        ([("b", 1), ("a", 1), ("c", 1)], "workflow order"),
        ([("a", 2), ("b", 2), ("a", 1), ("b", 1)], "stream order"),
        ([("a", 1), ("a", 2), ("b", 2), ("b", 1)], "stream order"),
        ([("a", 1), ("b", 1), ("a", 2), ("c", 1)], "comes between"),
        ([("a", 1), ("a", 2), ("a", 1)], "interrupted"),
    ):
        with pytest.raises(ScheduleError, match=why):
            check_schedule(wrong, edges, groups)


SIZES = st.sampled_from([(1, 1), (3, 1), (4, 2), (4, 3), (5, 5)])
WATCH = """
def watch(e, recent):
    slid = recent.insert(at=e.at, v=e.v)
    total = 0
    for row in recent:
        if row.v is not None:
            total = total * 3 % 1000003 + row.v
    if e.v is not None and e.v % 7 == 3:
        abort("no")
    return slid, len(recent), total
"""
SLIDE = """
def on_slide(e, recent, seen):
    if e.at not in seen:
        seen.insert(at=e.at, n=0, last=e.v)
    seen[e.at].n += 1
    for row in recent:
        seen[e.at].n = seen[e.at].n * 5 % 1000003 + row.at
"""


def naive_total(rows: list[Any]) -> int:
    total = 0
    for row in rows:
        if row["v"] is not None:
            total = total * 3 % 1000003 + row["v"]
    return total


@given(
    SIZES,
    st.sampled_from([None, "at"]),
    st.lists(st.tuples(st.integers(-1, 4), st.none() | st.integers(0, 20)), max_size=40),
    CUTS,
    st.booleans(),
)
def test_a_window_is_two_lists(
    sizes: tuple[int, int],
    time: str | None,
    steps: list[tuple[int, int | None]],
    cuts: list[tuple[int, str]],
    plain: bool,
) -> None:
    size, slide = sizes
    size = size if time is None else size // slide * slide
    database = penstock.database("windows")
    database.table("seen", "at bigint, n bigint NOT NULL, last bigint", key="at")
    database.window("recent", "at bigint NOT NULL, v bigint", size=size, slide=slide, time=time)
    database.trigger("recent")(define(SLIDE))
    returns = "slid boolean, n bigint, total bigint"
    watch = database.procedure(event="at bigint NOT NULL, v bigint", returns=returns, plain=plain)(
        define(WATCH)
    )
    drawn = Drawn(database, watch)
    at, rows = 0, []
    for step, v in steps:
        at += step
        rows.append({"at": at, "v": v})
    events = pa.RecordBatch.from_pylist(rows, schema=event_schema(watch.program().event))
    results, state = run_in_batches(drawn, events, cuts)
    window, seen = NaiveWindow(size, slide, time), dict[Any, tuple[int, int | None]]()
    expected: list[tuple[Any, ...]] = []
    for row in rows:
        before = (window.active, window.staged, window.boundary)
        window.active, window.staged = list(window.active), list(window.staged)
        slides = window.insert(row)
        if slides is None or (row["v"] is not None and row["v"] % 7 == 3):
            why = "late row: recent" if slides is None else "no"
            expected.append((None, None, None, why))
            window.active, window.staged, window.boundary = before
            continue
        for active in slides:
            n, last = seen.get(row["at"], (0, row["v"]))
            n += 1
            for one in active:
                n = n * 5 % 1000003 + one["at"]
            seen[row["at"]] = (n, last)
        expected.append((bool(slides), len(window.active), naive_total(window.active), None))
    assert results == expected
    found = {row["at"]: (row["n"], row["last"]) for row in state["seen"].table().to_pylist()}
    assert found == seen


@given(
    st.lists(st.text(max_size=9), max_size=4).flatmap(
        lambda texts: st.tuples(st.just(texts), st.lists(st.integers(0, len(texts))))
    )
)
def test_reasons_are_taken_by_their_numbers(drawn: tuple[list[str], list[int]]) -> None:
    texts, numbers = drawn
    taken = take_texts(texts, np.array(numbers, np.int64))
    taken.validate(full=True)
    assert taken.to_pylist() == [texts[number - 1] if number else None for number in numbers]


def test_reasons_beyond_the_offsets_of_arrow_are_an_error() -> None:
    with pytest.raises(InternalError, match=r"more than 2 GiB: events=2049 size_bytes=2148532224"):
        take_texts(["x" * (1 << 20)], np.ones(2049, np.int64))
