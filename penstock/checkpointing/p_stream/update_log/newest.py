"""Find the newest row of each key, in one pass over the columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._kernels import kernel

__all__ = ["newest_rows"]

_Ints: TypeAlias = npt.NDArray[np.int64]


def newest_rows(rows: pa.Table, key: Sequence[str], time: str) -> _Ints:
    """Return the ascending numbers of the newest rows, one per key. If times are equal, the last row counts.

    Parameters
    ----------
    rows : pyarrow.Table
        Rows without nulls in key and time, in order of arrival.
    key : sequence of str
        The columns of the key.
    time : str
        The column that orders the rows of a key: the greatest value is the newest.
    """
    if not rows.num_rows:
        return np.empty(0, np.int64)
    codes, keys = _codes(rows.column(key[0]))
    for name in key[1:]:
        more, count = _codes(rows.column(name))
        # Both numbers are below the number of rows, so the product fits 64 bits.
        codes, keys = _codes(pa.chunked_array([pa.array(codes * count + more)]))
    return _newest(codes, _values(rows.column(time)), keys)


def _codes(column: pa.ChunkedArray[Any]) -> tuple[_Ints, int]:
    """Return, for each row, the number (0, 1, 2, ...) of its distinct value; and the count of numbers."""
    coded: Any = column.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    return coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(coded.dictionary)


def _values(column: pa.ChunkedArray[Any]) -> npt.NDArray[Any]:
    """Convert times to numbers that have the same order."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.int64())
    return column.to_numpy()


@kernel
def _newest(codes: _Ints, times: npt.NDArray[Any], keys: int) -> _Ints:
    newest = np.full(keys, -1, np.int64)
    for row in range(codes.size):
        before = newest[codes[row]]
        if before < 0 or times[row] >= times[before]:
            newest[codes[row]] = row
    newest.sort()
    return newest
