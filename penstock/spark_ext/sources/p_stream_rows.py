"""Write a p-stream's rows in tasks, and describe the written segments to other tasks.

A p-stream's sink writes the rows that reach it. If an operator writes its results itself, only descriptors
reach the sink: the names of segments, and the p-units in them. Sinks and operators both write through
`SegmentRows`, so their segments have the same form. The name of a segment contains its writer and batch; by
this name, garbage collection finds the files of attempts that Spark did not choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from penstock._failpoints import failpoint
from penstock.checkpointing.files import Files, LocalFiles, open_files
from penstock.checkpointing.p_stream import Coder, PStream, Segment, SegmentWriter
from penstock.checkpointing.p_stream.log_record import Unit
from penstock.checkpointing.p_stream.segments import writer_of
from penstock.checkpointing.p_stream.survey import is_p_stream
from penstock.errors import InternalError, InvalidUsageError
from penstock.spark_ext.border.types import (
    as_arrow_of_spark,
    check_same,
    convert,
    spark_schema,
    stored_schema,
)
from penstock.spark_ext.sources.p_stream_options import WriteOptions

__all__ = ["DESCRIPTORS", "OperatorRows", "SegmentRows", "describe_segments", "open_stream", "segments_in"]

_UNIT = StructType([StructField(name, LongType(), nullable=False) for name in ("at", "size_bytes", "rows")])

DESCRIPTORS = StructType(
    [
        StructField("segment", StringType(), nullable=False),
        StructField("units", ArrayType(_UNIT, containsNull=False), nullable=False),
    ]
)
"""Spark's schema of descriptors: a row for each segment, in order."""


def open_stream(
    options: WriteOptions, schema: StructType, *, overwrite: bool = False, option: str | None = None
) -> PStream:
    """Return the p-stream at a path; create it if it does not exist.

    Errors about columns name `option`, the user's option that gives the path.

    Raises
    ------
    InvalidUsageError
        If Spark asks to replace rows, an option does not fit the columns, or rows of this schema do not fit
        the p-stream.
    """
    if overwrite:
        raise InvalidUsageError(
            "a p-stream accepts only appends", hint="use mode('append') or outputMode('append')"
        )
    stored = stored_schema(schema)
    try:
        stream = PStream(options.path, stored, direct_io=options.direct_io, update_log=options.update_log)
    except InvalidUsageError:
        if not is_p_stream(open_files(options.path)):
            raise
        # Different Arrow types may map to the same Spark types.
        stream = PStream(options.path, direct_io=options.direct_io, update_log=options.update_log)
    check_same(schema, spark_schema(stream.schema), stream.files.location, option=option)
    return stream


class SegmentRows:
    """Writes a task's rows. The driver makes this object; one task at a time uses it in a worker.

    Parameters
    ----------
    options : WriteOptions
        The options of the sink.
    stream : PStream
        The p-stream.
    late : bool
        Whether to leave the rows unsynced. A sync of the whole file system then makes them durable, before
        their commit.
    """

    def __init__(self, options: WriteOptions, stream: PStream, *, late: bool = False) -> None:
        self._goal = options.goal
        self._unit_rows = options.unit_rows
        self._identity = stream.identity
        self._schema: pa.Schema = stream.schema
        files = stream.segments
        self._segments: Files = replace(files, late=True) if late and isinstance(files, LocalFiles) else files
        self._update_log = stream.update_log

    def write(
        self, rows: Iterable[pa.RecordBatch], writer: str, batch: int, partition: int
    ) -> tuple[Segment, ...]:
        """Make a task's rows durable; return their segments, none if there are no rows.

        With `late`, the rows are durable only after a sync of the file system.
        """
        coder = _coder(self._goal, self._identity)
        segments = SegmentWriter(self._segments, coder, writer, batch, partition, unit_rows=self._unit_rows)
        for some in rows:
            if some.num_rows:
                table = pa.Table.from_batches([convert(some, self._schema)])
                if self._update_log is not None:
                    self._update_log.check_rows(table)
                segments.add(table)
        written = segments.finish()
        failpoint("sink.after_segments")
        return written


@lru_cache(maxsize=4)
def _coder(goal: str, identity: str) -> Coder:
    """Return this worker's encoder for a p-stream; it remembers the cascades chosen for the columns.

    The encoder uses several threads. With few groups, tasks differ much in length, and cores are idle while
    the longest task writes.
    """
    return Coder(goal, threads=2)


@dataclass(frozen=True)
class OperatorRows:
    """Writes an operator's results into a p-stream. The driver makes this object; workers use it.

    Parameters
    ----------
    rows : SegmentRows
        Writes the rows.
    writer : str, optional
        The writer's name; by default the id of the query.
    """

    rows: SegmentRows
    writer: str | None

    @classmethod
    def bind(cls, given: Mapping[str, str], schema: StructType) -> OperatorRows:
        """Return the writer of rows of a schema.

        Parameters
        ----------
        given : mapping of str to str
            The sink's options. The default goal is ``"fast"``: operators write results themselves only if
            there are too many to pass through Spark, so speed matters most.
        schema : StructType
            The rows' columns.

        Raises
        ------
        InvalidUsageError
            If an option is wrong, or the rows do not fit the p-stream.
        """
        options = WriteOptions.parse(given)
        if not any(name.lower() == "goal" for name in given):
            options = replace(options, goal="fast")
        return cls(SegmentRows(options, open_stream(options, schema)), options.writer)

    def write(
        self, results: Iterable[pa.RecordBatch], query: str, batch: int, bucket: int
    ) -> pa.RecordBatch | None:
        """Make a bucket's results durable; return descriptors, None if there are no rows."""
        segments = self.rows.write(results, self.writer or query, batch, bucket)
        return describe_segments(segments) if segments else None


def describe_segments(segments: Iterable[Segment]) -> pa.RecordBatch:
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
        If a segment belongs to a different writer or batch. Garbage collection relies on the names of
        segments.
    """
    segments = tuple(
        Segment(row["segment"], tuple(Unit(u["at"], u["size_bytes"], u["rows"]) for u in row["units"]))
        for rows in descriptors
        for row in rows.to_pylist()
    )
    for segment in segments:
        if writer_of(segment.name) != (writer, batch):
            raise InternalError(
                "a descriptor is of another writer or batch", segment=segment.name, writer=writer, batch=batch
            )
    return segments
