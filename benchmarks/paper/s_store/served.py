"""A database in a separate process, and its clients, which may or may not wait for answers.

Requests and answers are records of fixed size over a socket of this machine. The server takes all requests
that have arrived since its last look. Consecutive requests for one procedure are one `OpenDatabase.run`,
which is durable before the answers if the database is in a directory.
"""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.harness import scratch
from benchmarks.paper.s_store.texts import warm
from penstock.procedures.databases import Database
from penstock.procedures.engine import event_schema
from penstock.procedures.in_process.open_database import OpenDatabase

__all__ = ["Connection", "Served", "serving"]

Integers = npt.NDArray[np.int64]

_REQUEST = 3
"""Words of a request: the number of the procedure and two attributes."""
_ANSWER = 2
"""Words of an answer: the first result, -1 if it is null, and 1 if the transaction was rejected."""
_WORD = 8
_RECEIVED_BYTES = 1 << 20
_DIGEST = -1
"""The number in a request for the digest of the tables."""
_NONE = -2
"""The number of no request."""
_AT_ONCE = 4096
"""The number of requests that a client that does not wait sends with one call."""


@dataclass(frozen=True)
class Served:
    """The database that a server serves.

    Attributes
    ----------
    make : callable
        Makes the database.
    procedures : sequence of str
        Its procedures and workflows, by their numbers.
    loads : mapping
        The first rows of its tables.
    tables : sequence of str
        The tables whose digest is asked for.
    durable : bool
        Whether a directory keeps the database.
    """

    make: Callable[[], Database]
    procedures: Sequence[str]
    loads: Mapping[str, Mapping[str, Any]]
    tables: Sequence[str] = ()
    durable: bool = False


class Connection:
    """A client's connection."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def call(self, procedure: int, first: int = 0, second: int = 0) -> tuple[int, int]:
        """Call a procedure; wait for its answer."""
        self._end.sendall(np.array([procedure, first, second], np.int64).tobytes())
        result, rejected = np.frombuffer(self._received(_ANSWER * _WORD), np.int64)
        return int(result), int(rejected)

    def _received(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._end.recv(size - len(data))
            if not part:
                raise ConnectionError("the server has ended")
            data += part
        return bytes(data)

    def digest(self) -> str:
        """Return the digest of the server's tables."""
        return f"{self.call(_DIGEST)[0] & (1 << 64) - 1:016x}"

    def stream(self, requests: Integers, rate: float = float("inf")) -> float:
        """Send requests without waiting for answers, at most `rate` a second; return how long all took."""
        answers = threading.Thread(target=self._received, args=(len(requests) * _ANSWER * _WORD,))
        begin = time.monotonic()
        answers.start()
        sent = 0
        while sent < len(requests):
            due = min((time.monotonic() - begin) * rate, len(requests), sent + _AT_ONCE)
            if due - sent < 1:
                pause_s = min((sent + 1 - due) / rate, 0.001)
                time.sleep(pause_s)  # the pace of a client; nothing is waited for
                continue
            self._end.sendall(requests[sent : int(due)].tobytes())
            sent = int(due)
        answers.join()
        return time.monotonic() - begin


@contextmanager
def serving(served: Served) -> Iterator[Connection]:
    """Yield a connection to a server that runs meanwhile, in a process of its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = socket.socketpair()
    with scratch("s-store") as place:
        process = context.Process(target=_serve, args=(served, ours, theirs, Path(place) / "database"))
        process.start()
        theirs.close()
        try:
            connection = Connection(ours)
            connection.digest()  # Answered once it is open and compiled.
            yield connection
        finally:
            ours.close()
            process.join()


def _serve(served: Served, ours: socket.socket, end: socket.socket, place: Path) -> None:
    """Answer requests until the client is gone."""
    ours.close()
    database = warm(served.make(), served.procedures)
    with database.open(place if served.durable else None) as opened:
        for table, rows in served.loads.items():
            opened.load(table, rows)
        schemas = []
        for name in served.procedures:
            found = database.procedures.get(name) or database.workflows[name]
            schemas.append(event_schema(found.program().event))
        rest = b""
        while data := end.recv(_RECEIVED_BYTES):
            data = rest + data
            whole = len(data) // (_REQUEST * _WORD)
            rest = data[whole * _REQUEST * _WORD :]
            requests = np.frombuffer(data, np.int64, whole * _REQUEST).reshape(-1, _REQUEST)
            answers = np.zeros((whole, _ANSWER), np.int64)
            changes = np.flatnonzero(np.diff(requests[:, 0], prepend=_NONE, append=_NONE)).tolist()
            for begin, until in itertools.pairwise(changes):
                number = int(requests[begin, 0])
                if number == _DIGEST:
                    answers[begin:until, 0] = _digest(opened, served.tables)
                    continue
                schema = schemas[number]
                columns = [pa.array(requests[begin:until, 1 + at]) for at in range(len(schema))]
                events = pa.RecordBatch.from_arrays(columns, schema=schema)
                answers[begin:until] = _answers(opened.run(served.procedures[number], events))
            end.sendall(answers.tobytes())
    os._exit(0)


def _digest(opened: OpenDatabase, tables: Sequence[str]) -> int:
    rows = {name: sorted(map(repr, opened.table(name).to_pylist())) for name in tables}
    return int.from_bytes(hashlib.sha256(repr(rows).encode()).digest()[:_WORD], signed=True)


def _answers(made: pa.Table) -> Integers:
    answers = np.full((made.num_rows, _ANSWER), -1, np.int64)
    if made.num_columns > 1:
        answers[:, 0] = made.column(0).fill_null(-1).to_numpy()
    answers[:, 1] = made.column(made.num_columns - 1).is_valid().to_numpy()
    return answers
