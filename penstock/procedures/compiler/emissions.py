"""Compile the rows that a procedure emits into streams and stages in windows, and the calls of triggers."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Mapping

from penstock.procedures.compiler.layout import Layout, StreamCode, TableCode
from penstock.procedures.compiler.reading import ProcedureText
from penstock.procedures.compiler.scope import Facts
from penstock.procedures.compiler.values import (
    AccessMode,
    ListOf,
    Nothing,
    Origin,
    Row,
    Value,
    widen,
    zero,
)
from penstock.procedures.compiler.writes import Writes
from penstock.procedures.schema import Kind, RelationSpec
from penstock.procedures.workflows.windows import WindowSpec

__all__ = ["Emissions"]


class Emissions(Writes):
    """Compiles emissions, inserts into windows, and triggers (S-Store §3.2); see `Expressions`."""

    def __init__(self, layout: Layout, facts: Facts) -> None:
        super().__init__(layout, facts)
        self.open_windows: list[str] = []
        """The windows of the enclosing loops."""
        self.origins: dict[str, dict[str, Origin | None]] = {}
        """For each stream, the origins of its columns; None for a column without an origin."""

    @abstractmethod
    def inline(
        self,
        node: ast.AST,
        text: ProcedureText,
        event: Mapping[str, Value | ListOf],
        place: tuple[object, ...],
    ) -> Value | Nothing | None:
        """Compile a called procedure or a trigger at this place; return its value."""

    def stream(self, node: ast.expr) -> StreamCode | None:
        """Return the stream that an expression names; None for other expressions."""
        if isinstance(node, ast.Name) and node.id in self.scope.text.tables:
            return self.layout.streams.get(node.id)
        return None

    def window(self, node: ast.expr) -> WindowSpec | None:
        """Return the window that an expression names; None for other expressions."""
        if isinstance(node, ast.Name) and node.id in self.scope.text.tables:
            return self.layout.dependencies.windows.get(node.id)
        return None

    def _call(self, node: ast.Call) -> Value | Row:
        function = node.func
        if isinstance(function, ast.Attribute):
            if (stream := self.stream(function.value)) is not None:
                hint = f"{stream.spec.name}.emit(column=value)"
                raise self.wrong(node, "a stream supports only emit, as a statement of its own", hint)
            if (window := self.window(function.value)) is not None:
                if function.attr != "insert":
                    hint = f"for row in {window.name}, len({window.name}), {window.name}.insert(column=value)"
                    raise self.wrong(node, f"a window has no {function.attr}", hint)
                return self._stage(node, window)
        elif isinstance(function, ast.Name) and function.id == "len" and len(node.args) == 1:
            window = self.window(node.args[0])
            if window is not None:
                first, active = self._active(window)
                return Value(Kind.INTEGER, f"({active} - {first})")
        return super()._call(node)

    # Streams

    def emit(self, node: ast.Call, stream: StreamCode) -> None:
        """Compile an emission."""
        spec = stream.spec
        values = self._columns(node, spec)
        cause = len(self.layout.tables) + stream.number
        self.out.need_room(f"{stream.used} == {stream.arrays[0]}.shape[0]", cause)
        origins = self.origins.setdefault(spec.name, {name: value.origin for name, value in values.items()})
        for column in spec.columns:
            value = values[column.name]
            self.out.line(f"{stream.column(column.name)}[{stream.used}] = {value.code}")
            if column.nullable:
                self.out.line(f"{stream.null(column.name)}[{stream.used}] = {value.null or 'False'}")
            if origins[column.name] != value.origin:
                origins[column.name] = None
        self.out.line(f"{stream.used} += 1")
        self.fire(node, spec.name, values)

    def stream_event(self, stream: StreamCode, place: str) -> dict[str, Value | ListOf]:
        """Return the row at `place` of a stream as the attributes of an event."""
        attributes: dict[str, Value | ListOf] = {}
        origins = self.origins.get(stream.spec.name, {})
        for column in stream.spec.columns:
            code = widen(column, f"{stream.column(column.name)}[{place}]")
            null = f"{stream.null(column.name)}[{place}]" if column.nullable else None
            attributes[column.name] = Value(column.kind, code, null, origins.get(column.name))
        return attributes

    def _columns(self, node: ast.Call, spec: RelationSpec) -> dict[str, Value]:
        """Compile values for all columns, converted to their types."""
        arguments = self.named_values(node, spec.name, spec.names)
        values: dict[str, Value] = {}
        for column in spec.columns:
            value = arguments.get(column.name, Nothing())
            if isinstance(value, Nothing):
                if not column.nullable:
                    raise self.wrong(
                        node,
                        f"the column {column.name} is NOT NULL and gets no value",
                        f"pass {column.name}=...",
                    )
                values[column.name] = Value(column.kind, zero(column.kind), "True")
                continue
            if not column.nullable:
                value = self.check_null(value)
            null = value.null and self.out.keep(value.null)
            code = self.out.keep(widen(column, self.fit(node, column, value)))
            values[column.name] = Value(column.kind, code, null, value.origin)
        return values

    # Windows

    def _stage(self, node: ast.Call, window: WindowSpec) -> Value:
        """Compile the insert of a row into a window; its value is true if the window slid."""
        if window.name in self.open_windows:
            raise self.wrong(
                node, "a loop over a window inserts into the window", "insert before or after the loop"
            )
        values = self._columns(node, window)
        place = (self.scope.number, node.lineno, node.col_offset, window.name)
        slid = self.inline(node, self.layout.dependencies.insertions[window.name], values, place)
        if not isinstance(slid, Value):
            raise TypeError(f"{window.name}: an insert returns nothing")
        # A window of rows deletes no row: a new row overwrites the oldest row.
        self.forget_rows(window.rows.name)
        return slid.never_null()

    def _active(self, window: WindowSpec) -> tuple[str, str]:
        """Return code for the number of a window's first active row, and for the number after the last."""
        facts = self.layout.tables[window.facts.name]
        slot = self.out.keep(facts.find(["0"]))
        row = Row(window.facts.name, slot, (window.name,), (None,), maybe=True)
        self.access(row, AccessMode.READ)
        first, active = (
            self.out.keep(f"{facts.column(name)}[{slot}] if {slot} >= 0 else 0")
            for name in ("first", "active")
        )
        return first, active

    def window_loop(self, window: WindowSpec, variable: str) -> str:
        """Return the head of a loop over the active rows of a window, the oldest first."""
        first, active = self._active(window)
        return f"for {variable} in range({first}, {active}):"

    def window_row(self, window: WindowSpec, variable: str) -> Row:
        """Return the current row of a loop over a window."""
        rows = self.layout.tables[window.rows.name]
        place = variable if window.places is None else self.out.keep(f"{variable} % {window.places}")
        slot = self.out.keep(rows.find([place]))
        row = Row(window.rows.name, slot, (window.name,), (None,), maybe=False)
        self.access(row, AccessMode.READ)
        return row

    # Triggers

    def fire(self, node: ast.AST, on: str, row: Mapping[str, Value]) -> None:
        """Compile the triggers of a table or stream that got a row."""
        self.deleted_from.append(set())
        for number, text in enumerate(self.layout.dependencies.triggers.get(on, ())):
            place = (self.scope.number, getattr(node, "lineno", 0), getattr(node, "col_offset", 0), number)
            self.inline(node, text, dict(row), place)
        if on in self.deleted_from.pop():
            raise self.wrong(node, f"a trigger on {on} deletes rows of it", "delete them in a procedure")

    def insert(self, node: ast.Call, table: TableCode) -> Row:
        """Compile an insert, and the triggers of the table."""
        row = super().insert(node, table)
        name = table.spec.name
        if name in self.layout.dependencies.triggers:
            attributes = dict(zip(table.spec.key, row.origins, strict=True))
            values = {}
            for column in table.spec.columns:
                code = self.out.keep(widen(column, f"{table.column(column.name)}[{row.slot}]"))
                null = self.out.keep(f"{table.null(column.name)}[{row.slot}]") if column.nullable else None
                values[column.name] = Value(column.kind, code, null, attributes.get(column.name))
            self.fire(node, name, values)
        return row
