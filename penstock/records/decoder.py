"""The interface of decoders of binary values, and their common code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.records.registry import RegisteredSchema, SchemaRegistry

__all__ = [
    "NOT_FRAMED",
    "UNKNOWN_SCHEMA",
    "Decoder",
    "file_of",
    "missing_rows",
    "read_schema_file",
    "scatter",
    "subject_schema",
]

NOT_FRAMED = "the value has no schema number before it"
UNKNOWN_SCHEMA = "the schema registry does not know the schema of the value"


class Decoder(ABC):
    """Decodes binary values to columns, batch by batch.

    The driver creates a decoder, and Python workers run it. The attributes are plain values, so that Spark
    can send the decoder to workers. A worker compiles a schema when it first needs the schema.
    """

    schema: pa.Schema
    """The columns that the decoder returns; all are nullable."""

    @abstractmethod
    def decode(self, values: pa.Array) -> tuple[pa.RecordBatch, list[str | None]]:
        """Return the columns of binary values, and for each value the reason if it cannot be read.

        If a value is null or cannot be read, all columns of its row are null.

        Raises
        ------
        InvalidUsageError
            If the schema registry refuses the user.
        UnavailableError
            If the schema registry does not answer.
        """


def file_of(schema: str) -> Path | None:
    """Return the file that a text names; None if the text itself is a schema, which has a brace."""
    return None if "{" in schema else Path(schema)


def read_schema_file(file: Path) -> bytes:
    """Return the content of a schema's file.

    Raises
    ------
    InvalidUsageError
        If the file cannot be read.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidUsageError(
            "the file of the schema cannot be read", file=file, reason=error.strerror
        ) from None


def missing_rows(rows: npt.NDArray[np.int64], read: list[npt.NDArray[np.int64]], count: int) -> list[int]:
    """Return the rows of a batch of `count` rows that are in `rows` but in no part of `read`."""
    missing = np.zeros(count, np.bool_)
    missing[rows] = True
    for part in read:
        missing[part] = False
    return np.flatnonzero(missing).tolist()


def scatter(
    parts: list[pa.RecordBatch], rows: list[npt.NDArray[np.int64]], count: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Return a batch of `count` rows with the rows of `parts` at positions `rows`. Other rows are null."""
    if not count:
        return pa.RecordBatch.from_pylist([], schema)
    table = pa.Table.from_batches(parts, schema)
    where = np.concatenate([*rows, np.zeros(0, np.int64)])
    places, missing = np.zeros(count, np.int64), np.ones(count, np.bool_)
    places[where], missing[where] = np.arange(len(where)), False
    if not missing.any() and len(parts) == 1:
        return parts[0]
    return table.take(pa.array(places, mask=missing)).combine_chunks().to_batches()[0]


def subject_schema(registry: SchemaRegistry | None) -> RegisteredSchema:
    """Return the newest schema of a registry's subject.

    Raises
    ------
    InvalidUsageError
        If there is no registry or subject; see also `SchemaRegistry.by_id`.
    UnavailableError
        If the registry does not answer.
    """
    if registry is None or registry.subject is None:
        raise InvalidUsageError(
            "the values have no schema",
            hint="pass value_schema, or a registry with a subject, whose newest schema is used",
        )
    return registry.newest()
