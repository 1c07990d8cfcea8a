"""Tuples that queues, unions and joins drop are in the p-stream of `late_to`, each once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.checkpointing.p_stream import PStream, PStreamReader
from penstock.dataflow import Graph
from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError
from penstock.spark_ext.api.bad_records import BAD_RECORD, reject_bad_records
from penstock.spark_ext.api.metrics import metrics
from tests.long_tests import long_but
from tests.spark.dropped_rows import (
    SCHEMA,
    WANTED,
    WANTED_WITH_DELETES,
    add,
    deletes,
    found,
    query,
    updates,
)
from tests.spark.queries import PATIENCE_S, Input, Place, files_of_batches

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", long_but(WANTED, "queue"))
def test_dropped_tuples_are_those_of_brute_force_and_replays_add_none(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    batches, place, late = updates(3, 120, 5), Place(tmp_path), tmp_path / "late"
    add(place, batches[:3])
    counted = list(metrics(place.run(query(spark, place, kind, late_to=late))))
    place.forget(2)
    add(place, batches[3:])
    # The same micro-batch comes in other pieces, as with another number of cores.
    spark.conf.set("spark.sql.files.maxPartitionBytes", "600")
    try:
        again = metrics(place.run(query(spark, place, kind, late_to=late)))
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    wanted = WANTED[kind](batches)
    assert found(late, kind) == wanted
    counted = [one for one in counted if one["batch_id"] < 2] + again
    assert sum(one["late"] + one["duplicates"] + one["dropped"] for one in counted) == wanted.total() > 20
    assert PStreamReader(late).read().num_rows == wanted.total()


MARK = {"queue": "v % 5 = 0", "union": "v % 5 = 0", "join": "b % 5 = 0"}
"""The rows that delete their key, in the columns of the graph."""


def graph_with_deletes(kind: str, **options: Any) -> Graph:
    """Return a graph whose operator has deletes; its sources are the inputs of `query`."""
    options |= {"delete_when": MARK[kind], "nulls": "drop"}
    if kind == "queue":
        rows = penstock.graph("g").source("rows", parse_schema(SCHEMA))
        return rows.update_queue("k", "t", name=kind, **options).sink("pstream")
    one, other = (
        penstock.graph("g").source(name, parse_schema(SCHEMA), key="k", time="t") for name in ("one", "other")
    )
    if kind == "union":
        return one.union(other, prefer="one", name=kind, **options).sink("pstream")
    options["delete_when"] = {"left": options["delete_when"]}
    left, right = one.select("k", "t", b="v"), other.select("k", "t", c="v")
    return left.join(
        right, on="k", time="t", within="6 s", unit="s", watermark_delay="15 s", condition="b <> c",
        name=kind, **options,
    ).sink("pstream")  # fmt: skip


@pytest.mark.parametrize("kind", long_but(WANTED, "queue"))
def test_a_graph_with_deletes_drops_the_tuples_of_brute_force_and_marks_the_deletes(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    place, late, out = Place(tmp_path), tmp_path / "late", tmp_path / "out"
    graph = graph_with_deletes(kind, late_to=late, buckets=2)
    names = ("rows",) if kind == "queue" else ("one", "other")
    files = updates(4, 240, 4)
    for half in (files[:2], files[2:]):
        add(place, half)
        frames = [Input(place.input.directory).frame(spark, SCHEMA) for _ in names]
        sides = frames if kind == "queue" else [df.where(f"side = {n}") for n, df in enumerate(frames)]
        running = penstock.start(
            graph, spark, place.checkpoint, sources=dict(zip(names, sides, strict=True)),
            sink=lambda rows: rows.writeStream.format("pstream").option("path", str(out)), available_now=True,
        )  # fmt: skip
        with running:
            assert running.await_termination(PATIENCE_S), running.status()
    parts = {
        name: [[row for row in rows if kind == "queue" or row["side"] == side] for rows in files]
        for side, name in enumerate(names)
    }
    counts = {name: list(map(len, part)) for name, part in parts.items()}
    batches = [
        [row for name in names for rows in parts[name][read[name]] for row in rows]
        for read in files_of_batches(place.checkpoint, counts)
    ]
    wanted = WANTED_WITH_DELETES[kind](batches)
    assert found(late, kind) == wanted
    assert {"late", "the key is null", "the time is null"} <= {dropped[3] for dropped in wanted}
    value = "b" if kind == "join" else "v"
    dropped = [row for row in PStreamReader(late).read().to_pylist() if row[value] is not None]
    assert all(row["deleted"] == deletes(row[value]) for row in dropped)
    assert {row["deleted"] for row in dropped} == {True, False}
    emitted = PStreamReader(out).read().to_pylist()
    assert {row["deleted"] for row in emitted} == {True, False}
    if kind == "queue":
        newest = {row["k"]: row["deleted"] for row in emitted}
        assert newest == newest_marks(files)


def newest_marks(batches: list[list[dict[str, Any]]]) -> dict[int, bool]:
    """Return for each key whether its newest row deletes it; the later row wins a tie."""
    newest: dict[int, tuple[int, bool]] = {}
    for rows in batches:
        for row in rows:
            key, time = row["k"], row["t"]
            if key is not None and time is not None and time >= newest.get(key, (time,))[0]:
                newest[key] = time, deletes(row["v"])
    return {key: mark for key, (_, mark) in newest.items()}


def test_late_rows_are_refused_where_they_depend_on_order(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    add(place, updates(3, 9, 1))
    with pytest.raises(InvalidUsageError, match="an adaptive queue cannot write its late rows"):
        query(spark, place, "queue", late_to=tmp_path / "late", semantics="adaptive")
    with pytest.raises(InvalidUsageError, match="combine=True drops tuples that late_to needs"):
        query(spark, place, "queue", late_to=tmp_path / "late", combine=True)
    with pytest.raises(InvalidUsageError, match="late rows would go into the state location"):
        query(spark, place, "join", late_to=place.state)


@pytest.mark.long
def test_rejected_records_of_files_are_the_same_with_another_number_of_cores(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, rejected = Place(tmp_path), tmp_path / "rejected"
    lines = [f'{{"k": "a", "t": {n}}}' if n % 3 else f"bad {n}" for n in range(3000)]
    confs = {"spark.sql.files.openCostInBytes": "1", "spark.sql.leafNodeDefaultParallelism": "2"}

    def run(cores: int, *numbers: int) -> None:
        for number in numbers:
            (tmp_path / "input" / f"{number}.json").write_text("\n".join(lines[number * 1000 :][:1000]))
        for name, value in (confs | {"spark.sql.leafNodeDefaultParallelism": str(cores)}).items():
            spark.conf.set(name, value)
        reader = spark.readStream.schema(f"k STRING, t BIGINT, {BAD_RECORD} STRING")
        reader = reader.option("columnNameOfCorruptRecord", BAD_RECORD).option("maxFilesPerTrigger", 1)
        frame = reader.json(str(tmp_path / "input"))
        facts = {"value": sf.col(BAD_RECORD), "reason": sf.lit("bad")}
        place.run(reject_bad_records(frame, "source", "keep", rejected, facts).select("k", "t"))

    try:
        run(2, 0, 1)
        tasks = {file.writer for file in PStream(rejected).log.commits}
        place.forget(1)
        run(5, 2)
    finally:
        for name in (*confs, "spark.sql.files.minPartitionNum"):
            spark.conf.unset(name)
    assert len(tasks) > 5, "each file was cut"
    values = PStreamReader(rejected).read()["value"].to_pylist()
    assert Counter(values) == Counter(line.encode() for line in lines if line.startswith("bad"))
