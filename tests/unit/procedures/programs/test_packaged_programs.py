"""Packaged programs equal plain Python, however their events are divided."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.streams import DATA
from penstock.procedures.compiler.program import Program
from penstock.procedures.engine import TableSet
from penstock.procedures.plain.tables import PlainTables
from penstock.procedures.programs import PROGRAMS, PackagedProgram
from tests.oracles.naive_tolls import answers
from tests.transactions.procedures import comparable, contents, interpreted, results_of

_FILE = DATA / "lrb-data-small-ht.txt"


def events_of(program: PackagedProgram, count: int, keys: int) -> list[pa.RecordBatch]:
    """Return the events that fill the tables, and then two batches of others."""
    drawn = program.workload(count, keys, 7)
    assert drawn.num_rows == count
    return [program.opening(keys), drawn.slice(0, count // 3), drawn.slice(count // 3)]


def run(
    program: PackagedProgram, batches: list[pa.RecordBatch], prefetch_index_bytes: int = 1 << 60
) -> tuple[TableSet, list[pa.RecordBatch]]:
    compiled = program.procedure.program()
    compiled.__dict__["kernel"] = interpreted(compiled)
    state = TableSet(program.database.tables.values(), prefetch_index_bytes=prefetch_index_bytes)
    try:
        return state, [state.run(compiled, batch) for batch in batches]
    finally:
        del compiled.__dict__["kernel"]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("prefetches", [False, True])
def test_a_program_gives_the_results_and_tables_of_plain_python(name: str, prefetches: bool) -> None:
    program = PROGRAMS[name]
    batches = events_of(program, 1500, 40)
    state, made = run(program, batches, 0 if prefetches else 1 << 60)
    plain = PlainTables(program.database.tables.values())
    columns = program.procedure.program().results
    expected = [row for batch in batches for row in plain.run(program.procedure.text, batch, columns)]
    assert results_of(made) == [comparable(row) for row in expected]
    assert contents(state, program.database) == contents(plain, program.database)
    assert any(row[-1] is None for row in expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_draws_depend_on_the_seed_alone(name: str) -> None:
    program = PROGRAMS[name]
    assert program.workload(300, 50, 1).equals(program.workload(300, 50, 1))
    assert not program.workload(300, 50, 1).equals(program.workload(300, 50, 2))


def test_transactions_of_the_bank_and_the_auction_are_rejected_for_each_reason() -> None:
    expected = {
        "OB": {"too little"},
        "bank": {"short", "not empty", "one account", "unknown key: accounts", "duplicate key: accounts"},
    }
    for name, reasons in expected.items():
        _, made = run(PROGRAMS[name], events_of(PROGRAMS[name], 4000, 5))
        assert {row for batch in made for row in batch["rejected"].to_pylist()} == reasons | {None}


def test_money_and_goods_are_kept() -> None:
    program = PROGRAMS["SL"]
    batches = events_of(program, 3000, 20)
    state, made = run(program, batches)
    rows = pa.Table.from_batches(batches).append_column("rejected", pa.Table.from_batches(made)["rejected"])
    added = sum(row["money"] for row in rows.to_pylist() if row["kind"] < 2 and row["rejected"] is None)
    assert sum(state["accounts"].table()["balance"].to_pylist()) == added


def test_tolls_and_accidents_are_those_computed_from_all_reports() -> None:
    program = PROGRAMS["linear_road"]
    events = program.workload(6000, 300, 3)
    _, made = run(program, [events.slice(0, 1000), events.slice(1000)])
    expected = answers(events.to_pylist())
    assert [row[:2] for row in results_of(made)] == expected
    assert any(toll for toll, _ in expected)
    assert any(accident for _, accident in expected)
    assert any(not accident for _, accident in expected if accident is not None)


@pytest.mark.skipif(not _FILE.exists(), reason="the file of reports is not part of the project")
def test_the_tolls_of_real_reports_are_those_computed_from_all_reports() -> None:
    program = PROGRAMS["linear_road"]
    rows = np.loadtxt(_FILE, np.int64, max_rows=7000)
    names = ("time", "vehicle", "speed", "xway", "lane", "direction", "position")
    events = pa.RecordBatch.from_arrays(
        [pa.array(column) for column in rows.T], schema=program.workload(1, 1, 1).select(names).schema
    )
    _, made = run(program, [events])
    assert [row[:2] for row in results_of(made)] == answers(events.to_pylist())


def test_look_ups_are_prefetched_whose_keys_the_event_has() -> None:
    programs = {name: program.procedure.program() for name, program in PROGRAMS.items()}
    found = {name: one.lookups for name, one in programs.items() if isinstance(one, Program)}
    assert found["GS"] == ("keys",)
    assert found["OB"] == ("keys",)
    assert found["SL"] == (None,) * 4
    assert found["TP"] == (None, None)
    # The row of an owner is found by the account, whose row names him, or by the event.
    assert found["bank"] == (None,) * 3
    # The expressway's minute, and the vehicle.
    assert found["linear_road"] == (None, None)


def test_a_run_prefetches_once_its_tables_outgrow_the_cache() -> None:
    program = PROGRAMS["TP"]
    state = TableSet(program.database.tables.values())
    compiled = program.procedure.program()
    assert isinstance(compiled, Program)
    state.run(compiled, program.opening(4))
    state.prefetch_index_bytes = 2 * sum(state[name].index_bytes for name in program.database.tables)
    run = state.begin(compiled, program.workload(1500, 40_000, 7))
    assert run.events_ahead == state.control[1] == 0
    run.advance(0, run.rounds)
    # Two look-ups of an event, 32 ahead.
    assert run.events_ahead == state.control[1] == 16
