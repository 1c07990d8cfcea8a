"""Tables of PostgreSQL, through ADBC: Arrow goes into a temporary table by COPY."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.upserts.abc import Columns
from penstock.upserts.changes import DELETED
from penstock.upserts.sql_table import STAGE, SqlTable

__all__ = ["PostgresTable"]


class PostgresTable(SqlTable):
    """A table of PostgreSQL.

    Parameters
    ----------
    uri : str
        The connection, as libpq takes it.
    name : str
        The database, for messages.
    table : str
        The table, perhaps with its schema.
    columns : Columns
        Its columns.
    """

    def __init__(self, uri: str, name: str, table: str, columns: Columns) -> None:
        from adbc_driver_manager import InternalError, OperationalError

        self._uri = uri
        self.transient = (OperationalError, InternalError)
        super().__init__(name, table, columns)

    def _connect(self) -> Any:
        from adbc_driver_postgresql import dbapi

        return dbapi.connect(self._uri)

    def _columns_of(self, table: str) -> list[str] | None:
        names = self._fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 "
            "AND NOT attisdropped ORDER BY attnum",
            (self._quoted(table),),
        )
        return [row[0] for row in names] or None

    def _stage(self, changes: pa.Table) -> None:
        self._drop_stage()
        # Its columns have the table's own types.
        listed = ", ".join(map(self.quote, self._columns.names))
        flag = f", false AS {DELETED}" if self._columns.deletes else ""
        empty = f"SELECT {listed}{flag} FROM {self._quoted(self._table)} LIMIT 0"
        self._execute(f"CREATE TEMPORARY TABLE {STAGE} AS {empty}")
        with self.connection.cursor() as cursor:
            cursor.adbc_ingest(STAGE, _plain(changes), mode="append", temporary=True)

    def _merge(self) -> None:
        self._execute(f"ANALYZE {STAGE}")
        super()._merge()


def _plain(changes: pa.Table) -> pa.Table:
    """Return rows in types that COPY takes: one-byte integers are PostgreSQL's smallint."""
    for place, field in enumerate(changes.schema):
        if pa.types.is_int8(field.type):
            wider = changes[field.name].cast(pa.int16())
            changes = changes.set_column(place, field.name, wider)
    return changes
