"""A union of update streams with dictionaries: slow, short, and independent of the code that it checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["NaiveUnion", "Tuple"]


class Tuple(NamedTuple):
    key: int
    time: int
    source: int
    value: int


@dataclass
class NaiveUnion:
    """The waiting and the last delivered update of each key."""

    emitted: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, Tuple] = field(default_factory=dict)
    conflated: int = 0
    late: int = 0
    duplicates: int = 0
    by_value: bool = False
    dropped: list[tuple[Tuple, str]] = field(default_factory=list)

    def enqueue(self, batch: Sequence[Tuple]) -> None:
        for key in dict.fromkeys(one.key for one in batch):
            mine = [one for one in batch if one.key == key]
            # min keeps the first of equals
            best = min(mine, key=lambda one: (-one.time, one.source, one.value * self.by_value))
            others = [one for one in mine if one is not best and one.time == best.time]
            same = sum(one.time == best.time for one in mine) - 1
            older = len(mine) - 1 - same
            if key in self.emitted and best.time <= self.emitted[key]:
                again = best.time == self.emitted[key]
                reason = {True: "duplicate", False: "late"}
                self.dropped += [(one, reason[one.time == self.emitted[key]]) for one in mine]
                self.duplicates += (same + 1) * again
                self.late += older + (0 if again else same + 1)
                continue
            resident = self.waiting.get(key)
            self.conflated += older
            if resident is None:
                self.duplicates += same
                self.dropped += [(one, "duplicate") for one in others]
                self.waiting[key] = best
            elif best.time < resident.time:
                self.conflated += same + 1
            elif best.time == resident.time:
                self.duplicates += same + 1
                loser = resident if best.source < resident.source else best
                self.dropped += [(one, "duplicate") for one in (*others, loser)]
                if best.source < resident.source:
                    self.waiting[key] = best
            else:
                self.duplicates += same
                self.dropped += [(one, "duplicate") for one in others]
                self.conflated += 1
                self.waiting[key] = best

    def take(self, key: int) -> tuple[int, int, int]:
        one = self.waiting.pop(key)
        self.emitted[key] = one.time
        return one.key, one.time, one.value
