"""Serving keeps to the budget, makes progress, and lets no query lose or change the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock._clock import SimulatedClock
from penstock.errors import InvalidUsageError, UnavailableError
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import STALENESS_COLUMN, Budget, Query, serve
from tests.naive import Update
from tests.streams import ARRIVAL_STREAM, STREAM, arrivals_of, updates_of

SECOND = 1_000_000


def _updates(count: int, time: int = 1) -> list[Update]:
    return [Update(key, time, key) for key in range(count)]


class _Costly:
    """A query that takes `cost_us` of simulated time per tuple, and notes its chunks."""

    def __init__(self, clock: SimulatedClock, *costs_us: int) -> None:
        self.clock = clock
        self.costs_us = list(costs_us)
        self.chunks: list[int] = []

    def __call__(self, table: pa.Table) -> pa.Table:
        cost = self.costs_us.pop(0) if len(self.costs_us) > 1 else self.costs_us[0]
        self.clock.advance(cost * table.num_rows)
        self.chunks.append(table.num_rows)
        return table


def _queue(cost_us: float | None = None) -> UpdateQueue:
    return UpdateQueue(STREAM, Policy.IN_PLACE, cost_us=cost_us)


def _plain(apply: Any = None, schema: pa.Schema = STREAM.schema, **options: Any) -> Query:
    return Query(apply, schema, STREAM.key, **options)


def _run(
    queue: UpdateQueue,
    updates: list[Update],
    budget: Budget,
    query: Query,
    clock: SimulatedClock,
    **options: int,
) -> tuple[list[Update], Any]:
    arrivals = arrivals_of(queue.stream, updates) if updates else None
    batches, metrics = serve(queue, arrivals, query=query, budget=budget, clock=clock, **options)
    return [update for batch in batches for update in updates_of(batch)], metrics


def test_a_budget_of_rows_is_never_exceeded_and_what_waits_comes_next() -> None:
    queue, clock = _queue(), SimulatedClock()
    first, metrics = _run(queue, _updates(10), Budget(rows=4), _plain(), clock)
    assert [u.key for u in first] == [0, 1, 2, 3]
    assert (metrics.waiting_keys, metrics.budget_used_rows) == (6, 4)
    second, metrics = _run(queue, [], Budget(rows=4), _plain(), clock)
    assert [u.key for u in second] == [4, 5, 6, 7]
    third, metrics = _run(queue, [], Budget(rows=4), _plain(), clock)
    assert [u.key for u in third] == [8, 9]
    assert (metrics.waiting_keys, metrics.rows_in, metrics.emitted) == (0, 0, 2)


def test_a_budget_of_no_rows_lets_in_and_serves_nothing() -> None:
    queue = _queue()
    served, metrics = _run(queue, _updates(3), Budget(rows=0), _plain(), SimulatedClock())
    assert served == []
    assert metrics.waiting_keys == 3


def test_no_budget_drains_in_bounded_chunks() -> None:
    clock = SimulatedClock()
    query = _Costly(clock, 1)
    served, metrics = _run(_queue(), _updates(20), Budget(), _plain(query), clock, chunk_rows=7)
    assert len(served) == 20
    assert query.chunks == [7, 7, 6]
    assert metrics.waiting_keys == 0


def test_a_budget_of_rows_holds_across_chunks() -> None:
    served, _ = _run(_queue(), _updates(20), Budget(rows=10), _plain(), SimulatedClock(), chunk_rows=7)
    assert len(served) == 10


def test_a_budget_of_time_is_overshot_by_less_than_a_chunk() -> None:
    queue, clock = _queue(), SimulatedClock()
    query = _Costly(clock, 1000)
    budget = Budget(duration_us=SECOND)
    _run(queue, _updates(5000), budget, _plain(query), clock)
    assert SECOND <= clock() < SECOND + query.chunks[-1] * 1000
    assert sum(query.chunks) >= 1000
    assert 1000 * max(query.chunks) <= SECOND // 8


def test_chunks_grow_from_one_tuple_by_at_most_four_times() -> None:
    clock = SimulatedClock()
    query = _Costly(clock, 10)
    _run(_queue(), _updates(5000), Budget(duration_us=SECOND), _plain(query), clock)
    assert query.chunks[0] == 1
    assert all(after <= 4 * before for before, after in zip(query.chunks, query.chunks[1:], strict=False))
    assert max(query.chunks) >= 1000


def test_later_batches_begin_with_the_measured_cost() -> None:
    queue, clock = _queue(), SimulatedClock()
    query = _Costly(clock, 1000)
    _run(queue, _updates(5000), Budget(duration_us=SECOND), _plain(query), clock)
    query.chunks.clear()
    begin = clock()
    _run(queue, [], Budget(duration_us=SECOND), _plain(query), clock)
    assert query.chunks[0] == 125
    assert clock() - begin == SECOND


@pytest.mark.parametrize("duration_us", [0, 1, 7, 100])
def test_a_tuple_that_costs_more_than_the_budget_still_makes_progress(duration_us: int) -> None:
    queue, clock = _queue(), SimulatedClock()
    query = _Costly(clock, 10 * SECOND)
    for left in (2, 1, 0):
        served, metrics = _run(
            queue, _updates(3) if left == 2 else [], Budget(duration_us=duration_us), _plain(query), clock
        )
        assert len(served) == 1
        assert metrics.waiting_keys == left


def test_a_query_that_gets_slower_is_noticed_within_the_batch() -> None:
    clock = SimulatedClock()
    query = _Costly(clock, *[10] * 5, 10_000)
    _run(_queue(), _updates(60_000), Budget(duration_us=SECOND), _plain(query), clock)
    # One chunk may be too large, the one after which the cost is known to have changed.
    assert clock() < SECOND + query.chunks[5] * 10_000 + SECOND // 8
    assert len(query.chunks) in (6, 7)


def test_the_time_that_letting_in_took_counts() -> None:
    queue, ticks = _queue(), iter([0, 900_000, 900_000, 900_010, 900_010, *[2 * SECOND] * 9])
    batches, metrics = serve(
        queue,
        arrivals_of(STREAM, _updates(50)),
        query=_plain(lambda table: table),
        budget=Budget(duration_us=SECOND),
        clock=lambda: next(ticks),
    )
    assert sum(batch.num_rows for batch in batches) < 50
    assert metrics.duration_ms == {"enqueue": 900.0, "serve": 1100.0}


def test_a_clock_that_goes_back_does_no_harm() -> None:
    queue, ticks = _queue(), iter([SECOND, 0, 5, 3, *range(9, 0, -1), *[0] * 100])
    batches, _ = serve(
        queue,
        arrivals_of(STREAM, _updates(5)),
        query=_plain(lambda table: table, staleness_column=False),
        budget=Budget(duration_us=SECOND),
        clock=lambda: next(ticks),
    )
    assert sum(batch.num_rows for batch in batches) == 5


def test_a_budget_of_both_kinds_stops_at_the_first_that_is_used_up() -> None:
    clock = SimulatedClock()
    query = _Costly(clock, 10)
    served, _ = _run(_queue(), _updates(100), Budget(rows=30, duration_us=SECOND), _plain(query), clock)
    assert len(served) == 30


@pytest.mark.parametrize("limits", [{"rows": -1}, {"duration_us": -1}])
def test_a_negative_budget_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidUsageError, match="negative"):
        Budget(**limits)


def test_the_staleness_column_says_how_long_the_key_waited() -> None:
    queue, clock = _queue(), SimulatedClock(10 * SECOND)
    schema = STREAM.schema.append(pa.field(STALENESS_COLUMN, pa.float64()))
    query = _plain(None, schema, staleness_column=True)
    _run(queue, [Update(1, 1, 1)], Budget(rows=0), query, clock)
    clock.advance(2500)
    # The newer tuple takes over how long its key has waited.
    arrivals = arrivals_of(STREAM, [Update(1, 2, 2), Update(2, 1, 3)])
    clock_after = clock()
    batches, _ = serve(queue, arrivals, query=query, budget=Budget(), clock=clock)
    assert batches[0].schema == schema
    assert batches[0].column("value").to_pylist() == [2, 3]
    assert batches[0].column(STALENESS_COLUMN).to_pylist() == [2.5, 0.0]
    assert clock() == clock_after


def test_staleness_counts_from_the_first_arrival_where_there_is_an_arrival_column() -> None:
    queue = UpdateQueue(ARRIVAL_STREAM, Policy.IN_PLACE)
    schema = ARRIVAL_STREAM.schema.append(pa.field(STALENESS_COLUMN, pa.float64()))
    batches, _ = serve(
        queue,
        arrivals_of(
            ARRIVAL_STREAM, [Update(1, 1, 1, 9_000), Update(1, 2, 2, 4_000), Update(2, 1, 3, 99_000)]
        ),
        query=Query(None, schema, ("key",), staleness_column=True),
        budget=Budget(),
        clock=SimulatedClock(10_000),
    )
    assert dict(
        zip(
            batches[0].column("key").to_pylist(), batches[0].column(STALENESS_COLUMN).to_pylist(), strict=True
        )
    ) == {1: 6.0, 2: 0.0}


def test_the_query_sees_the_staleness_and_may_drop_it() -> None:
    seen = []

    def query(table: pa.Table) -> pa.Table:
        seen.extend(table.column(STALENESS_COLUMN).to_pylist())
        return table.drop_columns([STALENESS_COLUMN])

    _run(_queue(), _updates(2), Budget(), _plain(query, staleness_column=True), SimulatedClock())
    assert seen == [0.0, 0.0]


def _raises(_: pa.Table) -> pa.Table:
    raise ZeroDivisionError("secret data")


WRONG: dict[str, tuple[Callable[[pa.Table], Any], str]] = {
    "raises": (_raises, "apply raised an error"),
    "returns None": (lambda _: None, "returned=NoneType"),
    "returns pandas": (lambda t: t.to_pandas(), "returned=DataFrame"),
    "returns a list": (lambda t: t.to_pylist(), "returned=list"),
    "drops the key": (lambda t: t.drop_columns(["key"]), "dropped key columns"),
    "drops a column": (lambda t: t.drop_columns(["text"]), "without columns of the output schema"),
    "adds a column": (lambda t: t.append_column("more", t.column("value")), "columns that the output schema"),
    "repeats a column": (lambda t: t.append_column("value", t.column("value")), "repeat"),
    "repeats the key": (lambda t: t.append_column("key", t.column("key")), "repeat"),
    "changes a type": (lambda t: t.set_column(0, "value", t.column("text")), "other types"),
    "loses precision": (
        lambda t: t.set_column(0, "value", pa.array([0.5] * t.num_rows)),
        "other types",
    ),
    "returns a structure": (
        lambda t: t.set_column(0, "value", pa.array([{"a": 1}] * t.num_rows)),
        "other types",
    ),
    "changes the key": (
        lambda t: t.set_column(1, "key", pc.add(t.column("key"), 1000)),
        "changed the update key",
    ),
    "moves the key to a waiting one": (
        lambda t: t.set_column(1, "key", pa.array([3] * t.num_rows)),
        "changed the update key",
    ),
    "nulls the key": (lambda t: t.set_column(1, "key", pa.nulls(t.num_rows, pa.int64())), "null key"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_query_that_misbehaves_is_a_clear_error(name: str) -> None:
    apply, fact = WRONG[name]
    with pytest.raises(InvalidUsageError, match=fact) as caught:
        _run(_queue(), _updates(4), Budget(rows=3), _plain(apply), SimulatedClock())
    assert "secret" not in str(caught.value)
    if name == "raises":
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert caught.value.context == {"error": "ZeroDivisionError", "rows": 3}


def test_an_error_of_penstock_in_a_query_goes_through() -> None:
    def query(_: pa.Table) -> pa.Table:
        raise UnavailableError("the service is away")

    with pytest.raises(UnavailableError, match="away"):
        _run(_queue(), _updates(4), Budget(), _plain(query), SimulatedClock())


@pytest.mark.parametrize(
    "apply",
    [
        lambda t: t.filter(pc.less(t.column("key"), 2)),
        lambda t: t.slice(0, 0),
        lambda t: t.filter(pa.array([False] * t.num_rows)),
        lambda t: pa.Table.from_batches([], schema=t.schema),
        lambda t: pa.concat_tables([t, t, t]),
        lambda t: t.select(["time", "text", "key", "value"]),
        lambda t: t.combine_chunks().to_batches()[0],
        lambda t: t.set_column(0, "value", t.column("value").cast(pa.int16())),
        lambda t: t.set_column(1, "key", t.column("key").cast(pa.float64())),
    ],
    ids=["some", "slice", "none", "no batch", "three", "reorder", "record batch", "narrower", "key as float"],
)
def test_a_query_may_filter_multiply_and_reorder(apply: Callable[[pa.Table], Any]) -> None:
    batches, metrics = serve(
        _queue(),
        arrivals_of(STREAM, _updates(4)),
        query=_plain(apply),
        budget=Budget(),
        clock=SimulatedClock(),
    )
    expected = apply(pa.Table.from_batches([arrivals_of(STREAM, _updates(4)).rows]))
    out = pa.Table.from_batches(batches, schema=STREAM.schema)
    assert out.column("key").to_pylist() == expected.column("key").to_pylist()
    assert metrics.emitted == 4
    assert metrics.rows_out == out.num_rows == expected.num_rows
    assert metrics.waiting_keys == 0


@pytest.mark.parametrize(
    ("returned", "declared"),
    [
        (pa.array([1, 2]), pa.timestamp("us", tz="UTC")),
        (pa.array(["12", "13"]), pa.int64()),
        (pa.array([1.5, 2.5]), pa.string()),
        (pa.array([2, 0]), pa.bool_()),
        (pa.array(["2024-01-01", "2024-01-02"]), pa.date32()),
        (pa.array([1.5, 2.0]), pa.int64()),
        (pa.array([2**40, 1]), pa.int32()),
        (pa.array([0.1, 0.2]), pa.float32()),
        (pa.array([[1], [2]]), pa.list_(pa.string())),
        (pa.array([0, 1], pa.timestamp("us")), pa.timestamp("us", tz="UTC")),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_a_query_whose_types_mean_something_else_is_refused(
    returned: pa.Array[Any], declared: pa.DataType
) -> None:
    schema = pa.schema([("key", pa.int64()), ("result", declared)])
    query = _plain(lambda t: t.select(["key"]).append_column("result", returned), schema)
    with pytest.raises(InvalidUsageError, match="columns of other types than the output schema's"):
        serve(
            _queue(), arrivals_of(STREAM, _updates(2)), query=query, budget=Budget(), clock=SimulatedClock()
        )


def test_an_output_schema_without_the_key_is_refused_before_anything_runs() -> None:
    with pytest.raises(InvalidUsageError, match=r"missing=\['key'\]"):
        _plain(lambda t: t, pa.schema([("value", pa.int64())]))


def test_a_query_may_compute_other_columns() -> None:
    schema = pa.schema([("key", pa.int64()), ("double", pa.int64())])
    batches, _ = serve(
        _queue(),
        arrivals_of(STREAM, _updates(3)),
        query=_plain(
            lambda t: pa.table({"double": pc.multiply(t.column("value"), 2), "key": t.column("key")}), schema
        ),
        budget=Budget(),
        clock=SimulatedClock(),
    )
    assert batches[0].to_pydict() == {"key": [0, 1, 2], "double": [0, 2, 4]}


def test_without_a_query_the_cost_is_what_the_budget_makes_of_it() -> None:
    queue, clock = UpdateQueue(STREAM, Policy.LINECUTTING), SimulatedClock()
    _run(queue, _updates(10), Budget(rows=2), _plain(), clock)
    assert queue.cost_us is None
    clock.advance(1000)
    _, metrics = _run(queue, [], Budget(rows=2), _plain(), clock)
    assert metrics.cost_us == pytest.approx(500)


def test_with_a_query_the_cost_is_measured() -> None:
    queue, clock = UpdateQueue(STREAM, Policy.LINECUTTING), SimulatedClock()
    _, metrics = _run(queue, _updates(10), Budget(), _plain(_Costly(clock, 70)), clock)
    assert metrics.cost_us == pytest.approx(70)
    assert metrics.budget_used_ms == pytest.approx(0.7)


def test_nothing_in_is_nothing_out() -> None:
    served, metrics = _run(_queue(), [], Budget(), _plain(), SimulatedClock(5))
    assert served == []
    assert (metrics.rows_in, metrics.keys, metrics.waiting_keys, metrics.queue_staleness.key_time) == (
        0,
        0,
        0,
        0,
    )
