"""The kernel of `penstock.sql.comparisons`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._kernels import kernel

__all__ = ["restrict_mask"]


@kernel
def restrict_mask(
    values: npt.NDArray[Any],
    low: Any,
    high: Any,
    nan: bool,
    inverted: bool,
    first: bool,
    mask: npt.NDArray[np.bool_],
) -> None:
    """Restrict a mask to the values that an interval accepts.

    Parameters
    ----------
    values : numpy.ndarray of integers or floats, (rows,)
        The column's values. The kernel does not modify them.
    low, high : scalar of the column's type
        The inclusive ends of the interval.
    nan : bool
        Whether the interval contains NaN.
    inverted : bool
        Whether the mask keeps the values outside of the interval instead of the values inside.
    first : bool
        Whether this is the first interval. If so, the kernel overwrites `mask` without reading it.
    mask : numpy.ndarray of bool, (rows,)
        The mask, which the kernel updates.
    """
    # All branches are loop-invariant, so that the compiler can vectorize the loop.
    if first:
        for i in range(len(values)):
            x = values[i]
            mask[i] = (((x >= low) & (x <= high)) | ((x != x) & nan)) != inverted  # noqa: PLR0124  # true only for NaN
    else:
        for i in range(len(values)):
            x = values[i]
            mask[i] &= (((x >= low) & (x <= high)) | ((x != x) & nan)) != inverted  # noqa: PLR0124  # as above
