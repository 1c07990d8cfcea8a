"""Joins of update streams on real Spark."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.errors import InvalidUsageError
from tests.oracles.naive_join import NaiveJoin, Tuple
from tests.spark.queries import Input, Place, failure, fresh_workers, quotes

pytestmark = pytest.mark.spark

LEFT = "k long, t long, a string, c long"
RIGHT = "b long, k long, t long"


def left_of(tuples: Sequence[Tuple]) -> pa.Table:
    k, t, v = ([one[n] for one in tuples] for n in range(3))
    return pa.table({"k": k, "t": t, "a": [f"a {n}" for n in v], "c": v})


def right_of(tuples: Sequence[Tuple]) -> pa.Table:
    k, t, v = ([one[n] for one in tuples] for n in range(3))
    return pa.table({"b": v, "k": k, "t": t})


def batches_of(seed: int, count: int) -> list[tuple[list[Tuple], list[Tuple]]]:
    draw = random.Random(seed)

    def some(number: int) -> list[Tuple]:
        return [
            Tuple(draw.randint(0, 7), 6 * number + draw.randint(-12, 6), draw.randint(0, 9))
            for _ in range(25)
        ]

    return [(some(number), some(number)) for number in range(count)]


@pytest.mark.parametrize(
    ("condition", "delay", "buckets"),
    [(None, "5 s", 1), ("B <> c", "5 s", 1), (None, "1 h", 3), ("(b + c) % 3 = 0 AND a <> 'a 1'", "1 h", 3)],
)
def test_each_key_gets_its_newest_matches_also_across_a_restart(
    spark: SparkSession, tmp_path: Path, condition: str | None, delay: str, buckets: int
) -> None:
    place, second = Place(tmp_path), Input(tmp_path / "second")
    model, expected = NaiveJoin(4, 5 if delay == "5 s" else 3600, condition and condition.lower()), []
    batches = batches_of(seed=9, count=4)
    counted = dict.fromkeys(("rows_in", "late", "emitted"), 0)
    for begin in (0, 2):
        for left, right in batches[begin : begin + 2]:
            place.input.add(left_of(left))
            second.add(right_of(right))
            expected.append(model.join(left, right))
        with fresh_workers(spark):
            df = penstock.update_join(
                place.input.frame(spark, LEFT), second.frame(spark, RIGHT), "k", "t", timedelta(seconds=4),
                condition, watermark_delay=delay, unit="s", buckets=buckets, state_location=place.state,
            )  # fmt: skip
            assert df.columns == ["k", "t", "a", "c", "b"]
            query = place.run(df)
        for metrics in penstock.metrics(query):
            for name in counted:
                counted[name] += metrics[name]
            assert metrics["waiting_keys"] == 0
    rows = place.rows("k", "t", "c", "b")
    assert [sorted(rows.get(number, [])) for number in range(4)] == expected
    assert counted == {"rows_in": 200, "late": model.late, "emitted": sum(map(len, expected))}
    assert sum(map(len, expected)) > 10


def test_timestamps_dropped_rows_and_metrics_of_a_join(spark: SparkSession, tmp_path: Path) -> None:
    place, second = Place(tmp_path), Input(tmp_path / "second")
    place.input.add(quotes([("a", 10, 1.0), ("a", 12, 2.0), (None, 10, 1.0), ("b", 5, 3.0), ("b", 5, 4.0)]))
    second.add(quotes([("a", 20, 7.0), ("b", None, 7.0), ("b", 8, 8.0)]), quotes([("a", 3, 9.0)]))
    at = sf.timestamp_seconds("t").alias("at")
    bids = place.input.frame(spark).select("k", at, sf.col("v").alias("bid"))
    asks = second.frame(spark).select("k", at, sf.col("v").alias("ask"))
    df = penstock.update_join(
        bids, asks, "k", "at", "8 s", "ask > bid", nulls="drop", state_location=place.state, name="spread"
    )
    query = place.run(df.select("k", sf.col("at").cast("long").alias("t"), "bid", "ask"))
    assert sorted(place.sequence("k", "t", "bid", "ask")) == [("a", 20, 2.0, 7.0), ("b", 8, 3.0, 8.0)]
    first, second_batch = penstock.metrics(query)
    assert first["operator"] == "spread"
    assert (first["rows_in"], first["dropped"], first["duplicates"], first["emitted"]) == (8, 2, 1, 2)
    assert first["rows_in"] == first["dropped"] + first["duplicates"] + first["freed"] + first["held"]
    assert (second_batch["rows_in"], second_batch["late"], second_batch["emitted"]) == (1, 1, 0)


def test_rows_without_key_or_time_fail_a_join_by_default(spark: SparkSession, tmp_path: Path) -> None:
    place, second = Place(tmp_path), Input(tmp_path / "second")
    place.input.add(quotes([("a", 1, 1.0)]))
    second.add(quotes([(None, 1, 1.0)]))
    right = second.frame(spark).withColumnRenamed("v", "w")
    df = penstock.update_join(
        place.input.frame(spark), right, "k", "t", "1 s", unit="s", state_location=place.state
    )
    assert "rows with a null (or NaN) key, time or arrival: rows=1" in failure(df, place)


def test_a_restart_with_another_interval_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0)]))
    df = place.input.frame(spark)

    def joined(within: str) -> Any:
        right = df.withColumnRenamed("v", "w")
        return penstock.update_join(df, right, "k", "t", within, unit="s", state_location=place.state)

    place.run(joined("1 s"))
    assert place.rows("k", "v", "w") == {0: [("a", 1.0, 1.0)]}
    place.input.add(quotes([("a", 2, 1.0)]))
    with pytest.raises(InvalidUsageError, match="the checkpoint was made with another within"):
        place.start(joined("2 s"))


def test_what_is_wrong_with_a_join_is_told_before_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    left = Input(tmp_path / "in").frame(spark)
    right = left.withColumnRenamed("v", "w")
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (spark.createDataFrame([], "k string, t long, w long"), {}, "right side .* is not streaming"),
        (left, {}, "both sides of a join have a column with this name: columns=v"),
        (
            left.withColumnRenamed("v", "V"),
            {},
            "both sides of a join have a column with this name: columns=V",
        ),
        (right.drop("k"), {}, "there is no such column: option=key column=k"),
        (right.drop("t"), {}, "there is no such column: option=time column=t"),
        (right.selectExpr("int(k) k", "t", "w"), {}, "different types on the sides of a join: column=k"),
        (right.selectExpr("k", "int(t) t", "w"), {}, "different types on the sides of a join: column=t"),
        (right, {"unit": None}, "an integer time column has an unknown unit"),
        (right, {"within": "10 ms"}, "not a multiple of the time column's unit: option=within got=10 ms"),
        (
            right,
            {"watermark_delay": "10 ms"},
            "not a multiple of the time column's unit: option=watermark_delay",
        ),
        (right, {"condition": "x > 1"}, "there is no column 'x'"),
        (right, {"condition": "v + w"}, "condition is not boolean"),
        (right, {"condition": "sum(v) > 1"}, "has an aggregate"),
        (right, {"condition": "my_function(v)"}, "cannot be evaluated outside of Spark"),
        (
            right.selectExpr("k", "t", "k COLLATE utf8_lcase AS w"),
            {"condition": "w = 'a'"},
            "with a collation is compared",
        ),
        (
            right.selectExpr("k COLLATE utf8_lcase AS k", "t", "w"),
            {},
            "with a collation is compared: column=k",
        ),
        (right, {"nulls": "keep"}, "option=nulls got=keep"),
        (right, {"time": "v"}, "there is no such column"),
        (right, {"state_location": None}, "no location for state is given"),
    ]
    for other, options, message in cases:
        given: dict[str, Any] = {
            "key": "k", "time": "t", "within": "1 s", "unit": "s", "state_location": tmp_path
        } | options  # fmt: skip
        with pytest.raises(InvalidUsageError, match=message):
            penstock.update_join(left, other, **given)
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(InvalidUsageError, match="needs ANSI mode: expression=t \\+ 1 > 2"):
            penstock.update_join(
                left, right, "k", "t", "1 s", "t + 1 > 2", unit="s", state_location=tmp_path
            )  # fmt: skip
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    one, other = (df.withColumn("f", sf.col("t").cast("double")).drop("t") for df in (left, right))
    with pytest.raises(InvalidUsageError, match="unsupported type: option=within type=double"):
        penstock.update_join(one, other, "k", "f", "1 s", state_location=tmp_path)
