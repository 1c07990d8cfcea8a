"""A driver that is killed: SG3, two kinds of windows and their join, over files.

Usage: ``python window_job.py DIRECTORY``. Prints ``started`` when the graph runs for the first time. A graph
that fails, because a worker was killed, is started again. Ends with 0 once there is a file ``finished`` and
all is read.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import penstock
from benchmarks.queries import QUERIES
from benchmarks.streams import REAL
from penstock.errors import PenstockError
from penstock.spark_ext.graph_handle import RunningGraph
from penstock.spark_ext.p_stream_types import spark_schema
from tests.spark.conftest import lean_session
from tests.spark.queries import Input


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
        max_rows=700,
    )


def main() -> int:
    """Run the job and return its exit code."""
    directory = Path(sys.argv[1])
    spark = lean_session(directory / "spark", master="local[2,2]", as_users=True)
    running = start(spark, directory)
    print("started", flush=True)
    try:
        while True:
            finished = (directory / "finished").exists()
            try:
                if finished:
                    running.process_all_available()
                    return 0
                running.await_termination(0.05)
            except PenstockError as error:
                print(f"failed: {error}", file=sys.stderr, flush=True)
                running.stop()
                running = start(spark, directory)
            time.sleep(0.05)  # polls: the file is made by another process
    finally:
        running.stop()


if __name__ == "__main__":
    sys.exit(main())
