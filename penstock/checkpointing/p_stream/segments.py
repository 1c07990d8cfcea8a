"""Segments: files of p-units, each coded by itself, written and read in large pieces.

A segment is what `penstock.compression.BlockWriter` writes: the blocks of its p-units, one after the
other. It is immutable, has a name of its own, and is seen by nobody before a commit names it.

What codes p-units is loaded by those who read or write rows, not by those who plan it.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock._clock import new_id
from penstock.checkpointing.p_stream.log_record import Commit, Segment, Unit
from penstock.checkpointing.p_stream.threads import Threads
from penstock.checkpointing.trace import trace
from penstock.compression.kinds import is_coded_text
from penstock.errors import CorruptDataError

if TYPE_CHECKING:
    from penstock.checkpointing.files import Files
    from penstock.compression import Chooser, Goal, TableBlock

__all__ = ["UNIT_ROWS", "Coder", "Piece", "SegmentWriter", "pieces", "read_blocks", "writer_of"]

UNIT_ROWS = 65_536
"""Rows of a p-unit: a column of 8 bytes fits a core's second cache, and its fixed cost is below 1 %."""

_SEGMENT_BYTES = 32 << 20
_AHEAD = 4
"""P-units that may be coded and not written yet, for each thread that codes."""

_NAME = re.compile(r"(?P<writer>.+)-(?P<batch>\d{12})-(?P<part>\d{4,})-(?P<id>[0-9a-f]{32})\.segment")


def writer_of(name: str) -> tuple[str, int] | None:
    """Return the writer and the batch in a segment's name; None if it is none."""
    found = _NAME.fullmatch(name)
    return (found["writer"], int(found["batch"])) if found else None


class Coder:
    """Codes p-units with several threads, each with a chooser of its own.

    Parameters
    ----------
    goal : str or Goal
        What the choosers minimise.
    error_bounds : mapping of str to float, optional
        Columns that may lose precision; see `penstock.compression.Chooser`.
    codecs : mapping of str to str, optional
        Cascades for columns that no chooser decides about.
    threads : int, optional
        As many as this process may use cores, at most 4, where it is not given.
    """

    def __init__(
        self,
        goal: str | Goal = "balanced",
        *,
        error_bounds: Mapping[str, float] | None = None,
        codecs: Mapping[str, str] | None = None,
        threads: int | None = None,
    ) -> None:
        self.threads = threads or min(4, len(os.sched_getaffinity(0)))
        self._of_thread = threading.local()
        self._choosers: list[Chooser] = []
        self._goal: str | Goal = goal
        self._error_bounds = dict(error_bounds or {})
        self._codecs = codecs
        self._chooser()  # a goal or bound that cannot be is refused here
        self._pool = Threads(self.threads, "penstock-coder") if self.threads > 1 else None

    def _chooser(self) -> Chooser:
        from penstock.compression import Chooser

        return Chooser(self._goal, error_bounds=self._error_bounds)

    def submit(self, tables: Sequence[pa.Table], schema: pa.Schema | None = None) -> Future[bytes]:
        """Begin to code tables as one p-unit, of their schema unless told; see `encode_table`."""
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

        chooser = getattr(self._of_thread, "chooser", None)
        if chooser is None:
            chooser = self._of_thread.chooser = self._chooser()
            self._choosers.append(chooser)
        if schema is not None and any(not table.schema.equals(tables[0].schema) for table in tables):
            tables = [_alike(table, schema) for table in tables]
        return encode_table(pa.concat_tables(tables), chooser=chooser, codecs=self._codecs, schema=schema)

    def blocks(self) -> tuple[int, int]:
        """Return how many blocks of columns choosers decided about, and in how many a value did not fit."""
        known = [one for chooser in self._choosers for one in list(chooser.columns.values())]
        return sum(one.blocks for one in known), sum(one.deoptimised for one in known)

    def close(self) -> None:
        """Wait for what is being coded and let the threads end."""
        if self._pool is not None:
            self._pool.close()


class SegmentWriter:
    """Writes the rows of one commit, or of one task's part of it, as segments.

    Parameters
    ----------
    files : Files
        The directory of segments.
    coder : Coder
        Codes the p-units; it stays the caller's.
    writer, batch, part : str, int, int
        Who writes, for the names.
    unit_rows : int
        The most rows of a p-unit.
    schema : pyarrow.Schema, optional
        The p-stream's, where texts of tables may be dictionaries of such.
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
        """Add rows. Returns before they are written, but not before most of those before them are coded.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        """
        if 4 * self._waiting_rows >= self._unit_rows and 2 * table.num_rows >= self._unit_rows:
            # Between large tables a smaller p-unit costs less than to put one together of both.
            self._begin(self._waiting_rows)
        if table.num_rows:
            self._waiting.append(table)
            self._waiting_rows += table.num_rows
        while self._waiting_rows >= self._unit_rows:
            self._begin(self._unit_rows)

    def end(self) -> None:
        """Begin to code the last rows: none follow.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        """
        if self._waiting_rows:
            self._begin(self._waiting_rows)

    def finish(self) -> tuple[Segment, ...]:
        """Make all rows durable; return where they are.

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
        taken: list[pa.Table] = []
        left = rows
        while left:
            first = self._waiting[0]
            if first.num_rows <= left:
                taken.append(self._waiting.pop(0))
            else:
                taken.append(first.slice(0, left))
                self._waiting[0] = first.slice(left)
            left -= taken[-1].num_rows
        self._waiting_rows -= rows
        self._drain(_AHEAD * self._coder.threads)
        self._coding.append((rows, self._coder.submit(taken, self._schema)))

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
        trace("persisted", segment=name)
        self._segments.append(Segment(name, tuple(units)))
        self._coded, self._coded_bytes = [], 0


def _alike(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the texts of a schema plain."""
    for at, field in enumerate(schema):
        if is_coded_text(table.field(at).type, field.type):
            table = table.set_column(at, field, table.column(at).cast(field.type))
    return table


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `first` to `stop` of one p-unit; what a reader's task is told.

    Parameters
    ----------
    segment : str
        The file.
    at, size_bytes, rows : int
        The p-unit's place in it, and its rows.
    first, stop : int
        The rows of the p-unit that are meant.
    """

    segment: str
    at: int
    size_bytes: int
    rows: int
    first: int
    stop: int


def pieces(commits: Iterable[Commit], start: int, stop: int) -> Iterator[Piece]:
    """Return where the rows of a stream from `start` to before `stop` are, in their order."""
    for commit in commits:
        offset = commit.offset
        for segment in commit.segments:
            for unit in segment.units:
                first, last = max(start - offset, 0), min(stop - offset, unit.rows)
                if first < last:
                    yield Piece(segment.name, unit.at, unit.size_bytes, unit.rows, first, last)
                offset += unit.rows


def read_blocks(
    files: Files, wanted: Sequence[Piece], schema: pa.Schema
) -> Iterator[tuple[Piece, TableBlock]]:
    """Return the p-units of pieces, still coded. Those that follow one another are read at once.

    Parameters
    ----------
    files : Files
        The directory of segments.
    wanted : sequence of Piece
        What to read.
    schema : pyarrow.Schema
        The p-stream's, which the p-units have.

    Raises
    ------
    CorruptDataError
        If a segment is missing or cut, or the directory of a p-unit is damaged, or of another table.
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
                    "a p-unit is not the one that was committed",
                    file=files.path_of(piece.segment),
                    offset=piece.at,
                )
            yield piece, block
        at = end


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
