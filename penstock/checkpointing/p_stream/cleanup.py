"""The rule that says when a p-stream deletes rows and log entries that nobody needs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CleanupRule"]


@dataclass(frozen=True, slots=True)
class CleanupRule:
    """The amounts that must be deletable, so that one deletion serves many commits; tests choose less.

    Parameters
    ----------
    min_trim_bytes, min_trim_commits : int
        Released rows are deleted once they have this many bytes or came in this many commits.
    min_log_entries : int
        Entries of the log are replaced by a start once there are this many, if few commits are kept.
    """

    min_trim_bytes: int = 16 << 20
    min_trim_commits: int = 16
    min_log_entries: int = 64

    def allows_trim(self, size_bytes: int, commits: int) -> bool:
        """Return whether released commits of this size and number are worth a deletion."""
        return size_bytes >= self.min_trim_bytes or commits >= self.min_trim_commits

    def allows_compaction(self, entries: int, commits: int) -> bool:
        """Return whether a start may replace this many entries of a log that keeps this many commits."""
        return entries >= max(self.min_log_entries, commits // 4)
