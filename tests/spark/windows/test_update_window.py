"""Windows on real Spark equal Spark's own ``groupBy(window(...))``, window for window."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.dataflow import Graph, graph
from penstock.dataflow.nodes import Node
from penstock.errors import InvalidUsageError
from penstock.spark_ext.graph.frames import Frames
from tests.long_tests import long_but
from tests.samples.aggregates import Spread, WeightedMean
from tests.spark.queries import Place, failure, fresh_workers

pytestmark = pytest.mark.spark

SCHEMA = "t timestamp, k string, part int, v double, n long"
AGGS = {
    "rows": "count(*)",
    "known": "count(v)",
    "total": "sum(v)",
    "mean": "avg(v)",
    "low": "min(n)",
    "high": "max(v)",
    "spread": "stddev(v)",
    "ratio": "sum(v * n) / sum(n)",
    "large": "count(*) filter (where v > 5)",
    "about": "approx_count_distinct(v)",
    "middle": "median(v)",
    "most": "percentile(n, 0.9) FILTER (WHERE v > 2)",
    "third": "approx_percentile(n, 0.33)",
}


LAST = {"t": 1_700_000_900_000_000, "k": "z", "part": 0, "v": 0.0, "n": 1}


def readings(seed: int, rows: int, seconds: float, disorder_s: float = 0.0) -> pa.Table:
    """Return readings of some groups over some seconds, disordered; some groups and values are null."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0, seconds, rows)) - rng.uniform(0, disorder_s, rows)
    micros = (at * 1e6).astype(np.int64) + 1_700_000_000_000_000
    null = rng.random(rows) < 0.1
    return pa.table(
        {
            "t": pa.array(micros, pa.timestamp("us", "UTC")),
            "k": pa.array(rng.choice(["a", "b", "c"], rows), mask=rng.random(rows) < 0.1),
            "part": pa.array(rng.integers(0, 3, rows), pa.int32()),
            "v": pa.array(rng.integers(0, 10, rows).astype(float), mask=null),
            "n": pa.array(rng.integers(1, 5, rows)),
        }
    )


def cut(table: pa.Table, seed: int, pieces: int) -> list[pa.Table]:
    """Cut a table at random places."""
    places = np.sort(np.random.default_rng(seed).integers(0, len(table), pieces - 1))
    bounds = [0, *places.tolist(), len(table)]
    return [table.slice(a, b - a) for a, b in pairwise(bounds)]


def ours(place: Place, df: DataFrame, **options: Any) -> DataFrame:
    given: dict[str, Any] = {
        "key": ("k", "part"),
        "time": "t",
        "aggs": AGGS,
        "mode": "append",
        "state_location": place.state,
    } | options
    return penstock.update_window(df, **given)


def of_spark(df: DataFrame, size: str, slide: str, delay: str) -> DataFrame:
    watermarked = df.withWatermark("t", delay)
    grouped = watermarked.groupBy("k", "part", sf.window("t", size, slide))
    return grouped.agg(*(sf.expr(text).alias(name) for name, text in AGGS.items())).select(
        "k", "part", "window", *AGGS
    )


def windows_in(place: Place, names: list[str]) -> list[tuple[Any, ...]]:
    rows = [
        tuple(rounded(row[name]) for name in names) for t in place.batches().values() for row in t.to_pylist()
    ]
    return sorted(rows, key=repr)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return value["start"].isoformat(), value["end"].isoformat()
    return round(value, 9) if isinstance(value, float) else value


def environments(df: DataFrame) -> list[str | None]:
    """Return the property that distinguishes the workers of a query's stateful functions."""
    found, nodes = [], [df._jdf.queryExecution().analyzed()]
    while nodes:
        node = nodes.pop()
        nodes += [node.children().apply(n) for n in range(node.children().length())]
        if node.nodeName() == "FlatMapGroupsInPandasWithState":
            found.append(node.functionExpr().func().envVars().get("PENSTOCK_WORKERS"))
    return found


