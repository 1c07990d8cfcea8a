"""Cast Arrow columns to exactly the types of a schema."""

from __future__ import annotations

from typing import Any, TypeVar

import pyarrow as pa

__all__ = ["cast", "cast_to_schema", "fits"]

C = TypeVar("C", pa.Array, pa.Table)


def cast(values: C, kind: pa.DataType | pa.Schema) -> C:
    """Cast values to a type with their own `cast` method.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a value does not fit, or if Arrow has no cast between the types.
    """
    try:
        return values.cast(kind)
    except pa.ArrowNotImplementedError as error:  # Only Arrow can determine whether a cast exists.
        raise pa.ArrowInvalid(str(error)) from error


def cast_to_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast the columns of `batch` to exactly `schema`, by position, without copying equal types.

    Types may differ in time zone, offset width or nullability, or in any way that Arrow casts safely.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a column cannot be cast.
    ValueError
        If a column has nulls that `schema` does not allow.
    """
    columns = [_cast(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    for column, field in zip(columns, schema, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"the column {field.name} has nulls where none may be")
    # A batch that is made from no arrays would lose its number of rows.
    return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else batch.select([])


def fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether values of one type can be cast to the other without changing their meaning.

    Types may differ in integer or offset width, timestamp unit or zone, decimal precision, or nullability.
    Integers may become floats, and floats may become integers, because pandas turns integers with nulls into
    floats. The cast itself checks that each value fits.
    """
    for same in (pa.types.is_integer, pa.types.is_decimal, _is_text, _is_bytes, pa.types.is_date):
        if same(source) and same(target):
            return True
    if pa.types.is_floating(source) and pa.types.is_integer(target):
        return True
    if pa.types.is_floating(target):
        shorter = pa.types.is_floating(source) and source.bit_width <= target.bit_width
        return shorter or pa.types.is_integer(source)
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    if pa.types.is_dictionary(source):
        return fits(source.value_type, target)
    if _is_list(source) and _is_list(target):
        return fits(source.value_type, target.value_type)
    if pa.types.is_map(source) and pa.types.is_map(target):
        return fits(source.key_type, target.key_type) and fits(source.item_type, target.item_type)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        names = [source.field(i).name for i in range(source.num_fields)]
        return names == [target.field(i).name for i in range(target.num_fields)] and all(
            fits(source.field(i).type, target.field(i).type) for i in range(source.num_fields)
        )
    return pa.types.is_null(source) or source.equals(target)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _cast(column: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    if column.type == kind:
        return column
    # Arrow refuses to cast a null struct whose fields are not nullable, even to its own type.
    loose = cast(_relabel(column, _nullable(column.type)), _nullable(kind))
    return _relabel(loose, kind)


def _relabel(column: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Relabel `column` as `kind`, which differs at most in nullability."""
    return column if column.type == kind else pa.array(_Labelled(column, kind))


class _Labelled:
    """A column that is exported as a type of the same layout, through Arrow's C data interface."""

    def __init__(self, column: pa.Array[Any], kind: pa.DataType) -> None:
        self._column = column
        self._kind = kind

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._kind.__arrow_c_schema__(), self._column.__arrow_c_array__()[1]


def _nullable(kind: pa.DataType) -> pa.DataType:
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
