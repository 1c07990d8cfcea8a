"""Segments: files of p-units, each encoded independently, written and read in large pieces.

A segment is a file of `penstock.compression.BlockWriter`: the consecutive blocks of its p-units. It is
immutable, has a unique name, and is invisible until a commit names it. The codecs are loaded only by
processes that read or write rows, not by processes that plan.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock._clock import new_id
from penstock.checkpointing.files import LocalFiles
from penstock.checkpointing.p_stream.log_record import Commit, Segment, Unit
from penstock.checkpointing.p_stream.threads import Threads, usable_cores
from penstock.checkpointing.trace import trace
from penstock.compression.kinds import check_codes, is_coded_text
from penstock.errors import CorruptDataError

if TYPE_CHECKING:
    from penstock.checkpointing.files import Files
    from penstock.compression import Chooser, Goal, TableBlock

__all__ = [
    "OFFSET",
    "UNIT_ROWS",
    "Coder",
    "Piece",
    "SegmentWriter",
    "cast_coded",
    "pieces",
    "read_blocks",
    "stop_after",
    "writer_of",
]

UNIT_ROWS = 65_536
"""The number of rows of a p-unit: a column of 8-byte values fits a core's second-level cache."""

OFFSET: Final = "penstock_offset"
"""The column of compacted p-units that holds the offsets of rows; readers do not see it."""

_SEGMENT_BYTES = 32 << 20
_MAX_UNWRITTEN_PER_THREAD = 4
"""The limit of encoded but unwritten p-units for each encoding thread."""

_NAME = re.compile(r"(?P<writer>.+)-(?P<batch>\d{12})-(?P<part>\d{4,})-(?P<id>[0-9a-f]{32})\.segment")


def writer_of(name: str) -> tuple[str, int] | None:
    """Return the writer and the batch in a segment's name; None if the name is not a segment's."""
    match = _NAME.fullmatch(name)
    return (match["writer"], int(match["batch"])) if match else None


class Coder:
    """Encodes p-units with several threads, each with its own chooser.

    Parameters
    ----------
    goal : str or Goal
        The goal for which the choosers choose codecs.
    error_bounds : mapping of str to float, optional
        Columns that may lose precision; see `penstock.compression.Chooser`.
    codecs : mapping of str to str, optional
        The cascades of single columns. They replace the decision of a chooser.
    threads : int, optional
        The number of threads; by default the number of cores that this process may use, at most 4.
    """

    def __init__(
        self,
        goal: str | Goal = "balanced",
        *,
        error_bounds: Mapping[str, float] | None = None,
        codecs: Mapping[str, str] | None = None,
        threads: int | None = None,
    ) -> None:
        self.threads = threads or min(4, usable_cores())
        self._thread_local = threading.local()
        self._choosers: list[Chooser] = []
        self._goal: str | Goal = goal
        self._error_bounds = dict(error_bounds or {})
        self._codecs = codecs
        self._chooser()  # an invalid goal or bound is an error here, not in a thread
        self._pool = Threads(self.threads, "penstock-coder") if self.threads > 1 else None

    def _chooser(self) -> Chooser:
        from penstock.compression import Chooser

        return Chooser(self._goal, error_bounds=self._error_bounds)

    def submit(self, tables: Sequence[pa.Table], schema: pa.Schema | None = None) -> Future[bytes]:
        """Start encoding tables as one p-unit, by default with their schema; see `encode_table`."""
        if self._pool is not None:
            return self._pool.submit(self._code, tables, schema)
        future: Future[bytes] = Future()
        try:
            future.set_result(self._code(tables, schema))
        except BaseException as error:
            future.set_exception(error)
        return future

    def _code(self, tables: Sequence[pa.Table], schema: pa.Schema | None) -> bytes:
        from penstock.compression import encode_table

        chooser = getattr(self._thread_local, "chooser", None)
        if chooser is None:
            chooser = self._thread_local.chooser = self._chooser()
            self._choosers.append(chooser)
        if schema is not None and any(not table.schema.equals(tables[0].schema) for table in tables):
            tables = [_decode_texts(table, schema) for table in tables]
        return encode_table(pa.concat_tables(tables), chooser=chooser, codecs=self._codecs, schema=schema)

    def blocks(self) -> tuple[int, int]:
        """Return the number of column blocks with a chosen codec, and how many did not fit their codec."""
        decisions = [one for chooser in self._choosers for one in list(chooser.columns.values())]
        return sum(one.blocks for one in decisions), sum(one.deoptimised for one in decisions)

    def close(self) -> None:
        """Wait for the encoding to finish, and stop the threads."""
        if self._pool is not None:
            self._pool.close()


