"""Kernels over texts: where they begin, which are the same, and those of a dictionary written out again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._kernels import kernel
from penstock.compression.kernels.bits import Bytes, Ints, sealed
from penstock.compression.kernels.vectors import bit_length, copy_bytes, word_at

__all__ = [
    "MOST_DISTINCT",
    "are_equal",
    "code_type",
    "counts_of",
    "distinct_texts",
    "offsets_of",
    "texts_of",
]

MOST_DISTINCT = 1 << 16
"""More distinct texts than this are not looked for here."""

_SPARE = 16
"""Bytes that `copy_bytes` may touch behind a text."""


@kernel
def _add_up(lengths: Ints, most: int, offsets: Any) -> int:
    """Write where texts of these lengths begin and the last one ends; return that, or -1 if above `most`."""
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
    """As `_add_up`, for the text that each code stands for; -1 if a code has none."""
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
    """Write the text of each code; behind the first `spared` texts there is something to spare."""
    for i in range(codes.shape[0]):
        if codes[i] < spared:
            begin: Any = np.int64(begins[codes[i]])
            at: Any = np.int64(offsets[i])
            copy_bytes(source, begin, out, at, np.int64(offsets[i + 1]) - at)
    if spared < begins.shape[0] - 1:
        _write_rest(codes, begins, spared, source, offsets, out)


@kernel
def _write_rest(codes: Any, begins: Any, spared: int, source: Any, offsets: Any, out: Bytes) -> None:
    """Write the texts behind which there is nothing to spare, where others have left room for them."""
    for i in range(codes.shape[0]):
        if codes[i] >= spared:
            for k in range(offsets[i + 1] - offsets[i]):
                out[offsets[i] + k] = source[begins[codes[i]] + k]


@kernel
def _common_length(begins: Any) -> Any:
    """Return how many bytes each of some texts has; -1 if not all have as many, or there are none."""
    if begins.shape[0] < 2:
        return -1
    length: Any = np.int64(begins[1]) - np.int64(begins[0])
    for at in range(1, begins.shape[0], 256):
        others = 0
        for i in range(at, min(at + 256, begins.shape[0])):
            others += np.int64(begins[i]) - np.int64(begins[i - 1]) != length
        if others:
            return -1
    return length


@kernel
def _write_even(codes: Any, begin: int, length: int, source: Any, out: Bytes) -> None:
    """As `_write_out`, where the texts, of which the first is at `begin`, have `length` bytes each.

    There is something to spare behind all.
    """
    at: Any = np.int64(0)
    for i in range(codes.shape[0]):
        first: Any = begin + np.int64(codes[i]) * length
        copy_bytes(source, first, out, at, length)
        at += length


@kernel
def _count_strangers(codes: Any, count: int) -> int:
    """Return how many codes are none of `count` texts."""
    strangers: Any = 0
    for i in range(codes.shape[0]):
        strangers += np.uint64(np.int64(codes[i])) >= np.uint64(count)
    return strangers


@kernel
def _head(source: Bytes, begin: int, end: int) -> Any:
    """Return the first 8 bytes of a text as one word, zeros behind it where it has fewer."""
    size = min(end - begin, 8)
    if begin + 8 <= source.shape[0]:
        return word_at(source, begin) & (~np.uint64(0) >> np.uint64(64 - 8 * size) if size else np.uint64(0))
    word = np.uint64(0)
    for i in range(size):
        word |= np.uint64(source[begin + i]) << np.uint64(8 * i)
    return word


@kernel
def _mix(mixed: Any, word: Any) -> Any:
    return ((mixed ^ (mixed >> np.uint64(32))) ^ word) * np.uint64(0x9E3779B97F4A7C15)


@kernel
def _same(source: Bytes, one: int, other: int, size: int) -> bool:
    """Say whether two texts of more than 8 bytes are the same behind these; the last words overlap."""
    for at in range(8, size - 8, 8):
        if word_at(source, one + at) != word_at(source, other + at):
            return False
    return word_at(source, one + size - 8) == word_at(source, other + size - 8)


@kernel
def _compare(offsets: Any, source: Bytes, text: Bytes, equal: Any) -> None:
    """Write whether each text is `text`."""
    length = text.shape[0]
    head = _head(text, 0, length)
    mask = _head(np.full(8, 255, np.uint8), 0, length)
    whole = equal.shape[0]
    while whole and np.int64(offsets[whole - 1]) + 8 > source.shape[0]:
        whole -= 1
    # No branch where most texts end: which one they take could not be foreseen.
    for i in range(whole):
        begin: Any = np.int64(offsets[i])
        size: Any = np.int64(offsets[i + 1]) - begin
        equal[i] = (size == length) & (word_at(source, begin) & mask == head)
    for i in range(whole, equal.shape[0]):
        begin = np.int64(offsets[i])
        size = np.int64(offsets[i + 1]) - begin
        equal[i] = size == length and _head(source, begin, begin + size) == head
    if length > 8:
        for i in range(equal.shape[0]):
            if equal[i]:
                begin = np.int64(offsets[i])
                same = word_at(source, begin + length - 8) == word_at(text, length - 8)
                for at in range(8, length - 8, 8):
                    same &= word_at(source, begin + at) == word_at(text, at)
                equal[i] = same


@kernel
def _assign_codes(
    offsets: Any, source: Bytes, taken: Any, table: Any, rows: Any, heads: Any, codes: Any
) -> int:
    """Give each text the code of its first appearance; return how many there are, -1 if too many.

    The texts are those in the rows `taken`, or the first ones if there are none of these. `table` has a power
    of two of slots, at least two and more than `rows`, each -1. `rows` gets the row where each distinct text
    is, `heads` its first 8 bytes.
    """
    some = taken.shape[0] > 0
    mask = np.uint64(table.shape[0] - 1)
    # The highest bits of a product depend on all bits of its factors.
    unused = np.uint64(65 - bit_length(np.uint64(table.shape[0])))
    count = 0
    for i in range(codes.shape[0]):
        row: Any = taken[i] if some else i
        begin: Any = np.int64(offsets[row])
        end: Any = np.int64(offsets[row + 1])
        size = end - begin
        head = _head(source, begin, end)
        mixed = _mix(np.uint64(size), head)
        if size > 8:
            for at in range(begin + 8, end - 8, 8):
                mixed = _mix(mixed, word_at(source, at))
            mixed = _mix(mixed, word_at(source, end - 8))
        slot = mixed >> unused
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
                    size <= 8 or _same(source, begin, first, size)
                ):
                    break
            slot = (slot + np.uint64(1)) & mask
        codes[i] = code
    return count


@kernel
def _count(codes: Any, counts: Any) -> None:
    """Add how often each code is there."""
    for i in range(codes.shape[0]):
        counts[codes[i]] += 1


def are_equal(offsets: Ints, source: Bytes, text: bytes) -> npt.NDArray[np.bool_]:
    """Return which texts are `text`."""
    equal = np.empty(offsets.size - 1, np.bool_)
    _compare(offsets, source, np.frombuffer(text, np.uint8), equal)
    return equal


def counts_of(codes: Ints, size: int) -> Ints:
    """Return how often each code from 0 to before `size` is there: a quarter of `np.bincount`'s time."""
    counts = np.zeros(size, np.int64)
    _count(sealed(codes), counts)
    return counts


