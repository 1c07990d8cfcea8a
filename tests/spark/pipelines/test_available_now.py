"""Runs with the trigger availableNow and a budget: older Sparks need several starts for what one does now."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import penstock
from penstock.errors import InvalidUsageError
from penstock.jobs.following.batches import Batch
from penstock.spark_ext.border.spark_versions import HAS_ADMISSION_CONTROL
from tests.long_tests import long_but
from tests.spark.queries import PATIENCE_S, SCHEMA, Input, Place, quotes

pytestmark = pytest.mark.spark

KEYS = [(name, 1, 1.0) for name in "abcdefg"]


def queue(spark: SparkSession, place: Place) -> Any:
    """Return the writer of a queue with one bucket that serves two keys in a micro-batch."""
    df = place.queue(spark, budget=2, buckets=1, policy="fifo")
    writer = df.writeStream.format("parquet").option("checkpointLocation", str(place.checkpoint))
    return writer.option("path", str(place.sink)).trigger(availableNow=True)


def test_a_run_serves_every_key_that_waits(spark: SparkSession, tmp_path: Path) -> None:
    place, batches = Place(tmp_path), list[Batch]()
    place.input.add(quotes(KEYS))
    totals = penstock.run(queue(spark, place), on_batch=batches.append)
    assert (totals.rows_in, totals.emitted, totals.waiting_keys) == (7, 7, 0)
    assert [batch.emitted for batch in batches if batch.emitted] == [2, 2, 2, 1]
    assert sorted(place.sequence()) == KEYS


def test_a_run_that_need_not_drain_leaves_keys_to_the_next_one(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    # More than leave in the micro-batches that Spark begins before it is told to stop.
    many = [(f"{number:02}", 1, 1.0) for number in range(40)]
    place.input.add(quotes(many))
    first = penstock.run(queue(spark, place), drain=False, on_batch=lambda batch: None)
    assert 0 < first.waiting_keys == len(many) - first.emitted
    second = penstock.run(queue(spark, place), on_batch=lambda batch: None)
    assert (first.emitted + second.emitted, second.waiting_keys) == (len(many), 0)
    assert sorted(place.sequence()) == many


def test_a_query_with_a_budget_ends_waiting_for_its_available_input(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, more = Place(tmp_path), [("a", 2, 2.0), ("h", 1, 1.0), ("i", 1, 1.0)]
    query = place.start(place.queue(spark, budget=2, buckets=1))
    try:
        for rows in (KEYS, more):
            place.input.add(quotes(rows))
            waiting = threading.Thread(target=query.processAllAvailable, daemon=True)
            waiting.start()
            waiting.join(PATIENCE_S)
            assert not waiting.is_alive(), query.lastProgress
            assert set(rows) <= set(place.sequence())
    finally:
        query.stop()
    query.processAllAvailable()


def test_a_query_with_a_budget_that_fails_says_so_to_who_waits(spark: SparkSession, tmp_path: Path) -> None:
    def fail(rows: pa.Table) -> NoReturn:
        raise ValueError("no price")

    place = Place(tmp_path)
    place.input.add(quotes(KEYS))
    query = place.start(place.queue(spark, budget=2, buckets=1, apply=fail, output_schema=SCHEMA))
    with pytest.raises(StreamingQueryException, match="no price"):
        query.processAllAvailable()


@pytest.mark.long
@pytest.mark.parametrize("persist", long_but(["never", "always"], "always"))
def test_a_graph_serves_every_key_that_waits(spark: SparkSession, tmp_path: Path, persist: Any) -> None:
    source, out = Input(tmp_path / "in"), tmp_path / "out"
    graph = penstock.graph("g").source("quotes", quotes([]).schema)
    graph = graph.update_queue("k", "t", budget=2, buckets=1).sink("pstream", path=str(out))
    for rows in (KEYS, [("a", 2, 2.0), ("h", 1, 1.0), ("i", 1, 1.0)]):
        source.add(quotes(rows))
        running = penstock.start(
            graph, spark, tmp_path / "checkpoint", sources={"quotes": source.frame(spark)},
            persist=persist, available_now=True,
        )  # fmt: skip
        with running:
            assert running.await_termination(180), running.status()
            assert running.progress().queries["results"].batches >= len(rows) // 2
    rows = penstock.PStreamReader(out).read().to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == sorted(
        [*KEYS, ("a", 2, 2.0), ("h", 1, 1.0), ("i", 1, 1.0)]
    )


def test_a_table_in_memory_cannot_be_written_by_a_second_start(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes(KEYS))
    df = place.queue(spark, budget=2, buckets=1)
    writer = df.writeStream.format("memory").queryName("in_memory").trigger(availableNow=True)
    if HAS_ADMISSION_CONTROL:
        penstock.run(writer, on_batch=lambda batch: None)
        assert spark.table("in_memory").count() == len(KEYS)
    else:
        with pytest.raises(InvalidUsageError, match="cannot start again to serve the keys that wait"):
            penstock.run(writer, on_batch=lambda batch: None)
