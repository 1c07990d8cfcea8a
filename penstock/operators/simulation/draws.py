"""Random draws as a function of a seed and an index, independent of batching."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["draws"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix `values` with the last step of splitmix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def draws(seed: int, start: int, count: int) -> npt.NDArray[np.float64]:
    """Return draws `start` to ``start + count - 1`` of the sequence of `seed`, uniform in [0, 1).

    Examples
    --------
    >>> bool((draws(7, 0, 10)[4:] == draws(7, 4, 6)).all())
    True
    """
    key = _mix(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64) + _GOLDEN)
    numbers = np.arange(start, start + count, dtype=np.int64).view(np.uint64)
    return (_mix((numbers + np.uint64(1)) * _GOLDEN + key) >> np.uint64(11)).astype(np.float64) * 2.0**-53