class SegmentWriter:
    """Writes the rows of one commit, or one task's share of them, as segments.

    Parameters
    ----------
    files : Files
        The directory of segments.
    coder : Coder
        The coder that encodes the p-units. The caller closes the coder.
    writer, batch, part : str, int, int
        The parts of the segments' names.
    unit_rows : int
        The maximum number of rows of a p-unit.
    schema : pyarrow.Schema, optional
        The p-stream's schema; required if texts of tables may be dictionary-encoded.
    """

    def __init__(
        self,
        files: Files,
        coder: Coder,
        writer: str,
        batch: int,
        part: int = 0,
        *,
        unit_rows: int = UNIT_ROWS,
        schema: pa.Schema | None = None,
    ) -> None:
        self._files, self._coder = files, coder
        self._schema = schema
        self._name = f"{writer}-{batch:012}-{part:04}-"
        self._unit_rows = unit_rows
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._coding: deque[tuple[int, Future[bytes]]] = deque()
        self._coded: list[tuple[int, bytes]] = []
        self._coded_bytes = 0
        self._segments: list[Segment] = []

    def add(self, table: pa.Table) -> None:
        """Add rows. Returns before the rows are written, but blocks until most earlier rows are encoded.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        """
        if 4 * self._waiting_rows >= self._unit_rows and 2 * table.num_rows >= self._unit_rows:
            # A smaller p-unit costs less than a concatenation of the waiting rows with this large table.
            self._begin(self._waiting_rows)
        if table.num_rows:
            self._waiting.append(table)
            self._waiting_rows += table.num_rows
        while self._waiting_rows >= self._unit_rows:
            self._begin(self._unit_rows)

    def end(self) -> None:
        """Start encoding the last rows. No more rows may follow.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        """
        if self._waiting_rows:
            self._begin(self._waiting_rows)

    def finish(self) -> tuple[Segment, ...]:
        """Make all rows durable; return their segments.

        Late files (`LocalFiles.late`) are durable only after a sync of the file system.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        """
        self.end()
        self._drain(0)
        if self._coded:
            self._publish()
        return tuple(self._segments)

    def _begin(self, rows: int) -> None:
        tables: list[pa.Table] = []
        left = rows
        while left:
            first = self._waiting[0]
            if first.num_rows <= left:
                tables.append(self._waiting.pop(0))
            else:
                tables.append(first.slice(0, left))
                self._waiting[0] = first.slice(left)
            left -= tables[-1].num_rows
        self._waiting_rows -= rows
        self._drain(_MAX_UNWRITTEN_PER_THREAD * self._coder.threads)
        self._coding.append((rows, self._coder.submit(tables, self._schema)))

    def _drain(self, leave: int) -> None:
        while len(self._coding) > leave:
            rows, future = self._coding.popleft()
            block = future.result()
            self._coded.append((rows, block))
            self._coded_bytes += len(block)
            if self._coded_bytes >= _SEGMENT_BYTES:
                self._publish()

    def _publish(self) -> None:
        units, at = [], 0
        for rows, block in self._coded:
            units.append(Unit(at, len(block), rows))
            at += len(block)
        name = f"{self._name}{new_id()}.segment"
        self._files.publish(name, *(block for _, block in self._coded))
        if not (isinstance(self._files, LocalFiles) and self._files.late):
            trace("persisted", segment=name)  # after late files are synced, the sink writes this line
        self._segments.append(Segment(name, tuple(units)))
        self._coded, self._coded_bytes = [], 0


