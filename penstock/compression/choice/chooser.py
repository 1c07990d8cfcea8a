"""The chooser: decides how to encode columns, keeps the decisions, and renews them periodically."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import _clock
from penstock.compression.abc import Cascade
from penstock.compression.arrow import forms_of, raw_bytes, to_streams
from penstock.compression.choice.costs import MIN_REPEATS, cost, token_cost
from penstock.compression.choice.goals import Goal, goal_of
from penstock.compression.choice.plan import Plan
from penstock.compression.choice.search import QUICK_DEPTH, can_code, choose, decide
from penstock.compression.choice.statistics import sample_of
from penstock.compression.codecs import encode_light
from penstock.compression.codecs.decimals import Quantized
from penstock.compression.codecs.registry import DEFAULT
from penstock.compression.kernels.bits import Ints
from penstock.compression.kinds import is_coded_text
from penstock.compression.layouts import Layout, Streams, is_float, layouts_of
from penstock.compression.texts.token_streams import STREAMS, fits

__all__ = ["Chooser", "Decision", "plan_quickly"]

DECIDING_SHARE = 1 / 40
"""The largest share of elapsed time that decisions about all columns may take."""

_SAMPLE_ROWS = 1 << 14
_LONG_SAMPLE_ROWS = 1 << 16
_QUICK_SAMPLE_ROWS = 1 << 12
_LONG_SAMPLE_BELOW_MB_S = 500.0
_SEARCHED_STREAMS = 3
_MAX_TOKENS_SHARE = 0.35


@dataclass(slots=True)
class Decision:
    """A chooser's record of one column.

    Parameters
    ----------
    plan : Plan
        The current encoding of the column.
    made_s, took_s : float
        The time of the decision, on the chooser's clock, and its duration.
    type : pyarrow.DataType
        The type of the values for which the plan was made.
    blocks, deoptimised : int
        The number of encoded blocks, and of blocks in which a value did not fit the plan.
    decisions : int
        The number of decisions.
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
    """Decides how to encode columns, keeps the decisions, and renews them periodically.

    A chooser decides about a column at the first block, when the column's type changes, and after a block in
    which a value did not fit. It also decides again after `interval_s` or, if that is longer, after 40 times
    the total duration of the decisions about all columns. Each writer has its own chooser, because a chooser
    is not thread-safe.

    Parameters
    ----------
    goal : str or Goal
        ``"fast"``, ``"balanced"`` or ``"small"``, a bandwidth such as ``"500 MB/s"``, or a `Goal`.
    interval_s : float
        The number of seconds after which a decision is made again.
    error_bounds : mapping of str to float
        Columns of floating-point numbers that may lose precision, and the greatest error of each value.
    now_s : callable
        The clock, in seconds.

    Raises
    ------
    InvalidUsageError
        If no goal has this name, or an error bound is not a positive number.
    """

    goal: str | Goal = "balanced"
    interval_s: float = 4.0
    error_bounds: Mapping[str, float] = field(default_factory=dict)
    now_s: Callable[[], float] = _clock.monotonic_s
    columns: dict[str, Decision] = field(default_factory=dict, init=False)
    """The decisions, by column."""

    def __post_init__(self) -> None:
        """Check the goal and the bounds."""
        goal_of(self.goal)
        for bound in self.error_bounds.values():
            Quantized(bound)

    def plan(self, column: str, array: pa.Array[Any], kind: pa.DataType) -> Plan:
        """Return the plan for `array`, the next values of `column`; `kind` is their type."""
        decision = self.columns.get(column)
        now_s = self.now_s()
        # A plan for floats may be lossy, which must not happen to the bits of other types.
        if (
            decision is not None
            and not decision.stale
            and decision.type == kind
            and now_s - decision.made_s < self._interval_s()
        ):
            return decision.plan
        array = array.cast(kind) if is_coded_text(array.type, kind) else array
        plan = _decide(array, goal_of(self.goal), self.error_bounds.get(column), quick=False)
        made_s = self.now_s()
        if decision is None:
            decision = self.columns[column] = Decision(plan, made_s, made_s - now_s, kind)
        else:
            decision.plan, decision.made_s, decision.took_s, decision.stale = (
                plan,
                made_s,
                made_s - now_s,
                False,
            )
            decision.type = kind
            decision.decisions += 1
        return plan

    def _interval_s(self) -> float:
        """Return the seconds between decisions about a column, so that they take a limited share of time."""
        return max(
            self.interval_s, sum(decision.took_s for decision in self.columns.values()) / DECIDING_SHARE
        )

    def record_block(self, column: str, *, fits: bool) -> None:
        """Record that a block of `column` was encoded, and whether all its streams fitted the plan."""
        decision = self.columns[column]
        decision.blocks += 1
        if not fits:
            decision.deoptimised += 1
            decision.stale = True


def plan_quickly(array: pa.Array[Any], kind: pa.DataType, goal: str | Goal = "balanced") -> Plan:
    """Return a plan for an array of any length, based on a few of its values.

    The plan is not checked against all values, so some values may not fit it.
    """
    array = array.cast(kind) if is_coded_text(array.type, kind) else array
    return _decide(array, goal_of(goal), None, quick=True)


