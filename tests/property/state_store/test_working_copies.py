"""A queue with idle keys in a table equals a queue in memory; each opens the other's files."""

from __future__ import annotations

import copy
import functools
import math
import os
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.checkpointing import PUnit
from penstock.checkpointing.files import open_files
from penstock.operators.queues.abc import KeyedQueue
from penstock.operators.queues.adaptive_queue import AdaptiveQueue, Semantics
from penstock.operators.queues.key_records import ForgetRule
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.schedulers import new_scheduler
from penstock.operators.scheduling.weights import ONE
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import UpdateStream
from penstock.state_store.bucket_store import BucketStore, Pointer
from penstock.state_store.cache import StateCache
from penstock.state_store.snapshot_rule import SnapshotRule
from penstock.state_store.tables.rocksdb_table import RocksdbTable
from penstock.state_store.tables.working_copy import TableMaker, WorkingCopy, table_maker
from tests.checkpoints.states import Later
from tests.checkpoints.tables import DictTable
from tests.long_tests import examples
from tests.oracles.naive import NaiveQueue, Update
from tests.samples.streams import (
    ARRIVAL_STREAM,
    POLICIES,
    STREAM,
    WEIGHTED_STREAM,
    assert_invariants,
    enqueue,
    served_of,
    through_bytes,
    updates,
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), updates(keys=9)),
        st.tuples(st.just("dequeue"), st.integers(0, 8)),
        st.tuples(st.sampled_from(["account", "stored", "stored", "by deltas", "by snapshots"]), st.none()),
    ),
    max_size=30,
)


AT_ONCE = ForgetRule(min_idle=0, idle_per_kept=0)
"""Lets every idle key go at once."""


def made(stream: UpdateStream, policy: Policy, semantics: Semantics, table: TableMaker | None) -> KeyedQueue:
    if semantics is Semantics.UPDATE:
        return UpdateQueue(stream, policy, cost_us=20.0, page_rows=2, table=table, forgetting=AT_ONCE)
    queue = AdaptiveQueue(stream, policy, semantics, cost_us=20.0, table=table, forgetting=AT_ONCE)
    queue.capacity = 3.0
    return queue


def content(units: Iterable[PUnit]) -> tuple[dict[str, Any], dict[int, Any], list[Any]]:
    """Return the content of units: the metadata, the record and tuple of each key, and appended tuples.

    The order of keys and the size of ranks are left out.
    """
    meta: dict[str, Any] = {}
    keys: dict[int, Any] = {}
    appended: list[Any] = []
    for unit in map(through_bytes, units):
        meta = meta or {name: value for name, value in unit.meta.items() if name != "first"}
        stored = unit.blocks["cells"].to_pylist()
        for cell in stored:
            assert cell["key"] not in keys, "each key once"
            keys[cell["key"]] = (cell, None)
        for row in unit.blocks["rows"].to_pylist():
            cell = stored[row.pop("__penstock_cell")]
            row["__penstock_rank"] = row["__penstock_rank"] < 0
            keys[cell["key"]] = (cell, row)
        if "appended" in unit.blocks:
            appended += unit.blocks["appended"].to_pylist()
    return meta, keys, appended


RUNS: dict[str, Any] = {
    "stream": st.sampled_from([STREAM, ARRIVAL_STREAM, WEIGHTED_STREAM]),
    "policy": POLICIES,
    "semantics": st.sampled_from(list(Semantics)),
    "steps": STEPS,
}
_OLD = [Update(1, time, 40) for time in (1, 2)]
EARLIER: dict[str, Any] = {
    # A tuple that arrived before its key was served last, which was forgotten meanwhile.
    "stream": ARRIVAL_STREAM,
    "policy": Policy.IN_PLACE,
    "semantics": Semantics.APPEND,
    "steps": [
        *(("enqueue", _OLD[:1]), ("dequeue", 5), ("stored", None)),
        *(("enqueue", _OLD[1:]), ("dequeue", 5), ("account", None)),
    ],
}


