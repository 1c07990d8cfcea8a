"""The update queue's own rules: what is late, what waits, what is remembered, what is stored."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import InvalidUsageError
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import UpdateStream, as_int64, as_micros
from tests.oracles.naive import Update
from tests.samples.columns import KINDS, sliced
from tests.samples.streams import (
    ARRIVAL_STREAM,
    STREAM,
    arrivals_of,
    assert_invariants,
    assert_same_state,
    enqueue,
    served_of,
    through_bytes,
)

NAN = float("nan")


def _queue(policy: Policy = Policy.IN_PLACE, **options: Any) -> UpdateQueue:
    return UpdateQueue(STREAM, policy, **options)


def _values(queue: UpdateQueue, limit: int = 100, now_us: int = 10) -> list[int]:
    return [update.value for update, _ in served_of(queue, limit, now_us)]


def test_only_the_newest_tuple_of_a_key_waits() -> None:
    queue = _queue()
    assert enqueue(queue, [Update(1, 5, 10), Update(1, 7, 11), Update(1, 6, 12)], 0) == (3, 2, 0)
    assert len(queue) == 1
    assert _values(queue) == [11]


def test_of_equal_times_the_later_arrival_wins_within_and_across_batches() -> None:
    queue = _queue()
    enqueue(queue, [Update(1, 5, 10), Update(1, 5, 11)], 0)
    assert enqueue(queue, [Update(1, 5, 12)], 1) == (1, 1, 0)
    assert _values(queue) == [12]
    assert enqueue(queue, [Update(1, 5, 13)], 2) == (1, 0, 0)
    assert _values(queue) == [13]


def test_a_tuple_older_than_the_waiting_one_is_conflated_away() -> None:
    queue = _queue()
    enqueue(queue, [Update(1, 5, 10)], 0)
    assert enqueue(queue, [Update(1, 4, 11), Update(1, 3, 12)], 1) == (2, 2, 0)
    assert _values(queue) == [10]


def test_a_tuple_older_than_the_newest_emitted_is_late() -> None:
    queue = _queue()
    enqueue(queue, [Update(1, 5, 10)], 0)
    assert _values(queue) == [10]
    assert enqueue(queue, [Update(1, 4, 11), Update(1, 3, 12), Update(2, 0, 13)], 1) == (3, 0, 2)
    assert _values(queue) == [13]
    assert enqueue(queue, [Update(1, 4, 14), Update(1, 6, 15)], 2) == (2, 1, 0)
    assert _values(queue) == [15]


def test_the_least_and_the_greatest_time_are_times_like_others() -> None:
    queue, least, most = _queue(), -(1 << 63), (1 << 63) - 1
    enqueue(queue, [Update(1, least, 10)], 0)
    assert _values(queue) == [10]
    assert enqueue(queue, [Update(1, most, 11), Update(1, least, 12)], 0) == (2, 1, 0)
    assert _values(queue) == [11]
    assert enqueue(queue, [Update(1, most - 1, 13)], 0) == (1, 0, 1)


def test_an_empty_batch_changes_nothing() -> None:
    queue = _queue()
    assert enqueue(queue, [], 5) == (0, 0, 0)
    assert queue.accounted_until_us is None
    assert _values(queue) == []
    assert len(queue) == queue.keys == 0


def test_waiting_tuples_take_as_many_pages_as_they_fill() -> None:
    queue = _queue(page_rows=10)
    enqueue(queue, [Update(k, 0, k) for k in range(95)], 0)
    assert queue.memory.pages_used == 10
    enqueue(queue, [Update(k, 1, k) for k in range(95)], 1)
    assert queue.memory.pages_used == 10
    assert _values(queue, 90) == list(range(90))
    assert queue.memory.pages_used == 1
    assert_invariants(queue)
    queue.account_staleness(2)
    assert queue.memory.page_capacity <= 20
    assert _values(queue) == list(range(90, 95))
    assert queue.memory.pages_used == 0


def test_keys_that_keep_coming_do_not_make_the_tuples_memory_grow() -> None:
    queue = _queue(page_rows=16)
    for now_us in range(100):
        enqueue(queue, [Update(1000 * now_us + k, 0, k) for k in range(100)], now_us)
        _values(queue, 100, now_us)
        queue.account_staleness(now_us)
    assert queue.keys == 10_000
    assert queue.memory.capacity <= 2 * 112
    assert queue._rows.size_bytes < 1 << 20


def test_nothing_changed_is_an_empty_delta() -> None:
    queue = _queue()
    enqueue(queue, [Update(1, 5, 10)], 0)
    assert queue.delta().blocks["cells"].num_rows == 1
    assert queue.delta().blocks["cells"].num_rows == 0
    assert next(queue.snapshot()).blocks["cells"].num_rows == 1
    assert queue.delta().blocks["cells"].num_rows == 0


def test_a_delta_holds_only_the_keys_that_changed() -> None:
    queue = _queue()
    enqueue(queue, [Update(k, 5, k) for k in range(50)], 0)
    queue.delta()
    enqueue(queue, [Update(7, 6, 70)], 1)
    _values(queue, 1)
    delta = queue.delta()
    assert sorted(delta.blocks["cells"].column("key").to_pylist()) == [0, 7]
    assert delta.blocks["rows"].column("value").to_pylist() == [70]


def test_a_tuple_that_is_conflated_away_still_changes_the_rate_of_its_key() -> None:
    queue, again = _queue(Policy.LINECUTTING), _queue(Policy.LINECUTTING)
    enqueue(queue, [Update(1, 5, 10)], 0)
    again.restore([through_bytes(next(queue.snapshot()))])
    enqueue(queue, [Update(1, 4, 11)], 1000)
    delta = queue.delta()
    assert delta.blocks["cells"].column("__penstock_interval_us").to_pylist() == [pytest.approx(1000)]
    again.restore([through_bytes(delta)])
    assert_same_state(again, queue)


def test_several_updates_at_once_count_as_that_many_equal_intervals() -> None:
    together, apart = _queue(Policy.LINECUTTING), _queue(Policy.LINECUTTING)
    for queue in (together, apart):
        enqueue(queue, [Update(1, 0, 0)], 0)
        enqueue(queue, [Update(1, 1, 0)], 5000)
    enqueue(together, [Update(1, 2 + i, i) for i in range(4)], 9000)
    for i in range(4):
        enqueue(apart, [Update(1, 2 + i, i)], 6000 + 1000 * i)
    intervals = [queue.accounts.records["interval_us"][0] for queue in (together, apart)]
    assert intervals[0] == pytest.approx(intervals[1])
    assert intervals[0] == pytest.approx(5000 * 0.9**4 + 1000 * (1 - 0.9**4))


def test_emitted_times_survive_a_restart() -> None:
    queue, again = _queue(), _queue()
    enqueue(queue, [Update(1, 5, 10)], 0)
    _values(queue)
    again.restore([through_bytes(next(queue.snapshot()))])
    assert enqueue(again, [Update(1, 4, 11)], 1) == (1, 0, 1)


@pytest.mark.parametrize("kind", list(KINDS), ids=str)
def test_a_payload_of_every_type_comes_through_queue_and_restart(kind: pa.DataType) -> None:
    examples = [None, *_examples(kind), None]
    schema = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("p", kind)])
    count = len(examples)
    columns = [
        pa.array([f"key {i}" for i in range(count)]),
        pa.array([datetime(2020, 1, 1 + i) for i in range(count)], pa.timestamp("us")).cast(
            schema.field(1).type
        ),
        pa.array(examples, kind),
    ]
    rows = pa.RecordBatch.from_arrays([sliced(column, 3) for column in columns], schema=schema)
    stream = UpdateStream(schema, ("k",), "t")
    queue, again = UpdateQueue(stream, Policy.FIFO), UpdateQueue(stream, Policy.FIFO)
    queue.enqueue(Arrivals.from_rows(stream, rows), 0)
    again.restore([through_bytes(next(queue.snapshot()))])
    for each in (queue, again):
        served = each.dequeue(100, 1).rows
        served.validate(full=True)
        assert served.schema == schema
        assert served.to_pylist() == rows.to_pylist()


def _examples(kind: pa.DataType) -> list[Any]:
    plain: dict[str, list[Any]] = {
        "bool": [True, False],
        "date32[day]": [date(1, 1, 1), date(9999, 12, 31)],
        "string": ["", "\u00e9"],
        "list<item: int64>": [[], [1, None]],
    }
    return plain.get(str(kind), [])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [-128, -1, 0, 127]),
        (pa.int64(), [-(1 << 63), -1, 0, (1 << 63) - 1]),
        (pa.float64(), [-float("inf"), -1.5, -1e-310, 0.0, 1e-310, 1.5, float("inf")]),
        (pa.float32(), [-float("inf"), -1.5, 0.0, 1.5, float("inf")]),
        (pa.date32(), [date(1900, 1, 1), date(1970, 1, 1), date(2100, 1, 1)]),
        (pa.timestamp("us", "UTC"), [datetime(1900, 1, 1), datetime(2100, 1, 1)]),
        (pa.timestamp("ns"), [datetime(1900, 1, 1), datetime(2100, 1, 1)]),
    ],
    ids=str,
)
def test_times_of_every_type_compare_as_their_values_do(kind: pa.DataType, values: list[Any]) -> None:
    column = sliced(pa.array(values, kind), 2)
    as_integers = as_int64(column)
    assert (np.diff(as_integers.astype(object)) > 0).all()


def test_both_zeros_are_the_same_time() -> None:
    assert len(set(as_int64(pa.array([0.0, -0.0])).tolist())) == 1


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Zurich"])
def test_arrival_times_of_every_unit_are_read_in_microseconds(unit: str, zone: str | None) -> None:
    column = pa.array([7, 9], pa.timestamp("s", "UTC")).cast(pa.timestamp(unit, "UTC"))
    column = column.view(pa.int64()).view(pa.timestamp(unit, zone))
    assert as_micros(column).tolist() == [7_000_000, 9_000_000]


def test_an_arrival_after_now_counts_as_now() -> None:
    queue = UpdateQueue(ARRIVAL_STREAM, Policy.IN_PLACE)
    queue.enqueue(arrivals_of(ARRIVAL_STREAM, [Update(1, 1, 1, 500)]), 100)
    assert [staleness for _, staleness in served_of(queue, 1, 130)] == [30]


def test_rows_of_one_moment_take_places_in_the_order_of_their_arrival_times() -> None:
    batch = [Update(1, 1, 1, 30), Update(2, 1, 2, 10), Update(3, 1, 3, 20), Update(2, 2, 4, 40)]
    for policy, expected in ((Policy.IN_PLACE, [4, 3, 1]), (Policy.FIFO, [3, 1, 4])):
        queue = UpdateQueue(ARRIVAL_STREAM, policy)
        queue.enqueue(arrivals_of(ARRIVAL_STREAM, batch), 100)
        assert [update.value for update, _ in served_of(queue, 9, 100)] == expected


def test_catching_up_equals_staying() -> None:
    queue, other = _queue(page_rows=2), _queue(page_rows=2)
    for now_us in range(20):
        enqueue(queue, [Update((now_us * 7 + k) % 11, now_us, 100 * now_us + k) for k in range(5)], now_us)
        _values(queue, 3, now_us)
        queue.account_staleness(now_us)
        other.restore([through_bytes(queue.delta())])
        assert_same_state(other, queue)
        assert_invariants(other)


SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("x", pa.float64()), ("a", pa.timestamp("us"))])


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"key": ("nope",)}, "there is no such column: option=key column=nope"),
        ({"time": "nope"}, "there is no such column: option=time column=nope"),
        ({"arrival": "nope"}, "there is no such column: option=arrival"),
        ({"key": ()}, "has no column"),
        ({"key": ("k", "k")}, "names a column twice"),
        ({"key": ("k", "t")}, "cannot be part of the update key"),
        ({"key": ("a",), "arrival": "a"}, "cannot be part of the update key"),
        ({"arrival": "x"}, "is not a timestamp"),
        ({"schema": pa.schema([*SCHEMA, ("k", pa.int64())])}, "names repeat"),
        ({"schema": pa.schema([*SCHEMA, ("__penstock_x", pa.int64())])}, "reserved prefix"),
        ({"schema": pa.schema([("k", pa.int64()), ("t", pa.string())])}, "cannot be the time"),
        ({"schema": pa.schema([("k", pa.int64()), ("t", pa.uint64())])}, "cannot be the time"),
        ({"schema": pa.schema([("k", pa.int64()), ("t", pa.decimal128(9, 2))])}, "cannot be the time"),
        ({"schema": pa.schema([("k", pa.list_(pa.int64())), ("t", pa.int64())])}, "cannot be a key"),
    ],
)
def test_a_stream_that_makes_no_sense_is_refused(arguments: dict[str, Any], fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        UpdateStream(**{"schema": SCHEMA, "key": ("k",), "time": "t"} | arguments)


def test_rows_with_nulls_in_key_time_or_arrival_are_found() -> None:
    columns = [
        pa.array([1, None, 3, 4, 5]),
        pa.array([1, 2, None, 4, 5]),
        pa.array([1.0, 2.0, 3.0, NAN, None]),
        pa.array([1, 2, 3, None, 5], pa.timestamp("us")),
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    assert UpdateStream(SCHEMA, ("k",), "t").find_unusable(rows).tolist() == [False, True, True, False, False]
    with_arrival = UpdateStream(SCHEMA, ("k",), "t", "a")
    assert with_arrival.find_unusable(rows).tolist() == [False, True, True, True, False]
    float_time = UpdateStream(SCHEMA, ("k",), "x")
    assert float_time.find_unusable(rows).tolist() == [False, True, False, True, True]
    float_key = UpdateStream(SCHEMA, ("x",), "t")
    assert float_key.find_unusable(rows).tolist() == [False, False, True, False, True]
    kept, dropped = with_arrival.drop_unusable(rows, "drop")
    assert (kept.column("k").to_pylist(), dropped) == ([1, 5], 3)
    with pytest.raises(InvalidUsageError, match=r"rows=3.*or set nulls to drop, which"):
        with_arrival.drop_unusable(rows, "error")
    assert with_arrival.drop_unusable(kept, "error") == (kept, 0)
