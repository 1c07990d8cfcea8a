"""Lookup of fragments in an in-memory table: a graph's stream-table join outside of Spark."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError
from penstock.state_store.keys.key_index import KeyIndex
from penstock.state_store.keys.key_words import KeyCodec, Keys

__all__ = ["Lookup", "can_be_looked_up"]


def can_be_looked_up(kind: pa.DataType) -> bool:
    """Return whether equal values of a type always have equal bytes, unlike floats and nested types."""
    return not (pa.types.is_floating(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind))


class Lookup:
    """An inner join of rows with an in-memory table whose `on` columns form a unique key.

    A lookup is serialized as text; see `to_text`.

    Parameters
    ----------
    table : pyarrow.Table
        The columns `on` and further columns. Rows with a null in `on` match nothing.
    on : sequence of str
        Columns that the rows and the table have, with the same types; see `can_be_looked_up`.
    group_by : sequence of str
        Columns by which the windows after the lookup are grouped.

    Raises
    ------
    InvalidUsageError
        If two rows of the table have the same values in `on`, or a column cannot be looked up.
    """

    def __init__(self, table: pa.Table, on: Sequence[str], group_by: Sequence[str]) -> None:
        self.on, self.group_by = tuple(on), tuple(group_by)
        self._fields = [table.schema.field(name) for name in self.on]
        if unknown := [field.name for field in self._fields if not can_be_looked_up(field.type)]:
            raise InvalidUsageError("columns of this type cannot be looked up", columns=", ".join(unknown))
        self._codec = KeyCodec(self._fields)
        self.table = table.combine_chunks()
        (whole,) = self.table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
        complete = self._complete(whole)
        self._others = complete.select([name for name in complete.schema.names if name not in self.on])
        self._index = KeyIndex()
        self._index.find_or_add(self._keys(complete))
        if len(self._index) < complete.num_rows:
            raise InvalidUsageError(
                "a lookup table has several rows for one key",
                rows=complete.num_rows,
                different=len(self._index),
                columns=", ".join(self.on),
            )

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """Return the output columns: the columns of the rows, then the table's other columns."""
        return pa.schema([*rows, *self._others.schema])

    def join(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the matching rows in their order, with the table's columns."""
        rows = self._complete(rows)
        matches = self._index.find(self._keys(rows))
        if (matches < 0).any():
            rows = rows.filter(pa.array(matches >= 0))
            matches = matches[matches >= 0]
        more = self._others.take(pa.array(matches))
        return pa.RecordBatch.from_arrays([*rows.columns, *more.columns], schema=self.schema(rows.schema))

    def to_text(self) -> str:
        """Return the lookup as text."""
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, self.table.schema, options=options) as writer:
            writer.write_table(self.table)
        rows = base64.b64encode(sink.getvalue()).decode("ascii")
        return json.dumps({"on": self.on, "group_by": self.group_by, "table": rows})

    @classmethod
    def from_text(cls, text: str) -> Lookup:
        """Parse the output of `to_text`; recent results are cached in the process.

        Raises
        ------
        InvalidUsageError
            If the text is malformed.
        """
        return _read(text)

    def _complete(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        for name in self.on:
            if rows.column(name).null_count:
                rows = rows.filter(pc.is_valid(rows.column(name)))
        return rows

    def _keys(self, rows: pa.RecordBatch) -> Keys:
        columns: list[pa.Array[Any]] = [rows.column(name) for name in self.on]
        for column, field in zip(columns, self._fields, strict=True):
            if column.type != field.type:
                raise InvalidUsageError(
                    "a column and the lookup table's column have different types",
                    column=field.name,
                    type=str(column.type),
                    wanted=str(field.type),
                )
        return self._codec.encode(columns)


@functools.lru_cache(maxsize=4)
def _read(text: str) -> Lookup:
    try:
        document = json.loads(text)
        with pa.ipc.open_stream(base64.b64decode(document["table"], validate=True)) as reader:
            table = reader.read_all()
        on, group_by = tuple(document["on"]), tuple(document["group_by"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidUsageError(f"not the text of a lookup: {error}") from None
    return Lookup(table, on, group_by)
