"""A table that a queue with deletes feeds holds the newest rows of the keys that are not deleted."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.deletes import DELETED_COLUMN, mark_deletes
from penstock.operators.update_stream.stream import UpdateStream
from penstock.sql.evaluate import project
from tests.samples.streams import POLICIES, through_bytes

_INPUT = pa.schema({"key": pa.int64(), "time": pa.int64(), "op": pa.string(), "nth": pa.int64()})
_STREAM = UpdateStream(_INPUT.append(pa.field(DELETED_COLUMN, pa.bool_())), ("key",), "time")

Change = tuple[int, int, str | None]

_BATCHES = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.integers(0, 3), st.integers(0, 8), st.sampled_from(["i", "u", "d", None])),
            max_size=8,
        ),
        st.integers(0, 5),
        st.booleans(),
    ),
    max_size=8,
)


def _marked(rows: list[tuple[int, int, str | None, int]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ((), (), (), ())
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _INPUT, strict=True)]
    _, projection = mark_deletes("op = 'd'", _INPUT.names)
    table = project(pa.table(arrays, schema=_INPUT), dict(projection))
    return table.combine_chunks().to_batches()[0] if rows else pa.RecordBatch.from_pylist([], table.schema)


@given(POLICIES, _BATCHES)
def test_a_sink_holds_the_newest_rows_of_keys_that_are_not_deleted(
    policy: Policy, batches: list[tuple[list[Change], int, bool]]
) -> None:
    queue = UpdateQueue(_STREAM, policy, cost_us=5.0)
    newest: dict[int, tuple[int, int, str | None]] = {}
    served_times: dict[int, int] = {}
    sink: dict[int, int] = {}
    stored = []
    nth = 0
    for now_us, (changes, limit, reload) in enumerate([*batches, ([], 100, False)]):
        rows = []
        for key, time, op in changes:
            rows.append((key, time, op, nth))
            # Of equal times the later row is newer.
            if key not in newest or (time, nth) >= newest[key][:2]:
                newest[key] = (time, nth, op)
            nth += 1
        if rows:
            queue.enqueue(Arrivals.from_rows(_STREAM, _marked(rows)), now_us)
        served = queue.dequeue(limit, now_us)
        queue.deliver(served, now_us)
        for row in served.rows.to_pylist():
            assert row["deleted"] == (row["op"] == "d")
            assert served_times.get(row["key"], -1) <= row["time"], "an older update came after a newer one"
            served_times[row["key"]] = row["time"]
            if row["deleted"]:
                sink.pop(row["key"], None)
            else:
                sink[row["key"]] = row["nth"]
        if reload:
            stored.append(through_bytes(queue.delta()))
            queue = UpdateQueue(_STREAM, policy, cost_us=5.0)
            queue.restore(stored)
    assert sink == {key: nth for key, (_, nth, op) in newest.items() if op != "d"}


@pytest.mark.parametrize("late", [False, True])
def test_an_update_brings_a_deleted_key_back_unless_it_is_older_than_the_delete(*, late: bool) -> None:
    queue = UpdateQueue(_STREAM, Policy.IN_PLACE)
    seen = []
    for now_us, row in enumerate([(1, 5, "i", 0), (1, 9, "d", 1), (1, 8 if late else 10, "u", 2)]):
        entered = queue.enqueue(Arrivals.from_rows(_STREAM, _marked([row])), now_us)
        served = queue.dequeue(10, now_us)
        queue.deliver(served, now_us)
        seen.append((entered.late, served.rows.num_rows))
    assert seen == [(0, 1), (0, 1), (1, 0) if late else (0, 1)]
