"""Convert columns of p-streams to columns of Spark and back, without loss.

==================================  =======================================================
in a p-stream                       in Spark
==================================  =======================================================
what Spark writes                   the same type: the schema of Spark is stored, too
``uint8``, ``uint16``, ``uint32``   the next wider signed type
``uint64``                          ``decimal(20,0)``
``float16``                         ``float``
timestamps in s, ms, ns             ``timestamp`` with a zone, ``timestamp_ntz`` without
durations, times in s, ms, us, ns   ``interval day to second``, ``time``
``date64``                          ``date``
large and fixed-size types          ``string``, ``binary``, ``array``
dictionaries                        the type of their values
decimals of other widths            ``decimal``, up to 38 digits
==================================  =======================================================

A value that Spark cannot hold, such as a nanosecond that is not a whole microsecond, is an error and never
truncated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import starmap

import pyarrow as pa
from pyspark.errors import PySparkTypeError, UnsupportedOperationException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from penstock.compression.empty_rows import rows_without_columns
from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.cast import cast
from penstock.spark_ext.border.spark_versions import as_arrow_schema

__all__ = [
    "as_arrow_of_spark",
    "check_same",
    "convert",
    "same_types",
    "spark_schema",
    "stored_schema",
]

_KEPT = b"spark.schema"

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_MAX_DIGITS = 38


def stored_schema(schema: StructType) -> pa.Schema:
    """Return the schema of a p-stream that holds rows of Spark.

    Raises
    ------
    InvalidUsageError
        If a column's type has no counterpart in Arrow.
    """
    fields = [_stored_field(field) for field in schema]
    return pa.schema(fields, metadata={_KEPT: schema.json().encode()})


def _stored_field(field: StructField) -> pa.Field:
    try:
        return as_arrow_of_spark(StructType([field])).field(0)
    except (PySparkTypeError, UnsupportedOperationException):
        raise _unsupported_error(field.name, field.dataType.simpleString()) from None


def as_arrow_of_spark(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for rows of `schema`."""
    return as_arrow_schema(schema, unique=True)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the columns that Spark sees of a p-stream.

    Raises
    ------
    InvalidUsageError
        If a column has a type that Spark lacks.
    """
    text = (schema.metadata or {}).get(_KEPT)
    fields = {field.name: field for field in StructType.fromJson(json.loads(text))} if text else {}
    return StructType([_spark_field(field, fields.get(field.name)) for field in schema])


def _spark_field(field: pa.Field, original: StructField | None) -> StructField:
    if original is not None and _stored_field(original).type.equals(field.type):
        return original
    plain = field.with_type(_plain(field.type, field.name))
    try:
        return from_arrow_schema(pa.schema([plain]), prefer_timestamp_ntz=True).fields[0]
    except PySparkTypeError:  # Spark 4.0 has no times of day
        raise _unsupported_error(field.name, str(field.type)) from None


def _plain(kind: pa.DataType, column: str) -> pa.DataType:
    """Return a type supported by Spark that holds the values of `kind`."""
    types = pa.types
    if kind in _WIDER:
        return _WIDER[kind]
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_time(kind):
        return pa.time64("ns")
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_decimal(kind):
        if kind.precision > _MAX_DIGITS or not 0 <= kind.scale <= kind.precision:
            raise _unsupported_error(column, str(kind))
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _plain(kind.value_type, column)
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type, column), _plain_field(kind.item_field, column))
    if types.is_struct(kind):
        names = [field.name for field in kind]
        if len(set(names)) < len(names):
            raise _unsupported_error(column, str(kind))
        return pa.struct([_plain_field(field, column) for field in kind])
    if _is_list(kind):
        return pa.list_(_plain_field(kind.value_field, column))
    if not _is_of_spark(kind):
        raise _unsupported_error(column, str(kind))
    return kind


def _plain_field(field: pa.Field, column: str) -> pa.Field:
    return field.with_type(_plain(field.type, column))


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_of_spark(kind: pa.DataType) -> bool:
    types = pa.types
    return (
        kind in {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()}
        or kind in {pa.string(), pa.binary(), pa.date32()}
        or bool(types.is_null(kind))
    )


def _unsupported_error(column: str, kind: str) -> InvalidUsageError:
    return InvalidUsageError(
        "a column's type has no counterpart between Spark and Arrow",
        column=column,
        type=kind,
        hint="leave it out, or write it as another type",
    )


def check_same(columns: StructType, stored: StructType, location: str, *, option: str | None = None) -> None:
    """Check that rows of a DataFrame fit a p-stream's columns; order and nullability may differ.

    The error names the user's `option` that gives the location, if there is one.

    Raises
    ------
    InvalidUsageError
        If a column is missing, unknown, of a different type, or given twice.
    """
    names = columns.names
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidUsageError("two columns have the same name", columns=", ".join(twice))
    missing = [name for name in stored.names if name not in names]
    unknown = [name for name in names if name not in stored.names]
    differing = [
        f"{name} is {columns[name].dataType.simpleString()}, not {stored[name].dataType.simpleString()}"
        for name in names
        if name in stored.names and not _is_same(columns[name].dataType, stored[name].dataType)
    ]
    if missing or unknown or differing:
        raise InvalidUsageError(
            "the columns differ from the columns of the p-stream",
            hint=option and f"a p-stream keeps its columns; choose a new p-stream for {option}",
            **{option or "location": location},
            missing=", ".join(missing) or "none",
            unknown=", ".join(unknown) or "none",
            types="; ".join(differing) or "same",
        )


def same_types(schemas: Sequence[pa.Schema] | None, expected: Sequence[StructType]) -> bool:
    """Return whether each schema has the types of the expected columns; False if there are no schemas."""
    if schemas is None:
        return False
    try:
        for field, columns in zip(schemas, expected, strict=True):
            check_same(spark_schema(field), columns, "")
    except InvalidUsageError:
        return False
    return True


def _is_same(left: DataType, right: DataType) -> bool:
    """Return whether two types are equal up to nullability."""
    if isinstance(left, ArrayType) and isinstance(right, ArrayType):
        return _is_same(left.elementType, right.elementType)
    if isinstance(left, MapType) and isinstance(right, MapType):
        return _is_same(left.keyType, right.keyType) and _is_same(left.valueType, right.valueType)
    if isinstance(left, StructType) and isinstance(right, StructType):
        kinds = zip((f.dataType for f in left), (f.dataType for f in right), strict=False)
        return left.names == right.names and all(starmap(_is_same, kinds))
    return left == right


def convert(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a batch, found by name, converted without loss to the types of `schema`.

    Raises
    ------
    InvalidUsageError
        If a value has no counterpart, or is null in a field that allows none.
    """
    arrays = [_array(batch.column(field.name), field) for field in schema]
    return _assemble(arrays, schema, batch.num_rows)


