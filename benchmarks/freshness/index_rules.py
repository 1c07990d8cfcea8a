"""Compare other indexes with the policy `freshest`, at low loads with much skew.

    python -m benchmarks.freshness.index_rules [--loads 2 3] [--updates 400000]

`freshest` serves the key with the greatest index ``s (s / 2 + 1 / u)``, where s is the key's staleness and
1 / u the mean time between its updates (`penstock.operators.scheduling.schedulers.freshest_scheduler`). Here
all indexes of the form ``(s + c) (a (s + c) + (1 / u)**e + b)`` on a grid of a, b, c and e serve the same
updates of 100 keys at Zipf 1.5. A server that becomes free at the moment of an update serves before this
update enters. All rules know the true rates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.harness import machine, run_over_loads
from penstock._kernels import kernel
from penstock.operators.simulation import zipf_weights
from penstock.operators.simulation.traces import Floats
from penstock.operators.update_stream.stream import Integers

OUT = Path(__file__).parents[1] / "results" / "index_rules.txt"
KEYS, SKEW = 100, 1.5
FRESHEST = (0.5, 0.0, 0.0, 1.0)
SLOPES = (0.2, 0.35, 0.5, 0.75, 1.0, 2.0)
SHIFTS = (-1.0, 0.0, 1.0, 2.0, 4.0, 8.0)
AHEAD = (0.0, 0.5, 1.0)
"""c, in services."""
POWERS = (0.8, 0.9, 1.0, 1.1)
BEST = 5


@kernel
def mean_staleness(updates: Integers, gaps: Floats, load: int, a: float, b: float, c: float) -> float:
    """Return the mean staleness of a key in units; update i comes at time i, and a service takes `load`."""
    arrived = np.full(gaps.shape[0], -1)
    now, area = 0, 0.0
    while now + load < updates.shape[0]:
        best, greatest = -1, -np.inf
        for k in range(gaps.shape[0]):
            if arrived[k] >= 0:
                stale = now - arrived[k] + c
                index = stale * (a * stale + gaps[k] + b)
                if index > greatest:
                    best, greatest = k, index
        first = now
        if best >= 0:
            stale = float(now - arrived[best])
            area += stale * stale / 2.0
            arrived[best] = -1
        else:
            first = now + 1  # an idle server serves the next update at once
        for at in range(first, now + load):
            if arrived[updates[at]] < 0:
                arrived[updates[at]] = at
        now += load
    return area / now / gaps.shape[0]


def report(loads: list[int], updates: int) -> Iterator[str]:
    """Yield the lines of the report."""
    given = " ".join(map(str, loads))
    yield f"python -m benchmarks.freshness.index_rules --loads {given} --updates {updates}"
    yield machine()
    rates = zipf_weights(KEYS, SKEW)
    drawn = np.random.default_rng(3).choice(KEYS, updates, p=rates)
    for load in loads:

        def measure(rule: tuple[float, float, float, float], load: int = load) -> float:
            a, b, ahead, power = rule
            return mean_staleness(drawn, (1.0 / rates) ** power, load, a, b, ahead * load)

        own = measure(FRESHEST)
        rules = [rule for rule in itertools.product(SLOPES, SHIFTS, AHEAD, POWERS) if rule != FRESHEST]
        found = sorted((measure(rule) / own, rule) for rule in rules)
        yield f"load {load}: freshest {own:.4f}; staleness of the best of {len(rules)} other indexes over it"
        yield f"{'a':>6}{'b':>6}{'c':>6}{'e':>6}{'ratio':>9}"
        for ratio, (a, b, ahead, power) in found[:BEST]:
            yield f"{a:>6g}{b:>6g}{ahead * load:>6g}{power:>6g}{ratio:>9.3f}"


def main() -> None:
    """Run what the command line says."""
    run_over_loads(__doc__, report, updates=400_000, out=OUT)


if __name__ == "__main__":
    main()
