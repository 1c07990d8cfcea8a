"""The tuples that operators drop are those that brute force drops, however a micro-batch is divided."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators.joins.join import UpdateJoin
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.arrivals import Arrivals, first_position
from penstock.operators.update_stream.dropped import DroppedForm, DroppedTuples, order_ties
from penstock.operators.update_stream.stream import UpdateStream
from penstock.windows.groups import GroupCodec
from penstock.windows.sessions.panes import SessionPanes
from tests.long_tests import examples
from tests.oracles import naive_join, naive_union
from tests.oracles.naive import Update
from tests.oracles.naive_windows import Event, Sessions
from tests.property.operators.joins.test_update_join import BATCHES as JOIN_BATCHES
from tests.property.operators.joins.test_update_join import (
    LEFT,
    RIGHT,
    joined_stream,
    left_of,
    moved,
    right_of,
)
from tests.property.operators.queues.test_update_union import BATCHES, STREAM, rows_of
from tests.property.windows.test_session_windows import EVENTS, GAPS, GROUPS, cut, entries_of, layout_of
from tests.samples.streams import POLICIES, arrivals_of, through_bytes, updates, updates_of
from tests.samples.streams import STREAM as QUEUE_STREAM


def divided(stream: UpdateStream, rows: pa.RecordBatch, data: st.DataObject) -> Arrivals:
    """Return rows that come in any order, from any number of parts."""
    order = np.array(data.draw(st.permutations(range(rows.num_rows))), np.int64)
    whole = Arrivals.from_rows(stream, rows.take(pa.array(order)))
    part = data.draw(st.integers(0, 3))
    moved_by = np.where(np.arange(len(whole)) % 2 == 0, first_position(part), 0)
    return Arrivals(whole.rows, whole.count, whole.first + moved_by, whole.last + moved_by, None, whole.tied)


@given(POLICIES, BATCHES, st.sampled_from([0, 1, 3]), st.data())
def test_a_union_tells_which_tuples_it_drops(
    policy: Policy, batches: list[list[naive_union.Tuple]], served: int, data: st.DataObject
) -> None:
    queue, model = UpdateQueue(STREAM, policy, page_rows=2), naive_union.NaiveUnion(by_value=True)
    stored = []
    for now, batch in enumerate(batches):
        queue.dropped = []
        model.dropped, emitted = [], dict(model.emitted)
        if batch:
            queue.enqueue(order_ties(STREAM, divided(STREAM, rows_of(batch), data)), now)
        model.enqueue(batch)
        found = Counter(
            ((row["k"], row["t"], row["v"]), one.reason, None if one.missed is None else int(one.missed[at]))
            for one in queue.dropped
            for at, row in enumerate(one.rows.to_pylist())
        )
        # Of equal tuples of two sources either may be kept: values decide, which are equal.
        assert found == Counter(
            ((one.key, one.time, one.value), reason, emitted[one.key] if reason == "late" else None)
            for one, reason in model.dropped
        )
        for key in queue.dequeue(served, now).rows.column("k").to_pylist():
            model.take(key)
        stored.append(through_bytes(queue.delta()))
        if data.draw(st.booleans()):
            queue = UpdateQueue(STREAM, policy, page_rows=2)
            queue.restore(stored)


@given(POLICIES, st.lists(updates(), max_size=8), st.sampled_from([0, 1, 3]), st.data())
def test_a_queue_tells_which_tuples_are_late(
    policy: Policy, batches: list[list[Update]], served: int, data: st.DataObject
) -> None:
    queue = UpdateQueue(QUEUE_STREAM, policy, page_rows=2)
    emitted: dict[int, int] = {}
    for now, batch in enumerate(batches):
        queue.dropped = []
        newest = {key: max(one.time for one in batch if one.key == key) for key in {one.key for one in batch}}
        if batch:
            rows = arrivals_of(QUEUE_STREAM, batch).rows
            queue.enqueue(divided(QUEUE_STREAM, rows, data), now)
        found = [
            (one, int(at))
            for part in queue.dropped
            for one, at in zip(updates_of(part.rows), _ints(part), strict=True)
        ]
        late = [one for one in batch if newest[one.key] < emitted.get(one.key, -1)]
        assert Counter(found) == Counter((one, emitted[one.key]) for one in late)
        for one in updates_of(queue.dequeue(served, now).rows):
            emitted[one.key] = max(one.time, emitted.get(one.key, -1))


def _ints(part: DroppedTuples) -> Any:
    assert part.reason == "late" and part.missed is not None
    return part.missed


@settings(max_examples=settings().max_examples)
@given(JOIN_BATCHES, st.integers(0, 4), st.sampled_from([0, 2, 5, 1000]), st.data())
def test_a_join_tells_which_tuples_it_drops(
    batches: list[tuple[list[naive_join.Tuple], list[naive_join.Tuple]]],
    within: int,
    delay: int,
    data: st.DataObject,
) -> None:
    # With a condition, tuples of a time that can still match are held.
    condition = "b <> c"
    join, model = UpdateJoin(joined_stream(within, delay, condition), page_rows=2), None
    model = naive_join.NaiveJoin(within, delay, condition)
    for left, right in moved(batches):
        join.dropped, model.dropped = ([], []), []
        arrivals = []
        for stream, given_rows in ((LEFT, left_of(left)), (RIGHT, right_of(right))):
            arrivals.append(
                None if given_rows is None else order_ties(stream, divided(stream, given_rows.rows, data))
            )
        join.join(arrivals[0], arrivals[1])
        # On the left, the texts decide, which sort as the values of one digit do.
        model.join(sorted(left, key=lambda one: one.value), sorted(right, key=lambda one: one.value))
        found = Counter(
            (side, row["k"], row["t"], row["c" if side == 0 else "b"], one.reason,
             None if one.missed is None else int(one.missed[at]))
            for side, dropped in enumerate(join.dropped)
            for one in dropped
            for at, row in enumerate(one.rows.to_pylist())
        )  # fmt: skip
        assert found == Counter((side, *one, reason, missed) for side, one, reason, missed in model.dropped)


@settings(deadline=None, max_examples=examples(60))
@given(events=EVENTS, gaps=GAPS, delay=st.integers(0, 15), data=st.data())
def test_rows_in_late_sessions_are_those_of_brute_force(
    events: list[Event], gaps: list[int], delay: int, data: st.DataObject
) -> None:
    pane, gap = gaps
    layout, oracle = layout_of(gap), Sessions(gap, delay)
    state, codec = SessionPanes(layout), GroupCodec(list(GROUPS))
    for batch in cut(events, data):
        newest = max((event.time for event in batch), default=None)
        state.run(entries_of(batch, pane, layout), None if newest is None else newest - delay)
        oracle.batch(batch)
        groups = [pa.array([event.group for event in batch], pa.string())]
        times = np.array([event.time for event in batch], np.int64)
        late = state.late_sessions
        marks = np.zeros(len(batch), np.bool_) if late is None else late.mark_rows(codec, groups, times)
        dropped = [event for event, mark in zip(batch, marks, strict=True) if mark]
        assert Counter(dropped) == Counter(oracle.dropped)


def test_ties_of_all_types_are_ordered_by_their_values() -> None:
    schema = pa.schema({
        "k": pa.string(), "t": pa.int64(), "n": pa.float64(),
        "s": pa.struct({"a": pa.int64(), "l": pa.list_(pa.string())}), "l": pa.list_(pa.int64()),
    })  # fmt: skip
    stream = UpdateStream(schema, ("k",), "t")
    values: list[dict[str, Any]] = [
        {"k": "a", "t": 1, "n": n, "s": s, "l": items}
        for n in (None, 2.0)
        for s in (None, {"a": 1, "l": ["x"]}, {"a": None, "l": None}, {"a": 1, "l": []})
        for items in (None, [], [2], [1, 3])
    ]
    others = [{"k": "b", "t": n, "n": 0.0, "s": None, "l": None} for n in range(5)]
    found = set()
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(values) + len(others))
        rows = pa.RecordBatch.from_pylist([(values + others)[place] for place in order], schema=schema)
        arrivals = Arrivals.from_rows(stream, rows)
        made = order_ties(stream, arrivals)
        assert sorted(made.last.tolist()) == list(range(len(rows)))
        is_other = np.array(rows.column("k").to_pylist()) == "b"
        assert (made.last[is_other] == arrivals.last[is_other]).all()
        tied = made.rows.filter(pa.array(~is_other)).to_pylist()
        found.add(tuple(repr(tied[place]) for place in np.argsort(made.last[~is_other])))
    assert len(found) == 1


def test_dropped_rows_have_the_columns_of_their_side_and_typed_times() -> None:
    schema = pa.schema({
        "k": pa.string(), "a": pa.int64(), "b": pa.int64(), "t": pa.timestamp("us", "UTC"),
        "reason": pa.string(), "watermark": pa.timestamp("us", "UTC"), "side": pa.string(),
    })  # fmt: skip
    rows = pa.RecordBatch.from_pylist([{"k": "x", "b": 5, "hidden": 1}])
    (row,) = DroppedForm(schema).fill(rows, "late", np.array([1_500_000]), "right").to_pylist()
    assert (row["k"], row["a"], row["b"], row["reason"], row["side"]) == ("x", None, 5, "late", "right")
    assert row["watermark"].timestamp() == 1.5 and row["t"] is None
