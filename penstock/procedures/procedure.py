"""Procedures: what the decorator of a database makes of a function."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.ddl import schema_text
from penstock.errors import InvalidUsageError
from penstock.procedures.compiler.program import (
    Program,
    all_texts,
    compile_program,
    program_digest,
)
from penstock.procedures.compiler.reading import ProcedureText
from penstock.procedures.compiler.statements import Statements
from penstock.procedures.schema import Column, TableSpec, columns_of

__all__ = ["PlainProgram", "Procedure"]

_PARTS = (ast.Tuple, ast.Starred, ast.Slice)
"""Expressions that are compiled with what they are a part of."""


@dataclass(frozen=True)
class PlainProgram:
    """A procedure that Python runs; what it has is as in `Program`."""

    text: ProcedureText
    tables: tuple[TableSpec, ...]
    event: tuple[Column, ...]
    results: tuple[Column, ...]
    digest: str

    @property
    def name(self) -> str:
        """The procedure's name."""
        return self.text.name


class Procedure:
    """A stored procedure: a transaction for each event.

    Parameters
    ----------
    text : ProcedureText
        Its text.
    tables : mapping
        The tables of its database by name.
    event : pyarrow.Schema, optional
        The attributes of its event; by default those of what it runs over.
    results : pyarrow.Schema
        What it returns.
    plain : bool
        Whether Python runs it, for what is outside of the compiler's subset.
    location : str or path, optional
        Where the state of the database's queries lives.
    """

    def __init__(
        self,
        text: ProcedureText,
        tables: Mapping[str, TableSpec],
        event: pa.Schema | None,
        results: pa.Schema,
        *,
        plain: bool = False,
        location: str | os.PathLike[str] | None = None,
    ) -> None:
        self.text = text
        self.event = event
        self.results = results
        self.plain = plain
        self.tables = tables
        self.location = location
        for name, parameter in zip(text.tables, text.tree.args.args[1:], strict=True):
            if name not in tables:
                raise text.wrong(
                    parameter, f"there is no table {name}", f"the database has {', '.join(tables) or 'none'}"
                )
        self._tables = {name: tables[name] for name in text.tables}
        self._programs: dict[str, Program | PlainProgram] = {}
        if not plain:
            _check_constructs(text)
        if event is not None:
            self.program(event)

    @property
    def name(self) -> str:
        """Its name."""
        return self.text.name

    def __call__(self, *arguments: Any) -> Any:
        """Refuse: a database runs procedures."""
        raise InvalidUsageError(
            "a procedure was called like a function",
            procedure=self.name,
            hint="run it with database.open() or penstock.transactions; other procedures may call it",
        )

    def program(self, event: pa.Schema | None = None) -> Program | PlainProgram:
        """Return what runs for an event.

        Parameters
        ----------
        event : pyarrow.Schema, optional
            The columns that there are; those that the procedure declares, or else all, are its event's.

        Raises
        ------
        InvalidUsageError
            If the procedure cannot be compiled for it, or it lacks an attribute that is declared.
        """
        schema = self.event if self.event is not None else event
        if schema is None:
            raise InvalidUsageError(
                "nothing says which attributes the event has",
                procedure=self.name,
                hint='declare them: @database.procedure(event="name type, ...")',
            )
        if event is not None:
            for field in schema:
                if field.name not in event.names:
                    raise InvalidUsageError(
                        "the event lacks an attribute", procedure=self.name, attribute=field.name
                    )
        if self.event is None:
            schema = pa.schema([field for field in schema if field.name in _attributes(self.text)])
        known = schema_text(schema)
        if known not in self._programs:
            self._programs[known] = self._made(schema)
        return self._programs[known]

    def _made(self, schema: pa.Schema) -> Program | PlainProgram:
        event = columns_of(schema, of=self.name, lists=True)
        results = columns_of(self.results, of=self.name, lists=False)
        tables = tuple(self._tables.values())
        digest = program_digest(all_texts(self.text), tables, schema, self.results)
        if self.plain:
            return PlainProgram(self.text, tables, event, results, digest)
        return compile_program(self.text, self._tables, event, results, digest)

    def explain(self) -> str:
        """Say what the compiler found: accesses, whether an undo log is needed, and rejections."""
        if not self._programs:
            return f"{self.name}: not compiled yet"
        program = next(iter(self._programs.values()))
        if isinstance(program, PlainProgram):
            return f"{self.name}: run by Python"
        lines = [f"{self.name} (program {program.digest})"]
        lines += [f"  {one.mode}: {one.table}[{', '.join(one.key)}]" for one in program.accesses]
        lines.append(f"  undo log: {'yes' if program.undo_log else 'no'}")
        lines.append(f"  rejections: {', '.join(program.reasons) or 'none'}")
        return "\n".join(lines)


def _attributes(text: ProcedureText) -> set[str]:
    """Return which attributes of its event a procedure, and those that it passes it on to, may name."""
    return {
        node.attr for one in all_texts(text) for node in ast.walk(one.tree) if isinstance(node, ast.Attribute)
    }


def _check_constructs(text: ProcedureText) -> None:
    """Refuse what no type could make a part of the subset."""
    for node in ast.walk(text.tree):
        kind = type(node).__name__.lower()
        known = True
        if isinstance(node, ast.stmt) and node is not text.tree:
            known = hasattr(Statements, f"_{kind}_statement") and not isinstance(node, ast.While)
        elif isinstance(node, ast.expr) and not isinstance(node, _PARTS):
            known = hasattr(Statements, f"_{kind}")
        if not known:
            raise text.wrong(
                node,
                f"a procedure has no {type(node).__name__}",
                "docs/concepts/transactions.md lists what it may have; plain=True runs any Python",
            )
