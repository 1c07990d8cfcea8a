"""Which cascade suits a stream: a search over a short sample, and over a long one among what did best.

The statistics of a sample rule out most candidates before anything is coded, and a bound below what a codec
costs most of the others. Where the goal values bytes, the best few of each family are coded once more, on
more values: a codec of repeats shows only there what it can do. (Scabbard §5.2)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock import _clock
from penstock.compression.abc import Cascade, Transform, UnfitError
from penstock.compression.arrow import Layout, Streams, forms_of, is_float, layouts_of, raw_bytes, to_streams
from penstock.compression.codecs import CODECS, encode_light, encode_stream
from penstock.compression.codecs.agnostic import Pcodec
from penstock.compression.codecs.decimals import Quantized
from penstock.compression.codecs.dictionary import MAX_DISTINCT
from penstock.compression.codecs.registry import DEFAULT, head_of
from penstock.compression.costs import cost, least_cost, token_cost
from penstock.compression.goals import Goal, goal_of
from penstock.compression.kernels.bits import Ints, sealed
from penstock.compression.kinds import is_coded_text
from penstock.compression.node import Node
from penstock.compression.statistics import ColumnStats, sample_of, stream_stats
from penstock.compression.texts.forms import Forms
from penstock.compression.texts.tokens import STREAMS, fits
from penstock.errors import InvalidUsageError

__all__ = ["Choice", "Chooser", "Decision", "Plan", "choose", "plan_quickly", "rank"]

DECIDING_SHARE = 1 / 40
"""The most of the time that passes which decisions about all columns may take together."""

_SAMPLE = 1 << 14
_LONG_SAMPLE = 1 << 16
_QUICK_SAMPLE = 1 << 12
_QUICK_DEPTH = 2
_LONG_SAMPLE_BELOW_MB_S = 500.0
_SLOW_BELOW_MB_S = 4.0
_SHORTEST_RUN = 1.5
_DEPTH = 3
_FINALISTS = 3
_FAMILIES = ("lz4", "zstd", "zstd_9", "pcodec")
_SETTLED = 16
_DECIDED = 3
_MOST_TOKENS_SHARE = 0.35


class Choice(NamedTuple):
    """A cascade, what it costs, and the values that it coded."""

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
        The stream, or a sample of it. All of it is coded by each cascade.
    goal : Goal
        What to minimise.
    floats : bool
        Whether the integers are the bits of floating-point numbers.
    bound : float, optional
        The error that each of these may have.
    text : bool
        Whether the stream are the bytes of texts, which are no numbers.
    share : float
        Which part of a block the sample is.
    depth : int
        How many transforms the stream has gone through.
    """
    if not values.size:
        return [Choice(0.0, ("constant",), CODECS["constant"].encode(values))]
    tried: list[Choice] = []
    least = math.inf
    values = sealed(values)
    stats = stream_stats(values, floats=floats)
    candidates = _candidates(stats, goal, floats=floats, bound=bound, depth=depth)
    for cascade in _for_text(stats, goal) if text else candidates:
        if least_cost(values.size, values.nbytes, cascade[-1], goal) >= least:
            continue
        try:
            tried += _try(values, cascade, goal, share, depth)
        except UnfitError:
            continue
        least = min(choice.cost for choice in tried)
    return sorted(tried, key=lambda choice: choice.cost)


def _try(values: Ints, cascade: Cascade, goal: Goal, share: float, depth: int) -> list[Choice]:
    """Code `values`; what a transform leaves open is searched for."""
    codec, _ = head_of(cascade)
    if not isinstance(codec, Transform):
        node = codec.encode(values)
        return [Choice(cost(node, cascade, goal, share), cascade, node)]
    stream, finish = codec.split(values)
    choices = []
    # Codes of symbols are no numbers that other transforms could suit.
    depth = _DEPTH if codec.name == "fsst" else depth + 1
    for below in _finalists(rank(stream, goal, share=share, depth=depth), 1):
        node, whole = finish(below.node), (*cascade, *below.cascade)
        choices.append(Choice(cost(node, whole, goal, share), whole, node))
    return choices


