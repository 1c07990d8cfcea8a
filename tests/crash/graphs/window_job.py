"""A driver that is killed: SG3, two kinds of windows and their join, over files.

Usage: ``python window_job.py DIRECTORY``; see `tests.crash.graphs.graph_job`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import penstock
from benchmarks.queries import QUERIES
from benchmarks.streams import REAL
from penstock.spark_ext.border.types import spark_schema
from penstock.spark_ext.graph.handle import RunningGraph
from tests.crash.graphs.graph_job import run
from tests.spark.queries import Input, limits


def start(spark: SparkSession, directory: Path) -> RunningGraph:
    """Start or restart the graph."""
    schema = spark_schema(pa.schema(REAL["smart_grid"].columns))
    return penstock.start(
        QUERIES["SG3"](),
        spark,
        directory / "checkpoint",
        sources={"smart_grid": Input(directory / "files").frame(spark, schema)},
        sink=lambda rows: rows.writeStream.format("pstream").option("path", str(directory / "out")),
        persist="always",
        **limits(max_rows=700),
    )


if __name__ == "__main__":
    sys.exit(run(start))
