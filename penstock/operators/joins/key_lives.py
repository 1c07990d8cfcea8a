"""The keys that leave the state of a join, because neither side had a tuple of the key for the time to live.

The clock is the same as for queues (`penstock.operators.queues.expiry`): the newest time so far. The
*horizon* is this time less the time to live. The join drops a tuple that is at or before the horizon of the
earlier micro-batches. So a match that was delivered before its key left cannot be delivered again.
"""

from __future__ import annotations

import numpy as np

from penstock.checkpointing.fields import Fields
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import grow
from penstock.units import NEVER

__all__ = ["KeyLives"]


class KeyLives:
    """The time of each key's newest tuple on either side, by key number. One task at a time uses it.

    Attributes
    ----------
    last : int64 array
        The time of each key's newest tuple; `NEVER` for a key without state.
    horizon : int
        Keys whose newest tuple is at or before this time have left.
    expired : int
        The number of keys that left so far.
    """

    def __init__(self) -> None:
        self.last = np.zeros(0, np.int64)
        self.horizon = NEVER
        self.expired = 0
        self._arrived: list[tuple[Integers, Integers]] = []

    @property
    def meta(self) -> dict[str, int]:
        """The state that is stored once for all keys."""
        return {"horizon": self.horizon, "expired": self.expired}

    def restore(self, fields: Fields) -> None:
        """Restore `meta`."""
        self.horizon, self.expired = fields.number("horizon"), fields.count("expired")

    def reserve(self, keys: int) -> None:
        """Grow for key numbers below `keys`."""
        size = len(self.last)
        self.last = grow(self.last, keys)
        self.last[size:] = NEVER

    def note(self, ids: Integers, times: Integers) -> None:
        """Remember tuples, none of them late, until `advance_horizon` is called."""
        self._arrived.append((ids, times))

    def advance_horizon(self, newest: int | None, ttl: int) -> list[Integers]:
        """Update the times of keys, and move the horizon; return the keys that had tuples."""
        for ids, times in self._arrived:
            np.maximum.at(self.last, ids, times)
        touched = [ids for ids, _ in self._arrived]
        self._arrived = []
        if newest is not None:
            self.horizon = max(self.horizon, newest - min(ttl, newest - NEVER))
        return touched

    def find_gone(self) -> Integers:
        """Return the keys whose newest tuple is at or before the horizon."""
        return np.flatnonzero((self.last <= self.horizon) & (self.last != NEVER))

    def keep(self, ids: Integers) -> None:
        """Renumber these keys 0, 1, 2, ...; forget all other keys."""
        self.last = self.last[ids]
