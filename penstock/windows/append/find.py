"""Find the windows that contain sorted pane partials."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from penstock.operators.update_stream.stream import Integers
from penstock.windows.append import sliding_kernels
from penstock.windows.append.pane_partials import PanePartials, WindowRanges
from penstock.windows.spec import WindowSpec

__all__ = ["find_windows"]

_MAX_WINDOWS_PER_ENTRY = 4
"""Memory is allocated for this many windows per entry if the windows are not counted."""


def find_windows(
    spec: WindowSpec, partials: PanePartials, panes: Integers, first: int, last: int, chunk_windows: int
) -> Iterator[WindowRanges]:
    """Yield the windows from `first` to `last` that contain sorted partials, in batches of bounded size.

    Parameters
    ----------
    panes : int64 array
        The pane of each partial, relative to the pane at which window 0 starts.
    chunk_windows : int
        The approximate maximum number of windows in a batch.
    """
    ids = partials.ids
    if not len(ids):
        return
    count = _max_windows(spec, ids, panes, first, last)
    for begin, end, low, high in _pieces(spec, ids, panes, first, last, -(-count // chunk_windows)):
        piece = slice(begin, end)
        if (begin, end, low, high) != (0, len(ids), first, last):
            count = _max_windows(spec, ids[piece], panes[piece], low, high)
        group_ids, *arrays = (np.empty(room, np.int64) for room in (min(count, end - begin), *[count] * 4))
        groups, count = sliding_kernels.find_windows(
            ids[piece], panes[piece], spec.size, spec.slide, low, high, group_ids, *arrays
        )
        if count:
            yield WindowRanges(
                partials.piece(begin, end), group_ids[:groups], *(column[:count] for column in arrays)
            )


def _pieces(
    spec: WindowSpec, ids: Integers, panes: Integers, first: int, last: int, count: int
) -> Iterator[tuple[int, int, int, int]]:
    """Divide windows into about `count` pieces, each a range of entries and a range of windows.

    Only large groups are divided. Windows overlap, so neighbouring pieces of a group have some entries in
    common. To limit the number of such entries, a piece is at least half a window long.
    """
    most = -(-len(ids) // max(count, 1))
    cuts = {0, len(ids)}
    for at in range(most, len(ids), most):
        begin, end = (int(np.searchsorted(ids, ids[at], side)) for side in ("left", "right"))
        cuts |= {begin, end} if end - begin > most else {begin}
    for begin, end in pairwise(sorted(cuts)):
        if end - begin <= most or ids[begin] != ids[end - 1]:
            yield begin, end, first, last
            continue
        mine = panes[begin:end]
        # A piece ends with the last window that contains the last entry of the piece.
        step = max(most, spec.size // 2)
        panes_at = [*mine[step:-1:step], mine[-1]]
        ends = [max(first - 1, min(int(pane) // spec.slide, last)) for pane in panes_at]
        for before, window in pairwise([first - 1, *ends]):
            bounds = spec.start(before + 1), spec.start(window) + spec.size
            low, high = (begin + int(np.searchsorted(mine, pane)) for pane in bounds)
            if before < window and low < high:
                yield low, high, before + 1, window


def _max_windows(spec: WindowSpec, ids: Integers, panes: Integers, first: int, last: int) -> int:
    """Return an upper bound of the number of windows; if a simple bound may be far too high, count them."""
    most = (int(ids[-1] - ids[0]) + 1) * (last - first + 1)
    if most <= _MAX_WINDOWS_PER_ENTRY * len(ids):
        return most
    return int(sliding_kernels.count_windows(ids, panes, spec.size, spec.slide, first, last))
