"""Bucket labels that Spark's hash partitioning spreads evenly.

Spark sends a group to partition ``pmod(hash(label), P)``. The label of bucket i of B is the smallest number
whose hash is i modulo B. So if P divides B, each of P partitions gets exactly B / P buckets. Labels do not
depend on P.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["bucket_labels", "spark_hash"]

_SEED = 42


def spark_hash(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return Spark's ``hash`` of 32-bit integers: Murmur3 (x86, 32 bits) with seed 42, signed."""

    def rotate(x: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
        return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))

    k = values.astype(np.int32).view(np.uint32) * np.uint32(0xCC9E2D51)
    k = rotate(k, 15) * np.uint32(0x1B873593)
    h = rotate(np.uint32(_SEED) ^ k, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    h ^= np.uint32(4)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h.view(np.int32).astype(np.int64)


@lru_cache(maxsize=16)
def bucket_labels(buckets: int) -> tuple[int, ...]:
    """Return the labels of buckets 0 to `buckets` - 1."""
    labels = np.full(buckets, -1, np.int64)
    begin, step = 0, max(64, 8 * buckets)
    while (labels < 0).any():
        candidates = np.arange(begin, begin + step, dtype=np.int64)
        residues, first = np.unique(spark_hash(candidates) % buckets, return_index=True)
        missing = labels[residues] < 0
        labels[residues[missing]] = candidates[first[missing]]
        begin += step
    return tuple(labels.tolist())
