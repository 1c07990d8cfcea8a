"""The hash index of a table: open addressing with one word per key.

An entry is two adjacent words. The first word stands for the key. The second word is the slot of the row plus
one, or 0 if the entry is free. So a look-up usually reads one cache line. The word of a key of one column is
the column's value. The word of a longer key is a hash, so a look-up also compares the columns. When an entry
is deleted, the entries after it move up, so there are no tombstones. At most half of the entries are used.

A transaction often accesses neighbouring keys, such as the lines of an order. So the entries of four keys
that differ only in the two lowest bits of their last column start in the same cache line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._kernels import GOLDEN, MIX_1, kernel
from penstock.compression.kernels.instructions import prefetch

__all__ = [
    "Int64s",
    "add_entries",
    "find_1",
    "find_2",
    "find_3",
    "find_4",
    "find_all",
    "new_index",
    "peek",
    "prefetch_entry",
    "put_entry",
    "remove_entries",
    "remove_entry",
    "word_2",
    "word_3",
    "word_4",
    "words_of",
]

Int64s = npt.NDArray[np.int64]

_S32, _S29 = np.uint64(32), np.uint64(29)
_MIN_BITS = 6
_LINE_BITS = 2
"""A cache line has four entries."""
_LINE = np.int64(3)
_S2 = np.uint64(_LINE_BITS)
_PREFETCH_DISTANCE = 16
"""The distance in entries at which the memory of new entries is prefetched."""


def new_index(rows: int) -> tuple[Int64s, int]:
    """Return an empty index with room for `rows` rows, and the shift of its hash."""
    bits = max((2 * rows - 1).bit_length(), _MIN_BITS)
    return np.zeros(2 << bits, np.int64), 64 - bits


@kernel
def _first(word: int, shift: int) -> Any:
    h = np.uint64(word) >> _S2
    h = (h ^ (h >> _S32)) * GOLDEN
    return np.int64((h >> np.uint64(shift + _LINE_BITS)) << _S2) | (np.int64(word) & _LINE)


@kernel
def word_2(a: int, b: int) -> Any:
    """Return the word of a key of two columns."""
    h = (np.uint64(a) * GOLDEN) ^ (np.uint64(a) >> _S29)
    h = (h ^ (np.uint64(b) >> _S2)) * MIX_1
    return (np.int64(h ^ (h >> _S32)) & ~_LINE) | (np.int64(b) & _LINE)


@kernel
def word_3(a: int, b: int, c: int) -> Any:
    """Return the word of a key of three columns."""
    return word_2(word_2(a, b), c)


@kernel
def word_4(a: int, b: int, c: int, d: int) -> Any:
    """Return the word of a key of four columns."""
    return word_2(word_3(a, b, c), d)


@kernel
def find_1(entries: Int64s, shift: int, word: int) -> int:
    """Return the slot of a key of one column, or -1 if no row has the key."""
    mask = (entries.shape[0] >> 1) - 1
    at = _first(word, shift)
    while True:
        slot = entries[2 * at + 1]
        if slot == 0:
            return -1
        if entries[2 * at] == word:
            return slot - 1
        at = (at + 1) & mask


@kernel
def find_2(entries: Int64s, shift: int, a: int, b: int, a_column: Any, b_column: Any) -> int:
    """Return the slot of a key of two columns, or -1 if no row has the key."""
    mask = (entries.shape[0] >> 1) - 1
    word = word_2(a, b)
    at = _first(word, shift)
    while True:
        slot = entries[2 * at + 1] - 1
        if slot < 0:
            return -1
        if entries[2 * at] == word and a_column[slot] == a and b_column[slot] == b:
            return slot
        at = (at + 1) & mask


@kernel
def find_3(
    entries: Int64s, shift: int, a: int, b: int, c: int, a_column: Any, b_column: Any, c_column: Any
) -> int:
    """Return the slot of a key of three columns, or -1 if no row has the key."""
    mask = (entries.shape[0] >> 1) - 1
    word = word_3(a, b, c)
    at = _first(word, shift)
    while True:
        slot = entries[2 * at + 1] - 1
        if slot < 0:
            return -1
        if entries[2 * at] == word and a_column[slot] == a and b_column[slot] == b and c_column[slot] == c:
            return slot
        at = (at + 1) & mask


@kernel
def find_4(
    entries: Int64s,
    shift: int,
    a: int,
    b: int,
    c: int,
    d: int,
    a_column: Any,
    b_column: Any,
    c_column: Any,
    d_column: Any,
) -> int:
    """Return the slot of a key of four columns, or -1 if no row has the key."""
    mask = (entries.shape[0] >> 1) - 1
    word = word_4(a, b, c, d)
    at = _first(word, shift)
    while True:
        slot = entries[2 * at + 1] - 1
        if slot < 0:
            return -1
        if (
            entries[2 * at] == word
            and a_column[slot] == a
            and b_column[slot] == b
            and c_column[slot] == c
            and d_column[slot] == d
        ):
            return slot
        at = (at + 1) & mask


@kernel
def prefetch_entry(entries: Int64s, shift: int, word: int) -> None:
    """Load the entry of a key into the cache."""
    prefetch(entries, 2 * _first(word, shift))


@kernel
def peek(entries: Int64s, shift: int, word: int) -> int:
    """Return the slot of a row whose key has the given word, or -1. Several keys may share the word."""
    mask = (entries.shape[0] >> 1) - 1
    at = _first(word, shift)
    while True:
        slot = entries[2 * at + 1]
        if slot == 0 or entries[2 * at] == word:
            return slot - 1
        at = (at + 1) & mask


@kernel
def put_entry(entries: Int64s, shift: int, word: int, slot: int) -> None:
    """Add an entry. The index must have room, and must not have the key yet."""
    mask = (entries.shape[0] >> 1) - 1
    at = _first(word, shift)
    while entries[2 * at + 1] != 0:
        at = (at + 1) & mask
    entries[2 * at] = word
    entries[2 * at + 1] = slot + 1


@kernel
def remove_entry(entries: Int64s, shift: int, word: int, slot: int) -> None:
    """Remove the entry of the row at `slot`, which must be in the index."""
    mask = (entries.shape[0] >> 1) - 1
    at = _first(word, shift)
    while entries[2 * at + 1] != slot + 1:
        at = (at + 1) & mask
    after = (at + 1) & mask
    while entries[2 * after + 1] != 0:
        # The entry moves into the gap unless its search begins after the gap.
        first = _first(entries[2 * after], shift)
        if ((after - first) & mask) >= ((after - at) & mask):
            entries[2 * at] = entries[2 * after]
            entries[2 * at + 1] = entries[2 * after + 1]
            at = after
        after = (after + 1) & mask
    entries[2 * at + 1] = 0


@kernel
def add_entries(entries: Int64s, shift: int, words: Int64s, slots: Int64s) -> None:
    """Add entries of distinct keys; the index must have room for them."""
    for i in range(words.shape[0]):
        if i + _PREFETCH_DISTANCE < words.shape[0]:
            prefetch_entry(entries, shift, words[i + _PREFETCH_DISTANCE])
        put_entry(entries, shift, words[i], slots[i])


@kernel
def remove_entries(entries: Int64s, shift: int, words: Int64s, slots: Int64s) -> None:
    """Remove the entries of the rows at `slots`, which must be in the index."""
    for i in range(words.shape[0]):
        remove_entry(entries, shift, words[i], slots[i])


@kernel
def _words_2(a: Int64s, b: Int64s, words: Int64s) -> None:
    for i in range(words.shape[0]):
        words[i] = word_2(a[i], b[i])


@kernel
def _words_3(a: Int64s, b: Int64s, c: Int64s, words: Int64s) -> None:
    for i in range(words.shape[0]):
        words[i] = word_3(a[i], b[i], c[i])


@kernel
def _words_4(a: Int64s, b: Int64s, c: Int64s, d: Int64s, words: Int64s) -> None:
    for i in range(words.shape[0]):
        words[i] = word_4(a[i], b[i], c[i], d[i])


@kernel
def _find_all_1(entries: Int64s, shift: int, a: Int64s, slots: Int64s) -> None:
    for i in range(slots.shape[0]):
        slots[i] = find_1(entries, shift, a[i])


@kernel
def _find_all_2(
    entries: Int64s, shift: int, a: Int64s, b: Int64s, a_column: Any, b_column: Any, slots: Int64s
) -> None:
    for i in range(slots.shape[0]):
        slots[i] = find_2(entries, shift, a[i], b[i], a_column, b_column)


@kernel
def _find_all_3(
    entries: Int64s,
    shift: int,
    a: Int64s,
    b: Int64s,
    c: Int64s,
    a_column: Any,
    b_column: Any,
    c_column: Any,
    slots: Int64s,
) -> None:
    for i in range(slots.shape[0]):
        slots[i] = find_3(entries, shift, a[i], b[i], c[i], a_column, b_column, c_column)


@kernel
def _find_all_4(
    entries: Int64s,
    shift: int,
    a: Int64s,
    b: Int64s,
    c: Int64s,
    d: Int64s,
    a_column: Any,
    b_column: Any,
    c_column: Any,
    d_column: Any,
    slots: Int64s,
) -> None:
    for i in range(slots.shape[0]):
        slots[i] = find_4(entries, shift, a[i], b[i], c[i], d[i], a_column, b_column, c_column, d_column)


_WORDS: dict[int, Any] = {2: _words_2, 3: _words_3, 4: _words_4}
_FIND_ALL: dict[int, Any] = {2: _find_all_2, 3: _find_all_3, 4: _find_all_4}
"""The kernel for each number of key columns."""


def words_of(key: list[Int64s]) -> Int64s:
    """Return the word of each key; `key` has an array for each key column."""
    if len(key) == 1:
        return key[0]
    words = np.empty(len(key[0]), np.int64)
    _WORDS[len(key)](*key, words)
    return words


def find_all(entries: Int64s, shift: int, key: list[Int64s], columns: list[Any]) -> Int64s:
    """Return the slot of each key, or -1 if no row has the key.

    `key` has an array for each key column. `columns` are the key columns of the table.
    """
    slots = np.empty(len(key[0]), np.int64)
    if len(key) == 1:
        _find_all_1(entries, shift, key[0], slots)
    else:
        _FIND_ALL[len(key)](entries, shift, *key, *columns, slots)
    return slots
