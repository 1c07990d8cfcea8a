"""Theta sketches of many sets at once: approximate distinct counts (Apache DataSketches).

A sketch keeps the `2 ** log2_size` smallest 63-bit hashes of the values. If there are more hashes, *theta* is
the smallest hash that did not fit. Without theta the count is exact; with theta its relative standard error
is at most ``1 / sqrt(2 ** log2_size - 2)``. The union of sketches does not depend on their order.

The state holds a sketch as an image of the library's compact theta sketch, in little-endian words of 8
bytes::

    preamble     longs before the hashes (2; 3 with theta), 3, 3, 0, 0, flags, hash of the seed (2 bytes)
    retained     number of hashes
    theta only if there are more hashes than fit
    hashes       ascending

The library adds values one at a time. So this module builds images from whole columns of hashes. The library
reads the images, unites them and estimates counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock._extras import need_extra
from penstock.errors import CorruptDataError, InvalidUsageError

if TYPE_CHECKING:
    # This module is not imported at run time, because it loads kernels, which plans do not need.
    from penstock.operators.update_stream.stream import Integers

__all__ = [
    "SketchUnion",
    "check_images",
    "estimates",
    "hashes_in",
    "hashes_of",
    "images_of",
    "least_hashes",
    "log2_size_of",
    "unite_ranges",
]

_Words: TypeAlias = npt.NDArray[np.uint64]

_READ_ONLY, _EMPTY, _COMPACT, _ORDERED = 2, 4, 8, 16
_PREAMBLE = int.from_bytes([0, 3, 3, 0, 0, _READ_ONLY | _COMPACT | _ORDERED, 0xCC, 0x93], "little")
_MIN_LOG2_SIZE, _MAX_LOG2_SIZE = 5, 20


def log2_size_of(deviation: float) -> int:
    """Return the binary logarithm of the sketch size for a relative standard deviation of the estimate.

    Raises
    ------
    InvalidUsageError
        If the deviation is not between 0 and 1, or so small that no sketch is large enough.
    """
    if not 0 < deviation < 1:
        raise InvalidUsageError("the relative standard deviation is not between 0 and 1", deviation=deviation)
    log2_size = max(math.ceil(math.log2(deviation**-2 + 2)), _MIN_LOG2_SIZE)
    if log2_size > _MAX_LOG2_SIZE:
        raise InvalidUsageError(
            "the relative standard deviation is too small for a sketch",
            deviation=deviation,
            least=f"{(2**_MAX_LOG2_SIZE - 2) ** -0.5:.2g}",
            hint="use a larger one, or count(DISTINCT x), which is exact",
        )
    return log2_size


def hashes_of(values: npt.NDArray[np.int64]) -> _Words:
    """Map 64-bit hashes to sketch hashes between 0 and ``2 ** 63 - 1``."""
    return np.clip(values.view(np.uint64) >> np.uint64(1), np.uint64(1), np.uint64(2**63 - 2))


def least_hashes(owners: Integers, hashes: _Words, log2_size: int) -> tuple[Integers, _Words]:
    """Return the distinct hashes that each owner's sketch keeps, ordered by owner and hash.

    Parameters
    ----------
    owners : int64 array of n
        The sketch that a hash belongs to.
    hashes : uint64 array of n
        The output of `hashes_of`.
    """
    order = np.lexsort((hashes, owners))
    owners, hashes = owners[order], hashes[order]
    new = np.ones(len(owners), np.bool_)
    new[1:] = (np.diff(owners) != 0) | (np.diff(hashes) != 0)
    owners, hashes = owners[new], hashes[new]
    begins = np.flatnonzero(np.diff(owners, prepend=-1))
    rank = np.arange(len(owners)) - np.repeat(begins, np.diff(begins, append=len(owners)))
    is_least = rank <= 1 << log2_size
    return owners[is_least], hashes[is_least]


def images_of(owners: Integers, hashes: _Words, log2_size: int, count: int) -> pa.Array[Any]:
    """Build the images of sketches 0 to `count` - 1 from the output of `least_hashes`."""
    sizes = np.bincount(owners, minlength=count)
    begins = np.zeros(count + 1, np.int64)
    np.cumsum(sizes + 2, out=begins[1:])
    full = sizes > 1 << log2_size
    words = np.zeros(begins[-1], np.uint64)
    words[begins[:-1]] = np.uint64(_PREAMBLE) + np.where(full, 3, 2).astype(np.uint64)
    words[begins[:-1]] += np.where(sizes == 0, _EMPTY << 40, 0).astype(np.uint64)
    words[begins[:-1] + 1] = sizes - full
    # Hashes follow the preamble. In a full sketch theta, which is the last hash, precedes the other hashes.
    firsts = np.cumsum(sizes) - sizes
    rank = np.arange(len(owners)) - firsts[owners]
    place = np.where(full[owners], (rank + 1) % np.maximum(sizes[owners], 1), rank)
    words[begins[owners] + 2 + place] = hashes
    offsets = pa.array(8 * begins).cast(pa.int32())
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets.buffers()[1], pa.py_buffer(words)])


def check_images(images: pa.Array[Any]) -> None:
    """Check the stored images of sketches: their lengths, preambles and numbers of hashes.

    Raises
    ------
    CorruptDataError
        If an image is null, or is not an image that `images_of` can build.
    """
    sizes = pc.binary_length(images).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if images.null_count or (sizes % 8).any() or (sizes < 16).any():
        raise CorruptDataError("a stored sketch is cut, or is null", rows=len(images))
    heads = b"".join(pc.binary_slice(images, 0, 16).to_pylist())
    preambles, retained = np.frombuffer(heads, np.uint64).reshape(-1, 2).T
    longs = preambles & np.uint64(0xFF)
    empty = np.where(retained == 0, np.uint64(_EMPTY << 40), np.uint64(0))
    is_valid = ((longs == 2) | (longs == 3)) & (preambles == (np.uint64(_PREAMBLE) + longs + empty))
    if not (is_valid & (retained + longs == (sizes // 8).astype(np.uint64))).all():
        raise CorruptDataError("a stored sketch is damaged", rows=len(images))


def hashes_in(images: pa.Array[Any]) -> tuple[Integers, _Words]:
    """Return the number of hashes in each image, and the hashes of all images in one array.

    If an image stores theta, theta counts as one of its hashes.
    """
    if not len(images):
        return np.zeros(0, np.int64), np.zeros(0, np.uint64)
    offsets = np.frombuffer(images.buffers()[1], np.int32)[images.offset :][: len(images) + 1]
    begins = offsets.astype(np.int64) // 8
    words = np.frombuffer(images.buffers()[2], np.uint64, count=begins[-1])
    sizes = np.diff(begins) - 2
    inside = np.arange(sizes.sum()) + np.repeat(begins[:-1] + 2 - (np.cumsum(sizes) - sizes), sizes)
    return sizes, words[inside]


class SketchUnion(Protocol):
    """A union of sketches, to which more sketches can be added."""

    def add(self, sketch: Any) -> None:
        """Unite with a sketch."""

    def result(self) -> Any:
        """Return the union as a sketch, which does not change when the union grows."""


def unite_ranges(
    sketches: Sequence[Any], low: Integers, high: Integers, new_union: Callable[[], SketchUnion]
) -> Iterator[Any]:
    """Yield the union of each range of sketches.

    Two stacks, as in `sliding_kernels.slide_sum`, make the cost of a range independent of its length. The
    loop over sketches is in Python because the library unites them one by one.

    Parameters
    ----------
    sketches : sequence
        The n sketches to unite.
    low, high : int64 arrays of m
        The bounds of non-empty ranges. Within a group both bounds ascend. The ranges of the next group begin
        after this group.
    new_union : callable
        Makes an empty union.
    """
    suffix: dict[int, Any] = {}
    lows, middle, end = low.tolist(), 0, 0
    back: SketchUnion | None = None
    for i, (begin, until) in enumerate(zip(lows, high.tolist(), strict=True)):
        if begin >= middle:
            # A suffix is needed only where a range begins.
            starts = set(lows[i : int(np.searchsorted(low, until))])
            suffix, union = {until - 1: sketches[until - 1]}, new_union()
            for j in range(until - 1, begin - 1, -1) if until > begin + 1 else ():
                union.add(sketches[j])
                if j in starts:
                    suffix[j] = union.result()
            middle = end = until
            back = None
        if end < until:
            back = new_union() if back is None else back
            for sketch in sketches[end:until]:
                back.add(sketch)
            end = until
        whole = suffix[begin]
        if back is not None:
            union = new_union()
            union.add(whole)
            union.add(back.result())
            whole = union.result()
        yield whole


def estimates(images: pa.Array[Any], low: Integers, high: Integers, log2_size: int) -> Integers:
    """Estimate the distinct count of the union of each range of sketches; see `unite_ranges`.

    Parameters
    ----------
    images : pyarrow.BinaryArray of n
    low, high : int64 arrays of m

    Raises
    ------
    InvalidUsageError
        If datasketches is not installed in this process, which may be a cluster worker.
    """
    need_extra("sketch", "approx_count_distinct")
    from datasketches import compact_theta_sketch, theta_union

    class Union:
        def __init__(self) -> None:
            self._union = theta_union(log2_size)

        def add(self, sketch: Any) -> None:
            self._union.update(sketch)

        def result(self) -> Any:
            return self._union.get_result(ordered=False)

    sketches = [compact_theta_sketch.deserialize(image) for image in images.to_pylist()]
    counts = (whole.get_estimate() for whole in unite_ranges(sketches, low, high, Union))
    return np.rint(np.fromiter(counts, np.float64, len(low))).astype(np.int64)
