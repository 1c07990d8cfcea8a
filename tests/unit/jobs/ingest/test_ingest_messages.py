"""``penstock ingest`` from a real MQTT broker, and from a WebSocket."""

from __future__ import annotations

import itertools
import json
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from penstock.checkpointing.p_stream import PStream, PStreamReader
from penstock.cli import app
from penstock.errors import InvalidUsageError, UnavailableError
from penstock.jobs.ingest import Settings, Totals, ingest_sources
from penstock.jobs.ingest.messages import Message, Messages, MessageSource
from penstock.jobs.ingest.mqtt import MqttMessages
from penstock.jobs.ingest.records import CsvDialect, JsonDialect
from penstock.jobs.ingest.sources import BadRecord, Rows
from penstock.jobs.ingest.websocket import WebSocketMessages
from tests.servers import processes
from tests.servers.servers import Mosquitto

_PATIENCE_S = 20.0


def until(condition: Callable[[], bool]) -> None:
    assert processes.until(condition, _PATIENCE_S), "it did not happen"


def rows_of(place: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = PStreamReader(place).read().to_pylist()
    return rows


# ------------------------------------------------------------------------------------ any messages


class Canned(Messages):
    """Messages that are there from the beginning."""

    name = "canned"

    def __init__(self, *messages: tuple[str, bytes]) -> None:
        self._messages = [Message(*message) for message in messages]

    def receive(self, most_bytes: int) -> list[Message]:
        self.ended, messages, self._messages = True, self._messages, []
        return messages

    def close(self) -> None: ...


def test_each_row_gets_the_topic_of_its_message() -> None:
    messages = Canned(
        ("a", b'{"n": 1}'), ("b", b""), ("c", b'{\n  "n": 2\n}\n'), ("d", b"no"), ("e", b'{"n": 3}')
    )
    source = MessageSource(messages, JsonDialect(), "topic", 1 << 20)
    source.begin(pa.schema({"topic": pa.string(), "n": pa.int64()}), {})
    found = list(source.read())
    rows = [row for part in found if isinstance(part, Rows) for row in part.table.to_pylist()]
    assert rows == [{"topic": "a", "n": 1}, {"topic": "c", "n": 2}, {"topic": "e", "n": 3}]
    assert [part.line for part in found if isinstance(part, BadRecord)] == [4]
    assert source.done


def test_a_message_of_csv_may_have_several_lines() -> None:
    messages = Canned(("a", b"1,x\n2,y\n"), ("b", b"3,z"))
    source = MessageSource(messages, CsvDialect(header=False, names=("n", "s")), "topic", 1 << 20)
    source.begin(pa.schema({"n": pa.int64(), "s": pa.string(), "topic": pa.string()}), {})
    (rows,) = (part for part in source.read() if isinstance(part, Rows))
    assert rows.table.to_pydict() == {"n": [1, 2, 3], "s": ["x", "y", "z"], "topic": ["a", "a", "b"]}


def test_messages_are_acknowledged_when_their_rows_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, durable = tmp_path / "stream", []

    class Broker(Canned):
        acknowledges = True

        def acknowledge(self) -> None:
            durable.append(PStream(place).end)

    monkeypatch.setattr(
        "penstock.jobs.ingest.ingest.MqttMessages",
        lambda url, client: Broker(("a", b'{"n": 1}'), ("b", b'{"n": 2}')),
    )
    ingest_sources(Settings(str(place), "mqtt", ("mqtt://host/a",), schema="n bigint", interval="1 hour"))
    assert durable == [2]


def test_an_unreadable_message_ends_the_command_with_code_1_and_can_be_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broker(Canned):
        acknowledges = True

    monkeypatch.setattr(
        "penstock.jobs.ingest.ingest.MqttMessages",
        lambda url, client: Broker(("a", b'{"n": 1}'), ("b", b"no"), ("b", b'{"n": 3}')),
    )
    command = ["ingest", str(tmp_path / "stream"), "mqtt://host/a", "--from", "mqtt", "--schema", "n bigint"]
    failed = CliRunner().invoke(app, command)
    assert failed.exit_code == 1, failed.output
    assert "a record cannot be read" in failed.output
    assert "send it again, so skip such messages with --on-error skip" in failed.output
    skipped = CliRunner().invoke(app, [*command, "--on-error", "skip"])
    assert skipped.exit_code == 0, skipped.output
    # The broker sends all messages again.
    assert [row["n"] for row in rows_of(tmp_path / "stream")] == [1, 1, 3]


def test_messages_of_csv_need_columns(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match=r"messages of CSV need columns .* --no-header"):
        MessageSource(Canned(), CsvDialect(), None, 1)


# -------------------------------------------------------------------------------------------- MQTT


@pytest.fixture
def broker() -> Iterator[Mosquitto]:
    broker = Mosquitto()
    yield broker
    broker.remove()


def _publish(broker: Mosquitto, topic: str, *rows: Any) -> None:
    broker.publish((topic, row) for row in rows)


def _url(broker: Mosquitto) -> str:
    return f"mqtt://127.0.0.1:{broker.port}/plant/+/heat"


def _start(place: Path, url: str, **environment: str) -> subprocess.Popen[bytes]:
    arguments = ["ingest", str(place), url, "--from", "mqtt", "--topic-column", "topic", "--quiet"]
    code = "from penstock.cli import main; main()"
    schema = ["--schema", "n bigint, topic string"]
    return subprocess.Popen([sys.executable, "-c", code, *arguments, *schema])


def _numbers(place: Path) -> list[int]:
    return [row["n"] for row in rows_of(place)] if (place / "p-stream").exists() else []


@pytest.mark.long
def test_no_message_is_lost_while_the_command_or_the_broker_is_killed(
    tmp_path: Path, broker: Mosquitto
) -> None:
    place = tmp_path / "stream"
    first = _start(place, _url(broker))
    until((place / "p-stream").exists)
    # Messages come at the latest when the client is subscribed.
    sent = 0

    def is_subscribed() -> bool:
        nonlocal sent
        _publish(broker, "plant/7/heat", {"n": sent})
        sent += 1
        return bool(_numbers(place))

    until(is_subscribed)
    begin = min(_numbers(place))
    first.kill()
    first.wait()
    _publish(broker, "plant/8/heat", *({"n": number} for number in range(sent, sent + 50)))
    sent += 50
    second = _start(place, _url(broker))
    until(lambda: set(_numbers(place)) >= set(range(begin, sent)))
    broker.stop()
    broker.start()
    _publish(broker, "plant/9/heat", *({"n": number} for number in range(sent, sent + 50)))
    until(lambda: set(_numbers(place)) >= set(range(begin, sent + 50)))
    second.send_signal(signal.SIGINT)
    assert second.wait(_PATIENCE_S) == 130
    assert {row["topic"] for row in rows_of(place)} == {f"plant/{number}/heat" for number in (7, 8, 9)}
    # Messages that were acknowledged do not come again.
    before = len(_numbers(place))
    third = _start(place, _url(broker))
    _publish(broker, "plant/7/heat", {"n": -1})
    until(lambda: -1 in _numbers(place))
    third.send_signal(signal.SIGINT)
    assert third.wait(_PATIENCE_S) == 130
    assert _numbers(place)[before:] == [-1]


def test_a_broker_sends_no_more_than_may_wait_for_their_acknowledgements(broker: Mosquitto) -> None:
    received: list[Message] = []
    messages = MqttMessages(_url(broker), "slow", most_waiting=10)
    probes = itertools.count(1)
    try:

        def is_subscribed() -> bool:
            _publish(broker, "plant/7/heat", {"n": -next(probes)})
            received.extend(messages.receive(1 << 20))
            messages.acknowledge()
            return bool(received)

        until(is_subscribed)
        _publish(broker, "plant/7/heat", *({"n": number} for number in range(30)))
        waiting: list[int] = []

        def has_received(count: int) -> bool:
            waiting.extend(json.loads(message.content)["n"] for message in messages.receive(1 << 20))
            return len(waiting) >= count

        until(lambda: has_received(10))
        has_received(11)
        assert len({*waiting}) == 10, waiting  # messages may come twice

        def is_done() -> bool:
            messages.acknowledge()
            return has_received(30) and waiting[-1] == 29

        until(is_done)
        assert [number for number in waiting if number >= 0] == list(range(30))
    finally:
        messages.close()


def test_a_broker_that_is_not_there_and_a_wrong_address_are_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = Settings(
        str(tmp_path / "s"), "mqtt", (f"mqtt://u:secret@127.0.0.1:{port}/a",), schema="n bigint"
    )
    with pytest.raises(UnavailableError, match="nothing answers at the address") as caught:
        ingest_sources(settings)
    assert "secret" not in str(caught.value)
    for wrong in ("mqtt://host", "host:1883/a", "mqtt://host:x/a"):
        with pytest.raises(InvalidUsageError, match="address of the broker"):
            ingest_sources(Settings(str(tmp_path / "s"), "mqtt", (wrong,), schema="n bigint"))


# --------------------------------------------------------------------------------------- WebSocket


@contextmanager
def _server(handler: Callable[[ServerConnection], None]) -> Iterator[str]:
    with serve(handler, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/ticks"
        finally:
            server.shutdown()
            thread.join()


def test_a_websocket_is_greeted_and_read_to_its_end(tmp_path: Path) -> None:
    greetings = []

    def handler(connection: ServerConnection) -> None:
        greetings.append(connection.recv())
        for number in range(1000):
            connection.send(json.dumps({"n": number}))

    with _server(handler) as url:
        totals = ingest_sources(Settings(str(tmp_path / "s"), "websocket", (url,), greetings=("hello",)))
    assert greetings == ["hello"]
    assert totals.rows == 1000
    assert [row["n"] for row in rows_of(tmp_path / "s")] == list(range(1000))


def test_a_websocket_that_ends_is_connected_again(tmp_path: Path) -> None:
    connections = []

    def handler(connection: ServerConnection) -> None:
        connections.append(connection)
        with suppress(ConnectionClosed):
            connection.send(json.dumps({"n": len(connections)}))

    place = tmp_path / "s"

    def has_three() -> bool:
        return (place / "p-stream").exists() and PStream(place).end >= 3

    with _server(handler) as url:
        settings = Settings(str(place), "websocket", (url,), follow=True, interval="0ms")
        totals: Totals = ingest_sources(settings, stopped=has_three)
    assert totals.rows >= 3
    assert [row["n"] for row in rows_of(place)][:3] == [1, 2, 3]


def test_a_slow_stream_holds_the_server_back(tmp_path: Path) -> None:
    sent = 0
    text = json.dumps({"n": 0, "text": secrets.token_hex(50_000)})  # compression would hide its size

    def handler(connection: ServerConnection) -> None:
        nonlocal sent
        with suppress(ConnectionClosed):
            while True:
                connection.send(text)
                sent += 1

    def stands_still() -> bool:
        before = sent
        return not processes.until(lambda: sent > before, 0.5)

    with _server(handler) as url:
        messages = WebSocketMessages(url)
        until(stands_still)
        assert sent < 1000  # 100 MB
        assert len(messages.receive(1 << 20)) >= 10
        messages.close()
