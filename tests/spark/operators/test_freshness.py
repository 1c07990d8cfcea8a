"""A freshness contract on real Spark: a promise that holds, one that cannot, and the trigger interval."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from itertools import count, groupby, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.checkpointing.p_stream import PStream, PStreamWriter
from penstock.conf.pipeline import Pipeline
from penstock.jobs.pipelines.run import run_pipeline
from penstock.spark_ext.border.connection import is_connect
from penstock.spark_ext.pacing import Intervals, Pace
from penstock.state_store.keys.key_words import KeyCodec, buckets_of
from tests.spark.queries import Place, quotes, wait

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


def _quick(table: pa.Table) -> pa.Table:
    time.sleep(0.001 * table.num_rows)  # stands for a query
    return table


def _interval_ms(query: StreamingQuery) -> int:
    """Return the trigger interval that a running query has now."""
    executor = query._jsq.streamingQuery().triggerExecutor()
    if executor is None:  # the query has not planned its first micro-batch
        return 0
    field = executor.getClass().getDeclaredField("intervalMs")
    field.setAccessible(True)
    return int(field.getLong(executor))


def _start_ms(batch: dict[str, Any]) -> float:
    return 1000 * datetime.fromisoformat(batch["timestamp"]).timestamp()


def test_the_trigger_interval_follows_the_contract(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if is_connect(spark):
        pytest.skip("with Spark Connect the trigger interval is fixed")
    place = Place(tmp_path)

    def quotes_of(keys: int, first: int) -> pa.Table:
        return quotes([(f"k{i:04d}", first + i, float(i)) for i in range(keys)])

    def queue() -> DataFrame:
        return place.queue(
            spark, policy="freshest", freshness={"p95": "30 s"}, buckets=1, apply=_quick,
            output_schema="k string, t long, v double",
        )  # fmt: skip

    place.input.add(quotes_of(5, 0))
    query = place.start(queue())
    try:
        # A little work: the interval is as long as the promise allows.
        wait(query, lambda: _interval_ms(query) > 0)
        # A burst that does not fit into one micro-batch, and a little work again.
        place.input.add(quotes_of(3_000, 10))
        wait(query, lambda: len(place.sequence()) == 3_005)
        place.input.add(quotes_of(5, 4_000))
        wait(query, lambda: len(place.sequence()) == 3_010 and _interval_ms(query) > 0)
        batches = penstock.metrics(query)
        assert _interval_ms(query) == round(batches[-1]["interval_ms"])
        begin = time.monotonic()
    finally:
        query.stop()
    assert time.monotonic() - begin < 2  # while it waits for the next trigger
    assert [batch["interval_ms"] == 0 for batch in batches] == [
        batch["waiting_keys"] > 0 for batch in batches
    ]
    assert [waits for waits, _ in groupby(batch["waiting_keys"] > 0 for batch in batches)] == [
        False,
        True,
        False,
    ]
    pauses = [
        (before["waiting_keys"] > 0, _start_ms(after) - _start_ms(before) - before["batch_ms"])
        for before, after in pairwise(batches)
    ]
    assert all(batch["interval_ms"] >= 3_000 for batch in batches if batch["waiting_keys"] == 0)
    assert all(ms < 2_000 for waits, ms in pauses if waits)
    # A restart, with a trigger of the user and without.
    place.input.add(quotes_of(5, 5_000))
    query = place.start(queue(), processingTime="1 second")
    try:
        wait(query, lambda: len(place.sequence()) == 3_015 and len(penstock.metrics(query)) > 0)
        assert penstock.metrics(query)[-1]["interval_ms"] > 1_000
        assert _interval_ms(query) == 1_000
    finally:
        query.stop()
    query = place.start(queue())
    try:
        place.input.add(quotes_of(5, 6_000))
        wait(query, lambda: _interval_ms(query) > 1_000)
    finally:
        query.stop()
    place.input.add(quotes_of(5, 7_000))
    place.run_until_drained(queue())
    assert len(place.sequence()) == 3_025
    assert "trigger interval" not in caplog.text


def _keys_of_bucket(bucket: int, count: int) -> list[str]:
    """Return keys of one of two buckets."""
    keys = pa.array([f"k{number:05d}" for number in range(4 * count)])
    place = buckets_of(KeyCodec([pa.field("k", pa.string())]).encode([keys]).hashes, 2)
    return [key for key, its in zip(keys.to_pylist(), place.tolist(), strict=True) if its == bucket][:count]


def test_each_query_of_a_session_has_the_least_interval_of_its_buckets(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if is_connect(spark):
        pytest.skip("with Spark Connect the trigger interval is fixed")
    merged_ms: dict[tuple[str, int], int] = {}
    merge = Pace.addInPlace

    def note_and_merge(pace: Pace, value1: Intervals, value2: Intervals) -> Intervals:
        newest = merge(pace, value1, value2)
        merged_ms.update({(name, one.batch): one.interval_ms for name, one in newest.items()})
        return newest

    monkeypatch.setattr(Pace, "addInPlace", note_and_merge)
    long, short = Place(tmp_path / "long"), Place(tmp_path / "short")
    many, few = _keys_of_bucket(0, 3_000), _keys_of_bucket(1, 5)
    times = count()

    def send(place: Place, keys: list[str]) -> None:
        place.input.add(quotes([(key, next(times), 1.0) for key in keys]))

    def start(place: Place, limit: str) -> StreamingQuery:
        df = place.queue(
            spark, policy="freshest", freshness={"p95": limit}, buckets=2, apply=_quick,
            output_schema="k string, t long, v double",
        )  # fmt: skip
        return place.start(df)

    def is_paced(query: StreamingQuery, place: Place, rows: int) -> bool:
        """Return whether all rows are served, and the query has the interval of its last micro-batch."""
        batches = penstock.metrics(query)
        chosen_ms = round(batches[-1]["interval_ms"]) if batches else 0
        return chosen_ms > 0 and len(place.sequence()) == rows and _interval_ms(query) == chosen_ms

    send(long, many[:5] + few)
    send(short, many[:5] + few)
    queries = [start(long, "60 s")]
    try:
        queries.append(start(short, "10 s"))
        for query, place in zip(queries, (long, short), strict=True):
            wait(query, partial(is_paced, query, place, 10))
        # At most a fifth of its own limit, and little work allows more than that of the other.
        assert _interval_ms(queries[1]) <= 2_000 < _interval_ms(queries[0]) <= 12_000
        queries[0].stop()
        # One bucket gets more than a micro-batch serves, and the other one little.
        send(short, many + few)
        wait(queries[1], lambda: _interval_ms(queries[1]) == 0)
        wait(queries[1], lambda: len(short.sequence()) == 3_015)
        send(short, few)
        wait(queries[1], lambda: is_paced(queries[1], short, 3_020))
        batches = penstock.metrics(queries[1])
        waits = [batch["waiting_keys"] > 0 for batch in batches]
        assert [batch["interval_ms"] == 0 for batch in batches] == waits
        assert batches[waits.index(True)]["rows_in"] == 3_005  # of both buckets
        for batch in batches:
            assert merged_ms[str(queries[1].id), batch["batch_id"]] == round(batch["interval_ms"])
        # The other query starts again.
        queries[0] = start(long, "60 s")
        send(long, few)
        wait(queries[0], lambda: is_paced(queries[0], long, 15))
        assert _interval_ms(queries[0]) > 2_000
    finally:
        for query in queries:
            query.stop()
    assert "trigger interval" not in caplog.text


@pytest.mark.parametrize("arrival", ["at", None])
def test_a_start_knows_since_when_rows_of_a_p_stream_wait(
    spark: SparkSession, tmp_path: Path, arrival: str | None
) -> None:
    now = pa.array([datetime.now(UTC)], pa.timestamp("us", "UTC"))
    rows = quotes([("a", 1, 1.0)]).append_column("at", now)
    with PStreamWriter(tmp_path / "in", rows.schema, threads=1) as writer:
        writer.append(rows)
        writer.flush()
    (commit,) = PStream(tmp_path / "in").log.commits
    promise = {"p95": "10 minutes"}
    pipeline = Pipeline.model_validate(
        {
            "source": {"type": "pstream", "path": str(tmp_path / "in")},
            "queue": {"key": "k", "time": "t", "buckets": 1, "arrival": arrival, "freshness": promise},
            "sink": {"type": "noop"},
            "query": {"checkpoint": str(tmp_path / "checkpoint")},
        }
    )
    running = run_pipeline(pipeline, spark)
    try:
        assert running.waiting_since_ms == (None if arrival is None else commit.time_us // 1000)
        wait(running.queries["results"], lambda: len(penstock.metrics(running)) > 0)
    finally:
        running.stop()
    again = run_pipeline(pipeline, spark)
    again.stop()
    assert again.waiting_since_ms is None
