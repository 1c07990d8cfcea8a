"""A window queue that keeps all it ever saw and looks at every window each time, and session windows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Event", "NaiveWindows", "Sessions", "Window"]

Window = tuple[int, int, list[tuple[int, int]]]
"""A key, the first pane of a window, and the panes and values of the key in it."""


@dataclass
class _Key:
    panes: dict[int, int] = field(default_factory=dict)
    complete_at: dict[int, int] = field(default_factory=dict)
    waiting: int | None = None
    waits_since: int = 0
    waited: int = 0
    committed: int | None = None
    delivered: int | None = None
    emitted: int = 0


@dataclass
class NaiveWindows:
    """A model of `WindowQueue` on whole windows; linecutting without a cost equals in place."""

    mode: str
    size: int
    slide: int
    policy: str
    first_pane: int | None = None
    watermark: int | None = None
    keys: dict[int, _Key] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    now_us: int = 0
    queue_area: float = 0.0
    application_area: float = 0.0
    key_time: float = 0.0

    def windows(self, key: int) -> list[int]:
        """Return the numbers of all windows that have a pane of the key."""
        first = None if self.first_pane is None else -(-self.first_pane // self.slide)
        numbers = {
            number
            for pane in self.keys[key].panes
            for number in range((pane - self.size) // self.slide, pane // self.slide + 1)
            if number * self.slide <= pane < number * self.slide + self.size
        }
        return sorted(number for number in numbers if first is None or number >= first)

    def complete(self, key: int) -> list[int]:
        """Return the numbers of the complete windows of a key."""
        arrived = max(self.keys[key].panes) + 1
        if self.watermark is not None:
            arrived = max(arrived, self.watermark)
        return [number for number in self.windows(key) if number * self.slide + self.size <= arrived]

    def most_recent(self, key: int) -> int | None:
        """Return the most recent window by MRU_L or MRU_E."""
        found = self.complete(key) if self.mode == "lazy" else self.windows(key)
        return found[-1] if found else None

    def content(self, key: int, number: int) -> Window:
        start = number * self.slide
        panes = sorted(self.keys[key].panes.items())
        return key, start, [(pane, value) for pane, value in panes if start <= pane < start + self.size]

    def needed(self, key: int) -> set[int]:
        """Return the panes that some window still needs."""
        own = self.keys[key]
        if own.waiting is not None:
            begin = own.waiting * self.slide
        elif self.mode == "lazy":
            # The windows of panes to come are those that are not complete.
            arrived = max(max(own.panes) + 1, -(1 << 40) if self.watermark is None else self.watermark)
            begin = ((arrived - self.size) // self.slide + 1) * self.slide
        else:
            begin = 1 << 60
        if self.mode == "lazy" and self.first_pane is not None:
            begin = max(begin, -(-self.first_pane // self.slide) * self.slide)
        kept = {pane for pane in own.panes if pane >= begin}
        if own.committed is not None:
            kept |= {pane for pane, _ in self.content(key, own.committed)[2]}
        return kept

    def enqueue(self, entries: Iterable[tuple[int, int, int]], watermark: int | None = None) -> int:
        """Add (key, pane, value) entries, then advance the watermark; return the number of late entries."""
        late = 0
        for key, pane, value in entries:
            known = self.keys.get(key)
            if (self.watermark is not None and pane < self.watermark) or (known and pane <= max(known.panes)):
                late += 1
                continue
            own = self.keys.setdefault(key, _Key())
            before = self.most_recent(key) if own.panes else None
            own.panes[pane] = value
            if own.committed is not None and pane < own.committed * self.slide + self.size:
                self._promote(key)
            self._after(key, before)
        if watermark is not None and (self.watermark is None or watermark > self.watermark):
            before_of = {key: self.most_recent(key) for key in self.keys}
            known_of = {key: set(self.complete(key)) for key in self.keys}
            self.watermark = watermark
            changed = []
            for key in self.keys:
                new = [number for number in self.complete(key) if number not in known_of[key]]
                if new:
                    changed.append((new[0] * self.slide + self.size, key))
            for _, key in sorted(changed):
                self._after(key, before_of[key])
        return late

    def _after(self, key: int, before: int | None) -> None:
        own = self.keys[key]
        complete = self.complete(key)
        for number in complete:
            own.complete_at.setdefault(number, self.now_us)
        if own.committed is not None and own.committed in complete:
            self._promote(key)
        newest = self.most_recent(key)
        if newest is None or (before is not None and newest <= before):
            return
        if own.waiting is None:
            own.waits_since = self.now_us
        elif self.policy == "fifo":
            self.order.remove(key)
        if own.waiting is None or self.policy == "fifo":
            self.order.append(key)
        own.waiting = newest

    def _promote(self, key: int) -> None:
        if key not in self.ready:
            self.ready.append(key)

    def dequeue(self, limit: int) -> list[Window]:
        """Return the windows served; each key at most once."""
        if self.mode == "lazy":
            chosen, self.order = self.order[:limit], self.order[limit:]
            return [self._emit(key, self._commit(key)) for key in chosen]
        under_processing = {key for key, own in self.keys.items() if own.committed is not None}
        served = self._serve_ready(limit)
        room = max(limit - len(self.ready), 0)
        chosen = [key for key in self.order if key not in under_processing][:room]
        self.order = [key for key in self.order if key not in chosen]
        for key in chosen:
            self._commit(key)
            self.ready.append(key)
        return served + self._serve_ready(limit - len(served))

    def _commit(self, key: int) -> int:
        own = self.keys[key]
        assert own.waiting is not None
        own.committed, own.waiting = own.waiting, None
        own.waited = self.now_us - own.waits_since
        return own.committed

    def _serve_ready(self, limit: int) -> list[Window]:
        served: list[Window] = []
        left: list[int] = []
        for key in self.ready:
            number = self.keys[key].committed
            assert number is not None
            if number in self.complete(key):
                if len(served) < limit:
                    served.append(self._emit(key, number))
                else:
                    left.append(key)
        self.ready = left
        return served

    def _emit(self, key: int, number: int) -> Window:
        own = self.keys[key]
        own.committed = None
        own.emitted += 1
        return self.content(key, number)

    def deliver(self, served: Iterable[Window]) -> None:
        for key, start, _ in served:
            self.keys[key].delivered = start // self.slide

    def disregarded(self) -> int:
        """Return how many complete windows were and will not be emitted."""
        count = 0
        for key, own in self.keys.items():
            complete = self.complete(key)
            held = sum(number in complete for number in (own.waiting, own.committed) if number is not None)
            count += len(complete) - own.emitted - held
        return count

    def advance(self, by_us: int) -> None:
        """Advance the time, and add up the staleness of all keys."""
        for own in self.keys.values():
            if own.waiting is not None:
                self.queue_area += _area(self.now_us - own.waits_since, by_us)
            times = [
                at
                for number, at in own.complete_at.items()
                if own.delivered is None or number > own.delivered
            ]
            if times:
                self.application_area += _area(self.now_us - min(times), by_us)
        self.key_time += by_us * len(self.keys)
        self.now_us += by_us


def _area(low: int, grown: int) -> float:
    return low * grown + grown * grown / 2


class Event(NamedTuple):
    """A row of session windows."""

    group: Any
    time: int
    value: float | None


class Sessions:
    """Session windows as lists of events, merged pair by pair.

    Parameters
    ----------
    gap, delay : int
        The distance from which on events are in different sessions, and the lateness that is allowed.
    """

    def __init__(self, gap: int, delay: int) -> None:
        self.gap, self.delay = gap, delay
        self.open: list[list[Event]] = []
        self.watermark: int | None = None
        self.late = 0
        self.dropped: list[Event] = []

    def batch(self, events: list[Event]) -> list[list[Event]]:
        """Add events; return the closing sessions, with their events in the order of time and arrival."""
        sessions = self.open
        for event in events:
            touching = [one for one in sessions if any(self._touch(event, other) for other in one)]
            sessions = [one for one in sessions if one not in touching]
            sessions.append([*(other for one in touching for other in one), event])
        dropped = [one for one in sessions if self._ended(one)]
        self.dropped = [event for one in dropped for event in one]
        self.late += len(self.dropped)
        sessions = [one for one in sessions if one not in dropped]
        if events:
            newest = max(event.time for event in events) - self.delay
            self.watermark = newest if self.watermark is None else max(newest, self.watermark)
        self.open = [one for one in sessions if not self._ended(one)]
        return [sorted(one, key=lambda event: event.time) for one in sessions if self._ended(one)]

    def _touch(self, one: Event, other: Event) -> bool:
        return bool(one.group == other.group and abs(one.time - other.time) < self.gap)

    def _ended(self, session: list[Event]) -> bool:
        newest = max(event.time for event in session)
        return self.watermark is not None and newest + self.gap <= self.watermark
