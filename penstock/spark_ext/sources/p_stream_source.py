"""The data source ``pstream``: p-streams as streams and batches of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.checkpointing.files import Files
from penstock.checkpointing.p_stream import Piece, PStream, read_blocks
from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.checkpointing.p_stream.description import Start
from penstock.checkpointing.releases import Releases
from penstock.checkpointing.trace import trace
from penstock.errors import InternalError, InvalidUsageError
from penstock.spark_ext.border.spark_versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from penstock.spark_ext.border.types import check_same
from penstock.spark_ext.sources.p_stream_options import ReadOptions, WriteOptions
from penstock.spark_ext.sources.p_stream_sink import BatchWriter, StreamWriter
from penstock.spark_ext.sources.pushed import Columns, Pushed, split_large
from penstock.spark_ext.sources.wake import hide_lost_driver

if TYPE_CHECKING:
    from penstock.spark_ext.sources.transaction_scan import TransactionScan

__all__ = ["PStreamDataSource", "ReleaseRule", "p_stream_source"]

_Scan: TypeAlias = "Columns | Pushed | TransactionScan"


@dataclass(frozen=True, slots=True)
class ReleaseRule:
    """The rule for releasing the rows of finished micro-batches. Each release syncs all disks.

    Parameters
    ----------
    batches, size_bytes : int
        Rows are released after this many micro-batches, or this many bytes of their input.
    most_batches : int
        The maximum number of micro-batches between two releases, even if syncs are slow, because Spark keeps
        the logs of only the last hundred micro-batches.
    """

    batches: int = 16
    size_bytes: int = 16 << 20
    most_batches: int = 64


class PStreamDataSource(DataSource):
    """Spark's view of a p-stream, registered under the name ``pstream``.

    Options for reading
    -------------------
    path
        The location of the p-stream.
    reader
        A name to subscribe under (streams only). The p-stream keeps all rows that the query has not
        committed, whatever other readers release. If no name is given, no rows are kept. A name belongs to
        one query.
    start : earliest
        The position at which a query with a new checkpoint begins: ``earliest``, ``latest``, an offset, or an
        ISO 8601 time (by default in UTC), which stands for the first commit at or after this time. An
        existing subscriber continues after its last release.
    columns
        The columns to read: comma-separated names, or a JSON list. By default all.
    scan
        Operators that readers run before rows cross to the JVM, as JSON of
        `penstock.operators.scan.spec.Scan`. The planner of a graph sets this option, instead of `columns`.
    buckets
        For a scan that makes fragments: the number of buckets of the next operator. The reader packs the
        fragments into parcels for these buckets.
    lookup
        The text of a `Lookup` for the fragments; only with ``buckets``. The planner of a graph sets this
        option.
    transactions
        How readers pass rows to transactions; `penstock.transactions` sets this option.
    maxRows, maxBytes
        The limits of a micro-batch in rows and stored bytes. A micro-batch has at least one p-unit.
    partitions
        The greatest number of tasks of a micro-batch. By default Spark's default parallelism.

    Options for writing
    -------------------
    path
        The location of the p-stream, which is created if it does not exist.
    writer
        The writer's name in the commit log; by default the query's id, or a new name for each batch job.
    batch
        For batch jobs with `writer`, as in ``foreachBatch``: the writer's batch number. If this number is not
        above the writer's last number, the batch was already written, and its rows are dropped.
    goal : balanced
        The goal of compression; see `penstock.compression.Chooser`.
    unitRows : 65536
        The greatest number of rows of a p-unit.
    key, time, deleteWhen, keepDeletes
        Make a new p-stream an update log; see `penstock.PStreamWriter`. `key` is one name, several separated
        by commas, or a JSON list.
    directIo
        Whether rows of a new p-stream bypass the page cache on write and read. An existing p-stream keeps its
        setting.

    Notes
    -----
    An offset holds the number of rows before it, and the identity of the p-stream, so that a checkpoint
    cannot continue on a different p-stream at the same path. Spark tells a source that a micro-batch is done
    only when Spark has planned the next micro-batch. After that the rows are released, for several
    micro-batches at a time, after a sync of the disks.
    """

    parallelism = 1
    """The default number of tasks of a micro-batch; see `p_stream_source`."""

    releases = ReleaseRule()
    cleanup = CleanupRule()

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to ``format()``."""
        return "pstream"

    def schema(self) -> StructType:
        """Return the columns that are read."""
        options = ReadOptions.parse(self.options)
        stored = PStream(options.path).schema
        return _scan_of(options, stored, options.columns).spark

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        return _Reader(self._plan(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        return _StreamReader(self._plan(schema), self.releases)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch."""
        return BatchWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream."""
        return StreamWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    def _plan(self, schema: StructType) -> _Plan:
        options = ReadOptions.parse(self.options)
        stream = PStream(options.path, cleanup=self.cleanup)
        return _Plan(
            options, options.partitions or self.parallelism, stream, _plan_scan(options, stream, schema)
        )


def p_stream_source(parallelism: int) -> type[PStreamDataSource]:
    """Return the data source for a session with this default parallelism.

    Spark creates the data source in processes without a session, where it cannot ask for the parallelism.
    """
    return type("PStreamDataSource", (PStreamDataSource,), {"parallelism": parallelism})


def _scan_of(options: ReadOptions, stored: pa.Schema, columns: Sequence[str] | None) -> _Scan:
    if options.transactions:
        from penstock.spark_ext.sources.transaction_scan import TransactionScan

        return TransactionScan.parse(stored, options.transactions)
    if options.scan:
        return Pushed.bind(stored, options.scan, options.buckets, options.lookup)
    return Columns.select(stored, columns)


def _plan_scan(options: ReadOptions, stream: PStream, schema: StructType) -> _Scan:
    """Return the plan of the readers; the rows that they return have the columns of `schema`."""
    if options.transactions:
        return _scan_of(options, stream.schema, None)
    if options.scan:
        # The scanner is slow to load, and has already made this schema in `PStreamDataSource.schema`.
        return Pushed(options.scan, stream.schema, schema, options.buckets, options.lookup)
    scan = Columns.select(stream.schema, options.columns or tuple(schema.names))
    check_same(schema, scan.spark, stream.files.location)
    # A schema that the user gives to Spark may differ in nullability.
    return replace(scan, spark=schema)


class _Pieces(InputPartition):
    """The p-units, or parts of p-units, that one task reads."""

    def __init__(self, pieces: Sequence[Piece], part: int) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)
        self.part = part


def balance(pieces: Sequence[Piece], parts: int) -> list[_Pieces]:
    """Divide pieces, in their order, into at most `parts` tasks of about the same number of rows."""
    total = sum(piece.most_rows for piece in pieces)
    groups: list[list[Piece]] = [[] for _ in range(parts)]
    before = 0
    for piece in pieces:
        rows = piece.most_rows
        groups[(2 * before + rows) * parts // (2 * total)].append(piece)
        before += rows
    return [_Pieces(group, part) for part, group in enumerate(groups) if group]


class _Plan:
    """The common part of both readers. The driver's view of the log does not go to the workers."""

    def __init__(self, options: ReadOptions, partitions: int, stream: PStream, scan: _Scan) -> None:
        self.options = options
        self.partitions = partitions
        self.scan = scan
        self._segments: Files = stream.segments
        self._schema = stream.schema
        self._stream: PStream | None = stream

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the driver's view of the log."""
        return self.__dict__ | {"_stream": None}

    @property
    def stream(self) -> PStream:
        """The driver's view of the p-stream."""
        if self._stream is None:
            raise InternalError("a worker has no view of the commit log")
        return self._stream

    def split(self, start: int, stop: int) -> list[_Pieces]:
        """Return the tasks that read rows `start` to `stop` - 1."""
        if start >= stop:
            return []
        return balance(self.stream.pieces(start, stop, self.options.reader), self.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return a task's rows, at most a p-unit at a time."""
        # Spark makes its own partition for a batch without partitions.
        pieces = partition.pieces if isinstance(partition, _Pieces) else ()
        if not isinstance(self.scan, Columns | Pushed):
            part = partition.part if isinstance(partition, _Pieces) else 0
            yield from self.scan.run(self._segments, self._schema, pieces, part)
            return
        for rows in self.scan.run(read_blocks(self._segments, pieces, self._schema)):
            yield from split_large(rows)


class _Reader(DataSourceReader):
    """Reads the committed rows once."""

    def __init__(self, plan: _Plan) -> None:
        for field, name in (("reader", "reader"), ("max_rows", "maxRows"), ("max_bytes", "maxBytes")):
            if getattr(plan.options, field) is not None:
                raise InvalidUsageError(
                    "an option is only for streams", option=name, hint="leave it out, or use spark.readStream"
                )
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        stream = self._plan.stream
        start = stream.offset_of(self._plan.options.start)
        return self._plan.split(start, stream.end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._plan.read(partition)


class _StreamReader(SupportsTriggerAvailableNow, DataSourceStreamReader):
    """Plans micro-batches on the driver, in one process for the life of a query; workers read them."""

    def __init__(self, plan: _Plan, rule: ReleaseRule) -> None:
        hide_lost_driver()
        self._plan = plan
        self._rule = rule
        self._options = plan.options
        if plan.stream.update_log is not None and plan.options.reader is None:
            raise InvalidUsageError(
                "a stream of an update log needs a reader",
                location=plan.stream.files.location,
                hint="give the option reader a name of its own, so that a micro-batch can run again",
            )
        self._target: int | None = None  # the row at which an AvailableNow run ends
        self._is_known = False
        self._releases = Releases()
        self._released = 0
        self._pending_batches = rule.batches  # so that the first micro-batch of a start is released

    def __getstate__(self) -> dict[str, Any]:
        """Leave out state that only the driver's process uses."""
        return self.__dict__ | {"_releases": None}

    def _offset(self, offset: int) -> dict[str, Any]:
        return {"offset": offset, "identity": self._plan.stream.identity}

    def _row(self, offset: Mapping[str, Any]) -> int:
        """Return the row of an offset.

        Raises
        ------
        InvalidUsageError
            If the offset belongs to another p-stream.
        """
        stream = self._plan.stream
        if offset.get("identity") != stream.identity:
            raise InvalidUsageError(
                "the checkpoint belongs to another p-stream than the one now at this path",
                location=stream.files.location,
                was=offset.get("identity"),
                now=stream.identity,
                hint="start with a new checkpoint",
            )
        return int(offset["offset"])

    def _subscribe(self, start: Start) -> int:
        self._is_known = True
        stream = self._plan.stream
        if self._options.reader is None:
            return stream.offset_of(start)
        return stream.subscribe(self._options.reader, start)

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(self._subscribe(self._options.start))

    def _begin(self, row: int) -> None:
        """At the first call after each start: check that the next rows are kept, and subscribe the reader."""
        if not self._is_known:
            stream = self._plan.stream
            stream.offset_of(row)
            released = self._subscribe(row)
            if stream.update_log is not None and row < released:
                raise InvalidUsageError(
                    "the checkpoint is older than what its reader has released of the update log",
                    location=stream.files.location,
                    wanted=row,
                    released=released,
                    hint="start with a new checkpoint and another reader",
                )

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan.stream.refresh()
        self._target = self._plan.stream.end

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any] | None, limit: ReadLimit) -> dict[str, Any]:
        row = 0
        if start is not None:
            row = self._row(start)
            self._begin(row)
        stream = self._plan.stream
        if self._target is None:
            stream.refresh()
        end = stream.end if self._target is None else self._target
        if isinstance(limit, ReadMaxRows):
            end = stream.stop_within(row, end, limit.max_rows)
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if limit == self.getDefaultReadLimit():
            max_bytes = self._options.max_bytes
        if max_bytes is not None and row < end:
            end = _end_within(stream.pieces(row, end), row, max_bytes)
        if stream.update_log is not None and row < end:
            # Claim the rows before Spark plans them, so that they are the same rows if Spark plans them
            # again.
            stream.claim(self._options.reader or "", end)
        return self._offset(max(row, end))

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._offset(self._plan.stream.end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, stop = self._row(start), self._row(end)
        self._trace("planned", start=first, end=stop)
        self._begin(first)
        return self._plan.split(first, stop)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._plan.read(partition)

    def _trace(self, event: str, **facts: int) -> None:
        trace(event, stream=self._plan.stream.files.location, reader=self._options.reader, **facts)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.reader is None:
            return
        stream, row = self._plan.stream, self._row(end)
        self._trace("done", end=row)
        self._pending_batches += 1
        self._releases.add(self._options.reader, partial(stream.trim_from, self._options.reader, row))
        many = self._pending_batches >= self._rule.batches
        if not many:
            commits = (commit for commit in stream.log.find_commits(self._released) if commit.end <= row)
            many = sum(commit.size_bytes for commit in commits) >= self._rule.size_bytes
        if many and self._releases.run(now=self._pending_batches >= self._rule.most_batches):
            self._released, self._pending_batches = row, 0


def _end_within(pieces: Sequence[Piece], row: int, max_bytes: int) -> int:
    """Return the row after the first p-units that together have at most `max_bytes`; at least one p-unit."""
    size = 0
    for number, piece in enumerate(pieces):
        size += piece.size_bytes
        if number and size > max_bytes:
            break
        row = piece.end
    return row
