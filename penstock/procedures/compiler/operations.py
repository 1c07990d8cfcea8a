"""Compile arithmetic, comparisons and conversions. Arithmetic fails where Spark's arithmetic fails."""

from __future__ import annotations

import ast
import math
from decimal import Decimal

from penstock.procedures.compiler.output import Output
from penstock.procedures.compiler.values import Value
from penstock.procedures.schema import MAX_DIGITS, WIDE_HINT, Kind, conversion_hint, digits_of

__all__ = [
    "COMPARISONS",
    "DIVISION_BY_ZERO",
    "NULL",
    "OPERATORS",
    "OVERFLOW",
    "OperationError",
    "align",
    "as_decimal",
    "as_float",
    "as_integer",
    "compare",
    "decimal",
    "negate",
    "no_number",
    "non_finite",
    "operate",
    "pick",
]

NULL = "null"
OVERFLOW = "overflow"
DIVISION_BY_ZERO = "division by zero"

OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_CHECKED = {"+": "add_overflows", "-": "subtract_overflows", "*": "multiply_overflows"}
_INT64_MIN = "INT64_MIN"
_IN_THE_EVENT = "convert it before, and put it into the event"


class OperationError(Exception):
    """The operands' kinds do not support the operation; the error's arguments are the fact and a hint."""


def no_number(operator: str, kind: Kind) -> OperationError:
    """Return the error for an operand that is not a number."""
    hint = "write 1 if ... else 0" if kind is Kind.BOOLEAN else _IN_THE_EVENT
    if kind.wide is not None:
        hint = WIDE_HINT
    return OperationError(f"{operator} is for numbers, not for {kind}", hint)


def operate(out: Output, sign: str, a: Value, b: Value) -> Value:
    """Return the result of an operator of arithmetic; neither value is null."""
    kinds = {a.kind, b.kind}
    for kind in (a.kind, b.kind):
        if not kind.is_number:
            raise no_number(sign, kind)
    if any(kind.scale is not None for kind in kinds):
        return _decimals(out, sign, a, b)
    if sign == "/":
        a, b = as_float(out, a), as_float(out, b)
        out.fail(f"{b.code} == 0.0", DIVISION_BY_ZERO)
        return Value(Kind.FLOAT, out.keep(f"{a.code} / {b.code}"))
    if kinds == {Kind.INTEGER}:
        return Value(Kind.INTEGER, _integers(out, sign, a.code, b.code))
    if sign not in "+-*":
        raise OperationError(f"{sign} is for integers", "convert with int(...)")
    a, b = as_float(out, a), as_float(out, b)
    return Value(Kind.FLOAT, out.keep(f"{a.code} {sign} {b.code}"))


def _decimals(out: Output, sign: str, a: Value, b: Value) -> Value:
    """Return the exact result of an operator on decimals, or on a decimal and an integer."""
    if sign not in "+-*":
        raise OperationError(f"{sign} is not for decimals", "convert with int(...) or float(...)")
    if sign == "*":
        scale = (a.kind.scale or 0) + (b.kind.scale or 0)
        if Kind.FLOAT in (a.kind, b.kind) or scale > MAX_DIGITS:
            raise OperationError(
                f"{a.kind} * {b.kind} is not supported", "convert with int(...) or float(...)"
            )
        return Value(Kind.decimal(scale), _integers(out, sign, a.code, b.code))
    a, b = align(out, a, b)
    return Value(a.kind, _integers(out, sign, a.code, b.code))


def decimal(value: Decimal) -> Value | None:
    """Return a decimal as a constant; None if no constant can hold it."""
    digits, scale = digits_of(value) if value.is_finite() else (0, MAX_DIGITS + 1)
    if scale > MAX_DIGITS or not -(1 << 63) < digits < 1 << 63:
        return None
    return Value(Kind.decimal(scale), f"({digits})", decimal=value)


def non_finite(value: float) -> str:
    """Return the code of an infinite float or NaN."""
    return "np.nan" if math.isnan(value) else ("np.inf" if value > 0 else "(-np.inf)")


def align(out: Output, a: Value, b: Value) -> tuple[Value, Value]:
    """Return decimals and integers at a common scale; return other values unchanged."""
    scales = (a.kind.scale, b.kind.scale)
    if scales == (None, None) or a.kind.wide or b.kind.wide:
        return a, b
    if any(value.kind.scale is None and value.kind is not Kind.INTEGER for value in (a, b)):
        raise OperationError(
            f"{a.kind} cannot be combined with {b.kind}", "convert with int(...) or float(...)"
        )
    scale = max(scale or 0 for scale in scales)
    return as_decimal(out, a, scale), as_decimal(out, b, scale)


