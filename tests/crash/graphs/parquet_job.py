"""A driver that is killed: windows over Parquet files that Penstock reads, with no p-stream before them.

Usage: ``python parquet_job.py DIRECTORY``; see `tests.crash.graphs.graph_job`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import penstock
from penstock.dataflow import Graph
from penstock.spark_ext.graph.handle import RunningGraph
from tests.crash.graphs.graph_job import run

SCHEMA = pa.schema({"second": pa.int64(), "house": pa.int32(), "plug": pa.int32(), "value": pa.float64()})
WHERE, SIZE_S, SLIDE_S = "plug <> 3 AND value < 90", 6, 2


def graph(files: Path) -> Graph:
    """Return windows of which the reader makes the fragments, two files a micro-batch."""
    options = {"path": str(files), "maxFilesPerTrigger": "2"}
    return (
        penstock.graph("loads")
        .source("readings", SCHEMA, kind="parquet", options=options)
        .where(WHERE)
        .window("second", size=f"{SIZE_S} s", slide=f"{SLIDE_S} s", unit="s")
        .group_by("house")
        .agg(readings="count(*)", load="sum(value)", most="max(value)", first="min(plug)")
        .sink("pstream")
    )


def start(spark: SparkSession, directory: Path) -> RunningGraph:
    """Start or restart the graph, with two tasks for most files."""
    spark.conf.set("spark.sql.files.maxPartitionBytes", "100k")
    spark.conf.set("spark.sql.files.openCostInBytes", "0")
    return penstock.start(
        graph(directory / "files"),
        spark,
        directory / "checkpoint",
        sink=lambda rows: rows.writeStream.format("pstream").option("path", str(directory / "out")),
        persist="never",
    )


if __name__ == "__main__":
    sys.exit(run(start))
