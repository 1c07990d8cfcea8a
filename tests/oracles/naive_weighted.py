"""A plain reference for queues of keys with weights: a list, sorted whenever a key is served."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from tests.oracles.naive import NaiveQueue, Update, _KeyRecord

__all__ = ["NaiveWeightedQueue", "share_of"]


def share_of(weight: float) -> int:
    """Return the share of a key in 2**-20."""
    return min(max(round(math.sqrt(weight) * 2**20), 1), 2**40)


@dataclass
class NaiveWeightedQueue(NaiveQueue):
    """As `NaiveQueue`, by virtual finish times."""

    weight_of: Callable[[Update], float] = lambda _: 1.0
    virtual: float = 0.0
    came: int = 0
    waiting: dict[int, tuple[int, float]] = field(default_factory=dict)
    shares: dict[int, int] = field(default_factory=dict)

    def _arrive(self, key: int, record: _KeyRecord) -> None:
        assert record.waiting is not None
        self.shares[key] = share_of(self.weight_of(record.waiting))
        self.roots[key] = self.shares[key] / 2**20
        if self.policy == "freshest":
            super()._arrive(key, record)
            return
        everybody = sum(self.shares[one] for one in {*self.waiting, key})
        self.came += 1
        if (
            self.policy == "linecutting"
            and self.cost_us is not None
            and record.interval_us > self.cost_us * (everybody / self.shares[key])
        ):
            if key not in self.cut:
                self.cut.add(key)
                self.waiting[key] = (self.came, self.virtual)
        elif key not in self.waiting or self.policy == "fifo":
            self.waiting[key] = (self.came, self.virtual)
        self._sort()

    def _sort(self) -> None:
        places = []
        for key, (came, start) in self.waiting.items():
            due = start + 2**20 / self.shares[key]
            places.append(((-1, 0.0, came) if key in self.cut else (0, due, came), key))
        self.order = [key for _, key in sorted(places, key=itemgetter(0))]

    def dequeue(self, limit: int, now_us: int) -> list[tuple[Update, int]]:
        """Return the tuples served and their queue staleness."""
        for key in self.order[:limit] if self.policy != "freshest" else []:
            everybody = sum(self.shares[one] for one in self.waiting)
            _, start = self.waiting.pop(key)
            if key not in self.cut:
                self.virtual = max(self.virtual + 2**20 / everybody, start + 2**20 / self.shares[key])
        if not self.waiting:
            self.virtual = 0.0
        return super().dequeue(limit, now_us)


def most_services(keys: Sequence[int], weights: Sequence[float], key: int) -> int:
    """Return how many services of others a key that waits in place can see, at most."""
    own = share_of(weights[key])
    return sum(share_of(weights[other]) // own + 1 for other in keys if other != key)
