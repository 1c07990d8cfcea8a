"""Store rows by location: each column is an array that is written in place and read in any order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._kernels import kernel
from penstock.compression.empty_rows import rows_without_columns
from penstock.state_store.keys.key_index import grow
from penstock.state_store.keys.key_words import Positions
from penstock.state_store.tables.row_codec import Bytes, RowCodec, byte_ranges, from_byte_ranges, is_bytes

__all__ = ["RowStore"]

_DTYPES: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_MIN_GARBAGE_BYTES = 64 * 1024
"""A heap with less garbage than this is not compacted."""

_VALUES_PER_PREFETCH = 64
"""The number of values to prefetch before copying."""

_Where = Positions | slice


@kernel
def _missing_room(sizes: Positions, locations: Positions, bounds: Positions) -> int:
    """Return the number of bytes that do not fit in their locations' current ranges."""
    missing = 0
    for i in range(locations.shape[0]):
        size = bounds[i + 1] - bounds[i]
        if size > sizes[locations[i]]:
            missing += size
    return missing


@kernel
def _touch(
    starts: Positions, sizes: Positions, heap: Bytes, locations: Positions, begin: int, end: int
) -> int:
    """Prefetch the bytes of some locations, so that the following copies find them in the cache.

    The reads are independent, so the processor overlaps them. The function returns a meaningless number; if
    nothing were returned, the compiler would drop the reads.
    """
    read = 0
    for i in range(begin, end):
        if sizes[locations[i]] > 0:
            read += heap[starts[locations[i]]]
    return read


@kernel
def _write(
    starts: Positions,
    sizes: Positions,
    heap: Bytes,
    end: int,
    locations: Positions,
    bounds: Positions,
    data: Bytes,
) -> tuple[int, int]:
    """Put range i of `data` at ``locations[i]``, in place if it fits.

    Returns the heap's new end, and a meaningless number (see `_touch`).
    """
    count = locations.shape[0]
    read = 0
    for first in range(0, count, _VALUES_PER_PREFETCH):
        last = min(first + _VALUES_PER_PREFETCH, count)
        read += _touch(starts, sizes, heap, locations, first, last)
        for i in range(first, last):
            location, begin = locations[i], bounds[i]
            size = bounds[i + 1] - begin
            if size > sizes[location]:
                starts[location] = end
                end += size
            sizes[location] = size
            start = starts[location]
            for b in range(size):
                heap[start + b] = data[begin + b]
    return end, read


@kernel
def _gather(
    starts: Positions, sizes: Positions, heap: Bytes, locations: Positions, bounds: Positions, out: Bytes
) -> int:
    """Copy the bytes at ``locations[i]`` to range i of `out`; an empty range reads nothing.

    Returns a meaningless number (see `_touch`).
    """
    count = locations.shape[0]
    read = 0
    for first in range(0, count, _VALUES_PER_PREFETCH):
        last = min(first + _VALUES_PER_PREFETCH, count)
        read += _touch(starts, sizes, heap, locations, first, last)
        for i in range(first, last):
            begin = bounds[i]
            size = bounds[i + 1] - begin
            if size > 0:
                start = starts[locations[i]]
                for b in range(size):
                    out[begin + b] = heap[start + b]
    return read


