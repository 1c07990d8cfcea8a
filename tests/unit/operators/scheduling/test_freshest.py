"""The index policy: its kernels, its state, and its staleness against the optimum."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from benchmarks.freshness import index_rules
from benchmarks.freshness.simulated_keys import simulate_keys
from penstock.checkpointing.fields import Fields
from penstock.errors import InternalError
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.schedulers import new_scheduler
from penstock.operators.scheduling.schedulers.freshest_scheduler import FreshestScheduler
from penstock.operators.scheduling.weights import ONE
from penstock.operators.simulation import UNIT_US, draw_arrivals, simulate, update_stream, zipf_weights
from penstock.operators.simulation.optimum import find_optimum, lower_bound
from tests.oracles.naive import Update
from tests.samples.streams import STREAM, enqueue, queue_content, served_of, through_bytes

KEYS = 12


def naive_choice(line: list[int], limit: int, held: set[int], indexes: dict[int, float]) -> list[int]:
    """Return the keys with the greatest indexes, of equal ones the first, in the order of the line."""
    free = [key for key in line if key not in held]
    best = sorted(free, key=lambda key: (-indexes[key], free.index(key)))[:limit]
    return [key for key in line if key in best]


@pytest.mark.parametrize("seed", range(40))
def test_the_keys_with_the_greatest_indexes_are_served(seed: int) -> None:
    draw = Random(seed)
    scheduler, line, now = FreshestScheduler(), list[int](), 1_000
    scheduler.reserve(KEYS)
    arrived, interval, share = dict[int, int](), dict[int, float](), dict[int, int]()
    for _ in range(30):
        ids = draw.sample(range(KEYS), draw.randint(0, KEYS))
        # Few distinct values, so that indexes are often equal.
        for key in ids:
            interval[key], share[key] = 10.0 * draw.randint(0, 2), ONE * draw.randint(1, 2)
            if key not in line:
                arrived[key] = now - 10 * draw.randint(0, 1)
        scheduler.arrive(
            np.array(ids, np.int64),
            np.array([key in line for key in ids], np.bool_),
            np.array([interval[key] for key in ids]),
            1.0,
            shares=np.array([share[key] for key in ids], np.int64),
            arrived_us=np.array([arrived[key] for key in ids], np.int64),
        )
        line += [key for key in ids if key not in line]
        now += 10 * draw.randint(0, 2)
        held = {key for key in range(KEYS) if draw.random() < 0.2}
        limit = draw.randint(0, 5)
        indexes = {
            key: (share[key] / ONE) ** 2 * (now - arrived[key]) * ((now - arrived[key]) / 2 + interval[key])
            for key in line
        }
        expected = naive_choice(line, limit, held, indexes)
        marks = np.array([key in held for key in range(KEYS)], np.int64)
        assert scheduler.pop(limit, marks, now_us=now).tolist() == expected
        line = [key for key in line if key not in expected]
        assert len(scheduler) == len(line)


def test_the_stalest_key_goes_first_unless_another_updates_less_often_or_weighs_more() -> None:
    def first(intervals: list[float], shares: list[int]) -> int:
        scheduler = FreshestScheduler()
        scheduler.reserve(2)
        scheduler.arrive(
            np.arange(2), np.zeros(2, np.bool_), np.array(intervals), 1.0,
            shares=np.array(shares), arrived_us=np.array([0, 10]),
        )  # fmt: skip
        return int(scheduler.pop(1, now_us=100)[0])

    assert first([50.0, 50.0], [ONE, ONE]) == 0
    assert first([50.0, 80.0], [ONE, ONE]) == 1
    assert first([50.0, 50.0], [ONE, 2 * ONE]) == 1


def test_a_scheduler_without_arrival_times_says_so() -> None:
    scheduler = FreshestScheduler()
    scheduler.reserve(1)
    with pytest.raises(InternalError, match="no arrival times"):
        scheduler.arrive(np.zeros(1, np.int64), np.zeros(1, np.bool_), np.zeros(1), 1.0)


def test_damaged_state_still_serves_every_key() -> None:
    scheduler, ids = FreshestScheduler(), np.arange(4)
    scheduler.reserve(4)
    scheduler.put_back(ids, {
        "rank": np.array([3, 3, -5, 1 << 62]),
        "arrived": np.array([0, -(1 << 63), 1 << 62, 5]),
        "interval": np.array([np.nan, np.inf, -np.inf, -1.0]),
        "share": np.array([0, -1, 1 << 62, ONE]),
    })  # fmt: skip
    scheduler.rebuild(ids, Fields({}, "a unit"))
    served = [int(scheduler.pop(1, now_us=100)[0]) for _ in ids]
    assert sorted(served) == ids.tolist()


@pytest.mark.parametrize("seed", range(10))
def test_a_restored_queue_serves_the_same_keys(seed: int) -> None:
    draw, now = Random(seed), 1_000
    queue = UpdateQueue(STREAM, Policy.FRESHEST)
    for _ in range(20):
        enqueue(queue, [Update(draw.randint(0, 9), now, now) for _ in range(draw.randint(0, 6))], now)
        now += draw.randint(1, 50)
        copy = UpdateQueue(STREAM, Policy.FRESHEST)
        copy.restore([through_bytes(queue_content(queue))])
        assert served_of(copy, 3, now) == served_of(queue, 3, now)


def every_order(oldest: int) -> Iterator[dict[tuple[int, ...], int]]:
    """Return all rules that choose a key by the staleness of two waiting keys."""
    states = list(itertools.product(range(1, oldest + 1), repeat=2))
    for choice in itertools.product((0, 1), repeat=len(states)):
        yield dict(zip(states, choice, strict=True))


def long_run_cost(
    rule: dict[tuple[int, ...], int], rates: list[float], cost: int, weights: list[float], oldest: int
) -> float:
    """Return the mean staleness with a rule, from the chain of states at the starts of services."""
    states = list(itertools.product(range(oldest + 1), repeat=2))
    moves, costs = np.zeros((len(states), len(states))), np.zeros(len(states))
    for number, state in enumerate(states):
        idle = state == (0, 0)
        begin = list(state)
        if not idle:
            begin[rule[state] if all(state) else state.index(max(state))] = 0
        # An idle server serves the first update when it comes; the others come during the service.
        for coming in itertools.product((0, 1), repeat=cost - idle):
            ages, chance, area = begin.copy(), 1.0, 0.0
            for key in coming:
                chance *= rates[key]
                for each in (0, 1):
                    if ages[each] or each == key:
                        area += weights[each] * (ages[each] + 0.5)
                        ages[each] = min(ages[each] + 1, oldest)
            moves[number, states.index((ages[0], ages[1]))] += chance
            costs[number] += chance * area
    equations = np.vstack([moves.T - np.eye(len(states)), np.ones(len(states))])
    share = np.linalg.lstsq(equations, np.append(np.zeros(len(states)), 1.0), rcond=None)[0]
    return float(share @ costs) / cost / sum(weights)


@pytest.mark.parametrize(("rates", "weights"), [([0.7, 0.3], [1.0, 2.0]), ([0.5, 0.5], [1.0, 1.0])])
def test_dynamic_programming_finds_the_best_of_all_orders(rates: list[float], weights: list[float]) -> None:
    best = min(long_run_cost(rule, rates, 2, weights, 3) for rule in every_order(3))
    found = find_optimum(np.array(rates), 2, np.array(weights), oldest=3)
    assert found == pytest.approx(best, rel=1e-3)


CASES = [(2, 3, 0.0), (2, 3, 1.5), (3, 2, 0.9), (3, 3, 1.5), (2, 30, 1.0)]


@pytest.mark.parametrize(("keys", "load", "skew"), CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_freshest_is_close_to_the_optimum_and_beats_the_others(
    keys: int, load: int, skew: float, weighted: bool
) -> None:
    rates, weights = zipf_weights(keys, skew), np.array([1.0, 8.0 if weighted else 1.0, 1.0])[:keys]
    optimum, trace = find_optimum(rates, load, weights), draw_arrivals(rates, 1.0, 6_000, seed=5)
    assert lower_bound(rates, load, weights) <= 1.001 * optimum
    found = {
        policy: simulate_keys(new_scheduler(policy, weighted=weighted), trace, load * UNIT_US, weights)
        for policy in Policy
    }
    assert 0.95 * optimum < found[Policy.FRESHEST] < 1.1 * optimum
    assert found[Policy.FRESHEST] < 1.02 * min(found.values())


@pytest.mark.parametrize("load", [3, 10])
@pytest.mark.parametrize("skew", [0.0, 0.9])
def test_freshest_is_close_to_the_bound_for_many_keys(load: int, skew: float) -> None:
    rates, weights = zipf_weights(40, skew), np.ones(40)
    trace = draw_arrivals(rates, 1.0, 8_000, seed=6)
    scheduler = new_scheduler(Policy.FRESHEST, weighted=False)
    found = simulate_keys(scheduler, trace, load * UNIT_US, weights)
    assert 0.95 < found / lower_bound(rates, load, weights) < 1.1


def test_older_ages_do_not_change_the_optimum() -> None:
    rates, weights = zipf_weights(2, 1.0), np.array([1.0, 8.0])
    older = find_optimum(rates, 3, weights, oldest=80)
    assert find_optimum(rates, 3, weights) == pytest.approx(older, rel=1e-3)


@pytest.mark.parametrize("policy", Policy)
def test_keys_alone_are_as_stale_as_keys_with_tuples(policy: Policy) -> None:
    rates, stream = zipf_weights(5, 0.5), update_stream()
    trace = draw_arrivals(rates, 1.0, 800, seed=4)
    cost_us = 3 * UNIT_US
    outcome = simulate(UpdateQueue(stream, policy, cost_us=cost_us), stream, trace, cost_us)
    alone = simulate_keys(new_scheduler(policy, weighted=False), trace, cost_us, np.ones(5))
    # Without tuples, the first tenth of the run does not count.
    assert alone == pytest.approx(outcome.queue_updates, rel=0.1)


def test_the_benchmark_of_indexes_serves_like_the_scheduler() -> None:
    rates, load = zipf_weights(6, 1.5), 2
    trace = draw_arrivals(rates, 1.0, 8_000, seed=7)
    scheduler = new_scheduler(Policy.FRESHEST, weighted=False)
    expected = simulate_keys(scheduler, trace, load * UNIT_US, np.ones(6))
    a, b, c, e = index_rules.FRESHEST
    found = index_rules.mean_staleness(trace.keys, (1.0 / rates) ** e, load, a, b, c)
    assert found == pytest.approx(expected, rel=0.05)
    worst = index_rules.mean_staleness(trace.keys, -1.0 / rates, load, 0.0, 0.0, 0.0)
    assert worst > 1.2 * expected, "the most frequent keys first"


def test_the_benchmark_of_indexes_lists_the_best() -> None:
    lines = list(index_rules.report([2], 300))
    assert len(lines) == 4 + index_rules.BEST
