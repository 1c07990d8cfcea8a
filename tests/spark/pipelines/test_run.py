"""Pipelines run from Python, from the command line and by spark-submit."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.readwriter import DataStreamWriter

import penstock
from penstock.checkpointing.files import open_files
from penstock.conf.document import Document
from penstock.conf.pipeline import Pipeline
from penstock.errors import CorruptDataError, InvalidUsageError, PenstockError, UnavailableError
from penstock.jobs.cluster.archive import RUN_SCRIPT, pack_pipeline
from penstock.jobs.cluster.shared_places import hosts_without
from penstock.jobs.following.batches import batch_parts, summary_line
from penstock.jobs.pipelines.run import Batch, run_pipeline, run_to_end
from penstock.jobs.pipelines.sinks import pack_values
from penstock.market import Market
from penstock.spark_ext.daemon import DAEMON, DAEMON_SETTING
from penstock.state_store.location import find_operators
from tests.long_tests import long_but
from tests.servers.processes import until
from tests.spark.queries import limits, needs_admission_control

pytestmark = pytest.mark.spark

_ROOT = Path(__file__).parents[3]


def pipeline(tmp_path: Path, **sections: Any) -> Pipeline:
    """Return a pipeline of 30,000 trades that ends in the memory table ``trades``."""
    query = {
        "name": "trades",
        "checkpoint": str(tmp_path / "checkpoint"),
        "trigger": "available_now",
    }
    return Pipeline.model_validate(
        {
            "source": {"type": "market", "rows": 30_000, "symbols": 500}
            | limits(max_rows_per_trigger=20_000),
            "queue": {"key": "symbol", "time": "time"},
            "sink": {"type": "memory"},
            **sections,
            "query": query | sections.get("query", {}),
        }
    )


def newest(rows: int) -> dict[str, int]:
    """Return the number of the newest row of each symbol."""
    batch = Market(symbols=500).batch(0, rows)
    return dict(zip(batch["symbol"].to_pylist(), batch["seq"].to_pylist(), strict=True))


def table(spark: SparkSession) -> list[Any]:
    return spark.table("trades").collect()


@needs_admission_control
def test_a_run_with_a_budget_ends_when_the_input_is_used_up_and_nothing_waits(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches: list[Batch] = []
    run = pipeline(
        tmp_path,
        queue={"key": "symbol", "time": "time", "policy": "linecutting", "budget": 200, "cost": "1ms"},
        filter="price > 0",
        projection=["symbol", "time", "seq", "price * volume AS turnover"],
        query={"metrics": str(tmp_path / "metrics.jsonl")},
    )
    totals = run_to_end(run, batches.append, spark)
    served = table(spark)
    last = {row["symbol"]: row["seq"] for row in sorted(served, key=lambda row: row["seq"])}
    assert last == newest(30_000)
    assert served[0].asDict().keys() == {"symbol", "time", "seq", "turnover"}
    assert (totals.rows_in, totals.waiting_keys, totals.signal) == (30_000, 0, None)
    assert totals.emitted == len(served)
    assert totals.emitted + totals.conflated == 30_000
    assert [batch.new_input for batch in batches[:3]] == [True, True, False]
    assert all(0 <= batch.emitted <= 200 for batch in batches)
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["batch_id"] for line in lines[:2]] == [0, 1]


class Behind(StreamingQueryListener):
    """Holds back all of Spark's progress events until all queries have ended."""

    def __init__(self, spark: SparkSession) -> None:
        self.streams, self.pause = spark.streams, Event()

    def onQueryStarted(self, event: object) -> None: ...

    def onQueryProgress(self, event: object) -> None:
        while self.streams.active:
            self.pause.wait(0.01)

    def onQueryIdle(self, event: object) -> None: ...

    def onQueryTerminated(self, event: object) -> None: ...


