"""Every type of Spark passes through an update queue: as payload and as key, with nulls, on every path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.errors import InvalidUsageError
from tests.long_tests import long_but
from tests.spark.queries import SCHEMA, Place, fresh_workers, quotes, settings, wait

pytestmark = pytest.mark.spark

_PAYLOADS = {
    "boolean": "cast(n % 2 as boolean)",
    "byte": "cast(n - 3 as byte)",
    "short": "cast(-300 * n as short)",
    "int": "cast(n - 2147483648 as int)",
    "long": "9223372036854775807 - n",
    "float": "cast(n / 3 as float)",
    "double": "n / 7D",
    "not_a_number": "double('NaN')",
    "infinite": "-double('Infinity')",
    "decimal_5_2": "cast(n * 1.25 - 4 as decimal(5, 2))",
    "decimal_38_18": "cast(-n as decimal(38, 18)) / 7 + 12345678901234567890",
    "text": "repeat('é\\u0000😀', cast(n % 3 as int))",
    "fixed_text": "cast('ab' as char(4))",
    "bounded_text": "cast('ab' as varchar(4))",
    "bytes": "unhex(concat('00ff', lpad(n, 2, 0)))",
    "day": "date_add(date'1582-10-10', cast(n * 20000 as int))",
    "moment": "timestamp'1890-03-10 02:30:00.123456' + make_dt_interval(n * 4000, 1)",
    "local": "timestamp_ntz'2024-03-10 02:30:00.654321' + make_dt_interval(n * 4000)",
    "list_of_ints": "array(n, null, -n)",
    "empty_list": "cast(array() as array<string>)",
    "list_of_moments": "array(timestamp'2024-11-03 01:30:00', null)",
    "list_of_lists": "array(array('a', null), null, array())",
    "struct": "named_struct('a', n, 'b', '', 'c', named_struct('at', timestamp'2024-01-01'))",
    "list_of_structs": "array(named_struct('x', cast(n as decimal(10, 1)), 'day', date'2024-02-29'), null)",
    "map_of_texts": "map('a', n, 'b', null)",
    "map_of_moments": "map(timestamp'2024-07-01 12:00:00', array(timestamp'2024-07-02 12:00:00'))",
    "map_of_structs": "map(n, named_struct('ok', true, 'm', map(1, 'x')))",
    "all_null_text": "cast(null as string)",
    "all_null_struct": "cast(null as struct<a: array<int>>)",
    "all_null_decimal": "cast(null as decimal(10, 2))",
}
"""Payload columns by name, as expressions of n; rows with n divisible by 4 have nulls instead."""

_ROWS = 9


def typed(df: DataFrame) -> DataFrame:
    """Return rows of every type, made from k, t and v."""
    df = df.withColumn("n", sf.col("t"))
    values = {name: sf.expr(text) for name, text in _PAYLOADS.items()}
    nullable = [sf.when(sf.col("n") % 4 != 0, value).alias(name) for name, value in values.items()]
    return df.select("k", "t", *nullable)


def _same(table: pa.Table) -> pa.Table:
    return table


@pytest.mark.parametrize("zone", long_but(["UTC", "America/New_York", "Asia/Kathmandu"], "Asia/Kathmandu"))
def test_payload_of_every_type_comes_out_of_the_state_as_it_went_in(
    spark: SparkSession, tmp_path: Path, zone: str
) -> None:
    large = str(zone == "UTC").lower()
    with settings(
        spark, spark__sql__session__timeZone=zone, spark__sql__execution__arrow__useLargeVarTypes=large
    ):
        place = Place(tmp_path)
        place.input.add(quotes([(f"k{n}", n, None) for n in range(_ROWS)]))
        source = typed(place.input.frame(spark))
        options: dict[str, Any] = {"key": "k", "time": "t", "state_location": str(place.state)}
        options |= {"buckets": 1, "budget": 4, "combine": zone != "UTC"}
        if zone != "America/New_York":
            options |= {"apply": _same, "output_schema": source.schema}
        newest = penstock.update_queue(source, **options)
        assert newest.schema == source.schema
        place.run_until(newest, lambda: bool(place.batches()))
        # What still waits comes from the files of the state.
        with fresh_workers(spark):
            newest = penstock.update_queue(typed(place.input.frame(spark)), **options)
            place.input.add(quotes([("k9", _ROWS, None)]))
            place.run_until_drained(newest)
        assert len(place.rows("k", "t")) == 3
        expected = typed(spark.read.schema(SCHEMA).parquet(str(place.input.directory)))
        emitted = spark.read.schema(source.schema).parquet(str(place.sink))
        by_key = [lambda df: df.orderBy("k")]
        assert_df_equality(emitted, expected, transforms=by_key, allow_nan_equality=True)


_UNUSUAL = {
    "day-time interval": "interval '1 02:03:04.000005' day to second * t",
    "interval in a struct": "named_struct('a', interval '1' day)",
    "variant": """parse_json('{"a": [1, null]}')""",
    "void": "null",
    "collated text": "'Aa' collate utf8_lcase",
}


def test_types_that_files_cannot_hold_pass_too(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0), ("b", 2, 2.0)]))
    columns = [f"{text} as `{name}`" for name, text in _UNUSUAL.items()]
    source = place.input.frame(spark).selectExpr("k", "t", *columns)
    newest = penstock.update_queue(source, key="k", time="t", state_location=str(place.state))
    assert newest.schema == source.schema
    writer = newest.writeStream.format("memory").queryName("unusual").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(place.checkpoint)).start()
    query.awaitTermination()
    assert query.exception() is None
    batch = spark.read.schema(SCHEMA).parquet(str(place.input.directory)).selectExpr("k", "t", *columns)
    plain = [sf.col(f"`{name}`").cast("string") for name in newest.columns]
    assert sorted(spark.table("unusual").select(*plain).collect()) == sorted(batch.select(*plain).collect())


@pytest.mark.parametrize("text", ["interval '1' year", "make_interval(1, 2)", "array(interval '1' month)"])
def test_a_type_without_an_arrow_form_is_refused_when_the_query_is_planned(
    spark: SparkSession, tmp_path: Path, text: str
) -> None:
    df = Place(tmp_path).input.frame(spark).selectExpr("k", "t", f"{text} as odd")
    with pytest.raises(InvalidUsageError, match=r"cannot go through an update queue.* column=odd"):
        penstock.update_queue(df, key="k", time="t", state_location=str(tmp_path))


_KEYS = [
    "k", "cast(v as int)", "v < 2", "cast(v as byte)", "cast(v as decimal(30, 3))", "v / 3",
    "cast(v / 3 as float)",
    "date_add(date'1969-12-30', cast(v as int))", "timestamp_seconds(v - 2)",
    "timestamp_ntz'1969-12-31 23:59:59' + make_dt_interval(0, 0, 0, v)", "cast(k as binary)",
    "interval '1' second * v",
]  # fmt: skip


def test_keys_of_every_simple_type_group_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    rows = [(f"é{i % 4}" * (i % 4), i, float(i % 4)) for i in range(20)]
    place.input.add(quotes(rows[:11]), quotes(rows[11:]))
    names = [f"k{i}" for i in range(len(_KEYS))]
    columns = [*(f"{text} as k{i}" for i, text in enumerate(_KEYS)), "t"]
    source = place.input.frame(spark).selectExpr(*columns)
    newest = penstock.update_queue(source, key=names, time="t", state_location=str(place.state))
    with settings(spark, spark__sql__session__timeZone="America/St_Johns"):
        query = newest.writeStream.format("memory").queryName("keys").trigger(availableNow=True)
        ended = query.option("checkpointLocation", str(place.checkpoint)).start()
        wait_for_end(ended)
        batch = spark.read.schema(SCHEMA).parquet(str(place.input.directory)).selectExpr(*columns)
        expected = batch.groupBy(*names).agg(sf.max("t").alias("t"))
        emitted = spark.table("keys").groupBy(*names).agg(sf.max("t").alias("t"))
        assert emitted.count() == 4
        assert_df_equality(emitted, expected, ignore_row_order=True, ignore_nullable=True)


def wait_for_end(query: Any) -> None:
    """Wait until `query` has ended by itself without an error."""
    query.awaitTermination()
    assert query.exception() is None


@pytest.mark.parametrize(
    "kind", ["byte", "short", "int", "long", "float", "double", "date", "timestamp", "ntz"]
)
def test_times_of_every_ordered_type_order_updates(kind: str) -> None:
    """Types are checked in `tests/property`; here only that the plan accepts them."""
    from penstock.operators.update_stream.stream import UpdateStream

    arrow = {
        "byte": pa.int8(), "short": pa.int16(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
        "double": pa.float64(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
        "ntz": pa.timestamp("us"),
    }[kind]  # fmt: skip
    assert UpdateStream(pa.schema({"k": pa.string(), "t": arrow}), ("k",), "t").time == "t"


_ODD_NAMES = ["a.b", "a b", "`tick`", "ключ", "KEY", "key", "Time", "time", "bucket", "payload", "😀", "x;y"]


def test_columns_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0), ("a", 2, 2.0), ("b", 3, 3.0)]))
    columns = [sf.col("k").alias("a.b"), *(sf.col("v").alias(name) for name in _ODD_NAMES[1:-1])]
    source = place.input.frame(spark).select(*columns, sf.col("t").alias(_ODD_NAMES[-1]))
    newest = penstock.update_queue(
        source, key=["a.b", "ключ"], time="x;y", budget=5, state_location=str(place.state)
    )
    assert newest.columns == _ODD_NAMES
    named = newest.toDF(*(f"c{i}" for i in range(len(_ODD_NAMES))))
    query = place.start(named)
    try:
        wait(query, lambda: len(place.sequence("c0")) == 3)
    finally:
        query.stop()
    assert sorted(place.sequence("c0", "c4", "c11")) == [("a", 1.0, 1), ("a", 2.0, 2), ("b", 3.0, 3)]
