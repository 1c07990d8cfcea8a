"""Rows as byte strings, for stores that keep rows in a heap or a key-value store.

A row's bytes are the concatenated bytes of its columns. A column of one element has these bytes::

    validity   1 byte, 0 for null
    then       fixed width: its bytes, a boolean as one byte
               string, binary: length in bytes (4 bytes; 8 for the large types), then the bytes
               list, map: length in elements (as above), then its elements as a column
               struct: its fields, each as a column

A column of m elements (within a list) has m validity bytes, then m values. If the length of a value varies,
m lengths follow the validity bytes, then the bytes or elements of all values. So values of any type, however
nested, are written and read by copying one range per row, and every step handles whole columns. The bytes
are not a durable format: they never leave the process that wrote them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._kernels import kernel
from penstock.errors import InvalidUsageError
from penstock.state_store.keys.key_words import Positions

__all__ = ["Bytes", "RowCodec", "byte_ranges", "from_byte_ranges", "is_bytes"]

Bytes = npt.NDArray[np.uint8]


@kernel
def _append(source: Bytes, bounds: Positions, out: Bytes, at: Positions) -> None:
    """Copy range i of `source` to ``at[i]`` in `out`, and advance ``at[i]`` past it."""
    for i in range(at.shape[0]):
        start, position = bounds[i], at[i]
        size = bounds[i + 1] - start
        for b in range(size):
            out[position + b] = source[start + b]
        at[i] = position + size


@kernel
def _extract(source: Bytes, at: Positions, bounds: Positions, out: Bytes) -> None:
    """Copy bytes from ``at[i]`` in `source` to range i of `out`, and advance ``at[i]`` past them."""
    for i in range(at.shape[0]):
        start, position = bounds[i], at[i]
        size = bounds[i + 1] - start
        for b in range(size):
            out[start + b] = source[position + b]
        at[i] = position + size


class RowCodec:
    """Encodes columns as one byte string per row, and decodes them.

    Parameters
    ----------
    types : sequence of pyarrow.DataType
        The columns' types: any type of a Spark column.

    Raises
    ------
    InvalidUsageError
        If a type is not supported.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self.types = list(types)
        for kind in self.types:
            _check(kind)

    def encode(self, columns: Sequence[pa.Array[Any]]) -> tuple[Positions, Bytes]:
        """Return the offsets of rows (n + 1), and the bytes of all rows.

        Raises
        ------
        InvalidUsageError
            If there is no column.
        """
        if not columns:
            raise InvalidUsageError("there is no column to encode")
        count = len(columns[0])
        parts: list[tuple[Bytes, Positions]] = []
        for column in columns:
            _split(column, np.arange(count + 1, dtype=np.int64), parts)
        bounds = np.zeros(count + 1, np.int64)
        for _, ranges in parts:
            bounds += ranges
            bounds -= ranges[0]
        out = np.empty(int(bounds[-1]), np.uint8)
        at = bounds[:-1].copy()
        for source, ranges in parts:
            _append(source, ranges, out, at)
        return bounds, out

    def decode(self, data: Bytes, starts: Positions) -> list[pa.Array[Any]]:
        """Return the columns of the rows that begin at `starts` in `data`.

        Raises
        ------
        InvalidUsageError
            If there is more text than one array can hold.
        """
        at = np.array(starts, np.int64)
        ends = np.arange(len(at) + 1, dtype=np.int64)
        return [_join(kind, data, at, ends) for kind in self.types]


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a type is text or binary."""
    return (
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def byte_ranges(column: pa.Array[Any]) -> tuple[Positions, Bytes]:
    """Return the offsets (n + 1) and the bytes of a text or binary column."""
    _, offsets, data = column.buffers()
    if offsets is None or not len(column):
        return np.zeros(len(column) + 1, np.int64), np.empty(0, np.uint8)
    width = _offset_dtype(column.type)
    all_offsets = np.frombuffer(offsets, width, count=column.offset + len(column) + 1)
    bounds = all_offsets[column.offset :].astype(np.int64)
    return bounds, np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)


def from_byte_ranges(
    kind: pa.DataType, bounds: Positions, data: Bytes, validity: pa.Buffer | None
) -> pa.Array[Any]:
    """Return a text or binary column with the offsets `bounds`, which begin at 0. The column owns `data`."""
    offsets = _offsets(kind, bounds)
    return pa.Array.from_buffers(kind, len(bounds) - 1, [validity, offsets, pa.py_buffer(data)])


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)


def _fixed_width(kind: pa.DataType) -> int:
    """Return the size of a value in bytes; 0 if the size varies or the type has children."""
    if is_bytes(kind) or _is_list(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind):
        return 0
    if pa.types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        return 0
    if pa.types.is_boolean(kind):
        return 1
    try:
        return int(kind.bit_width) // 8
    except ValueError:
        return 0


def _check(kind: pa.DataType) -> None:
    if _is_list(kind) or pa.types.is_struct(kind):
        for child in _child_fields(kind):
            _check(child.type)
    elif not (_fixed_width(kind) or is_bytes(kind) or pa.types.is_null(kind)):
        raise InvalidUsageError(
            "state cannot hold a column of this type", type=kind, hint="cast it to a type that Spark has"
        )


def _child_fields(kind: pa.DataType) -> list[pa.Field[Any]]:
    return [kind.field(i) for i in range(kind.num_fields)]


def _offset_dtype(kind: pa.DataType) -> Any:
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind)
    return np.int64 if large else np.int32


def _offsets(kind: pa.DataType, bounds: Positions) -> pa.Buffer:
    dtype = _offset_dtype(kind)
    if int(bounds[-1]) > np.iinfo(dtype).max:
        raise InvalidUsageError(
            "the values are too large for one column of a batch",
            type=kind,
            size=int(bounds[-1]),
            hint="ask for fewer rows at once",
        )
    return pa.py_buffer(bounds.astype(dtype))


def _split(column: pa.Array[Any], ends: Positions, parts: list[tuple[Bytes, Positions]]) -> None:
    """Append to `parts` the bytes of `column`, and the positions at which each row's bytes begin.

    Row i has the elements ``ends[i]:ends[i + 1]``.
    """
    kind = column.type
    parts.append((column.is_valid().to_numpy(zero_copy_only=False).view(np.uint8), ends))
    if pa.types.is_null(kind):
        return
    width = _fixed_width(kind)
    if width:
        parts.append((_fixed_bytes(column, width), ends * width))
    elif pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            _split(column.field(i), ends, parts)
    elif is_bytes(kind):
        bounds, data = byte_ranges(column)
        parts.append(_lengths(kind, bounds, ends))
        parts.append((data, bounds[ends]))
    else:
        bounds = _list_bounds(column)
        parts.append(_lengths(kind, bounds, ends))
        begin, end = int(bounds[0]), int(bounds[-1])
        _split(column.values.slice(begin, end - begin), bounds[ends] - begin, parts)


def _lengths(kind: pa.DataType, bounds: Positions, ends: Positions) -> tuple[Bytes, Positions]:
    dtype = np.dtype(_offset_dtype(kind))
    return np.diff(bounds).astype(dtype).view(np.uint8), ends * dtype.itemsize


def _list_bounds(column: pa.Array[Any]) -> Positions:
    if not len(column):
        return np.zeros(1, np.int64)
    return column.offsets.to_numpy().astype(np.int64)


def _fixed_bytes(column: pa.Array[Any], width: int) -> Bytes:
    if pa.types.is_boolean(column.type):
        return column.fill_null(False).to_numpy(zero_copy_only=False).view(np.uint8)
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column) * width, np.uint8)
    return np.frombuffer(buffer, np.uint8, count=(column.offset + len(column)) * width)[
        column.offset * width :
    ]


def _join(kind: pa.DataType, data: Bytes, at: Positions, ends: Positions) -> pa.Array[Any]:
    """Read a column whose row i has elements ``ends[i]:ends[i + 1]`` at ``at[i]``, and advance `at`."""
    count = int(ends[-1])
    valid = _read(data, at, ends)
    if pa.types.is_null(kind):
        return pa.nulls(count)
    validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    width = _fixed_width(kind)
    if width:
        values = _read(data, at, ends * width)
        if pa.types.is_boolean(kind):
            values = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(values)])
    if pa.types.is_struct(kind):
        children = [_join(child.type, data, at, ends) for child in _child_fields(kind)]
        return pa.Array.from_buffers(kind, count, [validity], children=children)
    dtype = np.dtype(_offset_dtype(kind))
    lengths = _read(data, at, ends * dtype.itemsize).view(dtype)
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    if is_bytes(kind):
        return from_byte_ranges(kind, bounds, _read(data, at, bounds[ends]), validity)
    (child,) = _child_fields(kind)
    elements = _join(child.type, data, at, bounds[ends])
    return pa.Array.from_buffers(kind, count, [validity, _offsets(kind, bounds)], children=[elements])


def _read(data: Bytes, at: Positions, bounds: Positions) -> Bytes:
    out = np.empty(int(bounds[-1]), np.uint8)
    _extract(data, at, bounds, out)
    return out
