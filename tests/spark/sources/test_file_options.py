"""The names of options that Spark's readers of files take."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.conf.file_options import wrong_options

pytestmark = pytest.mark.spark

_SPARK = "org.apache.spark.sql"


@pytest.mark.parametrize(
    ("format", "name"),
    [
        ("csv", "catalyst.csv.CSVOptions"),
        ("json", "catalyst.json.JSONOptions"),
        ("parquet", "execution.datasources.parquet.ParquetOptions"),
        ("orc", "execution.datasources.orc.OrcOptions"),
        ("text", "execution.datasources.text.TextOptions"),
    ],
)
def test_no_option_of_spark_counts_as_misspelt(spark: SparkSession, format: str, name: str) -> None:
    jvm: Any = spark._jvm
    companion = jvm.java.lang.Class.forName(f"{_SPARK}.{name}$").getField("MODULE$").get(None)
    names = companion.getAllOptions().mkString(" ").split()
    assert len(names) > 1
    facts = [fact for fact, _ in wrong_options(format, dict.fromkeys(names, "true"))]
    assert not [fact for fact in facts if "have no option" in fact]
