"""Arithmetic of 64 bits that tells where a result is beyond them."""

from __future__ import annotations

from penstock._kernels import kernel

__all__ = ["LEAST", "MOST", "add_overflows", "multiply_overflows", "subtract_overflows"]

LEAST = -(1 << 63)
MOST = (1 << 63) - 1

_HALF = 1 << 31


@kernel
def add_overflows(a: int, b: int) -> bool:
    """Say whether a + b is beyond 64 bits."""
    return (b > 0 and a > MOST - b) or (b < 0 and a < LEAST - b)


@kernel
def subtract_overflows(a: int, b: int) -> bool:
    """Say whether a - b is beyond 64 bits."""
    return (b < 0 and a > MOST + b) or (b > 0 and a < LEAST + b)


@kernel
def multiply_overflows(a: int, b: int) -> bool:
    """Say whether a * b is beyond 64 bits."""
    if -_HALF <= a < _HALF and -_HALF <= b < _HALF:
        return False
    if a == 0 or b == 0:
        return False
    if a > 0:
        # Rounded towards minus infinity, which for the least product is one too far unless it is exact.
        return b > MOST // a if b > 0 else b < -(MOST // a) - (1 if MOST % a == a - 1 else 0)
    if b > 0:
        return a < -(MOST // b) - (1 if MOST % b == b - 1 else 0)
    return LEAST in (a, b) or -a > MOST // -b
