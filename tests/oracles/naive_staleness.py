"""Staleness by the definition (UpStream §3.3), stepping through the moments at which it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["NaiveStaleness", "integrate"]


@dataclass
class NaiveStaleness:
    """Stretches of time over which one key's staleness grows from a low to a high value."""

    stretches: list[tuple[int, int]] = field(default_factory=list)

    @property
    def area(self) -> float:
        """The integral of staleness over time, summed over keys."""
        return sum((high * high - low * low) / 2 for low, high in self.stretches)

    @property
    def longest(self) -> int:
        return max((high for _, high in self.stretches), default=0)

    @property
    def stale_time(self) -> int:
        return sum(high - low for low, high in self.stretches)

    def share_up_to(self, value: float, key_time: float) -> float:
        """Return the share of `key_time` (time x keys) with a staleness of at most `value`."""
        below = sum(min(max(value - low, 0.0), high - low) for low, high in self.stretches)
        return (key_time - self.stale_time + below) / key_time


def integrate(
    arrivals: Sequence[tuple[int, int]], deliveries: Sequence[tuple[int, int, int]], end: int
) -> NaiveStaleness:
    """Return the staleness of all keys up to `end`.

    Parameters
    ----------
    arrivals : sequence of (time, key)
        In the order of arrival; the place in the sequence is the number of an arrival.
    deliveries : sequence of (time, key, number of an arrival)
        From then on no update of the key up to that number is pending.
    """
    moments = sorted({time for time, _ in arrivals} | {time for time, _, _ in deliveries} | {end})
    result = NaiveStaleness()
    for begin, until in pairwise(moments):
        if begin >= end:
            break
        for key in {key for _, key in arrivals}:
            known = max((n for time, k, n in deliveries if k == key and time <= begin), default=-1)
            pending = [
                time
                for number, (time, k) in enumerate(arrivals)
                if k == key and time <= begin and number > known
            ]
            if pending:
                result.stretches.append((begin - min(pending), until - min(pending)))
    return result
