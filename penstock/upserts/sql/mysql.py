"""Tables of MariaDB and MySQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import SplitResult, unquote

import pyarrow as pa

from penstock.upserts.abc import Columns
from penstock.upserts.sql.table import STAGE, SqlTable, rows_of

__all__ = ["MysqlTable"]

_PORT: Final = 3306
_REFUSALS: Final = (1044, 1045, 1049, 1142)
"""Error numbers: no access to the database, no access for the user, no such database, command denied."""


class MysqlTable(SqlTable):
    """A table of MariaDB or MySQL. The table holds times with a zone in UTC.

    Parameters
    ----------
    uri : SplitResult
        The address: ``mysql://USER:PASSWORD@HOST:PORT/DATABASE``.
    name : str
        The database's name for messages.
    table : str
        The table's name, optionally with its database and a dot before it.
    columns : Columns
        The table's columns and their roles.
    """

    QUOTE = "`"
    ALIAS = ""
    ZONE = ""
    TYPES = {
        **SqlTable.TYPES,
        "int8": "TINYINT",
        "float": "FLOAT",
        "double": "DOUBLE",
        "string": "LONGTEXT",
        "binary": "LONGBLOB",
        "zoned": "DATETIME(6)",
        "timestamp": "DATETIME(6)",
    }
    KEY_TYPES = {
        "string": "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "binary": "VARBINARY(255)",
    }

    def __init__(self, uri: SplitResult, name: str, table: str, columns: Columns) -> None:
        from pymysql.err import InterfaceError, OperationalError

        self._uri = uri
        self.transient = (OperationalError, InterfaceError)
        super().__init__(name, table, columns)

    def is_transient(self, error: Exception) -> bool:
        """Return whether the server is unavailable. It is available if the number is in `_REFUSALS`."""
        return super().is_transient(error) and (error.args or (0,))[0] not in _REFUSALS

    def _connect(self) -> Any:
        import pymysql

        uri = self._uri
        return pymysql.connect(
            host=uri.hostname or "localhost",
            port=uri.port or _PORT,
            user=None if uri.username is None else unquote(uri.username),
            password=unquote(uri.password or ""),
            database=uri.path.strip("/"),
            charset="utf8mb4",
            init_command="SET sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES'), time_zone = '+00:00'",
        )

    def _columns_of(self, table: str) -> dict[str, str] | None:
        database, _, name = table.rpartition(".")
        names = self._fetch(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s "
            "AND table_schema = COALESCE(NULLIF(%s, ''), DATABASE()) ORDER BY ordinal_position",
            (name, database),
        )
        return dict(names) or None

    def _holds(self, known: str, wanted: str) -> bool:
        return super()._holds(known, "TINYINT" if wanted == "BOOLEAN" else wanted)

    def _check_key(self) -> None:
        """Check that the key is the only unique index: a match in any unique index updates a row."""
        database, _, name = self._table.rpartition(".")
        rows = self._fetch(
            "SELECT index_name, column_name FROM information_schema.statistics WHERE non_unique = 0 "
            "AND table_name = %s AND table_schema = COALESCE(NULLIF(%s, ''), DATABASE())",
            (name, database),
        )
        indexes: dict[str, set[str]] = {}
        for index, column in rows:
            indexes.setdefault(index, set()).add(column)
        if list(indexes.values()) != [set(self._columns.key)]:
            raise self._wrong_key("the table has another unique index")

    def _drop_stage(self) -> None:
        self._execute(f"DROP TEMPORARY TABLE IF EXISTS {STAGE}")

    def _stage(self, changes: pa.Table) -> None:
        self._drop_stage()
        fields = ", ".join(f"{self.quote(field.name)} {self._type(field)}" for field in changes.schema)
        self._execute(f"CREATE TEMPORARY TABLE {STAGE} ({fields})")
        converters = {
            field.name: lambda column: column.cast(pa.timestamp("us")).to_pylist()
            for field in changes.schema
            if pa.types.is_timestamp(field.type)
        }
        marks = ", ".join(["%s"] * changes.num_columns)
        cursor = self.connection.cursor()
        cursor.executemany(f"INSERT INTO {STAGE} VALUES ({marks})", rows_of(changes, converters))

    def _conflict(self, names: Sequence[str], time: str, table: str) -> str:
        # Assignments run from left to right. All compare the stored time, so the time is assigned last.
        others = [name for name in map(self.quote, names) if name != time]
        newer = f"VALUES({time}) >= {table}.{time}"
        sets = [f"{name} = IF({newer}, VALUES({name}), {table}.{name})" for name in others]
        sets.append(f"{time} = GREATEST({table}.{time}, VALUES({time}))")
        return f"ON DUPLICATE KEY UPDATE {', '.join(sets)}"
