"""Judge a soak of freshness contracts: staleness, breaches, false alarms, and growth."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tests.crash.pipelines.contract_table import LIMIT_S, SHARE

__all__ = [
    "CLEAR", "WINDOW_S", "Breach", "Oracle", "Tick", "count_false_alarms", "find_breaches", "find_floor",
]  # fmt: skip

WINDOW_S: Final = 2 * LIMIT_S
"""The promise is judged over this time, as the operator does."""
PATIENCE_S: Final = 5.0
CLEAR: Final = 1.5 * (1 - SHARE)
"""The share of keys and time beyond the limit above which a breach is clear: both sides measure in steps."""


@dataclass
class Oracle:
    """Staleness of keys as UpStream defines it: the age of the oldest update that was not delivered."""

    pending: dict[str, deque[tuple[int, float]]] = field(default_factory=dict)

    def send(self, key: str, time_: int, at_s: float) -> None:
        """Note an update."""
        self.pending.setdefault(key, deque()).append((time_, at_s))

    def deliver(self, key: str, time_: int) -> None:
        """Note that a key's newest delivered update has a time."""
        waiting = self.pending[key]
        while waiting and waiting[0][0] <= time_:
            waiting.popleft()

    def share_late(self, now_s: float) -> float:
        """Return the share of keys that are staler than promised."""
        late = sum(bool(one) and now_s - one[0][1] > LIMIT_S for one in self.pending.values())
        return late / max(len(self.pending), 1)


@dataclass(slots=True)
class Breach:
    """A time in which the promise was broken.

    Attributes
    ----------
    begin_s, end_s : float
        When it began, and its last moment.
    late : float
        The greatest share of keys and time beyond the limit.
    alive_s, dead_s : float
        For how long the process ran, and for how long it was dead or started, until it reported the breach,
        or until now.
    reported : bool
        Whether the process reported it.
    when : str
        The circumstances of its begin.
    """

    begin_s: float
    end_s: float
    late: float = 0.0
    alive_s: float = 0.0
    dead_s: float = 0.0
    reported: bool = False
    when: str = ""

    def __str__(self) -> str:
        """Return the breach for people, without its begin."""
        dead = f" and {self.dead_s:.1f} s in which the process was dead or started" if self.dead_s else ""
        told = f"reported after {self.alive_s:.1f} s{dead}" if self.reported else f"not reported{dead}"
        return f"{self.end_s - self.begin_s:5.1f} s, {self.late:.0%} late, {told}; {self.when}"

    def is_excused(self, patience_s: float = PATIENCE_S) -> bool:
        """Return whether it was reported in time, or the process did not run for so long."""
        return self.alive_s <= patience_s


@dataclass(frozen=True, slots=True)
class Tick:
    """The measured standing of the promise at a moment: the share beyond the limit, and if it can be told.

    `runs` is whether the process had said that it had started. `when` says in which circumstances it served.
    """

    at_s: float
    late: float
    runs: bool
    when: str = ""


def find_breaches(ticks: list[Tick], reports: list[tuple[float, bool]]) -> list[Breach]:
    """Return the breaches.

    Parameters
    ----------
    ticks : list of Tick
        What was measured.
    reports : list of (time, is kept)
        What the process said.
    """
    breaches: list[Breach] = []
    running: Breach | None = None
    before = ticks[0].at_s if ticks else 0.0
    for tick in ticks:
        if tick.late <= CLEAR:
            running = None
        else:
            if running is None:
                running = Breach(tick.at_s, tick.at_s, when=tick.when)
                breaches.append(running)
            elif not running.reported:
                passed_s = tick.at_s - before
                running.alive_s += passed_s * tick.runs
                running.dead_s += passed_s * (not tick.runs)
            running.end_s, running.late = tick.at_s, max(running.late, tick.late)
            # A report of the seconds before tells of the same window of time.
            begin_s = running.begin_s - WINDOW_S
            running.reported = running.reported or any(
                begin_s <= at <= tick.at_s and not kept for at, kept in reports
            )
        before = tick.at_s
    return breaches


def count_false_alarms(ticks: list[Tick], reports: list[tuple[float, bool]]) -> tuple[int, int]:
    """Return how many reports say that a kept promise is broken, and how many reports there are of it.

    Only reports count before which the process ran, and the measured promise was kept, for a whole window.

    Parameters
    ----------
    ticks : list of Tick
        What was measured.
    reports : list of (time, is kept)
        What the process said.
    """
    calm_since: float | None = None
    false = calm = 0
    waiting = deque(sorted(reports))
    for tick in ticks:
        if not tick.runs or tick.late > 1 - SHARE:
            calm_since = None
        elif calm_since is None:
            calm_since = tick.at_s
        while waiting and waiting[0][0] <= tick.at_s:
            at, kept = waiting.popleft()
            if calm_since is not None and at - calm_since >= WINDOW_S:
                calm += 1
                false += not kept
    return false, calm


def find_floor(samples: Sequence[tuple[float, int]], slice_s: float) -> int:
    """Return the greatest of the least uses in slices of time.

    Use rises until garbage is deleted, or until unread rows are read, and then falls. The least use shows
    what stays for ever, at whatever moments several such cycles meet.

    Parameters
    ----------
    samples : sequence of (time, bytes)
        In order of time.
    slice_s : float
        The length of a slice, which is longer than a cycle.
    """
    begin_s = samples[0][0] if samples else 0.0
    floors: dict[int, int] = {}
    for at_s, used in samples:
        number = int((at_s - begin_s) / slice_s)
        floors[number] = min(used, floors.get(number, used))
    # The last slice may be too short to have a low point.
    rest_s = samples[-1][0] - begin_s - slice_s * max(floors, default=0) if samples else 0.0
    if len(floors) > 1 and rest_s < slice_s / 2:
        del floors[max(floors)]
    return max(floors.values(), default=0)


def longest_gap(times: Sequence[float]) -> float:
    """Return the longest time between two moments."""
    return max((after - before for before, after in pairwise(times)), default=0.0)
