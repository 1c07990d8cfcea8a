"""Releases, which wait until what proves them right is durable.

Spark says that a micro-batch is done when its checkpoint says so, which is not synced. What is released at
once is missing after a power cut, when Spark goes back to an older micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock import _durable
from penstock._clock import monotonic_s

__all__ = ["Releases"]

_PAUSE = 19.0
"""Pause after a sync, in multiples of its duration: syncs take at most a twentieth of the time."""


class Releases:
    """Pending releases of one process, of each key the newest.

    Used by one thread. A release that is never run is made up for by a later one of its key.

    Parameters
    ----------
    clock : callable
        Returns seconds on a clock that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = monotonic_s) -> None:
        self._clock = clock
        self._pending: dict[str, Callable[[], object]] = {}
        self._not_before_s = 0.0

    def add(self, key: str, release: Callable[[], object]) -> None:
        """Add a release that all proves right that this machine has written so far."""
        self._pending[key] = release

    def run(self, *, now: bool = False) -> bool:
        """Sync all disks, then do what is pending, unless it is too soon and not to be `now`; say which.

        Raises
        ------
        PenstockError
            What a release raises; those after it are given up.
        """
        begin = self._clock()
        if not self._pending or (begin < self._not_before_s and not now):
            return False
        # The checkpoint may be on any disk: Spark tells its location neither to readers nor to workers.
        _durable.sync_everything()
        end = self._clock()
        self._not_before_s = end + _PAUSE * (end - begin)
        pending, self._pending = self._pending, {}
        for release in pending.values():
            release()
        return True
