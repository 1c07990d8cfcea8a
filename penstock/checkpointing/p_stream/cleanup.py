"""The rule that decides when a p-stream deletes unneeded rows and log entries, and a deletion's result."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CleanupRule", "TrimResult"]


@dataclass(frozen=True, slots=True)
class CleanupRule:
    """The amounts of unneeded data that start a deletion. One deletion serves many commits.

    Parameters
    ----------
    min_trim_bytes, min_trim_commits : int
        Released rows are deleted once they have this many bytes or belong to this many commits.
    min_log_entries : int
        A start file (`penstock.checkpointing.p_stream.log`) replaces log entries once there are this many
        entries, if few commits are kept.
    min_tail_rows : int
        An update log is compacted once the number of added rows reaches both this limit and the number of
        rows that the last compaction kept.
    """

    min_trim_bytes: int = 16 << 20
    min_trim_commits: int = 16
    min_log_entries: int = 64
    min_tail_rows: int = 65_536

    def allows_trim(self, size_bytes: int, commits: int) -> bool:
        """Return whether released commits of this size and number are worth a deletion."""
        return size_bytes >= self.min_trim_bytes or commits >= self.min_trim_commits

    def allows_shortening(self, entries: int, commits: int) -> bool:
        """Return whether a start file may replace `entries` entries of a log that keeps `commits` commits."""
        return entries >= max(self.min_log_entries, commits // 4)

    def allows_compaction(self, kept: int, tail: int, added: int) -> bool:
        """Return whether an update log must be compacted after a commit of `added` rows.

        The writer whose commit passes the limit compacts. A writer that passes the limit again also compacts,
        in case the first writer has died.

        Parameters
        ----------
        kept, tail : int
            The number of rows that the last compaction kept, and the number of rows committed since,
            including `added`.
        added : int
            The number of rows of the commit.
        """
        limit = max(kept, self.min_tail_rows)
        return tail // limit > (tail - added) // limit


@dataclass(frozen=True, slots=True)
class TrimResult:
    """The result of `PStream.trim`.

    Parameters
    ----------
    start : int
        The first row that is kept.
    segments : int
        The number of files deleted.
    size_bytes : int
        The total size of these files, as far as it is known.
    """

    start: int
    segments: int = 0
    size_bytes: int = 0
