"""Arrow types of text, plain and as dictionaries."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.errors import InvalidUsageError

__all__ = ["adopt_coding", "check_codes", "is_coded_text", "is_text"]


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text or binary."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def is_coded_text(kind_of_array: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether a type is dictionary-encoded text of a kind."""
    return bool(
        pa.types.is_dictionary(kind_of_array) and is_text(kind) and kind_of_array.value_type.equals(kind)
    )


def adopt_coding(schema: pa.Schema, coded_schema: pa.Schema) -> pa.Schema:
    """Return a schema with its text fields dictionary-encoded as in `coded_schema`."""
    types = {field.name: field.type for field in coded_schema}
    fields = [
        field.with_type(types[field.name])
        if is_coded_text(types.get(field.name, field.type), field.type)
        else field
        for field in schema
    ]
    return pa.schema(fields, schema.metadata)


def check_codes(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> None:
    """Check that each code of a dictionary-encoded column has a value.

    Raises
    ------
    InvalidUsageError
        If a code has no value.
    """
    # Import here: the module is slow to load, and processes that plan or commit for Spark do not need it.
    import pyarrow.compute as pc

    for array in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
        bounds = pc.min_max(array.indices).as_py()
        if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] < len(array.dictionary):
            raise InvalidUsageError(
                "an index of a dictionary array has no value", values=len(array.dictionary), **bounds
            )
