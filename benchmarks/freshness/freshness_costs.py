"""Staleness where the cost of a key differs: policies with one cost, and freshest with the cost of each key.

    python -m benchmarks.freshness.freshness_costs [--batches 600] [--out FILE]

A queue of 200 keys serves micro-batches with a budget of time under a simulated clock. Updates are of keys
drawn at random with a skew. Serving every sixth key takes 20 ms, and other keys 1 ms; each service varies by
a fifth. The queue measures only the time of groups of keys. Load is the work that arrives over the work that
can be done. Figures are application staleness in ms, averaged over time and keys.

``by key`` is ``cost="by key"``. ``told`` is freshest that is told the true costs, as weights 1 / cost.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import REPOSITORY, machine, print_and_save
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Budget, Query, serve
from penstock.operators.scheduling.weights import KeyWeights
from penstock.operators.simulation import zipf_weights
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import UpdateStream

__all__ = ["average_staleness_ms", "report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "freshness_costs.txt"
KEYS = 200
COSTS_US = np.where(np.arange(KEYS) % 6 == 0, 20_000.0, 1_000.0)
NOISE = 0.2
BUDGET_US = 200_000
FIXED_US = 20_000
"""The time between the budgets of two micro-batches."""
BY_KEY, TOLD = "by key", "told"
CONTENDERS = (*map(str, Policy), BY_KEY, TOLD)
SKEWS = (0.0, 0.9, 1.5)
LOADS = (2, 5, 10)


def average_staleness_ms(contender: str, skew: float, load: float, batches: int) -> float:
    """Return the average application staleness of a contender, after a third of the micro-batches."""
    schema = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("key", "time")])
    stream = UpdateStream(schema, ("key",), "time", costs_by_key=contender == BY_KEY)
    policy = Policy.FRESHEST if contender in (BY_KEY, TOLD) else Policy(contender)
    weights = KeyWeights(stream, dict(enumerate((1_000 / COSTS_US).tolist()))) if contender == TOLD else None
    queue = UpdateQueue(stream, policy, weights=weights)
    draws, shares = np.random.default_rng(1), np.random.default_rng(2).permutation(zipf_weights(KEYS, skew))
    arriving = round(load * BUDGET_US / float(shares @ COSTS_US))
    now_us, sent = 0.0, 0

    def clock() -> int:
        return int(now_us)

    def work(rows: pa.Table) -> pa.Table:
        nonlocal now_us
        costs = COSTS_US[rows.column("key").to_numpy()]
        now_us += float((costs * draws.uniform(1 - NOISE, 1 + NOISE, len(costs))).sum())
        return rows

    stale_us = key_time = 0.0
    for number in range(batches):
        now_us += FIXED_US
        keys = draws.choice(KEYS, arriving, p=shares)
        columns = [pa.array(keys), pa.array(np.arange(arriving) + sent)]
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        sent += arriving
        budget = Budget(duration_us=BUDGET_US)
        _, metrics = serve(
            queue, Arrivals.from_rows(stream, rows, 0),
            query=Query(work, schema, ("key",)), budget=budget, clock=clock,
        )  # fmt: skip
        if number >= batches // 3:
            part = metrics.application_staleness
            stale_us, key_time = stale_us + part.average_ms * part.key_time, key_time + part.key_time
    return stale_us / key_time


def report(batches: int) -> Iterator[str]:
    """Yield the lines of the report."""
    yield machine()
    yield f"{'':>18}" + "".join(f"{name:>13}" for name in CONTENDERS)
    for skew in SKEWS:
        for load in LOADS:
            found = [average_staleness_ms(name, skew, load, batches) for name in CONTENDERS]
            yield f"Zipf {skew:<4g} load {load:<4}" + "".join(f"{one:13.1f}" for one in found)


def main() -> None:
    """Print the report, and save it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=600)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    print_and_save(report(arguments.batches), arguments.out)


if __name__ == "__main__":
    main()
