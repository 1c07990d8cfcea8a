"""Append to a p-stream from any Python process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from penstock._clock import new_id
from penstock._failpoints import failpoint
from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.checkpointing.p_stream.description import as_arrow, check_name, check_schema
from penstock.checkpointing.p_stream.segments import UNIT_ROWS, Coder, SegmentWriter, cast_coded
from penstock.checkpointing.p_stream.stream import PStream
from penstock.checkpointing.p_stream.threads import Threads
from penstock.checkpointing.p_stream.update_log import UpdateLog
from penstock.checkpointing.p_stream.update_log.background import BackgroundCompactor
from penstock.compression.kinds import adopt_coding
from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError
from penstock.units import parse_duration_us

if TYPE_CHECKING:
    from penstock.compression import Goal

__all__ = ["PStreamWriter"]

_LOGGER = logging.getLogger(__name__)

_PENDING_BYTES = 256 << 20


class _Group(NamedTuple):
    """The rows of one commit, the vector clock after these rows, and the number of appends so far."""

    batch: int
    tables: list[pa.Table]
    size_bytes: int
    clock: dict[str, int]
    appended: int


@check_keywords
class PStreamWriter:
    """Appends Arrow tables to a p-stream. Rows are visible once they are durable.

    The writer's threads encode, write and commit the appended rows. All rows that were appended within an
    interval share one commit (group commit). While one commit is synced, the next is encoded. The rows of one
    call become visible atomically.

    One name belongs to one process at a time: opening a writer fences the previous writer of its name.
    Several writers with different names may append to one stream. All threads of the process that opened the
    writer may use it. A forked process must open its own writer, because threads do not survive a fork.

    Parameters
    ----------
    location : str or path
        The p-stream's location; see `penstock.checkpointing.files.open_files`.
    schema : pyarrow.Schema, optional
        The columns of the stream; required if the stream does not exist yet.
    writer : str
        The writer's name.
    interval : str or timedelta
        The longest time that rows wait for a group commit; "200ms" by default.
    goal, error_bounds, codecs, threads
        The encoding of columns; see `penstock.compression.Chooser` and `encode_table`.
    unit_rows : int
        The maximum number of rows of a p-unit.
    max_pending_bytes : int
        The number of pending bytes above which `append` blocks.
    direct_io : bool, optional
        Whether rows of a stream that this call creates bypass the page cache on write and read. This takes
        less CPU time, but readers wait for the disk. An existing stream keeps its setting.
    key, time : str or sequence of str, str, optional
        If given, a new stream is an update log, which keeps only the newest row of each key: the row with the
        greatest time. An existing stream keeps its own key and time.
    delete_when : str, optional
        The SQL condition of rows that delete their key in an update log, such as ``"op = 'd'"``.
    keep_deletes : str or timedelta, optional
        The least time for which an update log keeps deletes; "1 day" by default.
    cleanup : CleanupRule, optional
        The rule for deleting released rows and log entries, and for compacting an update log.

    Raises
    ------
    InvalidUsageError
        If there is neither a stream nor a schema, the schema differs from the stream's, or a setting is
        wrong.
    CorruptDataError
        If the stream's files are damaged.
    UnavailableError
        If the file system refuses.

    Examples
    --------
    >>> import tempfile
    >>> place = tempfile.mkdtemp() + "/clicks"
    >>> schema = pa.schema({"user": pa.int64(), "page": pa.string()})
    >>> with PStreamWriter(place, schema) as writer:
    ...     writer.append(pa.table({"user": [1, 2], "page": ["a", "b"]}), clock={"clicks.csv": 2})
    >>> with PStreamWriter(place) as writer:  # continues after the first writer
    ...     print(writer.clock)
    {'clicks.csv': 2}
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        schema: pa.Schema | None = None,
        *,
        writer: str = "writer",
        interval: str | timedelta = "200ms",
        goal: str | Goal = "balanced",
        error_bounds: Mapping[str, float] | None = None,
        codecs: Mapping[str, str] | None = None,
        threads: int | None = None,
        unit_rows: int = UNIT_ROWS,
        max_pending_bytes: int = _PENDING_BYTES,
        direct_io: bool | None = None,
        key: str | Sequence[str] | None = None,
        time: str | None = None,
        delete_when: str | None = None,
        keep_deletes: str | timedelta | None = None,
        cleanup: CleanupRule | None = None,
    ) -> None:
        if unit_rows < 1 or max_pending_bytes < 1:
            raise InvalidUsageError(
                "a limit must be at least 1", unit_rows=unit_rows, max_pending_bytes=max_pending_bytes
            )
        self.name = check_name(writer)
        self._interval_s = parse_duration_us(interval) / 1e6
        self._coder = Coder(goal, error_bounds=error_bounds, codecs=codecs, threads=threads)
        self._unit_rows, self._max_pending_bytes = unit_rows, max_pending_bytes
        log = UpdateLog.of(key, time, delete_when, keep_deletes)
        self._stream = PStream(location, schema, direct_io=direct_io, update_log=log, cleanup=cleanup)
        self._compactor = BackgroundCompactor(self._stream, location, goal, cleanup)
        self.schema = self._stream.schema
        self._session = new_id()
        self._process = os.getpid()
        state = self._stream.log.begin(self.name, self._session)
        self._batch = state.batch
        if cut := self._stream.cut_back(self.name, self._session):
            _LOGGER.warning(
                "cut back to the last commit [p_stream=%s writer=%s batch=%d segments=%d]",
                self._stream.files.location, self.name, self._batch, cut,
            )  # fmt: skip
        self._committed = dict(state.clock)
        self._clock = dict(state.clock)
        self._pending: list[pa.Table] = []
        self._pending_bytes = self._taken_bytes = self._written_bytes = 0
        self._appended = self._taken = self._durable = 0
        self._wanted = 0
        self._error: BaseException | None = None
        self._closed = self._ended = False
        self._changed = threading.Condition()
        self._committer = Threads(1, "penstock-committer")
        self._thread = threading.Thread(target=self._run, name="penstock-writer", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------------------------- the caller

    @property
    def clock(self) -> dict[str, int]:
        """The vector clock of the newest commit: the position at which to resume each source."""
        self._check_process()
        with self._changed:
            return dict(self._committed)

    @property
    def committed_rows(self) -> int:
        """The number of rows in the stream, from all writers, as of this writer's newest commit."""
        return self._stream.end

    def append(self, rows: Any, *, clock: Mapping[str, int] | None = None) -> None:
        """Append rows; return before they are durable. The call blocks while too many bytes are pending.

        Parameters
        ----------
        rows : pyarrow.Table, pyarrow.RecordBatch, pandas.DataFrame, list of dict, or dict
            Rows with the stream's columns, in any order. A dict holds columns as sequences, a list holds a
            dict for each row; both are slow. Arrow texts may be dictionary-encoded, which is faster. Arrow
            memory is shared, not copied, until the rows are encoded. Until then it counts as pending. A
            dictionary counts in full for each chunk of the rows that uses it.
        clock : mapping of str to int, optional
            The positions in the sources after these rows. Sources that are not named keep their position.

        Raises
        ------
        InvalidUsageError
            If the columns or their types differ, a dictionary index has no entry, or the writer is closed or
            belongs to another process.
        PenstockError
            If earlier rows could not be committed; see `flush`.
        """
        self._check_process()
        table = self._check_table(as_arrow(rows, self.schema))
        with self._changed:
            self._changed.wait_for(self._has_room)
            self._check_open()
            if clock:
                self._clock.update(clock)
            self._pending.append(table)
            self._pending_bytes += table.nbytes
            self._appended += 1
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all appended rows are durable and visible.

        Raises
        ------
        FencedError
            If another process has opened a writer of this name.
        InvalidUsageError
            If the writer was aborted before all rows were committed, or belongs to another process.
        CorruptDataError, UnavailableError
            If the stream is damaged or the file system refuses. The rows after this writer's last commit are
            lost. Open a new writer: its `clock` gives the positions from which to resume the sources.
        """
        self._check_process()
        with self._changed:
            self._check_error()
            target = self._wanted = self._appended
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._durable >= target or self._error is not None or self._ended)
            if self._durable < target:
                self._check_open()
            self._check_error()

    def close(self) -> None:
        """Flush all rows, and end the writer's threads. Closing twice is not an error.

        Raises
        ------
        PenstockError
            As for `flush`.
        """
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self.abort()
        self._check_error()

    def abort(self) -> None:
        """End without committing pending rows. A commit that has begun finishes.

        In a forked process it does nothing: rows and threads belong to the process that opened the writer.
        """
        if os.getpid() != self._process:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._coder.close()

    def __enter__(self) -> PStreamWriter:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the writer; abort it if the ``with`` block ends with an error."""
        if kind is None:
            self.close()
        else:
            self.abort()

    def _check_table(self, table: pa.Table | pa.RecordBatch) -> pa.Table:
        rows = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
        check_schema(rows.schema, adopt_coding(self.schema, rows.schema), self._stream.files.location)
        columns = [cast_coded(rows.column(field.name), field) for field in self.schema]
        for field, column in zip(self.schema, columns, strict=True):
            if not field.nullable and column.null_count:
                raise InvalidUsageError("a column that is not nullable has nulls", column=field.name)
        fields = [field.with_type(column.type) for field, column in zip(self.schema, columns, strict=True)]
        table = pa.Table.from_arrays(columns, schema=pa.schema(fields, self.schema.metadata))
        if self._stream.update_log is not None:
            self._stream.update_log.check_rows(table)
        return table

    def _has_room(self) -> bool:
        return self._pending_bytes < self._max_pending_bytes or self._error is not None or self._closed

    def _check_process(self) -> None:
        """Refuse to work in a forked process, which has its parent's locks and rows, but no threads."""
        if os.getpid() != self._process:
            raise InvalidUsageError(
                "a forked process cannot use the writer of its parent",
                writer=self.name,
                opened_by=self._process,
                hint="open a writer in this process, under a name of its own",
            )

    def _check_open(self) -> None:
        self._check_error()
        if self._closed:
            raise InvalidUsageError("the writer is closed", writer=self.name)

    def _check_error(self) -> None:
        if self._error is not None:
            raise self._error

    # --------------------------------------------------------------------------------- the threads

    def _run(self) -> None:
        """Encode each batch while another thread commits the previous batch."""
        try:
            before: Future[None] | None = None
            while (group := self._take()) is not None:
                segments = self._code(group)
                if before is not None:
                    before.result()
                if self._is_over():
                    return
                before = self._committer.submit(self._commit, group, segments)
        except BaseException as error:
            self._fail(error)
        finally:
            self._committer.close()
            self._end_compaction()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _take(self) -> _Group | None:
        """Wait for the first rows, then up to an interval for more rows; return all these rows."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._pending) or self._is_over())
            self._changed.wait_for(self._is_enough, timeout=self._interval_s)
            if self._is_over():
                return None
            size = self._pending_bytes - self._taken_bytes
            self._batch += 1
            group = _Group(self._batch, self._pending, size, dict(self._clock), self._appended)
            self._pending, self._taken_bytes, self._taken = [], self._pending_bytes, self._appended
            return group

    def _is_over(self) -> bool:
        return self._closed or self._error is not None

    def _is_enough(self) -> bool:
        return (
            self._is_over()
            or self._wanted > self._taken
            or self._pending_bytes - self._taken_bytes >= self._max_pending_bytes // 2
        )

    def _code(self, group: _Group) -> SegmentWriter:
        segments = SegmentWriter(
            self._stream.segments,
            self._coder,
            self.name,
            group.batch,
            unit_rows=self._unit_rows,
            schema=self.schema,
        )
        for table in group.tables:
            segments.add(table)
        segments.end()
        return segments

    def _commit(self, group: _Group, segments: SegmentWriter) -> None:
        """Commit rows. Steps: 1. write the segments, 2. commit them, 3. notify waiters."""
        try:
            written = segments.finish()
            failpoint("p_stream.after_segments")
            self._stream.log.commit(self.name, group.batch, written, clock=group.clock, session=self._session)
            failpoint("p_stream.after_commit")
            _LOGGER.info(
                "rows committed [p_stream=%s writer=%s batch=%d rows=%d]",
                self._stream.files.location, self.name, group.batch, sum(segment.rows for segment in written),
            )  # fmt: skip
            self._stream.log.shorten()
            self._compactor.start_if_due(sum(segment.rows for segment in written))
        except BaseException as error:
            self._fail(error)
            raise
        with self._changed:
            self._pending_bytes -= group.size_bytes
            self._taken_bytes -= group.size_bytes
            self._written_bytes += sum(segment.size_bytes for segment in written)
            self._committed, self._durable = group.clock, group.appended
            self._changed.notify_all()

    def _end_compaction(self) -> None:
        try:
            self._compactor.close()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def __repr__(self) -> str:
        """Return the writer's name and stream as text."""
        return f"PStreamWriter({self._stream.files.location!r}, writer={self.name!r})"

    def metrics(self) -> dict[str, Any]:
        """Return the numbers of appends, of durable appends, of pending and written bytes, and of rows.

        The result also has the number of column blocks with a chosen codec, and the number of deoptimised
        blocks. A block is deoptimised if a value does not fit the chosen codec, so that the default codec
        encodes the block.
        """
        self._check_process()
        blocks, deoptimised = self._coder.blocks()
        with self._changed:
            return {
                "appended": self._appended,
                "durable": self._durable,
                "pending_bytes": self._pending_bytes,
                "written_bytes": self._written_bytes,
                "rows": self._stream.end,
                "blocks": blocks,
                "deoptimised": deoptimised,
            }
