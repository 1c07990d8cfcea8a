"""Panes of a fixed number of rows per group.

The rows of each group are numbered by time; equal times keep the order of arrival. A row gets its number when
the watermark has passed its time. A row that arrives with a time that the watermark has already passed is
late. Pane p has the rows from ``p * pane_rows`` on. So the panes of a group have no gaps, and a window is
complete when its last pane is complete. Windows that would start before a group's first row do not exist.

A bucket keeps the rows that the watermark has not passed, the count of numbered rows per group, and the
entries of panes that a window still needs. The counts determine the closed windows, so closed windows are not
stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import MAX_UNIT_ROWS, PUnit
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import grow
from penstock.windows.append.limits import PaneLimits
from penstock.windows.append.pane_partials import PanePartials, WindowRanges, empty, sort_order
from penstock.windows.append.panes import DEFAULT_LIMITS, Panes
from penstock.windows.append.run_accumulator import RunAccumulator
from penstock.windows.layout import ENTRY_PANE, RowLayout

__all__ = ["CountPanes"]

_NUMBERED, _WAITING = "numbered", "waiting"
_MAX_ROWS = 1 << 53


class CountPanes(Panes):
    """The rows and pane partials that incomplete windows need; inputs are `RowLayout.arriving`.

    A window closes when the watermark has passed its last row. A pane is final when it is full. Groups keep
    their numbers.

    Parameters
    ----------
    layout : RowLayout
        The layout of the windows.
    finalizes : bool
        See `Panes`.
    """

    def __init__(
        self, layout: RowLayout, *, finalizes: bool = False, limits: PaneLimits = DEFAULT_LIMITS
    ) -> None:
        super().__init__(layout, finalizes=finalizes, limits=limits)
        self._rows = layout
        self._accumulator = RunAccumulator(layout.partials, layout.arriving)
        self._waiting = empty(layout.arriving)
        at = layout.arriving.get_field_index(ENTRY_PANE)
        time = layout.arriving.field(at).with_nullable(False)
        self._stored_rows = layout.arriving.set(at, time)
        self._stored = 0
        """The number of waiting rows that are already stored. These rows come first."""
        self._numbered = np.zeros(0, np.int64)
        self._changed = np.zeros(0, np.bool_)
        self._next_windows = np.zeros(0, np.int64)
        """For each group, the first window that has not closed."""

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the state in bytes."""
        return super().size_bytes + self._waiting.nbytes + self._numbered.nbytes

    @property
    def border(self) -> int | None:
        """Always None, because different groups are at different panes."""
        return None

    @property
    def oldest(self) -> int | None:
        """The earliest time that is not late; None before the first watermark."""
        return self.watermark

    # ---------------------------------------------------------------------------------------- rows

    def _enter(self, arriving: list[pa.RecordBatch], watermark: int | None) -> tuple[int, int]:
        """Add rows, then number the rows that the watermark has passed."""
        before, held = self.oldest, self._waiting.num_rows
        rows = pa.concat_batches([self._waiting, *arriving])
        self._advance(watermark)
        times = rows.column(ENTRY_PANE).to_numpy()
        late = np.zeros(len(times), np.bool_)
        if before is not None:
            late[held:] = times[held:] < before
        passed = self._is_late(rows)
        self._number_rows(rows.take(pa.array(np.flatnonzero(passed & ~late))))
        left = np.flatnonzero(~passed)
        self._stored = int(np.searchsorted(left, self._stored))
        self._waiting = rows.take(pa.array(left))
        return len(times) - held, int(np.count_nonzero(late))

    def _is_late(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        times = rows.column(ENTRY_PANE).to_numpy()
        return np.zeros(len(times), np.bool_) if self.watermark is None else times <= self.watermark

    def _number_rows(self, rows: pa.RecordBatch) -> None:
        """Assign numbers to rows, and accumulate rows into entries of panes."""
        if not rows.num_rows:
            return
        times = rows.column(ENTRY_PANE).to_numpy()
        rows = rows.take(pa.array(np.argsort(times, kind="stable")))
        groups = [rows.column(name) for name in self._rows.groups.names]
        ids = self._index.find_or_add(self._codec.encode(groups, rows.num_rows))
        order = sort_order(ids, np.arange(len(ids)))
        ids = ids[order]
        self._make_room()
        begins = np.flatnonzero(np.diff(ids, prepend=-1))
        counts = np.diff(begins, append=len(ids))
        numbers = np.arange(len(ids)) + np.repeat(self._numbered[ids[begins]] - begins, counts)
        self._numbered[ids[begins]] += counts
        self._changed[ids[begins]] = True
        panes = numbers // self._rows.pane_rows
        starts = (np.diff(ids, prepend=-1) != 0) | (np.diff(panes, prepend=-1) != 0)
        values = self._accumulator.accumulate(rows.take(pa.array(order)), starts)
        self._add([PanePartials(ids[starts], panes[starts], values)])

    def _make_room(self) -> None:
        self._numbered = grow(self._numbered, len(self._index))
        self._changed = grow(self._changed, len(self._numbered))
        self._next_windows = grow(self._next_windows, len(self._numbered))

    # --------------------------------------------------------------------------------------- panes

    def _full(self) -> Integers:
        """Return the number of full panes of each group."""
        return self._numbered // self._rows.pane_rows

    def _is_final(self, partials: PanePartials) -> npt.NDArray[np.bool_]:
        return partials.panes < self._full()[partials.ids]

    def _order_final(self, partials: PanePartials) -> PanePartials:
        return partials.take(np.argsort(partials.values.column(self._rows.end).to_numpy(), kind="stable"))

    def _close(self) -> Iterator[WindowRanges] | None:
        return self._whole() if len(self) else None

    def _whole(self) -> Iterator[WindowRanges]:
        held = self._held.whole()
        spec, full, begun = self._rows.spec, self._full(), self._next_windows
        panes = held.panes - begun[held.ids] * spec.slide
        for ranges in self._find(held, panes, 0, int(panes.max()) // spec.slide):
            groups = ranges.known[ranges.of]
            windows = ranges.windows + begun[groups]
            whole = windows * spec.slide + spec.size <= full[groups]
            if whole.any():
                yield replace(
                    ranges,
                    of=ranges.of[whole],
                    windows=windows[whole],
                    low=ranges.low[whole],
                    high=ranges.high[whole],
                )

    def _discard(self) -> None:
        spec = self._rows.spec
        self._next_windows = np.maximum((self._full() - spec.size) // spec.slide + 1, 0)
        held = self._held.whole()
        self._held.replace(held.where(self._needed(held)))

    def _needed(self, partials: PanePartials) -> npt.NDArray[np.bool_]:
        needed = self._full() if self._finalizes else self._next_windows * self._rows.spec.slide
        return partials.panes >= needed[partials.ids]

    def _forget(self) -> None:
        """Do nothing, because the row counts are indexed by group numbers, which must stay."""

    # --------------------------------------------------------------------------------------- state

    def delta(self) -> PUnit:
        """Return the changes since the last call, to be stored."""
        unit = self._delta_unit()
        changed = np.flatnonzero(self._changed)
        waiting = self._waiting.slice(self._stored)
        self._changed[:] = False
        self._stored = self._waiting.num_rows
        return replace(unit, blocks={**unit.blocks, _NUMBERED: self._numbers(changed), _WAITING: waiting})

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state, in p-units of bounded size."""
        units = self._snapshot_units(self._held.parts)
        meta = units[-1].meta
        for begin in range(0, len(self._index), MAX_UNIT_ROWS):
            some = np.arange(begin, min(begin + MAX_UNIT_ROWS, len(self._index)))
            units.append(PUnit("snapshot", meta, {_NUMBERED: self._numbers(some)}))
        pieces = range(0, self._waiting.num_rows, MAX_UNIT_ROWS)
        parts = [self._waiting.slice(begin, MAX_UNIT_ROWS) for begin in pieces]
        return iter([*units, *(PUnit("snapshot", meta, {_WAITING: part}) for part in parts)])

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply p-units in order."""
        for unit in units:
            blocks = unit.blocks
            if "entries" in blocks:
                if unit.kind == "snapshot" and unit.fields.count("entries_before") == 0:
                    self._waiting = empty(self._rows.arriving)
                    self._held.replace(PanePartials.none(self._rows))
                partials, _ = self._read(unit)
                self._held.add(partials.sort())
            if _NUMBERED in blocks:
                count = pa.field(_NUMBERED, pa.int64(), nullable=False)
                block = unit.block(_NUMBERED, pa.schema([*self._rows.groups, count]))
                unit.numbers_below(_NUMBERED, _NUMBERED, _MAX_ROWS)
                *groups, numbered = block.columns
                ids = self._index.find_or_add(self._codec.encode(groups, len(numbered)))
                self._make_room()
                self._numbered[ids] = numbered.to_numpy()
            if _WAITING in blocks:
                self._waiting = pa.concat_batches([self._waiting, unit.block(_WAITING, self._stored_rows)])
        self._make_room()
        passed = self._is_late(self._waiting)
        self._waiting = self._waiting.take(pa.array(np.flatnonzero(~passed)))
        self._stored = self._waiting.num_rows
        self._changed[:] = False
        self._discard()

    def _numbers(self, ids: Integers) -> pa.RecordBatch:
        """Return groups with their counts of numbered rows."""
        groups = self._codec.decode(self._index.words, self._index.starts(ids))
        names = [*self._rows.groups.names, _NUMBERED]
        return pa.RecordBatch.from_arrays([*groups, pa.array(self._numbered[ids])], names)
