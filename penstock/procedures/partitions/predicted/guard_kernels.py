"""Kernels that check predicted transactions, and that plan the order in which they run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock._kernels import kernel
from penstock.procedures.texts import Numbers
from penstock.state_store.keys.key_words import hash_word

__all__ = ["GUARD_HEAD", "is_write_forbidden", "leaves", "needs_all", "plan"]

GUARD_HEAD = 3
"""The number of fields at the start of a guard: the array that tells a kernel which accesses are allowed.

The fields are the allowed partitions as bits, the number of partitions, and the first event that may write
replicated tables. A field for each table follows: the position of its ranges in the guard, or 0 if a hash
gives the partition. The guard ends with the ranges of each table: their number, then their least values.
"""


@kernel
def leaves(guard: Numbers, touched: Numbers, i: int, table: int, word: int) -> bool:
    """Record the partition of a row that event `i` accesses; return whether the access is forbidden."""
    offset = guard[3 + table]
    place = np.int64(0)
    if offset == 0:
        high = hash_word(np.uint64(np.int64(word))) >> np.uint64(32)
        place = np.int64((high * np.uint64(guard[1])) >> np.uint64(32))
    else:
        for k in range(guard[offset]):
            if word >= guard[offset + 1 + k]:
                place += 1
    bit = np.int64(1) << place
    touched[i] |= bit
    return (guard[0] & bit) == 0


@kernel
def needs_all(guard: Numbers, touched: Numbers, i: int) -> bool:
    """Record that event `i` accesses all partitions; return whether this is forbidden."""
    every = (np.int64(1) << guard[1]) - 1 if guard[1] < 64 else np.int64(-1)
    touched[i] |= every
    return guard[0] != every


@kernel
def is_write_forbidden(guard: Numbers, i: int) -> bool:
    """Return whether event `i` may not write replicated tables."""
    return i < guard[2]


@kernel
def plan(
    masks: npt.NDArray[np.uint64],
    written: npt.NDArray[np.uint64],
    every: np.uint64,
    may_be_late: bool,
    homes: Numbers,
    late: npt.NDArray[np.bool_],
) -> int:
    """Set the partition in which each transaction runs; return how many transactions fit into one wave.

    In a wave, single-partition transactions run first, each in its partition. Then the forwarded and the late
    transactions run at the same time. A single-partition transaction is late if earlier forwarded
    transactions read rows of its partition but write none there (H-Store §5.1, OP4). If a forwarded
    transaction needs a partition that a late transaction may write, the wave ends before this forwarded
    transaction.

    Parameters
    ----------
    masks, written : ndarray
        For each transaction, `masks` has a bit for each partition that it accesses, and `written` a bit for
        each partition that it writes.
    every : uint64
        A bit for each partition of the database.
    may_be_late : bool
        Whether transactions may be late. If not, the transactions that would be late are forwarded.
    homes : ndarray
        Receives the partition of each transaction, or -1 if it is forwarded.
    late : ndarray
        Receives whether each transaction is late.
    """
    zero = np.uint64(0)
    fetched = zero
    locked = zero
    used_late = zero
    for i in range(masks.shape[0]):
        mask = masks[i]
        late[i] = False
        is_single = (mask & (mask - np.uint64(1))) == zero
        if is_single and (mask & locked) == zero and (mask & fetched) == zero and locked != every:
            place = 0
            while mask > np.uint64(1):
                mask >>= np.uint64(1)
                place += 1
            homes[i] = place
            continue
        if is_single and may_be_late and mask != zero and (mask & locked) == zero and locked != every:
            used_late |= mask
            late[i] = True
            place = 0
            while mask > np.uint64(1):
                mask >>= np.uint64(1)
                place += 1
            homes[i] = place
            continue
        if (mask & used_late) != zero or (written[i] == every and used_late != zero):
            return i
        homes[i] = -1
        fetched |= mask
        locked |= written[i] if may_be_late else mask
    return masks.shape[0]
