"""Compact an update log: replace its rows by the newest row of each key.

Rows keep their offsets. A reader at any offset continues with the newest rows after that offset. It misses
nothing, because it has already read the newest row of every other key. (docs/design/0018-update-logs.md)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock import _clock
from penstock._failpoints import failpoint
from penstock.checkpointing.p_stream.description import COMPACTOR
from penstock.checkpointing.p_stream.log_record import Commit, Compaction, Segment
from penstock.checkpointing.p_stream.segments import (
    OFFSET,
    UNIT_ROWS,
    Coder,
    SegmentWriter,
    pieces,
    read_blocks,
)
from penstock.checkpointing.p_stream.update_log.claims import next_compaction
from penstock.checkpointing.p_stream.update_log.newest import newest_rows
from penstock.checkpointing.p_stream.update_log.spec import UpdateLog
from penstock.errors import CorruptDataError, InvalidUsageError

if TYPE_CHECKING:
    from penstock.checkpointing.p_stream.stream import PStream
    from penstock.compression import Goal

__all__ = ["CompactionResult", "compact"]

_LOGGER = logging.getLogger(__name__)

_MARKS = 64
"""The approximate number of marks that a compaction keeps. A mark is an offset with the time of its
commit."""

_Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The result of a compaction.

    Parameters
    ----------
    end : int
        The end of the compacted rows.
    before, rows : int
        The number of rows before and after the compaction.
    deletes : int
        The number of rows that delete their key.
    segments : int
        The number of deleted files, which an earlier compaction had replaced.
    """

    end: int
    before: int
    rows: int
    deletes: int
    segments: int


def compact(
    stream: PStream, *, goal: str | Goal = "balanced", threads: int | None = None, unit_rows: int = UNIT_ROWS
) -> CompactionResult | None:
    """Replace all rows of an update log by the newest row of each key.

    Any process may call this function at any time, while other processes write and read. If two processes
    compact at once, only one of them has an effect. Steps: 1. read keys and times, 2. write the newest rows
    into segments, 3. replace the commits in the log by these segments, 4. delete segments that are no longer
    needed.

    Parameters
    ----------
    stream : PStream
        A view of the log that no other thread uses.
    goal, threads, unit_rows
        As for `Coder` and `SegmentWriter`.

    Returns
    -------
    CompactionResult or None
        None if there are no new rows, or another process compacted during the call.

    Raises
    ------
    InvalidUsageError
        If the p-stream is not an update log.
    CorruptDataError, UnavailableError
        If the data is damaged, or the file system refuses.
    """
    log = stream.update_log
    if log is None:
        raise InvalidUsageError(
            "the p-stream is not an update log",
            location=stream.files.location,
            hint="only a p-stream that was created with key= and time= can be compacted",
        )
    stream.refresh()
    seen = stream.log.compaction
    if not stream.log.commits or (seen is not None and seen.end == stream.end):
        return None
    before = sum(commit.rows for commit in stream.log.commits)
    try:
        made = _rewrite(stream, log, Coder(goal, threads=threads), unit_rows)
    except CorruptDataError:
        stream.refresh()
        if stream.log.compaction == seen:
            raise
        return None  # another process has compacted twice, and deleted the rows to read
    failpoint("compaction.after_segments")
    if not stream.log.replace(made):
        stream.sweep()
        return None
    failpoint("compaction.after_commit")
    stream.log.shorten()
    failpoint("compaction.after_shortening")
    segments = len(stream.sweep())
    rows = made.commit.rows
    _LOGGER.info(
        "compacted [p_stream=%s end=%d before=%d rows=%d deletes=%d segments=%d]",
        stream.files.location, made.end, before, rows, made.deletes, segments,
    )  # fmt: skip
    return CompactionResult(made.end, before, rows, made.deletes, segments)


