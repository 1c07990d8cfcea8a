"""The kernels of a join of update streams: lists of tuples by key, pairs in order, and what may be freed.

The tuples that a side holds of a key are a list, newest first, chained through locations. Times are integers;
their differences are taken without sign, so that no two of them overflow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import kernel
from penstock.operators.update_stream.stream import Integers
from penstock.units import NEVER

__all__ = ["NOBODY", "START", "link", "next_pairs", "too_old", "unlink_useless"]

NOBODY = -1
"""The end of a list."""
START = -2
"""In place of a partner: the pairs of the newer tuple have not begun."""


@kernel
def too_old(ids: Integers, times: Integers, left_at: Integers, right_at: Integers, within: Any) -> Any:
    """Return which tuples are more than `within` older than the newest match of their key."""
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
    """Put tuple i into the list of its key; return which are new, for of equal times the first stays."""
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
def next_pairs(
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
    """Give up to `limit` more pairs of each key, the newest first, that are newer than its last match.

    Pairs are ordered by the greater of both times, then by the left one, then by the right one. The lists are
    merged; the tuple whose turn it is is the newer of its pairs, and its partners are what is left of the
    other list. Where the merge stands is in `at_left`, `at_right` and `partner`, ended if one is `NOBODY`.
    Pairs without a fresh tuple were looked at before.
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
                    # Pairs come in order: all that follow are older still.
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
    """Cut from every list what can be in no match to come; return how many locations are in `freed`.

    A match to come is newer than the last one of its key, and its younger tuple is not before the watermark.
    So a tuple is useless if it is more than `within` older than either; `oldest` is the watermark less
    `within`. Where every pair in time is a match, a newer tuple that reaches back as far as a match to come
    may, `reach` being the watermark and `within`, does for all older ones (UpStream §3.2: the most recent
    match is sufficient).
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