@pytest.mark.parametrize("persist", ["always", "auto"])
def test_the_file_of_metrics_is_complete_when_a_run_returns(
    spark: SparkSession, tmp_path: Path, persist: str, caplog: pytest.LogCaptureFixture
) -> None:
    behind, file = Behind(spark), tmp_path / "metrics.jsonl"
    spark.streams.addListener(behind)
    try:
        totals = run_to_end(pipeline(tmp_path, persist=persist, query={"metrics": str(file)}), spark=spark)
    finally:
        spark.streams.removeListener(behind)
    told = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert sum(entry["rows_in"] for entry in told) == totals.rows_in > 0
    assert "may be missing" not in caplog.text, "it ends when the last line is there, not after a time"


@pytest.mark.long
def test_without_draining_what_waits_is_served_by_the_next_run(spark: SparkSession, tmp_path: Path) -> None:
    queue = {"key": "symbol", "time": "time", "policy": "in_place", "budget": 20}
    sink = {"type": "parquet", "path": str(tmp_path / "out")}
    keep = pipeline(tmp_path, queue=queue, sink=sink, query={"drain": False})
    first = run_to_end(keep, spark=spark)
    assert first.waiting_keys > 0
    drained = penstock.run(pipeline(tmp_path, queue=queue, sink=sink))
    assert (drained.rows_in, drained.waiting_keys) == (0, 0)
    assert drained.emitted >= first.waiting_keys
    seen = spark.read.parquet(str(tmp_path / "out")).groupBy("symbol").max("seq").collect()
    assert {row["symbol"]: row["max(seq)"] for row in seen} == newest(30_000)


def test_a_pipeline_runs_from_python_and_the_table_is_there(spark: SparkSession, tmp_path: Path) -> None:
    running = run_pipeline(pipeline(tmp_path), spark)
    assert running.await_termination(60)
    assert running.queries["results"].name == "trades"
    last = {row["symbol"]: row["seq"] for row in sorted(table(spark), key=lambda row: row["seq"])}
    assert last == newest(30_000)


