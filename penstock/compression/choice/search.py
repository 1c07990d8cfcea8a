"""Search for the best cascade of a stream: try all on a short sample, then the best of them on a long sample.

The statistics of a sample rule out most candidates before any encoding, and lower bounds on costs rule out
most of the rest. If the goal counts bytes, the best candidates of each family encode a longer sample,
because a codec that exploits repeats shows its effect only on a long sample. (Scabbard §5.2)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from penstock.compression.abc import Cascade, UnfitError
from penstock.compression.choice.costs import cost, least_cost
from penstock.compression.choice.goals import Goal
from penstock.compression.choice.statistics import ColumnStats, stream_stats
from penstock.compression.codecs import CODECS, encode_stream
from penstock.compression.codecs.agnostic import Pcodec
from penstock.compression.codecs.decimals import Quantized
from penstock.compression.codecs.dictionary import MAX_DISTINCT
from penstock.compression.codecs.registry import DEFAULT, Transform, head_of
from penstock.compression.kernels.bits import Ints, seal
from penstock.compression.node import Node

__all__ = ["QUICK_DEPTH", "Choice", "can_code", "choose", "decide", "rank"]

_SLOW_CODECS_BELOW_MB_S = 4.0
_MIN_MEAN_RUN = 1.5
_MAX_TRANSFORMS = 3
QUICK_DEPTH = 2
"""The initial depth of a quick search, which leaves fewer transforms to try."""
_MAX_CASCADES_TO_RETRY = 3
_FAMILIES = ("lz4", "zstd", "zstd_9", "pcodec")


class Choice(NamedTuple):
    """A cascade, its cost, and the values that it encoded."""

    cost: float
    cascade: Cascade
    node: Node


def choose(
    values: Ints, goal: Goal, *, floats: bool = False, bound: float | None = None, share: float = 1.0
) -> Choice:
    """Return the cascade with the least cost for a stream; see `rank`."""
    return rank(values, goal, floats=floats, bound=bound, share=share)[0]


def rank(
    values: Ints,
    goal: Goal,
    *,
    floats: bool = False,
    bound: float | None = None,
    text: bool = False,
    share: float = 1.0,
    depth: int = 0,
) -> list[Choice]:
    """Return the cascades that were tried on a stream, the cheapest first.

    Parameters
    ----------
    values : Ints
        The stream, or a sample of it. Each cascade encodes all of it.
    goal : Goal
        The cost to minimise.
    floats : bool
        Whether the integers are the bits of floating-point numbers.
    bound : float, optional
        The largest allowed error of each float.
    text : bool
        Whether the stream holds the bytes of texts.
    share : float
        The sample's share of a block.
    depth : int
        The number of transforms applied to the stream.
    """
    if not values.size:
        return [Choice(0.0, ("constant",), CODECS["constant"].encode(values))]
    tried: list[Choice] = []
    least = math.inf
    values = seal(values)
    stats = stream_stats(values, floats=floats)
    candidates = _candidates(stats, goal, floats=floats, bound=bound, depth=depth)
    for cascade in _text_candidates(stats, goal) if text else candidates:
        if least_cost(values.size, values.nbytes, cascade[-1], goal) >= least:
            continue
        try:
            tried += _try(values, cascade, goal, share, depth)
        except UnfitError:
            continue
        least = min(choice.cost for choice in tried)
    return sorted(tried, key=lambda choice: choice.cost)


def _try(values: Ints, cascade: Cascade, goal: Goal, share: float, depth: int) -> list[Choice]:
    """Encode `values` with a cascade; after a transform, search for the rest of the cascade."""
    codec, _ = head_of(cascade)
    if not isinstance(codec, Transform):
        node = codec.encode(values)
        return [Choice(cost(node, cascade, goal, share), cascade, node)]
    stream, finish = codec.split(values)
    choices = []
    # Codes of symbols are not numbers, so no further transform suits them.
    depth = _MAX_TRANSFORMS if codec.name == "fsst" else depth + 1
    for below in _finalists(rank(stream, goal, share=share, depth=depth), 1):
        node, full_cascade = finish(below.node), (*cascade, *below.cascade)
        choices.append(Choice(cost(node, full_cascade, goal, share), full_cascade, node))
    return choices


def _finalists(ranked: list[Choice], count: int) -> list[Choice]:
    """Return the cheapest cascades and, for each codec of repeats, the cheapest cascade that ends with it."""
    finalists = {choice.cascade: choice for choice in ranked[:count]}
    for family in _FAMILIES:
        ends = (choice for choice in ranked if choice.cascade[-1].removeprefix("ns_") == family)
        if first := next(ends, None):
            finalists[first.cascade] = first
    return list(finalists.values())


def decide(
    short: Ints,
    long: Ints,
    goal: Goal,
    *,
    floats: bool,
    bound: float | None,
    text: bool,
    share: float,
    depth: int = 0,
) -> list[Choice]:
    """Return the best cascades for a stream, based on two samples, the cheapest first.

    Parameters
    ----------
    short, long : Ints
        The samples. All cascades are tried on the short sample, only the best on the long sample.
    goal : Goal
        The cost to minimise.
    floats, bound, text, depth
        See `rank`.
    share : float
        The long sample's share of a block.
    """
    part = share * min(1.0, short.size / max(long.size, 1))
    ranked = rank(short, goal, floats=floats, bound=bound, text=text, share=part, depth=depth)
    if long.size <= short.size:
        return ranked
    cascades = [choice.cascade for choice in _finalists(ranked, _MAX_CASCADES_TO_RETRY)]
    if not goal.write_mb_s:
        cascades += [(*cascade[:-1], "zstd_19") for cascade in cascades if cascade[-1] == "zstd_9"]
    again = []
    for cascade in cascades:
        try:
            node = encode_stream(long, cascade)
        except UnfitError:
            continue
        again.append(Choice(cost(node, cascade, goal, share), cascade, node))
    return sorted(again, key=lambda choice: choice.cost)


def can_code(values: Ints, cascade: Cascade) -> bool:
    """Return whether the transforms of a cascade can encode a stream."""
    while cascade:
        codec, cascade = head_of(cascade)
        if not isinstance(codec, Transform):
            return codec.name != "constant" or not (values != values[:1]).any()
        try:
            values, _ = codec.split(seal(values))
        except UnfitError:
            return False
    return True


def _text_candidates(stats: ColumnStats, goal: Goal) -> Iterator[Cascade]:
    if stats.runs == 1:
        yield ("constant",)
        return
    yield from (DEFAULT, ("lz4",), ("zstd",), ("fsst",), ("zstd_9",))
    if goal.write_mb_s <= _SLOW_CODECS_BELOW_MB_S:
        yield ("dictionary",)
        if Pcodec.is_installed():
            yield ("pcodec",)


def _candidates(
    stats: ColumnStats, goal: Goal, *, floats: bool, bound: float | None, depth: int
) -> Iterator[Cascade]:
    """Yield candidate cascades, cheap cascades first. A transform comes without the rest of its cascade."""
    if stats.runs == 1:
        yield ("constant",)
        return
    yield DEFAULT
    if floats and bound is not None:
        yield (Quantized(bound).name,)
    if floats and stats.digits is not None:
        yield (f"decimal_{stats.digits}",)
    few_distinct = stats.distinct is not None and 0 < stats.distinct <= MAX_DISTINCT
    # For few distinct values a dictionary is best, even if they share a divisor.
    if (
        not floats
        and stats.divisor > 1
        and (depth < QUICK_DEPTH or (depth < _MAX_TRANSFORMS and not few_distinct))
    ):
        yield ("multiple",)
    rising = stats.delta_bits <= stats.range_bits
    if rising:
        yield ("delta", "ns")
    if stats.delta_of_delta_bits <= stats.delta_bits:
        yield ("delta_of_delta", "ns")
    if depth < _MAX_TRANSFORMS:
        if stats.run_length >= _MIN_MEAN_RUN:
            yield ("run_length",)
        if few_distinct:
            yield ("dictionary",)
    # In a quick search, deltas that are wider than the values are not tried.
    firsts = ("base_delta", "delta") if depth < QUICK_DEPTH or rising else ("base_delta",)
    yield from ((first, "patched_ns") for first in firsts)
    if floats:
        yield ("xor", "ns")
    for library in ("lz4", "zstd"):
        yield from ((first, f"ns_{library}") for first in firsts)
        yield (library,)
    if depth < _MAX_TRANSFORMS:
        yield ("zstd_9",)
    if goal.write_mb_s <= _SLOW_CODECS_BELOW_MB_S:
        if Pcodec.is_installed():
            yield ("pcodec",)
        if depth < _MAX_TRANSFORMS:
            yield from (("delta",), ("base_delta",))
