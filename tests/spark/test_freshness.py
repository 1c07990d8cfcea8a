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
    batches = penstock.metrics(query)
    assert all(batch["budget_rows"] > 0 for batch in batches)
    gold, other = ([batch["classes"][name] for batch in batches] for name in ("gold", "other"))
    assert {(one["promised_ms"], one["kept"], one["within"], one["advice"]) for one in gold} == {
        (600_000, True, 1, "")
    }
    assert not all(one["kept"] for one in other)
    assert any(one["advice"] for one in other)
