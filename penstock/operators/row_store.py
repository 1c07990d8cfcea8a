"""Tuples by location: one array a column, written in place and read in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.stream import Integers, concat
from penstock.state_store.key_index import grown

__all__ = ["RowStore"]

_DTYPES: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_LEAST_GARBAGE = 4096
_LEAST_HEAP_BYTES = 4 << 20
_MOST_CHUNKS = 64


class RowStore:
    """Holds the columns of `schema` for numbered locations.

    Values of fixed width are written in place. Values of varying width (strings, binary, lists,
    structs, maps) are appended to a heap of Arrow batches, a location holds where its row is there, and
    the heap is rewritten when most of it is garbage.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._fixed = [_FixedColumn(field) for field in schema if _is_fixed(field.type)]
        self._varying = pa.schema([field for field in schema if not _is_fixed(field.type)])
        self._heap: list[pa.RecordBatch] = []
        self._heap_rows = 0
        self._heap_row = np.zeros(0, np.int64)

    @property
    def size_bytes(self) -> int:
        """How much memory the columns hold."""
        heap = sum(batch.nbytes for batch in self._heap)
        return heap + self._heap_row.nbytes + sum(column.size_bytes for column in self._fixed)

    def resize(self, capacity: int) -> None:
        """Make room for locations below `capacity` and let go of those above."""
        for column in self._fixed:
            column.resize(capacity)
        if len(self._varying):
            self._heap_row = _fit(self._heap_row, capacity)

    def put(self, locations: Integers, rows: pa.RecordBatch) -> None:
        """Write row i of `rows` to ``locations[i]``; the locations differ."""
        for column in self._fixed:
            column.put(locations, rows.column(column.name))
        if len(self._varying):
            base = self._heap_rows
            self._heap.append(rows.select(self._varying.names))
            self._heap_rows += rows.num_rows
            self._heap_row[locations] = np.arange(base, base + rows.num_rows)

    def take(self, locations: Integers) -> pa.RecordBatch:
        """Return the rows at `locations`."""
        arrays = {column.name: column.take(locations) for column in self._fixed}
        if len(self._varying):
            self._consolidate()
            found = self._heap[0].take(pa.array(self._heap_row[locations])) if self._heap else None
            for field in self._varying:
                arrays[field.name] = pa.array([], field.type) if found is None else found.column(field.name)
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)

    def compact(self, locations: Integers) -> None:
        """Drop what no location in `locations`, all that are in use, refers to, if that pays."""
        garbage = self._heap_rows - len(locations)
        small = garbage < _LEAST_GARBAGE and sum(batch.nbytes for batch in self._heap) < _LEAST_HEAP_BYTES
        mostly_used = garbage < max(len(locations), 1)
        if not len(self._varying) or (len(self._heap) < _MOST_CHUNKS and (small or mostly_used)):
            return
        if not len(locations):
            self._heap, self._heap_rows = [], 0
            return
        self._consolidate()
        self._heap = [self._heap[0].take(pa.array(self._heap_row[locations]))]
        self._heap_rows = len(locations)
        self._heap_row[locations] = np.arange(len(locations))

    def _consolidate(self) -> None:
        if len(self._heap) > 1:
            self._heap = [concat(self._heap)]


class _FixedColumn:
    """A column of fixed width as an array of its bit patterns, and its nulls once there are any."""

    def __init__(self, field: pa.Field[Any]) -> None:
        self.name = field.name
        self.type = field.type
        self._words = self.type.bit_width // 64 if self.type.bit_width > 64 else 1
        dtype = np.uint8 if pa.types.is_boolean(self.type) else _DTYPES[min(self.type.bit_width, 64)]
        shape = (0, self._words) if self._words > 1 else (0,)
        self._values: npt.NDArray[Any] = np.zeros(shape, dtype)
        self._null: npt.NDArray[np.bool_] | None = None

    @property
    def size_bytes(self) -> int:
        return self._values.nbytes + (0 if self._null is None else self._null.nbytes)

    def resize(self, capacity: int) -> None:
        self._values = _fit(self._values, capacity)
        if self._null is not None:
            self._null = _fit(self._null, capacity)

    def put(self, locations: Integers, column: pa.Array[Any]) -> None:
        if column.null_count and self._null is None:
            self._null = np.zeros(len(self._values), np.bool_)
        if self._null is not None:
            self._null[locations] = column.is_null().to_numpy(zero_copy_only=False)
        self._values[locations] = self._patterns(column)

    def take(self, locations: Integers) -> pa.Array[Any]:
        values = self._values[locations]
        validity = None
        if self._null is not None:
            null = self._null[locations]
            if null.any():
                validity = pa.py_buffer(np.packbits(~null, bitorder="little"))
        if pa.types.is_boolean(self.type):
            values = np.packbits(values.astype(np.bool_), bitorder="little")
        return pa.Array.from_buffers(self.type, len(locations), [validity, pa.py_buffer(values)])

    def _patterns(self, column: pa.Array[Any]) -> npt.NDArray[Any]:
        if pa.types.is_boolean(self.type):
            return column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)
        buffer = column.buffers()[1]
        if buffer is None or not len(column):
            return np.zeros((len(column), *self._values.shape[1:]), self._values.dtype)
        begin, end = column.offset * self._words, (column.offset + len(column)) * self._words
        flat = np.frombuffer(buffer, self._values.dtype, count=end)
        return flat[begin:].reshape(len(column), *self._values.shape[1:])


def _is_fixed(kind: pa.DataType) -> bool:
    return (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_date(kind)
        or pa.types.is_time(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_decimal128(kind)
    )


def _fit(array: npt.NDArray[Any], capacity: int) -> npt.NDArray[Any]:
    if capacity <= len(array):
        return array[:capacity].copy() if capacity < len(array) else array
    return grown(array, capacity)[:capacity]
