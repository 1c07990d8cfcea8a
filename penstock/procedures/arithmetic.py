"""Overflow checks for arithmetic with 64-bit integers.

Python runs these functions; compiled code reads the processor's overflow flag instead.
"""

from __future__ import annotations

from penstock.compression.kernels.instructions import use_overflow_flag

__all__ = ["LEAST", "MOST", "add_overflows", "multiply_overflows", "subtract_overflows"]

LEAST = -(1 << 63)
MOST = (1 << 63) - 1

_HALF = 1 << 31


@use_overflow_flag("sadd")
def add_overflows(a: int, b: int) -> bool:
    """Return whether a + b is beyond 64 bits."""
    return (b > 0 and a > MOST - b) or (b < 0 and a < LEAST - b)


@use_overflow_flag("ssub")
def subtract_overflows(a: int, b: int) -> bool:
    """Return whether a - b is beyond 64 bits."""
    return (b < 0 and a > MOST + b) or (b > 0 and a < LEAST + b)


@use_overflow_flag("smul")
def multiply_overflows(a: int, b: int) -> bool:
    """Return whether a * b is beyond 64 bits."""
    if -_HALF <= a < _HALF and -_HALF <= b < _HALF:
        return False
    if a == 0 or b == 0:
        return False
    if a > 0:
        # The least integer is -MOST - 1, so the bound falls by one if `a` divides MOST + 1.
        return b > MOST // a if b > 0 else b < -(MOST // a) - (1 if MOST % a == a - 1 else 0)
    if b > 0:
        return a < -(MOST // b) - (1 if MOST % b == b - 1 else 0)
    return LEAST in (a, b) or -a > MOST // -b