@pytest.mark.long
def test_a_pipeline_that_persists_source_and_queue_ends_as_a_graph(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches: list[Batch] = []
    queue = {"key": "symbol", "time": "time", "budget": 300}
    persist = {"source": "always", "queue": "always"}
    persisted = pipeline(tmp_path, persist=persist, queue=queue, filter="seq >= 0")
    totals = run_to_end(persisted, batches.append, spark)
    last = {row["symbol"]: row["seq"] for row in sorted(table(spark), key=lambda row: row["seq"])}
    assert last == newest(30_000)
    assert (totals.waiting_keys, totals.emitted) == (0, sum(batch.emitted for batch in batches))
    streams = tmp_path / "checkpoint" / "p-streams"
    assert {path.name for path in streams.iterdir()} == persist.keys()


@needs_admission_control
def test_a_query_runs_to_its_end_in_a_session(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.session({"spark.sql.session.timeZone": "UTC"}) as session:
        rows = session.readStream.format("market").options(rows=30_000, symbols=500).load()
        served = penstock.update_queue(
            rows, "symbol", "time", budget=200, state_location=str(tmp_path / "state")
        )
        checkpoint = str(tmp_path / "checkpoint")
        writer = served.writeStream.format("memory").queryName("trades").trigger(availableNow=True)
        query = writer.option("checkpointLocation", checkpoint).start()
        totals = penstock.run(query)
    assert (totals.rows_in, totals.waiting_keys, totals.signal) == (30_000, 0, None)
    last = {row["symbol"]: row["seq"] for row in sorted(table(spark), key=lambda row: row["seq"])}
    assert last == newest(30_000), "the session that was active goes on"
    *lines, summary = capsys.readouterr().err.splitlines()
    lines = [line for line in lines if not line.startswith(("no micro-batch has ended yet", "stale: "))]
    assert all(line.startswith("batch ") and "  took " in line for line in lines), lines
    assert any("  stale " in line for line in lines)
    assert summary.startswith(
        f"{totals.batches - totals.idle} batches, 30,000 rows in, {totals.emitted:,} emitted, "
    )


def test_another_query_that_fails_is_told_while_one_is_followed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    penstock.register(spark)

    def queue(name: str, rows: int) -> DataStreamWriter:
        market = spark.readStream.format("market").options(rows=rows, rowsPerSecond=1000).load()
        served = penstock.update_queue(market, "symbol", "time", state_location=str(tmp_path / "state"))
        started = served.writeStream.queryName(name).option("checkpointLocation", str(tmp_path / name))
        return started.trigger(processingTime="100 milliseconds")

    def fail(rows: DataFrame, batch: int) -> None:
        rows.collect()
        raise OSError("no disk")

    def skip(rows: DataFrame, batch: int) -> None:
        """Read no row."""

    followed = queue("followed", 10_000).format("noop").start()
    others = [
        queue("full", 10_000).foreachBatch(fail).start(),
        queue("skips", 10_000).foreachBatch(skip).start(),
    ]
    said: list[str] = []

    def count() -> int:
        said.append(capsys.readouterr().err)
        return "".join(said).count("another query failed")

    def end() -> None:
        until(lambda: count() == len(others), 120)
        followed.stop()

    ending = Thread(target=end)
    ending.start()
    penstock.run(followed)
    ending.join()
    lines = "".join(said).splitlines()
    (full,) = [line for line in lines if "query=full" in line]
    assert re.fullmatch(
        r"another query failed: query=full cause=OSError: no disk at=test_run\.py:\d+\.", full
    )
    (skips,) = [line for line in lines if "query=skips" in line]
    assert "not all rows of a micro-batch were read: query=skips. Hint: in foreachBatch" in skips


@pytest.mark.parametrize(
    "start",
    [penstock.run, pytest.param(lambda one: one.start(), marks=pytest.mark.long)],
    ids=["run", "start"],
)
def test_what_is_wrong_with_a_start_is_told_in_our_words(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, start: Callable[..., Any]
) -> None:
    penstock.register(spark)
    rows = spark.readStream.format("market").options(rows=100).load()

    def writer(key: str, checkpoint: str = "checkpoint", mode: str = "append") -> DataStreamWriter:
        served = penstock.update_queue(rows, key, "time", state_location=str(tmp_path / "state"))
        started = served.writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
        return started.option("checkpointLocation", str(tmp_path / checkpoint))

    with pytest.raises(
        InvalidUsageError, match=r"support only the output mode append\. Hint: leave outputMode out"
    ):
        start(writer("symbol", mode="update"))
    assert penstock.run(writer("symbol")).rows_in == 100
    # There is no new row, so no task looks at the state.
    with pytest.raises(
        InvalidUsageError, match=r"made with another key: .* was=.\"symbol\". now=.\"volume\""
    ):
        start(writer("volume"))
    assert not spark.streams.active
    with pytest.raises(
        InvalidUsageError, match=r"there is no format 'parqet'. Hint: did you mean 'parquet'\?"
    ):
        start(writer("symbol", "unknown").format("parqet"))
    with pytest.raises(InvalidUsageError, match="a directory cannot be made: directory=/proc/checkpoint"):
        start(writer("symbol").option("checkpointLocation", "/proc/checkpoint"))
    caplog.clear()
    penstock.run(writer("symbol", "another").start())
    assert "holds only state of other checkpoints. If the query" in caplog.text
    caplog.clear()
    elsewhere = penstock.update_queue(rows, "symbol", "time", state_location=str(tmp_path / "elsewhere"))
    writing = elsewhere.writeStream.format("noop").trigger(availableNow=True)
    penstock.run(writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start())
    assert "finds no state of its checkpoint in" in caplog.text


def test_a_start_is_checked_at_the_uri_of_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    penstock.register(spark)
    rows = spark.readStream.format("market").options(rows=100).load()

    def writer(key: str, checkpoint: str) -> DataStreamWriter:
        served = penstock.update_queue(rows, key, "time", state_location=str(tmp_path / "state"))
        started = served.writeStream.format("noop").trigger(availableNow=True)
        return started.option("checkpointLocation", f"file://{tmp_path}/{checkpoint}")

    penstock.run(writer("symbol", "a%20b#c"))
    with pytest.raises(InvalidUsageError, match="made with another key"):
        writer("volume", "a%20b#c").start()
    (tmp_path / "file").touch()
    with pytest.raises(PenstockError):
        writer("symbol", "file").start()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "metadata").write_text("{}")
    with pytest.raises(PenstockError):
        writer("symbol", "other").start()


def test_run_says_what_it_takes(spark: SparkSession) -> None:
    with pytest.raises(InvalidUsageError, match=r"this is no query: got=DataFrame\. Hint: pass a writer"):
        penstock.run(spark.range(3))  # type: ignore[arg-type]
    with pytest.raises(InvalidUsageError, match="this is no query: got=NoneType"):
        penstock.run()
    with pytest.raises(InvalidUsageError, match="a graph or a pipeline runs alone: got=Pipeline"):
        penstock.run(Pipeline.model_construct(), Pipeline.model_construct())


def test_an_error_of_ours_leaves_a_session_without_sparks_words(spark: SparkSession) -> None:
    with (
        pytest.raises(
            InvalidUsageError, match=r"^Spark refuses a query: cause=the market source has no"
        ) as told,
        penstock.session(spark=spark) as session,
    ):
        session.readStream.format("market").option("rowsPerSec", 5).load()
    assert "\n" not in str(told.value)


def start_with_an_option(writer: DataStreamWriter, checkpoint: Path) -> object:
    return writer.option("checkpointLocation", str(checkpoint)).start()


def start_with_options(writer: DataStreamWriter, checkpoint: Path) -> object:
    return writer.options(CheckpointLocation=checkpoint.as_uri(), writer="an option").start()


def start_with_an_argument(writer: DataStreamWriter, checkpoint: Path) -> object:
    return writer.start(checkpointLocation=str(checkpoint))


def start_in_the_directory_of_the_session(writer: DataStreamWriter, checkpoint: Path) -> object:
    spark = SparkSession.active()
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(checkpoint.parent))
    try:
        return writer.queryName(checkpoint.name).start()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def run_with_an_option(writer: DataStreamWriter, checkpoint: Path) -> object:
    return penstock.run(writer.option("checkpointLocation", str(checkpoint)))


