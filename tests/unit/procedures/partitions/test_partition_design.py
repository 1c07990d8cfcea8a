"""A design decides where rows are, whatever the tables declare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import InvalidUsageError
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.partitions.design import PartitionDesign
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from tests.transactions.procedures import interpreted

TEXT = """
database: shop
partitions: 3
tables:
  stock: {partition_by: item, ranges: [2, 5]}
  items: {partition_by: item, ranges: [2, 5]}
  stores: {replicated: true}
"""


def shop() -> Database:
    database = penstock.database("shop")
    stock = "store bigint, item bigint, count bigint NOT NULL"
    database.table("stock", stock, key=("store", "item"), partition_by="store")
    database.table("items", "item bigint, price bigint NOT NULL", key="item")
    database.table("stores", "store bigint, name string", key="store", partition_by="store")

    @database.procedure(event="store bigint, item bigint", returns="price bigint, name string")
    def sell(e: Any, stock: Any, items: Any, stores: Any) -> Any:
        stock[(e.store, e.item)].count -= 1
        return items[e.item].price, stores[e.store].name

    @database.procedure(event="store bigint, other bigint, item bigint")
    def send(e: Any, stock: Any) -> Any:
        stock[(e.store, e.item)].count -= 1
        stock[(e.other, e.item)].count += 1

    for procedure in database.procedures.values():
        program = procedure.program()
        assert isinstance(program, Program)
        program.__dict__["kernel"] = interpreted(program)
    return database


def fill(db: Any) -> None:
    db.load("stock", {"store": [1, 1, 2, 2], "item": [1, 6, 1, 6], "count": [9, 9, 9, 9]})
    db.load("items", {"item": [1, 6], "price": [5, 7]})
    db.load("stores", {"store": [1, 2], "name": ["a", "b"]})


def sell_and_send(db: Any) -> pa.Table:
    db.run("send", {"store": [1, 2], "other": [2, 1], "item": [1, 6]})
    return db.run("sell", {"store": [1, 2, 1], "item": [6, 1, 1]})


def tables(db: Any) -> list[pa.Table]:
    return [db.table(name).sort_by([(key, "ascending") for key in keys]) for name, keys in
            (("stock", ["store", "item"]), ("items", ["item"]), ("stores", ["store"]))]  # fmt: skip


def test_a_design_partitions_tables_and_changes_no_result() -> None:
    with shop().open() as db, shop().open(design=PartitionDesign.parse(TEXT)) as designed:
        for one in (db, designed):
            fill(one)
        assert sell_and_send(db) == sell_and_send(designed)
        assert tables(db) == tables(designed)
        assert designed.explain().splitlines() == [
            "database shop, 3 partitions",
            "  table stock: by ranges of item",
            "  table items: by ranges of item",
            "  table stores: replicated, by the design",
            "  sell: single-partition, by item",
            "  send: single-partition, by item",
            f"  forwarded: {designed.explain().rpartition('forwarded: ')[2]}",
        ]


def test_a_database_goes_from_one_design_to_another_and_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "design.yaml"
    file.write_text(TEXT)
    with shop().open(tmp_path / "shop", partitions=2) as db:
        fill(db)
        sell_and_send(db)
        before = tables(db)
    with shop().open(tmp_path / "shop", design=file) as db:
        assert tables(db) == before
        sell_and_send(db)
        after = tables(db)
        assert after != before
    with shop().open(tmp_path / "shop") as db:
        assert tables(db) == after


PAIRS = """
database: chain
partitions: 3
tables:
  stock: {partition_by: [store, item], indexes: [item, [item, count]]}
  prices: {partition_by: item}
routes:
  sell: ['(store, item)', item]
  reset: ['(the store of stock by item, item)']
