"""The types of the variables and expressions of a generated kernel."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numba import types

from penstock.errors import InternalError

__all__ = ["CASTS", "OPERATORS", "PICKS", "SET", "Types", "constant_of", "is_set", "refuse_construct"]

SET = types.Set(types.int64)
"""The type of every set of a kernel."""

OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.USub: operator.neg,
}
"""The functions of numba that implement the operators."""

_OPERATIONS = frozenset(OPERATORS.values())

PICKS = {min: operator.lt, max: operator.gt}
"""For ``min`` and ``max``, the comparison that holds if a later argument replaces the current result."""

CASTS = {
    np.int64: types.int64,
    np.float64: types.float64,
    np.float32: types.float32,
}
"""The types to which a kernel converts."""


def refuse_construct(node: ast.AST) -> InternalError:
    """Return the error for a construct that generated kernels may not have."""
    return InternalError("a generated kernel has an unknown construct", construct=ast.unparse(node))


def constant_of(node: ast.expr, space: Mapping[str, Any]) -> bool | int | float | None:
    """Return the value of a constant expression; None for other expressions."""
    if isinstance(node, ast.Constant):
        value = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = constant_of(node.operand, space)
        value = None if operand is None else -operand
    elif isinstance(node, ast.Name):
        value = space.get(node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        value = getattr(space.get(node.value.id), node.attr, None)
    else:
        return None
    return value if isinstance(value, bool | int | float) else None


def is_set(node: ast.expr) -> bool:
    """Return whether an expression makes a set."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "set"


class Types:
    """Finds the types of variables from their assignments.

    Parameters
    ----------
    typing : numba.core.typing.Context
        Finds the signatures of functions.
    function : ast.FunctionDef
        The function that is the kernel.
    arguments : sequence of numba.types.Type
        The types of the kernel's arguments.
    space : mapping
        The globals of the kernel's module.
    """

    def __init__(
        self, typing: Any, function: ast.FunctionDef, arguments: Sequence[Any], space: Mapping[str, Any]
    ) -> None:
        self._typing, self._space = typing, space
        names = [argument.arg for argument in function.args.args]
        if any(isinstance(kind, types.Array) and kind.layout != "C" for kind in arguments):
            raise InternalError("an argument of a generated kernel is not contiguous", kernel=function.name)
        self.variables: dict[str, Any] = dict(zip(names, map(types.unliteral, arguments), strict=True))
        self._signatures: dict[tuple[Any, ...], Any] = {}
        self.result: Any = types.none
        statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt)]
        statements.sort(key=lambda node: (node.lineno, node.col_offset))
        before = None
        while before != self.variables:
            before = dict(self.variables)
            for node in statements:
                self._visit(node)

    def _visit(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self._assign(target.id, self.of(node.value))
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._assign(node.target.id, self.of(ast.BinOp(node.target, node.op, node.value)))
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            self._assign(node.target.id, types.int64)
        elif isinstance(node, ast.Return) and node.value is not None:
            known = None if self.result is types.none else self.result
            self.result = self._unified(self.of(node.value), known)

    def _assign(self, name: str, kind: Any) -> None:
        self.variables[name] = self._unified(kind, self.variables.get(name))

    def _unified(self, kind: Any, other: Any) -> Any:
        unified = kind if other is None else self._typing.unify_types(other, kind)
        if unified is None:
            raise InternalError("a variable of a generated kernel has two types", types=f"{kind}, {other}")
        return unified

    def signature(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Return the signature of a call."""
        key = (function, *arguments)
        if key not in self._signatures:
            kind = self._typing.resolve_value_type(function)
            self._signatures[key] = self._typing.resolve_function_type(kind, tuple(arguments), {})
        return self._signatures[key]

    def implementation(self, context: Any, function: Any, signature: Any) -> Any:
        """Return numba's implementation of a function."""
        kind = function if function in _OPERATIONS else self._typing.resolve_value_type(function)
        return context.get_function(kind, signature)

    def of(self, node: ast.expr) -> Any:
        """Return the type of an expression."""
        if isinstance(node, ast.Name) and node.id in self.variables:
            return self.variables[node.id]
        constant = constant_of(node, self._space)
        if constant is not None:
            is_float = isinstance(constant, float)
            return types.boolean if isinstance(constant, bool) else types.float64 if is_float else types.int64
        if isinstance(node, ast.Compare | ast.BoolOp) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        ):
            return types.boolean
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            arguments = [self.of(node.left), self.of(node.right)]
            return self.signature(OPERATORS[type(node.op)], arguments).return_type
        if isinstance(node, ast.UnaryOp):
            return self.signature(OPERATORS[type(node.op)], [self.of(node.operand)]).return_type
        if isinstance(node, ast.IfExp):
            return self._unified(self.of(node.body), self.of(node.orelse))
        if isinstance(node, ast.Tuple):
            return types.UniTuple(types.int64, len(node.elts))
        if isinstance(node, ast.Subscript):
            return self._element(node)
        if is_set(node):
            return SET
        if isinstance(node, ast.Call):
            function = self.function(node)
            if function in CASTS:
                return CASTS[function]
            arguments = [self.of(argument) for argument in node.args]
            if function in PICKS:
                return reduce(self._unified, arguments)
            if function is len:
                return types.int64
            return self.signature(function, arguments).return_type
        raise refuse_construct(node)

    def _element(self, node: ast.Subscript) -> Any:
        if isinstance(node.value, ast.Attribute):
            return types.int64
        if not isinstance(node.value, ast.Name):
            raise refuse_construct(node)
        array = self.of(node.value)
        is_row = isinstance(node.slice, ast.Tuple) and isinstance(node.slice.elts[-1], ast.Slice)
        return types.Array(array.dtype, 1, "C") if is_row else array.dtype

    def function(self, node: ast.Call) -> Any:
        """Return the function that a call names."""
        name = node.func
        if isinstance(name, ast.Attribute) and isinstance(name.value, ast.Name):
            return getattr(self._space[name.value.id], name.attr)
        if not isinstance(name, ast.Name) or node.keywords:
            raise refuse_construct(node)
        builtins = self._space["__builtins__"]
        if name.id in self._space:
            return self._space[name.id]
        return builtins[name.id] if isinstance(builtins, dict) else getattr(builtins, name.id)
