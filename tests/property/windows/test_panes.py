"""Windows of panes equal brute force, however the input is cut and the state stored in between."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from functools import partial
from itertools import chain, count, cycle, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.checkpointing.p_unit import PUnit, decode, encode
from penstock.operators.scan.fragments import Fragmenter
from penstock.operators.scan.spec import PANE, Fragments, Partial
from penstock.state_store.keys.key_index import KeyIndex
from penstock.windows.append import panes as panes_module
from penstock.windows.append import sliding, sliding_kernels
from penstock.windows.append import sorted_runs as merging_module
from penstock.windows.append import stacks as stacks_module
from penstock.windows.append.find import find_windows
from penstock.windows.append.limits import PaneLimits
from penstock.windows.append.pane_partials import PanePartials, sort_order
from penstock.windows.append.sorted_runs import GroupRanges, concat_by_group, merge_sorted
from penstock.windows.append.time_panes import TimePanes
from penstock.windows.emitters import PassThrough
from penstock.windows.groups import GroupCodec, GroupSampling
from penstock.windows.layout import ENTRY_PANE, START, ClosedWindows, WindowLayout
from penstock.windows.shared_watermark import SeveralPanes
from penstock.windows.spec import WindowSpec
from tests.long_tests import long_but
from tests.oracles.naive_panes import Row, Windows, aggregated, batches_of

PARTIALS = (
    Partial("count", "*", "rows"),
    Partial("count", "value", "known"),
    Partial("sum", "value", "sum"),
    Partial("min", "value", "min"),
    Partial("max", "value", "max"),
    Partial("first", "value", "first"),
    Partial("last", "value", "last"),
    Partial("min", "pane_time", "first_at"),
    Partial("max", "pane_time", "last_at"),
    Partial("distinct", "value", "different"),
)
SETS = PARTIALS[-1]
TYPES = (pa.int64(), pa.int64(), *[pa.float64()] * 5, pa.int64(), pa.int64(), pa.list_(pa.float64()))
TIMES = {"first": "first_at", "last": "last_at"}
GROUPS = pa.schema([pa.field("group", pa.string())])
FRAGMENTS = Fragments(1, "time", "ms", ("group",), PARTIALS)


def _known(rows: list[Row]) -> list[float]:
    return [row.value for row in rows if row.value is not None]


AGGREGATES = {
    "rows": len,
    "known": lambda rows: len(_known(rows)),
    "sum": lambda rows: sum(_known(rows)) if _known(rows) else None,
    "min": lambda rows: min(_known(rows), default=None),
    "max": lambda rows: max(_known(rows), default=None),
    "first": lambda rows: min(enumerate(rows), key=lambda it: (it[1].pane, it[0]))[1].value,
    "last": lambda rows: max(enumerate(rows), key=lambda it: (it[1].pane, it[0]))[1].value,
    "different": lambda rows: len(set(_known(rows))),
}


def layout_of(size: int, slide: int, *, sets: bool = True) -> WindowLayout:
    """Return a layout; with sets, there are no stacks that outlive a micro-batch."""
    count = len(PARTIALS) if sets else PARTIALS.index(SETS)
    return WindowLayout(WindowSpec(size, slide), GROUPS, PARTIALS[:count], TYPES[:count], TIMES, "rows")


def entries_of(rows: list[Row], layout: WindowLayout) -> pa.RecordBatch:
    time = pa.array([row.pane for row in rows], pa.int64())
    group = pa.array([row.group for row in rows], pa.string())
    value = pa.array([row.value for row in rows], pa.float64())
    types = {"time": pa.int64(), "group": pa.string(), **{p.name: pa.float64() for p in PARTIALS}}
    types |= {"first_at": pa.int64(), "last_at": pa.int64()}
    fragmenter = Fragmenter(FRAGMENTS, types)
    columns = {"*": None, "value": value, "pane_time": time}
    fragmenter.add(time, [group], [columns[partial.expression] for partial in PARTIALS])
    made = fragmenter.finish()
    by_name = {ENTRY_PANE: made.column(PANE)} | {
        name: made.column(name) for name in layout.pane_schema.names if name != ENTRY_PANE
    }
    return pa.RecordBatch.from_arrays(
        [by_name[name] for name in layout.pane_schema.names], schema=layout.pane_schema
    )


def stored(units: Any) -> Any:
    return [decode(bytes(encode(unit)), "a test") for unit in units]


ROWS = st.lists(
    st.builds(
        Row,
        st.sampled_from(["a", "b", "c", None]),
        st.integers(-12, 40),
        st.one_of(st.none(), st.integers(-9, 9).map(float)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(
    rows=ROWS,
    in_order=st.booleans(),
    size=st.integers(1, 9),
    slide=st.integers(1, 9),
    delay=st.integers(0, 8),
    data=st.data(),
)
def test_windows_hold_what_brute_force_puts_into_them(
    rows: list[Row], in_order: bool, size: int, slide: int, delay: int, data: st.DataObject
) -> None:
    if in_order:
        rows = sorted(rows, key=lambda row: row.pane)
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=6))
    layout = layout_of(size, min(slide, size))
    hows = st.sampled_from(["keep", "deltas", "snapshot", "catch up"])
    limits = PaneLimits(unit_entries=5, chunk_windows=data.draw(CHUNKS))
    as_brute_force(layout, batches_of(rows, cuts), delay, lambda: data.draw(hows), limits)


CHUNKS = st.sampled_from([1, 4, 1000])
"""Windows are made a few at once, by two threads, or all at once."""

MANY_ROWS = st.lists(
    st.builds(
        Row,
        st.sampled_from(["a", "b", "c", None]),
        st.integers(-3, 3),
        st.one_of(st.none(), st.integers(-9, 9).map(float)),
    ),
    min_size=20,
    max_size=100,
)


@settings(deadline=None)
@given(
    rows=MANY_ROWS,
    size=st.integers(1, 20),
    slide=st.integers(1, 5),
    delay=st.integers(0, 4),
    shared=st.integers(1, 4),
    gone=st.integers(1, 3),
    data=st.data(),
)
def test_windows_of_stacks_hold_what_brute_force_puts_into_them(
    rows: list[Row], size: int, slide: int, delay: int, shared: int, gone: int, data: st.DataObject
) -> None:
    # Time goes on, a few rows at a time, and some are behind; so stacks are made, used, and made anew. Groups
    # other than "a" go silent.
    rows = [
        Row(group if group in ("a", None) else f"{group}{number // 9}", pane + number // 2, value)
        for number, (group, pane, value) in enumerate(rows)
    ]
    cuts = data.draw(st.lists(st.integers(0, len(rows)), min_size=4, max_size=20))
    layout = layout_of(size, min(slide, size), sets=False)
    hows = st.sampled_from(["keep"] * 8 + ["later", "deltas", "snapshot", "store", "catch up", "catch up"])
    limits = PaneLimits(
        unit_entries=5,
        chunk_windows=data.draw(CHUNKS),
        min_entries_for_stacks=0,
        min_sharing_for_stacks=shared,
        min_silent_groups=0,
        front_slack=gone,
        min_repeats_to_combine=data.draw(st.sampled_from([0, 8])),
    )
    as_brute_force(layout, batches_of(rows, cuts), delay, lambda: data.draw(hows), limits)


FREE_SPANS = st.sampled_from([0, 8, 1024])


@given(values=st.lists(st.integers(-50, 50) | st.integers(-(1 << 40), 1 << 40)), free_span=FREE_SPANS)
def test_sorting_is_stable_whether_values_are_counted_or_compared(values: list[int], free_span: int) -> None:
    order = np.random.default_rng(1).permutation(len(values))
    found = sort_order(np.array(values, np.int64), order, free_span=free_span)
    assert found.tolist() == sorted(order.tolist(), key=values.__getitem__)


@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9))),
    cuts=st.lists(st.integers(0, 400), max_size=3),
    follow=st.booleans(),
    free_span=FREE_SPANS,
)
def test_merging_keeps_the_order_of_parts_whichever_way_it_takes(
    rows: list[tuple[int, int]], cuts: list[int], follow: bool, free_span: int
) -> None:
    # Parts that follow each other in time are merged in another way than parts that overlap.
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    pieces = [
        sorted((group, pane + 10 * number * follow) for group, pane in rows[begin:end])
        for number, (begin, end) in enumerate(pairwise(bounds))
    ]
    numbers, parts = count(), []
    for piece in pieces:
        groups, panes = np.array(piece, np.int64).reshape(-1, 2).T
        values = pa.record_batch({"n": pa.array([next(numbers) for _ in piece], pa.int64())})
        parts.append(PanePartials(groups.copy(), panes.copy(), values))
    merged = merge_sorted(parts, free_span=free_span)
    found = zip(merged.ids.tolist(), merged.panes.tolist(), merged.values["n"].to_pylist(), strict=True)
    numbered = [(*row, number) for number, row in enumerate(chain.from_iterable(pieces))]
    assert list(found) == sorted(numbered, key=lambda row: row[:2])


@pytest.mark.parametrize("behind", long_but(range(1, 10), 1, 5, 9))
@pytest.mark.parametrize("how", ["keep", "snapshot", "catch up"])
def test_of_equal_times_what_came_first_is_first_in_stacks_too(behind: int, how: str) -> None:
    limits = PaneLimits(min_entries_for_stacks=0, min_silent_groups=0, min_sharing_for_stacks=1)
    pairs = [(Row("a", pane, 2.0 * pane), Row("a", pane - behind, 2.0 * pane + 1)) for pane in range(60)]
    # The second time there is a micro-batch in the middle that is longer than a window.
    for cuts in (range(0, 120, 6), (*range(0, 60, 6), *range(96, 120, 6))):
        batches = batches_of([row for pair in pairs for row in pair], cuts)
        # Now and then, so that some comes for the panes of stacks that are there.
        hows = partial(next, cycle(["keep", "keep", "keep", how]))
        as_brute_force(layout_of(10, 1, sets=False), batches, 0, hows, limits)


def test_a_micro_batch_goes_over_what_comes_and_what_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    went_over = 0

    def counting(partials: Any, times: Any, panes: Any, *rest: Any, **options: Any) -> pa.RecordBatch:
        nonlocal went_over
        went_over += len(panes)
        return sliding.slide(partials, times, panes, *rest, **options)

    for module in (panes_module, stacks_module, merging_module):
        monkeypatch.setattr(module, "slide", counting)
    layout = layout_of(2000, 1, sets=False)
    state = TimePanes(layout)
    state.run([entries_of([Row("a", pane, 1.0) for pane in range(2000)], layout)], 2000)
    went_over = 0
    for pane in range(2000, 2300, 2):
        state.run([entries_of([Row("a", pane, 1.0), Row("a", pane + 1, 1.0)], layout)], pane + 2)
    assert len(state) == 1999
    # Each of 150 micro-batches, and the front.
    assert went_over < 150 * 20 + 2000


def as_brute_force(
    layout: WindowLayout,
    batches: list[list[Row]],
    delay: int,
    how_next: Callable[[], str],
    limits: PaneLimits,
) -> None:
    """Run micro-batches and compare; between them the state goes on, is stored, now or later, or is read.

    Or another worker goes on, which has an older version, and reads what was stored since.
    """
    oracle = Windows(layout.spec.size, layout.spec.slide, delay)
    wanted = {name: AGGREGATES[name] for name in layout.values.names if name in AGGREGATES}
    state, late, newest = TimePanes(layout, limits=limits), 0, None
    units: list[PUnit] = []
    other = TimePanes(layout, limits=limits)
    missed: list[PUnit] = []
    for batch in batches:
        # Two parcels, of which the second one arrives later.
        halves = [batch[: len(batch) // 3], batch[len(batch) // 3 :]]
        arriving = [entries_of(half, layout) for half in halves if half]
        if batch:
            newest = (
                max(row.pane for row in batch) if newest is None else max(newest, *(r.pane for r in batch))
            )
        done = state.run(arriving, None if newest is None else newest - delay)
        expected = aggregated(oracle.batch(batch), wanted)
        got: dict[Any, dict[str, Any]] = {}
        for windows in done.windows:
            assert windows.schema == layout.window
            for row in windows.to_pylist():
                key = (row["group"], row[START])
                assert key not in got
                got[key] = {name: row[name] for name in wanted}
        assert got == expected
        late += done.late
        assert done.rows_in == len(batch)
        how = how_next()
        if how == "later":
            continue  # The next delta has it, too.
        delta = stored([state.delta()])
        units, missed = units + delta, missed + delta
        if how in ("snapshot", "store"):
            units = stored(state.snapshot())
        if how == "catch up":
            other.restore(missed)
            state, other, missed = other, state, []
        if how in ("snapshot", "deltas"):
            state = TimePanes(layout, limits=limits)
            state.restore(units)
    assert late == oracle.late


def test_what_is_late_is_late_where_nothing_waits() -> None:
    layout = layout_of(4, 2)
    busy, idle = TimePanes(layout), TimePanes(layout)
    busy.run([entries_of([Row("a", pane, 1.0) for pane in range(20)], layout)], 20)
    idle.run([], 20)
    late = entries_of([Row("b", 15, 1.0), Row("b", 19, 1.0)], layout)
    done = [state.run([late], 22) for state in (busy, idle)]
    assert [one.late for one in done] == [1, 1]
    for one in done:
        (windows,) = [batch for batch in one.windows if "b" in batch["group"].to_pylist()]
        starts = [row[START] for row in windows.to_pylist() if row["group"] == "b"]
        assert starts == [18]


@pytest.mark.parametrize("slide", [1, 3])
@pytest.mark.parametrize("groups", ["abc", "a", "aaaaaaaabc", "abbbbbbbbbbc"])
def test_many_windows_are_handed_over_in_pieces(groups: str, slide: int) -> None:
    layout = layout_of(4, slide)
    # Where a group is named more often, it has tuples in more panes, though not in all.
    rows = [
        Row(group, pane, float(pane))
        for pane in range(90)
        for number, group in enumerate(groups)
        if group == "b" or pane % len(groups) == number
    ]
    whole = TimePanes(layout).run([entries_of(rows, layout)], 90).windows
    pieces = (
        TimePanes(layout, limits=PaneLimits(chunk_windows=10)).run([entries_of(rows, layout)], 90).windows
    )
    assert len(whole) == 1
    assert len(pieces) > 1
    assert max(piece.num_rows for piece in pieces) <= 40
    assert pa.Table.from_batches(pieces) == pa.Table.from_batches(whole)


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "double": (pa.float64(), [0.5, -0.0, math.inf]),
    "int": (pa.int32(), [1, -2, 3]),
    "byte": (pa.int8(), [1, -2, 3]),
    "day": (pa.date32(), [date(2006, 1, 3), date(1969, 12, 31)]),
    "truth": (pa.bool_(), [True, False]),
    "text": (pa.string(), ["a", "", "bb"]),
    "decimal": (pa.decimal128(9, 2), [Decimal("1.25"), Decimal(-3)]),
    "some nulls": (pa.int64(), [1, None, 3]),
}


@settings(deadline=None)
@given(
    parts=st.lists(
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=12), min_size=1, max_size=4
    ),
    bounds=st.tuples(st.integers(-1, 11), st.integers(-1, 11)),
    begin=st.integers(0, 3),
)
def test_spans_are_laid_side_by_side_for_each_group(
    parts: list[list[tuple[int, int]]], bounds: tuple[int, int], begin: int
) -> None:
    low, high = min(bounds), max(bounds)
    spans, wanted = [], []
    for number, part in enumerate(parts):
        rows = sorted(part)
        places = range(number, number + len(rows))
        columns = [pa.array([some[at % len(some)] for at in places], kind) for kind, some in VALUES.values()]
        values = pa.RecordBatch.from_arrays(columns, list(VALUES))
        ids, panes = np.array(rows, np.int64).reshape(-1, 2).T.copy()
        entries = PanePartials(ids, panes, values).piece(min(begin, len(rows)), len(rows))
        (_, rest) = GroupRanges.select_all(entries).split(low)
        inner, outer = rest.split(high)
        spans.append(inner)
        kept = list(
            zip(entries.ids.tolist(), entries.panes.tolist(), entries.values.to_pylist(), strict=True)
        )
        wanted += [(group, number, pane, row) for group, pane, row in kept if low <= pane < high]
        assert len(outer) == sum(pane >= high for _, pane, _ in kept)
    found = concat_by_group(spans)
    wanted.sort(key=lambda it: it[:2])
    assert found.ids.tolist() == [group for group, *_ in wanted]
    assert found.panes.tolist() == [pane for *_, pane, _ in wanted]
    assert found.values.to_pylist() == [row for *_, row in wanted]
    found.values.validate(full=True)


def test_windows_before_the_first_are_in_no_piece() -> None:
    layout = layout_of(2, 1)
    entries = PanePartials(np.zeros(20, np.int64), np.arange(20), pa.record_batch([np.arange(20)], ["v"]))
    pieces = find_windows(layout.spec, entries, entries.panes, 10, 17, chunk_windows=1)
    found = [one.windows.tolist() for one in pieces]
    assert [window for windows in found for window in windows] == list(range(10, 18))
    assert len(found) > 1


def test_an_error_in_one_piece_is_that_of_the_micro_batch() -> None:
    layout = layout_of(4, 1)
    rows = [Row(group, pane, 1.0) for pane in range(30) for group in "abc"]

    class Failing(PassThrough):
        def __call__(self, closed: ClosedWindows) -> pa.RecordBatch:
            raise ZeroDivisionError(len(closed.of))

    with pytest.raises(ZeroDivisionError):
        TimePanes(layout, limits=PaneLimits(chunk_windows=10)).run(
            [entries_of(rows, layout)], 30, Failing(layout)
        )


def test_groups_that_are_forgotten_have_their_windows_first() -> None:
    # Forgotten groups give their numbers to others, which must not be while theirs are looked up.
    layout = layout_of(1, 1)
    limits = PaneLimits(min_entries_for_stacks=0, min_silent_groups=0, chunk_windows=1)
    state, found = TimePanes(layout, limits=limits), []
    for pane in range(20):
        rows = [Row(f"{pane} {number}", pane, 1.0) for number in range(6)]
        done = state.run([entries_of(rows, layout)], pane + 1)
        found += [group for batch in done.windows for group in batch["group"].to_pylist()]
    assert sorted(found) == sorted(f"{pane} {number}" for pane in range(20) for number in range(6))


@pytest.mark.parametrize(("size", "step"), [(4, 100), (80, 10)], ids=["apart", "in stacks"])
def test_silent_groups_leave_nothing_behind(size: int, step: int) -> None:
    layout = layout_of(size, 2, sets=False)
    limits = PaneLimits(min_entries_for_stacks=10, min_silent_groups=10)
    state, stacked = TimePanes(layout, limits=limits), 0
    for pane in range(0, 200 * step, step):
        rows = [Row(f"{pane} {i}", pane, 1.0) for i in range(20)]
        state.run([entries_of(rows, layout)], pane)
        state.delta()
        stacked += state._stacks is not None
    assert (stacked > 100) == (size == 80)
    assert len(state) <= 40 + 20 * size // step
    assert state.groups <= 1000  # of 4000
    assert state.size_bytes < 1_000_000


def test_a_restart_holds_no_entries_of_windows_that_are_closed() -> None:
    layout = layout_of(4, 2)
    state, again = TimePanes(layout), TimePanes(layout)
    deltas = []
    for pane in range(0, 60, 2):
        state.run([entries_of([Row(f"{i}", pane, 1.0) for i in range(20)], layout)], pane)
        deltas.append(state.delta())
    again.restore(stored(deltas))
    assert len(again) == len(state) <= 60


def test_entries_of_a_pane_that_comes_again_and_again_are_combined() -> None:
    layout = layout_of(1000, 1)
    state = TimePanes(layout)
    for _ in range(50):
        state.run([entries_of([Row("a", pane, 1.0) for pane in range(100)], layout)], 0)
        state.delta()
    assert len(state) < 2000
    (windows,) = state.run([], 1000).windows
    assert np.array_equal(windows.column("rows").to_numpy()[-1:], [5000])


VALUES_OF_GROUPS: dict[str, list[Any]] = {
    "int": [3, 1, None, 2],
    "text": ["b", None, "", "a"],
    "float": [0.0, -0.0, math.nan, None, 1.5],
    "day": [date(2006, 1, 3), None, date(1969, 12, 31)],
    "truth": [True, None, False],
    "decimal": [Decimal("1.25"), None, Decimal(0)],
    "bytes": [b"", None, b"\xff"],
}


@pytest.mark.parametrize("kind", VALUES_OF_GROUPS)
@pytest.mark.parametrize("least", [10, 1 << 14], ids=["as values", "as keys"])
def test_groups_get_numbers_in_order_of_appearance(kind: str, least: int) -> None:
    choices = VALUES_OF_GROUPS[kind]
    column = pa.array([choices[i * i % 7 % len(choices)] for i in range(100)])
    codec = GroupCodec([pa.field("group", column.type)], GroupSampling(min_rows=least, sample_rows=16))
    numbers, keys = KeyIndex(), KeyIndex()
    for some in (column.slice(50), column, pa.array(choices, column.type)):
        found = codec.numbers(numbers, [some], len(some))
        assert found.tolist() == keys.find_or_add(codec.encode([some], len(some))).tolist()
    assert len(numbers) == len(keys)


@pytest.mark.parametrize("least", [10, 1 << 14], ids=["by runs", "as keys"])
@pytest.mark.parametrize("run", [1, 8])
def test_runs_of_equal_groups_get_the_numbers_that_their_rows_would(least: int, run: int) -> None:
    columns = [
        pa.array([choices[i // run * i // run % 7 % len(choices)] for i in range(200)])
        for choices in VALUES_OF_GROUPS.values()
    ]
    columns.append(columns[1].dictionary_encode())
    for names in ([0], [1, 2], range(7), [7], [7, 0], []):
        some = [columns[name].slice(3) for name in names]
        plain = [columns[1 if name == 7 else name].type for name in names]
        fields = [pa.field(f"{name}", kind) for name, kind in zip(names, plain, strict=True)]
        codec = GroupCodec(fields, GroupSampling(min_rows=least, sample_rows=16))
        numbers, keys = KeyIndex(), KeyIndex()
        found = codec.numbers(numbers, some, 197)
        assert found.tolist() == keys.find_or_add(codec.encode(some, 197)).tolist()
        assert numbers.keys.hashes.tolist() == keys.keys.hashes.tolist()


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2)), max_size=8),
    in_order=st.booleans(),
)
def test_entries_that_are_sorted_are_known_for_it(rows: list[tuple[int, int]], in_order: bool) -> None:
    rows = sorted(rows) if in_order else rows
    ids, panes = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
    assert sliding_kernels.are_sorted(ids, panes) == (rows == sorted(rows))


@given(
    values=st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20),
    ranges=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=20),
)
def test_integers_of_ranges_are_added(values: list[int], ranges: list[tuple[int, int]]) -> None:
    bounds = [(min(a, b, len(values)), min(max(a, b), len(values))) for a, b in ranges]
    lows, highs = (np.array([one[end] for one in bounds], np.int64) for end in (0, 1))
    out = np.empty(len(bounds), np.int64)
    sliding_kernels.add_ranges(np.array(values), lows, highs, np.empty(len(values) + 1, np.int64), out)
    wrapped = [(sum(values[a:b]) + 2**63) % 2**64 - 2**63 for a, b in bounds]
    assert out.tolist() == wrapped


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 4)), max_size=12), st.booleans())
def test_cells_are_numbered(rows: list[tuple[int, int]], grouped: bool) -> None:
    groups, starts = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
    out = np.empty(len(rows), np.int32)
    sliding_kernels.number_window_groups(groups if grouped else groups[:0], starts, -2, 7, out)
    table = [(group, start) for group in range(4 if grouped else 1) for start in range(-2, 5)]
    assert [table[cell - 1] for cell in out] == [(group * grouped, start) for group, start in rows]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1.0, math.nan])), max_size=12))
def test_rows_with_their_cells_value_are_found(rows: list[tuple[int, float]]) -> None:
    cells, values = np.array([row[0] for row in rows], np.int32), np.array([row[1] for row in rows])
    wanted, out = np.array([0.0, 0.0, 1.0, math.nan]), np.empty(len(rows), np.int64)
    count = sliding_kernels.find_equal(cells, values, wanted, out)
    kinds = [(1, 0.0), (2, 1.0), (3, None)]
    there = [(cell, None if math.isnan(value) else value) in kinds for cell, value in rows]
    assert out[:count].tolist() == [at for at, here in enumerate(there) if here]


@given(
    values=st.lists(st.integers(-1, 5), min_size=1, max_size=30),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=20),
)
def test_distinct_values_of_ranges_are_counted(values: list[int], steps: list[tuple[int, int]]) -> None:
    ranges: list[tuple[int, int]] = []
    low = high = 0
    for step, more in steps:
        low, high = low + step, max(high, low + step) + more
        if high <= len(values):
            ranges.append((low, high))
    lows, highs = (np.array([one[end] for one in ranges], np.int64) for end in (0, 1))
    out, counts = np.empty(len(ranges), np.int64), np.zeros(6, np.int64)
    sliding_kernels.slide_distinct(np.array(values), lows, highs, counts, out)
    assert out.tolist() == [len(set(values[a:b]) - {-1}) for a, b in ranges]
    assert not counts.any()


@given(
    panes=st.lists(st.lists(st.integers(0, 20), max_size=8).map(sorted), max_size=6),
    gone=st.integers(0, 5),
    least=st.integers(-1, 21),
)
def test_panes_before_the_least_are_skipped(panes: list[list[int]], gone: int, least: int) -> None:
    ends = np.cumsum([len(one) for one in panes], dtype=np.int64)
    at = np.array([end - max(len(one) - gone, 0) for end, one in zip(ends, panes, strict=True)], np.int64)
    out = np.empty(len(panes), np.int64)
    sliding_kernels.skip(np.array([pane for one in panes for pane in one], np.int64), at, ends, least, out)
    wanted = [
        int(end) - sum(pane >= least for pane in one[gone:]) for end, one in zip(ends, panes, strict=True)
    ]
    assert out.tolist() == wanted


@settings(deadline=None)
@given(rows=st.tuples(ROWS, ROWS), sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)), data=st.data())
def test_windows_of_two_sides_that_end_together_close_together(
    rows: tuple[list[Row], list[Row]], sizes: tuple[int, int], data: st.DataObject
) -> None:
    layouts = [layout_of(size, 1) for size in sizes]
    ordered = [sorted(some, key=lambda row: row.pane) for some in rows]
    cuts = [data.draw(st.lists(st.integers(0, len(some)), min_size=4, max_size=4)) for some in ordered]
    batches = [batches_of(some, at) for some, at in zip(ordered, cuts, strict=True)]
    state, units = SeveralPanes(layouts), []
    newest: list[int | None] = [None, None]
    before = -100
    closed: list[dict[Any, Any]] = [{}, {}]
    for pair in zip(*batches, strict=True):
        for side, batch in enumerate(pair):
            newest[side] = max((row.pane for row in batch), default=newest[side])
        told = [max(row.pane for row in batch) if batch else None for batch in pair]
        arriving = [
            [entries_of(batch, layout)] if batch else [] for batch, layout in zip(pair, layouts, strict=True)
        ]
        done = state.run(arriving, told)
        common = before if None in newest else min(one for one in newest if one is not None)
        for side, found in enumerate(done):
            assert found.late == 0
            for row in (row for windows in found.windows for row in windows.to_pylist()):
                assert before < row[START] + sizes[side] <= common
                closed[side][row["group"], row[START]] = row["rows"]
        before = common
        units += stored([state.delta()])
        how = data.draw(st.sampled_from(["keep", "deltas", "snapshot"]))
        if how == "snapshot":
            units = stored(state.snapshot())
        if how != "keep":
            state = SeveralPanes(layouts)
            state.restore(units)
    for side, some in enumerate(ordered):
        wanted: dict[Any, int] = defaultdict(int)
        for row in some:
            for start in range(row.pane - sizes[side] + 1, row.pane + 1):
                if start + sizes[side] <= before:
                    wanted[row.group, start] += 1
        assert closed[side] == wanted


@pytest.mark.parametrize("how", ["delta", "snapshot"])
def test_the_watermark_outlives_a_restart(how: str) -> None:
    layout = layout_of(4, 2)
    state = TimePanes(layout)
    state.run([entries_of([Row("a", 9, 1.0)], layout)], 9)
    again = TimePanes(layout)
    again.restore(stored([state.delta()] if how == "delta" else state.snapshot()))
    # What comes is older than the newest before, and is closed by that.
    done = again.run([entries_of([Row("a", 6, 1.0)], layout)], 6)
    assert again.watermark == 9
    assert done.late == 0
    assert [row[START] for windows in done.windows for row in windows.to_pylist()] == []
    again.run([entries_of([Row("a", 7, 1.0)], layout)], 7)
    assert again.watermark == 9
