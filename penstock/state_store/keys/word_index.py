"""A hash index from words to dense numbers 0, 1, 2, ... that kernels look up a block at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._kernels import MIX_1, MIX_2, kernel
from penstock.state_store.keys.key_index import grow
from penstock.state_store.keys.key_words import Positions, Words

__all__ = ["BLOCK", "WordIndex", "number_block"]

BLOCK = 1024
"""The number of words that a kernel looks up at a time."""

_ABSENT = -1
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


@kernel
def number_block(
    words: Words, begin: int, end: int, table: Any, numbered_words: Words, count: int, out: Any
) -> int:
    """Write the number of each of ``words[begin:end]`` to `out`; return the count of known words.

    `table` and `numbered_words` must have room for all words. All words are hashed first, so that the
    processor fetches the slots of several words in parallel.
    """
    mask = np.uint64(table.shape[0] - 1)
    for i in range(begin, end):
        h = words[i]
        h = (h ^ (h >> _S30)) * MIX_1
        h = (h ^ (h >> _S27)) * MIX_2
        out[i - begin] = np.int64((h ^ (h >> _S31)) & mask)
    for i in range(begin, end):
        word, probe = words[i], out[i - begin]
        number = np.int64(table[probe])
        while number >= 0 and numbered_words[number] != word:
            probe = (probe + 1) & np.int64(mask)
            number = np.int64(table[probe])
        if number < 0:
            number = np.int64(count)
            table[probe] = number
            numbered_words[number] = word
            count += 1
        out[i - begin] = number
    return count


class WordIndex:
    """Numbers words in order of first appearance, as `KeyIndex` numbers keys.

    Attributes
    ----------
    table : int32 array
        The numbers of words, at the positions of their hashes. The length is a power of two, and at least
        twice the length of `known`.
    known : uint64 array
        The words by their numbers. The first `count` are set.
    numbers : int64 array
        Memory for the numbers of a block.
    """

    def __init__(self) -> None:
        self.count = 0
        self.known: Words = np.zeros(0, np.uint64)
        self.table: npt.NDArray[np.int32] = np.full(1, _ABSENT, np.int32)
        self.numbers: Positions = np.zeros(BLOCK, np.int64)

    def make_room(self) -> None:
        """Make room for a block of new words."""
        self.known = grow(self.known, self.count + BLOCK)
        if 2 * len(self.known) > len(self.table):
            self.table = np.full(1 << (2 * len(self.known) - 1).bit_length(), _ABSENT, np.int32)
            for begin in range(0, self.count, BLOCK):
                end = min(begin + BLOCK, self.count)
                number_block(self.known, begin, end, self.table, self.known, begin, self.numbers)
