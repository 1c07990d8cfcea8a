"""The panes of one bucket: what windows are assembled from, as state between micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.operators.stream import Integers
from penstock.operators.windows import sliding_kernels as kernels
from penstock.operators.windows.groups import GroupCodec
from penstock.operators.windows.layout import (
    ENTRY_PANE,
    Assembled,
    Closed,
    Found,
    Settled,
    WindowLayout,
)
from penstock.operators.windows.sliding import slide
from penstock.state_store.key_index import KeyIndex
from penstock.state_store.keys import Keys

__all__ = ["Panes", "empty", "sorted_by"]

_UNIT_ENTRIES = 1 << 20
_CHUNK_WINDOWS = 1 << 20
_CROWDED = 1.5
"""Entries of equal pane and group are combined once there are so many for each pane and group."""
_FEW = 1024
_LEAST = np.iinfo(np.int64).min
_SILENT = 2
"""Groups are numbered anew once there were so many for each that has entries."""
_WIDE = 4
"""Values of a range up to so many times their number are sorted by counting."""


class Panes:
    """The entries that an open window needs. Used by one task at a time; not thread-safe.

    Windows close as the watermark passes their end, all groups' at once, so groups that went silent close as
    others do and leave nothing behind. An entry belongs to each window of its pane that is still open; one
    of which none is open is late. What is open does not depend on what is here: the buckets of a micro-batch
    agree on it, also those that had nothing to close.

    Parameters
    ----------
    layout : WindowLayout
        What windows are made of.
    settles : bool
        Whether panes are handed over as they settle (`settle`), rather than windows as they close (`run`).
        Then groups keep their numbers.
    """

    def __init__(self, layout: WindowLayout, *, settles: bool = False) -> None:
        self._layout = layout
        self._settles = settles
        self._codec = GroupCodec(list(layout.groups))
        self._index = KeyIndex()
        self._ids = np.zeros(0, np.int64)
        self._panes = np.zeros(0, np.int64)
        self._fresh = np.zeros(0, np.bool_)
        self._in_order = 0
        self._entries = [empty(layout.values)]
        self.watermark: int | None = None
        """All panes before it have arrived, but for late ones; None before the first entry."""
        self._next: int | None = None

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._ids)

    @property
    def size_bytes(self) -> int:
        """How much memory the state holds, roughly."""
        held = sum(batch.nbytes for batch in self._entries)
        return held + self._ids.nbytes + self._panes.nbytes + self._index.size_bytes

    def close(self) -> None:
        """Do nothing: memory goes with the object."""

    def run(
        self,
        arriving: Iterable[pa.RecordBatch],
        watermark: int | None,
        finish: Callable[[Closed], pa.RecordBatch] | None = None,
    ) -> Assembled:
        """Let entries in, then close the windows before a watermark.

        Parameters
        ----------
        arriving : iterable of pyarrow.RecordBatch
            Of `WindowLayout.entry`, in order of arrival.
        watermark : int, optional
            All panes before it have arrived; the greatest one ever given counts.
        finish : callable, optional
            What is done with windows in batches of bounded size; its results stand in their place.
        """
        rows_in, late = self._enter(list(arriving), watermark)
        count, windows = 0, []
        for closed in self._close():
            count += len(closed.of)
            windows.append(closed.batch(self._layout.window) if finish is None else finish(closed))
        return Assembled(windows, rows_in, late, self._live(), count)

    def _enter(self, arriving: list[pa.RecordBatch], watermark: int | None) -> tuple[int, int]:
        """Add entries, then note the watermark; return how many rows came, and how many of these are late."""
        layout, rows, late = self._layout, 0, 0
        oldest = self._oldest
        for batch in arriving:
            counts = batch.column(layout.rows).to_numpy()
            rows += int(counts.sum())
            behind = None if oldest is None else batch.column(ENTRY_PANE).to_numpy() < oldest
            if behind is None or not behind.any():
                self._append(batch, fresh=True)
            else:
                late += int(counts[behind].sum())
                self._append(batch.filter(pa.array(~behind)), fresh=True)
        self._pass(watermark)
        return rows, late

    def _pass(self, watermark: int | None) -> None:
        if watermark is not None:
            self.watermark = watermark if self.watermark is None else max(self.watermark, watermark)

    @property
    def _oldest(self) -> int | None:
        """The first pane that is not late; None while none is."""
        if self._settles:
            return self.watermark
        return None if self._next is None else self._layout.spec.start(self._next)

    def settle(self, arriving: Iterable[pa.RecordBatch], watermark: int | None) -> tuple[Settled, int, int]:
        """Let entries in, then hand over the panes before a watermark, each pane of a group once.

        Returns
        -------
        settled : Settled
            In the order of panes, and of groups by their numbers.
        rows_in, late : int
            Rows that came, and those of panes that were handed over before.
        """
        rows_in, late = self._enter(list(arriving), watermark)
        if not self._done().any():
            none = np.zeros(0, np.int64)
            return Settled(none, none, empty(self._layout.values)), rows_in, late
        self._sort()
        chosen = np.flatnonzero(self._done())
        ids, panes, entries = self._ids[chosen], self._panes[chosen], self._whole().take(pa.array(chosen))
        starts = np.empty(len(ids), np.int64)
        low = starts[: kernels.find_runs(ids, panes, starts)]
        if len(low) < len(ids):
            high = np.append(low[1:], len(ids))
            entries = slide(
                self._layout.partials, self._layout.times, panes, entries, low, high, closing=False
            )
            ids, panes = ids[low], panes[low]
        order = self._in_time(panes, entries)
        self._keep(~self._done())
        return Settled(ids[order], panes[order], entries.take(pa.array(order))), rows_in, late

    def _done(self) -> npt.NDArray[np.bool_]:
        """Return which entries are of panes of which nothing more comes."""
        return self._panes < (_LEAST if self.watermark is None else self.watermark)

    def _in_time(self, panes: Integers, entries: pa.RecordBatch) -> Integers:
        """Return panes, which are sorted by group, in the order in which they settled."""
        return sorted_by(panes, np.arange(len(panes)))

    @property
    def border(self) -> int | None:
        """The pane before which all panes of all groups have settled; None if there is no such."""
        return self.watermark

    @property
    def groups(self) -> int:
        """How many groups have a number."""
        return len(self._index)

    def numbers_of(self, keys: Keys) -> Integers:
        """Return the numbers of groups, -1 for one that was never seen."""
        return self._index.find(keys)

    def groups_of(self, ids: Integers) -> list[pa.Array[Any]]:
        """Return the columns of groups by their numbers."""
        return self._codec.decode(self._index.words, self._index.starts(ids))

    def number(self, columns: list[pa.Array[Any]], rows: int) -> None:
        """Give groups their numbers, in this order."""
        self._index.find_or_add(self._codec.encode(columns, rows))

    def _append(self, batch: pa.RecordBatch, *, fresh: bool) -> None:
        layout, rows = self._layout, batch.num_rows
        if not rows:
            return
        keys = self._codec.encode([batch.column(name) for name in layout.groups.names], rows)
        ids, panes = self._index.find_or_add(keys), batch.column(ENTRY_PANE).to_numpy()
        self._add(ids, panes, [batch.column(name) for name in layout.values.names], fresh=fresh)

    def _add(self, ids: Integers, panes: Integers, values: list[pa.Array[Any]], *, fresh: bool) -> None:
        self._ids = np.concatenate([self._ids, ids])
        self._panes = np.concatenate([self._panes, panes])
        self._fresh = np.concatenate([self._fresh, np.full(len(ids), fresh)])
        self._entries.append(pa.RecordBatch.from_arrays(values, schema=self._layout.values))

    def _close(self) -> Iterator[Closed]:
        """Yield the windows that the watermark closes, and let go of what no other needs."""
        spec = self._layout.spec
        if self.watermark is None:
            return
        last, before = spec.last_complete(self.watermark), self._next
        self._next = last + 1 if before is None else max(last + 1, before)
        if not len(self):
            return
        first = spec.first_with(int(self._panes.min())) if before is None else before
        if last < first:
            return
        self._sort()
        for found in self._found(self._panes, first, last):
            yield self._closed(found)
        self._keep(self._panes >= spec.start(self._next))

    def _sort(self) -> None:
        """Sort entries by group and pane, those of equal ones by arrival."""
        known, count = self._in_order, len(self)
        if known == count:
            return
        order = sorted_by(self._panes[known:], np.arange(count - known))
        order = sorted_by(self._ids[known:], order) + known
        if known:
            merged = np.empty(count, np.int64)
            kernels.merge(self._ids, self._panes, known, order, merged)
            order = merged
        self._take(order)
        self._in_order = count

    def _live(self) -> int:
        """Return how many groups have an entry."""
        return int(np.count_nonzero(np.bincount(self._ids)))

    def _take(self, order: Integers) -> None:
        self._ids, self._panes, self._fresh = self._ids[order], self._panes[order], self._fresh[order]
        self._entries = [self._whole().take(pa.array(order))]

    def _keep(self, kept: npt.NDArray[np.bool_]) -> None:
        if kept.all():
            return
        in_order = int(np.count_nonzero(kept[: self._in_order]))
        self._take(np.flatnonzero(kept))
        self._in_order = in_order
        if not self._settles and len(self._index) > _SILENT * self._live() + _FEW:
            self._forget()

    def _whole(self) -> pa.RecordBatch:
        """Return the partials of all entries as one batch."""
        if len(self._entries) > 1:
            self._entries = [pa.concat_batches(self._entries)]
        return self._entries[0]

    def _forget(self) -> None:
        """Give groups new numbers, leaving out those without entries."""
        known, again = np.unique(self._ids, return_inverse=True)
        groups = self._codec.decode(self._index.words, self._index.starts(known))
        self._index = KeyIndex()
        self._ids = self._index.find_or_add(self._codec.encode(groups, len(known)))[again]

    def _found(self, panes: Integers, first: int, last: int) -> Iterator[Found]:
        """Return the windows from `first` to `last`, of sorted entries, in batches of bounded size."""
        spec, ids = self._layout.spec, self._ids
        count = kernels.count_windows(ids, panes, spec.size, spec.slide, first, last)
        pieces = -(-count // _CHUNK_WINDOWS)
        cuts = [int(np.searchsorted(ids, ids[len(ids) * i // pieces])) for i in range(1, pieces)]
        for begin, end in pairwise([0, *cuts, len(ids)]):
            piece = slice(begin, end)
            if pieces > 1:
                count = kernels.count_windows(ids[piece], panes[piece], spec.size, spec.slide, first, last)
            if not count:
                continue
            groups, windows, low, high = (np.empty(count, np.int64) for _ in range(4))
            kernels.find_windows(
                ids[piece], panes[piece], spec.size, spec.slide, first, last, groups, windows, low, high
            )
            yield Found(piece, groups, windows, low, high)

    def _closed(self, found: Found) -> Closed:
        known, of = self._groups(found.groups)
        values = self._slide(found.piece, found.low, found.high, closing=True)
        return Closed(known, of, pa.array(found.windows * self._layout.spec.slide), values)

    def _slide(self, piece: slice, low: Integers, high: Integers, *, closing: bool) -> pa.RecordBatch:
        layout, entries = self._layout, self._whole().slice(piece.start, piece.stop - piece.start)
        return slide(layout.partials, layout.times, self._panes[piece], entries, low, high, closing=closing)

    def _groups(self, ids: Integers) -> tuple[list[pa.Array[Any]], pa.Array[Any]]:
        """Return the groups of ids, of which equal ones stand together, and of each id the place in them."""
        begins = np.flatnonzero(np.diff(ids, prepend=-1))
        of = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(ids)))
        return self._codec.decode(self._index.words, self._index.starts(ids[begins])), pa.array(of)

    # --------------------------------------------------------------------------------------- state

    def delta(self) -> PUnit:
        """Return the entries that came since the last call and are still needed, to be stored."""
        unit = self._unit("delta", np.flatnonzero(self._fresh))
        self._fresh[:] = False
        self._combine()
        return unit

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole state of this moment, in units of at most `_UNIT_ENTRIES` entries."""
        begins = range(0, max(len(self), 1), _UNIT_ENTRIES)
        rows = np.arange(len(self))
        # Made here and now, for the panes go on changing while they are written.
        return iter([self._unit("snapshot", rows[begin : begin + _UNIT_ENTRIES]) for begin in begins])

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply units in their order."""
        for unit in units:
            if unit.kind == "snapshot" and unit.meta["entries_before"] == 0:
                self._take(np.zeros(0, np.int64))
                self._in_order = 0
            self._append(unit.blocks["entries"], fresh=False)
            self.watermark, self._next = unit.meta["watermark"], unit.meta["next"]
        oldest = self._oldest
        if oldest is not None and len(self):
            self._keep(self._panes >= oldest)

    def _unit(self, kind: str, rows: Integers) -> PUnit:
        ids = self._ids[rows]
        known, at = np.unique(ids, return_inverse=True)
        groups = self._codec.decode(self._index.words, self._index.starts(known))
        columns = [column.take(pa.array(at)) for column in groups]
        values = self._whole().take(pa.array(rows))
        entries = pa.RecordBatch.from_arrays(
            [*columns, pa.array(self._panes[rows]), *values.columns], schema=self._layout.entry
        )
        first = int(rows[0]) if len(rows) else 0
        meta = {"watermark": self.watermark, "next": self._next, "rows": len(self), "entries_before": first}
        return PUnit(kind=kind, meta=meta, blocks={"entries": entries})

    def _combine(self) -> None:
        """Make one entry of those of equal group and pane, where there are many."""
        if len(self) < _FEW:
            return
        self._sort()
        starts = np.empty(len(self), np.int64)
        count = kernels.find_runs(self._ids, self._panes, starts)
        if len(self) < _CROWDED * count:
            return
        low = starts[:count]
        high = np.append(low[1:], len(self))
        self._entries = [self._slide(slice(0, len(self)), low, high, closing=False)]
        self._ids, self._panes, self._fresh = self._ids[low], self._panes[low], self._fresh[low]
        self._in_order = count


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
