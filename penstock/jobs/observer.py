"""Staleness as the application sees it, computed only from arrivals and deliveries."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Observer", "Sample"]

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sample:
    """The staleness of all keys at one moment, in ms."""

    at_us: int
    average_ms: float
    p95_ms: float


class Observer:
    """Compares deliveries with the full record of arrivals.

    The staleness of a key is the time since the arrival of its oldest update that is newer than the last
    delivered update, or zero if there is none (UpStream §3.3). Keys without updates are fresh.

    Parameters
    ----------
    key : int64 array
        The key of each update, 0 to `keys` - 1, in the order of arrival: update i has sequence number i.
    arrived_us : int64 array
        The arrival time of each update; ascending.
    keys : int
        The number of keys.
    """

    def __init__(self, key: Integers, arrived_us: Integers, keys: int) -> None:
        self._arrived_us = arrived_us
        self._keys = keys
        # `_grouped` has the updates by key and then by time. `_place` has the place of each update in
        # `_grouped`.
        self._grouped = np.argsort(key, kind="stable")
        self._place = np.empty(len(key), np.int64)
        self._place[self._grouped] = np.arange(len(key))
        bounds = np.searchsorted(key[self._grouped], np.arange(keys + 1))
        self._first, self._end = bounds[:-1], bounds[1:]
        self._key = key
        self._lock = threading.Lock()
        self._deliveries: list[tuple[int, Integers]] = []

    @property
    def delivered(self) -> int:
        """The number of updates delivered so far."""
        with self._lock:
            return sum(len(sequences) for _, sequences in self._deliveries)

    def count_arrived(self, at_us: int) -> int:
        """Return how many updates had arrived by `at_us`."""
        return int(np.searchsorted(self._arrived_us, at_us, side="right"))

    def deliver(self, sequences: Integers, at_us: int) -> None:
        """Record that these updates reached the application; calls must be in order of time."""
        with self._lock:
            self._deliveries.append((at_us, sequences.astype(np.int64)))

    def samples(self, at_us: Integers) -> list[Sample]:
        """Return the staleness at each moment of `at_us`, which ascends."""
        with self._lock:
            deliveries = list(self._deliveries)
        next_place = self._first.copy()
        samples = []
        for moment in at_us:
            while deliveries and deliveries[0][0] <= moment:
                _, sequences = deliveries.pop(0)
                np.maximum.at(next_place, self._key[sequences], self._place[sequences] + 1)
            samples.append(self._sample(next_place, int(moment)))
        return samples

    def _sample(self, next_place: Integers, moment: int) -> Sample:
        pending = next_place < self._end
        oldest = self._arrived_us[self._grouped[next_place[pending]]]
        staleness = np.zeros(self._keys)
        staleness[: len(oldest)] = np.maximum(moment - oldest, 0) / 1000
        return Sample(
            moment,
            float(staleness.mean()),
            float(np.percentile(staleness, 95)),
        )
