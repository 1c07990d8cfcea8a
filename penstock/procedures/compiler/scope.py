"""Facts about the variables of a procedure during compilation."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.procedures.compiler.output import Output
from penstock.procedures.compiler.reading import ProcedureText
from penstock.procedures.compiler.values import ROUTED, ListOf, Origin, Row, Value
from penstock.procedures.schema import Column, Kind, TableSpec

__all__ = ["Facts", "Scope", "Scopes", "UnknownKindError"]

Assigned = set[str] | None
"""The variables that are certainly assigned at the end of a path; None if the end is never reached."""


class UnknownKindError(Exception):
    """The code reads a variable of unknown kind, because so far only None was written to it."""


@dataclass
class Facts:
    """Facts that a pass over a program finds for the next pass. The last pass finds no new fact.

    Attributes
    ----------
    kinds : dict
        The kind of each variable; for a row, its table.
    nullable : set
        The variables that may be null, and the variables of rows that may not exist.
    deletes : dict
        For each loop, the tables from which its body deletes.
    calls : dict
        The number of each called procedure and trigger, by its caller's number and the position of the call;
        for a workflow, the number of each procedure by its position.
    """

    kinds: dict[str, Kind | str] = field(default_factory=dict)
    nullable: set[str] = field(default_factory=set)
    deletes: dict[tuple[object, ...], set[str]] = field(default_factory=dict)
    calls: dict[tuple[object, ...], int] = field(default_factory=dict)


@dataclass
class Scope:
    """A procedure that is being compiled: alone, in a workflow, as a trigger, or called by another procedure.

    Attributes
    ----------
    text : ProcedureText
        The text of the procedure.
    number : int
        The number of the procedure in the program; 0 if it is compiled alone.
    event : mapping
        The attributes of the event.
    result : str or None
        The variable for the return value; None if the procedure writes results.
    results : tuple
        The results that the procedure writes, with their positions among the program's results.
    """

    text: ProcedureText
    number: int
    event: Mapping[str, Value | ListOf]
    result: str | None
    results: tuple[tuple[int, Column], ...] = ()
    assigned: Assigned = field(default_factory=set)
    rows: dict[str, Row] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    sets: dict[str, Kind | None] = field(default_factory=dict)
    """The sets, and the kind of their elements once it is known."""

    def variable(self, name: str) -> str:
        """Return the name of a variable in generated code."""
        return f"v{self.number}_{name}"

    @property
    def is_top(self) -> bool:
        """Return whether the procedure is compiled alone, and is not called by another procedure."""
        return self.number == 0

    @property
    def return_line(self) -> str:
        """The generated statement that marks a return."""
        return "code = -1" if self.is_top else f"c{self.number} = 1"

    @property
    def return_condition(self) -> str:
        """The generated condition that the procedure has returned."""
        return "code != 0" if self.is_top else f"code != 0 or c{self.number} != 0"

    def assigned_once(self, name: str) -> bool:
        """Return whether a name is assigned in only one place, outside of loops."""
        places = [
            node
            for node in ast.walk(self.text.tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
        ]
        return len(places) == 1


@dataclass
class Scopes:
    """The procedures that are being compiled, the callers first.

    Attributes
    ----------
    stack : list of Scope
        The procedures; each procedure calls the next procedure.
    route : list of Value
        The values of the route that a user names.
    """

    stack: list[Scope] = field(default_factory=list)
    route: list[Value] = field(default_factory=list)

    def find_origins(
        self,
        out: Output,
        node: ast.AST,
        spec: TableSpec,
        key: tuple[str, ...],
        values: Sequence[Value | None],
    ) -> tuple[Origin | None, ...]:
        """Return the origins of a key's columns.

        If the partition has no origin, generate code that rejects the transaction unless the partition is in
        the named route.
        """
        origins = [None if value is None else value.origin for value in values]
        place = -1 if spec.partition_by is None else spec.key.index(spec.partition_by)
        value = values[place]
        if not self.route or place < 0 or value is None or origins[place] is not None:
            return tuple(origins)
        if any(one.kind is not value.kind for one in self.route):
            kinds = ", ".join(one.kind for one in self.route)
            fact = f"{spec.partition_by} is {value.kind}, and the route is {kinds}"
            raise self.top.text.wrong(node, fact, f"write expressions of type {value.kind} in route=")
        differs = " and ".join(f"{one.code} != {value.code}" for one in self.route)
        out.fail(differs, f"outside of the route: {spec.name}[{', '.join(key)}]")
        origins[place] = ROUTED
        return tuple(origins)

    @property
    def top(self) -> Scope:
        """The innermost procedure."""
        return self.stack[-1]

    def save(self) -> list[Assigned]:
        """Return which variables are certainly assigned at this point."""
        return [None if scope.assigned is None else set(scope.assigned) for scope in self.stack]

    def set(self, state: list[Assigned]) -> None:
        """Restore a result of `save`."""
        for scope, assigned in zip(self.stack, state, strict=True):
            scope.assigned = None if assigned is None else set(assigned)

    def merge(self, state: list[Assigned]) -> None:
        """Join this path with another path, whose assignments `save` returned."""
        for scope, assigned in zip(self.stack, state, strict=True):
            if scope.assigned is None or assigned is None:
                scope.assigned = assigned if scope.assigned is None else scope.assigned
            else:
                scope.assigned &= assigned

    def forget_rows(self, table: str) -> None:
        """Forget all rows of a table, because one of these rows may have been deleted."""
        for scope in self.stack:
            variables = {name for name, row in scope.rows.items() if row.table == table}
            scope.deleted |= variables
            if scope.assigned is not None:
                scope.assigned -= variables
