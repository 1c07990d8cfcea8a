"""Panes of equal length in event time, shared by all groups and buckets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.units import NEVER
from penstock.windows.append.limits import PaneLimits
from penstock.windows.append.pane_partials import PanePartials, WindowRanges, sort_order
from penstock.windows.append.panes import DEFAULT_LIMITS, Panes
from penstock.windows.append.sorted_runs import merge_sorted
from penstock.windows.append.stacks import Stacks
from penstock.windows.layout import ENTRY_PANE, WindowLayout

__all__ = ["TimePanes"]


class TimePanes(Panes):
    """The pane partials of time windows; inputs are `WindowLayout.pane_schema`.

    A window closes for all groups when the watermark passes its end. So windows of silent groups also close,
    and such groups have no state after that. A partial is late if its pane is in no open window. In each
    micro-batch, all buckets have the same open windows, even buckets without partials.
    """

    def __init__(
        self, layout: WindowLayout, *, finalizes: bool = False, limits: PaneLimits = DEFAULT_LIMITS
    ) -> None:
        super().__init__(layout, finalizes=finalizes, limits=limits)
        self._stacks: Stacks | None = None
        self._next: int | None = None
        """The first window that has not closed."""

    def __len__(self) -> int:
        return super().__len__() + (0 if self._stacks is None else len(self._stacks))

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the state in bytes."""
        return super().size_bytes + (0 if self._stacks is None else self._stacks.nbytes)

    @property
    def border(self) -> int | None:
        """The pane before which all panes of all groups are final; None before the first watermark."""
        return self.watermark

    @property
    def oldest(self) -> int | None:
        """The first pane that is not late; None as long as no pane can be late."""
        return self._first_needed

    @property
    def _first_needed(self) -> int | None:
        """The first pane that is in an open window or, for `finalize_panes`, that is not final."""
        if self._finalizes:
            return self.watermark
        return None if self._next is None else self._layout.spec.start(self._next)

    def _enter(self, arriving: list[pa.RecordBatch], watermark: int | None) -> tuple[int, int]:
        layout, rows, late, parts = self._layout, 0, 0, []
        oldest = self.oldest
        for batch in arriving:
            counts = batch.column(layout.rows).to_numpy()
            rows += int(counts.sum())
            behind = None if oldest is None else batch.column(ENTRY_PANE).to_numpy() < oldest
            if behind is None or not behind.any():
                parts.append(self._partials_of(batch))
            else:
                late += int(counts[behind].sum())
                parts.append(self._partials_of(batch.filter(pa.array(~behind))))
        if parts:
            self._add(parts, resort=self._stacks is None)
        self._advance(watermark)
        return rows, late

    def _is_final(self, partials: PanePartials) -> npt.NDArray[np.bool_]:
        return partials.panes < (NEVER if self.watermark is None else self.watermark)

    def _order_final(self, partials: PanePartials) -> PanePartials:
        return partials.take(sort_order(partials.panes, np.arange(len(partials))))

    def _needed(self, partials: PanePartials) -> npt.NDArray[np.bool_]:
        return partials.panes >= (NEVER if self._first_needed is None else self._first_needed)

    def _close(self) -> Iterator[WindowRanges] | None:
        spec = self._layout.spec
        if self.watermark is None:
            return None
        last, before = spec.last_complete(self.watermark), self._next
        self._next = last + 1 if before is None else max(last + 1, before)
        if not len(self):
            return None
        first = before
        if first is None:
            first = spec.first_with(min(int(part.panes.min()) for part in self._held.parts if len(part)))
        if last < first:
            return None
        self._stack(first, last)
        needed = self._held.whole()
        if self._stacks is not None:
            needed, left = self._stacks.close(needed, first, last)
            self._held.replace(left)
        return self._find(needed, needed.panes, first, last)

    def _discard(self) -> None:
        held = self._held.whole()
        self._held.replace(held.where(self._needed(held)))
        self._forget_silent()

    def _stack(self, first: int, last: int) -> None:
        """Create stacks if the closing windows share most of their panes; otherwise drop the stacks."""
        spec, stacks, limits = self._layout.spec, self._stacks, self._limits
        if stacks is not None and spec.start(last) < stacks.border:
            return
        # Use no stacks for sets and sketches, whose suffixes would be much larger than their partials.
        shared = self._layout.fixed_size and (
            limits.min_sharing_for_stacks * (last - first + 1) * spec.slide <= spec.size
        )
        if stacks is not None and (not shared or self._many_silent()):
            self._held.replace(merge_sorted([*stacks.parts(), *self._held.parts]))
            self._stacks = stacks = None
            self._forget_silent()
        if not shared:
            return
        border = spec.start(first) + spec.size
        # The partials in the stacks were in closed windows, so their panes are before the border.
        below = [] if stacks is None else stacks.parts()
        below += [part.where(part.panes < border) for part in self._held.parts]
        if stacks is not None or sum(map(len, below)) >= limits.min_entries_for_stacks:
            self._held.restrict(lambda part: part.panes >= border)
            merged = merge_sorted(below)
            self._stacks = Stacks(self._layout, merged, border, len(self._index), limits)

    def _has_partials(self) -> npt.NDArray[np.bool_]:
        mask = super()._has_partials()
        if self._stacks is not None:
            mask[self._stacks.live()] = True
        return mask

    def _forget_silent(self) -> None:
        """Renumber groups if many have no partials, unless there are stacks, which hold group numbers."""
        if self._stacks is None:
            super()._forget_silent()

    # ----------------------------------------------------------------------------------------- state

    def delta(self) -> PUnit:
        """Return the needed partials that were added since the last call, to be stored."""
        return self._delta_unit(self._next)

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state, in p-units of bounded size."""
        parts = [] if self._stacks is None else self._stacks.parts()
        return iter(self._snapshot_units((*parts, *self._held.parts), self._next))

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply stored p-units in order."""
        for kind, same in groupby(units, key=lambda unit: unit.kind):
            if kind == "snapshot":
                self._held.replace(PanePartials.none(self._layout))
                self._stacks = None
            parts = (self._read_time(unit) for unit in same)
            # A snapshot may be cut into units anywhere, so sort its units together. Deltas follow each other.
            for part in [PanePartials.concat(parts)] if kind == "snapshot" else parts:
                self._held.add(part.sort())
        if self._first_needed is not None:
            self._held.restrict(self._needed)
            self._forget_silent()

    def _read_time(self, unit: PUnit) -> PanePartials:
        partials, self._next = self._read(unit)
        return partials
