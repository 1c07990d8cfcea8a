"""What is known of the panes that open windows share, from one micro-batch to the next.

Of the windows that a micro-batch closes, all have the panes from the start of the last one to the end of the
first one: the **middle**. So of each group a micro-batch needs one entry for that, the panes before it, which
leave, and the panes after it, which are new. The middle comes from two stacks that outlive the micro-batch::

                              border
               front            |         back              held
    --+--------------+----------+-----------------+------------------+-->  panes
      |   leaving    |  suffix  |      total      |       new        |
      first start    last start                   first end          last end

The **front** knows of each of its entries what that one and all later ones of its group come to (a suffix),
the **back** knows one total of each group. Panes move from what is held to the back as windows close over
them, and from the back into a new front all at once, when no pane of the old one is in all windows that
close. So an entry is gone over a fixed number of times, however long windows are. Nothing is ever taken away
from a partial.

All of this is in memory only, and follows from the entries: a state that is read begins without it. Entries
from before the border that came after it was drawn stay among those that are held.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.operators.update_stream.stream import Integers
from penstock.operators.windows.append.pane_partials import PanePartials
from penstock.operators.windows.append.sliding import slide
from penstock.operators.windows.append.sorted_runs import (
    GroupRanges,
    SortedRuns,
    by_group,
    concat_by_group,
    merge_sorted,
)
from penstock.operators.windows.layout import WindowLayout

__all__ = ["Stacks"]


class Stacks:
    """The entries that were in a window that closed. Used by one task at a time; not thread-safe.

    Parameters
    ----------
    layout : WindowLayout
        What windows are made of; partials of fixed size.
    front : Entries
        Of panes before the border, sorted.
    border : int
        A pane; at most the end of the next window that closes.
    groups : int
        How many groups have a number.
    front_slack : int
        The front is compacted once it has this many times the entries that it needs.
    """

    def __init__(
        self, layout: WindowLayout, front: PanePartials, border: int, groups: int, front_slack: int
    ) -> None:
        self.border = border
        self._layout = layout
        self._front_slack = front_slack
        self._front = GroupRanges.of(front, groups)
        """Those of the front that are still needed."""
        ends = self._front.high[front.ids]
        each = np.arange(len(front))
        suffixes = slide(layout.partials, layout.times, front.panes, front.values, each, ends, closing=False)
        self._suffixes = replace(front, values=suffixes)
        self._back = SortedRuns(layout)
        self._total = PanePartials.none(layout)

    def __len__(self) -> int:
        """Return the number of entries that are still needed."""
        return len(self._front) + len(self._back)

    @property
    def nbytes(self) -> int:
        """How much memory they hold."""
        front = self._front.entries.nbytes + self._suffixes.values.nbytes
        return front + self._back.nbytes + self._total.nbytes

    def parts(self) -> list[PanePartials]:
        """Return the entries that are still needed, in parts, each of them sorted."""
        return [concat_by_group([self._front]), *self._back.parts]

    def live(self) -> Integers:
        """Return the groups that have an entry; some may be there twice."""
        return np.concatenate([np.flatnonzero(self._front.low < self._front.high), self._total.ids])

    def close(self, held: PanePartials, first: int, last: int) -> tuple[PanePartials, PanePartials]:
        """Return what some windows are made of, and take in what will be in later ones.

        Parameters
        ----------
        held : Entries
            All entries that are not here, sorted.
        first, last : int
            Numbers of windows, of which the last one starts before the border and the first is the next one.

        Returns
        -------
        needed : Entries
            Sorted. A window's partials are those of its entries among them.
        left : Entries
            What is still held, sorted; some of it in no window that is open.
        """
        spec = self._layout.spec
        begin, start, following = spec.start(first), spec.start(last), spec.start(last + 1)
        end, after = begin + spec.size, start + spec.size
        leaving, staying = self._front.split(start)
        groups = np.flatnonzero(staying.low < staying.high)
        suffixes = self._suffixes.take(staying.low[groups])
        _, open_ = GroupRanges.of(held).split(begin)
        strays, open_ = open_.split(start)
        inner, open_ = open_.split(end)
        new, later = open_.split(after)
        if len(strays):
            leaving = GroupRanges.of(merge_sorted([concat_by_group([leaving]), concat_by_group([strays])]))
        shared = by_group(self._layout, [suffixes, self._total, concat_by_group([inner])], end - 1)
        # Of a group, panes of one part come before those of the next one.
        needed = concat_by_group([leaving, GroupRanges.of(shared), new])
        before, after_border = inner.split(self.border)
        taken = concat_by_group([replace(after_border, high=new.high)])
        self._back.add(taken)
        self._total = by_group(self._layout, [self._total, taken], self.border)
        self._let_go(following)
        return needed, concat_by_group([before, later])

    def _let_go(self, pane: int) -> None:
        """Let go of what is before a pane."""
        _, self._front = self._front.split(pane)
        if self._front_slack * len(self._front) < len(self._front.entries):
            self._suffixes = concat_by_group([replace(self._front, entries=self._suffixes)])
            self._front = GroupRanges.of(concat_by_group([self._front]), len(self._front.low))
