"""Values of Kafka in Avro and Protobuf: from a real broker, with a schema registry, to a queue and a sink."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest
from pyspark.sql import SparkSession

from penstock.checkpointing.p_stream import PStreamReader
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.run import run_to_end
from penstock.records.registry import SchemaRegistry
from penstock.spark_ext.kafka.decode import decode_kafka
from tests.long_tests import long_but
from tests.servers.kafka import Broker, Record, broker
from tests.servers.registry import Registry, frame
from tests.spark.kafka_pipelines import pipeline, spark, values

__all__ = ["broker", "spark"]

pytestmark = pytest.mark.spark

OLD: dict[str, Any] = {
    "type": "record",
    "name": "Quote",
    "fields": [{"name": "symbol", "type": "string"}, {"name": "time", "type": "int"}],
}
NEW: dict[str, Any] = OLD | {
    "fields": [
        {"name": "symbol", "type": "string"},
        {"name": "time", "type": "long"},
        {"name": "venue", "type": ["null", "string"], "default": None},
    ]
}
PROTO = 'syntax = "proto3"; message Ping {} message Quote { string symbol = 1; int64 time = 2; }'


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as started:
        yield started


def avro(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    return buffer.getvalue()


def protobuf(symbol: str, time: int) -> bytes:
    """Return a `Quote` of `PROTO`, byte by byte."""
    return bytes([0x0A, len(symbol)]) + symbol.encode() + (bytes([0x10, time]) if time else b"")


class Topic:
    """A topic whose records are quotes of one format, with both versions of its schema."""

    def __init__(self, registry: Registry, kind: str) -> None:
        self.kind, self.registry = kind, registry
        schemas = (
            [json.dumps(OLD), json.dumps(NEW)] if kind == "avro" else [PROTO, f"{PROTO} message More {{}}"]
        )
        self.numbers = [registry.add("quotes-value", one, kind.upper()) for one in schemas]

    def quote(self, symbol: str, time: int, version: int = 1, key: str | None = None) -> Record:
        if self.kind == "avro":
            value = avro((OLD, NEW)[version], {"symbol": symbol, "time": time, "venue": "X"})
        else:
            value = protobuf(symbol, time)
        indexes = None if self.kind == "avro" else [1]
        return Record((key or symbol).encode(), frame(self.numbers[version], value, indexes))

    @property
    def source(self) -> dict[str, Any]:
        source: dict[str, Any] = {"value_format": self.kind, "schema": None}
        source["registry"] = {"url": self.registry.url, "subject": "quotes-value"}
        return source | ({} if self.kind == "avro" else {"message": "Quote"})


@pytest.fixture(params=["avro", "protobuf"])
def topic(request: pytest.FixtureRequest, registry: Registry) -> Topic:
    return Topic(registry, request.param)


def test_both_versions_of_a_schema_reach_the_queue(
    broker: Broker, spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    name, out = broker.make_topic(f"v-{topic.kind}"), broker.make_topic(f"v-out-{topic.kind}")
    broker.send(
        name, [topic.quote("A", 1, 0), topic.quote("B", 5), topic.quote("A", 3), topic.quote("B", 4, 0)]
    )
    topic.registry.user = ("ann", "s3cr3t")
    source = topic.source
    source["registry"] |= {"user": "ann", "password": "s3cr3t"}
    totals = run_to_end(pipeline(broker, tmp_path, {"subscribe": name}, source=source, to=out), spark=spark)
    rows = [json.loads(record.value or b"") for record in broker.read(out)]
    assert sorted((row["symbol"], row["time"]) for row in rows) == [("A", 3), ("B", 5)]
    if topic.kind == "avro":
        assert {row["venue"] for row in rows} == {"X"}
    assert (totals.rows_in, totals.conflated, totals.bad_records) == (4, 2, 0)


@pytest.mark.parametrize(
    ("on_error", "expected"), long_but([("keep", (4, 2)), ("skip", (2, 0))], ("keep", (4, 2)))
)
def test_values_that_cannot_be_read_are_counted_and_rejected_with_the_reason(
    broker: Broker,
    spark: SparkSession,
    tmp_path: Path,
    topic: Topic,
    on_error: str,
    expected: tuple[int, int],
) -> None:
    name = broker.make_topic(f"r-{topic.kind}-{on_error}")
    out = broker.make_topic(f"r-out-{topic.kind}-{on_error}")
    good = topic.quote("A", 1)
    assert good.value is not None
    cut, plain = Record(b"A", good.value[:-1]), Record(b"A", b"plain")
    broker.send(name, [good, cut, plain, topic.quote("B", 2)])
    source = topic.source | {"on_error": on_error, "reject_to": str(tmp_path / "rejected")}
    run = pipeline(broker, tmp_path, {"subscribe": name}, source=source, to=out)
    totals = run_to_end(run, spark=spark)
    assert totals.bad_records == 2
    assert (totals.rows_in, totals.dropped) == expected
    assert sorted(values(broker.read(out))) == [("A", 1), ("B", 2)]
    rejected = PStreamReader(tmp_path / "rejected").read().sort_by("offset").to_pylist()
    assert [(row["topic"], row["offset"], row["value"]) for row in rejected] == [
        (name, 1, cut.value),
        (name, 2, b"plain"),
    ]
    assert ["schema" in row["reason"] or "message" in row["reason"] for row in rejected] == [True, True]
    assert rejected[0]["reason"] != rejected[1]["reason"]


def test_a_value_that_cannot_be_read_ends_a_query_that_is_to_fail(
    broker: Broker, spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    name, out = broker.make_topic(f"f-{topic.kind}"), broker.make_topic(f"f-out-{topic.kind}")
    broker.send(name, [topic.quote("A", 1), Record(b"A", b"plain")])
    source = topic.source | {"on_error": "fail"}
    run = pipeline(broker, tmp_path, {"subscribe": name}, source=source, to=out)
    with pytest.raises(InvalidUsageError, match="a record cannot be read"):
        run_to_end(run, spark=spark)


@pytest.mark.parametrize("late", long_but([True, False], True))
def test_a_queue_by_kafkas_own_key_and_offset_decodes_only_what_leaves_it(
    broker: Broker, spark: SparkSession, tmp_path: Path, topic: Topic, late: bool
) -> None:
    name, out = broker.make_topic(f"l-{topic.kind}-{late}"), broker.make_topic(f"l-out-{topic.kind}-{late}")
    bad = Record(b"A", b"plain")
    sent = [topic.quote("A", 9), bad, topic.quote("A", 2), topic.quote("B", 1), bad._replace(key=b"C")]
    broker.send(name, [*sent, topic.quote("A", 1)])
    run = pipeline(
        broker,
        tmp_path,
        {"subscribe": name},
        source=topic.source | {"schema": "time BIGINT, symbol STRING", "kafka_columns": ["key", "offset"]},
        queue={"key": "kafka_key", "time": "kafka_offset"},
        to=out,
        **({} if late else {"filter": "kafka_offset >= 0"}),
    )
    assert run.decodes_late is late
    totals = run_to_end(run, spark=spark)
    rows = {record.key: json.loads(record.value or b"") for record in broker.read(out)}
    found = {key: (row.get("symbol"), row.get("time")) for key, row in rows.items()}
    assert found == {b"A": ("A", 1), b"B": ("B", 1), b"C": (None, None)}
    assert (totals.rows_in, totals.conflated) == (6, 3)
    assert totals.bad_records == (1 if late else 2)  # one of A is conflated


ROW = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": ["null", "string"]}],
}
ENVELOPE: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "namespace": "db.t",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [
                    {"name": "db", "type": "string"},
                    {"name": "ts_ms", "type": "long"},
                    {"name": "lsn", "type": ["null", "long"], "default": None},
                ],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}


def change(op: str, before: Any, after: Any, lsn: int, number: int) -> Record:
    source = {"db": "d", "ts_ms": 10 * lsn, "lsn": lsn}
    event = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 7}
    return Record(str((after or before or {"id": 0})["id"]).encode(), frame(number, avro(ENVELOPE, event)))


@pytest.mark.parametrize("key", long_but(["id", "kafka_key"], "kafka_key"))
def test_change_events_in_avro_are_the_newest_rows_of_their_table(
    broker: Broker, spark: SparkSession, tmp_path: Path, registry: Registry, key: str
) -> None:
    number = registry.add("t-value", json.dumps(ENVELOPE))
    name, out = broker.make_topic(f"c-{key}"), broker.make_topic(f"c-out-{key}")
    events = [
        change("r", None, {"id": 1, "name": "a"}, 1, number),
        change("c", None, {"id": 2, "name": "b"}, 2, number),
        change("u", {"id": 1, "name": "a"}, {"id": 1, "name": "c"}, 3, number),
        change("d", {"id": 2, "name": None}, None, 4, number),
        Record(b"2", None),
        change("t", None, None, 5, number),
    ]
    broker.send(name, events)
    source: dict[str, Any] = {
        "value_format": "debezium_avro",
        "schema": None,
        "kafka_columns": ["key", "offset"],
    }
    source |= {"registry": {"url": registry.url, "subject": "t-value"}}
    queue = {"key": key, "time": "kafka_offset", "nulls": "drop"}
    run = pipeline(broker, tmp_path, {"subscribe": name}, source=source, queue=queue, to=out)
    assert run.decodes_late is (key == "kafka_key")
    assert run_to_end(run, spark=spark).bad_records == 1
    rows = [json.loads(record.value or b"") for record in broker.read(out)]
    fields = ("id", "name", "deleted", "change_op", "change_ms", "change_lsn")
    found = [tuple(row.get(field) for field in fields) for row in rows if row.get("id") is not None]
    assert sorted(found) == [(1, "c", False, "u", 30, 3), (2, None, True, "d", 40, 4)]


def test_declared_columns_choose_and_widen_those_of_the_schema(
    spark: SparkSession, registry: Registry
) -> None:
    number = registry.add("t-value", json.dumps(ENVELOPE))
    events = [change("c", None, {"id": 2, "name": "b"}, 2, number).value]
    records = spark.createDataFrame([(one,) for one in events], "value BINARY")
    at = SchemaRegistry(registry.url, "t-value")
    rows = decode_kafka(records, "id BIGINT", format="debezium_avro", keep=(), registry=at)
    assert rows.schema["id"].dataType.simpleString() == "bigint"
    assert rows.columns == ["id", "deleted", "change_op", "change_ms", "change_lsn"]
    assert rows.collect()[0].asDict()["id"] == 2
    for columns, problem in {
        "id STRING": "another type: column=id type=int declared=string",
        "nam STRING": "no such field: column=nam .*did you mean name",
    }.items():
        with pytest.raises(InvalidUsageError, match=problem):
            decode_kafka(records, columns, format="debezium_avro", registry=at)
    with pytest.raises(InvalidUsageError, match="not a schema of Debezium's change events"):
        decode_kafka(records, format="debezium_avro", value_schema=json.dumps(OLD), registry=at)
    with pytest.raises(InvalidUsageError, match="only Protobuf has messages"):
        decode_kafka(records, format="avro", value_schema=json.dumps(OLD), message="A")


def test_values_without_a_registry_have_the_schema_of_a_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "quote.avsc").write_text(json.dumps(NEW))
    (tmp_path / "quote.proto").write_text(PROTO)
    for kind, value, schema, message in (
        ("avro", avro(NEW, {"symbol": "A", "time": 1, "venue": None}), tmp_path / "quote.avsc", None),
        ("protobuf", protobuf("A", 1), tmp_path / "quote.proto", "Quote"),
    ):
        records = spark.createDataFrame([(value, b"k"), (None, None)], "value BINARY, key BINARY")
        rows = decode_kafka(
            records,
            "time BIGINT",
            format=cast("Any", kind),
            keep=("key",),
            value_schema=schema,
            message=message,
        )
        assert [tuple(row) for row in rows.collect()] == [(1, b"k"), (None, None)]
