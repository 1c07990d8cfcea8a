"""Queues, unions and joins write what they drop once, however a micro-batch is divided and repeated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from penstock._clock import SimulatedClock
from penstock._failpoints import TASK_ROWS_POINTS, InjectedError
from penstock.checkpointing.p_stream import PStreamReader
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.operators.joins.spec import JoinedStream
from penstock.operators.scheduling.serve import Query
from penstock.operators.update_stream.operator_options import QueueOptions
from penstock.operators.update_stream.stream import SOURCE_COLUMN, UpdateStream
from penstock.spark_ext.api.update_join import JoinOperator
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.packing import Packer
from penstock.spark_ext.border.parcels import from_parcel
from penstock.spark_ext.sources import task_rows
from penstock.spark_ext.sources.task_rows import LateStream, dropped_columns
from penstock.spark_ext.worker.bucket_task import Parcel, TaskShare
from penstock.spark_ext.worker.queue_operator import QueueOperator
from penstock.sql.expression import Expression
from tests.spark.dropped_rows import WANTED, found, updates

pytestmark = pytest.mark.usefixtures("unsynced")

QUERY = "00000000-0000-0000-0000-000000000001"
BUCKETS = 3


def columns(*names: str) -> StructType:
    return StructType([StructField(name, LongType()) for name in names])


class Place:
    """An operator of each kind, its buckets, and its p-stream of late rows."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.kind = kind
        fields = [pa.field(name, pa.int64()) for name in ("k", "t", "v", "side")]
        late = directory / "late"
        state = str(directory / "state")
        if kind == "join":
            self.streams = [
                UpdateStream(pa.schema([*fields[:2], pa.field(name, pa.int64())]), ("k",), "t")
                for name in "bc"
            ]
            dropped = dropped_columns(columns("k", "t", "b", "c"), LongType(), sides=True)
            self.late = LateStream.open(late, "one", dropped, state)
            joined = JoinedStream(self.streams[0], self.streams[1], 6, 15, Expression.parse("b <> c"))
            self.operator: Any = JoinOperator(joined, (), (), None, self.late)
        else:
            united = kind == "union"
            more = [pa.field(SOURCE_COLUMN, pa.int8(), nullable=False)] if united else []
            schema = pa.schema([*fields, *more])
            source = SOURCE_COLUMN if united else None
            self.streams = [UpdateStream(schema, ("k",), "t", source=source)]
            self.late = LateStream.open(
                late, "one", dropped_columns(columns("k", "t", "v", "side"), LongType()), state
            )
            options = QueueOptions(nulls="drop", late_to=late)
            query = Query(None, pa.schema(fields), ("k",))
            self.operator = QueueOperator(self.streams[0], options, query, (), late=self.late)
        self.path = late
        self.new()

    def new(self) -> None:
        self.states = [self.operator.new_state() for _ in range(BUCKETS)]

    def parcels(self, rows: list[dict[str, Any]], parts: int) -> list[list[Parcel]]:
        """Return the parcels of each bucket, of rows that so many tasks pack."""
        made: list[list[Parcel]] = [[] for _ in range(BUCKETS)]
        for part in range(parts):
            mine = rows[part::parts]
            for number, stream in enumerate(self.streams):
                some = mine
                if self.kind == "join":
                    name = "bc"[number]
                    some = [{**row, name: row["v"]} for row in mine if row["side"] == number]
                elif self.kind == "union":
                    some = [{**row, SOURCE_COLUMN: row["side"]} for row in mine]
                side = ("left", "right")[number] if self.kind == "join" else ""
                packer = Packer(stream, BUCKETS, "drop", False, "one", side, dropped=self.late.form)
                for packed in packer([pa.RecordBatch.from_pylist(some, schema=stream.schema)]):
                    for row in packed.to_pylist():
                        batch = None if row["payload"] is None else from_parcel(row["payload"])
                        bucket = bucket_labels(BUCKETS).index(row["bucket"])
                        made[bucket].append(Parcel(row["dropped"], batch))
        return made

    def run(self, rows: list[dict[str, Any]], batch: int, parts: int) -> int:
        """Run a micro-batch; return the number of rows that were dropped."""
        total = 0
        for bucket, parcels in enumerate(self.parcels(rows, parts)):
            share = TaskShare(bucket, BUCKETS, batch, BUCKETS, query_id=QUERY)
            _, metrics = self.operator.run(self.states[bucket], parcels, share, SimulatedClock(5))
            total += metrics.late + metrics.duplicates + metrics.dropped
        return total

    def units(self) -> list[Any]:
        return [list(state.snapshot()) for state in self.states]

    def restore(self, units: list[Any]) -> None:
        self.new()
        for state, some in zip(self.states, units, strict=True):
            state.restore(some)


@pytest.mark.parametrize("kind", list(WANTED))
@pytest.mark.parametrize("point", [None, *TASK_ROWS_POINTS])
def test_dropped_rows_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, point: str | None
) -> None:
    place, batches = Place(tmp_path, kind), updates(3, 120, 4)
    counted = failures = 0
    for batch, rows in enumerate(batches):
        before = place.units()
        if point is not None:
            with monkeypatch.context() as broken:
                broken.setattr(task_rows, "failpoint", _fail_at(point, after=batch // 2 % 2))
                try:
                    place.run(rows, batch, 2)
                except InjectedError:
                    failures += 1
            place.restore(before)
        counted += place.run(rows, batch, 3)
        # The whole micro-batch runs again, divided in another way.
        after = place.units()
        place.restore(before)
        place.run(rows, batch, 1 + batch)
        place.restore(after)
    assert failures >= (0 if point is None else 2)
    wanted = WANTED[kind](batches, BUCKETS)
    assert found(place.path, kind) == wanted
    assert PStreamReader(place.path).read().num_rows == counted == wanted.total() > 20


def _fail_at(point: str, after: int) -> Callable[[str], None]:
    """Return a `failpoint` that fails once it has come to a point more often than `after`."""
    left = after

    def fail(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left < 0:
                raise InjectedError(name)

    return fail


def test_other_rows_of_a_micro_batch_are_refused(tmp_path: Path) -> None:
    place, batches = Place(tmp_path, "queue"), updates(3, 120, 2)
    place.run(batches[0], 0, 2)
    place.new()
    with pytest.raises(CorruptDataError, match="ahead of the checkpoint, and differ"):
        place.run(batches[1], 0, 2)


def test_late_rows_with_other_columns_need_another_p_stream(tmp_path: Path) -> None:
    late, state = str(tmp_path / "late"), str(tmp_path / "state")
    LateStream.open(late, "one", dropped_columns(columns("k", "t"), LongType()), state)
    with pytest.raises(InvalidUsageError) as refused:
        LateStream.open(late, "one", dropped_columns(columns("k", "t", "voltage"), LongType()), state)
    assert str(refused.value) == (
        f"the columns differ from the columns of the p-stream: late_to={late} missing=none unknown=voltage "
        "types=same. Hint: a p-stream keeps its columns; choose a new p-stream for late_to."
    )