def _rewrite(stream: PStream, log: UpdateLog, coder: Coder, unit_rows: int) -> Compaction:
    """Write the newest row of each key; return the compaction of all rows up to the end of the view."""
    commits, end, now_us = list(stream.log.commits), stream.end, _clock.now_us()
    batch = next_compaction(stream.log.compaction)
    marks = _marks(stream.log.compaction, commits)
    try:
        rows = _read(stream, commits, end, [*log.columns(stream.schema), OFFSET])
        newest = newest_rows(rows, log.key, log.time)
        offsets = rows.column(OFFSET).to_numpy()[newest]
        deletes = log.deletes(rows.drop_columns([OFFSET]).take(newest))
        # A reader that has not passed a delete may have read an older row of the deleted key.
        passed = min(stream.readers().values(), default=end)
        expired = max((row for row, time in marks if time <= now_us - log.keep_deletes_us), default=0)
        keep = ~(deletes & (offsets < min(passed, expired)))
        del rows
        segments = SegmentWriter(
            stream.segments, coder, COMPACTOR, batch, unit_rows=unit_rows, schema=_with_offset(stream.schema)
        )
        for table in _select(stream, commits, end, offsets[keep]):
            segments.add(table)
        written = segments.finish()
    finally:
        coder.close()
    commit = Commit(COMPACTOR, batch, "", 0, now_us, _with_spans(written, offsets[keep], end))
    kept_marks = _thin(marks, log.keep_deletes_us, now_us)
    return Compaction(commit, end, int(np.count_nonzero(deletes & keep)), kept_marks)


def _with_offset(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(OFFSET, pa.int64(), nullable=False))


def _tables(stream: PStream, commits: Sequence[Commit], end: int, names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield columns of all rows before `end`, with their offsets, one p-unit at a time."""
    wanted = list(pieces(commits, 0, end))
    stored = [name for name in names if name != OFFSET]
    for piece, block in read_blocks(stream.segments, wanted, stream.schema):
        table = pa.Table.from_batches([block.read(stored, piece.first, piece.stop)])
        offsets = block.read([OFFSET])[0] if piece.compacted else _numbers(piece.begin, piece.rows)
        yield table.append_column(pa.field(OFFSET, pa.int64(), nullable=False), offsets)


def _numbers(first: int, count: int) -> pa.Array[Any]:
    return pa.array(np.arange(first, first + count))


def _read(stream: PStream, commits: Sequence[Commit], end: int, names: Sequence[str]) -> pa.Table:
    return pa.concat_tables(_tables(stream, commits, end, names))


def _select(stream: PStream, commits: Sequence[Commit], end: int, offsets: _Ints) -> Iterator[pa.Table]:
    """Yield the rows at these ascending offsets, one p-unit at a time."""
    for table in _tables(stream, commits, end, [*stream.schema.names, OFFSET]):
        own: Any = table.column(OFFSET).to_numpy()
        first, stop = np.searchsorted(offsets, [own[0], own[-1] + 1])
        if first < stop:
            yield table.take(np.searchsorted(own, offsets[first:stop]))


def _with_spans(segments: Sequence[Segment], offsets: _Ints, end: int) -> tuple[Segment, ...]:
    """Set the spans of the p-units, so that they cover all offsets before `end`."""
    done, row = 0, 0
    made = []
    for segment in segments:
        units = []
        for unit in segment.units:
            row += unit.rows
            stop = end if row == offsets.size else int(offsets[row - 1]) + 1
            units.append(replace(unit, span=stop - done))
            done = stop
        made.append(replace(segment, units=tuple(units)))
    return tuple(made)


def _marks(before: Compaction | None, commits: Sequence[Commit]) -> list[tuple[int, int]]:
    """Return pairs of an offset, and a time at which all rows before the offset were committed."""
    marks = list(before.marks) if before is not None else []
    for commit in commits:
        if commit.writer != COMPACTOR:
            marks.append((commit.end, max(commit.time_us, marks[-1][1] if marks else commit.time_us)))
    return marks


def _thin(marks: Sequence[tuple[int, int]], keep_us: int, now_us: int) -> tuple[tuple[int, int], ...]:
    """Return the newest mark that is at least `keep_us` old, and some later marks, evenly spread."""
    first = max((place for place, (_, time) in enumerate(marks) if time <= now_us - keep_us), default=0)
    kept = list(marks[first : first + 1])
    for mark in marks[first + 1 :]:
        if mark[1] - kept[-1][1] >= keep_us // _MARKS:
            kept.append(mark)
    return tuple(kept)