@pytest.mark.parametrize(
    ("start", "file"),
    long_but(
        [
            (start_with_an_option, "metadata"),
            (start_with_options, "offsets/[0-9]*"),
            (start_with_an_argument, "commits/[0-9]*"),
            (start_in_the_directory_of_the_session, "offsets/[0-9]*"),
            (run_with_an_option, "offsets/[0-9]*"),
        ],
        (start_with_an_argument, "commits/[0-9]*"),
    ),
)
def test_a_start_on_a_checkpoint_that_a_power_cut_tore_is_refused_with_its_repair(
    start: Callable[[DataStreamWriter, Path], object], file: str, spark: SparkSession, tmp_path: Path
) -> None:
    penstock.register(spark)
    checkpoint = tmp_path / "checkpoint"

    def writer(rows: int) -> DataStreamWriter:
        stream = spark.readStream.format("market").options(rows=rows).load()
        return stream.writeStream.format("noop").trigger(availableNow=True)

    run_with_an_option(writer(100), checkpoint)
    max(checkpoint.glob(file), key=lambda path: path.name).write_bytes(b"")
    with pytest.raises(CorruptDataError, match=f"Hint: a power cut .*: penstock repair {checkpoint}"):
        start(writer(200), checkpoint)
    assert not spark.streams.active
    penstock.repair_checkpoint(checkpoint, dry_run=False)
    run_with_an_option(writer(200), checkpoint)


def test_a_query_of_spark_alone_is_followed_too(spark: SparkSession, tmp_path: Path) -> None:
    batches: list[Batch] = []
    rows = spark.readStream.format("market").options(rows=100).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    totals = penstock.run(writer.trigger(availableNow=True).start(), on_batch=batches.append)
    assert totals.rows_in == sum(batch.rows_in for batch in batches) == 100


