"""Filter the rows of a table by a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock._kernels import kernel
from penstock.compression.arrow import encode_as_dictionary, take_rows
from penstock.compression.kernels.bits import Bytes, Ints
from penstock.compression.kinds import is_text

__all__ = ["select_rows"]


@kernel
def _find_true(bits: Bytes, first: int, count: int, rows: Ints) -> int:
    """Write the positions of the set bits among the `count` bits from bit `first` on; return their number.

    `rows` must have room for one more entry than there are set bits. The loop has no branch, because the
    processor cannot predict which bits are set.
    """
    found: Any = 0
    for i in range(count):
        at = np.uint64(first + i)
        rows[found] = i
        found += np.int64((bits[at >> np.uint64(3)] >> (at & np.uint64(7))) & 1)
    return found


def select_rows(table: pa.Table, mask: pa.Array[Any], *, dictionaries: bool = False) -> pa.Table:
    """Filter a table by a mask. Filtering texts takes half of the time that Arrow's filter takes.

    Parameters
    ----------
    table : pyarrow.Table
        The rows to filter.
    mask : pyarrow.BooleanArray, (rows,)
        The mask, without nulls.
    dictionaries : bool
        Whether texts may be returned as dictionaries, which is faster if texts repeat.
    """
    if not any(is_text(field.type) for field in table.schema):
        return table.filter(mask)  # Arrow filters by runs of rows
    rows = np.empty(mask.true_count + 1, np.int64)
    bits = np.frombuffer(mask.buffers()[1], np.uint8) if len(mask) else np.empty(0, np.uint8)
    rows = rows[: _find_true(bits, mask.offset, len(mask), rows)]
    columns = []
    for column in table.columns:
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        texts = (
            encode_as_dictionary(array, rows)
            if dictionaries and is_text(array.type) and not array.null_count
            else None
        )
        columns.append(take_rows(array, rows) if texts is None else texts)
    fields = [field.with_type(column.type) for field, column in zip(table.schema, columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, table.schema.metadata))
