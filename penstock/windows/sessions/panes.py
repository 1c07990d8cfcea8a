"""Session windows: events of a group with less than a gap between consecutive events.

The map side makes fragments of panes that are at most a gap long. Two events in one pane are less than a gap
apart, so all events of a fragment belong to one session. A fragment has the times of its first and last
event. A bucket combines fragments that are less than a gap apart, and keeps one entry for each open session.

A session closes when the watermark is at least a gap past its last event. From then on, every event that
could continue the session is late. An event older than the watermark is used in two cases: it belongs to an
open session, or it makes a session that is still open. Otherwise the event is late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.errors import InternalError
from penstock.operators.scan.fragments.keys import bare_values
from penstock.operators.update_stream.stream import Integers
from penstock.windows.append import sliding_kernels
from penstock.windows.append.limits import PaneLimits
from penstock.windows.append.pane_partials import PanePartials, WindowRanges, sort_order
from penstock.windows.append.panes import DEFAULT_LIMITS, Panes
from penstock.windows.append.sliding import slide
from penstock.windows.append.sorted_runs import combine_duplicates, merge_sorted
from penstock.windows.layout import SessionLayout
from penstock.windows.sessions import session_kernels
from penstock.windows.sessions.late_sessions import LateSessions

__all__ = ["SessionPanes"]


class SessionPanes(Panes):
    """The open sessions of a bucket; inputs are `WindowLayout.pane_schema`.

    The watermark is a time, in units of the time column. An entry's pane is the pane of its first event.

    Parameters
    ----------
    layout : SessionLayout
        The layout of the sessions.
    finalizes : bool
        Must be false: a session has no final panes.
    """

    def __init__(
        self, layout: SessionLayout, *, finalizes: bool = False, limits: PaneLimits = DEFAULT_LIMITS
    ) -> None:
        if finalizes:
            raise InternalError("sessions have no final panes")
        super().__init__(layout, limits=limits)
        self._sessions = layout
        self.late_sessions: LateSessions | None = None
        """The sessions that the last micro-batch dropped."""

    @property
    def border(self) -> int | None:
        """Always None, because sessions of groups end at different times."""
        return None

    # ------------------------------------------------------------------------------------- sessions

    def _enter(self, arriving: list[pa.RecordBatch], watermark: int | None) -> tuple[int, int]:
        """Combine input with open sessions, then advance the watermark."""
        parts = [self._partials_of(batch) for batch in arriving]
        rows = sum(int(part.values.column(self._sessions.rows).to_numpy().sum()) for part in parts)
        before, self.late_sessions = self.watermark, None
        self._advance(watermark)
        late = self._combine(PanePartials.concat(parts), before) if rows else 0
        return rows, late

    def _combine(self, fresh: PanePartials, before: int | None) -> int:
        """Combine entries with open sessions; return the number of late rows, which are dropped.

        Parameters
        ----------
        fresh : PanePartials
            The entries to combine, at least one, in order of arrival.
        before : int, optional
            The watermark before these entries arrived.
        """
        layout, held = self._sessions, self._held.whole()
        touched = np.zeros(self.groups, np.bool_)
        touched[fresh.ids] = True
        concerned = touched[held.ids]
        mine, others = held.where(concerned), held.where(~concerned)
        both = PanePartials.concat([mine, fresh])
        order = sort_order(both.ids, sort_order(both.panes, np.arange(len(both))))
        both = both.take(order)
        runs = np.empty(len(both), np.int64)
        runs = runs[: sliding_kernels.find_runs(both.ids, both.panes, runs)]
        # If times are equal, the first or last arrival is used, so combine each pane separately, in order.
        partials = combine_duplicates(layout, both, always=True)
        firsts, lasts = (self._times(partials, name) for name in layout.bounds)
        low = np.empty(len(partials), np.int64)
        low = low[: session_kernels.find_sessions(partials.ids, firsts, lasts, layout.gap, low)]
        high = np.append(low, len(partials))[1:]
        ends = np.maximum.reduceat(lasts, low)
        # Restoring removes closed sessions, so only entries of open sessions are stored.
        sizes = np.diff(runs[low], append=len(both))
        stored = np.repeat(~self._is_closed(ends, self.watermark), sizes) & (order >= len(mine))
        if stored.any():
            self._arrived.append(both.where(stored))
        late = self._is_closed(ends, before)
        counts = np.add.reduceat(partials.values.column(layout.rows).to_numpy(), low)
        if late.any():
            groups = self.groups_of(partials.ids[low[late]])
            self.late_sessions = LateSessions(groups, firsts[low[late]], ends[late])
            sizes = (high - low)[~late]
            partials = partials.where(np.repeat(~late, high - low))
            high = np.cumsum(sizes)
            low = high - sizes
        if len(low):
            # The times of `first` and `last` values order them, so no panes are needed.
            none = np.zeros(len(partials), np.int64)
            values = slide(layout.partials, layout.times, none, partials.values, low, high, closing=False)
            combined = PanePartials(partials.ids[low], partials.panes[low], values)
            self._held.replace(merge_sorted([others, combined]))
        return int(counts[late].sum())

    @staticmethod
    def _times(partials: PanePartials, name: str) -> Integers:
        return bare_values(partials.values.column(name)).astype(np.int64, copy=False)

    def _is_closed(self, lasts: Integers, watermark: int | None) -> npt.NDArray[np.bool_]:
        """Mark sessions whose last event is at least a gap before a watermark."""
        if watermark is None:
            return np.zeros(len(lasts), np.bool_)
        passed = (np.int64(watermark) - lasts).view(np.uint64) >= np.uint64(self._sessions.gap)
        return (lasts < watermark) & passed

    def _split(self) -> tuple[PanePartials, PanePartials]:
        """Return the sessions that the watermark closes, and the open sessions."""
        held = self._held.whole()
        closed = self._is_closed(self._times(held, self._sessions.bounds[1]), self.watermark)
        return held.where(closed), held.where(~closed)

    def _close(self) -> Iterator[WindowRanges] | None:
        closed, left = self._split()
        if not len(closed):
            return None
        self._held.replace(left)
        most = self._limits.chunk_windows
        return (self._ranges(closed.piece(low, low + most)) for low in range(0, len(closed), most))

    @staticmethod
    def _ranges(partials: PanePartials) -> WindowRanges:
        group_ids, of = np.unique(partials.ids, return_inverse=True)
        each = np.arange(len(partials))
        return WindowRanges(partials, group_ids, of, partials.panes, each, each + 1)

    def _discard(self) -> None:
        self._forget_silent()

    # --------------------------------------------------------------------------------- final panes

    def _is_final(self, partials: PanePartials) -> npt.NDArray[np.bool_]:
        raise InternalError("sessions have no final panes")

    def _order_final(self, partials: PanePartials) -> PanePartials:
        raise InternalError("sessions have no final panes")

    # --------------------------------------------------------------------------------------- state

    def _needed(self, partials: PanePartials) -> npt.NDArray[np.bool_]:
        return np.ones(len(partials), np.bool_)

    def delta(self) -> PUnit:
        """Return the entries of open sessions that were added since the last call, to be stored."""
        return self._delta_unit()

    def snapshot(self) -> Iterator[PUnit]:
        """Return the open sessions, in p-units of bounded size."""
        return iter(self._snapshot_units(self._held.parts))

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply p-units in order. The watermark of each unit determines which entries form one session."""
        for kind, same in groupby(units, key=lambda unit: unit.kind):
            if kind == "snapshot":
                self._held.replace(PanePartials.none(self._layout))
            parts = (self._read(unit)[0] for unit in same)
            for part in [PanePartials.concat(parts)] if kind == "snapshot" else parts:
                if len(part):
                    self._combine(part, None)
                self._held.replace(self._split()[1])
        self._arrived = []
        self._forget_silent()
