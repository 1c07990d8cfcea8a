"""The records of an update queue's keys, in memory or in a table.

An active key has a number, which is its index in arrays in memory. An *idle* key, one that does not wait,
needs only its stored columns. So a working copy of a bucket can keep all records in a table, for example on
local disk (`penstock.state_store.tables.table`), and forget the numbers of idle keys. When a forgotten key
returns, its record is fetched. The stored files are the same in both cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import CorruptDataError
from penstock.operators.key_blocks import KEY_BLOCK
from penstock.operators.update_stream.stream import RESERVED_PREFIX, Integers, UpdateStream
from penstock.state_store.keys.key_index import KeyIndex, grow
from penstock.state_store.keys.key_words import Keys, Words
from penstock.state_store.tables.table import Table
from penstock.state_store.tables.working_copy import TableMaker

__all__ = ["BOOKED", "ForgetRule", "KeyRecords", "TabledKeyRecords", "is_before_horizon", "new_key_records"]

BOOKED = (("queue_booked_us", "dequeued_us"), ("application_booked_us", "delivered_us"))
"""Pairs of columns. For an idle key, the first column, up to which staleness is counted, equals the
second."""


@dataclass(frozen=True, slots=True)
class ForgetRule:
    """The rule for forgetting idle keys. Forgetting rebuilds the index, at a cost per kept key.

    Parameters
    ----------
    min_idle : int
        No key is forgotten while there are at most this many idle keys.
    idle_per_kept : float
        No key is forgotten while the number of idle keys is at most this multiple of the kept keys.
    """

    min_idle: int = 1024
    idle_per_kept: float = 1.0

    def should_forget(self, idle: int, keep: int) -> bool:
        """Return whether to forget idle keys."""
        return idle > max(self.idle_per_kept * keep, self.min_idle)


class KeyRecords:
    """Key records of an `UpdateQueue` that are all in memory.

    Parameters
    ----------
    stream : UpdateStream
        The stream that defines the key.
    columns : mapping of str to number
        The columns of a record, each with its value for new keys. If the value is a float, so is the column.
    stored : sequence of str
        The columns that are stored for every key.
    forgetting : ForgetRule
        The rule for freeing the numbers of keys that have left the state.
    """

    def __init__(
        self,
        stream: UpdateStream,
        columns: Mapping[str, float],
        stored: Sequence[str],
        forgetting: ForgetRule,
    ) -> None:
        self._forgetting = forgetting
        self.stored = [f"{RESERVED_PREFIX}{name}" for name in stored]
        self.dirty = np.zeros(0, np.bool_)
        """Flags by key number: true if the key changed since it was stored."""
        self._key = stream.key
        self._codec = stream.codec
        self._index = KeyIndex()
        self._gone = 0
        """Number of keys that have left and not returned, and that `keep` has not forgotten."""
        self._columns = dict(columns)
        self._arrays: dict[str, npt.NDArray[Any]] = {
            name: np.zeros(0, type(value)) for name, value in columns.items()
        }
        kinds = [pa.from_numpy_dtype(self._arrays[name].dtype) for name in stored]
        fields = [
            *(stream.schema.field(name) for name in stream.key),
            *(pa.field(name, kind) for name, kind in zip(self.stored, kinds, strict=True)),
        ]
        self.schema = pa.schema([field.with_nullable(False) for field in fields])
        """The schema of a `block`."""

    def __len__(self) -> int:
        """Return the number of keys that have a number."""
        return len(self._index)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return a column, indexed by key number; it may be longer than the number of keys."""
        return self._arrays[name]

    @property
    def capacity(self) -> int:
        """Number of keys that fit."""
        return len(self.dirty)

    @property
    def keys(self) -> int:
        """Number of keys ever seen that have not left."""
        return len(self) - self._gone

    def has(self, name: str) -> bool:
        """Return whether records have a column."""
        return name in self._columns

    @property
    def size_bytes(self) -> int:
        """Memory of the records in bytes."""
        arrays = sum(array.nbytes for array in self._arrays.values())
        return arrays + self.dirty.nbytes + self._index.size_bytes

    def find(self, keys: Keys) -> Integers:
        """Return the number of each key; -1 for a key without a number."""
        return self._index.find(keys)

    def find_or_add(self, keys: Keys) -> Integers:
        """Return the number of each key; assign numbers to new keys."""
        ids = self._index.find_or_add(keys)
        self._make_room()
        self._bring_back(ids)
        return ids

    def hashes(self, ids: Integers) -> Words:
        """Return the hashes of the keys with these numbers."""
        return self._index.keys.hashes[ids]

    def key_columns(self, ids: Integers) -> list[pa.Array[Any]]:
        """Return the keys with these numbers."""
        return self._codec.decode(self._index.words, self._index.starts(ids))

    def block(self, ids: Integers) -> pa.RecordBatch:
        """Return the key columns and record columns of keys, to be stored."""
        stored = [pa.array(self._arrays[name.removeprefix(RESERVED_PREFIX)][ids]) for name in self.stored]
        return pa.RecordBatch.from_arrays([*self.key_columns(ids), *stored], [*self._key, *self.stored])

    def take_changed(self) -> Integers:
        """Return the keys that changed since the last call."""
        changed = np.flatnonzero(self.dirty[: len(self)])
        self.dirty[:] = False
        return changed

    def take_up(self, block: pa.RecordBatch, waiting: Integers) -> tuple[Integers, Integers]:
        """Restore keys from a stored `block`.

        Parameters
        ----------
        block : pyarrow.RecordBatch
            A block of stored keys. Each key occurs once.
        waiting : int64 array
            The rows of `block` whose keys wait.

        Returns
        -------
        ids, waiting : int64 arrays
            Numbers of the keys in memory, and of the keys that wait.

        Raises
        ------
        CorruptDataError
            If a key occurs twice.
        """
        ids = self._index.find_or_add(self._codec.encode(block.columns[: len(self._key)]))
        self._make_room()
        self._bring_back(ids)
        seen = np.zeros(len(self), np.bool_)
        seen[ids] = True
        if np.count_nonzero(seen) < len(ids):
            raise CorruptDataError("a key occurs twice in a block", block=KEY_BLOCK)
        self._set(ids, block.columns[len(self._key) :])
        return ids, ids[waiting]

    def update_table(self, block: pa.RecordBatch, ids: Integers) -> None:
        """If there is a table, put the changed keys into it; `ids` are their numbers."""

    def fetch_older(self, time: int, deleted_time: int) -> None:
        """Give a number to each key whose newest emitted tuple is not after `time`.

        `deleted_time` is the limit for keys whose newest emitted tuple deleted them. Does nothing if all
        records are in memory, because then all keys have numbers.
        """

    def remove(self, ids: Integers) -> None:
        """Mark keys as gone.

        The keys keep their numbers and records in memory until `keep` forgets them. If such a key arrives
        again before that, its record becomes the record of a new key.

        If a key changed since it was stored, its record is stored once more, because the stored record may
        say that the key waits.
        """
        self._arrays["gone"][ids] = 1
        self._gone += len(ids)

    def find_present(self) -> Integers:
        """Return the numbers of the keys that have not left."""
        return np.flatnonzero(self._arrays["gone"][: len(self)] == 0)

    @property
    def has_many_gone(self) -> bool:
        """Return whether so many keys have left that calling `keep` with the other keys is worth its cost."""
        return self._forgetting.should_forget(self._gone, len(self) - self._gone)

    def may_forget(self, kept: int) -> bool:
        """Return whether forgetting is worth its cost, if at most `kept` keys remain."""
        return False

    def keep(self, ids: Integers) -> None:
        """Renumber these keys 0, 1, 2, ...; forget the numbers of all other keys."""
        self._index = self._index.subset(ids)
        self._arrays = {name: array[ids] for name, array in self._arrays.items()}
        self.dirty = self.dirty[ids]
        self._gone = int(np.count_nonzero(self._arrays["gone"]))

    def split_records(self, ids: Integers) -> tuple[Integers, Iterator[pa.RecordBatch]]:
        """Return all records in two parts: the keys with these numbers, and all other keys.

        Returns
        -------
        ids : int64 array
            The numbers of the keys in the first part.
        blocks : iterator of pyarrow.RecordBatch
            The stored form of the other keys as of this call, in bounded parts. Another thread may consume
            it.
        """
        return self.find_present(), iter(())

    def close(self) -> None:
        """Do nothing, because the state is only in memory."""

    def _bring_back(self, ids: Integers) -> None:
        """Reset keys that had left to the record of a new key."""
        if self._gone:
            back = np.unique(ids[self._arrays["gone"][ids] != 0])
            for name, value in self._columns.items():
                self._arrays[name][back] = value
            self._gone -= len(back)

    def _set(self, ids: Integers, columns: Sequence[pa.Array[Any]]) -> None:
        for name, column in zip(self.stored, columns, strict=True):
            self._arrays[name.removeprefix(RESERVED_PREFIX)][ids] = column.to_numpy()

    def _make_room(self) -> None:
        size, needed = len(self.dirty), len(self)
        if needed <= size:
            return
        self.dirty = grow(self.dirty, needed)
        for name, value in self._columns.items():
            self._arrays[name] = grow(self._arrays[name], len(self.dirty))
            if value:
                self._arrays[name][size:] = value


