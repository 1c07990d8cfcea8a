"""State that was stored before a column was added has null there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock._clock import SimulatedClock
from penstock.checkpointing import PUnit, encode
from penstock.checkpointing.files import LocalFiles
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.operators.joins.join import UpdateJoin
from penstock.operators.joins.spec import JoinedStream
from penstock.operators.queues.adaptive_queue import AdaptiveQueue
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Query
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.choices import Semantics
from penstock.operators.update_stream.operator_options import QueueOptions
from penstock.operators.update_stream.stream import UpdateStream
from penstock.spark_ext.worker.bucket_task import BucketTask, Parcel
from penstock.spark_ext.worker.queue_operator import QueueOperator
from penstock.state_store.bucket_store import Pointer
from penstock.state_store.descriptions import add_columns, find_added, read_description
from penstock.state_store.location import SPECIFICATION_FILE
from tests.samples.streams import through_bytes

OLD = pa.schema({"v": pa.int64(), "k": pa.int64(), "t": pa.int64()})
NEW = pa.schema(
    {"more": pa.list_(pa.string()), "v": pa.int64(), "k": pa.int64(), "last": pa.int8(), "t": pa.int64()}
)


def stream(schema: pa.Schema) -> UpdateStream:
    return UpdateStream(schema, ("k",), "t")


def rows(schema: pa.Schema, *values: int) -> pa.RecordBatch:
    made = [{"v": v, "k": v % 7, "t": v, "last": v % 100, "more": [str(v), None]} for v in values]
    return pa.RecordBatch.from_pylist(made, schema=schema)


@pytest.mark.parametrize("semantics", list(Semantics))
def test_tuples_that_waited_have_null_in_added_columns(semantics: Semantics) -> None:
    def queue(schema: pa.Schema) -> UpdateQueue | AdaptiveQueue:
        if semantics is Semantics.UPDATE:
            return UpdateQueue(stream(schema), Policy.IN_PLACE)
        return AdaptiveQueue(stream(schema), Policy.IN_PLACE, semantics)

    old = queue(OLD)
    old.enqueue(Arrivals.from_rows(stream(OLD), rows(OLD, *range(5))), 0)
    units = [through_bytes(old.delta())]
    new = queue(NEW)
    new.restore(units)
    new.enqueue(Arrivals.from_rows(stream(NEW), rows(NEW, 12, 13)), 1)
    units.append(through_bytes(new.delta()))
    again = queue(NEW)
    again.restore(units)
    served = sorted(again.dequeue(99, 2).rows.to_pylist(), key=lambda row: row["v"])
    expected = [
        *({**row, "more": None, "last": None} for row in rows(OLD, *range(5)).to_pylist()),
        *rows(NEW, 12, 13).to_pylist(),
    ]
    assert served == expected
    with pytest.raises(CorruptDataError, match="a block's stored columns differ"):
        queue(OLD).restore(units)


def test_held_tuples_of_a_join_have_null_in_added_columns() -> None:
    right = UpdateStream(pa.schema({"k": pa.int64(), "t": pa.int64(), "c": pa.int64()}), ("k",), "t")

    def join(schema: pa.Schema) -> UpdateJoin:
        return UpdateJoin(JoinedStream(stream(schema), right, 100, 100))

    old = join(OLD)
    old.join(Arrivals.from_rows(stream(OLD), rows(OLD, 3)), None)
    new = join(NEW)
    new.restore([through_bytes(old.delta())])
    other = pa.RecordBatch.from_pylist([{"k": 3, "t": 9, "c": 1}], schema=right.schema)
    (match,) = new.join(None, Arrivals.from_rows(right, other)).rows.to_pylist()
    assert match == {"v": 3, "k": 3, "t": 9, "c": 1, "more": None, "last": None}


@pytest.mark.parametrize(
    ("theirs", "ours", "added"),
    [
        (["a int"], ["a int"], []),
        (["a int"], ["b int", "a int", "c int"], ["b int", "c int"]),
        (["a int", "c int"], ["a int", "b int", "c int"], ["b int"]),
        (["a int", "c int"], ["c int", "b int", "a int"], None),
        (["a int"], ["a bigint", "b int"], None),
        (["a int"], ["a int", "d int"], None),
        (["a int", "b int"], ["a int"], None),
    ],
)
def test_only_columns_that_may_be_null_are_added(
    theirs: list[str], ours: list[str], added: list[str] | None
) -> None:
    assert find_added(theirs, ours, {"b int", "c int"}) == added


def test_the_newest_description_counts(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    assert read_description(files) is None
    files.publish(SPECIFICATION_FILE, encode(PUnit("operator", {"key": ["k"], "schema": ["k int"]})))
    for count in (2, 3):
        add_columns(files, {"schema": ["k int"] * count})
        assert read_description(files) == {"key": ["k"], "schema": ["k int"] * count}
    assert len(list(tmp_path.iterdir())) == 3


def test_a_worker_that_held_the_state_before_a_column_was_added_loads_it_again(tmp_path: Path) -> None:
    def task(schema: pa.Schema) -> BucketTask[Any]:
        texts = tuple(f"{one.name} {one.type}" for one in schema)
        query = Query(None, schema, ("k",))
        operator = QueueOperator(stream(schema), QueueOptions(budget=1), query, texts)
        return BucketTask("one", str(tmp_path), operator, 1, 1)

    def run(schema: pa.Schema, batch: int, pointer: Pointer | None, *values: int) -> Any:
        arrivals = Arrivals.from_rows(stream(schema), rows(schema, *values))
        parcels = [Parcel(0, arrivals.to_batch())] if values else []
        return task(schema).run("query", batch, 0, pointer, parcels, SimulatedClock(batch))

    pointer, first, _ = run(OLD, 0, None, 1, 2, 3)
    emitted = [row for batch in first for row in batch.to_pylist()]
    for batch in range(1, 4):
        pointer, found, _ = run(NEW, batch, pointer, *([11] if batch == 1 else []))
        emitted += [row for one in found for row in one.to_pylist()]
    assert [(row["v"], row.get("last")) for row in emitted] == [(1, None), (2, None), (3, None), (11, 11)]
    described = read_description(LocalFiles(tmp_path / "query" / "one"))
    assert described is not None
    with pytest.raises(InvalidUsageError, match=r"another schema.*or with a copy that .*migrate makes"):
        task(OLD).check_same(described, "file")
    with pytest.raises(
        InvalidUsageError, match=r"another schema.*start with a new checkpoint \(.* files\)\.$"
    ):
        task(OLD).check_same(described, "file", in_graph=True)
    marked = [*task(OLD).specification()["schema"], "deleted boolean"]
    with pytest.raises(InvalidUsageError, match="the checkpoint was made with another delete_when"):
        task(OLD).check_same({**task(OLD).specification(), "schema": marked}, "file")


def test_an_added_column_without_nulls_is_an_error_that_says_so(tmp_path: Path) -> None:
    def task(schema: pa.Schema) -> BucketTask[Any]:
        texts = tuple(f"{one.name} {one.type}" for one in schema)
        operator = QueueOperator(stream(schema), QueueOptions(budget=1), Query(None, schema, ("k",)), texts)
        return BucketTask("one", str(tmp_path), operator, 1, 1)

    known = task(OLD).specification()
    assert task(NEW).check_same(known, "") == ["schema"]
    strict = NEW.set(3, pa.field("last", pa.int8(), nullable=False))
    hint = r"the added column last int8 must allow nulls .*; or compute it from the operator's output\.$"
    with pytest.raises(InvalidUsageError, match=hint):
        task(strict).check_same(known, "")
    with pytest.raises(InvalidUsageError, match="that penstock state migrate makes"):
        task(OLD).check_same(task(NEW).specification(), "")


def test_nulls_of_a_column_that_was_nullable_are_told_apart_from_damage() -> None:
    unit = PUnit("x", {}, {"rows": pa.record_batch({"v": pa.array([None], pa.int64())})})
    with pytest.raises(CorruptDataError, match=r"column=v\. Hint: if the input's column was nullable before"):
        unit.block("rows", pa.schema([pa.field("v", pa.int64(), nullable=False)]))
