"""The results of a join, and the cursor that finds its matches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.operators.joins.join_kernels import NOBODY, START
from penstock.operators.queues.expiry import Expired
from penstock.operators.update_stream.stream import Integers

__all__ = ["Matched", "Pairs"]


@dataclass(frozen=True, slots=True)
class Matched:
    """The result of one `UpdateJoin.join`.

    Attributes
    ----------
    rows : pyarrow.RecordBatch
        The newest match of each key that has a new match. If a side has deletes, there is also a row for each
        retracted match.
    rows_in : int
        The number of tuples that arrived.
    late : int
        Tuples dropped on arrival because they were too old for a future match.
    duplicates : int
        Tuples dropped because their side has a tuple with the same key and time.
    freed : int
        Tuples removed from the state, because no future match needs them or because their key left.
    expired : Expired
        The keys that left after their time to live.
    """

    rows: pa.RecordBatch
    rows_in: int
    late: int
    duplicates: int
    freed: int
    expired: Expired


@dataclass(frozen=True, slots=True)
class Pairs:
    """Cursor over the pairs of some keys; see `find_pairs`."""

    ids: Integers
    at_left: Integers
    at_right: Integers
    partner: Integers

    @staticmethod
    def start(ids: Integers, left: Integers, right: Integers) -> Pairs:
        """Return a cursor at the start of the lists."""
        return Pairs(ids, left.copy(), right.copy(), np.full(len(ids), START))

    def remove(self, matched: Integers) -> Pairs:
        """Return the cursor without the keys at these positions and without exhausted keys."""
        left = (self.at_left != NOBODY) & (self.at_right != NOBODY)
        left[matched] = False
        return Pairs(self.ids[left], self.at_left[left], self.at_right[left], self.partner[left])
