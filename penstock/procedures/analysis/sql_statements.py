"""Rewrite the SQL statements in a procedure as Python code that accesses the same rows.

=================================================  ===================================================
``SELECT a + 1 FROM t WHERE key = ?``              ``t[key].a + 1``
``SELECT * FROM t WHERE key = ?``                  ``t.get(key)``
``SELECT count(*) FROM t WHERE a = ?``             ``len(t.by("a")[x])``
``SELECT * FROM t WHERE a = ? AND b >= ? ...``     ``t.by("a", "b")[x, low:high]``, for a loop
``... ORDER BY a DESC, b DESC``                    ``reversed(...)``
``... LIMIT n``                                    ``.first(n)``, or ``.last(n)`` for ``DESC``
``UPDATE t SET a = a + ? WHERE key = ?``           ``row = t[key]; row.a = row.a + x``
``INSERT INTO t (a, b) VALUES (?, ?)``             ``t.insert(a=x, b=y)``
``DELETE FROM t WHERE key = ?``                    ``del t[key]``
=================================================  ===================================================

So a statement is compiled, explained and undone like this Python code, and its values behave as in Python.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.errors import InvalidUsageError
from penstock.procedures import language
from penstock.procedures.compiler.reading import ProcedureText
from penstock.procedures.schema import TableSpec

__all__ = ["rewrite_sql"]

Node = TypeVar("Node", bound=ast.AST)

_SUBSET = "docs/concepts/transactions.md lists the statements that a procedure may have"
_SIGNS: dict[Any, Any] = {exp.Add: ast.Add, exp.Sub: ast.Sub, exp.Mul: ast.Mult}
_BOUNDS = (exp.GTE, exp.LT)
_MARK = "placeholder_"


def rewrite_sql(text: ProcedureText, tables: Mapping[str, TableSpec]) -> ProcedureText:
    """Return a procedure's text, with its SQL statements replaced by Python.

    Parameters
    ----------
    text : ProcedureText
        The text; it does not change.
    tables : mapping of str to TableSpec
        The tables of the database.

    Raises
    ------
    InvalidUsageError
        If a statement cannot be parsed, or no access to one table is equivalent to it.
    """
    tree = _Rewriter(text, tables).visit(copy.deepcopy(text.tree))
    return replace(text, tree=ast.fix_missing_locations(tree))


class _Rewriter(ast.NodeTransformer):
    """Replaces calls of `penstock.procedures.language.execute`."""

    def __init__(self, text: ProcedureText, tables: Mapping[str, TableSpec]) -> None:
        self._text, self._tables = text, tables
        used = {node.id for node in ast.walk(text.tree) if isinstance(node, ast.Name)}
        self._free = (name for number in itertools.count(1) if (name := f"sql_row_{number}") not in used)

    def visit_Expr(self, node: ast.Expr) -> Any:
        """Replace a statement that writes."""
        if not self._is_call(node.value):
            return self.generic_visit(node)
        call: Any = self.generic_visit(node.value)
        made = _Statement(self._text, self._tables, call).write(lambda: next(self._free))
        return [_at(one, node) for one in made]

    def visit_Call(self, node: ast.Call) -> Any:
        """Replace an expression that reads."""
        self.generic_visit(node)
        if not self._is_call(node):
            return node
        return _at(_Statement(self._text, self._tables, node).read(), node)

    def _is_call(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and self._text.is_word(node.func, language.execute)


class _Statement:
    """One statement, and the values of its placeholders."""

    def __init__(self, text: ProcedureText, tables: Mapping[str, TableSpec], call: Any) -> None:
        self._text, self._call = text, call
        self._values: list[ast.expr] = call.args[1:]
        first = call.args[0] if call.args else None
        if not isinstance(first, ast.Constant) or not isinstance(first.value, str) or call.keywords:
            raise self._wrong(
                "execute takes a literal text and a value for each ?", 'write execute("... WHERE id = ?", x)'
            )
        try:
            statement, count = _number_placeholders(first.value)
            trees = [tree for tree in sqlglot.parse(statement, dialect="spark") if tree is not None]
        except SqlglotError as error:
            reason = str(error).partition("\n")[0].removesuffix(".")
            raise text.wrong(
                call, "a statement of SQL cannot be read", f"SQL's parser says: {reason}"
            ) from None
        if len(trees) != 1:
            raise self._wrong("execute takes one statement", "call execute once for each")
        if count != len(self._values):
            fact = f"placeholders and values differ in number: {count}, {len(self._values)}"
            raise self._wrong(fact, "pass a value for each ?")
        self._tree = trees[0]
        found = list(self._tree.find_all(exp.Table))
        name = found[0].name if len(found) == 1 and not found[0].db and not found[0].alias else ""
        if name not in text.tables or name not in tables:
            taken = ", ".join(text.tables)
            hint = f"it takes {taken or 'none'}; a statement is about one of them, without alias"
            raise self._wrong("a statement of SQL names no table that the procedure takes", hint)
        self._table = tables[name]

    def write(self, new_name: Callable[[], str]) -> list[ast.stmt]:
        """Return the Python statements for a statement that writes."""
        tree = self._tree
        if isinstance(tree, exp.Insert):
            return [ast.Expr(self._insert(tree))]
        if isinstance(tree, exp.Delete):
            self._check_parts(tree, "this", "where")
            return [ast.Delete([self._row(tree, ast.Del())])]
        if isinstance(tree, exp.Update):
            return self._update(tree, new_name)
        raise self._wrong("nothing uses the rows that a statement reads", "write x = execute(...)")

    def read(self) -> ast.expr:
        """Return the Python expression for a statement that reads."""
        tree = self._tree
        if not isinstance(tree, exp.Select):
            raise self._wrong("a statement that writes has no value", "write it as a statement of its own")
        self._check_parts(tree, "expressions", "from", "from_", "where", "order", "limit")
        if len(tree.expressions) != 1:
            raise self._wrong(
                "SELECT has several expressions", 'write row = execute("SELECT * ..."), then row.column'
            )
        (wanted,) = tree.expressions
        ordered = bool(tree.args.get("order") or tree.args.get("limit"))
        if not ordered and self._is_of_key(tree):
            if isinstance(wanted, exp.Star):
                return ast.Call(ast.Attribute(self._name(), "get"), [self._key(tree)], [])
            columns = [one.name for one in wanted.find_all(exp.Column)]
            if len(columns) != 1:
                raise self._wrong(
                    "SELECT does not read exactly one column",
                    'write row = execute("SELECT * ..."), then row.column',
                )
            return self._value(wanted, self._row(tree))
        if isinstance(wanted, exp.Count) and isinstance(wanted.this, exp.Star) and not ordered:
            return ast.Call(ast.Name("len"), [self._selection(tree)[0]], [])
        if isinstance(wanted, exp.Star):
            return self._rows(tree)
        raise self._wrong(
            "a SELECT of several rows may read only * or count(*)",
            "write SELECT *, and take columns of each row",
        )

    def _rows(self, tree: exp.Select) -> ast.expr:
        selection, index = self._selection(tree)
        order, limit = tree.args.get("order"), tree.args.get("limit")
        descends = False
        if order is not None:
            columns = [one.this.name for one in order.expressions]
            directions = {bool(one.args.get("desc")) for one in order.expressions}
            if tuple(columns) != index[len(index) - len(columns) :] or len(directions) != 1:
                text = ", ".join(index)
                raise self._wrong(
                    "ORDER BY differs from the order of the index",
                    f"the index is {text}; ORDER BY its last columns",
                )
            descends = directions.pop()
        if limit is None:
            return ast.Call(ast.Name("reversed"), [selection], []) if descends else selection
        count = self._value(limit.expression)
        return ast.Call(ast.Attribute(selection, "last" if descends else "first"), [count], [])

    def _insert(self, tree: exp.Insert) -> ast.expr:
        self._check_parts(tree, "this", "expression")
        schema, values = tree.this, tree.expression
        rows = values.expressions if isinstance(values, exp.Values) else []
        if not isinstance(schema, exp.Schema) or len(rows) != 1:
            raise self._wrong(
                "INSERT names its columns and has one row", "write INSERT INTO t (a, b) VALUES (?, ?)"
            )
        names = [one.name for one in schema.expressions]
        parts = rows[0].expressions
        if len(names) != len(parts):
            raise self._wrong(
                "INSERT has different numbers of columns and values", "give each column a value"
            )
        for name in names:
            self._check_column(name)
        keywords = [ast.keyword(name, self._value(part)) for name, part in zip(names, parts, strict=True)]
        return ast.Call(ast.Attribute(self._name(), "insert"), [], keywords)

    def _update(self, tree: exp.Update, new_name: Callable[[], str]) -> list[ast.stmt]:
        self._check_parts(tree, "this", "expressions", "where")
        row = ast.Name(new_name())
        made: list[ast.stmt] = [ast.Assign([ast.Name(row.id, ast.Store())], self._row(tree))]
        writes: list[ast.stmt] = []
        for one in tree.expressions:
            self._check_column(one.this.name)
            value = self._value(one.expression, row)
            if len(tree.expressions) > 1 and one.expression.find(exp.Column):
                # All expressions use the values from before the statement.
                name = new_name()
                made.append(ast.Assign([ast.Name(name, ast.Store())], value))
                value = ast.Name(name)
            writes.append(ast.Assign([ast.Attribute(row, one.this.name, ast.Store())], value))
        return [*made, *writes]

    def _name(self) -> ast.expr:
        return ast.Name(self._table.name)

    def _conditions(self, tree: exp.Expression) -> dict[str, dict[type, exp.Expression]]:
        """Return the conditions of WHERE: for each column, the value of each comparison."""
        where = tree.args.get("where")
        found: dict[str, dict[type, exp.Expression]] = {}
        parts: list[Any] = []
        if where is not None:
            parts = list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this]
        for part in parts:
            column = part.this if isinstance(part, exp.EQ | exp.GTE | exp.LT) else None
            if not isinstance(column, exp.Column) or type(part) in found.setdefault(column.name, {}):
                raise self._wrong(
                    "WHERE may have only column = value, column >= value, column < value and AND",
                    _SUBSET,
                )
            self._check_column(column.name)
            found[column.name][type(part)] = part.expression
        return found

    def _is_of_key(self, tree: exp.Expression) -> bool:
        conditions = self._conditions(tree)
        return set(conditions) == set(self._table.key) and all(
            set(signs) == {exp.EQ} for signs in conditions.values()
        )

    def _key(self, tree: exp.Expression) -> ast.expr:
        if not self._is_of_key(tree):
            key = ", ".join(self._table.key)
            raise self._wrong(
                "WHERE does not name a single row", f"compare all columns of the key by = ?: {key}"
            )
        conditions = self._conditions(tree)
        parts = [self._value(conditions[name][exp.EQ]) for name in self._table.key]
        return parts[0] if len(parts) == 1 else ast.Tuple(parts)

    def _row(self, tree: exp.Expression, context: ast.expr_context | None = None) -> ast.expr:
        return ast.Subscript(self._name(), self._key(tree), context or ast.Load())

    def _selection(self, tree: exp.Select) -> tuple[ast.expr, tuple[str, ...]]:
        """Return the rows of an index that WHERE selects, and the columns of the index."""
        conditions = self._conditions(tree)
        equal = {name for name, signs in conditions.items() if exp.EQ in signs}
        ranged = set(conditions) - equal
        order = tree.args.get("order")
        ordered = [one.this.name for one in order.expressions] if order is not None else []
        indexes = [index.columns for index in self._table.indexes]
        for index in indexes:
            width = len(equal)
            bounded = set(index[width : width + 1]) if ranged else set()
            rest = list(index[width:])
            if set(index[:width]) == equal and ranged <= bounded and ordered == rest[: len(ordered)]:
                break
        else:
            known = "; ".join(map(", ".join, indexes)) or "none"
            raise self._wrong(
                "no index selects these rows in this order", f"indexes of {self._table.name}: {known}"
            )
        if any(len(signs) > 1 and exp.EQ in signs for signs in conditions.values()):
            raise self._wrong("WHERE compares a column by = and by another sign", "keep one of them")
        selected = ast.Call(ast.Attribute(self._name(), "by"), [ast.Constant(name) for name in index], [])
        if not conditions:
            return selected, index
        parts: list[ast.expr] = [self._value(conditions[name][exp.EQ]) for name in index[:width]]
        for name in ranged:
            low, high = (conditions[name].get(sign) for sign in _BOUNDS)
            parts.append(ast.Slice(*(None if one is None else self._value(one) for one in (low, high))))
        place = parts[0] if len(parts) == 1 else ast.Tuple(parts)
        return ast.Subscript(selected, place), index

    def _value(self, node: exp.Expression, row: ast.expr | None = None) -> ast.expr:
        """Compile an expression; its columns are read from `row`."""
        if isinstance(node, exp.Paren):
            return self._value(node.this, row)
        if isinstance(node, exp.Placeholder):
            return self._values[self._number(node.name)]
        if isinstance(node, exp.Null):
            return ast.Constant(None)
        if isinstance(node, exp.Boolean):
            return ast.Constant(bool(node.this))
        if isinstance(node, exp.Literal):
            number = node.this
            return ast.Constant(number if node.is_string else float(number) if "." in number else int(number))
        if isinstance(node, exp.Neg):
            return ast.UnaryOp(ast.USub(), self._value(node.this, row))
        if isinstance(node, exp.Column) and row is not None:
            self._check_column(node.name)
            return ast.Attribute(copy.deepcopy(row), node.name)
        if type(node) in _SIGNS:
            left, right = (self._value(one, row) for one in (node.this, node.expression))
            return ast.BinOp(left, _SIGNS[type(node)](), right)
        raise self._wrong("a value may have only columns, ?, literals, + - *", _SUBSET)

    def _number(self, name: str) -> int:
        if not name.startswith(_MARK):
            raise self._wrong(
                "a placeholder may not have a name", "write ?; the values follow the text in their order"
            )
        return int(name.removeprefix(_MARK))

    def _check_column(self, name: str) -> None:
        names = [column.name for column in self._table.columns]
        if name not in names:
            raise self._wrong(f"{self._table.name} has no column {name}", f"it has {', '.join(names)}")

    def _check_parts(self, tree: exp.Expression, *known: str) -> None:
        others = [name for name, value in tree.args.items() if value and name not in known]
        if others:
            raise self._wrong(
                f"{type(tree).__name__.upper()} has a part that is not supported: {', '.join(others)}",
                _SUBSET,
            )

    def _wrong(self, fact: str, hint: str) -> InvalidUsageError:
        return self._text.wrong(self._call, fact, hint)


def _number_placeholders(statement: str) -> tuple[str, int]:
    """Return a statement with a name in place of each ?, and the number of these names."""
    tokens = sqlglot.tokenize(statement, dialect="spark")
    places = [token.start for token in tokens if token.token_type.name == "PLACEHOLDER"]
    for number, place in reversed(list(enumerate(places))):
        statement = f"{statement[:place]}:{_MARK}{number}{statement[place + 1 :]}"
    return statement, len(places)


def _at(node: Node, place: ast.AST) -> Node:
    """Copy the old node's position to new nodes, for errors; add fields that Python before 3.13 omits."""
    for one in ast.walk(node):
        if "ctx" in one._fields and not hasattr(one, "ctx"):
            one.ctx = ast.Load()  # type: ignore[attr-defined]
        if not hasattr(one, "lineno"):
            ast.copy_location(one, place)
    return node
