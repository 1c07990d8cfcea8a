"""Atomic batches on Spark equal those of a database in this process, however micro-batches cut them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import abort
from penstock.errors import InvalidUsageError
from penstock.procedures.databases import Database
from tests.spark.queries import Place

pytestmark = pytest.mark.spark


def make_shop() -> Database:
    shop = penstock.database("shop")
    shop.table("stock", "item bigint, left bigint NOT NULL", key="item")
    lines = shop.stream("lines", "item bigint")
    last = shop.window("last", "item bigint", size=4, slide=1)

    @shop.procedure(event="item bigint, count bigint", returns="left bigint")
    def take(e: Any, stock: Any, lines: Any) -> Any:
        if e.item not in stock:
            stock.insert(item=e.item, left=60)
        stock[e.item].left -= e.count
        if stock[e.item].left < 0:
            abort("sold out")
        lines.emit(item=e.item)
        return stock[e.item].left

    @shop.procedure(event=lines, returns="recent bigint")
    def note(e: Any, last: Any) -> Any:
        last.insert(item=e.item)
        recent = 0
        for row in last:
            recent += row.item
        return recent

    shop.workflow("sell", take, note)
    assert last.size == 4
    return shop


@pytest.mark.parametrize("batch", ["order", 7])
def test_batches_equal_those_in_one_process(spark: SparkSession, tmp_path: Path, batch: str | int) -> None:
    penstock.register(spark)
    place, draw, shop = Place(tmp_path), random.Random(3), make_shop()
    given: dict[str, Any] = {"batch": batch, "keep": "order", "state_location": place.state}
    orders = [number for number in range(80) for _ in range(draw.randrange(1, 9))]
    rows = pa.table({
        "order": [f"o{one}" for one in orders],
        "item": draw.choices(range(5), k=len(orders)),
        "count": draw.choices(range(4), k=len(orders)),
    })  # fmt: skip
    half = len(orders) // 2
    held = -1
    for step, part in enumerate((rows.slice(0, half), rows.slice(half))):
        with penstock.PStreamWriter(tmp_path / "events", rows.schema, unit_rows=9, threads=1) as writer:
            writer.append(part)
        events = spark.readStream.format("pstream").option("maxRows", 41).load(str(tmp_path / "events"))
        events = events.where("true") if step else events
        query = place.run(penstock.transactions(events, shop.workflows["sell"], **given))
        held = penstock.metrics(query)[-1]["held"]
    names = ["order", "left", "recent", "rejected"]
    made = place.sequence("transaction", *names)
    names_of_batches = rows["order"] if batch == "order" else pa.array([n // 7 for n in range(len(orders))])
    with shop.open() as db:
        whole = rows.append_column("batch", names_of_batches)
        done = len(made)
        expected = db.run("sell", whole.slice(0, done), batch="batch")
        wanted = expected.append_column("order", rows["order"].slice(0, done)).select(names)
        assert [row[1:] for row in made] == [tuple(row.values()) for row in wanted.to_pylist()]
        stock = penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table="stock").toArrow()
        stock = stock.select(["item", "left"])
        assert stock.sort_by("item").to_pylist() == db.table("stock").sort_by("item").to_pylist()
    last = whole["batch"].to_pylist()[-1]
    waiting = whole["batch"].to_pylist().count(last) if batch == "order" else len(orders) % 7
    assert done == len(orders) - waiting
    assert held == waiting
    bounds = [row[0] for row in made]
    assert bounds == sorted(bounds)
    assert len(set(bounds)) == len(set(whole["batch"].to_pylist()[:done]))
    assert {row[-1] for row in made} == {None, "take: sold out"}


def test_batches_that_cannot_be_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    shop = make_shop()
    df = spark.readStream.format("rate").load().selectExpr("value AS item", "value AS count", "value AS o")
    sell = shop.workflows["sell"]
    plain = penstock.database("plain")
    plain.table("stock", "item bigint", key="item")

    @plain.procedure(event="item bigint")
    def act(e: Any, stock: Any) -> None:
        stock.insert(item=e.item)

    cases: list[tuple[Any, dict[str, Any], str]] = [
        (sell, {"batch": "x"}, "there is no such column: column=x"),
        (sell, {"batch": 0}, "neither a column nor a number of events"),
        (sell, {"batch": "o", "buckets": 2}, "atomic batches need one bucket"),
        (act, {"batch": "o"}, "only a workflow takes batches"),
    ]
    for procedure, given, why in cases:
        with pytest.raises(InvalidUsageError, match=why):
            penstock.transactions(df, procedure, state_location=tmp_path / "s", **given)