def as_decimal(out: Output, a: Value, scale: int) -> Value:
    """Convert an integer or decimal to a decimal with an equal or larger scale."""
    missing = scale - (a.kind.scale or 0)
    kind = Kind.decimal(scale)
    if missing == 0:
        return Value(kind, a.code, a.null, a.origin if a.kind is kind else None)
    factor = 10**missing
    bound = ((1 << 63) - 1) // factor
    outside = f"{a.code} > {bound} or {a.code} < {-bound}"
    out.fail(f"not {a.null} and ({outside})" if a.null else outside, OVERFLOW)
    return Value(kind, out.keep(f"{a.code} * {factor}"), a.null)


def _integers(out: Output, sign: str, a: str, b: str) -> str:
    if sign in _CHECKED:
        out.fail(f"{_CHECKED[sign]}({a}, {b})", OVERFLOW)
    if sign not in ("//", "%"):
        return out.keep(f"{a} {sign} {b}")
    out.fail(f"{b} == 0", DIVISION_BY_ZERO)
    if sign == "//":
        out.fail(f"{b} == -1 and {a} == {_INT64_MIN}", OVERFLOW)
    quotient = out.temporary()
    # The processor traps if it divides the least integer by -1.
    with out.block(f"if {b} == -1:"):
        out.line(f"{quotient} = -{a}" if sign == "//" else f"{quotient} = 0")
    with out.block("else:"):
        out.line(f"{quotient} = {a} {sign} {b}")
    return quotient


def negate(out: Output, a: Value) -> Value:
    """Return a number with the opposite sign."""
    if not a.kind.is_number:
        raise no_number("-", a.kind)
    if a.kind is not Kind.FLOAT:
        out.fail(f"{a.code} == {_INT64_MIN}", OVERFLOW)
    return Value(a.kind, f"(-{a.code})")


def as_float(out: Output, a: Value) -> Value:
    """Convert a number to a float."""
    if a.kind is Kind.FLOAT:
        return a
    if a.kind.is_interned:
        raise OperationError(f"a {a.kind} cannot be converted", _IN_THE_EVENT)
    if a.kind.scale is not None:
        return Value(Kind.FLOAT, f"(np.float64({a.code}) / {10.0**a.kind.scale!r})", a.null)
    return Value(Kind.FLOAT, f"np.float64({a.code})", a.null)


def as_integer(out: Output, a: Value) -> Value:
    """Convert a number to an integer, truncated as Python's ``int`` does."""
    if a.kind is Kind.INTEGER:
        return a
    if a.kind.is_interned:
        raise OperationError(f"a {a.kind} cannot be converted", _IN_THE_EVENT)
    if a.kind.scale is not None:
        # Truncate, although // rounds down.
        factor = 10**a.kind.scale
        floor = out.keep(f"{a.code} // {factor}")
        return Value(Kind.INTEGER, f"({floor} + ({floor} < 0 and {floor} * {factor} != {a.code}))", a.null)
    if a.kind is Kind.FLOAT:
        # A comparison in this form refuses NaN, too.
        out.fail(f"not (-9223372036854775808.0 <= {a.code} < 9223372036854775808.0)", OVERFLOW)
    return Value(Kind.INTEGER, f"np.int64({a.code})")


def compare(out: Output, sign: str, a: Value, b: Value) -> Value:
    """Return whether a comparison holds; the caller handles nulls."""
    a, b = align(out, a, b)
    kinds = {a.kind, b.kind}
    if kinds == {Kind.INTEGER, Kind.FLOAT}:
        raise OperationError("an integer is compared with a float", "convert with int(...) or float(...)")
    if len(kinds) != 1:
        raise OperationError(f"{a.kind} is compared with {b.kind}", conversion_hint(b.kind, a.kind))
    if not a.kind.is_number and sign not in ("==", "!="):
        other = f"; for {sign} {WIDE_HINT}" if a.kind.wide else ""
        raise OperationError(f"{sign} is for numbers", f"{a.kind} compares with == and !={other}")
    return Value(Kind.BOOLEAN, f"({a.code} {sign} {b.code})")


def pick(out: Output, name: str, a: Value, b: Value) -> Value:
    """Return the smaller or larger of two numbers; the first number if both are equal."""
    sign = "<" if name == "min" else ">"
    a, b = align(out, a, b)
    picks_second = compare(out, sign, b, a)
    if not a.kind.is_number:
        raise no_number(name, a.kind)
    return Value(a.kind, out.keep(f"{b.code} if {picks_second.code} else {a.code}"))
