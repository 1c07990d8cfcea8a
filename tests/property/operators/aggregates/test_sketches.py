"""Sketches estimate the same as the least hashes of all values, however the values are divided."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.operators.aggregates.sketches import (
    check_images,
    estimates,
    hashes_of,
    images_of,
    least_hashes,
    log2_size_of,
)
from penstock.operators.scan.fragments.accumulators import new_accumulator
from penstock.operators.scan.spec import Partial

datasketches = pytest.importorskip("datasketches")
K = 32
PARTIAL = Partial("sketch", "h", "s", 5)


def folded(kind: Any, parts: list[tuple[list[int], Any]], count: int) -> Any:
    """Fold values into their slots, part by part."""
    fold = new_accumulator(PARTIAL, kind)
    for slots, values in parts:
        fold.add(np.array(slots, np.int32), np.zeros(len(slots)), values, count)
    return fold.result(count)


def estimate(values: set[int]) -> float:
    """Return the estimate from the K least hashes and the next one."""
    hashes = sorted({min(max((value % 2**64) >> 1, 1), 2**63 - 2) for value in values})
    return len(hashes) if len(hashes) <= K else K / (hashes[K] / (2**63 - 1))


VALUES = st.lists(st.one_of(st.integers(-9, 9), st.integers(-(2**63), 2**63 - 1)), max_size=30)


@given(sets=st.lists(VALUES, min_size=1, max_size=12), data=st.data())
def test_ranges_of_sketches_are_estimated_as_their_union(sets: list[list[int]], data: st.DataObject) -> None:
    sets[0] = [*sets[0], *range(0, data.draw(st.sampled_from([0, 31, 32, 33, 99])))]
    rows = [(slot, value) for slot, values in enumerate(sets, 1) for value in values]
    at = data.draw(st.integers(0, len(rows)))
    parts = [
        ([slot for slot, _ in some], pa.array([value for _, value in some], pa.int64()))
        for some in (rows[:at], rows[at:])
    ]
    parts.append(([0, 1], pa.array([5, None], pa.int64())))
    images = folded(pa.int64(), parts, len(sets) + 1)
    for image, values in zip(images.to_pylist(), sets, strict=True):
        sketch = datasketches.compact_theta_sketch.deserialize(image)
        assert sketch.get_estimate() == pytest.approx(estimate(set(values)))
        assert sketch.is_empty() == (not values)
    steps = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=12))
    ranges, low, high = [], 0, 0
    for step, more in steps:
        low, high = low + step, max(high, low + step) + more
        ranges.append((low, min(high, len(sets)))) if low < len(sets) else None
    lows, highs = (np.array([one[end] for one in ranges], np.int64) for end in (0, 1))
    found = estimates(images, lows, highs, 5)
    for (begin, end), one in zip(ranges, found.tolist(), strict=True):
        assert one == pytest.approx(estimate(set().union(*sets[begin:end])), abs=0.51)
    together = folded(images.type, [([1] * len(sets), images)], 2)
    (whole,) = estimates(together, np.array([0]), np.array([1]), 5).tolist()
    assert whole == pytest.approx(estimate(set().union(*sets)), abs=0.51)


def test_a_sketch_is_as_exact_as_was_asked_for() -> None:
    # A mixing function stands for Spark's hash.
    numbers = np.arange(200_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    hashes = (numbers ^ (numbers >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    for deviation in (0.05, 0.01):
        size = log2_size_of(deviation)
        fold = new_accumulator(Partial("sketch", "h", "s", size), pa.int64())
        fold.add(np.ones(len(hashes), np.int32), hashes, pa.array(hashes.view(np.int64)), 2)
        (found,) = estimates(fold.result(2), np.array([0]), np.array([1]), size).tolist()
        assert abs(found / len(hashes) - 1) < 3 * deviation


def test_deviations_have_a_range() -> None:
    assert [log2_size_of(one) for one in (0.5, 0.05, 0.01)] == [5, 9, 14]
    for wrong in (0, 1, 0.0001):
        with pytest.raises(InvalidUsageError):
            log2_size_of(wrong)


def test_images_are_checked_when_they_are_read() -> None:
    owners = np.repeat(np.arange(3), [5, 100, 40])
    hashes = hashes_of(np.arange(1, 146) << 40)
    images = images_of(*least_hashes(owners, hashes, 6), 6, 4)
    check_images(images)
    check_images(images[:0])
    good = images.to_pylist()
    for number, image in enumerate(good):
        flipped = bytes([image[0] ^ 1]) + image[1:]
        for damaged in (None, b"", image[:-1], image[:-8], flipped, image[:8] + b"\x07" + image[9:]):
            with pytest.raises(CorruptDataError):
                check_images(pa.array([*good[:number], damaged, *good[number + 1 :]], pa.binary()))
