"""When a p-stream deletes rows and log entries that nobody needs, and what it has deleted."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CleanupRule", "Trimmed"]


@dataclass(frozen=True, slots=True)
class CleanupRule:
    """The amounts that must be deletable, so that one deletion serves many commits; tests choose less.

    Parameters
    ----------
    min_trim_bytes, min_trim_commits : int
        Released rows are deleted once they have this many bytes or came in this many commits.
    min_log_entries : int
        Entries of the log are replaced by a start once there are this many, if few commits are kept.
    min_tail_rows : int
        An update log is compacted once this many rows came since, and at least as many as it kept.
    """

    min_trim_bytes: int = 16 << 20
    min_trim_commits: int = 16
    min_log_entries: int = 64
    min_tail_rows: int = 65_536

    def allows_trim(self, size_bytes: int, commits: int) -> bool:
        """Return whether released commits of this size and number are worth a deletion."""
        return size_bytes >= self.min_trim_bytes or commits >= self.min_trim_commits

    def allows_shortening(self, entries: int, commits: int) -> bool:
        """Return whether a start may replace this many entries of a log that keeps this many commits."""
        return entries >= max(self.min_log_entries, commits // 4)

    def allows_compaction(self, kept: int, tail: int, added: int) -> bool:
        """Return whether an update log is to be compacted after a commit of `added` rows.

        Of several writers, the one whose commit passes the limit compacts; while others pass it again, they
        do, too, in case the first one has died.

        Parameters
        ----------
        kept, tail : int
            The rows that the last compaction kept, and those that came since, with the added ones.
        added : int
            The rows of the commit.
        """
        limit = max(kept, self.min_tail_rows)
        return tail // limit > (tail - added) // limit


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The result of `PStream.trim`.

    Parameters
    ----------
    start : int
        The first row that is kept.
    segments : int
        The number of files deleted.
    size_bytes : int
        Their bytes, as far as known.
    """

    start: int
    segments: int = 0
    size_bytes: int = 0
