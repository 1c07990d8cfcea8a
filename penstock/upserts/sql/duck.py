"""Tables of DuckDB, which reads Arrow directly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.upserts.abc import Columns
from penstock.upserts.sql.table import STAGE, SqlTable

__all__ = ["DuckTable"]


class DuckTable(SqlTable):
    """A table in a DuckDB file. Other processes can read the file between two batches.

    Parameters
    ----------
    path : str
        The database file.
    table : str
        The table's name, optionally with its schema and a dot before it.
    columns : Columns
        The table's columns and their roles.
    """

    TYPES = {
        **SqlTable.TYPES,
        "int8": "TINYINT",
        "double": "DOUBLE",
        "string": "VARCHAR",
        "binary": "BLOB",
    }

    def __init__(self, path: str, table: str, columns: Columns) -> None:
        from duckdb import IOException

        self._path = path
        self.transient = (IOException,)
        super().__init__(path, table, columns)
        self.file = Path(path)

    def describe(self, error: Exception) -> str:
        """Return an error's first line, without DuckDB's advice to open a locked file for reading only."""
        return super().describe(error).partition(" However, you would be able to open")[0]

    def _connect(self) -> Any:
        import duckdb

        connection = duckdb.connect(self._path)
        connection.execute("SET TimeZone = 'UTC'")
        connection.begin()
        return connection

    def _execute(self, statement: str) -> None:
        self.connection.execute(statement)

    def _fetch(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return list(self.connection.execute(statement, list(values)).fetchall())

    def _columns_of(self, table: str) -> dict[str, str] | None:
        schema, _, name = table.rpartition(".")
        rows = self._fetch(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? AND schema_name = ? "
            "AND database_name = current_database() ORDER BY column_index",
            (name, schema or "main"),
        )
        return dict(rows) or None

    def _stage(self, changes: pa.Table) -> None:
        self._drop_stage()
        self.connection.register("penstock_changes", changes)
        self._execute(f"CREATE TEMPORARY TABLE {STAGE} AS SELECT * FROM penstock_changes")
        self.connection.unregister("penstock_changes")
