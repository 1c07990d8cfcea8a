"""Operations on values: arithmetic that fails where Spark's does, comparisons, conversions."""

from __future__ import annotations

import ast

from penstock.procedures.compiler.output import Output
from penstock.procedures.compiler.values import Value
from penstock.procedures.schema import Kind

__all__ = [
    "COMPARISONS",
    "DIVISION_BY_ZERO",
    "NULL",
    "OPERATORS",
    "OVERFLOW",
    "OperationError",
    "as_float",
    "as_integer",
    "compare",
    "negate",
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
_LEAST = "LEAST"


class OperationError(Exception):
    """An operation that values of these kinds do not have: the fact and a hint."""


def operate(out: Output, sign: str, a: Value, b: Value) -> Value:
    """Return the result of an operator of arithmetic; neither value is null."""
    kinds = {a.kind, b.kind}
    if kinds - {Kind.INTEGER, Kind.FLOAT}:
        wrong = next(kind for kind in (a.kind, b.kind) if kind not in (Kind.INTEGER, Kind.FLOAT))
        raise OperationError(f"{sign} is for numbers, not for {wrong}", None)
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


def _integers(out: Output, sign: str, a: str, b: str) -> str:
    if sign in _CHECKED:
        out.fail(f"{_CHECKED[sign]}({a}, {b})", OVERFLOW)
    if sign not in ("//", "%"):
        return out.keep(f"{a} {sign} {b}")
    out.fail(f"{b} == 0", DIVISION_BY_ZERO)
    if sign == "//":
        out.fail(f"{b} == -1 and {a} == {_LEAST}", OVERFLOW)
    made = out.temporary()
    # The processor traps where it divides the least integer by -1.
    with out.block(f"if {b} == -1:"):
        out.line(f"{made} = -{a}" if sign == "//" else f"{made} = 0")
    with out.block("else:"):
        out.line(f"{made} = {a} {sign} {b}")
    return made


def negate(out: Output, a: Value) -> Value:
    """Return a number with the other sign."""
    if a.kind is Kind.INTEGER:
        out.fail(f"{a.code} == {_LEAST}", OVERFLOW)
    elif a.kind is not Kind.FLOAT:
        raise OperationError(f"- is for numbers, not for {a.kind}", None)
    return Value(a.kind, f"(-{a.code})")


def as_float(out: Output, a: Value) -> Value:
    """Return a number as a float."""
    if a.kind is Kind.FLOAT:
        return a
    if a.kind is Kind.TEXT:
        raise OperationError("a text is not converted", None)
    return Value(Kind.FLOAT, f"np.float64({a.code})", a.null)


def as_integer(out: Output, a: Value) -> Value:
    """Return a number as an integer, cut as Python's ``int`` does."""
    if a.kind is Kind.INTEGER:
        return a
    if a.kind is Kind.TEXT:
        raise OperationError("a text is not converted", None)
    if a.kind is Kind.FLOAT:
        # Written so that NaN is refused, too.
        out.fail(f"not (-9223372036854775808.0 <= {a.code} < 9223372036854775808.0)", OVERFLOW)
    return Value(Kind.INTEGER, f"np.int64({a.code})")


def compare(out: Output, sign: str, a: Value, b: Value) -> Value:
    """Return whether a comparison holds; the caller sees to nulls."""
    kinds = {a.kind, b.kind}
    if kinds == {Kind.INTEGER, Kind.FLOAT}:
        raise OperationError("an integer is compared with a float", "convert with int(...) or float(...)")
    if len(kinds) != 1:
        raise OperationError(f"{a.kind} is compared with {b.kind}", None)
    if a.kind in (Kind.TEXT, Kind.BOOLEAN) and sign not in ("==", "!="):
        raise OperationError(f"{sign} is for numbers", "texts and booleans compare with == and !=")
    return Value(Kind.BOOLEAN, f"({a.code} {sign} {b.code})")


def pick(out: Output, name: str, a: Value, b: Value) -> Value:
    """Return the least or the greatest of two numbers, the first one where they are equal."""
    sign = "<" if name == "min" else ">"
    chosen = compare(out, sign, b, a)
    if a.kind not in (Kind.INTEGER, Kind.FLOAT):
        raise OperationError(f"{name} is for numbers, not for {a.kind}", None)
    return Value(a.kind, out.keep(f"{b.code} if {chosen.code} else {a.code}"))
