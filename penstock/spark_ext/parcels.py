"""Parcels: rows on their way through Spark as binary values, each an Arrow IPC stream or a p-unit of a batch.

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
_LARGE_BYTES, _SAMPLE_ROWS, _SMALLER = 1 << 20, 1 << 12, 0.7
"""From so many bytes on rows are packed if a sample of them comes to that share of its bytes or less."""
_IPC = b"\xff\xff\xff\xff"
_KIND = "rows"


def to_parcels(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Return `batches` as parcels of bounded size; an empty one is a parcel, too.

    Where there is much, and it would be much less packed, it is: each byte is copied a dozen times by Spark.
    What the schemas' metadata say stays with each parcel.
    """
    packed: bool | None = None
    for batch in batches:
        size = max(batch.nbytes, 1)
        if packed is None and size >= _LARGE_BYTES:
            sample = batch.slice(0, _SAMPLE_ROWS)
            packed = len(_packed(sample)) < _SMALLER * sample.nbytes
        pieces = max(-(-size // _PARCEL_BYTES), 1)
        rows = max(-(-batch.num_rows // pieces), 1)
        for begin in range(0, max(batch.num_rows, 1), rows):
            piece = batch.slice(begin, rows)
            yield _packed(piece) if packed else _stream(piece)


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _packed(batch: pa.RecordBatch) -> bytes:
    # Kernels are loaded where there is much only.
    from penstock.checkpointing.p_unit import PACKED, PUnit, encode
    from penstock.compression import encode_table

    codecs = {field.name: PACKED if pa.types.is_integer(field.type) else "plain" for field in batch.schema}
    facts = {name.decode(): text.decode() for name, text in (batch.schema.metadata or {}).items()}
    return bytes(encode(PUnit(_KIND, facts), {_KIND: encode_table(batch, codecs=codecs)}))


def from_parcel(parcel: bytes) -> pa.RecordBatch:
    """Return the batch in `parcel`."""
    if parcel[: len(_IPC)] == _IPC:
        with pa.ipc.open_stream(pa.py_buffer(parcel)) as reader:
            return reader.read_next_batch()
    from penstock.checkpointing.p_unit import decode

    unit = decode(parcel, "a parcel")
    return unit.blocks[_KIND].replace_schema_metadata(dict(unit.meta) or None)


@dataclass(frozen=True)
class Unpacker:
    """The function of ``mapInArrow`` that turns parcels back into rows of `schema`."""

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows; a null in place of a parcel has none."""
        for batch in batches:
            for payload in batch.column(0).drop_null():
                yield conform(from_parcel(payload.as_py()), self.schema)
