"""Staleness of keys by policy against the optimum, by load and skew, and what choosing keys costs.

    python -m benchmarks.freshness.freshness [--updates 6000] [--only few] [--plot FILE.svg]

The arrivals are those of `penstock simulate`: one update for each unit of time, of a key drawn at random;
the load is the duration of a service in units. Each policy's scheduler serves the same arrivals under a
simulated clock, without tuples (`simulate_keys`). Rates of updates are measured as in an update queue, except
for the optimum, which knows them. Figures are mean queue staleness over the optimum (dynamic programming; 3
keys) or over a lower bound that no order reaches (more keys), 1 is best. With weights, every fifth key has
weight 10, and staleness is weighted. The market is a trading day of 3,000 symbols (`penstock.market`).

Then the kernels: nanoseconds of processor time for each waiting key of one choice, best of several.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.freshness.simulated_keys import simulate_keys
from benchmarks.harness import machine, pyplot, save
from penstock.market import NYSE_SKEW, NYSE_SYMBOLS
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.schedulers import new_scheduler
from penstock.operators.scheduling.schedulers.freshest_scheduler import FreshestScheduler
from penstock.operators.scheduling.weights import ONE
from penstock.operators.simulation import UNIT_US, draw_arrivals, zipf_weights
from penstock.operators.simulation.optimum import MAX_STATES, count_states, find_optimum, lower_bound
from penstock.operators.simulation.policies import RANDOM
from penstock.operators.simulation.random_order import RandomScheduler
from penstock.operators.simulation.traces import Floats

LOADS = (2, 3, 5, 10, 30)
SKEWS = (0.0, 0.5, 0.9, 1.5)
NAMES = (*map(str, Policy), RANDOM)
HEAVY = 10.0
ROUNDS_OF_KEYS = 5
"""A run is at least so long that a server could serve each key this often."""
ROUNDS = 7
PARTS = ["few", "many", "market", "bounds", "kernels"]
OLDEST = {3: None, 4: 22, 5: 13}
"""For each number of keys with a known optimum, the staleness at which a key stops growing staler."""

Row = dict[str, Any]


def market_rates() -> Floats:
    """Return the probability of each symbol of the market at an update."""
    rates: Floats = NYSE_SKEW ** (-np.arange(NYSE_SYMBOLS) / (NYSE_SYMBOLS - 1))
    return rates / rates.sum()


def measure(rates: Floats, load: int, updates: int, *, weighted: bool) -> Row:
    """Return each policy's staleness over the limit, and the limit in updates."""
    weights = np.where(np.arange(len(rates)) % 5 == 0, HEAVY, 1.0) if weighted else np.ones(len(rates))
    solvable = len(rates) <= 3 and count_states(len(rates), load) <= MAX_STATES
    limit = (find_optimum if solvable else lower_bound)(rates, load, weights)
    trace = draw_arrivals(rates, 1.0, max(updates, ROUNDS_OF_KEYS * load * len(rates)), seed=1)
    found: Row = {"limit": limit, "solved": solvable}
    for name in NAMES:
        scheduler = (
            RandomScheduler(seed=2) if name == RANDOM else new_scheduler(Policy(name), weighted=weighted)
        )
        found[name] = simulate_keys(scheduler, trace, load * UNIT_US, weights) / limit
    return found


def table(title: str, cases: dict[str, Callable[[], Row]]) -> list[Row]:
    """Measure and print cases."""
    print(f"\n{title}\n{'':>12}{'limit':>12}" + "".join(f"{name:>13}" for name in NAMES), flush=True)
    rows = []
    for label, case in cases.items():
        row = case()
        limit = f"{row['limit']:.2f}{'' if row['solved'] else ' *'}"
        print(f"{label:>12}{limit:>12}" + "".join(f"{row[name]:13.3f}" for name in NAMES), flush=True)
        rows.append(row)
    return rows


def choosing(waiting: int, limit: int) -> float:
    """Return the nanoseconds of processor time that one choice takes for each waiting key."""
    generator = np.random.default_rng(waiting)
    scheduler = FreshestScheduler()
    scheduler.reserve(waiting)
    ids, shares = generator.permutation(waiting), np.full(waiting, ONE)
    arrived, interval = generator.integers(0, 10**6, waiting), generator.exponential(10**6, waiting)
    best = float("inf")
    waits = np.zeros(waiting, np.bool_)
    for _ in range(ROUNDS):
        scheduler.arrive(ids, waits[ids], interval[ids], 1.0, 0, shares, arrived[ids])
        waits[:] = True
        begin = time.process_time()
        chosen = scheduler.pop(limit, now_us=2 * 10**6)
        best = min(best, time.process_time() - begin)
        waits[chosen] = False
    return best / waiting * 1e9


