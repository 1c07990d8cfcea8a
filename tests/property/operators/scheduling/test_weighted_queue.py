"""Queues with weights equal a sorted list, are fair, and with equal weights equal the paper's queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.weighted_scheduler import WeightedScheduler
from penstock.operators.scheduling.weights import KeyWeights, shares_of
from penstock.operators.simulation import UNIT_US, draw_arrivals, simulate, update_stream
from penstock.operators.simulation.traces import Trace
from tests.long_tests import long_but
from tests.oracles.naive_weighted import NaiveWeightedQueue, most_services
from tests.samples.streams import (
    POLICIES,
    STREAM,
    WEIGHTED_STREAM,
    assert_invariants,
    assert_same_state,
    enqueue,
    order_of,
    queue_content,
    served_of,
    through_bytes,
    updates,
    weight_of,
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), updates(keys=9)),
        st.tuples(st.just("dequeue"), st.integers(0, 8)),
        st.tuples(st.sampled_from(["account", "reload", "stored"]), st.none()),
        st.tuples(st.just("wait"), st.sampled_from([1, 7, 100, 1000])),
    ),
    max_size=25,
)
COSTS = st.sampled_from([None, 0.5, 20.0, 300.0])
BY_KEY = {0: 100.0, 1: 0.01, 2: 9, 3: 2.0}


def _copy(queue: UpdateQueue, units: list[Any], cost_us: float | None) -> UpdateQueue:
    copy = UpdateQueue(queue.stream, queue.policy, cost_us=cost_us, page_rows=3, weights=queue.weights)
    copy.restore([through_bytes(unit) for unit in units])
    return copy


@given(POLICIES, STEPS, st.booleans(), COSTS)
def test_every_policy_serves_by_weights_in_the_order_of_a_sorted_list_also_across_reloads(
    policy: Policy, steps: list[tuple[str, Any]], by_key: bool, cost_us: float | None
) -> None:
    if by_key:
        weights = KeyWeights(STREAM, BY_KEY)
        queue = UpdateQueue(STREAM, policy, cost_us=cost_us, page_rows=1, weights=weights)
        model = NaiveWeightedQueue(policy, cost_us, weight_of=lambda u: BY_KEY.get(u.key, 1.0))
    else:
        queue = UpdateQueue(WEIGHTED_STREAM, policy, cost_us=cost_us, page_rows=1)
        model = NaiveWeightedQueue(policy, cost_us, weight_of=weight_of)
    now_us = 1_000_000
    stored: list[Any] = []
    for step, value in steps:
        if step == "enqueue":
            assert enqueue(queue, value, now_us) == model.enqueue(value, now_us)
        elif step == "dequeue":
            assert served_of(queue, value, now_us) == model.dequeue(value, now_us)
        elif step == "account":
            queue.account_staleness(now_us)
        elif step == "stored":
            stored.append(queue.delta())
        elif step == "reload":
            stored.append(queue.delta())
            copy = _copy(queue, stored, cost_us)
            assert_same_state(copy, queue)
            assert_same_state(_copy(queue, [queue_content(queue)], cost_us), queue)
            queue = copy
        else:
            now_us += value
        assert len(queue) == len(model.order)
        assert_invariants(queue)
    assert order_of(queue) == model.order
    assert served_of(queue, 100, now_us) == model.dequeue(100, now_us)


@given(POLICIES, STEPS, st.floats(1e-15, 1e15), COSTS)
def test_equal_weights_give_exactly_the_order_of_the_paper(
    policy: Policy, steps: list[tuple[str, Any]], weight: float, cost_us: float | None
) -> None:
    weights = KeyWeights(STREAM, dict.fromkeys(range(9), weight))
    plain = UpdateQueue(STREAM, policy, cost_us=cost_us)
    weighted = UpdateQueue(STREAM, policy, cost_us=cost_us, weights=weights)
    in_service = []
    now_us = 1_000
    for step, value in steps:
        if step == "enqueue":
            assert enqueue(weighted, value, now_us) == enqueue(plain, value, now_us)
        elif step == "dequeue":
            ours, theirs = weighted.dequeue(value, now_us), plain.dequeue(value, now_us)
            assert ours.ids.tolist() == theirs.ids.tolist()
            assert ours.rows.equals(theirs.rows)
            in_service.append((ours, theirs))
        elif step == "account":
            # Until then, results are under way: they count in n and in S.
            for ours, theirs in in_service:
                weighted.deliver(ours, now_us)
                plain.deliver(theirs, now_us)
            in_service = []
        elif step == "reload":
            in_service = []
            plain, weighted = (_copy(one, [queue_content(one)], cost_us) for one in (plain, weighted))
        else:
            now_us += value or 0
    assert order_of(weighted) == order_of(plain)


@given(
    st.lists(st.sampled_from([0.01, 0.5, 1.0, 2.0, 9.0, 400.0]), min_size=2, max_size=6),
    st.integers(0, 5),
    st.integers(0, 8),
    st.data(),
)
def test_no_key_starves_in_place_whatever_its_weight(
    weights: list[float], one: int, before: int, data: st.DataObject
) -> None:
    keys = range(len(weights))
    key = one % len(weights)
    others = np.array([other for other in keys if other != key])
    shares = shares_of(np.array(weights))
    queue = WeightedScheduler(Policy.IN_PLACE)
    queue.reserve(len(weights))
    waits = np.zeros(len(weights), np.bool_)

    def arrive(ids: Any) -> None:
        queue.arrive(ids, waits[ids], np.zeros(len(ids)), 1.0, shares=shares[ids])
        waits[ids] = True

    for _ in range(before):
        arrive(others)
        waits[queue.pop(1)] = False
    arrive(np.array([key]))
    services = 0
    while True:
        # The others come again at once, or some of them do: as often as they like.
        arrive(others[data.draw(st.lists(st.booleans(), min_size=len(others), max_size=len(others)))])
        served = int(queue.pop(1)[0])
        waits[served] = False
        if served == key:
            break
        services += 1
    assert services <= most_services(keys, weights, key)


@given(
    st.lists(st.sampled_from([0.1, 1.0, 2.0, 50.0]), min_size=6, max_size=6),
    st.lists(
        st.tuples(st.lists(st.integers(0, 5), max_size=6), st.sets(st.integers(0, 5)), st.integers(0, 4)),
        max_size=12,
    ),
)
def test_keys_that_are_held_are_passed_by_and_keep_their_places(
    weights: list[float], steps: list[tuple[list[int], set[int], int]]
) -> None:
    shares = shares_of(np.array(weights))
    queue = WeightedScheduler(Policy.IN_PLACE)
    queue.reserve(6)
    waiting: dict[int, tuple[float, int]] = {}
    virtual, came = 0.0, 0
    for arriving, held, limit in steps:
        ids = np.array(list(dict.fromkeys(arriving)), np.int64)
        resident = np.array([k in waiting for k in ids.tolist()], np.bool_)
        queue.arrive(ids, resident, np.zeros(len(ids)), 1.0, shares=shares[ids])
        for k in ids[~resident].tolist():
            came += 1
            waiting[k] = (virtual + 2**20 / shares[k], came)
        expected: list[int] = []
        while len(expected) < limit and waiting.keys() - held:
            k = min(waiting.keys() - held, key=lambda one: waiting[one])
            everybody = int(sum(shares[one] for one in waiting))
            virtual = max(virtual + 2**20 / everybody, waiting.pop(k)[0])
            expected.append(k)
        virtual = virtual if waiting else 0.0
        cells = np.zeros((6, 2), np.int64)
        cells[list(held), 1] = 1
        assert queue.pop(limit, cells[:, 1]).tolist() == expected
        assert len(queue) == len(waiting)
    left = sorted(waiting, key=lambda one: waiting[one])
    assert queue.pop(9).tolist() == left


@pytest.mark.parametrize("weight", [1.0, 4.0, 25.0, 100.0])
def test_keys_that_always_wait_are_served_about_as_often_as_the_roots_of_their_weights(weight: float) -> None:
    shares = shares_of(np.array([weight, 1.0, 1.0, 1.0]))
    queue = WeightedScheduler(Policy.IN_PLACE)
    queue.reserve(4)
    queue.arrive(np.arange(4), np.zeros(4, np.bool_), np.zeros(4), 1.0, shares=shares)
    count = np.zeros(4, np.int64)
    for _ in range(4_000):
        ids = queue.pop(1)
        count[ids] += 1
        queue.arrive(ids, np.zeros(1, np.bool_), np.zeros(1), 1.0, shares=shares[ids])
    assert count[0] / count[1:] == pytest.approx(np.full(3, weight**0.5), rel=0.2)


class _Measured(UpdateQueue):
    """An update queue that adds up the queue staleness of each key."""

    def __init__(self, policy: Policy, weights: Sequence[float], cost_us: int) -> None:
        stream = update_stream()
        by_key = KeyWeights(stream, dict(enumerate(weights)))
        super().__init__(stream, policy, cost_us=cost_us, weights=by_key)
        self.since: dict[int, int] = {}
        self.area = np.zeros(len(weights))

    def enqueue(self, arrivals: Any, now_us: int) -> Any:
        for key in arrivals.rows.column("key").to_pylist():
            self.since.setdefault(key, now_us)
        return super().enqueue(arrivals, now_us)

    def dequeue(self, limit: int, now_us: int) -> Any:
        served = super().dequeue(limit, now_us)
        for key in served.rows.column("key").to_pylist():
            self.area[key] += (now_us - self.since.pop(key)) ** 2 / 2
        return served


def _weighted_staleness(
    policy: Policy, scheduled: Sequence[float], true: Sequence[float], trace: Trace, load: int
) -> float:
    """Return the mean staleness in updates, weighted by `true`, where `scheduled` are the queue's weights."""
    queue = _Measured(policy, scheduled, load * UNIT_US)
    simulate(queue, queue.stream, trace, load * UNIT_US)
    return float(queue.area @ np.array(true) / np.sum(true) / trace.end_us / UNIT_US)


@pytest.mark.parametrize("policy", long_but(Policy, Policy.FRESHEST))
@pytest.mark.parametrize("slow", long_but([0, 4], 4))
def test_weighted_staleness_falls_where_weights_are_skewed(policy: Policy, slow: int) -> None:
    """Ten keys at load 5, one of weight 10; all update equally often, or some ten times less often."""
    weights, equal = [10.0] + [1.0] * 9, [1.0] * 10
    trace = draw_arrivals(np.array([1.0] * (10 - slow) + [0.1] * slow), 1.0, 4_000, seed=7)
    found, unweighted = (
        _weighted_staleness(policy, scheduled, weights, trace, 5) for scheduled in (weights, equal)
    )
    assert found < 0.9 * unweighted


def test_shares_by_roots_of_weights_beat_shares_by_weights_under_overload() -> None:
    weights = [10.0] + [1.0] * 9
    trace = draw_arrivals(np.ones(10), 1.0, 6_000, seed=8)
    by_root, by_weight, equal = (
        _weighted_staleness(Policy.IN_PLACE, [w**power for w in weights], weights, trace, 30)
        for power in (1, 2, 0)
    )
    assert by_root < 0.95 * by_weight
    assert by_root < 0.8 * equal
