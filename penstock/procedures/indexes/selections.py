"""Compile a procedure's selections: ``table.by(column)``, ranges, first and last rows, and loops."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.procedures.compiler.layout import TableCode
from penstock.procedures.compiler.operations import as_float
from penstock.procedures.compiler.scope import UnknownKindError
from penstock.procedures.compiler.values import ROUTED, AccessMode, Found, Origin, Row, Value
from penstock.procedures.compiler.writes import Writes
from penstock.procedures.indexes.code import place_of, tree_arguments, word
from penstock.procedures.schema import Column, IndexSpec, Kind, TableSpec

__all__ = ["Selections", "loop_parts", "selection_parts"]

_METHODS = ("first", "last")


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of an index in a range, in generated code.

    Attributes
    ----------
    table : TableCode
        The table that has the index.
    index : IndexSpec
        The index that finds the rows.
    equal : tuple of str
        The code of the words that the first columns must equal.
    low, high : str or None
        The code of the bounds of the next column; `high` is excluded. None means no bound.
    row : Row
        A row of the range; its slot is set later.
    """

    table: TableCode
    index: IndexSpec
    equal: tuple[str, ...]
    low: str | None
    high: str | None
    row: Row

    @property
    def _arguments(self) -> list[str]:
        return tree_arguments(self.table, place_of(self.index, self.table)).split(", ")

    def _bound(self, word: str | None) -> str:
        words = [*self.equal, *([word] if word is not None else [])]
        return f"({', '.join(words)},)"

    def _seek(self, bound: str, *, last: bool, inclusive: bool) -> str:
        tree = tree_arguments(self.table, place_of(self.index, self.table), bound, str(last), str(inclusive))
        return f"seek({tree})"

    def begin(self, *, descending: bool) -> str:
        """Return the code for the slot of the first row; this row may be after the end of the range."""
        word = self.high if descending else self.low
        if word is None and not self.equal:
            nodes, facts, root, *_ = self._arguments
            return f"tree_end({nodes}, {facts}, {root}, {descending})"
        # A range includes its lower bound but not its upper bound. Rows with equal words are all included.
        inclusive = not descending or word is None
        return self._seek(self._bound(word), last=descending, inclusive=inclusive)

    def step(self, slot: str, *, descending: bool) -> str:
        """Return the code for the slot of the row after the row at `slot`."""
        bound = f"{self._arguments[0]}[{slot}, :{len(self.index.words)}]"
        return self._seek(bound, last=descending, inclusive=False)

    def end_condition(self, slot: str, *, descending: bool) -> str | None:
        """Return the condition that a row is after the end of the range; None if the range has no end."""
        nodes, _, _, *arguments = self._arguments
        bound, sign = (self.low, "<") if descending else (self.high, ">=")
        if bound is None:
            if not self.equal:
                return None
            sign = "!="
        return f"compare_bound({nodes}, {slot}, {self._bound(bound)}, {', '.join(arguments)}) {sign} 0"


def selection_parts(node: ast.expr) -> tuple[ast.expr, ast.Call, ast.expr | None] | None:
    """Split a selection into the table, the call of ``by`` and the range; None for other expressions."""
    at = node.value if isinstance(node, ast.Subscript) else node
    if not isinstance(at, ast.Call) or not isinstance(at.func, ast.Attribute) or at.func.attr != "by":
        return None
    return at.func.value, at, node.slice if isinstance(node, ast.Subscript) else None


