"""OLTP benchmarks equal plain Python, and keep their conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.oltp.catalog import BENCHMARKS
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.snapshot import Snapshot
from penstock.procedures.plain.tables import PlainTables, python_rows
from penstock.procedures.programs.oltp import OltpBenchmark
from penstock.procedures.programs.oltp.tpcc import DELIVERY, NEW_ORDER, PAYMENT, STOCK_LEVEL
from penstock.procedures.programs.oltp.tpcc_data import TpccScale
from tests.transactions.procedures import comparable, interpreted, results_of

TPCC = BENCHMARKS["tpcc"]
SCALES = {
    **{name: [(benchmark.small, 400)] for name, benchmark in BENCHMARKS.items()},
    "tpcc": [(TpccScale(warehouses=2, districts=2, customers=12, items=40), 300)],
    "seats": [(BENCHMARKS["seats"].small, 200)],
    "auction_mark": [(BENCHMARKS["auction_mark"].small, 200)],
    "ycsb": [(replace(BENCHMARKS["ycsb"].small, workload=letter), 100) for letter in "abcdef"],
}
EXPECTED_REASONS = {
    "tpcc": {"item number is not valid"},
    "tatp": {
        "unknown key: access_info", "unknown key: facilities", "unknown key: forwarding", "not active",
        "not forwarded",
    },
    "small_bank": {"one customer"},
    "ycsb": set(),
    "voter": {"too many votes"},
    "seats": {"no reservation", "seat is taken", "has a seat"},
    "auction_mark": {"bid too low", "rated"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def kernels_without_the_compiler() -> Iterator[None]:
    """Let Python run all kernels, since machine code takes a minute to make."""
    programs = [benchmark.procedure.program() for benchmark in BENCHMARKS.values()]
    for program in programs:
        program.__dict__["kernel"] = interpreted(program)
    yield
    for program in programs:
        del program.__dict__["kernel"]


def batch(rows: pa.Table) -> pa.RecordBatch:
    return rows.combine_chunks().to_batches()[0]


def loaded(benchmark: OltpBenchmark, scale: Any) -> TableSet:
    state = TableSet(benchmark.database.tables.values())
    for name, rows in benchmark.tables(scale).items():
        state.load(name, batch(rows))
    return state


def plain_tables(benchmark: OltpBenchmark, scale: Any) -> PlainTables:
    tables = PlainTables(benchmark.database.tables.values())
    for name, rows in benchmark.tables(scale).items():
        key = benchmark.database.tables[name].key
        tables.tables[name].rows = {
            tuple(row[column] for column in key): row for row in python_rows(batch(rows))
        }
    return tables


def rows_of(state: TableSet | PlainTables, benchmark: OltpBenchmark) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all tables by key, with times as integers."""
    found = {}
    for name, spec in benchmark.database.tables.items():
        if isinstance(state, TableSet):
            rows = python_rows(state[name].table())
        else:
            rows = [row for row in state.tables[name].rows.values() if row is not None]
        found[name] = sorted(rows, key=lambda row: [row[column] for column in spec.key])
    return found


def snapshot_of(state: TableSet, benchmark: OltpBenchmark) -> Snapshot:
    return Snapshot({name: pa.table(state[name].table()) for name in benchmark.database.tables})


def test_benchmarks_give_the_results_and_tables_of_plain_python() -> None:
    for name, benchmark in BENCHMARKS.items():
        reasons: set[str | None] = set()
        for scale, count in SCALES[name]:
            events = benchmark.requests(scale, count, 7)
            state, tables = loaded(benchmark, scale), plain_tables(benchmark, scale)
            assert benchmark.broken_conditions(snapshot_of(state, benchmark)) == []
            program = benchmark.procedure.program()
            made = results_of([state.run(program, events.slice(0, 50)), state.run(program, events.slice(50))])
            expected = tables.run(benchmark.procedure.text, events, program.results)
            assert made == [comparable(row) for row in expected]
            assert rows_of(state, benchmark) == rows_of(tables, benchmark)
            assert benchmark.broken_conditions(snapshot_of(state, benchmark)) == []
            reasons |= {row[-1] for row in made}
        assert reasons >= EXPECTED_REASONS[name] | {None}, name
        assert benchmark.requests(scale, 50, 1).equals(benchmark.requests(scale, 50, 1))
        assert not benchmark.requests(scale, 50, 1).equals(benchmark.requests(scale, 50, 2))


