"""Kernels of running predictors: find known predictions, and count whether they were right."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock._kernels import kernel
from penstock.procedures.texts import Numbers

__all__ = ["count_votes", "find_numbers"]

Masks = npt.NDArray[np.uint64]


@kernel
def find_numbers(
    codes: Masks, slots: Masks, slot_numbers: Numbers, known: int, numbers: Numbers, first: Numbers
) -> int:
    """Assign numbers to codes in the order of their first occurrence; return the number of new codes.

    Parameters
    ----------
    codes : ndarray
        The codes to which numbers are assigned.
    slots, slot_numbers : ndarray
        A hash table. Each slot has a code and its number, or the number -1 if the slot is free. The number of
        slots is a power of two, and greater than the number of all codes.
    known : int
        The number of codes in the table.
    numbers : ndarray
        Receives the number of each code.
    first : ndarray
        Receives the position in `codes` of each new code.
    """
    last = np.uint64(slots.shape[0] - 1)
    new = 0
    for i in range(codes.shape[0]):
        code = codes[i]
        slot = np.int64(code & last)
        while slot_numbers[slot] >= 0 and slots[slot] != code:
            slot = np.int64(np.uint64(slot + 1) & last)
        if slot_numbers[slot] < 0:
            slots[slot] = code
            slot_numbers[slot] = known + new
            first[new] = i
            new += 1
        numbers[i] = slot_numbers[slot]
    return new


@kernel
def count_votes(numbers: Numbers, touched: Masks, predicted: Masks, candidates: Masks, votes: Numbers) -> int:
    """Count right predictions, and find the partitions that most transactions of a prediction accessed.

    Parameters
    ----------
    numbers, touched, predicted : ndarray
        For each transaction, the number of its prediction, the mask of partitions that it accessed, and the
        mask of predicted partitions.
    candidates, votes : ndarray
        For each prediction, a candidate mask and its lead in votes. If a majority of transactions accessed
        the same partitions, the candidate has these partitions (Boyer and Moore).
    """
    right = np.int64(0)
    for i in range(numbers.shape[0]):
        right += np.int64(touched[i] == predicted[i])
        number = numbers[i]
        if votes[number] == 0:
            candidates[number] = touched[i]
        votes[number] += 1 if candidates[number] == touched[i] else -1
    return int(right)
