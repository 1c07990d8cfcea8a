"""The kernels of fragments do what plain Python does, compiled or not."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators.fragments import Fragmenter, combined, fragmenter
from penstock.operators.scan import PANE, Fragments, Partial
from tests.naive import fragments_of

PARTIALS = (
    Partial("count", "*", "count"),
    Partial("sum", "v", "sum"),
    Partial("min", "v", "min"),
    Partial("max", "v", "max"),
    Partial("last", "v", "last"),
    Partial("sum_of_squares", "v", "squares"),
)
ROWS = st.lists(
    st.tuples(st.integers(-20, 20), st.tuples(st.integers(-2, 2), st.integers(0, 1)), st.integers(-9, 9)),
    max_size=120,
)


def _folded(
    given: Sequence[tuple[int, tuple[int, ...], int]], columns: int, cut: int, *, ordered: bool
) -> None:
    rows = [(time, group[:columns], value) for time, group, value in given]
    if ordered:
        rows.sort(key=lambda row: row[0])
    names = [f"k{i}" for i in range(columns)]
    fragments = Fragments(7000, "t", "s", tuple(names), PARTIALS)
    types = dict.fromkeys(["t", *names, *(partial.name for partial in PARTIALS)], pa.int64())
    folding = Fragmenter(fragments, types)
    for part in (rows[:cut], rows[cut:]):
        if part:
            values = pa.array([row[2] for row in part])
            groups = [pa.array([row[1][i] for row in part]) for i in range(columns)]
            folding.add(pa.array([row[0] for row in part]), groups, [None, *[values] * 5])
    found = combined(fragments, [folding.finish()]) if rows else folding.finish()
    have = {}
    for row in found.to_pylist():
        where = (row[PANE], tuple(row[name] for name in names))
        assert where not in have
        have[where] = tuple(row[name] for name in ("count", "sum", "min", "max", "last"))
    assert have == fragments_of(rows, 7)
    assert sum(found["squares"].to_pylist()) == sum(row[2] ** 2 for row in rows)


@settings(deadline=None)
@given(rows=ROWS, columns=st.integers(0, 2), cut=st.integers(0, 120), ordered=st.booleans())
def test_fragments_are_those_of_plain_python(
    rows: list[tuple[int, tuple[int, ...], int]], columns: int, cut: int, ordered: bool
) -> None:
    _folded(rows, columns, cut, ordered=ordered)


def test_tables_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(i // 40, (i * 7919 % 61, i % 2), i % 17 - 8) for i in range(4000)]
    assert len({row[1] for row in rows}) > fragmenter._TABLE // 32
    monkeypatch.setattr(fragmenter, "_SLOTS", 2)
    monkeypatch.setattr(fragmenter, "_TABLE", 4)
    for columns in (1, 2):
        _folded(rows, columns, 1000, ordered=True)
