"""Atomic batches: events that a workflow takes in one round (S-Store §2.1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidUsageError

__all__ = ["batch_bounds"]


def batch_bounds(column: pa.Array[Any], name: str) -> npt.NDArray[np.int64]:
    """Return where the batches of events begin, and the number of events: a batch has equal values in a row.

    Parameters
    ----------
    column : pyarrow.Array
        The values; null is a value.
    name : str
        The name of the column, for errors.

    Raises
    ------
    InvalidUsageError
        If values of this type cannot be compared.
    """
    try:
        numbers = column.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    except pa.ArrowNotImplementedError as error:  # only Arrow knows which types it compares
        raise InvalidUsageError(
            "a column of this type does not tell batches", column=name, type=column.type
        ) from error
    begins = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    return np.concatenate([[0] if len(numbers) else [], begins, [len(numbers)]]).astype(np.int64)
