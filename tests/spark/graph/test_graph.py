"""Running graphs: results, restarts, failures, several sources and readers, markers, recovery."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import penstock
from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.graph.facts import facts_of
from penstock.checkpointing.p_stream import PStream, PStreamReader, PStreamWriter
from penstock.dataflow import Graph
from penstock.errors import CorruptDataError, InvalidUsageError, PenstockError
from penstock.spark_ext.graph.handle import RunningGraph
from tests.long_tests import long_but
from tests.oracles.graphs import rounded, rows_of
from tests.spark.queries import PATIENCE_S, SCHEMA, Input, limits, needs_admission_control, quotes, settings

pytestmark = pytest.mark.spark

QUOTES = quotes([]).schema
ROWS = [(f"key {n % 7}", n, float(n * 37 % 11)) for n in range(60)]


def filtered(name: str = "quotes") -> Graph:
    """Return a graph whose selection goes before a p-stream, and whose projection goes into its reader."""
    made = penstock.graph("twice").source(name, QUOTES).where("v > 2").select("k", "t", twice="v * 2")
    return made.sink("pstream")


def sink_to(path: Path) -> Callable[[DataFrame], DataStreamWriter]:
    """Return a writer of results into a p-stream."""
    return lambda rows: rows.writeStream.format("pstream").option("path", str(path))


def run(graph: Graph, spark: SparkSession, place: Path, **options: Any) -> RunningGraph:
    """Run a graph over all that is there, into the p-stream ``out``."""
    running = penstock.start(
        graph, spark, place / "checkpoint", sink=sink_to(place / "out"), available_now=True, **options
    )
    with running:
        assert running.await_termination(PATIENCE_S), running.status()
    assert running.state == "finished"
    return running


def rows_in(path: Path) -> list[tuple[Any, ...]]:
    """Return the rows of a p-stream, sorted."""
    return sorted(tuple(row.values()) for row in PStreamReader(path).read().to_pylist())


def same(path: Path, graph: Graph, **tables: pa.Table) -> bool:
    """Return whether a p-stream has the graph's result, computed by DuckDB."""
    return sorted((tuple(map(rounded, row)) for row in rows_in(path)), key=repr) == rows_of(
        graph.root, tables
    )


def append(path: Path, rows: list[tuple[Any, ...]]) -> None:
    """Append quotes to a p-stream."""
    with PStreamWriter(path, QUOTES, threads=1) as writer:
        writer.append(quotes(rows))


@pytest.mark.parametrize("persist", ["always", "never"])
def test_a_restarted_graph_goes_on_exactly_once(spark: SparkSession, tmp_path: Path, persist: Any) -> None:
    graph, source = filtered(), Input(tmp_path / "in")
    source.add(quotes(ROWS[:20]), quotes(ROWS[20:30]))
    options: dict[str, Any] = {"sources": {"quotes": source.frame(spark)}, "persist": persist}
    first = run(graph, spark, tmp_path, **options)
    assert same(tmp_path / "out", graph, quotes=quotes(ROWS[:30]))
    assert first.recovery is None
    assert list(first.queries) == ([] if persist == "never" else ["ingest-quotes"]) + ["results"]
    source.add(quotes(ROWS[30:]))
    second = run(graph, spark, tmp_path, **options)
    assert same(tmp_path / "out", graph, quotes=quotes(ROWS))
    assert second.schema.names == ["k", "t", "twice"]
    third = run(graph, spark, tmp_path, **options)
    assert third.progress().queries["results"].rows == 0
    assert third.recovery is not None
    assert same(tmp_path / "out", graph, quotes=quotes(ROWS))


def test_a_graph_that_was_killed_while_its_first_offset_was_written_starts_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    graph, source = filtered(), Input(tmp_path / "in")
    options: dict[str, Any] = {"sources": {"quotes": source.frame(spark)}, "persist": "never"}
    run(graph, spark, tmp_path, **options)
    offsets = tmp_path / "checkpoint" / "queries" / "results" / "offsets"
    assert not list(offsets.glob("[0-9]*")), "there was no input"
    (offsets / ".0.de89336d.tmp").write_text("v1")
    source.add(quotes(ROWS))
    run(graph, spark, tmp_path, **options)
    assert same(tmp_path / "out", graph, quotes=quotes(ROWS))


