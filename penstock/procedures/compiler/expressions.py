"""Compile the expressions of a procedure."""

from __future__ import annotations

import ast
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from penstock.procedures.compiler import operations
from penstock.procedures.compiler.layout import Layout, TableCode
from penstock.procedures.compiler.operations import COMPARISONS, NULL, OPERATORS, OperationError
from penstock.procedures.compiler.output import Output
from penstock.procedures.compiler.scope import Facts, Scope, Scopes, UnknownKindError
from penstock.procedures.compiler.values import Access, AccessMode, ListOf, Nothing, Row, Value, widen
from penstock.procedures.schema import Column, Kind

__all__ = ["NO_ROW", "Expressions"]

NO_ROW = "no row"
_INT64 = range(-(1 << 63), 1 << 63)
_CLOCKS = ("time", "datetime", "random", "uuid", "secrets")


class Expressions(ABC):
    """Compiles expressions, in the order in which Python evaluates them.

    Parameters
    ----------
    layout : Layout
        The arrays of the kernel.
    facts : Facts
        The facts that earlier passes found.
    """

    def __init__(self, layout: Layout, facts: Facts) -> None:
        self.layout = layout
        self.facts = facts
        self.out = Output()
        self.scopes = Scopes()
        self.accesses: list[Access] = []

    @property
    def scope(self) -> Scope:
        """The procedure that is being compiled."""
        return self.scopes.top

    def wrong(self, node: ast.AST, fact: str, hint: str) -> Exception:
        """Return the error for a part of the text."""
        return self.scope.text.wrong(node, fact, hint)

    def evaluate(self, node: ast.expr) -> Value | Nothing | Row | ListOf:
        """Compile an expression."""
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is None:
            raise self.scope.text.refuse_construct(node)
        try:
            result: Value | Nothing | Row | ListOf = handler(node)
        except OperationError as error:
            fact, hint = error.args
            raise self.wrong(node, fact, hint) from None
        return result

    def value(self, node: ast.expr) -> Value:
        """Compile an expression that is a value."""
        value = self.evaluate(node)
        if isinstance(value, Value):
            return value
        kind_text = {Nothing: "None", Row: "a row", ListOf: "a list"}[type(value)]
        hint = {Nothing: "compare with `is None`", Row: "name one of its columns", ListOf: "take an element"}
        raise self.wrong(node, f"{kind_text} is not a value", hint[type(value)])

    def value_not_null(self, node: ast.expr) -> Value:
        """Compile an expression whose value must not be null."""
        return self.check_null(self.value(node))

    def check_null(self, value: Value, reason: str = NULL) -> Value:
        """Write lines that reject the transaction if a value is null."""
        if value.null is None:
            return value
        self.out.fail(value.null, reason)
        return value.never_null()

    def condition(self, node: ast.expr) -> Value:
        """Compile an expression that is true or false."""
        value = self.value_not_null(node)
        if value.kind is not Kind.BOOLEAN:
            raise self.wrong(
                node, f"a condition must be a boolean, not {value.kind}", "compare it with something"
            )
        return value

    # Names and constants

    def _constant(self, node: ast.Constant) -> Value | Nothing:
        return self.literal(node, node.value)

    def literal(self, node: ast.AST, value: Any) -> Value | Nothing:
        """Return a constant."""
        if value is None:
            return Nothing()
        if isinstance(value, bool):
            return Value(Kind.BOOLEAN, str(value))
        if isinstance(value, int):
            if value not in _INT64:
                raise self.wrong(node, "the number is beyond 64 bits", "bigint holds -2**63 to 2**63 - 1")
            # Python reads the literal of the least integer as the negation of a number that is out of range.
            return Value(Kind.INTEGER, "INT64_MIN" if value == _INT64[0] else f"({value})")
        if isinstance(value, float):
            return Value(Kind.FLOAT, f"({value!r})" if math.isfinite(value) else operations.non_finite(value))
        if isinstance(value, str | bytes):
            kind = Kind.TEXT if isinstance(value, str) else Kind.BINARY
            return Value(kind, f"texts[{self.layout.text(value)}]")
        if isinstance(value, Decimal) and (constant := self.layout.decimal(value)) is not None:
            return constant
        raise self.wrong(
            node,
            f"procedures do not support a constant of type {type(value).__name__}",
            "constants are numbers, texts, True, False and None",
        )

    def _name(self, node: ast.Name) -> Value | Nothing | Row | ListOf:
        scope = self.scope
        name = scope.variable(node.id)
        if name in self.facts.kinds or name in self.facts.nullable or node.id in (scope.assigned or ()):
            if scope.assigned is not None and node.id not in scope.assigned:
                if node.id in scope.deleted:
                    raise self.wrong(node, f"the row {node.id} may have been deleted", "look it up again")
                raise self.wrong(node, f"{node.id} may have no value here", "assign it on every path")
            kind = self.facts.kinds.get(name)
            if kind is None:
                raise UnknownKindError(name)
            if not isinstance(kind, Kind):
                row = scope.rows.get(node.id)
                if row is None:  # the statement that finds the row was skipped
                    raise UnknownKindError(name)
                return Row(kind, name, row.key, row.origins, name in self.facts.nullable)
            null = f"{name}_null" if name in self.facts.nullable else None
            return Value(kind, name, null, scope.origins.get(node.id))
        if node.id == scope.text.event:
            raise self.wrong(node, "the event is not a value", f"name an attribute: {node.id}.name")
        if node.id in scope.text.tables:
            raise self._no_value(node)
        if node.id in scope.text.names:
            return self.literal(node, scope.text.names[node.id])
        raise self.wrong(
            node,
            f"{node.id} is not defined",
            "names are parameters, variables, and constants of the module",
        )

    def _no_value(self, node: ast.Name) -> Exception:
        if node.id in self.layout.streams:
            return self.wrong(node, "a stream is not a value", f"write {node.id}.emit(column=value)")
        if node.id in self.layout.tables:
            return self.wrong(node, "a table is not a value", f"look up {node.id}[key] or {node.id}.by(...)")
        return self.wrong(node, "a window is not a value", f"write len({node.id}) or for row in {node.id}")

    def _attribute(self, node: ast.Attribute) -> Value | ListOf:
        if isinstance(node.value, ast.Name):
            if node.value.id == self.scope.text.event:
                return self._event_attribute(node)
            if node.value.id in _CLOCKS:
                raise self.wrong(node, "a procedure has no clock and no randomness", "put it into the event")
        row = self.row(node.value)
        return self.read(node, row, self.column(node, row))

    def _event_attribute(self, node: ast.Attribute) -> Value | ListOf:
        attribute = self.scope.event.get(node.attr)
        if attribute is None:
            raise self.wrong(node, f"the event has no {node.attr}", f"it has {', '.join(self.scope.event)}")
        return attribute

    # Rows

    def table(self, node: ast.expr) -> TableCode | None:
        """Return the table that an expression names; None for other expressions."""
        if isinstance(node, ast.Name) and node.id in self.scope.text.tables:
            return self.layout.tables.get(node.id)
        return None

    def row(self, node: ast.expr) -> Row:
        """Compile an expression that is a row; the row must exist."""
        row = self.evaluate(node)
        if not isinstance(row, Row):
            raise self.wrong(
                node, "only events and rows have attributes", "take a row first: row = table[key]"
            )
        if row.maybe:
            self.out.fail(f"{row.slot} < 0", NO_ROW)
        return row

    def column(self, node: ast.Attribute, row: Row) -> Column:
        """Return the column of a row that an attribute expression names."""
        spec = self.layout.tables[row.table].spec
        if node.attr not in spec.names:
            raise self.wrong(
                node, f"the table {row.table} has no {node.attr}", f"it has {', '.join(spec.names)}"
            )
        return spec.column(node.attr)

    def read(self, node: ast.AST, row: Row, column: Column) -> Value:
        """Read a column of a row."""
        self.access(row, AccessMode.READ)
        code = self.layout.tables[row.table]
        array = code.column(column.name)
        value = self.out.keep(widen(column, f"{array}[{row.slot}]"))
        null = self.out.keep(f"{code.null(column.name)}[{row.slot}]") if column.nullable else None
        origins = dict(zip(code.spec.key, row.origins, strict=True))
        return Value(column.kind, value, null, origins.get(column.name))

    def access(self, row: Row, mode: AccessMode) -> None:
        """Record that the program accesses a row."""
        access = Access(row.table, row.key, mode, row.origins)
        if access not in self.accesses:
            self.accesses.append(access)

    def key(self, table: TableCode, node: ast.expr) -> tuple[list[Value], tuple[str, ...]]:
        """Compile the key of a row; return the values of its columns, and the texts of their expressions."""
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        if len(parts) != len(table.spec.key):
            raise self.wrong(
                node, f"the key of {table.spec.name} has {len(table.spec.key)} columns", f"{table.spec.key}"
            )
        values = [self.value(part) for part in parts]
        return [
            self.key_column(part, table, column, value)
            for part, column, value in zip(parts, table.spec.key_columns, values, strict=True)
        ], tuple(ast.unparse(part) for part in parts)

    def key_column(self, node: ast.AST, table: TableCode, column: Column, value: Value) -> Value:
        """Check a column of a key."""
        value = self.layout.as_wide(value, column.kind)
        if value.kind is not column.kind:
            owner = f"the key {column.name} of {table.spec.name}"
            raise self.scope.text.misfit(node, owner, column.kind, value.kind)
        return self.check_null(value, f"null key: {table.spec.name}")

    def find(self, table: TableCode, node: ast.expr) -> Row:
        """Look up a row, which may not exist."""
        values, texts = self.key(table, node)
        slot = self.out.keep(table.find([value.code for value in values]))
        origins = self.scopes.find_origins(self.out, node, table.spec, texts, values)
        row = Row(table.spec.name, slot, texts, origins, maybe=True)
        self.access(row, AccessMode.READ)
        return row

    def _subscript(self, node: ast.Subscript) -> Row | Value:
        table = self.table(node.value)
        if table is not None:
            row = self.find(table, node.slice)
            self.out.fail(f"{row.slot} < 0", f"unknown key: {row.table}")
            return Row(row.table, row.slot, row.key, row.origins, maybe=False)
        elements = self.evaluate(node.value)
        if not isinstance(elements, ListOf):
            raise self.wrong(
                node, "only tables and lists of events have elements", "write table[key] or e.list[place]"
            )
        place = self.value(node.slice)
        self.check_list(elements)
        place = self.check_null(place)
        if place.kind is not Kind.INTEGER:
            raise self.wrong(node, "the position of an element must be an integer", "positions count from 0")
        size = self.out.keep(f"{elements.end} - {elements.begin}")
        self.out.fail(f"{place.code} < -{size} or {place.code} >= {size}", "no element")
        at = self.out.keep(f"{place.code} + ({elements.begin} if {place.code} >= 0 else {elements.end})")
        return self.element(elements, at)

    def element(self, elements: ListOf, at: str) -> Value:
        """Return an element of a list."""
        value = self.out.keep(widen(elements.column, f"{elements.values}[{at}]"))
        null = self.out.keep(f"{elements.null}[{at}]")
        return Value(elements.column.kind, value, null, elements.column.name)

    def check_list(self, elements: ListOf) -> ListOf:
        """Write lines that reject the transaction if a list is null."""
        if elements.missing is not None:
            self.out.fail(elements.missing, NULL)
        return elements

    # Operations

    def _binop(self, node: ast.BinOp) -> Value:
        sign = self.sign(node, node.op)
        return self.operate(sign, self.value(node.left), self.value(node.right))

    def operate(self, sign: str, a: Value, b: Value) -> Value:
        """Return the result of an operator."""
        return operations.operate(self.out, sign, self.check_null(a), self.check_null(b))

    def sign(self, node: ast.AST, operator: ast.operator) -> str:
        """Return the sign of an operator."""
        sign = OPERATORS.get(type(operator))
        if sign is None:
            raise self.scope.text.refuse_construct(node, operator)
        return sign

    def _unaryop(self, node: ast.UnaryOp) -> Value | Nothing:
        if isinstance(node.op, ast.Not):
            return Value(Kind.BOOLEAN, f"(not {self.condition(node.operand).code})")
        if isinstance(node.op, ast.USub):
            if isinstance(node.operand, ast.Constant) and isinstance(node.operand.value, int | float):
                return self.literal(node, -node.operand.value)
            return operations.negate(self.out, self.value_not_null(node.operand))
        raise self.scope.text.refuse_construct(node, node.op)

    def _boolop(self, node: ast.BoolOp) -> Value:
        name = self.out.temporary()
        self.out.line(f"{name} = {self.condition(node.values[0]).code}")
        self._evaluate_rest(name, node.values[1:], "if" if isinstance(node.op, ast.And) else "if not")
        return Value(Kind.BOOLEAN, name)

    def _evaluate_rest(self, name: str, nodes: Sequence[ast.expr], head: str) -> None:
        """Evaluate the later operands of an ``and`` or ``or`` only where they decide the result.

        If an operand fails, the code breaks out of the enclosing loop, because the condition itself opens no
        loop.
        """
        if nodes:
            with self.out.block(f"{head} {name}:"):
                self.out.line(f"{name} = {self.condition(nodes[0]).code}")
                self._evaluate_rest(name, nodes[1:], head)

    def _ifexp(self, node: ast.IfExp) -> Value:
        name = self.out.temporary()
        parts: list[Value] = []
        condition = self.condition(node.test)
        for head, part in ((f"if {condition.code}:", node.body), ("else:", node.orelse)):
            with self.out.block(head):
                value = self.value(part)
                self.out.line(f"{name} = {value.code}")
                self.out.line(f"{name}_null = {value.null or False}")
                parts.append(value)
        if parts[0].kind is not parts[1].kind:
            raise self.wrong(
                node, f"the types differ: {parts[0].kind} and {parts[1].kind}", "convert one of them"
            )
        nullable = any(value.null for value in parts)
        return Value(parts[0].kind, name, f"{name}_null" if nullable else None)

    def _compare(self, node: ast.Compare) -> Value:
        if len(node.ops) == 1:
            return self._comparison(node, node.left, node.ops[0], node.comparators[0])
        if not all(type(operator) in COMPARISONS for operator in node.ops):
            raise self.wrong(node, "a chain may have only ==, !=, <, <=, > and >=", "join them with and")
        # Each value is evaluated once, and only as long as the comparisons before it hold.
        name = self.out.temporary()
        left = self.value(node.left)
        self._chain(name, left, list(zip(node.ops, node.comparators, strict=True)))
        return Value(Kind.BOOLEAN, name)

    def _chain(self, name: str, left: Value, links: list[tuple[ast.cmpop, ast.expr]]) -> None:
        sign, right = COMPARISONS[type(links[0][0])], self.value(links[0][1])
        left, right = self.layout.as_comparable(self.check_null(left), self.check_null(right))
        self.out.line(f"{name} = {operations.compare(self.out, sign, left, right).code}")
        if links[1:]:
            with self.out.block(f"if {name}:"):
                self._chain(name, right, links[1:])

    def _comparison(self, node: ast.Compare, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Value:
        if isinstance(operator, ast.In | ast.NotIn):
            table = self.table(right)
            if table is None:
                raise self.wrong(node, "`in` is for tables and sets", "compare several values by == and or")
            slot = self.find(table, left).slot
            return Value(Kind.BOOLEAN, f"({slot} >= 0)" if isinstance(operator, ast.In) else f"({slot} < 0)")
        if isinstance(operator, ast.Is | ast.IsNot):
            if not isinstance(right, ast.Constant) or right.value is not None:
                raise self.wrong(node, "`is` is for None", "compare values with ==")
            return Value(Kind.BOOLEAN, self._is_none(node, left, positive=isinstance(operator, ast.Is)))
        a, b = self.evaluate(left), self.evaluate(right)
        if isinstance(a, Nothing) or isinstance(b, Nothing):
            raise self.wrong(node, "a value is compared with None", "write `is None` or `is not None`")
        if not isinstance(a, Value) or not isinstance(b, Value):
            raise self.wrong(node, "rows are not compared", "compare their columns")
        sign = COMPARISONS[type(operator)]
        a, b = self.layout.as_comparable(a, b)
        if sign in ("==", "!=") and (a.null or b.null):
            return self._equal_or_null(sign, a, b)
        return operations.compare(self.out, sign, self.check_null(a), self.check_null(b))

    def _is_none(self, node: ast.Compare, left: ast.expr, *, positive: bool) -> str:
        value = self.evaluate(left)
        if isinstance(value, Row):
            if not value.maybe:
                raise self.wrong(node, "this row always exists", f"look it up with {value.table}.get(...)")
            return f"({value.slot} < 0)" if positive else f"({value.slot} >= 0)"
        if not isinstance(value, Value):
            raise self.wrong(
                node, "only values and rows of get are compared with None", "write row = table.get(key)"
            )
        if value.null is None:
            return str(not positive)
        return f"({value.null})" if positive else f"(not {value.null})"

    def _equal_or_null(self, sign: str, a: Value, b: Value) -> Value:
        """Compare as Python does: a null equals only a null."""
        values_equal = operations.compare(self.out, "==", a, b).code
        any_null = " or ".join(value.null for value in (a, b) if value.null)
        all_null = f"({a.null} and {b.null})" if a.null and b.null else "False"
        equal = self.out.keep(f"({all_null} if ({any_null}) else {values_equal})")
        return Value(Kind.BOOLEAN, equal if sign == "==" else f"(not {equal})")

    # Calls of functions

    def _call(self, node: ast.Call) -> Value | Row:
        function = node.func
        if isinstance(function, ast.Attribute):
            table = self.table(function.value)
            if table is not None and function.attr == "get":
                if len(node.args) != 1 or node.keywords:
                    raise self.wrong(node, "get takes a key", "write table.get(key), table.get((a, b))")
                return self.find(table, node.args[0])
            if table is not None and function.attr == "insert":
                return self.insert(node, table)
        name = ast.unparse(function)
        if name.partition(".")[0] in _CLOCKS:
            raise self.wrong(node, "a procedure has no clock and no randomness", "put it into the event")
        if node.keywords:
            raise self.wrong(node, f"{name} takes no keywords here", "pass the values by position")
        if name in ("int", "float", "abs") and len(node.args) == 1:
            value = self.value_not_null(node.args[0])
            if name == "abs":
                return self._abs(node, value)
            return (operations.as_integer if name == "int" else operations.as_float)(self.out, value)
        if name in ("min", "max") and len(node.args) > 1:
            first, *rest = [self.check_null(value) for value in [self.value(part) for part in node.args]]
            for second in rest:
                first = operations.pick(self.out, name, first, second)
            return first
        if name == "len" and len(node.args) == 1:
            elements = self.evaluate(node.args[0])
            if isinstance(elements, ListOf):
                self.check_list(elements)
                return Value(Kind.INTEGER, f"({elements.end} - {elements.begin})")
        raise self.scope.text.refuse_call(node)

    def _abs(self, node: ast.AST, value: Value) -> Value:
        if not value.kind.is_number:
            raise operations.no_number("abs", value.kind)
        if value.kind is not Kind.FLOAT:
            self.out.fail(f"{value.code} == INT64_MIN", operations.OVERFLOW)
        return Value(value.kind, f"abs({value.code})")

    @abstractmethod
    def insert(self, node: ast.Call, table: TableCode) -> Row:
        """Compile an insert."""
