"""Keys leave an update queue as they leave a dictionary, wherever the queue is reloaded in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.queues.expiry import Expired, Lives
from penstock.operators.queues.key_records import ForgetRule
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import UpdateStream
from tests.checkpoints.tables import DictTable
from tests.oracles.naive import NaiveQueue, Update, conflated
from tests.samples.streams import (
    POLICIES,
    STREAM,
    assert_invariants,
    order_of,
    rows_of,
    served_of,
    through_bytes,
    updates,
)

DELETES = UpdateStream(
    STREAM.schema.append(pa.field("deleted", pa.bool_())), ("key",), "time", deleted="deleted"
)
LIVES = st.builds(
    Lives, st.one_of(st.none(), st.sampled_from([0, 1, 3, 40])), st.one_of(st.none(), st.integers(0, 20))
)
ENQUEUE = st.tuples(st.just("enqueue"), updates(keys=7, times=10))
DEQUEUE = st.tuples(st.just("dequeue"), st.integers(0, 8))
EXPIRE = st.tuples(st.just("expire"), st.integers(0, 9))
LOAD = st.tuples(st.sampled_from(["wake", "reload", "catch up", "snapshot"]), st.none())
# Keys leave only after they were served. So most steps come as rounds in which some can.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.one_of(ENQUEUE, DEQUEUE, EXPIRE, LOAD)), st.tuples(ENQUEUE, DEQUEUE, EXPIRE, LOAD)
    ),
    max_size=12,
).map(lambda rounds: [step for steps in rounds for step in steps])


def is_delete(update: Update) -> bool:
    return update.value % 3 == 0


class ExpiringModel(NaiveQueue):
    """A `NaiveQueue` whose records are deleted."""

    horizons = (-(1 << 62), -(1 << 62))

    def enqueue(self, updates: Sequence[Update], now_us: int) -> tuple[int, int, int]:
        if self.birth_us is None and updates:
            self.birth_us = now_us
        strangers = {
            key
            for key, group in conflated(updates).items()
            if key not in self.records and group.newest.time <= max(self.horizons)
        }
        _, superseded, late = super().enqueue([u for u in updates if u.key not in strangers], now_us)
        return len(updates), superseded, late + sum(u.key in strangers for u in updates)

    def expire(self, newest: int | None, lives: Lives, last: dict[int, Update]) -> dict[int, int]:
        """Return the keys that leave, and their last times."""
        if newest is not None:
            self.horizons = tuple(  # type: ignore[assignment]
                before if life is None else max(before, newest - life)
                for before, life in zip(self.horizons, (lives.key, lives.deleted), strict=True)
            )
        gone = {
            key: record.emitted
            for key, record in self.records.items()
            if record.waiting is None and record.emitted <= self.horizons[is_delete(last[key])]
        }
        for key in gone:
            del self.records[key]
        return gone


def expired_keys(expired: Expired) -> dict[int, int]:
    assert expired.times.tolist() == sorted(expired.times.tolist())
    return dict(zip(expired.keys[0].to_pylist(), expired.times.tolist(), strict=True))


def marked(batch: list[Update]) -> Arrivals:
    rows = rows_of(STREAM, batch).append_column("deleted", pa.array(map(is_delete, batch), pa.bool_()))
    return Arrivals.from_rows(DELETES, rows)


def new_queue(policy: Policy, *, tabled: bool) -> UpdateQueue:
    rule = ForgetRule(min_idle=2, idle_per_kept=0.5)
    table = DictTable if tabled else None
    return UpdateQueue(DELETES, policy, cost_us=20.0, page_rows=2, table=table, forgetting=rule)


@pytest.mark.parametrize("tabled", [False, True])
@given(policy=POLICIES, steps=STEPS, lives=LIVES)
def test_keys_leave_as_they_leave_a_dictionary_also_across_reloads(
    policy: Policy, steps: list[tuple[str, Any]], lives: Lives, *, tabled: bool
) -> None:
    queue, model = new_queue(policy, tabled=tabled), ExpiringModel(policy, 20.0)
    follower = new_queue(policy, tabled=tabled)
    units: list[Any] = []
    last: dict[int, Update] = {}
    newest, now_us, total = 0, 1_000_000, 0
    for step, value in steps:
        now_us += 7
        if step == "enqueue":
            batch = [Update(u.key, u.time + newest - 5, u.value) for u in value]
            entered = queue.enqueue(marked(batch), now_us)
            assert (entered.rows_in, entered.conflated, entered.late) == model.enqueue(batch, now_us)
            newest = max([newest, *(u.time for u in batch)])
        elif step == "dequeue":
            served = served_of(queue, value, now_us)
            assert served == model.dequeue(value, now_us)
            last |= {update.key: update for update, _ in served}
        else:
            # A micro-batch stores the state after keys have left.
            newest += value or 0
            expired = queue.expire(newest if step == "expire" else None, lives)
            gone = model.expire(newest if step == "expire" else None, lives, last)
            assert expired_keys(expired) == gone
            assert expired.deleted.tolist() == [is_delete(last[key]) for key in expired.keys[0].to_pylist()]
            total += len(gone)
        if step in ("snapshot", "reload", "catch up"):
            units.append(through_bytes(queue.delta()))
            follower.restore(units[-1:])
            if step == "snapshot":
                units = [through_bytes(unit) for unit in queue.snapshot()]
            copy = new_queue(policy, tabled=tabled)
            copy.restore(units)
            queue = follower if step == "catch up" else copy
            if step == "catch up":
                follower = copy
        assert len(queue) == len(model.order)
        assert queue.keys == len(model.records)
        assert_invariants(queue)
    assert order_of(queue) == model.order
    assert queue.expiry.expired == total
