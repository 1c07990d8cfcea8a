"""Decode values of JSON as Spark's ``from_json`` does."""

from __future__ import annotations

import json
import math
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock._clock import new_id
from penstock.errors import InvalidUsageError
from penstock.local_engine.field_texts import parse_texts
from penstock.local_engine.file_formats import convert_columns, json_type
from penstock.local_engine.records.bad_records import read_in_parts
from penstock.records.decoder import Decoder
from penstock.spark_ext.sources.rejected import NOT_JSON, WRONG_TYPE

__all__ = ["JsonDecoder", "check_json_types"]

_MAX_BLOCK_BYTES: Final = 1 << 29
"""The most bytes of text that pyarrow reads as one block."""
_VALUE: Final = "value"
_MAX_SECONDS: Final = (2**63 - 1) // 1_000_000
_SPECIAL: Final[dict[str, float]] = {
    "NaN": math.nan,
    **dict.fromkeys(("Infinity", "+Infinity", "+INF"), math.inf),
    **dict.fromkeys(("-Infinity", "-INF"), -math.inf),
}
"""The texts that stand for floats."""


class _Number(float):
    """A number that keeps its text."""

    def __init__(self, text: str) -> None:
        self.text = text


class JsonDecoder(Decoder):
    """Decodes JSON objects.

    A record is bad if the type of a field differs from the type of its column. The decoder still reads the
    other fields of a bad record, including the fields in structs and lists.

    Parameters
    ----------
    schema : pyarrow.Schema
        The columns, in Spark's types.
    zone : str
        The time zone of times without a zone.
    keeps_numbers : bool
        Whether a number in a column of texts keeps its original text, as in Spark's reader of files. By
        default, the number is written in its shortest form, as in ``from_json``.

    Raises
    ------
    InvalidUsageError
        If only Spark can read a type.
    """

    def __init__(self, schema: pa.Schema, zone: str, *, keeps_numbers: bool = False) -> None:
        check_json_types(schema)
        self.schema = schema
        self._zone = zone
        self._keeps_numbers = keeps_numbers

    def decode(self, values: pa.Array) -> tuple[pa.RecordBatch, list[str | None]]:
        """See `Decoder.decode`. The columns of an empty value are null."""
        has_text = pc.greater(pc.binary_length(values), 0)
        rows = np.flatnonzero(pc.fill_null(has_text, False).to_numpy(zero_copy_only=False))
        texts = values.take(pa.array(rows)).cast(pa.binary())
        reasons: list[str | None] = [None] * len(values)

        def read(start: int, stop: int) -> pa.Table | None:
            return _read(texts.slice(start, stop - start), self.schema, self._zone)

        def read_alone(number: int) -> pa.Table:
            fields, reasons[rows[number]] = self._read_fields(texts[number].as_py())
            return fields

        parts = [self.schema.empty_table(), *read_in_parts(len(rows), read, read_alone)]
        decoded = pa.concat_tables(parts).combine_chunks()
        if len(rows) < len(values):
            places = np.full(len(values), -1)
            places[rows] = np.arange(len(rows))
            decoded = decoded.take(pa.array(places, mask=places < 0))
        (batch,) = decoded.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], self.schema)]
        return batch, reasons

    def _read_fields(self, text: bytes) -> tuple[pa.Table, str | None]:
        """Return the row of one record, and the reason if the record is bad."""
        reason: str | None = None
        try:
            found = json.loads(text, parse_float=_Number)
        except (ValueError, RecursionError):
            found, reason = {}, NOT_JSON
        if not isinstance(found, dict):
            found, reason = {}, WRONG_TYPE
        columns = []
        for field in self.schema:
            column, is_read = self._read_field(field, found.get(field.name))
            columns.append(column)
            if not is_read:
                reason = WRONG_TYPE
        return pa.Table.from_arrays(columns, schema=self.schema), reason

    def _read_field(self, field: pa.Field[Any], value: object) -> tuple[pa.Array, bool]:
        """Return a field's value, with nulls for parts of the wrong type, and whether all parts were read."""
        if value is None:
            return pa.nulls(1, field.type), True
        if pa.types.is_timestamp(field.type) and field.type.tz and type(value) is int:
            return _read_seconds(value, field.type)
        if pa.types.is_floating(field.type) and isinstance(value, str | float):
            number = _SPECIAL.get(value) if isinstance(value, str) else float(value)
            return pa.array([number], pa.float64()).cast(field.type), number is not None
        if pa.types.is_decimal128(field.type) and isinstance(value, str | int | _Number):
            return _read_decimal(value.text if isinstance(value, _Number) else str(value), field.type)
        if json_type(field.type) != field.type and value:
            # `_text` would shorten the decimals in a struct or list.
            if pa.types.is_struct(field.type) and isinstance(value, dict):
                return self._read_struct(field.type, value)
            if pa.types.is_list(field.type) and isinstance(value, list):
                return self._read_list(field.type, value)
        try:
            text = self._text(value, field.type)
        except RecursionError:
            return pa.nulls(1, field.type), False
        if pa.types.is_string(field.type) and not isinstance(value, str):
            text = json.dumps(text)
        record = f"{{{json.dumps(field.name)}:{text}}}".encode()
        table = _read(pa.array([record]), pa.schema([field]), self._zone)
        if table is not None:
            return table.combine_chunks().column(0).chunk(0), True
        if pa.types.is_struct(field.type) and isinstance(value, dict):
            return self._read_struct(field.type, value)
        if pa.types.is_list(field.type) and isinstance(value, list):
            return self._read_list(field.type, value)
        return pa.nulls(1, field.type), False

    def _text(self, value: object, kind: pa.DataType) -> str:
        if isinstance(value, _Number) and (self._keeps_numbers or not pa.types.is_string(kind)):
            return value.text
        return json.dumps(value, separators=(",", ":"), default=float)

    def _read_struct(self, kind: pa.StructType, value: dict[str, object]) -> tuple[pa.Array, bool]:
        parts = [self._read_field(field, value.get(field.name)) for field in kind]
        struct = pa.StructArray.from_arrays([part for part, _ in parts], fields=list(kind))
        return struct, all(is_read for _, is_read in parts)

    def _read_list(self, kind: pa.ListType[Any], value: list[object]) -> tuple[pa.Array, bool]:
        """Read a list. An item without any readable part makes the whole list null, as in Spark."""
        parts = [self._read_field(kind.value_field, item) for item in value]
        if any(part.null_count and not is_read for part, is_read in parts):
            return pa.nulls(1, kind), False
        items = pa.concat_arrays([part for part, _ in parts])
        found = pa.ListArray.from_arrays([0, len(items)], items).cast(kind)
        return found, all(is_read for _, is_read in parts)


