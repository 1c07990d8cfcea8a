"""The schemas of tables and events: columns, their kinds, and their NumPy types."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.ddl import parse_schema, schema_text, type_text
from penstock.errors import InvalidUsageError, did_you_mean

__all__ = [
    "MAX_DIGITS",
    "MAX_KEY_COLUMNS",
    "MAX_WIDE_DIGITS",
    "NAME_HINT",
    "WIDE_HINT",
    "Column",
    "IndexSpec",
    "Kind",
    "RelationSpec",
    "TableSpec",
    "columns_of",
    "conversion_hint",
    "digits_of",
    "is_usable_name",
    "lacks_attribute",
]

MAX_KEY_COLUMNS = 4
MAX_DIGITS = 18
"""The most digits of a decimal that fits into 64 bits. A decimal with more digits is wide."""
MAX_WIDE_DIGITS = 38
WIDE_HINT = f"declare it with up to {MAX_DIGITS} digits, or as double"
NAME_HINT = "use letters, digits and _, and no keyword of Python"


class Kind(StrEnum):
    """The kinds of values in a procedure.

    For decimals of at most 18 digits there is a kind for each scale, which `decimal` returns. Decimals of
    more digits are interned; there is a kind for each of their types.
    """

    _ignore_ = "scale_ digits_ places_"

    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    TEXT = "text"
    BINARY = "binary"
    for scale_ in range(MAX_DIGITS + 1):
        vars()[f"DECIMAL_{scale_}"] = f"decimal({scale_})"
    for digits_ in range(MAX_DIGITS + 1, MAX_WIDE_DIGITS + 1):
        for places_ in range(digits_ + 1):
            vars()[f"DECIMAL_{digits_}_{places_}"] = f"decimal({digits_}, {places_})"

    @staticmethod
    def decimal(scale: int) -> Kind:
        """Return the kind of decimals with a scale."""
        return Kind(f"decimal({scale})")

    @property
    def scale(self) -> int | None:
        """The scale of a decimal of at most 18 digits; None for other kinds."""
        is_narrow = self.startswith("decimal(") and "," not in self
        return int(self[len("decimal(") : -1]) if is_narrow else None

    @property
    def wide(self) -> tuple[int, int] | None:
        """The digits and the scale of a decimal of more than 18 digits; None for other kinds."""
        if "," not in self:
            return None
        digits, scale = self[len("decimal(") : -1].split(", ")
        return int(digits), int(scale)

    @property
    def is_interned(self) -> bool:
        """Return whether values are interned, so that kernels see numbers instead of values."""
        return self in ("text", "binary") or self.wide is not None

    @property
    def is_number(self) -> bool:
        """Return whether values support arithmetic."""
        return self in ("integer", "float") or self.scale is not None


def conversion_hint(kind: Kind, wanted: Kind) -> str:
    """Return a hint about what to write if a value has the kind `kind` but `wanted` is needed."""
    if wanted.wide is not None:
        return f"pass a column, an attribute or a global Decimal with {wanted.wide[1]} digits after the point"
    if kind.wide is not None:
        return WIDE_HINT
    if wanted is Kind.BOOLEAN:
        return "compare it with something"
    if kind is Kind.BOOLEAN and wanted.is_number:
        return "write 1 if ... else 0"
    if kind.is_number and wanted in (Kind.INTEGER, Kind.FLOAT):
        word = "int" if wanted is Kind.INTEGER else "float"
        return f"convert it with {word}(...)" + (", or divide with //" if kind is Kind.FLOAT else "")
    if wanted.scale is not None and kind.is_number:
        return f"pass a decimal with {wanted.scale} digits after the point"
    return f"pass a column, an attribute or a constant that is {wanted}"


_EXACT = Context(prec=80)
"""Keeps all digits of a product of two decimals."""

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
    pa.binary(): (Kind.BINARY, np.int64),
    pa.large_binary(): (Kind.BINARY, np.int64),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or an attribute of an event.

    Attributes
    ----------
    name : str
        The name, an identifier of Python.
    type : pyarrow.DataType
        The Arrow type of the column.
    kind : Kind
        The kind of the values, or of the elements of lists. Kernels see a timestamp as microseconds since
        1970, a date as days, and a decimal of at most 18 digits as an integer of these digits.
    nullable : bool
        Whether values may be null.
    is_list : bool
        Whether values are lists, which only events have.
    """

    name: str
    type: pa.DataType
    kind: Kind
    nullable: bool
    is_list: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the column's values; interned values are stored as numbers."""
        return _numpy_of(self.type.value_type if self.is_list else self.type)[1]


