"""Group columns as keys, nulls included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import KeyIndex
from penstock.state_store.keys.key_words import KeyCodec, Keys, Positions, Words

__all__ = ["GroupCodec", "GroupSampling"]

_MAX_COLUMNS = 63


@dataclass(frozen=True, slots=True)
class GroupSampling:
    """The rule by which a sample shows whether there are many rows per group.

    Parameters
    ----------
    min_rows : int
        If there are fewer rows than this, no sample is taken, and the answer is no.
    sample_rows : int
        The size of the sample.
    min_rows_per_group : int
        The answer is yes if the sample has at least this many rows per group on average.
    """

    min_rows: int = 1 << 14
    sample_rows: int = 1 << 12
    min_rows_per_group: int = 4


class GroupCodec:
    """Convert group columns to `Keys` and back. Nulls form a separate group, as in Spark.

    The first word of a key has a bit for each null column. If there are no columns, all rows are one group.

    Parameters
    ----------
    fields : sequence of pyarrow.Field
        The group columns in their order.
    sampling : GroupSampling, optional
        The rule by which a sample shows whether there are many rows per group. If there are many, each
        distinct group is looked up only once.

    Raises
    ------
    InvalidUsageError
        If a column's type cannot be a key (nested types), or there are more than 63 columns.
    """

    def __init__(self, fields: Sequence[pa.Field[Any]], sampling: GroupSampling | None = None) -> None:
        if len(fields) > _MAX_COLUMNS:
            raise InvalidUsageError("too many columns in a group", columns=len(fields), most=_MAX_COLUMNS)
        self.fields = list(fields)
        self._sampling = sampling or GroupSampling()
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
        """Return whether a sample has many rows per group."""
        rule = self._sampling
        if rows < rule.min_rows:
            return False
        places = pa.array(np.arange(0, rows, max(rows // rule.sample_rows, 1)))
        sample = [column.take(places) for column in columns]
        count = len(sample[0]) if sample else 1
        groups = len(np.unique(self.encode(sample, count).hashes))
        return groups * rule.min_rows_per_group <= rule.sample_rows

    def numbers(self, index: KeyIndex, columns: Sequence[pa.Array[Any]], rows: int) -> Integers:
        """Return the numbers of the rows' groups in an index; add new groups.

        If rows of a group are adjacent, only one row per run is looked up. Otherwise, if there are many rows
        per group, rows are first grouped by value, and only the distinct groups are looked up.
        """
        if rows < self._sampling.min_rows:
            return index.find_or_add(self.encode(columns, rows))
        if (begins := _runs(columns, rows, self._sampling)) is not None:
            heads = [column.take(pa.array(begins)) for column in columns]
            numbers = index.find_or_add(self.encode(heads, len(begins)))
            return np.repeat(numbers, np.diff(begins, append=rows))
        if len(columns) == 1 and not pa.types.is_dictionary(columns[0].type) and self.repeats(columns, rows):
            coded = columns[0].dictionary_encode(null_encoding="encode")
            numbers = index.find_or_add(self.encode([coded.dictionary], len(coded.dictionary)))
            return numbers[coded.indices.to_numpy()]
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


def _runs(columns: Sequence[pa.Array[Any]], rows: int, rule: GroupSampling) -> Integers | None:
    """Return the starts of runs of equal rows; None if runs are short."""
    sampled = min(rows, rule.sample_rows)
    sample = _begins([column.slice(0, sampled) for column in columns], sampled)
    if len(sample) * rule.min_rows_per_group > sampled:
        return None
    begins = _begins(columns, rows)
    return begins if len(begins) * rule.min_rows_per_group <= rows else None


def _begins(columns: Sequence[pa.Array[Any]], rows: int) -> Integers:
    """Return the indices of the first row, and of each row that differs from the row before it."""
    differ = np.zeros(rows, np.bool_)
    differ[:1] = True
    for column in columns:
        plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        differ[pc.run_end_encode(plain).run_ends.to_numpy()[:-1]] = True
    return np.flatnonzero(differ)


def _nothing(kind: pa.DataType) -> pa.Scalar[Any]:
    """Return the value that replaces a null. The null's bit distinguishes the null from the value."""
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
