"""Sketched quantiles equal those of Polars exactly for few values, and within the rank error for many."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.operators.aggregates.assembly import Assembly
from penstock.operators.aggregates.decomposition import decompose
from penstock.operators.aggregates.quantiles import (
    DEFAULT_ACCURACY,
    check_quantile_images,
    compute_quantiles,
    log2_size_for,
    rank_error,
    unite_images,
)
from penstock.operators.scan.fragments.accumulators import new_accumulator
from penstock.operators.scan.spec import Partial
from penstock.windows.append.sliding import slide

datasketches = pytest.importorskip("datasketches")
PARTIAL = Partial("kll", "x", "q", 8)
VALUES = st.lists(st.one_of(st.none(), st.integers(-9, 9), st.integers(-(2**40), 2**40)), max_size=20)
FRACTIONS = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 0.99, 1.0])


def folded(kind: Any, parts: list[tuple[Any, Any]], count: int, log2_size: int = 8) -> Any:
    accumulator = new_accumulator(Partial("kll", "x", "q", log2_size), kind)
    for slots, values in parts:
        accumulator.add(np.asarray(slots, np.int32), np.zeros(len(slots)), values, count)
    return accumulator.result(count)


def quantile(values: list[Any], fraction: float, how: Any) -> Any:
    return pl.Series(values, dtype=pl.Float64).drop_nulls().quantile(fraction, how)


@given(sets=st.lists(VALUES, min_size=1, max_size=12), fraction=FRACTIONS, data=st.data())
def test_quantiles_of_few_values_are_exact(
    sets: list[list[Any]], fraction: float, data: st.DataObject
) -> None:
    rows = [(slot, value) for slot, values in enumerate(sets, 1) for value in values]
    rows += [(0, 5)]
    at = data.draw(st.integers(0, len(rows)))
    parts = [
        ([slot for slot, _ in some], pa.array([value for _, value in some], pa.int64()))
        for some in (rows[:at], rows[at:])
    ]
    images = folded(pa.int64(), parts, len(sets) + 1)
    check_quantile_images(images, 8)
    steps = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=12))
    ranges, low, high = [], 0, 0
    for step, more in steps:
        low, high = low + step, max(high, low + step) + more
        ranges.append((low, min(high, len(sets)))) if low < len(sets) else None
    lows, highs = (np.array([one[end] for one in ranges], np.int64) for end in (0, 1))
    entries = pa.RecordBatch.from_arrays([images], ["q"])
    windows = slide([PARTIAL], {}, lows, entries, lows, highs, closing=True)
    smooth = compute_quantiles(windows.column(0), fraction, interpolates=True).to_pylist()
    plain = compute_quantiles(windows.column(0), fraction, interpolates=False).to_pylist()
    for (begin, end), one, other in zip(ranges, smooth, plain, strict=True):
        values = [value for some in sets[begin:end] for value in some]
        expected = quantile(values, fraction, "linear")
        assert one is None if expected is None else one == pytest.approx(expected)
        known = sorted(value for value in values if value is not None)
        assert other == (known[max(math.ceil(fraction * len(known)), 1) - 1] if known else None)


@pytest.mark.parametrize("accuracy", [100, DEFAULT_ACCURACY])
@pytest.mark.parametrize("panes", [1, 40])
def test_quantiles_of_many_values_are_within_the_rank_error(accuracy: int, panes: int) -> None:
    rng = np.random.default_rng(accuracy + panes)
    values = rng.lognormal(0.0, 2.0, 200_000)
    size = log2_size_for(accuracy)
    slots = rng.integers(1, panes + 1, len(values))
    images = folded(pa.float64(), [(slots, pa.array(values))], panes + 1, size)
    windows = unite_images(images, np.array([0]), np.array([panes]), size)
    known = np.sort(values)
    for fraction in (0.01, 0.5, 0.9, 0.99):
        (found,) = compute_quantiles(windows, fraction, interpolates=True).to_pylist()
        rank = np.searchsorted(known, found) / len(known)
        # The bound holds with 99 % confidence; twice the bound leaves no room for chance.
        assert abs(rank - fraction) < 2 / accuracy


def test_windows_that_share_panes_do_not_change_each_other() -> None:
    images = folded(pa.int64(), [([1, 2, 3, 4], pa.array([1, 2, 3, 4]))], 5)
    low, high = np.array([0, 0, 1, 2]), np.array([2, 3, 4, 4])
    found = compute_quantiles(unite_images(images, low, high, 8), 0.5, interpolates=True)
    assert found.to_pylist() == [1.5, 2.0, 3.0, 3.5]


def test_nan_is_skipped() -> None:
    images = folded(pa.float64(), [([1, 1, 1], pa.array([1.0, math.nan, 3.0]))], 3)
    assert compute_quantiles(images, 0.5, interpolates=True).to_pylist() == [2.0, None]


def test_the_error_of_a_size_is_the_librarys() -> None:
    for size in range(8, 16):
        theirs = datasketches.kll_doubles_sketch(1 << size).normalized_rank_error(False)
        assert rank_error(size) == pytest.approx(theirs, rel=0.01)


def test_accuracies_have_a_range() -> None:
    assert [log2_size_for(one) for one in (1, 100, 1000, 10_000)] == [8, 9, 12, 15]
    for wrong in (0, -1, 100_000):
        with pytest.raises(InvalidUsageError, match="accuracy"):
            log2_size_for(wrong)


def test_images_are_checked_when_they_are_read() -> None:
    (image,) = folded(pa.int64(), [([1] * 5, pa.array([1, 2, 3, 4, 5]))], 2).to_pylist()
    check_quantile_images(pa.array([image], pa.binary()), 8)
    for damaged in (None, b"", image[:-8], image[:3], b"\x63" + image[1:]):
        with pytest.raises(CorruptDataError):
            check_quantile_images(pa.array([image, damaged], pa.binary()), 8)
    with pytest.raises(CorruptDataError):
        check_quantile_images(pa.array([image], pa.binary()), 9)


def test_quantiles_of_a_column_share_a_sketch() -> None:
    texts = {
        "a": "median(x)",
        "b": "percentile(x, 0.9) - percentile(x, 0.1)",
        "c": "approx_percentile(x, 0.5, 1000)",
        "d": "percentile_approx(x, 0.5D, 100)",
        "e": "median(x) FILTER (WHERE y > 0)",
    }
    found = decompose(texts, "t")
    assert [(one.kind, one.expression, one.log2_size) for one in found.partials] == [
        ("kll", "x", 12),
        ("kll", "x", 9),
        ("kll", "CASE WHEN y > 0 THEN x END", 12),
    ]
    made = Assembly.from_decomposition(found)
    assert set(made.quantiles.values()) == {
        ("kll_x", 0.5, True),
        ("kll_x", 0.9, True),
        ("kll_x", 0.1, True),
        ("kll_x", 0.5, False),
        ("kll_x_2", 0.5, False),
        ("kll_case_when_y_0_then_x_end", 0.5, True),
    }


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("percentile(x, 1.5)", "not between 0 and 1"),
        ("percentile(x, y)", "is not a number"),
        ("percentile_approx(x, array(0.5, 0.9))", "is not a number"),
        ("approx_percentile(x, 0.5, 1000000)", "accuracy is too high"),
        ("percentile(x, 0.5, 2)", "do not support this aggregate"),
        ("median(DISTINCT x)", "do not support this aggregate"),
    ],
)
def test_quantiles_that_no_sketch_has_are_refused(text: str, fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        decompose({"a": text}, "t")
