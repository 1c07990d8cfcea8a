"""Running graphs of update streams: unions, joins and lookups."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.checkpointing.p_stream import PStreamReader
from penstock.dataflow import Graph
from penstock.errors import InvalidUsageError
from penstock.spark_ext.graph import frames, lookup_tables
from penstock.spark_ext.graph.lookup_tables import LookupLimits
from tests.long_tests import long_but
from tests.oracles.naive_join import NaiveJoin, Tuple
from tests.oracles.naive_union import NaiveUnion
from tests.oracles.naive_union import Tuple as Ranked
from tests.spark.queries import PATIENCE_S, Input, quotes

pytestmark = pytest.mark.spark

QUOTES = quotes([]).schema
Rows = list[tuple[str, int, float]]


def some(seed: int, count: int = 40) -> Rows:
    draw = random.Random(seed)
    return [(f"k{draw.randint(0, 5)}", draw.randint(0, 30), float(draw.randint(0, 9))) for _ in range(count)]


def run(graph: Graph, spark: SparkSession, place: Path, **options: Any) -> list[tuple[Any, ...]]:
    """Run a graph over all that is there; return all rows of the p-stream that it writes, in their order."""
    out = place / "out"
    running = penstock.start(
        graph,
        spark,
        place / "checkpoint",
        sink=lambda rows: rows.writeStream.format("pstream").option("path", str(out)),
        available_now=True,
        **options,
    )
    with running:
        assert running.await_termination(PATIENCE_S), running.status()
    assert running.state == "finished"
    return [tuple(row.values()) for row in PStreamReader(out).read().to_pylist()]


def source(name: str) -> Graph:
    return penstock.graph("g").source(name, QUOTES, key="k", time="t")


@pytest.mark.parametrize("persist", long_but(["always", "never"], "never"))
def test_a_union_of_update_streams_in_a_graph(spark: SparkSession, tmp_path: Path, persist: Any) -> None:
    inputs = {name: Input(tmp_path / name) for name in ("one", "two")}
    graph = source("one").union(source("two"), prefer="two").where("v > 1").sink("pstream")
    model, expected = NaiveUnion(), list[tuple[Any, ...]]()
    found: list[tuple[Any, ...]] = []
    for seed in (1, 2):
        rows = {name: [(k, t + 10 * seed, v) for k, t, v in some(10 * seed + len(name))] for name in inputs}
        rows["two"] += [(k, t, v + 20) for k, t, v in rows["one"][:20]]
        for name, place in inputs.items():
            place.add(quotes(rows[name]))
        given = [(k, t, int(name == "one"), v) for name in inputs for k, t, v in rows[name]]
        model.enqueue([Ranked(*one) for one in given])  # type: ignore[arg-type]  # keys are texts here
        expected += sorted(one for one in map(model.take, list(model.waiting)) if one[2] > 1)
        sources = {name: place.frame(spark) for name, place in inputs.items()}
        made = run(graph, spark, tmp_path, sources=sources, persist=persist)
        found += sorted(made[len(found) :])
    assert found == expected
    assert len(expected) > 6


def test_a_join_of_update_streams_in_a_graph(spark: SparkSession, tmp_path: Path) -> None:
    inputs = {name: Input(tmp_path / name) for name in ("bids", "asks")}
    asks = source("asks").where("v < 9").select("k", "t", ask="v")
    joined = source("bids").join(
        asks, on="k", time="t", within="3 s", unit="s", condition="ask <> v", watermark_delay="1 h", buckets=3
    )
    graph = joined.where("ask > 1").select("k", "t", "v", "ask").sink("pstream")
    model, expected = NaiveJoin(3, 3600, "b <> c"), list[tuple[Any, ...]]()
    found: list[tuple[Any, ...]] = []
    for seed in (3, 4):
        rows = {name: [(k, t + 10 * seed, v) for k, t, v in some(seed + len(name))] for name in inputs}
        rows["asks"] = [(k, t + seed, v) for k, t, v in rows["asks"]]
        for name, place in inputs.items():
            place.add(quotes(rows[name]))
        left, right = ([Tuple(*one) for one in rows[name]] for name in inputs)  # type: ignore[arg-type]
        expected += [one for one in model.join(left, [one for one in right if one.value < 9]) if one[3] > 1]
        sources = {name: place.frame(spark) for name, place in inputs.items()}
        made = run(graph, spark, tmp_path, sources=sources, persist="always")
        found += sorted(made[len(found) :])
    assert found == expected
    assert len(expected) > 3


@pytest.mark.long
def test_queues_that_are_persisted_before_a_join(spark: SparkSession, tmp_path: Path) -> None:
    inputs = {name: Input(tmp_path / name) for name in ("bids", "asks")}
    for number, place in enumerate(inputs.values()):
        place.add(quotes(some(number)))
    bids, asks = (
        penstock.graph("g").source(name, QUOTES).update_queue("k", "t", name=f"newest {name}")
        for name in inputs
    )
    graph = bids.join(asks.select("k", "t", ask="v"), on="k", time="t", within="1 h", unit="s").sink(
        "pstream"
    )
    sources = {name: place.frame(spark) for name, place in inputs.items()}
    with pytest.raises(InvalidUsageError, match="only one window, update queue"):
        run(graph, spark, tmp_path / "no", sources=sources, persist="never")
    persist: Any = {"newest bids": "always", "newest asks": "always", "bids": "never", "asks": "never"}
    newest = [{k: (t, v) for k, t, v in sorted(some(n), key=lambda one: one[1])} for n in (0, 1)]
    both = newest[0].keys() & newest[1].keys()
    expected = [(k, max(newest[0][k][0], newest[1][k][0]), newest[0][k][1], newest[1][k][1]) for k in both]
    assert sorted(run(graph, spark, tmp_path, sources=sources, persist=persist)) == sorted(expected)


def with_many(table: pa.Table) -> pa.Table:
    """Add rows with unused keys, until the table is too large for the readers."""
    count = LookupLimits().rows
    keys, groups = table.schema
    others = [pa.array(range(1000, 1000 + count), keys.type), pa.array(["none"] * count, groups.type)]
    return pa.concat_tables([table, pa.Table.from_arrays(others, schema=table.schema)])


CAMPAIGNS = pa.schema({"ad": pa.int32(), "campaign": pa.string()})
VIEWS = pa.schema({"t": pa.int64(), "ad": pa.int32(), "kind": pa.string()})


@pytest.mark.parametrize(
    ("ways", "files"),
    long_but(
        [
            (("Spark", "readers"), False),
            (("readers", "Spark"), False),
            (("readers",), True),
            (("Spark",), True),
        ],
        (("Spark", "readers"), False),
    ),
)
def test_fragments_of_views_are_looked_up_once_for_each_advertisement(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ways: tuple[str, ...], files: bool
) -> None:
    draw = random.Random(7)
    times = sorted(draw.sample(range(60_000), 400))
    events = [(t, draw.choice([*range(9), None]), draw.choice(["view", "click"])) for t in times]
    events.append((60_000, 0, "view"))
    columns = [list(column) for column in zip(*events, strict=True)]
    views = pa.table(
        [pa.array(column, one.type) for column, one in zip(columns, VIEWS, strict=True)], schema=VIEWS
    )
    table = pa.table({"ad": [*range(8), None], "campaign": [f"c{n % 3}" for n in range(9)]}, CAMPAIGNS)
    place = Input(tmp_path / "views")
    graph = (
        penstock.graph("ysb")
        .source("views", VIEWS, kind="parquet" if files else "push")
        .where("kind = 'view'")
        .lookup("campaigns", CAMPAIGNS, on="ad")
        .window("t", size="10 s", unit="ms")
        .group_by("campaign")
        .agg(views="count(*)", mean="avg(t)", ads="count(DISTINCT ad)", first="first(ad)", last="last(ad)")
        .select("campaign", "views", "mean", "ads", "first", "last", begin="window.start")
        .sink("pstream")
    )
    persist: Any = "never" if files else "always"
    assert any("before the lookup" in note for _, note in graph.plan(persist=persist).changes)
    told: list[str] = []

    def lookup_in(*arguments: Any) -> str | None:
        text = lookup_tables.lookup_in(*arguments)
        told.append("Spark" if text is None else "readers")
        return text

    monkeypatch.setattr(frames, "lookup_in", lookup_in)
    made: list[tuple[Any, ...]] = []
    for number, way in enumerate(ways):
        share = len(events) // len(ways)
        place.add(views.slice(number * share, None if number == len(ways) - 1 else share))
        made = run(
            graph,
            spark,
            tmp_path,
            sources={
                "views": str(place.directory) if files else place.frame(spark, "t long, ad int, kind string")
            },
            tables={"campaigns": spark.createDataFrame(table if way == "readers" else with_many(table))},
            persist=persist,
        )
    assert tuple(told) == ways
    found = [(begin.timestamp(), campaign, *values) for campaign, *values, begin in made]
    with duckdb.connect(config={"threads": 1}) as database:
        database.register("views", views)
        database.register("campaigns", table)
        wanted = database.sql(
            "select t // 10000 * 10 as pane, campaign, count(*), avg(t), count(distinct ad), "
            "arg_min(ad, t), arg_max(ad, t) from views join campaigns using (ad) "
            "where kind = 'view' and t < 60000 group by all order by all"
        ).fetchall()
    assert sorted(found) == wanted, "of the windows that are complete"
    assert len(wanted) > 15


def test_a_lookup_makes_no_second_tuple_of_an_update(spark: SparkSession, tmp_path: Path) -> None:
    names = pa.schema({"k": pa.string(), "name": pa.string()})
    graph = source("quotes").lookup("names", names, on="k").sink("pstream")
    place = Input(tmp_path / "in")
    place.add(quotes([("a", 1, 1.0), ("b", 2, 2.0), ("c", 3, 3.0)]))
    rows = [("a", "A"), ("b", "B")]
    given: dict[str, Any] = {"sources": {"quotes": place.frame(spark)}, "persist": "never"}
    twice = spark.createDataFrame([*rows, ("a", "Z")], "k string, name string")
    with pytest.raises(InvalidUsageError, match=r"several rows for one update.*table=names columns=k"):
        run(graph, spark, tmp_path / "no", tables={"names": twice}, **given)
    made = run(
        graph,
        spark,
        tmp_path,
        tables={"names": spark.createDataFrame(rows, "k string, name string")},
        **given,
    )
    assert sorted(made) == [("a", 1, 1.0, "A"), ("b", 2, 2.0, "B")]
    nobody = spark.createDataFrame([*rows, (None, "Y"), (None, "Z")], "k string, name string")
    assert sorted(run(graph, spark, tmp_path / "nobody", tables={"names": nobody}, **given)) == sorted(made)


@pytest.mark.parametrize("way", ["Spark", "readers"])
def test_a_lookup_takes_keys_of_any_name_and_nulls_that_were_not_said(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    views = pa.schema({"t": pa.int64(), "a`d.x": pa.int32()})
    campaigns = pa.schema([("a`d.x", pa.int32()), pa.field("c d", pa.string(), nullable=False)])
    graph = (
        penstock.graph("g")
        .source("views", views)
        .lookup("campaigns", campaigns, on="a`d.x")
        .window("t", size="10 s", unit="s")
        .group_by("c d")
        .agg(views="count(*)")
        .select("`c d` AS c", "views")
        .sink("pstream")
    )
    place = Input(tmp_path / "views")
    place.add(pa.table({"t": [1, 2, 3, 100], "a`d.x": [1, 2, 1, 1]}, views))
    table = pa.table({"a`d.x": pa.array([1, 2], pa.int32()), "c d": [None, "b"]})
    made = run(
        graph,
        spark,
        tmp_path,
        sources={"views": place.frame(spark, "t long, `a``d.x` int")},
        tables={"campaigns": spark.createDataFrame(table if way == "readers" else with_many(table))},
        persist="always",
    )
    assert sorted(made, key=str) == [("b", 1), (None, 2)]
