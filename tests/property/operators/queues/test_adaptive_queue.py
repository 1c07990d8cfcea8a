"""Append and adaptive queues equal lists and dictionaries, also across restarts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.queues.adaptive_queue import AdaptiveQueue, Semantics
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from tests.oracles.naive import Update
from tests.samples.streams import (
    POLICIES,
    STREAM,
    assert_invariants,
    enqueue,
    queue_content,
    served_of,
    through_bytes,
    updates,
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), updates(keys=5)),
        st.tuples(st.just("dequeue"), st.integers(0, 8)),
        st.tuples(st.sampled_from(["account", "reload", "stored"]), st.none()),
    ),
    max_size=25,
)


def _restored(queue: AdaptiveQueue, units: list[Any]) -> AdaptiveQueue:
    copy = AdaptiveQueue(queue.stream, queue.policy, queue.semantics, cost_us=5.0)
    copy.restore([through_bytes(unit) for unit in units])
    copy.capacity = queue.capacity
    return copy


def _assert_same(left: AdaptiveQueue, right: AdaptiveQueue) -> None:
    a, b = queue_content(left), queue_content(right)
    assert a.meta == b.meta
    for name in ("cells", "rows", "appended"):
        assert a.blocks[name].equals(b.blocks[name]), name


def _numbered(batch: list[Update], value: int) -> list[Update]:
    return [Update(update.key, update.time, value + i) for i, update in enumerate(batch)]


@given(STEPS)
def test_an_append_queue_serves_every_tuple_once_in_the_order_of_arrival(
    steps: list[tuple[str, Any]],
) -> None:
    queue = AdaptiveQueue(STREAM, Policy.IN_PLACE, Semantics.APPEND)
    queue.capacity = 1.0
    model: list[tuple[Update, int]] = []
    units: list[Any] = []
    value = 0
    for now_us, (step, given_) in enumerate(steps):
        if step == "enqueue":
            batch = _numbered(given_, value)
            value += len(batch)
            assert enqueue(queue, batch, now_us) == (len(batch), 0, 0)
            model += [(update, now_us) for update in batch]
        elif step == "dequeue":
            expected = [(update, now_us - arrived) for update, arrived in model[:given_]]
            assert served_of(queue, given_, now_us) == expected
            del model[:given_]
        elif step == "account":
            queue.account_staleness(now_us)
        else:
            units.append(queue.delta())
            if step == "reload":
                copy = _restored(queue, units)
                _assert_same(copy, queue)
                _assert_same(_restored(queue, [queue_content(queue)]), queue)
                queue = copy
        assert len(queue) == queue.servable == len(model)
    assert [update for update, _ in served_of(queue, 1000, 100)] == [update for update, _ in model]
    assert queue.appending
    assert not queue.switches


@given(POLICIES, STEPS, st.sampled_from([0.5, 1.0, 3.0, 10.0, None]))
def test_an_adaptive_queue_serves_no_older_tuple_after_a_newer_one_and_always_the_newest(
    policy: Policy, steps: list[tuple[str, Any]], capacity: float | None
) -> None:
    queue = AdaptiveQueue(STREAM, policy, Semantics.ADAPTIVE, cost_us=5.0)
    queue.capacity = capacity
    follower = _restored(queue, [next(queue.snapshot())])
    newest: dict[int, Update] = {}
    served: dict[int, list[Update]] = {}
    units: list[Any] = []
    value = waiting = 0
    steps = [*steps, *[("dequeue", 1000)] * 2]
    for now_us, (step, given_) in enumerate(steps):
        if step == "enqueue":
            batch = _numbered(given_, value)
            value += len(batch)
            load, was = len(queue) + len(batch), queue.appending
            rows_in, conflated, late = enqueue(queue, batch, now_us)
            assert rows_in == conflated + late + len(queue) - waiting
            for update in batch:
                if update.key not in newest or update.time >= newest[update.key].time:
                    newest[update.key] = update
            if batch and capacity is not None:
                high, low = load > 4 * capacity, load <= capacity
                assert queue.appending == (not high if was else low)
        elif step == "dequeue":
            taken = served_of(queue, given_, now_us)
            assert len(taken) <= given_
            for update, staleness_us in taken:
                assert staleness_us >= 0
                served.setdefault(update.key, []).append(update)
        elif step == "account":
            queue.account_staleness(now_us)
        else:
            units.append(queue.delta())
            follower.restore([through_bytes(units[-1])])
            _assert_same(follower, queue)
            _assert_same(_restored(queue, units), queue)
            if step == "reload":
                queue = _restored(queue, [queue_content(queue)])
        waiting = len(queue)
    assert not waiting
    if capacity is None:
        assert not queue.switches
    assert served.keys() == newest.keys()
    for key, sequence in served.items():
        assert [u.time for u in sequence] == sorted(u.time for u in sequence)
        assert len({u.value for u in sequence}) == len(sequence)
        assert sequence[-1] == newest[key]


def test_a_queue_switches_under_overload_and_back_with_hysteresis() -> None:
    queue = AdaptiveQueue(STREAM, Policy.IN_PLACE, Semantics.ADAPTIVE)
    queue.capacity = 2.0
    time = 0
    found = []
    for arriving in (2, 2, 8, 3, 3, 3, 1, 1, 2, 5, 5):
        batch = [Update(i % 2, time + i, i) for i in range(arriving)]
        time += arriving
        enqueue(queue, batch, time)
        served_of(queue, 2, time)
        found.append((queue.appending, queue.switches))
    assert found == [
        *[(True, 0)] * 3,  # eight tuples are four triggers' work, not more
        *[(False, 1)] * 3,
        *[(True, 2)] * 4,
        (True, 2),
    ]


@given(st.lists(st.tuples(updates(keys=4), st.integers(0, 5)), max_size=8))
def test_staleness_of_an_adaptive_queue_that_serves_all_is_that_of_an_update_queue(
    batches: list[tuple[list[Update], int]],
) -> None:
    """If every trigger serves all, the two queues differ only in the number of served tuples."""
    adaptive = AdaptiveQueue(STREAM, Policy.IN_PLACE, Semantics.ADAPTIVE)
    plain = UpdateQueue(STREAM, Policy.IN_PLACE)
    now_us = 0
    for batch, pause in batches:
        for queue in (adaptive, plain):
            enqueue(queue, batch, now_us)
            queue.account_staleness(now_us + pause)
            served_of(queue, 1000, now_us + pause + 1)
        ours, theirs = (queue.account_staleness(now_us + pause + 2) for queue in (adaptive, plain))
        for left, right in zip(ours, theirs, strict=True):
            assert left.area == pytest.approx(right.area)
            assert left.longest_us == right.longest_us
        now_us += pause + 2
    assert_invariants(plain)
