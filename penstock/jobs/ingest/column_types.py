"""The types of text columns: the type to parse, and the type to cast to."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["cast_column", "choose_type", "parse_type"]


def parse_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to parse with pyarrow: text for dates and times, for which its parsers differ."""
    return pa.string() if pa.types.is_timestamp(kind) or pa.types.is_date32(kind) else kind


def cast_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert texts to dates or times; leave other columns unchanged.

    A time without a zone is in UTC. Fractional digits beyond the type's precision must be 0.
    """
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


def _can_cast(values: pa.ChunkedArray, kind: pa.DataType) -> bool:
    try:
        values.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def choose_type(column: pa.ChunkedArray) -> pa.DataType:
    """Return the Spark-compatible type for a type that pyarrow inferred, if there is one."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        micros = pa.timestamp("us", kind.tz and "UTC")
        return micros if _can_cast(column, micros) else kind
    if pa.types.is_list(kind) and pa.types.is_null(kind.value_type):
        return pa.list_(pa.string())
    return kind
