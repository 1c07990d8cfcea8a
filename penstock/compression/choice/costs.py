"""The cost of an encoded stream: a model of its size, the time to encode and decode it, and write bandwidth.

The cost of a value is the time in nanoseconds to encode it, to write its bytes at the bandwidth, and to
decode it. The time to decode is multiplied by a weight. Sizes are measured on an encoded sample. Times are
constants of each codec, summed over the encoded tree, so a codec that sees few values (such as the values of
runs) costs little. (Scabbard §5.2 leaves such a model to future work. Its goals "minimise time" and "minimise
bytes" correspond to an infinite and a zero bandwidth.)
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.compression.abc import Cascade, Codec
from penstock.compression.choice.goals import Goal
from penstock.compression.codecs import CODECS, codec_of
from penstock.compression.codecs.registry import head_of
from penstock.compression.node import Node

__all__ = ["COSTS", "MIN_REPEATS", "Cost", "cost", "kind_of", "least_cost", "token_cost"]


class Cost(NamedTuple):
    """The time of a codec in nanoseconds, per value and per byte of a value."""

    encode_value: float
    encode_byte: float
    decode_value: float
    decode_byte: float


COSTS: dict[str, Cost] = {
    # A plain stream is a view of the values. Its cost is an estimate of copying them into and out of a block.
    "plain": Cost(0.0, 0.05, 0.0, 0.05),
    "constant": Cost(0.02, 0.02, 0.0, 0.03),
    "ns": Cost(0.1, 0.05, 0.09, 0.05),
    "delta>ns": Cost(0.36, 0.06, 0.18, 0.06),
    "delta_of_delta>ns": Cost(1.0, 0.1, 0.25, 0.07),
    "xor>ns": Cost(0.4, 0.1, 0.2, 0.1),
    "patched_ns": Cost(1.4, 0.1, 0.2, 0.08),
    "ns_words": Cost(3.5, 0.07, 0.98, 0.07),
    "base_delta": Cost(0.0, 0.1, 0.02, 0.05),
    "delta": Cost(0.0, 0.1, 0.02, 0.08),
    "xor": Cost(0.0, 0.1, 0.02, 0.09),
    "multiple": Cost(1.7, 0.06, 0.72, 0.08),
    "run_length": Cost(1.2, 0.05, 0.78, 0.11),
    "dictionary": Cost(1.3, 0.01, 0.3, 0.02),
    "variable_byte": Cost(1.5, 0.01, 1.8, 0.0),
    "simple8b": Cost(3.8, 0.08, 1.1, 0.0),
    "decimal": Cost(0.29, 0.01, 0.27, 0.01),
    "quantized": Cost(1.6, 0.0, 0.0, 0.1),
    "pcodec": Cost(11.0, 0.13, 1.3, 0.14),
    "snappy": Cost(0.0, 0.57, 0.0, 0.58),
    "fsst": Cost(0.0, 0.75, 0.0, 0.2),
    "lz4": Cost(0.0, 0.63, 0.0, 0.28),
    "zstd": Cost(0.0, 1.6, 0.0, 0.94),
    "zstd_9": Cost(0.0, 7.9, 0.0, 0.78),
    "zstd_19": Cost(0.0, 330.0, 0.0, 1.3),
}
"""The costs by codec, measured by ``python -m benchmarks.compression.compression --codecs``."""

_TOKENS = Cost(9.0, 0.15, 4.0, 0.1)
"""The cost of tokens: for each number or word, and for each byte of the texts."""

_NODE_ENCODE_NS, _NODE_DECODE_NS = 8000.0, 6000.0
MIN_REPEATS = 16
"""If a sample repeats each value of a dictionary this often on average, the dictionary counts as complete."""
_DICTIONARY = CODECS["dictionary"].number


def cost(node: Node, cascade: Cascade, goal: Goal, share: float = 1.0) -> float:
    """Return the cost of a stream in nanoseconds, or in bytes if the goal counts only bytes.

    Parameters
    ----------
    node : Node
        The encoded stream, or a sample of it.
    cascade : Cascade
        The cascade that encoded the node. Only the cascade, not the node, has the levels of codecs.
    goal : Goal
        The cost to minimise.
    share : float
        The sample's share of a block. A part that a block has only once, whatever its number of rows, such as
        a complete dictionary, costs only this share.
    """
    size = _size_bytes(node, share)
    if not goal.write_mb_s:
        return size
    encode, decode = _times_ns(node, cascade, share)
    return encode + goal.decode_weight * decode + size * 1000.0 / goal.write_mb_s


def least_cost(count: int, size_bytes: int, codec: str, goal: Goal) -> float:
    """Return a lower bound on the cost of a stream with a codec, without encoding it."""
    if not goal.write_mb_s:
        return 0.0
    costs = COSTS[kind_of(codec)]
    encode = costs.encode_value * count + costs.encode_byte * size_bytes
    return encode + goal.decode_weight * (costs.decode_value * count + costs.decode_byte * size_bytes)


def token_cost(pieces: int, size_bytes: int, goal: Goal) -> float:
    """Return the cost of splitting and joining texts, without the cost of encoding the pieces; see `cost`."""
    if not goal.write_mb_s:
        return 0.0
    encode = _TOKENS.encode_value * pieces + _TOKENS.encode_byte * size_bytes
    return encode + goal.decode_weight * (_TOKENS.decode_value * pieces + _TOKENS.decode_byte * size_bytes)


def _size_bytes(node: Node, share: float) -> float:
    """Return the bytes of a node and its descendants; a complete dictionary counts only as its `share`."""
    size = node.own_bytes * 1.0
    for position, child in enumerate(node.children):
        is_complete = node.codec == _DICTIONARY and position == 1 and child.count * MIN_REPEATS <= node.count
        size += _size_bytes(child, share) * (share if is_complete else 1.0)
    return size


def _times_ns(node: Node, cascade: Cascade, share: float) -> tuple[float, float]:
    """Return the nanoseconds to encode and to decode a node and its descendants."""
    codec, rest = head_of(cascade) if cascade else (codec_of(node), ())
    encode, decode = _own_ns(codec, node)
    encode, decode = encode + share * _NODE_ENCODE_NS, decode + share * _NODE_DECODE_NS
    for position, child in enumerate(node.children):
        below = _times_ns(child, rest if position == 0 else (), share)
        encode, decode = encode + below[0], decode + below[1]
    return encode, decode


def _own_ns(codec: Codec, node: Node) -> tuple[float, float]:
    """Return the nanoseconds of one node without its children."""
    costs, size = COSTS[kind_of(codec.name)], node.count * node.dtype.itemsize
    return (
        costs.encode_value * node.count + costs.encode_byte * size,
        costs.decode_value * node.count + costs.decode_byte * size,
    )


def kind_of(name: str) -> str:
    """Return the key of a codec in the table of costs: its name without a parameter, suffix or prefix."""
    last = name.rpartition(">")[2]
    forms = (name, name.rpartition("_")[0], last, last.partition("_")[0])
    return next(form for form in forms if form in COSTS)
