"""The rule by which a p-stream deletes unneeded rows and log entries, and the result of a deletion."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CleanupRule", "Trimmed"]


@dataclass(frozen=True, slots=True)
class CleanupRule:
    """The least amounts of unneeded data for which a deletion runs, so that one deletion serves many commits.

    Parameters
    ----------
    min_trim_bytes, min_trim_commits : int
        Released rows are deleted once they have this many bytes or belong to this many commits.
    min_log_entries : int
        Log entries are replaced by a start once there are this many of them, if few commits are kept.
    min_tail_rows : int
        An update log is compacted once this many rows, and at least as many as the last compaction kept, have
        been added.
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

        The writer whose commit passes the limit compacts. A writer that passes the limit again also compacts,
        in case the first writer has died.

        Parameters
        ----------
        kept, tail : int
            The number of rows that the last compaction kept, and the number of rows committed since,
            including `added`.
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
        The bytes of these files, as far as known.
    """

    start: int
    segments: int = 0
    size_bytes: int = 0
