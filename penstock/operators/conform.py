"""Give Arrow columns exactly the types that a schema asks for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["conform"]


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return `batch`, by position, with exactly `schema`; nothing is copied where the types are equal.

    Types may differ in time zone, in the width of offsets, in what is nullable, or in any way that
    Arrow casts safely.

    Raises
    ------
    pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError
        If a column cannot be cast.
    ValueError
        If a column has nulls that `schema` does not allow.
    """
    columns = [_as(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    for column, field in zip(columns, schema, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"the column {field.name} has nulls where none may be")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as(column: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    if column.type == kind:
        return column
    # Arrow refuses to cast, even to its own type, a null struct whose fields are declared not null.
    loose = _relabelled(column, _nullable(column.type)).cast(_nullable(kind))
    return _relabelled(loose, kind)


def _relabelled(column: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Return `column` as one of `kind`, which differs at most in what is nullable."""
    return column if column.type == kind else pa.array(_Labelled(column, kind))


class _Labelled:
    """A column under another type of the same layout, by Arrow's C data interface."""

    def __init__(self, column: pa.Array[Any], kind: pa.DataType) -> None:
        self._column = column
        self._kind = kind

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._kind.__arrow_c_schema__(), self._column.__arrow_c_array__()[1]


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Return `kind` with every field in it nullable."""
    if pa.types.is_struct(kind):
        return pa.struct([_nullable_field(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        key = pa.field(kind.key_field.name, _nullable(kind.key_type), nullable=False)
        return pa.map_(key, _nullable_field(kind.item_field), keys_sorted=kind.keys_sorted)
    if pa.types.is_large_list(kind):
        return pa.large_list(_nullable_field(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(_nullable_field(kind.value_field))
    return kind


def _nullable_field(field: pa.Field[Any]) -> pa.Field[Any]:
    return field.with_type(_nullable(field.type)).with_nullable(True)