class RowStore:
    """Holds the columns of `schema` for numbered locations.

    A column of fixed width is an array. Any other column has a heap of bytes, and a range in the heap for
    each location. The heap holds texts and binary values as they are, and nested values as `RowCodec` encodes
    them. A new value overwrites the old value if it is not longer. The heap is compacted when most of it is
    garbage. A store is not thread-safe; one working copy or operator uses it.

    Parameters
    ----------
    schema : pyarrow.Schema
        The columns, with any type of a Spark column.
    min_garbage_bytes : int
        `compact` collects garbage in a column only if the column has at least this many bytes of garbage.

    Raises
    ------
    InvalidUsageError
        If a column's type is not supported.
    """

    def __init__(self, schema: pa.Schema, *, min_garbage_bytes: int = _MIN_GARBAGE_BYTES) -> None:
        self.schema = schema
        self._capacity = 0
        self._columns: list[_Column] = [_column(field.type, min_garbage_bytes) for field in schema]

    @property
    def size_bytes(self) -> int:
        """The memory of the columns, in bytes."""
        return sum(column.size_bytes for column in self._columns)

    def resize(self, capacity: int) -> None:
        """Allocate memory for the locations below `capacity`, and drop all other locations."""
        self._capacity = capacity
        for column in self._columns:
            column.resize(capacity)

    def put(self, locations: Positions, rows: pa.RecordBatch) -> None:
        """Write row i of `rows` to ``locations[i]``. The locations are distinct."""
        if not len(locations):
            return
        where = _run(locations)
        for field, column in zip(self.schema, self._columns, strict=True):
            column.put(where, rows.column(field.name))

    def take(self, locations: Positions, found: npt.NDArray[np.bool_] | None = None) -> pa.RecordBatch:
        """Return the rows at `locations`, with a row of nulls wherever `found` is false.

        Raises
        ------
        InvalidUsageError
            If there is more text than one array can hold.
        """
        if not self._columns:
            return rows_without_columns(len(locations)).replace_schema_metadata(self.schema.metadata)
        if found is not None and found.all():
            found = None
        if found is not None:
            if not found.any():
                arrays = [pa.nulls(len(locations), field.type) for field in self.schema]
                return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            locations = np.where(found, locations, 0)
        where = _run(locations)
        arrays = [column.take(where, len(locations), found) for column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def sizes(self, locations: Positions) -> Positions:
        """Return the approximate size in bytes of the row at each location."""
        out = np.zeros(len(locations), np.int64)
        for column in self._columns:
            out += column.sizes(locations)
        return out

    @property
    def may_compact(self) -> bool:
        """Return whether `compact` would look for garbage."""
        return any(column.may_compact for column in self._columns)

    def compact(self, locations: Positions) -> None:
        """Drop the bytes that no location in use refers to, if there are many such bytes."""
        for column in self._columns:
            column.compact(locations)

    def copy(self) -> RowStore:
        """Return a copy that is independent of later changes."""
        other = RowStore(self.schema)
        other._capacity = self._capacity
        other._columns = [column.copy() for column in self._columns]
        return other


class _Column(ABC):
    """The values of one column by location. The column gets a null mask with its first null."""

    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind
        self._capacity = 0
        self._null: npt.NDArray[np.bool_] | None = None

    @property
    def size_bytes(self) -> int:
        return 0 if self._null is None else self._null.nbytes

    def resize(self, capacity: int) -> None:
        self._capacity = capacity
        if self._null is not None:
            self._null = _fit(self._null, capacity)

    @property
    def may_compact(self) -> bool:
        return False

    @abstractmethod
    def put(self, where: _Where, column: pa.Array[Any]) -> None: ...

    @abstractmethod
    def take(self, where: _Where, count: int, found: npt.NDArray[np.bool_] | None) -> pa.Array[Any]: ...

    @abstractmethod
    def sizes(self, locations: Positions) -> Positions | int: ...

    @abstractmethod
    def copy(self) -> _Column: ...

    def compact(self, locations: Positions) -> None:  # noqa: B027 - values of one width leave no garbage
        """Drop the bytes to which none of `locations` refers."""

    def _put_nulls(self, where: _Where, column: pa.Array[Any]) -> None:
        if column.null_count and self._null is None:
            self._null = np.zeros(self._capacity, np.bool_)
        if self._null is not None:
            self._null[where] = column.is_null().to_numpy(zero_copy_only=False)

    def _validity(self, where: _Where, found: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
        valid = found
        if self._null is not None:
            null = self._null[where]
            if null.any():
                valid = ~null if found is None else found & ~null
        return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))

    def _copy_null(self) -> npt.NDArray[np.bool_] | None:
        return None if self._null is None else self._null.copy()