def _read_seconds(value: int, kind: pa.DataType) -> tuple[pa.Array, bool]:
    """Return the time that a number of seconds since 1970 stands for."""
    if not -_MAX_SECONDS <= value <= _MAX_SECONDS:
        return pa.nulls(1, kind), False
    return pa.array([value * 1_000_000]).cast(kind), True


def _read_decimal(text: str, kind: pa.DataType) -> tuple[pa.Array, bool]:
    try:
        return parse_texts(pa.chunked_array([[text]]), kind).chunk(0), True
    except pa.ArrowInvalid:
        return pa.nulls(1, kind), False


def check_json_types(schema: pa.Schema, *, with_times: bool = True) -> None:
    """Check that `JsonDecoder` can read columns.

    Parameters
    ----------
    schema : pyarrow.Schema
        The columns, in Spark's types.
    with_times : bool
        Whether dates and times can be read.

    Raises
    ------
    InvalidUsageError
        If only Spark can read a type.
    """
    for field in schema:
        if not _can_read(field.type, with_times=with_times):
            raise InvalidUsageError(
                "the local engine reads no such type in JSON",
                column=field.name,
                type=field.type,
                hint="use engine: spark",
            )


def _can_read(kind: pa.DataType, *, with_times: bool) -> bool:
    if pa.types.is_struct(kind):
        return all(_can_read(field.type, with_times=with_times) for field in kind)
    if pa.types.is_list(kind):
        return _can_read(kind.value_type, with_times=with_times)
    if pa.types.is_temporal(kind):
        return with_times
    return not (pa.types.is_binary(kind) or pa.types.is_map(kind))


def _read_as(schema: pa.Schema) -> list[pa.Field[Any]]:
    return [field.with_type(json_type(field.type)) for field in schema]


def _read(texts: pa.Array, schema: pa.Schema, zone: str) -> pa.Table | None:
    """Return the rows of JSON objects; None if an object is bad.

    Each object is wrapped in a new object that also holds a number, so that two broken objects cannot combine
    to a valid object.
    """
    import pyarrow.json

    if texts.nbytes > _MAX_BLOCK_BYTES and len(texts) > 1:
        return None
    number = f"number {new_id()}"
    try:
        numbers = pa.array(np.arange(len(texts))).cast(pa.string())
        given = texts.cast(pa.string())
        whole = pc.binary_join_element_wise(f'{{"{number}":', numbers, f',"{_VALUE}":', given, "}", "")
        text = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], whole), "\n")[0].as_buffer()
        fields = [pa.field(number, pa.int64()), pa.field(_VALUE, pa.struct(_read_as(schema)))]
        table = pyarrow.json.read_json(
            pa.BufferReader(text),
            pyarrow.json.ReadOptions(use_threads=False, block_size=text.size + 1),
            pyarrow.json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"),
        )
        found, objects = table.column(number), table.column(_VALUE)
        if found.null_count or objects.null_count:
            return None
        if not np.array_equal(found.to_numpy(), np.arange(len(texts))):
            return None
        columns = pa.Table.from_arrays(objects.flatten(), names=schema.names)
        return convert_columns(columns, schema, zone)
    except pa.ArrowInvalid:
        return None
