"""The choice between panes by time, panes by number of rows, and sessions."""

from __future__ import annotations

from penstock.windows.append.deleting_panes import DeletingPanes
from penstock.windows.append.limits import PaneLimits
from penstock.windows.append.panes import DEFAULT_LIMITS, Panes
from penstock.windows.append.time_panes import TimePanes
from penstock.windows.counted.panes import CountPanes
from penstock.windows.layout import DeletingLayout, RowLayout, SessionLayout, WindowLayout
from penstock.windows.sessions.panes import SessionPanes

__all__ = ["new_panes"]


def new_panes(layout: WindowLayout, *, finalizes: bool = False, limits: PaneLimits = DEFAULT_LIMITS) -> Panes:
    """Return empty panes for windows of a layout; see `Panes`."""
    if isinstance(layout, RowLayout):
        return CountPanes(layout, finalizes=finalizes, limits=limits)
    if isinstance(layout, SessionLayout):
        return SessionPanes(layout, finalizes=finalizes, limits=limits)
    if isinstance(layout, DeletingLayout):
        return DeletingPanes(layout, finalizes=finalizes, limits=limits)
    return TimePanes(layout, finalizes=finalizes, limits=limits)
