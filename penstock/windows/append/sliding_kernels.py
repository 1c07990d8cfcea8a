"""Kernels of the assembly function: windows over panes, and sliding aggregates over their entries.

An **entry** is a partial aggregate of one group and pane. Entries are sorted by group and pane, so a window
of a group is a range of entries, ``[low, high)``. Both ends increase over a group's windows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import kernel
from penstock.operators.aggregates.wide import add_words

__all__ = [
    "add_ranges",
    "add_wide_ranges",
    "are_sorted",
    "count_windows",
    "find_equal",
    "find_runs",
    "find_windows",
    "lay_out",
    "merge",
    "number_window_groups",
    "order_by",
    "skip",
    "slide_distinct",
    "slide_extreme",
    "slide_first",
    "slide_last",
    "slide_sum",
]


@kernel
def order_by(values: Any, least: int, span: int, before: Any, out: Any) -> None:
    """Sort rows by value with a stable counting sort over the order `before`.

    Parameters
    ----------
    values : int64 array of n
        The values to sort by, in ``[least, least + span)``.
    before, out : int64 arrays of n
        Row numbers in the previous order, and in sorted order.
    """
    at = np.zeros(span + 1, np.int64)
    for i in range(values.shape[0]):
        at[values[i] - least + 1] += 1
    for v in range(span):
        at[v + 1] += at[v]
    for j in range(before.shape[0]):
        i = before[j]
        v = values[i] - least
        out[at[v]] = i
        at[v] += 1


@kernel
def merge(ids: Any, panes: Any, count: int, order: Any, out: Any) -> None:
    """Merge two sorted sequences: the first `count` entries, and all other entries.

    If entries are equal, the entries of the first sequence come first.
    """
    i, j, at = 0, 0, 0
    while i < count and j < order.shape[0]:
        new = order[j]
        if ids[new] < ids[i] or (ids[new] == ids[i] and panes[new] < panes[i]):
            out[at] = new
            j += 1
        else:
            out[at] = i
            i += 1
        at += 1
    while i < count:
        out[at] = i
        i += 1
        at += 1
    while j < order.shape[0]:
        out[at] = order[j]
        j += 1
        at += 1


@kernel
def are_sorted(ids: Any, panes: Any) -> bool:
    """Return whether entries are sorted by group and pane."""
    for i in range(1, ids.shape[0]):
        if ids[i] < ids[i - 1] or (ids[i] == ids[i - 1] and panes[i] < panes[i - 1]):
            return False
    return True


@kernel
def find_runs(ids: Any, panes: Any, starts: Any) -> int:
    """Find the starts of runs of equal group and pane; return the number of runs."""
    count = 0
    for i in range(ids.shape[0]):
        if i == 0 or ids[i] != ids[i - 1] or panes[i] != panes[i - 1]:
            starts[count] = i
            count += 1
    return count


@kernel
def skip(panes: Any, at: Any, ends: Any, least: int, out: Any) -> None:
    """Write to `out`, for each sorted range ``[at, ends)``, the position of the first pane >= `least`."""
    for i in range(at.shape[0]):
        j = at[i]
        while j < ends[i] and panes[j] < least:
            j += 1
        out[i] = j


@kernel
def lay_out(values: Any, low: Any, high: Any, at: Any, out: Any) -> None:
    """Copy the ranges ``[low, high)`` of values to their positions in `out`."""
    for i in range(low.shape[0]):
        place = at[i] - low[i]
        for j in range(low[i], high[i]):
            out[place + j] = values[j]


@kernel
def _divide(pane: int, slide: int) -> int:
    """Return ``pane // slide``; skip the slow division if the slide is 1."""
    return pane if slide == 1 else pane // slide


@kernel
def count_windows(ids: Any, panes: Any, size: int, slide: int, first: int, last: int) -> int:
    """Count the windows from `first` to `last` that have an entry."""
    n = ids.shape[0]
    count, i = 0, 0
    while i < n:
        end = i
        while end < n and ids[end] == ids[i]:
            end += 1
        k = first
        for j in range(i, end):
            a = max(_divide(panes[j] - size, slide) + 1, k)
            b = min(_divide(panes[j], slide), last)
            if b >= a:
                count += b - a + 1
                k = b + 1
        i = end
    return count


