"""The map side of user-defined operators: each row goes to the bucket of its key, with its position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.arrivals import first_position
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.operators.update_stream.stream import concat
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.packing import parcel_row
from penstock.spark_ext.border.parcels import to_parcels
from penstock.spark_ext.border.transaction_packing import place_rows
from penstock.state_store.keys.key_words import KeyCodec

__all__ = ["KeyPacker"]

_CHUNK_BYTES = 64 << 20


@dataclass(frozen=True)
class KeyPacker:
    """The map side of a user-defined operator, for ``mapInArrow``. A worker calls it once per partition.

    Parameters
    ----------
    schema : pyarrow.Schema
        The input's columns.
    key : tuple of str
        The columns that determine the bucket of a row. Nulls are equal to each other.
    time : str, optional
        The column that orders the rows of a micro-batch.
    buckets : int
        The number of buckets.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    time: str | None
    buckets: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the parcels of one partition's rows.

        Raises
        ------
        InvalidUsageError
            If a row has no time.
        """
        context = TaskContext.get()
        position = first_position(context.partitionId() if context else 0)
        chunk: list[pa.RecordBatch] = []
        size_bytes = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = cast_to_schema(batch, self.schema)
            if self.time is not None and (nulls := rows.column(self.time).null_count):
                raise InvalidUsageError(
                    "a row of an operator has no time",
                    column=self.time,
                    rows=nulls,
                    hint="filter them out first",
                )
            chunk.append(place_rows(rows, self.schema.names, self.time, position))
            position += batch.num_rows
            size_bytes += batch.nbytes
            if size_bytes >= _CHUNK_BYTES:
                yield from self._parcels(chunk)
                chunk, size_bytes = [], 0
        if chunk:
            yield from self._parcels(chunk)

    def _parcels(self, chunk: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = concat(chunk)
        codec = KeyCodec([self.schema.field(name) for name in self.key])
        number = codec.encode([rows.column(name) for name in self.key]).bucket(self.buckets)
        order = np.argsort(number, kind="stable")
        bounds = np.searchsorted(number[order], np.arange(self.buckets + 1))
        rows = rows.take(pa.array(order))
        for bucket, label in enumerate(bucket_labels(self.buckets)):
            begin, end = int(bounds[bucket]), int(bounds[bucket + 1])
            if begin < end:
                for parcel in to_parcels([rows.slice(begin, end - begin)]):
                    yield parcel_row(label, 0, parcel)
