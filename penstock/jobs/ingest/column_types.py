"""The types of columns that are read from text: the type to parse, and the type to cast to."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["cast_column", "choose_type", "find_times", "parse_type"]

_TIME = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d"
_ZONE = r"\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d(:?\d\d)?)$"


def parse_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to parse with pyarrow: text for dates and times, because its parsers disagree."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(parse_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(parse_type(kind.value_type)))
    return pa.string() if pa.types.is_timestamp(kind) or pa.types.is_date32(kind) else kind


def cast_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert texts to dates or times, also in structs and lists; leave other columns unchanged.

    A time without a zone is in UTC. Fractional digits beyond the type's precision must be 0.
    """
    if not column.type.equals(kind) and (pa.types.is_struct(kind) or pa.types.is_list(kind)):
        return pa.chunked_array([_cast_nested(chunk, kind) for chunk in column.chunks], kind)
    if column.type.equals(kind) or not pa.types.is_timestamp(kind):
        return column.cast(kind)
    first = column.drop_null()[:1]
    zone = kind.tz or "UTC"
    kinds = [pa.timestamp(unit, tz) for unit in (kind.unit, "ns") for tz in (zone, None)]
    # A cast that fails is slow, so try each cast with one value first.
    fitting = [other for other in kinds if _can_cast(first, other)] or kinds[:1]
    for other in fitting[:-1]:
        try:
            return column.cast(other).cast(kind)
        except pa.ArrowInvalid:
            continue
    return column.cast(fitting[-1]).cast(kind)


def _cast_nested(values: pa.Array, kind: pa.DataType) -> pa.Array:
    mask = values.is_null()
    if pa.types.is_struct(kind):
        parts = [_cast_array(part, field.type) for part, field in zip(values.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    items = _cast_array(values.flatten(), kind.value_type)
    return pa.ListArray.from_arrays(offsets, items, type=kind, mask=mask)


def _cast_array(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return cast_column(pa.chunked_array([values]), kind).combine_chunks()


def find_times(kind: pa.DataType, texts: pa.ChunkedArray) -> pa.DataType:
    """Return a type in which texts that are all times are times, also in structs and lists.

    Times have the zone UTC if any text has a zone.

    Parameters
    ----------
    kind : pyarrow.DataType
        The type that pyarrow inferred. pyarrow knows only times of whole seconds, and ignores zones.
    texts : pyarrow.ChunkedArray
        The values, with times as texts; see `parse_type`.
    """
    if pa.types.is_timestamp(kind) or (pa.types.is_string(kind) and _are_times(texts)):
        if pc.any(pc.match_substring_regex(texts, _ZONE)).as_py():
            return pa.timestamp("us", "UTC")
        micros = pa.timestamp("us")
        return kind if pa.types.is_timestamp(kind) and not _can_cast(texts, micros) else micros
    if pa.types.is_struct(kind):
        parts = [(field, pc.struct_field(texts, [number])) for number, field in enumerate(kind)]
        return pa.struct([field.with_type(find_times(field.type, part)) for field, part in parts])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(find_times(kind.value_type, pc.list_flatten(texts))))
    return kind


def _are_times(texts: pa.ChunkedArray) -> bool:
    given = texts.drop_null()
    if not len(given) or not pc.all(pc.match_substring_regex(given, _TIME)).as_py():
        return False
    try:
        cast_column(given, pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        return False
    return True


def _can_cast(values: pa.ChunkedArray, kind: pa.DataType) -> bool:
    try:
        values.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def choose_type(column: pa.ChunkedArray) -> pa.DataType:
    """Return the type that pyarrow inferred for a column, or a type that Spark supports in its place."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        micros = pa.timestamp("us", kind.tz and "UTC")
        return micros if _can_cast(column, micros) else kind
    if pa.types.is_list(kind) and pa.types.is_null(kind.value_type):
        return pa.list_(pa.string())
    return kind