@pytest.mark.parametrize("mode", ["append", "lazy"])
def test_windows_that_overlap_much_have_workers_of_their_own(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    place = Place(tmp_path)
    place.input.add(readings(1, 10, 10))
    frame = place.input.frame(spark, SCHEMA)
    for size, slide, own in (("60 s", "1 s", "stateful"), ("59 s", "1 s", None), ("1 hour", None, None)):
        windows = ours(place, frame, size=size, slide=slide, mode=mode)
        assert environments(windows) == [own], "where others run, too, a bucket seldom finds its state"
    assert "PENSTOCK_WORKERS" not in spark.sparkContext.environment
    assert environments(penstock.update_queue(frame, key="k", time="t", state_location=place.state)) == [None]


@pytest.mark.parametrize(("size", "own"), [("60 s", "stateful"), ("59 s", None)])
def test_windows_in_graphs_have_workers_of_their_own_too(
    spark: SparkSession, tmp_path: Path, size: str, own: str | None
) -> None:
    penstock.register(spark)
    schema = pa.schema({"t": pa.int64(), "k": pa.string(), "v": pa.float64()})
    with penstock.PStreamWriter(tmp_path / "rows", schema) as writer:
        writer.append(pa.table({"t": [1], "k": ["a"], "v": [1.0]}, schema))

    windows = graph("windows").source("rows", schema).window("t", size=size, slide="1 s", unit="s")

    def frames_of(made: Graph) -> tuple[Frames, Node]:
        streams = {"rows": str(tmp_path / "rows")}
        frames = Frames(
            spark, "windows", sources={}, tables={}, streams=streams, paths={}, state=str(tmp_path / "state")
        )
        return frames, made.sink("noop").plan(persist="always").root

    frames, root = frames_of(windows.group_by("k").agg(total="sum(v)"))
    assert environments(frames.build(root)[0]) == [own]
    made = frames.build_sink_input(root, {"path": str(tmp_path / "results")})
    assert made.direct, "the operator writes, and descriptors leave it"
    assert environments(made.rows) == [own]
    joined = windows.group_by("k").agg(total="sum(v)").join_windows(windows.agg(most="max(v)"))
    frames, root = frames_of(joined)
    assert set(environments(frames.build(root)[0])) == {own}


@pytest.mark.parametrize(
    ("size", "slide", "delay", "disorder_s"),
    long_but(
        [("10 seconds", "10 seconds", "0 seconds", 0.0), ("12 seconds", "5 seconds", "8 seconds", 8.0)],
        ("12 seconds", "5 seconds", "8 seconds", 8.0),
    ),
    ids=["tumbling", "sliding, out of order"],
)
def test_append_windows_are_those_of_spark(
    spark: SparkSession, tmp_path: Path, size: str, slide: str, delay: str, disorder_s: float
) -> None:
    batches = cut(readings(7, 600, 90, disorder_s), 7, 5)
    end = pa.table(
        {name: pa.array([value], batches[0].schema.field(name).type) for name, value in LAST.items()}
    )
    found = []
    for number in range(2):
        place = Place(tmp_path / str(number))
        # Spark emits what a micro-batch closes in the next one.
        place.input.add(*batches, end, *([end] if number else []))
        df = place.input.frame(spark, SCHEMA)
        made = (
            of_spark(df, size, slide, delay)
            if number
            else ours(place, df.withWatermark("t", delay), size=size, slide=slide)
        )
        query = place.run(made)
        found.append(windows_in(place, ["k", "part", "window", *AGGS]))
        if not number:
            metrics = penstock.metrics(query)
            assert sum(m["rows_in"] for m in metrics) == 601
            assert sum(m["emitted"] for m in metrics) == len(found[0])
            assert sum(m["late"] for m in metrics) == 0
            assert made.schema.simpleString() == of_spark(df, size, slide, delay).schema.simpleString()
    assert len(found[0]) > 90
    assert found[0] == found[1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "weight", "heavy"),
    long_but([("lazy", {"c": 9.0}, "c"), ("eager", "n", "b")], ("eager", "n", "b")),
)
def test_with_a_budget_keys_are_served_in_turn_also_after_a_restart(
    spark: SparkSession, tmp_path: Path, mode: str, weight: Any, heavy: str
) -> None:
    place = Place(tmp_path)
    table = readings(3, 400, 60)
    matters = pc.if_else(pc.fill_null(pc.equal(table["k"], heavy), False), 9, 1)
    table = table.set_column(table.schema.names.index("n"), "n", matters)
    place.input.add(*cut(table, 3, 3))
    frame = place.input.frame(spark, SCHEMA)

    def windows() -> DataFrame:
        distinct = {"v": "count(distinct v)", "parts": "count(distinct part) filter (where v > 5)"}
        of = {"size": "10 s", "slide": "5 s", "mode": mode, "aggs": AGGS | distinct}
        return ours(place, frame, key="k", budget=1, weight=weight, buckets=1, **of)

    place.run_until_drained(windows())
    place.input.add(table.slice(0, 1).set_column(0, "t", pa.array([LAST["t"]], table.schema[0].type)))
    with fresh_workers(spark):
        place.run_until_drained(windows())
    rows = [row for found in place.batches().values() for row in found.to_pylist()]
    assert {row["k"] for row in rows} == {"a", "b", "c", None}
    assert rows[0]["k"] == heavy, "weights reach the scheduler"
    by_key: dict[Any, list[Any]] = {}
    for found in place.batches().values():
        assert len(found) <= 1
    for row in rows:
        by_key.setdefault(row["k"], []).append(row["window"]["start"])
        with duckdb.connect() as database:
            database.register("readings", table)
            (expected, *_) = database.execute(
                "select count(*), sum(v), count(distinct v), count(distinct part) filter (where v > 5) "
                "from readings where k is not distinct from ? and t >= ? and t < ?",
                [row["k"], row["window"]["start"], row["window"]["end"]],
            ).fetchall()
        found = tuple(row[name] for name in ("rows", "total", "v", "parts"))
        assert found == expected, "windows are neither cut nor mixed"
    assert all(starts == sorted(set(starts)) for starts in by_key.values())


