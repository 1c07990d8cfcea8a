"""Partials of groups and panes, and their sort order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.aggregates.wide import concat_unified
from penstock.operators.update_stream.stream import Integers
from penstock.windows.append import sliding_kernels
from penstock.windows.layout import WindowLayout

__all__ = ["FREE_SPAN", "PanePartials", "WindowRanges", "empty", "is_narrow", "sort_order"]

FREE_SPAN = 1024
_MAX_SPAN_PER_ROW = 4
"""A range is narrow if it has at most this many numbers per row, plus the free span."""


@dataclass(frozen=True, slots=True)
class PanePartials:
    """Partials of panes; each row belongs to one group and pane.

    Attributes
    ----------
    ids, panes : int64 arrays of n
        The group and the pane of each row, as numbers.
    values : pyarrow.RecordBatch
        n rows of `WindowLayout.values`.
    """

    ids: Integers
    panes: Integers
    values: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """Memory of the partials in bytes."""
        return self.ids.nbytes + self.panes.nbytes + self.values.nbytes

    def take(self, rows: Integers) -> PanePartials:
        """Return the partials at these indices, in that order."""
        # The indices are always valid, and bounds checks would cost a third of the time.
        values = pc.take(self.values, pa.array(rows), boundscheck=False)
        return PanePartials(self.ids[rows], self.panes[rows], values)

    def where(self, mask: npt.NDArray[np.bool_]) -> PanePartials:
        """Return the partials that a mask selects."""
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def piece(self, low: int, high: int) -> PanePartials:
        """Return the partials in ``[low, high)``, without copying."""
        return PanePartials(self.ids[low:high], self.panes[low:high], self.values.slice(low, high - low))

    def sort(self) -> PanePartials:
        """Return the partials sorted by group and pane; the sort is stable."""
        if sliding_kernels.are_sorted(self.ids, self.panes):
            return self
        order = np.arange(len(self))
        if (self.panes[1:] < self.panes[:-1]).any():
            order = sort_order(self.panes, order)
        return self.take(sort_order(self.ids, order))

    @classmethod
    def none(cls, layout: WindowLayout) -> PanePartials:
        """Return empty partials."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), empty(layout.values))

    @classmethod
    def concat(cls, parts: Iterable[PanePartials]) -> PanePartials:
        """Concatenate all parts (at least one) in order."""
        all_parts = list(parts)
        there = [part for part in all_parts if len(part)] or all_parts[:1]
        if len(there) == 1:
            return there[0]
        return cls(
            np.concatenate([part.ids for part in there]),
            np.concatenate([part.panes for part in there]),
            concat_unified([part.values for part in there]),
        )


@dataclass(frozen=True, slots=True)
class WindowRanges:
    """Windows as ranges of sorted partials.

    Attributes
    ----------
    partials : PanePartials
        The partials, sorted by group and pane.
    known : int64 array
        The numbers of the groups that have windows.
    of, windows : int64 arrays
        For each window, the index of its group in `known`, and the window number.
    low, high : int64 arrays
        For each window, the range of its partials.
    """

    partials: PanePartials
    known: Integers
    of: Integers
    windows: Integers
    low: Integers
    high: Integers


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """Return an empty batch of a schema."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def is_narrow(span: int, rows: int, free_span: int = FREE_SPAN) -> bool:
    """Return whether a range of numbers is narrow enough for an array with one element for each number."""
    return span <= _MAX_SPAN_PER_ROW * rows + free_span


def sort_order(values: Integers, order: Integers, *, free_span: int = FREE_SPAN) -> Integers:
    """Return the order of rows by value. Rows with equal values keep their order in `order`.

    If the range of values is narrow, a counting sort is used.
    """
    if not len(values):
        return order
    least, greatest = int(values.min()), int(values.max())
    if not is_narrow(greatest - least, len(values), free_span):
        return order[np.argsort(values[order], kind="stable")]
    out = np.empty(len(values), np.int64)
    sliding_kernels.order_by(values, least, greatest - least + 1, order, out)
    return out
