"""A task that fails after it wrote its segment, and is tried again, writes no row twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.checkpointing.p_stream import PStream
from tests.long_tests import long_but
from tests.spark.p_streams import append, numbers, run, stream
from tests.spark.queries import fresh_workers

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("action", long_but(["error", "kill"], "kill"))
def test_an_attempt_that_failed_leaves_at_most_an_orphan(
    spark: SparkSession, tmp_path: Path, action: str
) -> None:
    source, sink = tmp_path / "source", tmp_path / "sink"
    marker = tmp_path / "failed"
    append(source, 0, 40)
    with fresh_workers(spark, PENSTOCK_FAILPOINTS=f"sink.after_segments={action}@{marker}"):
        penstock.register(spark)
        run(stream(spark, source), sink, tmp_path / "checkpoint")
        spark.range(10).write.format("pstream").mode("append").save(str(tmp_path / "batch"))
    assert marker.exists()
    assert numbers(sink) == list(range(40))
    assert sorted(row.id for row in spark.read.format("pstream").load(str(tmp_path / "batch")).collect()) == [
        *range(10)
    ]
    view = PStream(sink)
    segments = sum(len(commit.segments) for commit in view.log.commits)
    assert len(view.segments.list()) <= segments + 1
    (writer,) = view.log.writers
    view.cut_back(writer)
    assert len(view.segments.list()) == segments