def two_queries(spark: SparkSession, tmp_path: Path, **trigger: Any) -> list[DataStreamWriter]:
    """Return the writers of a query without a name, and of the query "second"."""
    penstock.register(spark)
    writers = []
    for name, rows in (("first", 300), ("second", 100)):
        market = spark.readStream.format("market").options(rows=rows, realTime=False, rowsPerSecond=rows)
        served = penstock.update_queue(
            market.load(), "symbol", "time", budget=50, state_location=str(tmp_path / "state")
        )
        writer = served.writeStream.format("noop").option("checkpointLocation", str(tmp_path / name))
        writers.append(writer.trigger(**trigger))
    return [writers[0], writers[1].queryName("second")]


def test_several_queries_are_followed_until_all_have_ended(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = two_queries(spark, tmp_path, availableNow=True)
    totals = penstock.run(first, second.start())
    other = totals.earlier["query 1"]
    assert (totals.rows_in, totals.waiting_keys, other.rows_in, other.waiting_keys) == (100, 0, 300, 0)
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("query 1: batch 0 ") for line in lines)
    assert any(line.startswith("second: batch 0 ") for line in lines)
    assert lines[-2].startswith("query 1: ")
    assert lines[-1].startswith("second: ")
    assert not spark.streams.active


def test_a_signal_stops_all_queries_that_are_followed(spark: SparkSession, tmp_path: Path) -> None:
    begun: set[str] = set()

    def stop_both(batch: Batch) -> None:
        if batch.query not in begun:
            begun.add(batch.query)
            if len(begun) == 2:
                signal.raise_signal(signal.SIGINT)

    first, second = two_queries(spark, tmp_path, processingTime="1 second")
    totals = penstock.run(second, first, on_batch=stop_both)
    assert begun == {"", "second"}
    assert totals.signal == signal.SIGINT
    assert not spark.streams.active


def test_if_one_of_several_queries_fails_the_others_stop(spark: SparkSession, tmp_path: Path) -> None:
    def fail(rows: DataFrame, batch: int) -> None:
        rows.collect()
        raise OSError("no disk")

    first, second = two_queries(spark, tmp_path, processingTime="1 second")
    with pytest.raises(PenstockError, match=r"the query failed: query=second cause=OSError: no disk at="):
        penstock.run(first, second.foreachBatch(fail), on_batch=lambda batch: None)
    assert not spark.streams.active
    with pytest.raises(InvalidUsageError, match="there is no format 'nothing of the kind'"):
        penstock.run(first, second.format("nothing of the kind"))
    assert not spark.streams.active