def _numpy_of(kind: pa.DataType) -> tuple[Kind, np.dtype[Any]]:
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return Kind.INTEGER, np.dtype(np.int64)
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        wide = f"decimal({kind.precision}, {kind.scale})"
        return Kind.decimal(kind.scale) if kind.precision <= MAX_DIGITS else Kind(wide), np.dtype(np.int64)
    entry = _TYPES[kind]
    return entry[0], np.dtype(entry[1])


def digits_of(value: Decimal) -> tuple[int, int]:
    """Return the digits of a decimal as an integer, and its scale."""
    exponent = int(value.as_tuple().exponent)
    scale = max(-exponent, 0)
    return int(value.scaleb(scale, _EXACT)), scale


def columns_of(schema: pa.Schema, *, owner: str, lists: bool) -> tuple[Column, ...]:
    """Return the columns of a table or an event.

    Parameters
    ----------
    schema : pyarrow.Schema
        The names and types of the columns.
    owner : str
        The name of the table or procedure that has the columns, for errors.
    lists : bool
        Whether some columns may be lists.

    Raises
    ------
    InvalidUsageError
        If a type or name is unsupported in procedures.
    """
    columns = []
    for column in schema:
        is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
        element = column.type.value_type if is_list else column.type
        try:
            kind, _ = _numpy_of(element)
        except KeyError:
            kind = None
        if kind is None or (is_list and not lists):
            raise InvalidUsageError(
                "procedures do not support a column of this type",
                of=owner,
                column=column.name,
                type=type_text(column.type),
                hint="use boolean, integers, float, double, decimal, string, binary, date or timestamp"
                + (", or arrays of these" if lists else ""),
            )
        if not is_usable_name(column.name):
            raise InvalidUsageError(
                "a column's name is not a Python identifier", of=owner, column=column.name, hint=NAME_HINT
            )
        columns.append(Column(column.name, column.type, kind, column.nullable, is_list))
    return tuple(columns)


def lacks_attribute(procedure: str, attribute: str, event: pa.Schema) -> InvalidUsageError:
    """Return the error for an event without an attribute that its procedure declares."""
    return InvalidUsageError(
        "the event lacks an attribute",
        procedure=procedure,
        attribute=attribute,
        hint=f"the procedure's event is {schema_text(event)}",
    )


def is_usable_name(name: str) -> bool:
    """Return whether a procedure may use a name."""
    return name.isidentifier() and not keyword.iskeyword(name)


@dataclass(frozen=True)
class IndexSpec:
    """An index: rows in the order of some columns, then of the key.

    Rows with a null in one of the columns are not in the index.

    Parameters
    ----------
    columns : tuple of str
        The columns, one to four.
    words : tuple of Column
        All columns that order the rows: `columns`, then the rest of the key.
    """

    columns: tuple[str, ...]
    words: tuple[Column, ...]

    @property
    def text_mask(self) -> int:
        """A number with a bit for each word that is a text or binary."""
        return sum(1 << place for place, word in enumerate(self.words) if word.kind.is_interned)


