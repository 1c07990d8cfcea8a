"""The kernels of fragments equal plain Python, compiled or not."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators.scan.fragments import (
    Fragmenter,
    fragment_kernels,
    merge_fragments,
    merge_stretches,
)
from penstock.operators.scan.spec import PANE, Fragments, Partial
from tests.oracles.naive import fragments_of

PARTIALS = (
    Partial("count", "*", "count"),
    Partial("sum", "v", "sum"),
    Partial("min", "v", "min"),
    Partial("max", "v", "max"),
    Partial("last", "v", "last"),
    Partial("count", "v", "known"),
    Partial("m2", "v", "m2"),
)
ROWS = st.lists(
    st.tuples(st.integers(-20, 20), st.tuples(st.integers(-2, 2), st.integers(0, 1)), st.integers(-9, 9)),
    max_size=120,
)


INTEGER = pa.int64()
Row = tuple[int, tuple[int, ...], int]


def _fragments_by(columns: int) -> Fragments:
    return Fragments(7000, "t", "s", ("k0", "k1")[:columns], PARTIALS)


def _fragments(
    columns: int, *parts: Sequence[Row], group: pa.DataType = INTEGER, **sizes: int
) -> pa.RecordBatch:
    """Return the fragments of rows that come in parts."""
    types = dict.fromkeys(["t", *(partial.name for partial in PARTIALS)], INTEGER)
    types |= dict.fromkeys(["k0", "k1"], group)
    folding = Fragmenter(_fragments_by(columns), types, **sizes)
    for part in parts:
        if part:
            values = pa.array([row[2] for row in part])
            groups = [pa.array([row[1][i] for row in part]).cast(group) for i in range(columns)]
            folding.add(pa.array([row[0] for row in part]), groups, [None, *[values] * 6])
    return folding.finish()


def _check(found: Sequence[pa.RecordBatch], columns: int, rows: Sequence[Row]) -> None:
    have, deviations = {}, {}
    for row in [row for batch in found for row in batch.to_pylist()]:
        where = (row[PANE], tuple(int(row[f"k{i}"]) for i in range(columns)))
        assert where not in have
        have[where] = tuple(row[name] for name in ("count", "sum", "min", "max", "last"))
        deviations[where] = row["m2"]
    assert have == fragments_of([(time, group[:columns], value) for time, group, value in rows], 7)
    for (pane, group), found_m2 in deviations.items():
        inside = [row[2] for row in rows if row[0] // 7 * 7 == pane and row[1][:columns] == group]
        assert found_m2 == pytest.approx(statistics.pvariance(inside) * len(inside), abs=1e-9)


def _folded(
    rows: Sequence[Row], columns: int, cut: int, *, ordered: bool, group: pa.DataType = INTEGER, **sizes: int
) -> None:
    rows = sorted(rows, key=lambda row: row[0]) if ordered else rows
    found = _fragments(columns, rows[:cut], rows[cut:], group=group, **sizes)
    _check([merge_fragments(_fragments_by(columns), [found]) if rows else found], columns, rows)


@settings(deadline=None)
@given(
    rows=ROWS,
    columns=st.integers(0, 2),
    cut=st.integers(0, 120),
    ordered=st.booleans(),
    group=st.sampled_from([INTEGER, pa.string()]),
)
def test_fragments_are_those_of_plain_python(
    rows: list[Row], columns: int, cut: int, ordered: bool, group: pa.DataType
) -> None:
    _folded(rows, columns, cut, ordered=ordered, group=group)


def test_tables_grow() -> None:
    rows = [(i // 40, (i * 7919 % 61, i % 2), i % 17 - 8) for i in range(4000)]
    assert len({row[1] for row in rows}) > 64
    sizes = {"initial_slots": 2, "initial_places": 4}
    for columns in (0, 1, 2):
        _folded(rows, columns, 1000, ordered=True, **sizes)
        _folded(rows, columns, 1000, ordered=True, group=pa.string(), **sizes)


def test_more_numbers_than_places_are_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bool] = []
    enter = fragment_kernels.enter

    def entering(*given: Any) -> None:
        hashed.append(not given[-1])
        enter(*given)

    monkeypatch.setattr(fragment_kernels, "enter", entering)
    for number in range(9):
        parts = [[(pane * 7, (pane,), 1)] for pane in range(number)]
        _fragments(1, *parts, group=pa.string(), initial_places=8)
        assert hashed == [True] * (number >= 8)
    known = [(0, (k,), k) for k in range(40)]
    again = [(7, (k,), k) for k in (0, 1, 2, 39, 38, 37, 0, 5, 13, 21, 29)]
    for rows in (known[:7] + again, known + again, known[:3] + known + again + known):
        for cut in (3, 7, 8, 30):
            _folded(rows, 1, cut, ordered=False, group=pa.string(), initial_places=8)


def test_long_runs_end_where_their_pane_does() -> None:
    for first in (31, 32, 33):
        for second in (1, 30, 31, 32, 33, 64, 70):
            rows = [(0, (), 1)] * first + [(7, (), 2)] * second + [(15, (), 3)] * 40
            _folded(rows, 0, 50, ordered=True)
            _folded(rows[::-1], 0, 50, ordered=False)


@settings(deadline=None)
@given(rows=ROWS, columns=st.integers(0, 2), cuts=st.lists(st.integers(0, 120), max_size=3))
def test_stretches_are_merged_as_one(rows: list[Row], columns: int, cuts: list[int]) -> None:
    rows.sort(key=lambda row: row[0])
    cuts.sort()
    parts = [rows[start:stop] for start, stop in zip([0, *cuts], [*cuts, 120], strict=True)]
    _check(
        merge_stretches(_fragments_by(columns), [_fragments(columns, part) for part in parts]), columns, rows
    )


@pytest.mark.parametrize(
    "kind",
    [pa.int8(), pa.int64(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("s")],
)
def test_groups_may_be_null_beside_dates_and_times_that_python_does_not_have(kind: pa.DataType) -> None:
    far = [-(2**7), -1, 0, 2**7 - 1] if kind == pa.int8() else [-719_529, -(2**31), 0, 1, 2**31 - 1]
    far += [] if kind.bit_width < 64 else [-(2**62), 2**62 + 1]
    groups = pa.array([None, *far, None, far[0]], pa.int64())
    column = groups.cast(pa.int32() if kind.bit_width == 32 else groups.type)
    column = column.cast(kind) if pa.types.is_integer(kind) else column.view(kind)
    fragments = Fragments(1000, "t", "s", ("k",), (Partial("count", "*", "n"),))
    folding = Fragmenter(fragments, {"t": INTEGER, "k": kind, "n": INTEGER})
    folding.add(pa.array([0] * len(groups)), [column], [None])
    made = folding.finish()
    assert made["k"].type == kind
    found = made["k"].view(pa.int32() if kind.bit_width == 32 else kind if kind == pa.int8() else INTEGER)
    expected = {value: groups.to_pylist().count(value) for value in groups.to_pylist()}
    assert dict(zip(found.to_pylist(), made["n"].to_pylist(), strict=True)) == expected
