"""Entries of groups and panes: sorted, merged and combined."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.stream import Integers
from penstock.operators.windows import sliding_kernels as kernels
from penstock.operators.windows.layout import WindowLayout
from penstock.operators.windows.sliding import slide

__all__ = [
    "Entries",
    "Found",
    "Pile",
    "by_group",
    "combined",
    "empty",
    "merged",
    "ranges",
    "sorted_by",
    "sorted_together",
]

_CROWDED = 1.5
"""Entries of equal pane and group are combined once there are so many for each pane and group."""
_FEW = 1024
_WIDE = 4
"""Values of a range up to so many times their number are sorted by counting."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Partials of panes.

    Attributes
    ----------
    ids, panes : int64 arrays of n
        The numbers of groups, and of panes.
    values : pyarrow.RecordBatch
        n rows of `WindowLayout.values`.
    """

    ids: Integers
    panes: Integers
    values: pa.RecordBatch

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """How much memory they hold."""
        return self.ids.nbytes + self.panes.nbytes + self.values.nbytes

    def take(self, rows: Integers) -> Entries:
        """Return those at places, in that order."""
        # These places are always there; to look costs a third of the time.
        values = pc.take(self.values, pa.array(rows), boundscheck=False)
        return Entries(self.ids[rows], self.panes[rows], values)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Entries:
        """Return some of them."""
        return self if chosen.all() else self.take(np.flatnonzero(chosen))

    def between(self, first: int, end: int) -> Entries:
        """Return those of panes from `first` to before `end`."""
        return self.where((self.panes >= first) & (self.panes < end))

    def piece(self, low: int, high: int) -> Entries:
        """Return those at the places from `low` to before `high`, without copying."""
        return Entries(self.ids[low:high], self.panes[low:high], self.values.slice(low, high - low))

    def in_order(self) -> Entries:
        """Return them sorted by group and pane, equal ones in the order that they have."""
        if kernels.are_sorted(self.ids, self.panes):
            return self
        order = np.arange(len(self))
        if (self.panes[1:] < self.panes[:-1]).any():
            order = sorted_by(self.panes, order)
        return self.take(sorted_by(self.ids, order))

    @classmethod
    def none(cls, layout: WindowLayout) -> Entries:
        """Return no entries."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), empty(layout.values))

    @classmethod
    def concat(cls, parts: Iterable[Entries]) -> Entries:
        """Return the entries of all parts, of which there is at least one, as they come."""
        known = list(parts)
        there = [part for part in known if len(part)] or known[:1]
        if len(there) == 1:
            return there[0]
        return cls(
            np.concatenate([part.ids for part in there]),
            np.concatenate([part.panes for part in there]),
            pa.concat_batches([part.values for part in there]),
        )


@dataclass(frozen=True, slots=True)
class Found:
    """Windows, and which entries they have.

    Attributes
    ----------
    entries : Entries
        Sorted by group and pane.
    known : int64 array
        Numbers of the groups that have windows.
    of, windows : int64 arrays
        Of each window the place of its group in `known`, and its number.
    low, high : int64 arrays
        Of each window the range of its entries.
    """

    entries: Entries
    known: Integers
    of: Integers
    windows: Integers
    low: Integers
    high: Integers


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """Return no rows of a schema."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def sorted_by(values: Integers, order: Integers) -> Integers:
    """Return rows, which are in some order, by value; those of equal values stay in that order."""
    if not len(values):
        return order
    least, greatest = int(values.min()), int(values.max())
    if greatest - least > _WIDE * len(values) + _FEW:
        return order[np.argsort(values[order], kind="stable")]
    out = np.empty(len(values), np.int64)
    kernels.order_by(values, least, greatest - least + 1, order, out)
    return out


def ranges(low: Integers, high: Integers) -> Integers:
    """Return the rows of ranges, one range after the other."""
    counts = high - low
    ends = np.cumsum(counts)
    return np.arange(int(counts.sum())) + np.repeat(low - ends + counts, counts)


def merged(parts: Iterable[Entries]) -> Entries:
    """Return parts, each of them sorted, as one that is; of equal entries an earlier part's come first."""
    known = list(parts)
    there = [part for part in known if len(part)] or known[:1]
    if len(there) == 1:
        return there[0]
    whole = Entries.concat(there)
    if all(int(a.panes.max()) <= int(b.panes.min()) for a, b in pairwise(there)):
        return whole.take(sorted_by(whole.ids, np.arange(len(whole))))
    if len(there) > 2:
        return whole.in_order()
    order = np.empty(len(whole), np.int64)
    kernels.merge(whole.ids, whole.panes, len(there[0]), np.arange(len(there[0]), len(whole)), order)
    return whole.take(order)


