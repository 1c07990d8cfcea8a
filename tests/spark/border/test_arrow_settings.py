"""The setting that an update queue changes in its session."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import penstock

SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"


def plan_a_queue(spark: SparkSession, directory: Path) -> None:
    rows = spark.readStream.format("rate").load()
    penstock.update_queue(rows, "value", "timestamp", state_location=directory)


def test_a_queue_keeps_spark_from_sizing_each_row(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.unset(SETTING)
    default = spark.conf.get(SETTING)
    plan_a_queue(spark, tmp_path)
    # Only this number keeps Spark from doing it; if its default ever becomes that, this test tells.
    assert default != spark.conf.get(SETTING) == str(2**31 - 1)


def test_a_bound_that_the_user_has_set_stays(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(SETTING, "1m")
    plan_a_queue(spark, tmp_path)
    assert spark.conf.get(SETTING) == "1m"