def test_files_of_each_format_are_read(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame(
        [("a", 1, 10.5), ("b", 1, 20.5), ("a", 2, 11.5)], "k string, t long, v double"
    )
    schema = "k STRING, t BIGINT, v DOUBLE"
    frame.coalesce(1).write.csv(str(tmp_path / "csv"), header=True, sep=";")
    frame.coalesce(1).write.json(str(tmp_path / "json"))
    frame.coalesce(1).write.parquet(str(tmp_path / "parquet"))
    sources: list[dict[str, Any]] = [
        {"format": "csv", "schema": schema, "options": {"header": True, "sep": ";"}},
        {"format": "json", "schema": schema},
        {"format": "parquet"},
    ]
    for source in sources:
        name = source["format"]
        run = pipeline(
            tmp_path,
            source={"type": "files", "path": str(tmp_path / name), **source},
            queue={"key": "k", "time": "t"},
            query={"checkpoint": str(tmp_path / f"checkpoint-{name}")},
        )
        assert run_to_end(run, spark=spark).emitted == 2
        assert sorted((row["k"], row["v"]) for row in table(spark)) == [("a", 11.5), ("b", 20.5)]


@pytest.mark.parametrize("kind", long_but(["json", "csv"], "csv"))
@pytest.mark.parametrize(("on_error", "emitted"), [("keep", 3), ("skip", 2)])
def test_records_that_cannot_be_read_are_counted(
    spark: SparkSession, tmp_path: Path, kind: str, on_error: str, emitted: int
) -> None:
    lines = {
        "json": ['{"k": "a", "t": 1}', "nonsense", '{"k": "b", "t": "x"}', '{"k": "c", "t": 2}'],
        "csv": ["a,1", "x,y,z", "b,x", "c,2"],
    }
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1").write_text("\n".join(lines[kind]))
    source = {"type": "files", "format": kind, "path": str(tmp_path / "in"), "schema": "k STRING, t BIGINT"}
    batches: list[Batch] = []
    rejected = tmp_path / "rejected"
    run = pipeline(
        tmp_path,
        source=source | {"on_error": on_error, "reject_to": {"type": "pstream", "path": str(rejected)}},
        filter="k IS NOT NULL",
        projection=["k", "coalesce(t, 0) AS t"],
        queue={"key": "k", "time": "t"},
        query={"checkpoint": str(tmp_path / "checkpoint"), "metrics": str(tmp_path / "metrics")},
    )
    totals = run_to_end(run, batches.append, spark=spark)
    assert totals.bad_records == sum(batch.bad_records for batch in batches) == 2
    # Of the record with one field of another type the others are kept.
    assert totals.emitted == emitted + (kind == "csv" and on_error == "keep")
    assert "bad records 2" in batch_parts(batches[0])
    assert summary_line(totals).endswith("2 bad records")

    def told() -> int:
        lines = (tmp_path / "metrics").read_text().splitlines()
        return sum(json.loads(line)["bad_records"] for line in lines)

    # A run waits only ten seconds for Spark's last report.
    assert until(lambda: told() == 2, 120)
    records = penstock.PStreamReader(rejected).read()
    assert sorted(records["value"].to_pylist()) == sorted(lines[kind][place].encode() for place in (1, 2))
    assert {url2pathname(urlparse(file).path) for file in records["file"].to_pylist()} == {
        str(tmp_path / "in" / "1")
    }
    assert {*records["source"].to_pylist()} == {"source"}
    assert len({*records["reason"].to_pylist()}) == (2 if kind == "json" else 1)


def test_a_record_that_cannot_be_read_ends_a_pipeline_that_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text("nonsense\n")
    source = {"type": "files", "format": "json", "path": str(tmp_path / "in"), "schema": "k STRING, t BIGINT"}
    run = pipeline(
        tmp_path,
        source=source | {"on_error": "fail"},
        queue={"key": "k", "time": "t"},
        query={"checkpoint": str(tmp_path / "checkpoint")},
    )
    with pytest.raises(PenstockError, match="a record cannot be read") as failed:
        run_to_end(run, spark=spark, document=Document("p.yaml", {}, {("source",): "p.yaml:2"}))
    assert "nonsense" not in str(failed.value)
    assert "source=source file=file:" in str(failed.value) and "/in/1.json. Hint:" in str(failed.value)
    assert failed.value.context["pipeline"] == "p.yaml:2"


def test_state_keeps_the_name_of_its_query(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    run = pipeline(tmp_path, query={"name": "first", "checkpoint": str(checkpoint)})
    run_to_end(run, spark=spark)
    (operator,) = find_operators(open_files(checkpoint / "state"))
    assert operator.query_label == f"first ({operator.query})"


def test_values_of_kafka_are_unpacked_and_packed(spark: SparkSession) -> None:
    records = spark.sql(
        """SELECT CAST(value AS BINARY) AS value, TIMESTAMP '2024-01-31 09:30:00' AS timestamp FROM VALUES
        ('{"symbol": "A", "price": 1.5, "venue": "X"}'), ('nonsense'), (NULL) AS records(value)"""
    )
    rows = penstock.decode_kafka(records, "symbol STRING, price DOUBLE")
    assert rows.columns == ["symbol", "price", "kafka_timestamp"]
    assert [tuple(row)[:2] for row in rows.collect()] == [("A", 1.5), (None, None), (None, None)]
    quotes = spark.createDataFrame([("A", 1, 1.5)], "symbol STRING, `v.1` INT, price DOUBLE")
    one = pack_values(quotes, ("symbol",)).collect()[0]
    assert (one["key"], json.loads(one["value"])) == ("A", {"symbol": "A", "v.1": 1, "price": 1.5})
    two = pack_values(quotes, ("symbol", "v.1")).collect()[0]
    assert json.loads(two["key"]) == {"symbol": "A", "v.1": 1}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"filter": "prize > 3"},
            "filter: there is no column 'prize': expression=prize > 3. Hint: did you mean 'price'?",
        ),
        (
            {"projection": ["symbol, 'a"]},
            "projection: an expression cannot be parsed",
        ),
        (
            {"queue": {"key": "ticker", "time": "time"}},
            "queue: there is no column 'ticker'",
        ),
        (
            {"source": {"type": "files", "format": "parquet", "path": "/nowhere"}},
            "source: [PATH_NOT_FOUND] Path does not exist: file:/nowhere.",
        ),
        (
            {
                "source": {
                    "type": "kafka",
                    "options": {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"},
                },
                "queue": {"key": "key", "time": "timestamp"},
            },
            "source: Spark's connector for Kafka is not there. Hint: set query.spark.spark.jars.packages to "
            "org.apache.spark:spark-sql-kafka-0-10_2.13:",
        ),
        (
            {"sink": {"type": "kafka", "options": {"kafka.bootstrap.servers": "localhost:1", "topic": "t"}}},
            "Spark's connector for Kafka is not there.",
        ),
        (
            {
                "queue": {
                    "key": "symbol",
                    "time": "time",
                    "apply": "no_such:thing",
                    "output_schema": "symbol STRING",
                }
            },
            "queue: apply: No module named 'no_such'. Hint: the module must be installed, beside the "
            "pipeline's file, on PYTHONPATH, or passed to spark-submit with --py-files.",
        ),
        (
            {"query": {"spark": {"spark.driver.memory": "3g"}}},
            "a setting of Spark cannot change while its session runs: field=spark.driver.memory. "
            "Hint: set it before the session starts, or leave it out of query.spark.",
        ),
    ],
)
def test_what_spark_refuses_names_the_section(
    spark: SparkSession, tmp_path: Path, sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        run_pipeline(pipeline(tmp_path, **sections), spark)
    assert message in str(caught.value)
    assert "SQLSTATE" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sections", "cause"),
    [
        (
            # A function that takes two arguments, where apply is called with one.
            {
                "queue": {
                    "key": "symbol",
                    "time": "time",
                    "apply": "operator:truediv",
                    "output_schema": "symbol STRING",
                }
            },
            "Caused by TypeError: truediv expected 2 arguments, got 1",
        ),
        (
            {"projection": ["nullif(symbol, symbol) AS symbol", "time"]},
            "rows with a null (or NaN) key, time or arrival",
        ),
        (
            {"projection": ["symbol", "time", "cast(symbol AS INT) AS number"]},
            "[CAST_INVALID_INPUT]",
        ),
    ],
)
def test_the_cause_of_a_failed_query_is_one_message(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    sections: dict[str, Any],
    cause: str,
) -> None:
    with pytest.raises(PenstockError, match="the query failed: query=trades cause=") as caught:
        run_to_end(pipeline(tmp_path, **sections), spark=spark)
    ours = [one for one in caplog.records if one.name.startswith("penstock")]
    assert not [one for one in ours if one.levelno >= logging.ERROR], "the failure is told once"
    message = str(caught.value)
    assert caught.value.__cause__ is None
    assert cause in message
    assert "\tat " not in message
    assert len(message) < 600