"""


def chain() -> Database:
    database = penstock.database("chain")
    stock = "store bigint, item bigint, count bigint NOT NULL"
    database.table("stock", stock, key=("store", "item"), indexes=["item", ("item", "count")])
    database.table("prices", "item bigint, price bigint NOT NULL", key="item")

    @database.procedure(event="store bigint, item bigint", returns="price bigint")
    def sell(e: Any, stock: Any, prices: Any) -> Any:
        stock[e.store, e.item].count -= 1
        return prices[e.item].price

    @database.procedure(event="stores array<bigint>, item bigint")
    def send(e: Any, stock: Any) -> Any:
        for store in e.stores:
            stock[store, e.item].count += 1

    @database.procedure(event="item bigint, worth bigint NOT NULL", returns="count bigint")
    def reset(e: Any, stock: Any) -> Any:
        row = stock.by("item")[e.item].first()
        if row is None:
            return 0
        row.count += e.worth
        return row.count

    for procedure in database.procedures.values():
        program = procedure.program()
        assert isinstance(program, Program)
        program.__dict__["kernel"] = interpreted(program)
    return database


def chain_rows() -> dict[str, dict[str, list[int]]]:
    numbers = range(32)
    stock = {"store": [n // 8 for n in numbers], "item": [n % 8 for n in numbers], "count": [9] * 32}
    return {"stock": stock, "prices": {"item": list(range(8)), "price": list(range(8))}}


def chain_requests() -> list[tuple[str, dict[str, Any]]]:
    return [
        ("sell", {"store": [n % 4 for n in range(30)], "item": [n % 7 for n in range(30)]}),
        ("send", {"stores": [[1, 2], [3], [], [0, 9]], "item": [1, 2, 3, 4]}),
        ("reset", {"item": [5, 99, None], "worth": [1, 2, 3]}),
        ("sell", {"store": [0, 1, None], "item": [1, 1, 1]}),
    ]


def test_two_columns_partition_a_table_and_change_no_result() -> None:
    design = PartitionDesign.parse(PAIRS)
    with chain().open() as db, chain().open(design=design) as designed:
        for one in (db, designed):
            for name, rows in chain_rows().items():
                one.load(name, rows)
        for request in chain_requests():
            assert db.run(*request) == designed.run(*request)
        for number in range(28):  # a call alone runs where its own rows are
            event = {"store": number % 4, "item": number % 7}
            assert db.call("sell", **event) == designed.call("sell", **event)
        for name, keys in (("stock", ["store", "item"]), ("prices", ["item"])):
            order = [(key, "ascending") for key in keys]
            assert db.table(name).sort_by(order) == designed.table(name).sort_by(order)
        lines = designed.explain().splitlines()
        assert lines[1] == "  table stock: by the hash of store and item"
        assert any("if one partition has (store, item) and item" in line for line in lines)
        assert isinstance(designed._state, PartitionedTables)
        parts = [part["stock"].table() for part in designed._state.partition_tables]
        assert sum(len(part) for part in parts) == 32
        for store in range(4):
            assert sum(store in part["store"].to_pylist() for part in parts) > 1


def test_the_text_of_a_design_is_read_as_the_design() -> None:
    pairs = PartitionDesign.parse(PAIRS)
    assert pairs.columns == {"stock": ("store", "item"), "prices": "item"}
    assert pairs.indexes == {"stock": (("item",), ("item", "count"))}
    assert PartitionDesign.parse(pairs.to_yaml()) == pairs
    design = PartitionDesign.parse(TEXT)
    assert design.columns == {"stock": "item", "items": "item", "stores": None}
    assert design.ranges == {"stock": (2, 5), "items": (2, 5)}
    assert PartitionDesign.parse(design.to_yaml()) == design


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ("database: shop", "database: shops", "the design is of another database"),
        ("partitions: 3", "partitions: many", "a design needs a number of partitions"),
        ("partitions: 3", "partitions: 0", "this is no number of partitions"),
        ("partitions: 3", "partition: 3", "did you mean 'partitions'"),
        ("partitions: 3", "", "a design lacks a field"),
        ("stock:", "stok:", "the design has an unknown table"),
        ("stores: {", "stores: {partition_by: store, ", "a table of a design is partitioned or replicated"),
        ("stores: {replicated: true}", "stores: {}", "a table of a design is partitioned or replicated"),
        ("items: {partition_by: item,", "items: {partition_by: price,", "a column of its key"),
        (
            "stock: {partition_by: item, ranges: [2, 5]}",
            "stock: {partition_by: item, ranges: [5, 2]}",
            "the ranges of a table do not fit",
        ),
        (
            "stock: {partition_by: item, ranges: [2, 5]}",
            "stock: {partition_by: item, ranges: 5}",
            "the ranges of a table are a list",
        ),
        ("database: shop", "database: [", "a design is not valid YAML"),
        (TEXT, "- a", "a design is a mapping"),
    ],
)
def test_an_unusable_design_is_refused(old: str, new: str, fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        shop().open(design=PartitionDesign.parse(TEXT.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ("[store, item], ", "[store, store], ", "by one column twice"),
        ("[store, item], ", "[store, count], ", "a column of its key"),
        ("[store, item], ", "[store, 1], ", "a table of a design is partitioned or replicated"),
        ("[store, item], ", "[store, item], ranges: [1, 2], ", "only a single column has ranges"),
        ("[item, [item, count]]", "[store]", "an index that the table does not declare"),
        ("[item, [item, count]]", "item", "the indexes of a table are a list"),
        ("{partition_by: item}", "{replicated: true, indexes: [item]}", "is partitioned or replicated"),
        ("sell: ['(store, item)', item]", "sell: [store]", "not routed as the design says.*declare route="),
        ("sell:", "sel:", "the design has an unknown procedure.*did you mean 'sell'"),
        ("sell: ['(store, item)', item]", "sell: 5", "the routes of a design must name attributes"),
    ],
)
def test_what_the_engine_cannot_carry_is_refused(old: str, new: str, fact: str) -> None:
    assert old in PAIRS
    with pytest.raises(InvalidUsageError, match=fact):
        chain().open(design=PartitionDesign.parse(PAIRS.replace(old, new)))


def test_a_design_comes_alone_and_from_a_file_that_exists(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match="cannot read a design"):
        shop().open(design=tmp_path / "none.yaml")
    with pytest.raises(InvalidUsageError, match="a design determines the partitions"):
        shop().open(design=PartitionDesign.parse(TEXT), partitions=2)
