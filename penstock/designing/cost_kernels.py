"""The cost of a design for a compressed workload (H-Store §4.4, Algorithms 1 to 3).

Each bit of a mask stands for a partition that a transaction needs. A workload has a row of masks for each
option of each table. The OR of one row for each table gives the masks of a design.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock._kernels import kernel
from penstock.procedures.texts import Numbers

__all__ = ["add_accesses", "add_bases", "count_distributed", "count_loads", "merge", "skew_factor"]

Masks = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]


@kernel
def _bits(mask: np.uint64) -> np.int64:
    """Return the number of set bits."""
    mask -= (mask >> np.uint64(1)) & np.uint64(0x5555555555555555)
    mask = (mask & np.uint64(0x3333333333333333)) + ((mask >> np.uint64(2)) & np.uint64(0x3333333333333333))
    mask = (mask + (mask >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((mask * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def add_accesses(transaction: Numbers, access_masks: Masks, out: Masks) -> None:
    """Add the masks of accesses to the masks of their transactions."""
    for k in range(transaction.shape[0]):
        out[transaction[k]] |= access_masks[k]


@kernel
def merge(masks: Masks, row: Masks, out: Masks) -> None:
    """Write the OR of two rows of masks to `out`."""
    for i in range(masks.shape[0]):
        out[i] = masks[i] | row[i]


@kernel
def add_bases(
    masks: Masks,
    bases: npt.NDArray[np.int8],
    routing: Numbers,
    procedure: npt.NDArray[np.int32],
    declared: Numbers,
    every: np.uint64,
    out: Masks,
) -> None:
    """Write a mask of the partitions that each record needs, including its base partition.

    Parameters
    ----------
    masks : ndarray
        The masks of all records, then the second masks to which `declared` refers.
    bases : ndarray, two-dimensional
        The base partition for each route (row) and each record (column); -1 if there is none.
    routing : ndarray
        The route of each procedure; -1 if it has none.
    procedure : ndarray
        The procedure of each record.
    declared : ndarray
        The position in `masks` of each record's second mask, or -1. A record that no attribute routes needs
        the partitions in its second mask. A record that an attribute routes needs all partitions if its first
        mask has a partition other than the base partition. Records without a second mask always need the
        partitions in their first mask, and the base partition.
    every : uint64
        The mask of all partitions.
    out : ndarray
        Receives a mask for each record.
    """
    for i in range(out.shape[0]):
        mask = masks[i]
        place = routing[procedure[i]]
        is_based = place >= 0 and bases[place, i] >= 0
        if is_based:
            mask |= np.uint64(1) << np.uint64(bases[place, i])
        if declared[i] >= 0:
            if not is_based:
                mask = masks[declared[i]]
            elif _bits(mask) > 1:
                mask = every
        out[i] = mask


@kernel
def count_distributed(masks: Masks, weights: Numbers) -> tuple[int, int]:
    """Count distributed transactions, and the partitions that they access (Algorithm 1).

    Return first the sum of the numbers of partitions, then the number of transactions.
    """
    partitions = 0
    distributed = 0
    for i in range(masks.shape[0]):
        count = _bits(masks[i])
        if count > 1:
            partitions += count * weights[i]
            distributed += weights[i]
    return partitions, distributed


@kernel
def count_loads(
    masks: Masks, weights: Numbers, interval: npt.NDArray[np.int32], partitions: int, loads: Floats
) -> tuple[int, int]:
    """Count how often each partition is accessed in each interval. Also return `count_distributed`'s result.

    A transaction that needs no partition may run in any partition, so it adds an equal share to each
    partition.

    Parameters
    ----------
    masks, weights, interval : ndarray
        The records.
    partitions : int
        The number of partitions.
    loads : ndarray
        Receives the counts: a row for each interval, a column for each partition.
    """
    every = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - partitions)
    loads[:] = 0.0
    everywhere = np.zeros(loads.shape[0])
    accessed = 0
    distributed = 0
    for i in range(masks.shape[0]):
        mask, weight = masks[i], weights[i]
        count = _bits(mask)
        if count > 1:
            accessed += count * weight
            distributed += weight
        if count == 0:
            everywhere[interval[i]] += weight / partitions
        elif mask == every:
            everywhere[interval[i]] += weight
        else:
            place = 0
            while mask != np.uint64(0):
                if mask & np.uint64(1):
                    loads[interval[i], place] += weight
                mask >>= np.uint64(1)
                place += 1
    for row in range(loads.shape[0]):
        for place in range(partitions):
            loads[row, place] += everywhere[row]
    return accessed, distributed


@kernel
def skew_factor(loads: Floats, transactions: Numbers) -> float:
    """Return the skew of the partitions' loads, weighted by the transactions of intervals (Algorithms 2, 3).

    The factor is 0 if all partitions are accessed equally often, and 1 if only one partition is busy.
    """
    partitions = loads.shape[1]
    if partitions == 1:
        return 0.0
    best = 1.0 / partitions
    result = 0.0
    for row in range(loads.shape[0]):
        total = loads[row].sum()
        if total == 0.0:
            continue
        skew = 0.0
        for place in range(partitions):
            ratio = loads[row, place] / total
            if ratio < best:
                ratio = best + (1.0 - ratio / best) * (1.0 - best)
            skew += np.log(ratio / best)
        result += skew / (np.log(1.0 / best) * partitions) * transactions[row]
    return result / transactions.sum()
