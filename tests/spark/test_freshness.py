"""A freshness contract on real Spark: a promise that holds, and one that cannot."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock
from tests.spark.queries import Place, quotes

pytestmark = pytest.mark.spark

CONTRACT = {"p95": {"gold": "10 minutes", "other": "1ms"}, "by": "CASE WHEN v < 10 THEN 'gold' END"}


def _slow(table: pa.Table) -> pa.Table:
    time.sleep(0.005 * table.num_rows)  # stands for an expensive query
    return table


def test_a_query_tells_a_promise_that_holds_from_one_that_is_broken(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    rows = [(f"k{i:02d}", i, float(i)) for i in range(40)]
    place.input.add(quotes(rows[:20]), quotes(rows[20:]))
    df = penstock.update_queue(
        place.input.frame(spark), key="k", time="t", policy="freshest", freshness=CONTRACT, buckets=1,
        apply=_slow, output_schema="k string, t long, v double", state_location=place.state,
    )  # fmt: skip
    query = place.run_until_drained(df)
    assert sorted(place.sequence()) == rows
    last = penstock.metrics(query)[-1]
    gold, other = last["classes"]["gold"], last["classes"]["other"]
    assert (gold["promised_ms"], gold["kept"], gold["advice"]) == (600_000, True, "")
    assert gold["within"] == 1
    assert (other["promised_ms"], other["kept"]) == (1, False)
    assert other["advice"]
    assert last["budget_rows"] > 0
