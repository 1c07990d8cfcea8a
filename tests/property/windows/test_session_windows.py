"""Session windows equal brute force and Polars, however the input is cut and the state stored."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators.scan.fragments import Fragmenter
from penstock.operators.scan.spec import PANE, Fragments, Partial
from penstock.windows.append.limits import PaneLimits
from penstock.windows.layout import ENTRY_PANE, SessionLayout
from penstock.windows.panes import new_panes
from penstock.windows.sessions import session_kernels
from penstock.windows.spec import WindowSpec
from tests.long_tests import examples
from tests.oracles.naive_windows import Event, Sessions
from tests.property.windows.test_panes import stored

GROUPS = pa.schema([pa.field("group", pa.string())])
PARTIALS = (
    Partial("count", "*", "rows"),
    Partial("count", "value", "known"),
    Partial("sum", "value", "sum"),
    Partial("m2", "value", "m2"),
    Partial("max", "value", "max"),
    Partial("first", "value", "head"),
    Partial("last", "value", "tail"),
    Partial("distinct", "value", "different"),
    Partial("sketch", "hash", "about", 6),
    Partial("min", "time", "first"),
    Partial("max", "time", "last"),
)
TYPES = (
    *(pa.int64(), pa.int64(), *[pa.float64()] * 5, pa.list_(pa.float64()), pa.binary()),
    *(pa.int64(), pa.int64()),
)
TIMES = {"head": "first", "tail": "last"}
EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from(["a", "b", None]),
        st.integers(-40, 90),
        st.one_of(st.none(), st.integers(-3, 3).map(float)),
    ),
    max_size=40,
)


def layout_of(gap: int) -> SessionLayout:
    return SessionLayout(
        WindowSpec(1, 1), GROUPS, PARTIALS, TYPES, TIMES, "rows", gap, bounds=("first", "last")
    )


def entries_of(events: list[Event], pane: int, layout: SessionLayout) -> list[pa.RecordBatch]:
    if not events:
        return []
    time = pa.array([event.time for event in events], pa.int64())
    value = pa.array([event.value for event in events], pa.float64())
    types: dict[str, Any] = {"time": pa.int64(), "group": pa.string()}
    columns = {"*": None, "value": value, "time": time, "hash": pa.array(np.asarray(time) << 32)}
    types |= {
        one.name: pa.int64() if one.expression in ("*", "hash", "time") else pa.float64() for one in PARTIALS
    }
    fragmenter = Fragmenter(Fragments(pane, "time", "ms", ("group",), PARTIALS), types)
    group = pa.array([event.group for event in events], pa.string())
    fragmenter.add(time, [group], [columns[one.expression] for one in PARTIALS])
    made = fragmenter.finish()
    panes = pa.array(made.column(PANE).to_numpy() // pane)
    by_name = {ENTRY_PANE: panes} | {
        name: made.column(name) for name in layout.pane_schema.names if name != ENTRY_PANE
    }
    return [
        pa.RecordBatch.from_arrays(
            [by_name[name] for name in layout.pane_schema.names], schema=layout.pane_schema
        )
    ]


def summary(events: list[Event]) -> dict[str, Any]:
    known = [event.value for event in events if event.value is not None]
    mean = sum(known) / len(known) if known else 0.0
    return {
        "group": events[0].group,
        "rows": len(events),
        "known": len(known),
        "sum": sum(known) if known else None,
        "m2": round(sum((value - mean) ** 2 for value in known), 6) if known else None,
        "max": max(known, default=None),
        "head": events[0].value,
        "tail": events[-1].value,
        "different": len(set(known)),
        "about": len({event.time for event in events}),
        "first": events[0].time,
        "last": events[-1].time,
    }


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (str(row["group"]), row["last"], row["first"]))


def rounded(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: row[name] if name != "m2" or row[name] is None else round(row[name], 6) for name in names}


def run(
    batches: list[list[Event]], gap: int, pane: int, delay: int, data: st.DataObject
) -> tuple[list[list[dict[str, Any]]], int]:
    """Return the sessions that each batch closes, and the number of late events."""
    layout = layout_of(gap)
    limits = PaneLimits(
        chunk_windows=data.draw(st.sampled_from([1, 3, 1000])),
        unit_entries=data.draw(st.sampled_from([1, 3, 1000])),
        groups_per_live=1,
        min_silent_groups=data.draw(st.sampled_from([0, 1000])),
    )
    state, units, late = new_panes(layout, limits=limits), [], 0
    found = []
    for batch in batches:
        newest = max((event.time for event in batch), default=None)
        done = state.run(entries_of(batch, pane, layout), None if newest is None else newest - delay)
        assert done.rows_in == len(batch)
        rows = [row for windows in done.windows for row in windows.to_pylist()]
        found.append(in_order([rounded(row, list(summary([Event("", 0, 0.0)]))) for row in rows]))
        assert done.closed == len(rows)
        late += done.late
        units += stored([state.delta()])
        how = data.draw(st.sampled_from(["keep", "deltas", "snapshot"]))
        if how == "snapshot":
            units = stored(state.snapshot())
        if how != "keep":
            state = new_panes(layout, limits=limits)
            state.restore(units)
    return found, late


def cut(events: list[Event], data: st.DataObject) -> list[list[Event]]:
    bounds = [0, *sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=6))), len(events)]
    return [events[begin:end] for begin, end in pairwise(bounds)]


GAPS = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(sorted)


@settings(deadline=None, max_examples=examples(60))
@given(events=EVENTS, gaps=GAPS, delay=st.integers(0, 15), data=st.data())
def test_each_session_comes_once_when_the_watermark_has_passed_it(
    events: list[Event], gaps: list[int], delay: int, data: st.DataObject
) -> None:
    pane, gap = gaps
    if data.draw(st.booleans()):
        events = sorted(events, key=lambda event: event.time + (event.value or 0))
    batches = [*cut(events, data), [Event("end", 200, 0.0)]]
    oracle = Sessions(gap, delay)
    expected = [in_order([summary(one) for one in oracle.batch(batch)]) for batch in batches]
    assert run(batches, gap, pane, delay, data) == (expected, oracle.late)


@settings(deadline=None, max_examples=examples(60))
@given(events=EVENTS, gaps=GAPS, delay=st.integers(0, 30), data=st.data())
def test_without_late_events_sessions_are_those_of_polars_whatever_the_micro_batches(
    events: list[Event], gaps: list[int], delay: int, data: st.DataObject
) -> None:
    pane, gap = gaps
    newest, kept = -(10**9), []
    for event in sorted(events, key=lambda event: event.time + 3 * (event.value or 0)):
        newest = max(newest, event.time)
        if event.time >= newest - delay:
            kept.append(event)
    found, late = run([*cut(kept, data), [Event("end", 200, 0.0)]], gap, pane, delay, data)
    assert late == 0
    schema = {"group": pl.String, "time": pl.Int64, "value": pl.Float64}
    frame = pl.DataFrame([event._asdict() for event in kept], schema=schema).sort("time", maintain_order=True)
    begins = (pl.col("time").diff() >= gap).fill_null(value=True)
    sessions = frame.with_columns(number=begins.cum_sum().over("group")).group_by("group", "number")
    expected = sessions.agg(
        first=pl.col("time").min(),
        last=pl.col("time").max(),
        rows=pl.len(),
        different=pl.col("value").drop_nulls().n_unique(),
        tail=pl.col("value").last(),
    ).drop("number")
    names = expected.columns
    made = [{name: row[name] for name in names} for rows in found for row in rows]
    assert in_order(made) == in_order(expected.to_dicts())


def test_a_late_event_joins_two_open_sessions() -> None:
    layout = layout_of(10)
    state = new_panes(layout)
    for events, watermark in (([0, 15], 0), ([30], 9)):
        done = state.run(entries_of([Event("a", at, 1.0) for at in events], 10, layout), watermark)
        assert not done.closed
    # The sessions of 0, 15 and 30 are apart; 8 joins the first two, and 23 the last two.
    done = state.run(entries_of([Event("a", at, 1.0) for at in (8, 23)], 10, layout), 39)
    assert (done.closed, done.late) == (0, 0)
    (windows,) = state.run([], 40).windows
    (row,) = windows.to_pylist()
    assert (row["first"], row["last"], row["rows"]) == (0, 30, 5)
    done = state.run(entries_of([Event("a", 30, 1.0), Event("a", 31, 1.0)], 1, layout), 41)
    # Both are within the gap of each other, and 31 is not closed by 40.
    assert done.late == 0 and done.closed == 1
    assert state.run(entries_of([Event("a", 30, 1.0)], 1, layout), 41).late == 1


def test_times_may_be_as_far_apart_as_64_bits_allow() -> None:
    least, most = -(2**63), 2**63 - 1
    ids, times = np.array([0, 0, 0]), np.array([least, 0, most])
    starts = np.empty(3, np.int64)
    assert session_kernels.find_sessions(ids, times, times, 2**62, starts) == 3
    times = np.array([least, -2, most])
    assert session_kernels.find_sessions(ids, times, times, most, starts) == 2
