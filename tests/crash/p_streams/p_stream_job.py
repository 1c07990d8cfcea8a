"""A driver that is killed: its graph reads a p-stream, filters, projects, and writes another by direct I/O.

Usage: ``python p_stream_job.py DIRECTORY``; see `tests.crash.graphs.graph_job`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import penstock
from penstock.spark_ext.graph.handle import RunningGraph
from tests.crash.graphs.graph_job import run
from tests.crash.p_streams.p_stream_writer import SCHEMA
from tests.spark.queries import limits


def start(spark: SparkSession, directory: Path) -> RunningGraph:
    """Start or restart the graph."""
    graph = (
        penstock.graph("job")
        .source("source", SCHEMA)
        .where("n % 3 <> 0")
        .select("n", square="n * n", text="upper(text)")
        .sink("pstream", path=str(directory / "sink"), directIo="true")
    )
    place = directory / "checkpoint"
    return penstock.start(
        graph, spark, place, sources={"source": directory / "source"}, **limits(max_rows=20_000)
    )


if __name__ == "__main__":
    sys.exit(run(start))
