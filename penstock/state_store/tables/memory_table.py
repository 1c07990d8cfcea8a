"""The working copy in memory: a hash index of the keys and an array for each column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._kernels import kernel
from penstock.checkpointing import PUnit
from penstock.state_store.keys.key_index import KeyIndex, grown
from penstock.state_store.keys.key_words import Keys, Positions
from penstock.state_store.tables.row_store import RowStore
from penstock.state_store.tables.table import (
    BATCH_BYTES,
    UNIT_BYTES,
    UNIT_ROWS,
    Found,
    Layout,
    portions,
    replay,
)

__all__ = ["MemoryTable"]

_LEAST_DEAD = 1024
"""So many numbers of deleted keys are not worth a rebuild."""

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@kernel
def _mark_last(numbers: Positions, seen: Positions, keep: Any) -> int:
    """Mark the last appearance of each number; `seen` is at least twice as long and all -1."""
    mask = seen.shape[0] - 1
    count = 0
    for i in range(numbers.shape[0] - 1, -1, -1):
        number = numbers[i]
        probe = np.int64((np.uint64(number) * _SPREAD >> np.uint64(32)) & np.uint64(mask))
        while seen[probe] >= 0 and seen[probe] != number:
            probe = (probe + 1) & mask
        keep[i] = seen[probe] < 0
        if keep[i]:
            seen[probe] = number
            count += 1
    return count


def _lasts(numbers: Positions) -> npt.NDArray[np.bool_] | None:
    """Return which of `numbers` are the last of their kind; None if all differ."""
    count = len(numbers)
    keep = np.empty(count, np.bool_)
    seen = np.full(1 << (2 * count).bit_length(), -1, np.int64)
    return None if _mark_last(numbers, seen, keep) == count else keep


class MemoryTable:
    """A `penstock.state_store.tables.table.Table` in memory.

    Every key has a number, its location in the columns. A deleted key keeps its number, not alive, for
    the case that it returns; when more than half of the numbers are of no use, the rest is numbered anew.

    Parameters
    ----------
    schema : pyarrow.Schema
        All columns.
    key : tuple of str
        The key's columns.

    Raises
    ------
    InvalidUsageError
        If the key is no part of the schema, or a column is of a type that state cannot hold.
    """

    def __init__(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        self.schema = schema
        self.key = tuple(key)
        self._layout = Layout(schema, self.key)
        self._rows = RowStore(self._layout.value_schema)
        self._reset()

    def __len__(self) -> int:
        """Return how many rows there are."""
        return self._live

    @property
    def size_bytes(self) -> int:
        """How much memory the table holds."""
        return self._index.size_bytes + self._rows.size_bytes + self._alive.nbytes + self._dirty.nbytes

    def get(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, Found]:
        """Return the values of `keys`, nulls where absent, and which of them are there."""
        numbers, found = self._find(self._layout.keys_of(keys))
        return self._rows.take(numbers, found), found

    def put(self, rows: pa.RecordBatch) -> None:
        """Insert or replace; of a key twice in `rows` the last row wins."""
        values = self._layout.values_of(rows)
        self._put(self._layout.keys_of(rows), values)
        self._compact()

    def delete(self, keys: pa.RecordBatch) -> int:
        """Remove the rows of `keys`; return how many were there."""
        numbers, found = self._find(self._layout.keys_of(keys))
        return self._delete(numbers[found])

    def bury(self, keys: pa.RecordBatch) -> None:
        """Delete `keys` also where they are not there: the next `delta` has tombstones of them all."""
        numbers = self._index.find_or_add(self._layout.keys_of(keys))
        self._make_room()
        self._dirty[numbers] = True
        self._delete(numbers[self._alive[numbers]])

    def scan(self) -> Iterator[pa.RecordBatch]:
        """Return all rows in batches bounded in bytes, in no order."""
        numbers = self._living()
        for portion in portions(self._sizes(numbers), BATCH_BYTES, UNIT_ROWS):
            some = numbers[portion]
            yield self._layout.rows_of(self._keys(some), self._rows.take(some))

    def delta(self) -> PUnit:
        """Return what changed since the last `delta`, `snapshot` or `restore`."""
        changed = np.flatnonzero(self._dirty[: len(self._index)])
        alive = self._alive[changed]
        upserted, deleted = changed[alive], changed[~alive]
        unit = self._layout.unit(
            self._keys(upserted), self._rows.take(upserted), self._keys(deleted), rows=len(self)
        )
        self._settle()
        return unit

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole state as of this call, in units of bounded size.

        Takes as much memory again, but for the keys, until the iterator is done with.
        """
        numbers = self._living()
        sizes = self._sizes(numbers)
        # Keys never change where they are: the index only adds, and is replaced when it drops some.
        units = _units(self._layout, numbers, sizes, self._rows.copy(), _reader(self._layout, self._index))
        self._settle()
        return units

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply `units` in order, one in memory at a time."""
        replay(units, self._layout, _Replay(self))
        self._settle()

    def close(self) -> None:
        """Let go of the memory; the table is empty and of no use afterwards."""
        self._rows = RowStore(self._layout.value_schema)
        self._reset()

    def _reset(self) -> None:
        self._index = KeyIndex()
        self._rows.resize(0)
        self._alive = np.zeros(0, np.bool_)
        self._dirty = np.zeros(0, np.bool_)
        self._live = 0

    def _find(self, keys: Keys) -> tuple[Positions, Found]:
        numbers = self._index.find(keys)
        if not len(self._index):
            return numbers, np.zeros(len(numbers), np.bool_)
        return numbers, (numbers >= 0) & self._alive[np.maximum(numbers, 0)]

    def _put(self, keys: Keys, values: pa.RecordBatch) -> None:
        known = len(self._index)
        numbers = self._index.find_or_add(keys)
        self._make_room()
        if len(self._index) - known < len(numbers):
            last = _lasts(numbers)
            if last is not None:
                numbers, values = numbers[last], values.filter(pa.array(last))
        self._live += len(numbers) - int(np.count_nonzero(self._alive[numbers]))
        self._alive[numbers] = True
        self._dirty[numbers] = True
        self._rows.put(numbers, values)

    def _delete(self, numbers: Positions) -> int:
        """Delete the keys of these numbers, which are alive; return how many that are."""
        last = _lasts(numbers)
        count = len(numbers) if last is None else int(np.count_nonzero(last))
        self._alive[numbers] = False
        self._dirty[numbers] = True
        self._live -= count
        return count

    def _living(self) -> Positions:
        return np.flatnonzero(self._alive[: len(self._index)])

    def _keys(self, numbers: Positions) -> list[pa.Array[Any]]:
        return self._layout.codec.decode(self._index.words, self._index.starts(numbers))

    def _sizes(self, numbers: Positions) -> Positions:
        return self._rows.sizes(numbers) + 8 * self._index.sizes(numbers)

    def _make_room(self) -> None:
        """Make room for all keys of the index."""
        if len(self._index) > len(self._alive):
            self._alive = grown(self._alive, len(self._index))
            self._dirty = grown(self._dirty, len(self._index))
            self._rows.resize(len(self._alive))

    def _append(self, rows: pa.RecordBatch, total: int) -> None:
        """Add `rows`, of which most keys are new, to become about `total` rows in the end."""
        keys = self._layout.keys_of(rows)
        # The total is only what a file says, so it counts up to twice of what is really there.
        needed = len(self._index) + len(keys)
        expected = max(needed, min(total, 2 * needed))
        words = int(self._index.starts(np.array([len(self._index)]))[0]) + len(keys.words)
        if expected > len(self._alive):
            self._index.reserve(expected, words * expected // max(needed, 1))
            more = np.zeros(expected - len(self._alive), np.bool_)
            self._alive = np.concatenate([self._alive, more])
            self._dirty = np.concatenate([self._dirty, more])
            self._rows.resize(expected)
        self._put(keys, self._layout.values_of(rows))

    def _settle(self) -> None:
        """Note that all changes are stored, and let go of what only their tombstones needed."""
        self._dirty[:] = False
        dead = len(self._index) - self._live
        if dead > max(self._live, _LEAST_DEAD):
            numbers = self._living()
            sizes, old = self._sizes(numbers), self._rows
            self._rows = RowStore(self._layout.value_schema)
            self._rows.resize(len(numbers))
            for portion in portions(sizes, UNIT_BYTES, UNIT_ROWS):
                self._rows.put(np.arange(portion.start, portion.stop), old.take(numbers[portion]))
            self._index = self._index.subset(numbers)
            self._alive = np.ones(len(numbers), np.bool_)
            self._dirty = np.zeros(len(numbers), np.bool_)
        else:
            self._compact()

    def _compact(self) -> None:
        if self._rows.may_compact:
            self._rows.compact(self._living())


class _Replay:
    """A `MemoryTable` as `replay` drives it."""

    def __init__(self, table: MemoryTable) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    def clear(self) -> None:
        self._table.close()

    def load(self, rows: pa.RecordBatch, total: int) -> None:
        self._table._append(rows, total)

    def apply(self, upserts: pa.RecordBatch, tombstones: pa.RecordBatch) -> None:
        table = self._table
        table.delete(tombstones)
        table.put(upserts)


def _reader(layout: Layout, index: KeyIndex) -> Callable[[Positions], list[pa.Array[Any]]]:
    words, starts = index.words, index.starts
    return lambda numbers: layout.codec.decode(words, starts(numbers))


def _units(
    layout: Layout,
    numbers: Positions,
    sizes: Positions,
    rows: RowStore,
    keys: Callable[[Positions], list[pa.Array[Any]]],
) -> Iterator[PUnit]:
    total, done = len(numbers), 0
    cuts = list(portions(sizes, UNIT_BYTES, UNIT_ROWS)) or [slice(0, 0)]
    for part, portion in enumerate(cuts):
        some = numbers[portion]
        done += len(some)
        yield layout.unit(keys(some), rows.take(some), rows=done, part=part, total=total)
