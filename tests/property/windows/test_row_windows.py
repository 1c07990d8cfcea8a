"""Windows of rows equal brute force, however the input is cut and the state stored in between."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._clock import SimulatedClock
from penstock.operators.scan.spec import Partial
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Budget, Query, serve
from penstock.windows.append.limits import PaneLimits
from penstock.windows.layout import ENTRY_PANE, START, RowLayout
from penstock.windows.panes import new_panes
from penstock.windows.spec import WindowSpec
from penstock.windows.update.results import WindowMode
from penstock.windows.update.windows import UpdateWindows, WindowArrivals
from tests.property.windows.test_panes import CHUNKS, stored

GROUPS = pa.schema([pa.field("group", pa.string())])
ARRIVING = pa.schema([*GROUPS, (ENTRY_PANE, pa.int64()), ("value", pa.float64()), ("hash", pa.int64())])
PARTIALS = (
    Partial("count", "*", "rows"),
    Partial("sum", "value", "sum"),
    Partial("max", "value", "max"),
    Partial("first", "value", "first"),
    Partial("last", "value", "last"),
    Partial("distinct", "value", "different"),
    Partial("sketch", "hash", "moments", 5),
    Partial("min", ENTRY_PANE, "start"),
    Partial("max", ENTRY_PANE, "end"),
)
TYPES = (pa.int64(), *[pa.float64()] * 4, pa.list_(pa.float64()), pa.binary(), pa.int64(), pa.int64())
TIMES = {"first": "start", "last": "end"}


class Row(NamedTuple):
    group: str | None
    time: int
    value: float


def layout_of(size: int, slide: int) -> RowLayout:
    rows = math.gcd(size, slide)
    spec = WindowSpec(size // rows, slide // rows)
    return RowLayout(spec, GROUPS, PARTIALS, TYPES, TIMES, "rows", rows, ARRIVING, "end")


def batch_of(rows: list[Row]) -> list[pa.RecordBatch]:
    columns = zip(*((*row, row.time << 32) for row in rows), strict=True)
    return [pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=ARRIVING)] if rows else []


def aggregates(rows: list[Row]) -> dict[str, Any]:
    values = [row.value for row in rows]
    return {
        "rows": len(rows),
        "sum": sum(values),
        "max": max(values),
        "first": values[0],
        "last": values[-1],
        "different": len(set(values)),
        "moments": len({row.time for row in rows}),
        "start": rows[0].time,
        "end": rows[-1].time,
    }


class Oracle:
    """Sorts everything anew in each micro-batch and takes every window of it."""

    def __init__(self, size: int, slide: int, delay: int) -> None:
        self.size, self.slide, self.delay = size, slide, delay
        self.arrived: list[Row] = []
        self.watermark: int | None = None
        self.late = 0

    def batch(self, rows: list[Row]) -> dict[tuple[Any, int], dict[str, Any]]:
        """Return all windows that are complete after these rows, by group and the number of the first row."""
        for row in rows:
            if self.watermark is not None and row.time < self.watermark:
                self.late += 1
            else:
                self.arrived.append(row)
        if rows:
            told = max(row.time for row in rows) - self.delay
            self.watermark = told if self.watermark is None else max(told, self.watermark)
        by_group: dict[Any, list[Row]] = defaultdict(list)
        for row in sorted(self.arrived, key=lambda row: row.time):
            if self.watermark is not None and row.time <= self.watermark:
                by_group[row.group].append(row)
        return {
            (group, start): aggregates(found[start : start + self.size])
            for group, found in by_group.items()
            for start in range(0, len(found) - self.size + 1, self.slide)
        }


ROWS = st.lists(
    st.builds(
        Row,
        st.sampled_from(["a", "b", "c", None]),
        st.integers(0, 30),
        st.integers(-3, 3).map(float),
    ),
    max_size=60,
)
SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9)).map(sorted)


def cut(rows: list[Row], data: st.DataObject, delay: int) -> list[list[Row]]:
    if data.draw(st.booleans()):
        rows = sorted(rows, key=lambda row: row.time + row.value)
    bounds = [0, *sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=6))), len(rows)]
    end = [Row("end", 40 + delay, 0.0)]
    return [*(rows[begin:end] for begin, end in pairwise(bounds)), end]


@settings(deadline=None)
@given(rows=ROWS, sizes=SIZES, delay=st.integers(0, 8), data=st.data())
def test_in_append_mode_each_window_comes_once_when_its_last_row_is_there(
    rows: list[Row], sizes: list[int], delay: int, data: st.DataObject
) -> None:
    slide, size = sizes
    layout, oracle = layout_of(size, slide), Oracle(size, slide, delay)
    limits = PaneLimits(
        chunk_windows=data.draw(CHUNKS), unit_entries=data.draw(st.sampled_from([1, 3, 1000]))
    )
    state, units, late = new_panes(layout, limits=limits), [], 0
    known: dict[tuple[Any, int], dict[str, Any]] = {}
    for batch in cut(rows, data, delay):
        expected = oracle.batch(batch)
        newest = max((row.time for row in batch), default=None)
        done = state.run(batch_of(batch), None if newest is None else newest - delay)
        for windows in done.windows:
            assert windows.schema == layout.window
            for row in windows.to_pylist():
                key = row["group"], row[START] * layout.pane_rows
                assert key not in known
                known[key] = {name: row[name] for name in aggregates([Row("", 0, 0.0)])}
        assert known == expected
        assert done.rows_in == len(batch)
        late += done.late
        units += stored([state.delta()])
        how = data.draw(st.sampled_from(["keep", "deltas", "snapshot"]))
        if how == "snapshot":
            units = stored(state.snapshot())
        if how != "keep":
            state = new_panes(layout, limits=limits)
            state.restore(units)
    assert late == oracle.late
    # A group keeps less than a window, and a slide that is not full.
    assert len(state) <= 4 * (size + slide)


@settings(deadline=None)
@given(
    rows=ROWS,
    sizes=SIZES,
    delay=st.integers(0, 8),
    mode=st.sampled_from([WindowMode.LAZY, WindowMode.EAGER]),
    budget=st.one_of(st.none(), st.integers(1, 3)),
    data=st.data(),
)
def test_in_update_modes_windows_are_whole_and_the_most_recent_ones(
    rows: list[Row],
    sizes: list[int],
    delay: int,
    mode: WindowMode,
    budget: int | None,
    data: st.DataObject,
) -> None:
    slide, size = sizes
    layout, oracle = layout_of(size, slide), Oracle(size, slide, delay)
    state, units = UpdateWindows(layout, mode, Policy.IN_PLACE), []
    clock, complete = SimulatedClock(1000), 0
    last: dict[Any, int] = {}
    count = disregarded = 0
    for batch in [*cut(rows, data, delay), *[[]] * (1 if budget is None else 10)]:
        closed = oracle.batch(batch)
        newest = max((row.time for row in batch), default=None)
        entering = WindowArrivals(batch_of(batch), None if newest is None else newest - delay)
        query = Query(None, layout.window, ())
        found, metrics = serve(state, entering, query=query, budget=Budget(budget), clock=clock)
        clock.advance(1000)
        served = [row for windows in found for row in windows.to_pylist()]
        for row in served:
            group, start = row["group"], row[START] * layout.pane_rows
            assert {name: row[name] for name in aggregates([Row("", 0, 0.0)])} == closed[group, start]
            assert start > last.get(group, -1)
            last[group] = start
        if mode is WindowMode.LAZY and budget is None:
            assert last == {group: max(s for g, s in closed if g == group) for group, _ in closed}
        assert budget is None or len(served) <= budget
        count, disregarded, complete = count + len(served), disregarded + metrics.conflated, len(closed)
        units += stored([state.delta()])
        how = data.draw(st.sampled_from(["keep", "deltas", "snapshot"]))
        if how == "snapshot":
            units = stored(state.snapshot())
        if how != "keep":
            state = UpdateWindows(layout, mode, Policy.IN_PLACE)
            state.restore(units)
    assert not state.servable
    assert count + disregarded == complete, "each window was emitted or a newer one came"
