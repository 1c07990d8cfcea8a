"""Tables and events as procedures see them: columns, and how NumPy holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.ddl import parse_schema, schema_text
from penstock.errors import InvalidUsageError

__all__ = ["MAX_KEY_COLUMNS", "Column", "Kind", "TableSpec", "columns_of"]

MAX_KEY_COLUMNS = 3


class Kind(StrEnum):
    """The kinds of values in a procedure."""

    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    TEXT = "text"


_TYPES: dict[pa.DataType, tuple[Kind, type[np.generic]]] = {
    pa.bool_(): (Kind.BOOLEAN, np.bool_),
    pa.int8(): (Kind.INTEGER, np.int8),
    pa.int16(): (Kind.INTEGER, np.int16),
    pa.int32(): (Kind.INTEGER, np.int32),
    pa.int64(): (Kind.INTEGER, np.int64),
    pa.float32(): (Kind.FLOAT, np.float32),
    pa.float64(): (Kind.FLOAT, np.float64),
    pa.date32(): (Kind.INTEGER, np.int32),
    pa.string(): (Kind.TEXT, np.int64),
    pa.large_string(): (Kind.TEXT, np.int64),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or an attribute of an event.

    Attributes
    ----------
    name : str
        Its name, an identifier of Python.
    type : pyarrow.DataType
        Its type.
    kind : Kind
        What it is in a procedure; of a list, what its elements are. A timestamp is its microseconds since
        1970, a date its days.
    nullable : bool
        Whether it may be null.
    is_list : bool
        Whether it is a list, which only events have.
    """

    name: str
    type: pa.DataType
    kind: Kind
    nullable: bool
    is_list: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """How NumPy holds its values: texts as the numbers that an interning dictionary gives them."""
        return _numpy_of(self.type.value_type if self.is_list else self.type)[1]


def _numpy_of(kind: pa.DataType) -> tuple[Kind, np.dtype[Any]]:
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return Kind.INTEGER, np.dtype(np.int64)
    found = _TYPES[kind]
    return found[0], np.dtype(found[1])


def columns_of(schema: pa.Schema, *, of: str, lists: bool) -> tuple[Column, ...]:
    """Return the columns of a table or an event.

    Parameters
    ----------
    schema : pyarrow.Schema
        Their types.
    of : str
        What they are columns of, for errors.
    lists : bool
        Whether some may be lists.

    Raises
    ------
    InvalidUsageError
        If a type or a name has no place in a procedure.
    """
    made = []
    for field in schema:
        is_list = pa.types.is_list(field.type) or pa.types.is_large_list(field.type)
        element = field.type.value_type if is_list else field.type
        try:
            kind, _ = _numpy_of(element)
        except KeyError:
            kind = None
        if kind is None or (is_list and not lists):
            raise InvalidUsageError(
                "a column of this type has no place in a procedure",
                of=of,
                column=field.name,
                type=field.type,
                hint="use boolean, integers, float, double, string, date or timestamp"
                + (", or arrays of these" if lists else ""),
            )
        if not field.name.isidentifier():
            raise InvalidUsageError("a column's name is no identifier of Python", of=of, column=field.name)
        made.append(Column(field.name, field.type, kind, field.nullable, is_list))
    return tuple(made)


@dataclass(frozen=True)
class TableSpec:
    """A table as it is declared.

    Parameters
    ----------
    name : str
        Its name, an identifier of Python.
    columns : tuple of Column
        Its columns.
    key : tuple of str
        The columns of the primary key, which are not null.
    partition_by : str, optional
        The column of the key by which rows go to buckets.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    partition_by: str | None

    @staticmethod
    def of(name: str, ddl: str, key: str | Iterable[str], partition_by: str | None) -> TableSpec:
        """Return a table as a user declares it.

        Raises
        ------
        InvalidUsageError
            If a name or type is unusable, or the key is not of the table.
        """
        if not name.isidentifier():
            raise InvalidUsageError("a table's name is no identifier of Python", table=repr(name))
        columns = columns_of(parse_schema(ddl), of=name, lists=False)
        keys = (key,) if isinstance(key, str) else tuple(key)
        _check_key(name, columns, keys)
        if partition_by is not None and partition_by not in keys:
            raise InvalidUsageError(
                "a table is partitioned by a column of its key",
                table=name,
                partition_by=partition_by,
                key=keys,
            )
        fixed = tuple(
            Column(one.name, one.type, one.kind, one.nullable and one.name not in keys) for one in columns
        )
        return TableSpec(name, fixed, keys, partition_by)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns of the key, in its order."""
        return tuple(self.column(name) for name in self.key)

    def column(self, name: str) -> Column:
        """Return a column by its name, which the table has."""
        return next(one for one in self.columns if one.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(one.name for one in self.columns)

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow has them."""
        return pa.schema([pa.field(one.name, one.type, one.nullable) for one in self.columns])

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
        return {
            "name": self.name,
            "columns": schema_text(self.schema),
            "key": list(self.key),
            "partition_by": self.partition_by,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> TableSpec:
        """Return what `to_json` gave."""
        return TableSpec.of(value["name"], value["columns"], value["key"], value["partition_by"])


def _check_key(table: str, columns: Sequence[Column], key: tuple[str, ...]) -> None:
    names = {one.name: one for one in columns}
    if not 1 <= len(key) <= MAX_KEY_COLUMNS or len(set(key)) != len(key):
        raise InvalidUsageError("a key has one to three columns", table=table, key=key)
    for one in key:
        if one not in names:
            raise InvalidUsageError("the key is no column of the table", table=table, key=one)
        if names[one].kind is Kind.FLOAT:
            raise InvalidUsageError("a column of this type cannot be a key", table=table, key=one)
