"""Follow the log of a database that another process has open, without writing anything.

Only the p-stream and the versions of the tables are final: a call in the write-ahead log may be lost in a
power failure, or belong to a fenced process. So a follower runs calls about a second after they were
acknowledged. Invariants:

1. A version is readable before any later call is in the log (`in_process.command_log`). A follower first
   reads the end of the log, then looks for versions. So it finds each version before it runs a later call.
2. A version includes all changes up to its offset, whichever process wrote it. So a follower may forget its
   own changes up to this offset. The changes that the follower keeps are then the delta from this version to
   the follower's next version.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock import _clock
from penstock._failpoints import failpoint
from penstock.checkpointing.files import open_files
from penstock.checkpointing.p_stream import PStream
from penstock.errors import CorruptDataError, PenstockError
from penstock.procedures.in_process.command_log import (
    Call,
    CommandLog,
    check_tables,
    look_at,
    newest_version,
    read_calls,
)
from penstock.procedures.in_process.open_programs import OpenPrograms
from penstock.procedures.in_process.open_tables import open_tables
from penstock.procedures.in_process.replay import repeat
from penstock.procedures.in_process.strong_recovery import StrongRecovery
from penstock.procedures.partitions.predicted.run import use_predictor
from penstock.procedures.replicas.lag import Lag
from penstock.procedures.requests.run import REMEMBERED_REQUESTS
from penstock.procedures.schema import TableSpec
from penstock.speculating.in_process.speculation import use_speculation
from penstock.state_store.bucket_store import BucketStore, Handle
from penstock.state_store.survey import likely_pointer

if TYPE_CHECKING:
    from penstock.procedures.databases import Database
    from penstock.procedures.partitions.predicted.prediction import StoredPredictor

__all__ = ["Copy", "LogFollower"]

_MAX_ATTEMPTS = 5
"""The number of attempts to load a version while the other process deletes older versions."""


class Copy:
    """Tables, and how many calls of the log they include.

    Attributes
    ----------
    handle : Handle
        A version of the tables; the tables record their changes since this version.
    position : int
        The number of calls that the tables include.
    """

    def __init__(
        self,
        database: Database,
        tables: Sequence[TableSpec],
        partitions: int = 1,
        ranges: Mapping[str, Sequence[Any]] | None = None,
        predictor: StoredPredictor | None = None,
        speculate: bool | str = False,
    ) -> None:
        self.state = open_tables(tables, partitions, ranges or {}, [REMEMBERED_REQUESTS.name])
        if predictor is not None:
            use_predictor(self.state, database.name, predictor, {})
        if speculate is not False:
            use_speculation(self.state, database, speculate)
        self.programs = OpenPrograms(database, {spec.name for spec in tables})
        self.strong = StrongRecovery(self.state)
        self.handle = Handle()
        self.position = 0


class LogFollower:
    """Runs the calls of a log that grows. One thread at a time uses it.

    Parameters
    ----------
    database : Database
        The database with the procedures that the log names.
    tables : iterable of TableSpec
        The tables, including hidden tables.
    location : str or path
        The directory of the database.
    partitions, ranges, predictor, speculate
        See `Database.open`.

    Raises
    ------
    InvalidUsageError
        If the location holds no database, or a database with different tables.
    CorruptDataError, UnavailableError
        If the database's files are damaged, or the file system refuses.
    """

    def __init__(
        self,
        database: Database,
        tables: Iterable[TableSpec],
        location: str | os.PathLike[str],
        partitions: int = 1,
        ranges: Mapping[str, Sequence[Any]] | None = None,
        predictor: StoredPredictor | None = None,
        speculate: bool | str = False,
    ) -> None:
        self._database, self._tables = database, tuple(tables)
        self._options = partitions, ranges, predictor, speculate
        files = open_files(location)
        check_tables(files.child("tables"), database.name, self._tables, create=False)
        self._stream = PStream(f"{os.fspath(location).rstrip('/')}/log")
        self._store = BucketStore(files.child("tables").child("00000"))
        self._seen: frozenset[str] = frozenset()
        self.copy = self._load()

    def advance(self) -> None:
        """Run the new calls in the log.

        Raises
        ------
        InvalidUsageError
            If a procedure has changed.
        CorruptDataError, UnavailableError
            If the log is damaged, or the file system refuses.
        """
        self._stream.refresh()
        if self._stream.end == self.copy.position:
            return
        try:
            if self._stream.start > self.copy.position:
                self.close()
                self.copy = self._load()
            self._run()
        except PenstockError:
            self._stream.refresh()
            if self._stream.start <= self.copy.position:
                raise
            # The calls were deleted meanwhile, so a newer version holds them. The next `advance` loads it.

    def close(self) -> None:
        """End the threads of the copy's partitions, if it has several."""
        self.copy.state.close()

    def hand_over(self, log: CommandLog) -> Iterator[Call] | None:
        """Run all calls of a log that this process has opened; from now on, the copy appends to this log.

        Return the calls that the copy still lacks, or None if the log must restore the tables instead.
        """
        failpoint("takeover.after_fence")
        self._stream.refresh()
        calls = None
        if self._stream.start <= self.copy.position:
            self._run()
            self.copy.strong.log = log
            calls = log.resume(self.copy.handle, self.copy.position)
        failpoint("takeover.after_calls")
        return calls

    def _run(self) -> None:
        """Run the calls up to the end of the log as it was read last."""
        copy, end = self.copy, self._stream.end
        self._adopt_newest(end)
        for call in read_calls(self._stream, copy.position, end):
            repeat(call, copy.state, copy.programs, copy.strong)
            copy.position += 1

    @property
    def lag(self) -> Lag:
        """The lag of the copy behind the log, as of the last `advance`."""
        late = [commit for commit in self._stream.log.commits if commit.end > self.copy.position]
        age_us = _clock.now_us() - late[0].time_us if late else 0
        return Lag(self._stream.end - self.copy.position, max(age_us, 0) / 1e6)

    def _adopt_newest(self, end: int) -> None:
        """Forget the changes that the newest version includes, and note this version."""
        names = self._names()
        if names == self._seen:
            return
        pointer = likely_pointer(self._store.files)
        if pointer is not None and pointer != self.copy.handle.pointer:
            handle, offset = look_at(self._store, pointer)
            if offset > end:
                return
            # Ignore an older version: the process that wrote it was fenced meanwhile.
            if offset >= self.copy.position:
                self.copy.state.delta()
                self.copy.handle = handle
        self._seen = names

    def snapshot(self, tables: Sequence[str]) -> dict[str, Callable[[], pa.RecordBatch]]:
        """Return frozen copies of the named tables, or of all tables; see `TableRows.freeze`."""
        copy = self.copy
        specs = [copy.programs.table(name) for name in tables or self._database.tables]
        return {spec.name: copy.state[spec.name].freeze() for spec in specs}

    def _load(self) -> Copy:
        """Load the newest version; repeat if the other process deletes it meanwhile."""
        for _ in range(_MAX_ATTEMPTS - 1):
            names = self._names()
            try:
                return self._load_newest()
            except CorruptDataError:
                if self._names() == names:
                    raise
        return self._load_newest()

    def _load_newest(self) -> Copy:
        copy = Copy(self._database, self._tables, *self._options)
        if (found := newest_version(self._store)) is not None:
            pointer, copy.position = found
            copy.handle = self._store.load(pointer, copy.state)
        return copy

    def _names(self) -> frozenset[str]:
        return frozenset(facts.name for facts in self._store.files.list())
