"""Find the operations of a procedure: READ, WRITE and READ_MODIFY with their conditions (TStream §II-B).

The operations are derived from the text alone: each variable and condition is traced to the rows and
attributes that it depends on. The result is only shown to users; the compiler uses `Access`.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.procedures import language
from penstock.procedures.compiler.reading import ProcedureText
from penstock.procedures.compiler.statements import procedure_text
from penstock.procedures.indexes.selections import loop_parts, selection_parts

__all__ = ["Operation", "OperationMode", "operations_of"]


class OperationMode(StrEnum):
    """The operations of TStream's Table II. INSERT requires a missing row, DELETE an existing row."""

    READ = "READ"
    WRITE = "WRITE"
    READ_MODIFY = "READ_MODIFY"
    INSERT = "INSERT"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a procedure on one key.

    Attributes
    ----------
    mode : OperationMode
        The kind of operation. A write whose new value depends on the row itself is a READ_MODIFY.
    target : str
        The row as ``table[key]``; the key is an expression over the event.
    function : str
        The expression of the written value; empty for READ and DELETE.
    reads : tuple of str
        The other rows that the written value depends on.
    conditions : tuple of str
        The conditions of the operation; all of them must hold.
    condition_reads : tuple of str
        The rows that the conditions depend on.
    key_reads : tuple of str
        The rows that the key depends on; empty if the event alone determines it.
    """

    mode: OperationMode
    target: str
    function: str = ""
    reads: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    condition_reads: tuple[str, ...] = ()
    key_reads: tuple[str, ...] = ()


Refs = frozenset[str]
_NO_REFS: Refs = frozenset()
_SHOWN_BY_NAME = frozenset({ast.Call, ast.IfExp, ast.BoolOp})
"""If a value contains one of these expressions, its description is only the name of its variable."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A variable: the rows that its value depends on, the rows that it may refer to, and a short text."""

    refs: Refs = _NO_REFS
    rows: Refs = _NO_REFS
    text: ast.expr | None = None

    def merge(self, other: _Known) -> _Known:
        """Return the variable after a branch, if it is `self` on one path and `other` on the other path."""
        equal = self.text is not None and other.text is not None and _text(self.text) == _text(other.text)
        return _Known(self.refs | other.refs, self.rows | other.rows, self.text if equal else None)


@dataclass(slots=True)
class _Frame:
    """A procedure that is being traced; `event` is None if no other procedure calls it."""

    text: ProcedureText
    event: Mapping[str, _Known] | None
    names: dict[str, _Known] = field(default_factory=dict)
    returned: Refs = _NO_REFS


@dataclass(frozen=True, slots=True)
class _Condition:
    text: str
    refs: Refs


def operations_of(text: ProcedureText, keys: Mapping[str, tuple[str, ...]]) -> tuple[Operation, ...]:
    """Return the operations of a procedure and its callees, in the order of its text.

    Parameters
    ----------
    text : ProcedureText
        The text of the procedure.
    keys : mapping
        The columns of the key of each table.
    """
    finder = _Finder(keys)
    finder.frames.append(_Frame(text, None))
    finder.body(text.tree.body)
    return finder.result()


