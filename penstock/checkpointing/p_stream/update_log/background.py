"""Compact an update log in parallel with the commits of its writer."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import TYPE_CHECKING

from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.checkpointing.p_stream.threads import Threads

if TYPE_CHECKING:
    from penstock.checkpointing.p_stream.stream import PStream
    from penstock.compression import Goal

__all__ = ["BackgroundCompactor", "compact_if_due", "is_due"]


def is_due(stream: PStream, added: int, cleanup: CleanupRule) -> bool:
    """Return whether an update log must be compacted after a commit of `added` rows; see `CleanupRule`."""
    if stream.update_log is None:
        return False
    kept = 0 if stream.log.compaction is None else stream.log.compaction.commit.rows
    tail = sum(commit.rows for commit in stream.log.commits) - kept
    return cleanup.allows_compaction(kept, tail, added)


def compact_if_due(stream: PStream, added: int, goal: str | Goal = "balanced") -> None:
    """Compact an update log in this thread, if a compaction is due after a commit of `added` rows.

    Raises
    ------
    CorruptDataError, UnavailableError
        If the data is damaged, or the file system refuses.
    """
    if is_due(stream, added, stream.cleanup):
        from penstock.checkpointing.p_stream.update_log.compaction import compact

        compact(stream, goal=goal)


class BackgroundCompactor:
    """Compacts an update log in a separate thread. It does nothing for other p-streams.

    Only the thread that commits may call it.

    Parameters
    ----------
    stream : PStream
        The writer's view of the log.
    location : str or path
        The p-stream's location.
    goal : str or Goal
        The goal for which codecs are chosen.
    cleanup : CleanupRule, optional
        The rule for compacting the log.
    """

    def __init__(
        self,
        stream: PStream,
        location: str | os.PathLike[str],
        goal: str | Goal,
        cleanup: CleanupRule | None,
    ) -> None:
        self._stream, self._location, self._goal, self._cleanup = stream, location, goal, cleanup
        self._thread = None if stream.update_log is None else Threads(1, "penstock-compactor")
        self._running: Future[None] | None = None

    def start_if_due(self, added: int) -> None:
        """Start a compaction if it is due after a commit of `added` rows and no compaction is running.

        Raises
        ------
        PenstockError
            If the previous compaction failed.
        """
        if self._thread is None:
            return
        if self._running is not None:
            if not self._running.done():
                return
            self._running.result()
        if is_due(self._stream, added, self._stream.cleanup):
            self._running = self._thread.submit(self._compact)

    def _compact(self) -> None:
        from penstock.checkpointing.p_stream.stream import PStream
        from penstock.checkpointing.p_stream.update_log.compaction import compact

        compact(PStream(self._location, cleanup=self._cleanup), goal=self._goal, threads=1)

    def close(self) -> None:
        """Wait for a running compaction, and end the thread.

        Raises
        ------
        PenstockError
            If the compaction failed.
        """
        if self._thread is not None:
            self._thread.close()
            if self._running is not None:
                self._running.result()
