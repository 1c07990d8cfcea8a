"""Every type of Spark, with nulls, comes back unchanged from a p-stream, by all code paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.checkpointing.p_stream import PStream, PStreamReader, PStreamWriter
from penstock.spark_ext.border.types import as_arrow_of_spark
from tests.long_tests import long_but
from tests.spark.border.test_types import typed
from tests.spark.p_streams import run, stream
from tests.spark.queries import PATIENCE_S, settings

pytestmark = pytest.mark.spark

_KEY = "array(t)" if pyspark.__version__ >= "4.1" else "t"
_UNUSUAL = {
    "day-time interval": "interval '1 02:03:04.000005' day to second * t",
    "interval of hours": "interval '1 02' day to hour",
    "interval in a struct": "named_struct('a', interval '1' day)",
    "variant": """parse_json('{"a": [1, null]}')""",
    "void": "null",
    "collated text": "'Aa' collate utf8_lcase",
    "a, column": f"map({_KEY}, named_struct('x, y', t))",
    "no null": "t",
}
if pyspark.__version__ >= "4.1":  # when Spark got the type
    _UNUSUAL["time of day"] = "time'01:02:03.000004'"


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    """Give a session that knows the data source."""
    penstock.register(spark)
    return spark


def _rows(spark: SparkSession) -> DataFrame:
    source = spark.range(0, 9, 1, 2).selectExpr("cast(id as string) k", "id t", "cast(null as double) v")
    unusual = (f"{text} as `{name}`" for name, text in _UNUSUAL.items())
    return typed(source).selectExpr("*", *unusual)


def _collected(df: DataFrame) -> Sequence[object]:
    """Return rows in a form that can be compared: Spark cannot sort or compare maps and variants.

    Spark 4.1 writes no times of day as JSON.
    """
    if "time of day" in df.columns:
        df = df.withColumn("time of day", df["time of day"].cast("string"))
    return sorted(df.selectExpr("k", "to_json(struct(*))").collect())


@pytest.mark.parametrize("zone", long_but(["UTC", "America/New_York"], "America/New_York"))
def test_rows_of_every_type_come_back_on_every_way(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    large = str(zone == "UTC").lower()
    with settings(
        spark,
        spark__sql__session__timeZone=zone,
        spark__sql__execution__arrow__useLargeVarTypes=large,
        spark__sql__timeType__enabled="true",
    ):
        df = _rows(spark)
        by_batch, by_stream, by_python = (str(tmp_path / name) for name in ("batch", "stream", "python"))
        df.write.format("pstream").mode("append").save(by_batch)
        read = spark.read.format("pstream")
        first = read.load(by_batch)
        run(stream(spark, Path(by_batch)), Path(by_stream), tmp_path / "checkpoint")
        plain = PStreamReader(by_stream)
        with PStreamWriter(by_python, plain.schema) as writer:
            writer.append(plain.read())
        for name, there in (
            ("batch", first),
            ("stream", read.load(by_stream)),
            ("python", read.load(by_python)),
        ):
            assert there.schema.simpleString() == df.schema.simpleString(), name
            assert _collected(there) == _collected(df), name
            exact = [column for column in df.columns if column not in ("variant", "void", "a, column")]
            assert_df_equality(
                there.select(*(f"`{column}`" for column in exact)),
                df.select(*(f"`{column}`" for column in exact)),
                transforms=[lambda df: df.orderBy("k")], allow_nan_equality=True, ignore_nullable=True,
            )  # fmt: skip
        assert first.schema == df.schema, "a batch keeps what may be null"
        query = stream(spark, Path(by_batch)).writeStream.format("memory").queryName("by_stream")
        running = query.trigger(availableNow=True).start()
        assert running.awaitTermination(int(PATIENCE_S))
        assert _collected(spark.table("by_stream")) == _collected(df)


def test_python_reads_the_values_that_spark_wrote(spark: SparkSession, tmp_path: Path) -> None:
    df = _rows(spark).drop("variant", "a, column").coalesce(1)
    df.write.format("pstream").mode("append").save(str(tmp_path))
    table = PStreamReader(tmp_path).read()
    assert table.schema.equals(as_arrow_of_spark(df.schema))
    collected = df.collect()
    assert table["k"].to_pylist() == [row.k for row in collected]
    for name in ("long", "text", "bytes", "day", "decimal_38_18", "list_of_lists", "local", "no null"):
        assert list(map(_plain, table[name].to_pylist())) == [_plain(row[name]) for row in collected], name


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, bytearray) else value


def test_a_type_without_an_arrow_form_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(1).selectExpr("id", "interval '1' year as odd")
    with pytest.raises(PySparkException, match=r"no counterpart.* column=odd"):
        df.write.format("pstream").mode("append").save(str(tmp_path / "sink"))
    PStream(tmp_path / "source", pa.schema({"id": pa.int64(), "odd": pa.month_day_nano_interval()}))
    with pytest.raises(PySparkException, match=r"no counterpart.* column=odd"):
        spark.read.format("pstream").load(str(tmp_path / "source"))
    only = spark.read.format("pstream").option("columns", "id").load(str(tmp_path / "source"))
    assert only.collect() == []


def test_a_nanosecond_is_never_cut_off(spark: SparkSession, tmp_path: Path) -> None:
    with PStreamWriter(tmp_path, pa.schema({"id": pa.int64(), "at": pa.timestamp("ns", "UTC")})) as writer:
        writer.append(pa.table({"id": [1], "at": pa.array([1001], pa.timestamp("ns", "UTC"))}, writer.schema))
    with pytest.raises(PySparkException, match="cannot be kept exactly: column=at"):
        spark.read.format("pstream").load(str(tmp_path)).collect()
