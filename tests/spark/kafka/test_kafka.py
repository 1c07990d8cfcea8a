"""Pipelines that read and write a real Kafka broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from penstock.checkpointing.p_stream import PStreamReader
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.run import run_to_end
from penstock.jobs.pipelines.start import start_pipeline
from penstock.spark_ext.kafka.decode import decode_kafka
from tests.long_tests import long_but
from tests.servers.kafka import Broker, Record, broker
from tests.servers.processes import until
from tests.spark.kafka_pipelines import change, pipeline, quote, spark, values

__all__ = ["broker", "spark"]

pytestmark = pytest.mark.spark


def test_the_newest_of_each_key_of_several_topics_reaches_a_topic_under_its_key(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    for name, partitions in (("a1", 1), ("a2", 2), ("a-out", 1)):
        broker.make_topic(name, partitions)
    broker.send("a1", [quote("A", 1), quote("B", 5), quote("A", 3)])
    broker.send("a2", [quote("A", 2), quote("C", 1)], partition=1)
    run = pipeline(broker, tmp_path, {"subscribe": "a1,a2"}, to="a-out")
    totals = run_to_end(run, spark=spark)
    sent = broker.read("a-out")
    assert sorted(values(sent)) == [("A", 3), ("B", 5), ("C", 1)]
    assert [record.key for record in sent] == [symbol.encode() for symbol, _ in values(sent)]
    assert (totals.rows_in, totals.conflated) == (5, 2)


def test_a_restart_reads_on_and_finds_topics_that_a_pattern_matches_since(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    broker.make_topic("b-out")
    broker.make_topic("b-in-1")
    broker.send("b-in-1", [quote("A", 1)])
    run = pipeline(broker, tmp_path, {"subscribePattern": "b-in-.*"}, to="b-out")
    run_to_end(run, spark=spark)
    broker.make_topic("b-in-2")
    broker.send("b-in-1", [quote("A", 2), quote("B", 1)])
    broker.send("b-in-2", [quote("A", 0), quote("C", 7)])
    run_to_end(run, spark=spark)
    assert sorted(values(broker.read("b-out"))) == [("A", 1), ("A", 2), ("B", 1), ("C", 7)]


def test_reading_starts_at_offsets_and_at_times(broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    broker.make_topic("c-in")
    broker.send("c-in", [quote(name, 1, timestamp_ms=1_000 * at) for at, name in enumerate("ABCD", 1)])
    for options, expected in (
        ({"startingOffsets": '{"c-in": {"0": 2}}'}, "CD"),
        ({"startingTimestamp": "1500"}, "BCD"),
        ({"startingOffsetsByTimestamp": '{"c-in": {"0": 3500}}'}, "D"),
    ):
        out = broker.make_topic(f"c-out-{expected}")
        run = pipeline(broker, tmp_path / expected, {"subscribe": "c-in"} | options, to=out)
        run_to_end(run, spark=spark)
        assert sorted(symbol for symbol, _ in values(broker.read(out))) == list(expected), options


def test_a_compacted_topic_and_its_tombstones_are_read(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    broker.make_topic("d-out")
    broker.make_topic(
        "d-in",
        cleanup_policy="compact",
        segment_ms="50",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="100",
    )
    broker.send("d-in", [quote("A", at) for at in range(1, 100)] + [quote("B", 1), Record(b"B", None)])
    # The active segment is never compacted: a later record begins another.
    assert until(lambda: _compacted(broker, "d-in"), 60)
    run = pipeline(broker, tmp_path, {"subscribe": "d-in"}, to="d-out")
    totals = run_to_end(run, spark=spark)
    assert values(broker.read("d-out"))[:1] == [("A", 99)]
    assert totals.rows_in < 99


def _compacted(broker: Broker, topic: str) -> bool:
    broker.send(topic, [quote("other", 0)])
    return sum(record.key == b"A" for record in broker.read(topic)) == 1


def test_a_bad_record_ends_a_query_that_is_to_fail(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    topic, out = broker.make_topic("j-in"), broker.make_topic("j-out")
    broker.send(topic, [quote("A", 1)])
    run = pipeline(broker, tmp_path, {"subscribe": topic}, source={"on_error": "fail"}, to=out)
    run_to_end(run, spark=spark)
    broker.send(topic, [quote("B", 1), Record(b"B", b"{")])
    for _ in range(2):  # a restart finds the record again
        with pytest.raises(InvalidUsageError, match=r"a record cannot be read.*on_error: skip"):
            run_to_end(run, spark=spark)
    skipping = pipeline(broker, tmp_path, {"subscribe": topic}, source={"on_error": "skip"}, to=out)
    assert run_to_end(skipping, spark=spark).bad_records == 1
    assert values(broker.read(out)) == [("A", 1), ("B", 1)]


@pytest.mark.parametrize(
    ("on_error", "expected"), long_but([("keep", (5, 2)), ("skip", (3, 0))], ("skip", (3, 0)))
)
def test_values_that_are_not_json_of_the_schema_are_counted(
    broker: Broker, spark: SparkSession, tmp_path: Path, on_error: str, expected: tuple[int, int]
) -> None:
    topic = broker.make_topic(f"e-in-{on_error}")
    broker.make_topic(f"e-out-{on_error}")
    records = [
        quote("A", 1),
        Record(b"A", b"{"),
        quote("B", 2),
        Record(b"B", b'{"symbol": "C", "time": "x"}'),
    ]
    broker.send(topic, [*records, quote("C", 3)])
    run = pipeline(
        broker,
        tmp_path,
        {"subscribe": topic},
        source={"on_error": on_error, "reject_to": str(tmp_path / "rejected")},
        to=f"e-out-{on_error}",
    )
    totals = run_to_end(run, spark=spark)
    assert totals.bad_records == 2
    assert (totals.rows_in, totals.dropped) == expected
    assert sorted(values(broker.read(f"e-out-{on_error}"))) == [("A", 1), ("B", 2), ("C", 3)]
    rejected = PStreamReader(tmp_path / "rejected").read().sort_by("offset").to_pylist()
    assert [(row["topic"], row["value"]) for row in rejected] == [
        (topic, record.value) for record in (records[1], records[3])
    ]
    assert all(row["partition"] is not None and row["offset"] is not None for row in rejected)


def test_keys_headers_and_positions_are_columns_of_raw_records(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    broker.make_topic("f-in")
    broker.make_topic("f-out")
    sent = [
        quote("A", 1, timestamp_ms=9, headers=(("trace", b"x"),)),
        quote("A", 2, timestamp_ms=8, headers=(("trace", b"y"),)),
    ]
    broker.send("f-in", sent)
    run = pipeline(
        broker,
        tmp_path,
        {"subscribe": "f-in", "includeHeaders": "true"},
        source={"value_format": "raw", "schema": None},
        queue={"key": "key", "time": "offset"},
        results={"projection": ["key", "offset", "CAST(headers[0].value AS STRING) AS trace"]},
        to="f-out",
    )
    run_to_end(run, spark=spark)
    (record,) = broker.read("f-out")
    row = json.loads(record.value or b"")
    assert (record.key, row["offset"], row["trace"]) == (b"A", 1, "y")


@pytest.mark.long
def test_a_query_outlives_a_broker_that_is_killed_and_comes_back(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    broker.make_topic("g-in")
    broker.make_topic("g-out")
    broker.send("g-in", [quote("A", 1)])
    run = pipeline(
        broker,
        tmp_path,
        {"subscribe": "g-in"},
        query={"checkpoint": str(tmp_path / "checkpoint"), "trigger": "200 ms"},
        to="g-out",
    )
    running = start_pipeline(spark, run)
    try:
        assert until(lambda: len(broker.read("g-out")) == 1, 60)
        broker.kill()
        broker.start()
        broker.send("g-in", [quote("A", 2)])
        assert until(lambda: ("A", 2) in values(broker.read("g-out")), 60)
        assert not running.await_termination(0)  # which raises a failure
    finally:
        running.stop()


@pytest.mark.parametrize("late", long_but([True, False], True))
def test_a_queue_by_kafkas_own_key_and_offset_decodes_only_what_leaves_it(
    broker: Broker, spark: SparkSession, tmp_path: Path, late: bool
) -> None:
    topic = broker.make_topic(f"h-in-{late}")
    out = broker.make_topic(f"h-out-{late}")
    bad = Record(b"A", b"{")
    broker.send(topic, [quote("A", 9), bad, quote("A", 2), quote("B", 1)])
    broker.send(topic, [bad._replace(key=b"C"), quote("A", 1)])
    run = pipeline(
        broker,
        tmp_path,
        {"subscribe": topic},
        source={"kafka_columns": ["key", "offset"]},
        queue={"key": "kafka_key", "time": "kafka_offset"},
        results={
            "filter": "kafka_offset > 3",
            "projection": ["kafka_key", "symbol", "price * 2 AS double", "time"],
        },
        to=out,
        **({} if late else {"filter": "kafka_offset >= 0"}),
    )
    assert run.decodes_late is late
    totals = run_to_end(run, spark=spark)
    rows = {record.key: json.loads(record.value or b"") for record in broker.read(out)}
    assert {key: (row.get("symbol"), row.get("double"), row.get("time")) for key, row in rows.items()} == {
        b"A": ("A", 2.0, 1),
        b"C": (None, None, None),
    }
    assert (totals.rows_in, totals.conflated) == (6, 3)
    assert totals.bad_records == (1 if late else 2)  # one of A is conflated


_CHANGES = [
    change("r", None, {"id": 1, "name": "a"}, 1),
    change("c", None, {"id": 2, "name": "b"}, 2, schema=True),
    change("u", {"id": 1, "name": "a"}, {"id": 1, "name": "c"}, 3, schema=True),
    change("d", {"id": 2, "name": None}, None, 4),
    Record(b'{"id": 2}', None),
    change("c", None, {"id": 3, "name": "d"}, 5),
]


def test_change_events_are_rows_with_a_flag_for_deletes(spark: SparkSession) -> None:
    no_row = [Record(b"k", b'{"id": 1}'), Record(b"k", b"no")]
    no_row += [change("t", None, None, 6), change("x", {"id": 1}, {"id": 1}, 7)]
    given = [(one.key, one.value) for one in _CHANGES + no_row]
    records = spark.createDataFrame(given, "key BINARY, value BINARY")
    rows = decode_kafka(records, "id INT, name STRING", format="debezium", keep=("key",)).drop("kafka_key")
    assert rows.columns == ["id", "name", "deleted", "change_op", "change_ms", "change_lsn"]
    found = [tuple(row) for row in rows.collect()]
    assert found[:5] == [
        (1, "a", False, "r", 10, 1),
        (2, "b", False, "c", 20, 2),
        (1, "c", False, "u", 30, 3),
        (2, None, True, "d", 40, 4),
        (3, "d", False, "c", 50, 5),
    ]
    assert [row[:2] for row in found[5:]] == [(None, None)] * 4
    skipped = decode_kafka(records, "id INT, name STRING", format="debezium", keep=(), on_error="skip")
    assert skipped.count() == 5


def test_an_argument_of_decode_kafka_that_is_wrong_is_refused(spark: SparkSession) -> None:
    records = spark.createDataFrame([(b"k", b"{}")], "key BINARY, value BINARY")
    with pytest.raises(InvalidUsageError, match="the format is unknown: given=jsn"):
        decode_kafka(records, "a INT", format=cast("Any", "jsn"))
    with pytest.raises(InvalidUsageError, match="same name: columns=deleted"):
        decode_kafka(records, "deleted INT", format="debezium", keep=())


@pytest.mark.parametrize("key", long_but(["id", "kafka_key"], "id"))
def test_the_newest_change_of_each_row_of_a_table_leaves_a_queue(
    broker: Broker, spark: SparkSession, tmp_path: Path, key: str
) -> None:
    topic = broker.make_topic(f"i-in-{key}")
    out = broker.make_topic(f"i-out-{key}")
    broker.send(topic, _CHANGES)
    run = pipeline(
        broker,
        tmp_path,
        {"subscribe": topic},
        source={
            "value_format": "debezium",
            "schema": "id INT, name STRING",
            "kafka_columns": ["key", "offset"],
        },
        queue={"key": key, "time": "kafka_offset"},
        to=out,
    )
    assert run.decodes_late is (key == "kafka_key")
    run_to_end(run, spark=spark)
    rows = [json.loads(record.value or b"") for record in broker.read(out)]
    assert sorted((row["id"], row.get("name"), row["deleted"]) for row in rows) == [
        (1, "c", False),
        (2, None, True),
        (3, "d", False),
    ]
