"""A routing attribute leads transactions with unknown keys to one partition, and changes no result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.designing.cost import Choice, CostModel
from penstock.designing.traces.actual import add_actual_accesses
from penstock.designing.traces.trace import declare
from penstock.designing.workload import TableOption, Workload
from penstock.errors import InvalidUsageError
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.partitions.design import PartitionDesign
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from penstock.procedures.partitions.placement import Placement
from penstock.procedures.partitions.predicted import guards, run
from penstock.procedures.partitions.predicted.routing import MAX_WRONG, AttributePredictor
from tests.transactions.designs import naive_cost
from tests.transactions.procedures import interpreted, interpreted_source

SHOPS, ITEMS = 9, 5
TEXT = """
database: depots
partitions: 3
tables:
  shops: {partition_by: shop}
  stock: {partition_by: depot}
routing: {sell: shop}
"""


@pytest.fixture(autouse=True)
def _guards_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(program: Program, placements: Mapping[str, Placement], *, undo: bool) -> Callable[..., int]:
        return interpreted_source(guards.guarded_source(program, placements, undo=undo))

    monkeypatch.setattr(run, "load_guarded", load)


def depots() -> Database:
    """Return a database in which a shop has a depot, so that no event names the depot of its stock."""
    database = penstock.database("depots")
    database.table("shops", "shop bigint, depot bigint NOT NULL, sold bigint NOT NULL", key="shop")
    database.table(
        "stock",
        "depot bigint, item bigint, count bigint NOT NULL",
        key=("depot", "item"),
        partition_by="item",
    )

    @database.procedure(event="item bigint, shop bigint, name string", returns="count bigint")
    def sell(e: Any, shops: Any, stock: Any) -> Any:
        shop = shops[e.shop]
        shop.sold += 1
        row = stock[(shop.depot, e.item)]
        row.count -= 1
        return row.count

    @database.procedure(event="shop bigint, depot bigint")
    def move(e: Any, shops: Any) -> None:
        shops[e.shop].depot = e.depot

    for procedure in database.procedures.values():
        program = procedure.program()
        assert isinstance(program, Program)
        program.__dict__["kernel"] = interpreted(program)
    return database


def rows() -> dict[str, dict[str, Any]]:
    numbers = range(SHOPS * ITEMS)
    stock = {"depot": [n // ITEMS for n in numbers], "item": [n % ITEMS for n in numbers]}
    return {
        "shops": {"shop": range(SHOPS), "depot": range(SHOPS), "sold": [0] * SHOPS},
        "stock": stock | {"count": [99] * len(numbers)},
    }


def fill(db: OpenDatabase) -> None:
    for name, table in rows().items():
        db.load(name, table)


def home(number: int) -> int:
    """Return the partition of a shop or depot."""
    place = Placement(depots().tables["stock"], 3, None, ["depot"])
    return int(place.partitions_of(place.columns, [pa.array([number], pa.int64())])[0])


def sales(count: int, seed: int = 1) -> dict[str, list[Any]]:
    draw = np.random.default_rng(seed)
    shop, item = draw.integers(0, SHOPS, count).tolist(), draw.integers(0, ITEMS, count).tolist()
    return {"item": item, "shop": shop, "name": ["x"] * count}


def tables(db: OpenDatabase) -> list[pa.Table]:
    keys = {"shops": ["shop"], "stock": ["depot", "item"]}
    return [db.table(name).sort_by([(one, "ascending") for one in key]) for name, key in keys.items()]


def test_a_design_finds_the_attribute_and_a_database_runs_by_it(tmp_path: Path) -> None:
    result = penstock.design(depots(), {"sell": sales(200)}, tables=rows(), partitions=3)
    assert result.design.columns == {"shops": "shop", "stock": "depot"}
    assert result.design.routing == {"sell": "shop"}
    assert result.cost.single == 1.0
    assert result.declared_cost.single == 0.0
    assert "first in the partition of shop" in result.explain()
    assert PartitionDesign.parse(result.to_yaml()) == result.design
    (tmp_path / "design.yaml").write_text(result.to_yaml())
    with depots().open(tmp_path / "db") as serial:
        fill(serial)
        expected = [serial.run("sell", sales(30, seed)) for seed in range(3)]
        wanted = tables(serial)
    with depots().open(design=tmp_path / "design.yaml") as db:
        fill(db)
        assert [db.run("sell", sales(30, seed)) for seed in range(3)] == expected
        assert tables(db) == wanted
        assert "by the design, first in the partition of shop" in db.explain()
        assert "predicted: 90 transactions, 0 forwarded" in db.explain()
    # A database that exists takes the design, and gives it up again.
    with depots().open(tmp_path / "db", design=tmp_path / "design.yaml") as db:
        assert tables(db) == wanted
        more = db.run("sell", sales(30, 7))
        assert "predicted: 30 transactions" in db.explain()
        after = tables(db)
    with depots().open(tmp_path / "db") as db:
        assert tables(db) == after
    with depots().open() as serial:
        fill(serial)
        for seed in range(3):
            serial.run("sell", sales(30, seed))
        assert serial.run("sell", sales(30, 7)) == more


def test_a_transaction_that_needs_another_partition_changes_no_result() -> None:
    design = PartitionDesign.parse(TEXT)
    other = next(depot for depot in range(SHOPS) if home(depot) != home(4))
    with depots().open() as serial, depots().open(design=design) as db:
        state = db._state
        assert isinstance(state, PartitionedTables)
        assert state.predicted is not None
        for one in (serial, db):
            fill(one)
        wrong = []
        for number in range(12):
            if number == 2:  # a shop takes from a depot of another partition
                for one in (serial, db):
                    one.run("move", {"shop": [4], "depot": [other]})
            events = sales(30, number)
            events["shop"][3] = 4
            if number == 1:
                events["shop"][5] = None
            assert db.run("sell", events) == serial.run("sell", events)
            wrong.append(state.predicted.wrong)
        assert tables(db) == tables(serial)
    assert wrong[:2] == [0, 0]
    assert wrong[2 : 2 + MAX_WRONG] == [1, 2, 3, 4]
    assert wrong[-1] < 10  # calls are skipped after several wrong ones


def test_the_cost_is_that_of_a_run_or_of_all_partitions() -> None:
    database, partitions = depots(), 3
    events = sales(60)
    events["shop"][::7] = [None] * len(events["shop"][::7])
    state = TableSet(database.tables.values())
    own = rows()
    own["shops"]["depot"] = [(shop + (shop % 4 == 0)) % SHOPS for shop in range(SHOPS)]
    for name, table in own.items():
        state.load(name, pa.RecordBatch.from_pydict(table, database.tables[name].schema))
    calls = [("sell", events), ("move", {"shop": [1, 2], "depot": [3, 4]})]
    trace = add_actual_accesses(declare(database, calls, state), calls, state)
    assert trace.attributes == (("item", "shop"), ())
    homes = [home(shop) for shop in range(SHOPS)]
    every = set(range(partitions))

    def needed(routed: bool) -> list[set[int]]:
        found = []
        for shop in events["shop"]:
            # A transaction without a shop is rejected before it accesses a row.
            accessed = set() if shop is None else {homes[shop], homes[own["shops"]["depot"][shop]]}
            is_right = routed and shop is not None and len(accessed) == 1
            found.append(accessed if is_right else every)
        return [*found, {homes[1]}, {homes[2]}]

    for compress in (True, False):
        workload = Workload.encode(trace, partitions, 2, compress=compress)
        model = CostModel(workload)
        options = dict(zip(workload.names, workload.options, strict=True))
        columns = {"shops": "shop", "stock": "depot"}
        choice = np.array([options[name].index(TableOption(one)) for name, one in columns.items()])
        for route, is_routed in ((0, False), (2, True)):
            cost = model.measure(Choice(choice, np.array([route, -1])))
            expected = naive_cost(needed(is_routed), partitions, 2)
            assert (cost.coordination, cost.skew, cost.single) == pytest.approx(expected, abs=1e-12)
            assert model.bound(model.masks(choice)) <= cost.total + 1e-12


@pytest.mark.parametrize(
    ("new", "fact"),
    [
        ("{sell: name}", "this attribute cannot route transactions"),
        ("{sell: shops}", "cannot route transactions.*did you mean 'shop'"),
        ("{sel: shop}", "unknown procedure.*did you mean 'sell'"),
        ("{move: shop}", "cannot have a routing attribute.*determines the partitions already"),
        ("{sell: [shop]}", "the routing of a design has one attribute for each procedure"),
    ],
)
def test_an_unusable_routing_is_refused(new: str, fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        depots().open(design=PartitionDesign.parse(TEXT.replace("{sell: shop}", new)))


def test_a_database_that_routes_does_not_speculate() -> None:
    with pytest.raises(InvalidUsageError, match="does not speculate"):
        depots().open(design=PartitionDesign.parse(TEXT), speculate=True)


def test_other_procedures_are_predicted_by_the_predictor() -> None:
    class Others:
        def __init__(self) -> None:
            self.asked: list[str] = []

        def predict(self, program: Program, events: pa.RecordBatch) -> None:
            self.asked.append(program.name)

        def observe(self, touched: Any) -> None:
            self.asked.append("observe")

        def correct(self, event: int, touched: int) -> None:
            self.asked.append("correct")

    others, database = Others(), depots()
    placements = {
        "stock": Placement(database.tables["stock"], 3, None, ["depot"]),
    }
    predictor = AttributePredictor({"sell": "shop"}, 3, placements, others)
    programs = {name: one.program() for name, one in database.procedures.items()}
    schema = pa.schema([("item", pa.int64()), ("shop", pa.int64()), ("name", pa.string())])
    events = pa.RecordBatch.from_pydict(sales(2), schema)
    sell, move = programs["sell"], programs["move"]
    assert isinstance(sell, Program)
    assert isinstance(move, Program)
    assert predictor.predict(sell, events) is not None
    predictor.observe(np.zeros(2, np.int64))
    predictor.correct(0, 1)
    assert others.asked == []
    assert predictor.predict(move, events) is None
    predictor.observe(np.zeros(2, np.int64))
    predictor.correct(0, 1)
    assert others.asked == ["move", "observe", "correct"]
