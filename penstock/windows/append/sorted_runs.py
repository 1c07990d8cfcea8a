"""Combine sorted entries: concatenate by group, merge, and deduplicate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.aggregates.wide import unify_types
from penstock.operators.update_stream.stream import Integers
from penstock.windows.append import sliding_kernels
from penstock.windows.append.pane_partials import FREE_SPAN, PanePartials, is_narrow, sort_order
from penstock.windows.append.sliding import slide
from penstock.windows.layout import WindowLayout

__all__ = [
    "GroupRanges",
    "SortedRuns",
    "combine_by_group",
    "combine_duplicates",
    "concat_by_group",
    "merge_sorted",
    "merge_unsorted",
]

_MIN_DUPLICATION_TO_COMBINE = 1.5
"""Duplicates are combined once a pane and group has this many entries on average."""


@dataclass(frozen=True, slots=True)
class GroupRanges:
    """One range of sorted entries per group.

    Attributes
    ----------
    partials : PanePartials
        The entries, sorted by group and pane.
    low, high : int64 arrays of g
        The range of selected entries, by group number.
    """

    partials: PanePartials
    low: Integers
    high: Integers

    @classmethod
    def select_all(cls, partials: PanePartials, groups: int = 0) -> GroupRanges:
        """Select all entries. `low` and `high` have at least `groups` elements."""
        counts = np.bincount(partials.ids, minlength=groups)
        high = np.cumsum(counts)
        return cls(partials, high - counts, high)

    def __len__(self) -> int:
        """Return the number of selected entries."""
        return int((self.high - self.low).sum())

    def split(self, pane: int) -> tuple[GroupRanges, GroupRanges]:
        """Split every range into the entries before `pane` and the entries from `pane` on."""
        at = np.empty(len(self.low), np.int64)
        sliding_kernels.skip(self.partials.panes, self.low, self.high, pane, at)
        return replace(self, high=at), replace(self, low=at)


def concat_by_group(spans: Sequence[GroupRanges]) -> PanePartials:
    """Concatenate ranges (at least one) group by group.

    Each entry is copied once; each group of a range costs a few more nanoseconds.
    """
    there = [span for span in spans if len(span)] or [spans[0]]
    if len(there) == 1 and len(there[0]) == len(there[0].partials):
        return there[0].partials
    counts = np.zeros(max(len(ranges.low) for ranges in there), np.int64)
    for ranges in there:
        counts[: len(ranges.low)] += ranges.high - ranges.low
    free = np.cumsum(counts) - counts
    places = []
    for ranges in there:
        places.append(free.copy())
        free[: len(ranges.low)] += ranges.high - ranges.low
    total = int(counts.sum())

    def laid(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        out = np.empty(total, parts[0].dtype)
        for ranges, values, at in zip(there, parts, places, strict=True):
            sliding_kernels.lay_out(values, ranges.low, ranges.high, at, out)
        return out

    def column(parts: Sequence[pa.Array[Any]]) -> pa.Array[Any]:
        parts = unify_types(parts)
        kind = parts[0].type
        if _is_plain(kind) and not any(part.null_count for part in parts):
            out = laid([_bits(part) for part in parts])
            return pa.Array.from_buffers(kind, total, [None, pa.py_buffer(out)])
        ends = np.cumsum([len(part) for part in parts])
        rows = laid([np.arange(end - len(part), end) for part, end in zip(parts, ends, strict=True)])
        return pc.take(pa.concat_arrays(parts), pa.array(rows), boundscheck=False)

    schema = there[0].partials.values.schema
    values = [column([ranges.partials.values.column(at) for ranges in there]) for at in range(len(schema))]
    return PanePartials(
        np.repeat(np.arange(len(counts)), counts),
        laid([ranges.partials.panes for ranges in there]),
        pa.RecordBatch.from_arrays(values, schema.names),
    )


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether values of a type have the byte width of an integer type."""
    return pa.types.is_primitive(kind) and kind.bit_width in (8, 16, 32, 64)


def _bits(array: pa.Array[Any]) -> npt.NDArray[Any]:
    """View a fixed-width array as integers of that width, without copying."""
    width = array.type.bit_width // 8
    if not len(array):
        return np.empty(0, f"i{width}")
    return np.frombuffer(array.buffers()[1], f"i{width}", len(array), array.offset * width)


def merge_sorted(parts: Iterable[PanePartials], *, free_span: int = FREE_SPAN) -> PanePartials:
    """Merge sorted parts into one; equal entries keep the order of parts.

    If group numbers are in a narrow range (`is_narrow`), parts whose panes follow each other are concatenated
    group by group.
    """
    all_parts = list(parts)
    there = [part for part in all_parts if len(part)] or all_parts[:1]
    if len(there) == 1:
        return there[0]
    rows = sum(map(len, there))
    if all(int(a.panes.max()) <= int(b.panes.min()) for a, b in pairwise(there)):
        groups = max(int(part.ids[-1]) for part in there) + 1
        if is_narrow(groups * len(there), rows, free_span):
            return concat_by_group([GroupRanges.select_all(part) for part in there])
        whole = PanePartials.concat(there)
        return whole.take(sort_order(whole.ids, np.arange(rows), free_span=free_span))
    whole = PanePartials.concat(there)
    if len(there) > 2:
        return whole.sort()
    order = np.empty(rows, np.int64)
    sliding_kernels.merge(whole.ids, whole.panes, len(there[0]), np.arange(len(there[0]), rows), order)
    return whole.take(order)


