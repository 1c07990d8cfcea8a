"""Keyed tables: the newest row of each key of one bucket, as a working copy that a version can restore.

What a table stores is the same whatever holds it, so that either kind opens what the other wrote. A
p-unit of a table has two blocks::

    upserts      the key columns, then the value columns, with their own Arrow types
    tombstones   the key columns of keys that are gone; empty in a snapshot

and says in ``meta``::

    rows         how many rows the table has after the unit is applied
    part, total  of a snapshot only: the number of the unit, from 0, and the rows of the whole snapshot

A snapshot is one unit or more. Its first one replaces what the table held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.state_store.keys.key_words import KeyCodec, Keys, Positions

__all__ = ["BATCH_BYTES", "UNIT_BYTES", "UNIT_ROWS", "Layout", "Replayed", "Table", "portions", "replay"]

BATCH_BYTES = 16 << 20
"""How many bytes of rows a batch of `Table.scan` has at most, where one row has fewer."""

UNIT_BYTES = 64 << 20
"""How many bytes of rows a unit of a snapshot has at most, where one row has fewer."""

UNIT_ROWS = 1 << 20
"""How many rows a unit of a snapshot has at most."""

_UPSERTS = "upserts"
_TOMBSTONES = "tombstones"

Found = npt.NDArray[np.bool_]


class Table(Protocol):
    """A working copy: the newest row of each key of one bucket.

    Used in a Python worker by one task at a time; nothing here is thread-safe but the iterator that
    `snapshot` returns. Keys hold no nulls; -0.0 and 0.0 are one key, and so are all NaNs.

    Attributes
    ----------
    schema : pyarrow.Schema
        All columns, in the order in which `scan` returns them.
    key : tuple of str
        The key's columns.
    """

    schema: pa.Schema
    key: tuple[str, ...]

    def __len__(self) -> int:
        """Return how many rows there are."""

    def get(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, Found]:
        """Return the values of `keys`, and which of them are there.

        Parameters
        ----------
        keys : pyarrow.RecordBatch
            The key columns; others are ignored.

        Returns
        -------
        rows : pyarrow.RecordBatch
            The value columns, row i for key i; all nulls where the key is absent.
        found : bool array
            Which keys are there.

        Raises
        ------
        InvalidUsageError
            If a key column is missing, of another type, or has nulls; or if the values are more text than
            one batch can hold: ask for fewer keys.
        """

    def put(self, rows: pa.RecordBatch) -> None:
        """Insert or replace; of a key twice in `rows` the last row wins.

        Raises
        ------
        InvalidUsageError
            If a column is missing or of another type, or a key has nulls.
        """

    def delete(self, keys: pa.RecordBatch) -> int:
        """Remove the rows of `keys`, of which only the key columns count; return how many were there.

        Raises
        ------
        InvalidUsageError
            As `get`.
        """

    def scan(self) -> Iterator[pa.RecordBatch]:
        """Return all rows in batches bounded in bytes, in no order; the table must not change meanwhile."""

    def delta(self) -> PUnit:
        """Return what changed since the last `delta`, `snapshot` or `restore`."""

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole state as of this call, in units of bounded size.

        The table may change, and be closed, while another thread consumes the iterator.
        """

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply `units` in order, one in memory at a time.

        Raises
        ------
        CorruptDataError
            If what they hold does not add up; the table is then of no use.
        InvalidUsageError
            If they are of a table with other columns or another key.
        """

    @property
    def size_bytes(self) -> int:
        """How much memory the table holds, roughly."""

    def close(self) -> None:
        """Let go of memory and files; the table is of no use afterwards. Closing twice is no error."""


@dataclass(frozen=True)
class Layout:
    """The columns of a table, and how its rows fall into keys and values.

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
    unit_schema: pa.Schema = field(init=False, repr=False, compare=False)

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
        object.__setattr__(self, "unit_schema", pa.schema([*key, *value]))

    def keys_of(self, batch: pa.RecordBatch) -> Keys:
        """Return the keys of `batch`.

        Raises
        ------
        InvalidUsageError
            If a key column is missing, of another type, or has nulls.
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
            If one is missing or of another type.
        """
        columns = [_column(rows, field) for field in self.value_schema]
        if not columns:
            return rows.select([])
        return pa.RecordBatch.from_arrays(columns, schema=self.value_schema)

    def rows_of(self, keys: list[pa.Array[Any]], values: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of all columns in the table's order."""
        by_name = dict(zip(self.key, keys, strict=True))
        arrays = [by_name[name] if name in by_name else values.column(name) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def unit(
        self,
        upserted: list[pa.Array[Any]],
        values: pa.RecordBatch,
        deleted: list[pa.Array[Any]] | None = None,
        **meta: int,
    ) -> PUnit:
        """Return a p-unit; without tombstones (None) it is one of a snapshot."""
        upserts = pa.RecordBatch.from_arrays([*upserted, *values.columns], schema=self.unit_schema)
        if deleted is None:
            none = [pa.array([], kind) for kind in self.key_schema.types]
            tombstones = pa.RecordBatch.from_arrays(none, schema=self.key_schema)
            return PUnit("snapshot", meta, {_UPSERTS: upserts, _TOMBSTONES: tombstones})
        tombstones = pa.RecordBatch.from_arrays(deleted, schema=self.key_schema)
        return PUnit("delta", meta, {_UPSERTS: upserts, _TOMBSTONES: tombstones})

    def blocks_of(self, unit: PUnit) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the upserts and the tombstones of `unit`, checked.

        Raises
        ------
        CorruptDataError
            If a block is missing, or Arrow finds it damaged.
        InvalidUsageError
            If it has other columns than this table.
        """
        found = []
        for name, schema in ((_UPSERTS, self.unit_schema), (_TOMBSTONES, self.key_schema)):
            block = unit.blocks.get(name)
            if block is None:
                raise CorruptDataError("a unit of a table lacks a block", block=name, kind=unit.kind)
            if block.schema.names != schema.names or block.schema.types != schema.types:
                raise InvalidUsageError(
                    "stored state has other columns than the table",
                    block=name,
                    stored=_described(block.schema),
                    expected=_described(schema),
                    hint="restart with the old schema and key, or start a new checkpoint",
                )
            try:
                block.validate(full=True)
            except pa.ArrowInvalid as error:
                raise CorruptDataError("a block of a table holds no valid columns", block=name) from error
            if any(block.column(key).null_count for key in self.key):
                raise CorruptDataError("a block of a table has a null in its key", block=name)
            found.append(block)
        return found[0], found[1]


class Replayed(Protocol):
    """What `replay` drives."""

    def __len__(self) -> int:
        """Return how many rows there are."""

    def clear(self) -> None:
        """Become empty."""

    def load(self, rows: pa.RecordBatch, total: int) -> None:
        """Add rows of a snapshot of `total` rows; their keys are new if the snapshot is sound."""

    def apply(self, upserts: pa.RecordBatch, tombstones: pa.RecordBatch) -> None:
        """Apply a delta."""


def replay(units: Iterable[PUnit], layout: Layout, state: Replayed) -> None:
    """Apply `units` in order and check that they add up; one is in memory at a time.

    Raises
    ------
    CorruptDataError
        If a unit is missing, repeated, damaged, or leaves another number of rows than it says.
    InvalidUsageError
        If a unit is of a table with other columns.
    """
    part, total = 0, 0  # of the snapshot that is being read
    for unit in units:
        upserts, tombstones = layout.blocks_of(unit)
        rows = _number(unit, "rows")
        if unit.kind == "snapshot":
            found, of = _number(unit, "part"), _number(unit, "total")
            if found == 0 and len(state) >= total:
                part, total = 0, of
                state.clear()
            if found != part or of != total or len(state) + upserts.num_rows > total:
                raise CorruptDataError("the parts of a snapshot do not follow each other", part=found)
            state.load(upserts, total)
            part += 1
        elif unit.kind == "delta":
            _check_whole(state, part, total)
            part, total = 0, 0
            state.apply(upserts, tombstones)
        else:
            raise CorruptDataError("a unit of a table is of an unknown kind", kind=unit.kind)
        if len(state) != rows:
            raise CorruptDataError(
                "a unit of a table leaves another number of rows than it says",
                kind=unit.kind,
                rows=len(state),
                expected=rows,
            )
    _check_whole(state, part, total)


def portions(sizes: Positions, most_bytes: int, most_rows: int) -> Iterator[slice]:
    """Cut rows of these sizes into portions of at most so many bytes (or one row) and rows."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        before = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, before + most_bytes, "right"))
        end = max(begin + 1, min(end, begin + most_rows))
        yield slice(begin, end)
        begin = end


def _check_whole(state: Replayed, part: int, total: int) -> None:
    if part and len(state) != total:
        raise CorruptDataError("the end of a snapshot is missing", rows=len(state), expected=total)


def _number(unit: PUnit, name: str) -> int:
    return unit.fields.count(name)


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


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
