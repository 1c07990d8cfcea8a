"""Kernels of the fragment function: find the slots of rows, and add values to slots.

A **slot** is one pane and group. Slots are numbered from 1 in order of first appearance. Rows that are not
aggregated go to slot 0, so that kernels need not check the mask again.

A stream is nearly ordered by time. So the hash table holds only the slots of the current pane. A slot number
below the first slot of this pane belongs to an earlier pane, and its place in the table counts as free. So
the table never needs to be cleared, and it fits into the processor's L1 or L2 cache. If rows of an earlier
pane follow, the groups of that pane get new slots, and the caller merges the duplicates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import GOLDEN, kernel
from penstock.operators.aggregates.wide import add_words

__all__ = [
    "add_count",
    "add_count_of_runs",
    "add_sum",
    "add_sum_of_runs",
    "add_whole_of_runs",
    "add_wide_sum",
    "add_wide_sums",
    "bound_of",
    "enter",
    "find_runs",
    "find_slots",
    "find_slots_of_one",
    "keep_greater",
    "keep_less",
    "keep_row",
    "mark",
]


@kernel
def _position(keys: Any, i: int, columns: int, bits: Any) -> Any:
    """Return the first probe position of column i of `keys` in a table of 2**(64 - bits) places."""
    h = np.uint64(0)
    for c in range(columns):
        h = (h ^ np.uint64(keys[c, i])) * GOLDEN
        h ^= h >> np.uint64(32)
    return np.int64((h * GOLDEN) >> bits)


@kernel
def _bits(table: Any) -> Any:
    bits = np.uint64(64)
    size = table.shape[0]
    while size > 1:
        size >>= 1
        bits -= np.uint64(1)
    return bits


@kernel
def enter(table: Any, groups: Any, first: int, count: int, numbered: bool) -> None:
    """Enter slots `first` to `count` - 1 into an empty table."""
    bits = _bits(table)
    size = table.shape[0] - 1
    for slot in range(first, count):
        at = groups[0, slot] & size if numbered else _position(groups, slot, groups.shape[0], bits)
        while table[at] >= first:
            at = (at + 1) & size
        table[at] = slot


@kernel
def find_slots_of_one(
    times: Any,
    mask: Any,
    masked: bool,
    keys: Any,
    numbered: bool,
    steps: int,
    state: Any,
    table: Any,
    panes: Any,
    groups: Any,
    counts: Any,
    begin: int,
    slots: Any,
) -> int:
    """Find slots as `find_slots` does, for groups of one integer column.

    If groups are `numbered` from 0 on, a group's number is also its place in the table, without a hash.
    """
    bits = _bits(table)
    size = table.shape[0] - 1
    limit = min(panes.shape[0], (table.shape[0] >> 1) + state[2])
    count, low, first = state[0], state[1], state[2]
    high = low + steps if count > 1 else low
    for i in range(begin, times.shape[0]):
        if masked and not mask[i]:
            slots[i] = 0
            continue
        time = np.int64(times[i])
        if time < low or time >= high:
            pane = time // steps * steps
            if count > 1 and pane < low:
                state[3] = 1
            low, high, first = pane, pane + steps, count
            limit = min(panes.shape[0], (table.shape[0] >> 1) + first)
        key = np.int64(keys[i])
        at = key & size
        if not numbered:
            h = np.uint64(key) * GOLDEN
            at = np.int64(((h ^ (h >> np.uint64(32))) * GOLDEN) >> bits)
        slot = table[at]
        while slot >= first and groups[0, slot] != key:
            at = (at + 1) & size
            slot = table[at]
        if slot < first:
            if count >= limit:
                state[0], state[1], state[2] = count, low, first
                return i
            slot = count
            table[at] = slot
            panes[slot] = low
            groups[0, slot] = key
            count += 1
        counts[slot] += 1
        slots[i] = slot
    state[0], state[1], state[2] = count, low, first
    return times.shape[0]


@kernel
def find_slots(
    times: Any,
    mask: Any,
    masked: bool,
    keys: Any,
    steps: int,
    state: Any,
    table: Any,
    panes: Any,
    groups: Any,
    counts: Any,
    begin: int,
    slots: Any,
) -> int:
    """Find the slots of the rows from `begin` on; return the first row that did not fit.

    Parameters
    ----------
    times : array of int, (rows,)
        The time of each row, in units of the time column.
    mask : array of bool, (rows,)
        The rows that are aggregated, if `masked`.
    keys : array of int64, (columns, rows)
        The group of each row.
    steps : int
        The pane length, in the same unit.
    state : array of int64, (4,)
        Updated: the number of slots, the start of the current pane, the first slot of this pane, and 1 if a
        row of an earlier pane came after a row of a later pane.
    table : array of int32, (a power of two,)
        Updated: the hash table.
    panes : array of int64, (slots,)
        Output: the start of the pane of each slot.
    groups : array of int64, (columns, slots)
        Output: the group of each slot.
    counts : array of int64, (slots,)
        Updated: the number of rows of each slot.
    slots : array of int32, (rows,)
        Output: the slot of each row.
    """
    bits = _bits(table)
    size = table.shape[0] - 1
    columns = keys.shape[0]
    limit = min(panes.shape[0], (table.shape[0] >> 1) + state[2])
    count, low, first = state[0], state[1], state[2]
    high = low + steps if count > 1 else low
    for i in range(begin, times.shape[0]):
        if masked and not mask[i]:
            slots[i] = 0
            continue
        time = np.int64(times[i])
        if time < low or time >= high:
            pane = time // steps * steps
            if count > 1 and pane < low:
                state[3] = 1
            low, high, first = pane, pane + steps, count
            limit = min(panes.shape[0], (table.shape[0] >> 1) + first)
        at = _position(keys, i, columns, bits)
        slot = table[at]
        while slot >= first:
            same = True
            for c in range(columns):
                same &= groups[c, slot] == keys[c, i]
            if same:
                break
            at = (at + 1) & size
            slot = table[at]
        if slot < first:
            if count >= limit:
                state[0], state[1], state[2] = count, low, first
                return i
            slot = count
            table[at] = slot
            panes[slot] = low
            for c in range(columns):
                groups[c, slot] = keys[c, i]
            count += 1
        counts[slot] += 1
        slots[i] = slot
    state[0], state[1], state[2] = count, low, first
    return times.shape[0]


@kernel
def find_runs(
    times: Any, steps: int, state: Any, panes: Any, begin: int, starts: Any, slots: Any
) -> tuple[int, int]:
    """Find runs of consecutive rows in the same pane, for rows without groups.

    The kernel returns the number of runs and the row after the last run.
    It works like `find_slots`, but writes one entry per run: its first row to `starts`, its slot to
    `slots`. The kernel ends early when `panes` is full. Most rows are in the pane of the previous row, so 32
    rows are compared at once.
    """
    count, low = state[0], state[1]
    high = low + steps if count > 1 else low
    rows = times.shape[0]
    runs = 0
    if begin < rows and low <= np.int64(times[begin]) < high:
        starts[0], slots[0] = begin, count - 1
        runs = 1
    at = begin
    while at < rows:
        some = times[at : at + 32]
        others = 0
        for i in range(some.shape[0]):
            others += (np.int64(some[i]) < low) | (np.int64(some[i]) >= high)
        if others:
            for i in range(some.shape[0]):
                time = np.int64(some[i])
                if time < low or time >= high:
                    if count >= panes.shape[0]:
                        state[0], state[1], state[2] = count, low, count - 1
                        return runs, at + i
                    pane = time // steps * steps
                    if count > 1 and pane < low:
                        state[3] = 1
                    low, high = pane, pane + steps
                    panes[count] = pane
                    starts[runs], slots[runs] = at + i, count
                    runs += 1
                    count += 1
        at += some.shape[0]
    state[0], state[1], state[2] = count, low, count - 1
    return runs, rows


@kernel
def add_count_of_runs(starts: Any, slots: Any, rows: int, counts: Any) -> None:
    """Count the rows of each slot."""
    for r in range(starts.shape[0]):
        end = starts[r + 1] if r + 1 < starts.shape[0] else rows
        counts[slots[r]] += end - starts[r]


@kernel
def add_whole_of_runs(starts: Any, slots: Any, values: Any, out: Any) -> None:
    """Add integers to their slots. The order does not matter, so the compiler may vectorize the loop."""
    for r in range(starts.shape[0]):
        end = starts[r + 1] if r + 1 < starts.shape[0] else values.shape[0]
        run = values[starts[r] : end]
        total = out[slots[r]]
        for i in range(run.shape[0]):
            total += run[i]
        out[slots[r]] = total


@kernel
def add_sum_of_runs(starts: Any, slots: Any, values: Any, out: Any) -> None:
    """Add floats to their slots with four independent sums."""
    zero = np.zeros(1, out.dtype)[0]
    for r in range(starts.shape[0]):
        end = starts[r + 1] if r + 1 < starts.shape[0] else values.shape[0]
        run = values[starts[r] : end]
        fours = run.shape[0] // 4
        a, b, c, d = zero, zero, zero, zero
        for i in range(fours):
            a += run[4 * i]
            b += run[4 * i + 1]
            c += run[4 * i + 2]
            d += run[4 * i + 3]
        for i in range(4 * fours, run.shape[0]):
            a += run[i]
        out[slots[r]] += (a + b) + (c + d)


@kernel
def add_count(slots: Any, out: Any) -> None:
    """Count the rows of each slot."""
    for i in range(slots.shape[0]):
        out[slots[i]] += 1


@kernel
def add_sum(slots: Any, values: Any, out: Any) -> None:
    """Add values to their slots."""
    for i in range(slots.shape[0]):
        out[slots[i]] += values[i]


@kernel
def bound_of(values: Any) -> Any:
    """Return a number that has as many bits as the value with the greatest magnitude."""
    bits = np.int64(0)
    for i in range(values.shape[0]):
        value = np.int64(values[i])
        bits |= value ^ (value >> 63)
    return bits


@kernel
def add_wide_sum(slots: Any, values: Any, lows: Any, highs: Any) -> None:
    """Add integers to slots of two words."""
    for i in range(slots.shape[0]):
        slot, value = slots[i], np.int64(values[i])
        lows[slot], highs[slot] = add_words(lows[slot], highs[slot], value, value >> 63)


@kernel
def add_wide_sums(slots: Any, low: Any, high: Any, lows: Any, highs: Any) -> None:
    """Add two-word numbers to slots of two words."""
    for i in range(slots.shape[0]):
        slot = slots[i]
        lows[slot], highs[slot] = add_words(lows[slot], highs[slot], low[i], high[i])


@kernel
def mark(slots: Any, out: Any) -> None:
    """Mark the slots that have a value."""
    for i in range(slots.shape[0]):
        out[slots[i]] = True


@kernel
def keep_less(slots: Any, values: Any, seen: Any, out: Any) -> None:
    """Keep the least value of each slot. NaN is greater than all numbers."""
    for i in range(slots.shape[0]):
        slot, value = slots[i], values[i]
        least = out[slot]
        if not seen[slot] or value < least or (least != least and value == value):  # noqa: PLR0124 - NaN
            out[slot] = value
            seen[slot] = True


@kernel
def keep_greater(slots: Any, values: Any, seen: Any, out: Any) -> None:
    """Keep the greatest value of each slot. NaN is greater than all numbers."""
    for i in range(slots.shape[0]):
        slot, value = slots[i], values[i]
        greatest = out[slot]
        if not seen[slot] or value > greatest or (greatest == greatest and value != value):  # noqa: PLR0124 - NaN
            out[slot] = value
            seen[slot] = True


@kernel
def keep_row(slots: Any, times: Any, last: bool, offset: int, best: Any, rows: Any) -> None:
    """Keep, for each slot, the row with the least or the greatest time.

    With `last`, this is the row with the greatest time; if several rows have this time, the last of them.
    Otherwise it is the row with the least time; if several rows have this time, the first of them. `best`
    holds the time of each slot's row so far. `rows` holds the number of each slot's row plus `offset`, or -1
    if the slot has no row yet.
    """
    for i in range(slots.shape[0]):
        slot, time = slots[i], np.int64(times[i])
        better = time >= best[slot] if last else time < best[slot]
        if better or rows[slot] < 0:
            best[slot] = time
            rows[slot] = offset + i
