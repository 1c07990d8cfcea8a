"""Which cascade suits a stream: a cost model over size, encode time, decode time and write bandwidth.

The model says what a value costs in nanoseconds: to encode it, to write its bytes at the bandwidth, and,
weighed, to decode it again. Sizes come from coding a sample with each candidate; times from constants per
codec, walked over the coded tree, so that a codec which sees few values (a run's heads) costs little.
The statistics of the sample rule out most candidates before anything is coded. (Scabbard §5.2 leaves
such a model to future work; its two ends, "minimise time" and "minimise bytes", are an endless bandwidth
and one of zero.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from penstock import _clock
from penstock.compression.abc import Cascade, Codec, Transform, UnfitError
from penstock.compression.arrow import Layout, is_float, layouts_of, to_streams
from penstock.compression.bits import Ints
from penstock.compression.codecs import CODECS, codec_of
from penstock.compression.codecs.agnostic import Pcodec
from penstock.compression.codecs.dictionary import MAX_DISTINCT
from penstock.compression.codecs.registry import DEFAULT, head_of
from penstock.compression.node import Node
from penstock.compression.statistics import ColumnStats, sample_of, stream_stats
from penstock.errors import InvalidUsageError

__all__ = ["GOALS", "Choice", "Chooser", "Decision", "Goal", "Plan", "choose", "cost", "goal_of", "rank"]


@dataclass(frozen=True, slots=True)
class Goal:
    """What a chooser minimises, in nanoseconds a value.

    Parameters
    ----------
    write_mb_s : float
        Write bandwidth in 10**6 bytes a second. 0 minimises bytes alone, infinity time alone.
    decode_weight : float
        What a nanosecond of decoding counts beside one of encoding.
    """

    write_mb_s: float
    decode_weight: float = 1.0


GOALS = {"fast": Goal(700.0), "balanced": Goal(40.0), "small": Goal(0.0)}
"""The goals that have names."""


def goal_of(goal: str | Goal) -> Goal:
    """Return a goal by its name.

    Raises
    ------
    InvalidUsageError
        If there is none.
    """
    if isinstance(goal, Goal):
        return goal
    if goal not in GOALS:
        raise InvalidUsageError("there is no such goal", goal=goal, known=", ".join(GOALS))
    return GOALS[goal]


# Nanoseconds a value, or a byte for the codecs of bytes: (encode, decode), measured by
# `python -m benchmarks.compression --codecs`.
_PER_VALUE: dict[str, tuple[float, float]] = {
    # A view of the values; this is what copying them into the block and out of it takes, estimated.
    "plain": (0.2, 0.2),
    "constant": (0.12, 0.13),
    "ns": (0.8, 0.7),
    "patched_ns": (5.3, 1.4),
    "ns_words": (5.4, 1.7),
    "base_delta": (0.36, 0.18),
    "delta": (0.32, 0.6),
    "multiple": (3.8, 0.64),
    "xor": (0.32, 0.56),
    "run_length": (0.94, 2.0),
    "dictionary": (1.9, 0.79),
    "variable_byte": (2.5, 2.8),
    "simple8b": (3.8, 1.2),
    "decimal": (0.45, 0.47),
    "quantized": (1.6, 0.32),
    "pcodec": (18.0, 1.1),
}
_PER_BYTE: dict[str, tuple[float, float]] = {
    "snappy": (0.57, 0.58),
    "lz4": (0.63, 0.28),
    "zstd": (1.6, 0.94),
    "zstd_9": (7.9, 0.78),
    "zstd_19": (330.0, 1.3),
}
_SAMPLE = 1 << 14
_LONG_SAMPLE = 1 << 16
_LONG_SAMPLE_BELOW_MB_S = 500.0
_SHORTEST_RUN = 1.5
_LEAST_TEXTS = 1 << 12
_DEPTH = 3
_SLOW_DEPTH = 1


def cost(node: Node, cascade: Cascade, goal: Goal) -> float:
    """Return what coding, writing and decoding a stream costs: nanoseconds, or bytes for "small".

    Parameters
    ----------
    node : Node
        The coded stream.
    cascade : Cascade
        What coded it. Levels of one codec, which cost differently, are the same in a node.
    goal : Goal
        What to minimise.
    """
    if not goal.write_mb_s:
        return float(node.size_bytes)
    encode, decode = _times_ns(node, cascade)
    return encode + goal.decode_weight * decode + node.size_bytes * 1000.0 / goal.write_mb_s


def _times_ns(node: Node, cascade: Cascade) -> tuple[float, float]:
    """Return the nanoseconds to encode and to decode a node and all below."""
    codec, rest = head_of(cascade) if cascade else (codec_of(node), ())
    encode, decode = _own_ns(codec, node)
    for position, child in enumerate(node.children):
        below = _times_ns(child, rest if position == 0 else ())
        encode, decode = encode + below[0], decode + below[1]
    return encode, decode


def _own_ns(codec: Codec, node: Node) -> tuple[float, float]:
    """Return the nanoseconds of one node without its children."""
    name = codec.name.rpartition(">")[2]
    if name in _PER_BYTE:
        (encode, decode), count = _PER_BYTE[name], node.count * node.dtype.itemsize
    else:
        (encode, decode), count = _PER_VALUE[_kind_of(name)], node.count
    return encode * count, decode * count


def _kind_of(name: str) -> str:
    """Return the name of a codec without its parameter."""
    return name if name in _PER_VALUE else name.partition("_")[0]


class Choice(NamedTuple):
    """A cascade, what it costs, and the values that it coded."""

    cost: float
    cascade: Cascade
    node: Node


def choose(values: Ints, goal: Goal, *, floats: bool = False, bound: float | None = None) -> Choice:
    """Return the cascade with the least cost for a stream; see `rank`."""
    return rank(values, goal, floats=floats, bound=bound)[0]


def rank(
    values: Ints, goal: Goal, *, floats: bool = False, bound: float | None = None, depth: int = 0
) -> list[Choice]:
    """Return the cascades that were tried on a stream, the cheapest first.

    Parameters
    ----------
    values : Ints
        The stream, or a sample of it. All of it is coded by each cascade.
    goal : Goal
        What to minimise.
    floats : bool
        Whether the integers are the bits of floating-point numbers.
    bound : float, optional
        The error that each of these may have.
    depth : int
        How many transforms the stream has gone through.
    """
    if not values.size:
        return [Choice(0.0, ("constant",), CODECS["constant"].encode(values))]
    tried: list[Choice] = []
    least = math.inf
    stats = stream_stats(values, floats=floats)
    for cascade in _candidates(stats, goal, floats=floats, bound=bound, depth=depth):
        if _at_least(values, cascade, goal) >= least:
            continue
        try:
            found = _try(values, cascade, goal, depth)
        except UnfitError:
            continue
        tried.append(found)
        least = min(least, found.cost)
    return sorted(tried, key=lambda choice: choice.cost)


def _try(values: Ints, cascade: Cascade, goal: Goal, depth: int) -> Choice:
    """Code `values`; what a transform leaves open is searched for."""
    codec, _ = head_of(cascade)
    if isinstance(codec, Transform):
        stream, finish = codec.split(values)
        below = rank(stream, goal, depth=depth + 1)[0]
        node, cascade = finish(below.node), (*cascade, *below.cascade)
    else:
        node = codec.encode(values)
    return Choice(cost(node, cascade, goal), cascade, node)


def _at_least(values: Ints, cascade: Cascade, goal: Goal) -> float:
    """Return a bound below the cost of coding `values`, known before it is done."""
    if not goal.write_mb_s:
        return 0.0
    name = cascade[-1]
    if name in _PER_BYTE:
        (encode, decode), count = _PER_BYTE[name], values.nbytes
    else:
        (encode, decode), count = _PER_VALUE[_kind_of(name)], values.size
    return (encode + goal.decode_weight * decode) * count


def _candidates(
    stats: ColumnStats, goal: Goal, *, floats: bool, bound: float | None, depth: int
) -> Iterator[Cascade]:
    """Yield what may suit, the cheap ones first. Transforms are yielded without what follows them."""
    if stats.runs == 1:
        yield ("constant",)
        return
    yield DEFAULT
    if floats and bound is not None:
        yield (f"quantized_{bound!r}",)
    if floats and stats.digits is not None:
        yield (f"decimal_{stats.digits}",)
    if not floats and stats.divisor > 1:
        yield ("multiple",)
    if stats.delta_bits <= stats.range_bits:
        yield ("delta", "ns")
    if stats.delta_of_delta_bits <= stats.delta_bits:
        yield ("delta_of_delta", "ns")
    if depth < _DEPTH:
        if stats.run_length >= _SHORTEST_RUN:
            yield ("run_length",)
        if stats.distinct is not None and 0 < stats.distinct <= MAX_DISTINCT:
            yield ("dictionary",)
    yield ("base_delta", "patched_ns")
    yield ("delta", "patched_ns")
    if floats:
        yield ("xor", "ns")
    for library in ("lz4", "zstd"):
        yield ("base_delta", f"ns_{library}")
        yield ("delta", f"ns_{library}")
        yield (library,)
    yield ("zstd_9",)
    if not goal.write_mb_s:
        if depth <= _SLOW_DEPTH:
            yield ("zstd_19",)
            if Pcodec.installed():
                yield ("pcodec",)
        if depth < _DEPTH:
            yield from (("delta",), ("base_delta",))


@dataclass(frozen=True, slots=True)
class Plan:
    """How a column is to be coded.

    Parameters
    ----------
    dictionary : bool
        Whether distinct texts are kept apart.
    cascades : tuple of Cascade
        One for each stream; what is missing is coded by `encode_light`.
    validity : Cascade
        For where nulls are.
    """

    dictionary: bool
    cascades: tuple[Cascade, ...]
    validity: Cascade = ()

    @classmethod
    def of(cls, kind: pa.DataType, cascade: Cascade) -> Plan:
        """Return the plan that codes a column of a type by one cascade.

        Of text it is that of lengths and bytes, or with a dictionary that of the codes.
        """
        if Layout.TEXT in layouts_of(kind) and cascade[0] == "dictionary":
            return cls(True, (cascade[1:],))
        return cls(False, (cascade, cascade), cascade if len(cascade) == 1 else ())


@dataclass(slots=True)
class Decision:
    """What a chooser knows of one column.

    Parameters
    ----------
    plan : Plan
        How it codes the column now.
    made_s : float
        When it decided, on the chooser's clock.
    blocks, deoptimised : int
        How many blocks it has coded, and in how many a value did not fit the plan.
    decisions : int
        How often it has decided.
    """

    plan: Plan
    made_s: float
    blocks: int = 0
    deoptimised: int = 0
    decisions: int = 1
    stale: bool = False


@dataclass(slots=True)
class Chooser:
    """Decides how columns are coded, remembers it, and decides again now and then.

    It decides when it sees a column first, after `interval_s`, and for the block after one in which a
    value did not fit. One chooser belongs to one writer; it is not safe to share among threads.

    Parameters
    ----------
    goal : str or Goal
        ``"fast"``, ``"balanced"`` or ``"small"``, or what to minimise.
    interval_s : float
        Seconds after which a decision is made again.
    error_bounds : mapping of str to float
        Columns of floating-point numbers that may lose precision, and the greatest error of each value.
    now_s : callable
        The clock, in seconds.

    Raises
    ------
    InvalidUsageError
        If the goal has no such name.
    """

    goal: str | Goal = "balanced"
    interval_s: float = 4.0
    error_bounds: Mapping[str, float] = field(default_factory=dict)
    now_s: Callable[[], float] = _clock.monotonic_s
    columns: dict[str, Decision] = field(default_factory=dict, init=False)
    """What was decided, by column."""

    def __post_init__(self) -> None:
        """Check the goal."""
        goal_of(self.goal)

    def plan(self, column: str, array: pa.Array[Any]) -> Plan:
        """Return how to code `array`, the next values of `column`."""
        known = self.columns.get(column)
        if known is None:
            known = self.columns[column] = Decision(self._decide(column, array), self.now_s())
        elif known.stale or self.now_s() - known.made_s >= self.interval_s:
            known.plan, known.made_s, known.stale = self._decide(column, array), self.now_s(), False
            known.decisions += 1
        return known.plan

    def coded(self, column: str, *, fits: bool) -> None:
        """Take note that a block of `column` was coded, and whether all its streams fitted the plan."""
        known = self.columns[column]
        known.blocks += 1
        if not fits:
            known.deoptimised += 1
            known.stale = True

    def _decide(self, column: str, array: pa.Array[Any]) -> Plan:
        goal = goal_of(self.goal)
        short = goal.write_mb_s >= _LONG_SAMPLE_BELOW_MB_S
        rows = _SAMPLE if short else _LONG_SAMPLE
        if Layout.TEXT in layouts_of(array.type) and len(array):
            # Text is long: as many rows as have about the bytes of a sample of numbers.
            rows = max(_LEAST_TEXTS, min(rows, 8 * rows * len(array) // max(array.nbytes, 1)))
        sample = sample_of(array, rows)
        floats, bound = is_float(array.type), self.error_bounds.get(column)
        plans: list[tuple[float, Plan]] = []
        for dictionary in (False, True) if Layout.TEXT in layouts_of(array.type) else (False,):
            parts = to_streams(sample, dictionary=dictionary)
            chosen = [choose(stream, goal, floats=floats, bound=bound) for stream in parts.streams]
            validity = () if parts.valid is None else choose(parts.valid, goal).cascade
            plan = Plan(dictionary, tuple(choice.cascade for choice in chosen), validity)
            plans.append((sum(choice.cost for choice in chosen), plan))
        return min(plans, key=lambda known: known[0])[1]
