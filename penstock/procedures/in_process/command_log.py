"""The command log of a database in one process, and checkpoints of its tables.

The content of a database depends only on its calls and their order (S-Store §2). So the log holds calls, not
changes. A call runs, its record is appended to the log and synced, and only then does the call return.
`<location>/log` is a p-stream with a row for each call, or, with strong recovery, for each transaction of a
workflow. On a local disk, `<location>/wal` has the calls of the last second, so that they are durable before
they reach the p-stream.
`<location>/tables` holds versions of the tables; each version records how many calls of the log it includes.
Invariants:

1. A version is committed between rounds, after the calls whose effects it holds. So every readable version is
   the state after some prefix of the log, whichever process wrote the version. The version with the greatest
   offset is the newest.
2. Calls are released only once a version holds them.
3. A process that opens the log fences the previous process, which can then append no call.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import PUnit, decode, encode
from penstock.checkpointing.files import Files, LocalFiles, open_files
from penstock.checkpointing.p_stream import PStream, PStreamWriter
from penstock.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    InvalidUsageError,
    PenstockError,
)
from penstock.procedures.in_process.write_ahead_log import WriteAheadLog
from penstock.procedures.partitions.partitioned_tables import State
from penstock.procedures.requests.run import REMEMBERED_REQUESTS
from penstock.procedures.schema import TableSpec
from penstock.state_store.bucket_store import BucketStore, Handle, Pointer
from penstock.state_store.location import SPECIFICATION_FILE
from penstock.state_store.survey import survey_bucket

__all__ = ["ANY_PROGRAM", "Call", "CommandLog", "check_tables", "look_at", "newest_version", "read_calls"]

ANY_PROGRAM = "any"
"""Versions of the tables record this in place of a program's digest, because each call names its program."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a database, or one transaction of a workflow.

    Attributes
    ----------
    called : str
        The name of the procedure or workflow, or ``load`` and the name of a table.
    program : str
        The digest of the program.
    events : pyarrow.RecordBatch, optional
        The events. The events of a transaction are one atomic batch; a transaction of interior procedures has
        no events.
    bounds : ndarray, optional
        The bounds of the atomic batches; see `TableSet.run`.
    transaction : int, optional
        The number of the transaction; None if this is a whole call.
    streams : mapping
        The rows that the transaction takes from streams, by name.
    """

    called: str
    program: str
    events: pa.RecordBatch | None
    bounds: npt.NDArray[np.int64] | None = None
    transaction: int | None = None
    streams: Mapping[str, pa.RecordBatch] = field(default_factory=dict)


_SCHEMA = pa.schema([
    pa.field("called", pa.string(), nullable=False),
    pa.field("program", pa.string(), nullable=False),
    pa.field("events", pa.binary()),
    pa.field("bounds", pa.list_(pa.int64())),
    pa.field("transaction", pa.int32()),
    pa.field("streams", pa.list_(pa.string())),
    pa.field("rows", pa.list_(pa.binary())),
])  # fmt: skip
_READER = "tables"


class CommandLog:
    """The log of an open database.

    Any thread may append and wait; one thread at a time restores or checkpoints. A thread of the log makes
    calls durable. One sync serves all calls that were appended since the last sync began (group commit).

    Parameters
    ----------
    location : str or path
        The directory of the database.
    name : str
        The database's name.
    tables : iterable of TableSpec
        The tables of the database.
    interval_s : float
        The seconds that calls wait, so that other calls become durable in the same sync.

    Attributes
    ----------
    calls_for_checkpoint, bytes_for_checkpoint : int
        The next checkpoint is due after this many calls, or bytes of calls, since the last checkpoint.

    Raises
    ------
    InvalidUsageError
        If the location holds a database with different tables.
    CorruptDataError
        If the database's files are damaged.
    UnavailableError
        If the file system refuses.
    """

    calls_for_checkpoint = 1 << 14
    bytes_for_checkpoint = 64 << 20

    def __init__(
        self,
        location: str | os.PathLike[str],
        name: str,
        tables: Iterable[TableSpec],
        interval_s: float = 0.0,
    ) -> None:
        self._files = open_files(location)
        self._tables = tuple(tables)
        check_tables(self._files.child("tables"), name, self._tables, create=True)
        place = os.fspath(location).rstrip("/")
        # Fence other processes first: they must acknowledge no call after this process has read the log.
        self._ahead = None
        if isinstance(self._files, LocalFiles):
            self._ahead = WriteAheadLog(self._files.directory / "wal")
        self._writer = PStreamWriter(f"{place}/log", _SCHEMA, writer="database", interval="1 s")
        self._stream = PStream(f"{place}/log")
        self._stream.subscribe(_READER)
        self._store = BucketStore(self._files.child("tables").child("00000"))
        self._handle = Handle()
        self._restore_stream()
        self._end = self._durable = self._stream.end
        self._bytes = self._calls = 0
        self._interval_s = interval_s
        self._pending: list[dict[str, Any]] = []
        self._waiting: list[tuple[int, Callable[[BaseException | None], None]]] = []
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="penstock-log", daemon=True)
        self._thread.start()

    def _restore_stream(self) -> None:
        """Append to the p-stream the calls that only the write-ahead log of an earlier process holds."""
        if self._ahead is None:
            return
        end = self._stream.end
        for offset, calls in self._ahead.read_earlier():
            if offset > end:
                raise CorruptDataError(
                    "the log lacks calls", location=self._files.location, end=end, next=offset
                )
            if offset + len(calls) > end:
                self._writer.append(calls.slice(end - offset))
                end = offset + len(calls)
        self._writer.flush()
        self._stream.refresh()
        self._ahead.begin_part()

    def restore(self, state: State) -> Iterator[Call]:
        """Restore the newest version into empty tables; return the later calls, which must run again."""
        begin = 0
        if (found := newest_version(self._store)) is not None:
            pointer, begin = found
            self._handle = self._store.load(pointer, state)
        self._calls = self._end - begin
        return read_calls(self._stream, begin, self._end)

    def resume(self, handle: Handle, position: int) -> Iterator[Call] | None:
        """Continue with tables that include a version and later calls; return the calls that they lack.

        Return None if the tables must be restored instead, because the version is not the newest, or the log
        has released calls that the tables lack.

        Parameters
        ----------
        handle : Handle
            The version that the tables include.
        position : int
            The number of calls that the tables include.
        """
        pointer, begin = newest_version(self._store) or (None, 0)
        if position < self._stream.start or pointer != handle.pointer:
            return None
        self._handle = handle
        self._calls = self._end - begin
        return read_calls(self._stream, position, self._end)

    @property
    def end(self) -> int:
        """The number of calls that were ever appended to the log."""
        return self._end

    @property
    def failure(self) -> BaseException | None:
        """Return the error after which no call can be made durable."""
        return self._error

    @property
    def refusal(self) -> PenstockError:
        """Return the error of all calls after a call that was not made durable."""
        if isinstance(self._error, FencedError):
            return self._error
        return InvalidUsageError("a call could not be stored", hint="open the database again")

    def append(self, call: Call) -> None:
        """Append a call.

        To wait until the call is durable, read the property `end` after `append` has returned, and pass its
        value to `wait`.

        Raises
        ------
        PenstockError
            If earlier calls could not be made durable; see `wait`.
        """
        row: dict[str, Any] = {
            "called": call.called,
            "program": call.program,
            "events": None if call.events is None else _bytes(call.events),
            "bounds": None if call.bounds is None else call.bounds.tolist(),
            "transaction": call.transaction,
            "streams": list(call.streams),
            "rows": [_bytes(stream) for stream in call.streams.values()],
        }
        with self._changed:
            if self._error is not None:
                raise self._error
            self._pending.append(row)
            self._end += 1
            self._calls += 1
            self._bytes += sum(len(batch) for batch in (row["events"], *row["rows"]) if batch is not None)
            self._changed.notify_all()

    def wait(self, end: int) -> None:
        """Wait until the first `end` calls are durable.

        Raises
        ------
        FencedError
            If another process has opened the database.
        UnavailableError
            If the file system refuses.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._durable >= end or self._error is not None)
            if self._durable < end and self._error is not None:
                raise self._error

    def when_durable(self, end: int, done: Callable[[BaseException | None], None]) -> None:
        """Call `done` once the first `end` calls are durable, or with the error that prevents it.

        `done` runs in the calling thread or in the log's thread, and must be quick.
        """
        with self._changed:
            if self._durable < end and self._error is None:
                self._waiting.append((end, done))
                return
            error = None if self._durable >= end else self._error
        done(error)

    def _run(self) -> None:
        """Make pending calls durable until `close`."""
        try:
            while (rows := self._take()) is not None:
                calls = pa.Table.from_pylist(rows, _SCHEMA)
                if self._ahead is not None:
                    self._ahead.append(self._durable, calls)
                self._writer.append(calls)
                if self._ahead is None:
                    self._writer.flush()
                self._notify(self._durable + len(rows), None)
        except FencedError:
            self._notify(self._durable, self._fenced())
        except BaseException as error:  # callers that wait for durable calls must get the error
            self._notify(self._durable, error)

    def _fenced(self) -> FencedError:
        return FencedError(
            "another process has opened this database",
            location=self._files.location,
            hint="call that process; opening the database again would fence it",
        )

    def _take(self) -> list[dict[str, Any]] | None:
        """Wait for calls, then for the commit interval; return the calls, or None after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._pending) or self._closed)
            if self._interval_s:
                self._changed.wait_for(lambda: self._closed, timeout=self._interval_s)
            rows, self._pending = self._pending, []
            return rows or None

    def _notify(self, durable: int, error: BaseException | None) -> None:
        """Notify waiting callers that the first `durable` calls are durable, or of the error."""
        with self._changed:
            self._durable, self._error = durable, error
            ready = [(end, done) for end, done in self._waiting if end <= durable or error is not None]
            self._waiting = [(end, done) for end, done in self._waiting if end > durable and error is None]
            self._changed.notify_all()
        for end, done in ready:
            done(None if end <= durable else error)

    @property
    def checkpoint_is_due(self) -> bool:
        """Return whether a recovery would take long, because many calls follow the last checkpoint."""
        return self._bytes > self.bytes_for_checkpoint or self._calls > self.calls_for_checkpoint

    def checkpoint(self, state: State) -> None:
        """Store a version of the tables, and release the calls that it includes.

        The caller must not append calls meanwhile.
        """
        if not self._calls:
            return
        self.wait(self._end)
        try:
            self._writer.flush()
            state.offset = self._end
            self._handle = self._store.commit(state, self._handle)
            self._store.sweep(self._handle)
            self._stream.trim_from(_READER, self._end)
            if self._ahead is not None:
                self._ahead.begin_part()
        except FencedError:
            self._error = self._fenced()
            raise self._error from None
        self._bytes = self._calls = 0

    def close(self) -> None:
        """Make pending calls durable, as far as the file system allows, and close the log."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        # After an error the thread writes no more, but a callback in it may wait for the database.
        if self._error is None:
            self._thread.join()
        try:
            if self._error is None:
                self._writer.flush()
        except PenstockError:
            pass  # the calls are durable in the write-ahead log
        finally:
            self._writer.abort()
        if self._ahead is not None:
            self._ahead.close()