@given(**RUNS)
@example(**EARLIER)
@settings(max_examples=examples(150))
def test_a_queue_with_a_table_serves_measures_and_stores_the_same_and_either_opens_the_others_units(
    stream: UpdateStream, policy: Policy, semantics: Semantics, steps: list[Any]
) -> None:
    check_twins(DictTable, stream, policy, semantics, steps)


@given(**RUNS)
@example(**EARLIER)
@settings(max_examples=examples(25))
def test_so_does_one_with_a_table_on_local_disk(
    stream: UpdateStream, policy: Policy, semantics: Semantics, steps: list[Any]
) -> None:
    check_twins(table_maker(WorkingCopy.ROCKSDB), stream, policy, semantics, steps)


@pytest.mark.parametrize("table", [None, DictTable], ids=["memory", "table"])
@pytest.mark.parametrize("semantics", list(Semantics))
@pytest.mark.parametrize("way", ["a delta", "two deltas", "a snapshot"])
def test_a_restored_queue_books_the_staleness_that_one_that_went_on_does(
    way: str, semantics: Semantics, table: TableMaker | None
) -> None:
    def ran(*, restored: bool) -> list[float]:
        queue = made(ARRIVAL_STREAM, Policy.IN_PLACE, semantics, table)
        enqueue(queue, [Update(1, 1, 0, 1000), Update(2, 1, 0, 1000)], 1000)
        units = [queue.delta()] if way == "two deltas" else []
        queue.deliver(queue.dequeue(1, 1500), 1500)
        queue.account_staleness(1900)
        units.append(queue.delta())
        if restored:
            units = list(queue.snapshot()) if way == "a snapshot" else units
            queue = made(ARRIVAL_STREAM, Policy.IN_PLACE, semantics, table)
            queue.restore(map(through_bytes, units))
        # One that arrived before its key was served, and one of a key that waits.
        enqueue(queue, [Update(1, 2, 0, 1200), Update(2, 2, 0, 1950)], 2000)
        queue.deliver(queue.dequeue(9, 2000), 2000)
        return [one.area for one in queue.account_staleness(2000)]

    assert ran(restored=True) == ran(restored=False)


def check_twins(
    table: TableMaker | None, stream: UpdateStream, policy: Policy, semantics: Semantics, steps: list[Any]
) -> None:
    """Do the same with a queue in memory and one with a table."""
    new = functools.partial(made, stream, policy, semantics)
    plain, tabled = new(None), new(table)
    units: list[PUnit] = []
    others: list[PUnit] = []
    for number, (step, value) in enumerate([*steps, ("stored", None), ("by snapshots", None)]):
        now_us = 1_000_000 + 10 * number
        if step == "enqueue":
            batch = [Update(u.key, u.time, u.value, now_us - u.value % 41) for u in value]
            assert enqueue(plain, batch, now_us) == enqueue(tabled, batch, now_us)
        elif step == "dequeue":
            assert served_of(plain, value, now_us) == served_of(tabled, value, now_us)
        elif step == "account":
            for mine, theirs in zip(
                plain.account_staleness(now_us), tabled.account_staleness(now_us), strict=True
            ):
                # In which order keys are added up, differs.
                assert theirs.area == pytest.approx(mine.area)
                assert (theirs.longest_us, theirs.key_time) == (mine.longest_us, mine.key_time)
                assert theirs.mass == pytest.approx(mine.mass)
        else:
            units.append(plain.delta())
            others.append(tabled.delta())
            assert content(units[-1:]) == content(others[-1:])
            if step == "by snapshots":
                units, others = list(plain.snapshot()), list(tabled.snapshot())
                assert content(units) == content(others)
            if step != "stored":
                tabled.close()
                units, others = others, units
                plain, tabled = new(None), new(table)
                plain.restore(map(through_bytes, units))
                tabled.restore(map(through_bytes, others))
            elif semantics is Semantics.UPDATE:
                assert len(tabled.accounts.records) == len(tabled), "only keys that wait are in memory"
        assert (plain.keys, len(plain), plain.servable) == (tabled.keys, len(tabled), tabled.servable)
        if semantics is Semantics.UPDATE:
            assert isinstance(tabled, UpdateQueue)
            assert_invariants(tabled)
    assert served_of(plain, 1000, 1 << 40) == served_of(tabled, 1000, 1 << 40)
    tabled.close()


