"""A source of Kafka on the local engine, over the broker that librdkafka has for tests."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from penstock import _failpoints
from penstock.checkpointing.p_stream import PStreamReader
from penstock.conf.kafka_source import KafkaSource
from penstock.conf.pipeline import Pipeline
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.jobs.local.late_decoding import encoded_schema
from penstock.jobs.local.pipeline import open_pipeline
from penstock.jobs.pipelines.run import run_to_end
from penstock.local_engine.records.bad_records import Records
from penstock.local_engine.records.kafka_values import RecordDecoder
from tests.long_tests import long_but

_COLUMNS = "symbol STRING, time LONG, price DOUBLE"
_ANSWER_S = 60.0


class MockBroker:
    """A broker in this process, whose topics have four partitions."""

    def __init__(self) -> None:
        settings: dict[str, Any] = {"test.mock.num.brokers": 1, "bootstrap.servers": "none", "log_level": 0}
        self._producer = Producer(settings)
        (broker,) = self._producer.list_topics(timeout=_ANSWER_S).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def send(self, topic: str, *values: bytes | str | None, partition: int = 0, key: bytes = b"key") -> None:
        """Write records; a symbol stands for a whole record at time 1."""
        self._producer.list_topics(topic, timeout=_ANSWER_S)  # makes the topic
        for value in values:
            text = json.dumps({"symbol": value, "time": 1, "price": 2.5}) if isinstance(value, str) else value
            self._producer.produce(topic, text, key, partition=partition, headers=[("h", b"x")])
        assert self._producer.flush(_ANSWER_S) == 0


@pytest.fixture(scope="module")
def broker() -> Iterator[MockBroker]:
    """Give a broker for the tests of this module."""
    yield MockBroker()


def pipeline(broker: MockBroker, place: Path, topic: str, **source: Any) -> Pipeline:
    options = {
        "kafka.bootstrap.servers": broker.address, "subscribe": topic, "startingOffsets": "earliest",
    } | source.pop("options", {})  # fmt: skip
    given = {"type": "kafka", "value_format": "json", "schema": _COLUMNS, "options": options}
    return Pipeline.model_validate(
        {
            "engine": "local",
            "source": given | source,
            "queue": {"key": "symbol", "time": "time", "nulls": "drop"},
            "sink": {"type": "pstream", "path": str(place / "out")},
            "query": {"trigger": "available_now", "checkpoint": str(place / "checkpoint")},
        }
    )


def symbols(place: Path) -> list[str]:
    return sorted(row["symbol"] for row in PStreamReader(place / "out").read().to_pylist())


def test_records_are_processed_and_rejected_once_over_crashes(broker: MockBroker, tmp_path: Path) -> None:
    rejected = tmp_path / "rejected"
    run = pipeline(
        broker, tmp_path, "crashes", on_error="skip", reject_to=str(rejected),
        kafka_columns=["offset", "headers"], options={"maxOffsetsPerTrigger": "4"},
    )  # fmt: skip
    points = ["local.after_plan", "task_rows.after_commit", "local.after_write"]
    for number, point in enumerate(points):
        broker.send("crashes", f"a{number}", b"{", f"b{number}")
        broker.send("crashes", f"c{number}", partition=3)
        running = open_pipeline(run)
        with _failpoints.armed({point: "error"}), pytest.raises(_failpoints.InjectedError):
            running.step()
    totals = run_to_end(run)
    assert symbols(tmp_path) == sorted(f"{name}{number}" for name in "abc" for number in range(3))
    assert totals.bad_records >= 1
    rows = PStreamReader(rejected).read().to_pylist()
    assert [(row["topic"], row["partition"], row["offset"], row["value"]) for row in rows] == [
        ("crashes", 0, offset, b"{") for offset in (1, 4, 7)
    ]
    first = PStreamReader(tmp_path / "out").read().to_pylist()[0]
    assert (first["kafka_offset"], first["kafka_headers"]) == (0, [{"key": "h", "value": b"x"}])


def test_the_first_start_chooses_the_offsets(broker: MockBroker, tmp_path: Path) -> None:
    broker.send("starts", "A", "B")
    latest = pipeline(broker, tmp_path, "starts", options={"startingOffsets": "latest"})
    assert run_to_end(latest).batches == 0
    broker.send("starts", "C")
    run_to_end(latest)
    assert symbols(tmp_path) == ["C"]
    some = pipeline(
        broker, tmp_path / "some", "starts",
        options={"startingOffsets": '{"starts": {"0": 1, "1": -2, "2": -1, "3": -1}}'},
    )  # fmt: skip
    run_to_end(some)
    assert symbols(tmp_path / "some") == ["B", "C"]
    first = tmp_path / "some" / "checkpoint" / "queries" / "results" / "sources" / "0" / "0"
    assert first.read_bytes() == b'\0v1\n{"starts": {"0": 1, "1": 0, "2": 0, "3": 0}}'
    first.write_bytes(b"v1\n{")
    with pytest.raises(CorruptDataError, match="first offsets"):
        run_to_end(some)


def test_lost_records_and_missing_topics_are_refused(broker: MockBroker, tmp_path: Path) -> None:
    broker.send("lost", "A")
    beyond = {"startingOffsets": '{"lost": {"0": 9, "1": 0, "2": 0, "3": 0}}'}
    with pytest.raises(
        InvalidUsageError, match=r"has deleted records .*topic=lost partition=0 offset=9 .*failOnDataLoss"
    ):
        run_to_end(pipeline(broker, tmp_path / "refused", "lost", options=beyond))
    run_to_end(pipeline(broker, tmp_path / "on", "lost", options=beyond | {"failOnDataLoss": "false"}))
    assert symbols(tmp_path / "on") == ["A"]
    with pytest.raises(InvalidUsageError, match="Kafka's client refuses its settings"):
        run_to_end(pipeline(broker, tmp_path / "wrong", "lost", options={"kafka.no.setting": "x"}))


@pytest.mark.parametrize("value_format", long_but(["json", "debezium"], "debezium"))
def test_only_records_that_leave_a_queue_are_decoded_with_the_same_results(
    broker: MockBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value_format: str
) -> None:
    decoded: list[int] = []
    decode = RecordDecoder.decode

    def count(self: RecordDecoder, some: pa.Table) -> Records:
        decoded.append(some.num_rows)
        return decode(self, some)

    monkeypatch.setattr(RecordDecoder, "decode", count)
    topic, has_changes = f"late-{value_format}", value_format == "debezium"

    def value(number: int) -> bytes:
        row = {"symbol": f"S{number}", "time": number, "price": number / 4}
        return json.dumps({"op": "u", "before": None, "after": row} if has_changes else row).encode()

    def run(name: str, **sections: Any) -> tuple[list[tuple[Any, ...]], int, int]:
        given = {
            "engine": "local",
            "source": pipeline(broker, tmp_path, topic, kafka_columns=["key", "offset"]).source.model_dump(
                by_alias=True, exclude_unset=True
            )
            | {"value_format": value_format},
            "queue": {"key": "kafka_key", "time": "kafka_offset"},
            "results": {
                "filter": "symbol IS NULL OR symbol <> 'S37'",
                "projection": ["kafka_key", "price * 2 AS double", "kafka_offset"],
            },
            "sink": {"type": "upsert", "to": f"sqlite:///{tmp_path / name}.db", "table": "t", "create": True},
            "query": {"trigger": "available_now", "checkpoint": str(tmp_path / name)},
        }
        decoded.clear()
        checked = Pipeline.model_validate(given | sections)
        assert checked.decodes_late is not bool(sections)
        totals = run_to_end(checked)
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as store:
            rows = store.execute("SELECT * FROM t ORDER BY kafka_key").fetchall()
        return rows, totals.bad_records, sum(decoded)

    for number in range(40):
        broker.send(topic, value(number), key=b"k%d" % (number % 4))
    broker.send(topic, b"{", value(50), key=b"k0")  # a newer record hides the bad one
    broker.send(topic, b"{", key=b"k5")
    broker.send(topic, *([None] if has_changes else []), key=b"k2")  # a tombstone is no change
    expected = [(b"k0", 25.0, 41), (b"k2", 19.0, 38), (b"k3", 19.5, 39), (b"k5", None, 42)]
    assert run("late") == (expected, 1, 5)
    assert run("first", filter="kafka_offset >= 0") == (expected, 2, 43 + has_changes)
    broker.send(topic, value(60), key=b"k2")
    again, _, decoded_rows = run("late")
    assert ([row[1] for row in again], decoded_rows) == ([25.0, 30.0, 19.5, None], 1)


def test_columns_before_decoding_have_the_types_in_which_spark_stores_them() -> None:
    given = {"type": "kafka", "value_format": "json", "schema": _COLUMNS, "kafka_columns": ["key", "headers"]}
    schema = encoded_schema(KafkaSource.model_validate(given))
    header = pa.struct({"key": pa.string(), "value": pa.binary()})
    assert schema.names == ["kafka_key", "kafka_headers", "kafka_value"]
    headers = schema.field("kafka_headers").type
    assert (headers, headers.value_field.name) == (pa.list_(pa.field("element", header)), "element")
