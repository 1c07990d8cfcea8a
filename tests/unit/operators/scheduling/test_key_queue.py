"""The three key schedulers on the examples of (UpStream §5)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.checkpointing.fields import Fields
from penstock.errors import InvalidUsageError
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.linked_scheduler import LinkedScheduler
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import UpdateStream

QUOTES = UpdateStream(
    pa.schema([("time", pa.int64()), ("symbol", pa.string()), ("price", pa.int64())]), ("symbol",), "time"
)


def _queue(policy: Policy, cost_us: float | None = None) -> UpdateQueue:
    return UpdateQueue(QUOTES, policy, cost_us=cost_us)


def _arrive(queue: UpdateQueue, now_us: int, *names: str) -> None:
    """Let tuples such as IBM2 arrive, one micro-batch each, at the same moment."""
    for name in names:
        values = [pa.array([now_us]), pa.array([name[:-1]]), pa.array([int(name[-1])])]
        rows = pa.RecordBatch.from_arrays(values, schema=QUOTES.schema)
        queue.enqueue(Arrivals.from_rows(QUOTES, rows), now_us)


def _serve(queue: UpdateQueue, limit: int = 100, now_us: int = 10**9) -> list[str]:
    rows = queue.dequeue(limit, now_us).rows
    names = zip(rows.column("symbol").to_pylist(), rows.column("price").to_pylist(), strict=True)
    return [f"{symbol}{price}" for symbol, price in names]


def test_fifo_moves_an_updated_key_to_the_tail_as_in_figure_6b() -> None:
    queue = _queue(Policy.FIFO)
    _arrive(queue, 1, "IBM1", "MSFT1", "ORCL1", "IBM2")
    assert _serve(queue) == ["MSFT1", "ORCL1", "IBM2"]


def test_in_place_keeps_the_place_of_an_updated_key_as_in_figure_6c() -> None:
    queue = _queue(Policy.IN_PLACE)
    _arrive(queue, 1, "IBM1", "MSFT1", "ORCL1", "IBM2")
    assert _serve(queue) == ["IBM2", "MSFT1", "ORCL1"]


def test_one_micro_batch_gives_the_same_order_as_many() -> None:
    names = ["IBM1", "MSFT1", "ORCL1", "IBM2", "MSFT2"]
    columns = [
        pa.array([1, 1, 1, 1, 1]),
        pa.array([name[:-1] for name in names]),
        pa.array([int(name[-1]) for name in names]),
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=QUOTES.schema)
    for policy, expected in (
        (Policy.FIFO, ["ORCL1", "IBM2", "MSFT2"]),
        (Policy.IN_PLACE, ["IBM2", "MSFT2", "ORCL1"]),
    ):
        queue = _queue(policy)
        queue.enqueue(Arrivals.from_rows(QUOTES, rows), 1)
        assert _serve(queue) == expected


def test_a_served_key_joins_at_the_tail_again() -> None:
    for policy in (Policy.FIFO, Policy.IN_PLACE):
        queue = _queue(policy)
        _arrive(queue, 1, "A1", "B1", "C1")
        assert _serve(queue, 1) == ["A1"]
        _arrive(queue, 2, "A2")
        assert _serve(queue) == ["B1", "C1", "A2"]


def test_linecutting_lets_a_slow_key_to_the_front() -> None:
    queue = _queue(Policy.LINECUTTING, cost_us=10)
    _arrive(queue, 0, "FAST1")
    for now_us in range(10, 100, 10):
        _arrive(queue, now_us, "FAST2", "QUICK1")
    _arrive(queue, 100, "SLOW1")
    # u = 1 / 100 µs < 1 / (10 µs x 2 residents).
    assert _serve(queue) == ["SLOW1", "FAST2", "QUICK1"]


def test_linecutting_moves_a_slow_key_that_waits_already() -> None:
    queue = _queue(Policy.LINECUTTING, cost_us=10)
    _arrive(queue, 0, "A1", "B1", "C1")
    _arrive(queue, 1000, "B2")
    assert _serve(queue) == ["B2", "A1", "C1"]


def test_linecutting_equals_in_place_where_nobody_is_slow_enough() -> None:
    # With interval 40 µs, cost 10 µs and 4 residents u is exactly 1 / (c n), which is not below it.
    queue = _queue(Policy.LINECUTTING, cost_us=10)
    _arrive(queue, 0, "A1", "B1", "C1", "D1")
    cells = queue.accounts.records
    cells["interval_us"][:4] = 40.0
    _arrive(queue, 40, "C2")
    assert _serve(queue) == ["A1", "B1", "C2", "D1"]


def test_linecutting_without_a_known_cost_equals_in_place() -> None:
    queue = _queue(Policy.LINECUTTING)
    _arrive(queue, 0, "A1", "B1")
    _arrive(queue, 10**9, "B2", "C1")
    assert _serve(queue) == ["A1", "B2", "C1"]


def test_linecutting_uses_the_measured_cost_until_one_is_given() -> None:
    queue = _queue(Policy.LINECUTTING)
    queue.observe_cost(1000, 100)
    assert queue.cost_us == pytest.approx(10)
    queue.observe_cost(4000, 100)
    assert queue.cost_us == pytest.approx(0.2 * 40 + 0.8 * 10)
    queue.observe_cost(4000, 0)
    assert queue.cost_us == pytest.approx(0.2 * 40 + 0.8 * 10)
    assert _queue(Policy.LINECUTTING, cost_us=7).cost_us == 7


def test_slow_keys_cut_behind_those_that_cut_before_and_keep_their_places() -> None:
    queue = _queue(Policy.LINECUTTING, cost_us=1)
    _arrive(queue, 0, "A1")
    _arrive(queue, 1000, "B1", "C1")
    _arrive(queue, 2000, "D1", "B2")
    assert _serve(queue) == ["B2", "C1", "D1", "A1"]


def test_a_key_that_was_served_cuts_anew() -> None:
    queue = _queue(Policy.LINECUTTING, cost_us=1)
    _arrive(queue, 0, "A1")
    _arrive(queue, 1000, "B1", "C1")
    assert _serve(queue, 1) == ["B1"]
    _arrive(queue, 2000, "B2")
    assert _serve(queue) == ["C1", "B2", "A1"]
    _arrive(queue, 3000, "A2")
    _arrive(queue, 4000, "C2")
    assert _serve(queue) == ["A2", "C2"]


def test_linecutting_waits_for_tuples_in_service() -> None:
    for in_service, expected in ((0, [1, 0]), (1, [0, 1])):
        queue = LinkedScheduler(Policy.LINECUTTING)
        queue.reserve(2)
        queue.arrive(np.array([0]), np.zeros(1, np.bool_), np.zeros(1), 10.0)
        # Served, the other one and the key itself: 20 or 30 µs until all had their turn.
        queue.arrive(np.array([1]), np.zeros(1, np.bool_), np.array([25.0]), 10.0, in_service)
        assert queue.pop(2).tolist() == expected


@pytest.mark.parametrize("cost_us", [0, -1.0])
def test_a_cost_that_is_not_positive_is_refused(cost_us: float) -> None:
    with pytest.raises(InvalidUsageError, match="cost"):
        _queue(Policy.LINECUTTING, cost_us=cost_us)


def test_popping_takes_what_there_is() -> None:
    queue = LinkedScheduler(Policy.IN_PLACE)
    queue.reserve(3)
    queue.arrive(np.arange(3), np.zeros(3, np.bool_), np.zeros(3), 1.0)
    assert queue.pop(0).tolist() == []
    assert queue.pop(2).tolist() == [0, 1]
    assert queue.pop(5).tolist() == [2]
    assert queue.pop(5).tolist() == []
    assert len(queue) == 0


def test_popping_passes_by_held_keys_which_keep_their_places() -> None:
    queue = LinkedScheduler(Policy.IN_PLACE)
    queue.reserve(4)
    queue.arrive(np.arange(4), np.zeros(4, np.bool_), np.zeros(4), 1.0)
    held = np.array([1, 0, 1, 0])
    assert queue.pop(1, held).tolist() == [1]
    assert queue.pop(5, held).tolist() == [3]
    assert queue.pop(5, held).tolist() == []
    assert queue.pop(5).tolist() == [0, 2]


def test_a_rebuilt_queue_goes_on_at_both_ends() -> None:
    queue, fields = LinkedScheduler(Policy.LINECUTTING), Fields({}, "unit")
    queue.reserve(6)
    queue.put_back(np.array([0, 2, 4]), {"rank": np.array([7, -5, 3])})
    queue.rebuild(np.array([0, 2, 4]), fields)
    queue.arrive(np.array([1, 3]), np.zeros(2, np.bool_), np.array([100.0, 0.0]), 1.0)
    assert queue.store(np.array([1, 3]))["rank"].tolist() == [-4, 8]
    assert queue.pop(10).tolist() == [2, 1, 4, 0, 3]
    queue.rebuild(np.array([], np.int64), fields)
    assert queue.pop(10).tolist() == []
