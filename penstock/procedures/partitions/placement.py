"""Find the partition of each row, by the hash of columns or by ranges of one column (H-Store §3.4.1)."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from penstock._kernels import GOLDEN, kernel
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.procedures.in_process.arrow_rows import arrow_errors
from penstock.procedures.rows import numpy_column
from penstock.procedures.schema import Column, Kind, TableSpec
from penstock.procedures.texts import Numbers, TextNumbers, interned_values
from penstock.state_store.keys.key_words import KeyCodec, buckets_of

__all__ = [
    "Placement",
    "hash_numbers",
    "hash_values",
    "mix_hashes",
    "numbers_of",
    "place_tables",
    "read_ranges",
]


def hash_values(column: Column, values: pa.Array[Any]) -> Numbers:
    """Return a hash of each value of a key column, or of an attribute of the same kind.

    The hash of a null is arbitrary.
    """
    if column.kind.is_interned:
        kind = pa.large_string() if column.kind is Kind.TEXT else pa.large_binary()
        values = interned_values(values.fill_null(_zero(column))).cast(kind)
        return KeyCodec([pa.field("key", kind)]).encode([values]).hashes.view(np.int64)
    return hash_numbers(numbers_of(column, values))


def _zero(column: Column) -> str | bytes | Decimal:
    """Return a value that can replace the nulls of an interned column."""
    zeros: dict[Kind, str | bytes] = {Kind.TEXT: "", Kind.BINARY: b""}
    return zeros.get(column.kind, Decimal())


def hash_numbers(numbers: Numbers) -> Numbers:
    """Return a hash of each integer that `numbers_of` returns."""
    codec = KeyCodec([pa.field("key", pa.int64())])
    return codec.encode([pa.array(numbers)]).hashes.view(np.int64)


def mix_hashes(hashes: Sequence[Numbers]) -> Numbers:
    """Combine the hashes of each row's columns, in order; the hash of a single column is unchanged."""
    mixed = hashes[0].view(np.uint64)
    for one in hashes[1:]:
        mixed = ((mixed ^ (mixed >> np.uint64(32))) * GOLDEN) ^ one.view(np.uint64)
    return mixed.view(np.int64)


@kernel
def find_ranges(values: Numbers, least: Numbers) -> Numbers:
    """Return the number of each value's range: how many bounds in `least` are not above the value."""
    places = np.empty(values.shape[0], np.int64)
    for i in range(values.shape[0]):
        place = np.int64(0)
        for k in range(least.shape[0]):  # no branches: for few bounds faster than a binary search
            place += np.int64(values[i] >= least[k])
        places[i] = place
    return places


def numbers_of(column: Column, values: pa.Array[Any]) -> Numbers:
    """Convert the values of a column that is not interned to integers."""
    return numpy_column(column, values, TextNumbers())[0].astype(np.int64, copy=False)


