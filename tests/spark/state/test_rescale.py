"""A rescaled query continues in Spark, and its keys that wait are served without new input."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from tests.spark.queries import Place, quotes

pytestmark = pytest.mark.spark


def test_a_rescaled_query_continues(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(*(quotes([(f"k{n}", t * 100 + n, float(n)) for n in range(40)]) for t in range(1, 4)))
    place.run_until(place.queue(spark, buckets=3, budget=6), lambda: len(place.batches()) >= 4)
    emitted = place.newest()
    made = penstock.rescale_state(place.checkpoint, place.state, tmp_path / "new", buckets=5)
    assert (made.old_buckets, made.buckets, made.keys) == (3, 5, 40)
    place.checkpoint = tmp_path / "new"
    shown = penstock.read_state(spark, place.state, checkpoint=place.checkpoint)
    assert shown.select("bucket").distinct().count() == 5
    assert shown.where("waiting").count() > 6
    # The new query has a sink of its own, and no input but the old one's.
    place.sink = tmp_path / "new_sink"
    place.run_until_drained(place.queue(spark, buckets=5, budget=6))
    newest = {f"k{n}": 300 + n for n in range(40)}
    assert emitted | place.newest() == newest
    place.input.add(quotes([(f"k{n}", 500, 0.0) for n in range(40)]))
    place.run_until_drained(place.queue(spark, buckets=5, budget=6))
    assert place.newest() == dict.fromkeys(newest, 500)
