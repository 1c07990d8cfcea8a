"""Kernels of sums of squared deviations from the mean (M2), in which no large numbers cancel.

Where rows or entries are added, what is summed is their distances from a **center**, a value or a mean that
is among them: of n rows, ``M2 = sum(d ** 2) - sum(d) ** 2 / n``. The center is as near to the mean as the
deviations are large, so that the error is small beside M2, whatever the mean is. Equal values have distances
of zero, and M2 is zero exactly.

A mean is a whole number and the rest of it (`penstock.operators.aggregates.moments.means_of`), so that those
of 64-bit integers are exact enough, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import kernel

__all__ = ["add_entries", "add_floats", "add_integers", "divide", "finish", "slide"]

_EXACT = 1 << 53
"""Integers below it are floats, too."""


@kernel
def _apart(value: Any, center: Any) -> Any:
    """Return the distance of two 64-bit integers, which may be beyond 64 bits, as a float."""
    distance = value - center
    if ((value ^ center) & (value ^ distance)) < 0:
        return np.float64(value) - np.float64(center)
    return np.float64(distance)


@kernel
def divide(sums: Any, counts: Any, wholes: Any, rests: Any) -> None:
    """Divide integers by counts; the same means get the same parts, however many values they are of."""
    for i in range(sums.shape[0]):
        total, count = sums[i], max(counts[i], 1)
        if -_EXACT < total < _EXACT:
            whole = np.int64(np.float64(total) / np.float64(count))
        else:
            whole = total // count
        wholes[i], rests[i] = whole, np.float64(total - whole * count) / np.float64(count)


@kernel
def add_floats(slots: Any, values: Any, cells: Any) -> None:
    """Add floats, or integers below 53 bits, to their slots: center, count, distances, their squares."""
    for i in range(slots.shape[0]):
        slot, value = slots[i], np.float64(values[i])
        if cells[slot, 1] == 0.0:
            cells[slot, 0] = value
        distance = value - cells[slot, 0]
        cells[slot, 1] += 1.0
        cells[slot, 2] += distance
        cells[slot, 3] += distance * distance


@kernel
def add_integers(slots: Any, values: Any, cells: Any, centers: Any) -> None:
    """Add 64-bit integers to their slots; `centers` is `cells` as integers, for the centers."""
    for i in range(slots.shape[0]):
        slot, value = slots[i], values[i]
        if cells[slot, 1] == 0.0:
            centers[slot, 0] = value
        distance = _apart(value, centers[slot, 0])
        cells[slot, 1] += 1.0
        cells[slot, 2] += distance
        cells[slot, 3] += distance * distance


@kernel
def add_entries(
    slots: Any, counts: Any, wholes: Any, rests: Any, deviations: Any, cells: Any, centers: Any
) -> None:
    """Add entries to their slots: rest of the center, count, distances, their squares.

    Parameters
    ----------
    slots : integer array of n
    counts, wholes : int64 arrays of n
        How many values an entry has, and the whole part of their mean.
    rests, deviations : float64 arrays of n
        The rest of the mean, and M2.
    cells : float64 array of (slots, 4)
    centers : int64 array of slots
        Whole parts of centers.
    """
    for i in range(slots.shape[0]):
        slot, count = slots[i], np.float64(counts[i])
        if count == 0.0:
            continue
        if cells[slot, 1] == 0.0:
            centers[slot], cells[slot, 0] = wholes[i], rests[i]
        distance = _apart(wholes[i], centers[slot]) + (rests[i] - cells[slot, 0])
        cells[slot, 1] += count
        cells[slot, 2] += count * distance
        cells[slot, 3] += deviations[i] + count * distance * distance


@kernel
def _finished(count: Any, distances: Any, squares: Any) -> Any:
    """Return M2; NaN stays NaN, and infinite squares of finite distances are infinite."""
    if count == 0.0 or (np.isinf(squares) and np.isfinite(distances)):
        return squares
    found = squares - distances / count * distances
    return 0.0 if found < 0.0 else found


@kernel
def finish(cells: Any, out: Any) -> None:
    """Make M2 of each slot."""
    for i in range(cells.shape[0]):
        out[i] = _finished(cells[i, 1], cells[i, 2], cells[i, 3])


@kernel
def slide(
    counts: Any, wholes: Any, rests: Any, deviations: Any, low: Any, high: Any, suffix: Any, out: Any
) -> None:
    """Make M2 of ranges of entries, by two stacks around one center, which is in every range that has it.

    Parameters
    ----------
    counts, wholes, rests, deviations : arrays of n
        As of `add_entries`.
    low, high : int64 arrays of m
        Ranges, none empty. Both grow, but where a group ends, the next begins behind it.
    suffix : float64 array of (n, 3)
        Room for the front stack: counts, distances, their squares.
    out : float64 array of m
    """
    middle, end, center = 0, 0, -1
    count, distances, squares = 0.0, 0.0, 0.0
    for i in range(low.shape[0]):
        lo, hi = low[i], high[i]
        if lo >= middle or 0 <= center < lo:
            center = -1
            count, distances, squares = 0.0, 0.0, 0.0
            for j in range(hi - 1, lo - 1, -1):
                if counts[j] > 0:
                    center = j if center < 0 else center
                    far = _apart(wholes[j], wholes[center]) + (rests[j] - rests[center])
                    some = np.float64(counts[j])
                    count += some
                    distances += some * far
                    squares += deviations[j] + some * far * far
                suffix[j, 0], suffix[j, 1], suffix[j, 2] = count, distances, squares
            middle, end = hi, hi
            count, distances, squares = 0.0, 0.0, 0.0
        while end < hi:
            if counts[end] > 0:
                center = end if center < 0 else center
                far = _apart(wholes[end], wholes[center]) + (rests[end] - rests[center])
                some = np.float64(counts[end])
                count += some
                distances += some * far
                squares += deviations[end] + some * far * far
            end += 1
        if lo < middle:
            out[i] = _finished(count + suffix[lo, 0], distances + suffix[lo, 1], squares + suffix[lo, 2])
        else:
            out[i] = _finished(count, distances, squares)
