"""The late sessions of a micro-batch, and the rows in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import KeyIndex
from penstock.windows.groups import GroupCodec

__all__ = ["LateSessions"]


@dataclass(frozen=True, slots=True)
class LateSessions:
    """Sessions that were late on arrival. Sessions of a group do not overlap.

    Attributes
    ----------
    groups : list of pyarrow.Array
        The columns of each session's group.
    firsts, lasts : int64 arrays
        The times of each session's first and last event.
    """

    groups: list[pa.Array[Any]]
    firsts: Integers
    lasts: Integers

    def mark_rows(
        self, codec: GroupCodec, groups: Sequence[pa.Array[Any]], times: Integers
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows, given by groups and times, that are in these sessions."""
        index, count = KeyIndex(), len(self.firsts)
        session_ids = index.find_or_add(codec.encode(self.groups, count))
        ids = np.concatenate([session_ids, index.find(codec.encode(groups, len(times)))])
        order = np.lexsort((np.arange(len(ids)), np.concatenate([self.firsts, times]), ids))
        # Find the last session of each row's group that begins at or before the row.
        session = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
        found = np.zeros(len(ids), np.bool_)
        before = order[np.maximum(session, 0)]
        row = (order >= count) & (session >= 0) & (ids[before] == ids[order])
        chosen = order[row]
        found[chosen] = times[chosen - count] <= self.lasts[before[row]]
        return found[count:]
