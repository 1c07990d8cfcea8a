"""Deletes of the tuples of a join, by key.

A delete removes the tuples of its side and key that are not newer than the delete. If such a tuple arrives
after the delete, it is late. If a removed tuple is part of the key's last match, the match is *retracted*:
the join emits a row that marks the retraction. In the order of matches, the delete then replaces that tuple,
so only a newer match can follow.
"""

from __future__ import annotations

import numpy as np

from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import grow
from penstock.units import NEVER

__all__ = ["KeyDeletes"]


class KeyDeletes:
    """The newest delete of each side by key number, and marks for retracted matches.

    Attributes
    ----------
    left, right : int64 array
        The time of the newest delete; `NEVER` if there is none.
    away : int64 array
        1 if the key's last match is retracted.
    """

    names = ("left_deleted", "right_deleted", "away")

    def __init__(self) -> None:
        self.left, self.right, self.away = (np.zeros(0, np.int64) for _ in range(3))

    @property
    def arrays(self) -> tuple[Integers, ...]:
        """The arrays, in the order of `names`."""
        return self.left, self.right, self.away

    @property
    def sides(self) -> tuple[Integers, Integers]:
        """The times of deletes of both sides."""
        return self.left, self.right

    def reserve(self, keys: int) -> None:
        """Grow for key numbers below `keys`."""
        size = len(self.away)
        self.left, self.right, self.away = (grow(array, keys) for array in self.arrays)
        for times in self.sides:
            times[size:] = NEVER

    def keep(self, ids: Integers) -> None:
        """Renumber these keys 0, 1, 2, ...; forget all other keys."""
        self.left, self.right, self.away = (array[ids] for array in self.arrays)

    def forget(self, ids: Integers) -> None:
        """Forget the deletes of keys."""
        for times in self.sides:
            times[ids] = NEVER
        self.away[ids] = 0

    def take_away(self, ids: Integers, matched: list[Integers]) -> Integers:
        """Replace, in last matches, the times of deleted tuples by the times of their deletes.

        Parameters
        ----------
        ids : int64 array
            The distinct keys that have a new delete.
        matched : list of int64 array
            The left and right time of each key's last match; changed.

        Returns
        -------
        int64 array
            The keys whose match this call retracts.
        """
        hit = np.zeros(len(ids), np.bool_)
        for times, deleted in zip(matched, self.sides, strict=True):
            gone = (times[ids] != NEVER) & (times[ids] <= deleted[ids])
            times[ids[gone]] = deleted[ids[gone]]
            hit |= gone
        taken = ids[hit & (self.away[ids] == 0)]
        self.away[taken] = 1
        return taken
