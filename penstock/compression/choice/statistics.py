"""Statistics of a sample, which rule out codecs before they are tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock._kernels import kernel
from penstock.compression.arrow import to_streams
from penstock.compression.codecs.decimals import digits_of
from penstock.compression.codecs.dictionary import codes_of
from penstock.compression.codecs.differences import divisor_of
from penstock.compression.kernels.bits import SUB_BLOCK, Ints, seal
from penstock.compression.layouts import Layout, is_float, layouts_of

__all__ = ["ColumnStats", "column_stats", "sample_of", "stream_stats"]


_MIN_SAMPLED_TEXTS = 1 << 12


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """Statistics of a sample of a stream.

    Parameters
    ----------
    rows : int
        The number of values in the sample.
    least, most : int
        The least and the greatest value, as signed integers.
    range_bits, delta_bits, delta_of_delta_bits : int
        The number of bits of the widest offset: of values from the least value, of deltas from the least
        delta, and of deltas of deltas from the least of them.
    runs : int
        The number of runs of equal values.
    distinct : int or None
        Number of distinct values; None if it is more than half of the sample.
    divisor : int
        The greatest common divisor of all differences of two values.
    ascending : bool
        Whether no value is less than the value before it.
    digits : int or None
        For floating-point numbers, the decimal places of nearly all values.
    """

    rows: int
    least: int
    most: int
    range_bits: int
    delta_bits: int
    delta_of_delta_bits: int
    runs: int
    distinct: int | None
    divisor: int
    ascending: bool
    digits: int | None

    @property
    def run_length(self) -> float:
        """The average number of values in a run."""
        return self.rows / self.runs if self.runs else 0.0


@kernel
def _scan(values: Ints, out: Ints) -> None:
    """Write the range of values, of deltas and of deltas of deltas, then the counts of runs and descents."""
    least = most = values[0]
    delta = values[0] - values[0]
    low = high = delta
    low2 = high2 = delta
    before = delta
    runs, descents = 1, 0
    if values.shape[0] > 1:
        low = high = values[1] - values[0]
    if values.shape[0] > 2:
        low2 = high2 = (values[2] - values[1]) - low
    for i in range(1, values.shape[0]):
        value = values[i]
        least, most = min(least, value), max(most, value)
        before = delta
        delta = value - values[i - 1]
        low, high = min(low, delta), max(high, delta)
        runs += value != values[i - 1]
        descents += value < values[i - 1]
        if i > 1:
            second = delta - before
            low2, high2 = min(low2, second), max(high2, second)
    out[0], out[1], out[2], out[3], out[4], out[5] = least, most, low, high, low2, high2
    out[6], out[7] = runs, descents


def stream_stats(sample: Ints, *, floats: bool = False) -> ColumnStats:
    """Return the statistics of a sample of at least one value.

    With `floats`, the integers are the bits of floating-point numbers.
    """
    sample = seal(sample)
    results = np.empty(8, np.int64)
    _scan(sample, results)
    least, most, low, high, low2, high2, runs, descents = results.tolist()
    distinct = codes_of(sample, max(1, sample.size // 2))
    return ColumnStats(
        rows=sample.size,
        least=least,
        most=most,
        range_bits=(most - least).bit_length(),
        delta_bits=(high - low).bit_length(),
        delta_of_delta_bits=(high2 - low2).bit_length(),
        runs=runs,
        distinct=None if distinct is None else distinct[0].size,
        divisor=divisor_of(sample),
        ascending=descents == 0,
        digits=digits_of(sample) if floats and sample.dtype.itemsize >= 4 else None,
    )


def sample_of(array: pa.Array[Any], rows: int, stretches: int = 4) -> pa.Array[Any]:
    """Return up to `rows` values: runs of whole sub-blocks, spread over the array, in order.

    Texts are long, so a sample of texts has fewer values: about as many bytes as `rows` numbers.
    """
    if Layout.TEXT in layouts_of(array.type) and len(array):
        rows = max(_MIN_SAMPLED_TEXTS, min(rows, 8 * rows * len(array) // max(array.nbytes, 1)))
    if len(array) <= rows:
        return array
    stretch = max(rows // stretches // SUB_BLOCK, 1) * SUB_BLOCK
    last = len(array) - stretch
    begins = [last // 2] if stretches == 1 else [last * part // (stretches - 1) for part in range(stretches)]
    return pa.concat_arrays([array.slice(begin, stretch) for begin in begins])


def column_stats(array: pa.Array[Any] | pa.ChunkedArray[Any], rows: int = 1 << 14) -> ColumnStats | None:
    """Return the statistics of a sample of an array.

    Parameters
    ----------
    array : pyarrow.Array or pyarrow.ChunkedArray
        Any column. The statistics describe the dictionary codes of texts, the low 8 bytes of decimals, and
        the bytes of nested values.
    rows : int
        The maximum number of values in the sample.

    Returns
    -------
    ColumnStats or None
        None for an array without values.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    streams = to_streams(sample_of(array, rows), dictionary=True).streams
    if not streams or not streams[0].size:
        return None
    return stream_stats(streams[0], floats=is_float(array.type))
