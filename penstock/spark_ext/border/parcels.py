"""Parcels: rows that pass through Spark as binary values, each an Arrow IPC stream or a p-unit.

Spark shuffles and groups a few parcels instead of millions of rows, and no type is lost. This module is
separate from the packer, so that a worker that only unpacks does not load the kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from penstock.checkpointing.p_unit import MAGIC, PUnit, choose_packed_cascades, decode, encode
from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.cast import cast_to_schema

__all__ = ["COORDINATOR", "PARCELS", "SIDE", "ParcelLimits", "Unpacker", "from_parcel", "to_parcels"]

PARCELS = StructType(
    [
        StructField("bucket", IntegerType()),
        StructField("dropped", LongType()),
        StructField("payload", BinaryType()),
    ]
)
"""The columns of a packer's output; `bucket` is a label (`bucket_labels`)."""

SIDE = "side"
"""The extra column of parcels for an operator with several inputs: the input's number."""

COORDINATOR = -1
"""The target of parcels for the coordinator of buckets; no bucket has this label."""

_KIND = "rows"
_ANY = "latin-1"
"""A reversible decoding of any bytes as text."""


@dataclass(frozen=True, slots=True)
class ParcelLimits:
    """The limits that cut a batch into several parcels, and the conditions for packing its rows.

    Parameters
    ----------
    parcel_bytes : int
        The approximate limit of a parcel's rows.
    min_packed_bytes, sample_rows, max_packed_share : int, int, float
        A batch is packed if it has at least `min_packed_bytes`, and packing shrinks a sample of `sample_rows`
        to less than `max_packed_share` of its bytes.
    """

    parcel_bytes: int = 16 << 20
    min_packed_bytes: int = 1 << 20
    sample_rows: int = 1 << 12
    max_packed_share: float = 0.7


_DEFAULT_LIMITS = ParcelLimits()


def to_parcels(batches: Iterable[pa.RecordBatch], limits: ParcelLimits = _DEFAULT_LIMITS) -> Iterator[bytes]:
    """Return `batches` as parcels of bounded size; an empty batch also makes a parcel.

    Large batches are packed (compressed as p-units) if that makes them much smaller, because Spark copies
    each byte several times. To decide this, the first rows of the first large batch are packed. Each parcel
    keeps the schema's metadata.
    """
    packs: bool | None = None
    for batch in batches:
        size = max(batch.nbytes, 1)
        if packs is None and size >= limits.min_packed_bytes:
            sample = batch.slice(0, limits.sample_rows)
            packed_sample = _pack(sample)
            packs = packed_sample is not None and len(packed_sample) < limits.max_packed_share * sample.nbytes
        pieces = max(-(-size // limits.parcel_bytes), 1)
        rows = max(-(-batch.num_rows // pieces), 1)
        for begin in range(0, max(batch.num_rows, 1), rows):
            piece = batch.slice(begin, rows)
            yield (_pack(piece) if packs else None) or _stream(piece)


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _pack(batch: pa.RecordBatch) -> bytes | None:
    """Return rows as a p-unit; None if only an Arrow stream can hold them."""
    # The codecs are loaded only for large parcels.
    from penstock.compression import encode_table

    if any(field.metadata for field in batch.schema):
        return None
    try:
        block = encode_table(
            batch, codecs=choose_packed_cascades(batch.schema, floats="plain", others="plain")
        )
    except InvalidUsageError:
        # Two columns have the same name, or a text is not UTF-8. Spark allows both.
        return None
    facts = {name.decode(_ANY): text.decode(_ANY) for name, text in (batch.schema.metadata or {}).items()}
    parcel = encode(PUnit(_KIND, facts), {_KIND: block}).obj
    assert isinstance(parcel, bytes)  # noqa: S101  # a conversion to bytes would be another copy
    return parcel


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
    """Turns parcels back into rows of `schema`, for ``mapInArrow``."""

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows; a null parcel has no rows."""
        for batch in batches:
            for payload in batch.column(0).drop_null():
                yield cast_to_schema(from_parcel(payload.as_py()), self.schema)
