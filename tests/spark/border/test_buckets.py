"""Bucket labels on Spark itself: its hash, its partitions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from penstock.spark_ext.border.buckets import bucket_labels, spark_hash

pytestmark = pytest.mark.spark


def test_the_hash_is_that_of_spark(spark: SparkSession) -> None:
    draw = np.random.default_rng(3)
    values = np.concatenate([draw.integers(-(2**31), 2**31, 2000), [0, 1, -1, 2**31 - 1, -(2**31)]])
    df = spark.createDataFrame([(int(value),) for value in values], "label int")
    theirs = [row[0] for row in df.select(sf.hash("label")).collect()]
    assert spark_hash(values.astype(np.int64)).tolist() == theirs


@pytest.mark.parametrize(("partitions", "each"), [(1, 3), (2, 1), (2, 8), (3, 4), (7, 2), (16, 5), (64, 1)])
def test_each_partition_gets_equally_many_buckets(spark: SparkSession, partitions: int, each: int) -> None:
    labels = bucket_labels(partitions * each)
    df = spark.createDataFrame([(label,) for label in labels], "label int")
    for spread in (
        df.repartition(partitions, "label"),
        df.repartition(partitions, "label").groupBy("label").count(),
    ):
        found = spread.select(sf.spark_partition_id().alias("part")).collect()
        assert Counter(row["part"] for row in found) == dict.fromkeys(range(partitions), each)
