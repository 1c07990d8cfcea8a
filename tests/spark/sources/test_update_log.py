"""Update logs in Spark: compacted by their sinks, and read by queries that may run a micro-batch again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.checkpointing.p_stream import PStream, PStreamReader, PStreamWriter
from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.checkpointing.p_stream.update_log.compaction import compact
from penstock.jobs.pipelines.run import run_to_end
from tests.spark.p_streams import stream
from tests.spark.pipelines.test_run_formats import NEWEST, ROWS, pipeline
from tests.spark.queries import PATIENCE_S, Input, needs_admission_control, quotes

pytestmark = pytest.mark.spark

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64(), "gone": pa.bool_()})


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    """Give a session that knows the data source."""
    penstock.register(spark)
    return spark


def append(place: Path, *times: int) -> None:
    """Append an update of key time % 3 at each time."""
    never = CleanupRule(min_tail_rows=10**9)
    with PStreamWriter(place, SCHEMA, threads=1, key="k", time="t", delete_when="gone", cleanup=never) as to:
        to.append([{"k": time % 3, "t": time, "gone": False} for time in times])


class _Batches:
    """A sink that keeps the times in each micro-batch, and fails in those that it is told to."""

    def __init__(self, *failing: int) -> None:
        self.failing = set(failing)
        self.times: list[tuple[int, list[int]]] = []

    def __call__(self, df: DataFrame, batch: int) -> None:
        self.times.append((batch, sorted(row["t"] for row in df.collect())))
        if batch in self.failing:
            raise RuntimeError("the store is down")


def run(df: DataFrame, checkpoint: Path, sink: _Batches) -> None:
    """Run a query over all that is there."""
    writer = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(int(PATIENCE_S))
    finally:
        query.stop()


@needs_admission_control
def test_a_micro_batch_that_runs_again_after_a_compaction_has_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    append(place, *range(12))
    sink = _Batches(1)
    df = stream(spark, place, reader="query", maxRows=5)
    with pytest.raises(PySparkException, match="the store is down"):
        run(df, checkpoint, sink)
    assert sink.times == [(0, [0, 1, 2, 3, 4]), (1, [5, 6, 7, 8, 9])]
    append(place, 12, 13, 14)
    assert compact(PStream(place)) is not None
    append(place, 15)
    assert compact(PStream(place)) is not None
    assert PStreamReader(place).read()["t"].to_pylist() == [13, 14, 15]
    again = _Batches()
    run(df, checkpoint, again)
    assert again.times[0] == (1, [5, 6, 7, 8, 9]), "as it was planned"
    assert again.times[1:] == [(2, [13, 14, 15])], "nothing superseded, and nothing missing"


def test_a_stream_of_an_update_log_needs_a_reader(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "log", 1)
    with pytest.raises(PySparkException, match="a stream of an update log needs a reader"):
        run(stream(spark, tmp_path / "log"), tmp_path / "checkpoint", _Batches())
    assert spark.read.format("pstream").load(str(tmp_path / "log")).count() == 1


@needs_admission_control
def test_a_checkpoint_that_is_older_than_its_reader_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "log"
    append(place, 0, 1, 2, 3, 4, 5)
    checkpoint = tmp_path / "checkpoint"
    run(stream(spark, place, reader="query", maxRows=2), checkpoint, _Batches())
    PStream(place).trim_from("query", 6)
    for log in [checkpoint / "offsets" / "2", checkpoint / "commits" / "1", checkpoint / "commits" / "2"]:
        log.unlink()
    with pytest.raises(PySparkException, match="older than what its reader has released"):
        run(stream(spark, place, reader="query"), checkpoint, _Batches())


def test_sinks_make_and_compact_update_logs(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(70_000).selectExpr("id % 50 AS k", "'x' AS text", "id AS t", "id % 50 = 7 AS gone")
    given = {"key": "k, text", "time": "t", "deleteWhen": "gone", "keepDeletes": "0s"}
    place = str(tmp_path / "log")
    rows.write.format("pstream").options(**given).mode("append").save(place)
    log = PStream(place)
    assert log.update_log is not None
    assert (log.update_log.key, log.update_log.time, log.update_log.delete_when) == (
        ("k", "text"),
        "t",
        "gone",
    )
    assert log.end == 70_000
    assert log.log.compaction is not None, "the sink has compacted"
    found = spark.read.format("pstream").load(place)
    assert sorted((row["k"], row["t"]) for row in found.collect()) == [
        (k, 69_950 + k) for k in range(50) if k != 7
    ]
    with pytest.raises(PySparkException, match="without a key or time"):
        rows.selectExpr("if(k = 3, null, k) AS k", "text", "t", "gone").write.format("pstream").mode(
            "append"
        ).save(place)


def test_pipelines_write_and_read_update_logs(spark: SparkSession, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    made = {"key": "k", "time": "t", "delete_when": "v > 5", "keep_deletes": "2 hours"}
    first = pipeline(tmp_path, "first", sink={"type": "pstream", "path": log, **made})
    Input(tmp_path / "in").add(quotes(ROWS))
    run_to_end(first)
    found = PStream(log)
    assert found.update_log is not None
    assert (found.update_log.key, found.update_log.delete_when) == (("k",), "v > 5")
    assert found.update_log.keep_deletes_us == 7_200_000_000
    out = str(tmp_path / "out")
    source = {"type": "pstream", "path": log}
    run_to_end(pipeline(tmp_path, "second", source=source, sink={"type": "pstream", "path": out}))
    assert sorted(PStreamReader(out).read()["t"].to_pylist()) == sorted(row[1] for row in NEWEST)
    assert PStream(log).readers(), "the graph has a reader of its own"
