"""Messages of an MQTT broker, each acknowledged once its rows are durable."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from penstock._extras import need_extra
from penstock.errors import InvalidUsageError, UnavailableError, hide_value
from penstock.jobs.ingest.messages import Message, Messages

__all__ = ["MqttMessages"]

_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
_MAX_UNACKNOWLEDGED: Final = 10_000
"""The largest number of unacknowledged messages; then the broker sends no more."""
_SESSION_S: Final = 86_400
"""The time for which the broker keeps messages for this client while the client is away."""
_WAIT_S: Final = 0.1
_GATHER_S: Final = 0.002
"""The wait for more messages; a broker sends no more once it waits for acknowledgements."""


class MqttMessages(Messages):
    """Messages of a topic filter, at least once (QoS 1).

    The broker keeps a session for this client's name. After a restart of the client, the broker sends the
    unacknowledged messages and the messages that arrived meanwhile. While too many messages are
    unacknowledged, the broker sends no more. So if the p-stream is slow, messages stay at the broker.

    Parameters
    ----------
    url : str
        ``mqtt://USER:PASSWORD@HOST:PORT/FILTER``, or ``mqtts://`` for TLS. The filter may have the wildcards
        ``+`` and ``#``.
    client : str
        The client's name, unique at the broker.

    Raises
    ------
    InvalidUsageError
        If the URL is wrong, or paho-mqtt is not installed.
    UnavailableError
        If no broker answers at the URL.
    """

    acknowledges = True

    def __init__(self, url: str, client: str, *, most_waiting: int = _MAX_UNACKNOWLEDGED) -> None:
        need_extra("mqtt", "reading from MQTT")
        from paho.mqtt.client import Client, MQTTv5
        from paho.mqtt.enums import CallbackAPIVersion
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        parts, port, self._filter = _parse(url)
        self.name = f"{parts.scheme}://{parts.hostname}:{port}/{self._filter}"
        self._queue: queue.Queue[tuple[int, Any]] = queue.Queue(most_waiting)
        self._received: list[tuple[int, Any]] = []
        self._connection = 0
        self._refusal: str | None = None
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=client, protocol=MQTTv5, manual_ack=True)
        if parts.username is not None:
            password = None if parts.password is None else unquote(parts.password)
            hide_value(password or "", "***")
            self._client.username_pw_set(unquote(parts.username), password)
        if parts.scheme == "mqtts":
            self._client.tls_set()
        self._client.on_connect = self._subscribe
        self._client.on_subscribe = self._check_subscription
        self._client.on_message = lambda client, data, message: self._queue.put((self._connection, message))
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = _SESSION_S
        session.ReceiveMaximum = most_waiting
        try:
            self._client.connect(parts.hostname or "", port, clean_start=False, properties=session)
        except OSError as error:
            raise UnavailableError(
                "nothing answers at the address", address=self.name, reason=error.strerror or error
            ) from None
        self._client.loop_start()

    def _subscribe(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._refusal = str(reason)
            return
        # Message ids are valid for one connection. An acknowledgement for an old connection could hit a new
        # message.
        self._connection += 1
        client.subscribe(self._filter, qos=1)

    def _check_subscription(self, client: Any, data: Any, mid: int, reasons: Any, properties: Any) -> None:
        self._refusal = next((str(reason) for reason in reasons if reason.is_failure), None)

    def receive(self, most_bytes: int) -> Sequence[Message]:
        """Return the messages that have arrived; see `Messages.receive`."""
        messages: list[Message] = []
        size_bytes = 0
        while size_bytes < most_bytes:
            try:
                received = self._queue.get(timeout=_GATHER_S if messages else _WAIT_S)
            except queue.Empty:
                break
            self._received.append(received)
            messages.append(Message(received[1].topic, received[1].payload))
            size_bytes += len(received[1].payload)
        if self._refusal is not None:
            raise InvalidUsageError("the broker refuses this client", address=self.name, reason=self._refusal)
        return messages

    def acknowledge(self) -> None:
        """Acknowledge all messages that were received on the present connection."""
        for connection, message in self._received:
            if connection == self._connection:
                self._client.ack(message.mid, message.qos)
        self._received.clear()

    def close(self) -> None:
        """Close the connection; the broker keeps the session."""
        self._client.disconnect()
        while not self._queue.empty():  # the connection's thread may wait for room
            self._queue.get_nowait()
        self._client.loop_stop()


def _parse(url: str) -> tuple[SplitResult, int, str]:
    try:
        parts = urlsplit(url, allow_fragments=False)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        parts, port = urlsplit(""), 0
    topics = unquote(parts.path.removeprefix("/"))
    if not port or not parts.hostname or not topics:
        raise InvalidUsageError(
            "the address of the broker is not valid",
            hint="write mqtt://HOST:PORT/TOPIC, with + and # as wildcards, or mqtts:// for TLS",
        )
    return parts, port, topics
