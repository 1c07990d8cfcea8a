"""Groups leave lazy and eager windows as they leave a dictionary, also across reloads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._clock import SimulatedClock
from penstock.operators.queues.key_records import ForgetRule
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Budget
from penstock.windows.update.results import WindowMode
from penstock.windows.update.windows import UpdateWindows
from tests.oracles.naive_panes import Row, Windows, aggregated
from tests.property.windows.test_panes import AGGREGATES, layout_of, stored
from tests.property.windows.test_update_windows import served

BATCHES = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 5), st.integers(0, 9)), max_size=6
    ),
    max_size=8,
)


class Dictionary:
    """The newest pane of each group that has not left."""

    def __init__(self, size: int, slide: int, ttl: int) -> None:
        self.size, self.slide, self.ttl = size, slide, ttl
        self.newest: dict[Any, int] = {}

    def leave(self, watermark: int, waiting: set[Any]) -> dict[Any, int]:
        """Return the groups that leave: silent, with all windows complete, and none that waits."""
        gone = {
            group: pane
            for group, pane in self.newest.items()
            if pane + 1 + self.ttl <= watermark
            and pane // self.slide * self.slide + self.size <= watermark
            and group not in waiting
        }
        for group in gone:
            del self.newest[group]
        return gone


def waiting_in(state: UpdateWindows) -> set[Any]:
    """Return the groups with a window that waits or is committed."""
    groups = state.groups_of(range(state._panes.groups))[0].to_pylist()  # type: ignore[arg-type]
    states = [state._queue.states(number) for number in range(len(groups))]
    return {
        group
        for group, one in zip(groups, states, strict=True)
        if {str(name) for name in one} & {"wait", "ready", "idle"}
    }


@settings(deadline=None)
@given(
    batches=BATCHES,
    size=st.integers(1, 4),
    slide=st.integers(1, 4),
    delay=st.integers(0, 3),
    ttl=st.integers(1, 9),
    mode=st.sampled_from([WindowMode.LAZY, WindowMode.EAGER]),
    policy=st.sampled_from(Policy),
    data=st.data(),
)
def test_groups_leave_as_they_leave_a_dictionary_and_windows_stay_the_same(
    batches: list[list[tuple[Any, int, int]]],
    size: int,
    slide: int,
    delay: int,
    ttl: int,
    mode: WindowMode,
    policy: Policy,
    data: st.DataObject,
) -> None:
    slide = min(slide, size)
    layout, oracle, model = layout_of(size, slide), Windows(size, slide, delay), Dictionary(size, slide, ttl)
    forgetting = ForgetRule(min_idle=1, idle_per_kept=0.5)

    def new(**life: Any) -> UpdateWindows:
        return UpdateWindows(layout, mode, policy, **life)

    state, plain = new(ttl=ttl, forgetting=forgetting), new()
    clocks = SimulatedClock(1000), SimulatedClock(1000)
    follower = new(ttl=ttl, forgetting=forgetting)
    units: list[Any] = []
    missed: list[Any] = []
    closed: dict[Any, Any] = {}
    now, total = 0, 0
    newest: int | None = None
    for batch in [*batches, *([("end", 9, 1)] for _ in range(3))]:
        rows = [Row(group, now + step, float(value)) for group, step, value in batch]
        before = None if newest is None else newest - delay
        newest = max([row.pane for row in rows] + ([] if newest is None else [newest]), default=None)
        now = now if newest is None else max(now, newest - 3)
        watermark = None if newest is None else newest - delay
        kept = [row for row in rows if before is None or row.pane >= before]
        closed |= aggregated(oracle.batch(kept), AGGREGATES)
        found, metrics = served(state, rows, watermark, Budget(), clocks[0])
        assert all(values == closed[group, start] for group, start, values in found)
        same, others = served(plain, rows, watermark, Budget(), clocks[1])
        if not policy.uses_rates:
            # In which order depends on the numbers of groups, which a group that returns may lose.
            assert sorted(found, key=repr) == sorted(same, key=repr), "a group that returns makes the same"
        assert metrics.late == others.late == len(rows) - len(kept)
        for row in kept:
            model.newest[row.group] = max(row.pane, model.newest.get(row.group, row.pane))
        silent = state.expire()
        left = dict(zip(silent.groups[0].to_pylist(), silent.newest.tolist(), strict=True))
        assert left == ({} if watermark is None else model.leave(watermark, waiting_in(state)))
        assert silent.newest.tolist() == sorted(silent.newest.tolist())
        total += len(left)
        assert state.keys == len(model.newest)
        plain.delta()
        made = stored([state.delta()])
        units, missed = units + made, missed + made
        assert state._panes.groups <= max(1, 0.5 * state.keys) + state.keys + 4
        how = data.draw(st.sampled_from(["keep", "deltas", "snapshot", "follow"]))
        if how == "snapshot":
            units = stored(state.snapshot())
        if how in ("snapshot", "deltas"):
            state = new(ttl=ttl, forgetting=forgetting)
            state.restore(units)
        if how == "follow":
            follower.restore(missed)
            state, follower, missed = follower, state, []
        assert state.keys == len(model.newest)
    assert state._lives.expired == total


def test_units_of_states_without_a_time_to_live_are_taken_up_by_one_with_it() -> None:
    layout, clock = layout_of(2, 1), SimulatedClock(0)
    plain = UpdateWindows(layout, WindowMode.LAZY, Policy.IN_PLACE)
    units = []
    for watermark, group in ((1, "a"), (3, "b"), (5, "c")):
        served(plain, [Row(group, watermark - 1, 1.0)], watermark, Budget(), clock)
        units += stored([plain.delta()])
    state = UpdateWindows(layout, WindowMode.LAZY, Policy.IN_PLACE, ttl=3, forgetting=ForgetRule(0, 0.0))
    state.restore(units)
    served(state, [], 7, Budget(), clock)
    assert state.expire().groups[0].to_pylist() == ["a", "b"]
    units += stored([state.delta()])
    again = UpdateWindows(layout, WindowMode.LAZY, Policy.IN_PLACE)
    again.restore(units)
    assert again.keys == state.keys == 1
    found, _ = served(again, [Row("a", 9, 2.0), Row("c", 8, 5.0)], 11, Budget(), clock)
    assert sorted(group for group, _, _ in found) == ["a", "c"]


@pytest.mark.parametrize("mode", [WindowMode.LAZY, WindowMode.EAGER])
def test_a_group_stays_while_its_window_waits(mode: WindowMode) -> None:
    clock = SimulatedClock(0)
    state = UpdateWindows(layout_of(1, 1), mode, Policy.IN_PLACE, ttl=2)
    rows = [Row("a", 0, 1.0), Row("b", 0, 1.0)]
    left = []
    for _ in range(4):
        served(state, rows, 9, Budget(1), clock)
        left.append(len(state.expire()))
        state.delta()
        rows = []
    assert left == [1, 1, 0, 0]
