"""The update queue equals a list and a dictionary."""

from __future__ import annotations

from functools import cache
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._clock import SimulatedClock
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Budget, Query, serve
from tests.oracles.naive import NaiveQueue, Update
from tests.samples.streams import (
    ARRIVAL_STREAM,
    POLICIES,
    STREAM,
    arrivals_of,
    assert_invariants,
    assert_same_state,
    enqueue,
    order_of,
    queue_content,
    rows_of,
    served_of,
    stream_for,
    through_bytes,
    updates,
    updates_of,
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


def _moved(batch: list[Update], now_us: int) -> list[Update]:
    """Give each update an arrival time shortly before or after now."""
    return [Update(u.key, u.time, u.value, now_us + u.value % 41 - 35) for u in batch]


def _copy(queue: UpdateQueue, units: list[Any], cost_us: float | None) -> UpdateQueue:
    copy = UpdateQueue(queue.stream, queue.policy, cost_us=cost_us, page_rows=3)
    copy.restore([through_bytes(unit) for unit in units])
    return copy


def _intervals(queue: UpdateQueue) -> dict[int, float]:
    """Return each key's mean time between updates."""
    cells = queue_content(queue).blocks["cells"]
    intervals = cells.column("__penstock_interval_us").to_pylist()
    return dict(zip(cells.column("key").to_pylist(), intervals, strict=True))


@given(POLICIES, STEPS, st.booleans(), st.sampled_from([None, 0.5, 20.0, 300.0]))
def test_every_policy_serves_in_the_order_of_a_list_also_across_reloads(
    policy: Policy, steps: list[tuple[str, Any]], arrival: bool, cost_us: float | None
) -> None:
    queue = UpdateQueue(stream_for(arrival=arrival), policy, cost_us=cost_us, page_rows=1)
    model = NaiveQueue(policy, cost_us)
    now_us = 1_000_000
    stored: list[Any] = []
    for step, value in steps:
        if step == "enqueue":
            batch = _moved(value, now_us) if arrival else value
            assert enqueue(queue, batch, now_us) == model.enqueue(batch, now_us)
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
            queue = copy
        else:
            now_us += value
        assert len(queue) == len(model.order)
        assert queue.keys == len(model.records)
        assert_invariants(queue)
    assert order_of(queue) == model.order
    if policy.uses_rates:
        assert _intervals(queue) == {key: pytest.approx(c.interval_us) for key, c in model.records.items()}
    assert served_of(queue, 100, now_us) == model.dequeue(100, now_us)


@given(POLICIES, st.lists(st.tuples(updates(), st.integers(0, 6)), max_size=8))
def test_a_key_gets_a_subsequence_of_its_updates_in_time_order_that_ends_with_its_newest(
    policy: Policy, batches: list[tuple[list[Update], int]]
) -> None:
    queue = UpdateQueue(STREAM, policy, cost_us=5.0)
    offered: dict[int, list[Update]] = {}
    emitted: dict[int, list[Update]] = {}
    value = 0
    for now_us, (batch, limit) in enumerate([*batches, ([], 100)]):
        distinct = []
        for update in batch:
            distinct.append(Update(update.key, update.time, value))
            value += 1
        for update in distinct:
            offered.setdefault(update.key, []).append(update)
        enqueue(queue, distinct, now_us)
        for update, _ in served_of(queue, limit, now_us):
            emitted.setdefault(update.key, []).append(update)
    assert emitted.keys() == offered.keys()
    for key, sequence in emitted.items():
        in_time_order = sorted(offered[key], key=lambda u: u.time)
        positions = [in_time_order.index(update) for update in sequence]
        assert positions == sorted(set(positions))
        assert sequence[-1] == in_time_order[-1]


def _arg_max_by_duckdb(rows: pa.Table) -> list[tuple[int, int]]:
    query = "select key, arg_max(value, (time, position)) from rows group by key order by key"
    connection = _duckdb().register("rows", rows)
    return [(int(key), int(value)) for key, value in connection.execute(query).fetchall()]


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


def _arg_max_by_polars(rows: pa.Table) -> list[tuple[int, int]]:
    frame = pl.DataFrame(rows.to_pydict()).sort("time", "position").group_by("key").last()
    return [(int(key), int(value)) for key, value in frame.sort("key").select("key", "value").iter_rows()]


@pytest.mark.parametrize("oracle", [_arg_max_by_duckdb, _arg_max_by_polars])
@given(
    policy=POLICIES,
    batches=st.lists(updates().filter(bool), min_size=1, max_size=4),
)
def test_without_a_budget_every_batch_gives_max_by(
    oracle: Any, policy: Policy, batches: list[list[Update]]
) -> None:
    queue = UpdateQueue(STREAM, policy)
    query = Query(None, STREAM.schema, STREAM.key)
    clock = SimulatedClock(10)
    newest: dict[int, int] = {}
    for number, batch in enumerate(batches):
        # Event time moves on with the batches, but may fall behind what was emitted.
        later = [Update(u.key, u.time + 3 * number, u.value) for u in batch]
        rows = pa.Table.from_batches([rows_of(STREAM, later)])
        rows = rows.append_column("position", pa.array(range(len(later))))
        times = {u.key: max(v.time for v in later if v.key == u.key) for u in later}
        fresh = {key for key, time in times.items() if time >= newest.get(key, -1)}
        newest |= {key: times[key] for key in fresh}
        out, _ = serve(queue, arrivals_of(STREAM, later), query=query, budget=Budget(), clock=clock)
        served = [update for part in out for update in updates_of(part)]
        expected = [(key, value) for key, value in oracle(rows) if key in fresh]
        assert sorted((u.key, u.value) for u in served) == expected
        clock.advance(5)


@given(
    POLICIES,
    st.lists(st.tuples(updates(), st.one_of(st.none(), st.integers(0, 6))), max_size=10),
    st.booleans(),
)
def test_every_tuple_is_accounted_for_in_every_batch(
    policy: Policy, batches: list[tuple[list[Update], int | None]], arrival: bool
) -> None:
    stream = stream_for(arrival=arrival)
    queue = UpdateQueue(stream, policy)
    query = Query(None, stream.schema, stream.key)
    clock = SimulatedClock(1000)
    waiting = 0
    for batch, limit in batches:
        moved = _moved(batch, clock()) if arrival else batch
        arrivals = arrivals_of(stream, moved) if moved else None
        out, metrics = serve(queue, arrivals, query=query, budget=Budget(limit), clock=clock)
        growth, waiting = metrics.waiting_keys - waiting, metrics.waiting_keys
        assert metrics.rows_in == len(batch)
        assert metrics.rows_in == metrics.conflated + metrics.late + metrics.emitted + growth
        assert metrics.emitted == metrics.rows_out == sum(part.num_rows for part in out)
        assert limit is None or metrics.emitted <= limit
        clock.advance(50)


@given(POLICIES, STEPS)
def test_catching_up_by_deltas_equals_loading_everything(
    policy: Policy, steps: list[tuple[str, Any]]
) -> None:
    queue = UpdateQueue(ARRIVAL_STREAM, policy, cost_us=20.0, page_rows=3)
    now_us = 1_000_000
    units = [next(queue.snapshot())]
    follower = _copy(queue, units, 20.0)
    for step, value in steps:
        now_us += 10
        if step == "enqueue":
            enqueue(queue, _moved(value, now_us), now_us)
        elif step == "dequeue":
            served_of(queue, value, now_us)
        elif step == "account":
            queue.account_staleness(now_us)
        else:
            units.append(queue.delta())
            follower.restore([through_bytes(units[-1])])
            assert_same_state(follower, queue)
            assert_same_state(_copy(queue, units, 20.0), queue)
            assert_same_state(_copy(queue, [queue_content(queue)], 20.0), queue)
