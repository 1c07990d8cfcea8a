"""A pipeline over a real Kafka broker on the local engine, and the same on Spark."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import _failpoints
from penstock.checkpointing.p_stream import PStreamReader
from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.local.pipeline import open_pipeline
from penstock.jobs.pipelines.run import run_to_end
from tests.servers.kafka import Broker, Record, broker
from tests.servers.processes import until
from tests.spark.kafka_pipelines import change, quote, spark

__all__ = ["broker", "spark"]

pytestmark = [pytest.mark.spark, pytest.mark.long]

_COLUMNS = "symbol STRING, time LONG, price DOUBLE"


def pipeline(broker: Broker, place: Path, options: dict[str, str], **sections: Any) -> Pipeline:
    """Return a pipeline on the local engine from topics to the p-stream ``out``."""
    source = {"type": "kafka", "value_format": "json", "schema": _COLUMNS} | sections.pop("source", {})
    servers = {"kafka.bootstrap.servers": broker.address, "startingOffsets": "earliest"}
    query = {"trigger": "available_now", "checkpoint": str(place / "checkpoint")}
    given = {
        "engine": "local",
        "queue": {"key": "symbol", "time": "time", "nulls": "drop", "buckets": 2},
        "sink": {"type": "pstream", "path": str(place / "out")},
    }
    query |= sections.pop("query", {})
    return Pipeline.model_validate(
        given | {"source": source | {"options": servers | options}, "query": query} | sections
    )


def out(place: Path, *names: str) -> list[tuple[Any, ...]]:
    names = names or ("symbol", "time")
    return [tuple(row[name] for name in names) for row in PStreamReader(place / "out").read().to_pylist()]


def test_rows_arrive_once_over_crashes_and_in_shares(broker: Broker, tmp_path: Path) -> None:
    topic = broker.make_topic("crashes", 3)
    run = pipeline(broker, tmp_path, {"subscribe": topic, "maxOffsetsPerTrigger": "30"})
    points = ["local.after_plan", "local.after_write", "local.after_commit"]
    for number, point in enumerate(points):
        for partition in range(3):
            quotes = [quote(f"k{partition}{number}{one}", one) for one in range(20)]
            broker.send(topic, quotes, partition=partition)
        running = open_pipeline(run)
        with _failpoints.armed({point: "error"}), pytest.raises(_failpoints.InjectedError):
            running.step()
    run_to_end(run)
    expected = [(f"k{a}{b}{c}", c) for a in range(3) for b in range(3) for c in range(20)]
    assert sorted(out(tmp_path)) == sorted(expected)


@pytest.mark.parametrize("point", [*_failpoints.LOCAL_POINTS, "state.after_publish", "sink.before_commit"])
def test_a_kill_anywhere_neither_loses_nor_repeats_a_record(
    broker: Broker, tmp_path: Path, point: str
) -> None:
    topic = broker.make_topic(f"kills-{point}")
    broker.send(topic, [quote(f"k{one}", one) for one in range(200)] + [Record(b"x", b"{")])
    run = pipeline(
        broker, tmp_path, {"subscribe": topic, "maxOffsetsPerTrigger": "40"},
        source={"reject_to": str(tmp_path / "rejected"), "on_error": "skip"},
    )  # fmt: skip
    file = tmp_path / "p.yaml"
    file.write_text(json.dumps(run.model_dump(mode="json", by_alias=True, exclude_unset=True)))
    command = [sys.executable, "-m", "penstock.cli", "run", str(file)]
    for number in range(3):
        marker = tmp_path / f"{point}-{number}"
        environment = {"PENSTOCK_FAILPOINTS": f"{point}=kill@{marker}"}
        ended = subprocess.run(["env", *(f"{k}={v}" for k, v in environment.items()), *command], check=False)
        assert (ended.returncode, marker.exists()) == (-signal.SIGKILL, True)
    subprocess.run(command, check=True, capture_output=True)
    assert sorted(out(tmp_path)) == sorted((f"k{one}", one) for one in range(200))
    assert PStreamReader(tmp_path / "rejected").read().column("value").to_pylist() == [b"{"]


def test_reading_starts_at_offsets_and_times_and_finds_new_topics(broker: Broker, tmp_path: Path) -> None:
    topic = broker.make_topic("starts-1")
    broker.send(topic, [quote(name, 1, timestamp_ms=1_000 * at) for at, name in enumerate("ABCD", 1)])
    for number, (options, expected) in enumerate(
        [
            ({"startingOffsets": '{"starts-1": {"0": 2}}'}, "CD"),
            ({"startingTimestamp": "1500"}, "BCD"),
            ({"startingOffsetsByTimestamp": '{"starts-1": {"0": 3500}}'}, "D"),
            ({"startingOffsets": "latest"}, ""),
        ]
    ):
        place = tmp_path / str(number)
        run_to_end(pipeline(broker, place, {"subscribe": topic} | options))
        assert [symbol for symbol, _ in sorted(out(place))] == list(expected), options
    with pytest.raises(InvalidUsageError, match="all records of a partition are older than the start"):
        run_to_end(pipeline(broker, tmp_path / "late", {"subscribe": topic, "startingTimestamp": "9000"}))
    with pytest.raises(InvalidUsageError, match="a topic of Kafka does not exist: topic=nowhere"):
        run_to_end(pipeline(broker, tmp_path / "none", {"subscribe": "nowhere"}))
    latest = tmp_path / "3"
    broker.send(topic, [quote("E", 1)])
    run_to_end(pipeline(broker, latest, {"subscribe": topic, "startingOffsets": "latest"}))
    assert out(latest) == [("E", 1)], "the first start chose the offsets"
    pattern = pipeline(broker, tmp_path / "pattern", {"subscribePattern": "starts-.*"})
    run_to_end(pattern)
    broker.send(broker.make_topic("starts-2"), [quote("F", 1)])
    run_to_end(pattern)
    assert sorted(symbol for symbol, _ in out(tmp_path / "pattern")) == list("ABCDEF")


@pytest.mark.parametrize("case", ["json", "raw", "debezium"])
def test_both_engines_give_the_same_rows_and_take_turns(
    broker: Broker, spark: SparkSession, tmp_path: Path, case: str
) -> None:
    topic = broker.make_topic(f"turns-{case}")
    bad = [b"{", b'{"symbol": "C", "time": "x"}', b"[1]", b"null", b"", b'{"symbol": 5, "time": 1}', b"1"]
    records: list[list[Record]] = [
        [quote("A", 1, headers=(("h", b"x"),)), *(Record(b"k", value) for value in bad), quote("B", 2)],
        [quote("A", 3), Record(b"k", b"{"), quote("D", 1)],
        [quote("E", 3), quote("D", 5), Record(b"k", b"}")],
    ]
    source: dict[str, Any] = {"kafka_columns": ["offset", "key"], "on_error": "keep"}
    sections: dict[str, Any] = {}
    names: tuple[str, ...] = ("symbol", "time", "price", "kafka_offset", "kafka_key")
    if case == "raw":
        source = {"value_format": "raw", "schema": None}
        sections["queue"] = {"key": "key", "time": "offset", "buckets": 2}
        names = ("key", "value", "topic", "partition", "offset", "timestampType", "headers")
    else:
        source["reject_to"] = str(tmp_path / "rejected")
        sections["queue"] = {
            "key": "kafka_key", "time": "kafka_offset", "semantics": "append", "buckets": 2,
        }  # fmt: skip
    if case == "debezium":
        changes = [
            change("r", None, {"id": 1, "name": "a"}, 1), change("d", {"id": 2, "name": None}, None, 4),
            change("u", {"id": 1}, {"id": 1, "name": "c"}, 3, schema=True), Record(b"k", b'{"id": 1}'),
            change("t", None, None, 6), Record(b"k", None), Record(b"k", b'{"op": 5}'),
        ]  # fmt: skip
        records = [changes, changes[:3], changes[2:]]
        source |= {"value_format": "debezium", "schema": "id INT, name STRING", "on_error": "keep"}
        names = ("id", "name", "deleted", "change_op", "change_ms", "change_lsn", "kafka_offset")
    turns = {"local": ["local"] * 3, "turns": ["local", "spark", "local"], "spark": ["spark"] * 3}
    for number, some in enumerate(records):
        broker.send(topic, some)
        for name, engines in turns.items():
            place = tmp_path / name
            given = dict(source)
            if "reject_to" in given:
                given["reject_to"] = str(place / "rejected")
            engine = engines[number]
            run = pipeline(
                broker, place, {"subscribe": topic, "includeHeaders": "true"}, source=given, engine=engine,
                query={"spark": {"spark.sql.shuffle.partitions": "2"}}, **sections,
            )  # fmt: skip
            run_to_end(run, spark=spark if engine == "spark" else None)
    rows = {name: sorted(map(repr, out(tmp_path / name, *names))) for name in turns}
    assert rows["local"] == rows["spark"]
    assert rows["turns"] == rows["spark"]
    if case != "raw":
        found = {
            name: sorted(map(repr, PStreamReader(tmp_path / name / "rejected").read().to_pylist()))
            for name in turns
        }
        assert len(found["spark"]) > 3
        assert found["local"] == found["turns"] == found["spark"]


def test_a_run_waits_for_a_broker_that_is_killed_and_comes_back(broker: Broker, tmp_path: Path) -> None:
    topic = broker.make_topic("comes-back")
    broker.send(topic, [quote("A", 1)])
    running = open_pipeline(pipeline(broker, tmp_path, {"subscribe": topic}))
    assert until(running.step, 60)
    broker.kill()
    assert not running.step(), "nothing is new while no broker answers"
    broker.start()
    broker.send(topic, [quote("B", 1)])
    assert until(running.step, 60)
    assert sorted(out(tmp_path)) == [("A", 1), ("B", 1)]


def test_a_pipeline_that_decodes_late_takes_turns(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    topic = broker.make_topic("turns-late", 2)
    turns = {"turns": ["local", "spark", "local"], "spark": ["spark"] * 3}
    stores = {name: f"sqlite:///{tmp_path}/{name}.db" for name in turns}
    for number in range(3):
        for partition in range(2):
            names = [f"k{partition}{one % 5}" for one in range(20)]
            broker.send(topic, [quote(name, number) for name in names] + [Record(b"bad", b"{")], partition)
        for name, engines in turns.items():
            run = pipeline(
                broker, tmp_path / name, {"subscribe": topic}, engine=engines[number],
                source={"kafka_columns": ["key", "offset", "headers"]},
                queue={"key": "kafka_key", "time": "kafka_offset", "buckets": 2},
                results={"projection": ["kafka_key", "kafka_offset", "symbol", "time + 1 AS later"]},
                query={"spark": {"spark.sql.shuffle.partitions": "2"}},
                sink={"type": "upsert", "to": stores[name], "table": "t", "create": True},
            )  # fmt: skip
            assert run.decodes_late
            totals = run_to_end(run, spark=spark if engines[number] == "spark" else None)
            assert totals.bad_records == 1
    rows = {}
    for name in turns:
        with closing(sqlite3.connect(stores[name].removeprefix("sqlite:///"))) as store:
            rows[name] = store.execute("SELECT * FROM t ORDER BY kafka_key").fetchall()
    assert rows["turns"] == rows["spark"]
    assert len(rows["spark"]) == 11