class _FixedColumn(_Column):
    """A column of fixed width: an array of the values' bit patterns."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._words = kind.bit_width // 64 if kind.bit_width > 64 else 1
        dtype = np.uint8 if pa.types.is_boolean(kind) else _DTYPES[min(kind.bit_width, 64)]
        shape = (0, self._words) if self._words > 1 else (0,)
        self._values: npt.NDArray[Any] = np.zeros(shape, dtype)

    @property
    def size_bytes(self) -> int:
        return self._values.nbytes + super().size_bytes

    def resize(self, capacity: int) -> None:
        super().resize(capacity)
        self._values = _fit(self._values, capacity)

    def put(self, where: _Where, column: pa.Array[Any]) -> None:
        self._put_nulls(where, column)
        self._values[where] = self._patterns(column)

    def take(self, where: _Where, count: int, found: npt.NDArray[np.bool_] | None) -> pa.Array[Any]:
        values = self._values[where]
        if pa.types.is_boolean(self.type):
            values = np.packbits(values.view(np.bool_), bitorder="little")
        elif isinstance(where, slice):
            values = values.copy()
        buffers = [self._validity(where, found), pa.py_buffer(values)]
        return pa.Array.from_buffers(self.type, count, buffers)

    def sizes(self, locations: Positions) -> int:
        return self._values.itemsize * self._words

    def copy(self) -> _FixedColumn:
        other = _FixedColumn(self.type)
        other._capacity, other._null = self._capacity, self._copy_null()
        other._values = self._values.copy()
        return other

    def _patterns(self, column: pa.Array[Any]) -> npt.NDArray[Any]:
        if pa.types.is_boolean(self.type):
            return column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)
        buffer = column.buffers()[1]
        if buffer is None or not len(column):
            return np.zeros((len(column), *self._values.shape[1:]), self._values.dtype)
        begin, end = column.offset * self._words, (column.offset + len(column)) * self._words
        flat = np.frombuffer(buffer, self._values.dtype, count=end)
        return flat[begin:].reshape(len(column), *self._values.shape[1:])


class _HeapColumn(_Column):
    """A column of varying width: a heap of bytes, and the range of each location in the heap."""

    def __init__(self, kind: pa.DataType, min_garbage_bytes: int) -> None:
        super().__init__(kind)
        self._min_garbage_bytes = min_garbage_bytes
        self._codec = None if is_bytes(kind) else RowCodec([kind])
        self._starts = np.zeros(0, np.int64)
        self._sizes = np.zeros(0, np.int64)
        self._heap: Bytes = np.zeros(0, np.uint8)
        self._end = 0
        self._used = 0
        """The number of bytes in use when they were last counted."""

    @property
    def size_bytes(self) -> int:
        return self._heap.nbytes + self._starts.nbytes + self._sizes.nbytes + super().size_bytes

    def resize(self, capacity: int) -> None:
        super().resize(capacity)
        self._starts = _fit(self._starts, capacity)
        self._sizes = _fit(self._sizes, capacity)

    def put(self, where: _Where, column: pa.Array[Any]) -> None:
        if self._codec is None:
            self._put_nulls(where, column)
            bounds, data = byte_ranges(column)
        else:
            bounds, data = self._codec.encode([column])
        if isinstance(where, slice):
            if not self._sizes[where].any():
                self._append(where, bounds, data)
                return
            where = np.arange(where.start, where.stop)
        missing = _missing_room(self._sizes, where, bounds)
        self._heap = grow(self._heap, self._end + missing, used=self._end)
        self._end, _ = _write(self._starts, self._sizes, self._heap, self._end, where, bounds, data)

    def take(self, where: _Where, count: int, found: npt.NDArray[np.bool_] | None) -> pa.Array[Any]:
        bounds = np.zeros(count + 1, np.int64)
        sizes = self._sizes[where]
        np.cumsum(sizes if found is None else sizes * found, out=bounds[1:])
        out = np.empty(int(bounds[-1]), np.uint8)
        locations = np.arange(where.start, where.stop) if isinstance(where, slice) else where
        _gather(self._starts, self._sizes, self._heap, locations, bounds, out)
        if self._codec is None:
            return from_byte_ranges(self.type, bounds, out, self._validity(where, found))
        if found is None:
            return self._codec.decode(out, bounds[:-1])[0]
        (present,) = self._codec.decode(out, bounds[:-1][found])
        return present.take(pa.array(np.cumsum(found) - 1, mask=~found))

    def sizes(self, locations: Positions) -> Positions:
        return self._sizes[locations]

    @property
    def may_compact(self) -> bool:
        # Counting takes time, so count only when the heap has doubled since the last count.
        return self._end >= 2 * self._used + self._min_garbage_bytes

    def compact(self, locations: Positions) -> None:
        if not self.may_compact:
            return
        sizes = self._sizes[locations]
        bounds = np.zeros(len(locations) + 1, np.int64)
        np.cumsum(sizes, out=bounds[1:])
        self._used = int(bounds[-1])
        if not self.may_compact:
            return
        heap = np.empty(self._used, np.uint8)
        _gather(self._starts, self._sizes, self._heap, locations, bounds, heap)
        # Clear the ranges of unused locations, so that later values there do not overwrite moved bytes.
        self._starts[:] = 0
        self._sizes[:] = 0
        self._starts[locations] = bounds[:-1]
        self._sizes[locations] = sizes
        self._heap, self._end = heap, self._used

    def copy(self) -> _HeapColumn:
        other = _HeapColumn(self.type, self._min_garbage_bytes)
        other._capacity, other._null = self._capacity, self._copy_null()
        other._starts, other._sizes = self._starts.copy(), self._sizes.copy()
        other._heap = self._heap[: self._end].copy()
        other._end, other._used = self._end, self._used
        return other

    def _append(self, where: slice, bounds: Positions, data: Bytes) -> None:
        """Append values for consecutive locations that have no bytes yet."""
        first = int(bounds[0])
        end = self._end + int(bounds[-1]) - first
        self._heap = grow(self._heap, end, used=self._end)
        self._heap[self._end : end] = data[first : int(bounds[-1])]
        self._starts[where] = bounds[:-1] + (self._end - first)
        self._sizes[where] = np.diff(bounds)
        self._end = end


def _column(kind: pa.DataType, min_garbage_bytes: int) -> _Column:
    fixed = (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_date(kind)
        or pa.types.is_time(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_decimal128(kind)
    )
    return _FixedColumn(kind) if fixed else _HeapColumn(kind, min_garbage_bytes)


def _run(locations: Positions) -> _Where:
    """Return consecutive locations as a slice, and other locations unchanged."""
    count = len(locations)
    if count > 1 and locations[-1] - locations[0] == count - 1 and bool(np.all(np.diff(locations) == 1)):
        return slice(int(locations[0]), int(locations[-1]) + 1)
    return locations


def _fit(array: npt.NDArray[Any], capacity: int) -> npt.NDArray[Any]:
    if capacity == len(array):
        return array
    fitted = np.zeros((capacity, *array.shape[1:]), array.dtype)
    count = min(capacity, len(array))
    fitted[:count] = array[:count]
    return fitted