class TabledKeyRecords(KeyRecords):
    """Key records in a table. The records of active keys are also in memory.

    The table has the stored form of all keys as of the last `update_table`. Records in memory are newer.

    Parameters
    ----------
    stream, columns, stored
        As in `KeyRecords`.
    forgetting : ForgetRule
        The rule for forgetting idle keys.
    table : TableMaker
        Creates the table.
    """

    def __init__(
        self,
        stream: UpdateStream,
        columns: Mapping[str, float],
        stored: Sequence[str],
        forgetting: ForgetRule,
        table: TableMaker,
    ) -> None:
        super().__init__(stream, columns, stored, forgetting)
        fields = [stream.schema.field(name) for name in stream.key]
        fields += [self.schema.field(name).with_nullable(True) for name in self.stored]
        self._table: Table = table(pa.schema(fields), stream.key)
        self._new = 0
        """Number of keys in memory that the table does not have."""

    @property
    def keys(self) -> int:
        """Number of keys ever seen that have not left."""
        return len(self._table) + self._new

    @property
    def size_bytes(self) -> int:
        """Memory of the records in bytes."""
        return super().size_bytes + self._table.size_bytes

    def find_or_add(self, keys: Keys) -> Integers:
        """Return the number of each key; assign numbers to keys without a number and fetch their records."""
        size, gone = len(self), self._gone
        ids = super().find_or_add(keys)
        self._new += gone - self._gone
        added = np.arange(size, len(self))
        if len(added):
            rows, mask = self._table.get(pa.RecordBatch.from_arrays(self.key_columns(added), list(self._key)))
            self._new += len(added) - int(np.count_nonzero(mask))
            self._set(added[mask], rows.filter(pa.array(mask)).columns)
            # The staleness of the key was booked up to the time at which it became idle.
            for booked, until in BOOKED:
                self._arrays[booked][added] = self._arrays[until][added]
        return ids

    def take_up(self, block: pa.RecordBatch, waiting: Integers) -> tuple[Integers, Integers]:
        """Restore stored keys; only waiting keys get a number."""
        self._table.put(block)
        keys = self._codec.encode(block.columns[: len(self._key)])
        held = self.find(keys) >= 0
        held[waiting] = True
        rows = np.cumsum(held) - 1
        return super().take_up(block.filter(pa.array(held)), rows[waiting])

    def update_table(self, block: pa.RecordBatch, ids: Integers) -> None:
        """Put all keys that changed since the last call into the table, except keys that left."""
        here = self._arrays["gone"][ids] == 0
        self._table.put(block if here.all() else block.filter(pa.array(here)))
        self._new = 0

    def fetch_older(self, time: int, deleted_time: int) -> None:
        """Give a number to each key whose newest emitted tuple is not after `time`, in one scan."""
        for block in self._table.rows():
            older = is_before_horizon(block, time, deleted_time)
            if older.any():
                keys = block.filter(pa.array(older)).columns[: len(self._key)]
                self.find_or_add(self._codec.encode(keys))

    def remove(self, ids: Integers) -> None:
        """Remove the records of keys that leave, also from the table."""
        super().remove(ids)
        keys = pa.RecordBatch.from_arrays(self.key_columns(ids), list(self._key))
        self._new -= len(ids) - self._table.remove(keys)

    def may_forget(self, kept: int) -> bool:
        """Return whether forgetting is worth its cost; see `KeyRecords.may_forget`."""
        return self._forgetting.should_forget(len(self) - kept, kept)

    def split_records(self, ids: Integers) -> tuple[Integers, Iterator[pa.RecordBatch]]:
        """Return the records of keys in memory, then the remaining records from the table."""
        changed = np.flatnonzero(self.dirty[: len(self)])
        self.update_table(self.block(changed), changed)
        # Copy now, because the index changes while the other records are written.
        return ids, self._others(self._index.subset(ids), self._table.rows())

    def close(self) -> None:
        """Close the table."""
        self._table.close()

    def _others(self, index: KeyIndex, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            here = index.find(self._codec.encode(block.columns[: len(self._key)])) >= 0
            yield block.filter(pa.array(~here)) if here.any() else block


def is_before_horizon(
    records: pa.RecordBatch | pa.Table, horizon: int, deleted_horizon: int
) -> npt.NDArray[np.bool_]:
    """Mark the stored records whose keys have left, unless they wait."""
    limit: Any = horizon
    if (name := f"{RESERVED_PREFIX}deleted") in records.schema.names:
        limit = np.where(records.column(name).to_numpy() != 0, deleted_horizon, horizon)
    found: npt.NDArray[np.bool_] = records.column(f"{RESERVED_PREFIX}emitted").to_numpy() <= limit
    return found


def new_key_records(
    stream: UpdateStream,
    columns: Mapping[str, float],
    stored: Sequence[str],
    table: TableMaker | None,
    forgetting: ForgetRule | None = None,
) -> KeyRecords:
    """Create key records in memory or, given `table`, in a table."""
    rule = forgetting or ForgetRule()
    if table is None:
        return KeyRecords(stream, columns, stored, rule)
    return TabledKeyRecords(stream, columns, stored, rule, table)
