"""Parcels: rows on their way through Spark as binary values, each an Arrow IPC stream of one batch.

Spark shuffles and groups a handful of parcels in place of millions of rows, and no type is lost on the way.
Kept apart from the packer, so that a worker that only unpacks does not load the kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from penstock.operators.conform import conform

__all__ = ["PARCELS", "PARCEL_SCHEMA", "SIDE", "Unpacker", "from_parcel", "to_parcels"]

PARCEL_SCHEMA = "bucket int, dropped long, payload binary"
"""Spark's schema of what the packer gives; `bucket` is a label (`bucket_labels`)."""

PARCELS = StructType(
    [
        StructField("bucket", IntegerType()),
        StructField("dropped", LongType()),
        StructField("payload", BinaryType()),
    ]
)
"""The same as Spark has it."""

SIDE = "side"
"""The column that parcels have besides where an operator has several inputs: the number of theirs."""

_PARCEL_BYTES = 16 << 20


def to_parcels(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Return `batches` as parcels of bounded size; an empty one is a parcel, too."""
    for batch in batches:
        size = max(batch.nbytes, 1)
        pieces = max(-(-size // _PARCEL_BYTES), 1)
        rows = max(-(-batch.num_rows // pieces), 1)
        for begin in range(0, max(batch.num_rows, 1), rows):
            sink = pa.BufferOutputStream()
            piece = batch.slice(begin, rows)
            with pa.ipc.new_stream(sink, piece.schema) as writer:
                writer.write_batch(piece)
            yield sink.getvalue().to_pybytes()


def from_parcel(parcel: bytes) -> pa.RecordBatch:
    """Return the batch in `parcel`."""
    with pa.ipc.open_stream(pa.py_buffer(parcel)) as reader:
        return reader.read_next_batch()


@dataclass(frozen=True)
class Unpacker:
    """The function of ``mapInArrow`` that turns parcels back into rows of `schema`."""

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows; a null in place of a parcel has none."""
        for batch in batches:
            for payload in batch.column(0).drop_null():
                yield conform(from_parcel(payload.as_py()), self.schema)