@needs_admission_control
def test_markers_and_offsets_are_in_the_progress(spark: SparkSession, tmp_path: Path) -> None:
    source = Input(tmp_path / "in")
    source.add(quotes(ROWS[:20]), quotes(ROWS[20:40]), quotes(ROWS[40:]))
    kept = sum(v > 2 for _, _, v in ROWS)
    running = run(
        filtered(),
        spark,
        tmp_path,
        sources={"quotes": source.frame(spark)},
        persist="always",
        max_rows=kept // 3,
    )
    progress = running.progress()
    assert progress.queries["ingest-quotes"].batches == 3
    assert progress.queries["ingest-quotes"].rows == 60
    assert progress.queries["results"].rows == kept, "what is not selected is not in the p-stream"
    assert len(progress.queries["results"].batch_ms) == progress.queries["results"].batches
    (stream,) = progress.streams
    assert (stream.end, stream.own) == (kept, True)
    (reader,) = stream.readers
    assert (reader.name, reader.query, reader.committed, reader.lag) == ("twice", "results", kept, 0)
    assert running.metrics() == penstock.metrics(running)
    markers = progress.markers
    assert (markers.retain, markers.checkpoint) == (3, progress.queries["results"].batches)
    assert 1 <= markers.release <= markers.checkpoint, "several are released at once"
    assert facts_of(GraphDirectory(tmp_path / "checkpoint")).markers == markers


def test_a_p_stream_that_is_a_source_is_read_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "in", ROWS[:25])
    graph = filtered()
    running = penstock.start(
        graph,
        spark,
        tmp_path / "checkpoint",
        sources={"quotes": tmp_path / "in"},
        sink=sink_to(tmp_path / "out"),
        retain_interval="10ms",
        checkpoint_interval="20ms",
    )
    with running:
        assert list(running.queries) == ["results"]
        running.process_all_available()
        append(tmp_path / "in", ROWS[25:])
        running.process_all_available()
        assert running.status()["queries"]["results"]["active"]
        assert running.status()["state"] == "running"
    assert running.state == "stopped"
    assert same(tmp_path / "out", graph, quotes=quotes(ROWS))
    assert list(PStream(tmp_path / "in").readers()) == ["twice"]
    with pytest.raises(InvalidUsageError, match="already subscribed to the p-stream"):
        penstock.start(
            graph,
            spark,
            tmp_path / "other",
            sources={"quotes": tmp_path / "in"},
            sink=lambda rows: pytest.fail("the sink was opened, and may have created a table"),
        )


def test_what_is_durable_when_a_graph_stops_comes_out_after_its_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    graph, source = filtered(), Input(tmp_path / "in")
    options: dict[str, Any] = {"sources": {"quotes": source.frame(spark)}, "persist": "always"}
    let = threading.Event()
    started = threading.Event()

    def slow(rows: DataFrame) -> DataStreamWriter:
        def write(batch: DataFrame, number: int) -> None:
            started.set()
            assert let.wait(PATIENCE_S)
            _append_batch(batch, number, tmp_path / "out")

        return rows.writeStream.foreachBatch(write)

    source.add(quotes(ROWS[:20]))
    running = penstock.start(graph, spark, tmp_path / "checkpoint", sink=slow, **options)
    assert started.wait(PATIENCE_S)
    source.add(*(quotes(ROWS[at : at + 20]) for at in (20, 40)))
    running.queries["ingest-quotes"].processAllAvailable()
    stopping = threading.Thread(target=running.stop)
    stopping.start()
    let.set()
    stopping.join(PATIENCE_S)
    assert running.state == "stopped"
    again = penstock.start(graph, spark, tmp_path / "checkpoint", sink=slow, available_now=True, **options)
    with again:
        assert again.await_termination(PATIENCE_S)
    assert same(tmp_path / "out", graph, quotes=quotes(ROWS))


def _append_batch(batch: DataFrame, number: int, path: Path) -> None:
    writer = batch.write.format("pstream").mode("append").option("writer", "w").option("batch", str(number))
    writer.save(str(path))