def check_tables(files: Files, name: str, tables: Iterable[TableSpec], *, create: bool) -> None:
    """Check that the directory of versions belongs to a database with these tables; with `create`, create it.

    Raises
    ------
    InvalidUsageError
        If the directory belongs to a different database, or does not exist.
    """
    ours: dict[str, Any] = {
        "buckets": 1,
        "database": name,
        "program": ANY_PROGRAM,
        # Every database has the table of remembered requests, even a database that an older version made.
        "tables": [spec.to_json() for spec in tables if spec is not REMEMBERED_REQUESTS],
    }
    if create:
        with contextlib.suppress(ConflictError):
            files.publish(SPECIFICATION_FILE, encode(PUnit("operator", ours)))
    path = files.path_of(SPECIFICATION_FILE)
    try:
        theirs = decode(files.read(SPECIFICATION_FILE), path).meta
    except FileNotFoundError:
        raise InvalidUsageError(
            "there is no database at this location", file=path, hint="open it there first"
        ) from None
    others = {"database": "another name", "tables": "other tables"}
    for setting, value in ours.items():
        if theirs.get(setting) != value:
            raise InvalidUsageError(
                f"the database at this location has {others.get(setting, f'another {setting}')}",
                was=theirs.get(setting),
                now=value,
                file=path,
            )


