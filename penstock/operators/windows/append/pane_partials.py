"""Entries of groups and panes, and their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.aggregates.wide import concat_alike
from penstock.operators.update_stream.stream import Integers
from penstock.operators.windows.append import sliding_kernels
from penstock.operators.windows.layout import WindowLayout

__all__ = ["PanePartials", "WindowRanges", "empty", "is_narrow", "sorted_by"]

_MAX_FREE_SPAN = 1024
_MAX_SPAN_PER_ROW = 4
"""Work per number of a range is allowed up to this many numbers for each row, and a few more."""


@dataclass(frozen=True, slots=True)
class PanePartials:
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

    def take(self, rows: Integers) -> PanePartials:
        """Return those at places, in that order."""
        # These places are always there; to look costs a third of the time.
        values = pc.take(self.values, pa.array(rows), boundscheck=False)
        return PanePartials(self.ids[rows], self.panes[rows], values)

    def where(self, chosen: npt.NDArray[np.bool_]) -> PanePartials:
        """Return some of them."""
        return self if chosen.all() else self.take(np.flatnonzero(chosen))

    def piece(self, low: int, high: int) -> PanePartials:
        """Return those at the places from `low` to before `high`, without copying."""
        return PanePartials(self.ids[low:high], self.panes[low:high], self.values.slice(low, high - low))

    def in_order(self) -> PanePartials:
        """Return them sorted by group and pane, equal ones in the order that they have."""
        if sliding_kernels.are_sorted(self.ids, self.panes):
            return self
        order = np.arange(len(self))
        if (self.panes[1:] < self.panes[:-1]).any():
            order = sorted_by(self.panes, order)
        return self.take(sorted_by(self.ids, order))

    @classmethod
    def none(cls, layout: WindowLayout) -> PanePartials:
        """Return no entries."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), empty(layout.values))

    @classmethod
    def concat(cls, parts: Iterable[PanePartials]) -> PanePartials:
        """Return the entries of all parts, of which there is at least one, as they come."""
        known = list(parts)
        there = [part for part in known if len(part)] or known[:1]
        if len(there) == 1:
            return there[0]
        return cls(
            np.concatenate([part.ids for part in there]),
            np.concatenate([part.panes for part in there]),
            concat_alike([part.values for part in there]),
        )


@dataclass(frozen=True, slots=True)
class WindowRanges:
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

    entries: PanePartials
    known: Integers
    of: Integers
    windows: Integers
    low: Integers
    high: Integers


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """Return no rows of a schema."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def is_narrow(span: int, rows: int) -> bool:
    """Say whether something may be done for each number of a range, so as to do less for each row."""
    return span <= _MAX_SPAN_PER_ROW * rows + _MAX_FREE_SPAN


def sorted_by(values: Integers, order: Integers) -> Integers:
    """Return rows, which are in some order, by value; those of equal values stay in that order."""
    if not len(values):
        return order
    least, greatest = int(values.min()), int(values.max())
    if not is_narrow(greatest - least, len(values)):
        return order[np.argsort(values[order], kind="stable")]
    out = np.empty(len(values), np.int64)
    sliding_kernels.order_by(values, least, greatest - least + 1, order, out)
    return out
