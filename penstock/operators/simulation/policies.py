"""Compare the staleness of the policies at a given overload."""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.operators.queues.adaptive_queue import AdaptiveQueue, Semantics
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.simulation.optimum import MAX_STATES, count_states, find_optimum, lower_bound
from penstock.operators.simulation.random_order import RandomQueue
from penstock.operators.simulation.server import simulate, update_stream
from penstock.operators.simulation.traces import UNIT_US, Floats, draw_arrivals, zipf_weights

__all__ = ["APPEND", "LOWER_BOUND", "OPTIMUM", "RANDOM", "compare_policies"]

APPEND = "append"
"""Name of the queue that serves every tuple in order of arrival."""

RANDOM = "random"
"""Name of the update queue that serves its keys in random order."""

OPTIMUM = "optimum"
"""Name of the row with the least staleness of any order (`find_optimum`), for few keys."""

MAX_LOAD = 1_000_000
"""The greatest load factor; the simulated time of a long run stays within 64 bits."""

MAX_SKEW = 10
"""The greatest exponent of keys; far above it, the frequencies of rare keys round to 0."""

LOWER_BOUND = "lower bound"
"""Name of the row with a lower bound for all orders (`lower_bound`)."""


def compare_policies(load: float, keys: int, skew: float, updates: int, *, seed: int = 1) -> pa.Table:
    """Simulate an overload with an append queue and with each policy of an update queue.

    One update with a random key arrives per unit of time. Serving a tuple takes L units, where L is the load
    factor, so L times as many tuples arrive as the server can serve.

    Parameters
    ----------
    load : float
        The load factor, at most `MAX_LOAD`.
    keys : int
        Number of keys.
    skew : float
        The exponent of the Zipf distribution of keys, at most `MAX_SKEW`; 0 makes all keys equally frequent.
    updates : int
        The length of the run in updates.

    Returns
    -------
    pyarrow.Table
        One row per queue with ``queue``, ``results``, ``queue_staleness`` and ``application_staleness``.
        Staleness is averaged over time and keys, in numbers of updates of the stream. The last rows are
        the optimum, which is computed only for few keys, and a lower bound. They have only queue staleness,
        for an infinite run.

    Raises
    ------
    InvalidUsageError
        If an argument is out of range.
    """
    options = {"load": load, "keys": keys, "skew": skew, "updates": updates}
    fit = {
        "load": 0 < load <= MAX_LOAD,
        "keys": keys >= 1,
        "skew": 0 <= skew <= MAX_SKEW,
        "updates": updates >= 1,
    }
    if wrong := {name: value for name, value in options.items() if not fit[name]}:
        raise InvalidUsageError(
            "this overload cannot be simulated",
            hint=f"load, keys and updates must be positive, load at most {MAX_LOAD}, and skew from 0 to "
            f"{MAX_SKEW}",
            **wrong,
        )
    stream = update_stream()
    rates = zipf_weights(keys, skew)
    trace = draw_arrivals(rates, 1.0, updates, seed=seed)
    cost_us = max(round(load * UNIT_US), 1)
    queues = {
        APPEND: AdaptiveQueue(stream, Policy.FIFO, Semantics.APPEND),
        **{str(policy): UpdateQueue(stream, policy, cost_us=cost_us) for policy in Policy},
        RANDOM: RandomQueue(stream, seed=seed),
    }
    rows = []
    for name, queue in queues.items():
        outcome = simulate(queue, stream, trace, cost_us)
        rows.append({
            "queue": name,
            "results": outcome.delivered,
            "queue_staleness": outcome.queue_updates,
            "application_staleness": outcome.application_updates,
        })  # fmt: skip
    for name, staleness in _find_limits(rates, cost_us / UNIT_US).items():
        nothing = {"results": None, "application_staleness": None}
        rows.append({"queue": name, "queue_staleness": staleness, **nothing})
    return pa.Table.from_pylist(rows)


def _find_limits(rates: Floats, cost: float) -> dict[str, float]:
    limits = {}
    if cost == round(cost) and count_states(len(rates), round(cost)) <= MAX_STATES:
        limits[OPTIMUM] = find_optimum(rates, round(cost))
    return {**limits, LOWER_BOUND: lower_bound(rates, cost)}
