"""Decode values in Avro. Each value has its own schema in a registry, or all values have one schema.

The decoder reads times in milliseconds or microseconds as numbers first, and then converts whole columns to
timestamps.

========================================  ==================================
type in Avro                              type of the column
========================================  ==================================
boolean, int, long, float, double         of the same type
string, enum, uuid                        string
bytes, fixed                              binary
date                                      date
timestamp-millis, timestamp-micros        timestamp
local-timestamp-millis, ...-micros        timestamp without a zone
decimal                                   decimal
array, map, record                        list, map, struct
union of null and another type            the other type
a recursive type, another union           none: the field is left out
other logical types                       the underlying type
========================================  ==================================
"""

from __future__ import annotations

import io
import json
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock._extras import need_extra
from penstock.errors import InvalidUsageError
from penstock.records.decoder import (
    NOT_FRAMED,
    UNKNOWN_SCHEMA,
    Decoder,
    file_of,
    missing_rows,
    read_schema_file,
    scatter,
    subject_schema,
)
from penstock.records.framing import Frames, decode_in_parts, read_frames
from penstock.records.registry import RegisteredSchema, SchemaRegistry, UnknownSchemaError

__all__ = ["AvroDecoder", "avro_decoder"]

_MAX_DIGITS: Final = 38
_TIMES: Final = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_PLAIN: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
}
_OTHER_SCHEMA: Final = "the schema of the value cannot be resolved to the schema of the columns"
_NO_VALUE: Final = "the value does not match its schema"


class AvroDecoder(Decoder):
    """Decodes Avro to the columns of one schema. Values with other schemas are resolved to this schema.

    Parameters
    ----------
    reader : RegisteredSchema
        The schema that the columns come from.
    registry : SchemaRegistry or None
        The registry that gives each value's schema by its number. None if values have no number; then all
        values have the schema `reader`.
    """

    def __init__(self, reader: RegisteredSchema, registry: SchemaRegistry | None) -> None:
        self._reader, self._registry = reader, registry
        record = _parse(reader, keep_times=True)
        if not isinstance(record, dict) or record.get("type") != "record":
            raise InvalidUsageError("the Avro schema of the values is not a record")
        kind: Any = _type(record, record["__named_schemas"])
        self.schema = pa.schema(list(kind))

    def decode(self, values: pa.Array) -> tuple[pa.RecordBatch, list[str | None]]:
        """Decode a batch; see `Decoder.decode`."""
        frames = Frames.of(values) if self._registry is None else read_frames(values, indexes=False)
        given = np.asarray(values.is_valid())
        reader = _parse(self._reader)
        reasons: list[str | None] = [None] * len(values)
        writers: dict[int, Any] = {-1: reader} if self._registry is None else {}
        for number in np.unique(frames.schemas[given]).tolist():
            if number not in writers:
                writers[number] = _writer(self._registry, number)
        rows, found = self._read(frames, np.flatnonzero(given), writers, reader, reasons)
        kind = pa.struct(list(self.schema))

        def convert(places: np.ndarray[Any, np.dtype[np.int64]]) -> pa.RecordBatch:
            taken = found if len(places) == len(found) else [found[place] for place in places.tolist()]
            return pa.RecordBatch.from_struct_array(pa.array(taken, kind))

        parts, places = decode_in_parts(np.arange(len(found)), convert)
        whole = [rows[place] for place in places]
        for row in missing_rows(rows, whole, len(values)):
            reasons[row] = _NO_VALUE
        return scatter(parts, whole, len(values), self.schema), reasons

    def _read(
        self,
        frames: Frames,
        rows: np.ndarray[Any, np.dtype[np.int64]],
        writers: dict[int, Any],
        reader: Any,
        reasons: list[str | None],
    ) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[Any]]:
        """Return the readable rows and their records; set the reason of each unreadable row in `reasons`."""
        from fastavro import schemaless_reader
        from fastavro.read import SchemaResolutionError

        data = io.BytesIO(frames.data.tobytes())
        good, found = [], []
        # fastavro reads one value at a time.
        spans = zip(
            rows.tolist(),
            frames.begins[rows].tolist(),
            frames.ends[rows].tolist(),
            frames.schemas[rows].tolist(),
            strict=True,
        )
        for row, begin, end, number in spans:
            writer = writers[number]
            if isinstance(writer, str):
                reasons[row] = writer
                continue
            data.seek(begin)
            try:
                record = schemaless_reader(data, writer, None if writer is reader else reader)
            except SchemaResolutionError:
                reasons[row] = _OTHER_SCHEMA
            except Exception:  # a damaged value may raise any error
                reasons[row] = _NO_VALUE
            else:
                if data.tell() == end:
                    good.append(row)
                    found.append(record)
                else:
                    reasons[row] = _NO_VALUE
        return np.array(good, np.int64), found


