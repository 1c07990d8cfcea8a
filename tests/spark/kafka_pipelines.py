"""Pipelines that read a real Kafka broker, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.conf.pipeline import Pipeline
from tests.servers.kafka import Broker, Record, connector_jars, leave_jars
from tests.spark.conftest import Sessions

_COLUMNS = "symbol STRING, time LONG, price DOUBLE"


@pytest.fixture(scope="module")
def spark(broker: Broker, sessions: Sessions) -> Any:
    """Provide a session with Spark's connector; sessions of other modules do not have it."""
    with sessions.session() as session:
        for jar in connector_jars():
            session.sql(f"ADD JAR '{jar}'")
        yield session
        leave_jars(session)


def quote(symbol: str, time: int, price: float = 1.0, **more: Any) -> Record:
    """Return a record whose value is JSON of `_COLUMNS`."""
    value = json.dumps({"symbol": symbol, "time": time, "price": price})
    return Record(symbol.encode(), value.encode(), **more)


def pipeline(broker: Broker, directory: Path, options: dict[str, str], **sections: Any) -> Pipeline:
    """Return a pipeline from topics to the topic ``out`` with a number; `sections` replace its sections."""
    servers = {"kafka.bootstrap.servers": broker.address}
    source = {"type": "kafka", "value_format": "json", "schema": _COLUMNS} | sections.pop("source", {})
    source["options"] = servers | {"startingOffsets": "earliest"} | options
    query = {"checkpoint": str(directory / "checkpoint"), "trigger": "available_now"}
    given = {"queue": {"key": "symbol", "time": "time", "nulls": "drop"}, "query": query} | sections
    sink = given.pop("sink", None) or {"type": "kafka", "options": servers | {"topic": given.pop("to")}}
    return Pipeline.model_validate(given | {"source": source, "sink": sink})


def values(records: list[Record]) -> list[tuple[str, int]]:
    """Return symbol and time of the records of a sink, in their order."""
    rows = [json.loads(record.value or b"null") for record in records]
    return [(row["symbol"], row["time"]) for row in rows]


def change(op: str, before: Any, after: Any, lsn: int, *, schema: bool = False) -> Record:
    """Return a change event of a row with the key ``id``, in the form of Debezium for PostgreSQL."""
    envelope = {"before": before, "after": after, "source": {"lsn": lsn, "ts_ms": 10 * lsn, "db": "d"}}
    envelope |= {"op": op, "ts_ms": 7}
    value = {"schema": {"type": "struct", "fields": []}, "payload": envelope} if schema else envelope
    key = {"id": (after or before)["id"]} if after or before else {"id": 0}
    return Record(json.dumps(key).encode(), json.dumps(value).encode())
