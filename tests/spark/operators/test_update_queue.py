"""Update queues on real Spark."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.errors import InvalidUsageError
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.spark_ext.api.register import remove_metrics
from tests.long_tests import long_but
from tests.oracles.naive import Update
from tests.oracles.naive_weighted import NaiveWeightedQueue
from tests.spark.model import LONGS, Model, newest_of, random_batches, updates_table
from tests.spark.queries import Place, failure, quotes, settings, wait

pytestmark = pytest.mark.spark

_MAX_BY = """
with newest as (
    select *, row_number() over (partition by batch, k order by t desc, place desc) as nth from input
), kept as (
    select *, max(t) over (
        partition by k order by batch rows between unbounded preceding and 1 preceding
    ) as emitted
    from newest where nth = 1
)
select batch, k, t, v from kept where emitted is null or t >= emitted order by batch, k
"""


def queue(place: Place, df: DataFrame, **options: Any) -> DataFrame:
    """Return an update queue of (k, t, ...) over `df`."""
    options = {"key": "k", "time": "t", "state_location": str(place.state)} | options
    return penstock.update_queue(df, **options)


def max_by(batches: list[list[Update]]) -> list[tuple[int, ...]]:
    """Return the output without a budget, computed by DuckDB."""
    rows = [
        (batch, place, u.key, u.time, u.value)
        for batch, updates in enumerate(batches)
        for place, u in enumerate(updates)
    ]
    columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
    table = pa.table(columns, names=["batch", "place", "k", "t", "v"])
    with duckdb.connect() as database:
        database.register("input", table)
        return database.sql(_MAX_BY).fetchall()


@pytest.mark.parametrize("combine", [True, False, "auto"])
def test_without_a_budget_each_micro_batch_gives_what_max_by_gives(
    spark: SparkSession, tmp_path: Path, combine: bool | str
) -> None:
    place = Place(tmp_path)
    batches = random_batches(seed=1, batches=4, rows=300, keys=40)
    place.input.add(*map(updates_table, batches))
    query = place.run(queue(place, place.input.frame(spark, LONGS), combine=combine, buckets=3))
    emitted = [(batch, *row) for batch, rows in place.rows().items() for row in sorted(rows)]
    assert emitted == max_by(batches)
    metrics = penstock.metrics(query)
    assert sum(m["rows_in"] for m in metrics) == sum(map(len, batches))
    assert sum(m["emitted"] for m in metrics) == len(emitted)


@pytest.mark.parametrize(
    ("policy", "cost", "cost_us"),
    long_but(
        [
            ("in_place", None, None),
            ("fifo", None, None),
            ("linecutting", "1us", 1),
            ("linecutting", "1h", 3.6e9),
        ],
        ("linecutting", "1us", 1),
    ),
    ids=["in_place", "fifo", "linecutting that always cuts", "linecutting that never cuts"],
)
def test_one_bucket_serves_keys_in_the_order_of_the_policy_and_within_the_budget(
    spark: SparkSession, tmp_path: Path, policy: str, cost: str | None, cost_us: float | None
) -> None:
    place = Place(tmp_path)
    batches = random_batches(seed=2, batches=3, rows=40, keys=25)
    place.input.add(*map(updates_table, batches))
    model = Model(1, 5, policy, cost_us)
    expected = model.run_all(batches)
    assert max(expected) >= len(batches), "some keys wait until there is no input any more"
    df = queue(place, place.input.frame(spark, LONGS), buckets=1, budget=5, policy=policy, cost=cost)
    query = place.run_until_drained(df)
    assert {batch: model.by_bucket(rows) for batch, rows in place.rows().items()} == expected
    metrics = penstock.metrics(query)
    assert [m["emitted"] for m in metrics if m["emitted"]] == [len(b[0]) for b in expected.values()]
    assert sum(m["late"] for m in metrics) == model.late
    assert sum(m["conflated"] for m in metrics) == model.conflated


@pytest.mark.parametrize("by_key", [True, False], ids=["a mapping", "a column"])
def test_keys_that_matter_more_are_served_earlier(spark: SparkSession, tmp_path: Path, by_key: bool) -> None:
    place = Place(tmp_path)
    weights = {0: 100.0, 3: 0.01, 7: 9.0}
    batches = [
        [replace(update, value=update.value + 1) for update in batch]
        for batch in random_batches(seed=4, batches=2, rows=40, keys=25)
    ]
    model = Model(1, 5)

    def weight_of(update: Update) -> float:
        return weights.get(update.key, 1.0) if by_key else float(update.value)

    model.queues = [NaiveWeightedQueue("in_place", weight_of=weight_of)]
    place.input.add(*map(updates_table, batches))
    expected = model.run_all(batches)
    weight = weights if by_key else "v"
    place.run_until_drained(queue(place, place.input.frame(spark, LONGS), buckets=1, budget=5, weight=weight))
    assert {batch: model.by_bucket(rows) for batch, rows in place.rows().items()} == expected
    place.input.add(updates_table(batches[0]))
    failed = failure(queue(place, place.input.frame(spark, LONGS), buckets=1, budget=5), place)
    assert "another weight" in failed


@pytest.mark.parametrize("semantics", long_but(["append", "adaptive"], "adaptive"))
def test_a_queue_may_append_and_an_adaptive_one_conflates_under_overload(
    spark: SparkSession, tmp_path: Path, semantics: str
) -> None:
    place = Place(tmp_path)
    # Two triggers' work, then far too much, then little.
    batches = [[Update(i % 4, 100 * batch + i, i) for i in range(n)] for batch, n in enumerate((8, 40, 4))]

    def made() -> DataFrame:
        frame = place.input.frame(spark, LONGS)
        return queue(place, frame, buckets=1, budget=4, semantics=semantics)

    metrics: list[dict[str, Any]] = []
    for part in (batches[:1], batches[1:]):
        place.input.add(*map(updates_table, part))
        metrics += penstock.metrics(place.run_until_drained(made()))
    served = [(row[0], row[1]) for _, rows in sorted(place.rows().items()) for row in rows]
    every = [(u.key, u.time) for batch in batches for u in batch]
    assert sum(m["switches"] for m in metrics) == (0 if semantics == "append" else 2)
    assert metrics[-1]["append_buckets"] == metrics[-1]["buckets"] == 1
    if semantics == "append":
        assert served == every
        return
    assert 0 < sum(m["conflated"] for m in metrics) == len(every) - len(served)
    for key in range(4):
        times = [time for one, time in served if one == key]
        assert times == sorted(set(times))
        assert times[-1] == max(time for one, time in every if one == key)
    assert served[:8] == every[:8]


@pytest.mark.long
def test_a_budget_smaller_than_the_number_of_buckets_starves_none_of_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    batches = [[Update(key, 1, key) for key in range(12)]]
    place.input.add(*map(updates_table, batches))
    model = Model(buckets=4, budget=1)
    assert len({model.bucket(key) for key in range(12)}) == 4
    expected = model.run_all(batches)
    df = queue(place, place.input.frame(spark, LONGS), buckets=4, budget=1)
    place.run_until_drained(df)
    assert {batch: model.by_bucket(rows) for batch, rows in place.rows().items()} == expected
    assert all(len(rows) == 1 for rows in place.rows().values())


def _slow(table: pa.Table) -> pa.Table:
    time.sleep(0.02 * table.num_rows)  # the query's cost: 20 ms a tuple
    doubled = pc.multiply(table["v"], 2.0)
    return pa.table({"v2": doubled, "k": table["k"], "t": table["t"]})


def test_a_time_budget_serves_a_part_of_the_waiting_keys_a_trigger(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([(f"k{i:02d}", i, float(i)) for i in range(30)]))
    df = queue(
        place, place.input.frame(spark), buckets=1, budget="200ms",
        apply=_slow, output_schema="k string, t long, v2 double",
    )  # fmt: skip
    assert df.columns == ["k", "t", "v2"]
    query = place.run_until_drained(df)
    assert place.sequence("k", "v2") == [(f"k{i:02d}", 2.0 * i) for i in range(30)]
    assert len(place.rows("k")) >= 3, "20 ms each: more than two triggers of 200 ms"
    served = [m for m in penstock.metrics(query) if m["emitted"]]
    assert all(m["cost_us"] >= 20_000 for m in served)
    assert sum(m["rows_out"] for m in served) == 30


def _rows_twice_but_not_of_k1(table: pa.Table) -> pa.Table:
    kept = table.filter(pc.not_equal(table["k"], "k1"))
    return pa.concat_tables([kept, kept])


def test_apply_may_drop_and_multiply_rows(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([(f"k{i}", i, float(i)) for i in range(3)]))
    df = queue(
        place, place.input.frame(spark), apply=_rows_twice_but_not_of_k1,
        output_schema="k string, t long, v double, queue_staleness_ms double", staleness_column=True,
    )  # fmt: skip
    query = place.run(df)
    assert sorted(place.sequence("k")) == [("k0",), ("k0",), ("k2",), ("k2",)]
    (metrics,) = penstock.metrics(query)
    assert (metrics["emitted"], metrics["rows_out"]) == (3, 4)


def test_staleness_counts_from_the_arrival_column(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("old", 1, 0.0), ("new", 1, 0.0), ("old", 2, 1.0)]))
    ago = sf.when(sf.col("k") == "new", 0).otherwise(3600 - sf.col("v"))
    df = place.input.frame(spark).withColumn("at", sf.timestamp_seconds(sf.unix_timestamp() - ago))
    result = queue(place, df, arrival="at", staleness_column=True)
    assert result.schema["queue_staleness_ms"].dataType.simpleString() == "double"
    query = place.run(result)
    staleness: dict[Any, Any] = dict(place.sequence("k", "queue_staleness_ms"))
    assert staleness["old"] >= 3_599_000, "from the first arrival of the pending updates"
    assert 0 <= staleness["new"] < 600_000
    (metrics,) = penstock.metrics(query)
    assert metrics["queue_staleness_ms"]["max"] == pytest.approx(staleness["old"], abs=0.001)


_HOLES = quotes([("a", 1, 1.0), (None, 1, 1.0), ("b", None, 1.0), ("a", 2, None), (None, None, None)])


def test_rows_without_key_or_time_are_dropped_and_counted_if_so_configured(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([(None, 1, 1.0)]), _HOLES, quotes([("c", 1, 1.0)]))
    query = place.run(queue(place, place.input.frame(spark), nulls="drop"))
    assert place.rows() == {1: [("a", 2, None)], 2: [("c", 1, 1.0)]}
    metrics = penstock.metrics(query)
    assert [(m["rows_in"], m["dropped"], m["conflated"]) for m in metrics] == [
        (1, 1, 0),
        (5, 3, 1),
        (1, 0, 0),
    ]


def test_rows_without_key_or_time_fail_the_query_by_default(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(_HOLES)
    text = failure(queue(place, place.input.frame(spark)), place)
    assert "InvalidUsageError: rows with a null (or NaN) key, time or arrival: rows=3" in text
    assert place.batches() == {}


def test_what_follows_an_update_queue_may_filter_select_and_aggregate_by_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.input.add(
        quotes([("a", 1, 1.0), ("a", 2, 2.0), ("b", 3, 3.0)]), quotes([("a", 20, 4.0), ("c", 30, -1.0)])
    )
    source = place.input.frame(spark).withColumn("at", sf.timestamp_seconds("t"))
    newest = queue(place, source.withWatermark("at", "0 seconds"), name="newest")
    counts = (
        newest.where("v > 0")
        .select("k", "at")
        .withWatermark("at", "0 seconds")
        .groupBy(sf.window("at", "10 seconds"))
        .count()
        .select(sf.col("window.start").cast("long").alias("t"), "count")
    )
    with settings(spark, spark__sql__streaming__statefulOperator__checkCorrectness__enabled="true"):
        place.run(counts)
    assert place.sequence("t", "count") == [(0, 2)]


def test_two_update_queues_in_one_query_are_refused_when_the_query_is_planned(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0)]))
    first = queue(place, place.input.frame(spark), name="first")
    with pytest.raises(InvalidUsageError, match="a Spark query can hold only one"):
        queue(place, first, name="second")
    both = first.union(queue(place, place.input.frame(spark), name="second"))
    with pytest.raises(AnalysisException, match="Multiple applyInPandasWithStates are not supported"):
        place.start(both)


def test_two_queries_share_a_state_location(spark: SparkSession, tmp_path: Path) -> None:
    one, two = Place(tmp_path / "one"), Place(tmp_path / "two")
    one.input.add(quotes([("a", 5, 1.0)]))
    two.input.add(quotes([("a", 3, 2.0)]))
    with settings(spark, spark__penstock__stateLocation=str(tmp_path / "state")):
        for place in (one, two):
            place.run(queue(place, place.input.frame(spark), state_location=None))
    assert one.sequence() == [("a", 5, 1.0)]
    assert two.sequence() == [("a", 3, 2.0)]
    assert len(list((tmp_path / "state").iterdir())) == 2


def test_metrics_conserve_rows_and_say_how_state_was_found(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    batches = random_batches(seed=3, batches=3, rows=60, keys=20)
    place.input.add(*map(updates_table, batches))
    df = queue(place, place.input.frame(spark, LONGS), buckets=2, budget=6, name="quotes")
    query = place.run_until_drained(df)
    entries = penstock.metrics(query)
    known = set(BatchMetrics().summary())
    waited = 0
    for entry in entries:
        assert known < set(entry)
        assert entry["query_id"] == str(query.id)
        assert entry["operator"] == "quotes"
        assert entry["emitted"] <= 6
        left = entry["conflated"] + entry["late"] + entry["dropped"] + entry["emitted"]
        assert entry["rows_in"] == left + entry["waiting_keys"] - waited
        assert entry["hits"] + entry["catch_ups"] + entry["loads"] == entry["buckets"]
        for staleness in (entry["queue_staleness_ms"], entry["application_staleness_ms"]):
            assert 0 <= staleness["avg"] <= staleness["max"]
            assert staleness["p95"] <= staleness["max"]
        waited = entry["waiting_keys"]
    assert [entry["batch_id"] for entry in entries] == sorted({entry["batch_id"] for entry in entries})
    assert waited == 0
    assert sum(entry["rows_in"] for entry in entries) == sum(map(len, batches))
    assert max(entry["keys"] for entry in entries) == len(newest_of(batches))


def test_metrics_reach_a_file_a_function_and_prometheus(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0)]), quotes([("a", 2, 2.0)]))
    path = tmp_path / "new" / "metrics.jsonl"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for _ in range(2):
        penstock.register(spark, metrics_file=str(path), prometheus=port)
    received: list[dict[str, Any]] = []
    listener = penstock.MetricsListener(received.extend)
    broken = penstock.MetricsListener(lambda entries: entries[0]["no such metric"])
    for one in (broken, listener):
        spark.streams.addListener(one)
    query = place.run(queue(place, place.input.frame(spark)))

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    # The listener has its own thread: some query has to run while we wait for it.
    idle = spark.readStream.format("rate").load().writeStream.format("noop")
    other = idle.option("checkpointLocation", str(tmp_path / "idle")).start()
    try:
        wait(other, lambda: len(lines()) >= 2 and len(received) >= 2)
    finally:
        other.stop()
        for one in (broken, listener):
            spark.streams.removeListener(one)
    assert lines() == received == penstock.metrics(query)
    assert "a listener could not take metrics" in caplog.text
    assert "KeyError" in caplog.text and "no such metric" in caplog.text
    assert received[0]["spark_ms"]["triggerExecution"] == received[0]["batch_ms"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        offered = answer.read().decode()
    rows = re.search(r'^penstock_rows_in_total\{operator="[^"]*",query="[^"]*"\} (.*)$', offered, re.M)
    assert rows is not None
    assert float(rows[1]) == sum(entry["rows_in"] for entry in received) == 2
    remove_metrics(spark)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")
    assert path.stat().st_mode & 0o777 == 0o600


def test_waiting_keys_are_served_after_a_restart_without_new_input(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([(f"k{i}", i, float(i)) for i in range(40)]))
    df = queue(place, place.input.frame(spark), buckets=1, budget=3)
    place.run_until(df, lambda: bool(place.sequence()))
    assert len(place.sequence()) < 40
    query = place.start(df)
    try:
        wait(query, lambda: len(place.sequence()) == 40 or "Waiting" in query.status["message"])
    finally:
        query.stop()
    assert len(place.sequence()) == 40
