"""The programs and tables that an open database has."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import InvalidUsageError, did_you_mean
from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.in_process.arrow_rows import check_named, check_text
from penstock.procedures.requests.programs import RequestPrograms
from penstock.procedures.schema import TableSpec

if TYPE_CHECKING:
    from penstock.procedures.databases import Database

__all__ = ["OpenPrograms"]


class OpenPrograms:
    """Finds programs and tables by their names. Procedures may be added while the database is open.

    Parameters
    ----------
    database : Database
        The database that declares tables and procedures.
    opened : container of str
        The names of the tables that exist, including hidden tables.
    """

    def __init__(self, database: Database, opened: Container[str]) -> None:
        self._database = database
        self._opened = opened
        self._programs: dict[tuple[str, pa.Schema], Program | PlainProgram] = {}
        self._requests = RequestPrograms({}, {})

    def find(self, procedure: str, events: pa.Schema) -> Program | PlainProgram:
        """Return the program of a procedure or workflow for events with these columns.

        Raises
        ------
        InvalidUsageError
            If there is no such procedure, or it does not compile for these columns.
        """
        # Keep the program: finding it takes longer than running a transaction.
        check_text(procedure, kind="procedure")
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

    def check_call(self, name: str, positional: tuple[object, ...], attributes: Mapping[str, Any]) -> None:
        """Refuse attributes of a call that are passed by position, or that a declared event does not have.

        Raises
        ------
        InvalidUsageError
            If there is such an attribute.
        """
        check_named(name, positional)
        check_text(name, kind="procedure")
        procedure = self._database.procedures.get(name)
        if procedure is None or procedure.event is None:
            return
        for attribute in attributes:
            if procedure.event.get_field_index(attribute) < 0:
                raise InvalidUsageError(
                    "the event has no such attribute",
                    procedure=name,
                    attribute=attribute,
                    hint=did_you_mean(attribute, procedure.event.names, "attributes"),
                )

    def requests(self) -> RequestPrograms:
        """Return the procedures that requests may call."""
        known = self._requests.programs.keys() | self._requests.refusals.keys()
        if known != self._database.procedures.keys():
            self._requests = RequestPrograms.collect(self._database.catalog, 1)
        return self._requests

    def table(self, name: str) -> TableSpec:
        """Return a declared table.

        Raises
        ------
        InvalidUsageError
            If there is no such table, or it was declared after the database was opened.
        """
        check_text(name, kind="table")
        if name not in self._database.tables:
            hint = did_you_mean(name, self._database.tables, "tables")
            raise InvalidUsageError("there is no such table", table=name, hint=hint)
        self._check_opened(name)
        return self._database.tables[name]

    def _check_opened(self, *tables: str) -> None:
        """Refuse tables, including tables of windows, that were declared after the database was opened."""
        if missing := [name for name in tables if name not in self._opened]:
            raise InvalidUsageError(
                "the database was opened before these tables were declared",
                tables=", ".join(missing),
                hint="declare tables and windows before database.open()",
            )
