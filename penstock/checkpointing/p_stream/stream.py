"""A p-stream: a durable channel of rows with writers, subscribers and a durable first row.

    LOCATION/
      p-stream                       the description: format version, identity, schema
      log/                           commits and subscriptions (`penstock.checkpointing.p_stream.log`)
      segments/                      p-units (`penstock.checkpointing.p_stream.segments`)
      readers/NAME-NUMBER/OFFSET.progress
                                     the end of the released rows; the largest offset is valid

Rows have logical positions, the **offsets**: the first row ever written has 0 (Scabbard §3.1).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow as pa

from penstock import _clock
from penstock.checkpointing.files import FileFacts, Files, LocalFiles, open_files
from penstock.checkpointing.p_stream.cleanup import CleanupRule, TrimResult
from penstock.checkpointing.p_stream.description import (
    DESCRIPTION_FILE,
    EARLIEST,
    Description,
    Start,
    check_name,
    check_schema,
    describe,
    parse_description,
    parse_start,
    publish_description,
)
from penstock.checkpointing.p_stream.log import CommitLog
from penstock.checkpointing.p_stream.log_record import WriterState
from penstock.checkpointing.p_stream.segments import Piece, read_blocks, stop_after, writer_of
from penstock.checkpointing.p_stream.update_log import UpdateLog
from penstock.checkpointing.p_stream.update_log.claims import claimed_pieces
from penstock.checkpointing.p_unit import PUnit, encode
from penstock.checkpointing.trace import trace
from penstock.errors import ConflictError, CorruptDataError, InvalidUsageError

__all__ = ["PStream", "TrimResult", "is_committed"]

_LOGGER = logging.getLogger(__name__)

_PROGRESS = re.compile(r"(\d{20})\.progress")


class PStream:
    """One process's view of a p-stream. Writers and readers use it.

    Threads must not share it. No file is kept open.

    Parameters
    ----------
    location : str or path
        A directory; see `penstock.checkpointing.files.open_files`.
    schema : pyarrow.Schema, optional
        The columns with which the stream is created if it does not exist. An existing stream must have these
        columns.
    direct_io : bool, optional
        Whether rows bypass the page cache. The default is the stream's own setting, which is false for a new
        stream.
    update_log : UpdateLog, optional
        The definition that makes a new stream an update log. An existing stream must be this update log.
    cleanup : CleanupRule, optional
        The rule for deleting released rows and log entries, and for compacting an update log.

    Raises
    ------
    InvalidUsageError
        If there is neither a stream nor a schema, or other files instead of a stream; if the schema or the
        update log differs; or if `direct_io` contradicts the stream, or the location is not a local disk.
    CorruptDataError
        If the stream's files are damaged.
    UnavailableError
        If the file system refuses.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        schema: pa.Schema | None = None,
        *,
        direct_io: bool | None = None,
        update_log: UpdateLog | None = None,
        cleanup: CleanupRule | None = None,
    ) -> None:
        self.cleanup = cleanup or CleanupRule()
        self.files: Files = open_files(location)
        if direct_io and not isinstance(self.files, LocalFiles):
            raise InvalidUsageError(
                "direct I/O works only on local disks", location=self.files.location, hint="leave it out"
            )
        found = self._open(schema, direct_io, update_log)
        self.identity, self.schema, self.direct_io = found.identity, found.schema, found.direct_io
        self.update_log = found.update_log
        self.log = CommitLog(self.files.child("log"), self.cleanup)
        self.segments = self._files(found.direct_io).child("segments")

    # ------------------------------------------------------------------------------------ identity

    def _files(self, direct_io: bool) -> Files:
        """Return the stream's directory, with direct I/O if `direct_io` is set and the directory is local.

        A stream with direct I/O that was copied to an object store is opened without it.
        """
        if direct_io and isinstance(self.files, LocalFiles):
            return replace(self.files, direct_io=True)
        return self.files

    def _open(
        self, schema: pa.Schema | None, direct_io: bool | None, update_log: UpdateLog | None
    ) -> Description:
        try:
            description = self._read()
        except FileNotFoundError:
            if schema is None:
                raise InvalidUsageError(
                    "there is no p-stream at this location",
                    location=self.files.location,
                    hint="write to it first, by penstock ingest or by PStreamWriter with a schema",
                ) from None
            described = describe(schema, bool(direct_io), update_log)
            # Create nothing if direct I/O is not possible.
            publish_description(self._files(bool(direct_io)), described)
            description = self._read()
        if schema is not None:
            check_schema(schema, description.schema, self.files.location)
        description.check_same(direct_io, update_log, self.files.location)
        return description

    def _read(self) -> Description:
        return parse_description(self.files.read(DESCRIPTION_FILE), self.files.path_of(DESCRIPTION_FILE))

    # ------------------------------------------------------------------------------------- readers

    def refresh(self) -> None:
        """Load new commits; see `CommitLog.refresh`."""
        self.log.refresh()

    @property
    def start(self) -> int:
        """The first row that is kept, as of the last refresh."""
        return self.log.start

    @property
    def end(self) -> int:
        """The number of rows ever committed, as of the last refresh."""
        return self.log.end

    def committed_us(self, offset: int) -> int | None:
        """Return the time of the first commit with rows from an offset on; None if there are none."""
        return next((commit.time_us for commit in self.log.commits if commit.end > offset), None)

    def offset_of(self, start: Start) -> int:
        """Return the current offset of a start; see `PStreamReader`.

        Raises
        ------
        InvalidUsageError
            If `start` is not a valid start, rows from its offset on are released, or the p-stream ends before
            this offset.
        """
        self.refresh()
        return self._offset_of(start)

    def _offset_of(self, start: Start) -> int:
        begin = parse_start(start)
        if isinstance(begin, datetime):
            return self._offset_at(round(begin.timestamp() * 1e6))
        if isinstance(begin, str):
            return self.start if begin == EARLIEST else self.end
        self._check_kept(begin)
        if begin > self.end:
            raise InvalidUsageError(
                "the p-stream ends before this offset",
                location=self.files.location,
                wanted=begin,
                end=self.end,
            )
        return begin

    def _offset_at(self, time_us: int) -> int:
        """Return the offset of the first commit at or after a time; the end if there is no such commit."""
        compaction = self.log.compaction
        for commit in self.log.commits:
            if commit.time_us >= time_us:
                if compaction is not None and commit.offset < compaction.end:
                    return compaction.offset_at(time_us)
                return max(commit.offset, self.start)
        return self.end

    def _check_kept(self, offset: int) -> None:
        if offset < self.start:
            raise InvalidUsageError(
                "rows of the p-stream are already released",
                location=self.files.location,
                wanted=offset,
                start=self.start,
                hint="start at the earliest offset, or subscribe before others release",
            )

    def pieces(self, start: int, stop: int, reader: str | None = None) -> list[Piece]:
        """Return the pieces with rows `start` to `stop` - 1; use the claim of `reader`, if given.

        Raises
        ------
        InvalidUsageError
            If some of these rows are released or not committed.
        """
        if stop > self.end:
            self.refresh()
        self._check_kept(start)
        if stop > self.end:
            raise InvalidUsageError("the p-stream has no such rows", stop=stop, end=self.end)
        return list(claimed_pieces(self.log.claims.get(reader or ""), self.log.commits, start, stop))

    def stop_within(self, start: int, stop: int, max_rows: int) -> int:
        """Return the end of the first `max_rows` rows from `start` on, but at most `stop`.

        Raises
        ------
        InvalidUsageError, CorruptDataError, UnavailableError
            As for `read`.
        """
        if self.log.compaction is None or start >= self.log.compaction.end:
            return min(stop, start + max_rows)
        return stop_after(self.segments, self.schema, self.pieces(start, stop), max_rows) or stop

    def claim(self, reader: str, stop: int) -> None:
        """Keep compactions from changing the rows before `stop` that a reader has not released.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `subscribe`.
        """
        self.log.claim(reader, self._progress(reader), stop)

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield rows `start` to `stop` - 1, one p-unit at a time.

        Raises
        ------
        InvalidUsageError
            As for `pieces`; or if there is no such column.
        CorruptDataError, UnavailableError
            If the data is damaged, or the file system refuses.
        """
        names = self.schema.names if columns is None else list(columns)
        for piece, block in read_blocks(self.segments, self.pieces(start, stop), self.schema):
            yield block.read(names, piece.first, piece.stop)

    def subscribe(self, reader: str, start: Start = EARLIEST) -> int:
        """Subscribe a reader unless it is subscribed; return the offset at which it continues.

        The p-stream keeps all rows from that offset on until the reader releases them.

        Raises
        ------
        InvalidUsageError
            As for `offset_of`, or if the name is not valid.
        CorruptDataError, UnavailableError
            If the log is damaged, or the file system refuses.
        """
        check_name(reader)
        self.log.subscribe(reader, lambda: self._offset_of(start))
        return self._progress(reader)

    def unsubscribe(self, reader: str) -> bool:
        """Remove a reader, so that no rows are kept for it; return whether it was subscribed.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `subscribe`.
        """
        self.refresh()
        if reader not in self.log.readers:
            return False
        files = self._progress_files(reader)
        existed = self.log.unsubscribe(reader)
        for fact in files.list():
            files.delete(fact.name)
        return existed

    def readers(self) -> dict[str, int]:
        """Return the offset up to which each subscribed reader has released rows."""
        return {reader: self._progress(reader) for reader in self.log.readers}

    def trim_from(self, reader: str, offset: int) -> TrimResult:
        """Release the rows before `offset` for a reader; this is the paper's release marker (Scabbard §3.3).

        Rows that no subscribed reader needs are deleted in bulk, once there are enough of them.

        Raises
        ------
        InvalidUsageError
            If the reader is not subscribed, or the rows do not exist yet.
        CorruptDataError, UnavailableError
            As for `subscribe`.
        """
        self.refresh()
        if reader not in self.log.readers:
            raise InvalidUsageError("the reader is not subscribed", reader=reader)
        if offset > self.end:
            raise InvalidUsageError(
                "a reader releases rows beyond the end of the p-stream", offset=offset, end=self.end
            )
        files = self._progress_files(reader)
        offsets = _offsets(files)
        if offset > max(offsets, default=self.log.readers[reader].offset):
            trace("release", stream=self.files.location, reader=reader, offset=offset)
            with contextlib.suppress(ConflictError):
                files.publish(_progress_name(offset), encode(PUnit("progress", {"time_us": _clock.now_us()})))
            for older in offsets:
                files.delete(_progress_name(older))
        return self.trim()

    def _progress(self, reader: str) -> int:
        files = self._progress_files(reader)
        row = max(_offsets(files), default=self.log.readers[reader].offset)
        if row > self.end:
            self.refresh()  # the reader has released rows committed after the last refresh
        if row > self.end:
            raise CorruptDataError(
                "a reader has released rows beyond the end of the p-stream",
                file=files.path_of(_progress_name(row)),
                row=row,
                end=self.end,
            )
        return row

    def _progress_files(self, reader: str) -> Files:
        return self.files.child("readers").child(f"{reader}-{self.log.readers[reader].number}")

    # ------------------------------------------------------------------------------------ trimming

    def trim(self, *, now: bool = False) -> TrimResult:
        """Delete rows that no subscribed reader needs, if there are enough of them or `now` is set.

        Steps: 1. durably move the stream's first row to the least progress of a reader, 2. delete segments
        that no commit names any more, 3. delete log entries that the moved start makes obsolete. If there is
        no reader, nothing is deleted.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `subscribe`.
        """
        self.refresh()
        if now and self.update_log is not None:
            return TrimResult(self.start, len(self.sweep()))
        spare = [commit for commit in self.log.commits if commit.end <= self.needed()]
        enough = self.cleanup.allows_trim(sum(commit.size_bytes for commit in spare), len(spare))
        if not spare or not (enough or now):
            return TrimResult(self.start)
        self.log.release(self.needed)
        orphans = self.sweep()
        self.log.shorten()
        size = sum(fact.size_bytes for fact in orphans)
        _LOGGER.info(
            "trimmed [p_stream=%s start=%d segments=%d bytes=%d]",
            self.files.location, self.start, len(orphans), size,
        )  # fmt: skip
        return TrimResult(self.start, len(orphans), size)

    def needed(self) -> int:
        """Return the offset of the first row to keep, because a reader needs it or an update log holds it."""
        return self.start if self.update_log is not None else min(self.readers().values(), default=self.start)

    def sweep(self) -> list[FileFacts]:
        """Delete the segments that no commit names or will ever name; return their facts.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `subscribe`.
        """
        orphans = self._orphans()
        for fact in orphans:
            self.segments.delete(fact.name)
        return orphans

    def _orphans(self) -> list[FileFacts]:
        """Return the facts of segments that no commit names or will ever name."""
        listed = self.segments.list()
        # List the segments before the log is read, so that segments committed later are kept.
        self.refresh()
        names = self.log.segments()
        return [one for one in listed if one.name not in names and is_committed(one.name, self.log.writers)]

    def cut_back(self, writer: str, session: str = "") -> int:
        """Delete the uncommitted segments of a writer's attempts; return their number.

        Parameters
        ----------
        writer : str
            The writer's name.
        session : str
            The current session, which has written nothing yet. Other sessions can no longer commit, so their
            segments are deleted. If this is an empty string, attempts at a batch that is not in the log may
            still run, so their segments stay.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `subscribe`.
        """
        listed = self.segments.list()
        self.refresh()
        state = self.log.writers.get(writer)
        alone = bool(session) and state is not None and state.session == session
        names = self.log.segments()
        orphans = [
            fact.name
            for fact in listed
            if fact.name not in names
            and (owner := writer_of(fact.name))
            and owner[0] == writer
            and (alone or is_committed(fact.name, self.log.writers))
        ]
        for name in orphans:
            self.segments.delete(name)
        return len(orphans)


def is_committed(segment: str, writers: Mapping[str, WriterState]) -> bool:
    """Return whether the batch of a segment is in the log, so that no later commit can name the segment."""
    owner = writer_of(segment)
    if owner is None:
        return False
    state = writers.get(owner[0])
    return state is not None and owner[1] <= state.batch


def _progress_name(offset: int) -> str:
    return f"{offset:020}.progress"


def _offsets(files: Files) -> list[int]:
    return [int(match[1]) for fact in files.list() if (match := _PROGRESS.fullmatch(fact.name))]
