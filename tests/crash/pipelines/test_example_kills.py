"""Packaged examples from a source to a store: after random kills the store is exact."""

from __future__ import annotations

import csv
import json
import random
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow.compute as pc
import pytest

from penstock.checkpointing.p_stream import PStreamReader
from tests.crash.pipelines.commands import KILLS, SEED, Commands, kill_some, stream_rows
from tests.servers.kafka import Broker, Record, broker, connector_jars
from tests.servers.servers import Mosquitto, PostgreSql, Redis

__all__ = ["broker"]

pytestmark = [pytest.mark.crash, pytest.mark.spark]

_ONCE = ("--set", "query.trigger=available_now")
_SPARK = (
    *("--set", "query.spark.spark.master=local[2]", "--set", "query.spark.spark.sql.shuffle.partitions=2"),
    *("--set", "query.spark.spark.driver.memory=1g"),
)
_SYMBOLS = [f"S{number}" for number in range(20)]


@pytest.fixture
def draw() -> random.Random:
    print(f"replay: script/crash {KILLS} {SEED}")
    return random.Random(SEED)


# ------------------------------------------------------------------------------------ CSV to DuckDB

_BEGIN = datetime(2026, 1, 31, 12, tzinfo=UTC)


class _TradeFiles:
    """CSV files of trades; each file goes on ten minutes after the one before, a little out of order."""

    def __init__(self, directory: Path, draw: random.Random) -> None:
        self._directory, self._draw, self._files = directory, draw, 0
        directory.mkdir()
        self.rows = 0

    def add(self, rows: int = 2000) -> None:
        begin = _BEGIN + timedelta(minutes=10 * self._files)
        with (self._directory / f"{self._files:03d}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["time", "symbol", "price"])
            for row in range(rows):
                moment = begin + timedelta(seconds=10 + 580 * row / rows - self._draw.uniform(0, 5))
                writer.writerow(
                    [moment.isoformat(), self._draw.choice(_SYMBOLS), self._draw.randrange(100) / 4]
                )
        self._files += 1
        self.rows += rows


@pytest.mark.long
def test_windows_of_csv_files_reach_duckdb_exactly(tmp_path: Path, draw: random.Random) -> None:
    commands = Commands(tmp_path)
    files = _TradeFiles(tmp_path / "incoming", draw)
    ingest = ("ingest", "trades", "--from", "csv", "incoming/*.csv", "--follow", "--interval", "20ms")
    schema = ("--schema", "time timestamp, symbol string, price double")
    trades, store = tmp_path / "trades", tmp_path / "minutes.duckdb"
    run = ("run", "csv_to_duckdb", *_SPARK)
    files.add()
    for _ in range(KILLS):
        with commands.running(*ingest, *schema) as reader:
            commands.wait_for(reader, lambda: stream_rows(trades) >= files.rows)
            before = _commits(tmp_path)
            with commands.running(*run) as query:
                commands.wait_for(query, lambda: _commits(tmp_path) > before)  # noqa: B023
                files.add()
                kill_some(query, draw)
            files.add()
            kill_some(reader, draw)
    with commands.running(*ingest, *schema) as reader:
        commands.wait_for(reader, lambda: stream_rows(trades) >= files.rows)
    commands.finish(*run, *_ONCE)
    names = "symbol, window_start, window_end, trades, low, high"
    with duckdb.connect(str(store)) as found:
        found.execute("SET TimeZone = 'UTC'")
        stored = found.execute(f"SELECT {names} FROM minutes ORDER BY ALL").fetchall()
    with duckdb.connect() as oracle:
        oracle.execute("SET TimeZone = 'UTC'")
        wanted = oracle.execute(
            "WITH trades AS (SELECT *, date_trunc('minute', time::TIMESTAMPTZ) AS a FROM read_csv(?)) "
            "SELECT symbol, a, a + INTERVAL 1 MINUTE, count(*), min(price), max(price) FROM trades "
            "WHERE a + INTERVAL 1 MINUTE <= (SELECT max(time::TIMESTAMPTZ) FROM trades) - INTERVAL 10 SECOND "
            "GROUP BY symbol, a ORDER BY ALL",
            [str(tmp_path / "incoming" / "*.csv")],
        ).fetchall()
    assert len(wanted) > 100
    assert stored == wanted


# --------------------------------------------------------------------- a change log to Delta Lake


class _Customers:
    """A table whose changes go to a topic as Debezium writes them; a dict is what it holds."""

    def __init__(self, broker: Broker, topic: str, draw: random.Random) -> None:
        self._broker, self._topic, self._draw = broker, topic, draw
        self.rows: dict[int, tuple[str, str]] = {}
        self.deleted: set[int] = set()

    def change(self, changes: int) -> None:
        records = []
        for _ in range(changes):
            id = self._draw.randrange(200)
            before = self.rows.get(id)
            key = json.dumps({"id": id}).encode()
            if before is not None and self._draw.random() < 0.3:
                del self.rows[id]
                self.deleted.add(id)
                records += [Record(key, _change("d", id, before, None)), Record(key, None)]
                continue
            after = f"name {self._draw.randrange(1000)}", self._draw.choice(["Bern", "Genève", "Zürich"])
            self.rows[id] = after
            self.deleted.discard(id)
            records.append(Record(key, _change("c" if before is None else "u", id, before, after)))
        self._broker.send(self._topic, records)


def _change(kind: str, id: int, before: tuple[str, str] | None, after: tuple[str, str] | None) -> bytes:
    images = [row and {"id": id, "name": row[0], "city": row[1]} for row in (before, after)]
    event = {"op": kind, "before": images[0], "after": images[1], "source": {"ts_ms": 1}}
    return json.dumps({"payload": event}).encode()


@pytest.mark.long
def test_the_changes_of_a_table_reach_delta_lake_exactly(
    tmp_path: Path, draw: random.Random, broker: Broker
) -> None:
    from deltalake import DeltaTable

    topic = broker.make_topic("customers")
    commands = Commands(tmp_path, KAFKA=broker.address, TOPIC=topic)
    customers = _Customers(broker, topic, draw)
    run = ("run", "changes_to_delta", *_SPARK, *_connector())
    for _ in range(KILLS):
        customers.change(400)
        before = _commits(tmp_path)
        with commands.running(*run) as query:
            commands.wait_for(query, lambda: _commits(tmp_path) > before)  # noqa: B023
            customers.change(400)
            kill_some(query, draw)
        customers.change(400)
    commands.finish(*run, *_ONCE)
    rows = DeltaTable(tmp_path / "customers").to_pyarrow_table().to_pylist()
    assert {row["id"]: (row["name"], row["city"]) for row in rows if not row["penstock_deleted"]} == (
        customers.rows
    )
    assert {row["id"] for row in rows if row["penstock_deleted"]} == customers.deleted
    assert len(rows) == len(customers.rows) + len(customers.deleted)


# ------------------------------------------------------------------------------------ MQTT to Redis


@pytest.fixture
def mosquitto() -> Iterator[Mosquitto]:
    server = Mosquitto()
    yield server
    server.remove()


@pytest.fixture
def redis() -> Iterator[Redis]:
    server = Redis()
    yield server
    server.remove()


@pytest.mark.long
def test_the_newest_readings_of_mqtt_reach_redis(
    tmp_path: Path, draw: random.Random, mosquitto: Mosquitto, redis: Redis
) -> None:
    from redis import Redis as Client

    commands = Commands(tmp_path, REDIS=redis.uri)
    ingest = (
        *("ingest", "readings", f"mqtt://127.0.0.1:{mosquitto.port}/plant/+/temperature", "--from", "mqtt"),
        *("--topic-column", "topic", "--schema", "time timestamp, value double, topic string"),
        *("--interval", "20ms"),
    )
    run = ("run", "mqtt_to_redis", *_SPARK)
    readings, newest, sent = tmp_path / "readings", dict[str, tuple[datetime, float]](), 0

    def publish(count: int, topics: int = 50) -> datetime:
        nonlocal sent
        messages, moment = [], _BEGIN
        for _ in range(count):
            topic, value = f"plant/{draw.randrange(topics)}/temperature", draw.randrange(400) / 10
            moment = _BEGIN + timedelta(milliseconds=sent)
            sent += 1
            messages.append((topic, {"time": moment.isoformat(), "value": value}))
            newest[topic] = moment, value
        mosquitto.publish(messages)
        return moment

    with commands.running(*ingest) as reader:
        # Those before the client is subscribed are lost: they are of one topic, which gets more.
        def is_subscribed() -> bool:
            publish(1, topics=1)
            return stream_rows(readings) > 0

        commands.wait_for(reader, is_subscribed)
        kill_some(reader, draw)
    for _ in range(KILLS):
        publish(300)
        with commands.running(*ingest) as reader, commands.running(*run) as query:
            before = _commits(tmp_path)
            commands.wait_for(query, lambda: _commits(tmp_path) > before)  # noqa: B023
            redis.stop(signal.SIGKILL)
            publish(300)
            redis.start()
            kill_some(reader, draw)
            publish(300)
            kill_some(query, draw)
    with commands.running(*ingest) as reader:
        # The broker keeps messages in order.
        last = publish(1)
        commands.wait_for(reader, lambda: pc.max(PStreamReader(readings).read()["time"]).as_py() == last)
    commands.finish(*run, *_ONCE)
    with Client.from_url(redis.uri, decode_responses=True) as client:
        stored = {key.removeprefix("sensors:"): client.hgetall(key) for key in client.scan_iter("sensors:*")}
    found = {
        topic: (datetime.fromisoformat(row["time"]), float(row["value"])) for topic, row in stored.items()
    }
    assert found == newest


# ------------------------------------------------------------------------------ Kafka to PostgreSQL


@pytest.fixture
def postgresql() -> Iterator[PostgreSql]:
    server = PostgreSql()
    yield server
    server.remove()


@pytest.mark.long
def test_the_newest_trades_of_kafka_reach_postgresql(
    tmp_path: Path, draw: random.Random, broker: Broker, postgresql: PostgreSql
) -> None:
    from adbc_driver_postgresql import dbapi

    topic = broker.make_topic("trades")
    commands = Commands(tmp_path, KAFKA=broker.address, TOPIC=topic, DATABASE=postgresql.uri)
    run = ("run", "kafka_to_postgresql", *_SPARK, *_connector(), "--set", "queue.budget=7")
    newest: dict[str, tuple[float, int, int]] = {}
    sent = 0

    def trade(trades: int) -> None:
        nonlocal sent
        records = []
        for _ in range(trades):
            symbol, price, volume = draw.choice(_SYMBOLS), draw.randrange(100) / 4, draw.randrange(1000)
            value = json.dumps({"symbol": symbol, "price": price, "volume": volume})
            records.append(Record(symbol.encode(), value.encode()))
            newest[symbol] = price, volume, sent
            sent += 1
        broker.send(topic, records)

    for _ in range(KILLS):
        trade(300)
        before = _commits(tmp_path)
        with commands.running(*run) as query:
            commands.wait_for(query, lambda: _commits(tmp_path) > before)  # noqa: B023
            postgresql.stop(signal.SIGKILL)
            trade(300)
            postgresql.start()
            kill_some(query, draw)
        trade(300)
    commands.finish(*run, *_ONCE)
    with dbapi.connect(postgresql.uri) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT symbol, price, volume, kafka_offset FROM trades")
        stored = cursor.fetchall()
    assert {symbol: tuple(values) for symbol, *values in stored} == newest
    assert len(stored) == len(newest)


# -------------------------------------------------------------------------------------- of all


def _commits(place: Path) -> int:
    """Return how many micro-batches the queries of a graph have committed."""
    return len(list(place.glob("*-checkpoint/queries/*/commits/[0-9]*")))


def _connector() -> tuple[str, ...]:
    """Return overrides for Spark's connector of Kafka, from jars that are here."""
    jars = ",".join(connector_jars())
    return "--set", "query.spark.spark.jars.packages=''", "--set", f"query.spark.spark.jars={jars}"
