"""The held tuples of one side of a join of update streams."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.joins.join_kernels import NOBODY, link, unlink_older
from penstock.operators.queues.pages import PagedMemory
from penstock.operators.update_stream.stream import Integers, UpdateStream
from penstock.state_store.keys.key_index import grow
from penstock.state_store.tables.row_store import RowStore

__all__ = ["JoinSide"]


class JoinSide:
    """The held tuples of one side, as a list per key."""

    def __init__(self, stream: UpdateStream, page_rows: int) -> None:
        self.stream = stream
        self.payload = pa.schema(
            [stream.schema.field(name) for name in stream.payload if name != stream.deleted]
        )
        self.memory = PagedMemory(page_rows)
        self.rows = RowStore(self.payload)
        self.head = np.zeros(0, np.int64)
        # One element per location.
        self.after = np.zeros(0, np.int64)
        self.times = np.zeros(0, np.int64)
        self.owner = np.zeros(0, np.int64)
        self.used = np.zeros(0, np.bool_)
        self.fresh = np.zeros(0, np.bool_)
        self.dirty = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return self.memory.locations_used

    @property
    def size_bytes(self) -> int:
        """Approximate memory in bytes."""
        arrays = (self.head, self.after, self.times, self.owner, self.used, self.fresh, self.dirty)
        return self.memory.size_bytes + self.rows.size_bytes + sum(array.nbytes for array in arrays)

    def reserve(self, keys: int) -> None:
        """Grow for key numbers below `keys`."""
        size = len(self.head)
        self.head = grow(self.head, keys)
        self.head[size:] = NOBODY

    def put(self, ids: Integers, times: Integers, payload: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Add rows, and return the mask of the added rows.

        If a key's rows have equal times, only the first row is added.
        """
        locations = self.memory.allocate(len(ids))
        self._resize()
        new = link(ids, times, locations, self.head, self.after, self.times)
        self.memory.free(locations[~new])
        locations = locations[new]
        self.rows.put(locations, payload if new.all() else payload.filter(pa.array(new)))
        self.owner[locations] = ids[new]
        for marks in (self.used, self.fresh, self.dirty):
            marks[locations] = True
        return new

    def delete(self, ids: Integers, times: Integers) -> int:
        """Remove each key's tuples up to the given time; return the number of removed tuples."""
        freed = np.empty(len(self), np.int64)
        count = unlink_older(ids, times, self.head, self.after, self.times, freed)
        self.free(freed[:count])
        return count

    def free(self, locations: Integers) -> None:
        """Free the locations of tuples that are not in a list any more."""
        for marks in (self.used, self.fresh, self.dirty):
            marks[locations] = False
        self.memory.free(locations)

    def compact(self) -> None:
        """Release the memory of freed tuples."""
        if self.memory.shrink():
            self._resize()
        if self.rows.may_compact:
            self.rows.compact(np.flatnonzero(self.used))

    def _resize(self) -> None:
        capacity = self.memory.capacity
        if capacity == len(self.used):
            return
        self.rows.resize(capacity)
        for name in ("after", "times", "owner", "used", "fresh", "dirty"):
            array = getattr(self, name)
            larger = np.zeros(capacity, array.dtype)
            count = min(capacity, len(array))
            larger[:count] = array[:count]
            setattr(self, name, larger)