def _assemble(arrays: Sequence[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    if not arrays:
        return rows_without_columns(rows)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(array: pa.Array, field: pa.Field) -> pa.Array:
    if not array.type.equals(field.type, check_metadata=True):
        try:
            array = _cast(array, field.type)
        except pa.ArrowInvalid:
            raise InvalidUsageError(
                "a value of a column cannot be kept exactly",
                column=field.name,
                stored=str(array.type),
                wanted=str(field.type),
                hint="leave the column out, or write it as another type",
            ) from None
    if _has_wrong_null(array, field):
        raise InvalidUsageError("a column that is not nullable has nulls", column=field.name)
    return array


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast an array to a type.

    Spark writes null structs that have a non-nullable field, and pyarrow cannot cast such structs. So
    structs, and types that contain structs, are rebuilt from their parts; `_has_wrong_null` checks the
    result.
    """
    types, was = pa.types, array.type
    if types.is_run_end_encoded(was):
        import pyarrow.compute as pc

        array = pc.run_end_decode(array)
    elif types.is_struct(was) and types.is_struct(kind) and was.names == kind.names:
        parts = [_cast(array.field(i), field.type) for i, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    elif types.is_list(was) and types.is_list(kind):
        return _replace_values(array, kind, _cast(array.values, kind.value_type))
    elif types.is_map(was) and types.is_map(kind):
        parts = [_cast(array.keys, kind.key_type), _cast(array.items, kind.item_type)]
        entries = pa.StructArray.from_arrays(parts, fields=[kind.key_field, kind.item_field])
        return _replace_values(array, kind, entries)
    return cast(array, kind)


def _replace_values(array: pa.Array, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Return a list or map array with new values, and the lengths and nulls of `array`."""
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset, children=[values])


def _has_wrong_null(array: pa.Array, field: pa.Field) -> bool:
    if array.null_count:
        if not field.nullable:
            return True
        if pa.types.is_nested(field.type):
            array = array.drop_null()
    kind = field.type
    if pa.types.is_struct(kind):
        return any(_has_wrong_null(array.field(i), kind.field(i)) for i in range(kind.num_fields))
    if pa.types.is_list(kind):
        return _has_wrong_null(array.flatten(), kind.value_field)
    if pa.types.is_map(kind) and len(array):
        first, stop = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return _has_wrong_null(array.items.slice(first, stop - first), kind.item_field)
    return False
