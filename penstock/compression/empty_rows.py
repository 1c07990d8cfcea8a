"""Rows without columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["rows_without_columns"]


def rows_without_columns(count: int) -> pa.RecordBatch:
    """Return a batch of `count` rows and no columns, which `RecordBatch.from_arrays` cannot make."""
    rows: Any = pa.Array.from_buffers(pa.struct([]), count, [None])
    return pa.RecordBatch.from_struct_array(rows)
