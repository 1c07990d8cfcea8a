"""Variable byte: 7 bits of a value per byte; the eighth is set if more bytes follow (Scabbard Table 2).

The chooser does not offer this codec. It stays because the block format promises it, and cascades may
name it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import kernel
from penstock.compression.abc import Codec, check
from penstock.compression.codecs.differences import narrow
from penstock.compression.codecs.registry import encode_light, register
from penstock.compression.kernels.bits import SUB_BLOCK, Bytes, Ints
from penstock.compression.node import Node, width_code
from penstock.compression.parts import parts_of

__all__ = ["VariableByte"]


@kernel
def _write(values: Any, out: Bytes, sizes: Ints) -> int:
    """Write unsigned values, and the size of each sub-block of 1,024 values; return the total size."""
    at = 0
    for block in range(sizes.shape[0]):
        begin = at
        for i in range(block * 1024, min(block * 1024 + 1024, values.shape[0])):
            value = values[i]
            while value > values.dtype.type(0x7F):
                out[at] = np.uint8(value & values.dtype.type(0x7F)) | np.uint8(0x80)
                value >>= values.dtype.type(7)
                at += 1
            out[at] = np.uint8(value)
            at += 1
        sizes[block] = at - begin
    return at


@kernel
def _read(data: Bytes, out: Any) -> bool:
    """Read as many values as `out` holds; return whether they end where the data ends."""
    at = 0
    end = data.shape[0]
    for i in range(out.shape[0]):
        value = out.dtype.type(0)
        shift = 0
        while True:
            if at == end or shift >= 8 * out.itemsize:
                return False
            byte = data[at]
            at += 1
            value |= out.dtype.type(byte & np.uint8(0x7F)) << out.dtype.type(shift)
            shift += 7
            if byte < np.uint8(0x80):
                break
        out[i] = value
    return at == end


class VariableByte(Codec):
    """Values as unsigned numbers of one to ten bytes. Child: the size of each sub-block in bytes."""

    number = 9
    name = "variable_byte"

    def encode(self, values: Ints) -> Node:
        """Return the bytes."""
        words = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
        out = np.empty(values.size * (values.dtype.itemsize * 8 // 7 + 1), np.uint8)
        sizes = np.empty(-(-values.size // SUB_BLOCK), np.int32)
        used = _write(words, out, sizes)
        children = [encode_light(narrow(sizes))]
        return Node(self.number, width_code(values), values.size, payload=out[:used], children=children)

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return values `start` to `stop` - 1."""
        first, last, ends = parts_of(node, start, stop, SUB_BLOCK)
        payload = node.payload[ends[first] : ends[last]]
        out = np.empty(min(last * SUB_BLOCK, node.count) - first * SUB_BLOCK, node.dtype)
        check(
            _read(payload, out.view(f"u{out.dtype.itemsize}")),
            "variable bytes do not match the number of values",
        )
        return out[start - first * SUB_BLOCK : stop - first * SUB_BLOCK]


register(VariableByte())
