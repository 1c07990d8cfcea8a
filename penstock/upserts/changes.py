"""The newest change of each key in a batch."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError

__all__ = ["DELETED", "newest_changes"]

DELETED: Final = "penstock_deleted"
"""The boolean column that is true in rows that delete their key."""


def newest_changes(table: pa.Table, key: tuple[str, ...], time: str) -> pa.Table:
    """Return the newest row of each key. Of rows with equal times, return the row that arrived last.

    Parameters
    ----------
    table : pyarrow.Table
        Rows in the order in which they arrived.
    key : tuple of str
        The columns of the key.
    time : str
        The column that orders the rows of a key: the greatest value is the newest.

    Raises
    ------
    InvalidUsageError
        If a key or a time is null, or a time is NaN, which has no order.
    """
    for name in (*key, time):
        missing = table[name].null_count
        if name == time and pa.types.is_floating(table[name].type):
            missing = pc.sum(pc.is_null(table[name], nan_is_null=True)).as_py()
        if missing:
            raise InvalidUsageError(
                "an upsert has rows without a key or time",
                column=name,
                rows=missing,
                hint="filter them before the upsert",
            )
    if table.num_rows < 2:
        return table
    columns = {f"k{place}": table[name] for place, name in enumerate(key)}
    position = pa.array(np.arange(table.num_rows))
    order = pa.table(columns | {"time": table[time], "position": position}).sort_by(
        [(name, "ascending") for name in (*columns, "time", "position")]
    )
    is_last = np.ones(table.num_rows, bool)
    is_last[:-1] = _differ(order, tuple(columns))
    return table.take(pc.filter(order["position"], pa.array(is_last)))


def _differ(order: pa.Table, names: tuple[str, ...]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return, for each row except the last, whether the key of the next row is different."""
    mask = np.zeros(order.num_rows - 1, bool)
    for name in names:
        column = order[name].combine_chunks()
        mask |= np.asarray(pc.not_equal(column[:-1], column[1:]))
    return mask
