"""The least staleness of any order of service, for comparison with policies.

The model is the same as in `draw_arrivals` and `simulate`. In each unit of time one update arrives; it
belongs to key i with probability p_i. A service takes a whole number of units. If the server becomes free at
the moment of an arrival, it takes its next tuple before this arrival enters the queue.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from penstock._kernels import kernel
from penstock.errors import InternalError
from penstock.operators.simulation.traces import Floats

__all__ = ["MAX_STATES", "count_states", "find_optimum", "lower_bound", "wait_a_unit"]

MAX_STATES = 300_000
"""States of a decision process that `find_optimum` solves in some seconds."""

_AGES_PER_SERVICE = 4
"""The model limits staleness to the time of this many services of all keys. No good order exceeds this
limit."""
_TOLERANCE = 1e-4
_MAX_ROUNDS = 5_000
_GOLDEN_STEPS = 80


def lower_bound(rates: Floats, cost: float, weights: Floats | None = None) -> float:
    """Return a lower bound of the mean queue staleness in units, weighted by `weights`.

    The bound lets the server serve several keys at once, as long as it serves one key per `cost` units on
    average (a Lagrangian relaxation). Then each key can choose on its own at which staleness it is served, if
    each service has the same price. Every price gives a lower bound, and the highest of these bounds is
    returned.

    Parameters
    ----------
    rates : float64 array
        The probability that an arriving update belongs to each key.
    cost : float
        Duration of a service, in units. If it is not a whole number, the bound is looser.
    weights : float64 array, optional
        The weights of the keys; by default all weights are 1.
    """
    weights = np.ones(len(rates)) if weights is None else weights

    # Staleness is a whole number at every service, or is rounded down.
    whole = 1.0 if cost == round(cost) else 0.0

    def bound_at(log_price: float) -> float:
        price = math.exp(log_price)
        # If a service ends just before an arrival, the next update comes 1 / p - 1 units later on average.
        # If a service ends at the moment of an arrival, the next update comes 1 / p units later.
        idle = 1.0 / rates - whole
        best = np.sqrt(idle * idle + 2.0 * price / weights) - idle
        stale = np.maximum([np.floor(best), np.ceil(best)], whole)
        costs = np.vstack([price * rates, (weights * stale * stale / 2.0 + price) / (stale + idle)])
        return float(costs.min(axis=0).sum() - price / cost)

    # The bound is concave in the price.
    low, high = -12.0, 2.0 * math.log(cost * len(rates) * float(weights.max()) + 2.0) + 12.0
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(_GOLDEN_STEPS):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if bound_at(left) > bound_at(right) else (left, high)
    return max(bound_at((low + high) / 2.0), 0.0) / float(weights.sum())


@kernel
def wait_a_unit(
    values: Floats, ages: npt.NDArray[np.int64], steps: npt.NDArray[np.int64], rates: Floats, weights: Floats
) -> Floats:
    """Return each state's expected cost of one unit of time plus the expected value of the next state.

    `ages` has a row for each state: for each key, the units of time since its oldest unseen update, or 0 if
    it has none. The number of a state is ``ages @ steps``. If the rates add up to less than 1, the remaining
    updates belong to keys outside of the model.
    """
    count, keys = ages.shape
    oldest = ages[count - 1, 0]
    found = np.empty(count)
    others = max(1.0 - rates.sum(), 0.0)
    for state in range(count):
        cost, following = 0.0, 0
        for k in range(keys):
            age = ages[state, k]
            if age:
                cost += weights[k] * (age + 0.5)
                following += min(age + 1, oldest) * steps[k]
        value = others * values[following]
        for k in range(keys):
            if ages[state, k]:
                value += rates[k] * values[following]
            else:
                value += rates[k] * (0.5 * weights[k] + values[following + steps[k]])
        found[state] = cost + value
    return found


@kernel
def _serve(after: Floats, idle: float, ages: npt.NDArray[np.int64], steps: npt.NDArray[np.int64]) -> Floats:
    """Return, for each state, the least value over all choices of the next key to serve."""
    count, keys = ages.shape
    found = np.full(count, np.inf)
    for state in range(count):
        for k in range(keys):
            if ages[state, k]:
                found[state] = min(found[state], after[state - ages[state, k] * steps[k]])
    found[0] = idle
    return found


def _oldest(keys: int, cost: int) -> int:
    return _AGES_PER_SERVICE * cost * keys + 4


def count_states(keys: int, cost: int) -> int:
    """Return the number of states for `find_optimum`."""
    return int((_oldest(keys, cost) + 1) ** keys)


def find_optimum(
    rates: Floats, cost: int, weights: Floats | None = None, *, oldest: int | None = None
) -> float:
    """Return the least mean queue staleness, in units, of a server that never idles while a key waits.

    The optimum is found by dynamic programming (value iteration) on all combinations of the keys' staleness.
    No order that depends only on the past and the rates is better.

    Parameters
    ----------
    rates, cost, weights
        See `lower_bound`.
    oldest : int, optional
        The greatest staleness of a key in the model, so that the number of states is finite.
    """
    keys = len(rates)
    weights = np.ones(keys) if weights is None else weights
    oldest = _oldest(keys, cost) if oldest is None else oldest
    ages = np.indices((oldest + 1,) * keys).reshape(keys, -1).T.copy()
    steps = (oldest + 1) ** np.arange(keys - 1, -1, -1)
    values = np.zeros(len(ages))
    for _ in range(_MAX_ROUNDS):
        after, idle = values, 0.0
        for unit in range(cost):
            # An idle server takes an update when it arrives, so the service's first unit costs nothing.
            if unit == cost - 1:
                idle = float(after[0])
            after = wait_a_unit(after, ages, steps, rates, weights)
        found = _serve(after, idle, ages, steps)
        gains = found - values
        low, high = float(gains.min()), float(gains.max())
        if high - low <= _TOLERANCE * high:
            return (low + high) / 2.0 / cost / float(weights.sum())
        # Take half steps, which converge even if keys are served in turns.
        values = values + gains / 2.0
        values -= values[0]
    raise InternalError("value iteration does not converge", keys=keys, cost=cost, rounds=_MAX_ROUNDS)