def loop_parts(node: ast.expr) -> tuple[ast.expr, bool, ast.expr | None]:
    """Split the iterable of a loop into the selection, whether it is reversed, and the number of rows."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        function = node.func
        if isinstance(function, ast.Name) and function.id == "reversed":
            return node.args[0], True, None
        if isinstance(function, ast.Attribute) and function.attr in _METHODS:
            return function.value, function.attr == "last", node.args[0]
    return node, False, None


class Selections(Writes):
    """Compiles selections; see `Expressions`."""

    @abstractmethod
    def body(self, nodes: list[ast.stmt]) -> None:
        """Compile statements."""

    unknown: list[str]

    @abstractmethod
    def store_row(self, target: ast.Name, row: Row) -> None:
        """Assign a row to a variable."""

    def _find_index(self, node: ast.expr) -> tuple[TableCode, IndexSpec] | None:
        """Return the table and index of a selection; None for other expressions."""
        parts = selection_parts(node)
        table = None if parts is None else self.table(parts[0])
        if parts is None or table is None:
            return None
        names = [arg.value if isinstance(arg, ast.Constant) else None for arg in parts[1].args]
        indexes = {index.columns: index for index in table.spec.indexes}
        index = indexes.get(tuple(names))  # type: ignore[arg-type]
        if index is None or parts[1].keywords:
            choices = ", ".join(f"by({', '.join(map(repr, index))})" for index in indexes)
            raise self.wrong(
                node,
                f"the table {table.spec.name} has no such index",
                f"it has {choices}"
                if choices
                else f"declare it: table({table.spec.name!r}, ..., indexes=[...])",
            )
        return table, index

    def selection(self, node: ast.expr) -> Selection | None:
        """Compile a selection; return None for other expressions."""
        match = self._find_index(node)
        if match is None:
            return None
        table, index = match
        parts = selection_parts(node)
        key_parts: list[ast.expr] = []
        if parts is not None and parts[2] is not None:
            key_parts = parts[2].elts if isinstance(parts[2], ast.Tuple) else [parts[2]]
        if len(key_parts) > len(index.columns):
            raise self.wrong(node, f"the index has {len(index.columns)} columns", f"{index.columns}")
        low: Value | None = None
        high: Value | None = None
        values: list[Value] = []
        for place, part in enumerate(key_parts):
            if not isinstance(part, ast.Slice):
                values.append(self.value(part))
                continue
            if part.step is not None or place < len(key_parts) - 1:
                raise self.wrong(
                    node, "a range is of the last column, without a step", 'write t.by("a", "b")[x, low:high]'
                )
            low = None if part.lower is None else self.value(part.lower)
            high = None if part.upper is None else self.value(part.upper)
        equal = tuple(
            self._word(node, column, value) for column, value in zip(index.words, values, strict=False)
        )
        column = index.words[min(len(values), len(index.words) - 1)]
        begin = None if low is None else self._word(node, column, low)
        end = None if high is None else self._word(node, column, high)
        key_values = dict(zip(index.columns, values, strict=False))
        text = ast.unparse(node)
        texts = (text,) * len(table.spec.key)
        keys = [key_values.get(name) for name in table.spec.key]
        origins = self.scopes.find_origins(self.out, node, table.spec, texts, keys)
        if len(values) == len(index.columns):
            origins = _found(table.spec, index, values, origins)
        row = Row(table.spec.name, "-1", texts, origins, maybe=True)
        self.access(row, AccessMode.READ)
        return Selection(table, index, equal, begin, end, row)

    def _word(self, node: ast.AST, column: Column, value: Value) -> str:
        value = self.check_null(value)
        if column.kind is Kind.FLOAT and value.kind is Kind.INTEGER:
            value = as_float(self.out, value)
        value = self.layout.as_wide(value, column.kind)
        if value.kind is not column.kind:
            raise self.scope.text.misfit(node, f"the column {column.name}", column.kind, value.kind)
        return self.out.keep(word(column, value.code))

    # Rows and counts

    def _call(self, node: ast.Call) -> Value | Row:
        method = node.func
        if isinstance(method, ast.Attribute) and method.attr in _METHODS:
            selection = self.selection(method.value)
            if selection is not None:
                if node.args or node.keywords:
                    raise self.wrong(node, "several rows are for a loop", f"for row in {ast.unparse(node)}:")
                return self._end(selection, descending=method.attr == "last")
        if isinstance(method, ast.Name) and method.id == "len" and len(node.args) == 1:
            selection = self.selection(node.args[0])
            if selection is not None:
                return self._count(selection)
        if self._find_index(node) is not None:
            raise self._no_selection(node)
        return super()._call(node)

    def _subscript(self, node: ast.Subscript) -> Row | Value:
        if self._find_index(node) is not None:
            raise self._no_selection(node)
        return super()._subscript(node)

    def _no_selection(self, node: ast.expr) -> Exception:
        text = ast.unparse(node)
        return self.wrong(
            node,
            "a selection of several rows is not a value",
            f"for row in {text}:, {text}.first(), {text}.last(), len({text})",
        )

    def _end(self, selection: Selection, *, descending: bool) -> Row:
        """Compile the first or the last row."""
        slot = self.out.keep(selection.begin(descending=descending))
        beyond = selection.end_condition(slot, descending=descending)
        if beyond is not None:
            with self.out.block(f"if {slot} >= 0 and {beyond}:"):
                self.out.line(f"{slot} = np.int64(-1)")
        row = selection.row
        return Row(row.table, slot, row.key, row.origins, maybe=True)

    def _count(self, selection: Selection) -> Value:
        count, slot = self.out.temporary(), self.out.temporary()
        self.out.line(f"{count} = 0")
        self.out.line(f"{slot} = np.int64(-1)")
        with self.out.block("while True:"):
            self._advance(selection, slot, descending=False)
            self.out.line(f"{count} += 1")
        return Value(Kind.INTEGER, count)

    def _advance(self, selection: Selection, slot: str, *, descending: bool) -> None:
        """Write the step to the next row; it ends the loop after the last row."""
        begin, step = (
            selection.begin(descending=descending),
            selection.step(slot, descending=descending),
        )
        self.out.line(f"{slot} = {begin} if {slot} < 0 else {step}")
        beyond = selection.end_condition(slot, descending=descending)
        with self.out.block(f"if {slot} < 0" + (f" or {beyond}:" if beyond else ":")):
            self.out.line("break")

    # Loops

    def selection_loop(self, node: ast.For) -> bool:
        """Compile a loop over a selection; return False for other loops."""
        call, descending, count = loop_parts(node.iter)
        match = self._find_index(call)
        if match is None:
            return False
        table, index = match
        if node.orelse or not isinstance(node.target, ast.Name):
            raise self.wrong(node, "a loop has one variable and no else", 'write for row in t.by("a")[x]')
        place = (self.scope.number, node.lineno, node.col_offset)
        for name in self.facts.deletes.get(place, ()):
            self.scopes.forget_rows(name)
        selection = self._loop_selection(call)
        limit = None if selection is None or count is None else self._limit(count)
        slot, count_name = self.out.temporary(), self.out.temporary()
        self.out.line(f"{slot} = np.int64(-1)")
        self.out.line(f"{count_name} = 0")
        before = self.scopes.save()
        self.open_loops.append(place)
        self.open_selections.append((table.spec.name, index))
        with self.out.block("while True:", loop=True):
            if selection is None:
                self.out.line("break")
                self.store_row(
                    node.target, Row(table.spec.name, "np.int64(-1)", *self._unknown(table), maybe=False)
                )
            else:
                if limit is not None:
                    with self.out.block(f"if {count_name} >= {limit}:"):
                        self.out.line("break")
                    self.out.line(f"{count_name} += 1")
                self._advance(selection, slot, descending=descending)
                row = selection.row
                self.store_row(node.target, Row(row.table, slot, row.key, row.origins, maybe=False))
            self.body(node.body)
        self.open_selections.pop()
        self.open_loops.pop()
        self.scopes.set(before)
        for name in self.facts.deletes.get(place, ()):
            self.scopes.forget_rows(name)
        with self.out.block(f"if {self.scope.return_condition}:"):
            self.out.line("break")
        return True

    def _loop_selection(self, node: ast.expr) -> Selection | None:
        """Compile a selection; None while the kind of a variable in it is unknown."""
        try:
            return self.selection(node)
        except UnknownKindError as error:
            self.unknown.append(str(error))
            return None

    def _unknown(self, table: TableCode) -> tuple[tuple[str, ...], tuple[Origin | None, ...]]:
        width = len(table.spec.key)
        return ("?",) * width, (None,) * width

    def _limit(self, node: ast.expr) -> str:
        value = self.value_not_null(node)
        if value.kind is not Kind.INTEGER:
            raise self.scope.text.misfit(node, "a number of rows", Kind.INTEGER, value.kind)
        return self.out.keep(value.code)


def _found(
    spec: TableSpec, index: IndexSpec, values: Sequence[Value], origins: tuple[Origin | None, ...]
) -> tuple[Origin | None, ...]:
    """Return the origins of the key columns of rows that an index finds by the values of all its columns."""
    found = [value.origin for value in values]
    attributes = [origin for origin in found if isinstance(origin, str) and origin != ROUTED]
    if len(attributes) < len(values):
        return origins
    return tuple(
        Found(spec.name, index.columns, tuple(attributes), name) if origin is None else origin
        for name, origin in zip(spec.key, origins, strict=True)
    )
