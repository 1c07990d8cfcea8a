"""Sequentially consistent atomic operations on the elements of int64 arrays, and a function to wait.

Each function has a plain Python body under a lock, which defines its meaning and runs if Numba is off.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

__all__ = ["fetch_add", "load", "store", "swap_if", "wait_a_little"]

_ORDER = "seq_cst"
_ALIGNMENT = 8
_SPINS = 1 << 8
_lock = threading.Lock()


def fetch_add(values: Any, at: int, number: int) -> int:
    """Add to an element; return its previous value."""
    with _lock:
        before = int(values[at])
        values[at] = before + number
        return before


def load(values: Any, at: int) -> int:
    """Return an element."""
    with _lock:
        return int(values[at])


def store(values: Any, at: int, number: int) -> None:
    """Set an element."""
    with _lock:
        values[at] = number


def swap_if(values: Any, at: int, expected: int, number: int) -> bool:
    """Set an element if it has the expected value; return whether it was set."""
    with _lock:
        if values[at] != expected:
            return False
        values[at] = number
        return True


def wait_a_little(turn: int) -> None:
    """Let other threads run at every `_SPINS`-th call; `turn` counts the calls."""


@intrinsic
def _yield_core(typing: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # Windows has no such function, so a waiting thread spins there.
        if sys.platform != "win32":
            kind = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@overload(wait_a_little, strict=False)
def _wait_a_little_form(turn: Any) -> Callable[..., Any]:
    def form(turn: Any) -> None:
        if turn % _SPINS == 0:
            _yield_core()

    return form


def _instruction(
    name: str, result: Any, operands: int, generate: Callable[[Any, Any, list[Any]], Any]
) -> Any:
    """Return an intrinsic whose first operand is the position of the element."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        made = generate(builder, place, list(arguments[2:]))
        return context.get_dummy_value() if made is None else made

    def specialize(values: Any) -> Any:
        return result(values, types.int64, *[types.int64] * operands), code

    if operands == 0:

        def none(typing: Any, values: Any, at: Any) -> Any:
            return specialize(values)

        return intrinsic(none)
    if operands == 1:

        def one(typing: Any, values: Any, at: Any, number: Any) -> Any:
            return specialize(values)

        return intrinsic(one)

    def two(typing: Any, values: Any, at: Any, expected: Any, number: Any) -> Any:
        return specialize(values)

    return intrinsic(two)


def _store_atomic(builder: Any, place: Any, operands: list[Any]) -> None:
    builder.store_atomic(operands[0], place, _ORDER, _ALIGNMENT)


def _compare_and_swap(builder: Any, place: Any, operands: list[Any]) -> Any:
    pair = builder.cmpxchg(place, operands[0], operands[1], _ORDER, _ORDER)
    return builder.extract_value(pair, 1)


_fetch_add = _instruction(
    "fetch_add", types.int64, 1, lambda builder, place, own: builder.atomic_rmw("add", place, own[0], _ORDER)
)
_load = _instruction(
    "load", types.int64, 0, lambda builder, place, own: builder.load_atomic(place, _ORDER, _ALIGNMENT)
)
_store = _instruction("store", types.void, 1, _store_atomic)
_swap_if = _instruction("swap_if", types.boolean, 2, _compare_and_swap)


@overload(fetch_add, strict=False)
def _fetch_add_form(values: Any, at: Any, number: Any) -> Callable[..., Any]:
    def form(values: Any, at: Any, number: Any) -> Any:
        return _fetch_add(values, at, number)

    return form


@overload(load, strict=False)
def _load_form(values: Any, at: Any) -> Callable[..., Any]:
    def form(values: Any, at: Any) -> Any:
        return _load(values, at)

    return form


@overload(store, strict=False)
def _store_form(values: Any, at: Any, number: Any) -> Callable[..., Any]:
    def form(values: Any, at: Any, number: Any) -> None:
        _store(values, at, number)

    return form


@overload(swap_if, strict=False)
def _swap_if_form(values: Any, at: Any, expected: Any, number: Any) -> Callable[..., Any]:
    def form(values: Any, at: Any, expected: Any, number: Any) -> Any:
        return _swap_if(values, at, expected, number)

    return form
