"""The common part of SQL tables: the statements of an upsert."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import date, datetime
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.upserts.abc import Columns, UpsertTarget
from penstock.upserts.changes import DELETED
from penstock.upserts.sql.types import holds

__all__ = ["STAGE", "Converter", "SqlTable", "rows_of"]

STAGE: Final = "penstock_stage"
"""The temporary table that holds the rows of one batch."""


class SqlTable(UpsertTarget):
    """A table of a SQL database.

    A batch goes into a temporary table, and from there into the table, in one transaction:

    1. Drop the batch's rows that are older than the deletion of their key.
    2. For each deletion, remove the stored row of its key, unless that row is newer. Record the deletion in
       the table ``<table>_deleted``.
    3. Insert each row that is no deletion, or replace the stored row of its key if that row is not newer.
       Remove the key from ``<table>_deleted``.

    Steps 1 and 2 run only if `Columns.deletes` is true.

    Parameters
    ----------
    name : str
        The database's name for messages.
    table : str
        The table's name, optionally with its schema and a dot before it.
    columns : Columns
        The table's columns and their roles.
    """

    QUOTE: ClassVar[str] = '"'
    TYPES: ClassVar[Mapping[str, str]] = {
        "bool": "BOOLEAN",
        "int8": "SMALLINT",
        "int16": "SMALLINT",
        "int32": "INTEGER",
        "int64": "BIGINT",
        "float": "REAL",
        "double": "DOUBLE PRECISION",
        "string": "TEXT",
        "binary": "BYTEA",
        "date32[day]": "DATE",
        "zoned": "TIMESTAMP WITH TIME ZONE",
        "timestamp": "TIMESTAMP",
    }
    """The SQL type for each Arrow type; ``zoned`` and ``timestamp`` are times with and without a zone."""
    ALIAS: ClassVar[str] = " AS kept"
    """A clause of an insert. It gives the stored row a name, which the conflict clause uses."""
    ZONE: ClassVar[str] = "+00"
    """The suffix of the literal of a time in UTC."""
    KEY_TYPES: ClassVar[Mapping[str, str]] = {}
    """The types of key columns that differ from the types of other columns."""

    def __init__(self, name: str, table: str, columns: Columns) -> None:
        self.name = f"{name}/{table}"
        self._table, self._columns = table, columns
        self._connection: Any = None
        self.file: Path | None = None
        for field in columns.schema:
            self._type(field)

    # ------------------------------------------------------------------------------- for stores

    @abstractmethod
    def _connect(self) -> Any:
        """Open a connection that begins a transaction with the first statement."""

    @abstractmethod
    def _stage(self, changes: pa.Table) -> None:
        """Create the temporary table `STAGE`, and put the rows of a batch into it."""

    @abstractmethod
    def _columns_of(self, table: str) -> dict[str, str] | None:
        """Return the type of each column of a table, by name; None if there is no such table."""

    def _holds(self, known: str, wanted: str) -> bool:
        """Return whether a column declared as `known` can hold all values of the type `wanted`."""
        return holds(known, wanted)

    def _execute(self, statement: str) -> None:
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(statement)

    def _fetch(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    def _drop_stage(self) -> None:
        self._execute(f"DROP TABLE IF EXISTS {STAGE}")

    def _conflict(self, names: Sequence[str], time: str, table: str) -> str:
        """Return the clause of an insert that updates the stored row if its key exists."""
        keys = ", ".join(self.quote(name) for name in self._columns.key)
        sets = ", ".join(f"{name} = excluded.{name}" for name in map(self.quote, names))
        return f"ON CONFLICT ({keys}) DO UPDATE SET {sets} WHERE kept.{time} <= excluded.{time}"

    # --------------------------------------------------------------------------------- the table

    @property
    def connection(self) -> Any:
        """The connection, opened at its first use."""
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def close(self) -> None:
        """Close the connection; see `UpsertTarget.close`."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def quote(self, name: str) -> str:
        """Quote an identifier without a schema before it."""
        doubled = name.replace(self.QUOTE, 2 * self.QUOTE)
        return f"{self.QUOTE}{doubled}{self.QUOTE}"

    def _quoted(self, table: str) -> str:
        return ".".join(self.quote(part) for part in table.split("."))

    def _type(self, field: pa.Field) -> str:
        kind = field.type
        if pa.types.is_decimal(kind):
            return f"DECIMAL({kind.precision}, {kind.scale})"
        zoned = pa.types.is_timestamp(kind) and kind.tz is not None
        text = "zoned" if zoned else "timestamp" if pa.types.is_timestamp(kind) else str(kind)
        types = {**self.TYPES, **(self.KEY_TYPES if field.name in self._columns.key else {})}
        if text not in types:
            raise InvalidUsageError(
                "a column has a type that the table cannot hold",
                column=field.name,
                type=kind,
                table=self.name,
            )
        return types[text]

    def prepare(self, *, create: bool) -> None:
        """Check the table, or create it; see `UpsertTarget.prepare`."""
        try:
            self._prepare(create=create)
            self.connection.commit()
        except BaseException:
            self._abandon()
            raise

    def _prepare(self, *, create: bool) -> None:
        columns, deleted = self._columns, f"{self._table}_deleted"
        # A connection would make the file.
        is_missing = not create and self.file is not None and not self.file.exists()
        existing = None if is_missing else self._columns_of(self._table)
        if existing is None:
            if not create:
                raise InvalidUsageError(
                    "there is no such table", table=self.name, hint="create the table, or set create to true"
                )
            self._make(self._table, columns.schema)
        elif missing := [name for name in columns.names if name not in existing]:
            raise InvalidUsageError(
                "the table lacks columns of the rows",
                table=self.name,
                missing=", ".join(missing),
                known=", ".join(existing),
                hint="add the columns to the table, or leave them out of the rows",
            )
        else:
            self._check_types(existing)
        if columns.deletes and self._columns_of(deleted) is None:
            names = (*columns.key, columns.time)
            self._make(deleted, pa.schema([columns.schema.field(name) for name in names]))
        self._check_key()

    def _check_types(self, existing: Mapping[str, str]) -> None:
        for field in self._columns.schema:
            wanted = self._type(field)
            if not self._holds(existing[field.name], wanted):
                raise InvalidUsageError(
                    "a column of the table has another type",
                    table=self.name,
                    column=field.name,
                    type=existing[field.name],
                    rows=field.type,
                    hint=f"make it {wanted.lower()}, or cast the column of the rows",
                )

    def _make(self, table: str, schema: pa.Schema) -> None:
        columns = ", ".join(f"{self.quote(field.name)} {self._type(field)}" for field in schema)
        keys = ", ".join(map(self.quote, self._columns.key))
        self._execute(f"CREATE TABLE {self._quoted(table)} ({columns}, PRIMARY KEY ({keys}))")

    def _check_key(self) -> None:
        """Upsert a batch without rows: the database refuses it if the key has no unique index."""
        self._stage_empty()
        try:
            self._merge()
        except Exception as error:
            if self.is_transient(error):
                raise
            raise self._wrong_key(str(error).strip().splitlines()[0]) from None
        self._drop_stage()

    def _wrong_key(self, reason: str) -> InvalidUsageError:
        return InvalidUsageError(
            "the table cannot take upserts by this key",
            table=self.name,
            key=", ".join(self._columns.key),
            reason=reason,
            hint="the key needs a primary key or a unique index of exactly these columns",
        )

    def _stage_empty(self) -> None:
        empty = self._columns.schema.empty_table()
        if self._columns.deletes:
            empty = empty.append_column(DELETED, pa.array([], pa.bool_()))
        self._stage(empty)

    def write(self, changes: pa.Table) -> None:
        """Write a batch in one transaction; see `UpsertTarget.write`."""
        try:
            self._stage(changes)
            self._merge()
            oldest = self._columns.oldest_deletion(changes)
            if oldest is not None:
                deleted, time = self._quoted(f"{self._table}_deleted"), self.quote(self._columns.time)
                self._execute(f"DELETE FROM {deleted} WHERE {time} < {self._literal(oldest)}")
            self._drop_stage()
            self.connection.commit()
        except BaseException:
            self._abandon()
            raise

    def _literal(self, value: Any) -> str:
        """Return a time as a SQL literal."""
        if isinstance(value, datetime):
            zone = self.ZONE if value.tzinfo is not None else ""
            return f"'{value:%Y-%m-%d %H:%M:%S.%f}{zone}'"
        return f"'{value}'" if isinstance(value, date) else repr(value)

    def _abandon(self) -> None:
        """Undo a failed batch, and close the connection; the caller raises the cause."""
        if self._connection is not None:
            with suppress(Exception):
                self._connection.rollback()
            with suppress(Exception):
                self.close()

    def _merge(self) -> None:
        columns = self._columns
        table, deleted = self._quoted(self._table), self._quoted(f"{self._table}_deleted")
        time, flag = self.quote(columns.time), self.quote(DELETED)
        names = (*columns.key, columns.time)

        def same(one: str, other: str) -> str:
            return " AND ".join(f"{one}.{name} = {other}.{name}" for name in map(self.quote, columns.key))

        if columns.deletes:
            self._execute(
                f"DELETE FROM {STAGE} WHERE EXISTS (SELECT 1 FROM {deleted} "
                f"WHERE {same(STAGE, deleted)} AND {STAGE}.{time} < {deleted}.{time})"
            )
            self._execute(
                f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {STAGE} "
                f"WHERE {STAGE}.{flag} AND {same(STAGE, table)} AND {table}.{time} <= {STAGE}.{time})"
            )
            self._insert(deleted, names, where=f"WHERE {flag}")
            self._insert(table, columns.names, where=f"WHERE NOT {flag}")
            self._execute(
                f"DELETE FROM {deleted} WHERE EXISTS (SELECT 1 FROM {STAGE} "
                f"WHERE NOT {STAGE}.{flag} AND {same(STAGE, deleted)} AND {deleted}.{time} <= {STAGE}.{time})"
            )
        else:
            # Without a WHERE, SQLite's parser would read ON CONFLICT as the ON of a join.
            self._insert(table, columns.names, where="WHERE true")

    def _insert(self, table: str, names: Sequence[str], where: str) -> None:
        columns = self._columns
        listed = ", ".join(map(self.quote, names))
        updated = [name for name in names if name not in columns.key]
        conflict = self._conflict(updated, self.quote(columns.time), table)
        rows = f"SELECT {listed} FROM {STAGE} {where}"
        self._execute(f"INSERT INTO {table}{self.ALIAS} ({listed}) {rows} {conflict}")


Converter: TypeAlias = Callable[[Any], list[Any]]


def rows_of(table: pa.Table, converters: Mapping[str, Converter]) -> list[tuple[Any, ...]]:
    """Return rows as tuples. Converters apply to their columns; all other columns become Python values."""
    columns = [
        converters[name](column) if name in converters else column.to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return list(zip(*columns, strict=True))
