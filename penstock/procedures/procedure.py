"""Procedures: the functions that a database runs as transactions."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.ddl import schema_text
from penstock.errors import InvalidUsageError
from penstock.procedures.analysis.counts import TransactionCounts
from penstock.procedures.analysis.explain import describe_procedure, explain_procedure
from penstock.procedures.compiler.program import (
    PlainProgram,
    Program,
    all_texts,
    compile_program,
    program_digest,
)
from penstock.procedures.compiler.reading import ProcedureText
from penstock.procedures.compiler.statements import Statements
from penstock.procedures.schema import Column, TableSpec, columns_of, lacks_attribute
from penstock.procedures.workflows.catalog import Catalog
from penstock.procedures.workflows.dependencies import Dependencies
from penstock.procedures.workflows.kernel import compile_workflow
from penstock.procedures.workflows.stages import Stage
from penstock.procedures.workflows.streams import StreamSpec

__all__ = ["Procedure"]

_INNER_NODES = (ast.Tuple, ast.Starred, ast.Slice)
"""Expressions that are compiled together with the expression around them."""


class Procedure:
    """A stored procedure: a transaction for each event.

    Parameters
    ----------
    text : ProcedureText
        The parsed source of the function.
    catalog : Catalog
        The declarations of the database.
    event : pyarrow.Schema or StreamSpec, optional
        The attributes of the event, or the stream that the procedure takes; by default the input's columns.
    results : pyarrow.Schema
        The columns that the procedure returns.
    plain : bool
        Whether the procedure runs in Python, uncompiled, so that it may use any Python.
    location : str or path, optional
        The location where the database's queries keep their state.
    trigger_of : str, optional
        If the procedure is a trigger: the table, stream or window whose changes run it.
    """

    def __init__(
        self,
        text: ProcedureText,
        catalog: Catalog,
        event: pa.Schema | StreamSpec | None,
        results: pa.Schema,
        *,
        plain: bool = False,
        location: str | os.PathLike[str] | None = None,
        trigger_of: str | None = None,
    ) -> None:
        self.text = text
        self.stream = event if isinstance(event, StreamSpec) else None
        self.event = event.schema if isinstance(event, StreamSpec) else event
        self.results = results
        self.plain = plain
        self.catalog = catalog
        self.location = location
        self.is_trigger = trigger_of is not None
        catalog.check_names(text, trigger_of=trigger_of)
        self._programs: dict[str, Program | PlainProgram] = {}
        if not plain:
            _check_constructs(text)
        elif text.route:
            raise text.wrong(
                text.tree, "a procedure with plain=True has no route", "it runs in all partitions"
            )
        if self.event is not None:
            self._program(self.event)
        catalog.add_owner(text, trigger_of=trigger_of)

    @property
    def tables(self) -> Mapping[str, TableSpec]:
        """All tables of the database."""
        return self.catalog.all_tables

    @property
    def name(self) -> str:
        """The name of the procedure."""
        return self.text.name

    def __call__(self, *arguments: Any) -> Any:
        """Raise an error, because only a database can run procedures."""
        raise InvalidUsageError(
            "a procedure was called like a function",
            procedure=self.name,
            hint="run it with database.open() or penstock.transactions; other procedures may call it",
        )

    @property
    def attributes(self) -> set[str]:
        """All attributes that the code names. An event that is not declared has no other attributes."""
        return _attributes(self.text)

    @property
    def programs(self) -> tuple[Program | PlainProgram, ...]:
        """The programs to which the procedure has been compiled."""
        return tuple(self._programs.values())

    def program(self, event: pa.Schema | None = None) -> Program | PlainProgram:
        """Return the program for an event.

        Parameters
        ----------
        event : pyarrow.Schema, optional
            The columns of the input. The event has the columns that the procedure declares, or else the
            columns that its code names.

        Raises
        ------
        InvalidUsageError
            If the procedure cannot be compiled for the event, or the event lacks a declared attribute.
        """
        if streams := self.catalog.find_dependencies([self.text]).streams:
            raise InvalidUsageError(
                "a procedure that emits rows runs in a workflow",
                procedure=self.name,
                streams=", ".join(streams),
                hint="give it and the procedures that take its rows to database.workflow(name, ...)",
            )
        return self._program(self.event_schema(event))

    def event_schema(self, event: pa.Schema | None) -> pa.Schema:
        """Return the attributes of the event; see `program`."""
        schema = self.event if self.event is not None else event
        if schema is None:
            raise InvalidUsageError(
                "the attributes of the event are not declared",
                procedure=self.name,
                hint='declare them: @database.procedure(event="name type, ...")',
            )
        if event is not None:
            for field in schema:
                if field.name not in event.names:
                    raise lacks_attribute(self.name, field.name, schema)
        if self.event is None:
            schema = pa.schema([field for field in schema if field.name in self.attributes])
        return schema

    def result_columns(self) -> tuple[Column, ...]:
        """Return the columns of the results."""
        return columns_of(self.results, owner=self.name, lists=False)

    def _program(self, schema: pa.Schema) -> Program | PlainProgram:
        key = schema_text(schema)
        if key not in self._programs:
            dependencies = self.catalog.find_dependencies([self.text])
            self._programs[key] = self._compile(schema, dependencies)
            if not self.is_trigger:
                self.catalog.add_compiled(dependencies)
        return self._programs[key]

    def _compile(self, schema: pa.Schema, dependencies: Dependencies) -> Program | PlainProgram:
        event, results = columns_of(schema, owner=self.name, lists=True), self.result_columns()
        route = {"route": self.text.normal_route} if self.text.route else None
        digest = program_digest(dependencies, schema, self.results, route)
        if self.plain:
            return PlainProgram(self.name, self.text, dependencies, event, results, digest)
        if dependencies.streams:
            # This program never runs. Compile it to report errors where the procedure is defined.
            return compile_workflow(
                self.name, [Stage(self.text, None, results, 0)], dependencies, event, digest
            )
        return compile_program(self.text, dependencies, event, results, digest)

    def explain(self, counts: TransactionCounts | None = None) -> str:
        """Describe the operations, how they are undone, the reasons for rejections, and the route.

        Parameters
        ----------
        counts : TransactionCounts, optional
            A result of `penstock.count_transactions`. If given, the text also says which share of the
            transactions was forwarded.
        """
        program = next(iter(self._programs.values()), None)
        return explain_procedure(self.text, self.tables, program, counts)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `explain` as values that JSON can hold."""
        return describe_procedure(self.text, self.tables, next(iter(self._programs.values()), None))


def _attributes(text: ProcedureText) -> set[str]:
    """Return all attributes that a procedure or its callees name."""
    return {
        node.attr
        for callee in all_texts(text)
        for node in ast.walk(callee.tree)
        if isinstance(node, ast.Attribute)
    }


def _check_constructs(text: ProcedureText) -> None:
    """Refuse constructs that no procedure may use, whatever the types of its variables."""
    for node in ast.walk(text.tree):
        kind = type(node).__name__.lower()
        is_supported = True
        if isinstance(node, ast.stmt) and node is not text.tree:
            is_supported = hasattr(Statements, f"_{kind}_statement")
        elif isinstance(node, ast.expr) and not isinstance(node, _INNER_NODES):
            is_supported = hasattr(Statements, f"_{kind}")
        if not is_supported:
            raise text.refuse_construct(node)
