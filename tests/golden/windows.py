"""Windows whose stored states are fixtures: the input before each version, and the input after the last."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock._clock import SimulatedClock
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Budget, Query, serve
from penstock.windows.append.panes import Panes
from penstock.windows.layout import WindowLayout
from penstock.windows.panes import new_panes
from penstock.windows.update.results import WindowMode
from penstock.windows.update.windows import UpdateWindows, WindowArrivals
from tests.oracles.naive_panes import Row
from tests.property.windows import test_panes, test_row_windows

KINDS = {
    "append": (WindowMode.APPEND, False),
    "lazy": (WindowMode.LAZY, False),
    "eager": (WindowMode.EAGER, False),
    "rows_append": (WindowMode.APPEND, True),
    "rows_lazy": (WindowMode.LAZY, True),
}
"""Of each fixture the mode, and whether windows are of rows."""

_ROWS = [
    [Row(group, pane, pane / 4) for pane in range(12) for group in ("a", "b", None)],
    [Row(group, pane, -pane / 4) for pane in (14, 10, 13, 20, 19) for group in ("c", "a", None)],
    [Row("b", pane, 1.0) for pane in range(20, 60)],
]
_WATERMARKS = (11, 18, 59)
VERSIONS = 2


def layout_of(kind: str) -> WindowLayout:
    """Return the layout of a fixture's windows."""
    return test_row_windows.layout_of(6, 2) if KINDS[kind][1] else test_panes.layout_of(6, 2)


def new_state(kind: str) -> Panes | UpdateWindows:
    """Return the state of a fixture before its first version."""
    mode, layout = KINDS[kind][0], layout_of(kind)
    if mode is WindowMode.APPEND:
        return new_panes(layout)
    return UpdateWindows(layout, mode, Policy.LINECUTTING)


def step(state: Panes | UpdateWindows, kind: str, number: int) -> list[dict[str, Any]]:
    """Add the input after a number of versions; return the windows that close, at the end all of them."""
    layout = layout_of(kind)
    arriving = _arriving(kind, layout, _ROWS[number])
    if isinstance(state, Panes):
        return [row for one in state.run(arriving, _WATERMARKS[number]).windows for row in one.to_pylist()]
    state.given_cost_us = 5.0
    clock = SimulatedClock(1000 * (number + 1))
    budget = Budget(1) if number < VERSIONS else Budget()
    entering = WindowArrivals(arriving, _WATERMARKS[number])
    batches, _ = serve(state, entering, query=Query(None, layout.window, ()), budget=budget, clock=clock)
    return [row for one in batches for row in one.to_pylist()]


def _arriving(kind: str, layout: WindowLayout, rows: list[Row]) -> list[pa.RecordBatch]:
    if not KINDS[kind][1]:
        return [test_panes.entries_of(rows, layout)]
    return test_row_windows.batch_of([test_row_windows.Row(r.group, r.pane, r.value or 0.0) for r in rows])
