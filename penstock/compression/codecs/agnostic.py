"""General-purpose codecs: Snappy, LZ4, Zstandard, and optionally pcodec.

A stream is cut into frames of `FRAME` values, each encoded independently, so random access decodes only the
frames that hold the range. Child: the size of each frame in bytes.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from abc import abstractmethod
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from penstock.compression.abc import Codec, check
from penstock.compression.codecs.registry import CODECS, register
from penstock.compression.kernels.bits import Bytes, Ints
from penstock.compression.node import Node, width_code
from penstock.compression.parts import parts_of
from penstock.errors import CorruptDataError, InvalidUsageError

__all__ = ["FRAME", "Framed", "Library", "Pcodec", "Zstandard"]

FRAME = 1 << 16
"""Values in a frame."""


class Framed(Codec):
    """A codec of frames."""

    @abstractmethod
    def pack(self, values: Ints) -> bytes:
        """Return the bytes of one frame."""

    @abstractmethod
    def unpack(self, frame: Bytes, count: int, dtype: np.dtype[Any]) -> Ints:
        """Return the `count` values of one frame.

        Raises
        ------
        CorruptDataError
            If the frame does not have `count` values.
        """

    def encode(self, values: Ints) -> Node:
        """Return the frames."""
        frames = [self.pack(values[at : at + FRAME]) for at in range(0, values.size, FRAME)]
        sizes = np.array([len(frame) for frame in frames], np.int32)
        payload = np.frombuffer(b"".join(frames), np.uint8)
        # The sizes are not encoded: there is only one for every 65,536 values.
        children = [CODECS["plain"].encode(sizes)]
        return Node(self.number, width_code(values), values.size, payload=payload, children=children)

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return the values of the frames in the range."""
        first, last, ends = parts_of(node, start, stop, FRAME)
        begin = first * FRAME
        frames = []
        for frame in range(first, last):
            packed = node.payload[ends[frame] : ends[frame + 1]]
            frames.append(self.unpack(packed, min(FRAME, node.count - frame * FRAME), node.dtype))
        values = frames[0] if len(frames) == 1 else np.concatenate([np.empty(0, node.dtype), *frames])
        return values[start - begin : stop - begin]


class Library(Framed):
    """A codec of Arrow's C++ library, over the values' little-endian bytes."""

    def __init__(self, number: int, name: str, library: str, level: int | None = None) -> None:
        self.number = number
        self.name = name
        self._library = library
        self._level = level

    @functools.cached_property
    def _codec(self) -> Any:
        return pa.Codec(self._library, self._level)

    def pack(self, values: Ints) -> bytes:
        """Return the bytes of one frame."""
        return self._codec.compress(np.ascontiguousarray(values), asbytes=True)

    def unpack(self, frame: Bytes, count: int, dtype: np.dtype[Any]) -> Ints:
        """Return the values of one frame."""
        size = count * dtype.itemsize
        try:
            data = self._codec.decompress(frame, decompressed_size=size)
        except (OSError, pa.ArrowException) as error:
            raise CorruptDataError("a frame cannot be decompressed", codec=self.name) from error
        check(len(data) == size, "a frame has another size than its values")
        return np.frombuffer(data, dtype)


class _Contexts(threading.local):
    """Caches the decompressor. To create it for each frame would take up to a fifth of the time."""

    def __init__(self) -> None:
        self.reader = zstandard.ZstdDecompressor()


_CONTEXTS = _Contexts()


class Zstandard(Library):
    """Zstandard, encoded by Arrow and decoded by the library `zstandard`, whose contexts can be reused."""

    def unpack(self, frame: Bytes, count: int, dtype: np.dtype[Any]) -> Ints:
        """Return the values of one frame."""
        size = count * dtype.itemsize
        try:
            # Limit the memory of a frame to its values.
            check(
                zstandard.frame_content_size(frame.data) == size, "a frame has another size than its values"
            )
            data = _CONTEXTS.reader.decompress(frame.data, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CorruptDataError("a frame cannot be decompressed", codec=self.name) from error
        check(len(data) == size, "a frame has another size than its values")
        return np.frombuffer(data, dtype)


class Pcodec(Framed):
    """The optional library pcodec: bins of numbers with entropy coding. Small output, slow encoding."""

    number = 15
    name = "pcodec"

    @staticmethod
    def is_installed() -> bool:
        """Return whether the library can be used."""
        return importlib.util.find_spec("pcodec") is not None

    def pack(self, values: Ints) -> bytes:
        """Return the bytes of one frame.

        Raises
        ------
        InvalidUsageError
            If the library is not installed.
        """
        try:
            from pcodec import ChunkConfig, standalone
        except ModuleNotFoundError as error:
            raise InvalidUsageError("pcodec is not installed", hint="pip install pcodec") from error
        # pcodec does not support bytes: widen them to 16 bits.
        wide = values.astype(np.int16) if values.dtype.itemsize == 1 else np.ascontiguousarray(values)
        packed: bytes = standalone.simple_compress(wide, ChunkConfig())
        return packed

    def unpack(self, frame: Bytes, count: int, dtype: np.dtype[Any]) -> Ints:
        """Return the values of one frame."""
        try:
            from pcodec import standalone
        except ModuleNotFoundError as error:
            raise CorruptDataError("a frame needs the library pcodec", hint="pip install pcodec") from error
        wide = np.empty(count, np.int16 if dtype.itemsize == 1 else dtype)
        try:
            progress = standalone.simple_decompress_into(frame.tobytes(), wide)
        except RuntimeError as error:
            raise CorruptDataError("a frame cannot be decompressed", codec=self.name) from error
        check(progress.n_processed == count and progress.finished, "a frame has another size than its values")
        out = wide.astype(dtype, copy=False)
        check(out is wide or bool((wide == out).all()), "a frame has a value that is no byte")
        return out


# The chooser does not offer snappy. It stays because the block format promises it, and cascades may name it.
register(Library(11, "snappy", "snappy"))
register(Library(12, "lz4", "lz4_raw"))
register(Zstandard(13, "zstd", "zstd", 1))
register(Zstandard(13, "zstd_9", "zstd", 9))
register(Zstandard(13, "zstd_19", "zstd", 19))
register(Pcodec())
