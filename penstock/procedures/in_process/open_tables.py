"""Make the empty tables of a database that is being opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.errors import InvalidUsageError
from penstock.procedures.engine import TableSet
from penstock.procedures.partitions.partitioned_tables import MAX_PARTITIONS, PartitionedTables, State
from penstock.procedures.schema import TableSpec

__all__ = ["open_tables"]


def open_tables(
    specs: Sequence[TableSpec],
    partitions: int,
    ranges: Mapping[str, Sequence[Any]],
    unshared: Iterable[str] = (),
    columns: Mapping[str, Sequence[str]] | None = None,
) -> State:
    """Return empty tables; see `PartitionedTables`.

    Raises
    ------
    InvalidUsageError
        If the number of partitions or the ranges are unusable.
    """
    if type(partitions) is not int or not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidUsageError(
            "this is no number of partitions", partitions=repr(partitions), hint=f"use 1 to {MAX_PARTITIONS}"
        )
    if partitions == 1 and not ranges:
        return TableSet(specs)
    return PartitionedTables(specs, partitions, ranges, unshared, columns)
