"""Joins of update streams that keep every tuple and look at all pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Change", "DeletingJoin", "NaiveJoin", "Tuple", "holds"]


class Tuple(NamedTuple):
    key: int
    time: int
    value: int


def holds(condition: str | None, left: Tuple, right: Tuple) -> bool:
    if condition is None:
        return True
    if "%" in condition:
        return (left.value + right.value) % 3 == 0 and left.value != 1
    if "<>" in condition:
        return left.value != right.value
    return right.value > 7 if ">" in condition else right.value < 0


@dataclass
class NaiveJoin:
    """Keeps every tuple that was not late, for ever."""

    within: int
    delay: int
    condition: str | None
    newest: int | None = None
    last: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    sides: tuple[dict[tuple[int, int], Tuple], ...] = field(default_factory=lambda: ({}, {}))
    late: int = 0
    duplicates: int = 0
    dropped: list[tuple[int, Tuple, str, int | None]] = field(default_factory=list)

    def join(self, left: Sequence[Tuple], right: Sequence[Tuple]) -> list[tuple[Any, ...]]:
        watermark = None if self.newest is None else self.newest - self.delay
        for number, (side, batch) in enumerate(zip(self.sides, (left, right), strict=True)):
            for one in batch:
                before = watermark is not None and one.time < watermark
                if before or (one.key in self.last and one.time < self.last[one.key][0] - self.within):
                    self.late += 1
                    reach = [self.last[one.key][0] - self.within] if one.key in self.last else []
                    missed = max(reach if watermark is None else [*reach, watermark])
                    self.dropped.append((number, one, "late", missed))
                elif (one.key, one.time) in side:
                    self.duplicates += 1
                    self.dropped.append((number, one, "duplicate", None))
                else:
                    side[one.key, one.time] = one
        times = [one.time for one in (*left, *right)]
        self.newest = max([*times, *([] if self.newest is None else [self.newest])], default=None)
        found = {}
        for one in self.sides[0].values():
            for other in self.sides[1].values():
                order = (max(one.time, other.time), one.time, other.time)
                if one.key != other.key or abs(one.time - other.time) > self.within:
                    continue
                newer = one.key not in self.last or order > self.last[one.key]
                if newer and holds(self.condition, one, other):
                    self.last[one.key] = order
                    found[one.key] = (one.key, order[0], one.value, other.value)
        return sorted(found.values())


class Change(NamedTuple):
    """A tuple, or a delete of the older tuples of its side and key."""

    key: int
    time: int
    value: int
    deletes: bool


@dataclass
class DeletingJoin:
    """Keeps every tuple that was not late until it is deleted, and looks at all pairs."""

    within: int
    delay: int
    condition: str | None
    newest: int | None = None
    held: tuple[dict[tuple[int, int], Tuple], ...] = field(default_factory=lambda: ({}, {}))
    deleted: tuple[dict[int, int], ...] = field(default_factory=lambda: ({}, {}))
    order: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """The order of each key's last match; a delete takes the place of a tuple that it removes."""
    shown: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The times of the match that a sink holds."""
    late: int = 0
    dropped: list[tuple[int, Change, str, int | None]] = field(default_factory=list)

    def join(self, left: Sequence[Change], right: Sequence[Change]) -> list[tuple[Any, ...]]:
        watermark = None if self.newest is None else self.newest - self.delay
        before = tuple(dict(deleted) for deleted in self.deleted)
        for side, batch in enumerate((left, right)):
            for one in batch:
                bounds = [] if watermark is None else [watermark]
                bounds += [self.order[one.key][0] - self.within] if one.key in self.order else []
                bounds += [before[side][one.key] + 1] if one.key in before[side] else []
                if bounds and one.time < max(bounds):
                    self.late += 1
                    self.dropped.append((side, one, "late", max(bounds)))
                elif one.deletes:
                    self.deleted[side][one.key] = max(one.time, self.deleted[side].get(one.key, one.time))
                elif (one.key, one.time) in self.held[side]:
                    self.dropped.append((side, one, "duplicate", None))
                else:
                    self.held[side][one.key, one.time] = Tuple(*one[:3])
            for key, time in list(self.held[side]):
                if key in self.deleted[side] and time <= self.deleted[side][key]:
                    del self.held[side][key, time]
        times = [one.time for one in (*left, *right)]
        self.newest = max([*times, *([] if self.newest is None else [self.newest])], default=None)
        found: dict[int, tuple[Any, ...]] = {}
        for here in self.held[0].values():
            for other in self.held[1].values():
                order = (max(here.time, other.time), here.time, other.time)
                if here.key != other.key or abs(here.time - other.time) > self.within:
                    continue
                newer = here.key not in self.order or order > self.order[here.key]
                if newer and holds(self.condition, here, other):
                    self.order[here.key], self.shown[here.key] = order, (here.time, other.time)
                    found[here.key] = (here.key, order[0], here.value, other.value, False)
        for key, (_, *matched) in list(self.order.items()):
            deletes = [
                deleted.get(key, time - 1) for time, deleted in zip(matched, self.deleted, strict=True)
            ]
            after = [max(pair) for pair in zip(matched, deletes, strict=True)]
            hit = any(time <= delete for time, delete in zip(matched, deletes, strict=True))
            self.order[key] = (max(after), after[0], after[1])
            if hit and self.shown.pop(key, None) is not None:
                found[key] = (key, max(after), None, None, True)
        return sorted(found.values(), key=str)