BATCHES = st.lists(
    st.tuples(
        st.sampled_from(["batch", "batch", "batch", "fails", "cache is lost", "other kind"]),
        st.integers(0, 1),
        updates(keys=9),
        st.integers(0, 6),
    ),
    max_size=20,
)


@given(policy=POLICIES, steps=BATCHES)
@settings(max_examples=examples(25))
def test_a_bucket_goes_on_whichever_copy_loads_it_and_whatever_fails(
    tmp_path_factory: pytest.TempPathFactory, policy: Policy, steps: list[Any]
) -> None:
    place, scratch = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("scratch")
    model, kind, pointer = NaiveQueue(policy, 20.0), WorkingCopy.ROCKSDB, None
    workers: list[StateCache[UpdateQueue]] = [StateCache(1 << 30) for _ in range(2)]
    background = Later()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        rule = SnapshotRule(min_delta_bytes=0)
        store = BucketStore(open_files(place), background=background, snapshots=rule)
        for number, (step, worker, batch, limit) in enumerate(steps):
            now_us = 1_000_000 + 10 * number
            if step == "cache is lost":
                lose(workers[worker])
                background.run()
                continue
            if step == "other kind":
                kind = next(one for one in WorkingCopy if one is not kind)
                lose(*workers)
                continue
            table = table_maker(kind, scratch)
            found = workers[worker].take(
                store,
                pointer,
                lambda: made(STREAM, policy, Semantics.UPDATE, table),  # noqa: B023
            )
            store.release(found.handle)
            after = copy.deepcopy(model)
            assert enqueue(found.state, batch, now_us) == after.enqueue(batch, now_us)
            assert served_of(found.state, limit, now_us) == after.dequeue(limit, now_us)
            if step == "fails":
                found.state.close()
                continue
            handle = store.commit(found.state, found.handle)
            workers[worker].put(store, found.state, handle)
            model, pointer = after, handle.pointer
            assert found.state.keys == len(model.records)
        if pointer is not None:
            assert sorted(keys_of(store, pointer, policy)) == sorted(model.records)
    lose(*workers)
    background.run()
    assert list(scratch.iterdir()) == [], "each copy's directory goes with it"


def lose(*workers: StateCache[UpdateQueue]) -> None:
    for worker in workers:
        for state, _ in worker._entries.values():
            state.close()
        worker._entries.clear()


def keys_of(store: BucketStore, pointer: Pointer, policy: Policy) -> list[int]:
    queue = made(STREAM, policy, Semantics.UPDATE, None)
    store.load(pointer, queue)
    (unit,) = queue.snapshot()
    keys: list[int] = unit.blocks["cells"].column("key").to_pylist()
    return keys


