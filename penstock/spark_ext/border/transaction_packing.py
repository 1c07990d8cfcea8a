"""The map side of transactions: each row goes to the bucket of its routing attribute, with its position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext

from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.arrivals import first_position
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.operators.update_stream.stream import RESERVED_PREFIX, concat
from penstock.procedures.partitions.bucket_forwarding import Forwarding
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.packing import parcel_row
from penstock.spark_ext.border.parcels import to_parcels
from penstock.state_store.keys.key_words import KeyCodec

__all__ = ["Route", "TransactionPacker", "bucket_of_values", "place_rows", "sort_rows"]

_POSITION = f"{RESERVED_PREFIX}position"
_TIME = f"{RESERVED_PREFIX}time"
_CHUNK_BYTES = 64 << 20
_BATCH = "streaming.sql.batchId"


class Route(Enum):
    """A route of rows to the task of their bucket."""

    SPARK = "through_spark"
    READERS = "packed_by_readers"
    BUCKET = "read_in_bucket"


@dataclass(frozen=True)
class TransactionPacker:
    """The map side of transactions, for ``mapInArrow``. A worker calls it once per partition.

    Parameters
    ----------
    schema : pyarrow.Schema
        All columns of the input.
    needed : tuple of str
        The columns to pass on.
    time : str, optional
        The column that orders transactions. Rows of equal time are in order of arrival.
    route : str, optional
        The attribute that determines the bucket of a row; None if there is only one bucket.
    buckets : int
        Number of buckets.
    wakes : bool
        Whether the first micro-batch runs in all buckets, including buckets without rows.
    forwarding : Forwarding, optional
        Determines the buckets that a row needs, if rows may need several; the row goes to each of these
        buckets.
    """

    schema: pa.Schema
    needed: tuple[str, ...]
    time: str | None
    route: str | None
    buckets: int
    wakes: bool = False
    forwarding: Forwarding | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the parcels of one partition's rows."""
        context = TaskContext.get()
        position = first_position(context.partitionId() if context else 0)
        if self.wakes and context and not position and context.getLocalProperty(_BATCH) == "0":
            for label in bucket_labels(self.buckets):
                yield parcel_row(label, 0, None)
        chunk: list[pa.RecordBatch] = []
        size_bytes = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            chunk.append(place_rows(cast_to_schema(batch, self.schema), self.needed, self.time, position))
            position += batch.num_rows
            size_bytes += batch.nbytes
            if size_bytes >= _CHUNK_BYTES:
                yield from self._parcels(chunk)
                chunk, size_bytes = [], 0
        if chunk:
            yield from self._parcels(chunk)

    def _parcels(self, chunk: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = concat(list(chunk))
        labels = bucket_labels(self.buckets)
        if self.forwarding is not None:
            yield from self._copies(rows, self.forwarding)
            return
        if self.route is None or self.buckets == 1:
            for parcel in to_parcels([rows]):
                yield parcel_row(labels[0], 0, parcel)
            return
        number = bucket_of_values(rows.column(self.route), self.buckets)
        order = np.argsort(number, kind="stable")
        bounds = np.searchsorted(number[order], np.arange(self.buckets + 1))
        rows = rows.take(pa.array(order))
        for bucket, label in enumerate(labels):
            begin, end = int(bounds[bucket]), int(bounds[bucket + 1])
            if begin < end:
                for parcel in to_parcels([rows.slice(begin, end - begin)]):
                    yield parcel_row(label, 0, parcel)

    def _copies(self, rows: pa.RecordBatch, forwarding: Forwarding) -> Iterator[pa.RecordBatch]:
        """Return parcels in which each row is sent to every bucket that its transaction needs."""
        events = cast_to_schema(rows.select(forwarding.event.names), forwarding.event)
        for places, label in zip(forwarding.places(events), bucket_labels(self.buckets), strict=True):
            if len(places):
                for parcel in to_parcels([rows.take(pa.array(places))]):
                    yield parcel_row(label, 0, parcel)


def place_rows(
    batch: pa.RecordBatch, names: Sequence[str], time: str | None, position: int
) -> pa.RecordBatch:
    """Return the needed columns, and the columns that order rows: the time, if any, and the position.

    Raises
    ------
    InvalidUsageError
        If a row has no time.
    """
    arrays = [batch.column(name) for name in names]
    places = pa.array(np.arange(position, position + batch.num_rows, dtype=np.int64))
    if time is None:
        return pa.RecordBatch.from_arrays([*arrays, places], [*names, _POSITION])
    times = batch.column(time)
    if times.null_count:
        raise InvalidUsageError(
            "a transaction has no time",
            column=time,
            rows=times.null_count,
            hint="filter them out first",
        )
    if pa.types.is_date(times.type):
        times = times.view(pa.int32())
    elif pa.types.is_timestamp(times.type):
        times = times.view(pa.int64())
    return pa.RecordBatch.from_arrays([*arrays, times.cast(pa.int64()), places], [*names, _TIME, _POSITION])


def sort_rows(
    parcels: Sequence[pa.RecordBatch], column_count: int, *, with_places: bool = False
) -> pa.RecordBatch:
    """Return the rows of one or more parcels by time and then by arrival.

    Parameters
    ----------
    parcels : sequence of pyarrow.RecordBatch
        The rows of a bucket, in any order.
    column_count : int
        The number of columns before the columns that order rows (`place_rows`).
    with_places : bool
        Whether to pass on the columns that order rows.
    """
    rows = concat(list(parcels))
    keys = [rows.column(place).to_numpy() for place in range(rows.num_columns - 1, column_count - 1, -1)]
    order = np.lexsort(keys)
    passed = rows if with_places else rows.select(list(range(column_count)))
    return passed if (order[1:] > order[:-1]).all() else passed.take(pa.array(order))


def bucket_of_values(values: pa.Array[Any], buckets: int) -> npt.NDArray[np.int64]:
    """Return the bucket of each value of a routing attribute."""
    # A transaction whose routing attribute is null is rejected, whatever its bucket.
    if values.null_count:
        values = values.fill_null(_nothing(values.type))
    return KeyCodec([pa.field("route", values.type)]).encode([values]).bucket(buckets)


def _nothing(kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.scalar("", kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.scalar(b"", kind)
    return pa.scalar(0, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)