def test_a_failing_batch_stops_all_queries_and_runs_again(spark: SparkSession, tmp_path: Path) -> None:
    graph, source = filtered(), Input(tmp_path / "in")
    source.add(quotes(ROWS))
    options: dict[str, Any] = {"sources": {"quotes": source.frame(spark)}, "persist": "always"}

    def fails(rows: DataFrame) -> DataStreamWriter:
        def write(batch: DataFrame, number: int) -> None:
            _append_batch(batch, number, tmp_path / "out")
            raise ValueError("a batch that fails")

        return rows.writeStream.foreachBatch(write)

    running = penstock.start(graph, spark, tmp_path / "checkpoint", sink=fails, **options)
    with pytest.raises(PenstockError, match=r"query=results .*ValueError: a batch that fails"):
        running.await_termination(PATIENCE_S)
    assert running.state == "failed"
    assert not any(query.isActive for query in running.queries.values())
    with pytest.raises(PenstockError, match="query=results"):
        running.process_all_available()

    def works(rows: DataFrame) -> DataStreamWriter:
        return rows.writeStream.foreachBatch(lambda batch, n: _append_batch(batch, n, tmp_path / "out"))

    again = penstock.start(graph, spark, tmp_path / "checkpoint", sink=works, available_now=True, **options)
    with again:
        assert again.await_termination(PATIENCE_S)
    assert same(tmp_path / "out", graph, quotes=quotes(ROWS))
    report = again.recovery
    assert report is not None
    assert report.checkpoint is None, "no micro-batch of the results was committed"
    assert report.units_loaded == 1
    document = GraphDirectory(tmp_path / "checkpoint").newest("recovery")
    assert document is not None
    assert set(document["phases_s"]) == {
        "progress recovery", "upstream requesting", "data recovery", "upstream replay"
    }  # fmt: skip
    assert document["phases_s"]["upstream replay"] > 0


def test_several_sources_and_a_table(spark: SparkSession, tmp_path: Path) -> None:
    names = pa.schema({"k": pa.string(), "name": pa.string()})
    source = Input(tmp_path / "in")
    source.add(quotes(ROWS[:30]))
    append(tmp_path / "appended", ROWS[30:])
    pushed = penstock.graph("all").source("pushed", QUOTES).where("v > 3")
    filed = penstock.graph("all").source("filed", QUOTES, kind="files").where("v < 9")
    graph = pushed.union(filed).lookup("names", names, on="k").select("name", "t").sink("pstream")
    table = pa.table({"k": [f"key {n}" for n in range(5)], "name": list("abcde")}, names)
    run(
        graph,
        spark,
        tmp_path,
        sources={"pushed": source.frame(spark), "filed": tmp_path / "appended"},
        tables={"names": spark.createDataFrame(table.to_pandas())},
    )
    tables = {"pushed": quotes(ROWS[:30]), "filed": quotes(ROWS[30:]), "names": table}
    assert same(tmp_path / "out", graph, **tables)


def test_two_readers_of_one_p_stream(spark: SparkSession, tmp_path: Path) -> None:
    source = Input(tmp_path / "in")
    source.add(quotes(ROWS[:30]), quotes(ROWS[30:]))
    both = penstock.graph("both").source("quotes", QUOTES)
    high, low = both.where("v >= 6").select("k", "t"), both.where("v < 2").select("k", "t")
    graph = high.union(low).sink("pstream")
    options: dict[str, Any] = {"sources": {"quotes": source.frame(spark)}, "persist": "always"}
    running = run(graph, spark, tmp_path, **options, **limits(max_rows=20))
    assert same(tmp_path / "out", graph, quotes=quotes(ROWS))
    (stream,) = running.progress().streams
    assert [reader.name for reader in stream.readers] == ["both", "both-2"]
    assert [reader.committed for reader in stream.readers] == [60, 60]


def test_an_update_queue_and_what_follows_it(spark: SparkSession, tmp_path: Path) -> None:
    source = Input(tmp_path / "in")
    source.add(quotes(ROWS[:30]))
    graph = (
        penstock.graph("newest").source("quotes", QUOTES).update_queue("k", "t", name="newest").where("v > 1")
    ).sink("pstream")
    options: dict[str, Any] = {"sources": {"quotes": source.frame(spark)}, "persist": "always"}
    run(graph, spark, tmp_path, **options)
    source.add(quotes(ROWS[30:]))
    recovered = run(graph, spark, tmp_path, **options).recovery
    assert recovered is not None
    assert (recovered.buckets, recovered.state_files) == (2, 2)
    newest = {k: (k, t, v) for rows in (ROWS[:30], ROWS[30:]) for k, t, v in rows}
    first = {k: (k, t, v) for k, t, v in ROWS[:30]}
    made = sorted(row for rows in (first, newest) for row in rows.values() if row[2] > 1)
    assert rows_in(tmp_path / "out") == made
    # The file that the checkpoint points to: before a query starts, it is missed.
    last = max((tmp_path / "checkpoint" / "state").glob("*/newest/00001/*.punit"))
    content = last.read_bytes()
    for damage in (lambda: last.write_bytes(content[:40]), last.unlink):
        damage()
        with pytest.raises(CorruptDataError, match=f"file={last}"):
            run(graph, spark, tmp_path, **options)
    assert not spark.streams.active
    last.write_bytes(content)
    recovered = run(graph, spark, tmp_path, **options).recovery
    assert recovered is not None
    assert (recovered.buckets, recovered.state_files) == (2, 4)


