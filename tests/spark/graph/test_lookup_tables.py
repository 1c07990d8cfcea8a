"""The tables in which readers look up fragments, and the tables that Spark joins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.dataflow.nodes import StreamTableJoin
from penstock.operators.scan.lookup import Lookup
from penstock.spark_ext.graph.lookup_tables import LookupLimits, lookup_in

pytestmark = pytest.mark.spark

COLUMNS = pa.schema({"k": pa.int32(), "name": pa.string(), "more": pa.float64()})
ROWS = [(1, "a", 0.5), (2, "b", None), (None, "c", 1.5)]
TYPES = "k int, name string, more double"


def node(on: Any = "k", kind: pa.DataType | None = None) -> StreamTableJoin:
    columns = pa.schema({"k": kind or pa.int32(), "more": pa.float64()})
    graph = penstock.graph("g").source("s", columns)
    found = graph.select(on).lookup("names", COLUMNS, on=on).root
    assert isinstance(found, StreamTableJoin)
    return found


def told(table: DataFrame, on: StreamTableJoin | None = None, **limits: int) -> list[dict[str, Any]] | None:
    """Return the rows that go to the readers; None where Spark joins."""
    text = lookup_in(table, on or node(), ("name",), LookupLimits(**limits))
    return None if text is None else Lookup.from_text(text).table.sort_by("name").to_pylist()


@pytest.fixture(scope="module")
def local(spark: SparkSession) -> DataFrame:
    columns = [list(column) for column in zip(*ROWS, strict=True)]
    return spark.createDataFrame(pa.table(dict(zip(COLUMNS.names, columns, strict=True)), COLUMNS))


def test_tables_of_a_program_and_of_files_go_to_the_readers(
    spark: SparkSession, tmp_path: Path, local: DataFrame
) -> None:
    wanted = [{"k": key, "name": name} for key, name, _ in ROWS]
    assert told(local) == wanted, "without columns that nobody groups by"
    assert told(local.where("k < 2").unionByName(local.where("k >= 2"))) == wanted[:2]
    assert told(local.where("k > 5")) == []
    numbers = spark.range(3).selectExpr("CAST(id AS int) k", "CAST(id AS string) name", "1.5D more")
    assert [row["k"] for row in told(numbers) or ()] == [0, 1, 2]
    for kind in ("parquet", "csv"):
        local.write.format(kind).save(str(tmp_path / kind))
        assert told(spark.read.format(kind).schema(TYPES).load(str(tmp_path / kind))) == wanted


def test_tables_that_may_change_are_left_to_spark(
    spark: SparkSession, tmp_path: Path, local: DataFrame
) -> None:
    assert told(spark.createDataFrame(ROWS, TYPES)) is None, "an RDD, of which nothing says what it does"
    assert told(local.withColumn("name", sf.udf(lambda key: f"{key}", "string")("k"))) is None
    of_scala = vector_to_array(array_to_vector(sf.array(sf.lit(0.5))))[0]
    assert told(local.withColumn("name", of_scala.cast("string"))) is None
    assert told(local.mapInArrow(lambda batches: batches, local.schema)) is None
    assert told(local.withColumn("name", sf.rand().cast("string"))) is None
    assert told(local.withColumn("name", sf.current_timestamp().cast("string"))) is None
    penstock.register(spark)
    local.write.format("pstream").mode("append").save(str(tmp_path / "p-stream"))
    growing = spark.read.format("pstream").load(str(tmp_path / "p-stream"))
    assert told(growing) is None
    query = "SELECT * FROM {local} WHERE k IN (SELECT k FROM {growing})"
    assert told(spark.sql(query, local=local, growing=growing)) is None
    options = {"path": str(tmp_path / "catalog")}
    local.write.format("parquet").options(**options).saveAsTable("names_of_a_catalog")
    try:
        assert told(spark.table("names_of_a_catalog")) is None, "it can be inserted into"
    finally:
        spark.sql("DROP TABLE names_of_a_catalog")


def test_what_spark_compares_in_its_own_way_is_left_to_it(spark: SparkSession, local: DataFrame) -> None:
    one = local.where("k = 1")
    assert told(local.unionByName(one)) is None, "two rows for one tuple"
    nobody = one.withColumn("k", sf.lit(None).cast("int"))
    assert told(local.unionByName(nobody)) is not None, "of which none matches"
    assert told(local, node("more")) is None, "floats"
    assert told(local, node(kind=pa.int64())) is None, "it casts"
    assert told(local.withColumn("name", sf.expr("CAST(X'FF' AS string)"))) is None, "no UTF-8"


def test_large_tables_are_left_to_spark(local: DataFrame) -> None:
    size_bytes = 3 * 4 + len("abc")
    assert told(local, rows=2) is None
    assert told(local, rows=3, size_bytes=size_bytes) is not None
    assert told(local, rows=3, size_bytes=size_bytes - 1) is None
