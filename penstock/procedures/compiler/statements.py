"""Compile the statements of a procedure."""

from __future__ import annotations

import ast

from penstock.procedures import language
from penstock.procedures.compiler.layout import Layout
from penstock.procedures.compiler.operations import OperationError
from penstock.procedures.compiler.reading import procedure_text
from penstock.procedures.compiler.scope import Facts, UnknownKindError
from penstock.procedures.compiler.values import ListOf, Nothing, Row, Value, zero
from penstock.procedures.indexes.selections import Selections
from penstock.procedures.local.calls import Calls
from penstock.procedures.local.sets import Sets
from penstock.procedures.schema import Column, Kind

__all__ = ["Statements", "procedure_text"]

_ASSIGNED = "assign a variable, or a column as row.column; rows are inserted"


class Statements(Sets, Selections, Calls):
    """Compiles the body of a procedure; see `Expressions`."""

    def __init__(self, layout: Layout, facts: Facts) -> None:
        super().__init__(layout, facts)
        self.unknown: list[str] = []
        """The variables whose kind was unknown when they were read. They make another pass necessary."""

    def body(self, nodes: list[ast.stmt]) -> None:
        """Compile statements."""
        for node in nodes:
            if self.scope.assigned is None:
                raise self.wrong(node, "this statement is never reached", "remove it")
            handler = getattr(self, f"_{type(node).__name__.lower()}_statement", None)
            if handler is None:
                raise self.scope.text.refuse_construct(node)
            try:
                handler(node)
            except OperationError as error:
                fact, hint = error.args
                raise self.wrong(node, fact, hint) from None
            except UnknownKindError as error:
                self._skip(node, str(error))

    def _skip(self, node: ast.stmt, name: str) -> None:
        """Leave a statement to a later pass, which will know the kind of a variable in the statement."""
        self.unknown.append(name)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self._is_assigned(node.targets[0].id)
        elif isinstance(node, ast.Return):
            if self.scope.result is not None:
                self.facts.nullable.add(self.scope.result)
            self._unreachable()

    def _pass_statement(self, node: ast.Pass) -> None:
        pass

    # Control

    def _if_statement(self, node: ast.If) -> None:
        try:
            condition = self.condition(node.test)
        except UnknownKindError as error:
            self.unknown.append(str(error))
            condition = Value(Kind.BOOLEAN, "True")
        before = self.scopes.save()
        with self.out.block(f"if {condition.code}:"):
            self.body(node.body)
        after = self.scopes.save()
        self.scopes.set(before)
        if node.orelse:
            with self.out.block("else:"):
                self.body(node.orelse)
        self.scopes.merge(after)

    def _for_statement(self, node: ast.For) -> None:
        if self.selection_loop(node):
            return
        if node.orelse:
            raise self.wrong(node, "this loop cannot have else", "put the statements after the loop")
        if not isinstance(node.target, ast.Name):
            raise self.wrong(node.target, "a loop has one variable", "write for x in ...")
        place = (self.scope.number, node.lineno, node.col_offset)
        for table in self.facts.deletes.get(place, ()):
            self.scopes.forget_rows(table)
        variable = self.out.temporary()
        window, values = self.window(node.iter), None
        try:
            if window is None:
                head, values = self._loop(node.iter, variable)
            else:
                head = self.window_loop(window, variable)
        except UnknownKindError as error:
            self.unknown.append(str(error))
            head = f"for {variable} in range(0):"
        before = self.scopes.save()
        self.open_loops.append(place)
        with self.out.block(head, loop=True):
            if window is None:
                value = Value(Kind.INTEGER, variable) if values is None else self.element(values, variable)
                self._store_value(node.target, value)
                self.body(node.body)
            else:
                self.open_windows.append(window.name)
                self.store_row(node.target, self.window_row(window, variable))
                self.body(node.body)
                self.open_windows.pop()
        self.open_loops.pop()
        # The loop's body may run zero times, and may end early.
        self.scopes.set(before)
        for table in self.facts.deletes.get(place, ()):
            self.scopes.forget_rows(table)
        with self.out.block(f"if {self.scope.return_condition}:"):
            self.out.line("break")

    def _loop(self, call: ast.expr, variable: str) -> tuple[str, ListOf | None]:
        """Return the head of a loop, and the list if the loop iterates over one."""
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range":
            if not 1 <= len(call.args) <= 3 or call.keywords:
                raise self.wrong(
                    call, "range takes one to three numbers", "write range(stop) or range(start, stop, step)"
                )
            bounds = [self.value(part) for part in call.args]
            for part, bound in zip(call.args, bounds, strict=True):
                if bound.kind is not Kind.INTEGER:
                    raise self.scope.text.misfit(part, "a bound of range", Kind.INTEGER, bound.kind)
            arguments = [self.out.keep(self.check_null(bound).code) for bound in bounds]
            if len(arguments) == 3:
                self.out.fail(f"{arguments[2]} == 0", "a step of 0")
            return f"for {variable} in range({', '.join(arguments)}):", None
        elements = self.evaluate(call)
        if not isinstance(elements, ListOf):
            raise self.wrong(
                call,
                "a loop runs over range(...) or a list of the event",
                "write for x in range(n) or in e.list",
            )
        self.check_list(elements)
        return f"for {variable} in range({elements.begin}, {elements.end}):", elements

    def _break_statement(self, node: ast.Break) -> None:
        self.out.line("break")
        self._unreachable()

    def _continue_statement(self, node: ast.Continue) -> None:
        self.out.line("continue")
        self._unreachable()

    def _unreachable(self) -> None:
        for scope in self.scopes.stack:
            scope.assigned = None

    def _return_statement(self, node: ast.Return) -> None:
        values = [] if node.value is None else self._compile_returns(node.value)
        self.give_back(node, values)
        self.out.line(self.scope.return_line)
        self.out.line("break")
        self._unreachable()

    def _compile_returns(self, node: ast.expr) -> list[Value | Nothing]:
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        if not isinstance(node, ast.Tuple) and self.find_callee(node) is not None:
            result = self.call_procedure(node)
            if result is None:
                raise self.wrong(
                    node, "the procedure that is called returns nothing", "call it as a statement"
                )
            return [result]
        values = [self.evaluate(part) for part in parts]
        for part, value in zip(parts, values, strict=True):
            if not isinstance(value, Value | Nothing):
                raise self.wrong(part, "a procedure returns values", "name a column of the row")
        return [value for value in values if isinstance(value, Value | Nothing)]

    def give_back(self, node: ast.Return, values: list[Value | Nothing]) -> None:
        """Write the procedure's return value."""
        scope = self.scope
        if scope.result is None:
            columns = scope.results
            if len(values) != len(columns):
                raise self.wrong(
                    node,
                    f"return and returns= differ in their number of values: {len(values)}, {len(columns)}",
                    'declare them: @database.procedure(returns="name type, ...")',
                )
            for (number, column), value in zip(columns, values, strict=True):
                self._write_result(node, number, column, value)
            return
        if len(values) > 1:
            raise self.wrong(
                node, "a procedure that others call returns one value", "return one, and write the others"
            )
        for value in values:
            self._remember(node, scope.result, value)

    def _write_result(self, node: ast.AST, number: int, column: Column, value: Value | Nothing) -> None:
        if isinstance(value, Nothing):
            return
        code = self.fit(node, column, value)
        if value.null is None:
            self.out.line(f"r{number}[i] = {code}")
            self.out.line(f"r{number}_null[i] = False")
            return
        with self.out.block(f"if not {value.null}:"):
            self.out.line(f"r{number}[i] = {code}")
            self.out.line(f"r{number}_null[i] = False")

    # Assignments

    def _assign_statement(self, node: ast.Assign) -> None:
        if len(node.targets) != 1:
            raise self.wrong(
                node, "an assignment may have only one name", "write one assignment for each name"
            )
        if self.make_set(node):
            return
        target = node.targets[0]
        if isinstance(target, ast.Name):
            if self.find_callee(node.value) is not None:
                result = self.call_procedure(node.value)
                if result is None:
                    raise self.wrong(
                        node, "the procedure that is called returns nothing", "call it as a statement"
                    )
                self._store_value(target, result)
                return
            source = self.evaluate(node.value)
            if isinstance(source, Row):
                self.store_row(target, source)
            elif isinstance(source, Value | Nothing):
                self._store_value(target, source)
            else:
                raise self.wrong(node, "a list cannot be assigned to a variable", "use it where it is needed")
            return
        if isinstance(target, ast.Attribute):
            # Python evaluates the assigned value before the row.
            value = self.evaluate(node.value)
            if not isinstance(value, Value | Nothing):
                raise self.wrong(node.value, "a column gets a value", "assign a number or a text, not a row")
            if isinstance(value, Value):
                value = self._keep_value(value)
            self.write(target, self.compile_written_row(target), value)
            return
        raise self.wrong(target, "this cannot be assigned", _ASSIGNED)

    def _keep_value(self, value: Value) -> Value:
        code, null = self.out.keep(value.code), value.null and self.out.keep(value.null)
        return Value(value.kind, code, null, decimal=value.decimal)

    def _augassign_statement(self, node: ast.AugAssign) -> None:
        sign = self.sign(node, node.op)
        target = node.target
        if isinstance(target, ast.Name):
            read = ast.copy_location(ast.Name(target.id, ast.Load()), target)
            self._store_value(target, self.operate(sign, self.value(read), self.value(node.value)))
        elif isinstance(target, ast.Attribute):
            row = self.compile_written_row(target)
            old = self.read(target, row, self.column(target, row))
            self.deleted_from.append(set())
            try:
                value = self.value(node.value)
            finally:
                deleted_tables = self.deleted_from.pop()
            if row.table in deleted_tables:
                hint = "keep the value in a variable first"
                raise self.wrong(node, f"the value may delete the row of {row.table} that it changes", hint)
            self.write(target, row, self.operate(sign, old, value))
        else:
            raise self.wrong(target, "this cannot be assigned", _ASSIGNED)

    def _store_value(self, target: ast.Name, value: Value | Nothing) -> None:
        scope = self.scope
        self._check_assignable(target)
        name = scope.variable(target.id)
        self._remember(target, name, value)
        kind = self.facts.kinds.get(name)
        if isinstance(value, Nothing) and kind is not None and not isinstance(kind, Kind):
            width = len(self.layout.tables[kind].spec.key)
            scope.rows[target.id] = Row(kind, name, (target.id,) * width, (None,) * width, maybe=True)
        if isinstance(value, Value) and value.origin and scope.assigned_once(target.id):
            scope.origins[target.id] = value.origin
        self._is_assigned(target.id)

    def _check_assignable(self, target: ast.Name) -> None:
        if target.id in (self.scope.text.event, *self.scope.text.tables, *self.scope.sets):
            raise self.wrong(target, f"{target.id} cannot be assigned", "choose another name")

    def _is_assigned(self, name: str) -> None:
        self.scope.deleted.discard(name)
        if self.scope.assigned is not None:
            self.scope.assigned.add(name)

    def _remember(self, node: ast.AST, name: str, value: Value | Nothing) -> None:
        if isinstance(value, Nothing):
            self.facts.nullable.add(name)
            self.out.line(f"{name} = {zero(self.facts.kinds.get(name, Kind.INTEGER))}")
            self.out.line(f"{name}_null = True")
            return
        kind = self.facts.kinds.get(name)
        if kind is not None and kind is not value.kind:
            raise self.wrong(
                node,
                f"the type of the variable changes from {kind} to {value.kind}",
                "convert the value, write 0.0 for a float, or use another name",
            )
        self.facts.kinds[name] = value.kind
        self.out.line(f"{name} = {value.code}")
        if value.null is not None:
            self.facts.nullable.add(name)
        if name in self.facts.nullable:
            self.out.line(f"{name}_null = {value.null or False}")

    def store_row(self, target: ast.Name, row: Row) -> None:
        """Assign a row to a variable."""
        scope = self.scope
        self._check_assignable(target)
        # A name that may refer to several rows has no single key.
        name = scope.variable(target.id)
        kind = self.facts.kinds.get(name)
        if kind is not None and (isinstance(kind, Kind) or kind != row.table):
            raise self.wrong(target, "the variable did not hold such a row before", "use another name")
        self.facts.kinds[name] = row.table
        if row.maybe:
            self.facts.nullable.add(name)
        is_constant = scope.assigned_once(target.id)
        key = row.key if is_constant else (target.id,) * len(row.key)
        scope.rows[target.id] = Row(
            row.table, name, key, row.origins if is_constant else (None,) * len(row.key), row.maybe
        )
        self.out.line(f"{name} = {row.slot}")
        self._is_assigned(target.id)

    # Calls

    def _expr_statement(self, node: ast.Expr) -> None:
        call = node.value
        if isinstance(call, ast.Call):
            if self.scope.text.is_word(call.func, language.abort):
                self._abort(call)
                return
            if self.find_callee(call) is not None:
                self.call_procedure(call)
                return
            if self.add_to_set(call):
                return
            if isinstance(call.func, ast.Attribute):
                stream, attribute = self.stream(call.func.value), call.func.attr
                if stream is not None and attribute == "emit":
                    self.emit(call, stream)
                    return
                if attribute == "insert" or stream is not None or self.window(call.func.value) is not None:
                    self.evaluate(call)
                    return
            raise self.scope.text.refuse_call(call)
        raise self.wrong(node, "this statement does nothing", "remove it, or assign its value")

    def _abort(self, node: ast.Call) -> None:
        why = node.args[0] if len(node.args) == 1 and not node.keywords else None
        if not isinstance(why, ast.Constant) or not isinstance(why.value, str):
            raise self.wrong(node, "abort takes a literal text", 'write abort("why")')
        self.out.reject(why.value)
        self._unreachable()
