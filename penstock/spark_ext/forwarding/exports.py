"""The parcels from the buckets of a micro-batch to its coordinator.

Each forwarded transaction is counted in one of its buckets. A bucket exports the forwarded transactions that
it counts, all of its rows that forwarded transactions need, and a note that names its new version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.procedures.partitions.continuations import continuation_of
from penstock.procedures.texts import Numbers
from penstock.spark_ext.border.packing import mark_side, side_of
from penstock.spark_ext.border.parcels import from_parcel
from penstock.state_store.bucket_store import FileId, Pointer, Version

__all__ = [
    "BUCKET",
    "NUMBER",
    "BucketNote",
    "Exports",
    "export_events",
    "export_rows",
    "is_export",
    "take_exports",
]

BUCKET = f"{RESERVED_PREFIX}bucket"
NUMBER = f"{RESERVED_PREFIX}number"
"""`BUCKET`: the bucket that counts a forwarded event; `NUMBER`: the event's number in this bucket."""

_EVENTS, _ROWS, _NOTE = "forwarded events", "rows of ", "bucket"


@dataclass(frozen=True, slots=True)
class BucketNote:
    """The new version of a bucket that takes part in forwarded transactions.

    Attributes
    ----------
    query : str
        The query.
    batch : int
        The micro-batch.
    bucket : int
        The bucket.
    pointer : Pointer
        The version that the bucket's task committed.
    """

    query: str
    batch: int
    bucket: int
    pointer: Pointer

    def to_batch(self) -> pa.RecordBatch:
        """Return the note as an export."""
        facts = {
            "query": self.query, "batch": self.batch, "bucket": self.bucket,
            "version": int(self.pointer.version), "file_id": str(self.pointer.file_id),
        }  # fmt: skip
        return mark_side(pa.RecordBatch.from_pylist([facts]), _NOTE)

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> BucketNote:
        """Restore a note from the row of `to_batch`."""
        pointer = Pointer(Version(row["version"]), FileId(row["file_id"]))
        return BucketNote(row["query"], row["batch"], row["bucket"], pointer)


def export_events(rows: pa.RecordBatch, columns: int, bucket: int, numbers: Numbers) -> pa.RecordBatch:
    """Return, as an export, the forwarded events that a bucket counts.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        The events: first `columns` columns, then the columns that order events.
    columns : int
        The number of columns before the columns that order events.
    bucket : int
        The bucket.
    numbers : ndarray
        The numbers of the transactions in the bucket.
    """
    buckets = pa.array(np.full(rows.num_rows, bucket, np.int32))
    arrays = [*rows.columns[:columns], buckets, pa.array(numbers), *rows.columns[columns:]]
    names = [*rows.schema.names[:columns], BUCKET, NUMBER, *rows.schema.names[columns:]]
    return mark_side(pa.RecordBatch.from_arrays(arrays, names), _EVENTS)


def export_rows(rows: Mapping[str, pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return rows by table as exports."""
    return [mark_side(some, _ROWS + name) for name, some in rows.items() if some.num_rows]


def is_export(batch: pa.RecordBatch) -> bool:
    """Return whether a batch is an export, for the coordinator."""
    return side_of(batch) != ""


@dataclass(slots=True)
class Exports:
    """The exports of all buckets of a micro-batch.

    Attributes
    ----------
    events : list of pyarrow.RecordBatch
        The forwarded events, at least one batch.
    rows : dict
        The rows by table.
    notes : list of BucketNote
        The notes of the buckets that take part.
    """

    events: list[pa.RecordBatch] = field(default_factory=list)
    rows: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    notes: list[BucketNote] = field(default_factory=list)

    @classmethod
    def read(cls, parcels: Iterable[bytes]) -> Exports:
        """Return the exports in parcels."""
        found = cls()
        for parcel in parcels:
            batch = from_parcel(parcel)
            side, rows = side_of(batch), batch.replace_schema_metadata(None)
            if side == _EVENTS:
                found.events.append(rows)
            elif side == _NOTE:
                found.notes += map(BucketNote.from_row, rows.to_pylist())
            else:
                found.rows.setdefault(side.removeprefix(_ROWS), []).append(rows)
        return found


def take_exports(
    query: str, batch: int, bucket: int, pointer: Pointer, batches: list[pa.RecordBatch]
) -> tuple[Pointer, list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Return the bucket's pointer, the exports to the coordinator, and the operator's other results.

    If there are exports, the pointer is to the version that the coordinator publishes in the same
    micro-batch.
    """
    exports = [one for one in batches if is_export(one)]
    if not exports:
        return pointer, [], batches
    exports.append(BucketNote(query, batch, bucket, pointer).to_batch())
    others = [one for one in batches if not is_export(one)]
    return continuation_of(pointer, batch), exports, others
