"""The tree of encoded streams of a column, and its serialized form.

A stream is a one-dimensional array of signed integers of 1, 2, 4 or 8 bytes. A codec turns a stream into a
`Node`: a few parameters, a payload of bytes, and child streams that other codecs encode.

Bytes of a node, integers as variable bytes (7 bits each, lowest first, the eighth is set if more follow)::

    codec          1 byte, number of the codec
    shape          1 byte: bits 0..1 log2 of the stream's bytes per value, bits 2..4 number of children,
                   bit 5 parameters follow, bit 6 a payload follows; bit 7 is 0
    count          values in the stream
    [parameters]   length, bytes
    [payload]      length, bytes
    children       the nodes, one after the other
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.compression.kernels.bits import Bytes, Ints
from penstock.errors import CorruptDataError

__all__ = ["MAX_DEPTH", "TYPES", "Node", "Reader", "put_varint", "width_code"]

TYPES: tuple[np.dtype[Any], ...] = tuple(np.dtype(name) for name in ("i1", "i2", "i4", "i8"))
"""The types of streams, by the code of their width."""

MAX_DEPTH = 12
"""The maximum depth of a tree; no writer exceeds it."""

_EMPTY: Bytes = np.empty(0, np.uint8)


def width_code(values: Ints) -> int:
    """Return log2 of the bytes per value of a stream."""
    return values.dtype.itemsize.bit_length() - 1


def put_varint(value: int, out: bytearray) -> None:
    """Append a number that is not negative."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


@dataclass(slots=True)
class Node:
    """One encoded stream. It is never changed, but a frozen class would double the time to read a node.

    Parameters
    ----------
    codec : int
        Number of the codec that made the node.
    width : int
        Log2 of the bytes of one value of the stream.
    count : int
        The number of values in the stream.
    parameters : bytes
        The codec's parameters.
    payload : Bytes
        The bytes that no other codec encodes.
    children : sequence of Node
        The child streams, at most seven.
    """

    codec: int
    width: int
    count: int
    parameters: bytes = b""
    payload: Bytes = field(default_factory=lambda: _EMPTY)
    children: Sequence[Node] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the stream's values."""
        return TYPES[self.width]

    def write(self, parts: list[Any]) -> None:
        """Append the node's bytes, as parts to join."""
        size = self.payload.size
        shape = self.width | len(self.children) << 2 | bool(self.parameters) << 5 | bool(size) << 6
        head = bytearray((self.codec, shape))
        put_varint(self.count, head)
        if self.parameters:
            put_varint(len(self.parameters), head)
            head += self.parameters
        parts.append(head)
        if size:
            put_varint(size, head)
            parts.append(self.payload.data)
        for child in self.children:
            child.write(parts)

    @property
    def size_bytes(self) -> int:
        """Number of bytes that `write` appends in all."""
        return self.own_bytes + sum(child.size_bytes for child in self.children)

    @property
    def own_bytes(self) -> int:
        """Number of bytes without the children."""
        size = 2 + _varint_size(self.count)
        for part in (len(self.parameters), self.payload.size):
            if part:
                size += _varint_size(part) + part
        return size


def _varint_size(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


class Reader:
    """Reads numbers, bytes and nodes, with bounds checks.

    Parameters
    ----------
    data : Bytes
        The bytes to read. Payloads are views of it.
    file : object
        Names the data in errors.
    max_count : int
        The greatest number of values that a stream may have.
    """

    def __init__(self, data: Bytes, file: object, max_count: int = 0) -> None:
        self._data = data
        # Numbers are read one by one. NumPy's own indexing would take several times as long.
        self._view = data.data
        self._end = data.size
        self._at = 0
        self.file = file
        self.max_count = max_count

    def damage_error(self, fact: str) -> CorruptDataError:
        """Return the error for damage at this position."""
        return CorruptDataError(fact, file=self.file, offset=self._at)

    def bytes(self, size: int) -> Bytes:
        """Return the next `size` bytes.

        Raises
        ------
        CorruptDataError
            If there are fewer bytes.
        """
        if size > self._end - self._at:
            raise self.damage_error("the block is cut")
        part = self._data[self._at : self._at + size]
        self._at += size
        return part

    def byte(self) -> int:
        """Return the next byte.

        Raises
        ------
        CorruptDataError
            If there is no next byte.
        """
        at = self._at
        if at >= self._end:
            raise self.damage_error("the block is cut")
        self._at = at + 1
        value: int = self._view[at]
        return value

    def varint(self) -> int:
        """Return the next number.

        Raises
        ------
        CorruptDataError
            If the number is cut, or has more than 63 bits.
        """
        at = self._at
        if at < self._end and self._view[at] < 0x80:
            self._at = at + 1
            small: int = self._view[at]
            return small
        value = self.byte() & 0x7F
        for shift in range(7, 63, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise self.damage_error("a number in the block has too many bytes")

    def node(self, depth: int = 0) -> Node:
        """Return the next node.

        Raises
        ------
        CorruptDataError
            If the node is cut, states more than `max_count` values, or is nested too deep.
        """
        at, view = self._at, self._view
        if at + 3 > self._end:
            raise self.damage_error("the block is cut")
        codec, shape, count = view[at], view[at + 1], view[at + 2]
        self._at = at + 3
        if count > 0x7F:
            self._at = at + 2
            count = self.varint()
        if shape & 0x80 or depth >= MAX_DEPTH:
            raise self.damage_error("the block has a stream of an unknown form")
        if count > self.max_count:
            raise self.damage_error("a stream states more values than its block has rows")
        parameters = self.bytes(self.varint()).tobytes() if shape & 0x20 else b""
        payload = self.bytes(self.varint()) if shape & 0x40 else _EMPTY
        children = tuple([self.node(depth + 1) for _ in range(shape >> 2 & 7)]) if shape & 0x1C else ()
        return Node(codec, shape & 3, count, parameters, payload, children)

    @property
    def at_end(self) -> bool:
        """Return whether all bytes have been read."""
        return self._at == self._end