@dataclass(frozen=True)
class RelationSpec:
    """The declaration of a table, stream or window.

    Parameters
    ----------
    name : str
        The name, an identifier of Python.
    columns : tuple of Column
        The columns in the order of the declaration.
    """

    name: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the columns."""
        return pa.schema([pa.field(column.name, column.type, column.nullable) for column in self.columns])


@dataclass(frozen=True)
class TableSpec(RelationSpec):
    """The declaration of a table.

    Parameters
    ----------
    name, columns
        See `RelationSpec`.
    key : tuple of str
        The columns of the primary key, which are not null.
    partition_by : str, optional
        The key column that determines the bucket of a row.
    indexes : tuple of IndexSpec
        The indexes, which are built from the table's rows and never stored.
    window : str, optional
        The window whose rows, or whose row numbers, this internal table holds; None if a user declared the
        table.
    """

    key: tuple[str, ...]
    partition_by: str | None
    indexes: tuple[IndexSpec, ...] = ()
    window: str | None = field(default=None, compare=False)

    @staticmethod
    def parse(
        name: str,
        ddl: str,
        key: str | Iterable[str],
        partition_by: str | None,
        indexes: Iterable[str | Iterable[str]] = (),
    ) -> TableSpec:
        """Make a table from a user's declaration.

        Raises
        ------
        InvalidUsageError
            If a name or type is unusable, or the key is not in the table.
        """
        if not name.isidentifier():
            raise InvalidUsageError("a table's name is not a Python identifier", table=repr(name))
        columns = columns_of(parse_schema(ddl), owner=name, lists=False)
        keys = (key,) if isinstance(key, str) else tuple(key)
        _check_key(name, columns, keys)
        if partition_by is not None and partition_by not in keys:
            raise InvalidUsageError(
                "a table is partitioned by a column of its key",
                table=name,
                partition_by=partition_by,
                key=keys,
            )
        key_columns = tuple(
            Column(column.name, column.type, column.kind, column.nullable and column.name not in keys)
            for column in columns
        )
        table = TableSpec(name, key_columns, keys, partition_by)
        return replace(table, indexes=_indexes(table, indexes))

    @property
    def why_one_bucket(self) -> str | None:
        """The reason why all rows must be in one bucket; None if they may be in several buckets."""
        if self.partition_by is not None:
            return None
        if self.window is not None:
            return f"the window {self.window} is of all rows"
        return f"the table {self.name} has no partition_by"

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns of the key, in its order."""
        return tuple(self.column(name) for name in self.key)

    @property
    def key_schema(self) -> pa.Schema:
        """The Arrow schema of the key."""
        return pa.schema([pa.field(column.name, column.type, nullable=False) for column in self.key_columns])

    def column(self, name: str) -> Column:
        """Return a column by its name, which the table has."""
        return next(column for column in self.columns if column.name == name)

    def check_known(self, columns: Iterable[str]) -> None:
        """Check that rows for this table have no unknown columns.

        Raises
        ------
        InvalidUsageError
            If the rows have an unknown column.
        """
        if unknown := [name for name in columns if name not in self.names]:
            raise InvalidUsageError(
                "the table has no such columns",
                table=self.name,
                columns=", ".join(unknown),
                hint=did_you_mean(unknown[0], self.names, "columns"),
            )

    def to_json(self) -> dict[str, Any]:
        """Return the input of `from_json`.

        Indexes are left out, because users may change them while a checkpoint exists.
        """
        return {
            "name": self.name,
            "columns": schema_text(self.schema),
            "key": list(self.key),
            "partition_by": self.partition_by,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> TableSpec:
        """Make a table from a result of `to_json`."""
        return TableSpec.parse(value["name"], value["columns"], value["key"], value["partition_by"])


def _indexes(table: TableSpec, declarations: Iterable[str | Iterable[str]]) -> tuple[IndexSpec, ...]:
    if isinstance(declarations, str):
        raise InvalidUsageError(
            "the indexes of a table are a list of columns",
            table=table.name,
            indexes=declarations,
            hint=f"write [{declarations!r}]",
        )
    indexes: dict[tuple[str, ...], IndexSpec] = {}
    for declaration in declarations:
        columns = (declaration,) if isinstance(declaration, str) else tuple(declaration)
        if not 1 <= len(columns) <= MAX_KEY_COLUMNS or len(set(columns)) != len(columns):
            raise InvalidUsageError("an index has one to four columns", table=table.name, index=columns)
        for name in columns:
            if name not in table.names:
                raise InvalidUsageError(
                    "the column of an index is not in the table",
                    table=table.name,
                    index=columns,
                    column=name,
                    hint=did_you_mean(name, table.names),
                )
        if columns in indexes:
            raise InvalidUsageError("the table has this index already", table=table.name, index=columns)
        key_rest = [name for name in table.key if name not in columns]
        indexes[columns] = IndexSpec(columns, tuple(table.column(name) for name in (*columns, *key_rest)))
    return tuple(indexes.values())


def _check_key(table: str, columns: Sequence[Column], key: tuple[str, ...]) -> None:
    names = {column.name: column for column in columns}
    if not 1 <= len(key) <= MAX_KEY_COLUMNS or len(set(key)) != len(key):
        raise InvalidUsageError("a key has one to four columns", table=table, key=key)
    for column in key:
        if column not in names:
            raise InvalidUsageError(
                "a key column is not in the table", table=table, key=column, hint=did_you_mean(column, names)
            )
        if names[column].kind is Kind.FLOAT:
            raise InvalidUsageError(
                "a column of floats cannot be a key", table=table, key=column, hint="use a decimal or text"
            )
