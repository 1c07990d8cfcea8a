"""Group columns as keys, nulls included."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import KeyIndex
from penstock.state_store.keys.key_words import KeyCodec, Keys, Positions, Words

__all__ = ["GroupCodec"]

_MAX_COLUMNS = 63
_MIN_ROWS_TO_SAMPLE, _SAMPLE_ROWS, _MIN_ROWS_PER_GROUP = 1 << 14, 1 << 12, 4
"""Minimum rows to sample, sample size, and mean rows per group that count as repetition."""


class GroupCodec:
    """Convert group columns to `Keys` and back. A null is a group of its own, as in Spark.

    The first word of a key has a bit for each null column. Without columns all rows are one group.

    Parameters
    ----------
    fields : sequence of pyarrow.Field
        The group columns in their order.

    Raises
    ------
    InvalidUsageError
        If a column's type cannot be a key (nested types), or there are more than 63.
    """

    def __init__(self, fields: Sequence[pa.Field[Any]]) -> None:
        if len(fields) > _MAX_COLUMNS:
            raise InvalidUsageError("too many columns in a group", columns=len(fields), most=_MAX_COLUMNS)
        self.fields = list(fields)
        self._codec = KeyCodec([pa.field("nulls", pa.int64()), *self.fields])

    def encode(self, columns: Sequence[pa.Array[Any]], rows: int) -> Keys:
        """Encode the groups of rows."""
        nulls = np.zeros(rows, np.int64)
        filled: list[pa.Array[Any]] = []
        for bit, column in enumerate(columns):
            plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            if plain.null_count:
                nulls |= plain.is_null().to_numpy(zero_copy_only=False).astype(np.int64) << bit
                plain = pc.fill_null(plain, _nothing(plain.type))
            filled.append(plain)
        return self._codec.encode([pa.array(nulls), *filled])

    def repeats(self, columns: Sequence[pa.Array[Any]], rows: int) -> bool:
        """Return whether few groups have many rows, judged by a sample."""
        if rows < _MIN_ROWS_TO_SAMPLE:
            return False
        places = pa.array(np.arange(0, rows, max(rows // _SAMPLE_ROWS, 1)))
        sample = [column.take(places) for column in columns]
        count = len(sample[0]) if sample else 1
        return len(np.unique(self.encode(sample, count).hashes)) * _MIN_ROWS_PER_GROUP <= _SAMPLE_ROWS

    def numbers(self, index: KeyIndex, columns: Sequence[pa.Array[Any]], rows: int) -> Integers:
        """Return the numbers of the rows' groups in an index; add new groups.

        If rows of a group are adjacent, only one row per run is looked up. Else if few groups have many rows,
        rows are grouped by value first, and only the distinct groups are looked up.
        """
        if rows < _MIN_ROWS_TO_SAMPLE:
            return index.find_or_add(self.encode(columns, rows))
        if (begins := _runs(columns, rows)) is not None:
            heads = [column.take(pa.array(begins)) for column in columns]
            known = index.find_or_add(self.encode(heads, len(begins)))
            return np.repeat(known, np.diff(begins, append=rows))
        if len(columns) == 1 and not pa.types.is_dictionary(columns[0].type) and self.repeats(columns, rows):
            coded = columns[0].dictionary_encode(null_encoding="encode")
            known = index.find_or_add(self.encode([coded.dictionary], len(coded.dictionary)))
            return known[coded.indices.to_numpy()]
        return index.find_or_add(self.encode(columns, rows))

    def decode(self, words: Words, starts: Positions) -> list[pa.Array[Any]]:
        """Return the columns of the groups that begin at `starts` in `words`."""
        nulls, *columns = self._codec.decode(words, starts)
        bits = nulls.to_numpy()
        if not bits.any():
            return columns
        return [
            pc.if_else(pa.array((bits >> bit) & 1 == 1), pa.scalar(None, column.type), column)
            for bit, column in enumerate(columns)
        ]


def _runs(columns: Sequence[pa.Array[Any]], rows: int) -> Integers | None:
    """Return the starts of runs of equal rows; None if runs are short."""
    sample = _begins([column.slice(0, _SAMPLE_ROWS) for column in columns], min(rows, _SAMPLE_ROWS))
    if len(sample) * _MIN_ROWS_PER_GROUP > min(rows, _SAMPLE_ROWS):
        return None
    begins = _begins(columns, rows)
    return begins if len(begins) * _MIN_ROWS_PER_GROUP <= rows else None


def _begins(columns: Sequence[pa.Array[Any]], rows: int) -> Integers:
    """Return the sorted indices of rows that differ from the previous row, including the first."""
    differ = np.zeros(rows, np.bool_)
    differ[:1] = True
    for column in columns:
        plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        differ[pc.run_end_encode(plain).run_ends.to_numpy()[:-1]] = True
    return np.flatnonzero(differ)


def _nothing(kind: pa.DataType) -> pa.Scalar[Any]:
    """Return the value that replaces a null; the null's bit distinguishes the two."""
    if pa.types.is_decimal(kind):
        return pa.scalar(Decimal(0), kind)
    if pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return pa.scalar(0, pa.int64()).cast(kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.scalar("", kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.scalar(b"", kind)
    whole = pa.int32() if kind.bit_width == 32 else pa.int64()
    if pa.types.is_integer(kind):
        return pa.scalar(0, kind)
    return pa.array([0], whole).view(kind)[0]
