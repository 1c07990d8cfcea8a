"""Labels of buckets make Spark's hash partitioning even."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from penstock.spark_ext.border.buckets import bucket_labels, spark_hash


def _spark_hash(value: int) -> int:
    """Return Murmur3 (x86, 32 bits, seed 42) of an integer's four bytes, signed."""
    mask = 0xFFFFFFFF

    def rotated(x: int, bits: int) -> int:
        return (x << bits | x >> 32 - bits) & mask

    k = rotated((value & mask) * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    h = (rotated(42 ^ k, 13) * 5 + 0xE6546B64) & mask
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def test_the_hash_is_sparks() -> None:
    # SELECT hash(0), hash(1)
    assert spark_hash(np.array([0, 1])).tolist() == [933211791, -559580957]


def test_the_hash_equals_the_plain_one_for_all_integers() -> None:
    values = [0, 1, -1, 2, 41, 42, 43, 1000, 2**31 - 1, -(2**31), *range(5000, 5100)]
    assert spark_hash(np.array(values)).tolist() == [_spark_hash(value) for value in values]


@pytest.mark.parametrize("partitions", range(1, 65))
def test_every_partition_gets_as_many_buckets(partitions: int) -> None:
    for each in (1, 2, 3, 4, 7):
        labels = bucket_labels(partitions * each)
        assert len(set(labels)) == partitions * each
        # Spark's partitioning: pmod(hash(label), partitions).
        counts = Counter(_spark_hash(label) % partitions for label in labels)
        assert counts == dict.fromkeys(range(partitions), each)


def test_labels_fit_sparks_integers_and_are_the_same_in_every_process() -> None:
    assert bucket_labels(1) == (0,)
    assert bucket_labels(2) == (2, 0)
    assert bucket_labels(8) == (12, 6, 5, 1, 25, 15, 2, 0)
    assert all(0 <= label < 2**31 for label in bucket_labels(5000))


def test_the_label_of_a_bucket_is_the_smallest_that_will_do() -> None:
    for bucket, label in enumerate(bucket_labels(13)):
        assert [x for x in range(label + 1) if _spark_hash(x) % 13 == bucket] == [label]
