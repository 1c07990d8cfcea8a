"""Panes of windows of time whose rows may delete their group.

A delete removes the older rows of its group, and rows of equal time that arrived before it. So a window
aggregates the rows after its newest delete. If no row follows that delete, the window's result is a delete. A
window that ends before a delete does not contain it, and keeps its rows.

What a delete removes depends on the exact order of rows. So rows wait until the watermark has passed their
pane. Then the rows after the pane's last delete are folded into the pane's partials. If no row follows that
delete, the delete itself is folded. The partial `DeletingLayout.mark` records which of the two was folded. A
window ignores all panes before its last pane with a delete. A row is late if the watermark has passed its
pane.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import MAX_UNIT_ROWS, PUnit
from penstock.operators.update_stream.stream import Integers
from penstock.units import NEVER
from penstock.windows.append.limits import PaneLimits
from penstock.windows.append.pane_partials import PanePartials, WindowRanges, empty, sort_order
from penstock.windows.append.panes import DEFAULT_LIMITS
from penstock.windows.append.run_accumulator import RunAccumulator
from penstock.windows.append.time_panes import TimePanes
from penstock.windows.layout import ENTRY_PANE, ClosedWindows, DeletingLayout

__all__ = ["DeletingPanes", "skip_deleted"]

_WAITING = "waiting"


def skip_deleted(layout: DeletingLayout, values: pa.RecordBatch, low: Integers, high: Integers) -> Integers:
    """Return the first entry of each window that deletes have not removed.

    Parameters
    ----------
    values : pyarrow.RecordBatch
        The partials of panes, sorted by group and pane.
    low, high : int64 arrays
        The non-empty ranges of the windows.

    Returns
    -------
    int64 array
        The first entry of each window: the entry after its last delete, or the delete itself if no entry
        follows it.
    """
    marks = values.column(layout.mark).to_numpy()
    last = np.maximum.accumulate(np.where(marks != layout.NO_DELETE, np.arange(len(marks)), -1))[high - 1]
    alone = (marks[last] == layout.DELETE_LAST) & (last + 1 < high)
    return np.maximum(low, last + alone)


class DeletingPanes(TimePanes):
    """The pane partials of time windows whose rows may delete their group.

    The input batches have the schema `DeletingLayout.arriving`. `run` takes watermarks as times; the state
    stores them as panes.
    """

    def __init__(
        self, layout: DeletingLayout, *, finalizes: bool = False, limits: PaneLimits = DEFAULT_LIMITS
    ) -> None:
        super().__init__(layout, finalizes=finalizes, limits=limits)
        self._deletes = layout
        self._accumulator = RunAccumulator(layout.partials, layout.arriving)
        self._flag = next(one.expression for one in layout.partials if one.name == layout.mark)
        self._waiting = empty(layout.arriving)
        at = layout.arriving.get_field_index(ENTRY_PANE)
        self._stored_rows = layout.arriving.set(at, layout.arriving.field(at).with_nullable(False))
        self._stored = 0
        """The number of waiting rows that are already stored. These rows come first."""

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the state in bytes."""
        return super().size_bytes + self._waiting.nbytes

    @property
    def oldest(self) -> int | None:
        """The first pane that is not late; None as long as no pane can be late."""
        return self.watermark

    def _enter(self, arriving: list[pa.RecordBatch], watermark: int | None) -> tuple[int, int]:
        """Add rows, then accumulate the rows of panes that the watermark has passed."""
        before, held = self.watermark, self._waiting.num_rows
        rows = pa.concat_batches([self._waiting, *arriving])
        self._advance(None if watermark is None else watermark // self._deletes.pane_steps)
        late = self._panes(rows) < (NEVER if before is None else before)
        late[:held] = False
        passed = self._passed(rows)
        self._accumulate(rows.take(pa.array(np.flatnonzero(passed & ~late))))
        left = np.flatnonzero(~passed)
        self._stored = int(np.searchsorted(left, self._stored))
        self._waiting = rows.take(pa.array(left))
        return rows.num_rows - held, int(np.count_nonzero(late))

    def _panes(self, rows: pa.RecordBatch) -> Integers:
        panes: Integers = rows.column(ENTRY_PANE).to_numpy() // self._deletes.pane_steps
        return panes

    def _passed(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        return self._panes(rows) < (NEVER if self.watermark is None else self.watermark)

    def _accumulate(self, rows: pa.RecordBatch) -> None:
        """Accumulate the rows of whole panes, in order of arrival, into partials."""
        if not rows.num_rows:
            return
        groups = [rows.column(name) for name in self._deletes.groups.names]
        ids = self._codec.numbers(self._index, groups, rows.num_rows)
        order = np.argsort(rows.column(ENTRY_PANE).to_numpy(), kind="stable")
        order = order[sort_order(ids[order], np.arange(len(ids)))]
        rows, ids = rows.take(pa.array(order)), ids[order]
        panes = self._panes(rows)
        deletes = rows.column(self._flag).to_numpy() != 0
        starts = (np.diff(ids, prepend=-1) != 0) | (np.diff(panes, prepend=-1) != 0)
        begins = np.flatnonzero(starts)
        ends = np.append(begins[1:], len(ids))
        last = np.maximum.reduceat(np.where(deletes, np.arange(len(ids)), -1), begins)
        alone = last == ends - 1
        marks = np.where(last < 0, self._deletes.NO_DELETE, self._deletes.DELETE_INSIDE)
        marks = np.where(alone, self._deletes.DELETE_LAST, marks)
        counts = ends - begins
        first = np.maximum(begins, last + ~alone)
        kept = np.arange(len(ids)) >= np.repeat(first, counts)
        place = rows.schema.get_field_index(self._flag)
        told = pa.array(np.repeat(marks, counts).astype(np.int64))
        rows = rows.set_column(place, rows.schema.field(place), told).filter(pa.array(kept))
        starts = np.zeros(len(ids), np.bool_)
        starts[first] = True
        values = self._accumulator.accumulate(rows, starts[kept])
        self._add([PanePartials(ids[begins], panes[begins], values)])

    def live_groups(self) -> npt.NDArray[np.bool_]:
        """Return a mask, by group number, of the groups that have tuples in these panes."""
        groups = [self._waiting.column(name) for name in self._deletes.groups.names]
        ids = self._index.find(self._codec.encode(groups, self._waiting.num_rows))
        live = self._has_partials()
        live[ids[ids >= 0]] = True
        return live

    def _collect_closed(self, ranges: WindowRanges, reads: Container[str] | None) -> ClosedWindows:
        low = skip_deleted(self._deletes, ranges.partials.values, ranges.low, ranges.high)
        return super()._collect_closed(replace(ranges, low=low), reads)

    # ----------------------------------------------------------------------------------------- state

    def delta(self) -> PUnit:
        """Return the changes since the last call, to be stored."""
        unit = super().delta()
        waiting = self._waiting.slice(self._stored)
        self._stored = self._waiting.num_rows
        return replace(unit, blocks={**unit.blocks, _WAITING: waiting})

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state, in p-units of bounded size."""
        units = list(super().snapshot())
        meta, waiting = units[-1].meta, self._waiting
        pieces = range(0, waiting.num_rows, MAX_UNIT_ROWS)
        rows = [PUnit("snapshot", meta, {_WAITING: waiting.slice(begin, MAX_UNIT_ROWS)}) for begin in pieces]
        return iter([*units, *rows])

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply p-units in order."""
        pane_units = []
        for unit in units:
            if "entries" in unit.blocks:
                if unit.kind == "snapshot" and unit.fields.count("entries_before") == 0:
                    self._waiting = empty(self._deletes.arriving)
                pane_units.append(unit)
            if _WAITING in unit.blocks:
                self._waiting = pa.concat_batches([self._waiting, unit.block(_WAITING, self._stored_rows)])
        super().restore(pane_units)
        passed = self._passed(self._waiting)
        self._waiting = self._waiting.filter(pa.array(~passed))
        self._stored = self._waiting.num_rows
