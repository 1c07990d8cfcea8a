"""Simulate a server with a scheduler of keys, without tuples, and measure staleness."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.operators.scheduling.abc import Scheduler
from penstock.operators.scheduling.rates import mean_interval
from penstock.operators.scheduling.weights import shares_of
from penstock.operators.simulation.traces import UNIT_US, Floats, Trace
from penstock.operators.update_stream.stream import Integers

__all__ = ["simulate_keys"]

_NOBODY = -1
_WARM_UP = 0.1
"""The share of a run that passes before staleness is measured, because rates are not known yet."""


def simulate_keys(scheduler: Scheduler, trace: Trace, cost_us: int, weights: Floats) -> float:
    """Simulate a run; return the mean queue staleness of keys in numbers of updates, weighted by `weights`.

    The server and the order of events are the same as in `simulate`. The work for tuples is left out, which
    makes this ten times faster. A key's rate is measured as in `UpdateQueue`.

    Parameters
    ----------
    scheduler : Scheduler
        A new scheduler.
    weights : float64 array
        The weights of all keys. The result is always weighted by them. A weighted scheduler also uses them to
        choose the next key.
    """
    keys = len(weights)
    scheduler.reserve(keys)
    shares = shares_of(weights)
    arrived, seen = np.full(keys, _NOBODY), np.zeros(keys, np.int64)
    interval, in_service = np.zeros(keys), np.zeros(keys, np.int64)
    begin_us = int(trace.end_us * _WARM_UP)
    area = 0.0

    def enter(begin: int, end: int) -> None:
        ids, times = trace.keys[begin:end], trace.times_us[begin:end]
        interval[ids] = mean_interval(interval[ids], times - seen[ids], np.ones(len(ids), np.int64))
        seen[ids] = times
        waits, load = arrived[ids] != _NOBODY, scheduler.load(in_service)
        scheduler.arrive(ids, waits, interval[ids], cost_us, load, shares[ids], times)
        arrived[ids] = np.where(waits, arrived[ids], times)

    def stale_until(ids: Integers, now: int) -> float:
        """Return the weighted integral of the keys' staleness, from the end of the warm-up until now."""
        since, own = arrived[ids], weights[ids]
        low, high = np.maximum(begin_us - since, 0), np.maximum(now - since, 0)
        return float(own @ np.maximum(high.astype(float) ** 2 - low.astype(float) ** 2, 0)) / 2.0

    position, free = 0, 0
    while position < len(trace.times_us):
        if not len(scheduler):
            free = max(free, int(trace.times_us[position]))
            until = int(np.searchsorted(trace.times_us, trace.times_us[position], side="right"))
        else:
            ids = scheduler.pop(1, now_us=free)
            area += stale_until(ids, free)
            arrived[ids], in_service[ids] = _NOBODY, 1
            free += cost_us
            until = int(np.searchsorted(trace.times_us, free, side="left"))
        for begin, end in _split(trace.keys, position, until):
            enter(begin, end)
        position = max(position, until)
        in_service[:] = 0
    area += stale_until(np.flatnonzero(arrived != _NOBODY), trace.end_us)
    return area / (trace.end_us - begin_us) / float(weights.sum()) / UNIT_US


def _split(keys: Integers, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Split a range of arrivals into ranges in which all keys are distinct."""
    known: set[int] = set()
    for place, key in enumerate(keys[begin:end].tolist(), begin):
        if key in known:
            yield begin, place
            begin, known = place, set()
        known.add(key)
    if begin < end:
        yield begin, end
