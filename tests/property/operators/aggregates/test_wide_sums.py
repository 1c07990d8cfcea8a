"""Sums of 64-bit integers are exact, even beyond 64 bits; deviations are exact except for rounding."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.checkpointing.p_unit import decode, encode
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates import wide
from penstock.operators.aggregates.assembly import Assembly
from penstock.operators.aggregates.decomposition import decompose
from penstock.operators.scan.fragments import Fragmenter, merge_fragments
from penstock.operators.scan.spec import PANE, Fragments
from penstock.operators.scheduling.policy import Policy
from penstock.windows.append.time_panes import TimePanes
from penstock.windows.layout import ENTRY_PANE, WindowLayout
from penstock.windows.spec import WindowSpec
from penstock.windows.update.results import WindowMode
from penstock.windows.update.windows import UpdateWindows, WindowArrivals

INT64_MAX = (1 << 63) - 1
VALUES = st.one_of(
    st.none(), st.integers(-9, 9), st.integers(INT64_MAX - 9, INT64_MAX),
    st.integers(-INT64_MAX - 1, -INT64_MAX + 9), st.integers(-INT64_MAX - 1, INT64_MAX),
    st.just(1_700_000_000_000_000_000),
)  # fmt: skip
ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2), VALUES), min_size=1, max_size=50)
CUTS = st.lists(st.integers(1, 50), max_size=4)
SPLIT = decompose(
    {"total": "sum(n)", "mean": "avg(n)", "n": "count(n)", "spread": "stddev(n)"}, "t", ("k",)
).add_count(("k",))
FRAGMENTS = Fragments(1, "t", "ms", ("k",), SPLIT.partials)
Rows = list[tuple[int, int, int | None]]


def fragments_of(rows: Rows, cuts: list[int], *, by_group: bool = True) -> pa.RecordBatch:
    types = dict.fromkeys(["t", "k", *(one.name for one in SPLIT.partials)], pa.int64())
    group_by = ("k",) if by_group else ()
    fragmenter = Fragmenter(Fragments(1, "t", "ms", group_by, SPLIT.partials), types)
    for low, high in pairwise([0, *cuts, len(rows)]):
        times, groups, values = (pa.array([row[at] for row in rows[low:high]], pa.int64()) for at in range(3))
        given = [None if one.expression == "*" else values for one in SPLIT.partials]
        fragmenter.add(times, [groups] if by_group else [], given)
    return fragmenter.finish()


def summed(rows: Rows) -> int | None:
    known = [value for _, _, value in rows if value is not None]
    return sum(known) if known else None


def numbers(column: pa.Array[Any]) -> list[int | None]:
    return [None if value is None else int(value) for value in column.to_pylist()]


@settings(deadline=None)
@given(rows=ROWS, cuts=CUTS, by_group=st.booleans(), ordered=st.booleans())
def test_fragments_and_what_is_made_of_them_have_exact_sums(
    rows: Rows, cuts: list[int], by_group: bool, ordered: bool
) -> None:
    rows = sorted(rows, key=lambda row: row[0]) if ordered else rows
    cuts = sorted({cut for cut in cuts if cut < len(rows)})
    parts = [
        fragments_of(rows[low:high], [], by_group=by_group) for low, high in pairwise([0, *cuts, len(rows)])
    ]
    fragments = Fragments(1, "t", "ms", ("k",) if by_group else (), SPLIT.partials)
    for made in (fragments_of(rows, cuts, by_group=by_group), merge_fragments(fragments, parts)):
        groups = made["k"].to_pylist() if by_group else [None] * made.num_rows
        found = dict(
            zip(zip(made[PANE].to_pylist(), groups, strict=True), numbers(made["sum_n"]), strict=True)
        )
        places = {(row[0], row[1] if by_group else None) for row in rows}
        assert found == {
            place: summed([row for row in rows if (row[0], row[1] if by_group else None) == place])
            for place in places
        }
        narrow = all(value is None or -INT64_MAX - 1 <= value <= INT64_MAX for value in found.values())
        assert made["sum_n"].type == (pa.int64() if narrow else wide.WIDE), (
            "two words only where there must be"
        )


def layout_of(size: int, slide: int, *, wraps: bool) -> WindowLayout:
    types = tuple(pa.float64() if one.kind == "m2" else pa.int64() for one in SPLIT.partials)
    groups = pa.schema([pa.field("k", pa.int64())])
    assembly = Assembly.from_decomposition(SPLIT, wraps=wraps)
    rows = SPLIT.rows
    assert rows is not None
    return WindowLayout(WindowSpec(size, slide), groups, SPLIT.partials, types, {}, rows, assembly=assembly)


def entries_of(rows: Rows, layout: WindowLayout) -> pa.RecordBatch:
    made = fragments_of(rows, [])
    columns = {ENTRY_PANE: made[PANE]} | {name: made[name] for name in made.schema.names}
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in layout.pane_schema.names], layout.pane_schema.names
    )


def deviation_of(values: list[int]) -> Any:
    """Return the approximate deviation of a sample; exactly zero if all values are the same."""
    if len(values) < 2:
        return None
    squares = len(values) * sum(value * value for value in values) - sum(values) ** 2
    return pytest.approx(math.sqrt(Fraction(squares, len(values) * (len(values) - 1))), rel=1e-13, abs=0.0)


def wrapped(value: int | None) -> int | None:
    return None if value is None else (value + INT64_MAX + 1) % (1 << 64) - INT64_MAX - 1


def check(windows: list[pa.RecordBatch], rows: Rows, layout: WindowLayout) -> int:
    """Check windows; return how many there are."""
    spec = layout.spec
    for window in (row for batch in windows for row in batch.to_pylist()):
        start = window["__penstock_start"]
        inside = [row for row in rows if start <= row[0] < start + spec.size and row[1] == window["k"]]
        total, known = summed(inside), sum(row[2] is not None for row in inside)
        assert window["count_n"] == known
        assert window["sum_n"] == wrapped(total)
        (mean,) = (window[name] for name in layout.results.names if "mean" in name)
        assert (mean is None) == (total is None)
        if total is not None:
            assert mean == pytest.approx(float(Fraction(total, known)), rel=1e-15, abs=1e-300)
        (spread,) = (window[name] for name in layout.results.names if "deviation" in name)
        assert spread == deviation_of([row[2] for row in inside if row[2] is not None])
    return sum(batch.num_rows for batch in windows)


@settings(deadline=None)
@given(rows=ROWS, size=st.integers(1, 6), slide=st.integers(1, 6), cuts=CUTS)
def test_windows_have_exact_means_and_sums_that_wrap_where_that_is_asked_for(
    rows: Rows, size: int, slide: int, cuts: list[int]
) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    layout = layout_of(size, min(slide, size), wraps=True)
    state, found = TimePanes(layout), []
    bounds = [0, *sorted({cut for cut in cuts if cut < len(rows)}), len(rows)]
    for low, high in pairwise(bounds):
        if low < high:
            found += state.run([entries_of(rows[low:high], layout)], rows[high - 1][0]).windows
        units = [decode(bytes(encode(unit)), "a test") for unit in state.snapshot()]
        state = TimePanes(layout)
        state.restore(units)
    found += state.run([], 100).windows
    assert check(found, rows, layout)


@settings(deadline=None)
@given(
    rows=ROWS,
    mode=st.sampled_from([WindowMode.LAZY, WindowMode.EAGER]),
    cuts=CUTS,
)
def test_windows_that_wait_have_exact_means_too(rows: Rows, mode: WindowMode, cuts: list[int]) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    layout = layout_of(3, 1, wraps=True)
    state, found = UpdateWindows(layout, mode, Policy.FIFO), []
    bounds = [0, *sorted({cut for cut in cuts if cut < len(rows)}), len(rows)]
    for low, high in [*pairwise(bounds), (len(rows), len(rows))]:
        arriving = [entries_of(rows[low:high], layout)] if low < high else []
        state.enqueue(WindowArrivals(arriving, rows[high - 1][0] if low < high else 100), 0)
        units = [decode(bytes(encode(unit)), "a test") for unit in state.snapshot()]
        state = UpdateWindows(layout, mode, Policy.FIFO)
        state.restore(units)
        while state.servable:
            served = state.dequeue(2, 0)
            state.deliver(served, 0)
            found.append(served.rows)
    assert check(found, rows, layout)


def test_a_sum_that_overflows_is_an_error_where_it_is_asked_for() -> None:
    layout = layout_of(1, 1, wraps=False)
    arriving = entries_of([(0, 0, INT64_MAX), (0, 0, 1)], layout)
    with pytest.raises(InvalidUsageError, match="a sum of integers overflows"):
        TimePanes(layout).run([arriving], 1)
    there_and_back = entries_of([(0, 0, INT64_MAX), (0, 0, INT64_MAX), (0, 0, -INT64_MAX)], layout)
    (windows,) = TimePanes(layout).run([there_and_back], 1).windows
    assert windows["sum_n"].to_pylist() == [INT64_MAX]


def test_words_are_those_of_python() -> None:
    values = [0, 1, -1, INT64_MAX, -INT64_MAX - 1, INT64_MAX + 1, -INT64_MAX - 2, 1 << 70, -(1 << 70), None]
    column = pa.array(values, wide.WIDE)
    lows, highs = wide.to_words(column.slice(2, 5))
    assert [int(low) % 2**64 + (int(high) << 64) for low, high in zip(lows, highs, strict=True)] == values[
        2:7
    ]
    assert wide.from_words(*wide.to_words(column.slice(0, 5))).to_pylist() == values[:5]
    assert wide.as_floats(column)[:-1].tolist() == [float(value) for value in values if value is not None]
    assert [wide.fits(column.slice(low, 1)) for low in range(10)] == [*[True] * 5, *[False] * 4, True]
    narrow = pa.record_batch({"a": pa.array([1, None])})
    together = wide.concat_unified([narrow, pa.record_batch({"a": column})])
    assert numbers(together["a"]) == [1, None, *values]
    assert wide.narrow_words(pa.record_batch({"a": column.slice(0, 5)})).schema.types == [pa.int64()]
    assert np.array_equal(wide.to_words(narrow["a"])[1][:1], [0])