def _decide(array: pa.Array[Any], goal: Goal, bound: float | None, *, quick: bool) -> Plan:
    """Return a plan for an array, based on samples."""
    short = sample_of(array, _QUICK_SAMPLE_ROWS if quick else _SAMPLE_ROWS)
    long = short
    if not quick and goal.write_mb_s < _LONG_SAMPLE_BELOW_MB_S:
        long = sample_of(array, _LONG_SAMPLE_ROWS, 1)
    floats, depth = is_float(array.type), QUICK_DEPTH if quick else 0
    share = len(long) / max(len(array), 1)
    plans: list[tuple[float, Plan]] = []
    for dictionary, parts in _layouts(short, goal):
        long_parts = parts if long is short else to_streams(long, dictionary=dictionary)
        full_streams = () if quick else _full_streams(array, dictionary, parts)
        cascades = []
        total = 0.0
        for position, (short_stream, long_stream) in enumerate(
            zip(parts.streams, long_parts.streams, strict=False)
        ):
            text = (
                len(parts.streams) > 1
                and position == len(parts.streams) - 1
                and short_stream.dtype == np.int8
            )
            choices = decide(
                short_stream,
                long_stream,
                goal,
                floats=floats,
                bound=bound,
                text=text,
                share=share,
                depth=depth,
            )
            if position < len(full_streams):
                choices = [choice for choice in choices if can_code(full_streams[position], choice.cascade)]
            is_complete = dictionary and position and long_parts.streams[1].size * MIN_REPEATS <= len(long)
            total += choices[0].cost * (share if is_complete else 1.0) if choices else 0.0
            cascades.append(choices[0].cascade if choices else ("run_length", *DEFAULT))
        validity: Cascade = ()
        if parts.valid is not None:
            validity = choose(parts.valid, goal, share=len(short) / len(array)).cascade
        plans.append((total, Plan(dictionary, tuple(cascades), validity)))
    if not plans[-1][1].dictionary and Layout.TEXT in layouts_of(array.type):
        plans += _tokens(array, short, long, goal, plans[-1])
    return min(plans, key=lambda entry: entry[0])[1]


def _tokens(
    array: pa.Array[Any], short: pa.Array[Any], long: pa.Array[Any], goal: Goal, best_plan: tuple[float, Plan]
) -> Iterator[tuple[float, Plan]]:
    """Yield the plan that encodes texts as tokens, and its cost, if it can be cheaper than `best_plan`."""
    size = raw_bytes(to_streams(long))
    if token_cost(0, size, goal) >= best_plan[0] or not size:
        return
    share = len(long) / len(array)
    forms = forms_of(array)
    if forms.share > _MAX_TOKENS_SHARE:
        return
    short_streams = to_streams(short, forms=forms).streams
    long_streams = short_streams if long is short else to_streams(long, forms=forms).streams
    if not fits(long_streams):
        return
    total = token_cost(sum(stream.size for stream in long_streams[:3]), size, goal)
    cascades: list[Cascade] = []
    for position, name in enumerate(STREAMS):
        text = name == "others"
        cascade: Cascade = ()
        if position < _SEARCHED_STREAMS or text:
            choices = decide(
                short_streams[position],
                long_streams[position],
                goal,
                floats=False,
                bound=None,
                text=text,
                share=share,
            )
            total += choices[0].cost
            # A stream that is constant in the sample can vary in the whole column.
            cascade = choices[0].cascade if choices[0].cascade != ("constant",) else ("lz4",) if text else ()
        else:
            node = encode_light(long_streams[position])
            # The whole column has about the same words as the sample.
            total += cost(node, (), goal, share) * (share if "others" not in name else 1.0)
        cascades.append(cascade)
    yield total, Plan(False, tuple(cascades), best_plan[1].validity, tokens=True, forms=forms)


def _full_streams(array: pa.Array[Any], dictionary: bool, sample_streams: Streams) -> tuple[Ints, ...]:
    """Return the full streams against which to check a decision about a sample.

    Streams of text are not checked: they are slow to make, and fit any cascade except ``constant``.
    """
    has_constant = any(stream.size and not (stream != stream[:1]).any() for stream in sample_streams.streams)
    if sample_streams.layout is Layout.FIXED or sample_streams.layout is Layout.WIDE or has_constant:
        return to_streams(array, dictionary=dictionary).streams
    return ()


def _layouts(sample: pa.Array[Any], goal: Goal) -> Iterator[tuple[bool, Streams]]:
    """Yield each layout that may suit a sample, and the sample's streams in this layout."""
    if Layout.TEXT not in layouts_of(sample.type):
        yield False, to_streams(sample)
        return
    parts = to_streams(sample, dictionary=True)
    distinct = parts.streams[1].size
    if distinct * 2 <= len(sample) or not goal.write_mb_s:
        yield True, parts
    if distinct * 4 > len(sample) or not goal.write_mb_s:
        yield False, to_streams(sample)
