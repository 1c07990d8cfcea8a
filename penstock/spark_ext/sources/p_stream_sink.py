"""The writers of the data source ``pstream``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock._clock import new_id
from penstock._durable.file_system import FileSystem
from penstock._failpoints import failpoint
from penstock.checkpointing.files import Files, LocalFiles
from penstock.checkpointing.p_stream import PStream, Segment
from penstock.checkpointing.p_stream.log import CommitLog
from penstock.checkpointing.p_stream.log_record import WriterState
from penstock.checkpointing.p_stream.segments import pieces, read_blocks
from penstock.checkpointing.p_stream.update_log.background import compact_if_due
from penstock.checkpointing.spark_checkpoint import local_path, make_durable, plan_of
from penstock.checkpointing.trace import trace
from penstock.errors import CorruptDataError, InternalError, InvalidUsageError
from penstock.spark_ext.border.spark_versions import DataSourceStreamArrowWriter, check_stream_columns
from penstock.spark_ext.border.types import check_same
from penstock.spark_ext.sources.p_stream_options import WriteOptions
from penstock.spark_ext.sources.p_stream_rows import DESCRIPTORS, SegmentRows, open_stream, segments_in

__all__ = ["BatchWriter", "StreamWriter"]

_LOGGER = logging.getLogger(__name__)

_SWEEP_BATCHES = 64
"""The number of micro-batches between searches for files of failed attempts."""


@dataclass(frozen=True, slots=True)
class _Written(WriterCommitMessage):
    """The commit message of one task: `segments` hold the rows of `partition`, in order."""

    writer: str
    query: str
    batch: int
    partition: int
    segments: tuple[Segment, ...]


def _sort_segments(messages: Sequence[WriterCommitMessage | None]) -> list[_Written]:
    """Return the tasks' segments in the order of partitions."""
    written = [message for message in messages if isinstance(message, _Written)]
    if len({(message.writer, message.query, message.batch) for message in written}) > 1:
        raise InternalError("the tasks of one batch wrote for several")
    return sorted(written, key=lambda message: message.partition)


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends each micro-batch as one commit.

    For every micro-batch Spark creates a writer on the driver, and another writer in the process that
    commits. So a writer keeps no state between batches.

    Each commit names the query as its writer, and the number of the micro-batch. If the driver dies between
    this commit and Spark's, Spark runs the micro-batch again. The log already has the number of this
    micro-batch, so the second commit is dropped. Before a commit, Spark's checkpoint files are synced. So
    even after a power cut, Spark runs the same rows again under the same number. Files of attempts that Spark
    did not choose are never visible, and are deleted some batches later.

    With the option ``descriptors`` an operator has already written the rows, and the input describes their
    segments (`penstock.spark_ext.sources.p_stream_rows`). The commit then has these segments.

    Parameters
    ----------
    options : WriteOptions
        The options of the sink.
    schema : StructType
        The DataFrame's columns.
    overwrite : bool
        Whether Spark asks to replace the rows; refused.
    in_one_process : bool
        Whether the process that commits also writes the rows. If so, one sync can make the rows, the
        checkpoint and the log entry durable, if all are on one file system that supports this.

    Raises
    ------
    InvalidUsageError
        If an option is wrong, or the columns differ from the p-stream's.
    """

    def __init__(
        self, options: WriteOptions, schema: StructType, *, overwrite: bool, in_one_process: bool = False
    ) -> None:
        if options.batch is not None:
            raise InvalidUsageError("the option batch is only for batch writes", option="batch")
        self._options = options
        self.schema = schema
        self._rows: SegmentRows | None = None
        self._stream: PStream | None = None
        self._file_system: FileSystem | None = None
        self._late: list[Segment] = []  # written, but not synced
        if options.descriptors:
            check_same(schema, DESCRIPTORS, options.path)
        else:
            check_stream_columns(schema)
            stream = open_stream(options, schema, overwrite=overwrite)
            if in_one_process:
                self._file_system = _shared_file_system(stream.files, options.checkpoint)
            self._rows = SegmentRows(options, stream, late=self._file_system is not None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Make a task's rows durable but not visible before the commit; or read their descriptors."""
        task = TaskContext.get()
        query, batch = (
            (task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId"))
            if task
            else (None, None)
        )
        if task is None or query is None or batch is None:
            raise InvalidUsageError("the stream does not run in micro-batches", hint="use another trigger")
        return self.write_rows(iterator, query, int(batch), task.partitionId())

    def write_rows(
        self, rows: Iterator[pa.RecordBatch], query: str, batch: int, partition: int
    ) -> WriterCommitMessage:
        """Make the rows of a micro-batch durable; see `write`. They are not visible before the commit.

        If one sync serves all files, the rows become durable only together with the commit.
        """
        writer = self._options.writer or query
        segments = (
            segments_in(rows, writer, batch)
            if self._rows is None
            else self._rows.write(rows, writer, batch, partition)
        )
        return _Written(writer, query, batch, partition, segments)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make a micro-batch visible, unless it is visible already."""
        written = _sort_segments(messages)
        if not any(message.segments for message in written):
            return
        segments = list(chain.from_iterable(message.segments for message in written))
        self._late = [] if self._file_system is None else segments
        writer, query = written[0].writer, written[0].query
        stream = self._open()
        state = stream.log.writers.get(writer)
        if self._file_system is None and (state is None or batchId > state.batch):
            make_durable(self._options.checkpoint)
        state = state or stream.log.begin(writer, query)
        if state.session != query:
            raise InvalidUsageError(
                "another query has written under this writer's name",
                writer=writer,
                was=state.session,
                now=query,
                hint="give each checkpoint a writer of its own",
            )
        plan = plan_of(self._options.checkpoint, batchId)
        failpoint("sink.before_commit")
        if not stream.log.commit(writer, batchId, segments, session=query, plan=plan):
            _check_same_batch(stream.log.writers[writer], batchId, plan, self._options)
            if self._options.deterministic:
                _check_same_rows(stream, writer, batchId, segments)
            _LOGGER.info("the batch is there already [writer=%s batch=%d]", writer, batchId)
        else:
            _LOGGER.info(
                "rows committed [p_stream=%s query=%s writer=%s batch=%d rows=%d]",
                stream.files.location, query, writer, batchId, sum(segment.rows for segment in segments),
            )  # fmt: skip
        failpoint("sink.after_commit")
        stream.log.shorten()
        compact_if_due(stream, sum(segment.rows for segment in segments), self._options.goal)
        if batchId % _SWEEP_BATCHES == 0:
            stream.cut_back(writer)

    def _open(self) -> PStream:
        """Return the p-stream with its newest log. Spark commits each micro-batch in a new process."""
        if self._stream is None:
            stream = self._stream = PStream(self._options.path)
            if self._file_system is not None and isinstance(stream.files, LocalFiles):
                # Only log entries need a sync of all files, because a compaction syncs its segments itself.
                files = replace(stream.files, sync=self._sync)
                stream.log = CommitLog(files.child("log"), stream.cleanup)
        else:
            self._stream.log.refresh()
        return self._stream

    def _sync(self) -> None:
        """Make all files of the file system durable, including the segments of the micro-batch."""
        if self._file_system is not None:
            self._file_system.sync()
        for segment in self._late:
            trace("persisted", segment=segment.name)
        self._late = []

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: the batch may run again, and a later sweep deletes the written files."""


def _shared_file_system(files: Files, checkpoint: str | None) -> FileSystem | None:
    """Return the file system that holds both p-stream and checkpoint, if one sync covers all its files."""
    path = None if checkpoint is None else local_path(checkpoint)
    if path is None or not path.is_dir() or not isinstance(files, LocalFiles):
        return None
    found = FileSystem(files.directory)
    return found if found.syncs_all and found.has(path) else None


def _check_same_batch(newest: WriterState, batch: int, plan: int | None, options: WriteOptions) -> None:
    """Refuse a micro-batch if the p-stream's log shows that Spark's checkpoint was set back.

    Spark reruns only the newest micro-batch that the p-stream's log has, and with the same plan.

    Raises
    ------
    CorruptDataError
        If the plan differs.
    """
    is_known = batch == newest.batch and (plan is None or newest.plan in (None, plan))
    if not is_known:
        raise CorruptDataError(
            "the checkpoint is older than what the query has written to the p-stream",
            p_stream=options.path,
            checkpoint=options.checkpoint,
            batch=batch,
            newest_batch=newest.batch,
            hint="restore the checkpoint as it was, or start with a new checkpoint and a new p-stream",
        )


def _check_same_rows(stream: PStream, writer: str, batch: int, segments: Sequence[Segment]) -> None:
    """Refuse a micro-batch that has different rows when it runs again, because the program has changed.

    Raises
    ------
    CorruptDataError
        If rows differ.
    """
    commits = [commit for commit in stream.log.commits if commit.writer == writer and commit.rows]
    if not commits or commits[-1].offset < stream.start:
        return  # the rows are no longer kept
    ours = replace(commits[-1], segments=tuple(segments))
    written = list(pieces([ours], ours.offset, ours.end))
    blocks = read_blocks(stream.segments, written, stream.schema)
    names = stream.schema.names
    rows = pa.Table.from_batches(
        [block.read(names, piece.first, piece.stop) for piece, block in blocks], stream.schema
    )
    theirs = pa.Table.from_batches(stream.read(commits[-1].offset, commits[-1].end), stream.schema)
    # Compare values as texts, because Arrow treats NaN as different from NaN.
    if not (rows.equals(theirs) or repr(rows.to_pylist()) == repr(theirs.to_pylist())):
        raise CorruptDataError(
            "the results of a micro-batch that runs again differ from those in the p-stream",
            p_stream=stream.files.location,
            batch=batch,
            rows=rows.num_rows,
            rows_in_p_stream=theirs.num_rows,
            hint="restore the procedures until one more micro-batch has run; or start with a new checkpoint "
            "and a new p-stream",
        )


class BatchWriter(DataSourceArrowWriter):
    """Appends the rows of a batch job as one commit.

    Parameters
    ----------
    options, schema, overwrite
        As for `StreamWriter`.

    Raises
    ------
    InvalidUsageError
        If an option is wrong, or the columns differ from the p-stream's.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if (options.writer is None) != (options.batch is None):
            raise InvalidUsageError("the options writer and batch go together", hint="give both or neither")
        if options.descriptors:
            raise InvalidUsageError("only streams have operators that write", option="descriptors")
        self._options = options
        self._writer = options.writer or new_id()
        self._batch = options.batch or 0
        self._rows = SegmentRows(options, open_stream(options, schema, overwrite=overwrite))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Make a task's rows durable. They are not visible before the commit."""
        task = TaskContext.get()
        partition = task.partitionId() if task else 0
        segments = self._rows.write(iterator, self._writer, self._batch, partition)
        return _Written(self._writer, "", self._batch, partition, segments)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows visible."""
        self._end(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit no rows, so that the written files become garbage."""
        if self._options.batch is None:
            self._end([])

    def _end(self, messages: list[WriterCommitMessage | None]) -> None:
        stream = PStream(self._options.path)
        segments = list(chain.from_iterable(message.segments for message in _sort_segments(messages)))
        if self._options.batch is not None:
            # The rows may come from a micro-batch whose plan is not durable yet.
            make_durable(None)
        stream.log.commit(self._writer, self._batch, segments)
        stream.log.shorten()
        compact_if_due(stream, sum(segment.rows for segment in segments), self._options.goal)
        stream.cut_back(self._writer)