def test_wrong_arguments_say_what_would_be_right(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(readings(1, 5, 5))
    df = place.input.frame(spark, SCHEMA)
    for options, text in (
        ({"key": "nothing"}, "there is no such column"),
        ({"time": "v"}, "cannot be the time"),
        ({"time": "n"}, "an integer time needs a unit"),
        ({"slide": "20 s"}, "slide is longer"),
        ({"size": "0 s"}, "a duration is not positive: option=size"),
        ({"aggs": {}}, "no aggregate is given"),
        ({"aggs": {"a": "v + 1"}}, "no aggregate"),
        ({"aggs": {"a": "mode(v)"}}, "do not support this aggregate"),
        ({"aggs": {"a": "count(distinct k, part)"}}, "do not support this aggregate"),
        ({"aggs": {"a": "count(distinct array(v))"}}, "not nested"),
        ({"size": "10 rows", "slide": "5 s"}, "counts rows"),
        ({"size": "10 rows", "slide": "11 rows"}, "slide of windows"),
        ({"session": "5 s"}, "have no size and no slide"),
        ({"size": None}, "neither a size nor a session"),
        ({"size": None, "session": "5 s", "slide": "5 s"}, "have no size and no slide"),
        ({"size": None, "session": "0 s"}, "a duration is not positive: option=session"),
        ({"size": None, "session": "5 s", "mode": "lazy"}, "only in append mode"),
        ({"size": None, "session": "5 s", "mode": "eager"}, "only in append mode"),
        ({"aggs": {"k": "count(*)"}}, "same name"),
        ({"mode": "lasy"}, "an option has an unknown value"),
        ({"mode": "append", "budget": 3}, "do not take this option"),
        ({"mode": "lazy", "budget": "0 s"}, "not positive"),
        ({"mode": "append", "weight": "n"}, "do not take this option"),
        ({"mode": "append", "policy": "fifo"}, "do not take this option: option=policy"),
        ({"mode": "lazy", "weight": "w"}, "there is no such column: option=weight"),
        ({"mode": "lazy", "weight": "k"}, "this type cannot be the weight"),
        ({"mode": "lazy", "weight": 3}, "neither a column nor a mapping"),
        ({"mode": "lazy", "weight": {"a": 1}}, "for a key of one column"),
    ):
        with pytest.raises(InvalidUsageError, match=text):
            ours(place, df, **{"size": "10 s", **options})


def test_windows_of_rows_are_those_of_duckdb_also_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    table = readings(5, 300, 60, 4.0)
    frame = place.input.frame(spark, SCHEMA)
    aggs = {"rows": "count(*)", "total": "sum(v)", "different": "count(distinct n)", "newest": "last(n)"}

    def windows() -> DataFrame:
        return ours(place, frame, key="k", size="12 rows", slide="8 rows", watermark_delay="4 s", aggs=aggs)

    early, late = cut(table, 5, 2)
    end = table.slice(0, 1).set_column(0, "t", pa.array([LAST["t"]], table.schema[0].type))
    place.input.add(early)
    queries = [place.run(windows())]
    place.input.add(late, end)
    with fresh_workers(spark):
        queries.append(place.run(windows()))
    assert sum(m["late"] for query in queries for m in penstock.metrics(query)) == 0
    found = windows_in(place, ["k", "window", *aggs])
    with duckdb.connect() as database:
        local = table["t"].cast(pa.timestamp("us"))
        database.register("readings", table.set_column(0, "t", local))
        expected = database.execute(
            "with numbered as "
            "(select *, row_number() over (partition by k order by t) - 1 as i from readings), "
            "made as (select k, i, {'start': t, 'end': last(t) over w} as bounds, count(*) over w as rows, "
            "sum(v) over w as total, list_unique(list(n) over w) as different, last(n) over w as newest "
            "from numbered "
            "window w as (partition by k order by i rows between current row and 11 following)) "
            "select k, bounds, rows, total, different, newest from made where rows = 12 and i % 8 = 0"
        ).fetchall()
    assert len(expected) > 20
    assert found == sorted((tuple(map(rounded, row)) for row in expected), key=repr)


def test_sessions_are_those_of_duckdb_also_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    table = readings(5, 200, 200, 4.0)
    frame = place.input.frame(spark, SCHEMA)
    aggs = {"rows": "count(*)", "total": "sum(v)", "newest": "last(n)", "middle": "median(v)"}
    aggs |= {"spread": f"1 + {Spread.of('v')}", "weighted": WeightedMean.of("v", "n + 1")}

    def windows() -> DataFrame:
        return ours(place, frame, key="k", session="2500 ms", watermark_delay="4 s", aggs=aggs)

    early, late = cut(table, 5, 2)
    end = table.slice(0, 1).set_column(0, "t", pa.array([LAST["t"]], table.schema[0].type))
    place.input.add(early)
    queries = [place.run(windows())]
    held = penstock.read_state(spark, place.state, checkpoint=place.checkpoint).toArrow()
    place.input.add(late, end)
    with fresh_workers(spark):
        queries.append(place.run(windows()))
    assert sum(m["late"] for query in queries for m in penstock.metrics(query)) == 0
    found = windows_in(place, ["k", "window", *aggs])
    before = sum(m["emitted"] for m in penstock.metrics(queries[0]))
    assert 0 < before < len(found) and held.num_rows
    with duckdb.connect() as database:
        database.register("readings", table.set_column(0, "t", table["t"].cast(pa.timestamp("us"))))
        expected = database.execute(
            "with apart as (select *, "
            "coalesce(t - lag(t) over w >= interval 2500 milliseconds, false) as new "
            "from readings window w as (partition by k order by t)), "
            "numbered as (select *, count(*) filter (where new) over (partition by k order by t) as i "
            "from apart) "
            "select k, {'start': min(t), 'end': max(t) + interval 2500 milliseconds}, count(*), sum(v), "
            "last(n order by t), median(v), 1 + ((max(v) - min(v)) * 1000 + count(v)), "
            "sum(v * (n + 1)) / sum(n + 1) filter (where v is not null) "
            "from numbered group by k, i"
        ).fetchall()
    assert len(expected) > 20
    assert found == sorted((tuple(map(rounded, row)) for row in expected), key=repr)


def test_rows_without_a_time_fail_the_query_or_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    table = readings(1, 50, 30)
    holes = pa.array(
        [None if i % 10 == 0 else t for i, t in enumerate(table["t"].to_pylist())], table.schema[0].type
    )
    place.input.add(table.set_column(0, "t", holes))
    df = place.input.frame(spark, SCHEMA)
    assert "rows without a time" in failure(ours(place, df, size="10 s"), Place(tmp_path / "failing"))
    query = place.run(ours(place, df, size="10 s", nulls="drop"))
    assert sum(m["dropped"] for m in penstock.metrics(query)) == 5
    assert sum(m["rows_in"] for m in penstock.metrics(query)) == 50