def test_stock_level_looks_at_the_last_twenty_orders() -> None:
    scale = TpccScale(warehouses=1, districts=2, customers=40, items=3_000)
    state, program = loaded(TPCC, scale), TPCC.procedure.program()
    state.run(program, TPCC.requests(scale, 100, 3))
    requests = pa.table(TPCC.requests(scale, 1_000, 4))
    levels = requests.filter(pc.equal(requests["kind"], STOCK_LEVEL)).slice(0, 8)
    limits = pa.array(range(20, 100, 10))
    levels = levels.set_column(levels.schema.get_field_index("number"), levels.schema.field("number"), limits)
    tables = {name: pa.table(state[name].table()) for name in ("districts", "order_lines", "stock")}
    store = duckdb.connect()
    for name, rows in (*tables.items(), ("levels", levels)):
        store.register(name, rows)
    wanted = store.sql("""
        SELECT (SELECT count(DISTINCT l.i_id) FROM order_lines l JOIN stock s USING (w_id, i_id)
                WHERE l.w_id = e.w_id AND l.d_id = e.d_id AND l.o_id >= d.next_o_id - 20
                AND l.o_id < d.next_o_id AND s.quantity < e.number)
        FROM levels e JOIN districts d USING (w_id, d_id) ORDER BY e.number
    """).fetchall()
    made = results_of([state.run(program, batch(levels))])
    assert [(count,) for _, _, count, _ in made] == wanted
    assert len(set(wanted)) > 4


def without(row: int) -> Callable[[pa.Table], pa.Table]:
    return lambda table: pa.concat_tables([table.slice(0, row), table.slice(row + 1)])


def more(column: str) -> Callable[[pa.Table], pa.Table]:
    """Add one to a column of the first row."""

    def change(table: pa.Table) -> pa.Table:
        kind = table.schema.field(column).type
        step = pa.array(np.arange(table.num_rows) == 0).cast(pa.int64())
        changed = pc.add(table[column], step.cast(kind) if not pa.types.is_decimal(kind) else step)
        return table.set_column(table.schema.get_field_index(column), column, changed)

    return change


def null(column: str) -> Callable[[pa.Table], pa.Table]:
    """Clear a column of the first row."""

    def change(table: pa.Table) -> pa.Table:
        cleared = pa.array(table[column].to_pylist(), mask=np.arange(table.num_rows) == 0)
        cleared = cleared.cast(table.schema.field(column).type)
        return table.set_column(table.schema.get_field_index(column), column, cleared)

    return change


def test_each_condition_of_tpcc_finds_a_wrong_row() -> None:
    rows = TPCC.tables(TPCC.small)
    wrong: dict[str, tuple[str, Callable[[pa.Table], pa.Table]]] = {
        "1:": ("warehouses", more("ytd")),
        "2:": ("districts", more("next_o_id")),
        "3:": ("new_orders", without(1)),
        "4:": ("order_lines", without(3)),
        "5:": ("orders", null("carrier_id")),
        "6:": ("order_lines", without(3)),
        "7:": ("order_lines", null("delivery_d")),
        "8:": ("history", without(0)),
        "9:": ("districts", more("ytd")),
        "10:": ("history", without(0)),
        "11:": ("customers", more("delivery_cnt")),
        "12:": ("customers", more("ytd_payment")),
    }
    assert len(wrong) == len(TPCC.conditions)
    assert TPCC.broken_conditions(Snapshot(rows)) == []
    for name, query in TPCC.conditions.items():
        table, change = wrong[name.partition(" ")[0]]
        assert Snapshot({**rows, table: change(rows[table])}).sql(query).num_rows, name


def test_requests_of_tpcc_have_the_shares_of_the_specification() -> None:
    scale = TpccScale(warehouses=5, customers=300, items=1_000)
    count = 20_000
    rows = pa.table(TPCC.requests(scale, count, 3))
    kinds = rows["kind"].to_numpy()
    orders, payments = rows.filter(pa.array(kinds == NEW_ORDER)), rows.filter(pa.array(kinds == PAYMENT))
    assert abs(len(orders) / count - 0.45) < 0.015
    assert abs(len(payments) / count - 0.43) < 0.015
    assert abs((kinds == DELIVERY).mean() - 0.04) < 0.01
    remote = pc.not_equal(payments["w_id"], payments["c_w_id"])
    assert abs(np.mean(remote.to_numpy()) - 0.15) < 0.015
    assert abs(payments["c_id"].null_count / len(payments) - 0.6) < 0.02
    invalid = [1_001 in items for items in orders["items"].to_pylist()]
    assert abs(np.mean(invalid) - 0.01) < 0.004
    home = np.repeat(orders["w_id"].to_numpy(), pc.list_value_length(orders["items"]).to_numpy())
    far = pc.list_flatten(orders["supplies"]).to_numpy() != home
    assert abs(far.mean() - 0.01) < 0.002
    assert set(pc.list_value_length(orders["items"]).to_pylist()) == set(range(5, 16))


def test_payments_of_small_bank_keep_the_money() -> None:
    bank = BENCHMARKS["small_bank"]
    state = loaded(bank, bank.small)

    def money() -> Any:
        return sum(sum(state[name].table()["balance"].to_pylist()) for name in ("savings", "checking"))

    before = money()
    events = bank.requests(bank.small, 500, 3)
    kept = events.filter(pc.is_in(events["kind"], pa.array([0, 1, 3])))
    made = state.run(bank.procedure.program(), kept)
    assert money() == before
    assert made["rejected"].null_count > 100
