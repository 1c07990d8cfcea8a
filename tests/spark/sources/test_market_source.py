"""The data source ``market``: the same rows for the same offsets, whatever happens."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock import _clock
from penstock.checkpointing.p_stream import PStreamWriter
from penstock.errors import InvalidUsageError
from penstock.market import Market
from penstock.spark_ext.api.failure import root_cause
from penstock.spark_ext.api.register import register
from penstock.spark_ext.border.spark_versions import HAS_ADMISSION_CONTROL, ReadAllAvailable, ReadMaxRows
from penstock.spark_ext.sources.market import MarketDataSource, _MarketStreamReader, _Options
from tests.long_tests import long_but
from tests.spark.queries import needs_admission_control

_START_US = 1_700_000_000_000_000


def reader(**options: Any) -> Any:
    """Return a stream reader, as Spark makes it on the driver."""
    texts = {name: str(value).lower() for name, value in options.items()}
    return MarketDataSource(texts).streamReader(StructType())


def late_reader(**options: Any) -> Any:
    """Return a stream reader of a Spark before 4.2."""
    texts = {name: str(value).lower() for name, value in options.items()}
    return _MarketStreamReader(_Options.parse(texts), start_is_late=True)


def rows_of(source: Any, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
    batches = [batch for part in source.partitions(start, end) for batch in source.read(part)]
    return pa.Table.from_batches(batches).combine_chunks()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give a clock that stands still: change its only element to move it."""
    moment = [_START_US]
    monkeypatch.setattr(_clock, "now_us", lambda: moment[0])
    return moment


@needs_admission_control
def test_in_real_time_a_row_is_there_once_its_time_has_come(now: list[int]) -> None:
    source = reader(rowsPerSecond=10)
    start = source.initialOffset()
    assert (start["row"], start["startTime"]) == (0, _START_US)
    assert source.latestOffset(start, ReadAllAvailable())["row"] == 1
    now[0] += 1_000_000
    assert source.latestOffset(start, ReadAllAvailable())["row"] == 11
    assert source.latestOffset(start, ReadMaxRows(4))["row"] == 4
    assert source.reportLatestOffset()["row"] == 11
    now[0] -= 5_000_000
    later = {**start, "row": 11}
    assert source.latestOffset(later, ReadAllAvailable()) == later


@needs_admission_control
def test_a_restart_goes_on_from_the_first_start(now: list[int]) -> None:
    first = reader(rowsPerSecond=10)
    end = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    now[0] += 2_000_000
    again = reader(rowsPerSecond=10)
    later = again.latestOffset(end, ReadAllAvailable())
    assert (later["row"], later["startTime"]) == (21, _START_US)
    assert rows_of(again, end, later).equals(
        pa.Table.from_batches([Market(rate=10, start_us=_START_US).batch(1, 21)])
    )


def test_before_spark_4_2_a_stream_begins_with_the_first_row_after_its_first_start(
    now: list[int],
) -> None:
    first = late_reader(rowsPerSecond=10)
    end = first.latestOffset(None, ReadAllAvailable())
    start = first.initialOffset()
    assert start == end
    now[0] += 1_000_000
    later = first.latestOffset(None, ReadAllAvailable())
    now[0] += 2_000_000
    again = late_reader(rowsPerSecond=10)
    newest = again.latestOffset(None, ReadAllAvailable())
    table = rows_of(again, end, newest)
    assert table.equals(pa.concat_tables([rows_of(first, end, later), rows_of(again, later, newest)]))
    assert table["seq"].to_pylist() == list(range(end["row"], end["row"] + 30))
    times = table["time"].cast(pa.int64()).to_pylist()
    assert _START_US < times[0] <= _START_US + 100_000
    assert now[0] - 100_000 < times[-1] <= now[0]
    assert first.partitions(again.initialOffset(), end) == [], "the first micro-batch runs again"


def test_before_spark_4_2_the_first_micro_batch_has_the_same_rows_in_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = count(_START_US, 1_000_000)
    monkeypatch.setattr(_clock, "now_us", lambda: next(moments))
    first, again = late_reader(rowsPerSecond=10), late_reader(rowsPerSecond=10)
    end = first.latestOffset(None, ReadAllAvailable())
    parts = [
        [(part.start, part.end) for part in source.partitions(source.initialOffset(), end)]
        for source in (first, again)
    ]
    assert parts[0] == parts[1]
    later = again.latestOffset(end, ReadAllAvailable())
    assert later["row"] > end["row"]
    assert rows_of(again, end, later)["seq"].to_pylist() == list(range(end["row"], later["row"]))


def test_before_spark_4_2_offsets_of_two_start_times_are_refused() -> None:
    start = {**late_reader(startTime=5).initialOffset(), "row": 7}
    source = late_reader()
    with pytest.raises(InvalidUsageError, match="written with another startTime of the market"):
        source.partitions(start, {**start, "startTime": 6})


