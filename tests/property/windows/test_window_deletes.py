"""Windows with deletes equal brute force, however the input is cut and the state stored in between."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._clock import SimulatedClock
from penstock.operators.queues.key_records import ForgetRule
from penstock.operators.scan.spec import Partial
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Budget, Query, serve
from penstock.units import NEVER
from penstock.upserts import DELETED, Columns, newest_changes
from penstock.upserts.sql.sqlite import SqliteTable
from penstock.windows.append.limits import PaneLimits
from penstock.windows.append.panes import DEFAULT_LIMITS
from penstock.windows.layout import ENTRY_PANE, START, DeletingLayout
from penstock.windows.panes import new_panes
from penstock.windows.spec import WindowSpec
from penstock.windows.update.results import WindowMode
from penstock.windows.update.windows import UpdateWindows, WindowArrivals
from tests.property.windows.test_panes import stored
from tests.property.windows.test_window_lives import Dictionary, waiting_in

GROUPS = pa.schema([pa.field("group", pa.string())])
ARRIVING = pa.schema(
    [*GROUPS, (ENTRY_PANE, pa.int64()), ("value", pa.float64()), ("at", pa.int64()), ("deletes", pa.int64())]
)
PARTIALS = (
    Partial("count", "*", "rows"),
    Partial("count", "value", "known"),
    Partial("sum", "value", "sum"),
    Partial("max", "value", "max"),
    Partial("first", "value", "first"),
    Partial("min", "at", "start"),
    Partial("last", "value", "last"),
    Partial("max", "at", "end"),
    Partial("distinct", "value", "different"),
    Partial("max", "deletes", "mark"),
)
FLOAT = pa.float64()
TYPES = (
    pa.int64(), pa.int64(), FLOAT, FLOAT, FLOAT, pa.int64(), FLOAT, pa.int64(), pa.list_(FLOAT), pa.int64()
)  # fmt: skip
TIMES = {"first": "start", "last": "end"}
STEPS = 3
"""The length of a pane."""
Found = dict[tuple[Any, int], dict[str, Any] | None]


class Row(NamedTuple):
    group: str | None
    time: int
    value: float | None
    deletes: bool


def layout_of(size: int, slide: int) -> DeletingLayout:
    return DeletingLayout(
        WindowSpec(size, slide), GROUPS, PARTIALS, TYPES, TIMES, "rows", ARRIVING, STEPS, "mark"
    )


def batch_of(rows: list[Row]) -> list[pa.RecordBatch]:
    columns = zip(
        *((row.group, row.time, row.value, row.time, int(row.deletes)) for row in rows), strict=True
    )
    return [pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=ARRIVING)] if rows else []


def aggregates(rows: list[Row]) -> dict[str, Any]:
    known = [row.value for row in rows if row.value is not None]
    return {
        "rows": len(rows),
        "known": len(known),
        "sum": sum(known) if known else None,
        "max": max(known, default=None),
        "first": rows[0].value,
        "last": rows[-1].value,
        "different": len(set(known)),
    }


class Oracle:
    """Keeps all rows in a list, and takes every window of it; None is the result of a deleted window."""

    def __init__(self, size: int, slide: int, delay: int) -> None:
        self.size, self.slide, self.delay = size * STEPS, slide * STEPS, delay
        self.arrived: list[Row] = []
        self.border: int | None = None
        self.late = 0

    def batch(self, rows: list[Row]) -> Found:
        """Return the windows that these rows complete, by group and first pane."""
        before = self.border
        taken = [row for row in rows if before is None or row.time >= before]
        self.late += len(rows) - len(taken)
        self.arrived += taken
        if rows:
            told = (max(row.time for row in rows) - self.delay) // STEPS * STEPS
            self.border = told if before is None else max(before, told)
        windows: dict[tuple[Any, int], list[Row]] = defaultdict(list)
        for row in sorted(self.arrived, key=lambda row: row.time):
            for start in range(row.time // self.slide * self.slide, row.time - self.size, -self.slide):
                windows[row.group, start].append(row)
        closed: Found = {}
        for (group, start), found in windows.items():
            end = start + self.size
            if self.border is None or end > self.border or (before is not None and end <= before):
                continue
            last = max((place for place, row in enumerate(found) if row.deletes), default=-1)
            kept = found[last + 1 :]
            closed[group, start // STEPS] = aggregates(kept) if kept else None
        return closed


def shown(rows: list[dict[str, Any]]) -> list[tuple[Any, int, dict[str, Any] | None]]:
    names = ("rows", "known", "sum", "max", "first", "last", "different")
    return [
        (
            row["group"],
            row[START],
            None if row["mark"] == DeletingLayout.DELETE_LAST else {name: row[name] for name in names},
        )
        for row in rows
    ]


ROWS = st.lists(
    st.builds(
        Row,
        st.sampled_from(["a", "b", None]),
        st.integers(0, 40),
        st.one_of(st.none(), st.integers(-3, 3).map(float)),
        st.sampled_from([False, False, True]),
    ),
    max_size=35,
)


@settings(deadline=None)
@given(
    rows=ROWS,
    size=st.integers(1, 6),
    slide=st.integers(1, 6),
    delay=st.integers(0, 12),
    kind=st.sampled_from(["append", *WindowMode]),
    budget=st.one_of(st.none(), st.integers(1, 2)),
    ttl=st.one_of(st.none(), st.integers(1, 4)),
    data=st.data(),
)
def test_a_window_has_the_rows_behind_its_newest_delete(
    rows: list[Row],
    size: int,
    slide: int,
    delay: int,
    kind: WindowMode,
    budget: int | None,
    ttl: int | None,
    data: st.DataObject,
) -> None:
    slide = min(slide, size)
    ttl = None if kind == WindowMode.APPEND or budget is not None else ttl
    if data.draw(st.booleans()):
        rows = sorted(rows, key=lambda row: row.time)
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=6))
    layout, oracle = layout_of(size, slide), Oracle(size, slide, delay)
    limits = PaneLimits(unit_entries=3) if data.draw(st.booleans()) else DEFAULT_LIMITS

    def new() -> Any:
        if kind == WindowMode.APPEND:
            return new_panes(layout, limits=limits)
        forgetting = ForgetRule(min_idle=1, idle_per_kept=0.5)
        return UpdateWindows(layout, WindowMode(kind), Policy.IN_PLACE, ttl=ttl, forgetting=forgetting)

    lives = Dictionary(size, slide, 0 if ttl is None else ttl)
    state, units, clock = new(), [], SimulatedClock(1000)
    closed: Found = {}
    last: dict[Any, int] = {}
    late = count = disregarded = 0
    newest: int | None = None
    bounds = [0, *sorted(cuts), len(rows)]
    ends: list[list[Row]] = [[Row("end", 100, 0.0, False)], *([] for _ in range(6))]
    for batch in [*(rows[begin:end] for begin, end in pairwise(bounds)), *ends]:
        newest = max([row.time for row in batch] + ([] if newest is None else [newest]), default=None)
        watermark = None if newest is None else newest - delay
        halves = [batch[: len(batch) // 3], batch[len(batch) // 3 :]]
        arriving = [one for half in halves for one in batch_of(half)]
        first = NEVER if oracle.border is None else oracle.border
        for row in batch:
            if row.time >= first:
                lives.newest[row.group] = max(row.time // STEPS, lives.newest.get(row.group, NEVER))
        now = oracle.batch(batch)
        closed |= now
        if kind == WindowMode.APPEND:
            done = state.run(arriving, watermark)
            made = shown([row for windows in done.windows for row in windows.to_pylist()])
            assert {(group, start): values for group, start, values in made} == now
            assert len(made) == len(now)
            late += done.late
        else:
            query = Query(None, layout.window, ())
            batches, metrics = serve(
                state, WindowArrivals(arriving, watermark), query=query, budget=Budget(budget), clock=clock
            )
            made = shown([row for windows in batches for row in windows.to_pylist()])
            late, disregarded = late + metrics.late, disregarded + metrics.conflated
            if kind is WindowMode.LAZY and budget is None:
                recent: dict[Any, int] = {}
                for group, start in now:
                    recent[group] = max(start, recent.get(group, start))
                assert {group: start for group, start, _ in made} == recent
        for group, start, values in made:
            assert values == closed[group, start]
            assert start > last.get(group, start - 1)
            last[group] = start
        assert late == oracle.late
        count += len(made)
        if ttl is not None:
            left = state.expire()
            gone = {} if oracle.border is None else lives.leave(oracle.border // STEPS, waiting_in(state))
            assert dict(zip(left.groups[0].to_pylist(), left.newest.tolist(), strict=True)) == gone
            # A group whose rows all wait for their pane has no number yet.
            done = sum(pane < (oracle.border or 0) // STEPS for pane in lives.newest.values())
            assert done <= state.keys <= len(lives.newest)
        units += stored([state.delta()])
        how = data.draw(st.sampled_from(["keep", "deltas", "snapshot"]))
        if how == "snapshot":
            units = stored(state.snapshot())
        if how != "keep":
            state = new()
            state.restore(units)
    assert count + disregarded == len(closed)


@settings(deadline=None, max_examples=30)
@given(
    rows=ROWS,
    cuts=st.lists(st.integers(0, 35), max_size=5),
    kind=st.sampled_from(["append", *WindowMode]),
    budget=st.one_of(st.none(), st.integers(1, 2)),
    replay=st.booleans(),
)
def test_a_table_has_the_newest_windows_that_are_not_deleted(
    rows: list[Row], cuts: list[int], kind: WindowMode, budget: int | None, *, replay: bool
) -> None:
    layout, oracle, clock = layout_of(3, 2), Oracle(3, 2, 4), SimulatedClock(1000)
    rows = [row for row in rows if row.group is not None]
    state: Any = new_panes(layout)
    if kind != WindowMode.APPEND:
        state = UpdateWindows(layout, WindowMode(kind), Policy.IN_PLACE)
    schema = pa.schema([*GROUPS, (START, pa.int64()), ("rows", pa.int64()), ("sum", FLOAT)])
    table = SqliteTable(":memory:", "live", Columns(schema, ("group",), START, deletes=True))
    table.prepare(create=True)
    closed: Found = {}
    served: dict[Any, int] = {}
    ends: list[list[Row]] = [[Row("end", 100, 0.0, False)], *([] for _ in range(6))]
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for batch in [*(rows[begin:end] for begin, end in pairwise(bounds)), *ends]:
        closed |= oracle.batch(batch)
        watermark = max(row.time for row in batch) - 4 if batch else None
        if kind == WindowMode.APPEND:
            made = state.run(batch_of(batch), watermark).windows
        else:
            entering, query = WindowArrivals(batch_of(batch), watermark), Query(None, layout.window, ())
            made, _ = serve(state, entering, query=query, budget=Budget(budget), clock=clock)
        windows = pa.Table.from_batches(made, layout.window)
        gone = pc.equal(windows["mark"], DeletingLayout.DELETE_LAST)
        changes = windows.select(schema.names).append_column(DELETED, gone)
        for row in windows.to_pylist():
            served[row["group"]] = max(row[START], served.get(row["group"], row[START]))
        for _ in range(1 + replay):
            if changes.num_rows:
                table.write(newest_changes(changes, ("group",), START))
    newest: dict[Any, int] = {}
    for group, start in closed:
        newest[group] = max(start, newest.get(group, start))
    assert kind is WindowMode.EAGER or served == newest
    assert served.keys() == newest.keys()
    found = table.connection.execute('SELECT "group", "rows", "sum" FROM live').fetchall()
    table.close()
    kept = {group: closed[group, start] for group, start in served.items()}
    assert {row[0]: row[1:] for row in found} == {
        group: (values["rows"], values["sum"]) for group, values in kept.items() if values is not None
    }


def test_a_delete_empties_the_window_that_has_it_and_a_later_row_fills_the_next_one() -> None:
    state, clock = UpdateWindows(layout_of(2, 1), WindowMode.LAZY, Policy.IN_PLACE), SimulatedClock(0)
    # Panes of three steps; the delete is in the middle of the second one.
    rows = [
        Row("a", 1, 5.0, False),
        Row("a", 4, 7.0, False),
        Row("a", 4, None, True),
        Row("end", 6, 1.0, False),
    ]
    found = []
    for batch in (rows, [Row("a", 8, 2.0, False), Row("end", 9, 1.0, False)]):
        entering = WindowArrivals(batch_of(batch), batch[-1].time)
        made, _ = serve(
            state, entering, query=Query(None, state._layout.window, ()), budget=Budget(), clock=clock
        )
        found += [one for batches in made for one in shown(batches.to_pylist()) if one[0] == "a"]
    assert [(start, values and values["sum"]) for _, start, values in found] == [(0, None), (1, 2.0)]


def test_rows_that_were_folded_do_not_wait_again_after_a_restart() -> None:
    layout, units = layout_of(3, 3), []
    state = new_panes(layout)
    for row, watermark in ((Row("a", 1, 5.0, False), 1), (Row("b", 4, 1.0, False), 4)):
        state.run(batch_of([row]), watermark)
        units.append(state.delta())
    state = new_panes(layout)
    state.restore(stored(units))
    (windows,) = state.run([], 9).windows
    assert shown(windows.to_pylist())[0][2] == aggregates([Row("a", 1, 5.0, False)])
