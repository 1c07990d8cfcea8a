"""Requests and answers as rows of p-streams, and their values as JSON.

    LOCATION/requests    id, procedure, arguments: a JSON object with the attributes of the event
    LOCATION/answers     id, procedure, results: a JSON object, or null; rejected; bucket; transaction

In JSON, decimals, dates, times and bytes (in Base64) are texts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.compression.empty_rows import rows_without_columns
from penstock.errors import InvalidUsageError

__all__ = ["ANSWERS", "REQUESTS", "decode_values", "encode_event", "encode_values"]

REQUESTS = pa.schema([
    pa.field("id", pa.string(), nullable=False),
    pa.field("procedure", pa.string(), nullable=False),
    pa.field("arguments", pa.string(), nullable=False),
])  # fmt: skip
"""The columns of requests."""

ANSWERS = pa.schema([
    pa.field("id", pa.string(), nullable=False),
    pa.field("procedure", pa.string(), nullable=False),
    pa.field("results", pa.string()),
    pa.field("rejected", pa.string()),
    pa.field("bucket", pa.int32(), nullable=False),
    pa.field("transaction", pa.int64()),
])  # fmt: skip
"""The columns of answers. `transaction` is the number in the bucket's serial order; null if nothing ran."""


def encode_values(values: Mapping[str, Any]) -> str:
    """Return named values as a JSON object.

    Raises
    ------
    TypeError
        If no column can hold the type of a value.
    """
    return json.dumps(values, default=_text, separators=(",", ":"))


def encode_event(procedure: str, attributes: Mapping[str, Any]) -> str:
    """Return the attributes of a procedure's event as a JSON object.

    Raises
    ------
    InvalidUsageError
        If no column can hold the type of an attribute.
    """
    for name, value in attributes.items():
        try:
            encode_values({name: value})
        except TypeError as error:
            raise InvalidUsageError(
                "an attribute does not fit", procedure=procedure, attribute=name, reason=str(error)
            ) from error
    return encode_values(attributes)


def _text(value: object) -> str:
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def decode_values(texts: Sequence[str], schema: pa.Schema) -> tuple[pa.RecordBatch, list[int]]:
    """Convert JSON objects to rows; also return the positions of objects that do not fit and have no row.

    A column that an object lacks is null. Names outside of the schema are ignored.

    Parameters
    ----------
    texts : sequence of str
        Results of `encode_values`.
    schema : pyarrow.Schema
        The columns that the rows get.
    """
    try:
        return _rows(texts, schema), []
    except _MISFITS:
        pass
    fitting, misfits = [], []
    for place, text in enumerate(texts):
        try:
            _rows([text], schema)
            fitting.append(text)
        except _MISFITS:
            misfits.append(place)
    return _rows(fitting, schema), misfits


_MISFITS = (ValueError, TypeError, ArithmeticError, RecursionError, pa.ArrowException)


def _rows(texts: Iterable[str], schema: pa.Schema) -> pa.RecordBatch:
    values = [json.loads(text) for text in texts]
    if not all(isinstance(value, dict) for value in values):
        raise TypeError("a JSON text is not an object")
    if not schema:
        return rows_without_columns(len(values))
    arrays = []
    for field in schema:
        array = pa.array([_value(value.get(field.name), field.type) for value in values], field.type)
        if array.null_count and not field.nullable:
            raise ValueError("a null in a column without nulls")
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _value(value: Any, kind: pa.DataType) -> Any:
    """Convert a JSON value to a value that Arrow accepts for a type."""
    if value is None:
        return None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_value(element, kind.value_type) for element in _check_type(value, list)]
    if pa.types.is_boolean(kind):
        return _check_type(value, bool)
    if pa.types.is_integer(kind):
        return _check_type(value, int)
    if pa.types.is_floating(kind):
        return float(_check_type(value, int, float))
    if pa.types.is_decimal(kind):
        return Decimal(str(_check_type(value, int, float, str)))
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat(_check_type(value, str))
    if pa.types.is_date(kind):
        return date.fromisoformat(_check_type(value, str))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return base64.b64decode(_check_type(value, str), validate=True)
    return _check_type(value, str)


def _check_type(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"a value is {type(value).__name__}")
    return value
