"""The kernel of `penstock.sql.comparisons`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._kernels import kernel

__all__ = ["keep"]


@kernel
def keep(
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
        A column. Not modified.
    low, high : scalar of the column's type
        The interval's ends, inclusive.
    nan, inverted : bool
        Whether NaN is in the interval, and whether the values outside of it pass.
    first : bool
        Whether this is the first interval, so that the content of `mask` is ignored.
    mask : numpy.ndarray of bool, (rows,)
        The mask. Updated.
    """
    # All branches are loop-invariant, so that the compiler can vectorize the loop.
    if first:
        for i in range(len(values)):
            x = values[i]
            mask[i] = (((x >= low) & (x <= high)) | ((x != x) & nan)) != inverted  # noqa: PLR0124 of NaN alone
    else:
        for i in range(len(values)):
            x = values[i]
            mask[i] &= (((x >= low) & (x <= high)) | ((x != x) & nan)) != inverted  # noqa: PLR0124
