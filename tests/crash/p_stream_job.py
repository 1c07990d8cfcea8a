"""A driver that is killed: reads a p-stream, filters and projects it, and writes a p-stream.

Usage: ``python p_stream_job.py DIRECTORY``. Prints ``started`` when the query runs for the first time.
A query that fails, because a worker was killed, is started again. Ends with 0 once there is a file
``finished`` and all is read.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.checkpointing.p_stream import PStream
from tests.spark.conftest import lean_session


def start(spark: SparkSession, directory: Path) -> StreamingQuery:
    """Start or restart the query."""
    source = spark.readStream.format("pstream").option("reader", "job").option("maxRows", 20_000)
    df = source.load(str(directory / "source"))
    made = df.where("n % 3 != 0").selectExpr("n", "n * n as square", "upper(text) as text")
    writer = made.writeStream.format("pstream").option("checkpointLocation", str(directory / "checkpoint"))
    return writer.start(str(directory / "sink"))


def is_done(query: StreamingQuery, directory: Path) -> bool:
    """Say whether the query has read all that there will be."""
    progress = query.lastProgress
    if progress is None or not (directory / "finished").exists():
        return False
    end = progress.sources[0].endOffset
    return bool(end) and json.loads(end)["offset"] == PStream(directory / "source").end


def main() -> int:
    """Run the job and return its exit code."""
    directory = Path(sys.argv[1])
    spark = lean_session(directory / "spark", master="local[2,2]", as_users=True)
    penstock.register(spark)
    query = start(spark, directory)
    print("started", flush=True)
    try:
        while not is_done(query, directory):
            if not query.isActive:
                print(f"failed: {query.exception()}", file=sys.stderr, flush=True)
                query = start(spark, directory)
            time.sleep(0.05)  # polls: files and the query are asked, and neither tells
    finally:
        query.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
