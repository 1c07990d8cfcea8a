"""The kernel of `penstock.operators.sql.comparisons`."""

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
    """Write which values are in an interval, of those that `mask` lets pass unless it is the `first`.

    Parameters
    ----------
    values : numpy.ndarray of integers or floats, (rows,)
        A column; only read.
    low, high : of its type
        The interval's ends, which are in it.
    nan, inverted : bool
        Whether NaN is in it, and whether what is not in it passes.
    first : bool
        Whether `mask` says nothing yet.
    mask : numpy.ndarray of bool, (rows,)
        Is written.
    """
    # No branches but those that the compiler takes out of the loop, so that it becomes vector instructions.
    if first:
        for i in range(len(values)):
            x = values[i]
            mask[i] = (((x >= low) & (x <= high)) | ((x != x) & nan)) != inverted  # noqa: PLR0124 of NaN alone
    else:
        for i in range(len(values)):
            x = values[i]
            mask[i] &= (((x >= low) & (x <= high)) | ((x != x) & nan)) != inverted  # noqa: PLR0124
