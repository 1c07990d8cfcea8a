"""Messages of a WebSocket."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from penstock._clock import monotonic_s
from penstock._extras import need_extra
from penstock.errors import InvalidUsageError, UnavailableError
from penstock.jobs.ingest.messages import Message, Messages

__all__ = ["WebSocketMessages"]

_WAIT_S: Final = 0.1
_GATHER_S: Final = 0.02
_MAX_PAUSE_S: Final = 30.0
_CLOSE_S: Final = 1.0


class WebSocketMessages(Messages):
    """Messages of a server that sends each message once; messages sent without a connection are lost.

    Messages are read only as fast as they are written to the p-stream. If the server is faster, TCP slows it
    down.

    Parameters
    ----------
    url : str
        ``ws://HOST:PORT/PATH``, or ``wss://`` for TLS.
    greetings : sequence of str
        Messages to send after each connect, such as a subscription.
    reconnects : bool
        Whether to connect again when the connection ends.

    Raises
    ------
    InvalidUsageError
        If the URL is wrong, or websockets is not installed.
    UnavailableError
        If no server answers at the URL, or the server refuses the connection.
    """

    def __init__(self, url: str, greetings: Sequence[str] = (), *, reconnects: bool = False) -> None:
        need_extra("websocket", "reading from a WebSocket")
        from websockets.exceptions import InvalidURI
        from websockets.uri import parse_uri

        try:
            parts = parse_uri(url)
        except InvalidURI:
            raise InvalidUsageError(
                "the address of the WebSocket is not valid",
                hint="write ws://HOST:PORT/PATH, or wss:// for TLS",
            ) from None
        self.name = f"{'wss' if parts.secure else 'ws'}://{parts.host}:{parts.port}{parts.path}"
        self._url, self._greetings, self._reconnects = url, greetings, reconnects
        self._open = ExitStack()
        self._connection: Any = self._connect()
        self._pause_s, self._retry_s = _WAIT_S, 0.0

    def _connect(self) -> Any:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        try:
            connection = self._open.enter_context(connect(self._url, close_timeout=_CLOSE_S))
            for text in self._greetings:
                connection.send(text)
        except (OSError, WebSocketException) as error:
            raise UnavailableError(
                "nothing answers at the address", address=self.name, reason=error
            ) from None
        return connection

    def receive(self, most_bytes: int) -> Sequence[Message]:
        """Return the messages that have arrived; see `Messages.receive`."""
        from websockets.exceptions import ConnectionClosed

        messages: list[Message] = []
        size_bytes = 0
        if self._connection is None and not self._connect_again():
            return messages
        while size_bytes < most_bytes:
            try:
                content = self._connection.recv(timeout=_GATHER_S if messages else _WAIT_S)
            except TimeoutError:
                break
            except ConnectionClosed:
                self.ended = not self._reconnects
                self.close()
                break
            messages.append(Message("", content.encode() if isinstance(content, str) else content))
            size_bytes += len(messages[-1].content)
        return messages

    def _connect_again(self) -> bool:
        """Try to connect, with growing pauses; return whether it succeeded."""
        if monotonic_s() < self._retry_s:
            return False
        try:
            self._connection = self._connect()
        except UnavailableError:
            self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
            self._retry_s = monotonic_s() + self._pause_s
            return False
        self._pause_s = _WAIT_S
        return True

    def close(self) -> None:
        """Close the connection."""
        self._connection = None
        self._open.close()