def _finalists(ranked: list[Choice], count: int) -> list[Choice]:
    """Return the cheapest, and the cheapest that end with each codec of repeats."""
    found = {choice.cascade: choice for choice in ranked[:count]}
    for family in _FAMILIES:
        ends = (choice for choice in ranked if choice.cascade[-1].removeprefix("ns_") == family)
        if first := next(ends, None):
            found[first.cascade] = first
    return list(found.values())


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
    """Return the best cascades for a stream of which there are two samples, the cheapest first.

    Parameters
    ----------
    short, long : Ints
        All cascades are tried on the first, the best few on the second.
    goal : Goal
        What to minimise.
    floats, bound, text, depth
        As for `rank`.
    share : float
        Which part of a block the long sample is.
    """
    part = share * min(1.0, short.size / max(long.size, 1))
    ranked = rank(short, goal, floats=floats, bound=bound, text=text, share=part, depth=depth)
    if long.size <= short.size:
        return ranked
    cascades = [choice.cascade for choice in _finalists(ranked, _FINALISTS)]
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


def _holds(values: Ints, cascade: Cascade) -> bool:
    """Say whether a cascade can code a stream, from the transforms that it goes through."""
    while cascade:
        codec, cascade = head_of(cascade)
        if not isinstance(codec, Transform):
            return codec.name != "constant" or not (values != values[:1]).any()
        try:
            values, _ = codec.split(sealed(values))
        except UnfitError:
            return False
    return True


def _for_text(stats: ColumnStats, goal: Goal) -> Iterator[Cascade]:
    """Yield what may suit the bytes of texts."""
    if stats.runs == 1:
        yield ("constant",)
        return
    yield from (DEFAULT, ("lz4",), ("zstd",), ("fsst",), ("zstd_9",))
    if goal.write_mb_s <= _SLOW_BELOW_MB_S:
        yield ("dictionary",)
        if Pcodec.installed():
            yield ("pcodec",)


