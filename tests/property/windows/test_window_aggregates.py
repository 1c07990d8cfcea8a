"""Windows combined in their buckets equal brute force over all of them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.aggregates.assembly import Assembly
from penstock.operators.aggregates.decomposition import Decomposition
from penstock.operators.scan.spec import PANE, Fragments, Partial
from penstock.windows.finish import Finish
from penstock.windows.layout import START, ClosedWindows, WindowLayout
from penstock.windows.spec import WindowSpec
from penstock.windows.window_aggregates import (
    Extremes,
    NumberingLimits,
    WindowAccumulator,
    _number_window_groups,
)

PANE_MS, SIZE_MS = 500, 2000
INSTANT = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", INSTANT), ("end", INSTANT)])
GROUPS = pa.schema([("house", pa.string()), ("plug", pa.int32())])
PARTIALS = (Partial("count", "*", "rows"), Partial("max", "x", "top"), Partial("sum", "n", "total"))
LAYOUT = WindowLayout(WindowSpec(4, 1), GROUPS, PARTIALS, (pa.int64(), pa.float64(), pa.int64()), {}, "rows")
WINDOW_PARTIALS = (
    Partial("count", "*", "windows"),
    Partial("count", "top", "tops"),
    Partial("sum", "rows", "rows"),
    Partial("count", "total", "totals"),
    Partial("sum", "total", "total"),
    Partial("m2", "total", "m2"),
    Partial("min", "top", "low"),
    Partial("max", "top", "high"),
)


class Row(NamedTuple):
    """A window of a group."""

    house: str | None
    plug: int | None
    start: int
    rows: int
    top: float | None
    total: int


ROWS = st.lists(
    st.builds(
        Row,
        house=st.sampled_from(["a", "b", None]),
        plug=st.sampled_from([1, 2, None]),
        start=st.one_of(st.integers(-3, 3), st.sampled_from([-(10**9), 10**9])),
        rows=st.integers(1, 4),
        top=st.sampled_from([None, -0.0, 0.0, 1.5, -2.0, math.inf, math.nan]),
        total=st.integers(-5, 5),
    ),
    max_size=40,
)
CUTS = st.lists(st.integers(0, 40), max_size=3)


def closed(rows: list[Row]) -> ClosedWindows:
    """Return windows as `Panes` hands them over."""
    known = list(dict.fromkeys((row.house, row.plug) for row in rows))
    groups = [pa.array([one[at] for one in known], field.type) for at, field in enumerate(GROUPS)]
    of = pa.array([known.index((row.house, row.plug)) for row in rows], pa.int64())
    columns = [
        pa.array([getattr(row, one.name) for row in rows], kind)
        for one, kind in zip(PARTIALS, LAYOUT.types, strict=True)
    ]
    values = pa.RecordBatch.from_arrays(columns, schema=LAYOUT.values)
    return ClosedWindows(groups, of, pa.array([row.start for row in rows], pa.int64()), values)


def parts_of(rows: list[Row], cuts: list[int]) -> list[list[Row]]:
    """Return rows in pieces, some of them without any."""
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [rows[a:b] for a, b in pairwise(bounds)]


def make_accumulator(
    groups: tuple[str, ...], *steps: Any, read: dict[str, str] | None = None
) -> WindowAccumulator:
    """Return an accumulator of windows by groups, which `steps` may compute."""
    output = pa.schema([*GROUPS, ("window", WINDOW), *((f.name, f.type) for f in LAYOUT.values)])
    names = {one.name: one.name for one in PARTIALS}
    assembly = Assembly.from_decomposition(Decomposition(PARTIALS, names, {}))
    projection = {name: name for name in (*groups, *names)} if read is None else read
    finish = Finish(LAYOUT.window, output, "window", PANE_MS, SIZE_MS, assembly, (*steps, projection))
    types = {"house": pa.string(), "plug": pa.int32(), "other": pa.int32()}
    made = [(PANE, pa.int64()), ("size", pa.int64()), *((name, types[name]) for name in groups)]
    kinds = [*[pa.int64()] * 5, *[pa.float64()] * 3]
    made += [(one.name, kind) for one, kind in zip(WINDOW_PARTIALS, kinds, strict=True)]
    fragments = Fragments(1, "start", "us", ("size", *groups), WINDOW_PARTIALS)
    return WindowAccumulator(finish, fragments, pa.schema(made))


def same(value: float | None) -> Any:
    """Return a value in which NaN equals NaN, and all zeros are equal."""
    if value is None:
        return None
    return "nan" if math.isnan(value) else value + 0.0


def greatest(values: list[float]) -> float:
    """Return the greatest value as Spark has it: NaN is greater than all others."""
    return max(values, key=lambda one: (math.isnan(one), one))


def least(values: list[float]) -> float:
    """Return the least value as Spark has it."""
    return min(values, key=lambda one: (math.isnan(one), one))


def aggregated(rows: list[Row], groups: tuple[str, ...]) -> dict[Any, Any]:
    """Return the aggregates of `WINDOW_PARTIALS` by brute force."""
    apart = defaultdict(list)
    for row in rows:
        apart[row.start, *(getattr(row, name) for name in groups)].append(row)
    made = {}
    for key, some in apart.items():
        tops = [row.top for row in some if row.top is not None]
        made[key] = (
            len(some),
            len(tops),
            sum(row.rows for row in some),
            len(some),
            sum(row.total for row in some),
            round(statistics.pvariance(row.total for row in some) * len(some), 6),
            same(least(tops) if tops else None),
            same(greatest(tops) if tops else None),
        )
    return made


def read_back(batches: list[pa.RecordBatch], groups: tuple[str, ...]) -> dict[Any, Any]:
    """Return the folded values, each window and group once."""
    found = {}
    for batch in batches:
        for row in batch.to_pylist():
            assert row["size"] == 1000 * SIZE_MS
            start, rest = divmod(row[PANE], 1000 * PANE_MS)
            assert rest == 0
            key = (start, *(row[name] for name in groups))
            assert key not in found
            floats = (round(row["m2"], 6), same(row["low"]), same(row["high"]))
            found[key] = (*(row[one.name] for one in WINDOW_PARTIALS[:5]), *floats)
    return found


@pytest.mark.parametrize("groups", [(), ("house",), ("plug", "house")])
@pytest.mark.parametrize("wide", [0, 4], ids=["by sorting", "by place"])
@given(buckets=st.lists(st.tuples(ROWS, CUTS), min_size=1, max_size=2))
def test_a_fold_is_that_of_all_windows(groups: tuple[str, ...], wide: int, buckets: Any) -> None:
    made = replace(make_accumulator(groups), numbering=NumberingLimits(256 * wide, wide))
    parts = [made.collect([made(closed(part)) for part in parts_of(rows, cuts)]) for rows, cuts in buckets]
    for (rows, _), batches in zip(buckets, parts, strict=True):
        assert read_back(batches, groups) == aggregated(rows, groups)
    whole = made.combine(batch for batches in parts for batch in batches)
    everything = [row for rows, _ in buckets for row in rows]
    assert read_back(whole, groups) == aggregated(everything, groups)


@given(rows=ROWS, cuts=CUTS)
def test_a_fold_sees_what_steps_have_made(rows: list[Row], cuts: list[int]) -> None:
    names = {one.name: one.name for one in PARTIALS}
    steps = ("rows > 1", {"other": "plug + 1", "same": "house", **names}, "other < 3")
    made = make_accumulator(("other",), *steps, read={"other": "other", **names})
    batches = made.collect([made(closed(part)) for part in parts_of(rows, cuts)])
    kept = [
        row._replace(plug=row.plug + 1)
        for row in rows
        if row.rows > 1 and row.plug is not None and row.plug + 1 < 3
    ]
    assert read_back(batches, ("other",)) == aggregated(kept, ("plug",))
    assert made.partials == {"rows", "top", "total"}


@pytest.mark.parametrize("groups", [(), ("house",), ("plug",)])
@given(rows=ROWS, cuts=CUTS)
def test_a_fold_has_the_groups_of_what_is_left(
    groups: tuple[str, ...], rows: list[Row], cuts: list[int]
) -> None:
    # The second step makes a column of the name of a group, where that is what is asked for.
    names = {name: name for name in ("house", *(one.name for one in PARTIALS))}
    made = make_accumulator(groups, "rows > 1", {"plug": "plug + 1", **names})
    batches = made.collect([made(closed(part)) for part in parts_of(rows, cuts)])
    kept = [row._replace(plug=None if row.plug is None else row.plug + 1) for row in rows if row.rows > 1]
    assert read_back(batches, groups) == aggregated(kept, groups)


def test_cells_far_apart_are_told_apart() -> None:
    # A start for each of 60,000 groups, some of 1970 and some of 9999, in milliseconds.
    groups = np.arange(60_000)
    starts = np.where(groups % 2 == 0, 0, 253_402_300_799_000)
    (cells,), keys = _number_window_groups([groups], [starts], NumberingLimits())
    assert len(np.unique(cells)) == 60_000
    found, of = keys.decode(cells.astype(np.int64) - 1)
    assert (found == starts).all()
    assert (of == groups).all()


def test_a_fold_that_counts_reads_no_partial() -> None:
    output = pa.schema([*GROUPS, ("window", WINDOW), *((f.name, f.type) for f in LAYOUT.values)])
    assembly = Assembly.from_decomposition(
        Decomposition(PARTIALS, {one.name: one.name for one in PARTIALS}, {})
    )
    steps = ({"plug": "plug", "top": "top"}, {"plug": "plug"})
    finish = Finish(LAYOUT.window, output, "window", PANE_MS, SIZE_MS, assembly, steps)
    fragments = Fragments(1, "start", "us", ("size",), (Partial("count", "plug", "n"),))
    assert WindowAccumulator(finish, fragments, pa.schema([])).partials == frozenset()


@pytest.mark.parametrize("value", ["rows", "top"])
@pytest.mark.parametrize("is_greatest", [True, False])
@pytest.mark.parametrize("by", [(), ("plug",)])
@given(buckets=st.lists(st.tuples(ROWS, CUTS), min_size=1, max_size=2))
def test_what_has_the_most_of_all_leaves_its_bucket(
    value: str, is_greatest: bool, by: tuple[str, ...], buckets: Any
) -> None:
    pick = greatest if is_greatest else least
    keep = Extremes(LAYOUT, value, is_greatest, by)

    def most(rows: list[Row]) -> list[Any]:
        apart = defaultdict(list)
        for row in rows:
            if getattr(row, value) is not None:
                apart[row.start, *(getattr(row, name) for name in by)].append(row)
        wanted = [
            row
            for some in apart.values()
            for row in some
            if same(getattr(row, value)) == same(pick([getattr(one, value) for one in some]))
        ]
        return sorted(map(shown, wanted), key=repr)

    left: list[Row] = []
    for rows, cuts in buckets:
        batches = keep.collect([keep(closed(part)) for part in parts_of(rows, cuts)])
        here = [
            Row(*(row[n] for n in ("house", "plug", START, "rows", "top", "total")))
            for batch in batches
            for row in batch.to_pylist()
        ]
        assert sorted(map(shown, here), key=repr) == most(rows), "of one bucket these, and no others"
        left += here
    assert most(left) == most([row for rows, _ in buckets for row in rows])


def shown(row: Row) -> Any:
    """Return a row that equals itself."""
    return row._replace(top=same(row.top))


def test_values_that_are_a_slice_are_those_of_the_slice() -> None:
    whole = closed([Row("a", 1, start, 1, float(top), 0) for start, top in [(0, 9), (1, 1), (1, 2), (1, 2)]])
    part = ClosedWindows(whole.groups, whole.of[1:], whole.starts[1:], whole.values.slice(1))
    kept = Extremes(LAYOUT, "top", True)(part)
    assert kept.column("top").to_pylist() == [2.0, 2.0]
    assert np.all(kept.column(START).to_numpy() == 1)
