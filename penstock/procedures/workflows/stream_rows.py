"""The rows of a stream in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.procedures.rows import arrow_column, numpy_column
from penstock.procedures.texts import TextNumbers
from penstock.procedures.workflows.streams import StreamSpec

__all__ = ["StreamRows"]

_FIRST_ROWS = 1 << 6


class StreamRows:
    """The rows of a stream in memory, in the order in which they were emitted.

    The stream is empty when a round begins and ends, so no version stores rows of a stream.

    Parameters
    ----------
    spec : StreamSpec
        The declaration of the stream.
    """

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec
        self._size = _FIRST_ROWS
        self.arrays: list[npt.NDArray[Any]] = []
        """The arrays in the order in which kernels take them."""
        self._make()

    @property
    def size_bytes(self) -> int:
        """The memory of the arrays."""
        return sum(array.nbytes for array in self.arrays)

    def double(self) -> None:
        """Make room for more rows in a round; the current rows are lost."""
        self._size *= 2
        self._make()

    def load(self, rows: pa.RecordBatch, texts: TextNumbers) -> None:
        """Write rows to the start of the stream."""
        while self._size < rows.num_rows:
            self.double()
        arrays = iter(self.arrays)
        for column, values in zip(self._spec.columns, rows.columns, strict=True):
            numbers, mask = numpy_column(column, values, texts)
            next(arrays)[: len(numbers)] = numbers
            if column.nullable:
                next(arrays)[: len(mask)] = mask

    def rows(self, count: int, texts: TextNumbers) -> pa.RecordBatch:
        """Return the first `count` rows."""
        arrays, columns = iter(self.arrays), []
        for column in self._spec.columns:
            values = next(arrays)[:count].copy()
            mask = next(arrays)[:count].copy() if column.nullable else None
            columns.append(arrow_column(column, values, mask, texts))
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)

    def _make(self) -> None:
        self.arrays = []
        for column in self._spec.columns:
            self.arrays.append(np.zeros(self._size, column.dtype))
            if column.nullable:
                self.arrays.append(np.zeros(self._size, np.bool_))
