"""The processor's cycle counter, which a kernel reads without a call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from penstock._kernels import kernel

__all__ = ["cycles", "cycles_per_ns", "read_cycles"]


def cycles() -> int:
    """Return the number of cycles since some moment; nanoseconds without the compiler."""
    return time.perf_counter_ns()


@intrinsic
def _cycles(typing: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [])
        return builder.call(builder.module.declare_intrinsic("llvm.readcyclecounter", (), kind), [])

    return types.int64(), generate


@overload(cycles, strict=False)
def _cycles_form() -> Callable[..., Any]:
    def form() -> Any:
        return _cycles()

    return form


@kernel
def read_cycles() -> int:
    """Return the cycle counter, for code that is not compiled."""
    return cycles()


def cycles_per_ns() -> float:
    """Measure how many cycles a nanosecond has."""
    read_cycles()  # compiles
    at, begin = time.perf_counter_ns(), read_cycles()
    while time.perf_counter_ns() - at < 20_000_000:
        pass
    return (read_cycles() - begin) / (time.perf_counter_ns() - at)
