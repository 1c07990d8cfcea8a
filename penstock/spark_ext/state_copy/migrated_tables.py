"""Migrate the tables of user-defined operators to more or wider columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.checkpointing import PUnit
from penstock.ddl import parse_schema, quote
from penstock.errors import InvalidUsageError
from penstock.operators.own.state import unit_meta
from penstock.spark_ext.border.spark_versions import as_arrow_schema
from penstock.spark_ext.border.types import spark_schema
from penstock.spark_ext.state_copy.keyed_units import WrittenState
from penstock.spark_ext.state_copy.own_tables import OwnUnits
from penstock.spark_ext.state_copy.query_copy import QueryCopy
from penstock.spark_ext.state_copy.wider_types import cast_exactly, check_added, check_wider
from penstock.spark_ext.worker.stateful import columns_of

__all__ = ["MigratedTables", "check_input"]


class MigratedTables(OwnUnits):
    """The old buckets of a user-defined operator whose tables get new columns.

    Parameters
    ----------
    copy : QueryCopy
        The copy.
    specification : mapping
        The operator's old specification.
    tables : mapping of str to StructType
        All columns of the tables that change, by the tables' names.

    Attributes
    ----------
    added, widened : list of str
        The changed columns, as ``table.column``.

    Raises
    ------
    InvalidUsageError
        If there is no such table, or a change of its columns is not possible.
    """

    def __init__(
        self, copy: QueryCopy, specification: Mapping[str, Any], tables: Mapping[str, StructType]
    ) -> None:
        super().__init__(copy, specification)
        self._tables = tables
        key, found = {*specification["key"]}, set[str]()
        self.added: list[str] = []
        self.widened: list[str] = []
        for blocks in map(self.blocks, self._places):
            found |= blocks.keys()
            for name in tables.keys() & blocks.keys():
                changes = _compare(blocks[name].schema, tables[name], key)
                for into, columns in zip((self.added, self.widened), changes, strict=True):
                    into += [f"{name}.{one}" for one in columns if f"{name}.{one}" not in into]
        if unknown := sorted(tables.keys() - found):
            raise InvalidUsageError(
                "the operator has no such table", tables=unknown, hint=f"it has {', '.join(sorted(found))}"
            )

    def convert(self, bucket: int) -> WrittenState | None:
        """Return the state of a bucket with the new columns; None if it has no state."""
        units, meta = self.units(bucket)
        if not units:
            return None
        blocks = {
            name: _convert(block, self._tables[name]) if name in self._tables else block
            for name, block in units[0].blocks.items()
        }
        return WrittenState([PUnit("snapshot", unit_meta(blocks, int(meta["waiting"])), blocks)])


def _compare(old: pa.Schema, new: StructType, fixed: set[str]) -> tuple[list[str], list[str]]:
    """Return the columns that are added, and the columns that are widened.

    Parameters
    ----------
    old : pyarrow.Schema
        The old columns.
    new : StructType
        All new columns.
    fixed : set of str
        The columns whose types cannot change.

    Raises
    ------
    InvalidUsageError
        If a column is missing, an added column allows no nulls, or a new type is not wider.
    """
    if missing := sorted({*old.names} - {*new.names}):
        raise InvalidUsageError("columns are missing in the new schema", columns=missing, hint="keep them")
    added, widened = [], []
    for column, kind in zip(new, as_arrow_schema(new).types, strict=True):
        name = column.name
        if name not in old.names:
            check_added(name, nullable=column.nullable)
            added.append(name)
        elif _has_type(old.field(name), column.dataType.simpleString()):
            continue
        elif name in fixed:
            raise InvalidUsageError(
                "the type of a key or time column cannot change",
                column=name,
                was=old.field(name).type,
                now=kind,
                hint="set it back, or start with a new checkpoint",
            )
        else:
            check_wider(name, old.field(name).type, kind)
            widened.append(name)
    return added, widened


def check_input(old_columns: Iterable[str], columns: StructType, fixed: set[str]) -> None:
    """Check that an operator's new input has all old columns, with the same or wider types.

    The old columns are texts of a specification. The types of the columns in `fixed` cannot change.

    Raises
    ------
    InvalidUsageError
        If a column is missing, or its type is neither the old type nor wider.
    """
    same = dict(zip(columns_of(columns), as_arrow_schema(columns), strict=True))
    old = [same.get(text) or _old_field(text, columns.names) for text in old_columns]
    _compare(pa.schema(old), columns, fixed)


def _old_field(text: str, names: Iterable[str]) -> pa.Field[Any]:
    """Return an old column of the input, from its name and type in the specification.

    The text in the specification is the column's name, a space and the type. Names may contain spaces, so the
    function tries each column name of the new input with which `text` begins, the longest first. It takes a
    name only if the rest of the text is a type.
    """
    for name in sorted((one for one in names if text.startswith(f"{one} ")), key=len, reverse=True):
        with contextlib.suppress(InvalidUsageError):
            return parse_schema(f"{quote(name)}{text.removeprefix(name)}").field(0)
    raise InvalidUsageError("a column is missing in the new schema", column=text, hint="keep it")


def _has_type(field: pa.Field[Any], kind: str) -> bool:
    """Return whether Spark reads a stored column as this type; several Arrow types map to one Spark type."""
    return spark_schema(pa.schema([field])).fields[0].dataType.simpleString() == kind


def _convert(block: pa.RecordBatch, columns: StructType) -> pa.RecordBatch:
    """Return a table with all its new columns; unchanged columns keep their Arrow types."""
    arrays, names = [], block.schema.names
    for column, field in zip(columns, as_arrow_schema(columns), strict=True):
        if field.name not in names:
            arrays.append(pa.nulls(block.num_rows, field.type))
            continue
        stored = block.column(field.name)
        same = _has_type(block.schema.field(field.name), column.dataType.simpleString())
        arrays.append(stored if same else cast_exactly(stored, field))
    return pa.RecordBatch.from_arrays(arrays, columns.names)
