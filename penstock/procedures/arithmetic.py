"""Overflow checks for arithmetic with 64-bit integers.

Python runs these functions; compiled code reads the processor's overflow flag instead.
"""

from __future__ import annotations

from penstock.compression.kernels.instructions import use_overflow_flag

__all__ = ["INT64_MAX", "INT64_MIN", "add_overflows", "multiply_overflows", "subtract_overflows"]

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1

_HALF = 1 << 31


@use_overflow_flag("sadd")
def add_overflows(a: int, b: int) -> bool:
    """Return whether a + b is beyond 64 bits."""
    return (b > 0 and a > INT64_MAX - b) or (b < 0 and a < INT64_MIN - b)


@use_overflow_flag("ssub")
def subtract_overflows(a: int, b: int) -> bool:
    """Return whether a - b is beyond 64 bits."""
    return (b < 0 and a > INT64_MAX + b) or (b > 0 and a < INT64_MIN + b)


@use_overflow_flag("smul")
def multiply_overflows(a: int, b: int) -> bool:
    """Return whether a * b is beyond 64 bits."""
    if -_HALF <= a < _HALF and -_HALF <= b < _HALF:
        return False
    if a == 0 or b == 0:
        return False
    if a > 0:
        # The least integer is -INT64_MAX - 1, so the bound falls by one if `a` divides INT64_MAX + 1.
        return b > INT64_MAX // a if b > 0 else b < -(INT64_MAX // a) - (1 if INT64_MAX % a == a - 1 else 0)
    if b > 0:
        return a < -(INT64_MAX // b) - (1 if INT64_MAX % b == b - 1 else 0)
    return INT64_MIN in (a, b) or -a > INT64_MAX // -b
