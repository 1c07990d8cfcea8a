"""Run requests over the tables of a bucket; a request that is sent again does not run again.

A client that does not know whether its request arrived sends it again with the same id. So a bucket remembers
its last `REMEMBERED` requests with their answers, in a table that is stored and recovered like all tables. If
a request is repeated, the bucket returns the first answer.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.procedures.engine import REJECTED, event_schema
from penstock.procedures.partitions.partitioned_tables import State
from penstock.procedures.requests.messages import ANSWERS, decode_values, encode_values
from penstock.procedures.requests.programs import RequestPrograms
from penstock.procedures.schema import Column, Kind, TableSpec

__all__ = ["REMEMBERED", "REMEMBERED_REQUESTS", "answer_requests"]

REMEMBERED = 1 << 17
"""The number of requests that a bucket remembers."""
OTHER_REQUEST = "the id of another request"
MISFIT = "arguments do not fit"

REMEMBERED_REQUESTS = TableSpec(
    "remembered requests",  # the space keeps users' tables from having this name
    (
        Column("place", pa.int64(), Kind.INTEGER, nullable=False),
        Column("number", pa.int64(), Kind.INTEGER, nullable=False),
        Column("id", pa.string(), Kind.TEXT, nullable=False),
        Column("asked", pa.int64(), Kind.INTEGER, nullable=False),
        Column("results", pa.string(), Kind.TEXT, nullable=True),
        Column("rejected", pa.string(), Kind.TEXT, nullable=True),
        Column("transaction", pa.int64(), Kind.INTEGER, nullable=True),
    ),
    ("place",),
    None,
)
"""The requests that a bucket remembers: request number n is at place n % `REMEMBERED`."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer to a request. `asked` is a hash of the procedure and its arguments."""

    asked: int
    results: str | None
    rejected: str | None
    transaction: int | None


def answer_requests(
    state: State,
    requests: pa.RecordBatch,
    programs: RequestPrograms,
    bucket: int,
    capacity: int = REMEMBERED,
) -> pa.RecordBatch:
    """Run requests one after the other; return an answer to each request.

    Parameters
    ----------
    state : TableSet
        The tables, including `REMEMBERED_REQUESTS`.
    requests : pyarrow.RecordBatch
        The requests, in their order.
    programs : RequestPrograms
        The procedures that requests may call.
    bucket : int
        The number of the bucket, for the answers.
    capacity : int
        The number of requests to remember.
    """
    rows = [
        (id_, procedure, arguments, _hash(procedure, arguments))
        for id_, procedure, arguments in zip(*(one.to_pylist() for one in requests.columns[:3]), strict=True)
    ]
    memory = _Memory(state, capacity)
    answers: list[_Answer] = []
    for procedure, group in _groups(rows):
        answers_of_new = iter(_run(state, programs, procedure, [
            arguments for id_, _, arguments, _ in group if id_ not in memory
        ]))  # fmt: skip
        for id_, _, _, request_hash in group:
            answer = memory.get(id_)
            if answer is None:
                results, rejected, transaction = next(answers_of_new)
                answer = _Answer(request_hash, results, rejected, transaction)
                memory.add(id_, answer)
            elif answer.asked != request_hash:
                answer = _Answer(request_hash, None, OTHER_REQUEST, None)
            answers.append(answer)
    memory.store()
    columns: list[list[Any]] = [
        [row[0] for row in rows],
        [row[1] for row in rows],
        [one.results for one in answers],
        [one.rejected for one in answers],
        [bucket] * len(rows),
        [one.transaction for one in answers],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, ANSWERS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ANSWERS)


def _hash(*texts: str) -> int:
    digest = hashlib.sha256("\0".join(texts).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _groups(rows: list[tuple[str, str, str, int]]) -> Iterator[tuple[str, list[tuple[str, str, str, int]]]]:
    """Yield groups of consecutive requests that one call of a kernel may run: one procedure, distinct ids."""
    group: list[tuple[str, str, str, int]] = []
    ids: set[str] = set()
    for row in rows:
        if group and (row[1] != group[0][1] or row[0] in ids):
            yield group[0][1], group
            group, ids = [], set()
        group.append(row)
        ids.add(row[0])
    if group:
        yield group[0][1], group


def _run(
    state: State, programs: RequestPrograms, procedure: str, arguments: list[str]
) -> list[tuple[str | None, str | None, int | None]]:
    """Run a transaction for each element of `arguments`; return its results, rejection and number."""
    program = programs.programs.get(procedure)
    if program is None:
        return [(None, programs.why_not(procedure), None)] * len(arguments)
    events, misfits = decode_values(arguments, event_schema(program.event))
    first = state.transactions
    results = state.run(program, events).to_pylist() if events.num_rows else []
    answers: list[tuple[str | None, str | None, int | None]] = []
    for number, row in enumerate(results, first):
        rejection = row.pop(REJECTED)
        answers.append((None if rejection is not None else encode_values(row), rejection, number))
    for place in misfits:
        answers.insert(place, (None, MISFIT, None))
    return answers


class _Memory:
    """The requests that a bucket remembers, by their ids."""

    def __init__(self, state: State, capacity: int) -> None:
        self._table = state[REMEMBERED_REQUESTS.name]
        self._most = capacity
        if state.request_memory is None:
            rows = sorted(self._table.table().to_pylist(), key=lambda row: row["number"])
            next_number = rows[-1]["number"] + 1 if rows else 0
            state.request_memory = (
                next_number,
                {
                    row["id"]: _Answer(row["asked"], row["results"], row["rejected"], row["transaction"])
                    for row in rows
                },
            )
        self._state = state
        self._next, self._known = state.request_memory
        self._new: list[tuple[int, str, _Answer]] = []

    def __contains__(self, id_: str) -> bool:
        return id_ in self._known

    def get(self, id_: str) -> _Answer | None:
        return self._known.get(id_)

    def add(self, id_: str, answer: _Answer) -> None:
        self._known[id_] = answer
        self._new.append((self._next, id_, answer))
        self._next += 1

    def store(self) -> None:
        """Record the new answers for the next version, and forget the oldest answers."""
        if not self._new:
            return
        for id_ in list(itertools.islice(self._known, max(len(self._known) - self._most, 0))):
            del self._known[id_]
        rows = [
            {"place": number % self._most, "number": number, "id": id_, "asked": answer.asked,
             "results": answer.results, "rejected": answer.rejected, "transaction": answer.transaction}
            for number, id_, answer in self._new[-self._most :]
        ]  # fmt: skip
        self._table.upsert(pa.RecordBatch.from_pylist(rows, REMEMBERED_REQUESTS.schema), dirty=True)
        self._state.request_memory = self._next, self._known