def test_a_changed_number_of_buckets_is_refused_before_a_query_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = Input(tmp_path / "in")
    source.add(quotes(ROWS[:30]))
    graph = penstock.graph("newest").source("quotes", QUOTES).update_queue("k", "t", name="newest")
    options: dict[str, Any] = {"sources": {"quotes": source.frame(spark)}, "persist": "always"}
    run(graph, spark, tmp_path, **options)
    source.add(quotes(ROWS[30:]))
    log = tmp_path / "checkpoint" / "queries"
    planned = sorted(log.glob("*/offsets/*"))
    with (
        settings(spark, spark__sql__shuffle__partitions="3"),
        pytest.raises(
            InvalidUsageError,
            match=r"buckets: operator=newest was=2 now=3 .* new checkpoint \(.* files\)\.$",
        ),
    ):
        penstock.start(
            graph,
            spark,
            tmp_path / "checkpoint",
            sink=sink_to(tmp_path / "out"),
            available_now=True,
            **options,
        )
    assert not spark.streams.active
    assert sorted(log.glob("*/offsets/*")) == planned
    run(graph, spark, tmp_path, **options)
    assert set(rows_in(tmp_path / "out")) >= {
        (k, t, v) for k, t, v in {k: (k, t, v) for k, t, v in ROWS}.values()
    }


def test_the_output_of_an_operator_is_persisted(spark: SparkSession, tmp_path: Path) -> None:
    source = Input(tmp_path / "in")
    source.add(quotes(ROWS))
    queue = penstock.graph("pinned").source("quotes", QUOTES).update_queue("k", "t", name="newest")
    high, low = queue.where("v >= 6"), queue.where("v < 6").select("k", "t", v="v + 100")
    graph = high.union(low).sink("pstream")
    sources = {"quotes": source.frame(spark)}
    with pytest.raises(InvalidUsageError, match="several readers"):
        penstock.start(graph, spark, tmp_path / "no", sources=sources, persist="never")
    running = run(graph, spark, tmp_path, sources=sources, persist={"newest": "always", "quotes": "never"})
    assert list(running.queries) == ["ingest-newest", "results"]
    newest = {k: (k, t, v if v >= 6 else v + 100) for k, t, v in ROWS}
    assert rows_in(tmp_path / "out") == sorted(newest.values())


