"""Windows whose results their operator writes into a p-stream: the same rows as through Spark, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.checkpointing.p_stream import PStream, PStreamReader, PStreamWriter
from penstock.checkpointing.p_stream.log_record import Segment, Unit
from penstock.dataflow import Graph
from penstock.errors import InternalError, InvalidUsageError
from penstock.spark_ext.border.spark_versions import HAS_ADMISSION_CONTROL
from penstock.spark_ext.border.types import spark_schema
from penstock.spark_ext.graph.handle import RunningGraph
from penstock.spark_ext.sources.p_stream_options import WriteOptions
from penstock.spark_ext.sources.p_stream_rows import DESCRIPTORS, describe_segments, segments_in
from penstock.spark_ext.sources.p_stream_sink import BatchWriter, StreamWriter
from tests.long_tests import long_but
from tests.spark.queries import PATIENCE_S, fresh_workers, limits, quotes

pytestmark = pytest.mark.spark

QUOTES = quotes([]).schema
ROWS = [(f"key {n % 7}" if n % 11 else None, n, float(n * 37 % 11) if n % 5 else None) for n in range(80)]
LAST: list[tuple[str | None, int | None, float | None]] = [("last", 1000, 0.0)]


def windows(**more: str) -> Graph:
    """Return windows of quotes."""
    made = penstock.graph("direct").source("quotes", QUOTES).window("t", size="10 s", slide="5 s", unit="s")
    return made.group_by("k").agg(
        total="sum(v)", mean="avg(v)", spread="stddev(v)", n="count(*)", high="max(v)", **more
    )


def append(path: Path, writer: str, rows: list[Any]) -> None:
    """Append quotes to a p-stream."""
    with PStreamWriter(path, QUOTES, threads=1, writer=writer) as to:
        to.append(quotes(rows))


def run(spark: SparkSession, graph: Graph, place: Path, **options: Any) -> RunningGraph:
    """Run a graph over all quotes, in two micro-batches, with a p-stream and a checkpoint of its own."""
    options |= {"sources": {"quotes": place / "in"}, "available_now": True} | limits(max_rows=40)
    if not place.exists():
        append(place / "in", "one", ROWS[:40])
        if not HAS_ADMISSION_CONTROL:  # a run is one micro-batch
            run(spark, graph, place, **options)
        append(place / "in", "two", ROWS[40:] + LAST)
    with penstock.start(graph, spark, place / "checkpoint", **options) as running:
        assert running.await_termination(PATIENCE_S), running.status()
    assert running.state == "finished"
    return running


def into(path: Path) -> Any:
    """Return a sink that writes into a p-stream, without the planner's knowledge."""
    return lambda rows: rows.writeStream.format("pstream").option("path", str(path))


def rows_in(path: Path) -> list[str]:
    """Return the rows of a p-stream, sorted."""
    return sorted(repr(tuple(row.values())) for row in PStreamReader(path).read().to_pylist())


def way(running: RunningGraph) -> str:
    """Return how the results are written."""
    return str(running.status()["queries"]["results"]["writes"])


GRAPHS = {
    "plain": (windows(), True),
    "a selection and a projection": (
        windows(twice="avg(v) * 2 + count(*)")
        .where("mean > 2 OR mean IS NULL")
        .select("k", "spread", "high", twice="twice", begin="window.start", other="CAST(n AS DOUBLE) / 4")
        .where("other > 0.25D"),
        True,
    ),
    "nothing is left": (windows().where("n < 0"), True),
    "a user's division by a column": (windows(share="sum(v) / count(*)"), False),
    "a function that only Spark has": (windows().select("k", "window", big="upper(k)"), False),
}


@pytest.mark.parametrize("name", long_but(GRAPHS, "plain"))
def test_both_ways_give_the_same_rows(spark: SparkSession, tmp_path: Path, name: str) -> None:
    graph, direct = GRAPHS[name]
    made = run(spark, graph.sink("pstream", path=str(tmp_path / "direct")), tmp_path / "one")
    assert way(made) == ("directly" if direct else "through Spark")
    other = run(spark, graph.sink("noop"), tmp_path / "other", sink=into(tmp_path / "spark"))
    assert way(other) == "through Spark"
    assert made.schema == other.schema
    assert PStream(tmp_path / "direct").schema.equals(PStream(tmp_path / "spark").schema, check_metadata=True)
    assert rows_in(tmp_path / "direct") == rows_in(tmp_path / "spark")
    if "nothing" not in name:
        assert rows_in(tmp_path / "direct")


