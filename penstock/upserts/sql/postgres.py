"""Tables of PostgreSQL. ADBC copies Arrow data into a temporary table by COPY."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from penstock.upserts.abc import Columns
from penstock.upserts.changes import DELETED
from penstock.upserts.sql.table import STAGE, SqlTable

__all__ = ["PostgresTable"]


_SAME_BYTES: Final = {
    "decimal": ("numeric",),
    "text": ("character varying", "character"),
    "timestamp": ("timestamp with time zone",),
    "timestamp with time zone": ("timestamp",),
}
"""For each type, the other types whose COPY format is the same."""


class PostgresTable(SqlTable):
    """A table of PostgreSQL.

    Parameters
    ----------
    uri : str
        The connection string for libpq.
    name : str
        The database's name for messages.
    table : str
        The table's name, optionally with its schema and a dot before it.
    columns : Columns
        The table's columns and their roles.
    """

    def __init__(self, uri: str, name: str, table: str, columns: Columns) -> None:
        from adbc_driver_manager import InternalError, OperationalError

        self._uri = uri
        self.transient = (OperationalError, InternalError)
        super().__init__(name, table, columns)

    def _connect(self) -> Any:
        from adbc_driver_postgresql import dbapi

        return dbapi.connect(self._uri)

    def _columns_of(self, table: str) -> dict[str, str] | None:
        found = self._fetch(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
            "WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (self._quoted(table),),
        )
        return dict(found) or None

    def _holds(self, known: str, wanted: str) -> bool:
        # COPY does not convert: a bigint's bytes would be another number in a double precision column.
        expected = wanted.lower().partition("(")[0]
        return known.removesuffix(" without time zone") in (expected, *_SAME_BYTES.get(expected, ()))

    def _stage(self, changes: pa.Table) -> None:
        self._drop_stage()
        # The stage's columns have the table's own types.
        listed = ", ".join(map(self.quote, self._columns.names))
        flag = f", false AS {DELETED}" if self._columns.deletes else ""
        empty = f"SELECT {listed}{flag} FROM {self._quoted(self._table)} LIMIT 0"
        self._execute(f"CREATE TEMPORARY TABLE {STAGE} AS {empty}")
        with self.connection.cursor() as cursor:
            cursor.adbc_ingest(STAGE, _widen_bytes(changes), mode="append", temporary=True)

    def _merge(self) -> None:
        self._execute(f"ANALYZE {STAGE}")
        super()._merge()


def _widen_bytes(changes: pa.Table) -> pa.Table:
    """Convert one-byte integers to two bytes, because PostgreSQL has no type for one byte."""
    for place, field in enumerate(changes.schema):
        if pa.types.is_int8(field.type):
            wider = changes[field.name].cast(pa.int16())
            changes = changes.set_column(place, field.name, wider)
    return changes
