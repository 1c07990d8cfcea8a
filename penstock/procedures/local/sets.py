"""Sets of a procedure: ``s = set()``, ``s.add(x)``, ``x in s``, ``len(s)``."""

from __future__ import annotations

import ast

from penstock.procedures.compiler.expressions import Expressions
from penstock.procedures.compiler.values import ListOf, Nothing, Row, Value
from penstock.procedures.local.plain_sets import SET_HINT
from penstock.procedures.schema import Kind

__all__ = ["Sets"]


class Sets(Expressions):
    """Compiles sets, which live within one transaction and have no order; see `Expressions`."""

    def set_code(self, node: ast.expr) -> str | None:
        """Return the variable of the set that an expression names; None for other expressions."""
        if not isinstance(node, ast.Name) or node.id not in self.scope.sets:
            return None
        if self.scope.assigned is not None and node.id not in self.scope.assigned:
            raise self.wrong(node, f"{node.id} may have no value here", "assign it on every path")
        return self.scope.variable(node.id)

    def make_set(self, node: ast.Assign) -> bool:
        """Compile ``s = set()``; return False for other assignments."""
        target, call = node.targets[0], node.value
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "set":
            return False
        if call.args or call.keywords or not isinstance(target, ast.Name):
            raise self.wrong(node, "a set is empty at first, and has a name", SET_HINT)
        name = self.scope.variable(target.id)
        if target.id in (self.scope.text.event, *self.scope.text.tables) or name in self.facts.kinds:
            raise self.wrong(target, f"the name {target.id} is already used", "use another name")
        self.scope.sets.setdefault(target.id, None)
        if self.scope.assigned is not None:
            self.scope.assigned.add(target.id)
        self.out.line(f"{name} = set()")
        return True

    def add_to_set(self, call: ast.Call) -> bool:
        """Compile ``s.add(x)``; return False for other calls."""
        method = call.func
        if not isinstance(method, ast.Attribute) or (name := self.set_code(method.value)) is None:
            return False
        if method.attr != "add" or len(call.args) != 1 or call.keywords:
            raise self.wrong(call, "a set has only add as a statement", SET_HINT)
        self.out.line(f"{name}.add({self._element_of(ast.unparse(method.value), call.args[0])})")
        return True

    def _element_of(self, name: str, node: ast.expr) -> str:
        """Compile an element of a set, whose elements all have one kind."""
        value = self.value_not_null(node)
        if value.kind is Kind.FLOAT:
            raise self.wrong(node, "a set has no floats", "convert it with int(...)")
        kind = self.scope.sets[name]
        if kind is not None:
            value = self.layout.as_wide(value, kind)
        if kind is not None and kind is not value.kind:
            raise self.scope.text.misfit(node, "an element of this set", kind, value.kind)
        self.scope.sets[name] = value.kind
        return f"np.int64({value.code})"

    def _name(self, node: ast.Name) -> Value | Nothing | Row | ListOf:
        if self.set_code(node) is not None:
            raise self.wrong(node, "a set is not a value", SET_HINT)
        return super()._name(node)

    def _call(self, node: ast.Call) -> Value | Row:
        if isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
            name = self.set_code(node.args[0])
            if name is not None:
                return Value(Kind.INTEGER, self.out.keep(f"len({name})"))
        return super()._call(node)

    def _comparison(self, node: ast.Compare, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Value:
        name = self.set_code(right)
        if name is None or not isinstance(operator, ast.In | ast.NotIn):
            return super()._comparison(node, left, operator, right)
        sign = "in" if isinstance(operator, ast.In) else "not in"
        return Value(
            Kind.BOOLEAN, self.out.keep(f"({self._element_of(ast.unparse(right), left)} {sign} {name})")
        )
