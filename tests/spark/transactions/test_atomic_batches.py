"""Atomic batches on Spark equal those of a database in this process, for any micro-batches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import abort
from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.databases import databases_in
from penstock.jobs.pipelines.run import run_to_end
from penstock.procedures.databases import Database
from tests.long_tests import long_but
from tests.spark.queries import Input, Place, limits

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


@pytest.mark.long
@pytest.mark.parametrize("batch", long_but(["order", 7], "order"))
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
        reader = spark.readStream.format("pstream").options(**limits(maxRows=41))
        events = reader.load(str(tmp_path / "events"))
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


FILE = """
import penstock
from penstock import abort

shop = penstock.database("shop")
shop.table("stock", "item bigint, left bigint NOT NULL", key="item")
lines = shop.stream("lines", "item bigint, left bigint")


@shop.procedure(event="item bigint, count bigint", returns="left bigint")
def take(e, stock, lines):
    if e.item not in stock:
        stock.insert(item=e.item, left=20)
    stock[e.item].left -= e.count
    if stock[e.item].left < 0:
        abort("sold out")
    lines.emit(item=e.item, left=stock[e.item].left)
    return stock[e.item].left


@shop.procedure(event=lines, returns="item bigint")
def note(e, stock):
    if e.left % 3 == 0:
        abort("third")
    return e.item


shop.workflow("sell", take, note)
"""


def test_a_pipeline_and_a_graph_make_batches_as_one_process(spark: SparkSession, tmp_path: Path) -> None:
    penstock.register(spark)
    (tmp_path / "shop.py").write_text(FILE)
    (shop,) = databases_in(tmp_path / "shop.py").values()
    draw = random.Random(4)
    orders = [number for number in range(30) for _ in range(draw.randrange(1, 5))]
    rows = pa.table({
        "order": orders,
        "item": draw.choices(range(3), k=len(orders)),
        "count": draw.choices(range(4), k=len(orders)),
    })  # fmt: skip
    inputs = Input(tmp_path / "in")
    inputs.add(rows)
    sections = {
        "source": {
            "type": "files", "format": "parquet", "path": str(inputs.directory),
            "schema": "order LONG, item LONG, count LONG",
        },
        "database": {
            "file": str(tmp_path / "shop.py"), "procedure": "sell", "batch": "order", "keep": "order",
        },
        "sink": {"type": "parquet", "path": str(tmp_path / "out")},
        "query": {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "available_now"},
    }  # fmt: skip
    run_to_end(Pipeline.model_validate(sections))
    with penstock.PStreamWriter(tmp_path / "events", rows.schema) as writer:
        writer.append(rows)
    graph = penstock.graph("g").source("events", rows.schema)
    graph = graph.transactions(shop.workflows["sell"], batch=4, keep="order")
    assert "in batches by 4" in graph.sink("pstream", path="x").explain()
    with penstock.start(
        graph.sink("pstream", path=str(tmp_path / "out2")), spark, tmp_path / "graph",
        sources={"events": tmp_path / "events"},
    ) as running:  # fmt: skip
        running.process_all_available()
    names = ["order", "left", "item", "rejected"]
    for made, batches in [
        (spark.read.parquet(str(tmp_path / "out")).orderBy("transaction").toArrow(), orders),
        (penstock.PStreamReader(tmp_path / "out2").read(), [n // 4 for n in range(len(orders))]),
    ]:
        # The last batch is not complete, or only by chance.
        done = len(orders) - (batches.count(batches[-1]) if batches is orders else len(orders) % 4)
        with shop.open() as db:
            given = rows.append_column("batch", pa.array(batches)).slice(0, done)
            expected = db.run("sell", given, batch="batch").append_column(
                "order", rows["order"].slice(0, done)
            )
        assert made.select(names).to_pylist() == expected.select(names).to_pylist()
        assert len(set(made["transaction"].to_pylist())) == len(set(batches[:done]))
        assert {one for one in made["rejected"].to_pylist() if one} >= {"take: sold out", "note: third"}


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
