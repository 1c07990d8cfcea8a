"""A join of update streams that keeps every tuple and looks at all pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["NaiveJoin", "Tuple", "holds"]


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