def test_a_worker_that_is_late_in_a_session_is_told_with_what_to_do(spark: SparkSession) -> None:
    late = "java.lang.RuntimeException: Python worker failed to connect back."
    told = r"Spark cannot run Python: cause=.* Hint: the machine is"
    with pytest.raises(UnavailableError, match=told), penstock.session(spark=spark):
        raise PySparkException(late)
    with pytest.raises(PySparkException, match="another"), penstock.session(spark=spark):
        raise PySparkException("another")


def test_a_session_whose_jvm_gets_the_signal_too_ends_without_a_trace(spark: SparkSession) -> None:
    with pytest.raises(SystemExit) as ended, penstock.session(spark=spark):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            raise ConnectionRefusedError("the JVM has ended")
    assert ended.value.code == 128 + signal.SIGTERM


def environment() -> dict[str, str]:
    """Return an environment in which nothing but the project says how Spark runs."""
    names = ("PYSPARK_PYTHON", "PYTHONPATH", "SPARK_HOME", "SPARK_CONF_DIR")
    return {name: value for name, value in os.environ.items() if name not in names}


@pytest.mark.long
def test_a_signal_stops_the_command_cleanly_and_the_next_one_goes_on(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "run",
        "market",
        f"--set=query.checkpoint={tmp_path / 'checkpoint'}",
        f"--set=sink={{type: parquet, path: {tmp_path / 'out'}}}",
        "--set=query.trigger=null",
        "--set=query.spark.spark.driver.memory=1g",
        "--set=query.spark.spark.sql.shuffle.partitions=2",
        "--set=queue.policy=in_place",
        # Rows come while a command starts, too.
        "--set=source.rows_per_second=1000",
    ]
    lasts = []
    for number, to_all in ((signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGTERM, True)):
        child = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=environment() | {"PYTHONPATH": str(_ROOT)},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert child.stderr is not None
        batches = []
        lines = []
        for line in child.stderr:
            lines.append(line)
            if line.startswith("batch"):
                batches.append(int(line.split()[1]))
                if len(batches) == 2:
                    (os.killpg if to_all else os.kill)(child.pid, number)
        child.stderr.close()
        assert child.wait() == 128 + number, "".join(lines)
        assert f"stopped by {number.name}\n" in lines
        ours = ("batch ", "stale: ", "no micro-batch has ended yet", "stopp")
        assert all(line.startswith(ours) for line in lines[:-2]), "".join(lines)
        assert not any("Traceback" in line or "\tat " in line for line in lines), "".join(lines)
        lasts.append(batches)
    assert lasts[1][0] > lasts[0][0]
    kinds = {pq.read_schema(file).field("time").type for file in (tmp_path / "out").glob("*.parquet")}
    assert kinds == {pa.timestamp("us", "UTC")}, "as the local engine writes times"
    served = pq.read_table(tmp_path / "out").to_pydict()
    assert len(set(zip(served["symbol"], served["time"], strict=True))) == len(served["symbol"])


