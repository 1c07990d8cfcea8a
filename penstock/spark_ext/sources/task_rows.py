"""Rows that tasks commit to a p-stream themselves, independently of the sink of their query.

A task commits its rows of a micro-batch at once, by a writer that only the task's bucket or partition uses.
The micro-batch's plan is durable before its rows are visible. So if a micro-batch runs again, it makes the
same rows, and finds that the p-stream already has them. Files of attempts that did not commit are deleted
some micro-batches later.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import DataType, StringType, StructField, StructType

from penstock._failpoints import failpoint
from penstock.checkpointing.files import open_files
from penstock.checkpointing.p_stream import PStream
from penstock.checkpointing.p_stream.description import check_name
from penstock.checkpointing.spark_checkpoint import make_durable
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.operators.update_stream.dropped import REASON, SIDE, WATERMARK, DroppedForm
from penstock.spark_ext.border.types import as_arrow_of_spark
from penstock.spark_ext.sources.p_stream_options import WriteOptions
from penstock.spark_ext.sources.p_stream_rows import SegmentRows, open_stream
from penstock.spark_ext.worker.bucket_task import TaskShare

__all__ = ["REASON", "WATERMARK", "LateStream", "TaskRows", "add_reasons", "dropped_columns"]

_LOGGER = logging.getLogger(__name__)

_SWEEP_BATCHES = 64
"""The number of micro-batches between searches for files of failed attempts."""


@dataclass(frozen=True)
class TaskRows:
    """Commits rows of tasks to a p-stream. The driver makes this object; workers use it.

    Parameters
    ----------
    location : str
        The location of the p-stream.
    rows : SegmentRows
        Writes the rows.
    """

    location: str
    rows: SegmentRows

    def commit(
        self,
        batches: list[pa.RecordBatch],
        writer: str,
        batch: int,
        part: int,
        checkpoint: str | None = None,
    ) -> PStream | None:
        """Make rows of a micro-batch durable and visible, unless another attempt has done so.

        Steps: 1. write the rows, 2. sync the micro-batch's plan, 3. commit the rows.

        Parameters
        ----------
        batches : list of pyarrow.RecordBatch
            The rows.
        writer : str
            The writer, which no other bucket or partition uses.
        batch, part : int
            The micro-batch, and the number of the bucket or partition.
        checkpoint : str, optional
            The query's checkpoint; by default unknown, as in workers of Spark.

        Returns
        -------
        PStream or None
            The p-stream, if the caller should now look for files of failed attempts; otherwise None.

        Raises
        ------
        CorruptDataError
            If the p-stream has different rows under this micro-batch's number, or rows of a newer
            micro-batch.
        UnavailableError
            If the file system refuses.
        """
        stream = PStream(self.location)
        state = stream.log.writers.get(writer)
        if state is None or state.batch < batch:
            segments = self.rows.write(batches, writer, batch, part)
            make_durable(checkpoint)
            failpoint("task_rows.before_commit")
            committed = stream.log.commit(writer, batch, segments)
            failpoint("task_rows.after_commit")
            if committed:
                _LOGGER.info(
                    "rows committed [p_stream=%s writer=%s batch=%d rows=%d]",
                    self.location, writer, batch, sum(segment.rows for segment in segments),
                )  # fmt: skip
                stream.log.shorten()
                before = -1 if state is None else state.batch
                if batch // _SWEEP_BATCHES == before // _SWEEP_BATCHES:
                    return None
                stream.cut_back(writer)
                return stream
        self._check_same(stream, batches, writer, batch)
        return None

    def _check_same(self, stream: PStream, batches: list[pa.RecordBatch], writer: str, batch: int) -> None:
        newest = stream.log.writers[writer].batch
        commits = [commit for commit in stream.log.commits if commit.writer == writer and commit.rows]
        if newest == batch:
            if not commits or commits[-1].offset < stream.start:
                return  # the rows are no longer kept
            theirs = pa.Table.from_batches(stream.read(commits[-1].offset, commits[-1].end), stream.schema)
            if _same_rows(theirs, pa.Table.from_batches(batches)):
                return
        raise CorruptDataError(
            "rows that tasks have written to a p-stream are ahead of the checkpoint, and differ",
            p_stream=self.location,
            batch=batch,
            newest_batch=newest,
            hint="if another process runs with this checkpoint, stop it. Start the query as it was, on the "
            "same engine, until one more micro-batch has run; or start with a new checkpoint and p-stream",
        )


def _same_rows(ours: pa.Table, theirs: pa.Table) -> bool:
    """Return whether tables have the same rows, in any order; a shuffle may change the order."""
    if ours.equals(theirs):
        return True
    theirs = theirs.cast(ours.schema)
    return Counter(map(repr, ours.to_pylist())) == Counter(map(repr, theirs.to_pylist()))


@dataclass(frozen=True)
class LateStream:
    """Writes the dropped rows of an operator to a p-stream. The driver makes this object; workers use it.

    The columns are the columns of the input, `REASON`, and `WATERMARK` if the operator has a watermark.

    Parameters
    ----------
    rows : TaskRows
        Commits the rows.
    name : str
        The operator's name.
    form : DroppedForm
        The form of the rows.
    """

    rows: TaskRows
    name: str
    form: DroppedForm

    @classmethod
    def open(cls, location: str | os.PathLike[str], name: str, columns: StructType, state: str) -> LateStream:
        """Return the writer into the p-stream at a location, which is created if it does not exist.

        Parameters
        ----------
        location : str or path
            The p-stream: an absolute path or a URI.
        name : str
            The operator's name, which is a part of the writers' names.
        columns : StructType
            The result of `dropped_columns`.
        state : str
            The state location, which must differ from `location`.

        Raises
        ------
        InvalidUsageError
            If the p-stream has different columns, or the location is the state location.
        UnavailableError
            If the location cannot be written.
        """
        options = WriteOptions.parse({"path": os.fspath(location)})
        check_name(_writer(str(uuid.UUID(int=0)), name, 0))
        if open_files(options.path).location == open_files(state).location:
            raise InvalidUsageError(
                "late rows would go into the state location",
                late_to=options.path,
                hint="use another directory",
            )
        stream = open_stream(options, columns, option="late_to")
        rows = TaskRows(options.path, SegmentRows(options, stream))
        return cls(rows, name, DroppedForm(as_arrow_of_spark(columns)))

    def write(self, late: list[pa.RecordBatch], share: TaskShare) -> None:
        """Commit the dropped rows of a bucket and a micro-batch; see `TaskRows.commit`."""
        if any(one.num_rows for one in late):
            writer = _writer(share.query_id, self.name, share.bucket)
            self.rows.commit(late, writer, share.batch_id, share.bucket)


def _writer(query: str, name: str, bucket: int) -> str:
    return f"{query}-{name}-{bucket}"


def dropped_columns(columns: StructType, watermark: DataType | None, *, sides: bool = False) -> StructType:
    """Return the columns of dropped rows.

    Parameters
    ----------
    columns : StructType
        The columns of the rows.
    watermark : DataType, optional
        The type of `WATERMARK`, if the operator has one.
    sides : bool
        Whether the rows come from the sides of a join; then they have the columns of both sides.

    Raises
    ------
    InvalidUsageError
        If a column of the rows has the name of an added column.
    """
    added = [StructField(REASON, StringType())]
    added += [] if watermark is None else [StructField(WATERMARK, watermark)]
    added += [StructField(SIDE, StringType())] if sides else []
    names = {name.lower() for name in columns.names}
    if clashes := [field.name for field in added if field.name in names]:
        raise InvalidUsageError(
            "an input column has the name of a column that late rows get",
            columns=clashes,
            hint="rename it before the operator",
        )
    own = [StructField(one.name, one.dataType, one.nullable or sides) for one in columns]
    return StructType([*own, *added])


def add_reasons(rows: pa.RecordBatch, reasons: pa.Array, watermark: pa.Array | None = None) -> pa.RecordBatch:
    """Return rows with `REASON` and, if given, `WATERMARK`."""
    rows = rows.replace_schema_metadata(None).append_column(REASON, reasons)
    return rows if watermark is None else rows.append_column(WATERMARK, watermark)
