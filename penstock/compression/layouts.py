"""Layouts of columns as streams, and the bytes that name types.

==================  ============================================================================
layout              streams
==================  ============================================================================
FIXED               the values' bits as signed integers; booleans as 0 and 1
WIDE                the low and the high 8 bytes of 16-byte decimals; only the low bytes if the
                    high bytes repeat their sign
TEXT                lengths; bytes
TEXT_DICTIONARY     codes; lengths and bytes of the distinct values
TEXT_TOKENS         forms, words and numbers: `penstock.compression.texts.token_streams`
NESTED              lists, structs and maps: an Arrow IPC stream as integers of 8 bytes
                    (readers also accept integers of one byte)
NOTHING             none: the type null
==================  ============================================================================

Nulls are in a separate stream. In place of a null, a number repeats the previous valid value, and a text is
empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa

from penstock.compression.abc import check
from penstock.compression.kernels.bits import Ints
from penstock.compression.kinds import is_text
from penstock.errors import CorruptDataError

__all__ = ["Layout", "Streams", "get_type", "is_float", "layouts_of", "put_type"]

_SIMPLE_TYPES: tuple[pa.DataType, ...] = (
    *(pa.null(), pa.bool_()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.date32(), pa.date64()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")),
)
_OTHER_TYPE = 255


class Layout(IntEnum):
    """The streams that a column becomes."""

    NOTHING = 0
    FIXED = 1
    WIDE = 2
    TEXT = 3
    TEXT_DICTIONARY = 4
    NESTED = 5
    TEXT_TOKENS = 6


@dataclass(frozen=True, slots=True)
class Streams:
    """A column as streams. `valid` has 1 for values and 0 for nulls; it is None if there are no nulls."""

    layout: Layout
    streams: tuple[Ints, ...]
    valid: Ints | None


def put_type(kind: pa.DataType) -> bytes:
    """Return the bytes that name a type: one byte of a table, or 255 and an Arrow IPC schema."""
    if kind in _SIMPLE_TYPES:
        return bytes([_SIMPLE_TYPES.index(kind)])
    schema: pa.Buffer = pa.schema([pa.field("", kind)]).serialize()
    return bytes([_OTHER_TYPE]) + schema.to_pybytes()


def get_type(data: bytes) -> pa.DataType:
    """Undo `put_type`.

    Raises
    ------
    CorruptDataError
        If the bytes name no type.
    """
    if len(data) == 1:
        check(data[0] < len(_SIMPLE_TYPES), "a block has an unknown type")
        return _SIMPLE_TYPES[data[0]]
    check(data[:1] == bytes([_OTHER_TYPE]), "a block has an unknown type")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data[1:]))
    except (pa.ArrowException, OSError) as error:
        raise CorruptDataError("a block has a type that cannot be read") from error
    check(len(schema) == 1, "a block has a type that cannot be read")
    return schema.field(0).type


def is_float(kind: pa.DataType) -> bool:
    """Return whether a type is a floating-point number of 4 or 8 bytes."""
    return bool(pa.types.is_float32(kind) or pa.types.is_float64(kind))


def layouts_of(kind: pa.DataType) -> tuple[Layout, ...]:
    """Return the layouts that a column of this type can have."""
    if pa.types.is_null(kind):
        return (Layout.NOTHING,)
    if is_text(kind):
        return (Layout.TEXT, Layout.TEXT_DICTIONARY, Layout.TEXT_TOKENS)
    if pa.types.is_decimal128(kind):
        return (Layout.WIDE,)
    if pa.types.is_boolean(kind) or (pa.types.is_primitive(kind) and kind.bit_width <= 64):
        return (Layout.FIXED,)
    return (Layout.NESTED,)