class _Finder:
    """Traces each statement once, but loop bodies twice: one iteration may pass values to the next."""

    def __init__(self, keys: Mapping[str, tuple[str, ...]]) -> None:
        self.keys = keys
        self.frames: list[_Frame] = []
        self.conditions: list[_Condition] = []
        self.operations: dict[tuple[OperationMode, str, str, tuple[str, ...]], Operation] = {}
        self.key_refs: dict[str, Refs] = {}

    @property
    def frame(self) -> _Frame:
        """The innermost procedure."""
        return self.frames[-1]

    def result(self) -> tuple[Operation, ...]:
        """Return the operations; a READ is left out if another operation has the same key."""
        operations = self.operations.values()
        targets = {operation.target for operation in operations if operation.mode is not OperationMode.READ}
        return tuple(
            operation
            for operation in operations
            if operation.mode is not OperationMode.READ or operation.target not in targets
        )

    def note(self, mode: OperationMode, target: str, function: str = "", reads: Refs = _NO_REFS) -> None:
        """Record an operation, with the conditions around it."""
        conditions = tuple(dict.fromkeys(condition.text for condition in self.conditions))
        refs = _NO_REFS.union(*(condition.refs for condition in self.conditions))
        # A READ that occurs twice is one operation, with the conditions that hold for both occurrences.
        place = (mode, target, function, () if mode is OperationMode.READ else conditions)
        operation = Operation(
            mode,
            target,
            function,
            tuple(sorted(reads - {target})),
            conditions,
            tuple(sorted(refs)),
            tuple(sorted(self.key_refs.get(target, _NO_REFS))),
        )
        before = self.operations.get(place)
        if before is not None and before.conditions != operation.conditions:
            common = tuple(condition for condition in before.conditions if condition in operation.conditions)
            operation = Operation(
                mode, target, function, operation.reads, common,
                before.condition_reads if common else (), operation.key_reads,
            )  # fmt: skip
        self.operations[place] = operation

    # Statements

    def body(self, nodes: Sequence[ast.stmt]) -> bool:
        """Trace statements; return whether control may reach the end."""
        condition_count = 0
        for node in nodes:
            handler = getattr(self, f"_{type(node).__name__.lower()}", self._trace_other)
            reaches = handler(node)
            if isinstance(reaches, _Condition):
                # The later statements run only if the branch that ends was not taken.
                self.conditions.append(reaches)
                condition_count += 1
            elif reaches is False:
                del self.conditions[len(self.conditions) - condition_count :]
                return False
        del self.conditions[len(self.conditions) - condition_count :]
        return True

    def _trace_other(self, node: ast.stmt) -> None:
        """Trace a statement of a kind that only plain procedures may have."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self.body([child])
            else:
                self.refs(child)

    def _return(self, node: ast.Return) -> bool:
        if node.value is not None:
            self.frame.returned |= self.refs(node.value)
        return False

    def _break(self, _: ast.Break) -> bool:
        return False

    _continue = _break

    def _expr(self, node: ast.Expr) -> bool:
        self.refs(node.value)
        return not self._is_word(node.value, language.abort)

    def _if(self, node: ast.If) -> _Condition | bool:
        refs = self.refs(node.test)
        holds = _Condition(self.show(node.test), refs)
        fails = _Condition(self.show(_negate(node.test)), refs)
        before = dict(self.frame.names)
        continues = self._branch(holds, node.body)
        after, self.frame.names = self.frame.names, before
        else_continues = self._branch(fails, node.orelse)
        if not continues and not else_continues:
            return False
        if not continues:
            return fails
        if not else_continues:
            self.frame.names = after
            return holds
        for name, variable in after.items():
            else_variable = self.frame.names.get(name)
            if else_variable != variable:
                merged = variable if else_variable is None else variable.merge(else_variable)
                self.frame.names[name] = _Known(merged.refs | refs, merged.rows, merged.text)
        return True

    def _branch(self, condition: _Condition, nodes: Sequence[ast.stmt]) -> bool:
        self.conditions.append(condition)
        continues = self.body(nodes)
        self.conditions.pop()
        return continues

    def _for(self, node: ast.For) -> None:
        refs = self.refs(node.iter)
        rows = self.rows(loop_parts(node.iter)[0])
        before = dict(self.frame.names)
        for operations in (dict(self.operations), self.operations):
            # An iteration may read values of the previous iteration, so only the second pass counts.
            self.operations = operations
            if isinstance(node.target, ast.Name):
                self.frame.names[node.target.id] = _Known(refs, rows)
            self.body(node.body)
            for name, variable in before.items():
                self.frame.names[name] = self.frame.names[name].merge(variable)

    def _assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._store(target, node.value, self.refs(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        read = ast.parse(ast.unparse(node.target), mode="eval").body
        value = ast.BinOp(read, node.op, node.value)
        self._store(node.target, value, self.refs(value))

    def _store(self, target: ast.expr, value: ast.expr, refs: Refs) -> None:
        if isinstance(target, ast.Name):
            rows = self.rows(value)
            is_short = not refs and not _SHOWN_BY_NAME.intersection(map(type, ast.walk(value)))
            self.frame.names[target.id] = _Known(refs, rows, self.inline_names(value) if is_short else None)
        elif isinstance(target, ast.Attribute):
            for row in self.rows(target.value):
                mode = OperationMode.READ_MODIFY if row in refs else OperationMode.WRITE
                self.note(mode, row, f"{target.attr} = {self.show(value)}", refs)

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript) and self._table(target.value) is not None:
                row = self._key(target.value, target.slice)
                self.note(OperationMode.DELETE, row)

    # Expressions

    def refs(self, node: ast.AST) -> Refs:
        """Return the rows that a value depends on; record the rows that it reads."""
        if isinstance(node, ast.Name):
            variable = self.frame.names.get(node.id)
            return _NO_REFS if variable is None else variable.refs | variable.rows
        if isinstance(node, ast.Attribute):
            if self._is_event(node.value):
                variable = self._attribute(node.attr)
                return _NO_REFS if variable is None else variable.refs
            rows = self.rows(node.value)
            for row in rows:
                self.note(OperationMode.READ, row)
            return rows.union(*(self.key_refs[row] for row in rows)) if rows else self.refs(node.value)
        if isinstance(node, ast.Subscript) and self._table(node.value) is not None:
            return frozenset({self._key(node.value, node.slice)})
        if isinstance(node, ast.Compare):
            return self._trace_comparison(node)
        if (rows_read := self._selection(node)) is not None:
            self.note(OperationMode.READ, rows_read)
            return frozenset({rows_read}) | self.key_refs[rows_read]
        if isinstance(node, ast.Call):
            return self._trace_call(node)
        return _NO_REFS.union(*map(self.refs, ast.iter_child_nodes(node)))

    def _trace_comparison(self, node: ast.Compare) -> Refs:
        refs = self.refs(node.left)
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.In | ast.NotIn) and self._table(right) is not None:
                row = self._key(right, left)
                self.note(OperationMode.READ, row)
                refs |= {row}
            else:
                refs |= self.refs(right)
            left = right
        return refs

    def _trace_call(self, node: ast.Call) -> Refs:
        function = node.func
        if isinstance(function, ast.Attribute) and self._table(function.value) is not None:
            if function.attr == "get" and node.args:
                row = self._key(function.value, node.args[0])
                self.note(OperationMode.READ, row)
                return frozenset({row})
            if function.attr == "insert":
                return self._trace_insert(node, function.value)
        if isinstance(function, ast.Attribute) and self._selection(function.value) is not None:
            return self.refs(function.value).union(*map(self.refs, node.args))
        if isinstance(function, ast.Name):
            text = procedure_text(self.frame.text.names.get(function.id))
            if text is not None and node.args:
                return self._trace_inline(text, node.args[0])
        parts = [self.refs(arg) for arg in (*node.args, *(keyword.value for keyword in node.keywords))]
        return _NO_REFS.union(*parts)

    def _trace_insert(self, node: ast.Call, table: ast.expr) -> Refs:
        values = {str(keyword.arg): keyword.value for keyword in node.keywords}
        refs = _NO_REFS.union(*(self.refs(value) for value in values.values()))
        columns = self.keys.get(str(self._table(table)), ())
        key = [values[name] for name in columns if name in values]
        row = self._key(table, key[0] if len(key) == 1 else ast.Tuple(key, ast.Load()))
        assignments = [f"{name}={self.show(value)}" for name, value in values.items() if name not in columns]
        self.note(OperationMode.INSERT, row, ", ".join(assignments), refs)
        return frozenset({row})

    def _trace_inline(self, text: ProcedureText, event: ast.expr) -> Refs:
        if any(frame.text is text for frame in self.frames):
            return _NO_REFS
        attributes = self.frame.event
        if isinstance(event, ast.Call):
            attributes = {
                str(keyword.arg): _Known(self.refs(keyword.value), _NO_REFS, self.inline_names(keyword.value))
                for keyword in event.keywords
            }
        self.frames.append(_Frame(text, attributes))
        self.body(text.tree.body)
        return self.frames.pop().returned

    def rows(self, node: ast.expr) -> Refs:
        """Return the rows that an expression may refer to; empty for a value."""
        if isinstance(node, ast.Name):
            variable = self.frame.names.get(node.id)
            return _NO_REFS if variable is None else variable.rows
        if isinstance(node, ast.Subscript) and self._table(node.value) is not None:
            return frozenset({self._key(node.value, node.slice)})
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr in ("get", "insert"):
            return self.refs(node) if self._table(method.value) is not None else _NO_REFS
        at = node
        if isinstance(method, ast.Attribute) and method.attr in ("first", "last"):
            at = method.value
        selection = self._selection(at)
        return _NO_REFS if selection is None else frozenset({selection})

    def _selection(self, node: ast.AST) -> str | None:
        """Return the rows of an index that an expression selects; None for other expressions."""
        if not isinstance(node, ast.expr):
            return None
        parts = selection_parts(node)
        if parts is None or self._table(parts[0]) is None:
            return None
        name = self.show(node)
        self.key_refs[name] = self.key_refs.get(name, _NO_REFS) | (
            _NO_REFS if parts[2] is None else self.refs(parts[2])
        )
        return name

    def _key(self, table: ast.expr, key: ast.expr) -> str:
        parts = key.elts if isinstance(key, ast.Tuple) else [key]
        name = f"{self._table(table)}[{', '.join(self.show(part) for part in parts)}]"
        refs = _NO_REFS.union(*(self.refs(part) for part in parts))
        self.key_refs[name] = self.key_refs.get(name, _NO_REFS) | refs
        return name

    def _table(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name) and node.id in self.frame.text.tables and node.id in self.keys:
            return node.id
        return None

    def _is_event(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self.frame.text.event

    def _attribute(self, name: str) -> _Known | None:
        if self.frame.event is not None:
            return self.frame.event.get(name)
        event = ast.Name(self.frames[0].text.event, ast.Load())
        return _Known(text=ast.Attribute(event, name, ast.Load()))

    def _is_word(self, node: ast.expr, word: object) -> bool:
        function = node.func if isinstance(node, ast.Call) else None
        return isinstance(function, ast.Name) and self.frame.text.names.get(function.id) is word

    def inline_names(self, node: ast.expr) -> ast.expr:
        """Replace variables in an expression by the attributes and columns that they stand for, if known."""
        expression: ast.expr = _Replacer(self).visit(copy.deepcopy(node))
        return expression

    def show(self, node: ast.expr) -> str:
        """Return the text of an expression."""
        return _text(self.inline_names(node))


class _Replacer(ast.NodeTransformer):
    def __init__(self, finder: _Finder) -> None:
        self.finder = finder

    def visit_Name(self, node: ast.Name) -> ast.expr:
        variable = self.finder.frame.names.get(node.id)
        if variable is None:
            return node
        if len(variable.rows) == 1:
            return ast.parse(next(iter(variable.rows)), mode="eval").body
        return node if variable.text is None else variable.text

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if self.finder._is_event(node.value):
            variable = self.finder._attribute(node.attr)
            return node if variable is None or variable.text is None else variable.text
        return self.generic_visit(node)


_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}  # fmt: skip
"""Ordered comparisons have no opposite, because with NaN neither ``a < b`` nor ``a >= b`` holds."""


def _negate(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPPOSITE:
        return ast.Compare(node.left, [_OPPOSITE[type(node.ops[0])]()], node.comparators)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    return ast.UnaryOp(ast.Not(), node)


def _text(node: ast.expr) -> str:
    return ast.unparse(ast.fix_missing_locations(node))
