"""Rows of a p-stream that tasks make durable, and the descriptors that tell other tasks where they are.

A p-stream's sink writes the rows that reach it. Where an operator writes its results itself, only descriptors
reach the sink: the segments' names, and what their p-units are. Both write through `SegmentRows`, so that
segments are the same, named by writer and batch, and what attempts leave that Spark did not choose is found
in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from penstock._failpoints import failpoint
from penstock.checkpointing.files import Files
from penstock.checkpointing.p_stream import Coder, PStream, Segment, SegmentWriter
from penstock.checkpointing.p_stream.log_record import Unit
from penstock.checkpointing.p_stream.segments import writer_of
from penstock.errors import InternalError, InvalidUsageError
from penstock.spark_ext.border.types import (
    as_arrow_of_spark,
    check_same,
    converted,
    spark_schema,
    stored_schema,
)
from penstock.spark_ext.sources.p_stream_options import WriteOptions

__all__ = ["DESCRIPTORS", "OperatorRows", "SegmentRows", "described", "opened", "segments_in"]

_UNIT = StructType([StructField(name, LongType(), nullable=False) for name in ("at", "size_bytes", "rows")])

DESCRIPTORS = StructType(
    [
        StructField("segment", StringType(), nullable=False),
        StructField("units", ArrayType(_UNIT, containsNull=False), nullable=False),
    ]
)
"""Spark's schema of what crosses where an operator writes: a row for each segment, in their order."""


def opened(options: WriteOptions, schema: StructType, *, overwrite: bool = False) -> PStream:
    """Return the p-stream at a path, which is created where there is none.

    Raises
    ------
    InvalidUsageError
        If rows are to be replaced, or rows of this schema do not fit the p-stream.
    """
    if overwrite:
        raise InvalidUsageError(
            "a p-stream is only appended to", hint="use the mode append, and no output mode complete"
        )
    stored = stored_schema(schema)
    try:
        stream = PStream(options.path, stored, direct_io=options.direct_io)
    except InvalidUsageError:
        # A p-stream of other Arrow types may have the same types for Spark.
        stream = PStream(options.path, direct_io=options.direct_io)
    check_same(schema, spark_schema(stream.schema), stream.files.location)
    return stream


class SegmentRows:
    """Writes a task's rows. Made on the driver, used by one task after the other in workers."""

    def __init__(self, options: WriteOptions, stream: PStream) -> None:
        self._goal = options.goal
        self._unit_rows = options.unit_rows
        self._identity = stream.identity
        self._schema: pa.Schema = stream.schema
        self._segments: Files = stream.segments

    def write(
        self, rows: Iterable[pa.RecordBatch], writer: str, batch: int, partition: int
    ) -> tuple[Segment, ...]:
        """Return the segments of a task's rows, which are durable then; none where there are no rows."""
        coder = _coder(self._goal, self._identity)
        segments = SegmentWriter(self._segments, coder, writer, batch, partition, unit_rows=self._unit_rows)
        for some in rows:
            if some.num_rows:
                segments.add(pa.Table.from_batches([converted(some, self._schema)]))
        written = segments.finish()
        failpoint("sink.after_segments")
        return written


@lru_cache(maxsize=4)
def _coder(goal: str, identity: str) -> Coder:
    """Return what codes the rows of one p-stream in this worker, which remembers what suits its columns.

    Few groups make tasks of very different length, and while the longest writes, other cores are idle.
    """
    return Coder(goal, threads=2)


@dataclass(frozen=True)
class OperatorRows:
    """Writes an operator's results into a p-stream. Made on the driver, used in workers.

    Parameters
    ----------
    rows : SegmentRows
        Where to.
    writer : str, optional
        Under whose name; the query's unless given.
    """

    rows: SegmentRows
    writer: str | None

    @classmethod
    def into(cls, options: WriteOptions, schema: StructType, *, chosen: bool) -> OperatorRows:
        """Return what writes rows of a schema as a sink's options say.

        Parameters
        ----------
        options : WriteOptions
            Of the sink.
        schema : StructType
            Of the rows.
        chosen : bool
            Whether the goal was chosen by the user. Else it is ``"fast"``: an operator writes where its
            results outnumber what can cross to Spark.

        Raises
        ------
        InvalidUsageError
            If the rows do not fit the p-stream.
        """
        if not chosen:
            options = replace(options, goal="fast")
        return cls(SegmentRows(options, opened(options, schema)), options.writer)

    def write(
        self, results: Iterable[pa.RecordBatch], query: str, batch: int, bucket: int
    ) -> pa.RecordBatch | None:
        """Make a bucket's results durable; return descriptors, None where there are no rows."""
        segments = self.rows.write(results, self.writer or query, batch, bucket)
        return described(segments) if segments else None


def described(segments: Iterable[Segment]) -> pa.RecordBatch:
    """Return the descriptors of segments."""
    rows = [
        {
            "segment": one.name,
            "units": [{"at": u.at, "size_bytes": u.size_bytes, "rows": u.rows} for u in one.units],
        }
        for one in segments
    ]
    return pa.RecordBatch.from_pylist(rows, schema=as_arrow_of_spark(DESCRIPTORS))


def segments_in(descriptors: Iterator[pa.RecordBatch], writer: str, batch: int) -> tuple[Segment, ...]:
    """Return the segments of descriptors.

    Raises
    ------
    InternalError
        If one is not of this writer and batch: garbage collection would not know it.
    """
    found = tuple(
        Segment(row["segment"], tuple(Unit(u["at"], u["size_bytes"], u["rows"]) for u in row["units"]))
        for rows in descriptors
        for row in rows.to_pylist()
    )
    for segment in found:
        if writer_of(segment.name) != (writer, batch):
            raise InternalError(
                "a descriptor is of another writer or batch", segment=segment.name, writer=writer, batch=batch
            )
    return found
