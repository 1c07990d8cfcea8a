"""Theta sketches of many sets at once: how many different values there are, about (Apache DataSketches).

A sketch keeps the least `2 ** log2_size` of the hashes of 63 bits that values have, and as *theta* the least
one that it has no room for; without one it is exact. Sketches of parts are combined to that of the whole, in
any order, with the same result. Its relative standard error is ``1 / sqrt(2 ** log2_size - 2)`` at most.

In the state each is an image of the library's compact theta sketch, little-endian words of 8 bytes::

    preamble     longs before the hashes (2; 3 with theta), 3, 3, 0, 0, flags, hash of the seed (2 bytes)
    retained     number of hashes
    theta        only where there are more than fit
    hashes       ascending

The library takes values one at a time. So images are made here, of whole columns of hashes, and the library
reads, unites and estimates them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._extras import need_extra
from penstock.errors import InvalidUsageError

if TYPE_CHECKING:
    # What it is in loads kernels, and plans need none.
    from penstock.operators.update_stream.stream import Integers

__all__ = ["estimates", "hashes_in", "hashes_of", "images_of", "least_hashes", "log2_size_of"]

_Words: TypeAlias = npt.NDArray[np.uint64]

_READ_ONLY, _EMPTY, _COMPACT, _ORDERED = 2, 4, 8, 16
_PREAMBLE = int.from_bytes([0, 3, 3, 0, 0, _READ_ONLY | _COMPACT | _ORDERED, 0xCC, 0x93], "little")
_MIN_LOG2_SIZE, _MAX_LOG2_SIZE = 5, 20


def log2_size_of(deviation: float) -> int:
    """Return how large a sketch has to be for a relative standard deviation.

    Raises
    ------
    InvalidUsageError
        If it is not between 0 and 1, or so small that no sketch is large enough.
    """
    if not 0 < deviation < 1:
        raise InvalidUsageError("a relative standard deviation is between 0 and 1", deviation=deviation)
    found = max(math.ceil(math.log2(deviation**-2 + 2)), _MIN_LOG2_SIZE)
    if found > _MAX_LOG2_SIZE:
        raise InvalidUsageError(
            "the relative standard deviation is too small for a sketch",
            deviation=deviation,
            least=f"{(2**_MAX_LOG2_SIZE - 2) ** -0.5:.2g}",
            hint="count(DISTINCT x) is exact",
        )
    return found


def hashes_of(values: npt.NDArray[np.int64]) -> _Words:
    """Return hashes of 64 bits as those of sketches, between 0 and ``2 ** 63 - 1``."""
    return np.clip(values.view(np.uint64) >> np.uint64(1), np.uint64(1), np.uint64(2**63 - 2))


def least_hashes(owners: Integers, hashes: _Words, log2_size: int) -> tuple[Integers, _Words]:
    """Return of each owner's hashes what its sketch needs, by owner and ascending; equal ones come once.

    Parameters
    ----------
    owners : int64 array of n
        Which sketch a hash is for.
    hashes : uint64 array of n
        Of `hashes_of`.
    """
    order = np.lexsort((hashes, owners))
    owners, hashes = owners[order], hashes[order]
    new = np.ones(len(owners), np.bool_)
    new[1:] = (np.diff(owners) != 0) | (np.diff(hashes) != 0)
    owners, hashes = owners[new], hashes[new]
    begins = np.flatnonzero(np.diff(owners, prepend=-1))
    rank = np.arange(len(owners)) - np.repeat(begins, np.diff(begins, append=len(owners)))
    kept = rank <= 1 << log2_size
    return owners[kept], hashes[kept]


def images_of(owners: Integers, hashes: _Words, log2_size: int, count: int) -> pa.Array[Any]:
    """Return the images of the sketches 0, 1, ..., `count` - 1 of what `least_hashes` returned."""
    sizes = np.bincount(owners, minlength=count)
    begins = np.zeros(count + 1, np.int64)
    np.cumsum(sizes + 2, out=begins[1:])
    full = sizes > 1 << log2_size
    words = np.zeros(begins[-1], np.uint64)
    words[begins[:-1]] = np.uint64(_PREAMBLE) + np.where(full, 3, 2).astype(np.uint64)
    words[begins[:-1]] += np.where(sizes == 0, _EMPTY << 40, 0).astype(np.uint64)
    words[begins[:-1] + 1] = sizes - full
    # Hashes stand behind the preamble; of a full sketch the last one, theta, stands before the others.
    firsts = np.cumsum(sizes) - sizes
    rank = np.arange(len(owners)) - firsts[owners]
    place = np.where(full[owners], (rank + 1) % np.maximum(sizes[owners], 1), rank)
    words[begins[owners] + 2 + place] = hashes
    offsets = pa.array(8 * begins).cast(pa.int32())
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets.buffers()[1], pa.py_buffer(words)])


def hashes_in(images: pa.Array[Any]) -> tuple[Integers, _Words]:
    """Return how many hashes each image of `images_of` has, theta included, and all of them."""
    if not len(images):
        return np.zeros(0, np.int64), np.zeros(0, np.uint64)
    offsets = np.frombuffer(images.buffers()[1], np.int32)[images.offset :][: len(images) + 1]
    begins = offsets.astype(np.int64) // 8
    words = np.frombuffer(images.buffers()[2], np.uint64, count=begins[-1])
    sizes = np.diff(begins) - 2
    inside = np.arange(sizes.sum()) + np.repeat(begins[:-1] + 2 - (np.cumsum(sizes) - sizes), sizes)
    return sizes, words[inside]


def estimates(images: pa.Array[Any], low: Integers, high: Integers, log2_size: int) -> Integers:
    """Return about how many different values the sketches of each range stand for.

    Two stacks, as of `sliding_kernels.slide_sum`: a range costs the same however long it is. The loop is one
    over sketches, which the library unites one by one.

    Parameters
    ----------
    images : pyarrow.BinaryArray of n
    low, high : int64 arrays of m
        Ranges, none empty. Both grow, but where a group ends, the next begins behind it.

    Raises
    ------
    InvalidUsageError
        If this process, maybe a worker of a cluster, has no datasketches.
    """
    need_extra("sketch", "approx_count_distinct")
    from datasketches import compact_theta_sketch, theta_union

    sketches = [compact_theta_sketch.deserialize(image) for image in images.to_pylist()]
    found = np.empty(len(low), np.float64)
    suffix: dict[int, Any] = {}
    lows, middle, end = low.tolist(), 0, 0
    back = None
    for i, (begin, until) in enumerate(zip(lows, high.tolist(), strict=True)):
        if begin >= middle:
            # What a suffix stands for is needed only where a range begins.
            wanted = set(lows[i : int(np.searchsorted(low, until))])
            suffix, union = {until - 1: sketches[until - 1]}, theta_union(log2_size)
            for j in range(until - 1, begin - 1, -1) if until > begin + 1 else ():
                union.update(sketches[j])
                if j in wanted:
                    suffix[j] = union.get_result()
            middle = end = until
            back = None
        if end < until:
            back = theta_union(log2_size) if back is None else back
            for sketch in sketches[end:until]:
                back.update(sketch)
            end = until
        whole = suffix[begin]
        if back is not None:
            union = theta_union(log2_size)
            union.update(whole)
            union.update(back.get_result())
            whole = union.get_result(ordered=False)
        found[i] = whole.get_estimate()
    return np.rint(found).astype(np.int64)