def _decode_texts(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Decode dictionary-encoded columns that are plain texts in a schema."""
    for at, field in enumerate(schema):
        if is_coded_text(table.field(at).type, field.type):
            table = table.set_column(at, field, table.column(at).cast(field.type))
    return table


def cast_coded(column: pa.ChunkedArray[Any], field: pa.Field[Any]) -> pa.ChunkedArray[Any]:
    """Return a column with the field's type; encoded texts stay encoded unless the dictionary has a null."""
    # pyarrow cannot cast a null struct that has a non-nullable field, not even to its own type.
    if column.type.equals(field.type, check_metadata=True):
        return column
    if not is_coded_text(column.type, field.type):
        return column.cast(field.type)
    check_codes(column)
    if any(chunk.dictionary.null_count for chunk in column.chunks):
        return column.cast(field.type)
    return column


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `first` to `stop` - 1 of one p-unit. A reader's task reads pieces.

    Parameters
    ----------
    segment : str
        The file's name.
    at, size_bytes, rows : int
        The p-unit's position and size in the file, and its number of rows.
    first, stop : int
        The rows of the p-unit to read. For a compacted p-unit these are offsets, until `read_blocks` has
        found the rows.
    begin : int
        The offset of the p-unit's first row.
    compacted : bool
        Whether the p-unit is of a compacted segment, and so has rows for only some of its offsets.
    """

    segment: str
    at: int
    size_bytes: int
    rows: int
    first: int
    stop: int
    begin: int = 0
    compacted: bool = False

    @property
    def end(self) -> int:
        """The offset after the piece."""
        return self.stop if self.compacted else self.begin + self.stop

    @property
    def most_rows(self) -> int:
        """The maximum number of the piece's rows, for dividing work among tasks."""
        return min(self.rows, self.stop - self.first)


def pieces(commits: Iterable[Commit], start: int, stop: int) -> Iterator[Piece]:
    """Return the pieces that hold rows `start` to `stop` - 1 of a stream, in order."""
    for commit in commits:
        offset = commit.offset
        for segment in commit.segments:
            for unit in segment.units:
                end = offset + unit.offsets
                first, last = max(start, offset), min(stop, end)
                if first < last:
                    compacted = unit.span is not None
                    base = 0 if compacted else offset
                    yield Piece(
                        segment.name, unit.at, unit.size_bytes, unit.rows,
                        first - base, last - base, offset, compacted,
                    )  # fmt: skip
                offset = end


def read_blocks(
    files: Files, wanted: Sequence[Piece], schema: pa.Schema
) -> Iterator[tuple[Piece, TableBlock]]:
    """Yield pieces with their p-units, still encoded. Consecutive p-units are read in one request.

    Parameters
    ----------
    files : Files
        The directory of segments.
    wanted : sequence of Piece
        The pieces to read.
    schema : pyarrow.Schema
        The schema of the p-stream and of its p-units.

    Raises
    ------
    CorruptDataError
        If a segment is missing or cut, or the directory of a p-unit is damaged or belongs to another table.
    UnavailableError
        If the file system refuses.
    """
    from penstock.compression import TableBlock

    at = 0
    while at < len(wanted):
        begin = wanted[at]
        end, size = at + 1, begin.size_bytes
        while (
            end < len(wanted)
            and wanted[end].segment == begin.segment
            and wanted[end].at == begin.at + size
            and size < _SEGMENT_BYTES
        ):
            size += wanted[end].size_bytes
            end += 1
        content = _read(files, begin, size)
        for piece in wanted[at:end]:
            here = piece.at - begin.at
            block = TableBlock(
                content[here : here + piece.size_bytes],
                file=files.path_of(piece.segment),
                offset=piece.at,
                schema=schema,
            )
            if block.rows != piece.rows or block.size_bytes != piece.size_bytes:
                raise CorruptDataError(
                    "a p-unit differs from the committed p-unit",
                    file=files.path_of(piece.segment),
                    offset=piece.at,
                )
            found = _find_rows(piece, block) if piece.compacted else piece
            if found.first < found.stop:
                yield found, block
        at = end


def _find_rows(piece: Piece, block: TableBlock) -> Piece:
    """Return a piece of a compacted p-unit with `first` and `stop` converted from offsets to rows."""
    import numpy as np

    offsets = block.read([OFFSET])[0].to_numpy()
    first, stop = np.searchsorted(offsets, [piece.first, piece.stop]).tolist()
    return replace(piece, first=first, stop=stop)


def stop_after(files: Files, schema: pa.Schema, wanted: Iterable[Piece], rows: int) -> int | None:
    """Return the offset after the first `rows` rows of pieces; None if the pieces have fewer rows.

    Raises
    ------
    CorruptDataError, UnavailableError
        As for `read_blocks`.
    """
    for piece in wanted:
        if not piece.compacted:
            found = piece.stop - piece.first
            if found >= rows:
                return piece.begin + piece.first + rows
            rows -= found
            continue
        for one, block in read_blocks(files, [piece], schema):
            found = one.stop - one.first
            if found >= rows:
                last = one.first + rows - 1
                return int(block.read([OFFSET], last, last + 1)[0][0].as_py()) + 1
            rows -= found
    return None


def _read(files: Files, begin: Piece, size: int) -> memoryview[Any]:
    file = files.path_of(begin.segment)
    try:
        content = memoryview(files.read_range(begin.segment, begin.at, size))
    except FileNotFoundError:
        raise CorruptDataError(
            "a segment of the p-stream is missing", file=file, hint="it was deleted, or its rows are released"
        ) from None
    if content.nbytes < size:
        raise CorruptDataError(
            "a segment of the p-stream is cut", file=file, offset=begin.at, size_bytes=content.nbytes
        )
    return content
