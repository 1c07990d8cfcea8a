"""Run procedures in Python over dicts: for ``plain=True``, and as the reference in tests.

Python runs the procedure's own text. Only operations that behave differently from Python are replaced
(`words`): integers have 64 bits, nulls are not values, and errors are rejections.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.procedures import language
from penstock.procedures.compiler.operations import COMPARISONS, NULL, OPERATORS, OVERFLOW
from penstock.procedures.compiler.reading import ProcedureText
from penstock.procedures.compiler.statements import procedure_text
from penstock.procedures.plain.selection import PlainSelection, find_index
from penstock.procedures.plain.words import WORDS, RejectedError, reject, to_scale
from penstock.procedures.schema import Column, Kind, TableSpec, digits_of

__all__ = ["PlainTable", "PlainTables", "fit", "fit_results", "python_rows"]

Key = tuple[Any, ...]
Fetch = Callable[[Key], dict[str, Any] | None]
Scan = Callable[[], Iterable[dict[str, Any]]]

_PYTHON_TYPES: dict[Kind, Any] = {
    Kind.INTEGER: int,
    Kind.FLOAT: float,
    Kind.BOOLEAN: bool,
    Kind.TEXT: str,
    Kind.BINARY: bytes,
    **{kind: Decimal for kind in Kind if kind.scale is not None or kind.wide is not None},
}


class _Row:
    """A row as a procedure sees it."""

    __slots__ = ("_key", "_table", "_values")

    def __init__(self, table: PlainTable, key: Key, values: dict[str, Any]) -> None:
        object.__setattr__(self, "_table", table)
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_values", values)

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return _Row
        # A column may have the name of one of `__slots__`.
        values: dict[str, Any] = _require_row(self)[2]
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        table, key, values = _require_row(self)
        stored_value = fit(table.spec.column(name), value)
        table.journal.append((table, key, dict(values)))
        table.changed.add(key)
        values[name] = stored_value


def _require_row(row: _Row) -> tuple[PlainTable, Key, dict[str, Any]]:
    """Return table, key and values of a row. Refuse a deleted row, as the compiler does."""
    table, key, values = (object.__getattribute__(row, slot) for slot in ("_table", "_key", "_values"))
    if table.rows.get(key) is not values:
        raise InvalidUsageError(
            "a row is used after it was deleted", table=table.spec.name, hint="look it up again"
        )
    return table, key, values


class PlainTable:
    """A table as a dict.

    Parameters
    ----------
    spec : TableSpec
        The declaration of the table.
    journal : list
        A list that all tables share. Before a row changes, its previous content is appended to the list.
    fetch : callable, optional
        Returns the row of a key that is not in the dict; by default there is no such row.
    scan : callable, optional
        Returns all rows; the dict may already have some of them. By default the dict has all rows.
    """

    def __init__(
        self, spec: TableSpec, journal: list[Any], fetch: Fetch | None = None, scan: Scan | None = None
    ) -> None:
        self.spec = spec
        self.rows: dict[Key, dict[str, Any] | None] = {}
        self.changed: set[Key] = set()
        self.journal = journal
        self.on_insert: Callable[[str, dict[str, Any]], None] | None = None
        """Runs the triggers of a table; it takes the name of the table and the inserted row."""
        self._fetch = fetch
        self._scan = scan

    def _key(self, key: Any) -> Key:
        parts = key if isinstance(key, tuple) else (key,)
        if None in parts:
            raise RejectedError(f"null key: {self.spec.name}")
        kinds = [column.kind for column in self.spec.key_columns]
        if [type(part) for part in parts] != [_PYTHON_TYPES[kind] for kind in kinds]:
            raise InvalidUsageError(
                "a key has another kind than its columns",
                table=self.spec.name,
                key=key,
                kinds=list(map(str, kinds)),
                hint="convert it with int(...) or str(...)",
            )
        return parts

    def _find(self, key: Key) -> dict[str, Any] | None:
        if key not in self.rows and self._fetch is not None:
            self.rows[key] = self._fetch(key)
        return self.rows.get(key)

    def get(self, key: Any) -> _Row | None:
        """Return the row of a key, or None if no row has the key."""
        key = self._key(key)
        values = self._find(key)
        return None if values is None else _Row(self, key, values)

    def __getitem__(self, key: Any) -> _Row:
        row = self.get(key)
        if row is None:
            raise RejectedError(f"unknown key: {self.spec.name}")
        return row

    def __contains__(self, key: Any) -> bool:
        return self._find(self._key(key)) is not None

    def by(self, *columns: str) -> PlainSelection:
        """Return the rows in the order of an index."""
        if self._scan is not None:
            for row in self._scan():
                self.rows.setdefault(tuple(row[name] for name in self.spec.key), row)
            self._scan = None
        return PlainSelection(self, find_index(self.spec, columns))

    def insert(self, /, **values: Any) -> _Row:
        """Insert a row."""
        row: dict[str, Any] = {}
        for column in self.spec.columns:
            value = values.pop(column.name, None)
            if value is None and column.name in self.spec.key:
                raise RejectedError(f"null key: {self.spec.name}")
            row[column.name] = fit(column, value)
        if values:
            raise InvalidUsageError(
                "the table has no such column", table=self.spec.name, columns=list(values)
            )
        key = tuple(row[name] for name in self.spec.key)
        if self._find(key) is not None:
            raise RejectedError(f"duplicate key: {self.spec.name}")
        self._change(key, row)
        if self.on_insert is not None:
            self.on_insert(self.spec.name, dict(row))
        return _Row(self, key, row)

    def __delitem__(self, key: Any) -> None:
        key = self._key(key)
        if self._find(key) is None:
            raise RejectedError(f"unknown key: {self.spec.name}")
        self._change(key, None)

    def _change(self, key: Key, values: dict[str, Any] | None) -> None:
        old = self.rows.get(key)
        self.journal.append((self, key, None if old is None else dict(old)))
        self.changed.add(key)
        self.rows[key] = values


class PlainTables:
    """Tables as dicts, and procedures that run over them."""

    def __init__(
        self,
        specs: Iterable[TableSpec],
        fetch: Mapping[str, Fetch] | None = None,
        scan: Mapping[str, Scan] | None = None,
    ) -> None:
        self.journal: list[Any] = []
        self.tables = {
            spec.name: PlainTable(
                spec, self.journal, (fetch or {}).get(spec.name), (scan or {}).get(spec.name)
            )
            for spec in specs
        }
        self._functions: dict[int, Callable[..., Any]] = {}

    def run(
        self, text: ProcedureText, events: pa.RecordBatch, results: tuple[Column, ...]
    ) -> list[tuple[Any, ...]]:
        """Run a transaction for each event; return a tuple of its results and its rejection.

        The last element of the tuple is the reason for the rejection; None if there was no rejection.
        """
        function = self.function(text)
        parameters = [self.parameter(name) for name in text.tables]
        rows: list[tuple[Any, ...]] = []
        for values in python_rows(events):
            del self.journal[:]
            try:
                row = fit_results(function(SimpleNamespace(**values), *parameters), results)
            except RejectedError as rejection:
                self.undo(0)
                rows.append((*(None for _ in results), rejection.args[0]))
            else:
                rows.append((*row, None))
        return rows

    def parameter(self, name: str) -> Any:
        """Return the table that a parameter names."""
        return self.tables[name]

    def undo(self, begin: int) -> None:
        """Undo the changes in the journal from position `begin` on."""
        for table, key, old in reversed(self.journal[begin:]):
            table.rows[key] = old
        del self.journal[begin:]

    def function(self, text: ProcedureText) -> Callable[..., Any]:
        """Return the function that a text defines, and compile the procedures that it calls."""
        if id(text) not in self._functions:
            names = dict(text.names) | WORDS
            for name, value in text.names.items():
                if value is language.abort:
                    names[name] = reject
                elif value is language.event:
                    names[name] = SimpleNamespace
                elif (callee := procedure_text(value)) is not None:
                    names[name] = self.function(callee)
            tree = _Rewriter(text).visit(ast.parse(text.canonical))
            code = compile(ast.fix_missing_locations(tree), text.file, "exec")
            exec(code, names)  # noqa: S102  # the user's own text, which the user runs
            self._functions[id(text)] = names[text.name]
        return self._functions[id(text)]


def python_rows(events: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return events as dicts: times are integers, nulls are None."""
    columns = []
    for values in events.columns:
        storage_types = {pa.types.is_timestamp: pa.int64(), pa.types.is_date: pa.int32()}
        number = next((storage_types[is_kind] for is_kind in storage_types if is_kind(values.type)), None)
        columns.append((values if number is None else values.view(number)).to_pylist())
    names = events.schema.names
    if not columns:
        return [{} for _ in range(events.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def fit(column: Column, value: Any) -> Any:
    """Convert a value to a column's type."""
    if value is None:
        if not column.nullable:
            raise RejectedError(NULL)
        return None
    if column.kind is Kind.FLOAT and type(value) in (int, float):
        value = float(value)
        if column.dtype.itemsize < 8:
            with np.errstate(over="ignore"):
                value = float(np.float32(value))
        return value
    if pa.types.is_decimal(column.type) and type(value) in (int, Decimal):
        value = to_scale(value, column.type.scale)
        if not -(10**column.type.precision) < digits_of(value)[0] < 10**column.type.precision:
            raise RejectedError(OVERFLOW)
    if type(value) is not _PYTHON_TYPES[column.kind]:
        raise InvalidUsageError(
            "a value has another kind than its column", column=column.name, kind=str(column.kind)
        )
    limit = (1 << 8 * column.dtype.itemsize - 1) - 1
    if column.kind is Kind.INTEGER and not -limit - 1 <= value <= limit:
        raise RejectedError(OVERFLOW)
    return value


def fit_results(value: Any, results: tuple[Column, ...]) -> list[Any]:
    """Convert the value that a procedure returns to the types of its results."""
    if value is None and len(results) != 1:
        return [None for _ in results]
    parts = value if isinstance(value, tuple) else (value,)
    if len(parts) != len(results):
        raise InvalidUsageError("a procedure returns as many values as it declares", declared=len(results))
    return [
        None if part is None else fit(attribute, part) for attribute, part in zip(results, parts, strict=True)
    ]


class _Rewriter(ast.NodeTransformer):
    """Replaces operations that behave differently from Python by functions of `words`."""

    def __init__(self, text: ProcedureText) -> None:
        self._own = {text.event, *text.tables}

    def _call(self, name: str, *parts: ast.expr) -> ast.Call:
        return ast.Call(ast.Name(name, ast.Load()), list(parts), [])

    def _own_name(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._own

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        sign = OPERATORS.get(type(node.op))
        return node if sign is None else self._call("_operate", ast.Constant(sign), node.left, node.right)

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.AST]:
        """Evaluate the target once, like Python."""
        target, statements = node.target, []
        if isinstance(target, ast.Attribute | ast.Subscript) and not self._own_name(target.value):
            statements.append(ast.Assign([ast.Name("_target", ast.Store())], target.value))
            target.value = ast.Name("_target", ast.Load())
        if isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Slice):
            statements.append(ast.Assign([ast.Name("_place", ast.Store())], target.slice))
            target.slice = ast.Name("_place", ast.Load())
        read = ast.parse(ast.unparse(target), mode="eval").body
        statements.append(ast.Assign([target], ast.BinOp(read, node.op, node.value)))
        return [self.visit(statement) for statement in statements]

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.USub):
            return self._call("_negate", node.operand)
        if isinstance(node.op, ast.Not):
            node.operand = self._call("_truth", node.operand)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        node.values = [self._call("_truth", value) for value in node.values]
        return node

    def _visit_test(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        node.test = self._call("_truth", node.test)
        return node

    visit_If = visit_IfExp = visit_While = _visit_test  # noqa: N815

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if not all(type(operator) in COMPARISONS for operator in node.ops):
            return node
        empty = ast.arguments([], [], None, [], [], None, [])
        parts: list[ast.expr] = [node.left]
        for sign, right in zip(node.ops, node.comparators, strict=True):
            parts += [ast.Constant(COMPARISONS[type(sign)]), ast.Lambda(empty, right)]
        return self._call("_compare", *parts)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if not self._own_name(node.value):
            node.value = self._call("_check_exists", self.visit(node.value))
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        is_own_name = self._own_name(node.value)
        self.generic_visit(node)
        if _is_index(node.value):
            for part in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
                if isinstance(part, ast.Slice):
                    part.lower = part.lower and self._call("_bound", part.lower)
                    part.upper = part.upper and self._call("_bound", part.upper)
            return node
        if is_own_name or not isinstance(node.ctx, ast.Load):
            return node
        return self._call("_element", node.value, node.slice)

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = self._call("_check_iterable", node.iter)
        return node


def _is_index(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "by"
