"""The experiments of UpStream §6.2 and §6.3: windows over update streams. Staleness is in units of time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.paper.scale import Runner, Scale, in_turn
from benchmarks.paper.windows import (
    WindowOutcome,
    append_windows,
    execution_trace,
    own_panes,
    simulate_windows,
)
from penstock.operators.simulation.traces import UNIT_US, Trace, draw_arrivals, zipf_weights
from penstock.windows.update.results import WindowMode

__all__ = ["figure_12", "figure_13", "figure_14"]

LAZY, EAGER, APPEND, SHEDDING = "LAZY", "EAGER", "AQ", "AQ-RWS"
TUMBLING, OVERLAPPING = "tumbling", "overlapping"

_KEYS_14 = 10
_IN_TURN = "in turn"
_ARRIVALS_14 = ("zipf 0", "zipf 0.5", "zipf 0.9", _IN_TURN)
OWN, STREAM = "the key's tuples", "the stream's time"


def figure_12(scale: Scale, run: Runner = in_turn) -> pa.Table:
    """Return step by step what happens to one key with windows of size 3, slide 1 and a cost of 2 a tuple.

    One tuple arrives in each unit of time. See `benchmarks.paper.windows.execution_trace`.
    """
    cases = [(mode, scale.ticks_12) for mode in (WindowMode.LAZY, WindowMode.EAGER)]
    return pa.Table.from_pylist([row for rows in run(_trace_case, cases) for row in rows])


def _trace_case(case: tuple[WindowMode, int]) -> list[dict[str, Any]]:
    return execution_trace(case[0], 3, 1, 2, case[1])


class _OneKeyCase(NamedTuple):
    windows: str
    semantics: str
    size: int
    units: int
    seeds: int


def _one_key_case(case: _OneKeyCase) -> dict[str, Any]:
    """Run one key with one tuple in each unit of time; serving takes one unit."""
    slide = case.size if case.windows == TUMBLING else 1
    outcomes: list[WindowOutcome]
    if case.semantics == APPEND:
        outcomes = [append_windows(case.size, slide, case.units, UNIT_US)]
    elif case.semantics == SHEDDING:
        share = slide / case.size
        outcomes = [
            append_windows(case.size, slide, case.units, UNIT_US, accept=share, seed=seed)
            for seed in range(case.seeds)
        ]
    else:
        times = np.arange(case.units, dtype=np.int64)
        trace = Trace(times * UNIT_US, np.zeros(case.units, np.int64), case.units * UNIT_US)
        mode = WindowMode.LAZY if case.semantics == LAZY else WindowMode.EAGER
        outcomes = [simulate_windows(mode, case.size, slide, trace, times, UNIT_US)]
    return {
        "windows": case.windows,
        "size": case.size,
        "semantics": case.semantics,
        "application_staleness": float(np.mean([outcome.application_units for outcome in outcomes])),
        "delivered": float(np.mean([outcome.delivered for outcome in outcomes])),
    }


def figure_13(scale: Scale, run: Runner = in_turn) -> pa.Table:
    """Application staleness of one key by window size: tumbling windows, and windows that slide by 1.

    Random window shedding accepts a window with the probability that makes the load 1.
    """
    shown = {TUMBLING: (LAZY, EAGER), OVERLAPPING: (APPEND, SHEDDING, LAZY, EAGER)}
    cases = [
        _OneKeyCase(windows, semantics, size, scale.units_13, scale.seeds_13)
        for windows, all_semantics in shown.items()
        for semantics in all_semantics
        for size in scale.sizes_13
    ]
    return pa.Table.from_pylist(run(_one_key_case, cases))


class _ArrivalCase(NamedTuple):
    arrivals: str
    measured_in: str
    size: int
    units: int


def _arrival_case(case: _ArrivalCase) -> dict[str, Any]:
    """Serve the same arrivals by lazy and by eager semantics."""
    units = case.units
    if case.arrivals == _IN_TURN:
        times = np.arange(units, dtype=np.int64)
        trace = Trace(times * UNIT_US, times % _KEYS_14, units * UNIT_US)
    else:
        weights = zipf_weights(_KEYS_14, float(case.arrivals.split()[1]))
        trace = draw_arrivals(weights, 1.0, units, seed=14)
    panes = own_panes(trace) if case.measured_in == OWN else np.arange(units, dtype=np.int64)
    lazy, eager = (
        simulate_windows(mode, case.size, 1, trace, panes, UNIT_US)
        for mode in (WindowMode.LAZY, WindowMode.EAGER)
    )
    return {
        "arrivals": case.arrivals,
        "windows_of": case.measured_in,
        "size": case.size,
        "lazy": lazy.application_units,
        "eager": eager.application_units,
        "ratio": eager.application_units / lazy.application_units if lazy.application_units else 1.0,
        "lazy_delivered": lazy.delivered,
        "eager_delivered": eager.delivered,
    }


def figure_14(scale: Scale, run: Runner = in_turn) -> pa.Table:
    """Application staleness of EAGER divided by that of LAZY, for 10 keys, by window size; slide 1, cost 1.

    One tuple arrives in each unit of time. Windows are taken over the tuples of a key (its n-th tuple has
    time n), or over the time of the stream, in which the tuples of a key have gaps; a window then closes with
    the key's first tuple at or behind its end.
    """
    cases = [
        _ArrivalCase(arrivals, measured_in, size, scale.units_14)
        for measured_in in (OWN, STREAM)
        for arrivals in _ARRIVALS_14
        for size in scale.sizes_14
    ]
    return pa.Table.from_pylist(run(_arrival_case, cases))
