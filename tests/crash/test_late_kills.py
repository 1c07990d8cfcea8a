"""A worker that dies while it writes late rows neither loses nor repeats one."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock._failpoints import TASK_ROWS_POINTS
from penstock.checkpointing.p_stream import PStreamReader
from tests.spark.dropped_rows import WANTED, add, found, query, updates
from tests.spark.operators import test_late_rows
from tests.spark.queries import Place, failure, fresh_workers

pytestmark = [pytest.mark.crash, pytest.mark.spark]

_SESSION = "session"
_KILLS = [
    *((point, kind) for kind in (*WANTED, _SESSION) for point in TASK_ROWS_POINTS),
    *((point, "queue") for point in ("sink.after_segments", "operator.after_commit")),
]
if not os.environ.get("PENSTOCK_CRASH_KILLS"):  # each kind once, and each point of writing
    _KILLS = [(TASK_ROWS_POINTS[number % 2], kind) for number, kind in enumerate((*WANTED, _SESSION))]


class Workload:
    """The micro-batches of a kind of operator, the query over them, and what it drops."""

    def __init__(self, spark: SparkSession, place: Place, kind: str) -> None:
        self.spark, self.place, self.kind = spark, place, kind
        self.late = place.directory / "late"
        self.batches: list[Any] = (
            test_late_rows.readings(4, 400, 5) if kind == _SESSION else updates(8, 100, 5)
        )

    def add(self, *numbers: int) -> None:
        some = [self.batches[number] for number in numbers]
        if self.kind == _SESSION:
            self.place.input.add(*some)
        else:
            add(self.place, some)

    def query(self) -> DataFrame:
        if self.kind != _SESSION:
            return query(self.spark, self.place, self.kind, late_to=self.late, buckets=2)
        return penstock.update_window(
            self.place.input.frame(self.spark, test_late_rows.SCHEMA), key="k", time="t", session="2 s",
            aggs={"total": "sum(v)"}, watermark_delay="3 s", nulls="drop", late_to=self.late, buckets=2,
            state_location=self.place.state,
        )  # fmt: skip

    def check(self) -> None:
        wanted: Counter[Any]
        if self.kind == _SESSION:
            wanted = Counter(test_late_rows.of_sessions(self.batches, "2 s", "3 s"))
            assert test_late_rows.found(self.late) == wanted
        else:
            wanted = Counter(WANTED[self.kind](self.batches))
            assert found(self.late, self.kind) == wanted
        assert PStreamReader(self.late).read().num_rows == wanted.total() > 20


@pytest.mark.long
@pytest.mark.parametrize(("point", "kind"), _KILLS)
def test_a_worker_killed_while_late_rows_are_written_loses_and_repeats_none(
    spark: SparkSession, tmp_path: Path, point: str, kind: str
) -> None:
    work = Workload(spark, Place(tmp_path), kind)
    work.add(0, 1)
    work.place.run(work.query())
    work.add(2, 3)
    marker = tmp_path / "died"
    with fresh_workers(spark, PENSTOCK_FAILPOINTS=f"{point}=kill@{marker}"):
        error = failure(work.query(), work.place)
    assert marker.exists() and "Python worker exited unexpectedly (crashed)" in error
    work.add(4)
    work.place.run(work.query())
    work.check()
