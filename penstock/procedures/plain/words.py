"""What procedures do in another way than Python: integers of 64 bits, nulls, and rejections."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from penstock.procedures.compiler.expressions import NO_ROW
from penstock.procedures.compiler.operations import DIVISION_BY_ZERO, NULL, OVERFLOW

__all__ = ["WORDS", "RejectedError", "reject"]

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class RejectedError(Exception):
    """Ends a transaction; its only argument says why."""


def _given(*values: Any) -> None:
    if None in values:
        raise RejectedError(NULL)


def reject(why: str) -> NoReturn:
    """Do what ``abort`` does in a procedure."""
    raise RejectedError(why)


def _operate(sign: str, a: Any, b: Any) -> Any:
    _given(a, b)
    if sign in ("/", "//", "%") and b == 0:
        raise RejectedError(DIVISION_BY_ZERO)
    if sign == "/":
        return float(a) / float(b)
    if not isinstance(a, int) or not isinstance(b, int):
        a, b = (float(one) if isinstance(one, int) else one for one in (a, b))
    made = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // b,
        "%": lambda: a % b,
        "&": lambda: a & b,
        "|": lambda: a | b,
        "^": lambda: a ^ b,
    }[sign]()
    return _whole(made)


def _whole(value: Any) -> Any:
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        raise RejectedError(OVERFLOW)
    return value


def _negate(a: Any) -> Any:
    _given(a)
    # The least literal is the negative of one that is beyond 64 bits.
    return _whole(-a)


def _truth(value: Any) -> bool:
    _given(value)
    return bool(value)


def _compare(left: Any, *rest: Any) -> bool:
    for sign, other in zip(rest[::2], rest[1::2], strict=True):
        right = other()
        if sign not in ("==", "!=") or len(rest) > 2:
            _given(left, right)
        if not {
            "==": lambda a, b: a == b,
            "!=": lambda a, b: a != b,
            "<": lambda a, b: a < b,
            "<=": lambda a, b: a <= b,
            ">": lambda a, b: a > b,
            ">=": lambda a, b: a >= b,
        }[sign](left, right):
            return False
        left = right
    return True


def _there(row: Any) -> Any:
    if row is None:
        raise RejectedError(NO_ROW)
    return row


def _element(values: Any, at: Any) -> Any:
    _given(values, at)
    if isinstance(values, list) and not -len(values) <= at < len(values):
        raise RejectedError("no element")
    return values[at]


def _each(values: Any) -> Any:
    _given(values)
    return values


def _range(*bounds: Any) -> range:
    _given(*bounds)
    if bounds[2:] == (0,):
        raise RejectedError("a step of 0")
    return range(*bounds)


def _int(value: Any) -> int:
    _given(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise RejectedError(OVERFLOW)
    return int(_whole(int(value)))


def _float(value: Any) -> float:
    _given(value)
    return float(value)


def _abs(value: Any) -> Any:
    _given(value)
    return _whole(abs(value))


def _least(*values: Any) -> Any:
    _given(*values)
    return min(values)


def _greatest(*values: Any) -> Any:
    _given(*values)
    return max(values)


def _len(values: Any) -> int:
    _given(values)
    return len(values)


WORDS: dict[str, Any] = {
    "_operate": _operate,
    "_negate": _negate,
    "_truth": _truth,
    "_compare": _compare,
    "_there": _there,
    "_element": _element,
    "_each": _each,
    "range": _range,
    "int": _int,
    "float": _float,
    "abs": _abs,
    "min": _least,
    "max": _greatest,
    "len": _len,
}
