"""The rows of a table in memory: columns, indexes, and the changes since the last version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.procedures.compiler.layout import FACTS, FREE, GONE, LIVE, SHIFT, USED
from penstock.procedures.index_kernels import (
    add_entries,
    find_all,
    new_index,
    remove_entries,
    words_of,
)
from penstock.procedures.indexes.table_trees import TableTrees
from penstock.procedures.plain.tables import python_rows
from penstock.procedures.schema import Column, Kind, TableSpec
from penstock.procedures.texts import Numbers, TextNumbers

__all__ = ["TableRows", "arrow_column", "from_python", "null_mask", "numpy_column"]

_MIN_ROWS = 1 << 6
_MIN_GONE = 1 << 6
_UNIT_ROWS = 1 << 17


def null_mask(values: pa.Array[Any]) -> npt.NDArray[np.bool_]:
    """Return the mask of an array's nulls."""
    if not values.null_count:
        return np.zeros(len(values), np.bool_)
    return np.asarray(values.is_null().to_numpy(zero_copy_only=False))


def numpy_column(
    column: Column, values: pa.Array[Any], texts: TextNumbers
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return a column as an array for kernels, and the mask of its nulls."""
    mask = null_mask(values)
    if column.kind.is_interned:
        return texts.numbers(values), mask
    if pa.types.is_date(values.type):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(values.type):
        values = values.view(pa.int64())
    if column.kind.scale is not None:
        digits = np.frombuffer(values.buffers()[1] or b"", np.int64)[::2][
            values.offset : values.offset + len(values)
        ]
        return np.where(mask, 0, digits), mask
    if values.null_count:
        values = values.fill_null(False if column.kind is Kind.BOOLEAN else 0)
    return np.asarray(values.to_numpy(zero_copy_only=False)), mask


def arrow_column(
    column: Column, values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None, texts: TextNumbers
) -> pa.Array[Any]:
    """Convert the output of `numpy_column` back to Arrow."""
    if column.kind.is_interned:
        return texts.column(values, column.type, mask)
    array = pa.array(values, mask=mask)
    if column.kind.scale is not None:
        # Arrow stores a decimal in 128 bits. The upper 64 bits repeat the sign of the lower 64 bits.
        words = np.stack([values, values >> 63], axis=1)
        return pa.Array.from_buffers(column.type, len(values), [array.buffers()[0], pa.py_buffer(words)])
    return array if array.type == column.type else array.view(column.type)


def from_python(values: Sequence[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Convert Python values to Arrow; `values` has timestamps and dates as integers."""
    storage_type = (
        pa.int64() if pa.types.is_timestamp(kind) else pa.int32() if pa.types.is_date(kind) else kind
    )
    array = pa.array(values, storage_type)
    return array if storage_type == kind else array.view(kind)


class TableRows:
    """The rows of one table of one bucket.

    Kernels write into the arrays themselves (`penstock.procedures.compiler.layout`), and mark the slots of
    rows that they change. A slot is the position of a row. It does not change while the row exists.

    Parameters
    ----------
    spec : TableSpec
        The declaration of the table.
    texts : TextNumbers
        The interned texts, which all tables of a bucket share.
    """

    def __init__(self, spec: TableSpec, texts: TextNumbers) -> None:
        self.spec = spec
        self._texts = texts
        self._columns = [np.zeros(_MIN_ROWS, column.dtype) for column in spec.columns]
        self._nulls = [np.zeros(_MIN_ROWS, np.bool_) if column.nullable else None for column in spec.columns]
        self._live = np.zeros(_MIN_ROWS, np.bool_)
        self._dirty = np.zeros(_MIN_ROWS, np.bool_)
        self._free = np.zeros(_MIN_ROWS, np.int64)
        self._gone = np.zeros((_MIN_GONE, len(spec.key)), np.int64)
        self._facts = np.zeros(len(FACTS) + len(spec.indexes), np.int64)
        self.trees = TableTrees(spec, texts, self._facts, len(FACTS), _MIN_ROWS)
        self._entries, self._facts[SHIFT] = new_index(_MIN_ROWS)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._facts[LIVE])

    @property
    def size_bytes(self) -> int:
        """The memory of the arrays."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def index_bytes(self) -> int:
        """The memory of the index."""
        return self._entries.nbytes

    @property
    def arrays(self) -> list[npt.NDArray[Any]]:
        """The arrays in the order in which kernels take them."""
        arrays: list[npt.NDArray[Any]] = []
        for column, null in zip(self._columns, self._nulls, strict=True):
            arrays.append(column)
            if null is not None:
                arrays.append(null)
        arrays += [self._entries, self._live, self._dirty, self._free, self._gone, self._facts]
        return arrays + self.trees.nodes

    # Room

    def make_room(self, count: int) -> None:
        """Make room for `count` more rows and `count` more deleted keys."""
        self._grow_gone(int(self._facts[GONE]) + count)
        if self._facts[FREE] + len(self._live) - self._facts[USED] < count:
            self._grow(max(2 * len(self._live), int(self._facts[USED]) + count))

    def double_rows(self) -> None:
        """Double the room for rows. The transaction that lacked room was undone and runs again."""
        self._grow(2 * len(self._live))

    def double_deleted(self) -> None:
        """Double the room for deleted keys."""
        self._grow_gone(2 * len(self._gone))

    @property
    def live(self) -> npt.NDArray[np.bool_]:
        """A mask of the slots that hold a row."""
        return self._live

    @property
    def used(self) -> int:
        """The number of slots that hold a row, or have held a row and are free."""
        return int(self._facts[USED])

    def reserve(self, count: int) -> None:
        """Make room for `count` rows after the used slots."""
        if len(self._live) - self.used < count:
            self._grow(max(2 * len(self._live), self.used + count))

    def clear(self, count: int) -> None:
        """Clear the columns of the `count` slots that follow the used slots."""
        for array in (*self._columns, *(null for null in self._nulls if null is not None)):
            array[self.used : self.used + count] = 0

    def forget_deleted(self) -> None:
        """Forget the deleted keys; the next delta does not have them."""
        self._facts[GONE] = 0
        if len(self._gone) > _MIN_GONE:
            self._gone = np.zeros((_MIN_GONE, len(self.spec.key)), np.int64)

    def _grow_gone(self, size: int) -> None:
        if size > len(self._gone):
            larger = np.zeros((max(2 * len(self._gone), size), self._gone.shape[1]), np.int64)
            larger[: len(self._gone)] = self._gone
            self._gone = larger

    def _grow(self, size: int) -> None:
        self._columns = [_larger(column, size) for column in self._columns]
        self._nulls = [None if null is None else _larger(null, size) for null in self._nulls]
        self._live, self._dirty = _larger(self._live, size), _larger(self._dirty, size)
        self._free = _larger(self._free, size)
        self.trees.grow(size)
        self._index()

    def _index(self) -> None:
        """Rebuild the index with room for as many rows as the columns have room for."""
        self._entries, self._facts[SHIFT] = new_index(len(self._live))
        slots = np.flatnonzero(self._live)
        key = [column[slots].astype(np.int64) for column in self._key_columns]
        add_entries(self._entries, int(self._facts[SHIFT]), words_of(key), slots)

    @property
    def _key_columns(self) -> list[npt.NDArray[Any]]:
        return [self._columns[self.spec.names.index(name)] for name in self.spec.key]

    def find(self, key: list[Numbers]) -> Numbers:
        """Return the slot of each key, or -1 if no row has it; `key` has an array for each key column."""
        return find_all(self._entries, int(self._facts[SHIFT]), key, self._key_columns)

    # Rows in and out

    def table(self) -> pa.RecordBatch:
        """Return all rows, in no particular order."""
        return self.rows_at(np.flatnonzero(self._live))

    def key_column(self, name: str) -> pa.Array[Any]:
        """Return a key column of all rows, in the order of `table`."""
        values = self._columns[self.spec.names.index(name)][np.flatnonzero(self._live)]
        return arrow_column(self.spec.column(name), values, None, self._texts)

    def freeze(self) -> Callable[[], pa.RecordBatch]:
        """Copy the rows; return a function that converts the copy to Arrow.

        Copying takes a fraction of the time of converting. Any thread may convert the copy while the table
        changes.
        """
        used = int(self._facts[USED])
        # Slices are copied several times as fast as selected slots.
        place: slice | Numbers = slice(used) if used == len(self) else np.flatnonzero(self._live[:used])
        copies = [
            (column, values[place].copy(), None if null is None else null[place].copy())
            for column, values, null in zip(self.spec.columns, self._columns, self._nulls, strict=True)
        ]
        texts, schema = self._texts.freeze(), self.spec.schema
        return lambda: pa.RecordBatch.from_arrays(
            [arrow_column(*one, texts) for one in copies], schema=schema
        )

    def rows_at(self, slots: Numbers, schema: pa.Schema | None = None) -> pa.RecordBatch:
        """Return the rows in `slots`, with all columns or with the columns of `schema`."""
        schema = schema or self.spec.schema
        arrays = [
            arrow_column(column, values[slots], null if null is None else null[slots], self._texts)
            for column, values, null in zip(self.spec.columns, self._columns, self._nulls, strict=True)
            if column.name in schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def upsert(self, rows: pa.RecordBatch, *, dirty: bool, new: bool = False) -> None:
        """Insert or replace rows by key; with `new`, refuse keys that exist.

        With `dirty`, the next delta has these rows.

        Raises
        ------
        InvalidUsageError
            If `new` rows have a key that exists already.
        """
        if new:
            self.check_new(rows)
        self.make_room(rows.num_rows)
        columns = [
            numpy_column(column, values, self._texts)
            for column, values in zip(self.spec.columns, rows.columns, strict=True)
        ]
        key = [columns[self.spec.names.index(name)][0].astype(np.int64) for name in self.spec.key]
        slots = self.find(key)
        missing = np.flatnonzero(slots < 0)
        self.trees.remove(slots[slots >= 0])
        slots[missing] = self._take_slots(len(missing))
        for (values, mask), column, null in zip(columns, self._columns, self._nulls, strict=True):
            column[slots] = values
            if null is not None:
                null[slots] = mask
        add_entries(self._entries, int(self._facts[SHIFT]), words_of(key)[missing], slots[missing])
        self._live[slots] = True
        self._dirty[slots] = dirty
        self.trees.add(slots, self._columns, self._nulls)

    def check_new(self, rows: pa.RecordBatch) -> None:
        """Check that the keys of rows are new and distinct.

        Raises
        ------
        InvalidUsageError
            If a key exists already or occurs twice.
        """
        key = self._key_numbers(rows)
        if (self.find(key) >= 0).any() or len(np.unique(np.stack(key), axis=1).T) < rows.num_rows:
            raise InvalidUsageError("a row with this key exists already", table=self.spec.name)

    def rows_of(self, keys: pa.RecordBatch, schema: pa.Schema | None = None) -> pa.RecordBatch:
        """Return the existing rows of `keys`, each row once, in any order; see `rows_at`."""
        slots = self.find(self._key_numbers(keys))
        is_found = np.zeros(int(self._facts[USED]), np.bool_)  # marking is several times as fast as `unique`
        is_found[slots[slots >= 0]] = True
        return self.rows_at(np.flatnonzero(is_found), schema)

    def change(self, upserts: pa.RecordBatch, tombstones: pa.RecordBatch, *, stored: bool) -> None:
        """Delete keys, then insert or replace rows; with `stored`, the next delta has these changes."""
        self._delete(tombstones, note=stored)
        self.upsert(upserts, dirty=stored)

    def mark(self, upserts: pa.RecordBatch, tombstones: pa.RecordBatch) -> None:
        """Include these existing rows and deleted keys in the next delta."""
        self._dirty[self.find(self._key_numbers(upserts))] = True
        self._delete(tombstones, note=True)

    def _key_numbers(self, rows: pa.RecordBatch) -> list[Numbers]:
        return [
            numpy_column(column, rows.column(column.name), self._texts)[0].astype(np.int64)
            for column in self.spec.key_columns
        ]

    def _take_slots(self, count: int) -> Numbers:
        facts = self._facts
        again = min(int(facts[FREE]), count)
        facts[LIVE] += count
        facts[FREE] -= again
        begin = int(facts[USED])
        facts[USED] += count - again
        first = int(facts[FREE])
        return np.concatenate([self._free[first : first + again], np.arange(begin, begin + count - again)])

    def _delete(self, rows: pa.RecordBatch, *, note: bool) -> None:
        """Delete rows by key; with `note`, record the keys for the next delta."""
        key = self._key_numbers(rows)
        slots = self.find(key)
        exists = slots >= 0
        slots = slots[exists]
        remove_entries(self._entries, int(self._facts[SHIFT]), words_of(key)[exists], slots)
        self._live[slots] = False
        self.trees.remove(slots)
        free = int(self._facts[FREE])
        self._free[free : free + len(slots)] = slots
        self._facts[FREE] += len(slots)
        self._facts[LIVE] -= len(slots)
        if note:
            self.make_room(rows.num_rows)
            begin = int(self._facts[GONE])
            self._gone[begin : begin + rows.num_rows] = np.stack(key, axis=1)
            self._facts[GONE] += rows.num_rows

    # Rows as Python objects, for procedures that Python runs

    def fetch(self, key: tuple[Any, ...]) -> dict[str, Any] | None:
        """Return the row of a key, or None if no row has the key."""
        kinds = self.spec.key_schema.types
        try:
            parts = [from_python([part], kind) for kind, part in zip(kinds, key, strict=True)]
        except pa.ArrowInvalid:  # the column's type cannot hold the value
            return None
        slot = self.find(self._key_numbers(pa.RecordBatch.from_arrays(parts, schema=self.spec.key_schema)))
        if slot[0] < 0:
            return None
        return python_rows(self.rows_at(slot))[0]

    def scan(self) -> list[dict[str, Any]]:
        """Return all rows as dictionaries."""
        return python_rows(self.table())

    def to_arrow(
        self, changes: Mapping[tuple[Any, ...], dict[str, Any] | None]
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Convert changes to the arguments of `change`; a deleted key maps to None."""
        deleted_keys = [key for key, row in changes.items() if row is None]
        kinds = enumerate(self.spec.key_schema.types)
        keys = [from_python([key[place] for key in deleted_keys], kind) for place, kind in kinds]
        tombstones = pa.RecordBatch.from_arrays(keys, schema=self.spec.key_schema)
        rows = [row for row in changes.values() if row is not None]
        columns = [from_python([row[one.name] for row in rows], one.type) for one in self.spec.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.spec.schema), tombstones

    # Versions

    def delta(self) -> dict[str, pa.RecordBatch]:
        """Return the changes since the last call, and reset them."""
        upserts = self.rows_at(np.flatnonzero(self._dirty & self._live))
        count = int(self._facts[GONE])
        deleted_keys = np.unique(self._gone[:count], axis=0) if count else self._gone[:0]
        deleted_keys = deleted_keys[self.find([np.ascontiguousarray(part) for part in deleted_keys.T]) < 0]
        keys = [
            arrow_column(column, deleted_keys[:, place].astype(column.dtype), None, self._texts)
            for place, column in enumerate(self.spec.key_columns)
        ]
        tombstones = pa.RecordBatch.from_arrays(keys, schema=self.spec.key_schema)
        self._dirty[:] = False
        self._facts[GONE] = 0
        return {f"{self.spec.name}/upserts": upserts, f"{self.spec.name}/tombstones": tombstones}

    def snapshot(self) -> Iterator[dict[str, pa.RecordBatch]]:
        """Return all rows in blocks of bounded size."""
        slots = np.flatnonzero(self._live)
        for begin in range(0, len(slots), _UNIT_ROWS):
            yield {f"{self.spec.name}/upserts": self.rows_at(slots[begin : begin + _UNIT_ROWS])}

    def apply(self, block: Any) -> None:
        """Apply stored blocks; ``block(name, schema)`` returns a block, or None if it is missing."""
        tombstones = block(f"{self.spec.name}/tombstones", self.spec.key_schema)
        upserts = block(f"{self.spec.name}/upserts", self.spec.schema)
        if tombstones is not None:
            self._delete(tombstones, note=False)
        if upserts is not None and upserts.num_rows:
            if not len(self) and not self._facts[USED]:
                self.fill(upserts)
            else:
                self.upsert(upserts, dirty=False)

    def fill(self, rows: pa.RecordBatch) -> None:
        """Fill an empty table."""
        self.make_room(rows.num_rows)
        for place, (column, values) in enumerate(zip(self.spec.columns, rows.columns, strict=True)):
            numbers, mask = numpy_column(column, values, self._texts)
            self._columns[place][: rows.num_rows] = numbers
            null = self._nulls[place]
            if null is not None:
                null[: rows.num_rows] = mask
        self._live[: rows.num_rows] = True
        self._facts[LIVE] = self._facts[USED] = rows.num_rows
        self._index()
        self.trees.build(np.arange(rows.num_rows), self._columns, self._nulls)

    # Texts

    def text_numbers(self) -> list[Numbers]:
        """Return the numbers of all texts in use."""
        slots = np.flatnonzero(self._live)
        numbers = []
        for column, values, null in zip(self.spec.columns, self._columns, self._nulls, strict=True):
            if column.kind.is_interned:
                column_numbers = values[slots]
                numbers.append(column_numbers if null is None else column_numbers[~null[slots]])
        return numbers

    def renumber(self, new_numbers: Numbers) -> None:
        """Replace the numbers of texts. No deleted key may be waiting for the next delta."""
        key_changed = False
        for column, values in zip(self.spec.columns, self._columns, strict=True):
            if column.kind.is_interned:
                values[:] = new_numbers[np.clip(values, 0, len(new_numbers) - 1)]
                key_changed = key_changed or column.name in self.spec.key
        self.trees.renumber(new_numbers)
        if key_changed:
            self._index()


def _larger(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    larger = np.zeros(size, array.dtype)
    larger[: len(array)] = array
    return larger