def merge_unsorted(parts: Iterable[PanePartials]) -> PanePartials:
    """Sort unsorted parts into one; equal entries keep the order of parts."""
    all_parts = list(parts)
    if all(sliding_kernels.are_sorted(part.ids, part.panes) for part in all_parts):
        return merge_sorted(all_parts)
    return PanePartials.concat(all_parts).sort()


def combine_duplicates(layout: WindowLayout, partials: PanePartials, *, always: bool = False) -> PanePartials:
    """Combine sorted entries into one per group and pane.

    If few entries are duplicates, return them unchanged, unless `always` is set.
    """
    starts = np.empty(len(partials), np.int64)
    low = starts[: sliding_kernels.find_runs(partials.ids, partials.panes, starts)]
    if len(partials) == len(low) or (len(partials) < _MIN_DUPLICATION_TO_COMBINE * len(low) and not always):
        return partials
    high = np.append(low[1:], len(partials))
    values = slide(layout.partials, layout.times, partials.panes, partials.values, low, high, closing=False)
    return PanePartials(partials.ids[low], partials.panes[low], values)


def combine_by_group(layout: WindowLayout, parts: Iterable[PanePartials], pane: int) -> PanePartials:
    """Combine all entries of each group into one entry with the given pane.

    Parameters
    ----------
    parts : iterable of PanePartials
        Sorted parts with partials of fixed size. Entries of one group and pane are in order of arrival. Panes
        may be in any order, because ``first`` and ``last`` have their own times.
    pane : int
        The pane of the combined entries.
    """
    each = [_select_first_of_groups(layout, part, pane) for part in parts if len(part)]
    if len(each) == 1:
        return each[0]
    return _select_first_of_groups(layout, merge_sorted(each), pane) if each else PanePartials.none(layout)


def _select_first_of_groups(layout: WindowLayout, partials: PanePartials, pane: int) -> PanePartials:
    low = np.flatnonzero(np.diff(partials.ids, prepend=-1))
    ids, values = partials.ids[low], partials.values
    if len(low) < len(partials):
        high = np.append(low[1:], len(partials))
        none = np.zeros(len(partials), np.int64)
        values = slide(layout.partials, layout.times, none, values, low, high, closing=False)
    return PanePartials(ids, np.full(len(ids), pane), values)


class SortedRuns:
    """A buffer of entries in sorted parts.

    When many entries have the same group and pane, they are combined. The cost is proportional to the number
    of entries that arrive for panes that already have entries.

    Parameters
    ----------
    layout : WindowLayout
        The layout of the entries.
    min_repeats : int
        Entries are combined only if more than this number arrived for panes that already had entries.

    Attributes
    ----------
    parts : list of PanePartials
        The entries in the order of arrival.
    nbytes : int
        The memory of the parts in bytes.
    """

    def __init__(self, layout: WindowLayout, min_repeats: int) -> None:
        self._layout = layout
        self._min_repeats = min_repeats
        self.parts = [PanePartials.none(layout)]
        self._count = self.nbytes = 0
        self._again = 0
        """Number of entries that arrived for panes at or before the newest pane in the buffer."""
        self._newest: int | None = None

    def __len__(self) -> int:
        return self._count

    def add(self, partials: PanePartials) -> None:
        """Add entries."""
        if not len(partials):
            return
        self.parts.append(partials)
        # Keep sums, because there may be as many parts as there are micro-batches within a window's length.
        self._count += len(partials)
        self.nbytes += partials.nbytes
        if self._newest is not None:
            self._again += int(np.count_nonzero(partials.panes <= self._newest))
        newest = int(partials.panes.max())
        self._newest = newest if self._newest is None else max(newest, self._newest)
        if self._again > self._min_repeats and len(self) >= _MIN_DUPLICATION_TO_COMBINE * (
            len(self) - self._again
        ):
            self.replace(combine_duplicates(self._layout, self.whole()))

    def restrict(self, select: Callable[[PanePartials], npt.NDArray[np.bool_]]) -> None:
        """Keep the entries of each part that a function selects."""
        self.parts = [part.where(select(part)) for part in self.parts]
        self._count, self.nbytes = sum(map(len, self.parts)), sum(part.nbytes for part in self.parts)
        self._again = min(self._again, self._count)

    def whole(self) -> PanePartials:
        """Return all entries, sorted."""
        whole = merge_sorted(self.parts)
        self.parts = [whole]
        return whole

    def replace(self, partials: PanePartials) -> None:
        """Replace the content by these sorted entries."""
        self.parts = [partials]
        self._count, self.nbytes = len(partials), partials.nbytes
        self._again = 0
        self._newest = int(partials.panes.max()) if len(partials) else None
