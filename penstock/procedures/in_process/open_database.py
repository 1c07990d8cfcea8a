"""The tables of a database in this process, and transactions over them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.engine import TableSet, event_schema, result_schema
from penstock.procedures.in_process.command_log import Call, CommandLog
from penstock.procedures.in_process.strong_recovery import StrongRecovery
from penstock.procedures.schema import TableSpec
from penstock.procedures.workflows.batches import batch_bounds, check_batches
from penstock.sql.expression import did_you_mean

if TYPE_CHECKING:
    from penstock.procedures.databases import Database

__all__ = ["OpenDatabase", "batches_of"]

T = TypeVar("T")

_LOAD = "load "
"""The prefix of a table's name in the log, for calls of `OpenDatabase.load`."""


class OpenDatabase:
    """The tables of a database in this process's memory. Not for several threads at once.

    Parameters
    ----------
    database : Database
        Its tables and procedures; procedures may be added while it is open.
    location, recovery
        See `Database.open`.
    """

    def __init__(
        self,
        database: Database,
        location: str | os.PathLike[str] | None = None,
        recovery: Literal["weak", "strong"] = "weak",
    ) -> None:
        if recovery not in ("weak", "strong"):
            raise InvalidUsageError("there is no such recovery", recovery=recovery, hint="use weak or strong")
        if not (location is None or isinstance(location, str | os.PathLike)):
            raise InvalidUsageError("the location of a database is no path", got=type(location).__name__)
        if location is None and recovery == "strong":
            raise InvalidUsageError(
                "only a database in a directory has strong recovery",
                recovery=recovery,
                hint="give open() a location",
            )
        self._database = database
        self._programs: dict[tuple[str, pa.Schema], Program | PlainProgram] = {}
        self._closed = self._broken = False
        self._log: CommandLog | None = None
        self._strong: StrongRecovery | None = None
        tables = database.catalog.all_tables.values()
        if location is None:
            self._state = TableSet(tables)
            return
        self._log = CommandLog(location, database.name, tables)
        try:
            self._state, calls = self._log.restore()
            strong = StrongRecovery(self._state, self._log)
            for call in calls:
                self._repeat(call, strong)
            strong.end()
            self._strong = strong if recovery == "strong" else None
        except BaseException:
            self._log.close()
            raise

    def __enter__(self) -> OpenDatabase:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Store the tables, if a location keeps them, and end. Closing twice is not an error."""
        log, self._log = self._log, None
        self._closed = True
        if log is not None:
            try:
                log.checkpoint(self._state)
            finally:
                log.close()
        self._state.close()

    def checkpoint(self) -> None:
        """Store the tables, so that the next `Database.open` repeats no calls. It also happens by itself.

        Raises
        ------
        UnavailableError
            If the file system refuses. Open the database again then; no call is lost.
        """
        self._check_open()
        if self._log is not None:
            with self._abandon_on_error():
                self._log.checkpoint(self._state)

    def _repeat(self, call: Call, strong: StrongRecovery) -> None:
        """Run a call or a transaction of the log again."""
        if call.events is None:
            strong.repeat(call)
            return
        table = call.called.removeprefix(_LOAD)
        if table != call.called:
            self._state.load(table, call.events)
            return
        program = self._program(call.called, call.events.schema)
        if program.digest != call.program:
            raise InvalidUsageError(
                "the log has calls of another program",
                procedure=call.called,
                was=call.program,
                now=program.digest,
                hint="open it once with the procedure as it was, and close it: then no calls are repeated",
            )
        if call.transaction is None:
            self._state.run(program, call.events, call.bounds)
            return
        if isinstance(program, PlainProgram):
            raise InvalidUsageError(
                "a workflow with plain=True cannot repeat transactions of strong recovery",
                workflow=program.name,
                hint="open the database once without plain=True, and close it: then nothing is repeated",
            )
        if call.transaction == 0:
            strong.begin(program, call.events)
        strong.repeat(call)

    def _perform(self, call: Call, change: Callable[[], T], *harmless: type[Exception]) -> T:
        """Change the tables and make the call durable. Errors that are `harmless` change nothing."""
        with self._abandon_on_error(*harmless):
            result = change()
        if self._log is None:
            self._state.forget_deleted()
            return result
        with self._abandon_on_error():
            self._log.append(call)
            self._checkpoint_if_due()
        return result

    def _checkpoint_if_due(self) -> None:
        if self._log is not None and self._log.checkpoint_is_due:
            self._log.checkpoint(self._state)

    @contextlib.contextmanager
    def _abandon_on_error(self, *harmless: type[Exception]) -> Iterator[None]:
        """Refuse further calls after an error or interrupt: the tables may be ahead of the log."""
        try:
            yield
        except harmless:
            raise
        except BaseException:
            log, self._log = self._log, None
            if log is not None:
                self._broken = True
                log.close()
            raise

    def load(self, table: str, rows: pa.Table | pa.RecordBatch | Mapping[str, Any]) -> None:
        """Insert rows with new keys into a table.

        Raises
        ------
        InvalidUsageError
            If a key exists already, or a column does not fit.
        """
        self._check_open()
        spec, columns = self._spec(table), _as_arrow(rows, owner=table)
        spec.check_known(columns.schema.names)
        for batch in batches_of(columns, spec.schema, owner=table):
            change = partial(self._state.load, table, batch)
            self._perform(Call(_LOAD + table, "", batch), change, InvalidUsageError)

    def call(self, procedure: str, /, **attributes: Any) -> dict[str, Any]:
        """Run one transaction, or a round of a workflow; return its results and ``rejected``.

        Raises
        ------
        InvalidUsageError
            If there is no such procedure, or an attribute does not fit.
        """
        with _arrow_errors(procedure):
            event = pa.RecordBatch.from_struct_array(pa.array([attributes]))
        return self.run(procedure, event).to_pylist()[0]

    def run(
        self,
        procedure: str,
        events: pa.Table | pa.RecordBatch | Mapping[str, Any],
        *,
        batch: str | None = None,
    ) -> pa.Table:
        """Run a transaction, or a round of a workflow, for each row in order; return a row for each.

        The last column, ``rejected``, says why a transaction was rejected; it is null if it was committed.

        Parameters
        ----------
        procedure : str
            The name of a procedure or workflow.
        events : pyarrow.Table, pyarrow.RecordBatch or dict of columns
            The events.
        batch : str, optional
            The column that separates the atomic batches of a workflow: consecutive rows with an equal value
            are one batch. By default each row is one.

        Raises
        ------
        InvalidUsageError
            If there is no such procedure, or a column does not fit.
        """
        self._check_open()
        events = _as_arrow(events, owner=procedure)
        program = self._program(procedure, events.schema)
        results = []
        bounds = None if batch is None else self._bounds(program, events, batch)
        for rows in batches_of(events, event_schema(program.event), owner=procedure):
            if self._strong is not None and program.stages:
                results.append(self._run_strong(self._strong, program, rows, bounds))
                continue
            change = partial(self._state.run, program, rows, bounds)
            # Python's own procedures change the tables once they have run.
            harmless = Exception if isinstance(program, PlainProgram) else InvalidUsageError
            results.append(self._perform(Call(procedure, program.digest, rows, bounds), change, harmless))
        return pa.Table.from_batches(results, result_schema(program))

    def _run_strong(
        self,
        strong: StrongRecovery,
        program: Program | PlainProgram,
        rows: pa.RecordBatch,
        bounds: npt.NDArray[np.int64] | None,
    ) -> pa.RecordBatch:
        if isinstance(program, PlainProgram):
            raise InvalidUsageError(
                "a workflow with plain=True has no strong recovery",
                workflow=program.name,
                hint='open the database with recovery="weak"',
            )
        with self._abandon_on_error():
            results = strong.run(program, rows, bounds)
            self._checkpoint_if_due()
            return results

    def _program(self, procedure: str, events: pa.Schema) -> Program | PlainProgram:
        # Finding the program anew takes longer than running a transaction.
        _check_text(procedure, kind="procedure")
        program = self._programs.get((procedure, events))
        if program is None:
            database = self._database
            definition = database.procedures.get(procedure) or database.workflows.get(procedure)
            if definition is None:
                raise InvalidUsageError(
                    "there is no such procedure",
                    procedure=procedure,
                    hint=did_you_mean(procedure, [*database.procedures, *database.workflows], "procedures"),
                )
            program = definition.program(events)
            self._check_opened(*(spec.name for spec in program.tables))
            self._programs[procedure, events] = program
        return program

    def _check_opened(self, *tables: str) -> None:
        """Refuse tables, including those of windows, that were declared after the database was opened."""
        if missing := [name for name in tables if name not in self._state]:
            raise InvalidUsageError(
                "the database was opened before these tables were declared",
                tables=", ".join(missing),
                hint="declare tables and windows before database.open()",
            )

    def _check_open(self) -> None:
        if self._broken:
            raise InvalidUsageError("a call could not be stored", hint="open the database again")
        if self._closed:
            raise InvalidUsageError("the database is closed", hint="open it again")

    @staticmethod
    def _bounds(
        program: Program | PlainProgram, events: pa.Table | pa.RecordBatch, batch: str
    ) -> npt.NDArray[np.int64]:
        check_batches(program)
        if batch not in events.schema.names:
            raise InvalidUsageError("there is no such column", column=batch)
        column = events.column(batch)
        return batch_bounds(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column, batch)

    def table(self, name: str) -> pa.Table:
        """Return all rows of a table, in no particular order."""
        self._spec(name)
        return pa.Table.from_batches([self._state[name].table()])

    def _spec(self, name: str) -> TableSpec:
        _check_text(name, kind="table")
        if name not in self._database.tables:
            hint = did_you_mean(name, self._database.tables, "tables")
            raise InvalidUsageError("there is no such table", table=name, hint=hint)
        self._check_opened(name)
        return self._database.tables[name]


def _check_text(name: object, *, kind: str) -> None:
    if not isinstance(name, str):
        raise InvalidUsageError(f"the name of a {kind} is a text", got=type(name).__name__)


def _as_arrow(
    rows: pa.Table | pa.RecordBatch | Mapping[str, Any], *, owner: str
) -> pa.Table | pa.RecordBatch:
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows
    if not isinstance(rows, Mapping):
        raise InvalidUsageError(
            "rows of this type are not taken",
            of=owner,
            got=type(rows).__name__,
            hint="pass a pyarrow.Table, a pyarrow.RecordBatch, or a dict of columns",
        )
    with _arrow_errors(owner):
        return pa.table({name: pa.array(values) for name, values in rows.items()})


@contextlib.contextmanager
def _arrow_errors(owner: str) -> Iterator[None]:
    """Raise `InvalidUsageError` for values that Arrow cannot hold in an array."""
    try:
        yield
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidUsageError("a column does not fit", of=owner, reason=str(error)) from error


def batches_of(rows: pa.Table | pa.RecordBatch, schema: pa.Schema, *, owner: str) -> list[pa.RecordBatch]:
    """Convert rows to batches of a schema; columns match by name, and missing ones are null."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    if twice := [name for name in schema.names if table.column_names.count(name) > 1]:
        raise InvalidUsageError("a column is there twice", of=owner, columns=twice)
    if strange := [name for name in schema.names if name not in table.column_names]:
        missing = [name for name in strange if not schema.field(name).nullable]
        if missing:
            raise InvalidUsageError("a column is missing", of=owner, columns=missing)
    arrays = [
        table.column(field.name) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    # `pa.table` without columns has no rows, but a selection of no columns keeps their number.
    columns = pa.table(arrays, names=schema.names).combine_chunks() if arrays else table.select([])
    with _arrow_errors(owner):
        return [cast_to_schema(batch, schema) for batch in columns.to_batches()]
