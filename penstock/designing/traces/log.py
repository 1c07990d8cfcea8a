"""Read the calls in a database's log. Nothing is written, so another process may have the database open."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa

from penstock.checkpointing.files import open_files
from penstock.checkpointing.p_stream import PStream
from penstock.designing.traces.trace import Request
from penstock.procedures.compiler.program import event_schema
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.command_log import Call, check_tables, newest_version, read_calls
from penstock.procedures.in_process.replay import ANSWER, LOAD
from penstock.procedures.requests.messages import decode_values
from penstock.procedures.requests.programs import RequestPrograms
from penstock.procedures.requests.run import REMEMBERED_REQUESTS
from penstock.state_store.bucket_store import BucketStore

__all__ = ["read_log_and_tables"]


def read_log_and_tables(
    database: Database, location: str | os.PathLike[str]
) -> tuple[list[Request], TableSet]:
    """Return the requests in a log since the database's newest version, and the tables in that version.

    The tables include the rows that later calls of `OpenDatabase.load` insert.

    Raises
    ------
    InvalidUsageError
        If the location holds no database, or a database with other tables.
    CorruptDataError, UnavailableError
        If the database's files are damaged, or the file system refuses.
    """
    tables = (*database.catalog.all_tables.values(), REMEMBERED_REQUESTS)
    files = open_files(location)
    check_tables(files.child("tables"), database.name, tables, create=False)
    stream = PStream(f"{os.fspath(location).rstrip('/')}/log")
    store = BucketStore(files.child("tables").child("00000"))
    state, begin = TableSet(tables), 0
    if (found := newest_version(store)) is not None:
        pointer, begin = found
        store.load(pointer, state)
    requests: list[Request] = []
    for call in read_calls(stream, max(begin, stream.start), stream.end):
        table = call.called.removeprefix(LOAD)
        if table != call.called and call.events is not None:
            state.load(table, call.events)
        else:
            requests += _requests_of(database, call)
    return requests, state


def _requests_of(database: Database, call: Call) -> Iterator[Request]:
    if call.called != ANSWER:
        # With strong recovery, the later transactions of a round have no events.
        if call.events is not None and not call.transaction:
            yield call.called, call.events
        return
    if call.events is None:
        return
    programs = RequestPrograms.collect(database.catalog, 1).programs
    arguments: dict[str, list[str]] = {}
    for name, text in zip(*(call.events.column(at).to_pylist() for at in (1, 2)), strict=True):
        arguments.setdefault(name, []).append(text)
    for name, texts in arguments.items():
        if name in programs:
            events, _ = decode_values(texts, event_schema(programs[name].event))
            yield name, pa.Table.from_batches([events])
