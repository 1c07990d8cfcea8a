"""Parcels carry every row to its bucket, once, in bounded pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._clock import SimulatedClock
from penstock.errors import InvalidUsageError
from penstock.operators.queues.abc import KeyedQueue
from penstock.operators.scan.spec import PANE, Fragments, Partial
from penstock.operators.scheduling.serve import Budget, Query
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.operators.update_stream.conflation import Conflation
from penstock.operators.update_stream.operator_options import QueueOptions
from penstock.operators.update_stream.stream import UpdateStream
from penstock.spark_ext.border import packing
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.packing import Packer, PackingLimits
from penstock.spark_ext.border.parcels import ParcelLimits, from_parcel, to_parcels
from penstock.spark_ext.border.window_packing import EntryPacker, facts_of
from penstock.spark_ext.worker import bucket_task
from penstock.spark_ext.worker.bucket_task import BucketTask, Parcel, TaskShare
from penstock.spark_ext.worker.count_windows import RowOrderPacker, arriving_rows
from penstock.spark_ext.worker.queue_operator import QueueOperator, share
from penstock.spark_ext.worker.stateful import result_frames
from penstock.state_store.bucket_store import Pointer
from penstock.state_store.cache import StateCache
from penstock.windows.groups import GroupCodec, GroupSampling
from tests.oracles.naive import Update, bucket_of, key_words
from tests.samples.columns import KINDS, arrays
from tests.samples.streams import STREAM, rows_of, updates_of

Task: TypeAlias = BucketTask[KeyedQueue]

COLUMNS = ("value bigint", "key bigint", "text string", "time bigint")


@pytest.fixture(autouse=True)
def _no_memory_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_CHOICES", {})


def _updates(count: int, keys: int) -> list[Update]:
    return [Update(i % keys, i, i) for i in range(count)]


def _packed(packer: Packer, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    return [row for batch in packer(iter(batches)) for row in batch.to_pylist()]


def _rows_in(parcel: dict[str, Any]) -> Arrivals:
    return Arrivals.from_batch(from_parcel(parcel["payload"]), STREAM.schema)


@pytest.mark.parametrize("combine", [True, False, None])
def test_every_row_goes_to_the_bucket_of_its_key(combine: bool | None) -> None:
    updates = _updates(200, 50)
    parcels = _packed(Packer(STREAM, 8, "error", combine), rows_of(STREAM, updates))
    assert sum(int(_rows_in(parcel).count.sum()) for parcel in parcels) == 200
    for parcel in parcels:
        bucket = bucket_labels(8).index(parcel["bucket"])
        keys = {update.key for update in updates_of(_rows_in(parcel).rows)}
        assert {bucket_of(key_words(key), 8) for key in keys} == {bucket}


def test_combining_leaves_one_row_a_key_across_chunks() -> None:
    limits = PackingLimits(chunk_rows=10)
    batches = [rows_of(STREAM, _updates(100, 5)[i : i + 10]) for i in range(0, 100, 10)]
    parcels = _packed(Packer(STREAM, 1, "error", combine=True, limits=limits), *batches)
    assert len(parcels) == 1
    arrivals = _rows_in(parcels[0])
    assert sorted(u.value for u in updates_of(arrivals.rows)) == [95, 96, 97, 98, 99]
    assert arrivals.count.tolist() == [20] * 5


def test_the_automatic_choice_combines_where_keys_repeat_and_remembers_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = PackingLimits(chunk_rows=50, remembered_rows=50)
    conflations = []

    class Counted(Conflation):
        def __init__(self, stream: UpdateStream, part: int) -> None:
            conflations.append(1)
            super().__init__(stream, part)

    monkeypatch.setattr(packing, "Conflation", Counted)
    repeating = Packer(STREAM, 1, "error", None, name="repeating", limits=limits)
    distinct = Packer(STREAM, 1, "error", None, name="distinct", limits=limits)
    for _ in range(2):
        assert (
            len(_packed(repeating, rows_of(STREAM, _updates(50, 5)), rows_of(STREAM, _updates(50, 5)))) == 1
        )
    conflations.clear()
    for expected in (1, 0):
        batches = [rows_of(STREAM, _updates(50, 50)), rows_of(STREAM, _updates(50, 50))]
        assert len(_packed(distinct, *batches)) == 2
        assert len(conflations) == expected
        conflations.clear()


def test_unusable_rows_are_dropped_and_counted_once() -> None:
    schema = STREAM.schema
    columns = [pa.array([1, 2, 3]), pa.array([1, None, 2]), pa.array(["a", "b", "c"]), pa.array([1, 2, None])]
    bad = pa.RecordBatch.from_arrays(columns, schema=schema)
    parcels = _packed(Packer(STREAM, 2, "drop", combine=False), bad, bad)
    assert [parcel["dropped"] for parcel in parcels] == [*[0] * (len(parcels) - 1), 4]
    assert parcels[-1]["payload"] is None
    assert parcels[-1]["bucket"] == bucket_labels(2)[0]
    assert sum(len(_rows_in(parcel)) for parcel in parcels[:-1]) == 2
    with pytest.raises(InvalidUsageError, match="null"):
        _packed(Packer(STREAM, 2, "error", combine=False), bad)


def test_no_rows_are_no_parcels() -> None:
    packer = Packer(STREAM, 2, "error", None)
    assert _packed(packer) == []
    assert _packed(packer, rows_of(STREAM, [])) == []


def test_positions_go_on_across_batches() -> None:
    parcels = _packed(
        Packer(STREAM, 1, "error", combine=False),
        rows_of(STREAM, _updates(3, 3)),
        rows_of(STREAM, _updates(3, 3)),
    )
    first = np.concatenate([_rows_in(parcel).first for parcel in parcels])
    assert first.tolist() == list(range(6))


@pytest.mark.parametrize("packed", [False, True])
def test_large_batches_are_cut_into_bounded_parcels(packed: bool) -> None:
    limits = ParcelLimits(parcel_bytes=10_000, min_packed_bytes=0, max_packed_share=10 if packed else 0)
    batch = pa.RecordBatch.from_pydict({"n": list(range(5000)), "s": ["x" * 20] * 5000})
    pieces = list(to_parcels([batch], limits))
    assert len(pieces) > 10
    assert max(map(len, pieces)) < 12_000
    assert pa.Table.from_batches(map(from_parcel, pieces)).to_batches() != []
    assert pa.Table.from_batches(map(from_parcel, pieces)).combine_chunks().to_batches() == [batch]


def test_a_parcel_of_a_slice_does_not_carry_the_whole_batch() -> None:
    batch = pa.RecordBatch.from_pydict({"n": list(range(100_000)), "s": ["x" * 20] * 100_000})
    (parcel,) = to_parcels([batch.slice(500, 10)])
    assert len(parcel) < 2000
    assert from_parcel(parcel) == batch.slice(500, 10)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", list(KINDS), ids=str)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_nothing_is_lost_on_the_way(kind: pa.DataType, packed: bool, data: st.DataObject) -> None:
    schema = pa.schema([pa.field("c", kind)], metadata={"newest": "-3"})
    column = arrays(data.draw, kind, data.draw(st.integers(0, 5)), nulls=True)
    batch = pa.RecordBatch.from_arrays([column], schema=schema)
    (parcel,) = to_parcels([batch], ParcelLimits(min_packed_bytes=0, max_packed_share=1e9 if packed else 0))
    assert parcel.startswith(b"PENSTOCK") == packed or not batch.nbytes
    back = from_parcel(parcel)
    assert back.schema.equals(schema, check_metadata=True)
    assert repr(back.to_pylist()) == repr(batch.to_pylist())


def test_much_is_packed_where_that_makes_it_much_less() -> None:
    many = {"k": [7] * 50_000, "pane": list(range(50_000)), "n": [i % 20 for i in range(50_000)]}
    entries = pa.RecordBatch.from_pydict(many | {"sum": [i / 3 for i in range(50_000)]})
    (parcel,) = to_parcels([entries])
    assert len(parcel) < entries.nbytes / 3
    assert from_parcel(parcel) == entries
    for batch in (entries.select(["sum"]), entries.slice(0, 1000)):
        (parcel,) = to_parcels([pa.RecordBatch.from_pydict({f"{i}": batch["sum"] for i in range(9)})])
        assert not parcel.startswith(b"PENSTOCK")


def test_what_no_p_unit_holds_crosses_as_a_stream() -> None:
    count = 200_000
    numbers = pa.array([7] * count)
    noted = pa.schema([pa.field("n", pa.int64(), metadata={"unit": "s"})])
    bad = pa.array([b"\xff"] * count).view(pa.string())
    for batch in (
        pa.RecordBatch.from_arrays([numbers, numbers], ["n", "n"]),
        pa.RecordBatch.from_arrays([numbers], schema=noted),
        pa.RecordBatch.from_arrays([numbers, numbers, bad], ["n", "m", "t"]),
    ):
        (parcel,) = to_parcels([batch])
        back = from_parcel(parcel)
        assert back.schema.equals(batch.schema, check_metadata=True)
        assert [column.buffers()[1] for column in back] == [column.buffers()[1] for column in batch]
    (parcel,) = to_parcels(
        [pa.RecordBatch.from_arrays([numbers], schema=pa.schema({"n": pa.int64()}, {b"\xff": b"\xfe"}))]
    )
    assert parcel.startswith(b"PENSTOCK")
    assert from_parcel(parcel).schema.metadata == {b"\xff": b"\xfe"}


def test_batches_conform_to_the_schema_by_position() -> None:
    schema = pa.schema(
        [
            pa.field("t", pa.timestamp("us", "UTC"), nullable=False),
            ("s", pa.string()),
            ("l", pa.list_(pa.timestamp("us", "UTC"))),
        ]
    )
    other = pa.RecordBatch.from_arrays(
        [
            pa.array([1], pa.timestamp("us", "Europe/Zurich")),
            pa.array(["x"], pa.large_string()),
            pa.array([[1]], pa.list_(pa.timestamp("us", "Europe/Zurich"))),
        ],
        ["_0", "_1", "_2"],
    )
    out = cast_to_schema(other, schema)
    assert out.schema == schema
    assert out.column(0).cast(pa.int64()).to_pylist() == [1]
    assert cast_to_schema(out, schema) == out


# A bucket's task, without Spark.


@pytest.fixture
def task(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Task]:
    monkeypatch.setattr(bucket_task, "_CACHE", StateCache(1 << 24))
    monkeypatch.setattr(bucket_task, "_CHECKED", set())
    yield BucketTask(
        name="op",
        state_location=str(tmp_path),
        operator=QueueOperator(
            stream=STREAM,
            options=QueueOptions(budget=3),
            query=Query(None, STREAM.schema, STREAM.key),
            columns=COLUMNS,
        ),
        buckets=2,
        parallel=2,
    )


def _parcels(updates: list[Update], dropped: int = 0) -> list[Parcel]:
    packer = Packer(STREAM, 1, "error", combine=False)
    parcels = [Parcel(0, from_parcel(row["payload"])) for row in _packed(packer, rows_of(STREAM, updates))]
    return parcels + ([Parcel(dropped, None)] if dropped else [])


def test_every_row_of_a_task_is_accounted_for_also_dropped_ones(task: Task) -> None:
    pointer: Pointer | None = None
    clock, waiting = SimulatedClock(1000), 0
    for batch, (updates, dropped) in enumerate([(_updates(9, 4), 2), ([], 3), ([], 0), (_updates(5, 5), 0)]):
        pointer, _, metrics = task.run("q", batch, 1, pointer, _parcels(updates, dropped), clock)
        assert pointer is not None
        assert pointer.version == batch + 1
        assert metrics.rows_in == len(updates) + dropped
        assert metrics.dropped == dropped
        growth, waiting = metrics.waiting_keys - waiting, metrics.waiting_keys
        assert (
            metrics.rows_in == metrics.conflated + metrics.late + metrics.dropped + metrics.emitted + growth
        )
        clock.advance(10)


def test_an_attempt_that_is_run_again_gives_the_same_rows(task: Task) -> None:
    clock = SimulatedClock(1000)
    pointer, _, _ = task.run("q", 0, 0, None, _parcels(_updates(20, 10)), clock)
    results = []
    for _ in range(3):
        again, batches, metrics = task.run("q", 1, 0, pointer, _parcels(_updates(5, 5)), clock)
        assert again is not None
        assert again.version == 2
        results.append(([batch.to_pylist() for batch in batches], metrics.waiting_keys))
    assert results[0] == results[1] == results[2]


def test_shares_of_a_budget_add_up_and_take_turns() -> None:
    for buckets in (1, 2, 3, 5, 8):
        for rows in (1, 2, 7, 16):
            shares = [
                [
                    share(Budget(rows), TaskShare(bucket, buckets, batch, 2)).rows or 0
                    for bucket in range(buckets)
                ]
                for batch in range(buckets)
            ]
            assert all(sum(of_batch) == rows for of_batch in shares)
            assert all(sum(of_bucket) == rows for of_bucket in zip(*shares, strict=True))
            assert max(map(max, shares)) - min(map(min, shares)) <= 1


def test_buckets_that_are_served_one_after_the_other_divide_the_time() -> None:
    budget = Budget(duration_us=1000)
    assert share(budget, TaskShare(3, 8, 0, 2)).duration_us == 250
    assert share(budget, TaskShare(3, 8, 0, 3)).duration_us == 375
    assert share(budget, TaskShare(3, 8, 0, 16)).duration_us == 1000
    assert share(Budget(duration_us=1), TaskShare(3, 8, 0, 2)).duration_us == 1


def _with(task: Task, buckets: int | None = None, **changes: Any) -> Task:
    assert isinstance(task.operator, QueueOperator)
    operator = replace(task.operator, **changes)
    return replace(task, operator=operator, buckets=buckets or task.buckets)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"buckets": 4}, "number of buckets"),
        ({"options": QueueOptions(policy="fifo", budget=3)}, "policy"),
        ({"options": QueueOptions()}, "budget"),
        ({"columns": ("value string", *COLUMNS[1:])}, "schema"),
    ],
)
def test_a_restart_with_other_settings_is_refused(
    task: Task, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], name: str
) -> None:
    pointer, _, _ = task.run("q", 0, 0, None, _parcels(_updates(3, 3)), SimulatedClock(1))
    monkeypatch.setattr(bucket_task, "_CHECKED", set())
    with pytest.raises(InvalidUsageError, match=f"another {name}"):
        _with(task, **changes).run("q", 1, 0, pointer, [], SimulatedClock(2))
    assert task.run("q", 1, 0, pointer, [], SimulatedClock(2))[0] is not None


def test_rows_for_windows_of_rows_travel_with_their_times() -> None:
    schema = pa.schema([("at", pa.timestamp("us")), ("k", pa.string()), ("v", pa.int32())])
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([5, None, 7, 6], schema.field(0).type),
            pa.array(["a", "a", None, "b"]),
            pa.array(range(4)),
        ],
        names=schema.names,
    )
    arriving = arriving_rows(schema, "at", ("k",))

    def packed(nulls: str) -> list[dict[str, Any]]:
        packer = RowOrderPacker(schema, "at", EntryPacker(1, arriving, 4), nulls)
        return [parcel for batch in packer([rows.slice(0, 1), rows.slice(1)]) for parcel in batch.to_pylist()]

    with pytest.raises(InvalidUsageError, match="rows without a time"):
        packed("error")
    parcels = packed("drop")
    assert sum(parcel["dropped"] for parcel in parcels) == 1
    batches = [from_parcel(parcel["payload"]) for parcel in parcels if parcel["payload"]]
    assert len(batches) == 4, "each bucket learns the newest time"
    assert {facts_of(batch)[0] for batch in batches} == {7}
    assert all(batch.schema.equals(arriving) for batch in batches)
    found = sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist() if row["k"])
    assert found == [("a", 5, 0), ("b", 6, 3)]


@pytest.mark.parametrize("keys", [("k",), ("k", "l"), ()])
@pytest.mark.parametrize("many", [8, 1 << 14], ids=["by group", "by bucket"])
def test_entries_of_a_bucket_come_by_group_where_groups_have_many(keys: tuple[str, ...], many: int) -> None:
    count = 400
    columns = {
        "pane": pa.array([i // 8 * 60 for i in range(count)]),
        "k": pa.array([[None, "a", "b", "cc"][i % 4] for i in range(count)]),
        "l": pa.array([i % 8 // 4 for i in range(count)]),
        "rows": pa.array(range(count)),
    }
    made = pa.record_batch(columns).rename_columns([PANE, "k", "l", "rows"])
    packer = EntryPacker.build(
        Fragments(1000, "t", "s", keys, (Partial("count", "*", "rows"),)), made.schema, 3
    )
    packer = replace(packer, pane_steps=60, sampling=GroupSampling(min_rows=many, sample_rows=64))
    found = [
        (bucket_labels(3).index(row["bucket"]), from_parcel(row["payload"]))
        for batch in packer.pack([made.select([PANE, *keys, "rows"])])
        for row in batch.to_pylist()
    ]
    assert sorted(i for _, batch in found for i in batch["rows"].to_pylist()) == list(range(count))
    for bucket, batch in found:
        rows = batch.to_pylist()
        codec = GroupCodec([batch.schema.field(key) for key in keys])
        of = codec.encode([batch[key] for key in keys], len(rows)).bucket(3)
        assert set(of.tolist()) <= {bucket}
        runs = [tuple(row[key] for key in keys) for row in rows]
        changes = sum(a != b for a, b in pairwise(runs))
        if many == 8:
            assert changes == max(len(set(runs)) - 1, 0)
        for run in set(runs):
            mine = [row["rows"] for row in rows if tuple(row[key] for key in keys) == run]
            assert mine == sorted(mine)


def test_results_that_are_many_bytes_are_followed_by_rows_that_let_them_pass() -> None:
    parcels = [bytes(4), bytes(3), bytes(5), bytes(1)]
    frames = list(result_frames(parcels, batch_rows=10, held_bytes=7))
    assert [len(frame) for frame in frames] == [1, 1, 10, 1, 1]
    assert [parcel for frame in frames for parcel in frame["payload"] if parcel is not None] == parcels
    assert len(list(result_frames(parcels, batch_rows=0, held_bytes=7))) == 4, "no number is enough"
    assert len(list(result_frames(parcels, batch_rows=10))) == 4


@pytest.mark.parametrize("parcels", [[], [b"one"], [b"one", b"two"]])
def test_metrics_are_in_one_row_of_their_own_only_without_results(parcels: list[bytes]) -> None:
    frames = list(result_frames(parcels, batch_rows=10, metrics="facts"))
    assert [one for frame in frames for one in frame["payload"] if one is not None] == parcels
    assert [one for frame in frames for one in frame["metrics"] if one is not None] == ["facts"]
    assert sum(map(len, frames)) == max(len(parcels), 1)
