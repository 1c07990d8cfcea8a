"""Pipelines with unions, joins, lookups and results, as one query and as graphs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.conf.document import PipelineError
from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.run import Batch, run_pipeline, run_to_end
from tests.long_tests import long_but
from tests.spark.queries import Input, quotes

pytestmark = pytest.mark.spark

SCHEMA = "k string, t long, v double"


def source(path: Path) -> dict[str, Any]:
    return {"type": "files", "format": "parquet", "path": str(path), "schema": SCHEMA}


def pipeline(tmp_path: Path, persist: Any = "auto", **sections: Any) -> Pipeline:
    query = {"name": "made", "checkpoint": str(tmp_path / "checkpoint"), "trigger": "available_now"}
    return Pipeline.model_validate(
        {
            "source": source(tmp_path / "one"),
            "sink": {"type": "memory"},
            "persist": persist,
            "query": query,
            **sections,
        }
    )


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    Input(tmp_path / "one").add(quotes([("a", 5, 1.0), ("b", 5, 2.0), ("c", 9, 3.0), (None, 1, 1.0)]))
    Input(tmp_path / "two").add(quotes([("a", 5, 10.0), ("b", 4, 20.0), ("c", 12, 30.0), ("d", 1, 0.0)]))
    names = tmp_path / "names.csv"
    names.write_text("k,name\na,A\nc,C\n")
    return tmp_path


@pytest.mark.parametrize("persist", long_but(["auto", "always"], "always"))
def test_a_union_with_results(spark: SparkSession, inputs: Path, persist: str) -> None:
    other = {"source": source(inputs / "two"), "filter": "v > 0"}
    union = {"inputs": {"two": other}, "key": "k", "time": "t", "prefer": "two", "nulls": "drop"}
    results = {"filter": "v > 2", "projection": ["k", "t", "v * 2 AS twice"]}
    run_to_end(pipeline(inputs, persist, union=union, results=results))
    rows = spark.table("made").collect()
    assert sorted(map(tuple, rows)) == [("a", 5, 20.0), ("c", 12, 60.0)]


def test_a_run_that_was_killed_while_its_first_offset_was_written_starts_again(
    spark: SparkSession, inputs: Path
) -> None:
    killed = pipeline(
        inputs,
        queue={"key": "k", "time": "t", "nulls": "drop"},
        sink={"type": "parquet", "path": str(inputs / "out")},
    )
    run_to_end(killed)
    results = inputs / "checkpoint" / "queries" / "results"
    for done in (results, inputs / "out"):
        shutil.rmtree(done)
    (results / "offsets").mkdir(parents=True)
    (results / "offsets" / ".0.de89336d.tmp").write_text("v1")
    run_to_end(killed)
    assert spark.read.parquet(str(inputs / "out")).count() == 3


def test_a_checkpoint_of_a_single_query_is_refused(spark: SparkSession, inputs: Path) -> None:
    (inputs / "checkpoint" / "offsets").mkdir(parents=True)
    with pytest.raises(
        InvalidUsageError, match=r"belongs to a single query, not to a graph: .* a new checkpoint"
    ):
        run_pipeline(pipeline(inputs, queue={"key": "k", "time": "t"}))


@pytest.mark.parametrize("persist", long_but(["auto", "always"], "always"))
def test_a_lookup_and_a_join(spark: SparkSession, inputs: Path, persist: str) -> None:
    table = {"format": "csv", "path": str(inputs / "names.csv"), "schema": "k string, name string"}
    lookup = {"table": table | {"options": {"header": True}}, "key": "k"}
    other = {"source": source(inputs / "two"), "projection": ["k", "t", "v AS w"]}
    join = {"with": other, "key": "k", "time": "t", "within": "5 s", "unit": "s", "condition": "w > v"}
    made = pipeline(inputs, persist, filter="k IS NOT NULL", lookup=lookup, join=join)
    totals = run_to_end(made)
    rows = spark.table("made").collect()
    assert sorted(map(tuple, rows)) == [("a", 5, 1.0, "A", 10.0), ("c", 12, 3.0, "C", 30.0)]
    if persist == "auto":
        assert totals.rows_in == 6


def test_a_window_behind_a_queue_that_is_persisted(spark: SparkSession, inputs: Path) -> None:
    steps: dict[str, Any] = {
        "queue": {"key": "k", "time": "t", "nulls": "drop"},
        "window": {"time": "t", "size": "2 s", "unit": "s"},
        "aggregates": {"n": "count(*)", "v": "max(v)"},
    }
    with pytest.raises(PipelineError, match=r"aggregates: an update stream would lose its key: column=k"):
        run_to_end(pipeline(inputs, **steps))
    distinct = {"kinds": "count(DISTINCT v)", "keys": "approx_count_distinct(k)"}
    by_window = {"aggregates": {"n": "sum(n)", **distinct}}
    steps |= {"group_by": ["k"], "by_window": by_window}
    with pytest.raises(
        InvalidUsageError, match="persist the output of the first: set persist to 'always' for queue"
    ):
        run_to_end(pipeline(inputs, **steps))
    run_to_end(pipeline(inputs, persist={"queue": "always"}, **steps))
    ((window, *counts),) = map(tuple, spark.table("made").collect())
    assert (window.start.timestamp(), counts) == (4, [2, 2, 2])


@pytest.mark.long
@pytest.mark.parametrize(
    ("persist", "mode", "weight"),
    long_but([("always", "lazy", "w"), ("never", "eager", {"k3": 9})], ("always", "lazy", "w")),
)
def test_windows_are_served_key_by_key_until_none_waits_also_after_a_restart(
    spark: SparkSession, tmp_path: Path, persist: str, mode: str, weight: Any
) -> None:
    rows = [(f"k{n % 5}", n, float(n * 37 % 11)) for n in range(60)]
    place, metrics = Input(tmp_path / "one"), tmp_path / "metrics.jsonl"
    window = {"time": "t", "size": "10 s", "slide": "5 s", "unit": "s", "mode": mode, "weight": weight}
    sink = {"type": "parquet", "path": str(tmp_path / "out")}
    query = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "available_now", "metrics": str(metrics)}
    batches: list[list[Batch]] = []
    for budget, some in ((2, rows), ("800ms", [("last", 1000, 0.0)])):
        place.add(quotes(some))
        steps: dict[str, Any] = {
            "projection": ["k", "t", "v", "v + 1 AS w"],
            "window": window | {"budget": budget},
            "group_by": ["k"],
            "aggregates": {"total": "sum(v)", "n": "count(*)"},
            "having": "n > 0",
        }
        batches.append([])
        totals = run_to_end(pipeline(tmp_path, persist, sink=sink, query=query, **steps), batches[-1].append)
        assert totals.waiting_keys == 0
    found: dict[str, list[int]] = {}
    for k, between, total, n in map(tuple, spark.read.parquet(sink["path"]).orderBy("window").collect()):
        start, end = round(between.start.timestamp()), round(between.end.timestamp())
        within = [v for key, t, v in rows if key == k and start <= t < end]
        assert (total, n) == (sum(within), len(within)), "windows are neither cut nor mixed"
        found.setdefault(k, []).append(start)
    assert found.keys() == {f"k{n}" for n in range(5)}
    assert all(starts == sorted(set(starts)) and starts[-1] == 55 for starts in found.values())
    first, second = batches
    assert sum(batch.emitted for batch in first + second) == sum(map(len, found.values()))
    assert max(batch.emitted for batch in first) <= 2, "within the budget"
    # Eager ones are committed to then; what they are committed to is not complete yet.
    assert any(not batch.new_input and (batch.emitted or mode == "eager") for batch in first)
    told = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert max(one["application_staleness_ms"]["max"] for one in told) > 0


def test_what_spark_refuses_in_a_step_names_the_section(spark: SparkSession, inputs: Path) -> None:
    queue = {"key": "k", "time": "t"}
    other = {"source": source(inputs / "two")}
    join = {"with": other, "key": "k", "time": "t", "within": "5 s", "unit": "s"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"queue": queue, "results": {"projection": ["t", "v"]}}, "results.projection: .* lose its key"),
        ({"queue": queue, "results": {"projection": ["lower(k) AS k"]}}, "the update key would change"),
        ({"queue": queue, "results": {"filter": "w > 1"}}, "results.filter: "),
        ({"join": join}, "join: two columns have the same name: column=v"),
        ({"join": join | {"with": other | {"filter": "x = 1"}}}, "join.with.filter: "),
        (
            {"union": queue | {"inputs": {"two": other | {"projection": ["k", "t"]}}}},
            "union: the streams of a union differ",
        ),
        (
            {"union": queue | {"inputs": {"two": other | {"projection": ["x"]}}}},
            "union.inputs.two.projection: ",
        ),
    ]
    for sections, message in cases:
        with pytest.raises(InvalidUsageError, match=message):
            run_pipeline(pipeline(inputs, **sections))
