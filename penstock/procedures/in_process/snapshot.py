"""Tables of a database as of one moment."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from penstock._extras import need_extra
from penstock.errors import InvalidUsageError, did_you_mean

__all__ = ["Snapshot"]


class Snapshot:
    """A copy of tables of a database as of one moment; later calls do not change the copy.

    Parameters
    ----------
    tables : mapping of str to pyarrow.Table
        The tables by name.
    """

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self.tables = dict(tables)

    def table(self, name: str) -> pa.Table:
        """Return all rows of a table, in no particular order.

        Raises
        ------
        InvalidUsageError
            If the snapshot has no such table.
        """
        if name not in self.tables:
            hint = did_you_mean(name, self.tables, "tables")
            raise InvalidUsageError("there is no such table", table=name, hint=hint)
        return self.tables[name]

    def sql(self, query: str) -> pa.Table:
        """Return the result of a query in DuckDB's SQL over the tables. The query cannot access files.

        Raises
        ------
        InvalidUsageError
            If DuckDB is not installed, or refuses the query.
        """
        need_extra("duckdb", "SQL over a snapshot")
        import duckdb

        with duckdb.connect(
            config={"enable_external_access": "false", "lock_configuration": "true"}
        ) as connection:
            for name, rows in self.tables.items():
                connection.register(name, rows)
            try:
                return connection.sql(query).to_arrow_table()
            except duckdb.Error as error:
                raise InvalidUsageError("DuckDB refuses the query", reason=str(error)) from error
