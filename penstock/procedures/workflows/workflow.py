"""Workflows: procedures with streams between them (S-Store §2.1)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.ddl import schema_text
from penstock.errors import InvalidUsageError
from penstock.procedures.compiler.program import PlainProgram, Program, program_digest
from penstock.procedures.procedure import Procedure
from penstock.procedures.schema import TableSpec, columns_of
from penstock.procedures.workflows.catalog import Catalog
from penstock.procedures.workflows.kernel import compile_workflow
from penstock.procedures.workflows.order import CycleError, sort_members
from penstock.procedures.workflows.reached import Reached
from penstock.procedures.workflows.stages import Stage, transactions_of

__all__ = ["Nested", "Workflow"]


@dataclass(frozen=True)
class Nested:
    """Procedures that are one transaction: all of them commit, or none (S-Store §2.3)."""

    procedures: tuple[Procedure, ...]


class Workflow:
    """Procedures and the streams between them, which run as rounds: one for each event.

    A procedure runs after those that emit into its stream. A procedure into whose stream nobody emits is a
    border procedure and takes the event; the others are interior ones.

    Parameters
    ----------
    name : str
        Its name.
    parts : sequence of Procedure or Nested
        Its procedures and nested groups.
    catalog : Catalog
        The declarations of their database.
    location : str or path, optional
        Where the state of the database's queries lives.
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
        seen: dict[str, Procedure] = {}
        takers: dict[str, Procedure] = {}
        for procedure in (procedure for group in groups for procedure in group):
            if not isinstance(procedure, Procedure) or procedure.catalog is not self.catalog:
                raise InvalidUsageError(
                    "a workflow consists of procedures of its database",
                    workflow=self.name,
                    got=procedure.name if isinstance(procedure, Procedure) else type(procedure).__name__,
                )
            if procedure.name in seen:
                raise InvalidUsageError(
                    "a workflow has a procedure once", workflow=self.name, procedure=procedure.name
                )
            seen[procedure.name] = procedure
            if procedure.stream is not None:
                other = takers.setdefault(procedure.stream.name, procedure)
                if other is not procedure:
                    raise procedure.text.wrong(
                        procedure.text.tree,
                        f"{procedure.name} and {other.name} take the stream {procedure.stream.name}",
                        "emit into a stream for each; one takes what is emitted once",
                    )
        if not seen:
            raise InvalidUsageError("a workflow has no procedures", workflow=self.name)
        for procedure in seen.values():
            for name in self._emits(procedure):
                if name not in takers:
                    raise procedure.text.wrong(
                        procedure.text.tree,
                        f"no procedure of {self.name} takes the stream {name}",
                        f"add one that was defined with event={name}",
                    )

    def _emits(self, one: Procedure) -> list[str]:
        """Return the streams that a procedure, or a trigger in it, emits into."""
        return list(self.catalog.reached([one.text]).streams)

    def _next(self, one: Procedure) -> list[Procedure]:
        """Return the procedures of this workflow that take the rows of another one."""
        return [self._takers[name] for name in self._emits(one)]

    def _order(self, groups: Sequence[Sequence[Procedure]]) -> tuple[tuple[Procedure, ...], tuple[int, ...]]:
        """Return the procedures in their order, and the number of the transaction of each."""
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
                "nest what runs between nested procedures with them",
            ) from None
        made = [
            (procedures[name], number)
            for number in order
            for name in sort_members([group.name for group in groups[number]], after)
        ]
        return tuple(name for name, _ in made), tuple(number for _, number in made)

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
        """All tables of its database."""
        return self.catalog.stored

    @property
    def procedures(self) -> tuple[Procedure, ...]:
        """Its procedures in the order in which they run."""
        return self._procedures

    @property
    def border(self) -> tuple[Procedure, ...]:
        """The procedures that take the event."""
        return tuple(procedure for procedure in self._procedures if self._input_stream(procedure) is None)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Its procedures in the order in which they run, with what they take and their transactions."""
        return tuple(
            Stage(procedure.text, self._input_stream(procedure), procedure.result_columns(), number)
            for procedure, number in zip(self._procedures, self._transactions, strict=True)
        )

    def _input_stream(self, one: Procedure) -> str | None:
        """Return the stream that an interior procedure takes."""
        if one.stream is None or not any(one in self._next(other) for other in self._procedures):
            return None
        return one.stream.name

    def program(self, event: pa.Schema | None = None) -> Program | PlainProgram:
        """Return the program for an event; see `Procedure.program`."""
        schema = pa.schema(list(self._event(event)))
        known = schema_text(schema)
        if known not in self._programs:
            reached = self.catalog.reached([stage.text for stage in self.stages])
            self._programs[known] = self._made(schema, reached)
            self.catalog.add_compiled(reached)
        return self._programs[known]

    def _event(self, event: pa.Schema | None) -> Iterator[pa.Field]:
        fields: dict[str, pa.Field] = {}
        for procedure in self.border:
            for field in procedure.event_schema(event):
                other = fields.setdefault(field.name, field)
                if other.type != field.type or other.nullable != field.nullable:
                    raise procedure.text.wrong(
                        procedure.text.tree,
                        f"the attribute {field.name} is {field.type} here and {other.type} before",
                        "declare one event for all border procedures",
                    )
        yield from fields.values()

    def _made(self, schema: pa.Schema, reached: Reached) -> Program | PlainProgram:
        stages = self.stages
        event = columns_of(schema, of=self.name, lists=True)
        results = pa.schema([field for procedure in self._procedures for field in procedure.results])
        graph = [[stage.text.name, stage.stream, stage.transaction] for stage in stages]
        digest = program_digest(reached, schema, results, {"workflow": graph})
        if any(procedure.plain for procedure in self._procedures):
            columns = columns_of(results, of=self.name, lists=False)
            return PlainProgram(self.name, stages[0].text, reached, event, columns, digest, stages)
        return compile_workflow(self.name, stages, reached, event, digest)

    def explain(self) -> str:
        """Describe its procedures, their order and transactions, and the findings of the compiler."""
        lines = [f"workflow {self.name}"]
        program = next(iter(self._programs.values()), None)
        if program is not None:
            lines[0] += f" (program {program.digest})"
        for members in transactions_of(self.stages):
            if len(members) > 1:
                lines.append("  nested transaction:")
            indent = "    " if len(members) > 1 else "  "
            lines += [indent + self._told(self._procedures[member]) for member in members]
        if isinstance(program, Program):
            lines += [
                f"  {access.mode}: {access.table}[{', '.join(access.key)}]" for access in program.accesses
            ]
            lines.append(f"  undo log: {'yes' if program.undo_log else 'no'}")
            lines.append(f"  rejections: {', '.join(program.reasons) or 'none'}")
        elif program is not None:
            lines.append("  run by Python")
        return "\n".join(lines)

    def _told(self, one: Procedure) -> str:
        emitted = self._emits(one)
        taken = self._input_stream(one)
        line = f"{one.name} takes {'the event' if taken is None else taken}"
        return line + (f", emits {', '.join(emitted)}" if emitted else "")
