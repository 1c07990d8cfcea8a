"""Find the access sets of transactions from their events (TStream §II-B, F2).

The access set of a transaction has the rows that it may read or write. The conditions of an access are the
tests of the branches around it. If a condition depends only on the event, it is evaluated before the run, to
see whether the event makes the access. Any other condition is assumed to be true, so that access sets are
never too small.

An event is exclusive if it may insert or delete a row, or access a row whose key the event does not
determine. An exclusive event runs alone, between the other events.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from penstock.procedures import language
from penstock.procedures.compiler.reading import ProcedureText
from penstock.procedures.prefetching import Lookup, callee_of, split_lookup, trace_arguments
from penstock.procedures.schema import Column, Kind, TableSpec
from penstock.procedures.workflows.dependencies import Dependencies

if TYPE_CHECKING:
    from penstock.procedures.compiler.program import Program

__all__ = ["AccessSets", "KeyAccess", "find_access_sets"]

_MAX_ACCESSES = 60
_SAFE = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.And, ast.Or, ast.Not, ast.USub, ast.Constant, ast.Load)
"""Nodes of conditions that cannot fail. Names of constants and attributes of the event cannot fail either."""
_FACTS = "access_sets"
_BITS = (Column("bits", pa.int64(), Kind.INTEGER, nullable=False),)


@dataclass(frozen=True, slots=True)
class KeyAccess:
    """The accesses to rows of a table by a key that the event determines.

    Attributes
    ----------
    table : int
        The position of the table in the program.
    key : tuple of int
        For each column of the key, the position of the attribute of the event that supplies its value.
    bits, write_bits : int
        If an event has any of `bits`, it accesses the row; if it has any of `write_bits`, it writes the row.
    """

    table: int
    key: tuple[int, ...]
    bits: int
    write_bits: int


@dataclass(frozen=True, slots=True)
class AccessSets:
    """The access sets of a program's transactions.

    Each access in the text of the program has a bit. The bits of an event are the accesses that it may make.

    Attributes
    ----------
    accesses : tuple of KeyAccess
        All accesses whose keys the event determines.
    exclusive_bits : int
        An event that has any of these bits is exclusive.
    because : tuple of str
        The reasons why events may be exclusive.
    facts : Program
        The program that returns the bits of each event.
    """

    accesses: tuple[KeyAccess, ...]
    exclusive_bits: int
    because: tuple[str, ...]
    facts: Program


@dataclass(frozen=True, slots=True)
class _Condition:
    test: ast.expr
    holds: bool


@dataclass(slots=True)
class _Found:
    """An access or an exclusive statement, with the conditions around it."""

    conditions: tuple[_Condition, ...]
    lookup: Lookup | None
    writes: bool = False
    because: str = ""


def find_access_sets(
    text: ProcedureText,
    dependencies: Dependencies,
    event: tuple[Column, ...],
    compile_facts: Callable[..., Program],
) -> AccessSets | str:
    """Return the access sets of a procedure, or the reason why all of its transactions run serially."""
    if dependencies.streams or dependencies.windows:
        return "it has streams or windows"
    if not dependencies.tables:
        return "it accesses no table"
    walk = _Walk(text, {column.name: column.name for column in event}, dependencies.tables, event)
    walk.body(text.tree.body)
    always = next((one.because for one in walk.found if one.because and not one.conditions), None)
    if always is not None:
        return always
    if len(walk.found) > _MAX_ACCESSES:
        return f"it has more than {_MAX_ACCESSES} accesses"
    names = [column.name for column in event]
    tables = list(dependencies.tables)
    accesses: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    exclusive = 0
    for place, one in enumerate(walk.found):
        if one.lookup is None:
            exclusive |= 1 << place
            continue
        key = (tables.index(one.lookup.table), tuple(names.index(name) for name in one.lookup.key))
        bits = accesses.setdefault(key, [0, 0])
        bits[0] |= 1 << place
        bits[1] |= (1 << place) * one.writes
    facts = _facts_text(text, walk.found)
    return AccessSets(
        tuple(KeyAccess(table, key, *bits) for (table, key), bits in accesses.items()),
        exclusive,
        tuple(dict.fromkeys(one.because for one in walk.found if one.because)),
        compile_facts(facts, Dependencies([facts]), event, _BITS),
    )


def _facts_text(text: ProcedureText, found: Sequence[_Found]) -> ProcedureText:
    """Return a procedure that returns the bits of an event."""
    bits = f"{text.name}_bits"
    body: list[ast.stmt] = [ast.parse(f"{bits} = 0").body[0]]
    for place, one in enumerate(found):
        node: ast.stmt = ast.parse(f"{bits} += {1 << place}").body[0]
        for condition in reversed(one.conditions):
            test = condition.test if condition.holds else ast.UnaryOp(ast.Not(), condition.test)
            node = ast.If(test, [node], [])
        body.append(node)
    body.append(ast.parse(f"return {bits}").body[0])
    head = cast(ast.FunctionDef, ast.parse(f"def {_FACTS}({text.event}): pass").body[0])
    head.body = body
    return ProcedureText(
        _FACTS, ast.fix_missing_locations(head), text.file, text.line, text.column, text.names
    )


@dataclass(slots=True)
class _Walk:
    """Walks through a procedure and its callees.

    Attributes
    ----------
    text : ProcedureText
        The procedure that is searched.
    sources : mapping
        For each attribute of the procedure's event, the attribute of the program's event that supplies it.
    tables : mapping
        The tables by name.
    event : tuple of Column
        The attributes of the program's event.
    conditions : list
        The conditions of the current statement.
    found : list
        The accesses that were found so far.
    is_callee : bool
        Whether another procedure calls this procedure. If so, its conditions test its own event, which is not
        the program's event.
    """

    text: ProcedureText
    sources: Mapping[str, str]
    tables: Mapping[str, TableSpec]
    event: tuple[Column, ...]
    conditions: list[_Condition] = field(default_factory=list)
    found: list[_Found] = field(default_factory=list)
    is_callee: bool = False

    def body(self, nodes: Sequence[ast.stmt]) -> bool:
        """Walk through statements; return whether control may reach the end."""
        depth = len(self.conditions)
        reaches = all(self._statement(node) for node in nodes)
        del self.conditions[depth:]
        return reaches

    def _statement(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.If):
            return self._if(node)
        if isinstance(node, ast.For):
            self._expressions(node.iter, writes=False)
            self.body(node.body)
            return True
        if isinstance(node, ast.Delete):
            self._exclusive("it deletes rows")
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Attribute):
                    self._check_index(target)
                    self._expressions(target.value, writes=True)
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            self._expressions(node.value, writes=bool(names & self._written_names()))
        else:
            self._expressions(node, writes=False)
        ends = isinstance(node, ast.Return | ast.Break | ast.Continue)
        return not ends and not self._aborts(node)

    def _if(self, node: ast.If) -> bool:
        self._expressions(node.test, writes=False)
        known = not self.is_callee and self._is_of_event(node.test)
        branches = []
        for holds, nodes in ((True, node.body), (False, node.orelse)):
            if known:
                self.conditions.append(_Condition(node.test, holds))
            branches.append(self.body(nodes))
            if known:
                self.conditions.pop()
        if known and branches[0] != branches[1]:
            # The statements that follow run only after the branch that reaches its end.
            self.conditions.append(_Condition(node.test, branches[0]))
        return any(branches)

    def _is_of_event(self, test: ast.expr) -> bool:
        """Return whether a condition depends on the event alone, and cannot fail."""
        inside = {id(node.value) for node in ast.walk(test) if isinstance(node, ast.Attribute)}
        scalars = {column.name for column in self.event if not column.is_list}
        for node in ast.walk(test):
            if isinstance(node, ast.Attribute):
                is_event = isinstance(node.value, ast.Name) and node.value.id == self.text.event
                if not is_event or node.attr not in scalars:
                    return False
            elif isinstance(node, ast.Name):
                is_constant = isinstance(self.text.names.get(node.id), bool | int | float | str)
                if id(node) not in inside and (not is_constant or node.id in self._stored_names()):
                    return False
            elif not isinstance(node, (*_SAFE, ast.cmpop)) or isinstance(node, ast.In | ast.NotIn):
                return False
        return True

    def _aborts(self, node: ast.stmt) -> bool:
        call = node.value if isinstance(node, ast.Expr) else None
        function = call.func if isinstance(call, ast.Call) else None
        return isinstance(function, ast.Name) and self.text.names.get(function.id) is language.abort

    def _expressions(self, root: ast.AST, *, writes: bool) -> None:
        for node in ast.walk(root):
            callee = callee_of(node, self.text)
            if callee is not None and isinstance(node, ast.Call):
                sources = trace_arguments(node.args[0], self.text, self.sources)
                inner = _Walk(callee, sources, self.tables, self.event, self.conditions, self.found, True)
                inner.body(callee.tree.body)
                continue
            method = node.func if isinstance(node, ast.Call) else None
            if isinstance(method, ast.Attribute) and self._is_table(method.value) and method.attr != "get":
                self._exclusive(
                    "it inserts rows" if method.attr == "insert" else "it selects rows by an index"
                )
                continue
            table, key = split_lookup(node, self.text)
            if table is not None and table in self.tables and key is not None:
                self._lookup(table, key, writes=writes)

    def _lookup(self, table: str, key: ast.expr, *, writes: bool) -> None:
        attributes = [self._source(part) for part in (key.elts if isinstance(key, ast.Tuple) else [key])]
        columns = {column.name: column for column in self.event}
        spec = self.tables[table]
        own = [columns[name] for name in attributes if name is not None]
        kinds = [spec.column(name).kind for name in spec.key]
        if [column.kind for column in own] != kinds or len({c.name for c in own if c.is_list}) > 1:
            shown = ast.unparse(key).removeprefix("(").removesuffix(")")
            self._exclusive(f"the event does not determine the key of {table}[{shown}]")
            return
        lookup = Lookup(table, tuple(column.name for column in own))
        self.found.append(_Found(tuple(self.conditions), lookup, writes))

    def _source(self, part: ast.expr) -> str | None:
        """Return the attribute of the program's event that holds a key, possibly as a list element."""
        if isinstance(part, ast.Subscript):
            return self._attribute(part.value)
        if isinstance(part, ast.Name):
            lists = [
                self._attribute(node.iter) if isinstance(node, ast.For) else None
                for node in ast.walk(self.text.tree)
                if part.id in _stores(node)
            ]
            return lists[0] if len(set(lists)) == 1 else None
        return self._attribute(part)

    def _attribute(self, node: ast.expr) -> str | None:
        is_event = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if is_event and isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == self.text.event:
            return self.sources.get(node.attr)
        return None

    def _stored_names(self) -> set[str]:
        return {name for node in ast.walk(self.text.tree) for name in _stores(node)}

    def _written_names(self) -> set[str]:
        """Return the variables whose rows are written, directly or through other variables."""
        written = {
            node.value.id
            for node in ast.walk(self.text.tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
        }
        while True:
            before = len(written)
            for node in ast.walk(self.text.tree):
                if isinstance(node, ast.Assign) and written & _stores(node):
                    written |= {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
            if len(written) == before:
                return written

    def _check_index(self, target: ast.Attribute) -> None:
        """Find a write to a column that is in an index of any table."""
        for spec in self.tables.values():
            if any(target.attr in index.columns for index in spec.indexes):
                self._exclusive(f"it may change the column {target.attr} of an index")

    def _exclusive(self, because: str) -> None:
        self.found.append(_Found(tuple(self.conditions), None, because=because))

    def _is_table(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self.text.tables and node.id in self.tables


def _stores(node: ast.AST) -> set[str]:
    """Return the names that a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.For | ast.AugAssign):
        targets = [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}