class Placement:
    """Finds the partition of each row of a table.

    Parameters
    ----------
    spec : TableSpec
        The table, which has a column to partition by.
    partitions : int
        The number of partitions.
    ranges : sequence, optional
        The smallest value of each partition except the first. By default the hash of a value determines the
        partition.
    columns : sequence of str, optional
        The columns of the key to partition by, instead of the declared column.

    Attributes
    ----------
    columns : tuple of Column
        The columns by which the table is partitioned.

    Raises
    ------
    InvalidUsageError
        If the ranges are wrong: the table is partitioned by several columns, the number of values is not the
        number of partitions minus one, or the values do not ascend or do not fit the column.
    """

    def __init__(
        self,
        spec: TableSpec,
        partitions: int,
        ranges: Sequence[Any] | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        self.columns = tuple(spec.column(name) for name in columns or (spec.partition_by or "",))
        self.partitions = partitions
        self.ranges: tuple[Any, ...] | None = None
        if ranges is None:
            return
        if len(self.columns) > 1:
            raise InvalidUsageError(
                "only a single column has ranges",
                table=spec.name,
                columns=self.names,
                hint="leave out the ranges, or partition by one column",
            )
        (column,) = self.columns
        with arrow_errors(spec.name):
            bounds = pa.array(ranges, column.type)
        least = bounds.to_pylist() if column.kind.is_interned else numbers_of(column, bounds).tolist()
        ascends = not bounds.null_count and all(one < other for one, other in itertools.pairwise(least))
        if len(least) != partitions - 1 or not ascends:
            raise InvalidUsageError(
                "the ranges of a table do not fit its partitions",
                table=spec.name,
                partitions=partitions,
                ranges=len(least),
                hint=f"give the least values of all partitions but the first: {partitions - 1}, ascending",
            )
        self.ranges = tuple(least)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def method(self) -> object:
        """The method that chooses a partition; equal methods put equal values into the same partition."""
        return self.ranges

    def partitions_of(self, columns: Sequence[Column], values: Sequence[pa.Array[Any]]) -> Numbers:
        """Return the partition of each row from its values in the partition columns.

        `columns` are the partition columns, or attributes of the same kinds.
        """
        if self.ranges is None:
            mixed = mix_hashes([hash_values(*one) for one in zip(columns, values, strict=True)])
            return buckets_of(mixed.view(np.uint64), self.partitions)
        return self._ranges_of(columns[0], values[0])

    def _ranges_of(self, column: Column, values: pa.Array[Any]) -> Numbers:
        if not column.kind.is_interned:
            return find_ranges(numbers_of(column, values), np.array(self.ranges, np.int64))
        encoded = values.fill_null(_zero(column)).dictionary_encode()
        numbers = [bisect_right(self.ranges or (), value) for value in encoded.dictionary.to_pylist()]
        return np.array(numbers or [0], np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]

    def split(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Divide rows by partition, and keep their order."""
        if not rows.num_rows:
            return [rows] * self.partitions
        places = self.partitions_of(self.columns, [rows.column(name) for name in self.names])
        order = np.argsort(places, kind="stable")
        ends = np.searchsorted(places[order], np.arange(self.partitions + 1))
        return [rows.take(pa.array(order[begin:end])) for begin, end in itertools.pairwise(map(int, ends))]


def place_tables(
    tables: Mapping[str, TableSpec],
    partitions: int,
    ranges: Mapping[str, Sequence[Any]],
    columns: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Placement]:
    """Return the placements of all tables that have a column to partition by.

    Parameters
    ----------
    tables : mapping
        The tables by name.
    partitions : int
        The number of partitions.
    ranges : mapping
        The ranges of tables; see `Placement`.
    columns : mapping, optional
        For each table that is partitioned by several columns, these columns.

    Raises
    ------
    InvalidUsageError
        If `ranges` names a table that is unknown or has no `partition_by`, or has values that do not fit.
    """
    placements = {}
    for name in ranges:
        if name not in tables:
            raise InvalidUsageError(
                "there is no such table", table=name, hint=did_you_mean(name, tables, "tables")
            )
        if tables[name].partition_by is None:
            raise InvalidUsageError(
                "a table without partition_by has no ranges",
                table=name,
                hint="declare it with partition_by=, a column of its key",
            )
    for name, spec in tables.items():
        if spec.partition_by is not None:
            placements[name] = Placement(spec, partitions, ranges.get(name), (columns or {}).get(name))
    return placements


def read_ranges(tables: Mapping[str, TableSpec], texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the ranges that texts such as ``accounts=100,200`` give to tables.

    Raises
    ------
    InvalidUsageError
        If a text has a different form, or a value does not fit the column.
    """
    ranges = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not sign or name in ranges:
            raise InvalidUsageError(
                "these are not ranges of a table",
                ranges=text,
                hint="write TABLE=VALUE,VALUE, each table once",
            )
        spec = tables.get(name)
        parts = pa.array(values.split(","), pa.string())
        if spec is not None and spec.partition_by is not None:
            with arrow_errors(name):
                parts = parts.cast(spec.column(spec.partition_by).type)
        ranges[name] = parts.to_pylist()
    return ranges
