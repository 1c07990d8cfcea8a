"""A database in partitions refuses wrong options, explains itself, and keeps its tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pyarrow as pa
import pytest

import penstock
from penstock.errors import InternalError, InvalidUsageError
from penstock.procedures.analysis.routing import routing_attribute
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from penstock.procedures.partitions.placement import Placement, read_ranges
from penstock.procedures.requests.messages import REQUESTS
from tests.transactions.procedures import interpreted


def shop() -> Database:
    database = penstock.database("shop")
    stock = "store bigint, item bigint, count bigint NOT NULL"
    database.table(
        "stock", stock, key=("store", "item"), partition_by="store", indexes=[("store", "count"), "item"]
    )
    database.table("items", "item bigint, price bigint NOT NULL", key="item")

    @database.procedure(event="store bigint, item bigint", returns="price bigint")
    def sell(e: Any, stock: Any, items: Any) -> Any:
        stock[(e.store, e.item)].count -= 1
        return items[e.item].price

    @database.procedure(event="store bigint, other bigint, item bigint")
    def send(e: Any, stock: Any) -> Any:
        stock[(e.store, e.item)].count -= 1
        stock[(e.other, e.item)].count += 1

    @database.procedure(event="store bigint, other bigint")
    def send_rarest(e: Any, stock: Any) -> Any:
        rarest = stock.by("store", "count")[e.store].first()
        rarest.count -= 1
        stock[(e.other, rarest.item)].count += 1

    @database.procedure(event="item bigint, price bigint")
    def set_price(e: Any, items: Any) -> Any:
        items[e.item].price = e.price

    @database.procedure(event="item bigint", returns="price bigint")
    def price_of(e: Any, items: Any) -> Any:
        return items[e.item].price

    @database.procedure(event="stores array<bigint>, item bigint")
    def collect(e: Any, stock: Any) -> Any:
        for store in e.stores:
            stock[(store, e.item)].count -= 1

    @database.procedure(event="item bigint")
    def take_rarest(e: Any, stock: Any) -> Any:
        rarest = stock.by("item")[e.item].first()
        if rarest is not None:
            rarest.count -= 1

    @database.procedure(event="item bigint")
    def drop(e: Any, stock: Any) -> Any:
        row = stock.by("item")[e.item].first()
        if row is not None:
            del stock[(row.store, row.item)]

    @database.procedure(event="shelf bigint, other bigint", route="e.shelf // 10")
    def sell_shelf(e: Any, stock: Any) -> Any:
        stock[(e.other // 10, 1)].count -= 1

    without_compiler(database)
    return database


def without_compiler(database: Database) -> None:
    """Let Python run the kernels, since machine code takes long to make."""
    for procedure in database.procedures.values():
        program = procedure.program()
        for one in (program, program.route) if isinstance(program, Program) else ():
            if one is not None:
                one.__dict__["kernel"] = interpreted(one)


STOCK = {"store": [1, 2, 300], "item": [1, 1, 1], "count": [9, 9, 9]}


def test_explain_says_where_tables_and_transactions_are() -> None:
    with shop().open(partitions=2, ranges={"stock": [100]}) as db:
        db.load("items", {"item": [1], "price": [5]})
        db.load("stock", STOCK)
        db.run("send", {"store": [1, 2, 1], "other": [2, 300, 2], "item": [1, 1, 1]})
        moved = "single-partition if one partition has store and other; else over several:"
        assert db.explain().splitlines() == [
            "database shop, 2 partitions",
            "  table stock: by ranges of store",
            "  table items: replicated, since it has no partition_by",
            "  sell: single-partition, by store",
            f"  send: {moved} its rows are moved",
            f"  send_rarest: {moved} its tables are gathered",
            "  set_price: all partitions: it writes items[e.item], which is replicated",
            "  price_of: single-partition, in any: it only reads replicated tables",
            f"  collect: {moved.replace('store and other', 'all stores')} its rows are moved",
            f"  take_rarest: {moved.replace('store and other', 'the store of stock by item')} "
            "its rows are moved",
            "  drop: all partitions: it changes what the index of stock by item has",
            "  sell_shelf: single-partition, by e.shelf // 10",
            # The first stays; the last needs a row of the second, which is forwarded.
            "  forwarded: 2 of 3 transactions",
        ]
        assert sorted(db.table("stock")["count"].to_pylist()) == [7, 10, 10]
    with shop().open() as db:
        assert db.explain().startswith("database shop, 1 partition\n  table stock: by the hash of store\n")


@pytest.mark.parametrize(
    ("partitions", "ranges", "fact"),
    [
        (0, None, "this is no number of partitions"),
        (65, None, "this is no number of partitions"),
        (True, None, "this is no number of partitions"),
        ("2", None, "this is no number of partitions"),
        (2, {"stok": [1]}, "there is no such table"),
        (2, {"items": [1]}, "a table without partition_by has no ranges"),
        (2, {"stock": [1, 2]}, "the ranges of a table do not fit its partitions"),
        (3, {"stock": [2, 2]}, "the ranges of a table do not fit its partitions"),
        (2, {"stock": [None]}, "the ranges of a table do not fit its partitions"),
        (2, {"stock": ["a"]}, "a column does not fit"),
    ],
)
def test_unusable_partitions_are_refused(
    partitions: Any, ranges: Mapping[str, Sequence[Any]] | None, fact: str
) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        shop().open(partitions=partitions, ranges=ranges)


def test_strong_recovery_has_one_partition(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match="strong recovery has one partition"):
        shop().open(tmp_path, partitions=2, recovery="strong")


@pytest.mark.parametrize("table", ["stock", "items"])
def test_rows_that_exist_are_loaded_into_no_partition(table: str) -> None:
    new = {"store": [300, 1, 2], "item": [2, 2, 1], "count": [1, 1, 1]}
    with shop().open(partitions=3, ranges={"stock": [2, 100]}) as db:
        db.load("stock", STOCK)
        db.load("items", {"item": [1], "price": [5]})
        with pytest.raises(InvalidUsageError, match="a row with this key exists already"):
            db.load(table, new if table == "stock" else {"item": [2, 1], "price": [5, 5]})
        assert db.table("stock").num_rows == 3
        assert db.table("items").num_rows == 1


def test_a_request_runs_once_with_any_number_of_partitions(tmp_path: Path) -> None:
    request = pa.Table.from_pylist(
        [{"id": "a", "procedure": "send", "arguments": '{"store": 1, "other": 300, "item": 1}'}], REQUESTS
    )
    answers = []
    for partitions in (2, 1, 4):
        with shop().open(tmp_path / "shop", partitions=partitions) as db:
            if partitions == 2:
                db.load("stock", STOCK)
            answers.append(db.answer(request).to_pylist())
            assert sorted(db.table("stock")["count"].to_pylist()) == [8, 9, 10]
    assert answers == [answers[0]] * 3


def test_threads_share_partitions() -> None:
    with shop().open(partitions=2, ranges={"stock": [100]}) as db:
        db.load("items", {"item": [1], "price": [5]})
        db.load("stock", {"store": [1, 300], "item": [1, 1], "count": [0, 0]})

        def call(store: int) -> None:
            for _ in range(20):
                futures = [db.submit("sell", store=store, item=1) for _ in range(5)]
                db.run("send", {"store": [store] * 3, "other": [1, 300, store], "item": [1] * 3})
                assert [future.result()["price"] for future in futures] == [5] * 5

        threads = [Thread(target=call, args=(store,)) for store in (1, 300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(db.table("stock")["count"].to_pylist()) == -200
        assert db._state.transactions == 2 * 20 * 8


def test_a_workflow_with_a_window_runs_over_all_partitions() -> None:
    database = penstock.database("votes")
    database.table("votes", "phone bigint, candidate bigint NOT NULL", key="phone", partition_by="phone")
    database.stream("valid", "candidate bigint NOT NULL")
    database.window("recent", "candidate bigint NOT NULL", size=3, slide=1)

    @database.procedure(event="phone bigint, candidate bigint NOT NULL")
    def validate(e: Any, votes: Any, valid: Any) -> Any:
        votes.insert(phone=e.phone, candidate=e.candidate)
        valid.emit(candidate=e.candidate)

    @database.procedure(event=database.catalog.streams["valid"], returns="leads bigint")
    def lead(e: Any, recent: Any) -> Any:
        recent.insert(candidate=e.candidate)
        count = 0
        for row in recent:
            if row.candidate == e.candidate:
                count += 1
        return count

    flow = database.workflow("flow", validate, lead)
    program = flow.program()
    assert isinstance(program, Program)
    program.__dict__["kernel"] = interpreted(program)
    votes = {"phone": [1, 2, 3, 3, 4, 5, 6], "candidate": [1, 2, 2, 2, 2, 1, 1]}
    found = []
    for partitions in (1, 3):
        with database.open(partitions=partitions) as db:
            results = db.run("flow", votes).to_pylist()
            assert "all partitions: it is a workflow" in db.explain() or partitions == 1
            found.append((results, db.table("votes").sort_by("phone").to_pylist()))
    assert found[0] == found[1]
    assert len(found[0][1]) == 6


def test_rows_stay_at_the_coordinator_while_many_transactions_need_several_partitions(
    tmp_path: Path,
) -> None:
    near: dict[str, Any] = {"store": [1], "other": [2], "item": [1]}
    far = near | {"other": [300]}
    ranges = {"stock": [100]}
    with shop().open() as serial, shop().open(location=tmp_path, partitions=2, ranges=ranges) as db:
        assert isinstance(db._state, PartitionedTables)
        db._state.gathered.min_moves = 40

        def run(name: str, event: dict[str, Any], times: int = 1) -> bool:
            events = {column: values * times for column, values in event.items()}
            assert db.run(name, events) == serial.run(name, events)
            return "gathered at the coordinator, until fewer need several partitions: stock" in db.explain()

        for one in (serial, db):
            one.load("stock", STOCK)
        assert not run("send", far, 2)
        assert run("send", far)
        assert run("send", near, 39)
        db.checkpoint()
        run("send", near)
        assert run("drop", {"item": [1]})  # takes all partitions
        assert run("send", near, 39)
        assert not run("send", near)
        assert run("drop", {"item": [1]})
        for one in (serial, db):
            one.load("stock", {"store": [1], "item": [1], "count": [5]})
        assert run("send", far, 3)
        last = serial.table("stock").sort_by("store")
        assert last["store"].to_pylist() == [1, 300]
        assert db.table("stock").sort_by("store") == last
    with shop().open(location=tmp_path, partitions=3) as db:
        assert db.table("stock").sort_by("store") == last


@pytest.mark.parametrize("partitions", [1, 2])
def test_an_access_outside_of_the_named_route_is_rejected_and_named(partitions: int) -> None:
    with shop().open(partitions=partitions) as db:
        db.load("stock", STOCK)
        sold = db.run("sell_shelf", {"shelf": [11, 3000, 11, 20], "other": [12, 3009, 3000, 11]})
        outside = "outside of the route: stock[e.other // 10, 1]"
        assert sold["rejected"].to_pylist() == [None, None, outside, outside]
        assert db.table("stock").sort_by("store")["count"].to_pylist() == [8, 9, 8]


def test_a_row_that_an_index_finds_in_one_partition_is_not_moved() -> None:
    with shop().open(partitions=2, ranges={"stock": [100]}) as db:
        db.load("stock", {"store": [1, 300, 2, 400], "item": [1, 2, 3, 3], "count": [9, 9, 9, 9]})
        db.run("take_rarest", {"item": [1, 2, 5, None, 2]})
        assert "forwarded: 0 of 5" in db.explain()
        db.run("take_rarest", {"item": [3, 1]})  # two stores have 3
        assert "forwarded: 1 of 7" in db.explain()
        assert db.table("stock").sort_by("store")["count"].to_pylist() == [7, 8, 7, 9]


def test_the_elements_of_a_list_are_in_the_partitions_of_all_of_them() -> None:
    with shop().open(partitions=2, ranges={"stock": [100]}) as db:
        db.load("stock", STOCK)
        stores = [[1, 2], [300], [], [1, 300], [2]]
        assert db.run("collect", {"stores": stores, "item": [1] * 5})["rejected"].null_count == 5
        assert "forwarded: 1 of 5" in db.explain()  # nobody before the fourth needs its rows
        assert db.table("stock").sort_by("store")["count"].to_pylist() == [7, 7, 7]


def test_explain_tells_how_batches_were_evaluated_and_at_what_cost() -> None:
    with shop().open(evaluation="adaptive") as db:
        db.load("stock", STOCK)
        db.load("items", {"item": [1], "price": [5]})
        db.run("sell", {"store": [1, 2], "item": [1, 1]})
        last = db.explain().split("  sell: ")[-1].splitlines()
        assert last[0].startswith("adaptive, 2 threads, punctuations after")
        assert re.fullmatch(r" +serial: 2 transactions, \d+ ns each", last[1])
        assert db.evaluation.metrics["sell"].transactions == {"serial": 2}
        assert "send:" not in db.explain().partition(last[0])[2]
    with shop().open() as db:
        assert "threads" not in db.explain()


def test_elements_of_lists_choose_no_bucket_and_need_an_index_before_the_call() -> None:
    database = shop()

    @database.procedure(event="items array<bigint>")
    def take_all(e: Any, stock: Any) -> Any:
        for item in e.items:
            row = stock.by("item")[item].first()
            if row is not None:
                row.count -= 1

    assert routing_attribute(database.procedures["collect"].program()) is None
    assert "take_all: all partitions: the index of stock is read for each element" in explained(database)


def explained(database: Database) -> str:
    with database.open(partitions=2) as db:
        return db.explain()


@pytest.mark.parametrize(
    ("kind", "ranges", "values"),
    [("bigint", [3, 7], [2, 3, 4, 7, 8]), ("string", ["b", "é"], ["a", "b", "ba", "é", "éa"])],
)
def test_a_range_begins_with_its_least_value(kind: str, ranges: list[Any], values: list[Any]) -> None:
    spec = penstock.database("shop").table("stock", f"store {kind}", key="store", partition_by="store")
    placement = Placement(spec, 3, ranges)
    column = pa.array(values)
    assert placement.partitions_of(placement.columns, [column]).tolist() == [0, 1, 1, 2, 2]
    parts = placement.split(pa.record_batch({"store": column}))
    assert [part["store"].to_pylist() for part in parts] == [values[:1], values[1:3], values[3:]]


def test_nulls_and_what_is_hidden_behind_them_need_no_partition() -> None:
    with shop().open(partitions=2, ranges={"stock": [100]}) as db:
        db.load("stock", STOCK)
        assert db.call("send", store=None, other=300, item=1)["rejected"] == "null key: stock"
        assert "forwarded: 0 of 1" in db.explain()
        stores = pa.ListArray.from_arrays([0, 2, 3], [1, 300, 300], mask=pa.array([True, False]))
        assert stores.offsets.to_pylist() == [0, 2, 3]
        db.run("collect", pa.table({"stores": stores, "item": [1, 1]}))
        assert "forwarded: 0 of 3" in db.explain()
        assert db.table("stock").sort_by("store")["count"].to_pylist() == [9, 9, 8]


@pytest.mark.parametrize(
    ("route", "plain", "fact"),
    [
        ("e.", False, "a route is not an expression"),
        (["e.store", 3], False, "a route is not an expression"),
        ("store", False, "store is not defined"),
        ("stock[e.store, 1].item", False, "stock is not defined"),
        ("e.name", False, "the column route 0 is integer, the value is text"),
        ("e.store", True, "a procedure with plain=True has no route"),
    ],
)
def test_unusable_routes_are_refused(route: Any, plain: bool, fact: str) -> None:
    database = shop()
    with pytest.raises(InvalidUsageError, match=fact):

        @database.procedure(event="store bigint, name string", route=route, plain=plain)
        def spoil(e: Any, stock: Any) -> Any:
            stock[(e.store + 1, 1)].count = 0


def test_a_route_needs_a_partitioned_table() -> None:
    database = shop()
    with pytest.raises(InvalidUsageError, match="a route needs a partitioned table"):

        @database.procedure(event="item bigint", route="e.item")
        def reprice(e: Any, items: Any) -> Any:
            items[e.item].price = 0


@pytest.mark.parametrize(
    ("texts", "ranges"),
    [([], {}), (["stock=1,20"], {"stock": [1, 20]}), (["shop=a"], {"shop": ["a"]})],
)
def test_ranges_of_the_command_line_have_the_type_of_the_column(
    texts: list[str], ranges: dict[str, list[Any]]
) -> None:
    assert read_ranges(shop().tables, texts) == ranges


@pytest.mark.parametrize("texts", [["stock"], ["stock=1", "stock=2"], ["stock=x"], ["stock="]])
def test_unusable_ranges_of_the_command_line_are_refused(texts: list[str]) -> None:
    with pytest.raises(InvalidUsageError, match=r"not ranges of a table|does not fit"):
        read_ranges(shop().tables, texts)


def shop_with_stores() -> Database:
    """Return a shop with one more partitioned table."""
    database = shop()
    database.table("stores", "store bigint, sales bigint NOT NULL", key="store", partition_by="store")

    @database.procedure(event="store bigint, other bigint")
    def swap(e: Any, stores: Any) -> Any:
        stores[e.store].sales += stores[e.other].sales

    without_compiler(database)
    return database


def test_calls_that_a_predictor_does_not_decline_leave_other_tables_gathered() -> None:
    database = shop_with_stores()
    declined = {"send_rarest"}
    predictor = SimpleNamespace(declines=lambda one: one.name in declined, run=lambda one, events: None)
    with database.open(partitions=2, ranges={"stock": [100], "stores": [100]}) as db:
        db.load("items", {"item": [1], "price": [5]})
        db.load("stock", STOCK)
        db.load("stores", {"store": [1, 300], "sales": [1, 2]})
        state = db._state
        assert isinstance(state, PartitionedTables)
        state.predicted = cast(Any, predictor)
        db.call("send_rarest", store=1, other=300)
        assert state.gathered.names == {"stock"}
        db.call("swap", store=1, other=300)
        assert state.gathered.names == {"stock"}
        db.call("send", store=1, other=300, item=1)
        assert (state.gathered.names, state.gathered._debt) == (set(), 0)
        assert sorted(db.table("stock")["count"].to_pylist()) == [7, 9, 11]
        assert sorted(db.table("stores")["sales"].to_pylist()) == [2, 3]


def test_a_write_to_a_replicated_table_gathers_no_other_table() -> None:
    with shop().open(partitions=2, ranges={"stock": [100]}) as db:
        db.load("items", {"item": [1], "price": [5]})
        db.load("stock", STOCK)
        db.call("set_price", item=1, price=6)
        db.call("send", store=1, other=300, item=1)
        assert isinstance(db._state, PartitionedTables)
        assert db._state.gathered.names == set()


def test_rows_deleted_while_gathered_stay_deleted_after_a_call_that_speculates(tmp_path: Path) -> None:
    options: dict[str, Any] = {"partitions": 2, "ranges": {"stock": [100], "stores": [100]}}
    with shop_with_stores().open(tmp_path, **options, speculate=True) as db:
        db.load("stock", STOCK | {"item": [1, 2, 2]})
        db.load("stores", {"store": [1, 2, 300], "sales": [1, 1, 1]})
        db.checkpoint()
        state = db._state
        assert isinstance(state, PartitionedTables)
        assert state.speculation is not None
        db.run("drop", {"item": [1]})
        db.run("swap", {"store": [1] + [2] * 40, "other": [300] + [2] * 40})
        assert (state.gathered.names, state.speculation.beside) == ({"stock"}, 40)
    with shop_with_stores().open(tmp_path) as db:
        assert sorted(db.table("stock")["store"].to_pylist()) == [2, 300]


@pytest.mark.parametrize("speculate", [False, True])
def test_rows_that_were_moved_for_a_failed_call_do_not_stay_at_the_coordinator(speculate: bool) -> None:
    with shop().open(partitions=2, ranges={"stock": [100]}, speculate=speculate) as db:
        db.load("stock", STOCK)
        state = db._state
        assert isinstance(state, PartitionedTables)
        stock = state.coordinator["stock"]
        upsert = stock.upsert

        def fail(rows: pa.RecordBatch, *, dirty: bool) -> None:
            upsert(rows, dirty=dirty)
            raise InternalError("this fails")

        with patch.object(stock, "upsert", fail), pytest.raises(InternalError, match="this fails"):
            db.call("send", store=1, other=300, item=1)
        assert len(state.coordinator["stock"]) == 0
        assert db.table("stock")["count"].to_pylist() == [9, 9, 9]


@pytest.mark.parametrize("plain", [False, True])
def test_a_call_that_a_predictor_is_not_asked_about_moves_no_gathered_tables(plain: bool) -> None:
    database = shop()

    @database.procedure(event="store bigint, other bigint", plain=plain)
    def swap(e: Any, stock: Any) -> Any:
        stock[(e.store, 1)].count += stock[(e.other, 1)].count

    without_compiler(database)
    predictor = SimpleNamespace(declines=lambda one: one.name == "drop", run=lambda one, events: None)
    with database.open(partitions=2, ranges={"stock": [100]}) as db:
        db.load("stock", STOCK)
        state = db._state
        assert isinstance(state, PartitionedTables)
        state.predicted = cast(Any, predictor)
        with patch.object(state.gathered, "_move", wraps=state.gathered._move) as move:
            for _ in range(3):
                db.call("drop", item=2)
                db.call("swap", store=1, other=2)
        assert (state.gathered.names, move.call_count) == ({"stock"}, 1)
        assert sorted(db.table("stock")["count"].to_pylist()) == [9, 9, 36]


def test_a_procedure_that_python_runs_gathers_its_tables_beside_a_predictor() -> None:
    database = shop()

    @database.procedure(event="store bigint, other bigint", plain=True)
    def swap(e: Any, stock: Any) -> Any:
        stock[(e.store, 1)].count += stock[(e.other, 1)].count

    without_compiler(database)
    predictor = SimpleNamespace(declines=lambda one: False, run=lambda one, events: None)
    with database.open(partitions=2, ranges={"stock": [100]}) as db:
        db.load("stock", STOCK)
        state = db._state
        assert isinstance(state, PartitionedTables)
        state.predicted = cast(Any, predictor)
        db.call("swap", store=1, other=300)
        assert state.gathered.names == {"stock"}