def test_workers_are_asked_for_files_of_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "seen").touch()
    (hosts,) = hosts_without(spark, [str(tmp_path / "seen"), str(tmp_path / "unseen")]).items()
    assert hosts == (str(tmp_path / "unseen"), [socket.gethostname()])


@pytest.mark.long
def test_spark_submit_runs_a_pipeline_from_a_zip(tmp_path: Path) -> None:
    pack_pipeline(tmp_path / "penstock.zip", "market")
    with zipfile.ZipFile(tmp_path / "penstock.zip") as archive:
        script = archive.extract(RUN_SCRIPT, tmp_path)
    done = subprocess.run(
        [
            Path(sys.executable).with_name("spark-submit"),
            "--master=local[2]",
            "--driver-memory=1g",
            "--conf=spark.sql.shuffle.partitions=2",
            "--conf=spark.ui.enabled=false",
            f"--py-files={tmp_path / 'penstock.zip'}",
            f"--conf={DAEMON_SETTING}={DAEMON}",
            script,
            "market",
            "--set=source.rows=30000",
            "--set=query.trigger=available_now",
            "--set=query.checkpoint=checkpoint",
            "--set=sink={type: parquet, path: out}",
        ],
        cwd=tmp_path,
        env=environment() | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(tmp_path / "penstock.zip")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-5_000:]
    # spark-submit gives its own output both of the streams of the script.
    assert "30,000 rows in" in done.stdout
    served = pq.read_table(tmp_path / "out").to_pydict()
    assert set(served["symbol"]) == set(Market(seed=7).batch(0, 30_000)["symbol"].to_pylist())