@kernel
def find_windows(
    ids: Any,
    panes: Any,
    size: int,
    slide: int,
    first: int,
    last: int,
    group_ids: Any,
    of: Any,
    windows: Any,
    low: Any,
    high: Any,
) -> tuple[int, int]:
    """Find the windows that `count_windows` counts, ordered by group and window.

    Parameters
    ----------
    ids, panes : int64 arrays of n
        The group and the pane of each of the sorted entries.
    size, slide : int
        Size and slide of the windows, in panes.
    first, last : int
        The numbers of the first and the last window to find.
    group_ids : int64 array
        Output: the groups that have a window.
    of, windows, low, high : int64 arrays
        Output, for each window: the index of its group in `group_ids`, its number, and its range of entries.

    Returns
    -------
    int, int
        Number of groups and of windows. The output arrays must have room for them.
    """
    n = ids.shape[0]
    groups, count, i = 0, 0, 0
    while i < n:
        end = i
        while end < n and ids[end] == ids[i]:
            end += 1
        k, begin = first, count
        lo, hi = i, i
        for j in range(i, end):
            a = max(_divide(panes[j] - size, slide) + 1, k)
            b = min(_divide(panes[j], slide), last)
            while a <= b:
                start = a * slide
                while panes[lo] < start:
                    lo += 1
                hi = max(hi, lo)
                while hi < end and panes[hi] < start + size:
                    hi += 1
                of[count] = groups
                windows[count] = a
                low[count] = lo
                high[count] = hi
                count += 1
                a += 1
                k = a
        if count > begin:
            group_ids[groups] = ids[i]
            groups += 1
        i = end
    return groups, count


@kernel
def number_window_groups(groups: Any, starts: Any, least: int, span: int, out: Any) -> None:
    """Assign window-group numbers to rows.

    The table of all groups by all starts has a place for each pair of a group and a window start. The number
    of a row is the place of its group and start, counted from 1.

    Parameters
    ----------
    groups : int64 array of n
        Group numbers from 0 on; empty if all rows are one group.
    starts : int64 array of n
        The window start of each row, in ``[least, least + span)``.
    out : int32 array of n
        Output: the numbers.
    """
    if groups.shape[0] == 0:
        for i in range(starts.shape[0]):
            out[i] = starts[i] - least + 1
    else:
        for i in range(starts.shape[0]):
            out[i] = groups[i] * span + starts[i] - least + 1


@kernel
def add_ranges(values: Any, low: Any, high: Any, running: Any, out: Any) -> None:
    """Sum ranges as differences of running sums, which are exact for integers.

    Parameters
    ----------
    values : int64 array of n
    low, high : int64 arrays of m
        Any ranges of `values`.
    running : int64 array of n + 1
        A buffer for running sums.
    out : int64 array of m
    """
    total = 0
    running[0] = 0
    for i in range(values.shape[0]):
        total += values[i]
        running[i + 1] = total
    for i in range(low.shape[0]):
        out[i] = running[high[i]] - running[low[i]]


@kernel
def add_wide_ranges(
    lows: Any, uppers: Any, low: Any, high: Any, running: Any, out_low: Any, out_high: Any
) -> None:
    """Sum ranges of two-word numbers, as `add_ranges` does.

    Parameters
    ----------
    lows, uppers : int64 arrays of n
    low, high : int64 arrays of m
        Any ranges of the numbers.
    running : int64 array of (n + 1, 2)
        A buffer for running sums.
    out_low, out_high : int64 arrays of m
    """
    running[0, 0], running[0, 1] = 0, 0
    for i in range(lows.shape[0]):
        running[i + 1, 0], running[i + 1, 1] = add_words(running[i, 0], running[i, 1], lows[i], uppers[i])
    for i in range(low.shape[0]):
        a, b = running[low[i], 0], running[low[i], 1]
        # Negate a two-word number.
        minus, upper = add_words(~a, ~b, 1, 0)
        out_low[i], out_high[i] = add_words(running[high[i], 0], running[high[i], 1], minus, upper)


