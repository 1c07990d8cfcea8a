"""Keys as runs of 64-bit words, so that one index serves every key type.

A key column of fixed width becomes one word (two for decimals). A string or binary value becomes a word with
its length in bytes, then its bytes, padded with zeros to whole words. The words of a key's columns follow
each other. The encoding is lossless except that -0.0 becomes 0.0 and all NaNs become one NaN, as in Spark's
grouping. The encoding is part of the on-disk format: the hash of a key's words determines its bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock._kernels import GOLDEN, MIX_1, MIX_2, kernel
from penstock.errors import InvalidUsageError

__all__ = ["KeyCodec", "Keys", "Words", "buckets_of", "hash_word", "hash_words"]

Words = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]

_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


@kernel
def _put_fixed(values: Words, width: int, out: Words, at: Positions) -> None:
    for i in range(at.shape[0]):
        for w in range(width):
            out[at[i] + w] = values[i * width + w]
        at[i] += width


@kernel
def _put_bytes(offsets: Any, data: Any, out: Words, at: Positions) -> None:
    for i in range(at.shape[0]):
        start, size = offsets[i], offsets[i + 1] - offsets[i]
        position = at[i]
        out[position] = np.uint64(size)
        position += 1
        whole = size // 8
        for w in range(whole):
            word = np.uint64(0)
            for b in range(8):
                word |= np.uint64(data[start + w * 8 + b]) << np.uint64(8 * b)
            out[position + w] = word
        position += whole
        if size % 8:
            word = np.uint64(0)
            for b in range(size % 8):
                word |= np.uint64(data[start + whole * 8 + b]) << np.uint64(8 * b)
            out[position] = word
            position += 1
        at[i] = position


@kernel
def _get_fixed(words: Words, width: int, out: Words, at: Positions) -> None:
    for i in range(at.shape[0]):
        for w in range(width):
            out[i * width + w] = words[at[i] + w]
        at[i] += width


@kernel
def _get_sizes(words: Words, at: Positions, offsets: Positions) -> None:
    offsets[0] = 0
    for i in range(at.shape[0]):
        offsets[i + 1] = offsets[i] + np.int64(words[at[i]])


@kernel
def _get_bytes(words: Words, offsets: Positions, data: Any, at: Positions) -> None:
    for i in range(at.shape[0]):
        start, size = offsets[i], offsets[i + 1] - offsets[i]
        position = at[i] + 1
        for b in range(size):
            word = words[position + b // 8]
            data[start + b] = np.uint8((word >> np.uint64(8 * (b % 8))) & np.uint64(255))
        at[i] = position + (size + 7) // 8


@kernel
def hash_words(words: Words, starts: Positions) -> Words:
    """Return the hash of each key, where key i is ``words[starts[i]:starts[i + 1]]``."""
    count = starts.shape[0] - 1
    out = np.empty(count, np.uint64)
    for i in range(count):
        h = np.uint64(starts[i + 1] - starts[i]) * GOLDEN
        for position in range(starts[i], starts[i + 1]):
            h = (h ^ words[position]) * GOLDEN
            h ^= h >> _S30
        h = (h ^ (h >> _S30)) * MIX_1
        h = (h ^ (h >> _S27)) * MIX_2
        out[i] = h ^ (h >> _S31)
    return out


@kernel
def hash_word(word: np.uint64) -> np.uint64:
    """Return the hash of a key of one word; see `hash_words`."""
    h = (GOLDEN ^ word) * GOLDEN
    h ^= h >> _S30
    h = (h ^ (h >> _S30)) * MIX_1
    h = (h ^ (h >> _S27)) * MIX_2
    return h ^ (h >> _S31)


def buckets_of(hashes: Words, buckets: int) -> Positions:
    """Return the bucket of each hash, 0 to `buckets` - 1; each bucket is a range of hashes."""
    high = hashes >> np.uint64(32)
    return ((high * np.uint64(buckets)) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Keys:
    """A column of keys: key i is ``words[starts[i]:starts[i + 1]]``, and `hashes` has its hash."""

    words: Words
    starts: Positions
    hashes: Words

    @staticmethod
    def from_words(words: Words, starts: Positions) -> Keys:
        """Return the keys with their hashes."""
        return Keys(words, starts, hash_words(words, starts))

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self.hashes)

    def bucket(self, buckets: int) -> Positions:
        """Return the bucket of each key, 0 to `buckets` - 1."""
        return buckets_of(self.hashes, buckets)


class KeyCodec:
    """Converts key columns to `Keys` and back.

    Parameters
    ----------
    fields : sequence of pyarrow.Field
        The key columns in their order.

    Raises
    ------
    InvalidUsageError
        If a column's type cannot be a key (nested types).
    """

    def __init__(self, fields: Sequence[pa.Field[Any]]) -> None:
        self.fields = list(fields)
        self._widths = [_width(field) for field in self.fields]

    @property
    def is_word(self) -> bool:
        """Return whether each key is a single word."""
        return self._widths == [1]

    def words(self, columns: Sequence[pa.Array[Any]]) -> Words:
        """Return the words of the keys in `columns`. Each key must be a single word; none may be null."""
        if columns[0].type == pa.int64():
            return columns[0].to_numpy().view(np.uint64)
        return _fixed_words(columns[0], 1)

    def encode(self, columns: Sequence[pa.Array[Any]]) -> Keys:
        """Return the keys in `columns`, none of which may be null."""
        count = len(columns[0])
        parts: list[Any] = []
        if all(self._widths):
            total = sum(self._widths)
            starts = np.arange(count + 1, dtype=np.int64) * total
            fixed = [_fixed_words(column, width) for column, width in zip(columns, self._widths, strict=True)]
            if len(fixed) == 1:
                return Keys.from_words(fixed[0], starts)
            matrix = np.concatenate(
                [part.reshape(count, width) for part, width in zip(fixed, self._widths, strict=True)],
                axis=1,
            )
            return Keys.from_words(np.ascontiguousarray(matrix).reshape(-1), starts)
        sizes = np.zeros(count, np.int64)
        for column, width in zip(columns, self._widths, strict=True):
            if width:
                parts.append(_fixed_words(column, width))
                sizes += width
            else:
                offsets, data = _bytes_of(column)
                parts.append((offsets, data))
                sizes += 1 + (np.diff(offsets) + 7) // 8
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(sizes, out=starts[1:])
        words = np.zeros(int(starts[-1]), np.uint64)
        at = starts[:-1].copy()
        for part, width in zip(parts, self._widths, strict=True):
            if width:
                _put_fixed(part, width, words, at)
            else:
                _put_bytes(part[0], part[1], words, at)
        return Keys.from_words(words, starts)

    def decode(self, words: Words, starts: Positions) -> list[pa.Array[Any]]:
        """Return the key columns of the keys that begin at `starts` in `words`."""
        at = np.array(starts, dtype=np.int64)
        count = len(at)
        columns: list[pa.Array[Any]] = []
        for field, width in zip(self.fields, self._widths, strict=True):
            if width:
                values = np.empty(count * width, np.uint64)
                _get_fixed(words, width, values, at)
                columns.append(_from_fixed(values, field.type))
            else:
                offsets = np.empty(count + 1, np.int64)
                _get_sizes(words, at, offsets)
                data = np.empty(int(offsets[-1]), np.uint8)
                _get_bytes(words, offsets, data, at)
                large = pa.large_string() if _is_text(field.type) else pa.large_binary()
                buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
                array = pa.Array.from_buffers(large, count, buffers)
                columns.append(array.cast(field.type))
        return columns


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _width(field: pa.Field[Any]) -> int:
    """Return the number of words of a value of `field`; 0 if this number varies."""
    kind = field.type
    if (
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_time(kind)
        or kind in (pa.float32(), pa.float64())
    ):
        return 1
    if pa.types.is_decimal128(kind):
        return 2
    if _is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return 0
    raise InvalidUsageError(
        "a column of this type cannot be a key",
        column=field.name,
        type=kind,
        hint="use integers, strings, binary, decimals, booleans, dates, timestamps or floats",
    )


def _fixed_words(column: pa.Array[Any], width: int) -> Words:
    kind = column.type
    if width == 2:
        _, data = column.buffers()
        words = np.frombuffer(data, np.uint64, count=2 * (column.offset + len(column)))
        return words[2 * column.offset :]
    if pa.types.is_floating(kind):
        with np.errstate(invalid="ignore"):  # signalling NaNs raise this warning
            values = column.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0
        values[np.isnan(values)] = np.nan
        return values.view(np.uint64)
    if pa.types.is_boolean(kind):
        return column.to_numpy(zero_copy_only=False).astype(np.uint64)
    if not pa.types.is_integer(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_unsigned_integer(column.type):
        return column.to_numpy().astype(np.uint64)
    return column.to_numpy().astype(np.int64).view(np.uint64)


def _from_fixed(values: Words, kind: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_decimal128(kind):
        return pa.Array.from_buffers(kind, len(values) // 2, [None, pa.py_buffer(values)])
    if pa.types.is_floating(kind):
        return pa.array(values.view(np.float64)).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.array(values.astype(np.bool_))
    if pa.types.is_unsigned_integer(kind):
        return pa.array(values).cast(kind)
    signed = pa.array(values.view(np.int64))
    if pa.types.is_integer(kind):
        return signed.cast(kind)
    return (signed.cast(pa.int32()) if kind.bit_width == 32 else signed).view(kind)


def _bytes_of(column: pa.Array[Any]) -> tuple[Positions, npt.NDArray[np.uint8]]:
    """Return offsets (n + 1) and bytes of a string or binary column."""
    large = pa.large_string() if _is_text(column.type) else pa.large_binary()
    array = pc.cast(column, large)
    _, offsets, data = array.buffers()
    all_offsets = np.frombuffer(offsets, np.int64)
    positions = all_offsets[array.offset : array.offset + len(array) + 1]
    return positions, np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