def test_the_rows_do_not_depend_on_the_partitions() -> None:
    options = {"rows": 200_001, "startTime": 0, "realTime": False}
    one, five = reader(numPartitions=1, **options), reader(numPartitions=5, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadAllAvailable())
    assert end["row"] == 200_001
    assert len(five.partitions(start, end)) == 5
    assert rows_of(one, start, end).equals(rows_of(five, start, end))
    assert five.partitions(end, end) == []


@needs_admission_control
def test_available_now_ends_at_rows_whatever_the_clock_says(now: list[int]) -> None:
    source = reader(rows=100, maxRowsPerTrigger=60)
    source.prepareForTriggerAvailableNow()
    limit = source.getDefaultReadLimit()
    offsets = [source.initialOffset()]
    for _ in range(3):
        offsets.append(source.latestOffset(offsets[-1], limit))
    assert [offset["row"] for offset in offsets] == [0, 60, 100, 100]


def test_available_now_does_not_see_what_comes_after_its_start(now: list[int]) -> None:
    source = reader(rowsPerSecond=10, startTime=_START_US)
    source.prepareForTriggerAvailableNow()
    now[0] += 1_000_000
    end = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    now[0] += 1_000_000
    assert source.latestOffset(end, ReadAllAvailable()) == end


@needs_admission_control
def test_available_now_without_any_row_is_refused(now: list[int]) -> None:
    source = reader()
    source.prepareForTriggerAvailableNow()
    with pytest.raises(InvalidUsageError) as caught:
        source.latestOffset(source.initialOffset(), ReadAllAvailable())
    assert str(caught.value) == (
        "the market source has no rows yet for AvailableNow to read: field=rows. "
        "Hint: set the option rows, the number of rows to end at."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"rowz": "3"},
            "the market source has no option 'rowz'. Hint: did you mean 'rows'?",
        ),
        (
            {"unlike": "3"},
            "the market source has no option 'unlike'. Hint: the options are rowsPerSecond, symbols, "
            "skew, seed, "
            "numPartitions, startTime, maxRowsPerTrigger, rows, realTime.",
        ),
        (
            {"rowsPerSecond": "0"},
            "the market source's option rowsPerSecond is not a whole number of at least 1: "
            "field=rowsPerSecond got=0.",
        ),
        (
            {"seed": "x"},
            "the market source's option seed is not a whole number: field=seed got=x.",
        ),
        (
            {"realTime": "maybe"},
            "the market source's option realTime is not true or false: field=realTime got=maybe.",
        ),
        ({"skew": "x"}, "the market source's option skew is not a number: field=skew got=x."),
        (
            {"realTime": "false"},
            "a micro-batch of the market source has no end without realTime: field=realTime. "
            "Hint: set rows or maxRowsPerTrigger.",
        ),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        reader(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("option", "value"),
    long_but(
        [("rowsPerSecond", 11), ("symbols", 5), ("seed", 1), ("skew", 2), ("startTime", 1)], ("symbols", 5)
    ),
)
def test_a_restart_with_other_rows_is_refused(now: list[int], option: str, value: int) -> None:
    start = reader(rowsPerSecond=10).initialOffset()
    changed = reader(**{"rowsPerSecond": 10, option: value})
    with pytest.raises(InvalidUsageError, match=f"written with another {option} of the market"):
        changed.latestOffset(start, ReadAllAvailable())


@pytest.mark.spark
def test_a_batch_read_gives_the_rows_of_the_market(spark: SparkSession) -> None:
    register(spark)
    frame = spark.read.format("market").options(rows="150000", startTime="0", seed="5").load()
    table = frame.orderBy("seq").toArrow()
    expected = pa.Table.from_batches([Market(seed=5).batch(0, 150_000)])
    assert table.cast(expected.schema).equals(expected)


def collect(spark: SparkSession, seen: list[tuple[int, int, int]], checkpoint: Path, **options: Any) -> None:
    """Run the market with AvailableNow; add (batch, rows, checksum) of each batch to `seen`."""

    def note(frame: DataFrame, batch: int) -> None:
        count, checksum = frame.selectExpr("count(*)", "sum(hash(*))").collect()[0]
        seen.append((batch, count, checksum))

    frame = spark.readStream.format("market").options(**options).load()
    writer = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


