"""Keyed tables: the row of each key of one bucket, outside of Python's memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.state_store.keys.key_words import KeyCodec, Keys

__all__ = ["Found", "Layout", "Table"]

Found = npt.NDArray[np.bool_]
"""A mask of the keys found."""


class Table(Protocol):
    """Rows by key. A table is not durable: its user stores the durable state in p-units.

    One task at a time uses a table. Only the iterator that `rows` returns is thread-safe. Keys have no nulls.
    All zeros are one key, and so are all NaNs.

    Attributes
    ----------
    schema : pyarrow.Schema
        All columns. `rows` returns the key's columns first.
    key : tuple of str
        The key's columns.
    """

    schema: pa.Schema
    key: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of rows."""

    def get(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, Found]:
        """Return the values of `keys`, and a mask of the keys found.

        Parameters
        ----------
        keys : pyarrow.RecordBatch
            The key columns. Other columns are ignored.

        Returns
        -------
        rows : pyarrow.RecordBatch
            The value columns, with row i for key i; all nulls if the key is absent.
        found : bool array
            A mask of the keys found.

        Raises
        ------
        InvalidUsageError
            If a key column is missing, has the wrong type, or has nulls, or if the values have more text than
            one batch can hold.
        """

    def put(self, rows: pa.RecordBatch) -> None:
        """Insert or replace rows. The last row of a repeated key wins.

        Raises
        ------
        InvalidUsageError
            If a column is missing or has the wrong type, or a key has nulls.
        """

    def remove(self, keys: pa.RecordBatch) -> int:
        """Remove the rows of keys; return the number of removed rows. Other columns of `keys` are ignored.

        Raises
        ------
        InvalidUsageError
            If a key column is missing, has the wrong type, or has nulls.
        """

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Return all current rows, in one or more batches of a bounded size in bytes.

        The key's columns come first. The table may change or be closed while another thread reads the rows.
        """

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the table, in bytes."""

    def close(self) -> None:
        """Release memory and files. The table is unusable afterwards. Closing twice is not an error."""


@dataclass(frozen=True)
class Layout:
    """The columns of a table, split into keys and values.

    Parameters
    ----------
    schema : pyarrow.Schema
        All columns.
    key : tuple of str
        The key's columns; at least one.

    Raises
    ------
    InvalidUsageError
        If a name repeats, a key column is missing, or its type cannot be a key.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    codec: KeyCodec = field(init=False, repr=False, compare=False)
    key_schema: pa.Schema = field(init=False, repr=False, compare=False)
    value_schema: pa.Schema = field(init=False, repr=False, compare=False)
    row_schema: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the columns."""
        names = self.schema.names
        if not self.key:
            raise InvalidUsageError("a table needs a key", hint="name at least one column")
        for what, listed in (("column", names), ("key column", list(self.key))):
            repeated = sorted({name for name in listed if listed.count(name) > 1})
            if repeated:
                raise InvalidUsageError(f"a {what} repeats", columns=repeated)
        missing = [name for name in self.key if name not in names]
        if missing:
            raise InvalidUsageError("there is no such key column", columns=missing, schema=names)
        key = pa.schema([self.schema.field(name) for name in self.key])
        value = pa.schema([self.schema.field(name) for name in names if name not in self.key])
        object.__setattr__(self, "codec", KeyCodec(list(key)))
        object.__setattr__(self, "key_schema", key)
        object.__setattr__(self, "value_schema", value)
        object.__setattr__(self, "row_schema", pa.schema([*key, *value]))

    def keys_of(self, batch: pa.RecordBatch) -> Keys:
        """Return the keys of `batch`.

        Raises
        ------
        InvalidUsageError
            If a key column is missing, has the wrong type, or has nulls.
        """
        columns = [_column(batch, field) for field in self.key_schema]
        for name, column in zip(self.key, columns, strict=True):
            if column.null_count:
                raise InvalidUsageError(
                    "a key column has nulls",
                    column=name,
                    rows=column.null_count,
                    hint="filter them out first",
                )
        return self.codec.encode(columns)

    def values_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the value columns of `rows`.

        Raises
        ------
        InvalidUsageError
            If a value column is missing or has the wrong type.
        """
        columns = [_column(rows, field) for field in self.value_schema]
        if not columns:
            return rows.select([])
        return pa.RecordBatch.from_arrays(columns, schema=self.value_schema)


def _column(batch: pa.RecordBatch, expected: pa.Field[Any]) -> pa.Array[Any]:
    index = batch.schema.get_field_index(expected.name)
    if index < 0:
        raise InvalidUsageError("a column is missing", column=expected.name, columns=batch.schema.names)
    column = batch.column(index)
    if column.type != expected.type:
        raise InvalidUsageError(
            "a column has another type", column=expected.name, type=column.type, expected=expected.type
        )
    return column
