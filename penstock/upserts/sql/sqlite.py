"""Tables of SQLite. SQLite has no types for times, so times are text of a fixed width, in UTC."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.upserts.abc import Columns
from penstock.upserts.sql.table import STAGE, Converter, SqlTable, rows_of

__all__ = ["SqliteTable"]

_WAITS: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class SqliteTable(SqlTable):
    """A table in a SQLite file.

    Parameters
    ----------
    path : str
        The database file.
    table : str
        The table's name.
    columns : Columns
        The table's columns and their roles.
    """

    TYPES = {
        **SqlTable.TYPES,
        "binary": "BLOB",
        "date32[day]": "TEXT",
        "zoned": "TEXT",
        "timestamp": "TEXT",
        "double": "REAL",
    }
    ZONE = ""
    transient = (sqlite3.OperationalError,)

    def __init__(self, path: str, table: str, columns: Columns) -> None:
        self._path = path
        super().__init__(path, table, columns)
        self.file = Path(path)

    def is_transient(self, error: Exception) -> bool:
        """Return whether another program locks the file. The code shows this; the class is too general."""
        return super().is_transient(error) and getattr(error, "sqlite_errorcode", None) in _WAITS

    def _type(self, field: pa.Field) -> str:
        # SQLite would round a decimal to a double.
        return "TEXT" if pa.types.is_decimal(field.type) else super()._type(field)

    def _connect(self) -> sqlite3.Connection:
        # Spark calls the sink from its own threads, one at a time.
        connection = sqlite3.connect(self._path, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        return connection

    def _columns_of(self, table: str) -> dict[str, str] | None:
        return {row[1]: row[2] for row in self._fetch(f"PRAGMA table_info({self._quoted(table)})")} or None

    def _holds(self, known: str, wanted: str) -> bool:
        # A column with numeric affinity would turn the text 007 into 7, and a decimal into a double.
        is_text = any(word in known.upper() for word in ("CHAR", "CLOB", "TEXT", "BLOB")) or not known
        return is_text or wanted != "TEXT"

    def _stage(self, changes: pa.Table) -> None:
        self._drop_stage()
        columns = ", ".join(map(self.quote, changes.column_names))
        self._execute(f"CREATE TEMPORARY TABLE {STAGE} ({columns})")
        marks = ", ".join("?" * changes.num_columns)
        converters = {field.name: convert for field in changes.schema if (convert := _converter(field.type))}
        statement = f"INSERT INTO {STAGE} VALUES ({marks})"
        self.connection.executemany(statement, rows_of(changes, converters))


def _converter(kind: pa.DataType) -> Converter | None:
    if pa.types.is_timestamp(kind):
        plain = pa.timestamp("us")
        return lambda column: pc.strftime(column.cast(plain), "%Y-%m-%d %H:%M:%S").to_pylist()
    if pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return lambda column: column.cast(pa.string()).to_pylist()
    return None
