"""Kernels for sums of squared deviations from the mean (M2) that stay precise for large numbers.

The kernels sum distances ``d`` from a **center**, which is one of the added values or means: for n rows, ``M2
= sum(d ** 2) - sum(d) ** 2 / n``. The center is about one deviation away from the mean. So however large the
mean is, the error is small relative to M2. Equal values have distance zero, and M2 is exactly zero.

`penstock.operators.aggregates.moments.divide_sums` stores a mean as a whole number and a fraction, which is
precise enough for 64-bit integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import kernel

__all__ = ["add_floats", "add_integers", "add_partials", "divide", "finish", "slide"]

_EXACT = 1 << 53
"""Every integer below this is exactly representable as a float."""


@kernel
def _distance(value: Any, center: Any) -> Any:
    """Return the distance of two 64-bit integers as a float, because the distance may exceed 64 bits."""
    distance = value - center
    if ((value ^ center) & (value ^ distance)) < 0:
        return np.float64(value) - np.float64(center)
    return np.float64(distance)


@kernel
def divide(sums: Any, counts: Any, wholes: Any, rests: Any) -> None:
    """Divide integers by counts; write the whole parts and the fractions of the means.

    Equal means give equal results, even if they are means of different numbers of values.
    """
    for i in range(sums.shape[0]):
        total, count = sums[i], max(counts[i], 1)
        if -_EXACT < total < _EXACT:
            whole = np.int64(np.float64(total) / np.float64(count))
        else:
            whole = total // count
        wholes[i], rests[i] = whole, np.float64(total - whole * count) / np.float64(count)


@kernel
def add_floats(slots: Any, values: Any, moments: Any) -> None:
    """Add floats, or integers below 2**53, to their slots.

    A row of `moments` holds, for one slot: the center, the count, the sum of distances, the sum of squares.
    """
    for i in range(slots.shape[0]):
        slot, value = slots[i], np.float64(values[i])
        if moments[slot, 1] == 0.0:
            moments[slot, 0] = value
        distance = value - moments[slot, 0]
        moments[slot, 1] += 1.0
        moments[slot, 2] += distance
        moments[slot, 3] += distance * distance


@kernel
def add_integers(slots: Any, values: Any, moments: Any, centers: Any) -> None:
    """Add 64-bit integers to their slots; `centers` holds the centers as integers."""
    for i in range(slots.shape[0]):
        slot, value = slots[i], values[i]
        if moments[slot, 1] == 0.0:
            centers[slot, 0] = value
        distance = _distance(value, centers[slot, 0])
        moments[slot, 1] += 1.0
        moments[slot, 2] += distance
        moments[slot, 3] += distance * distance


@kernel
def add_partials(
    slots: Any, counts: Any, wholes: Any, rests: Any, deviations: Any, moments: Any, centers: Any
) -> None:
    """Add entries to their slots. An entry holds the partials of one pane and group.

    Parameters
    ----------
    slots : integer array of n
        The slot of each entry.
    counts, wholes : int64 arrays of n
        The number of values in each entry, and the whole part of their mean.
    rests, deviations : float64 arrays of n
        The fraction of the mean, and M2.
    moments : float64 array of (slots, 4)
        For each slot: the fraction of the center, the count, the sum of distances, and the sum of squares.
    centers : int64 array of slots
        The whole parts of the centers.
    """
    for i in range(slots.shape[0]):
        slot, count = slots[i], np.float64(counts[i])
        if count == 0.0:
            continue
        if moments[slot, 1] == 0.0:
            centers[slot], moments[slot, 0] = wholes[i], rests[i]
        distance = _distance(wholes[i], centers[slot]) + (rests[i] - moments[slot, 0])
        moments[slot, 1] += count
        moments[slot, 2] += count * distance
        moments[slot, 3] += deviations[i] + count * distance * distance


@kernel
def _finish(count: Any, distances: Any, squares: Any) -> Any:
    """Return M2; keep NaN, and return infinity if squares of finite distances overflow."""
    if count == 0.0 or (np.isinf(squares) and np.isfinite(distances)):
        return squares
    m2 = squares - distances / count * distances
    return 0.0 if m2 < 0.0 else m2


@kernel
def finish(moments: Any, out: Any) -> None:
    """Compute M2 of each slot."""
    for i in range(moments.shape[0]):
        out[i] = _finish(moments[i, 1], moments[i, 2], moments[i, 3])


@kernel
def slide(
    counts: Any, wholes: Any, rests: Any, deviations: Any, low: Any, high: Any, suffix: Any, out: Any
) -> None:
    """Compute M2 of sliding ranges with two stacks. The distances in both stacks have the same center.

    Parameters
    ----------
    counts, wholes, rests, deviations : arrays of n
        As in `add_partials`.
    low, high : int64 arrays of m
        The bounds of non-empty ranges of entries. Within a group both bounds increase. The ranges of the next
        group begin after this group.
    suffix : float64 array of (n, 3)
        A buffer for the counts, distances and squares of the front stack.
    out : float64 array of m
        Receives the M2 of each range.
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
                    far = _distance(wholes[j], wholes[center]) + (rests[j] - rests[center])
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
                far = _distance(wholes[end], wholes[center]) + (rests[end] - rests[center])
                some = np.float64(counts[end])
                count += some
                distances += some * far
                squares += deviations[end] + some * far * far
            end += 1
        if lo < middle:
            out[i] = _finish(count + suffix[lo, 0], distances + suffix[lo, 1], squares + suffix[lo, 2])
        else:
            out[i] = _finish(count, distances, squares)
