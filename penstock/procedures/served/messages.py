"""The messages between client and server of a database over Arrow Flight.

    action "call"       rows of events, the procedure in the schema's metadata; answered by rows of results
    action "answer"     rows of `REQUESTS`; answered by rows of `ANSWERS`
    action "take_over"  nothing; answered by nothing once the server's replica has taken over
    action "lag"        nothing; answered by a row of calls and seconds
    action "explain"    nothing; answered by a row with a text
    ticket              {"table": name} or {"sql": query}, of a snapshot
    header              authorization: Bearer TOKEN

Rows of actions are Arrow streams. An error of Penstock travels as JSON in the error's ``extra_info``.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyarrow import flight

from penstock import errors
from penstock.errors import InvalidUsageError, PenstockError, UnavailableError

__all__ = [
    "ANSWER",
    "CALL",
    "EXPLAIN",
    "LAG",
    "PROCEDURE",
    "TAKE_OVER",
    "from_stream",
    "raise_as_flight",
    "raise_from_flight",
    "to_stream",
]

CALL, ANSWER, TAKE_OVER, LAG, EXPLAIN = "call", "answer", "take_over", "lag", "explain"
PROCEDURE = b"procedure"


def to_stream(rows: pa.Table | pa.RecordBatch) -> pa.Buffer:
    """Return rows as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return sink.getvalue()


def from_stream(content: pa.Buffer | None) -> pa.Table:
    """Return the rows of an Arrow stream.

    Raises
    ------
    InvalidUsageError
        If the bytes are not an Arrow stream.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(b"") if content is None else content) as reader:
            rows = reader.read_all()
        rows.validate(full=True)  # a client may send anything
        return rows
    except (pa.ArrowException, OSError, ValueError, NotImplementedError) as error:  # Arrow lacks a type
        raise InvalidUsageError(
            "the message is not an Arrow stream of rows", reason=type(error).__name__
        ) from error


def raise_as_flight(error: PenstockError) -> None:
    """Raise an error of the server as a Flight error."""
    context = {name: str(value) for name, value in error.context.items()}
    known = {"error": type(error).__name__, "fact": error.fact, "hint": error.hint, "context": context}
    # pyarrow does not transmit the extra_info of a FlightServerError.
    kind = (
        flight.FlightUnavailableError if isinstance(error, UnavailableError) else flight.FlightInternalError
    )
    raise kind(str(error), extra_info=json.dumps(known).encode()) from error


def raise_from_flight(error: flight.FlightError, **context: Any) -> None:
    """Raise the server's error in the client."""
    if (known := _error_of(error.extra_info)) is not None:
        raise known from None  # gRPC's text says nothing more
    if isinstance(error, flight.FlightUnauthenticatedError):
        raise InvalidUsageError("the server refuses the token", hint="pass its token=", **context) from None
    raise UnavailableError(
        "the server does not answer", reason=type(error).__name__, hint="check that it runs", **context
    ) from None  # gRPC's text is about its channels


def _error_of(extra_info: bytes) -> PenstockError | None:
    """Return the Penstock error that a server sent; None if the bytes are not an error of Penstock."""
    try:
        known = json.loads(extra_info)
        kind = getattr(errors, known["error"])
        error = kind(known["fact"], hint=known["hint"], **known["context"])
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    return error if isinstance(error, PenstockError) else None
