"""Compile the writes of a procedure: assignments to columns, inserts and deletes."""

from __future__ import annotations

import ast

from penstock.procedures.compiler.expressions import Expressions
from penstock.procedures.compiler.layout import FREE, GONE, LIVE, SHIFT, USED, Layout, TableCode
from penstock.procedures.compiler.operations import OVERFLOW, as_decimal, as_float
from penstock.procedures.compiler.scope import Facts
from penstock.procedures.compiler.values import AccessMode, Nothing, Row, Value
from penstock.procedures.indexes.code import add_lines, remove_lines
from penstock.procedures.schema import Column, IndexSpec, Kind

__all__ = ["Writes"]


class Writes(Expressions):
    """Compiles writes, with entries in the undo log if a failure may follow; see `Expressions`."""

    def __init__(self, layout: Layout, facts: Facts) -> None:
        super().__init__(layout, facts)
        self.open_loops: list[tuple[object, ...]] = []
        self.deleted_from: list[set[str]] = []
        self.open_selections: list[tuple[str, IndexSpec]] = []

    def compile_written_row(self, target: ast.Attribute) -> Row:
        """Compile the row that an assignment changes."""
        if isinstance(target.value, ast.Name) and target.value.id == self.scope.text.event:
            raise self.wrong(target, "an event cannot be changed", "keep the value in a variable")
        return self.row(target.value)

    def write(self, target: ast.Attribute, row: Row, value: Value | Nothing) -> None:
        """Write a column of a row."""
        column = self.column(target, row)
        table = self.layout.tables[row.table]
        if row.table not in self.scope.text.tables:
            raise self.wrong(target, "a row of a window cannot be changed", "insert another one")
        if column.name in table.spec.key:
            raise self.wrong(target, "a key cannot be changed", "delete the row and insert another one")
        self._check_order(target, row.table, column.name)
        self.access(row, AccessMode.WRITE)
        array, null = table.column(column.name), table.null(column.name)
        code = None
        if isinstance(value, Nothing):
            if not column.nullable:
                raise self.wrong(
                    target,
                    f"{column.name} is not null",
                    "assign a value, or declare the column without NOT NULL",
                )
        else:
            code = self.fit(target, column, value if column.nullable else self.check_null(value))
        old = "u_float" if column.kind is Kind.FLOAT else "u_integer"
        lines = [f"u_slot[u] = {row.slot}", f"{old}[u] = {array}[{row.slot}]"]
        if column.nullable:
            lines.append(f"u_null[u] = {null}[{row.slot}]")
        self.out.log(("column", row.table, column.name), lines)
        for line in remove_lines(table, row.slot, column.name):
            self.out.line(line)
        if code is not None:
            self.out.line(f"{array}[{row.slot}] = {code}")
        if column.nullable:
            is_null = "True" if isinstance(value, Nothing) else (value.null or "False")
            self.out.line(f"{null}[{row.slot}] = {is_null}")
        for line in add_lines(table, row.slot, column.name):
            self.out.line(line)
        self.out.line(f"{table.array('dirty')}[{row.slot}] = True")

    def _check_order(self, node: ast.AST, table: str, column: str | None) -> None:
        """Refuse to change a column that orders an enclosing loop; if `column` is None, refuse an insert."""
        for name, index in self.open_selections:
            if name == table and (column is None or column in index.columns):
                raise self.wrong(
                    node,
                    f"a loop by {', '.join(index.columns)} "
                    + (f"inserts into {table}" if column is None else f"changes {column}"),
                    "it might never end: do it after the loop",
                )

    def fit(self, node: ast.AST, column: Column, value: Value) -> str:
        """Convert a value to a column's type; reject the transaction if the value does not fit."""
        if column.kind is Kind.FLOAT and value.kind is Kind.INTEGER:
            value = as_float(self.out, value)
        value = self.layout.as_wide(value, column.kind)
        scale, digits = column.kind.scale, value.kind.scale
        is_exact = value.kind is Kind.INTEGER or digits is not None
        if scale is not None and is_exact and (digits or 0) <= scale:
            value = as_decimal(self.out, value, scale)
            limit = 10**column.type.precision - 1
            outside = f"{value.code} > {limit} or {value.code} < {-limit}"
            self.out.fail(f"not {value.null} and ({outside})" if value.null else outside, OVERFLOW)
        if value.kind is not column.kind:
            raise self.scope.text.misfit(node, f"the column {column.name}", column.kind, value.kind)
        if column.kind is Kind.INTEGER and column.dtype.itemsize < 8:
            limit = (1 << (8 * column.dtype.itemsize - 1)) - 1
            outside = f"{value.code} > {limit} or {value.code} < {-limit - 1}"
            self.out.fail(f"not {value.null} and ({outside})" if value.null else outside, OVERFLOW)
        if column.kind is Kind.FLOAT and column.dtype.itemsize < 8:
            return f"np.float32({value.code})"
        return value.code

    def insert(self, node: ast.Call, table: TableCode) -> Row:
        """Compile an insert."""
        spec = table.spec
        self._check_order(node, spec.name, None)
        arguments = self.named_values(node, spec.name, spec.names)
        codes: dict[str, tuple[str | None, str]] = {}
        for column in spec.columns:
            value = arguments.get(column.name, Nothing())
            if isinstance(value, Nothing):
                if not column.nullable:
                    raise self.wrong(
                        node,
                        f"the column {column.name} is NOT NULL and gets no value",
                        f"pass {column.name}=...",
                    )
                codes[column.name] = None, "True"
                continue
            if column.name in spec.key:
                value = self.key_column(node, table, column, value)
            elif not column.nullable:
                value = self.check_null(value)
            codes[column.name] = self.out.keep(self.fit(node, column, value)), value.null or "False"
        parts = [arguments[name] for name in spec.key]
        keys = [part for part in parts if isinstance(part, Value)]
        texts = tuple(ast.unparse(next(k.value for k in node.keywords if k.arg == name)) for name in spec.key)
        origins = self.scopes.find_origins(self.out, node, spec, texts, keys)
        words = [str(codes[name][0]) for name in spec.key]
        self.out.fail(f"{table.find(words)} >= 0", f"duplicate key: {spec.name}")
        slot = self._new_slot(table)
        for column in spec.columns:
            code, null = codes[column.name]
            if code is not None:
                self.out.line(f"{table.column(column.name)}[{slot}] = {code}")
            if column.nullable:
                self.out.line(f"{table.null(column.name)}[{slot}] = {null}")
        for name in ("live", "dirty"):
            self.out.line(f"{table.array(name)}[{slot}] = True")
        self.out.line(f"{table.fact(LIVE)} += 1")
        self.out.line(
            f"put_entry({table.array('entries')}, {table.fact(SHIFT)}, {table.word(words)}, {slot})"
        )
        for line in add_lines(table, slot):
            self.out.line(line)
        row = Row(spec.name, slot, texts, origins, maybe=False)
        self.access(row, AccessMode.INSERT)
        return row

    def named_values(self, node: ast.Call, target: str, names: tuple[str, ...]) -> dict[str, Value | Nothing]:
        """Compile the values that a call of ``insert`` or ``emit`` passes for columns."""
        if node.args or any(keyword.arg is None for keyword in node.keywords):
            raise self.wrong(node, "columns are given by name", f"{ast.unparse(node.func)}(column=value)")
        values: dict[str, Value | Nothing] = {}
        for keyword in node.keywords:
            name = str(keyword.arg)
            if name not in names:
                raise self.wrong(node, f"{target} has no {name}", f"it has {', '.join(names)}")
            value = self.evaluate(keyword.value)
            if not isinstance(value, Value | Nothing):
                raise self.wrong(keyword.value, "a column gets a value", "pass a number or a text, not a row")
            values[name] = value
        return values

    def _new_slot(self, table: TableCode) -> str:
        out, live, used, free = self.out, table.array("live"), table.fact(USED), table.fact(FREE)
        # The hash index has room for as many rows as the columns, so only the columns can be full.
        out.need_room(f"{free} == 0 and {used} == {live}.shape[0]", table.number)
        slot = out.keep(f"{table.array('free')}[{free} - 1] if {free} > 0 else {used}")
        out.log(("insert", table.spec.name), [f"u_slot[u] = {slot}"])
        with out.block(f"if {free} > 0:"):
            out.line(f"{free} -= 1")
        with out.block("else:"):
            out.line(f"{used} += 1")
        return slot

    def _delete_statement(self, node: ast.Delete) -> None:
        if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Subscript):
            raise self.wrong(node, "one row is deleted at a time", "write del table[key]")
        target = node.targets[0]
        table = self.table(target.value)
        if table is None:
            raise self.wrong(target, "only rows of tables are deleted", "write del table[key]")
        row = self.find(table, target.slice)
        self.out.fail(f"{row.slot} < 0", f"unknown key: {row.table}")
        self.access(row, AccessMode.DELETE)
        deleted_keys = table.array("gone")
        self.out.need_room(f"{table.fact(GONE)} == {deleted_keys}.shape[0]", -2 - table.number)
        # An undo may need the slot again, so the slot becomes free only at the commit.
        free = [
            f"{table.array('free')}[{table.fact(FREE)}] = {row.slot}",
            f"{table.fact(FREE)} += 1",
        ]
        self.out.log(("delete", row.table), [f"u_slot[u] = {row.slot}"], free)
        key = table.key_at(row.slot)
        for place, word in enumerate(key):
            self.out.line(f"{deleted_keys}[{table.fact(GONE)}, {place}] = {word}")
        self.out.line(f"{table.fact(GONE)} += 1")
        self.out.line(
            f"remove_entry({table.array('entries')}, {table.fact(SHIFT)}, {table.word(key)}, {row.slot})"
        )
        for line in remove_lines(table, row.slot):
            self.out.line(line)
        self.out.line(f"{table.array('live')}[{row.slot}] = False")
        self.out.line(f"{table.fact(LIVE)} -= 1")
        self.forget_rows(row.table)

    def forget_rows(self, table: str) -> None:
        """Forget all rows of a table, here and at the start of each iteration of an open loop."""
        for place in self.open_loops:
            self.facts.deletes.setdefault(place, set()).add(table)
        for tables in self.deleted_from:
            tables.add(table)
        self.scopes.forget_rows(table)
