"""A server that offers an open database over Arrow Flight."""

from __future__ import annotations

import hmac
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyarrow import flight

from penstock.errors import FencedError, InvalidUsageError, PenstockError, UnavailableError
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.in_process.snapshot import Snapshot
from penstock.procedures.replicas.lag import Lag
from penstock.procedures.replicas.replica import Replica
from penstock.procedures.served.messages import (
    ANSWER,
    CALL,
    EXPLAIN,
    LAG,
    PROCEDURE,
    TAKE_OVER,
    from_stream,
    raise_as_flight,
    to_stream,
)
from penstock.units import parse_duration_us

__all__ = ["DatabaseServer", "check_address"]

_LOGGER = logging.getLogger(__name__)

_LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
_MAX_MESSAGE_BYTES = 64 << 20


class _TokenMiddleware(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # as below
    """Refuses calls without the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._header = f"Bearer {token}".encode()

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> None:
        given = headers.get("authorization", [""])[0].encode()
        if not hmac.compare_digest(given, self._header):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")


def check_address(host: str, port: int, token: str | None) -> None:
    """Check that a server can listen. A caller checks this before it opens the database, which fences others.

    Raises
    ------
    InvalidUsageError
        If the token is missing or unusable.
    UnavailableError
        If the server cannot listen at the address.
    """
    if token is None and host not in _LOCAL_HOSTS:
        raise InvalidUsageError(
            "other machines could call the database without a token",
            host=host,
            hint="set a token, or listen at 127.0.0.1",
        )
    if token is not None and (not token or not token.isascii() or not token.isprintable()):
        raise InvalidUsageError("a token has only printable ASCII characters, and at least one")
    try:
        _check_free(host, port)
    except (OSError, OverflowError) as error:
        raise UnavailableError(
            "cannot listen at this address", host=host, port=port, hint="choose another port"
        ) from error


def _check_free(host: str, port: int) -> None:
    """Raise OSError if the port is taken, before gRPC writes two lines about it to standard error."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as trial:
        # Connections of the previous server on this port may linger.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(address)


class DatabaseServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Offers an open database or a replica to other processes. A server listens as soon as it is created.

    The single calls of all clients run one after the other, in groups that become durable together. A call is
    answered only once it is durable.

    Parameters
    ----------
    database : OpenDatabase or Replica
        The database, or a replica, which answers only reads until a client lets it take over. The caller
        closes `database` after closing the server.
    host, port
        The address to listen at. With port 0 the server chooses a free port; the attribute `port` has it.
    token : str, optional
        The token that clients must send; required unless only this machine can connect.
    certificate : tuple of bytes, optional
        A certificate chain and its private key, in PEM, for TLS.
    most_waiting : int
        The number of calls that may run or wait; further calls are refused with `UnavailableError`.
    commit_interval : str or timedelta
        The commit interval of the database once a replica has taken over; see `Database.open`.

    Attributes
    ----------
    database : OpenDatabase or Replica
        The given database or replica; after a takeover, the database that the replica has become.

    Raises
    ------
    InvalidUsageError
        If other machines could connect without a token.
    UnavailableError
        If the server cannot listen at the address.
    """

    def __init__(
        self,
        database: OpenDatabase | Replica,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str | None = None,
        certificate: tuple[bytes, bytes] | None = None,
        most_waiting: int = 1 << 12,
        commit_interval: str | timedelta = "0ms",
    ) -> None:
        check_address(host, port, token)
        self.database = database
        self._commit_interval = commit_interval
        self._taking_over = threading.Lock()
        self._room = threading.BoundedSemaphore(most_waiting)
        self._most_waiting = most_waiting
        self._running = 0
        self._is_fenced = False
        self._changed = threading.Condition()
        scheme = "grpc" if certificate is None else "grpc+tls"
        authority = f"[{host}]" if ":" in host else host
        try:
            super().__init__(
                f"{scheme}://{authority}:{port}",
                middleware=None if token is None else {"token": _TokenMiddleware(token)},
                tls_certificates=None if certificate is None else [certificate],
            )
        except (pa.ArrowException, OSError, OverflowError) as error:
            hint = "choose another port"
            if certificate is not None:
                hint += ", or check that certificate and key are PEM and belong together"
            raise UnavailableError(
                "cannot listen at this address", host=host, port=port, hint=hint
            ) from error
        self.uri = f"{scheme}://{authority}:{self.port}"

    def stop(self, grace: str | timedelta = "5s") -> bool:
        """Stop listening, and wait until no call runs; return whether clients took their answers in time.

        Clients have the time `grace` to read their answers. There is a limit, because a client may neither
        read its answers nor close its connection.
        """
        ending = threading.Thread(target=self.shutdown, name="penstock-stop", daemon=True)
        ending.start()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._running)
            ending.join(parse_duration_us(grace) / 1e6)
            if not ending.is_alive() or not self._running:
                return not ending.is_alive()

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        """Admit a call if there is room, and raise errors as Flight errors."""
        try:
            if not self._room.acquire(blocking=False):
                raise UnavailableError(
                    "too many calls wait", waiting=self._most_waiting, hint="send it again, later"
                )
            self._count(1)
            try:
                yield
            finally:
                self._count(-1)
                self._room.release()
        except PenstockError as error:
            if isinstance(error, FencedError) and not self._is_fenced:
                self._is_fenced = True
                _LOGGER.warning("this server answers no more calls; end it: %s", error)
            raise_as_flight(error)

    def _count(self, more: int) -> None:
        with self._changed:
            self._running += more
            self._changed.notify_all()

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """Return the actions."""
        return [
            (CALL, "run a transaction for each row of events"),
            (ANSWER, "run requests, each id only once"),
            (TAKE_OVER, "let a replica take over"),
            (LAG, "tell how far a replica is behind"),
            (EXPLAIN, "describe where transactions run"),
        ]

    def do_action(self, context: Any, action: flight.Action) -> Iterator[pa.Buffer]:
        """Run transactions; see `penstock.procedures.served.messages`."""
        with self._admitted():
            if action.type == TAKE_OVER:
                self._take_over()
                return iter([to_stream(pa.table({}))])
            if action.type == LAG:
                lag = self.database.lag if isinstance(self.database, Replica) else Lag(0, 0.0)
                return iter([to_stream(pa.Table.from_pylist([asdict(lag)]))])
            if action.type == EXPLAIN:
                return iter([to_stream(pa.table({"text": [self._opened.explain()]}))])
            if action.type not in (CALL, ANSWER):
                raise InvalidUsageError("there is no such action", action=str(action.type)[:80])
            if action.body is not None and action.body.size > _MAX_MESSAGE_BYTES:
                raise InvalidUsageError(
                    "the message is too large",
                    size_bytes=action.body.size,
                    limit_bytes=_MAX_MESSAGE_BYTES,
                    hint="send fewer rows at a time",
                )
            rows = from_stream(action.body)
            results = self._call(rows) if action.type == CALL else self._opened.answer(rows)
        return iter([to_stream(results)])

    def _take_over(self) -> None:
        with self._taking_over:
            if isinstance(self.database, Replica):
                self.database = self.database.take_over(commit_interval=self._commit_interval)

    @property
    def _opened(self) -> OpenDatabase:
        if isinstance(self.database, Replica):
            raise UnavailableError(
                "this server is a replica", hint="call the server that it follows, or let this one take over"
            )
        return self.database

    def _snapshot(self, *tables: str) -> Snapshot:
        if self._taking_over.locked():
            raise UnavailableError("this server is taking over", hint="read again, later")
        if isinstance(self.database, OpenDatabase):
            self.database.check_open()  # after a failed call, the tables may be ahead of the log
        return self.database.snapshot(*tables)

    def _call(self, rows: pa.Table) -> pa.Table:
        procedure = (rows.schema.metadata or {}).get(PROCEDURE, b"").decode(errors="replace")
        rows = rows.replace_schema_metadata(None)
        if len(rows) != 1:
            return self._opened.run(procedure, rows)
        (attributes,) = rows.to_pylist()
        return pa.Table.from_pylist([self._opened.submit(procedure, **attributes).result()])

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        """Return rows of a snapshot."""
        with self._admitted():
            try:
                wanted = json.loads(ticket.ticket)
            except ValueError as error:
                raise InvalidUsageError("the ticket is not a JSON object") from error
            if not isinstance(wanted, dict) or not all(isinstance(value, str) for value in wanted.values()):
                raise InvalidUsageError("the ticket is not a JSON object of texts")
            if "table" in wanted:
                rows = self._snapshot(wanted["table"]).table(wanted["table"])
            elif "sql" in wanted:
                rows = self._snapshot().sql(wanted["sql"])
            else:
                raise InvalidUsageError("the ticket names no table and no query")
        return flight.RecordBatchStream(rows)
