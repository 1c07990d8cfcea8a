"""Workflows: procedures with streams between them (S-Store §2.1)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.ddl import schema_text
from penstock.errors import InvalidUsageError
from penstock.procedures.analysis.explain import describe_workflow, list_accesses, list_facts
from penstock.procedures.compiler.program import PlainProgram, Program, program_digest
from penstock.procedures.procedure import Procedure
from penstock.procedures.schema import TableSpec, columns_of
from penstock.procedures.workflows.catalog import Catalog
from penstock.procedures.workflows.dependencies import Dependencies
from penstock.procedures.workflows.kernel import compile_workflow
from penstock.procedures.workflows.order import CycleError, sort_members
from penstock.procedures.workflows.stages import Stage, transactions_of

__all__ = ["Nested", "Workflow"]


@dataclass(frozen=True)
class Nested:
    """Procedures that are one transaction: all of them commit, or none (S-Store §2.3)."""

    procedures: tuple[Procedure, ...]


class Workflow:
    """Procedures and the streams between them. For each event a round runs.

    A border procedure takes the event. An interior procedure takes a stream, and runs after the procedures
    that emit into this stream.

    Parameters
    ----------
    name : str
        The name of the workflow.
    parts : sequence of Procedure or Nested
        The procedures and nested groups.
    catalog : Catalog
        The declarations of their database.
    location : str or path, optional
        The location where the database's queries keep their state.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[Procedure | Nested],
        catalog: Catalog,
        location: str | os.PathLike[str] | None,
    ) -> None:
        self.name = name
        self.catalog = catalog
        self.location = location
        groups = [part.procedures if isinstance(part, Nested) else (part,) for part in parts]
        self._check(groups)
        self._takers = {
            procedure.stream.name: procedure
            for group in groups
            for procedure in group
            if procedure.stream is not None
        }
        self._procedures, self._transactions = self._order(groups)
        self._check_results()
        self._programs: dict[str, Program | PlainProgram] = {}
        if all(procedure.event is not None for procedure in self.border):
            self.program()

    def _check(self, groups: Sequence[Sequence[object]]) -> None:
        procedures: dict[str, Procedure] = {}
        takers: dict[str, Procedure] = {}
        for procedure in (procedure for group in groups for procedure in group):
            if not isinstance(procedure, Procedure) or procedure.catalog is not self.catalog:
                raise InvalidUsageError(
                    "a workflow consists of procedures of its database",
                    workflow=self.name,
                    got=procedure.name if isinstance(procedure, Procedure) else type(procedure).__name__,
                )
            if procedure.name in procedures:
                raise InvalidUsageError(
                    "a workflow has this procedure twice", workflow=self.name, procedure=procedure.name
                )
            procedures[procedure.name] = procedure
            if procedure.stream is not None:
                first_taker = takers.setdefault(procedure.stream.name, procedure)
                if first_taker is not procedure:
                    raise procedure.text.wrong(
                        procedure.text.tree,
                        f"{procedure.name} and {first_taker.name} take the stream {procedure.stream.name}",
                        "let only one of them take this stream, and emit into another stream for the other",
                    )
        if not procedures:
            raise InvalidUsageError("a workflow has no procedures", workflow=self.name)
        for procedure in procedures.values():
            for name in self._emits(procedure):
                if name not in takers:
                    raise procedure.text.wrong(
                        procedure.text.tree,
                        f"no procedure of {self.name} takes the stream {name}",
                        f"add one that was defined with event={name}",
                    )

    def _emits(self, procedure: Procedure) -> list[str]:
        return list(self.catalog.find_dependencies([procedure.text]).streams)

    def _next(self, procedure: Procedure) -> list[Procedure]:
        """Return the procedures of this workflow that take rows that `procedure` emits."""
        return [self._takers[name] for name in self._emits(procedure)]

    def _order(self, groups: Sequence[Sequence[Procedure]]) -> tuple[tuple[Procedure, ...], tuple[int, ...]]:
        """Return the procedures in the order in which they run, and the transaction number of each."""
        group_of = {procedure.name: number for number, group in enumerate(groups) for procedure in group}
        procedures = {procedure.name: procedure for group in groups for procedure in group}
        after: dict[str, list[str]] = {name: [] for name in procedures}
        groups_after: dict[int, list[int]] = {number: [] for number in range(len(groups))}
        for name, procedure in procedures.items():
            for taker in self._next(procedure):
                after[taker.name].append(name)
                if group_of[taker.name] != group_of[name]:
                    groups_after[group_of[taker.name]].append(group_of[name])
        try:
            sort_members(list(procedures), after)
        except CycleError as error:
            first = procedures[error.args[0][0]]
            raise first.text.wrong(
                first.text.tree,
                f"the procedures of {self.name} are in a circle: {' -> '.join(error.args[0])}",
                "a workflow is acyclic: let one of them write a table instead of a stream",
            ) from None
        try:
            order = sort_members(list(groups_after), groups_after)
        except CycleError as error:
            circle = " -> ".join("+".join(group.name for group in groups[number]) for number in error.args[0])
            first = groups[error.args[0][0]][0]
            raise first.text.wrong(
                first.text.tree,
                f"transactions of {self.name} are in a circle: {circle}",
                "nest the procedures that run between nested procedures with them",
            ) from None
        order_numbers = [
            (procedures[name], number)
            for number in order
            for name in sort_members([group.name for group in groups[number]], after)
        ]
        return tuple(name for name, _ in order_numbers), tuple(number for _, number in order_numbers)

    def _check_results(self) -> None:
        owners: dict[str, Procedure] = {}
        for procedure in self._procedures:
            for name in procedure.results.names:
                if name in owners:
                    raise procedure.text.wrong(
                        procedure.text.tree,
                        f"{procedure.name} and {owners[name].name} return {name}",
                        "give one of them another name in returns=",
                    )
                owners[name] = procedure

    @property
    def tables(self) -> Mapping[str, TableSpec]:
        """All tables of the database."""
        return self.catalog.all_tables

    @property
    def procedures(self) -> tuple[Procedure, ...]:
        """The procedures in the order in which they run."""
        return self._procedures

    @property
    def border(self) -> tuple[Procedure, ...]:
        """The procedures that take the event."""
        return tuple(procedure for procedure in self._procedures if self._input_stream(procedure) is None)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The procedures in the order in which they run, with their streams and transactions."""
        return tuple(
            Stage(procedure.text, self._input_stream(procedure), procedure.result_columns(), number)
            for procedure, number in zip(self._procedures, self._transactions, strict=True)
        )

    def _input_stream(self, procedure: Procedure) -> str | None:
        """Return the stream that an interior procedure takes."""
        if procedure.stream is None or not any(
            procedure in self._next(emitter) for emitter in self._procedures
        ):
            return None
        return procedure.stream.name

    def program(self, event: pa.Schema | None = None) -> Program | PlainProgram:
        """Return the program for an event; see `Procedure.program`."""
        schema = pa.schema(list(self._event(event)))
        key = schema_text(schema)
        if key not in self._programs:
            dependencies = self.catalog.find_dependencies([stage.text for stage in self.stages])
            self._programs[key] = self._compile(schema, dependencies)
            self.catalog.add_compiled(dependencies)
        return self._programs[key]

    def _event(self, event: pa.Schema | None) -> Iterator[pa.Field]:
        fields: dict[str, pa.Field] = {}
        for procedure in self.border:
            for field in procedure.event_schema(event):
                first = fields.setdefault(field.name, field)
                if first.type != field.type or first.nullable != field.nullable:
                    raise procedure.text.wrong(
                        procedure.text.tree,
                        f"the attribute {field.name} is {field.type} here and {first.type} before",
                        "declare one event for all border procedures",
                    )
        yield from fields.values()

    def _compile(self, schema: pa.Schema, dependencies: Dependencies) -> Program | PlainProgram:
        stages = self.stages
        event = columns_of(schema, owner=self.name, lists=True)
        results = pa.schema([field for procedure in self._procedures for field in procedure.results])
        graph = [[stage.text.name, stage.stream, stage.transaction] for stage in stages]
        digest = program_digest(dependencies, schema, results, {"workflow": graph})
        if any(procedure.plain for procedure in self._procedures):
            columns = columns_of(results, owner=self.name, lists=False)
            return PlainProgram(self.name, stages[0].text, dependencies, event, columns, digest, stages)
        return compile_workflow(self.name, stages, dependencies, event, digest)

    def explain(self) -> str:
        """Describe the procedures, their order and transactions, and the findings of the compiler."""
        lines = [f"workflow {self.name}"]
        program = next(iter(self._programs.values()), None)
        if program is not None:
            lines[0] += f" (program {program.digest})"
        for members in transactions_of(self.stages):
            if len(members) > 1:
                lines.append("  nested transaction:")
            indent = "    " if len(members) > 1 else "  "
            lines += [indent + self._describe(self._procedures[member]) for member in members]
        if isinstance(program, Program):
            lines += [f"  {access}" for access in list_accesses(program)]
        lines += [f"  {name}: {value}" for name, value in list_facts(program)]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `explain` as values that JSON can hold."""
        return describe_workflow(self.name, next(iter(self._programs.values()), None))

    def _describe(self, procedure: Procedure) -> str:
        streams = self._emits(procedure)
        stream = self._input_stream(procedure)
        line = f"{procedure.name} takes {'the event' if stream is None else stream}"
        return line + (f", emits {', '.join(streams)}" if streams else "")
