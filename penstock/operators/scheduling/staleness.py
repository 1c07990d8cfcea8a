"""Exact integration of staleness over time (UpStream §3.3, §5.1).

The staleness of a key is the time since its oldest pending update arrived; it is zero if no update is
pending. Between two events, staleness grows linearly from `low` to `high`, which adds ``(high**2 - low**2) /
2`` to its integral over time. So the average over time and keys is exact. Percentiles come from a histogram
of (time x keys), which can be merged. Each bin is 2 % wider than the one before, so percentiles are exact to
2 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._kernels import kernel
from penstock.operators.update_stream.stream import Integers

__all__ = ["Staleness", "StalenessMeter"]

_LOG_BIN_GROWTH = math.log(1.02)
_BINS = 1700
"""Bin 0 is [0, 1) µs; bin i is [1.02**(i-1), 1.02**i) µs; the last bin is open (above 12 years)."""

Floats = npt.NDArray[np.float64]


@kernel
def _bin(value: float, edges: Floats) -> int:
    if value < 1.0:
        return 0
    number = min(int(math.log(value) / _LOG_BIN_GROWTH) + 1, edges.shape[0] - 1)
    while edges[number] > value:
        number -= 1
    while number + 1 < edges.shape[0] and edges[number + 1] <= value:
        number += 1
    return number


@kernel
def _add(low: Integers, high: Integers, edges: Floats, mass: Floats, cover: Floats) -> float:
    """Add the time of each interval to the bins that it passes through; return the integral of staleness.

    `cover[i]` is the change from bin i - 1 to bin i in the number of intervals that cover the whole bin.
    """
    area = 0.0
    for i in range(low.shape[0]):
        a, b = float(low[i]), float(high[i])
        if b <= a:
            continue
        area += (b - a) * (a + b) / 2.0
        first, last = _bin(a, edges), _bin(b, edges)
        if first == last:
            mass[first] += b - a
            continue
        mass[first] += edges[first + 1] - a
        mass[last] += b - edges[last]
        cover[first + 1] += 1.0
        cover[last] -= 1.0
    return area


_EDGES: Floats = np.concatenate([[0.0], np.exp(_LOG_BIN_GROWTH * np.arange(_BINS))])


@dataclass(slots=True)
class Staleness:
    """The staleness of some keys over some time; `merge` adds up parts.

    Attributes
    ----------
    area : float
        Integral of the staleness over time, summed over keys, in µs².
    key_time : float
        The duration times the number of keys, in µs.
    longest_us : int
        The greatest staleness that any key reached, in µs.
    mass : dict of int to float
        Time x keys in each non-empty bin, in µs. Zero staleness is not counted.
    """

    area: float = 0.0
    key_time: float = 0.0
    longest_us: int = 0
    mass: dict[int, float] = field(default_factory=dict)

    @property
    def average_ms(self) -> float:
        """Average over time and keys, in ms; 0 if no time was measured."""
        return self.area / self.key_time / 1000 if self.key_time else 0.0

    @property
    def longest_ms(self) -> float:
        """The greatest staleness, in ms."""
        return self.longest_us / 1000

    def percentile_ms(self, share: float) -> float:
        """Return a percentile of staleness over time and keys, in ms; `share` is from 0 to 1."""
        stale = sum(self.mass.values())
        missing = share * max(self.key_time, stale) - max(self.key_time - stale, 0.0)
        if missing <= 0:
            return 0.0
        for number, amount in sorted(self.mass.items()):
            if missing <= amount:
                low, high = _EDGES[number], _EDGES[min(number + 1, _BINS)]
                return float(min(low + (high - low) * missing / amount, self.longest_us)) / 1000
            missing -= amount
        return self.longest_ms

    def _distribution(self) -> tuple[Floats, Floats]:
        """Return ascending values of staleness, and the time x keys with at most each value, in µs."""
        numbers = np.array(sorted(self.mass), np.intp)
        until = np.cumsum([
            max(self.key_time - sum(self.mass.values()), 0.0), *(self.mass[number] for number in numbers)
        ])  # fmt: skip
        low = _EDGES[numbers]
        high = np.maximum(_EDGES[np.minimum(numbers + 1, _BINS)], low)
        values = np.append(0.0, np.column_stack([low, high]))
        return values, np.append(until[0], np.column_stack([until[:-1], until[1:]]))

    def key_time_below_us(self, bounds_us: Sequence[float]) -> list[float]:
        """Return, for each of `bounds_us`, the time x keys with at most this staleness; all in µs."""
        values, cumulative = self._distribution()
        return [float(time) for time in np.interp(bounds_us, values, cumulative)]

    def sample_us(self, count: int) -> list[float]:
        """Return `count` evenly spaced percentiles in µs; none if no time was measured."""
        values, cumulative = self._distribution()
        if not cumulative[-1]:
            return []
        shares = (np.arange(count) + 0.5) / count * cumulative[-1]
        samples = np.minimum(np.interp(shares, cumulative, values), self.longest_us)
        return [float(sample) for sample in samples]

    def time_above(self, limit_us: float) -> float:
        """Return the time x keys above a staleness; all in µs."""
        if limit_us < 0:
            return max(self.key_time, sum(self.mass.values()))
        values, cumulative = self._distribution()
        return float(cumulative[-1] - np.interp(limit_us, values, cumulative))

    def exceeded_us(self, key_time: float) -> float | None:
        """Return, in µs, the staleness above which keys spent `key_time`; None if they spent less."""
        values, cumulative = self._distribution()
        if key_time > cumulative[-1] - cumulative[0]:
            return None
        return float(np.interp(cumulative[-1] - key_time, cumulative, values))

    def summary(self) -> dict[str, float]:
        """Return average, median, 95th percentile and maximum in ms."""
        return {
            "avg": round(self.average_ms, 3),
            "p50": round(self.percentile_ms(0.5), 3),
            "p95": round(self.percentile_ms(0.95), 3),
            "max": round(self.longest_ms, 3),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the fields as compact JSON values; the key time of each bin is rounded to 1 µs."""
        first = min(self.mass, default=0)
        numbers = range(first, max(self.mass, default=-1) + 1)
        return {
            "area": self.area,
            "key_time": self.key_time,
            "longest_us": self.longest_us,
            "first_bin": first,
            "mass": [round(self.mass.get(number, 0.0)) for number in numbers],
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Staleness:
        """Restore staleness from the output of `to_json`."""
        numbered = enumerate(value["mass"], value["first_bin"])
        mass = {number: float(amount) for number, amount in numbered if amount}
        return Staleness(value["area"], value["key_time"], value["longest_us"], mass)

    @staticmethod
    def merge(parts: Iterable[Staleness]) -> Staleness:
        """Merge the staleness of disjoint `parts`."""
        merged = Staleness()
        for part in parts:
            merged.area += part.area
            merged.key_time += part.key_time
            merged.longest_us = max(merged.longest_us, part.longest_us)
            if not merged.mass:
                merged.mass = dict(part.mass)
                continue
            for number, amount in part.mass.items():
                merged.mass[number] = merged.mass.get(number, 0.0) + amount
        return merged


class StalenessMeter:
    """A meter that adds up staleness until `take` is called."""

    def __init__(self) -> None:
        self._mass = np.zeros(_BINS + 1)
        self._cover = np.zeros(_BINS + 1)
        self._taken = Staleness()

    def add(self, arrived_us: Integers, begin_us: Integers, end_us: int) -> None:
        """Count the time from `begin_us` to `end_us` for each key; skip keys for which this time is empty.

        Parameters
        ----------
        arrived_us : int64 array
            Arrival time of each key's oldest pending update.
        begin_us : int64 array
            Time up to which the key's staleness is already counted.
        """
        if not len(arrived_us):
            return
        high = end_us - arrived_us
        self._taken.area += _add(begin_us - arrived_us, high, _EDGES, self._mass, self._cover)
        grown = high[end_us > begin_us]
        if len(grown):
            self._taken.longest_us = max(self._taken.longest_us, int(grown.max()))

    def take(self, key_time: float) -> Staleness:
        """Return the staleness added since the last call, over `key_time` (µs x keys)."""
        staleness, self._taken = self._taken, Staleness()
        staleness.key_time = key_time
        widths = np.append(np.diff(_EDGES), 0.0)
        mass = self._mass + np.cumsum(self._cover) * widths
        staleness.mass = {int(k): float(mass[k]) for k in np.flatnonzero(mass)}
        self._mass[:] = 0.0
        self._cover[:] = 0.0
        return staleness
