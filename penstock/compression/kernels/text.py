"""Kernels over texts: compute offsets, find equal texts, and decode dictionaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._kernels import GOLDEN, kernel
from penstock.compression.kernels.bits import Bytes, Ints, seal
from penstock.compression.kernels.byte_vectors import copy_bytes, word_at
from penstock.compression.kernels.integer_vectors import bit_length

__all__ = [
    "MAX_DISTINCT",
    "are_equal",
    "code_type",
    "counts_of",
    "distinct_texts",
    "offsets_of",
    "texts_of",
]

MAX_DISTINCT = 1 << 16
"""The limit of distinct texts."""

_SPARE = 16
"""The number of bytes after a text that `copy_bytes` may touch."""


@kernel
def _add_up(lengths: Ints, most: int, offsets: Any) -> int:
    """Write the offsets of texts of these lengths; return the total size, or -1 if above `most`."""
    at: Any = 0
    for i in range(lengths.shape[0]):
        length: Any = np.int64(lengths[i])
        if length < 0 or length > most - at:
            return -1
        at += length
        offsets[i + 1] = at
    return at


@kernel
def _place(codes: Any, begins: Any, most: int, offsets: Any) -> int:
    """Like `_add_up`, for the text of each code; also -1 if a code has no text."""
    at: Any = 0
    size = begins.shape[0] - 1
    for i in range(codes.shape[0]):
        code = np.int64(codes[i])
        if code < 0 or code >= size:
            return -1
        at += np.int64(begins[code + 1]) - np.int64(begins[code])
        if at > most:
            return -1
        offsets[i + 1] = at
    return at


@kernel
def _write_out(codes: Any, begins: Any, spared: int, source: Any, offsets: Any, out: Bytes) -> None:
    """Write the texts of codes. Padding follows the first `spared` texts, so they are copied by words."""
    for i in range(codes.shape[0]):
        if codes[i] < spared:
            begin: Any = np.int64(begins[codes[i]])
            at: Any = np.int64(offsets[i])
            copy_bytes(source, begin, out, at, np.int64(offsets[i + 1]) - at)
    if spared < begins.shape[0] - 1:
        _write_rest(codes, begins, spared, source, offsets, out)


@kernel
def _write_rest(codes: Any, begins: Any, spared: int, source: Any, offsets: Any, out: Bytes) -> None:
    """Write the texts that `_write_out` left out, because no padding follows them."""
    for i in range(codes.shape[0]):
        if codes[i] >= spared:
            for k in range(offsets[i + 1] - offsets[i]):
                out[offsets[i] + k] = source[begins[codes[i]] + k]


@kernel
def _common_length(begins: Any) -> Any:
    """Return the common length of texts; -1 if the lengths differ, or there are no texts."""
    if begins.shape[0] < 2:
        return -1
    length: Any = np.int64(begins[1]) - np.int64(begins[0])
    for at in range(1, begins.shape[0], 256):
        differences = 0
        for i in range(at, min(at + 256, begins.shape[0])):
            differences += np.int64(begins[i]) - np.int64(begins[i - 1]) != length
        if differences:
            return -1
    return length


@kernel
def _write_even(codes: Any, begin: int, length: int, source: Any, out: Bytes) -> None:
    """Like `_write_out`, for texts of `length` bytes each, the first at `begin`.

    All texts are followed by padding.
    """
    at: Any = np.int64(0)
    for i in range(codes.shape[0]):
        first: Any = begin + np.int64(codes[i]) * length
        copy_bytes(source, first, out, at, length)
        at += length


@kernel
def _count_strangers(codes: Any, count: int) -> int:
    """Count the codes without a text, if there are `count` texts."""
    strangers: Any = 0
    for i in range(codes.shape[0]):
        strangers += np.uint64(np.int64(codes[i])) >= np.uint64(count)
    return strangers


@kernel
def _head(source: Bytes, begin: int, end: int) -> Any:
    """Return the first 8 bytes of a text as one word, padded with zeros."""
    size = min(end - begin, 8)
    if begin + 8 <= source.shape[0]:
        return word_at(source, begin) & (~np.uint64(0) >> np.uint64(64 - 8 * size) if size else np.uint64(0))
    word = np.uint64(0)
    for i in range(size):
        word |= np.uint64(source[begin + i]) << np.uint64(8 * i)
    return word


@kernel
def _mix(mixed: Any, word: Any) -> Any:
    return ((mixed ^ (mixed >> np.uint64(32))) ^ word) * GOLDEN


@kernel
def _equal_tails(source: Bytes, first: int, second: int, size: int) -> bool:
    """Return whether two texts of more than 8 bytes with equal first 8 bytes are equal, word by word."""
    for at in range(8, size - 8, 8):
        if word_at(source, first + at) != word_at(source, second + at):
            return False
    return word_at(source, first + size - 8) == word_at(source, second + size - 8)


@kernel
def _compare(offsets: Any, source: Bytes, text: Bytes, equal: Any) -> None:
    """Write whether each text is `text`."""
    length = text.shape[0]
    head = _head(text, 0, length)
    mask = _head(np.full(8, 255, np.uint8), 0, length)
    padded = equal.shape[0]
    while padded and np.int64(offsets[padded - 1]) + 8 > source.shape[0]:
        padded -= 1
    # Compare the last word of most texts without a branch, because the branch could not be predicted.
    for i in range(padded):
        begin: Any = np.int64(offsets[i])
        size: Any = np.int64(offsets[i + 1]) - begin
        equal[i] = (size == length) & (word_at(source, begin) & mask == head)
    for i in range(padded, equal.shape[0]):
        begin = np.int64(offsets[i])
        size = np.int64(offsets[i + 1]) - begin
        equal[i] = size == length and _head(source, begin, begin + size) == head
    if length > 8:
        for i in range(equal.shape[0]):
            if equal[i]:
                begin = np.int64(offsets[i])
                equal_words = word_at(source, begin + length - 8) == word_at(text, length - 8)
                for at in range(8, length - 8, 8):
                    equal_words &= word_at(source, begin + at) == word_at(text, at)
                equal[i] = equal_words


@kernel
def _assign_codes(
    offsets: Any, source: Bytes, selection: Any, table: Any, rows: Any, heads: Any, codes: Any
) -> int:
    """Assign codes to distinct texts in order of appearance; return their number, or -1 if too many.

    The kernel codes the rows whose numbers are in `selection`. If `selection` is empty, it codes the first
    `len(codes)` rows. The number of slots of `table` is a power of two, at least two, and greater than the
    size of `rows`. Each slot is -1 at first. `rows` gets the first row of each distinct text, and `heads` the
    first 8 bytes of the text.
    """
    has_rows = selection.shape[0] > 0
    mask = np.uint64(table.shape[0] - 1)
    # Use the highest bits of the product as the hash, because they depend on all bits of the text.
    unused = np.uint64(65 - bit_length(np.uint64(table.shape[0])))
    count = 0
    for i in range(codes.shape[0]):
        row: Any = selection[i] if has_rows else i
        begin: Any = np.int64(offsets[row])
        end: Any = np.int64(offsets[row + 1])
        size = end - begin
        head = _head(source, begin, end)
        hash_ = _mix(np.uint64(size), head)
        if size > 8:
            for at in range(begin + 8, end - 8, 8):
                hash_ = _mix(hash_, word_at(source, at))
            hash_ = _mix(hash_, word_at(source, end - 8))
        slot = hash_ >> unused
        while True:
            code = table[slot]
            if code < 0:
                if count == rows.shape[0]:
                    return -1
                code = count
                table[slot] = code
                rows[code] = row
                heads[code] = head
                count += 1
                break
            if heads[code] == head:
                first: Any = np.int64(offsets[rows[code]])
                if np.int64(offsets[rows[code] + 1]) - first == size and (
                    size <= 8 or _equal_tails(source, begin, first, size)
                ):
                    break
            slot = (slot + np.uint64(1)) & mask
        codes[i] = code
    return count


@kernel
def _count(codes: Any, counts: Any) -> None:
    for i in range(codes.shape[0]):
        counts[codes[i]] += 1


def are_equal(offsets: Ints, source: Bytes, text: bytes) -> npt.NDArray[np.bool_]:
    """Return a mask of the texts that equal `text`."""
    equal = np.empty(offsets.size - 1, np.bool_)
    _compare(offsets, source, np.frombuffer(text, np.uint8), equal)
    return equal


def counts_of(codes: Ints, size: int) -> Ints:
    """Count each code below `size`, four times as fast as `np.bincount`."""
    counts = np.zeros(size, np.int64)
    _count(seal(codes), counts)
    return counts


def code_type(count: int) -> np.dtype[Any]:
    """Return the narrowest integer type for codes below `count`."""
    return np.dtype(np.int8 if count <= 1 << 7 else np.int16 if count <= 1 << 15 else np.int32)


def distinct_texts(
    offsets: Ints, source: Bytes, selection: Ints | None = None, most: int = MAX_DISTINCT
) -> tuple[Ints, Ints] | None:
    """Return the row of each distinct text's first appearance, and the code of each text.

    Parameters
    ----------
    offsets, source : Ints, Bytes
        The offsets of the texts, and the buffer that holds their bytes.
    selection : Ints, optional
        The rows to read; by default all.
    most : int
        The limit of distinct texts.

    Returns
    -------
    tuple or None
        None if there are more distinct texts than `most`.
    """
    count = offsets.size - 1 if selection is None else selection.size
    most = max(1, min(count, most))
    table = np.full(1 << (2 * most - 1).bit_length(), -1, np.int32)
    rows, heads, codes = np.empty(most, np.int64), np.empty(most, np.uint64), np.empty(count, np.int32)
    selection = np.empty(0, np.int64) if selection is None else selection
    distinct_count = _assign_codes(offsets, source, selection, table, rows, heads, codes)
    return (
        None
        if distinct_count < 0
        else (rows[:distinct_count], codes.astype(code_type(distinct_count), copy=False))
    )


def offsets_of(lengths: Ints, kind: npt.DTypeLike, most: int) -> Ints | None:
    """Return the offsets of texts of these lengths; None if the total size is above `most`."""
    offsets = np.zeros(lengths.size + 1, kind)
    return offsets if _add_up(lengths, most, offsets) >= 0 else None


def texts_of(
    codes: Ints, begins: Ints, source: Bytes, kind: npt.DTypeLike, most: int
) -> tuple[Ints, Bytes] | None:
    """Return the texts of codes: their offsets, and their bytes.

    Parameters
    ----------
    codes : Ints
        The code of each text.
    begins : Ints
        The offsets in `source` of the text of each code.
    source : Bytes
        The distinct texts.
    kind : dtype
        The type of the returned offsets.
    most : int
        The limit of bytes of text.

    Returns
    -------
    tuple or None
        None if a code has no text, or the texts have more than `most` bytes.
    """
    count = begins.size - 1
    if source.size < codes.size:
        # Copy small inputs, so that padding follows them.
        source = np.append(source, np.zeros(_SPARE, np.uint8))
        spared = count
    else:
        end = begins.dtype.type(min(source.size - _SPARE, np.iinfo(begins.dtype).max))
        spared = max(0, int(np.searchsorted(begins, end, "right")) - 1)
    codes, begins, source = seal(codes), seal(begins), seal(source)
    # Look for a common length only if there are fewer distinct texts than texts to write.
    length = _common_length(begins) if count < codes.size else -1
    offsets = _places_of(codes, begins, length, kind, most)
    if offsets is None:
        return None
    total = int(offsets[-1])
    # Arrow reuses freed memory. NumPy returns it to the system, which zeroes the pages on the next use.
    out: Bytes = np.frombuffer(pa.allocate_buffer(total + _SPARE), np.uint8)
    if length > 0 and spared == count:
        _write_even(codes, int(begins[0]), length, source, out)
    else:
        _write_out(codes, begins, spared, source, offsets, out)
    return offsets, out[:total]


def _places_of(codes: Ints, begins: Ints, length: int, kind: npt.DTypeLike, most: int) -> Ints | None:
    """Return the offsets of the texts of codes; None if a code has no text, or the size is above `most`.

    `length` is the common length of all texts. If there is one, no lengths are summed.
    """
    if length <= 0:
        offsets: Ints = np.zeros(codes.size + 1, kind)
        return offsets if _place(codes, begins, most, offsets) >= 0 else None
    total = codes.size * length
    if total > most or _count_strangers(codes, begins.size - 1):
        return None
    return np.arange(0, total + 1, length, dtype=kind)
