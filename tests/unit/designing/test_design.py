"""`penstock.design`: from requests or a log to a design that `open` takes, and the words that explain it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import app
from penstock.designing.cost import CostModel
from penstock.designing.search import Progress
from penstock.designing.traces.trace import declare
from penstock.designing.workload import TableOption, Workload
from penstock.errors import InvalidUsageError
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.partitions.design import PartitionColumns, PartitionDesign
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from tests.transactions.procedures import interpreted

STORES, ITEMS = 6, 40
FILE = """
import penstock

bank = penstock.database("bank")
bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id")
bank.table("rates", "year bigint, rate bigint NOT NULL", key="year", partition_by="year")


@bank.procedure(event="id bigint, year bigint, amount bigint")
def pay(e, accounts, rates):
    accounts[e.id].balance += e.amount * rates[e.year].rate
"""


def shop() -> Database:
    """Return a database that is declared badly: stock by item, and what sales read by year."""
    database = penstock.database("shop")
    stock = "item bigint, store bigint, count bigint NOT NULL"
    database.table("stock", stock, key=("item", "store"), partition_by="item")
    database.table("stores", "store bigint, sold bigint NOT NULL", key="store")
    database.table("items", "item bigint, price bigint NOT NULL", key="item", partition_by="item")
    database.table("unused", "x bigint", key="x")

    @database.procedure(event="store bigint, item bigint", returns="price bigint")
    def sell(e: Any, stock: Any, stores: Any, items: Any) -> Any:
        stock[(e.item, e.store)].count -= 1
        stores[e.store].sold += items[e.item].price
        return items[e.item].price

    @database.procedure(event="store bigint, item bigint, second bigint")
    def swap(e: Any, stock: Any) -> Any:
        stock[(e.item, e.store)].count += 1
        stock[(e.second, e.store)].count -= 1

    @database.procedure(event="item bigint, price bigint")
    def set_price(e: Any, items: Any) -> Any:
        items[e.item].price = e.price

    for procedure in database.procedures.values():
        program = procedure.program()
        assert isinstance(program, Program)
        program.__dict__["kernel"] = interpreted(program)
    return database


def fill(db: OpenDatabase) -> None:
    pairs = [(item, store) for item in range(ITEMS) for store in range(STORES)]
    items, stores = zip(*pairs, strict=True)
    db.load("stock", {"item": items, "store": stores, "count": [100] * len(pairs)})
    db.load("stores", {"store": range(STORES), "sold": [0] * STORES})
    db.load("items", {"item": range(ITEMS), "price": range(ITEMS)})


def requests(count: int = 200) -> list[tuple[str, dict[str, Any]]]:
    draw = np.random.default_rng(2)
    store, item, second = draw.integers(0, STORES, count), *draw.integers(0, ITEMS, (2, count))
    return [
        ("sell", {"store": store, "item": item}),
        ("swap", {"store": store[:50], "item": item[:50], "second": second[:50]}),
        ("set_price", {"item": item[:2], "price": item[:2]}),
    ]


def tables(db: OpenDatabase) -> list[pa.Table]:
    return [
        db.table(spec.name).sort_by([(key, "ascending") for key in spec.key])
        for spec in shop().tables.values()
    ]


def test_a_design_is_found_and_taken_and_changes_no_table(tmp_path: Path) -> None:
    result = penstock.design(shop(), requests(), partitions=3)
    assert result.design.columns == {"stock": "store", "stores": "store", "items": None, "unused": None}
    assert result.design.ranges == {"stock": (2, 4), "stores": (2, 4)}  # the hash puts three stores together
    assert result.cost.single == 250 / 252 > result.declared_cost.single
    assert result.speed_up > result.declared_speed_up
    (tmp_path / "design.yaml").write_text(result.to_yaml())
    with shop().open(tmp_path / "shop") as db:
        fill(db)
        before = [db.run(*request) for request in requests()]
        expected = tables(db)
    with shop().open(design=tmp_path / "design.yaml") as db:
        fill(db)
        assert [db.run(*request) for request in requests()] == before
        assert tables(db) == expected
        assert "sell: single-partition, by store" in db.explain()
    with shop().open(tmp_path / "shop", design=result.design) as db:
        assert tables(db) == expected


@pytest.mark.parametrize("seed", range(3))
def test_the_estimate_is_what_a_database_forwards(seed: int) -> None:
    draw = np.random.default_rng(seed)
    columns = {
        "stock": str(draw.choice(["item", "store"])),
        "stores": ["store", None][draw.integers(2)],
        "items": ["item", None][draw.integers(2)],
    }
    design = PartitionDesign("shop", 3, columns)
    made = shop()
    workload = Workload.encode(declare(made, requests(40)), 3)
    model = CostModel(workload)
    tables_ = [
        next(place for place, one in enumerate(options) if (one.column, one.ranges) == (columns[name], None))
        for name, options in zip(workload.names, workload.options, strict=True)
    ]
    needed = np.bitwise_count(model.masks(np.array(tables_)))
    with made.open(design=design) as db:
        fill(db)
        state = db._state
        assert isinstance(state, PartitionedTables)
        for name, events in requests(40):  # one at a time, so that none is forwarded because of another
            for row in pa.table(events).to_pylist():
                state.gathered.scatter()
                db.call(name, **row)
        assert state.forwarded == int(workload.weights[needed > 1].sum())


def test_the_calls_of_an_open_database_are_a_trace(tmp_path: Path) -> None:
    made = shop()
    with made.open(tmp_path / "shop") as db:
        fill(db)
        db.checkpoint()
        with pytest.raises(InvalidUsageError, match="the trace has no transaction"):
            penstock.design(shop(), log=tmp_path / "shop", partitions=3)
        for request in requests():
            db.run(*request)
        assert db._log is not None
        db._log._writer.flush()  # a second passes otherwise
        result = penstock.design(shop(), log=tmp_path / "shop", partitions=3)
        assert result.design == penstock.design(shop(), requests(), partitions=3).design
        assert result.trace.transactions == 252
        assert min(result.trace.sizes) > 0
        with pytest.raises(InvalidUsageError, match="no design fits"):
            penstock.design(shop(), log=tmp_path / "shop", partitions=3, memory_bytes=10)
        stock, stores, items, _ = result.trace.sizes.tolist()
        memory = (stock + stores) // 3 + items // 2
        small = penstock.design(shop(), log=tmp_path / "shop", partitions=3, memory_bytes=memory)
        assert result.design.columns["items"] is None
        assert small.design.columns["items"] == "item"


def test_load_that_moves_from_partition_to_partition_is_skew_in_a_long_trace() -> None:
    made = penstock.database("t")
    made.table("t", "k bigint", key="k", partition_by="k")

    @made.procedure(event="k bigint")
    def add(e: Any, t: Any) -> None:
        t.insert(k=e.k)

    moving = {"k": np.arange(80) // 40 * 3}  # the hash puts 0 and 3 into different partitions
    assert penstock.design(made, {"add": moving}, partitions=2).cost.skew == 1.0
    assert penstock.design(made, {"add": moving}, partitions=2, intervals=1).cost.skew == 0.0
    short = {"k": np.arange(78) // 39 * 3}
    assert penstock.design(made, {"add": short}, partitions=2).cost.skew == 0.0


def test_workflows_and_plain_procedures_need_all_partitions_in_any_design() -> None:
    made = penstock.database("t")
    made.table("t", "k bigint", key="k", partition_by="k")
    stream = made.stream("s", "k bigint")

    @made.procedure(event="k bigint")
    def emit(e: Any, s: Any) -> None:
        s.emit(k=e.k)

    @made.procedure(event=stream)
    def take(e: Any, t: Any) -> None:
        t.insert(k=e.k)

    @made.procedure(event="k bigint", plain=True)
    def add(e: Any, t: Any) -> None:
        t.insert(k=e.k)

    made.workflow("flow", emit, take)
    result = penstock.design(made, {"flow": {"k": [1, 2, 3]}, "add": {"k": [4]}}, partitions=2)
    assert (result.cost.single, result.cost.coordination, result.cost.skew) == (0.0, 2.0, 0.0)
    assert result.design.columns == {"t": "k"}
    assert "    all partitions: it is a workflow" in result.explain().splitlines()
    assert "    all partitions: Python runs it" in result.explain().splitlines()


def test_the_words_name_columns_shares_and_alternatives() -> None:
    text = penstock.design(shop(), requests(), partitions=3).explain()
    for line in (
        "database shop: a design for 3 partitions, from 252 transactions",
        "  stock: by ranges of store",
        "    250 transactions access it, 100.0% in a single partition",
        "  unused: as declared, since no access of the trace depends on it",
        "    single-partition, by store",
        "    all partitions: it writes items[e.item], which is replicated",
        f"  {'single-partition':22}{'8.7%':>10}{'99.2%':>13}",
    ):
        assert line in text.splitlines(), text
    assert "    by the hash of store instead: 49.6% of all in a single partition" in text


def test_a_drawing_has_a_box_for_each_table_and_joins_equal_columns() -> None:
    drawing = ElementTree.fromstring(penstock.design(shop(), requests(), partitions=3).to_svg())
    texts = [one.text for one in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["stock", "ranges of store", "stores", "ranges of store", "items", "replicated"]
    lines = [
        (line.find("{http://www.w3.org/2000/svg}title").text, "stroke-dasharray" in line.attrib)  # type: ignore[union-attr]
        for line in drawing.iter("{http://www.w3.org/2000/svg}line")
    ]
    assert ("stock.store = stores.store in 200 transactions", False) in lines
    assert ("stock.item = items.item in 200 transactions", True) in lines


def test_ctrl_c_keeps_the_best_design_so_far() -> None:
    seen: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        seen.append(progress)
        raise KeyboardInterrupt

    result = penstock.design(shop(), requests(), partitions=3, progress=interrupt)
    assert result.interrupted
    assert result.cost == seen[0].cost
    assert "Ctrl-C ended the search" in result.explain()


def reached() -> Database:
    """Return a database whose rows are found by lists, an index and a named route."""
    database = penstock.database("reached")
    stock = "store bigint, item bigint, count bigint NOT NULL"
    database.table("stock", stock, key=("store", "item"), partition_by="store", indexes=["count"])

    @database.procedure(event="stores array<bigint>, item bigint")
    def send(e: Any, stock: Any) -> Any:
        for store in e.stores:
            if (store, e.item) in stock:
                stock[store, e.item].count += 0

    @database.procedure(event="count bigint")
    def find(e: Any, stock: Any) -> Any:
        row = stock.by("count")[e.count].first()
        if row is not None and (row.store, 0) in stock:
            return

    @database.procedure(event="till bigint, item bigint", route="e.till // 10")
    def sell(e: Any, stock: Any) -> Any:
        if (e.till // 10, e.item) in stock:
            return

    for procedure in database.procedures.values():
        program = procedure.program()
        assert isinstance(program, Program)
        program.__dict__["kernel"] = interpreted(program)
    return database


@pytest.mark.parametrize("columns", ["store", "item", ("store", "item")])
def test_the_estimate_knows_lists_and_indexes_and_routes(columns: PartitionColumns) -> None:
    draw = np.random.default_rng(5)
    pairs = [(store, item) for store in range(6) for item in range(6)]
    stores, items = (list(one) for one in zip(*pairs, strict=True))
    rows = {"stock": {"store": stores, "item": items, "count": draw.permutation(36).tolist()}}
    calls = [
        ("send", {"stores": [draw.integers(0, 6, draw.integers(0, 3)).tolist() for _ in range(12)],
                  "item": draw.integers(0, 6, 12).tolist()}),
        ("find", {"count": draw.integers(0, 40, 8).tolist()}),
        ("sell", {"till": draw.integers(0, 60, 6).tolist(), "item": draw.integers(0, 6, 6).tolist()}),
    ]  # fmt: skip
    made = reached()
    state = TableSet(made.tables.values())
    state.load("stock", pa.RecordBatch.from_pydict(rows["stock"], schema=made.tables["stock"].schema))
    trace = declare(made, calls, state)
    # All two columns are options if each alone is uneven; here they are asked for.
    options = {"stock": [TableOption("store"), TableOption(columns)]}
    workload = Workload.encode(trace, 4, 1, options=options)
    masks = CostModel(workload).masks(np.array([workload.options[0].index(TableOption(columns))]))
    estimated = (np.bitwise_count(masks)[workload.record] > 1).tolist()
    forwards = []
    with made.open(design=PartitionDesign("reached", 4, {"stock": columns})) as db:
        db.load("stock", rows["stock"])
        assert isinstance(db._state, PartitionedTables)
        for name, events in calls:
            for row in pa.table(events).to_pylist():
                db._state.gathered.scatter()
                before = db._state.forwarded
                db.call(name, **row)
                forwards.append(db._state.forwarded > before)
    assert estimated == forwards
    assert 0 < sum(forwards) < len(forwards)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"requests": {}}, "the trace has no transaction"),
        ({"requests": {"sell": {"store": [], "item": []}}}, "the trace has no transaction"),
        ({"requests": {"sel": {"store": [1]}}}, "did you mean 'sell'"),
        ({"requests": {"sell": {"store": [1]}}}, "the event lacks an attribute"),
        ({"requests": {"sell": {"store": ["a"], "item": [1]}}}, "sell"),
        ({}, "a trace comes from requests or from a log"),
        ({"requests": requests(3), "log": "x"}, "a trace comes from requests or from a log"),
        ({"requests": requests(3), "partitions": 1}, "cannot have this number of partitions"),
        ({"requests": requests(3), "partitions": 65}, "cannot have this number of partitions"),
        ({"requests": requests(3), "intervals": 0}, "intervals is not a positive integer"),
        ({"requests": requests(3), "seconds": 0}, "seconds is not a positive number"),
        ({"requests": requests(3), "alpha": -1}, "alpha and beta are negative"),
        ({"requests": requests(3), "memory_bytes": 1}, "the sizes of tables are unknown"),
    ],
)
def test_an_unusable_trace_or_option_is_refused(options: dict[str, Any], fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        penstock.design(shop(), **options)


def test_the_log_of_another_database_is_refused(tmp_path: Path) -> None:
    other = penstock.database("shop")
    other.table("stock", "item bigint", key="item")
    with pytest.raises(InvalidUsageError, match="there is no database at this location"):
        penstock.design(shop(), log=tmp_path / "none")
    other.open(tmp_path / "shop").close()
    with pytest.raises(InvalidUsageError, match="the database at this location has other tables"):
        penstock.design(shop(), log=tmp_path / "shop")


def test_the_command_writes_the_design_and_a_drawing(tmp_path: Path) -> None:
    file, out, svg = tmp_path / "bank.py", tmp_path / "design.yaml", tmp_path / "design.svg"
    file.write_text(FILE)
    draw = np.random.default_rng(1)
    pq.write_table(
        pa.table({"id": draw.integers(0, 99, 50), "year": draw.integers(0, 3, 50), "amount": [1] * 50}),
        tmp_path / "pay.parquet",
    )
    options = ["--requests", f"pay={tmp_path / 'pay.parquet'}", "--partitions", "2", "-o", str(out)]
    done = CliRunner().invoke(app, ["design", str(file), *options, "--svg", str(svg)])
    assert done.exit_code == 0, done.output
    assert "  accounts: by the hash of id" in done.output.splitlines()
    assert PartitionDesign.load(out).columns == {"accounts": "id", "rates": None}
    assert svg.read_text().startswith("<svg")
    for wrong, fact in (
        ("pay", "write PROCEDURE=FILE"),
        (f"pay={tmp_path / 'none'}", "cannot read rows"),
    ):
        refused = CliRunner().invoke(app, ["design", str(file), "--requests", wrong])
        assert refused.exit_code == 2
        assert fact in refused.output
