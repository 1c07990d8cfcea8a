"""The experiments of UpStream §5, §6.3 and §7.3: each returns one table, a row for each point of the figure.

Staleness is in numbers of updates: a stream of load experiments has one arrival in a unit of time, and a load
factor L means that serving one tuple takes L units. A run ends at a fixed time. So a staleness that grows
without bound (an append queue's above load factor 1) is an average over that run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.paper.append_queue import AppendQueue
from benchmarks.paper.scale import Runner, Scale, in_turn
from benchmarks.paper.window_experiments import figure_12, figure_13, figure_14
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.simulation.draws import draws
from penstock.operators.simulation.server import simulate, update_stream
from penstock.operators.simulation.traces import (
    UNIT_US,
    Floats,
    Trace,
    draw_arrivals,
    zipf_weights,
)
from penstock.operators.update_stream.stream import UpdateStream

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Runner",
    "Scale",
    "append_stream",
    "figure_5",
    "figure_7",
    "figure_9",
    "figure_16",
    "figure_17",
    "in_turn",
    "make_steady_arrivals",
]

APPEND, SHEDDING, FIFO, IN_PLACE = "AQ", "AQ-RLS", "UQ-FIFO", "UQ-INPLACE"

_LOAD_9 = 5.0
_KEYS_9 = 10
_FASTER_9 = 10.0
_KEYS_16 = 100
_SERVED_PER_S_16 = 10
_PAGE_ROWS_16 = 4
"""Locations in a page. 100 keys are few, so pages must be small for any of them ever to be empty."""


def append_stream() -> UpdateStream:
    """Return a stream with an arrival column, so that tuples of several times can be enqueued at once."""
    arrived = ("arrived", pa.timestamp("us"))
    schema = pa.schema([("key", pa.int64()), ("time", pa.int64()), arrived])
    return UpdateStream(schema, ("key",), "time", arrival="arrived")


def make_steady_arrivals(rates: Floats, duration: float, *, seed: int, jitter: float = 0.5) -> Trace:
    """Return arrivals of keys that update at different rates.

    The time between two updates of key i is ``1 / rates[i]``, varied uniformly by up to the fraction
    `jitter`, so that keys do not stay in step.
    """
    times, keys = [], []
    for key, rate in enumerate(rates):
        count = int(duration * float(rate) / (1 - jitter)) + 2
        random = draws(seed * 1_000_003 + key, 0, count)
        gaps = (1 + jitter * (2 * random - 1)) / rate
        gaps[0] = random[0] / rate
        own = np.rint(np.cumsum(gaps) * UNIT_US).astype(np.int64)
        own = own[own < duration * UNIT_US]
        times.append(own)
        keys.append(np.full(len(own), key, np.int64))
    together = np.concatenate(times)
    order = np.argsort(together, kind="stable")
    return Trace(together[order], np.concatenate(keys)[order], int(duration * UNIT_US))


class _LoadCase(NamedTuple):
    queue: str
    keys: int
    load: float
    updates: int


def _load_case(case: _LoadCase) -> dict[str, Any]:
    """Run one queue at one load factor."""
    stream = append_stream()
    queue: AppendQueue | UpdateQueue
    if case.queue == APPEND:
        queue = AppendQueue(stream)
    elif case.queue == SHEDDING:
        queue = AppendQueue(stream, accept=min(1.0, 1 / case.load), seed=1)
    else:
        queue = UpdateQueue(stream, Policy.FIFO if case.queue == FIFO else Policy.IN_PLACE)
    trace = draw_arrivals(np.ones(case.keys), 1.0, case.updates, seed=case.keys)
    outcome = simulate(queue, stream, trace, round(case.load * UNIT_US))
    return {
        "keys": case.keys,
        "load": case.load,
        "queue": case.queue,
        "application_staleness": outcome.application_updates,
        "queue_staleness": outcome.queue_updates,
        "wait": outcome.wait_us / UNIT_US,
        "delivered": outcome.delivered,
    }


def figure_5(scale: Scale, run: Runner = in_turn) -> pa.Table:
    """Application and queue staleness of an IN-PLACE update queue, by load factor, for 1 and 10 keys.

    ``wait`` is the mean queue staleness of tuples at their dequeues.
    """
    cases = [_LoadCase(IN_PLACE, keys, load, scale.updates) for keys in (1, 10) for load in scale.loads]
    return pa.Table.from_pylist(run(_load_case, cases))


def figure_7(scale: Scale, run: Runner = in_turn) -> pa.Table:
    """Staleness of append and update queues by load factor, for 1 and 10 keys of equal rates."""
    queues = (APPEND, SHEDDING, FIFO, IN_PLACE)
    cases = [
        _LoadCase(queue, keys, load, scale.updates)
        for keys in (1, 10)
        for queue in queues
        for load in scale.loads
    ]
    return pa.Table.from_pylist(run(_load_case, cases))


class _CutCase(NamedTuple):
    slow: int
    arrivals: str
    load: str
    costs: tuple[str, ...]
    units: int


def _rates_9(slow: int, load: str) -> Floats:
    """Return the update rate of each key, in updates a unit.

    ``"fast keys"``: a fast key has 0.1 updates in a unit, a slow key 0.01, for any number of slow keys.
    ``"all keys"``: together they have one update in a unit.
    """
    rates = np.full(_KEYS_9, 1.0 / _KEYS_9)
    rates[:slow] /= _FASTER_9
    return rates / rates.sum() if load == "all keys" else rates


def _cut_case(case: _CutCase) -> list[dict[str, Any]]:
    """Serve the same arrivals by IN-PLACE and by LINECUTTING."""
    rates = _rates_9(case.slow, case.load)
    trace = (
        make_steady_arrivals(rates, case.units, seed=case.slow)
        if case.arrivals == "steady"
        else draw_arrivals(rates, float(rates.sum()), case.units, seed=case.slow)
    )
    cost_us = round(_LOAD_9 * UNIT_US)
    stream = append_stream()
    in_place = simulate(UpdateQueue(stream, Policy.IN_PLACE), stream, trace, cost_us).queue_updates
    rows = []
    for cost in case.costs:
        cut = _linecutting(trace, cost_us, given=cost == "given")
        rows.append(
            {
                "slow": case.slow,
                "arrivals": case.arrivals,
                "load_of": case.load,
                "cost": cost,
                "in_place": in_place,
                "linecutting": cut,
                "gain": in_place / cut if cut else 1.0,
            }
        )
    return rows


def _linecutting(trace: Trace, cost_us: int, *, given: bool) -> float:
    stream = update_stream()
    queue = UpdateQueue(stream, Policy.LINECUTTING, cost_us=float(cost_us) if given else None)
    outcome = simulate(
        queue, stream, trace, cost_us, served=lambda count: queue.observe_cost(cost_us * count, count)
    )
    return outcome.queue_updates


def figure_9(scale: Scale, run: Runner = in_turn) -> pa.Table:
    """Gain of LINECUTTING over IN-PLACE in queue staleness, by the number of slow keys of 10, at load 5.

    The gain is 1 where nothing is ever stale. Keys update at a steady pace (with the cost of a tuple given to
    the queue, and measured by it), or are drawn at random for each arrival. The load factor is that of ten
    fast keys; a last variant raises all rates so that it is the load of the keys there are.
    """
    variants: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("steady", "fast keys", ("given", "measured")),
        ("drawn", "fast keys", ("given",)),
        ("steady", "all keys", ("given",)),
    )
    cases = [
        _CutCase(slow, arrivals, load, costs, scale.units_9)
        for arrivals, load, costs in variants[: scale.variants_9]
        for slow in range(_KEYS_9 + 1)
    ]
    return pa.Table.from_pylist([row for rows in run(_cut_case, cases) for row in rows])


class _MemoryCase(NamedTuple):
    theta: float
    rate: int
    deliveries: int


def _memory_case(case: _MemoryCase) -> dict[str, Any]:
    """Measure the memory that a queue of 100 keys uses until so many results were delivered."""
    stream = append_stream()
    queue = UpdateQueue(stream, Policy.IN_PLACE, page_rows=_PAGE_ROWS_16)
    rate = case.rate / 1000 / 1000 * UNIT_US  # per unit, of which 1000 make a second
    duration = (case.deliveries + 2) * 1000 / _SERVED_PER_S_16
    trace = draw_arrivals(zipf_weights(_KEYS_16, case.theta), rate, duration, seed=round(case.theta * 10))
    held: list[tuple[int, int, int]] = []

    def watch() -> None:
        memory = queue.memory
        held.append((memory.locations_used, memory.pages_used * memory.page_rows, queue.keys))

    cost_us = 1000 * UNIT_US // _SERVED_PER_S_16
    outcome = simulate(queue, stream, trace, cost_us, watch=watch, deliveries=case.deliveries)
    waiting, paged, known = np.mean(held, axis=0)
    return {
        "theta": case.theta,
        "rate": case.rate,
        "waiting": float(waiting),
        "on_demand_usage": float(paged),
        "on_demand_effective": float(waiting / paged),
        "naive_usage": float(known),
        "naive_effective": float(waiting / known),
        "delivered": outcome.delivered,
    }


def _memory(scale: Scale, run: Runner, by: str) -> pa.Table:
    cases = [_MemoryCase(theta, rate, scale.deliveries) for theta in scale.thetas for rate in scale.rates]
    rows = run(_memory_case, cases)
    measures = ("on_demand_usage", "on_demand_effective", "naive_usage", "naive_effective")
    return pa.Table.from_pylist(
        [
            {by: value}
            | {name: float(np.mean([row[name] for row in rows if row[by] == value])) for name in measures}
            for value in sorted({row[by] for row in rows})
        ]
    )


def figure_16(scale: Scale, run: Runner = in_turn) -> pa.Table:
    """Memory usage, on demand and naive, by the skew of 100 keys; averaged over the arrival rates.

    Usage is in locations: pages in use times the locations of a page, and for the naive way one location for
    each key that was ever seen. Effective usage is the share of them that holds a waiting tuple.
    """
    return _memory(scale, run, "theta")


def figure_17(scale: Scale, run: Runner = in_turn) -> pa.Table:
    """As `figure_16`, by the arrival rate; averaged over the skews."""
    return _memory(scale, run, "rate")


Experiment = Callable[[Scale, Runner], pa.Table]

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        "5": figure_5,
        "7": figure_7,
        "9": figure_9,
        "12": figure_12,
        "13": figure_13,
        "14": figure_14,
        "16": figure_16,
        "17": figure_17,
    }
)
"""The experiments by the number of the paper's figure."""
