"""The registry of codecs, and encoding by cascades of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from penstock.compression.abc import Cascade, Codec, check
from penstock.compression.kernels.bits import SUB_BLOCK, Ints, seal
from penstock.compression.node import Node
from penstock.errors import InvalidUsageError

__all__ = [
    "CODECS",
    "DEFAULT",
    "Transform",
    "cascade_of",
    "codec_of",
    "decode_stream",
    "encode_light",
    "encode_stream",
    "find_codec",
    "head_of",
    "register",
    "register_family",
]

CODECS: dict[str, Codec] = {}
"""Codecs by name. A fused pair has the name of its cascade, such as ``base_delta>ns``."""

DEFAULT: Cascade = ("base_delta", "ns")
"""The default cascade: it encodes every stream, and replaces a codec that does not fit."""

_BY_NUMBER: dict[int, Codec] = {}
_MADE: dict[str, Callable[[str], Codec]] = {}
_JUDGED_VALUES = 4 * SUB_BLOCK
_PLAIN_BELOW_BYTES = 128
_PLAIN_BELOW_FRACTION = 128
"""A stream below this size, or this fraction of its parent's size, stays plain."""


class Transform(Codec):
    """A codec whose first child is encoded by the rest of the cascade."""

    @abstractmethod
    def split(self, values: Ints) -> tuple[Ints, Callable[[Node], Node]]:
        """Return the stream for the rest of the cascade, and a function from that stream's node to this node.

        Raises
        ------
        UnfitError
            If the codec cannot hold these values.
        """

    def encode(self, values: Ints) -> Node:
        """Return the encoded stream, with its first child encoded like a side stream."""
        rest, finish = self.split(values)
        return finish(encode_light(rest))


def register(codec: Codec) -> None:
    """Register a codec. Variants of one codec share its number."""
    CODECS[codec.name] = codec
    _BY_NUMBER.setdefault(codec.number, codec)


def register_family(prefix: str, make: Callable[[str], Codec], *, reader: Codec) -> None:
    """Register codecs whose names are a prefix and a parameter; `reader` decodes the nodes of all of them."""
    _MADE[prefix] = make
    _BY_NUMBER[reader.number] = reader


def codec_of(node: Node) -> Codec:
    """Return the codec that encoded a node.

    Raises
    ------
    CorruptDataError
        If no codec has its number.
    """
    check(node.codec in _BY_NUMBER, "a stream names a codec that this version of Penstock does not know")
    return _BY_NUMBER[node.codec]


def find_codec(name: str) -> Codec:
    """Return a codec by its name.

    Raises
    ------
    InvalidUsageError
        If there is no such codec.
    """
    codec = CODECS.get(name)
    if codec is None:
        for prefix, make in _MADE.items():
            if name.startswith(prefix):
                return make(name.removeprefix(prefix))
        names = ", ".join([*sorted(CODECS), *(f"{prefix}..." for prefix in _MADE)])
        raise InvalidUsageError("there is no such codec", codec=name, known=names)
    return codec


def head_of(cascade: Cascade) -> tuple[Codec, Cascade]:
    """Return the first codec of a cascade, or a fused pair, and the rest of the cascade.

    Raises
    ------
    InvalidUsageError
        If the cascade names an unknown codec, or a codec follows a codec that ends a cascade.
    """
    fused = CODECS.get(">".join(cascade[:2]))
    codec, rest = (
        (fused, cascade[2:]) if fused and len(cascade) > 1 else (find_codec(cascade[0]), cascade[1:])
    )
    if rest and not isinstance(codec, Transform):
        raise InvalidUsageError("no codec can follow this one", codec=codec.name, following=rest[0])
    return codec, rest


def cascade_of(node: Node) -> str:
    """Return the cascade that encoded a node, found by following its first children."""
    codec = codec_of(node)
    name = codec.name_of(node)
    if isinstance(codec, Transform) and node.children:
        return f"{name}>{cascade_of(node.children[0])}"
    return name


def encode_stream(values: Ints, cascade: Cascade) -> Node:
    """Encode `values` by `cascade`. If it ends with a transform, `encode_light` encodes the last stream.

    Raises
    ------
    UnfitError
        If a codec cannot hold the values that reach it.
    InvalidUsageError
        If there is no such cascade.
    """
    if not cascade:
        return encode_light(values)
    values = seal(values)
    codec, rest = head_of(cascade)
    if not isinstance(codec, Transform):
        return codec.encode(values)
    stream, finish = codec.split(values)
    return finish(encode_stream(stream, rest))


def encode_light(values: Ints, parent_bytes: int = 0) -> Node:
    """Encode `values` by one of a few quick cascades: the cascade that makes the first values smallest.

    Small streams stay plain, because decoding would cost more than the saving is worth. A stream is small in
    absolute size, or relative to the `parent_bytes` of its parent.
    """
    count = values.size
    if not count or (values == values[0]).all():
        return CODECS["constant"].encode(values)
    best: Cascade = ("plain",)
    worth = max(_PLAIN_BELOW_BYTES, parent_bytes // _PLAIN_BELOW_FRACTION)
    if values.nbytes <= worth:
        return CODECS["plain"].encode(values)
    sample = values[:_JUDGED_VALUES]
    best_size = sample.nbytes - worth * sample.size // count
    node = None
    for cascade in (DEFAULT, ("delta", "ns")):
        tried = encode_stream(sample, cascade)
        if tried.size_bytes < best_size:
            node, best, best_size = tried, cascade, tried.size_bytes
    return node if node is not None and sample.size == count else encode_stream(values, best)


def decode_stream(node: Node, count: int | None = None, start: int = 0, stop: int | None = None) -> Ints:
    """Return values `start` to `stop` - 1 of a stream; by default all values.

    Parameters
    ----------
    node : Node
        The coded stream.
    count : int, optional
        The number of values that the stream must have.

    Raises
    ------
    CorruptDataError
        If the stream has a different number of values, or contradicts itself.
    """
    check(count is None or node.count == count, "a stream has another number of values than its parent says")
    stop = node.count if stop is None else stop
    values = codec_of(node).decode(node, start, stop)
    check(values.size == stop - start, "a stream has fewer values than it states")
    return seal(values)
