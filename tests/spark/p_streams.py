"""Helpers of the tests of the data source ``pstream``: streams of numbers, and queries over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.checkpointing.p_stream import PStreamReader, PStreamWriter
from tests.spark.queries import PATIENCE_S, offset_in

SCHEMA = pa.schema({"n": pa.int64(), "text": pa.string()})


def table(first: int, stop: int) -> pa.Table:
    """Return rows with the numbers from `first` to before `stop`."""
    numbers = range(first, stop)
    return pa.table({"n": numbers, "text": [str(n) if n % 3 else None for n in numbers]}, SCHEMA)


def append(path: Path, first: int, stop: int, *, writer: str = "writer", unit_rows: int = 10) -> None:
    """Append numbers to a p-stream, in p-units of ten."""
    with PStreamWriter(path, SCHEMA, writer=writer, unit_rows=unit_rows, threads=1) as to:
        to.append(table(first, stop))


def numbers(path: Path) -> list[int]:
    """Return the numbers in a p-stream, in their order."""
    return PStreamReader(path).read()["n"].to_pylist()


def stream(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    """Return a p-stream as a streaming DataFrame."""
    return spark.readStream.format("pstream").options(**options).load(str(path))


def start(
    df: DataFrame, sink: Path, checkpoint: Path, *, options: Any = (), **trigger: Any
) -> StreamingQuery:
    """Start or restart a query into a p-stream."""
    writer = df.writeStream.format("pstream").option("checkpointLocation", str(checkpoint))
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.options(**dict(options)).start(str(sink))


def run(df: DataFrame, sink: Path, checkpoint: Path, **options: Any) -> StreamingQuery:
    """Run a query over all that is there."""
    query = start(df, sink, checkpoint, options=options, availableNow=True)
    try:
        assert query.awaitTermination(int(PATIENCE_S)), "the query did not end"
    finally:
        query.stop()
    return query


def batch_rows(query: StreamingQuery) -> list[int]:
    """Return how many rows each micro-batch read."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def last_offset(query: StreamingQuery) -> int:
    """Return the offset up to which a query has read."""
    return int(offset_in(query.recentProgress[-1].sources[0].endOffset)["offset"])
