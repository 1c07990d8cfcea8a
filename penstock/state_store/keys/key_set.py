"""Sets of keys with a few bytes per key, for tables whose rows are not in memory.

The set stores the fingerprint of each key. The fingerprint of a one-word key is the hash of the word
(`penstock.state_store.keys.key_words.hash_words`), which is invertible, so no two keys collide. Other keys
have 128 bits, half of which depend on a secret of the set: a collision among a billion keys has a probability
below 1e-19, and nobody can construct a collision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._clock import new_id
from penstock._kernels import kernel
from penstock.state_store.keys.key_words import Keys, Positions, Words

__all__ = ["KeySet"]

_INITIAL_SLOTS = 64
_LOAD = 0.75
"""The maximum load factor."""
_GROWTH = 1.5

_S32, _S29 = np.uint64(32), np.uint64(29)
_STEP = np.uint64(0xD6E8FEB86659FD93)
_ONE = np.uint64(1)


@kernel
def _second_hash(words: Words, starts: Positions, secret: int, out: Words) -> None:
    """Compute a second hash of each key, an odd number that is independent of the first hash."""
    for i in range(out.shape[0]):
        h = np.uint64(secret)
        for position in range(starts[i], starts[i + 1]):
            h = (h + words[position]) * _STEP
            h ^= h >> _S29
            h += np.uint64(secret)
        h = (h ^ (h >> _S32)) * _STEP
        out[i] = (h ^ (h >> _S29)) | _ONE


@kernel
def _home(fingerprint: Any, slots: int) -> Any:
    """Return the slot where the search for a fingerprint begins."""
    return np.int64(((fingerprint >> _S32) * np.uint64(slots)) >> _S32)


@kernel
def _slot_of(first: Any, last: Any, table: Words) -> int:
    """Return the slot that holds a fingerprint, or the empty slot for it."""
    slots, width = table.shape[0], table.shape[1]
    slot = _home(first, slots)
    while table[slot, width - 1] != 0:
        if table[slot, 0] == first and table[slot, width - 1] == last:
            break
        slot += 1
        if slot == slots:
            slot = 0
    return slot


@kernel
def _add(prints: Words, table: Words) -> int:
    """Add fingerprints whose last word is not 0; return the number of new fingerprints."""
    width = table.shape[1]
    count = 0
    for i in range(prints.shape[0]):
        if prints[i, width - 1] == 0:
            continue
        slot = _slot_of(prints[i, 0], prints[i, width - 1], table)
        if table[slot, width - 1] == 0:
            table[slot, 0] = prints[i, 0]
            table[slot, width - 1] = prints[i, width - 1]
            count += 1
    return count


@kernel
def _contains(prints: Words, table: Words, out: npt.NDArray[np.bool_]) -> None:
    width = table.shape[1]
    for i in range(prints.shape[0]):
        slot = _slot_of(prints[i, 0], prints[i, width - 1], table)
        out[i] = table[slot, width - 1] != 0


@kernel
def _remove(prints: Words, table: Words) -> int:
    """Remove fingerprints whose last word is not 0; return the number of removed fingerprints.

    Entries behind a removed entry move up, so that the empty slot does not end a search for them early.
    """
    slots, width = table.shape[0], table.shape[1]
    count = 0
    for i in range(prints.shape[0]):
        if prints[i, width - 1] == 0:
            continue
        gap = _slot_of(prints[i, 0], prints[i, width - 1], table)
        if table[gap, width - 1] == 0:
            continue
        count += 1
        slot = gap + 1 if gap + 1 < slots else 0
        while table[slot, width - 1] != 0:
            # An entry stays if its search begins behind the gap.
            if (slot - _home(table[slot, 0], slots)) % slots >= (slot - gap) % slots:
                for w in range(width):
                    table[gap, w] = table[slot, w]
                gap = slot
            slot = slot + 1 if slot + 1 < slots else 0
        for w in range(width):
            table[gap, w] = 0
    return count


class KeySet:
    """A set of keys that stores only their fingerprints, by open addressing with linear probing.

    Parameters
    ----------
    one_word : bool
        Whether every key has one word. If so, a key takes a slot of 8 bytes; otherwise, of 16 bytes.
    growth : float
        The factor by which a full table grows.
    """

    def __init__(self, *, one_word: bool, growth: float = _GROWTH) -> None:
        self._growth = growth
        self._one_word = one_word
        self._count = 0
        self._zero = False
        self._secret = int(new_id()[:15], 16)
        self._table = np.zeros((_INITIAL_SLOTS, 1 if one_word else 2), np.uint64)

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """The memory of the set, in bytes."""
        return self._table.nbytes

    def add(self, keys: Keys) -> int:
        """Add keys; return the number of new keys."""
        prints = self._prints(keys)
        needed = int((self._count + len(keys)) / _LOAD) + 1
        if needed > len(self._table):
            slots = max(needed, int(self._growth * len(self._table)))
            larger = np.zeros((slots, self._table.shape[1]), np.uint64)
            _add(self._table, larger)
            self._table = larger
        new = _add(prints, self._table)
        if self._has_zero(prints) and not self._zero:
            self._zero = True
            new += 1
        self._count += new
        return new

    def remove(self, keys: Keys) -> int:
        """Remove keys; return the number of keys that were in the set. The set keeps its memory."""
        prints = self._prints(keys)
        gone = _remove(prints, self._table)
        if self._has_zero(prints) and self._zero:
            self._zero = False
            gone += 1
        self._count -= gone
        return gone

    def contains(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return a mask of the keys that are in the set."""
        prints = self._prints(keys)
        out = np.empty(len(prints), np.bool_)
        _contains(prints, self._table, out)
        if self._zero and self._has_zero(prints):
            out |= prints[:, -1] == 0
        return out

    def _prints(self, keys: Keys) -> Words:
        if self._one_word:
            return keys.hashes.reshape(-1, 1)
        prints = np.empty((len(keys), 2), np.uint64)
        prints[:, 0] = keys.hashes
        second = np.empty(len(keys), np.uint64)
        _second_hash(keys.words, keys.starts, self._secret, second)
        prints[:, 1] = second
        return prints

    @staticmethod
    def _has_zero(prints: Words) -> bool:
        # Only one possible key of one word has the fingerprint 0, which also marks empty slots in the table.
        return not prints[:, -1].all()
