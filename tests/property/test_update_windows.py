"""Windows with update semantics are whole windows of brute force, the most recent of each group."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._clock import SimulatedClock
from penstock.operators.key_queue import Policy
from penstock.operators.metrics import BatchMetrics
from penstock.operators.serve import Budget, Query, serve
from penstock.operators.windows.layout import START
from penstock.operators.windows.results import WindowMode
from penstock.operators.windows.update import Entering, UpdateWindows
from tests.naive_panes import Row, Windows, aggregated, batches_of
from tests.property.test_panes import AGGREGATES, ROWS, entries_of, layout_of, stored

Found = list[tuple[Any, int, dict[str, Any]]]


def served(
    state: UpdateWindows, rows: list[Row], watermark: int | None, budget: Budget, clock: SimulatedClock
) -> tuple[Found, BatchMetrics]:
    """Run one micro-batch; return group, first pane and aggregates of each window, in their order."""
    layout = state._layout
    entering = Entering([entries_of(rows, layout)] if rows else [], watermark)
    batches, metrics = serve(
        state, entering, query=Query(None, layout.window, ()), budget=budget, clock=clock
    )
    clock.advance(1000)
    found = [row for batch in batches for row in batch.to_pylist()]
    return [(row["group"], row[START], {name: row[name] for name in AGGREGATES}) for row in found], metrics


@settings(deadline=None)
@given(
    rows=ROWS,
    size=st.integers(1, 9),
    slide=st.integers(1, 9),
    mode=st.sampled_from([WindowMode.LAZY, WindowMode.EAGER]),
    policy=st.sampled_from(Policy),
    budget=st.one_of(st.none(), st.integers(1, 3)),
    data=st.data(),
)
def test_windows_are_whole_and_the_most_recent_ones(
    rows: list[Row],
    size: int,
    slide: int,
    mode: WindowMode,
    policy: Policy,
    budget: int | None,
    data: st.DataObject,
) -> None:
    slide = min(slide, size)
    rows = sorted(rows, key=lambda row: row.pane)
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=6))
    layout, oracle = layout_of(size, slide), Windows(size, slide, 0)
    state, units, clock = UpdateWindows(layout, mode, policy), [], SimulatedClock(1000)
    twin, twins_clock = UpdateWindows(layout, mode, policy), SimulatedClock(1000)
    closed: dict[Any, dict[str, Any]] = {}
    last: dict[Any, int] = {}
    count = disregarded = 0
    newest: int | None = None
    ends = [[Row("end", 100, 0.0)], *[[]] * (1 if budget is None else 10)]
    for batch in [*batches_of(rows, cuts), *ends]:
        newest = max([row.pane for row in batch] + ([] if newest is None else [newest]), default=None)
        now = aggregated(oracle.batch(batch), AGGREGATES)
        closed |= now
        found, metrics = served(state, batch, newest, Budget(budget), clock)
        assert served(twin, batch, newest, Budget(budget), twins_clock)[0] == found
        for group, start, values in found:
            assert values == closed[group, start], "a window is neither cut nor mixed"
            assert start > last.get(group, start - 1), "windows of a group come in their order"
            last[group] = start
        assert budget is None or len(found) <= budget
        assert metrics.emitted == len(found)
        assert metrics.rows_in == len(batch)
        assert not metrics.late
        if mode is WindowMode.LAZY and budget is None:
            most_recent: dict[Any, int] = {}
            for group, start in now:
                most_recent[group] = max(start, most_recent.get(group, start))
            assert {group: start for group, start, _ in found} == most_recent
        count, disregarded = count + len(found), disregarded + metrics.conflated
        units += stored([state.delta()])
        how = data.draw(st.sampled_from(["keep", "deltas", "snapshot"]))
        if how == "snapshot":
            units = stored(state.snapshot())
        if how != "keep":
            state = UpdateWindows(layout, mode, policy)
            state.restore(units)
    assert count + disregarded == len(closed), "each window was emitted or a newer one came"
    assert not state.servable


def test_what_comes_after_its_pane_settled_is_late() -> None:
    layout = layout_of(4, 2)
    state, clock = UpdateWindows(layout, WindowMode.LAZY, Policy.IN_PLACE), SimulatedClock(0)
    served(state, [Row("a", 0, 1.0), Row("a", 9, 1.0)], 6, Budget(), clock)
    _, metrics = served(state, [Row("a", 5, 1.0), Row("a", 6, 1.0), Row("b", 5, 1.0)], 6, Budget(), clock)
    assert metrics.late == 2
    assert metrics.rows_in == 3
