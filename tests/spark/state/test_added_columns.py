"""A query whose input gains a nullable column continues over its checkpoint, with null in what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import penstock
from tests.long_tests import LONG, long_but
from tests.spark.queries import Input, Place, failure

pytestmark = pytest.mark.spark

OLD = "k long, t long, v long, side long"
NEW = "k long, more struct<a:long,b:string>, t long, v long, side long, last string"


def rows(seed: int, batch: int, *, more: bool) -> pa.Table:
    rng = np.random.default_rng(seed + batch)
    count = 60
    columns: dict[str, Any] = {
        "k": pa.array(rng.integers(0, 20, count)),
        "t": pa.array(10 * batch + rng.permutation(count)),
        "v": pa.array(rng.integers(0, 1000, count)),
        "side": pa.array(np.arange(count) % 2),
    }
    if more:
        columns["more"] = pa.array([{"a": n, "b": str(n)} if n % 3 else None for n in range(count)])
        columns["last"] = pa.array([f"last {n}" for n in range(count)])
    return pa.table(columns)


def query(spark: SparkSession, place: Place, kind: str, schema: str, **options: Any) -> DataFrame:
    frame = place.input.frame(spark, schema)
    given: dict[str, Any] = {"key": "k", "time": "t", "state_location": place.state, "buckets": 2} | options
    if kind == "window":
        # No aggregate needs the new columns.
        return penstock.update_window(frame, size="16 s", unit="s", aggs={"n": "sum(v)"}, **given)
    if kind == "queue":
        return penstock.update_queue(frame, **given, budget=8, delete_when="v % 7 = 0")
    one, other = (Input(place.input.directory).frame(spark, schema).where(f"side = {n}") for n in (0, 1))
    if kind == "union":
        return penstock.update_union(one, other, budget=8, **given)
    if kind == "append":
        return penstock.update_queue(frame, **given, budget=8, semantics="append")
    left = one.withColumnRenamed("v", "b")
    right = other.select("k", "t", sf.col("v").alias("c"), *(["last"] if "last" in schema else []))
    return penstock.update_join(
        left.drop("side", "last"), right, within="6 s", unit="s", condition="b <> c", **given
    )


def emitted(place: Place, *, ordered: bool) -> list[dict[str, Any]]:
    """Return the rows that were emitted; old files of the sink lack the new columns."""
    names = ["k", "t", "v", "b", "c", "n", "more", "last", "window"]
    found = [
        {name: row.get(name) for name in names}
        for table in place.batches().values()
        for row in table.to_pylist()
    ]
    return found if ordered else sorted(found, key=repr)


@pytest.mark.long
@pytest.mark.parametrize("kind", long_but(["queue", "join", "append", "union", "window"], "queue"))
def test_a_query_that_gains_columns_continues_as_if_it_had_had_them(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    grown, whole = Place(tmp_path / "grown"), Place(tmp_path / "whole")
    waits = kind in ("queue", "append", "union")

    def run(place: Place, schema: str) -> None:
        df, last = query(spark, place, kind, schema), len(list(place.input.directory.glob("*.parquet")))
        if waits:
            place.run_until(df, lambda: len(list((place.checkpoint / "commits").glob("[0-9]*"))) >= last + 1)
        else:
            place.run(df)

    for place, schema in ((grown, OLD), (whole, NEW)):
        place.input.add(*(rows(5, batch, more=False) for batch in range(2)))
        run(place, schema)
        place.input.add(*(rows(5, batch, more=True) for batch in range(2, 5)))
        df = query(spark, place, kind, NEW)
        if waits:
            place.run_until_drained(df)
        else:
            place.run(df)
    found = emitted(grown, ordered=False)
    if waits and kind != "append":
        # The micro-batches differ in time, but every key ends with its newest tuple.
        newest = [{row["k"]: row for row in emitted(place, ordered=True)} for place in (grown, whole)]
        assert newest[0] == newest[1] and len(newest[0]) == 20
        shown = penstock.read_state(spark, grown.state)
        assert {"more", "last"} <= set(shown.columns) and shown.count() == 20
    else:
        assert found == emitted(whole, ordered=False)
    assert kind == "window" or any(row["last"] for row in found)
    if kind == "window" or not LONG:
        return
    assert "with another" in failure(query(spark, grown, kind, OLD), grown), "there is no way back"
    copy = penstock.fork_state(grown.checkpoint, grown.state, tmp_path / "fork")
    grown.checkpoint, grown.sink = Path(copy.checkpoint), tmp_path / "forked"
    grown.input.add(rows(5, 6, more=True))
    df = query(spark, grown, kind, NEW)
    if waits:
        grown.run_until_drained(df)
    else:
        grown.run(df)
    assert emitted(grown, ordered=False)


def test_other_changes_of_columns_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(rows(5, 0, more=False))
    place.run(penstock.update_queue(place.input.frame(spark, OLD), "k", "t", state_location=place.state))
    place.input.add(rows(5, 1, more=True))

    def told(frame: DataFrame) -> str:
        return failure(penstock.update_queue(frame, "k", "t", state_location=place.state), place)

    frame = place.input.frame(spark, NEW)
    for other in (
        frame.drop("v"),
        frame.withColumn("v", sf.col("v").cast("double")),
        frame.select("t", "k", "v", "side", "last"),
        frame.withColumn("last", sf.lit("never null")),
    ):
        assert "the checkpoint was made with another schema" in told(other)