@pytest.mark.long
@pytest.mark.parametrize("action", long_but(["error", "kill"], "error"))
def test_an_attempt_that_wrote_and_failed_is_an_orphan(
    spark: SparkSession, tmp_path: Path, action: str
) -> None:
    run(spark, windows().sink("noop"), tmp_path / "other", sink=into(tmp_path / "spark"))
    marker, out = tmp_path / "failed", tmp_path / "out"
    with fresh_workers(spark, PENSTOCK_FAILPOINTS=f"sink.after_segments={action}@{marker}"):
        penstock.register(spark)
        assert way(run(spark, windows().sink("pstream", path=str(out)), tmp_path / "one")) == "directly"
    assert marker.exists()
    assert rows_in(out) == rows_in(tmp_path / "spark")
    view = PStream(out)
    committed = {segment.name for commit in view.log.commits for segment in commit.segments}
    assert len(view.segments.list()) <= len(committed) + 1
    (writer,) = view.log.writers
    view.cut_back(writer)
    assert {fact.name for fact in view.segments.list()} == committed


def test_a_batch_that_runs_again_is_committed_once(spark: SparkSession, tmp_path: Path) -> None:
    graph = windows().sink("pstream", path=str(tmp_path / "out"))
    run(spark, graph, tmp_path / "run")
    made = rows_in(tmp_path / "out")
    assert made
    batches = [path for path in (tmp_path / "run").rglob("commits/*") if path.name.isdecimal()]
    newest = max(batches, key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    run(spark, graph, tmp_path / "run")
    assert newest.exists(), "the batch ran again"
    assert rows_in(tmp_path / "out") == made
    view = PStream(tmp_path / "out")
    committed = {segment.name for commit in view.log.commits for segment in commit.segments}
    assert len(view.segments.list()) > len(committed), "what the second run wrote is an orphan"
    (writer,) = view.log.writers
    view.cut_back(writer)
    assert {fact.name for fact in view.segments.list()} == committed


@pytest.mark.long
def test_a_checkpoint_goes_on_the_other_way_and_back(spark: SparkSession, tmp_path: Path) -> None:
    later = [[(f"key {n % 3}", 1000 * step + n, float(n)) for n in range(20)] for step in (2, 3)]
    direct, through = windows().sink("pstream", path=str(tmp_path / "out")), into(tmp_path / "out")
    assert way(run(spark, direct, tmp_path / "mixed")) == "directly"
    append(tmp_path / "mixed" / "in", "three", later[0])
    assert way(run(spark, direct, tmp_path / "mixed", sink=through)) == "through Spark"
    append(tmp_path / "mixed" / "in", "four", later[1])
    assert way(run(spark, direct, tmp_path / "mixed")) == "directly"
    plain = windows().sink("noop")
    run(spark, plain, tmp_path / "plain", sink=into(tmp_path / "spark"))
    append(tmp_path / "plain" / "in", "three", later[0] + later[1])
    run(spark, plain, tmp_path / "plain", sink=into(tmp_path / "spark"))
    assert rows_in(tmp_path / "out") == rows_in(tmp_path / "spark")


def test_descriptors_of_another_writer_or_batch_are_refused() -> None:
    name = f"me-{7:012}-0000-{'a' * 32}.segment"
    segment = Segment(name, (Unit(0, 10, 5), Unit(10, 3, 1)))
    assert segments_in(iter([describe_segments([segment])]), "me", 7) == (segment,)
    for writer, batch in (("you", 7), ("me", 8)):
        with pytest.raises(InternalError, match="another writer or batch"):
            segments_in(iter([describe_segments([segment])]), writer, batch)


def test_what_is_no_descriptor_is_refused(tmp_path: Path) -> None:
    options = WriteOptions.parse({"path": str(tmp_path / "out"), "descriptors": "true"})
    with pytest.raises(InvalidUsageError, match="the columns differ"):
        StreamWriter(options, spark_schema(QUOTES), overwrite=False)
    with pytest.raises(InvalidUsageError, match="only streams"):
        BatchWriter(options, DESCRIPTORS, overwrite=False)
    with pytest.raises(InvalidUsageError, match="neither true nor false"):
        WriteOptions.parse({"path": str(tmp_path / "out"), "descriptors": "perhaps"})
