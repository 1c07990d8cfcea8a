"""Kernels of the join of update streams: tuple lists by key, ordered pairs, and freeing.

The tuples of a key on one side form a linked list of locations, newest first. Times are integers, and their
differences are computed as unsigned integers, so they never overflow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import kernel
from penstock.operators.update_stream.stream import Integers
from penstock.units import NEVER

__all__ = ["NOBODY", "START", "find_pairs", "link", "mark_old", "unlink_older", "unlink_useless"]

NOBODY = -1
"""The end of a list."""
START = -2
"""The value of `partner` if the newer tuple has no pair yet."""


@kernel
def mark_old(ids: Integers, times: Integers, left_at: Integers, right_at: Integers, within: Any) -> Any:
    """Mark tuples that are more than `within` older than the newest match of their key."""
    out = np.zeros(ids.shape[0], np.bool_)
    for i in range(ids.shape[0]):
        newest = max(left_at[ids[i]], right_at[ids[i]])
        if newest != NEVER and times[i] < newest:
            out[i] = np.uint64(newest) - np.uint64(times[i]) > within
    return out


@kernel
def link(
    ids: Integers, times: Integers, locations: Integers, head: Integers, after: Integers, held: Integers
) -> Any:
    """Insert tuples into the lists of their keys; mark the inserted tuples.

    If tuples of a key have equal times, only the first tuple is inserted.
    """
    new = np.zeros(ids.shape[0], np.bool_)
    for i in range(ids.shape[0]):
        time = times[i]
        before, at = NOBODY, head[ids[i]]
        while at >= 0 and held[at] > time:
            before, at = at, after[at]
        if at >= 0 and held[at] == time:
            continue
        new[i] = True
        location = locations[i]
        held[location] = time
        after[location] = at
        if before < 0:
            head[ids[i]] = location
        else:
            after[before] = location
    return new


@kernel
def find_pairs(
    ids: Integers,
    at_left: Integers,
    at_right: Integers,
    partner: Integers,
    after_left: Integers,
    after_right: Integers,
    held_left: Integers,
    held_right: Integers,
    fresh_left: Any,
    fresh_right: Any,
    left_at: Integers,
    right_at: Integers,
    within: Any,
    limit: int,
    bounds: Integers,
    out_left: Integers,
    out_right: Integers,
) -> None:
    """For each key, write up to `limit` more pairs that are newer than the key's last match, newest first.

    Pairs are ordered by the greater of both times, then by the left time, then by the right time. The two
    lists are merged by time. Each step takes the newest remaining tuple and pairs it with the remaining
    tuples of the other list. `at_left`, `at_right` and `partner` hold the position of the merge, which has
    ended if one of the three is `NOBODY`. Pairs without a fresh tuple are skipped: an earlier call evaluated
    them.
    """
    count = 0
    for n in range(ids.shape[0]):
        bounds[n] = count
        last_left, last_right = left_at[ids[n]], right_at[ids[n]]
        newest = max(last_left, last_right)
        i, j, p = at_left[n], at_right[n], partner[n]
        found = 0
        while i >= 0 and j >= 0 and found < limit:
            by_left = held_left[i] >= held_right[j]
            time = held_left[i] if by_left else held_right[j]
            if time < newest:
                i = NOBODY
                break
            if p == START:
                p = j if by_left else i
            while p >= 0 and found < limit:
                older = held_right[p] if by_left else held_left[p]
                if np.uint64(time) - np.uint64(older) > within:
                    p = NOBODY
                    break
                left = i if by_left else p
                right = p if by_left else j
                if time == newest and (
                    held_left[left] < last_left
                    or (held_left[left] == last_left and held_right[right] <= last_right)
                ):
                    # Pairs come in order, so all following pairs are older.
                    i = NOBODY
                    break
                if fresh_left[left] or fresh_right[right]:
                    out_left[count] = left
                    out_right[count] = right
                    count += 1
                    found += 1
                p = after_right[p] if by_left else after_left[p]
            if i < 0:
                break
            if p < 0:
                p = START
                if by_left:
                    i = after_left[i]
                else:
                    j = after_right[j]
        at_left[n], at_right[n], partner[n] = i, j, p
    bounds[ids.shape[0]] = count


@kernel
def unlink_useless(
    head: Integers,
    after: Integers,
    held: Integers,
    left_at: Integers,
    right_at: Integers,
    within: Any,
    oldest: int,
    reach: int,
    newest_only: bool,
    freed: Integers,
) -> int:
    """Unlink tuples that no future match needs; return the number of locations in `freed`.

    A future match is newer than the last match of its key, and the newer of its two tuples is not before the
    watermark. So a tuple is useless if it is more than `within` older than the last match, or older than
    `oldest`, which is the watermark less `within`. Without a condition, a tuple at or before `reach`, the
    watermark plus `within`, also makes all older tuples useless (UpStream §3.2: the most recent match is
    sufficient).
    """
    count = 0
    for k in range(head.shape[0]):
        before, at = NOBODY, head[k]
        if at < 0:
            continue
        newest = max(left_at[k], right_at[k])
        while at >= 0:
            time = held[at]
            useless = time < oldest
            if newest != NEVER and time < newest and np.uint64(newest) - np.uint64(time) > within:
                useless = True
            if newest_only and before >= 0:
                younger = held[before]
                if younger <= reach:
                    useless = True
                if time < newest and (younger <= newest or np.uint64(younger) - np.uint64(newest) <= within):
                    useless = True
            if useless:
                break
            before, at = at, after[at]
        if at < 0:
            continue
        if before < 0:
            head[k] = NOBODY
        else:
            after[before] = NOBODY
        while at >= 0:
            freed[count] = at
            count += 1
            at = after[at]
    return count


@kernel
def unlink_older(
    ids: Integers, limits: Integers, head: Integers, after: Integers, held: Integers, freed: Integers
) -> int:
    """Unlink each key's tuples up to the key's time limit; return the number of locations in `freed`."""
    count = 0
    for i in range(ids.shape[0]):
        before, at = NOBODY, head[ids[i]]
        while at >= 0 and held[at] > limits[i]:
            before, at = at, after[at]
        if at < 0:
            continue
        if before < 0:
            head[ids[i]] = NOBODY
        else:
            after[before] = NOBODY
        while at >= 0:
            freed[count] = at
            count += 1
            at = after[at]
    return count
