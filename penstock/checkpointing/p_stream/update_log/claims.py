"""Claims: rows of an update log that a reader may read again, and must find unchanged.

Before a reader plans a micro-batch, it claims the rows in the log. If a later compaction replaces commits
with claimed rows, the log keeps the old commits for the reader. So a micro-batch that runs again reads the
same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from penstock.checkpointing.p_stream.log_record import Commit, Compaction, ReaderClaim, View
from penstock.checkpointing.p_stream.segments import Piece, pieces

__all__ = [
    "claimed_pieces",
    "covers",
    "keep_view",
    "needed_segments",
    "next_compaction",
    "renew",
    "segment_names",
]


def covers(claims: Mapping[str, ReaderClaim], reader: str, start: int, stop: int) -> bool:
    """Return whether a reader has claimed rows `start` to `stop` - 1, and no earlier rows."""
    known = claims.get(reader)
    return known is not None and known.start == start and known.stop >= stop


def renew(known: ReaderClaim | None, start: int, stop: int) -> ReaderClaim:
    """Return the new claim of a reader that has released the rows before `start` and will read to `stop`."""
    if known is None or known.stop <= start:
        return ReaderClaim(start, stop)
    start = max(start, known.start)
    views = tuple(
        View(view.stop, tuple(commit for commit in view.commits if commit.end > start))
        for view in known.views
        if view.stop > start
    )
    return ReaderClaim(start, max(stop, known.stop), views)


def keep_view(claimed: ReaderClaim, commits: Sequence[Commit], end: int) -> ReaderClaim:
    """Return a claim, changed so that its rows before `end` are read from these commits.

    Rows that the claim already keeps do not change.
    """
    first = claimed.views[-1].stop if claimed.views else claimed.start
    stop = min(claimed.stop, end)
    if first >= stop:
        return claimed
    kept = tuple(commit for commit in commits if commit.end > first and commit.offset < stop)
    return replace(claimed, views=(*claimed.views, View(stop, kept)))


def claimed_pieces(
    claimed: ReaderClaim | None, commits: Sequence[Commit], start: int, stop: int
) -> Iterator[Piece]:
    """Return the pieces that hold rows `start` to `stop` - 1, as a reader with this claim reads them.

    Parameters
    ----------
    claimed : ReaderClaim, optional
        The reader's claim.
    commits : sequence of Commit
        The current commits, which have the rows that the claim does not keep.
    start, stop : int
        The offsets of the first row, and of the row after the last.
    """
    for view in claimed.views if claimed is not None else ():
        until = min(stop, view.stop)
        if start < until:
            yield from pieces(view.commits, start, until)
            start = until
    yield from pieces((commit for commit in commits if commit.end > start), start, stop)


def needed_segments(commits: Iterable[Commit], claims: Iterable[ReaderClaim]) -> Iterator[str]:
    """Return the names of all segments that `commits`, or the commits that `claims` keep, use."""
    kept = (commit for claimed in claims for view in claimed.views for commit in view.commits)
    return segment_names(chain(commits, kept))


def segment_names(commits: Iterable[Commit]) -> Iterator[str]:
    """Return the names of all segments that the commits use."""
    return (segment.name for commit in commits for segment in commit.segments)


def next_compaction(newest: Compaction | None) -> int:
    """Return the number of the compaction after the newest compaction."""
    return 0 if newest is None else newest.commit.batch + 1
