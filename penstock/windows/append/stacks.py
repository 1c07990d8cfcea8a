"""Two stacks that keep combined partials of shared panes from one micro-batch to the next.

All windows that a micro-batch closes contain the panes from the start of the last of these windows to the end
of the first: the **middle**. So a micro-batch needs three parts for each group: one combined entry for the
middle, the panes before the middle (leaving), and the panes after it (new). The middle comes from two stacks,
which are kept from micro-batch to micro-batch::

                              border
               front            |         back              held
    --+--------------+----------+-----------------+------------------+-->  panes
      |   leaving    |  suffix  |      total      |       new        |
      first start    last start                   first end          last end

The **front** has a suffix for each entry: the entry combined with all later front entries of its group. The
**back** has one total per group. New panes are held outside of the stacks until a window that contains them
closes; then they move to the back. When no pane of the front is in all closing windows any more, the whole
back becomes the new front. So each entry is processed a fixed number of times, however long windows are, and
nothing is ever subtracted from a partial.

Stacks exist only in memory and can be built from the entries, so a restored state starts without stacks. If
an entry arrives for a pane before the border, it stays among the held entries.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.operators.update_stream.stream import Integers
from penstock.windows.append.limits import PaneLimits
from penstock.windows.append.pane_partials import PanePartials
from penstock.windows.append.sliding import slide
from penstock.windows.append.sorted_runs import (
    GroupRanges,
    SortedRuns,
    combine_by_group,
    concat_by_group,
    merge_sorted,
)
from penstock.windows.layout import WindowLayout

__all__ = ["Stacks"]


class Stacks:
    """The stacks of entries that were in a closed window. One task at a time uses them.

    Parameters
    ----------
    layout : WindowLayout
        The layout of the windows; all partials have a fixed size.
    front : PanePartials
        The sorted entries of panes before the border.
    border : int
        The pane at which the front ends and the back begins. It is at most the end of the next window to
        close.
    groups : int
        The number of groups that have been numbered so far.
    limits : PaneLimits
        Thresholds.
    """

    def __init__(
        self, layout: WindowLayout, front: PanePartials, border: int, groups: int, limits: PaneLimits
    ) -> None:
        self.border = border
        self._layout = layout
        self._front_slack = limits.front_slack
        self._front = GroupRanges.select_all(front, groups)
        """The front entries that are still needed."""
        ends = self._front.high[front.ids]
        each = np.arange(len(front))
        suffixes = slide(layout.partials, layout.times, front.panes, front.values, each, ends, closing=False)
        self._suffixes = replace(front, values=suffixes)
        self._back = SortedRuns(layout, limits.min_repeats_to_combine)
        self._total = PanePartials.none(layout)

    def __len__(self) -> int:
        """Return the number of entries that are still needed."""
        return len(self._front) + len(self._back)

    @property
    def nbytes(self) -> int:
        """Memory of the stacks in bytes."""
        front = self._front.partials.nbytes + self._suffixes.values.nbytes
        return front + self._back.nbytes + self._total.nbytes

    def parts(self) -> list[PanePartials]:
        """Return the entries that are still needed, as sorted parts."""
        return [concat_by_group([self._front]), *self._back.parts]

    def live(self) -> Integers:
        """Return the groups that have an entry; a group may occur twice."""
        return np.concatenate([np.flatnonzero(self._front.low < self._front.high), self._total.ids])

    def close(self, held: PanePartials, first: int, last: int) -> tuple[PanePartials, PanePartials]:
        """Return the entries of closing windows; move entries that later windows need to the back.

        Parameters
        ----------
        held : PanePartials
            All sorted entries outside of the stacks.
        first, last : int
            First and last closing window. `first` is the next window to close, and `last` starts before the
            border.

        Returns
        -------
        needed : PanePartials
            Sorted entries. Combining the entries in a window's range gives the window's partials.
        left : PanePartials
            Sorted entries that remain held, possibly including entries that no open window needs.
        """
        spec = self._layout.spec
        begin, start, following = spec.start(first), spec.start(last), spec.start(last + 1)
        end, after = begin + spec.size, start + spec.size
        leaving, staying = self._front.split(start)
        groups = np.flatnonzero(staying.low < staying.high)
        suffixes = self._suffixes.take(staying.low[groups])
        _, open_ = GroupRanges.select_all(held).split(begin)
        strays, open_ = open_.split(start)
        inner, open_ = open_.split(end)
        new, later = open_.split(after)
        if len(strays):
            leaving = GroupRanges.select_all(
                merge_sorted([concat_by_group([leaving]), concat_by_group([strays])])
            )
        shared = combine_by_group(self._layout, [suffixes, self._total, concat_by_group([inner])], end - 1)
        # Within a group, the panes of each part precede the panes of the next part.
        needed = concat_by_group([leaving, GroupRanges.select_all(shared), new])
        before, after_border = inner.split(self.border)
        moved = concat_by_group([replace(after_border, high=new.high)])
        self._back.add(moved)
        self._total = combine_by_group(self._layout, [self._total, moved], self.border)
        self._let_go(following)
        return needed, concat_by_group([before, later])

    def _let_go(self, pane: int) -> None:
        """Drop the entries before a pane."""
        _, self._front = self._front.split(pane)
        if self._front_slack * len(self._front) < len(self._front.partials):
            self._suffixes = concat_by_group([replace(self._front, partials=self._suffixes)])
            self._front = GroupRanges.select_all(concat_by_group([self._front]), len(self._front.low))