def plot(path: Path, found: dict[float, list[Row]]) -> None:
    """Draw staleness over the limit by load, a panel for each skew."""
    plt = pyplot()
    figure, axes = plt.subplots(1, len(found), figsize=(12, 3.4), sharey=True)
    for axis, (skew, rows) in zip(axes, found.items(), strict=True):
        for name in NAMES:
            axis.plot(LOADS, [row[name] for row in rows], marker="o", label=name)
        axis.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
        axis.set(xscale="log", yscale="log", xlabel="load", title=f"Zipf {skew:g}", ylim=(0.9, 12))
        axis.set_xticks(LOADS, [str(load) for load in LOADS])
        axis.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
        axis.minorticks_off()
        axis.grid(visible=True, alpha=0.3)
    axes[0].set_ylabel("staleness / lower bound")
    axes[-1].legend(fontsize="small")
    figure.tight_layout()
    save(figure, path)


def case(rates: Floats, load: int, updates: int, *, weighted: bool) -> Callable[[], Row]:
    """Return a call of `measure`."""
    return lambda: measure(rates, load, updates, weighted=weighted)


def compare_zipf(keys: int, loads: tuple[int, ...], updates: int) -> dict[float, list[Row]]:
    """Print tables by skew and weight; return those without weights."""
    found = {}
    for weighted in (False, True):
        for skew in SKEWS:
            rates = zipf_weights(keys, skew)
            cases = {f"load {load}": case(rates, load, updates, weighted=weighted) for load in loads}
            rows = table(f"{keys} keys, Zipf {skew:g}{', weighted' if weighted else ''}", cases)
            if not weighted:
                found[skew] = rows
    return found


def compare_market(updates: int) -> None:
    """Print tables of the market day."""
    for weighted in (False, True):
        cases = {
            f"load {load}": case(market_rates(), load, updates, weighted=weighted) for load in (2, 5, 30)
        }
        table(f"market day{', weighted' if weighted else ''}", cases)


def compare_bounds(updates: int) -> None:
    """Print how far the lower bound is below the optimum where both are known, with much skew."""
    print(f"\nZipf {SKEWS[-1]:g}\n{'keys':>6}{'load':>6}{'bound':>9}{'optimum':>9}{'optimum over bound':>20}"
          f"{'freshest over optimum':>23}")  # fmt: skip
    for load in LOADS[:2]:
        for keys, oldest in OLDEST.items():
            rates = zipf_weights(keys, SKEWS[-1])
            bound, optimum = lower_bound(rates, load), find_optimum(rates, load, oldest=oldest)
            trace = draw_arrivals(rates, 1.0, updates, seed=1)
            scheduler = new_scheduler(Policy.FRESHEST, weighted=False)
            found = simulate_keys(scheduler, trace, load * UNIT_US, np.ones(keys)) / optimum
            print(
                f"{keys:>6}{load:>6}{bound:9.3f}{optimum:9.3f}{optimum / bound:20.3f}{found:23.3f}",
                flush=True,
            )


def measure_choices() -> None:
    """Print what a choice costs."""
    print(f"\n{'waiting keys':>14}{'chosen':>10}{'ns a key':>10}")
    for waiting in (1_000, 10_000, 100_000, 1_000_000):
        for limit in (1, waiting // 10, waiting // 2):
            print(f"{waiting:>14}{limit:>10}{choosing(waiting, limit):10.1f}", flush=True)


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=6_000, help="length of a run")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    print(machine())
    if arguments.only != ["kernels"]:
        print("staleness of each policy over the limit: the optimum or (*) a lower bound")
    if "few" in arguments.only:
        compare_zipf(3, LOADS[:3], 2 * arguments.updates)
    if "many" in arguments.only:
        found = compare_zipf(100, LOADS, arguments.updates)
        if arguments.plot is not None:
            plot(arguments.plot, found)
    if "market" in arguments.only:
        compare_market(arguments.updates)
    if "bounds" in arguments.only:
        compare_bounds(10 * arguments.updates)
    if "kernels" in arguments.only:
        measure_choices()


if __name__ == "__main__":
    main()
