"""The statements of procedures, with the tables, columns and rows that they access (H-Store §6.5).

If a procedure branches by an attribute of the event, each branch has its own statements.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from penstock.procedures.compiler.reading import ProcedureText, all_texts
from penstock.procedures.schema import TableSpec

__all__ = ["ColumnsUsed", "Statement", "columns_used", "specialize"]


class Statement(NamedTuple):
    """An access to a table, in the form that conflict rules need.

    Attributes
    ----------
    verb : str
        ``read``, ``select``, ``write``, ``insert`` or ``delete``.
    table : str
        The table's name.
    reads, writes : frozenset of str
        The columns that the statement reads, and the columns that it changes. An insert or a delete changes
        all columns.
    has_key : bool
        Whether the statement accesses one row by its whole key. A ``select`` accesses a range of rows.
    """

    verb: str
    table: str
    reads: frozenset[str]
    writes: frozenset[str]
    has_key: bool

    @property
    def changes(self) -> bool:
        """Return whether the statement changes rows."""
        return self.verb not in ("read", "select")

    @staticmethod
    def of(verb: str, spec: TableSpec, used: ColumnsUsed, *, has_key: bool) -> Statement:
        """Return the statement with a verb and a table, for a procedure that uses the columns in `used`."""
        every = frozenset(spec.schema.names)
        key = frozenset(spec.key)
        if verb in ("insert", "delete"):
            return Statement(verb, spec.name, key, every, has_key)
        if verb == "write":
            return Statement(verb, spec.name, key, frozenset(used.written), has_key)
        return Statement(verb, spec.name, key | frozenset(used.read), frozenset(), has_key)


@dataclass(slots=True)
class ColumnsUsed:
    """The columns of a table that a procedure reads and writes."""

    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)


def specialize(text: ProcedureText, attribute: str, value: Any) -> ProcedureText:
    """Return a procedure without the branches that cannot run if an attribute of its event has `value`.

    Only branches with conditions ``e.attribute == constant`` are removed.
    """
    body = _decide(text, text.tree.body, attribute, value)
    tree = copy.copy(text.tree)
    tree.body = body or [ast.Pass()]
    return replace(text, tree=ast.fix_missing_locations(tree))


def _decide(text: ProcedureText, nodes: Sequence[ast.stmt], attribute: str, value: Any) -> list[ast.stmt]:
    kept: list[ast.stmt] = []
    for node in nodes:
        holds = _holds(text, node.test, attribute, value) if isinstance(node, ast.If) else None
        if holds is None or not isinstance(node, ast.If):
            kept.append(node)
            continue
        branch = _decide(text, node.body if holds else node.orelse, attribute, value)
        kept += branch
        if branch and isinstance(branch[-1], ast.Return):
            break
    return kept


def _holds(text: ProcedureText, test: ast.expr, attribute: str, value: Any) -> bool | None:
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return None
    left, right = test.left, test.comparators[0]
    is_attribute = (
        isinstance(left, ast.Attribute)
        and isinstance(left.value, ast.Name)
        and left.value.id == text.event
        and left.attr == attribute
    )
    if not is_attribute:
        return None
    if isinstance(right, ast.Constant):
        return bool(right.value == value)
    if isinstance(right, ast.Name) and right.id in text.names:
        return bool(text.names[right.id] == value)
    return None


def columns_used(texts: Iterable[ProcedureText], tables: Mapping[str, TableSpec]) -> dict[str, ColumnsUsed]:
    """Return the columns of each table that procedures and their callees read and write.

    If a text does not show to which table a column belongs, the column is added to all tables that have a
    column of this name.
    """
    used = {name: ColumnsUsed() for name in tables}
    for one in {id(one): one for text in texts for one in all_texts(text)}.values():
        _Reader(one, tables, used).read()
    return used


class _Reader:
    """Finds the columns that the text of one procedure uses."""

    def __init__(
        self, text: ProcedureText, tables: Mapping[str, TableSpec], used: Mapping[str, ColumnsUsed]
    ) -> None:
        self._text, self._tables, self._used = text, tables, used
        self._rows = self._find_rows()

    def _find_rows(self) -> dict[str, set[str]]:
        """Return, for each variable, the tables whose rows the variable may hold."""
        values: dict[str, list[ast.AST]] = {}
        for node in ast.walk(self._text.tree):
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.For):
                targets, value = [node.target], node.iter
            else:
                continue
            for target in targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                        values.setdefault(part.id, []).append(value)
        rows: dict[str, set[str]] = {name: set() for name in values}
        while True:
            before = sum(map(len, rows.values()))
            for name, nodes in values.items():
                for node in nodes:
                    rows[name] |= self._mentioned(node, rows)
            if sum(map(len, rows.values())) == before:
                return rows

    def _mentioned(self, node: ast.AST, rows: Mapping[str, set[str]]) -> set[str]:
        found: set[str] = set()
        for name in ast.walk(node):
            if isinstance(name, ast.Name):
                found |= {name.id} if self._is_table(name.id) else rows.get(name.id, set())
        return found

    def _is_table(self, name: str) -> bool:
        return name in self._text.tables and name in self._tables

    def read(self) -> None:
        """Add all columns that the text uses."""
        for node in ast.walk(self._text.tree):
            if isinstance(node, ast.Attribute):
                self._attribute(node, reads=isinstance(node.ctx, ast.Load))
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
                self._attribute(node.target, reads=True)
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "by":
                columns = [str(one.value) for one in node.args if isinstance(one, ast.Constant)]
                for table in self._owners(node.func, columns):
                    self._used[table].read.update(columns)

    def _attribute(self, node: ast.Attribute, *, reads: bool) -> None:
        if isinstance(node.value, ast.Name) and node.value.id == self._text.event:
            return
        for table in self._owners(node.value, [node.attr]):
            (self._used[table].read if reads else self._used[table].written).add(node.attr)

    def _owners(self, node: ast.expr, columns: Iterable[str]) -> list[str]:
        wanted = set(columns)
        tables = [name for name, spec in self._tables.items() if wanted <= set(spec.schema.names)]
        mentioned = self._mentioned(node, self._rows)
        return [name for name in tables if name in mentioned] if mentioned else tables
