"""A real Kafka broker on the loopback address, and the jars of the broker and of Spark's connector.

``python -m tests.servers.kafka`` fetches the jars, as does the first test that wants them.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pyspark
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.servers.jars import JAVA, MissingJarsError, fetch
from tests.servers.processes import kill, until

HOST: Final = "127.0.0.1"
_BROKER: Final = ("org.apache.kafka", "kafka_2.13", "4.3.1")
# The newest connectors and token providers that were available; Spark 4.3 also runs the ones for 4.2.
_SPARK: Final = {"4.0": ("4.0.1", "4.0.0"), "4.1": ("4.1.1", "4.1.1")}.get(
    pyspark.__version__[:3], ("4.2.0", "4.2.0")
)
_CONNECTOR: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", _SPARK[0]),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", _SPARK[1]),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
_PATIENCE_S: Final = 300.0  # a machine under load starts a broker slowly


def fetch_jars() -> tuple[Path, Path]:
    """Return the directories of the broker's jars and of the connector's; fetch them once with Spark's Ivy.

    Ivy looks where it does by default and compares the checksums that are there.

    Raises
    ------
    MissingJarsError
        If Ivy could not fetch them.
    """
    return fetch([_BROKER], "default"), fetch(_CONNECTOR, "master")


def connector_jars() -> list[str]:
    """Return the paths of the connector's jars; a running session takes them by ``ADD JAR``."""
    return [str(jar) for jar in sorted(fetch_jars()[1].glob("*.jar"))]


def leave_jars(session: Any) -> None:
    """Let sessions of later modules not find the jars that a classic session has added."""
    # They are in a class loader that Spark leaves to the JVM's thread of this one.
    lang = session._jvm.java.lang
    lang.Thread.currentThread().setContextClassLoader(lang.ClassLoader.getSystemClassLoader())


class Record(NamedTuple):
    """A record of a topic."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()


class Broker:
    """One broker that is its own controller (KRaft), whose files are in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._class_path = f"{fetch_jars()[0]}/*"
        self._log = directory / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._port, controller = _free_ports(2)
        self.address = f"{HOST}:{self._port}"
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{HOST}:{controller}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "log.dirs": directory / "logs",
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "log.retention.ms": -1,  # tests write records of long ago
            "log.cleaner.backoff.ms": 100,  # how often compaction looks for work
        }
        self._settings = directory / "server.properties"
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = self._java("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAQACAAAAAAAAAAA", "-c")
        subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _java(self, *words: str) -> list[str]:
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [JAVA, *options, "-cp", self._class_path, *words, str(self._settings)]

    def start(self) -> None:
        """Start the broker, which may have been killed, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._java("kafka.Kafka"), stdout=log, stderr=log)
        if not until(self._listens, _PATIENCE_S):
            self.kill()
            raise AssertionError(f"the broker did not start: {self._log.read_text()[-2000:]}")
        self._admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        self._admin.list_topics(timeout=_PATIENCE_S)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        with contextlib.suppress(OSError), socket.create_connection((HOST, self._port), timeout=1):
            return True
        return False

    def kill(self) -> None:
        """End the broker with SIGKILL."""
        if self._process is not None:
            kill([self._process.pid])
            self._process.wait()
            self._process = None

    def make_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Make a topic and return its name; `config` has ``_`` for dots."""
        settings = {option.replace("_", "."): value for option, value in config.items()}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        self._admin.create_topics([topic])[name].result(_PATIENCE_S)
        known = lambda: name in self._admin.list_topics(timeout=_PATIENCE_S).topics  # noqa: E731
        assert until(known, _PATIENCE_S)
        return name

    def send(self, topic: str, records: Iterable[Record], partition: int = 0) -> None:
        """Write records, and wait until they are acknowledged."""
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5, "log_level": 0})
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=partition,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
            )
        assert producer.flush(_PATIENCE_S) == 0

    def read(self, topic: str) -> list[Record]:
        """Return the records that partition 0 of a topic has now, in the order of their offsets."""
        options = {"bootstrap.servers": self.address, "group.id": "tests", "enable.auto.commit": False}
        consumer = Consumer(options | {"log_level": 0, "enable.partition.eof": True})
        consumer.assign([TopicPartition(topic, 0, 0)])
        records = []
        while True:
            message = consumer.poll(_PATIENCE_S)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                break
            records.append(Record(message.key(), message.value(), message.timestamp()[1]))
        consumer.close()
        return records


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give a broker that runs, for one module of tests."""
    try:
        fetch_jars()
    except MissingJarsError as error:
        pytest.skip(str(error))
    with Broker(tmp_path_factory.mktemp("kafka")) as started:
        yield started


if __name__ == "__main__":
    try:
        fetch_jars()
    except MissingJarsError as missing:
        sys.exit(str(missing))
