"""The declarations of a database."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidUsageError, did_you_mean
from penstock.procedures import language
from penstock.procedures.compiler.program import all_texts
from penstock.procedures.compiler.reading import ProcedureText, read
from penstock.procedures.schema import NAME_HINT, RelationSpec, TableSpec, is_usable_name
from penstock.procedures.workflows.dependencies import Dependencies
from penstock.procedures.workflows.streams import StreamSpec
from penstock.procedures.workflows.windows import WindowSpec

if TYPE_CHECKING:
    from penstock.procedures.procedure import Procedure

__all__ = ["Catalog"]

_TAKEN = "choose another name, or make a new database: a notebook that runs a cell again declares twice"


@dataclass
class Catalog:
    """The tables, streams, windows and triggers of a database.

    Attributes
    ----------
    tables, streams, windows : dict
        The declarations, by name.
    triggers : dict
        The procedures that run when a row is inserted or a window slides, by the name of the table, stream or
        window.
    owners : dict
        The procedure that each window belongs to.
    procedures : dict
        The procedures, by name.
    """

    tables: dict[str, TableSpec] = field(default_factory=dict)
    streams: dict[str, StreamSpec] = field(default_factory=dict)
    windows: dict[str, WindowSpec] = field(default_factory=dict)
    triggers: dict[str, list[ProcedureText]] = field(default_factory=dict)
    owners: dict[str, ProcedureText] = field(default_factory=dict)
    procedures: dict[str, Procedure] = field(default_factory=dict)
    _compiled: set[str] = field(default_factory=set)

    @property
    def all_tables(self) -> dict[str, TableSpec]:
        """All tables of a state, including the tables of windows."""
        window_tables = [spec for window in self.windows.values() for spec in (window.rows, window.facts)]
        return self.tables | {spec.name: spec for spec in window_tables}

    def find_relation(self, name: str) -> RelationSpec:
        """Return the table, stream or window that has a name.

        Raises
        ------
        InvalidUsageError
            If there is no table, stream or window of this name.
        """
        relations: dict[str, RelationSpec] = {**self.tables, **self.streams, **self.windows}
        if name not in relations:
            hint = did_you_mean(name, relations, "tables, streams and windows")
            raise InvalidUsageError("there is no such table, stream or window", name=name, hint=hint)
        return relations[name]

    def add(self, kind: str, spec: TableSpec | StreamSpec | WindowSpec) -> None:
        """Add a declaration.

        Raises
        ------
        InvalidUsageError
            If the name is unusable or taken.
        """
        if not is_usable_name(spec.name):
            raise InvalidUsageError(
                f"a {kind}'s name is not a Python identifier", **{kind: repr(spec.name)}, hint=NAME_HINT
            )
        if spec.name.startswith("_"):
            raise InvalidUsageError(
                f"a {kind}'s name begins with _",
                **{kind: spec.name},
                hint="such names belong to procedures that Penstock generates",
            )
        names = [spec.name]
        if isinstance(spec, WindowSpec):
            names += [spec.rows.name, spec.facts.name]
        names_in_use = {**self.all_tables, **self.streams, **self.windows}
        for name in names:
            if name in names_in_use:
                relation = "stream" if name in self.streams else "window" if name in self.windows else "table"
                raise InvalidUsageError(
                    f"the database has this {relation} already", **{relation: name}, hint=_TAKEN
                )
        if isinstance(spec, TableSpec):
            self.tables[spec.name] = spec
        elif isinstance(spec, StreamSpec):
            self.streams[spec.name] = spec
        else:
            self.windows[spec.name] = spec

    def check_trigger(self, on: str, text: ProcedureText) -> None:
        """Check that a trigger may be added.

        Raises
        ------
        InvalidUsageError
            If a procedure was compiled without the trigger.
        """
        if on in self._compiled:
            raise text.wrong(
                text.tree,
                f"a procedure that uses {on} was compiled before",
                "define triggers before the procedures that they run in",
            )

    def read(self, function: Callable[..., Any]) -> ProcedureText:
        """Return the text of a function, with its SQL statements replaced by accesses.

        Raises
        ------
        InvalidUsageError
            If the function is not a procedure, or a statement is not an access.
        """
        text = read(function)
        if any(text.is_word(node, language.execute) for node in ast.walk(text.tree)):
            # The SQL parser takes long to import, so import it only for procedures with SQL.
            from penstock.procedures.analysis.sql_statements import rewrite_sql

            return rewrite_sql(text, self.tables)
        return text

    def check_names(self, text: ProcedureText, *, trigger_of: str | None = None) -> None:
        """Check the parameters of a procedure.

        Raises
        ------
        InvalidUsageError
            If a parameter is not declared, or is a window of another procedure.
        """
        relations = [*self.tables, *self.streams, *self.windows]
        for name, parameter in zip(text.tables, text.tree.args.args[1:], strict=True):
            if name not in relations:
                hint = f"the database has {', '.join(relations) or 'none'}"
                raise text.wrong(parameter, f"there is no table {name}", hint)
            if name in self.windows and name != trigger_of:
                owner = self.owners.get(name, text)
                if owner is not text:
                    hint = "a window is private; the procedure that owns it may emit what others need"
                    raise text.wrong(parameter, f"the window {name} belongs to {owner.name}", hint)

    def add_owner(self, text: ProcedureText, *, trigger_of: str | None = None) -> None:
        """Record a procedure as the owner of its windows."""
        self.owners |= {name: text for name in text.tables if name in self.windows and name != trigger_of}

    def add_compiled(self, dependencies: Dependencies) -> None:
        """Record the dependencies of a compiled procedure, to which no triggers can be added any more."""
        self._compiled.update(name for text in dependencies.texts for name in text.tables)

    def find_dependencies(self, texts: Sequence[ProcedureText]) -> Dependencies:
        """Return the dependencies of procedures."""
        dependencies = Dependencies()
        window_tables: dict[str, TableSpec] = {}
        dependencies.texts = list(texts)
        for text in dependencies.texts:
            for name in text.tables:
                triggers = self.triggers.get(name, [])
                if name in self.tables:
                    dependencies.tables[name] = self.tables[name]
                elif name in self.streams:
                    dependencies.streams[name] = self.streams[name]
                else:
                    window = self.windows[name]
                    dependencies.windows[name] = window
                    window_tables |= {spec.name: spec for spec in (window.rows, window.facts)}
                    if name not in dependencies.insertions:
                        dependencies.insertions[name] = window.insertion(triggers)
                if triggers:
                    dependencies.triggers[name] = tuple(triggers)
                dependencies.texts += [trigger for trigger in triggers if trigger not in dependencies.texts]
            dependencies.texts += [callee for callee in all_texts(text) if callee not in dependencies.texts]
        dependencies.tables |= window_tables
        return dependencies
