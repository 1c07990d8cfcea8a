"""A client of a database that `penstock serve` offers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Never

import pyarrow as pa
from pyarrow import flight

from penstock._clock import monotonic_s, pause
from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError, UnavailableError
from penstock.procedures.in_process.arrow_rows import as_arrow, check_named, find_unheld
from penstock.procedures.replicas.lag import Lag
from penstock.procedures.requests.messages import REQUESTS, decode_values, encode_event
from penstock.procedures.served.messages import (
    ANSWER,
    CALL,
    EXPLAIN,
    LAG,
    PROCEDURE,
    TAKE_OVER,
    from_stream,
    raise_from_flight,
    to_stream,
)
from penstock.units import parse_duration_us

__all__ = ["DatabaseClient"]

_RUN_BYTES = 4 << 20
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


@check_keywords
class DatabaseClient:
    """Calls procedures of a database in another process. Threads may share it.

    Parameters
    ----------
    uri : str
        The server's address, such as ``grpc://localhost:8815``, or ``grpc+tls://...``.
    token : str, optional
        The token that the server expects.
    certificates : bytes, optional
        The root certificates, in PEM, that verify the server; by default the system's root certificates.
    timeout : str or timedelta
        The maximum time to wait for an answer.

    Attributes
    ----------
    part_bytes : int
        The approximate size of the parts in which `run` sends a large table.

    Raises
    ------
    InvalidUsageError
        If `uri` is not an address.
    """

    def __init__(
        self,
        uri: str,
        *,
        token: str | None = None,
        certificates: bytes | None = None,
        timeout: str | timedelta = "30s",
    ) -> None:
        self.part_bytes = _RUN_BYTES
        self._is_closed = False
        self.uri = uri
        self._timeout_s = parse_duration_us(timeout) / 1e6
        self._headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        options = {} if certificates is None else {"tls_root_certs": certificates}
        try:
            self._client = flight.connect(uri, **options)
        except (pa.ArrowException, ValueError, TypeError):
            raise InvalidUsageError(
                "this is not the address of a server",
                uri=uri,
                hint="write grpc://host:port or grpc+tls://host:port",
            ) from None  # Arrow's message says nothing more

    def __enter__(self) -> DatabaseClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._is_closed = True
        self._client.close()

    def call(self, procedure: str, /, *positional: Never, **attributes: Any) -> dict[str, Any]:
        """Run one transaction; return its results and ``rejected``, once it is durable.

        Raises
        ------
        InvalidUsageError
            If there is no such procedure, or an attribute does not fit.
        UnavailableError
            If the server refuses because too many calls wait, or does not answer. If the server does not
            answer, the transaction may have run. Unlike `call`, `call_once` can be repeated safely.
        """
        check_named(procedure, positional)
        try:
            rows = pa.Table.from_pylist([attributes]) if attributes else pa.table({"": [0]}).select([])
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise InvalidUsageError(
                "an attribute does not fit", procedure=procedure, **find_unheld([attributes])
            ) from error
        return self._act(CALL, _named(rows, procedure)).to_pylist()[0]

    def call_once(
        self, request_id: str, procedure: str, /, *positional: Never, **attributes: Any
    ) -> dict[str, Any]:
        """Run a transaction once, even if the call is repeated with the same id; return what `call` returns.

        The client tries again while the server does not answer, even across a restart of the server. The
        database remembers its last 131,072 such requests.

        Parameters
        ----------
        request_id : str
            The id, unique among all clients, as in `RequestClient`.
        procedure : str
            The name of a procedure whose event is declared.
        **attributes
            The attributes of the procedure's event.

        Raises
        ------
        InvalidUsageError
            If the attributes cannot be sent, or the server has a different request with this id.
        UnavailableError
            If there is no answer in time.
        """
        check_named(procedure, positional)
        arguments = encode_event(procedure, attributes)
        rows = pa.table({"id": [request_id], "procedure": [procedure], "arguments": [arguments]}, REQUESTS)
        end, pause_s = monotonic_s() + self._timeout_s, _SHORTEST_PAUSE_S
        while True:
            try:
                answers = self._act(ANSWER, rows)
            except UnavailableError:
                if monotonic_s() + pause_s >= end:
                    raise
                pause(pause_s)  # a server does not announce that it has started
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                return _decode_answer(answers, procedure)

    def run(self, procedure: str, events: pa.Table | pa.RecordBatch | Mapping[str, Any]) -> pa.Table:
        """Run a transaction for each event, in order; return a row of results for each event.

        Large tables are sent in parts; each part is durable before the next part is sent.

        Raises
        ------
        InvalidUsageError, UnavailableError
            See `call`.
        """
        rows = as_arrow(events, owner=procedure)
        rows = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        count = max(int(len(rows) * self.part_bytes / max(rows.nbytes, 1)), 2)
        parts = [rows.slice(begin, count) for begin in range(0, max(len(rows), 1), count)]
        return pa.concat_tables(
            [self._act(CALL, _named(part, procedure)) for part in parts], promote_options="default"
        )

    def table(self, name: str) -> pa.Table:
        """Return all rows of a table.

        Raises
        ------
        InvalidUsageError
            If there is no such table.
        UnavailableError
            If the server does not answer.
        """
        return self._get({"table": name})

    def sql(self, query: str) -> pa.Table:
        """Return the result of a query over a snapshot, in DuckDB's SQL.

        Raises
        ------
        InvalidUsageError
            If the query is refused, or the server lacks DuckDB.
        UnavailableError
            If the server does not answer.
        """
        return self._get({"sql": query})

    def explain(self) -> str:
        """Describe where the server's transactions run; see `OpenDatabase.explain`.

        Raises
        ------
        UnavailableError
            If the server is a replica, or does not answer.
        """
        return str(self._act(EXPLAIN, pa.table({})).column("text")[0])

    def take_over(self) -> None:
        """Let the server's replica take over, and fence the process that the replica follows; see `Replica`.

        Do nothing if the replica has already taken over.

        Raises
        ------
        UnavailableError
            If the server does not answer. Then call `take_over` again.
        """
        self._act(TAKE_OVER, pa.table({}))

    def lag(self) -> Lag:
        """Return the lag of the server's replica behind the log; see `Replica.lag`.

        Raises
        ------
        UnavailableError
            If the server does not answer.
        """
        return Lag(**self._act(LAG, pa.table({})).to_pylist()[0])

    def _options(self) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=self._timeout_s, headers=self._headers)

    def _act(self, action: str, rows: pa.Table) -> pa.Table:
        with self._errors():
            (result,) = self._client.do_action(flight.Action(action, to_stream(rows)), self._options())
            return from_stream(result.body)

    def _get(self, ticket: dict[str, str]) -> pa.Table:
        with self._errors():
            return self._client.do_get(flight.Ticket(json.dumps(ticket).encode()), self._options()).read_all()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except flight.FlightError as error:
            raise_from_flight(error, uri=self.uri)
        except pa.ArrowInvalid:
            if self._is_closed:
                raise InvalidUsageError("the client is closed", uri=self.uri) from None
            raise


def _decode_answer(answers: pa.Table, procedure: str) -> dict[str, Any]:
    """Return the results of one request, as JSON values if the procedure has other results by now."""
    (answer,) = answers.to_pylist()
    text = answer["results"] or "{}"
    results: dict[str, Any] = json.loads(text)
    if (columns := (answers.schema.metadata or {}).get(procedure.encode())) is not None:
        schema = pa.ipc.read_schema(pa.py_buffer(columns))
        rows, misfits = decode_values([text], schema)
        if not misfits and results.keys() <= {*schema.names}:
            (results,) = rows.to_pylist()
    return {**results, "rejected": answer["rejected"]}


def _named(rows: pa.Table, procedure: str) -> pa.Table:
    return rows.replace_schema_metadata({PROCEDURE: procedure.encode()})