@pytest.mark.parametrize("persist", ["always", "never"])
def test_windows_come_out_of_a_graph(spark: SparkSession, tmp_path: Path, persist: str) -> None:
    source = Input(tmp_path / "in")
    source.add(quotes(ROWS[:30]), quotes(ROWS[30:]), quotes([("last", 1000, 0.0)]))
    about = {"about": "approx_count_distinct(v)", "exactly": "count(DISTINCT v) FILTER (WHERE v > -1)"}
    graph = (
        penstock.graph("sums")
        .source("quotes", QUOTES)
        .window("t", size="10 s", slide="5 s", unit="s")
        .group_by("k")
        .agg(total="sum(v)", mean="avg(v)", unknown="sum(v) + pow(2, 2)", **about)
        .where("total > 3")
        .select("k", "total", "mean", "unknown", *about, begin="window.start")
        .sink("pstream")
    )
    sources = {"quotes": source.frame(spark)}
    run(graph, spark, tmp_path, sources=sources, persist=persist, **limits(max_rows=30))
    wanted: dict[tuple[str, int], list[float]] = defaultdict(list)
    for k, t, v in ROWS:
        for start in (t // 5 * 5, t // 5 * 5 - 5):
            wanted[k, start].append(v)
    found = {(k, round(begin.timestamp())): values for k, *values, begin in rows_in(tmp_path / "out")}
    assert found == {
        key: [sum(vs), sum(vs) / len(vs), sum(vs) + 4, *(len(set(vs)) for _ in about)]
        for key, vs in wanted.items()
        if sum(vs) > 3
    }


@pytest.mark.parametrize(
    ("mode", "persist"), long_but([("append", "always"), ("lazy", "never")], ("append", "always"))
)
def test_windows_of_rows_come_out_of_a_graph_also_after_a_restart(
    spark: SparkSession, tmp_path: Path, mode: str, persist: Any
) -> None:
    def windows(kept: str = "kinds > 1 OR k = 'key 1'", **serving: Any) -> Graph:
        read = penstock.graph("rows").source("quotes", QUOTES).where("v <> 3").select("*", w="v + 1")
        made = read.window(
            "t", size="4 rows", slide="2 rows", unit="s", watermark_delay="2 s", **serving
        ).group_by("k")
        made = made.agg(first="min(t)", total="sum(v)", kinds="count(DISTINCT v % 2)", newest="last(v)")
        return made.where(kept).select("k", "first", "total", "newest").sink("pstream")

    serving: dict[str, Any] = (
        {} if mode == "append" else {"mode": mode, "budget": 2, "policy": "fifo", "weight": "w"}
    )
    source = Input(tmp_path / "in")
    for some in (ROWS[29::-1], [("last", 1000, 0.0), *ROWS[:29:-1]]):
        source.add(quotes(some))
        frame = source.frame(spark)
        run(windows(**serving), spark, tmp_path, sources={"quotes": frame}, persist=persist)
    if mode == "append":
        assert same(tmp_path / "out", windows(), quotes=quotes(ROWS))
        return
    found = [tuple(map(rounded, row)) for row in rows_in(tmp_path / "out")]
    complete = set(rows_of(windows().root, {"quotes": quotes(ROWS)}))
    assert set(found) < complete, "windows are neither cut nor mixed, and some were disregarded"
    in_order = sorted(rows_of(windows("true").root, {"quotes": quotes(ROWS)}), key=lambda row: float(row[1]))
    newest = {k: (k, *row) for k, *row in in_order}
    assert complete.intersection(newest.values()) <= set(found)


@pytest.mark.parametrize("persist", ["always", "never"])
def test_times_without_a_zone_are_of_utc_wherever_the_session_is(
    spark: SparkSession, tmp_path: Path, persist: str
) -> None:
    moments = pa.array([1_700_000_000_000_000 + 500_000 * n for n in range(20)], pa.timestamp("us"))
    source = Input(tmp_path / "in")
    source.add(pa.table({"at": moments}))
    graph = penstock.graph("moments").source("moments", pa.schema({"at": pa.timestamp("us")}))
    counts = graph.window("at", size="2 s").agg(n="count(*)").select(begin="window.start")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = source.frame(spark, "at timestamp_ntz")
        run(counts.sink("pstream"), spark, tmp_path, sources={"moments": frame}, persist=persist)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    starts = [round(begin.timestamp()) for (begin,) in rows_in(tmp_path / "out")]
    assert starts == list(range(1_700_000_000, 1_700_000_008, 2))


def test_a_checkpoint_of_another_graph_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = Input(tmp_path / "in")
    source.add(quotes(ROWS[:30]))
    options: dict[str, Any] = {"sources": {"quotes": source.frame(spark)}, "persist": "always"}
    base = penstock.graph("g").source("quotes", QUOTES).where("v > 2")
    run(base.sink("pstream"), spark, tmp_path, **options)
    for other in (
        penstock.graph("g").source("quotes", QUOTES).where("v > 3"),
        base.update_queue("k", "t"),
        penstock.graph("g").source("trades", QUOTES),
    ):
        given = options | {"sources": {_source_of(other): source.frame(spark)}}
        with pytest.raises(InvalidUsageError, match="belongs to another graph") as refused:
            penstock.start(other.sink("pstream"), spark, tmp_path / "checkpoint", **given)
        assert "{" not in str(refused.value), "it tells operators, not their JSON"
    source.add(quotes(ROWS[30:]))
    changed = base.select("k", "t", v="v + pow(10, 2)").sink("noop")
    run(changed, spark, tmp_path, **options)
    done = {(k, t, v) for k, t, v in ROWS[:30] if v > 2} | {(k, t, v + 100) for k, t, v in ROWS[30:] if v > 2}
    assert rows_in(tmp_path / "out") == sorted(done), "behind the p-stream, what has no state may change"


def test_other_columns_behind_a_queue_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    source = Input(tmp_path / "in")
    source.add(quotes(ROWS[:30]))
    options: dict[str, Any] = {"sources": {"quotes": source.frame(spark)}, "persist": "never"}
    queue = penstock.graph("g").source("quotes", QUOTES).update_queue("k", "t")
    run(queue.select("k", "t").sink("pstream"), spark, tmp_path, **options)
    text = (
        "would keep other columns than in its checkpoint: operator=update_queue more=v fewer=none. Hint: use"
    )
    with pytest.raises(InvalidUsageError, match=text):
        run(queue.select("k", "v").sink("pstream"), spark, tmp_path, **options)
    source.add(quotes(ROWS[30:]))
    run(queue.select("k", t="t + 100").sink("pstream"), spark, tmp_path, **options)
    newest = {k: t for k, t, _ in sorted(ROWS, key=lambda row: row[1])}
    assert {(k, newest[k] + 100) for k in newest} >= {
        row for row in rows_in(tmp_path / "out") if row[1] > 100
    }


def _source_of(graph: Graph) -> str:
    node = graph.root
    while node.inputs:
        node = node.inputs[0]
    return node.name


def test_wrong_starts_are_told(spark: SparkSession, tmp_path: Path) -> None:
    source = Input(tmp_path / "in").frame(spark)
    graph = filtered()
    open_end = penstock.graph("open").source("quotes", QUOTES)
    static = spark.createDataFrame([], SCHEMA)
    other = spark.readStream.schema("k string, t int, x double").parquet(str(tmp_path / "in"))
    given = {"sources": {"quotes": source}}
    looked = open_end.lookup("t", pa.schema({"k": pa.string()}), on="k")
    others = penstock.graph("o").source("o", QUOTES).select("k", "t")
    joined = open_end.join(others, on="k", time="t", within="1 s")
    cases: list[tuple[Graph, dict[str, Any], str]] = [
        (graph, {}, "a source is missing"),
        (graph, {"sources": {"quote": source}}, "no such source"),
        (graph, {"sources": {"quotes": static}}, "a source must be a streaming DataFrame"),
        (graph, {"sources": {"quotes": other}}, "missing=v types=t is int, not bigint"),
        (graph, {"sources": {"quotes": tmp_path / "nowhere"}}, "there is no p-stream"),
        (open_end, given, "the graph has no sink"),
        (looked.sink("noop"), given, "a table is missing"),
        (joined.sink("noop"), given, "can join only update streams"),
    ]
    nowhere = penstock.graph("q").source("quotes", QUOTES).sink("nowhere")
    cases.append(
        (
            nowhere,
            given | {"persist": "never"},
            "the query cannot start: there is no format 'nowhere': query=q",
        )
    )
    for number, (wrong, options, message) in enumerate(cases):
        with pytest.raises(InvalidUsageError, match=message):
            penstock.start(wrong, spark, tmp_path / str(number), **options)
    with pytest.raises(InvalidUsageError, match="option=working_copy got=disk"):
        open_end.update_queue("k", "t", working_copy="disk")


def test_without_ansi_mode_readers_leave_to_spark_what_it_calculates_otherwise(
    spark: SparkSession, tmp_path: Path
) -> None:
    append(tmp_path / "in", [("a", 1, 1.0), ("b", 2**63 - 1, 2.0)])
    begun = penstock.graph("wraps").source("quotes", QUOTES, kind="p-stream")
    graph = begun.where("t + 1 < 5").select("k", next="t + 1")
    windows = begun.window("t", size="10 s", unit="s").agg(total="sum(t + 1)").sink("pstream")
    sources = {"quotes": tmp_path / "in"}
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        run(graph.sink("pstream"), spark, tmp_path, sources=sources)
        with pytest.raises(InvalidUsageError, match="needs ANSI mode: expression=t \\+ 1"):
            run(windows, spark, tmp_path / "windows", sources=sources)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert rows_in(tmp_path / "out") == [("a", 2), ("b", -(2**63))]