def _writer(registry: SchemaRegistry | None, number: int) -> Any:
    """Return the parsed schema with a number, or the reason why its values cannot be read."""
    if registry is None or number < 0:
        return NOT_FRAMED
    try:
        return _parse(registry.by_id(number))
    except UnknownSchemaError:
        return UNKNOWN_SCHEMA
    except _NoSchemaError:
        return _OTHER_SCHEMA


class _NoSchemaError(InvalidUsageError):
    """The text is not an Avro schema."""


@lru_cache(maxsize=1_000)
def _parse(schema: RegisteredSchema, *, keep_times: bool = False) -> Any:
    """Parse a schema for fastavro.

    Parameters
    ----------
    schema : RegisteredSchema
        The schema.
    keep_times : bool
        Whether the parsed schema keeps the types of times. Without these types, fastavro returns numbers,
        which is several times as fast.

    Raises
    ------
    InvalidUsageError
        If the text is not an Avro schema.
    """
    return _parse_with(schema, {}, keep_times=keep_times)


def _parse_with(schema: RegisteredSchema, named: dict[str, Any], *, keep_times: bool) -> Any:
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    for _, other in schema.references:
        _parse_with(other, named, keep_times=keep_times)
    try:
        if schema.kind != "AVRO":
            raise ValueError(f"it is a schema of {schema.kind.capitalize()}")
        raw = json.loads(schema.text)
        return parse_schema(raw if keep_times else _without_times(raw), named)
    except (SchemaParseException, UnknownType, ValueError, KeyError) as error:
        raise _NoSchemaError("the schema is not an Avro schema", reason=str(error)[:200]) from None


def _without_times(schema: Any) -> Any:
    """Return a schema without its logical types, except decimals."""
    if isinstance(schema, list):
        return [_without_times(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_times(value) if name in ("type", "fields", "items", "values") else value
        for name, value in schema.items()
        if name != "logicalType" or value == "decimal"
    }


def _type(schema: Any, named: dict[str, Any], inside: tuple[str, ...] = ()) -> pa.DataType | None:
    """Return the column type for a schema; None if there is none, for example for a recursive schema."""
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        return _type(others[0], named, inside) if len(others) == 1 else None
    if isinstance(schema, str):
        return _PLAIN.get(schema) or (_type(named[schema], named, inside) if schema in named else None)
    kind, logical = schema["type"], schema.get("logicalType")
    if logical in _TIMES:
        return _TIMES[logical]
    if logical == "decimal":
        digits = schema["precision"]
        return pa.decimal128(digits, schema.get("scale", 0)) if digits <= _MAX_DIGITS else None
    if kind == "array":
        item = _type(schema["items"], named, inside)
        return None if item is None else pa.list_(item)
    if kind == "map":
        item = _type(schema["values"], named, inside)
        return None if item is None else pa.map_(pa.string(), item)
    if kind != "record":
        return _type(kind, named, inside)
    name = schema["name"]
    if name in inside:
        return None
    found = [(one["name"], _type(one["type"], named, (*inside, name))) for one in schema["fields"]]
    return pa.struct([(field, kind) for field, kind in found if kind is not None])


def avro_decoder(schema: str | None, registry: SchemaRegistry | None) -> AvroDecoder:
    """Return the decoder for a schema, given as a text or a file name, or for the registry's newest schema.

    Raises
    ------
    InvalidUsageError
        If there is no schema, or fastavro is not installed; see also `SchemaRegistry.by_id`.
    UnavailableError
        If the registry does not answer.
    """
    need_extra("avro", "values in Avro")
    if schema is not None:
        file = file_of(schema)
        text = schema if file is None else read_schema_file(file).decode(errors="replace")
        return AvroDecoder(RegisteredSchema("AVRO", text), registry)
    return AvroDecoder(subject_schema(registry), registry)
