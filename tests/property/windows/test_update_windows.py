"""Windows with update semantics are whole windows of brute force, the most recent of each group."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._clock import SimulatedClock
from penstock.errors import InvalidUsageError
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.results import Served
from penstock.operators.scheduling.serve import Budget, Query, serve
from penstock.operators.scheduling.weights import GroupKey, KeyWeights
from penstock.windows.layout import START
from penstock.windows.update.results import WindowMode
from penstock.windows.update.windows import UpdateWindows, WindowArrivals
from tests.oracles.naive_panes import Row, Windows, aggregated, batches_of
from tests.property.windows import test_row_windows
from tests.property.windows.test_panes import AGGREGATES, ROWS, entries_of, layout_of, stored

Found = list[tuple[Any, int, dict[str, Any]]]


def served(
    state: UpdateWindows, rows: list[Row], watermark: int | None, budget: Budget, clock: SimulatedClock
) -> tuple[Found, BatchMetrics]:
    """Run one micro-batch; return group, first pane and aggregates of each window, in their order."""
    layout = state._layout
    entering = WindowArrivals([entries_of(rows, layout)] if rows else [], watermark)
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
    weights=st.sampled_from([None, {}, {"a": 9.0, "c": 0.1}]),
    data=st.data(),
)
def test_windows_are_whole_and_the_most_recent_ones(
    rows: list[Row],
    size: int,
    slide: int,
    mode: WindowMode,
    policy: Policy,
    budget: int | None,
    weights: dict[str, float] | None,
    data: st.DataObject,
) -> None:
    slide = min(slide, size)
    rows = sorted(rows, key=lambda row: row.pane)
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=6))
    layout, oracle = layout_of(size, slide), Windows(size, slide, 0)
    by_group = None if weights is None else KeyWeights(GroupKey(layout.groups), weights)
    arguments = (layout, mode, policy, by_group)
    state, units, clock = UpdateWindows(*arguments), [], SimulatedClock(1000)
    # With a weight of one for all, the order is that without.
    twin = UpdateWindows(*arguments) if weights else UpdateWindows(layout, mode, policy)
    twins_clock = SimulatedClock(1000)
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
            state = UpdateWindows(*arguments)
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


@pytest.mark.parametrize("mode", [WindowMode.LAZY, WindowMode.EAGER])
def test_groups_that_matter_more_are_served_first(mode: WindowMode) -> None:
    layout, clock = layout_of(4, 4), SimulatedClock(0)
    names = ["d", None, "b", "a", "c"]
    by_group = KeyWeights(GroupKey(layout.groups), {"a": 100.0, "b": 0.01, "c": 4.0})
    # As windows have it: the newest value of each group.
    by_value = next(one.name for one in layout.partials if one.kind == "last")
    weight_of = {"a": 100.0, "b": 0.01, "c": 4.0}
    rows = [Row(name, 0, weight_of.get(str(name), 1.0)) for name in names]
    for weights in (by_group, by_value):
        state = UpdateWindows(layout, mode, Policy.IN_PLACE, weights)
        order = []
        for batch in [[*rows, Row("end", 5, 1.0)], *[[]] * 6]:
            found, _ = served(state, batch, 5, Budget(1), clock)
            order += [group for group, _, _ in found]
        assert order == ["a", "c", "d", None, "b"]


@pytest.mark.parametrize("wrong", [None, 0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("count_windows", [False, True])
def test_what_has_no_weight_is_refused_when_it_arrives_and_the_rest_goes_on(
    wrong: float | None, count_windows: bool
) -> None:
    # No pane is finalized in the first micro-batch: a later one would find it in the state, for ever.
    layout = test_row_windows.layout_of(2, 2) if count_windows else layout_of(4, 4)
    weight = next(one.name for one in layout.partials if one.kind == "last")
    state = UpdateWindows(layout, WindowMode.LAZY, Policy.IN_PLACE, weight)

    def entering(*rows: Any, watermark: int) -> WindowArrivals:
        if count_windows:
            made = [test_row_windows.Row(*row) for row in rows]
            return WindowArrivals(test_row_windows.batch_of(made), watermark)
        return WindowArrivals([entries_of([Row(*row) for row in rows], layout)], watermark)

    state.enqueue(entering(("a", 1, 1.0), watermark=-1), 0)
    with pytest.raises(InvalidUsageError, match="the weight of tuples is not positive and finite: tuples=1"):
        state.enqueue(entering(("b", 1, 2.0), ("c", 2, wrong), watermark=-1), 0)
    state.enqueue(entering(("b", 1, 2.0), ("a", 3, 1.0), ("b", 3, 2.0), watermark=20), 0)
    assert state.dequeue(9, 0).rows.column("group").to_pylist() == ["b", "a"]


class _Slow(UpdateWindows):
    """Windows that take a millisecond each."""

    def __init__(self, mode: WindowMode, clock: SimulatedClock) -> None:
        super().__init__(layout_of(4, 4), mode, Policy.IN_PLACE)
        self._clock = clock

    def dequeue(self, limit: int, now_us: int) -> Served:
        made = super().dequeue(limit, now_us)
        self._clock.advance(1000 * len(made.ids))
        return made


@pytest.mark.parametrize("mode", [WindowMode.LAZY, WindowMode.EAGER])
def test_a_budget_of_time_is_for_making_windows(mode: WindowMode) -> None:
    clock = SimulatedClock(0)
    state = _Slow(mode, clock)
    rows = [Row(str(number), 0, 1.0) for number in range(200)]
    emitted, takes = [], []
    for batch in [[*rows, Row("end", 100, 0.0)], *[[]] * 9]:
        begin = clock()
        _, metrics = served(state, batch, 100, Budget(duration_us=40_000), clock)
        emitted.append(metrics.emitted)
        takes.append(clock() - begin - 1000)
    assert sum(emitted) == 200
    assert not state.servable
    assert all(count >= 40 for count in emitted[:4]), "the budget is used while keys wait"
    assert max(takes) <= 50_000, "and exceeded by a chunk at most"
    assert state.measured_cost_us == pytest.approx(1000, rel=0.5)
    again, _ = served(
        state,
        [Row("0", 104, 1.0), Row("1", 104, 1.0), Row("end", 120, 1.0)],
        120,
        Budget(duration_us=1),
        clock,
    )
    assert len(again) == 1, "there is progress, however short the time"