@pytest.mark.parametrize("weighted", [False, True])
@given(policy=POLICIES, seed=st.integers(0, 1 << 32))
@settings(max_examples=examples(30))
def test_a_queue_of_some_of_the_keys_serves_them_as_the_whole_one_does(
    weighted: bool, policy: Policy, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    whole: Any = new_scheduler(policy, weighted=weighted)
    whole.reserve(40)
    waits = np.zeros(40, np.bool_)

    def arrive(queue: Any, ids: Any, resident: Any, shares: Any, interval: Any) -> None:
        queue.arrive(ids, resident, interval, 3.0, shares=shares, arrived_us=np.zeros(len(ids), np.int64))

    for _ in range(4):
        ids = draw.permutation(40)[:20]
        arrive(whole, ids, waits[ids], ONE // draw.integers(1, 9, 20), draw.uniform(0, 100, 20))
        waits[ids] = True
        waits[whole.pop(5)] = False
    numbers = draw.permutation(np.flatnonzero(waits | (draw.random(40) < 0.3)))
    some = whole.subset(numbers, waits[numbers])
    for count in (0, 7, 100):
        here = draw.permutation(len(numbers))[:count]
        there = numbers[here]
        facts = ONE // draw.integers(1, 9, len(here)), draw.uniform(0, 100, len(here))
        arrive(whole, there, waits[there], *facts)
        arrive(some, here, waits[there], *facts)
        waits[there] = True
        served = whole.pop(6)
        assert numbers[some.pop(6)].tolist() == served.tolist()
        waits[served] = False
    assert len(some) == len(whole) == waits.sum()


def test_what_is_in_service_keeps_its_number() -> None:
    found = []
    for table in (None, DictTable):
        queue = made(STREAM, Policy.IN_PLACE, Semantics.UPDATE, table)
        enqueue(queue, [Update(key, 1, key) for key in range(5)], 10)
        served_of(queue, 3, 20)
        served = queue.dequeue(1, 30)
        queue.delta()
        enqueue(queue, [Update(key, 1, key) for key in range(7, 12)], 40)
        queue.deliver(served, 50)
        found.append([(one.area, one.longest_us) for one in queue.account_staleness(60)])
    assert found[0] == found[1]


def test_a_snapshot_is_of_its_moment_and_outlives_its_copy(tmp_path: Path) -> None:
    queue = made(STREAM, Policy.IN_PLACE, Semantics.UPDATE, table_maker(WorkingCopy.ROCKSDB, tmp_path))
    enqueue(queue, [Update(key, 1, key) for key in range(1000)], 1)
    served_of(queue, 900, 2)
    queue.delta()
    wanted = content(queue.snapshot())
    units = queue.snapshot()
    enqueue(queue, [Update(key, 2, 7) for key in range(500, 1500)], 3)
    served_of(queue, 2000, 4)
    queue.delta()
    queue.close()
    assert list(tmp_path.iterdir()) == []
    assert content(units) == wanted
    assert len(wanted[1]) == 1000


def test_the_whole_state_is_never_in_memory_at_once(tmp_path: Path) -> None:
    table = functools.partial(RocksdbTable, scratch=tmp_path, batch_bytes=4000)
    queue = made(STREAM, Policy.IN_PLACE, Semantics.UPDATE, table)
    for begin in range(0, 5000, 1000):
        enqueue(queue, [Update(key, 1, key) for key in range(begin, begin + 1000)], begin)
        served_of(queue, 1000, begin)
        queue.delta()
        assert len(queue.accounts.records) == 0
        assert queue.accounts.records.capacity < 1000
    enqueue(queue, [Update(17, 2, 0)], 10_000)
    queue.delta()
    sizes = [unit.blocks["cells"].num_rows for unit in queue.snapshot()]
    assert len(sizes) > 10
    assert sizes[0] == 1, "the key that waits"
    assert sum(sizes) == queue.keys == 5000
    queue.close()


VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-1, 0, 1],
    pa.string(): ["", "a", "a longer text than a word"],
    pa.large_string(): ["", "a", "a longer text than a word"],
    pa.binary(): [b"", b"\0", b"12345678"],
    pa.decimal128(7, 2): [Decimal("-1.50"), Decimal("0.00"), Decimal("99.99")],
    pa.date32(): [date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29)],
    pa.float64(): [-0.0, math.inf, -1.5],
    pa.bool_(): [True, False, True],
    pa.timestamp("us"): [datetime(1969, 1, 1), datetime(2024, 1, 1, 1), datetime(2024, 1, 1, 2)],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_keys_of_any_type_come_back_from_the_table(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([("a", kind), ("b", pa.int32()), ("t", pa.int64())])
    stream = UpdateStream(schema, ("b", "a"), "t")
    queues = [
        made(stream, Policy.LINECUTTING, Semantics.UPDATE, table)
        for table in (None, table_maker(WorkingCopy.ROCKSDB, tmp_path))
    ]
    for number in range(3):
        columns = [pa.array(VALUES[kind], kind), pa.array([1, 1, 2], pa.int32()), pa.array([number] * 3)]
        found = []
        for queue in queues:
            arrivals = Arrivals.from_rows(stream, pa.RecordBatch.from_arrays(columns, schema=schema))
            queue.enqueue(arrivals, 10 * number)
            served = queue.dequeue(2, 10 * number)
            queue.deliver(served, 10 * number)
            rows = queue.delta().blocks["cells"].to_pylist()
            found.append((served.rows.to_pylist(), sorted(rows, key=str), queue.keys))
        assert found[0] == found[1]
        assert found[0][2] == 3
    queues[1].close()
