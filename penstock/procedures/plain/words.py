"""Operations that behave differently from Python: integers have 64 bits; nulls and errors are rejections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NoReturn

from penstock.errors import InvalidUsageError
from penstock.procedures.arithmetic import INT64_MAX, INT64_MIN
from penstock.procedures.compiler.expressions import NO_ROW
from penstock.procedures.compiler.operations import DIVISION_BY_ZERO, NULL, OVERFLOW
from penstock.procedures.local.plain_sets import PlainSet
from penstock.procedures.schema import digits_of

__all__ = ["NO_BOUND", "WORDS", "RejectedError", "reject", "to_scale"]

NO_BOUND = object()
"""A null bound of a range."""


class RejectedError(Exception):
    """Ends a transaction; its only argument is the reason."""


def _check_nulls(*values: Any) -> None:
    if None in values:
        raise RejectedError(NULL)


def reject(why: str) -> NoReturn:
    """Reject the transaction, as ``abort`` does."""
    raise RejectedError(why)


def _operate(sign: str, a: Any, b: Any) -> Any:
    _check_nulls(a, b)
    if sign in ("/", "//", "%") and b == 0:
        raise RejectedError(DIVISION_BY_ZERO)
    if Decimal in (type(a), type(b)):
        return _decimals(sign, a, b)
    if sign == "/":
        return float(a) / float(b)
    if not isinstance(a, int) or not isinstance(b, int):
        a, b = (float(number) if isinstance(number, int) else number for number in (a, b))
    result = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // b,
        "%": lambda: a % b,
        "&": lambda: a & b,
        "|": lambda: a | b,
        "^": lambda: a ^ b,
    }[sign]()
    return _check_range(result)


def _decimals(sign: str, a: Any, b: Any) -> Any:
    if sign not in "+-*" or float in (type(a), type(b)):
        raise InvalidUsageError(f"{sign} is not for decimals", hint="convert with int(...) or float(...)")
    if sign == "*":
        (first, scale), (second, second_scale) = (digits_of(Decimal(number)) for number in (a, b))
        return _decimal(first * second, scale + second_scale)
    a, b = _align(a, b)
    (first, scale), (second, _) = digits_of(a), digits_of(b)
    return _decimal(first + second if sign == "+" else first - second, scale)


def _align(a: Any, b: Any) -> tuple[Any, Any]:
    """Return decimals at a common scale; return other values unchanged."""
    if Decimal not in (type(a), type(b)) or None in (a, b):
        return a, b
    if not all(type(number) in (int, Decimal) for number in (a, b)):
        raise InvalidUsageError(
            "a decimal cannot be combined with this value", hint="convert with int(...) or float(...)"
        )
    scales = {digits_of(Decimal(number))[1] for number in (a, b)}
    a, b = (to_scale(number, max(scales)) for number in (a, b))
    if len(scales) > 1:  # equal scales leave the digits unchanged, and a column may have more than 18 digits
        _check_range(digits_of(a)[0])
        _check_range(digits_of(b)[0])
    return a, b


def to_scale(value: Any, scale: int) -> Decimal:
    """Convert an integer or decimal to a decimal with an equal or larger scale."""
    digits, value_scale = digits_of(Decimal(value))
    if value_scale > scale:
        raise InvalidUsageError("a decimal has more digits than its column", scale=scale)
    return _exact(digits * 10 ** (scale - value_scale), scale)


def _decimal(digits: int, scale: int) -> Decimal:
    """Return the decimal of these digits and scale; reject digits beyond 64 bits."""
    return _exact(_check_range(digits), scale)


def _exact(digits: int, scale: int) -> Decimal:
    sign = 1 if digits < 0 else 0
    return Decimal((sign, tuple(map(int, str(abs(digits)))), -scale))


def _check_range(value: Any) -> Any:
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        raise RejectedError(OVERFLOW)
    return value


def _negate(a: Any) -> Any:
    _check_nulls(a)
    if isinstance(a, Decimal):
        digits, scale = digits_of(a)
        return _decimal(-digits, scale)
    # The least literal is the negative of a literal that is beyond 64 bits.
    return _check_range(-a)


def _truth(value: Any) -> bool:
    _check_nulls(value)
    return bool(value)


def _compare(left: Any, *rest: Any) -> bool:
    for sign, operand in zip(rest[::2], rest[1::2], strict=True):
        right = operand()
        if sign not in ("==", "!=") or len(rest) > 2:
            _check_nulls(left, right)
        left, right = _align(left, right)
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


def _check_exists(row: Any) -> Any:
    if row is None:
        raise RejectedError(NO_ROW)
    return row


def _element(values: Any, at: Any) -> Any:
    _check_nulls(values, at)
    if isinstance(values, list) and not -len(values) <= at < len(values):
        raise RejectedError("no element")
    return values[at]


def _check_iterable(values: Any) -> Any:
    _check_nulls(values)
    return values


def _range(*bounds: Any) -> range:
    _check_nulls(*bounds)
    if bounds[2:] == (0,):
        raise RejectedError("a step of 0")
    return range(*bounds)


def _int(value: Any) -> int:
    _check_nulls(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise RejectedError(OVERFLOW)
    return int(_check_range(int(value)))


def _float(value: Any) -> float:
    _check_nulls(value)
    if isinstance(value, Decimal):
        digits, scale = digits_of(value)
        return float(digits) / 10.0**scale
    return float(value)


def _abs(value: Any) -> Any:
    _check_nulls(value)
    if isinstance(value, Decimal):
        digits, scale = digits_of(value)
        return _decimal(abs(digits), scale)
    return _check_range(abs(value))


def _least(*values: Any) -> Any:
    _check_nulls(*values)
    return _pick(min, values)


def _greatest(*values: Any) -> Any:
    _check_nulls(*values)
    return _pick(max, values)


def _pick(choose: Any, values: Sequence[Any]) -> Any:
    """Return the least or the greatest of several values, compared in pairs."""
    choice = values[0]
    for value in values[1:]:
        choice = choose(_align(choice, value))
    return choice


def _len(values: Any) -> int:
    _check_nulls(values)
    return len(values)


def _bound(value: Any) -> Any:
    """Return a bound of a range, so that a null bound differs from an omitted bound."""
    return NO_BOUND if value is None else value


WORDS: dict[str, Any] = {
    "set": lambda: PlainSet(_check_nulls),
    "_bound": _bound,
    "_operate": _operate,
    "_negate": _negate,
    "_truth": _truth,
    "_compare": _compare,
    "_check_exists": _check_exists,
    "_element": _element,
    "_check_iterable": _check_iterable,
    "range": _range,
    "int": _int,
    "float": _float,
    "abs": _abs,
    "min": _least,
    "max": _greatest,
    "len": _len,
}
