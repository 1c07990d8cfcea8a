"""Processor instructions that Python lacks, written as LLVM intrinsics.

Each function has a plain Python body, which defines its meaning and runs if Numba is off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

__all__ = ["prefetch", "use_overflow_flag"]

F = TypeVar("F", bound=Callable[..., Any])

_BYTE, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def prefetch(values: Any, at: int) -> None:
    """Load an element into the cache, without waiting for it."""


@intrinsic
def _prefetch(typing: Any, values: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        start = builder.bitcast(array.data, _BYTE.as_pointer())
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        place = builder.gep(start, [builder.mul(arguments[1], ir.Constant(_INT64, size))])
        kind = ir.FunctionType(ir.VoidType(), [place.type, _INT32, _INT32, _INT32])
        load = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        # Prefetch for a write, into all levels of the data cache.
        builder.call(load, [place, *(ir.Constant(_INT32, number) for number in (1, 3, 1))])
        return context.get_dummy_value()

    return types.void(values, types.int64), generate


@overload(prefetch, strict=False)
def _prefetch_form(values: Any, at: Any) -> Callable[..., Any]:
    def form(values: Any, at: Any) -> None:
        _prefetch(values, at)

    return form


def use_overflow_flag(operation: str) -> Callable[[F], F]:
    """Return a decorator for functions that test whether an operation on two integers overflows 64 bits.

    Compiled callers use the processor's flag; other callers call the function.

    Parameters
    ----------
    operation : {"sadd", "ssub", "smul"}
        LLVM's name of the operation.
    """

    @intrinsic
    def overflows(typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            result = getattr(builder, f"{operation}_with_overflow")(*arguments)
            return builder.extract_value(result, 1)

        return types.boolean(types.int64, types.int64), generate

    def decorate(function: F) -> F:
        @overload(function, strict=False)
        def form(a: Any, b: Any) -> Callable[..., Any]:
            def flag(a: Any, b: Any) -> Any:
                return overflows(a, b)

            return flag

        return function

    return decorate