@kernel
def slide_sum(values: Any, low: Any, high: Any, suffix: Any, out: Any) -> None:
    """Sum sliding ranges with two stacks, without subtraction.

    Parameters
    ----------
    values : array of n
    low, high : int64 arrays of m
        Bounds of non-empty ranges of `values`. Within a group, both bounds increase. The ranges of a group
        begin after the ranges of the previous group.
    suffix : array of n
        A buffer for the front stack.
    out : array of m
    """
    middle, end = 0, 0
    back = values.dtype.type(0)
    for i in range(low.shape[0]):
        lo, hi = low[i], high[i]
        if lo >= middle:
            total = values.dtype.type(0)
            for j in range(hi - 1, lo - 1, -1):
                total += values[j]
                suffix[j] = total
            middle, end = hi, hi
            back = values.dtype.type(0)
        while end < hi:
            back += values[end]
            end += 1
        out[i] = suffix[lo] + back


@kernel
def _beats(a: Any, b: Any, greatest: bool) -> bool:
    """Return whether a replaces b as the maximum or minimum; NaN is greater than all numbers."""
    if greatest:
        return a > b or (a != a and b == b)  # noqa: PLR0124 - NaN
    return a < b or (b != b and a == a)  # noqa: PLR0124 - NaN


@kernel
def slide_extreme(values: Any, greatest: bool, low: Any, high: Any, suffix: Any, out: Any) -> None:
    """Find the first row with the extreme value of each range; see `slide_sum`.

    `suffix` and `out` are int64 row numbers.
    """
    middle, end, back = 0, 0, -1
    for i in range(low.shape[0]):
        lo, hi = low[i], high[i]
        if lo >= middle:
            best = hi - 1
            for j in range(hi - 1, lo - 1, -1):
                if not _beats(values[best], values[j], greatest):
                    best = j
                suffix[j] = best
            middle, end, back = hi, hi, -1
        while end < hi:
            if back < 0 or _beats(values[end], values[back], greatest):
                back = end
            end += 1
        best = suffix[lo]
        if back >= 0 and _beats(values[back], values[best], greatest):
            best = back
        out[i] = best


@kernel
def slide_first(panes: Any, times: Any, low: Any, high: Any, out: Any) -> None:
    """Find, in the first pane of each range, the first row with the least time."""
    for i in range(low.shape[0]):
        best = low[i]
        j = best + 1
        while j < high[i] and panes[j] == panes[best]:
            if times[j] < times[best]:
                best = j
            j += 1
        out[i] = best


@kernel
def slide_last(panes: Any, times: Any, low: Any, high: Any, out: Any) -> None:
    """Find, in the last pane of each range, the last row with the greatest time."""
    for i in range(low.shape[0]):
        best = high[i] - 1
        j = best - 1
        while j >= low[i] and panes[j] == panes[best]:
            if times[j] > times[best]:
                best = j
            j -= 1
        out[i] = best


@kernel
def slide_distinct(values: Any, low: Any, high: Any, counts: Any, out: Any) -> None:
    """Count the distinct values of each range.

    Parameters
    ----------
    values : int64 array of n
        The number that stands for each value. Negative numbers are not counted.
    low, high : int64 arrays of m
    counts : int64 array
        Scratch memory for counts by value number; all zero before and after the call.
    out : int64 array of m
    """
    lo, hi, count = 0, 0, 0
    for i in range(low.shape[0]):
        if low[i] >= hi:
            for j in range(lo, hi):
                if values[j] >= 0:
                    counts[values[j]] = 0
            lo, hi, count = low[i], low[i], 0
        while hi < high[i]:
            v = values[hi]
            if v >= 0:
                if counts[v] == 0:
                    count += 1
                counts[v] += 1
            hi += 1
        while lo < low[i]:
            v = values[lo]
            if v >= 0:
                counts[v] -= 1
                if counts[v] == 0:
                    count -= 1
            lo += 1
        out[i] = count
    for j in range(lo, hi):
        if values[j] >= 0:
            counts[values[j]] = 0


@kernel
def find_equal(window_groups: Any, values: Any, targets: Any, out: Any) -> int:
    """Find the rows whose value equals their window group's value (NaN equals NaN); return their number.

    Rows of window group 0 are not found.

    Parameters
    ----------
    window_groups : int32 array of n
    values : array of n
    targets : array
        The value to find in each window group.
    out : int64 array of n
        Output: the rows.
    """
    count = 0
    for i in range(window_groups.shape[0]):
        window_group, value = window_groups[i], values[i]
        best = targets[window_group]
        if window_group > 0 and (value == best or (value != value and best != best)):  # noqa: PLR0124 - NaN
            out[count] = i
            count += 1
    return count