def newest_version(store: BucketStore) -> tuple[Pointer, int] | None:
    """Return the newest version of the tables, and how many calls it includes; None if there is none.

    Raises
    ------
    CorruptDataError
        If a file is damaged.
    """
    survey = survey_bucket(store.files)
    for damage in survey.damage:
        # The survey has only the text of the error. Decoding the file again raises the full error.
        decode(store.files.read(PurePosixPath(damage.file).name), damage.file)
        raise CorruptDataError(damage.fact, file=damage.file)
    versions = [(pointer, look_at(store, pointer)[1]) for pointer in survey.newest]
    return max(versions, key=lambda version: version[1], default=None)


def look_at(store: BucketStore, pointer: Pointer) -> tuple[Handle, int]:
    """Return the handle of a version, and how many calls the version includes."""
    handle, unit = store.read_version(pointer)
    return handle, unit.fields.count("offset")


def read_calls(stream: PStream, begin: int, end: int) -> Iterator[Call]:
    """Read the calls of the log from number `begin` up to, but not including, number `end`."""
    if begin < end:
        for batch in stream.read(begin, end):
            for row in batch.to_pylist():
                events = None if row["events"] is None else _batch(row["events"])
                bounds = None if row["bounds"] is None else np.array(row["bounds"], np.int64)
                rows = map(_batch, row["rows"] or ())
                streams = dict(zip(row["streams"] or (), rows, strict=True))
                yield Call(row["called"], row["program"], events, bounds, row["transaction"], streams)


def _batch(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()


def _bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
