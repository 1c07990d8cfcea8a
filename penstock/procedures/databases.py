"""`database`: tables and procedures, and transactions in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import pyarrow as pa

from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.procedures.compiler.reading import read
from penstock.procedures.engine import TableSet, event_schema, result_schema
from penstock.procedures.procedure import Procedure
from penstock.procedures.schema import TableSpec

__all__ = ["Database", "OpenDatabase", "database"]

Function = Callable[..., Any]


def database(name: str, location: str | os.PathLike[str] | None = None) -> Database:
    """Return a database, to which tables and procedures are added.

    Parameters
    ----------
    name : str
        Its name, which is that of its state in a query.
    location : str or path, optional
        Where the state of its queries lives, unless they say otherwise.

    Examples
    --------
    >>> bank = penstock.database("bank")
    >>> accounts = bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id")
    >>> bank.tables
    {'accounts': ...}
    """
    return Database(name, location)


class Database:
    """Tables, and the procedures that access them. Made on the driver, or in any process of Python.

    Parameters
    ----------
    name, location
        See `database`.

    Attributes
    ----------
    tables : dict
        The tables that are declared, by name.
    procedures : dict
        The procedures, by name.
    """

    def __init__(self, name: str, location: str | os.PathLike[str] | None = None) -> None:
        if not name or not all(c.isalnum() or c in "_-" for c in name):
            raise InvalidUsageError(
                "the name is not usable", name=repr(name), hint="use letters, digits, _ and -"
            )
        self.name = name
        self.location = location
        self.tables: dict[str, TableSpec] = {}
        self.procedures: dict[str, Procedure] = {}

    def table(
        self, name: str, columns: str, *, key: str | Iterable[str], partition_by: str | None = None
    ) -> TableSpec:
        """Declare a table.

        Parameters
        ----------
        name : str
            Its name; procedures that access it have a parameter of this name.
        columns : str
            Its columns as Spark's DDL, with ``NOT NULL`` where no nulls may be: boolean, integers, float,
            double, string, date, timestamp.
        key : str or iterable of str
            The columns of the primary key, at most three; they are not null.
        partition_by : str, optional
            The column of the key by which rows go to buckets in Spark; without it there is one bucket.

        Raises
        ------
        InvalidUsageError
            If a name or type is unusable, or the table is there already.
        """
        if name in self.tables:
            raise InvalidUsageError("the database has this table already", table=name)
        spec = TableSpec.of(name, columns, key, partition_by)
        self.tables[name] = spec
        return spec

    @overload
    def procedure(self, function: Function) -> Procedure: ...

    @overload
    def procedure(
        self, *, event: str | None = None, returns: str | None = None, plain: bool = False
    ) -> Callable[[Function], Procedure]: ...

    def procedure(
        self,
        function: Function | None = None,
        *,
        event: str | None = None,
        returns: str | None = None,
        plain: bool = False,
    ) -> Procedure | Callable[[Function], Procedure]:
        """Make a stored procedure of a function, whose parameters are an event and tables.

        It is compiled when it is defined if `event` is given, else once the columns of its input are known.

        Parameters
        ----------
        function : callable
            The function.
        event : str, optional
            The attributes of the event as Spark's DDL; arrays may be among them.
        returns : str, optional
            Names and types of what it returns; nothing by default.
        plain : bool
            Have Python run it, about a thousand times slower, for what is outside of the subset.

        Raises
        ------
        InvalidUsageError
            If it is outside of the subset of Python that is compiled; with file, line and column.
        """

        def made(function: Function) -> Procedure:
            text = read(function)
            if text.name in self.procedures:
                raise InvalidUsageError("the database has this procedure already", procedure=text.name)
            results = parse_schema(returns) if returns else pa.schema([])
            attributes = parse_schema(event) if event else None
            procedure = Procedure(text, self.tables, attributes, results, plain=plain, location=self.location)
            self.procedures[text.name] = procedure
            return procedure

        return made if function is None else made(function)

    def open(self) -> OpenDatabase:
        """Open empty tables in this process's memory, for transactions one after the other.

        Examples
        --------
        >>> with bank.open() as db:
        ...     db.load("accounts", {"id": [1, 2], "balance": [100, 0]})
        ...     db.call("transfer", source=1, target=2, amount=30)
        ...     db.call("transfer", source=1, target=3, amount=30)
        {'rejected': None}
        {'rejected': 'unknown key: accounts'}
        """
        return OpenDatabase(self)


class OpenDatabase:
    """The tables of a database in this process's memory. Not for several threads at once.

    Parameters
    ----------
    database : Database
        Its tables and procedures; procedures may be added while it is open.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._state = TableSet(database.tables.values())

    def __enter__(self) -> OpenDatabase:
        return self

    def __exit__(self, *error: object) -> None:
        self._state.close()

    def load(self, table: str, rows: pa.Table | pa.RecordBatch | Mapping[str, Any]) -> None:
        """Insert rows into a table, which has none of their keys.

        Raises
        ------
        InvalidUsageError
            If a key is there already, or a column does not fit.
        """
        spec = self._spec(table)
        if not isinstance(rows, pa.Table | pa.RecordBatch):
            rows = pa.table({name: pa.array(values) for name, values in rows.items()})
        for batch in _batches(rows, spec.schema, of=table):
            self._state[table].upsert(batch, dirty=True, new=True)

    def call(self, procedure: str, **attributes: Any) -> dict[str, Any]:
        """Run one transaction; return its results, and under ``rejected`` why it was rejected, or None.

        Raises
        ------
        InvalidUsageError
            If there is no such procedure, or an attribute does not fit.
        """
        events = pa.table({name: [value] for name, value in attributes.items()})
        return self.run(procedure, events).to_pylist()[0]

    def run(self, procedure: str, events: pa.Table | pa.RecordBatch) -> pa.Table:
        """Run a transaction for each row, in their order; return a row for each.

        The last column, ``rejected``, says why a transaction was rejected; it is null if it was committed.

        Raises
        ------
        InvalidUsageError
            If there is no such procedure, or a column does not fit.
        """
        found = self._database.procedures.get(procedure)
        if found is None:
            raise InvalidUsageError("there is no such procedure", procedure=procedure)
        program = found.program(events.schema)
        schema = event_schema(program.event)
        made = []
        for batch in _batches(events, schema, of=procedure):
            made.append(self._state.run(program, batch))
            self._state.forget_deleted()
        return pa.Table.from_batches(made, result_schema(program))

    def table(self, name: str) -> pa.Table:
        """Return all rows of a table, in no order."""
        self._spec(name)
        return pa.Table.from_batches([self._state[name].table()])

    def _spec(self, name: str) -> TableSpec:
        if name not in self._database.tables:
            raise InvalidUsageError("there is no such table", table=name)
        return self._database.tables[name]


def _batches(rows: pa.Table | pa.RecordBatch, schema: pa.Schema, *, of: str) -> list[pa.RecordBatch]:
    """Return rows as batches of a schema, by name; columns that it lacks are null."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    if strange := [name for name in schema.names if name not in table.column_names]:
        missing = [name for name in strange if not schema.field(name).nullable]
        if missing:
            raise InvalidUsageError("a column is missing", of=of, columns=missing)
    arrays = [
        table.column(field.name) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    chosen = pa.table(arrays, names=schema.names).combine_chunks()
    try:
        return [cast_to_schema(batch, schema) for batch in chosen.to_batches()]
    except (pa.ArrowInvalid, ValueError) as error:
        raise InvalidUsageError("a column does not fit", of=of, reason=str(error)) from error