def _candidates(
    stats: ColumnStats, goal: Goal, *, floats: bool, bound: float | None, depth: int
) -> Iterator[Cascade]:
    """Yield what may suit, the cheap ones first. Transforms are yielded without what follows them."""
    if stats.runs == 1:
        yield ("constant",)
        return
    yield DEFAULT
    if floats and bound is not None:
        yield (Quantized(bound).name,)
    if floats and stats.digits is not None:
        yield (f"decimal_{stats.digits}",)
    few = stats.distinct is not None and 0 < stats.distinct <= MAX_DISTINCT
    # A few values are coded at once by their dictionary, whatever they are multiples of.
    if not floats and stats.divisor > 1 and (depth < _QUICK_DEPTH or (depth < _DEPTH and not few)):
        yield ("multiple",)
    rising = stats.delta_bits <= stats.range_bits
    if rising:
        yield ("delta", "ns")
    if stats.delta_of_delta_bits <= stats.delta_bits:
        yield ("delta_of_delta", "ns")
    if depth < _DEPTH:
        if stats.run_length >= _SHORTEST_RUN:
            yield ("run_length",)
        if few:
            yield ("dictionary",)
    # In a quick search, deltas that are wider than the values are not tried.
    firsts = ("base_delta", "delta") if depth < _QUICK_DEPTH or rising else ("base_delta",)
    yield from ((first, "patched_ns") for first in firsts)
    if floats:
        yield ("xor", "ns")
    for library in ("lz4", "zstd"):
        yield from ((first, f"ns_{library}") for first in firsts)
        yield (library,)
    if depth < _DEPTH:
        yield ("zstd_9",)
    if goal.write_mb_s <= _SLOW_BELOW_MB_S:
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
    tokens : bool
        Whether texts are cut into tokens.
    forms : Forms, optional
        What these texts look like; learned from each block unless given.
    """

    dictionary: bool
    cascades: tuple[Cascade, ...]
    validity: Cascade = ()
    tokens: bool = False
    forms: Forms | None = None

    @classmethod
    def of(cls, kind: pa.DataType, cascade: Cascade) -> Plan:
        """Return the plan that codes a column of a type by one cascade.

        Of text it is that of lengths and bytes, with a dictionary that of the codes, and with tokens that of
        forms, codes, numbers and others.

        Raises
        ------
        InvalidUsageError
            If it would change values that are no floating-point numbers.
        """
        for place, name in enumerate(cascade):
            exact = pa.types.is_floating(kind) and set(cascade[:place]) <= {"run_length"}
            if name.startswith(Quantized.prefix) and not exact:
                raise InvalidUsageError(
                    "only floating-point numbers have an error bound",
                    codec=name,
                    after=">".join(cascade[:place]) or None,
                    type=str(kind),
                )
        if Layout.TEXT in layouts_of(kind) and cascade[0] == "dictionary":
            return cls(True, (cascade[1:],))
        if cascade[0] == "tokens":
            if Layout.TEXT not in layouts_of(kind):
                raise InvalidUsageError("only text has tokens", type=str(kind))
            light: Cascade = ()
            return cls(False, (*(cascade[1:],) * 3, *(light,) * 5, cascade[1:]), tokens=True)
        return cls(False, (cascade, cascade), cascade if len(cascade) == 1 else ())


@dataclass(slots=True)
class Decision:
    """What a chooser knows of one column.

    Parameters
    ----------
    plan : Plan
        How it codes the column now.
    made_s, took_s : float
        When it decided, on the chooser's clock, and how long that took.
    type : pyarrow.DataType
        Of the values that it decided for.
    blocks, deoptimised : int
        How many blocks it has coded, and in how many a value did not fit the plan.
    decisions : int
        How often it has decided.
    """

    plan: Plan
    made_s: float
    took_s: float
    type: pa.DataType
    blocks: int = 0
    deoptimised: int = 0
    decisions: int = 1
    stale: bool = False


@dataclass(slots=True)
class Chooser:
    """Decides how columns are coded, remembers it, and decides again now and then.

    It decides when it sees a column first, or with another type, for the block after one in which a value did
    not fit, and after `interval_s`, or 40 times what decisions about all columns take, if that is longer. One
    chooser belongs to one writer; it is not safe to share among threads.

    Parameters
    ----------
    goal : str or Goal
        ``"fast"``, ``"balanced"`` or ``"small"``, a bandwidth such as ``"500 MB/s"``, or what to minimise.
    interval_s : float
        Seconds after which a decision is made again.
    error_bounds : mapping of str to float
        Columns of floating-point numbers that may lose precision, and the greatest error of each value.
    now_s : callable
        The clock, in seconds.

    Raises
    ------
    InvalidUsageError
        If the goal has no such name, or an error bound is no positive number.
    """

    goal: str | Goal = "balanced"
    interval_s: float = 4.0
    error_bounds: Mapping[str, float] = field(default_factory=dict)
    now_s: Callable[[], float] = _clock.monotonic_s
    columns: dict[str, Decision] = field(default_factory=dict, init=False)
    """What was decided, by column."""

    def __post_init__(self) -> None:
        """Check the goal and the bounds."""
        goal_of(self.goal)
        for bound in self.error_bounds.values():
            Quantized(bound)

    def plan(self, column: str, array: pa.Array[Any], kind: pa.DataType) -> Plan:
        """Return how to code `array`, the next values of `column`, which are of a type."""
        known = self.columns.get(column)
        now_s = self.now_s()
        # A plan for floats may code them within a bound, which must not happen to the bits of anything else.
        if (
            known is not None
            and not known.stale
            and known.type == kind
            and now_s - known.made_s < self._interval_s()
        ):
            return known.plan
        array = array.cast(kind) if is_coded_text(array.type, kind) else array
        plan = _decide(array, goal_of(self.goal), self.error_bounds.get(column), quick=False)
        made_s = self.now_s()
        if known is None:
            known = self.columns[column] = Decision(plan, made_s, made_s - now_s, kind)
        else:
            known.plan, known.made_s, known.took_s, known.stale = plan, made_s, made_s - now_s, False
            known.type = kind
            known.decisions += 1
        return plan

    def _interval_s(self) -> float:
        """Return the seconds between decisions about a column: all together take no more than their share."""
        return max(self.interval_s, sum(known.took_s for known in self.columns.values()) / DECIDING_SHARE)

    def coded(self, column: str, *, fits: bool) -> None:
        """Take note that a block of `column` was coded, and whether all its streams fitted the plan."""
        known = self.columns[column]
        known.blocks += 1
        if not fits:
            known.deoptimised += 1
            known.stale = True


def plan_quickly(array: pa.Array[Any], kind: pa.DataType, goal: str | Goal = "balanced") -> Plan:
    """Return how to code an array once: judged by few values, however many there are.

    What the sample promises is not held to all values: the plan may not fit.
    """
    array = array.cast(kind) if is_coded_text(array.type, kind) else array
    return _decide(array, goal_of(goal), None, quick=True)


def _decide(array: pa.Array[Any], goal: Goal, bound: float | None, *, quick: bool) -> Plan:
    """Return how to code an array, from samples of it."""
    short = sample_of(array, _QUICK_SAMPLE if quick else _SAMPLE)
    long = short
    if not quick and goal.write_mb_s < _LONG_SAMPLE_BELOW_MB_S:
        long = sample_of(array, _LONG_SAMPLE, 1)
    floats, depth = is_float(array.type), _QUICK_DEPTH if quick else 0
    share = len(long) / max(len(array), 1)
    plans: list[tuple[float, Plan]] = []
    for dictionary, parts in _layouts(short, goal):
        more = parts if long is short else to_streams(long, dictionary=dictionary)
        whole = () if quick else _whole(array, dictionary, parts)
        chosen = []
        total = 0.0
        for position, (few, many) in enumerate(zip(parts.streams, more.streams, strict=False)):
            text = len(parts.streams) > 1 and position == len(parts.streams) - 1 and few.dtype == np.int8
            found = decide(few, many, goal, floats=floats, bound=bound, text=text, share=share, depth=depth)
            if position < len(whole):
                found = [choice for choice in found if _holds(whole[position], choice.cascade)]
            settled = dictionary and position and more.streams[1].size * _SETTLED <= len(long)
            total += found[0].cost * (share if settled else 1.0) if found else 0.0
            chosen.append(found[0].cascade if found else ("run_length", *DEFAULT))
        validity: Cascade = ()
        if parts.valid is not None:
            validity = choose(parts.valid, goal, share=len(short) / len(array)).cascade
        plans.append((total, Plan(dictionary, tuple(chosen), validity)))
    if not plans[-1][1].dictionary and Layout.TEXT in layouts_of(array.type):
        plans += _tokens(array, short, long, goal, plans[-1])
    return min(plans, key=lambda known: known[0])[1]


def _tokens(
    array: pa.Array[Any], short: pa.Array[Any], long: pa.Array[Any], goal: Goal, other: tuple[float, Plan]
) -> Iterator[tuple[float, Plan]]:
    """Yield how texts are coded as tokens, and what it costs, if that may be less than another plan does."""
    size = raw_bytes(to_streams(long))
    if token_cost(0, size, goal) >= other[0] or not size:
        return
    share = len(long) / len(array)
    forms = forms_of(array)
    if forms.share > _MOST_TOKENS_SHARE:
        return
    few = to_streams(short, forms=forms).streams
    many = few if long is short else to_streams(long, forms=forms).streams
    if not fits(many):
        return
    total = token_cost(sum(stream.size for stream in many[:3]), size, goal)
    cascades: list[Cascade] = []
    for position, name in enumerate(STREAMS):
        text = name == "others"
        cascade: Cascade = ()
        if position < _DECIDED or text:
            found = decide(
                few[position], many[position], goal, floats=False, bound=None, text=text, share=share
            )
            total += found[0].cost
            # Of all texts there may be more.
            cascade = found[0].cascade if found[0].cascade != ("constant",) else ("lz4",) if text else ()
        else:
            node = encode_light(many[position])
            # Words are about the same for more texts.
            total += cost(node, (), goal, share) * (share if "others" not in name else 1.0)
        cascades.append(cascade)
    yield total, Plan(False, tuple(cascades), other[1].validity, tokens=True, forms=forms)


def _whole(array: pa.Array[Any], dictionary: bool, sampled: Streams) -> tuple[Ints, ...]:
    """Return the streams that a decision about a sample is held to.

    Those of text take long to make, and fit any cascade but one.
    """
    one = any(stream.size and not (stream != stream[:1]).any() for stream in sampled.streams)
    if sampled.layout is Layout.FIXED or sampled.layout is Layout.WIDE or one:
        return to_streams(array, dictionary=dictionary).streams
    return ()


def _layouts(sample: pa.Array[Any], goal: Goal) -> Iterator[tuple[bool, Streams]]:
    """Yield the layouts that may suit a sample, and its streams in them."""
    if Layout.TEXT not in layouts_of(sample.type):
        yield False, to_streams(sample)
        return
    parts = to_streams(sample, dictionary=True)
    distinct = parts.streams[1].size
    if distinct * 2 <= len(sample) or not goal.write_mb_s:
        yield True, parts
    if distinct * 4 > len(sample) or not goal.write_mb_s:
        yield False, to_streams(sample)
