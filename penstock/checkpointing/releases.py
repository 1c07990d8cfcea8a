"""Delay releases until the checkpoint that justifies them is durable.

Spark reports a micro-batch as done when it is in the checkpoint. But Spark does not sync the checkpoint. If
the micro-batch's rows were released at once, they would be missing after a power cut, when Spark goes back to
an older micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock import _durable
from penstock._clock import monotonic_s

__all__ = ["Releases"]

_PAUSE_PER_SYNC = 19.0
"""The pause after a sync, in multiples of the sync's duration. So syncs take at most 5 % of the time."""


class Releases:
    """The pending releases of one process. For each key, only the newest release is kept.

    One thread uses it. If a release never runs, a later release of its key covers it.

    Parameters
    ----------
    clock : callable
        A function that returns the seconds of a clock that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = monotonic_s) -> None:
        self._clock = clock
        self._pending: dict[str, Callable[[], object]] = {}
        self._not_before_s = 0.0

    def add(self, key: str, release: Callable[[], object]) -> None:
        """Add a release that is safe once everything written on this machine so far is durable."""
        self._pending[key] = release

    def run(self, *, now: bool = False) -> bool:
        """Sync all disks and run the pending releases, except soon after a sync; return whether releases ran.

        With `now`, pending releases run even soon after a sync.

        Raises
        ------
        PenstockError
            The error of a release; later releases are dropped.
        """
        begin = self._clock()
        if not self._pending or (begin < self._not_before_s and not now):
            return False
        # The checkpoint may be on any disk: Spark passes its location neither to readers nor to workers.
        _durable.sync_everything()
        end = self._clock()
        self._not_before_s = end + _PAUSE_PER_SYNC * (end - begin)
        pending, self._pending = self._pending, {}
        for release in pending.values():
            release()
        return True
