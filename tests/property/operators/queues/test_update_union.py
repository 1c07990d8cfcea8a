"""A union of update streams equals a dictionary, however its tuples are cut, mixed and stored."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock._clock import SimulatedClock
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Budget, Query, serve
from penstock.operators.update_stream.arrivals import Arrivals, conflate
from penstock.operators.update_stream.stream import SOURCE_COLUMN, UpdateStream
from tests.oracles.naive_union import NaiveUnion, Tuple
from tests.samples.streams import POLICIES, through_bytes

STREAM = UpdateStream(
    pa.schema(
        {"v": pa.int64(), "k": pa.int64(), "t": pa.int64(), "text": pa.string(), SOURCE_COLUMN: pa.int8()}
    ),
    ("k",),
    "t",
    source=SOURCE_COLUMN,
)
OUTPUT = pa.schema([one for one in STREAM.schema if one.name != SOURCE_COLUMN])


BATCHES = st.lists(
    st.lists(
        st.builds(Tuple, st.integers(0, 3), st.integers(0, 9), st.integers(0, 2), st.integers(0, 1 << 40)),
        max_size=14,
    ),
    max_size=8,
)


def rows_of(tuples: list[Tuple]) -> pa.RecordBatch:
    columns = {
        "v": [one.value for one in tuples],
        "k": [one.key for one in tuples],
        "t": [one.time for one in tuples],
        "text": [f"text {one.value}" for one in tuples],
        SOURCE_COLUMN: [one.source for one in tuples],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[one.name], one.type) for one in STREAM.schema], schema=STREAM.schema
    )


def delivered(batches: list[pa.RecordBatch]) -> list[tuple[int, int, int]]:
    found = []
    for batch in batches:
        assert batch.schema == OUTPUT
        assert batch.column("text").to_pylist() == [f"text {v}" for v in batch.column("v").to_pylist()]
        found += list(zip(*(batch.column(name).to_pylist() for name in ("k", "t", "v")), strict=True))
    return found


@given(POLICIES, BATCHES, st.sampled_from([None, 1, 3]), st.booleans())
def test_the_newest_of_each_key_is_delivered_once_and_every_tuple_is_counted(
    policy: Policy, batches: list[list[Tuple]], rows: int | None, reload: bool
) -> None:
    queue, model, clock = UpdateQueue(STREAM, policy, page_rows=2), NaiveUnion(), SimulatedClock(5)
    query = Query(None, OUTPUT, STREAM.key)
    stored, waiting = [], 0
    counted = {"conflated": 0, "late": 0, "duplicates": 0}
    last: dict[int, int] = {}
    for batch in [*batches, [], [], [], []]:
        arrivals = Arrivals.from_rows(STREAM, rows_of(batch)) if batch else None
        made, metrics = serve(queue, arrivals, query=query, budget=Budget(rows), clock=clock)
        model.enqueue(batch)
        found = delivered(made)
        assert len(found) == (len(model.waiting) if rows is None else min(rows, len(model.waiting)))
        assert found == [model.take(key) for key, _, _ in found]
        for key, time, _ in found:
            assert time > last.get(key, -1), "the times of a key strictly increase"
            last[key] = time
        growth, waiting = metrics.waiting_keys - waiting, metrics.waiting_keys
        left = metrics.conflated + metrics.late + metrics.duplicates + metrics.emitted
        assert metrics.rows_in == len(batch) == left + growth
        for name in counted:
            counted[name] += getattr(metrics, name)
        assert counted == {name: getattr(model, name) for name in counted}
        stored.append(through_bytes(queue.delta()))
        if reload:
            queue = UpdateQueue(STREAM, policy, page_rows=2)
            queue.restore(stored)
        clock.advance(10)
    everything = [one for batch in batches for one in batch]
    assert last == {key: max(one.time for one in everything if one.key == key) for key in last}
    assert set(last) == {one.key for one in everything}


@given(BATCHES, st.randoms(use_true_random=False))
def test_conflating_parts_in_any_order_equals_conflating_all(
    batches: list[list[Tuple]], draw: object
) -> None:
    parts = [Arrivals.from_rows(STREAM, rows_of(batch), part=n) for n, batch in enumerate(batches) if batch]
    if not parts:
        return
    whole = conflate(STREAM, Arrivals.concat(parts))
    mixed = [Arrivals.from_batch(conflate(STREAM, one).to_batch(), STREAM.schema) for one in parts]
    draw.shuffle(mixed)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    again = conflate(STREAM, Arrivals.concat(mixed))
    one, other = (made.take(np.argsort(made.first, kind="stable")) for made in (whole, again))
    assert one.to_batch().equals(other.to_batch())


def test_with_a_preferred_source_its_tuple_wins_a_tie_while_the_other_waits() -> None:
    queue = UpdateQueue(STREAM, Policy.IN_PLACE)
    for source, value in ((1, 10), (0, 20), (0, 30), (1, 40)):
        queue.enqueue(Arrivals.from_rows(STREAM, rows_of([Tuple(7, 5, source, value)])), 1)
    served = queue.dequeue(9, 2)
    assert served.rows.column("v").to_pylist() == [20]
    entered = queue.enqueue(Arrivals.from_rows(STREAM, rows_of([Tuple(7, 5, 0, 50), Tuple(7, 4, 0, 60)])), 3)
    assert (entered.duplicates, entered.late) == (1, 1), "what was delivered is not taken back"
