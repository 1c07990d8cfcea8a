"""A client that appends requests to a stream of transactions, and waits for their answers."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never

import pyarrow as pa

from penstock._clock import monotonic_s, new_id, pause
from penstock.checkpointing.p_stream import PStream, PStreamWriter
from penstock.ddl import schema_text
from penstock.errors import InvalidUsageError, UnavailableError
from penstock.procedures.compiler.program import REJECTED, event_schema
from penstock.procedures.in_process.arrow_rows import check_named
from penstock.procedures.requests.messages import ANSWERS, REQUESTS, decode_values, encode_event
from penstock.procedures.requests.programs import request_program, result_columns
from penstock.procedures.schema import lacks_attribute
from penstock.units import parse_duration_us

if TYPE_CHECKING:
    from penstock.procedures.workflows.catalog import Catalog

__all__ = ["ANSWERS_PLACE", "REQUESTS_PLACE", "RequestClient", "request_streams"]

REQUESTS_PLACE, ANSWERS_PLACE = "requests", "answers"

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05


def request_streams(location: str | os.PathLike[str]) -> tuple[PStream, PStream]:
    """Return the p-streams of requests and of answers, which are created if they do not exist.

    Raises
    ------
    InvalidUsageError
        If the location holds p-streams with different columns.
    CorruptDataError, UnavailableError
        If the p-streams' files are damaged, or the file system refuses.
    """
    place = os.fspath(location).rstrip("/")
    return PStream(f"{place}/{REQUESTS_PLACE}", REQUESTS), PStream(f"{place}/{ANSWERS_PLACE}", ANSWERS)


class RequestClient:
    """Calls procedures of a database that a stream of transactions runs. Threads may share it.

    Each request runs once and gets one answer, even if processes of the query are killed meanwhile. A client
    that was killed may not know whether its request was sent. It sends the request again with the same id,
    and gets the answer to the first request.

    Parameters
    ----------
    catalog : Catalog
        The declarations of the database.
    location : str or path
        The location of requests and answers.
    timeout : str or timedelta
        The maximum time that a call waits for its answer.

    Raises
    ------
    InvalidUsageError, CorruptDataError, UnavailableError
        See `penstock.procedures.databases.Database.connect`.
    """

    def __init__(
        self, catalog: Catalog, location: str | os.PathLike[str], timeout: str | timedelta = "30s"
    ) -> None:
        self._catalog = catalog
        self.location = location
        self._timeout_s = parse_duration_us(timeout) / 1e6
        requests, self._answers = request_streams(location)
        self._lock = threading.Lock()
        self._read = self._answers.end
        self._sent: dict[str, str] = {}
        self._found: dict[str, dict[str, Any]] = {}
        # The writer commits only when a flush waits for its rows.
        self._writer = PStreamWriter(
            requests.files.location, REQUESTS, writer=f"client-{new_id()}", threads=1
        )  # fmt: skip

    def __enter__(self) -> RequestClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client. Requests that were sent still run."""
        self._writer.close()

    def call(self, procedure: str, /, *positional: Never, **attributes: Any) -> dict[str, Any]:
        """Run one transaction; return its results and ``rejected``, the reason of a rejection or None.

        Raises
        ------
        InvalidUsageError
            If there is no such procedure, or an attribute does not fit.
        UnavailableError
            If there is no answer in time. The request may still run; its id is in the error's context, for
            `wait`.
        """
        check_named(procedure, positional)
        return self.wait(self.send(new_id(), procedure, **attributes))

    def send(self, request_id: str, procedure: str, /, *positional: Never, **attributes: Any) -> str:
        """Append a request; return its id once the request is durable.

        Parameters
        ----------
        request_id : str
            An id that the caller chooses. Requests with the same id run only once.
        procedure : str
            The name of a procedure that accesses tables only.
        **attributes
            The attributes of the procedure's event.

        Raises
        ------
        InvalidUsageError
            If there is no such procedure, or an attribute does not fit.
        UnavailableError
            If the file system refuses.
        """
        check_named(procedure, positional)
        if not request_id:
            raise InvalidUsageError("the id of a request is empty", procedure=procedure)
        schema = event_schema(request_program(self._catalog, procedure).event)
        if missing := [name for name in schema.names if name not in attributes]:
            raise lacks_attribute(procedure, missing[0], schema)
        arguments = encode_event(procedure, {name: attributes[name] for name in schema.names})
        if decode_values([arguments], schema)[1]:
            misfit = next(field.name for field in schema if decode_values([arguments], pa.schema([field]))[1])
            raise InvalidUsageError(
                "an attribute does not fit",
                procedure=procedure,
                attribute=misfit,
                type=type(attributes[misfit]).__name__,
                hint=f"the procedure's event is {schema_text(schema)}",
            )
        rows = {"id": [request_id], "procedure": [procedure], "arguments": [arguments]}
        with self._lock:
            self._sent[request_id] = procedure
        self._writer.append(pa.table(rows, REQUESTS))
        self._writer.flush()
        return request_id

    def wait(self, request_id: str, timeout: str | timedelta | None = None) -> dict[str, Any]:
        """Return the answer to a request that this client has sent; see `call`.

        Parameters
        ----------
        request_id : str
            The id of the request.
        timeout : str or timedelta, optional
            The maximum time to wait; by default the client's timeout.

        Raises
        ------
        InvalidUsageError
            If this client has not sent the request, or has already returned its answer.
        UnavailableError
            If there is no answer in time. The request may still run; call `wait` again.
        """
        timeout_s = self._timeout_s if timeout is None else parse_duration_us(timeout) / 1e6
        end, pause_s = monotonic_s() + timeout_s, _SHORTEST_PAUSE_S
        while True:
            with self._lock:
                if request_id not in self._sent:
                    raise InvalidUsageError(
                        "this client waits for no such request", id=request_id, hint="send it first, or again"
                    )
                self._look()
                answer = self._found.pop(request_id, None)
                if answer is not None:
                    return self._decode(self._sent.pop(request_id), answer)
            if monotonic_s() >= end:
                raise UnavailableError(
                    "there is no answer in time",
                    id=request_id,
                    waited_s=timeout_s,
                    hint="check that the query runs; the request may still run, and wait(id) waits again",
                )
            pause(min(pause_s, max(end - monotonic_s(), 0)))  # other processes do not announce their commits
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _look(self) -> None:
        """Read the answers since the last call; keep the answers to this client's requests."""
        stream = self._answers
        stream.refresh()
        begin, stop = max(self._read, stream.start), stream.end
        if begin < stop:
            for batch in stream.read(begin, stop):
                for row in batch.to_pylist():
                    if row["id"] in self._sent:
                        self._found.setdefault(row["id"], row)
        self._read = stop

    def _decode(self, procedure: str, answer: dict[str, Any]) -> dict[str, Any]:
        program = request_program(self._catalog, procedure)
        rows, _ = decode_values([answer["results"] or "{}"], result_columns(program))
        return {**rows.to_pylist()[0], REJECTED: answer[REJECTED]}
