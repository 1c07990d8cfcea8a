"""KLL sketches of many sets of numbers: medians and percentiles (Apache DataSketches).

A sketch keeps some of its values, each with a weight. A sketch of up to `2 ** log2_size` values keeps all
values, so quantiles are exact. With more values, the rank of a quantile is wrong by at most `rank_error`
times the number of values, with 99 % confidence (Karnin, Lang and Liberty, FOCS 2016). The library chooses
randomly which values it drops, so the same values may give slightly different quantiles.

The state holds a sketch in the library's own binary format.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._extras import need_extra
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.operators.aggregates.sketches import unite_ranges

if TYPE_CHECKING:
    # This module is not imported at run time, because it loads kernels, which plans do not need.
    from penstock.operators.update_stream.stream import Integers

__all__ = [
    "DEFAULT_ACCURACY",
    "QuantileSketches",
    "check_quantile_images",
    "compute_quantiles",
    "log2_size_for",
    "rank_error",
    "unite_images",
]

DEFAULT_ACCURACY: Final = 1000
"""The rank error of ``median`` and ``percentile`` is at most 1 divided by this number."""

_MIN_LOG2_SIZE, _MAX_LOG2_SIZE = 8, 15
_MAX_WAITING = 1 << 20
_PURPOSE = "median, percentile and approx_percentile"


def rank_error(log2_size: int) -> float:
    """Return the rank error of a sketch of this size, as a fraction of the number of values.

    The formula comes from the library (``get_normalized_rank_error``); it was fitted to measurements.
    """
    return 2.296 / float(2**log2_size) ** 0.9723


def log2_size_for(accuracy: int) -> int:
    """Return the binary logarithm of the sketch size whose rank error is at most ``1 / accuracy``.

    Raises
    ------
    InvalidUsageError
        If the accuracy is not positive, or beyond the largest sketch.
    """
    if accuracy < 1:
        raise InvalidUsageError("the accuracy is not positive", accuracy=accuracy)
    for log2_size in range(_MIN_LOG2_SIZE, _MAX_LOG2_SIZE + 1):
        if rank_error(log2_size) * accuracy <= 1:
            return log2_size
    raise InvalidUsageError(
        "the accuracy is too high for a sketch",
        accuracy=accuracy,
        greatest=math.floor(1 / rank_error(_MAX_LOG2_SIZE)),
        hint="the rank error is 1 / accuracy; use a lower accuracy",
    )


def _library() -> Any:
    need_extra("sketch", _PURPOSE)
    from datasketches import kll_doubles_sketch

    return kll_doubles_sketch


class QuantileSketches:
    """The sketches of all slots, to which values and stored sketches can be added.

    Parameters
    ----------
    log2_size : int
        The size of the sketches as a power of two.

    Raises
    ------
    InvalidUsageError
        If datasketches is not installed in this process, which may be a cluster worker.
    """

    def __init__(self, log2_size: int) -> None:
        self._kll, self._size = _library(), 1 << log2_size
        self._sketches: dict[int, Any] = {}
        self._waiting: list[tuple[npt.NDArray[Any], npt.NDArray[np.float64]]] = []
        self._rows = 0

    def _get(self, slot: int) -> Any:
        sketch = self._sketches.get(slot)
        if sketch is None:
            sketch = self._sketches[slot] = self._kll(self._size)
        return sketch

    def add_values(self, slots: npt.NDArray[Any], values: npt.NDArray[np.float64]) -> None:
        """Add values to the sketches of their slots; skip NaN."""
        self._waiting.append((slots, values))
        self._rows += len(slots)
        if self._rows > _MAX_WAITING:
            self._take_in()

    def _take_in(self) -> None:
        """Add the waiting values with one library call per slot, because each call has a high fixed cost."""
        if not self._waiting:
            return
        slots, values = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting, self._rows = [], 0
        order = np.argsort(slots, kind="stable")
        slots, values = slots[order], values[order]
        begins = np.flatnonzero(np.diff(slots, prepend=-1))
        ends = np.append(begins, len(slots))[1:]
        for slot, begin, end in zip(slots[begins].tolist(), begins.tolist(), ends.tolist(), strict=True):
            self._get(slot).update(values[begin:end])

    def add_images(self, slots: npt.NDArray[Any], images: pa.Array[Any]) -> None:
        """Unite the sketches of slots with stored sketches."""
        for slot, image in zip(slots.tolist(), images.to_pylist(), strict=True):
            sketch = self._kll.deserialize(image)
            if slot in self._sketches:
                self._sketches[slot].merge(sketch)
            else:
                self._sketches[slot] = sketch

    def images(self, count: int) -> pa.Array[Any]:
        """Return the images of the sketches of slots 1 to `count` - 1."""
        self._take_in()
        empty = self._kll(self._size).serialize()
        images = [
            empty if (sketch := self._sketches.get(slot)) is None else sketch.serialize()
            for slot in range(1, count)
        ]
        return pa.array(images, pa.binary())


def unite_images(images: pa.Array[Any], low: Integers, high: Integers, log2_size: int) -> pa.Array[Any]:
    """Return the images of the unions of ranges of sketches; see `unite_ranges`.

    Parameters
    ----------
    images : pyarrow.BinaryArray of n
    low, high : int64 arrays of m
    """
    kll = _library()

    class Union:
        def __init__(self) -> None:
            self._union = kll(1 << log2_size)

        def add(self, sketch: Any) -> None:
            self._union.merge(sketch)

        def result(self) -> Any:
            # The library cannot copy a sketch, and the next `merge` would change this sketch.
            return kll.deserialize(self._union.serialize())

    sketches = [kll.deserialize(image) for image in images.to_pylist()]
    return pa.array([whole.serialize() for whole in unite_ranges(sketches, low, high, Union)], pa.binary())


def check_quantile_images(images: pa.Array[Any], log2_size: int) -> None:
    """Check the stored images of sketches.

    Raises
    ------
    CorruptDataError
        If an image is null, damaged, or of the wrong size.
    """
    kll = _library()
    for image in images.to_pylist():
        try:
            k = None if image is None else kll.deserialize(image).k
        except (RuntimeError, ValueError, IndexError) as error:
            raise CorruptDataError("a stored sketch of quantiles is damaged", rows=len(images)) from error
        if k != 1 << log2_size:
            raise CorruptDataError(
                "a stored sketch of quantiles is null or has another size", found=k, size=1 << log2_size
            )


def compute_quantiles(images: pa.Array[Any], fraction: float, *, interpolates: bool) -> pa.Array[Any]:
    """Compute a quantile of each sketch, null for a sketch without values.

    Parameters
    ----------
    images : pyarrow.BinaryArray of n
    fraction : float
        The quantile as a fraction between 0 and 1.
    interpolates : bool
        Whether to interpolate linearly between the two nearest values, as Spark's ``percentile`` does. By
        default the result is the smallest value such that at least `fraction` of all values are at most this
        value, as in Spark's ``approx_percentile``.

    Returns
    -------
    pyarrow.DoubleArray of n
    """
    kll = _library()
    return pa.array(
        [_quantile(kll.deserialize(image), fraction, interpolates) for image in images.to_pylist()],
        pa.float64(),
    )


def _quantile(sketch: Any, fraction: float, interpolates: bool) -> float | None:
    if sketch.is_empty():
        return None
    count = sketch.n
    if not interpolates:
        at = max(math.ceil(fraction * count), 1)
        (only,) = _values_at(sketch, (at,))
        return only
    place = fraction * (count - 1)
    below = math.floor(place)
    first, second = _values_at(sketch, (below + 1, min(below + 2, count)))
    return first if first == second else first + (place - below) * (second - first)


def _values_at(sketch: Any, ranks: Sequence[int]) -> list[float]:
    """Return the values at ranks, counted from 1."""
    # Subtract half a rank, so that rounding cannot reach the next rank.
    values: list[float] = sketch.get_quantiles([(rank - 0.5) / sketch.n for rank in ranks], True)
    return list(values)
