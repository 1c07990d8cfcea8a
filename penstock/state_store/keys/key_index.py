"""A hash index from keys to dense numbers 0, 1, 2, ... in order of first appearance."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._kernels import kernel
from penstock.state_store.keys.key_words import Keys, Positions, Words

__all__ = ["KeyIndex", "grow"]

_ABSENT = -1
_INITIAL_KEYS = 64


def grow(array: npt.NDArray[Any], needed: int, *, used: int | None = None) -> npt.NDArray[Any]:
    """Return `array`; if it is shorter than `needed`, return a copy of at least twice its length.

    Parameters
    ----------
    used : int, optional
        The number of leading elements to copy; by default all. Other elements of the copy are zero.
    """
    if needed <= len(array):
        return array
    larger = np.zeros((max(needed, 2 * len(array), _INITIAL_KEYS), *array.shape[1:]), array.dtype)
    count = len(array) if used is None else used
    larger[:count] = array[:count]
    return larger


@kernel
def _find(
    words: Words,
    starts: Positions,
    hashes: Words,
    table: Any,
    known_hashes: Words,
    known_words: Words,
    known_starts: Positions,
    out: Positions,
) -> None:
    mask = table.shape[0] - 1
    for i in range(hashes.shape[0]):
        h = hashes[i]
        size = starts[i + 1] - starts[i]
        probe = np.int64(h & np.uint64(mask))
        out[i] = -1
        while table[probe] >= 0:
            number = table[probe]
            if known_hashes[number] == h:
                first = known_starts[number]
                if known_starts[number + 1] - first == size:
                    same = True
                    for w in range(size):
                        if known_words[first + w] != words[starts[i] + w]:
                            same = False
                            break
                    if same:
                        out[i] = number
                        break
            probe = (probe + 1) & mask


@kernel
def _find_or_add(
    words: Words,
    starts: Positions,
    hashes: Words,
    begin: int,
    table: Any,
    known_hashes: Words,
    known_words: Words,
    known_starts: Positions,
    count: int,
    out: Positions,
) -> tuple[int, int]:
    """Assign numbers to keys from `begin` on until an array is full; return the next key and the count."""
    mask = table.shape[0] - 1
    limit = min(table.shape[0] // 2, known_hashes.shape[0], known_starts.shape[0] - 1)
    for i in range(begin, hashes.shape[0]):
        h = hashes[i]
        size = starts[i + 1] - starts[i]
        probe = np.int64(h & np.uint64(mask))
        found = -1
        while table[probe] >= 0:
            number = table[probe]
            if known_hashes[number] == h:
                first = known_starts[number]
                if known_starts[number + 1] - first == size:
                    same = True
                    for w in range(size):
                        if known_words[first + w] != words[starts[i] + w]:
                            same = False
                            break
                    if same:
                        found = number
                        break
            probe = (probe + 1) & mask
        if found < 0:
            end = known_starts[count]
            if count >= limit or end + size > known_words.shape[0]:
                return i, count
            table[probe] = count
            known_hashes[count] = h
            for w in range(size):
                known_words[end + w] = words[starts[i] + w]
            known_starts[count + 1] = end + size
            found = count
            count += 1
        out[i] = found
    return hashes.shape[0], count


@kernel
def _find_or_add_words(
    words: Words,
    starts: Positions,
    hashes: Words,
    begin: int,
    table: Any,
    known_hashes: Words,
    known_words: Words,
    known_starts: Positions,
    count: int,
    out: Positions,
) -> tuple[int, int]:
    """Do `_find_or_add` for one-word keys, with two memory accesses per key instead of five.

    All known keys must have one word. The function also stops at a key of a different length.
    """
    mask = table.shape[0] - 1
    limit = min(table.shape[0] // 2, known_hashes.shape[0], known_starts.shape[0] - 1, known_words.shape[0])
    for i in range(begin, hashes.shape[0]):
        if starts[i + 1] - starts[i] != 1:
            return i, count
        word = words[starts[i]]
        probe = np.int64(hashes[i] & np.uint64(mask))
        number = np.int64(table[probe])
        while number >= 0 and known_words[number] != word:
            probe = (probe + 1) & mask
            number = np.int64(table[probe])
        if number < 0:
            if count >= limit:
                return i, count
            number = np.int64(count)
            table[probe] = number
            known_hashes[number] = hashes[i]
            known_words[number] = word
            count += 1
            known_starts[count] = count
        out[i] = number
    return hashes.shape[0], count


@kernel
def _rebuild(table: Any, hashes: Words, count: int) -> None:
    mask = table.shape[0] - 1
    for number in range(count):
        probe = np.int64(hashes[number] & np.uint64(mask))
        while table[probe] >= 0:
            probe = (probe + 1) & mask
        table[probe] = number


@kernel
def _gather_words(words: Words, from_starts: Positions, starts: Positions, out: Words) -> None:
    for i in range(from_starts.shape[0]):
        first = from_starts[i]
        for w in range(starts[i], starts[i + 1]):
            out[w] = words[first + w - starts[i]]


class KeyIndex:
    """Numbers keys 0, 1, 2, ... in order of first appearance, by open addressing with linear probing."""

    def __init__(self) -> None:
        self._count = 0
        self._have_one_word = True
        self._table = np.full(2 * _INITIAL_KEYS, _ABSENT, np.int32)
        self._hashes = np.zeros(_INITIAL_KEYS, np.uint64)
        self._words = np.zeros(_INITIAL_KEYS, np.uint64)
        self._starts = np.zeros(_INITIAL_KEYS + 1, np.int64)

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """The memory of the index, in bytes."""
        arrays = (self._table, self._hashes, self._words, self._starts)
        return sum(array.nbytes for array in arrays)

    @property
    def keys(self) -> Keys:
        """The keys by their numbers."""
        starts = self._starts[: self._count + 1]
        return Keys(self._words[: int(starts[-1])], starts, self._hashes[: self._count])

    @property
    def words(self) -> Words:
        """The words of all keys; see `starts`."""
        return self._words

    def starts(self, numbers: Positions) -> Positions:
        """Return the offsets in `words` of the keys with these numbers."""
        return self._starts[numbers]

    def find(self, keys: Keys) -> Positions:
        """Return each key's number; -1 for a key without a number."""
        out = np.empty(len(keys), np.int64)
        _find(
            keys.words, keys.starts, keys.hashes,
            self._table, self._hashes, self._words, self._starts, out,
        )  # fmt: skip
        return out

    def find_or_add(self, keys: Keys) -> Positions:
        """Return each key's number. New keys get the next numbers."""
        out = np.empty(len(keys), np.int64)
        begin = 0
        while True:
            find_or_add = _find_or_add_words if self._have_one_word else _find_or_add
            begin, self._count = find_or_add(
                keys.words, keys.starts, keys.hashes, begin,
                self._table, self._hashes, self._words, self._starts, self._count, out,
            )  # fmt: skip
            if begin < len(keys) and self._have_one_word and keys.starts[begin + 1] - keys.starts[begin] != 1:
                self._have_one_word = False
                continue
            if begin == len(keys):
                return out
            self._grow(int(keys.starts[begin + 1] - keys.starts[begin]))

    def reserve(self, count: int, words: int) -> None:
        """Reserve memory for `count` keys with `words` words in total, so that adding them copies nothing."""
        if 2 * count > len(self._table):
            self._table = np.full(1 << (2 * count - 1).bit_length(), _ABSENT, np.int32)
            _rebuild(self._table, self._hashes, self._count)
        for name, needed, used in (
            ("_hashes", count, self._count),
            ("_starts", count + 1, self._count + 1),
            ("_words", words, int(self._starts[self._count])),
        ):
            array = getattr(self, name)
            if needed > len(array):
                larger = np.zeros(needed, array.dtype)
                larger[:used] = array[:used]
                setattr(self, name, larger)

    def subset(self, numbers: Positions) -> KeyIndex:
        """Return an index of the keys with these distinct numbers, which become 0, 1, 2, ..."""
        other = KeyIndex()
        count = len(numbers)
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(self.sizes(numbers), out=starts[1:])
        other.reserve(count, int(starts[-1]))
        other._count, other._have_one_word = count, self._have_one_word
        other._hashes[:count] = self._hashes[numbers]
        other._starts[: count + 1] = starts
        _gather_words(self._words, self._starts[numbers], starts, other._words)
        _rebuild(other._table, other._hashes, count)
        return other

    def sizes(self, numbers: Positions) -> Positions:
        """Return the number of words of each key with these numbers."""
        return self._starts[numbers + 1] - self._starts[numbers]

    def _grow(self, next_words: int) -> None:
        if 2 * (self._count + 1) > len(self._table):
            self._table = np.full(4 * len(self._table), _ABSENT, np.int32)
            _rebuild(self._table, self._hashes, self._count)
        self._hashes = grow(self._hashes, self._count + 1)
        self._starts = grow(self._starts, self._count + 2)
        self._words = grow(self._words, int(self._starts[self._count]) + next_words)
