"""The kernel of session windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import kernel

__all__ = ["find_sessions"]


@kernel
def find_sessions(ids: Any, firsts: Any, lasts: Any, gap: int, starts: Any) -> int:
    """Find the starts of sessions among sorted entries; return the number of sessions.

    An entry begins a session if it is the first of its group, or if the last events of all earlier entries of
    its group are at least `gap` older.

    Parameters
    ----------
    ids, firsts, lasts : int64 arrays of n
        Groups of the entries, and their first and last times. Entries are sorted by group and first time.
    gap : int
        The gap between sessions in units of the times, at least 1.
    starts : int64 array of n
        Output: the row number of the first entry of each session.
    """
    count = 0
    latest = np.int64(0)
    for i in range(ids.shape[0]):
        begins = i == 0 or ids[i] != ids[i - 1]
        if not begins and firsts[i] > latest:
            # The difference of any two times fits an unsigned integer.
            begins = np.uint64(firsts[i]) - np.uint64(latest) >= np.uint64(gap)
        if begins:
            starts[count] = i
            count += 1
            latest = lasts[i]
        else:
            latest = max(latest, lasts[i])
    return count
