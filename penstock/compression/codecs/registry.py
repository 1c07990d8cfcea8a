"""The known codecs, and coding by cascades of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from penstock.compression.abc import Cascade, Codec, check
from penstock.compression.kernels.bits import SUB_BLOCK, Ints, sealed
from penstock.compression.node import Node
from penstock.errors import InvalidUsageError

__all__ = [
    "CODECS",
    "DEFAULT",
    "Transform",
    "cascade_of",
    "codec_named",
    "codec_of",
    "decode_stream",
    "encode_light",
    "encode_stream",
    "head_of",
    "register",
    "register_made",
]

CODECS: dict[str, Codec] = {}
"""Codecs by name. A fused pair has the name of its cascade, such as ``base_delta>ns``."""

DEFAULT: Cascade = ("base_delta", "ns")
"""Codes every stream, and is what a codec that does not fit falls back to."""

_BY_NUMBER: dict[int, Codec] = {}
_MADE: dict[str, Callable[[str], Codec]] = {}
_JUDGED_VALUES = 4 * SUB_BLOCK
_PLAIN_BELOW_BYTES = 128
_PLAIN_BELOW_FRACTION = 128
"""Streams stay plain that take less than so many bytes, or this fraction of what they belong to."""


class Transform(Codec):
    """A codec whose first child is a stream that a cascade goes on with."""

    @abstractmethod
    def split(self, values: Ints) -> tuple[Ints, Callable[[Node], Node]]:
        """Return the stream to go on with, and what makes the node once that is coded.

        Raises
        ------
        UnfitError
            If the codec cannot hold these values.
        """

    def encode(self, values: Ints) -> Node:
        """Return the coded stream, the first child coded by what serves most side streams."""
        rest, finish = self.split(values)
        return finish(encode_light(rest))


def register(codec: Codec) -> None:
    """Make a codec known. Forms of one codec share its number."""
    CODECS[codec.name] = codec
    _BY_NUMBER.setdefault(codec.number, codec)


def register_made(prefix: str, make: Callable[[str], Codec], *, reader: Codec) -> None:
    """Make codecs known whose names are a prefix and a parameter; `reader` decodes what any of them coded."""
    _MADE[prefix] = make
    _BY_NUMBER[reader.number] = reader


def codec_of(node: Node) -> Codec:
    """Return the codec that made a node.

    Raises
    ------
    CorruptDataError
        If no codec has its number.
    """
    check(node.codec in _BY_NUMBER, "a stream names a codec that this version of Penstock does not know")
    return _BY_NUMBER[node.codec]


def codec_named(name: str) -> Codec:
    """Return a codec by its name.

    Raises
    ------
    InvalidUsageError
        If there is none.
    """
    codec = CODECS.get(name)
    if codec is None:
        for prefix, make in _MADE.items():
            if name.startswith(prefix):
                return make(name.removeprefix(prefix))
        known = ", ".join([*sorted(CODECS), *(f"{prefix}..." for prefix in _MADE)])
        raise InvalidUsageError("there is no such codec", codec=name, known=known)
    return codec


def head_of(cascade: Cascade) -> tuple[Codec, Cascade]:
    """Return the codec that a cascade begins with, two fused ones as one, and what follows.

    Raises
    ------
    InvalidUsageError
        If it names an unknown codec, or one follows a codec that ends a cascade.
    """
    fused = CODECS.get(">".join(cascade[:2]))
    codec, rest = (
        (fused, cascade[2:]) if fused and len(cascade) > 1 else (codec_named(cascade[0]), cascade[1:])
    )
    if rest and not isinstance(codec, Transform):
        raise InvalidUsageError("no codec can follow this one", codec=codec.name, following=rest[0])
    return codec, rest


def cascade_of(node: Node) -> str:
    """Return the cascade that made a node, followed down its first children."""
    codec = codec_of(node)
    name = codec.name_of(node)
    if isinstance(codec, Transform) and node.children:
        return f"{name}>{cascade_of(node.children[0])}"
    return name


def encode_stream(values: Ints, cascade: Cascade) -> Node:
    """Return `values` coded by `cascade`, the last stream by `encode_light` where it ends early.

    Raises
    ------
    UnfitError
        If a codec cannot hold the values that reach it.
    InvalidUsageError
        If there is no such cascade.
    """
    if not cascade:
        return encode_light(values)
    values = sealed(values)
    codec, rest = head_of(cascade)
    if not isinstance(codec, Transform):
        return codec.encode(values)
    stream, finish = codec.split(values)
    return finish(encode_stream(stream, rest))


def encode_light(values: Ints, beside: int = 0) -> Node:
    """Return `values` coded by the smallest of a few quick cascades, judged by their first values.

    Few bytes stay as they are: to decode them takes longer than what is saved is worth. They are few as such,
    or next to the `beside` bytes of what they belong to.
    """
    count = values.size
    if not count or (values == values[0]).all():
        return CODECS["constant"].encode(values)
    best: Cascade = ("plain",)
    worth = max(_PLAIN_BELOW_BYTES, beside // _PLAIN_BELOW_FRACTION)
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
    """Return values `start` to `stop` of a stream; all without them.

    Parameters
    ----------
    node : Node
        The coded stream.
    count : int, optional
        How many values it must have in all.

    Raises
    ------
    CorruptDataError
        If it has another number, or contradicts itself.
    """
    check(count is None or node.count == count, "a stream has another number of values than its parent says")
    stop = node.count if stop is None else stop
    values = codec_of(node).decode(node, start, stop)
    check(values.size == stop - start, "a stream has fewer values than it states")
    return sealed(values)
