"""Conformance tests of a codec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.compression.abc import Codec, UnfitError
from penstock.compression.codecs import decode_stream
from penstock.compression.kernels.bits import SUB_BLOCK, Ints, seal
from penstock.compression.node import Node, Reader
from penstock.errors import CorruptDataError

__all__ = ["CodecTests", "hard_streams"]

_SIZES = (0, 1, 2, SUB_BLOCK - 1, SUB_BLOCK, SUB_BLOCK + 1, 3 * SUB_BLOCK + 5)


def hard_streams(seed: int = 1) -> Iterator[Ints]:
    """Yield streams of all widths and many shapes: extremes, runs, small and rising numbers, outliers."""
    generator = np.random.default_rng(seed)
    for width in (1, 2, 4, 8):
        dtype = np.dtype(f"i{width}")
        limits = np.iinfo(dtype)
        for size in _SIZES:
            small = generator.integers(0, 10, size).astype(dtype)
            outliers = small.copy()
            outliers[::97] = limits.max
            yield from (
                small,
                outliers,
                generator.integers(limits.min, limits.max, size, dtype, endpoint=True),
                generator.choice(np.array([limits.min, -1, 0, 1, limits.max], dtype), size),
                np.repeat(small[: size // 5 + 1], 7)[:size],
                np.sort(small),
                np.full(size, 7, dtype),
            )


class CodecTests:
    """The contract of a codec: it reports that values do not fit, or it encodes and decodes them exactly.

    Register the codec with `penstock.compression.codecs.registry.register`, so that encoded streams find it.
    The tests of a lossy codec override `check`.
    """

    @pytest.fixture
    def codec(self) -> Codec:
        """Return the codec."""
        raise NotImplementedError  # not abstract, because pytest silently skips abstract classes

    def streams(self) -> Iterator[Ints]:
        """Return the streams to encode; by default `hard_streams`."""
        return hard_streams()

    def check(self, decoded: Ints, values: Ints) -> None:
        """Check that decoded values are the encoded ones."""
        np.testing.assert_array_equal(decoded, values)

    def test_values_come_back(self, codec: Codec) -> None:
        """Encode streams to bytes, and decode them; the codec must accept at least one of them."""
        encoded_count = 0
        for values in self.streams():
            node = _encode(codec, values)
            if node is None:
                continue
            encoded_count += 1
            decoded = decode_stream(node, values.size)
            assert decoded.dtype == values.dtype
            self.check(decoded, values)
        assert encoded_count

    def test_a_part_is_decoded(self, codec: Codec) -> None:
        """Decode ranges, including empty ranges and ranges across sub-blocks."""
        for values in self.streams():
            node = _encode(codec, values)
            if node is None:
                continue
            size = values.size
            for start, stop in ((0, 0), (0, size), (size // 3, size // 2), (max(size - 3, 0), size)):
                self.check(decode_stream(node, None, start, stop), values[start:stop])

    def test_damage_is_refused_or_harmless(self, codec: Codec) -> None:
        """Decode encoded streams with one changed byte; expect an error, or as many values as before."""
        generator = np.random.default_rng(2)
        for values in self.streams():
            node = _encode(codec, values)
            if node is None or values.size > SUB_BLOCK:
                continue
            content = _bytes_of(node)
            for at in generator.integers(0, len(content), 3).tolist():
                damaged = bytes([*content[:at], content[at] ^ 0x55, *content[at + 1 :]])
                try:
                    decoded = decode_stream(_node_in(damaged), values.size)
                except CorruptDataError:
                    continue
                assert decoded.size == values.size


def _encode(codec: Codec, values: Ints) -> Node | None:
    """Encode a stream, and convert the node to bytes and back; None if the codec cannot encode the stream."""
    try:
        node = codec.encode(seal(values))
    except UnfitError:
        return None
    return _node_in(_bytes_of(node))


def _bytes_of(node: Node) -> bytes:
    parts: list[Any] = []
    node.write(parts)
    return b"".join(parts)


def _node_in(content: bytes) -> Node:
    return Reader(np.frombuffer(content, np.uint8), "memory", 1 << 20).node()
