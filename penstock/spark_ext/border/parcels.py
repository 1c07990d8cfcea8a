"""Parcels: rows on their way through Spark as binary values, each an Arrow IPC stream or a p-unit of a batch.

Spark shuffles and groups a handful of parcels in place of millions of rows, and no type is lost on the way.
Kept apart from the packer, so that a worker that only unpacks little does not load the kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from penstock.checkpointing.p_unit import MAGIC, PUnit, decode, encode, packed_cascades
from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.cast import cast_to_schema

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
_KIND = "rows"
_ANY = "latin-1"
"""A text for any bytes."""


def to_parcels(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Return `batches` as parcels of bounded size; an empty one is a parcel, too.

    Where there is much, and it would be much less packed, it is: Spark copies each byte again and again.
    That is decided once, by the first rows of the first large batch. What the schemas' metadata say stays
    with each parcel.
    """
    packed: bool | None = None
    for batch in batches:
        size = max(batch.nbytes, 1)
        if packed is None and size >= _LARGE_BYTES:
            sample = batch.slice(0, _SAMPLE_ROWS)
            made = _packed(sample)
            packed = made is not None and len(made) < _SMALLER * sample.nbytes
        pieces = max(-(-size // _PARCEL_BYTES), 1)
        rows = max(-(-batch.num_rows // pieces), 1)
        for begin in range(0, max(batch.num_rows, 1), rows):
            piece = batch.slice(begin, rows)
            yield (_packed(piece) if packed else None) or _stream(piece)


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _packed(batch: pa.RecordBatch) -> bytes | None:
    """Return rows as a p-unit; None where they have what only a stream of Arrow's holds."""
    # The codecs are loaded only for large parcels.
    from penstock.compression import encode_table

    if any(field.metadata for field in batch.schema):
        return None
    try:
        block = encode_table(batch, codecs=packed_cascades(batch.schema, floats="plain", others="plain"))
    except InvalidUsageError:
        # Two columns of one name, or text that is not UTF-8, which Spark can have.
        return None
    facts = {name.decode(_ANY): text.decode(_ANY) for name, text in (batch.schema.metadata or {}).items()}
    made = encode(PUnit(_KIND, facts), {_KIND: block}).obj
    assert isinstance(made, bytes)  # noqa: S101  # which is not copied again
    return made


def from_parcel(parcel: bytes) -> pa.RecordBatch:
    """Return the batch in `parcel`."""
    if not parcel.startswith(MAGIC):
        with pa.ipc.open_stream(pa.py_buffer(parcel)) as reader:
            return reader.read_next_batch()
    unit = decode(parcel, "a parcel")
    facts = {name.encode(_ANY): text.encode(_ANY) for name, text in unit.meta.items()}
    return unit.blocks[_KIND].replace_schema_metadata(facts or None)


@dataclass(frozen=True)
class Unpacker:
    """The function of ``mapInArrow`` that turns parcels back into rows of `schema`."""

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows; a null in place of a parcel has none."""
        for batch in batches:
            for payload in batch.column(0).drop_null():
                yield cast_to_schema(from_parcel(payload.as_py()), self.schema)
