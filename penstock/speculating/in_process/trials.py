"""Choose between two ways to do the same work, by their measured times."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median_low

__all__ = ["Trials"]

MEASURED = 9
"""A way is judged by the median of this many latest times. The very first time is left out: it includes
compilation.

The median of two times is the lower time, since a single slow time is often noise.
"""
FIRST_TRIALS = 3
"""The new way is measured this often before the old way is measured."""
MAX_LOSS = 0.02
"""The slower way is tried again only if its trials have cost less than this share of the whole time."""

BITS_PER_SIZE = 3
"""Work with up to eight times as many items is treated as work of the same size."""


@dataclass(slots=True)
class _Times:
    """The seconds per item of the old way (False) and of the new way (True)."""

    latest: dict[bool, deque[float]] = field(
        default_factory=lambda: {way: deque(maxlen=MEASURED) for way in (False, True)}
    )
    medians: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})
    counts: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    spent_s: float = 0.0
    lost_s: float = 0.0

    @property
    def better(self) -> bool:
        return self.medians[True] <= self.medians[False]


class Trials:
    """Chooses the way that took less time for work of the same name and about the same size.

    The slower way is tried again now and then, because times change. Trials cost little, so work hardly ever
    takes longer than it would with the old way alone.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[str, int], _Times] = {}
        self._last: dict[str, bool] = {}

    def _of(self, name: str, items: int) -> _Times:
        key = name, items.bit_length() // BITS_PER_SIZE
        if (times := self._times.get(key)) is None:
            times = self._times[key] = _Times()
        return times

    def choose(self, name: str, items: int) -> bool:
        """Return whether to do the work in the new way."""
        times = self._of(name, items)
        if times.counts[True] < FIRST_TRIALS:
            return True
        if times.counts[False] < 2:
            return False
        better = times.better
        return better if times.lost_s > MAX_LOSS * times.spent_s else not better

    def measured(self, name: str, items: int) -> tuple[float, int]:
        """Return the seconds per item of the faster way, and the number of its measurements."""
        times = self._of(name, items)
        ways = [way for way, latest in times.latest.items() if latest]
        way = min(ways, key=times.medians.__getitem__, default=True)
        return times.medians[way], len(times.latest[way])

    def note(self, name: str, items: int, seconds: float, *, new: bool, switch_s: float = 0.0) -> None:
        """Record the time of finished work.

        `seconds` includes `switch_s`, the time to prepare for this way of work. If the previous work was done
        in the other way, `switch_s` counts as a cost of trials, and not as time of this way. Otherwise a
        single trial would make this way look too slow.
        """
        times = self._of(name, items)
        switch_s = switch_s if self._last.get(name, new) != new else 0.0
        self._last[name] = new
        times.counts[new] += 1
        times.lost_s += switch_s
        if times.counts[new] == 1:
            return
        work_s = seconds - switch_s
        times.latest[new].append(work_s / items)
        times.medians[new] = median_low(times.latest[new])
        if times.counts[True] >= FIRST_TRIALS and times.counts[False] > 1:
            best = times.medians[times.better] * items
            times.spent_s += seconds
            if new != times.better:
                times.lost_s += max(work_s - best, MAX_LOSS * work_s)