def sorted_together(parts: Iterable[Entries]) -> Entries:
    """Return parts as one that is sorted; of equal entries an earlier part's come first."""
    known = list(parts)
    if all(kernels.are_sorted(part.ids, part.panes) for part in known):
        return merged(known)
    return Entries.concat(known).in_order()


def combined(layout: WindowLayout, entries: Entries, *, always: bool = False) -> Entries:
    """Return sorted entries with one for each group and pane.

    Where few are of equal ones, they are returned as they are, unless it is to be so `always`.
    """
    starts = np.empty(len(entries), np.int64)
    low = starts[: kernels.find_runs(entries.ids, entries.panes, starts)]
    if len(entries) == len(low) or (len(entries) < _CROWDED * len(low) and not always):
        return entries
    high = np.append(low[1:], len(entries))
    values = slide(layout.partials, layout.times, entries.panes, entries.values, low, high, closing=False)
    return Entries(entries.ids[low], entries.panes[low], values)


def by_group(layout: WindowLayout, parts: Iterable[Entries], pane: int) -> Entries:
    """Return one entry for each group, which gets a pane.

    Parameters
    ----------
    parts : iterable of Entries
        Each sorted, and of fixed size. Those of one group and pane come in the order of arrival, other panes
        in any order: what is first and last is known by the time, of which a pane has its own.
    pane : int
        Its number.
    """
    each = [_of_groups(layout, part, pane) for part in parts if len(part)]
    if len(each) == 1:
        return each[0]
    return _of_groups(layout, merged(each), pane) if each else Entries.none(layout)


def _of_groups(layout: WindowLayout, entries: Entries, pane: int) -> Entries:
    low = np.flatnonzero(np.diff(entries.ids, prepend=-1))
    ids, values = entries.ids[low], entries.values
    if len(low) < len(entries):
        high = np.append(low[1:], len(entries))
        none = np.zeros(len(entries), np.int64)
        values = slide(layout.partials, layout.times, none, values, low, high, closing=False)
    return Entries(ids, np.full(len(ids), pane), values)


class Pile:
    """Entries that come in parts, each of them sorted.

    Those of equal group and pane are combined where there are many, at a cost that is in proportion to what
    comes for panes that were there before.

    Parameters
    ----------
    layout : WindowLayout
        What entries are made of.

    Attributes
    ----------
    parts : list of Entries
        In the order of arrival.
    nbytes : int
        How much memory they hold.
    """

    def __init__(self, layout: WindowLayout) -> None:
        self._layout = layout
        self.parts = [Entries.none(layout)]
        self._count = self.nbytes = 0
        self._again = 0
        """How many came for a pane from before the newest one that was there."""
        self._newest: int | None = None

    def __len__(self) -> int:
        """Return the number of entries."""
        return self._count

    def add(self, entries: Entries) -> None:
        """Let entries in."""
        if not len(entries):
            return
        self.parts.append(entries)
        # There may be a part for each micro-batch of a window's length.
        self._count += len(entries)
        self.nbytes += entries.nbytes
        if self._newest is not None:
            self._again += int(np.count_nonzero(entries.panes <= self._newest))
        newest = int(entries.panes.max())
        self._newest = newest if self._newest is None else max(newest, self._newest)
        if self._again > _FEW and len(self) >= _CROWDED * (len(self) - self._again):
            self.replace(combined(self._layout, self.whole()))

    def restrict(self, kept: Callable[[Entries], npt.NDArray[np.bool_]]) -> None:
        """Keep those entries of each part that a function says."""
        self.parts = [part.where(kept(part)) for part in self.parts]
        self._count, self.nbytes = sum(map(len, self.parts)), sum(part.nbytes for part in self.parts)
        self._again = min(self._again, self._count)

    def whole(self) -> Entries:
        """Return all entries, sorted."""
        whole = merged(self.parts)
        self.parts = [whole]
        return whole

    def replace(self, entries: Entries) -> None:
        """Have only these entries, which are sorted."""
        self.parts = [entries]
        self._count, self.nbytes = len(entries), entries.nbytes
        self._again = 0
        self._newest = int(entries.panes.max()) if len(entries) else None
