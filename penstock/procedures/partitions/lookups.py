"""Look-ups in an index of a table whose rows are in several partitions.

H-Store replicates a secondary index on all partitions, so that a look-up finds the partition (H-Store
§3.4.1). Here all partitions are in one memory, and none changes while a call is split: so the index of each
partition is read, and no copy has to be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.update_stream.stream import concat
from penstock.procedures.engine import TableSet
from penstock.procedures.rows import numpy_column
from penstock.procedures.schema import Column
from penstock.procedures.texts import Numbers

__all__ = ["find_rows"]


def find_rows(
    parts: Sequence[TableSet], table: str, index: Sequence[str], values: Sequence[pa.Array[Any]]
) -> tuple[Numbers, pa.RecordBatch]:
    """Return the rows that an index finds in all partitions.

    Parameters
    ----------
    parts : sequence of TableSet
        The partitions.
    table : str
        The table.
    index : sequence of str
        The columns of the index.
    values : sequence of pyarrow.Array
        For each of them the values to find.

    Returns
    -------
    starts : ndarray
        The place of the first row of each value, then the number of rows.
    rows : pyarrow.RecordBatch
        The rows in this order.
    """
    events: list[Numbers] = []
    rows: list[pa.RecordBatch] = []
    for part in parts:
        columns = [part[table].spec.column(name) for name in index]
        numbers = [_numbers(part, column, one) for column, one in zip(columns, values, strict=True)]
        exists = np.logical_and.reduce([known for _, known in numbers])
        found, slots = part[table].trees.find(index, [one for one, _ in numbers], exists)
        events.append(found)
        rows.append(part[table].rows_at(slots))
    joined = np.concatenate(events)
    counts = np.bincount(joined, minlength=len(values[0]))
    order = np.argsort(joined, kind="stable")
    return np.concatenate([[0], np.cumsum(counts)]), concat(rows).take(pa.array(order))


def _numbers(
    part: TableSet, column: Column, values: pa.Array[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return values as a partition has them, and whether it may have them."""
    if column.kind.is_interned:
        numbers = part.texts.known_numbers(values)
        return numbers, numbers >= 0
    found, null = numpy_column(column, values, part.texts)
    return found, ~null
