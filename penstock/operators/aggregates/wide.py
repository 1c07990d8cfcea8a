"""Integer sums that may exceed 64 bits.

Such a sum has two 64-bit words. The lower word is the sum that 64-bit arithmetic with wrap-around gives. A
column of sums is int64 if every sum fits, and otherwise `WIDE`, which holds both words. So sums that fit take
no extra space in memory or in checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._kernels import kernel

__all__ = [
    "WIDE",
    "add_words",
    "as_floats",
    "cast_sums",
    "concat_unified",
    "fits",
    "from_words",
    "narrow_words",
    "schema_like",
    "to_words",
    "unify_types",
]

WIDE: Final = pa.decimal128(38, 0)

_Column: TypeAlias = "pa.Array[Any]"
_Words: TypeAlias = npt.NDArray[np.int64]


@kernel
def add_words(low: Any, high: Any, value: Any, upper: Any) -> tuple[Any, Any]:
    """Add two two-word numbers; return the words of the sum."""
    lower = np.uint64(low) + np.uint64(value)
    carry = np.int64(1) if lower < np.uint64(low) else np.int64(0)
    return np.int64(lower), high + upper + carry


def to_words(column: _Column) -> tuple[_Words, _Words]:
    """Return the lower and upper words of sums. Words of nulls are undefined."""
    if column.type == WIDE:
        flat = np.frombuffer(column.buffers()[1], np.int64, 2 * len(column), 16 * column.offset)
        return flat[::2], flat[1::2]
    lows = np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)
    return lows, lows >> 63


def from_words(lows: _Words, highs: _Words, mask: npt.NDArray[np.bool_] | None = None) -> _Column:
    """Return sums as a column; `mask` marks nulls."""
    narrow = highs == lows >> 63
    if mask is not None:
        narrow |= mask
    return pa.array(lows, mask=mask) if narrow.all() else _wide(lows, highs, mask)


def _wide(lows: _Words, highs: _Words, mask: npt.NDArray[np.bool_] | None) -> _Column:
    both = np.empty((len(lows), 2), np.int64)
    both[:, 0], both[:, 1] = lows, highs
    valid = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
    return pa.Array.from_buffers(WIDE, len(lows), [valid, pa.py_buffer(both)])


def fits(column: _Column) -> bool:
    """Return whether all sums fit 64 bits."""
    if column.type != WIDE:
        return True
    lows, highs = to_words(column)
    narrow = highs == lows >> 63
    return bool(narrow.all() if not column.null_count else narrow[column.is_valid().to_numpy(False)].all())


def as_floats(column: _Column) -> npt.NDArray[np.float64]:
    """Convert sums to floats, almost always to the nearest floats. Floats of nulls are undefined."""
    if pa.types.is_floating(column.type):
        return column.view(pa.float64()).to_numpy(zero_copy_only=False)
    lows, highs = to_words(column)
    if column.type != WIDE:
        return lows.astype(np.float64)
    # A signed lower word avoids representing small numbers as a difference of large numbers.
    return (highs + (lows < 0)).astype(np.float64) * 2.0**64 + lows.astype(np.float64)


def unify_types(columns: Sequence[_Column]) -> list[_Column]:
    """Convert sum columns to one type, wide if any is wide; return other columns unchanged."""
    kinds = {column.type for column in columns}
    if kinds != {pa.int64(), WIDE}:
        return list(columns)
    return [column if column.type == WIDE else column.cast(WIDE) for column in columns]


def concat_unified(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate batches whose sums may differ in width."""
    first = batches[0].schema
    if all(batch.schema.equals(first) for batch in batches):
        return pa.concat_batches(batches)
    columns = [
        pa.concat_arrays(unify_types([batch.column(at) for batch in batches])) for at in range(len(first))
    ]
    return pa.RecordBatch.from_arrays(columns, first.names)


def narrow_words(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Narrow the wide sum columns in which every sum fits 64 bits."""
    if not any(field.type == WIDE for field in batch.schema):
        return batch
    columns = [
        column.cast(pa.int64()) if column.type == WIDE and fits(column) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def cast_sums(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert sums to the widths that a schema declares."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def schema_like(schema: pa.Schema, other: pa.Schema, fixed: Collection[str] = ()) -> pa.Schema:
    """Widen the sum columns that are wide in `other`; columns in `fixed` are not sums."""
    wide = {field.name for field in other if field.type == WIDE} - {*fixed}
    if not wide:
        return schema
    fields = [
        field.with_type(WIDE) if field.name in wide and field.type == pa.int64() else field
        for field in schema
    ]
    return pa.schema(fields, schema.metadata)