@needs_admission_control
@pytest.mark.spark
def test_a_batch_that_runs_again_gets_the_same_rows_and_more_follow(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    options: dict[str, Any] = {"rowsPerSecond": 1_000, "maxRowsPerTrigger": 40_000}
    first: list[tuple[int, int, int]] = []
    collect(spark, first, tmp_path, rows=100_000, **options)
    assert [rows for _, rows, _ in first] == [40_000, 40_000, 20_000]
    # As if the driver had died after the last batch was planned and before it was committed.
    (tmp_path / "commits" / "2").unlink()
    second: list[tuple[int, int, int]] = []
    collect(spark, second, tmp_path, rows=120_000, **options)
    assert second[0] == first[2]
    assert [rows for _, rows, _ in second] == [20_000, 20_000]


@pytest.mark.skipif(HAS_ADMISSION_CONTROL, reason="since Spark 4.2 such a run needs the option rows")
@pytest.mark.spark
def test_runs_without_a_start_time_go_on_where_the_last_one_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    seen: list[tuple[int, int, int]] = []

    def note(frame: DataFrame, batch: int) -> None:
        seen.append(frame.selectExpr("count(*)", "min(seq)", "max(seq)").collect()[0])

    for _ in range(3):
        frame = spark.readStream.format("market").option("rowsPerSecond", 100).load()
        writer = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path))
        writer.trigger(availableNow=True).start().awaitTermination()
    (none, _, _), (second, low, high), (third, *last) = seen
    assert none == 0
    assert second == high - low + 1 > 0
    assert last == [high + 1, high + third]
    assert third > 0


@pytest.mark.spark
def test_a_restart_with_another_rate_fails_the_query(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    collect(spark, [], tmp_path, rows=10, rowsPerSecond=10)
    with pytest.raises(StreamingQueryException) as caught:
        collect(spark, [], tmp_path, rows=20, rowsPerSecond=20)
    assert root_cause(caught.value) == (
        "the checkpoint was written with another rowsPerSecond of the market: field=rowsPerSecond "
        "was=10 got=20. "
        "Hint: set the old value again, or start with a new checkpoint."
    )


_WRONG: dict[str, Callable[[SparkSession, str], object]] = {
    "no option 'rowpersecond'. Hint: did you mean 'rowsPerSecond'?": lambda spark, place: (
        spark.readStream.format("market").option("rowPerSecond", 5).load()
    ),
    "option rowsPerSecond is not a whole number": lambda spark, place: (
        spark.read.format("market").option("rowsPerSecond", "many").load()
    ),
    "needs a path": lambda spark, place: spark.readStream.format("pstream").load(),
    "there is no p-stream at this location": lambda spark, place: spark.read.format("pstream").load(place),
    "did you mean 'unitRows'?": lambda spark, place: (
        spark.range(1).write.format("pstream").mode("append").option("unitRow", 1).save(place)
    ),
}


@pytest.mark.spark
@pytest.mark.parametrize("message", _WRONG)
def test_a_wrong_option_is_one_line_in_any_session(spark: SparkSession, tmp_path: Path, message: str) -> None:
    register(spark)
    with pytest.raises(AnalysisException, match=re.escape(message)) as caught:
        _WRONG[message](spark, str(tmp_path / "place"))
    shown = "".join(traceback.format_exception(caught.value))
    assert len(str(caught.value).splitlines()) == 1
    assert "py4j" not in shown and shown.count("Traceback") == 1


_WRONG_ACTIONS: dict[str, Callable[[SparkSession, str], object]] = {
    "the p-stream ends before this offset": lambda spark, place: (
        spark.read.format("pstream").option("start", 5).load(place).count()
    ),
    "option=maxRows. Hint: leave it out, or use spark.readStream": lambda spark, place: (
        spark.read.format("pstream").option("maxRows", 5).load(place).count()
    ),
    "penstock.errors.InvalidUsageError: the p-stream ends before": lambda spark, place: _run_stream(
        spark.readStream.format("pstream").option("start", 5).load(place), place + "-to"
    ),
    "missing=n unknown=m": lambda spark, place: _run_stream(
        spark.readStream.format("pstream").load(place).selectExpr("n AS m"), place
    ),
    "a p-stream accepts only appends": lambda spark, place: _run_stream(
        spark.readStream.format("pstream").load(place).groupBy("n").count(), place, "complete"
    ),
}


def _run_stream(rows: DataFrame, place: str, mode: str = "append") -> None:
    writer = rows.writeStream.format("pstream").option("checkpointLocation", place + "-checkpoint")
    query = writer.outputMode(mode).trigger(availableNow=True).start(place)
    query.awaitTermination()


@pytest.mark.spark
@pytest.mark.parametrize("message", _WRONG_ACTIONS)
def test_a_wrong_option_that_an_action_or_a_stream_finds_is_one_line(
    spark: SparkSession, tmp_path: Path, message: str
) -> None:
    register(spark)
    place = str(tmp_path / "place")
    PStreamWriter(place, pa.schema({"n": pa.int64()})).close()
    with pytest.raises((AnalysisException, StreamingQueryException), match=re.escape(message)) as caught:
        _WRONG_ACTIONS[message](spark, place)
    assert len(str(caught.value).splitlines()) == 1
    assert "Traceback" not in str(caught.value)
