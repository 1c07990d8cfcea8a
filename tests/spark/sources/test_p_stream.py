"""The data source ``pstream``: where it begins, how much it takes, what it keeps, what it refuses."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.checkpointing.p_stream import PStream, PStreamWriter, Unit
from penstock.checkpointing.p_stream.segments import pieces
from penstock.spark_ext.border.spark_versions import HAS_ADMISSION_CONTROL
from penstock.spark_ext.sources import p_stream_source
from penstock.spark_ext.sources.pushed import split_large
from tests.spark.p_streams import (
    SCHEMA,
    append,
    batch_rows,
    last_offset,
    numbers,
    run,
    start,
    stream,
    table,
)
from tests.spark.queries import needs_admission_control, wait

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    """Give a session that knows the data source."""
    penstock.register(spark)
    return spark


@contextlib.contextmanager
def refused(message: str) -> Iterator[None]:
    """Expect an error of ours, which Spark wraps."""
    with pytest.raises(PySparkException, match=message):
        yield


@needs_admission_control
@pytest.mark.parametrize("torn", [1, 0])
def test_a_checkpoint_that_is_older_than_what_was_written_is_refused(
    spark: SparkSession, tmp_path: Path, torn: int
) -> None:
    """Spark plans a micro-batch anew under a number that the sink has, with other rows."""
    source, sink, checkpoint = tmp_path / "source", tmp_path / "sink", tmp_path / "checkpoint"
    append(source, 0, 20)
    run(stream(spark, source, maxRows=10), sink, checkpoint)
    assert numbers(sink) == list(range(20))
    for log in [*checkpoint.glob("offsets/[0-9]*"), *checkpoint.glob("commits/[0-9]*")]:
        if int(log.name) >= torn:
            log.unlink()
    append(source, 20, 30)
    df = stream(spark, source, maxRows=15)
    with refused("the checkpoint is older than what the query has written to the p-stream"):
        run(df, sink, checkpoint)
    assert numbers(sink) == list(range(20))


def test_a_restarted_query_goes_on_exactly_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    source, sink, checkpoint = tmp_path / "source", tmp_path / "sink", tmp_path / "checkpoint"
    append(source, 0, 25)
    df = stream(spark, source, reader="query").where("n % 2 = 0")
    run(df, sink, checkpoint)
    append(source, 25, 60)
    run(df, sink, checkpoint)
    nothing = run(df, sink, checkpoint)
    assert batch_rows(nothing) == []
    assert numbers(sink) == list(range(0, 60, 2))
    schema = PStream(sink).schema
    assert schema.equals(SCHEMA)
    writers = PStream(sink).log.writers
    assert list(writers) == [str(nothing.id)], "one checkpoint is one writer"
    run(df, sink, tmp_path / "other checkpoint")
    # Spark says that a batch is done when it plans the next one, here of rows 25 to 59.
    assert numbers(sink)[30:] == list(range(26, 60, 2)), "the reader goes on after what it released"


def test_a_running_query_sees_new_rows_and_ends_with_nothing_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, sink = tmp_path / "source", tmp_path / "sink"
    append(source, 0, 5)
    query = start(stream(spark, source), sink, tmp_path / "checkpoint")
    try:
        for first in (5, 10, 15):
            wait(query, partial(_has_read, query, first))
            append(source, first, first + 5)
        query.processAllAvailable()
    finally:
        query.stop()
    assert numbers(sink) == list(range(20))


def _has_read(query: StreamingQuery, offset: int) -> bool:
    return bool(query.recentProgress) and last_offset(query) >= offset


@pytest.mark.skipif(HAS_ADMISSION_CONTROL, reason="since Spark 4.2, micro-batches can have limits")
@pytest.mark.parametrize("option", ["maxRows", "maxBytes"])
def test_before_spark_4_2_limits_are_refused(spark: SparkSession, tmp_path: Path, option: str) -> None:
    append(tmp_path / "source", 0, 25)
    df = stream(spark, tmp_path / "source", **{option: 7})
    with pytest.raises(StreamingQueryException, match=r"a limit of a micro-batch needs Spark 4\.2 or newer"):
        run(df, tmp_path / "sink", tmp_path / "checkpoint")


@needs_admission_control
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"maxRows": 7}, [7, 7, 7, 4]),
        ({"maxRows": 1000}, [25]),
        ({"maxBytes": 1}, [10, 10, 5]),
        ({"maxRows": 100, "maxBytes": 1}, [10, 10, 5]),
    ],
    ids=str,
)
def test_micro_batches_keep_their_limits(
    spark: SparkSession, tmp_path: Path, options: dict[str, int], expected: list[int]
) -> None:
    append(tmp_path / "source", 0, 25)
    query = run(stream(spark, tmp_path / "source", **options), tmp_path / "sink", tmp_path / "checkpoint")
    assert batch_rows(query) == expected
    assert numbers(tmp_path / "sink") == list(range(25))


@needs_admission_control
def test_bytes_of_a_micro_batch_are_those_that_are_stored(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "source", 0, 40)
    sizes = [piece.size_bytes for piece in PStream(tmp_path / "source").pieces(0, 40)]
    df = stream(spark, tmp_path / "source", maxBytes=sizes[0] + sizes[1])
    assert batch_rows(run(df, tmp_path / "sink", tmp_path / "checkpoint"))[0] == 20


@needs_admission_control
def test_available_now_ends_with_what_was_there_at_its_start(spark: SparkSession, tmp_path: Path) -> None:
    source, sink = tmp_path / "source", tmp_path / "sink"
    append(source, 0, 20)
    query = start(stream(spark, source, maxRows=1), sink, tmp_path / "checkpoint", availableNow=True)
    wait(query, lambda: bool(query.recentProgress))
    append(source, 20, 40)
    assert query.awaitTermination(120)
    assert numbers(sink) == list(range(20))


@pytest.mark.parametrize(("begin", "first"), [("earliest", 10), ("15", 15), ("time", 20), ("latest", 40)])
def test_a_query_begins_where_it_is_told(spark: SparkSession, tmp_path: Path, begin: str, first: int) -> None:
    source = tmp_path / "source"
    for low in range(0, 40, 10):
        append(source, low, low + 10)
    view = PStream(source)
    view.subscribe("releases")
    view.trim_from("releases", 10)
    view.trim(now=True)
    if begin == "time":
        begin = datetime.fromtimestamp(view.log.commits[1].time_us / 1e6, UTC).isoformat()
    df = stream(spark, source, start=begin)
    run(df, tmp_path / "sink", tmp_path / "checkpoint")
    append(source, 40, 45)
    run(df, tmp_path / "sink", tmp_path / "checkpoint")
    assert numbers(tmp_path / "sink") == list(range(first, 45))
    batch = spark.read.format("pstream").option("start", begin).load(str(source))
    assert [row.n for row in batch.collect()] == ([] if begin == "latest" else list(range(first, 45)))


def test_readers_have_their_own_progress_and_rows_go_when_both_are_done(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    view = PStream(source, SCHEMA)
    view.subscribe("slow")
    frames = {name: stream(spark, source, reader=name) for name in ("fast", "slow")}

    def catch_up(name: str) -> None:
        run(frames[name], tmp_path / name, tmp_path / f"checkpoint of {name}")

    for first in range(0, 60, 3):
        append(source, first, first + 3)
        if first == 48:
            catch_up("fast")
    catch_up("fast")
    view.refresh()
    # Spark says that a batch is done when it plans the next one.
    assert view.readers() == {"fast": 51, "slow": 0}
    assert view.start == 0
    assert len(view.segments.list()) == 20
    catch_up("slow")
    append(source, 60, 61)
    catch_up("slow")
    view.refresh()
    assert view.readers() == {"fast": 51, "slow": 60}
    assert view.start == 51
    assert len(view.segments.list()) == 4
    append(source, 61, 62)
    catch_up("fast")
    assert numbers(tmp_path / "fast") == list(range(62))
    assert numbers(tmp_path / "slow") == list(range(61))


def test_a_stream_that_was_made_anew_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source, sink, checkpoint = tmp_path / "source", tmp_path / "sink", tmp_path / "checkpoint"
    append(source, 0, 5)
    run(stream(spark, source), sink, checkpoint)
    shutil.rmtree(source)
    append(source, 100, 105)
    with refused("the checkpoint belongs to another p-stream"):
        run(stream(spark, source), sink, checkpoint)
    assert numbers(sink) == list(range(5))


def test_rows_that_were_released_before_a_restart_are_missed_loudly(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, sink, checkpoint = tmp_path / "source", tmp_path / "sink", tmp_path / "checkpoint"
    append(source, 0, 5)
    run(stream(spark, source), sink, checkpoint)
    append(source, 5, 10)
    view = PStream(source)
    view.subscribe("other")
    view.trim_from("other", 10)
    view.trim(now=True)
    with refused("rows of the p-stream are already released.* wanted=5 start=10"):
        run(stream(spark, source), sink, checkpoint)
    with refused("rows of the p-stream are already released"):
        spark.read.format("pstream").option("start", 3).load(str(source)).collect()


def test_columns_are_chosen_by_name(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "source", 0, 5)
    read = spark.read.format("pstream")
    assert read.option("columns", "text , n").load(str(tmp_path / "source")).columns == ["text", "n"]
    one = read.option("columns", '["text"]').load(str(tmp_path / "source"))
    assert [row.text for row in one.collect()] == [None, "1", "2", None, "4"]
    given = spark.read.format("pstream").schema("n long").load(str(tmp_path / "source"))
    assert [row.n for row in given.collect()] == [0, 1, 2, 3, 4]
    spark.range(3).selectExpr("id", "id % 2 odd").write.format("pstream").mode("append").save(
        str(tmp_path / "s")
    )
    ours = spark.read.format("pstream").option("columns", "odd").load(str(tmp_path / "s"))
    assert sorted(row.odd for row in ours.collect()) == [0, 0, 1]
    loose = spark.read.format("pstream").schema("odd long, id long").load(str(tmp_path / "s"))
    assert sorted(tuple(row) for row in loose.collect()) == [(0, 0), (0, 2), (1, 1)]
    with refused("no such columns.* columns=x known=n, text"):
        _ = read.option("columns", "n,x").load(str(tmp_path / "source")).columns
    with refused("types=n is int, not bigint"):
        spark.read.format("pstream").schema("n int").load(str(tmp_path / "source")).collect()


def test_a_batch_is_divided_along_p_units(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "source", 0, 100)
    read = spark.read.format("pstream")
    two = read.load(str(tmp_path / "source")).select(sf.spark_partition_id())
    assert two.distinct().count() == 2
    three = read.option("partitions", 3).load(str(tmp_path / "source"))
    rows = three.select("n", sf.spark_partition_id().alias("part")).collect()
    assert [sum(row.part == part for row in rows) for part in range(3)] == [30, 40, 30]
    assert [row.n for row in rows] == list(range(100))


def test_pieces_are_balanced_and_in_order() -> None:
    from penstock.checkpointing.p_stream import Commit, Segment

    for counts in ([1], [5, 1, 1, 1, 1, 1], [1] * 7, [100, 1, 1], [1, 1, 100]):
        commit = Commit("w", 0, "", 0, 0, (Segment("s", tuple(Unit(0, 1, n) for n in counts)),))
        wanted = list(pieces([commit], 0, sum(counts)))
        for parts in range(1, 9):
            groups = p_stream_source.balance(wanted, parts)
            assert len(groups) <= parts
            assert [piece for group in groups for piece in group.pieces] == wanted


def test_an_empty_stream_has_no_rows_yet(spark: SparkSession, tmp_path: Path) -> None:
    PStream(tmp_path / "source", SCHEMA)
    assert spark.read.format("pstream").load(str(tmp_path / "source")).collect() == []
    run(stream(spark, tmp_path / "source"), tmp_path / "sink", tmp_path / "checkpoint")
    assert numbers(tmp_path / "sink") == []
    append(tmp_path / "source", 0, 5)
    run(stream(spark, tmp_path / "source"), tmp_path / "sink", tmp_path / "checkpoint")
    assert numbers(tmp_path / "sink") == list(range(5))


@needs_admission_control
def test_batches_without_rows_write_nothing(spark: SparkSession, tmp_path: Path) -> None:
    source, sink, checkpoint = tmp_path / "source", tmp_path / "sink", tmp_path / "checkpoint"
    append(source, 0, 5)
    df = stream(spark, source, maxRows=1).where("n = 2")
    run(df, sink, checkpoint)
    assert numbers(sink) == [2]
    assert len(PStream(sink).segments.list()) == 1
    spark.range(0).write.format("pstream").mode("append").save(str(tmp_path / "nothing"))
    assert PStream(tmp_path / "nothing").schema.names == ["id"]


def test_what_is_not_there_or_not_possible_is_said(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    with refused("there is no p-stream"):
        _ = stream(spark, source).columns
    with refused("there is no p-stream"):
        _ = spark.read.format("pstream").load(str(source)).columns
    with refused("needs a path"):
        _ = spark.read.format("pstream").load().columns
    append(source, 0, 5)
    for name, value, message in [
        ("maxRow", 1, r"does not have these options: options=maxrow\. Hint: did you mean 'maxRows'\?"),
        ("maxRows", 0, "not a whole number, or is too small: option=maxRows"),
        ("maxBytes", "x", "not a whole number, or is too small: option=maxBytes"),
        ("start", "newest", "the start is not valid: start=newest"),
        ("reader", "a/b", "the name is not allowed"),
        ("columns", "[1]", "not a JSON list of names"),
        ("buckets", 2, "for a scan's fragments only"),
        ("lookup", "{}", "for fragments that become parcels only"),
    ]:
        with refused(message):
            _ = stream(spark, source, **{name: value}).columns
    for option in ("reader", "maxRows"):
        with refused("only for streams"):
            spark.read.format("pstream").option(option, "1").load(str(source)).collect()
    rows = spark.range(1).write.format("pstream")
    with refused("accepts only appends"):
        rows.mode("overwrite").save(str(tmp_path / "sink"))
    with refused("go together"):
        rows.mode("append").option("writer", "w").save(str(tmp_path / "sink"))
    with refused("does not have these options: options=reader"):
        spark.range(1).write.format("pstream").mode("append").option("reader", "r").save(str(tmp_path / "s"))
    assert not (tmp_path / "sink").exists()


def test_rows_of_another_schema_are_refused_before_any_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, sink, checkpoint = tmp_path / "source", tmp_path / "sink", tmp_path / "checkpoint"
    append(source, 0, 5)
    df = stream(spark, source)
    run(df, sink, checkpoint)
    append(source, 5, 10)
    with refused("the columns differ from the columns of the p-stream.* missing=text unknown=word"):
        run(df.withColumnRenamed("text", "word"), sink, checkpoint)
    with refused("types=n is string, not bigint"):
        df.selectExpr("cast(n as string) n", "text").writeStream.format("pstream").option(
            "checkpointLocation", str(checkpoint)
        ).trigger(availableNow=True).start(str(sink)).awaitTermination()
    assert len(PStream(sink).segments.list()) == 1
    run(df.select("text", "n"), sink, checkpoint)
    assert numbers(sink) == list(range(10)), "another order is no other schema"


def test_a_stream_of_other_arrow_types_takes_what_it_can_hold(spark: SparkSession, tmp_path: Path) -> None:
    sink = tmp_path / "sink"
    with PStreamWriter(sink, pa.schema([pa.field("id", pa.uint8(), nullable=False)])) as writer:
        writer.append(pa.table({"id": pa.array([7], pa.uint8())}, writer.schema))
    df = spark.range(3).selectExpr("cast(id as short) id")
    df.write.format("pstream").mode("append").save(str(sink))
    with refused("cannot be kept exactly: column=id"):
        df.selectExpr("cast(-1 - id as short) id").write.format("pstream").mode("append").save(str(sink))
    with refused("not nullable has nulls: column=id"):
        df.selectExpr("cast(null as short) id").write.format("pstream").mode("append").save(str(sink))
    read = spark.read.format("pstream").load(str(sink))
    assert sorted(row.id for row in read.collect()) == [0, 1, 2, 7]


def test_a_checkpoint_cannot_take_the_name_of_another_ones_writer(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, sink = tmp_path / "source", tmp_path / "sink"
    append(source, 0, 5)
    run(stream(spark, source), sink, tmp_path / "one", writer="mine")
    append(source, 5, 10)
    with refused("another query has written under this writer's name.* writer=mine"):
        run(stream(spark, source), sink, tmp_path / "two", writer="mine")
    run(stream(spark, source), sink, tmp_path / "one", writer="mine")
    assert numbers(sink) == list(range(10))


def test_a_batch_job_with_a_number_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    sink = tmp_path / "sink"
    for batch in (0, 0, 1, 0):
        df = spark.createDataFrame([(batch, "a")], "n long, text string")
        df.write.format("pstream").mode("append").option("writer", "job").option("batch", batch).save(
            str(sink)
        )
    assert numbers(sink) == [0, 1]
    assert len(PStream(sink).segments.list()) == 2


def test_units_are_as_large_as_is_told(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(0, 100, 1, 1).write.format("pstream").mode("append").option("unitRows", 30).option(
        "goal", "fast"
    ).save(str(tmp_path / "sink"))
    (commit,) = PStream(tmp_path / "sink").log.commits
    assert [unit.rows for segment in commit.segments for unit in segment.units] == [30, 30, 30, 10]


def test_a_stream_is_made_with_direct_io_if_that_is_told(spark: SparkSession, tmp_path: Path) -> None:
    def write(count: int, **options: str) -> None:
        rows = spark.range(0, count, 1, 1).toDF("n").write.format("pstream").mode("append")
        rows.options(**options).save(str(tmp_path / "sink"))

    write(10, directIo="true")
    write(10)
    assert PStream(tmp_path / "sink").direct_io
    assert numbers(tmp_path / "sink") == [*range(10), *range(10)]
    assert spark.read.format("pstream").load(str(tmp_path / "sink")).count() == 20
    with refused("cannot change after it is created"):
        write(10, directIo="false")
    with refused("neither true nor false: option=directIo"):
        write(10, directIo="yes")


@pytest.mark.parametrize(
    ("mode", "message"), [("update", "not support Update"), ("complete", "accepts only appends")]
)
def test_output_modes_that_replace_rows_are_refused(
    spark: SparkSession, tmp_path: Path, mode: str, message: str
) -> None:
    append(tmp_path / "source", 0, 5)
    df = stream(spark, tmp_path / "source").groupBy("text").count()
    writer = df.writeStream.format("pstream").outputMode(mode).trigger(availableNow=True)
    with refused(message):
        writer.option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "s")).awaitTermination()


def test_large_units_cross_to_the_jvm_in_parts() -> None:
    rows = table(0, 100).to_batches()[0]
    parts = list(split_large(rows, 100))
    assert len(parts) > 10
    assert pa.Table.from_batches(parts).equals(table(0, 100))
