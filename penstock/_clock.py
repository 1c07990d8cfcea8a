"""The only door to time, ids and randomness, so that tests and simulations can replace them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

__all__ = ["Clock", "SimulatedClock", "monotonic_s", "new_id", "now_us", "pause"]

Clock = Callable[[], int]
"""Returns the time in microseconds since the Unix epoch."""


def now_us() -> int:
    """Return the wall clock's time in microseconds since the Unix epoch."""
    return time.time_ns() // 1000


def monotonic_s() -> float:
    """Return seconds on a clock that never goes back, for measuring durations."""
    return time.perf_counter()


def pause(seconds: float) -> None:
    """Sleep between polls of something that sends no notification."""
    time.sleep(seconds)  # a poll: another process's commit sends no notification


def new_id() -> str:
    """Return a unique id of 32 hexadecimal digits."""
    return uuid.uuid4().hex


class SimulatedClock:
    """A clock that moves only by `advance`. Times are in microseconds."""

    def __init__(self, start_us: int = 0) -> None:
        self._now_us = start_us

    def __call__(self) -> int:
        """Return the simulated time."""
        return self._now_us

    def advance(self, duration_us: int) -> None:
        """Advance the clock.

        Raises
        ------
        ValueError
            If `duration_us` is negative.
        """
        if duration_us < 0:
            raise ValueError("a clock does not go back")
        self._now_us += duration_us
