"""The writers of the data source ``pstream``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock._clock import new_id
from penstock._failpoints import failpoint
from penstock.checkpointing.files import Files
from penstock.checkpointing.p_stream import Coder, PStream, Segment, SegmentWriter
from penstock.errors import InternalError, InvalidUsageError
from penstock.spark_ext.p_stream_options import WriteOptions
from penstock.spark_ext.p_stream_types import check_same, converted, spark_schema, stored_schema

__all__ = ["BatchWriter", "StreamWriter"]

_LOGGER = logging.getLogger(__name__)

_SWEEP_BATCHES = 64
"""Micro-batches after which the files of attempts that failed are looked for."""


@dataclass(frozen=True, slots=True)
class _Written(WriterCommitMessage):
    """What one task made durable: `segments` are the rows of `partition`, in their order."""

    writer: str
    query: str
    batch: int
    partition: int
    segments: tuple[Segment, ...]


def _opened(options: WriteOptions, schema: StructType, *, overwrite: bool) -> PStream:
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
        stream = PStream(options.path, stored)
    except InvalidUsageError:
        # A p-stream of other Arrow types may have the same types for Spark.
        stream = PStream(options.path)
    check_same(schema, spark_schema(stream.schema), stream.files.location)
    return stream


class _Rows:
    """Writes a task's rows. Made on the driver, used by one task after the other in workers."""

    def __init__(self, options: WriteOptions, stream: PStream) -> None:
        Coder(options.goal, threads=1)  # a goal that cannot be is refused here
        self._options = options
        self._schema: pa.Schema = stream.schema
        self._segments: Files = stream.segments

    def write(
        self, rows: Iterator[pa.RecordBatch], writer: str, batch: int, partition: int
    ) -> tuple[Segment, ...]:
        """Return the segments of a task's rows, which are durable then; none where there are no rows."""
        # Another thread would compete with other tasks for the same cores.
        coder = Coder(self._options.goal, threads=1)
        segments = SegmentWriter(
            self._segments, coder, writer, batch, partition, unit_rows=self._options.unit_rows
        )
        for some in rows:
            if some.num_rows:
                segments.add(pa.Table.from_batches([converted(some, self._schema)]))
        written = segments.finish()
        failpoint("sink.after_segments")
        return written


def _in_order(messages: Sequence[WriterCommitMessage | None]) -> list[_Written]:
    """Return what tasks wrote, in the order of their partitions."""
    written = [message for message in messages if isinstance(message, _Written)]
    if len({(message.writer, message.query, message.batch) for message in written}) > 1:
        raise InternalError("the tasks of one batch wrote for several")
    return sorted(written, key=lambda message: message.partition)


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends each micro-batch as one commit.

    Spark makes it on the driver for every micro-batch, and again in the process that commits: it holds
    nothing between batches.

    The writer of the commits is the query, and their number the micro-batch's: one that Spark runs again,
    because the driver died between the two commits, is in the log already and is dropped. What attempts
    wrote that Spark did not choose is never seen, and is deleted some batches later.

    Parameters
    ----------
    options : WriteOptions
        Where and how.
    schema : StructType
        The DataFrame's columns.
    overwrite : bool
        Whether Spark asks to replace the rows; refused.

    Raises
    ------
    InvalidUsageError
        If an option is wrong, or the columns are not those of the p-stream.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if options.batch is not None:
            raise InvalidUsageError("a stream's batches have their own numbers", option="batch")
        self._options = options
        self._rows = _Rows(options, _opened(options, schema, overwrite=overwrite))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Make the rows of a task durable, which nobody sees before the commit."""
        task = TaskContext.get()
        query, batch = (
            (task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId"))
            if task
            else (None, None)
        )
        if task is None or query is None or batch is None:
            raise InvalidUsageError("the stream does not run in micro-batches", hint="use another trigger")
        writer = self._options.writer or query
        partition = task.partitionId()
        segments = self._rows.write(iterator, writer, int(batch), partition)
        return _Written(writer, query, int(batch), partition, segments)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make a micro-batch visible, unless it is already."""
        written = _in_order(messages)
        if not any(message.segments for message in written):
            return
        writer, query = written[0].writer, written[0].query
        stream = PStream(self._options.path)
        known = stream.log.writers.get(writer) or stream.log.begin(writer, query)
        if known.session != query:
            raise InvalidUsageError(
                "another query wrote under this name, so that its batches' numbers are taken",
                writer=writer,
                was=known.session,
                now=query,
                hint="give each checkpoint a writer of its own",
            )
        segments = list(chain.from_iterable(message.segments for message in written))
        failpoint("sink.before_commit")
        if not stream.log.commit(writer, batchId, segments, session=query):
            _LOGGER.info("the batch is there already [writer=%s batch=%d]", writer, batchId)
        failpoint("sink.after_commit")
        stream.log.compact()
        if batchId % _SWEEP_BATCHES == 0:
            stream.cut_back(writer)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Leave what was written: the batch may run again, and a later sweep finds it."""


class BatchWriter(DataSourceArrowWriter):
    """Appends the rows of a batch job as one commit.

    Parameters
    ----------
    options, schema, overwrite
        As for `StreamWriter`.

    Raises
    ------
    InvalidUsageError
        If an option is wrong, or the columns are not those of the p-stream.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if (options.writer is None) != (options.batch is None):
            raise InvalidUsageError("the options writer and batch go together", hint="give both or neither")
        self._options = options
        self._writer = options.writer or new_id()
        self._batch = options.batch or 0
        self._rows = _Rows(options, _opened(options, schema, overwrite=overwrite))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Make the rows of a task durable, which nobody sees before the commit."""
        task = TaskContext.get()
        partition = task.partitionId() if task else 0
        segments = self._rows.write(iterator, self._writer, self._batch, partition)
        return _Written(self._writer, "", self._batch, partition, segments)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows visible."""
        self._end(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit no rows, so that what was written is garbage from now on."""
        if self._options.batch is None:
            self._end([])

    def _end(self, messages: list[WriterCommitMessage | None]) -> None:
        stream = PStream(self._options.path)
        segments = chain.from_iterable(message.segments for message in _in_order(messages))
        stream.log.commit(self._writer, self._batch, list(segments))
        stream.log.compact()
        stream.cut_back(self._writer)
