"""Compile a generated kernel by `Lowering`, within a function that numba compiles, caches and calls."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from numba.extending import intrinsic

from penstock._kernels import program_kernel
from penstock.procedures.machine_code.lowering import Lowering
from penstock.procedures.machine_code.types_of import Types, refuse_construct

__all__ = ["generated_kernel"]

F = TypeVar("F", bound=Callable[..., Any])


def generated_kernel(function: F) -> F:
    """Compile the function of a generated module; the module's file is the key of numba's cache."""
    tree = ast.parse(inspect.getsource(function)).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise refuse_construct(tree)
    parameters = ", ".join(argument.arg for argument in tree.args.args)
    space = function.__globals__

    def type_of(typing: Any, *arguments: Any) -> Any:
        kinds = Types(typing, tree, arguments, space)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return Lowering(context, builder, kinds, space).run(tree, values)

        return kinds.result(*arguments), generate

    # Numba matches the names of an intrinsic's parameters, so they have the names of the kernel's parameters.
    text = f"def code(typing, {parameters}): return type_of(typing, {parameters})"
    names: dict[str, Any] = {"type_of": type_of}
    exec(text, names)  # noqa: S102 - the text has only names of parameters that Penstock generates
    outer = {"code": intrinsic(names["code"]), "__name__": function.__module__}
    text = f"def {function.__name__}({parameters}): return code({parameters})"
    exec(compile(text, function.__code__.co_filename, "exec"), outer)  # noqa: S102 - as above
    return program_kernel(outer[function.__name__], counts_references=_has_set(tree))


def _has_set(tree: ast.FunctionDef) -> bool:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Name) and function.id == "set" for function in calls)
