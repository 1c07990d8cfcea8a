"""Plain streams, and constant streams."""

from __future__ import annotations

import numpy as np

from penstock.compression.abc import Codec, UnfitError, check
from penstock.compression.codecs.registry import register
from penstock.compression.kernels.bits import Ints
from penstock.compression.node import Node, width_code

__all__ = ["Constant", "Plain"]


class Plain(Codec):
    """The payload holds the values, little-endian."""

    number = 0
    name = "plain"

    def encode(self, values: Ints) -> Node:
        """Return the stream's bytes."""
        payload = np.ascontiguousarray(values).view(np.uint8)
        return Node(self.number, width_code(values), values.size, payload=payload)

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return a view of the payload."""
        size = node.dtype.itemsize
        check(node.payload.size == node.count * size, "a plain stream has another size than it states")
        values = node.payload[start * size : stop * size].view(node.dtype)
        # Copy unaligned values: compiled kernels take only aligned arrays.
        return values if values.flags.aligned else values.copy()


class Constant(Codec):
    """The parameters hold the only value of the stream. This codec also encodes the empty stream."""

    number = 1
    name = "constant"

    def encode(self, values: Ints) -> Node:
        """Return the first value.

        Raises
        ------
        UnfitError
            If the values differ.
        """
        if values.size and not (values == values[0]).all():
            raise UnfitError
        value = int(values[0]) if values.size else 0
        size = (value if value >= 0 else ~value).bit_length() // 8 + 1
        return Node(self.number, width_code(values), values.size, value.to_bytes(size, "little", signed=True))

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return the value, repeated."""
        check(len(node.parameters) in range(1, node.dtype.itemsize + 1), "a constant has a wrong size")
        value = int.from_bytes(node.parameters, "little", signed=True)
        out = np.empty(stop - start, node.dtype)
        out.fill(value)
        return out


register(Plain())
register(Constant())
