"""Lower bounds of staleness beside the optimum and the policy `freshest`, at low loads with skew.

    python -m benchmarks.freshness.bounds [--loads 2 3] [--updates 6000]

Three bounds for all orders that never idle while a key waits. Each is a Lagrangian relaxation, with one price
for a service, and the best price is taken:

- plain: `lower_bound`, which lets each key choose on its own the staleness at which it is served.
- epochs: the same, but services begin only every L units, as those of a server that is never idle.
- group: as epochs, but the three keys with the greatest rate * weight share one server: dynamic programming
  finds their best joint order, in which the server is paid the price when it serves another key instead.

The arrivals are those of `benchmarks.freshness.freshness`. With weights, every fifth key has weight 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.freshness.simulated_keys import simulate_keys
from benchmarks.harness import machine, run_over_loads
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.schedulers import new_scheduler
from penstock.operators.simulation import UNIT_US, draw_arrivals, zipf_weights
from penstock.operators.simulation.optimum import find_optimum, lower_bound, wait_a_unit
from penstock.operators.simulation.traces import Floats

OUT = Path(__file__).parents[1] / "results" / "bounds.txt"
GROUP = 3
AGES_PER_UNIT = 13
"""Keys of a group stop growing staler at this many times the load; this lowers the bound a little."""
OLDEST_OF_FOUR = 22
"""The greatest staleness of a key in the optimum of four keys, at load 2."""
ROUNDS_OF_KEYS = 5
TOLERANCE = 2e-3
STEPS, FEW_STEPS = 90, 14
GOLDEN = (5.0**0.5 - 1.0) / 2.0


def cost_of_keys(rates: Floats, load: int, weights: Floats, price: float) -> Floats:
    """Return the least cost of each key for a service of `load` units, if it alone chooses its services.

    A key is served at the first begin of a service at which it is at least `least` units stale.
    """
    ages = np.arange(1, load + 1)[:, None]
    none = (1 - rates) ** load
    chances = rates * (1 - rates) ** (load - ages) / (1 - none)
    least = np.ones(len(rates))
    while True:
        waits = np.maximum(np.ceil((least - ages) / load), 0)
        stale = ages + load * waits
        cost: Floats = (weights * (chances * stale**2).sum(0) / 2 + price) / (
            1 / (1 - none) + (chances * waits).sum(0)
        )
        # Another unit of waiting pays as long as it costs less than the average.
        better = np.maximum(np.ceil((cost / weights - load * load / 2) / load), 1)
        if (better == least).all():
            return cost
        least = better


class Group:
    """The cost of keys that share a server, by price."""

    def __init__(self, rates: Floats, load: int, weights: Floats) -> None:
        keys, oldest = len(rates), AGES_PER_UNIT * load
        self._rates, self._load, self._weights = rates, load, weights
        self._ages = np.indices((oldest + 1,) * keys).reshape(keys, -1).T.copy()
        self._steps = (oldest + 1) ** np.arange(keys - 1, -1, -1)
        self._served = np.arange(len(self._ages))[:, None] - self._ages * self._steps
        self._values = np.zeros(len(self._ages))

    def cost(self, price: float) -> float:
        """Return a lower bound of the cost of the group for a service."""
        while True:
            after = self._values
            for _ in range(self._load):
                after = wait_a_unit(after, self._ages, self._steps, self._rates, self._weights)
            served = np.where(self._ages > 0, after[self._served], np.inf).min(axis=1) + price
            gains = np.minimum(after, served) - self._values
            self._values = self._values + gains / 2
            self._values -= self._values[0]
            # The least gain of any state is a bound, before the values have converged too.
            if gains.max() - gains.min() <= TOLERANCE * abs(gains.max()):
                return float(gains.min())


def greatest(function: Callable[[float], float], low: float, high: float, steps: int) -> tuple[float, float]:
    """Return the greatest value that a search finds of a concave function, and where it is."""
    found = (-np.inf, low)
    for _ in range(steps):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        one, other = function(left), function(right)
        found = max(found, (one, left), (other, right))
        low, high = (left, high) if one < other else (low, right)
    return found


def bounds(rates: Floats, load: int, weights: Floats) -> tuple[float, float, float]:
    """Return the three bounds."""
    unit = load * float(weights.sum())

    def epochs(price: float) -> float:
        return float(cost_of_keys(rates, load, weights, price).sum()) - price

    reach = float(weights.max()) * load * load
    best, price = greatest(epochs, -reach, 100 * reach * len(rates), STEPS)
    line = np.argsort(-rates * weights, kind="stable")
    hot, cold = line[:GROUP], line[GROUP:]
    group = Group(rates[hot], load, weights[hot])

    def together(price: float) -> float:
        others = cost_of_keys(rates[cold], load, weights[cold], price)
        return group.cost(price) + float(others.sum()) - price

    reach = abs(price) / 2 + load * load
    joint, _ = greatest(together, price - reach, price + reach, FEW_STEPS)
    return lower_bound(rates, load, weights), best / unit, max(best, joint) / unit


def report(loads: list[int], updates: int) -> Iterator[str]:
    """Yield the lines of the report."""
    yield machine()
    heads = ("plain", "epochs", "group", "optimum", "freshest", "over group")
    yield f"{'keys':>6}{'load':>6}{'Zipf':>6}{'':>10}" + "".join(f"{head:>11}" for head in heads)
    # The optimum of four keys takes minutes at higher loads.
    for keys, some in ((100, loads), (4, [load for load in loads if load == 2])):
        for load in some:
            for skew in (0.9, 1.5):
                for weighted in (False, True):
                    rates = zipf_weights(keys, skew)
                    heavy = np.arange(keys) % 5 == 0
                    weights = np.where(heavy, 10.0, 1.0) if weighted else np.ones(keys)
                    found = bounds(rates, load, weights)
                    trace = draw_arrivals(rates, 1.0, max(updates, ROUNDS_OF_KEYS * load * keys), seed=1)
                    scheduler = new_scheduler(Policy.FRESHEST, weighted=weighted)
                    freshest = simulate_keys(scheduler, trace, load * UNIT_US, weights)
                    optimum = "-"
                    if keys == 4:
                        optimum = f"{find_optimum(rates, load, weights, oldest=OLDEST_OF_FOUR):.3f}"
                    yield (
                        f"{keys:>6}{load:>6}{skew:>6g}{'weighted' if weighted else '':>10}"
                        + "".join(f"{one:>11.3f}" for one in found)
                        + f"{optimum:>11}{freshest:>11.3f}{freshest / found[-1]:>11.3f}"
                    )


def main() -> None:
    """Run what the command line says."""
    run_over_loads(__doc__, report, updates=6_000, out=OUT)


if __name__ == "__main__":
    main()
