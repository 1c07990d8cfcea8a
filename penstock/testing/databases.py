"""Test procedures of a database: a test passes calls and rows, and reads results, rejections and tables."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock import _failpoints
from penstock.errors import InvalidUsageError

if TYPE_CHECKING:
    from penstock.procedures.databases import Database
    from penstock.procedures.in_process.open_database import OpenDatabase

__all__ = ["DatabaseTest", "database"]


class DatabaseTest:
    """A database under test: tables in this process, and a log in a temporary directory.

    Procedures read the time from a column of their rows, not from a clock. So a test passes the time in the
    rows.

    Parameters
    ----------
    opened : Database
        The database.
    directory : pathlib.Path
        The directory of the database's log.

    Attributes
    ----------
    results : list of dict
        The results of all transactions so far. Each result also has ``procedure`` and ``rejected``.
    """

    def __init__(self, opened: Database, directory: Path) -> None:
        self._database = opened
        self._directory = directory
        self.results: list[dict[str, Any]] = []
        self._db: OpenDatabase = opened.open(directory)

    @property
    def rejections(self) -> list[dict[str, Any]]:
        """The results of rejected transactions. The field ``rejected`` has the reason."""
        return [one for one in self.results if one["rejected"] is not None]

    def load(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows into a table.

        Raises
        ------
        InvalidUsageError
            If a key exists already, or a column does not fit.
        """
        self._db.load(table, pa.Table.from_pylist([dict(row) for row in rows]))

    def call(self, procedure: str, /, **attributes: Any) -> dict[str, Any]:
        """Run one transaction; return its results, and ``rejected`` with the reason if it was rejected.

        Raises
        ------
        InvalidUsageError
            If there is no such procedure, or an attribute does not fit.
        """
        return self.run(procedure, [attributes])[0]

    def run(self, procedure: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Run a transaction, or a round of a workflow, for each row in order; return their results.

        Raises
        ------
        InvalidUsageError
            If there is no such procedure, or a column does not fit.
        """
        if not rows:
            return []
        results = self._db.run(procedure, pa.Table.from_pylist([dict(row) for row in rows])).to_pylist()
        self.results += [{"procedure": procedure, **one} for one in results]
        return results

    def table(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        rows: list[dict[str, Any]] = self._db.table(name).to_pylist()
        return rows

    def restart(self) -> None:
        """Close the database and open it again from its log."""
        self._db.close()
        self._db = self._database.open(self._directory)

    def crash(self, procedure: str, /, **attributes: Any) -> None:
        """Run a transaction; kill the process once the transaction is durable, before the call returns.

        Then another process recovers the database from its log, including the transaction.

        Raises
        ------
        InvalidUsageError
            If the arguments are wrong. Then nothing runs.
        """
        with _failpoints.armed({"log.after_sync": "error"}):
            try:
                self._db.call(procedure, **attributes)
            except _failpoints.InjectedError:
                died = True
            else:
                died = False
        if died:
            self._db.abandon()
            self._db.close()
            self._db = self._database.open(self._directory)
            return
        raise InvalidUsageError("the call wrote nothing, so it cannot crash at a write", procedure=procedure)

    def close(self) -> None:
        """Close the database."""
        self._db.close()


@contextmanager
def database(opened: Database) -> Iterator[DatabaseTest]:
    """Open a database for a test, in a temporary directory.

    Parameters
    ----------
    opened : Database
        The database, with its tables and procedures.

    Yields
    ------
    DatabaseTest

    Raises
    ------
    InvalidUsageError
        If a procedure does not compile.
    """
    if isinstance(opened, str):
        raise InvalidUsageError("not a database, but a text", got=opened, hint="pass penstock.database(...)")
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as directory:
        test = DatabaseTest(opened, Path(directory) / "database")
        try:
            yield test
        finally:
            test.close()
