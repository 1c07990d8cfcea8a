"""The queries of (Scabbard Table 3), run to their end, beside DuckDB: window for window."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock
from benchmarks.queries import QUERIES, STREAMS, from_parquet
from benchmarks.streams import bids
from penstock.checkpointing.p_stream import PStreamReader, PStreamWriter
from penstock.conf.pipeline import load_pipeline
from penstock.dataflow.nodes import PushedScan, Source, topological
from penstock.jobs.pipelines.run import run_to_end
from penstock.spark_ext.border.types import spark_schema
from penstock.spark_ext.sources.parquet_reader import parquet_files
from tests.long_tests import long_but
from tests.oracles.table3 import (
    Windows,
    campaigns,
    cut,
    expected,
    found,
    lines_of,
    rows_of,
    same,
    slowly,
    starting,
    stream_of,
)
from tests.spark.queries import PATIENCE_S, Input, limits

pytestmark = pytest.mark.spark


CASES = [
    ("CM1", 6_000, "always"),
    ("CM1", 6_000, "never"),
    ("CM2", 6_000, "parquet"),
    ("SG2", 8_000, "always"),
    ("SG2", 8_000, "never"),
    ("SG3", 8_000, "always"),
    ("SG3", 8_000, "never"),
    ("LRB1", 8_000, "p-stream"),
    ("YSB", 9_000, "always"),
    ("YSB", 9_000, "never"),
    ("YSB", 9_000, "parquet"),
    ("NQ5", 5_000, "p-stream"),
    ("SM", 9_000, "p-stream"),
]
SHORT = [CASES[0], CASES[4], CASES[10], ("NQ5", 5_000, "p-stream")]
"""Each way once."""


@pytest.mark.parametrize(("query", "rows", "persist"), long_but(CASES, *SHORT))
def test_a_query_closes_the_windows_that_duckdb_has(
    spark: SparkSession, tmp_path: Path, query: str, rows: int, persist: Any
) -> None:
    stream, seed = STREAMS[query], f"{query} {persist}"
    draw = random.Random(seed)
    table = stream_of(stream, rows)
    if table is None:
        pytest.skip("the file is not part of the project")
    tables = {stream: table}
    options: dict[str, Any] = limits(max_rows=draw.randrange(rows // 6, rows // 3))
    if query == "YSB":
        tables["campaigns"] = campaigns(table)
        options["tables"] = {"campaigns": spark.createDataFrame(tables["campaigns"].to_pandas())}
    source = Input(tmp_path / "files")
    graph = QUERIES[query]()
    if persist == "p-stream":
        options["sources"] = {stream: tmp_path / "stream"}
    elif persist == "parquet":
        graph = from_parquet(graph, maxFilesPerTrigger="1")
        options |= {"sources": {stream: source.directory}, "persist": "never"}
        scans = [
            node for node in topological(graph.plan(persist="never").root) if isinstance(node, PushedScan)
        ]
        assert [type(node.inputs[0]) for node in scans] == [Source]
    else:
        options |= {"sources": {stream: source.frame(spark, spark_schema(table.schema))}, "persist": persist}

    # Stopped in between, and started again over the same checkpoint.
    at = draw.randrange(rows // 4, rows)
    for part in (table.slice(0, at), table.slice(at)):
        pieces = cut(part, draw, 2)
        if persist == "p-stream":
            with PStreamWriter(tmp_path / "stream", table.schema, threads=1) as writer:
                for piece in pieces:
                    writer.append(piece)
        else:
            source.add(*pieces)
        running = penstock.start(
            graph,
            spark,
            tmp_path / "checkpoint",
            sink=lambda df: df.writeStream.format("pstream").option("path", str(tmp_path / "out")),
            available_now=True,
            **options,
        )
        with running:
            assert running.await_termination(PATIENCE_S), running.status()
    wanted = expected(query, tables)
    assert len(wanted) > 3, f"too little to compare: {seed}"
    same(found(tmp_path / "out"), wanted)


def test_files_that_spark_divides_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    draw, schema, end = random.Random(7), pa.schema({"t": pa.int64(), "n": pa.int64()}), 0
    files = tmp_path / "100% of it é" / "day=1"
    files.mkdir(parents=True)
    for number, rows in enumerate((1, 65_535, 65_537, 200_000)):
        n = np.arange(end, end + rows)
        group = draw.choice([5_000, 9_999, 70_000])
        pq.write_table(
            pa.table([n // 50_000, n], schema=schema), files / f"{number}.parquet", row_group_size=group
        )
        end += rows
    pq.write_table(pa.table([[100], [0]], schema=schema), files / "9.parquet")
    graph = (
        penstock.graph("divided")
        .source(
            "files", schema, kind="parquet", options={"path": str(files.parent), "maxFilesPerTrigger": "3"}
        )
        .window("t", size="1 s", unit="s")
        .agg(rows="count(*)", sum="sum(n)")
    )
    (source,) = [node for node in topological(graph.root) if isinstance(node, Source)]
    assert parquet_files(spark, source).columns == schema.names, "what a directory is named is no column"
    spark.conf.set("spark.sql.files.maxPartitionBytes", "60000")
    spark.conf.set("spark.sql.files.openCostInBytes", "0")
    running = penstock.start(
        graph.sink("noop"),
        spark,
        tmp_path / "checkpoint",
        sink=lambda df: df.writeStream.format("pstream").option("path", str(tmp_path / "out")),
        persist="never",
        available_now=True,
    )
    with running:
        assert running.await_termination(PATIENCE_S), running.status()
    spark.conf.unset("spark.sql.files.maxPartitionBytes")
    spark.conf.unset("spark.sql.files.openCostInBytes")
    rows = PStreamReader(tmp_path / "out").read().to_pylist()
    bounds = [(low, min(low + 50_000, end)) for low in range(0, end, 50_000)]
    assert sorted((row["rows"], row["sum"]) for row in rows) == sorted(
        (high - low, sum(range(low, high))) for low, high in bounds
    )


def test_distinct_values_are_counted_exactly(spark: SparkSession, tmp_path: Path) -> None:
    table = slowly(bids(4_000, seed=5), "date_time", 40).select(["date_time", "auction", "bidder", "price"])
    graph = (
        penstock.graph("distinct")
        .source("nexmark", table.schema)
        .window("date_time", size="15 s", slide="5 s")
        .group_by(half="auction % 2")
        .agg(
            bidders="count(DISTINCT bidder % 100)",
            rich="count(DISTINCT auction) FILTER (WHERE price > 1000)",
            dearest="last(price) * 0 + max(price)",
            bids="count(*)",
            mean="avg(price)",
            spread="max(price) - min(price)",
        )
    )
    source = Input(tmp_path / "files")
    source.add(*cut(table, random.Random(5), 4))
    running = penstock.start(
        graph.sink("noop"),
        spark,
        tmp_path / "checkpoint",
        sources={"nexmark": source.frame(spark, spark_schema(table.schema))},
        sink=lambda df: df.writeStream.format("pstream").option("path", str(tmp_path / "out")),
        persist="always",
        available_now=True,
    )
    with running:
        assert running.await_termination(PATIENCE_S), running.status()
    wanted = Windows("epoch_us(date_time)", 15, 5, "FROM nexmark").sql(
        """SELECT start, auction % 2 AS half, count(DISTINCT bidder % 100) AS bidders,
        count(DISTINCT auction) FILTER (WHERE price > 1000) AS rich, max(price) AS dearest, count(*) AS bids,
        avg(price) AS mean, max(price) - min(price) AS spread FROM closed GROUP BY ALL"""
    )
    same(found(tmp_path / "out"), rows_of(wanted, {"nexmark": table}))


ROWS = {"CM1": 6_000, "CM2": 16_000, "SG1": 12_000, "SG2": 8_000, "SG3": 8_000, "LRB1": 8_000}
ROWS |= {"LRB2": 2_500, "LRB3": 2_500, "YSB": 9_000, "NQ5": 5_000, "SM": 9_000}


@pytest.mark.parametrize(
    ("query", "reader"),
    long_but(
        [*((query, "spark") for query in QUERIES), ("YSB", "penstock")], ("CM1", "spark"), ("YSB", "penstock")
    ),
)
def test_a_packaged_pipeline_closes_the_windows_that_duckdb_has(
    spark: SparkSession, tmp_path: Path, query: str, reader: str
) -> None:
    stream, draw = STREAMS[query], random.Random(query)
    table = stream_of(stream, ROWS[query])
    if table is None:
        pytest.skip("the file is not part of the project")
    tables = {stream: table}
    overrides = [
        f"source.path={tmp_path / 'files'}",
        f"sink.path={tmp_path / 'out'}",
        f"query.checkpoint={tmp_path / 'checkpoint'}",
    ]
    if query == "YSB":
        tables["campaigns"] = campaigns(table)
        pyarrow.csv.write_csv(tables["campaigns"], tmp_path / "campaigns.csv")
        overrides.append(f"lookup.table.path={tmp_path / 'campaigns.csv'}")
    files, added = tmp_path / "files", 0
    files.mkdir()
    pieces = cut(table, draw, 3)
    lines = iter(lines_of(stream, table))
    if reader == "penstock":
        overrides += ["source.format=parquet", "source.reader=penstock"]
    # Stopped in between, and started again over the same checkpoint.
    for some in (pieces[:2], pieces[2:]):
        for piece in some:
            path = files / f"{added}.txt"
            if reader == "penstock":
                instants = piece["event_time"].cast(pa.timestamp("us", "UTC"))
                at = piece.column_names.index("event_time")
                pq.write_table(piece.set_column(at, "event_time", instants), path)
            else:
                path.write_text("".join(f"{next(lines)}\n" for _ in range(piece.num_rows)))
            os.utime(path, (added, added))
            added += 1
        run_to_end(load_pipeline(query.lower(), overrides), spark=spark)
    wanted = expected(query, tables)
    assert len(wanted) > 3
    same(starting(pq.read_table(tmp_path / "out")), wanted)