def code_type(count: int) -> np.dtype[Any]:
    """Return the narrowest type of the numbers of so many things."""
    return np.dtype(np.int8 if count <= 1 << 7 else np.int16 if count <= 1 << 15 else np.int32)


def distinct_texts(
    offsets: Ints, source: Bytes, taken: Ints | None = None, most: int = MOST_DISTINCT
) -> tuple[Ints, Ints] | None:
    """Return the rows where texts are for the first time, and which of them each text is.

    Parameters
    ----------
    offsets, source : Ints, Bytes
        Where each text begins and the last one ends, and the bytes that they are in.
    taken : Ints, optional
        The rows whose texts are meant; all unless told.
    most : int
        The most texts.

    Returns
    -------
    tuple or None
        None if there are more texts than `most`.
    """
    count = offsets.size - 1 if taken is None else taken.size
    most = max(1, min(count, most))
    table = np.full(1 << (2 * most - 1).bit_length(), -1, np.int32)
    rows, heads, codes = np.empty(most, np.int64), np.empty(most, np.uint64), np.empty(count, np.int32)
    taken = np.empty(0, np.int64) if taken is None else taken
    found = _assign_codes(offsets, source, taken, table, rows, heads, codes)
    return None if found < 0 else (rows[:found], codes.astype(code_type(found), copy=False))


def offsets_of(lengths: Ints, kind: npt.DTypeLike, most: int) -> Ints | None:
    """Return where texts of these lengths begin and the last one ends; None if that is above `most`."""
    offsets = np.zeros(lengths.size + 1, kind)
    return offsets if _add_up(lengths, most, offsets) >= 0 else None


def texts_of(
    codes: Ints, begins: Ints, source: Bytes, kind: npt.DTypeLike, most: int
) -> tuple[Ints, Bytes] | None:
    """Return the texts that codes stand for: where each begins, and their bytes.

    Parameters
    ----------
    codes : Ints
        A number for each text.
    begins : Ints
        Where in `source` the text of each number begins, and where the last one ends.
    source : Bytes
        The distinct texts.
    kind : dtype
        Of the offsets that are returned.
    most : int
        The most bytes that they may have.

    Returns
    -------
    tuple or None
        None if a code has no text, or the texts have more bytes.
    """
    count = begins.size - 1
    if source.size < codes.size:
        # What is little is copied, to have something to spare.
        source = np.append(source, np.zeros(_SPARE, np.uint8))
        spared = count
    else:
        end = begins.dtype.type(min(source.size - _SPARE, np.iinfo(begins.dtype).max))
        spared = max(0, int(np.searchsorted(begins, end, "right")) - 1)
    codes, begins, source = sealed(codes), sealed(begins), sealed(source)
    # To look whether more texts than are written are even would take longer than it saves.
    length = _common_length(begins) if count < codes.size else -1
    offsets = _places_of(codes, begins, length, kind, most)
    if offsets is None:
        return None
    total = int(offsets[-1])
    # Arrow keeps memory that was freed. NumPy returns so much of it to the system, whose pages are zeroed.
    out: Bytes = np.frombuffer(pa.allocate_buffer(total + _SPARE), np.uint8)
    if length > 0 and spared == count:
        _write_even(codes, int(begins[0]), length, source, out)
    else:
        _write_out(codes, begins, spared, source, offsets, out)
    return offsets, out[:total]


def _places_of(codes: Ints, begins: Ints, length: int, kind: npt.DTypeLike, most: int) -> Ints | None:
    """Return where the text of each code begins and the last one ends; None if one has none, or above `most`.

    `length` is that of all texts, if they have one, of which it need not be added up.
    """
    if length <= 0:
        offsets: Ints = np.zeros(codes.size + 1, kind)
        return offsets if _place(codes, begins, most, offsets) >= 0 else None
    total = codes.size * length
    if total > most or _count_strangers(codes, begins.size - 1):
        return None
    return np.arange(0, total + 1, length, dtype=kind)
