"""Count the bad records of a source, and keep, skip, refuse or reject them."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from penstock.conf.values import OnError
from penstock.errors import InvalidUsageError
from penstock.local_engine.operators import MicroBatch
from penstock.local_engine.query_log import Offset
from penstock.spark_ext.border.types import as_arrow_of_spark
from penstock.spark_ext.sources.rejected import REFUSAL, REFUSAL_HINT, REJECTED

__all__ = ["BadRecords", "RecordInput", "Records", "read_in_parts"]

_SOURCE: Final = "source"
_PLACE: Final = ("file", "topic", "partition", "offset")
"""The columns of `REJECTED` that locate a record."""
_PARTITION: Final = 0
"""The number of the only task that rejects records. On Spark, each partition has a separate task."""

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Records:
    """Rows of records, and the bad records among them.

    Parameters
    ----------
    rows : pyarrow.Table
        A row for each record, with nulls for values that cannot be read.
    bad : sequence of int
        The numbers of the rows of bad records, in order.
    facts : callable
        A function that returns the columns of `REJECTED`, except the source, for the bad records. It is
        called only if bad records are rejected or refused.
    """

    rows: pa.Table
    bad: Sequence[int]
    facts: Callable[[], Mapping[str, Sequence[object]]]


class RecordInput(ABC):
    """An `Input` whose records may be bad."""

    bad_records: BadRecords

    @abstractmethod
    def read_records(self, start: Offset | None, end: Offset) -> Iterator[Records]:
        """Yield the records from `start` up to, but not including, `end`."""


class BadRecords:
    """Counts the bad records of a source, and keeps, skips, refuses or rejects them.

    Parameters
    ----------
    place : str
        The source's name in the pipeline.
    on_error : {"keep", "skip", "fail"}
        Whether the rows of bad records are kept or skipped, or the query fails.
    reject_to : str, optional
        The location of a p-stream that receives bad records, each once.
    checkpoint : str, optional
        The query's checkpoint. If the checkpoint is unknown, all disks are synced before records are
        rejected.
    """

    def __init__(
        self, place: str, on_error: OnError, reject_to: str | None = None, checkpoint: str | None = None
    ) -> None:
        self.place = place
        self._on_error = on_error
        self._reject_to = reject_to
        self._checkpoint = checkpoint

    def treat(
        self, records: Iterable[Records], batch: MicroBatch, *, writes: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows to process; count the bad records in `batch`, and reject them after the last row.

        Parameters
        ----------
        records : iterable of Records
            All records of the source in the micro-batch.
        batch : MicroBatch
            The micro-batch.
        writes : bool
            Whether bad records are written to the p-stream.

        Raises
        ------
        InvalidUsageError
            If a record is bad and `on_error` is ``"fail"``.
        CorruptDataError, UnavailableError
            See `TaskRows.commit`.
        """
        rejected: list[pa.RecordBatch] = []
        for some in records:
            rows = some.rows
            if some.bad:
                if self._on_error == "fail":
                    facts = some.facts()
                    place = {name: facts[name][0] for name in _PLACE if name in facts}
                    raise InvalidUsageError(REFUSAL, hint=REFUSAL_HINT, source=self.place, **place)
                batch.bad_records += len(some.bad)
                if self._reject_to is not None and writes:
                    rejected.append(self._describe(some))
                if self._on_error == "skip":
                    is_good = np.ones(rows.num_rows, np.bool_)
                    is_good[some.bad] = False
                    rows = rows.filter(pa.array(is_good))
            yield from rows.to_batches()
        if rejected and self._reject_to is not None:
            self._reject(rejected, self._reject_to, batch)

    def _describe(self, records: Records) -> pa.RecordBatch:
        schema, count = as_arrow_of_spark(REJECTED), len(records.bad)
        known = {_SOURCE: [self.place] * count, **records.facts()}
        columns = [
            pa.array(known[field.name], field.type) if field.name in known else pa.nulls(count, field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _reject(self, rejected: list[pa.RecordBatch], to: str, batch: MicroBatch) -> None:
        # Few pipelines reject records, so only these pipelines load the writer.
        from penstock.spark_ext.sources.p_stream_options import WriteOptions
        from penstock.spark_ext.sources.p_stream_rows import SegmentRows, open_stream
        from penstock.spark_ext.sources.task_rows import TaskRows

        options = WriteOptions.parse({"path": to})
        rows = TaskRows(
            options.path, SegmentRows(options, open_stream(options, REJECTED, option="reject_to"))
        )
        # Spark's first task uses the same writer's name. So a pipeline that moves between the engines does
        # not reject a record twice.
        writer = f"{batch.query}-{zlib.crc32(self.place.encode()):08x}-{_PARTITION}"
        rows.commit(rejected, writer, batch.number, _PARTITION, self._checkpoint)


def read_in_parts(
    count: int, read: Callable[[int, int], Part | None], read_alone: Callable[[int], Part]
) -> Iterator[Part]:
    """Yield a sequence of records in parts, in order. The parts are as large as bad records allow.

    Parameters
    ----------
    count : int
        The number of records.
    read : callable
        A function that takes the numbers of a first record and of an end, and reads the records before the
        end. It returns None if a record is bad.
    read_alone : callable
        A function that takes the number of one record, which may be bad, and reads the record.
    """
    open_parts = [(0, count)] if count else []
    while open_parts:
        start, stop = open_parts.pop()
        part = read(start, stop)
        if part is not None:
            yield part
        elif stop - start == 1:
            yield read_alone(start)
        else:
            middle = (start + stop) // 2
            open_parts += [(middle, stop), (start, middle)]
