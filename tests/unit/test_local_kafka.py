"""A source of Kafka on the local engine, over the broker that librdkafka has for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock import _failpoints
from penstock.checkpointing.p_stream import PStreamReader
from penstock.conf.pipeline import Pipeline
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.jobs.local.pipeline import open_pipeline
from penstock.jobs.pipelines.run import run_to_end

_COLUMNS = "symbol STRING, time LONG, price DOUBLE"
_ANSWER_S = 60.0


class MockBroker:
    """A broker in this process, whose topics have four partitions."""

    def __init__(self) -> None:
        settings: dict[str, Any] = {"test.mock.num.brokers": 1, "bootstrap.servers": "none", "log_level": 0}
        self._producer = Producer(settings)
        (broker,) = self._producer.list_topics(timeout=_ANSWER_S).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def send(self, topic: str, *values: bytes | str, partition: int = 0) -> None:
        """Write records; a symbol stands for a whole record at time 1."""
        self._producer.list_topics(topic, timeout=_ANSWER_S)  # makes the topic
        for value in values:
            text = json.dumps({"symbol": value, "time": 1, "price": 2.5}) if isinstance(value, str) else value
            self._producer.produce(topic, text, b"key", partition=partition, headers=[("h", b"x")])
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
        InvalidUsageError, match=r"are gone.*topic=lost partition=0 offset=9 .*failOnDataLoss"
    ):
        run_to_end(pipeline(broker, tmp_path / "refused", "lost", options=beyond))
    run_to_end(pipeline(broker, tmp_path / "on", "lost", options=beyond | {"failOnDataLoss": "false"}))
    assert symbols(tmp_path / "on") == ["A"]
    with pytest.raises(InvalidUsageError, match="Kafka's client refuses its settings"):
        run_to_end(pipeline(broker, tmp_path / "wrong", "lost", options={"kafka.no.setting": "x"}))
