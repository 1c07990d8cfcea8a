"""Calls of other procedures, which are inlined into the same kernel."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Mapping

from penstock.procedures import language
from penstock.procedures.compiler.emissions import Emissions
from penstock.procedures.compiler.reading import ProcedureText, procedure_text
from penstock.procedures.compiler.scope import Scope
from penstock.procedures.compiler.values import ListOf, Nothing, Value, zero
from penstock.procedures.schema import Kind

__all__ = ["Calls"]

_MAX_DEPTH = 16
"""The maximum depth of calls between procedures."""


class Calls(Emissions):
    """Compiles calls of procedures; see `Expressions`."""

    @abstractmethod
    def body(self, nodes: list[ast.stmt]) -> None:
        """Compile statements."""

    def find_callee(self, node: ast.expr) -> ProcedureText | None:
        """Return the text of the procedure that an expression calls; None for other expressions."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return procedure_text(self.scope.text.names.get(node.func.id))
        return None

    def call_procedure(self, node: ast.expr) -> Value | Nothing | None:
        """Compile a call; return its value."""
        text = self.find_callee(node)
        if text is None or not isinstance(node, ast.Call):
            raise self.wrong(node, "this is not a call of a procedure", "write name(event, table)")
        if node.keywords or len(node.args) != 1 + len(text.tables):
            fact = f"{text.name} takes an event, tables: {len(text.tables)}"
            raise self.wrong(node, fact, f"write {text.name}({', '.join(['event', *text.tables])})")
        for part, name in zip(node.args[1:], text.tables, strict=True):
            if not isinstance(part, ast.Name) or part.id != name or name not in self.scope.text.tables:
                raise self.wrong(part, f"{text.name} takes the table {name} here", f"pass {name}")
        event = self._event_of(node.args[0])
        return self.inline(node, text, event, (self.scope.number, node.lineno, node.col_offset))

    def inline(
        self,
        node: ast.AST,
        text: ProcedureText,
        event: Mapping[str, Value | ListOf],
        place: tuple[object, ...],
    ) -> Value | Nothing | None:
        """Compile the body of a called procedure into the caller; return its value.

        `place` identifies the call in every pass over the text.
        """
        if len(self.scopes.stack) >= _MAX_DEPTH or any(scope.text is text for scope in self.scopes.stack):
            fact = f"{text.name} calls itself, maybe through others, or is deeper than {_MAX_DEPTH} calls"
            raise self.wrong(node, fact, "write a loop")
        # A call has the same number in each pass, even if a pass skips earlier calls.
        number = self.facts.calls.setdefault(place, len(self.facts.calls) + 1)
        result = f"c{number}_value"
        self.out.line(f"c{number} = 0")
        if result in self.facts.kinds:
            self.facts.nullable.add(result)
            self.out.line(f"{result} = {zero(self.facts.kinds[result])}")
            self.out.line(f"{result}_null = True")
        before = self.scopes.save()
        self.scopes.stack.append(Scope(text, number, event, result))
        self.deleted_from.append(set())
        with self.out.block("while True:"):
            self.body(text.tree.body)
            self.out.line("break")
        self.scopes.stack.pop()
        self.scopes.set(before)
        for table in self.deleted_from.pop():
            self.scopes.forget_rows(table)
        with self.out.block("if code != 0:"):
            self.out.line("break")
        kind = self.facts.kinds.get(result)
        if kind is None:
            return Nothing() if result in self.facts.nullable else None
        if not isinstance(kind, Kind):
            raise self.wrong(node, "a procedure returns values", "return numbers, texts or columns, not rows")
        return Value(kind, result, f"{result}_null")

    def _event_of(self, node: ast.expr) -> Mapping[str, Value | ListOf]:
        scope = self.scope
        if isinstance(node, ast.Name) and node.id == scope.text.event:
            return scope.event
        if (
            not isinstance(node, ast.Call)
            or not self.scope.text.is_word(node.func, language.event)
            or node.args
        ):
            raise self.wrong(
                node, "a procedure is called with an event", f"pass {scope.text.event}, or event(name=value)"
            )
        attributes: dict[str, Value | ListOf] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value)
            if not isinstance(value, Value) or keyword.arg is None:
                raise self.wrong(
                    keyword.value, "an attribute of an event is a value", "pass a number or a text, not a row"
                )
            attributes[keyword.arg] = Value(
                value.kind,
                self.out.keep(value.code),
                value.null and self.out.keep(value.null),
                value.origin,
            )
        return attributes
