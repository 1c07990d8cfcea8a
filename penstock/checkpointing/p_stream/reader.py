"""Read a p-stream without Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock._clock import pause
from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.checkpointing.p_stream.description import EARLIEST, Start
from penstock.checkpointing.p_stream.stream import PStream, TrimResult
from penstock.conf.arguments import check_keywords
from penstock.errors import CorruptDataError, InvalidUsageError

__all__ = ["PStreamReader"]

_POLL_S = 0.02


@check_keywords
class PStreamReader:
    """Reads a p-stream in order, from this reader's position.

    A reader with a name is a subscriber: the p-stream keeps all rows that the subscriber has not released. A
    later reader of that name, in any process, continues from the last release. For a reader without a name
    the p-stream keeps no rows.

    Threads must not share a reader.

    Parameters
    ----------
    location : str or path
        The p-stream's location.
    reader : str, optional
        The name to subscribe under.
    start : str, int or datetime
        ``"earliest"``, ``"latest"``, an offset, or a time, which means the first commit at or after it. If
        the name is already subscribed, `start` is ignored and the reader continues after its last release.
    columns : sequence of str, optional
        The columns to read; by default all.
    cleanup : CleanupRule, optional
        The rule for deleting released rows and log entries.

    Raises
    ------
    InvalidUsageError
        If the stream or a column does not exist, rows at or after `start` have been released, or the
        p-stream ends before `start`.
    CorruptDataError
        If the stream's files are damaged.
    UnavailableError
        If the file system refuses.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa
    >>> from penstock import PStreamReader, PStreamWriter
    >>> place = tempfile.mkdtemp() + "/numbers"
    >>> with PStreamWriter(place, pa.schema({"n": pa.int64()})) as writer:
    ...     writer.append(pa.table({"n": range(5)}))
    >>> reader = PStreamReader(place, reader="sums")
    >>> sum(reader.read(max_rows=3)["n"].to_pylist())
    3
    >>> trimmed = reader.release()
    >>> PStreamReader(place, reader="sums").read()["n"].to_pylist()  # a restart goes on from there
    [3, 4]
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        reader: str | None = None,
        start: Start = EARLIEST,
        columns: Sequence[str] | None = None,
        cleanup: CleanupRule | None = None,
    ) -> None:
        self._stream = PStream(location, cleanup=cleanup)
        names = self._stream.schema.names
        if columns is not None and (unknown := [name for name in columns if name not in names]):
            raise InvalidUsageError(
                "the p-stream has no such columns", columns=", ".join(unknown), known=", ".join(names)
            )
        self._columns = list(names if columns is None else columns)
        stored = self._stream.schema
        self.schema = pa.schema([stored.field(name) for name in self._columns], stored.metadata)
        self.reader = reader
        if reader is None:
            self.offset = self._stream.offset_of(start)
        else:
            self.offset = self._stream.subscribe(reader, start)

    def read(self, max_rows: int | None = None) -> pa.Table:
        """Return at most `max_rows` committed rows that were not read yet; an empty table if there are none.

        Raises
        ------
        InvalidUsageError
            If the next rows were released, which happens only to a reader without a name.
        CorruptDataError, UnavailableError
            If the data is damaged, or the file system refuses.
        """
        self._stream.refresh()
        stop = self._stream.end
        batches: list[pa.RecordBatch] = []
        if stop > self.offset:
            stop, batches = self._read(stop, max_rows)
        self.offset = max(stop, self.offset)
        return pa.Table.from_batches(batches, self.schema)

    def _read(self, stop: int, max_rows: int | None) -> tuple[int, list[pa.RecordBatch]]:
        """Return the next rows, preceded by the offset after them.

        If a compaction deletes the segments of these rows meanwhile, read again.
        """
        while True:
            before = self._stream.log.compaction
            try:
                until = stop if max_rows is None else self._stream.stop_within(self.offset, stop, max_rows)
                return until, list(self._stream.read(self.offset, until, self._columns))
            except CorruptDataError:
                self._stream.refresh()
                if self._stream.log.compaction == before:
                    raise

    def follow(self, *, max_rows: int | None = None, poll_s: float = _POLL_S) -> Iterator[pa.Table]:
        """Yield rows as they are committed, for ever; wait while there are no new rows.

        Raises
        ------
        InvalidUsageError, CorruptDataError, UnavailableError
            As for `read`.
        """
        while True:
            rows = self.read(max_rows)
            if rows.num_rows:
                yield rows
            else:
                pause(poll_s)  # other processes do not announce their commits

    def release(self) -> TrimResult:
        """Release all rows that were read, so that they are deleted once no other reader needs them.

        Raises
        ------
        InvalidUsageError
            If this reader has no name.
        CorruptDataError, UnavailableError
            As for `read`.
        """
        if self.reader is None:
            raise InvalidUsageError("a reader without a name cannot release rows", hint="give reader=")
        return self._stream.trim_from(self.reader, self.offset)
