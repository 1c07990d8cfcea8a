"""Difference transforms: from a base, from the previous value, from a line.

If `ns` follows, it is fused with the transform into one kernel (`NullSuppression`); the codecs here serve
every other cascade, such as ``delta>run_length`` or ``base_delta>variable_byte``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock._kernels import kernel
from penstock.compression.abc import UnfitError, check
from penstock.compression.codecs.registry import Transform, decode_stream, register
from penstock.compression.kernels.bits import Ints
from penstock.compression.kernels.integer_vectors import running_sum, running_xor
from penstock.compression.node import TYPES, Node, width_code

__all__ = ["BaseDelta", "Delta", "Multiple", "Xor", "divisor_of", "narrow"]


def narrow(values: Ints) -> Ints:
    """Return the values in the narrowest type that holds them."""
    if not values.size:
        return values.astype(np.int8)
    least, most = int(values.min()), int(values.max())
    for kind in TYPES:
        if kind.itemsize >= values.dtype.itemsize:
            break
        if least >= np.iinfo(kind).min and most <= np.iinfo(kind).max:
            return values.astype(kind)
    return values


class BaseDelta(Transform):
    """Values minus the least value, which is in the parameters. Child: the differences."""

    number = 4
    name = "base_delta"

    def split(self, values: Ints) -> tuple[Ints, Callable[[Node], Node]]:
        """Return the differences."""
        base = values.min() if values.size else values.dtype.type(0)
        with np.errstate(over="ignore"):
            rest = narrow(values - base)
        width, count, parameters = width_code(values), values.size, base.tobytes()
        return rest, lambda child: Node(self.number, width, count, parameters, children=[child])

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return the sums."""
        child = _only_child(node)
        check(len(node.parameters) == node.dtype.itemsize, "a base has a wrong size")
        base = np.frombuffer(node.parameters, node.dtype)[0]
        with np.errstate(over="ignore"):
            return decode_stream(child, node.count, start, stop).astype(node.dtype) + base


class Multiple(Transform):
    """Differences from the first value as multiples of a divisor. Parameters: divisor, first value.

    Useful for times stored in a finer unit than measured, and for prices in steps of five. Child: the
    factors.
    """

    number = 14
    name = "multiple"

    def split(self, values: Ints) -> tuple[Ints, Callable[[Node], Node]]:
        """Return the factors.

        Raises
        ------
        UnfitError
            If the greatest common divisor is 1.
        """
        divisor, factors = _factors_of(values)
        if divisor < 2:
            raise UnfitError
        rest = narrow(factors)
        parameters = divisor.to_bytes(8, "little") + values[:1].tobytes()
        width, count = width_code(values), values.size
        return rest, lambda child: Node(self.number, width, count, parameters, children=[child])

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return the products."""
        child = _only_child(node)
        check(len(node.parameters) == 8 + node.dtype.itemsize, "a divisor has a wrong size")
        divisor = np.frombuffer(node.parameters, np.int64, 1)[0]
        first = np.frombuffer(node.parameters[8:], node.dtype)[0]
        with np.errstate(over="ignore"):
            offsets = decode_stream(child, node.count, start, stop).astype(np.int64) * divisor
            return offsets.astype(node.dtype) + first


def divisor_of(values: Ints) -> int:
    """Return the greatest common divisor of all differences of two values; 1 if a difference overflows."""
    return _factors_of(values)[0]


def _factors_of(values: Ints) -> tuple[int, Ints]:
    """Return `divisor_of` the values, and each value's difference from the first value, divided by it."""
    factors = np.zeros(values.size, np.int64)
    if values.size < 2 or int(values.max()) - int(values.min()) >= 1 << 63:
        return 1, factors
    return int(_divide(values, factors)), factors


@kernel
def _divide(values: Ints, out: Any) -> int:
    """Divide each difference from the first value by the common divisor; return the divisor.

    The divisor is 0 if all values are equal. To divide by an odd number, multiply by its inverse modulo
    2**64. A difference that is not a multiple of the odd number gives a product greater than every quotient.
    If the divisor's power of two does not divide a difference, the quotient times the divisor differs from
    the difference. Products are unsigned, because the compiler may assume that signed products never
    overflow.
    """
    first = np.int64(values[0])
    divisor: Any = np.int64(0)
    begin = 0
    while begin < values.shape[0]:
        if divisor == 1:
            break
        power = 0
        while divisor and not (divisor >> power) & 1:
            power += 1
        odd = divisor >> power
        inverse = np.uint64(odd)
        for _ in range(5):
            inverse *= np.uint64(2) - np.uint64(odd) * inverse
        most = np.int64(0x7FFFFFFFFFFFFFFF) // max(odd, 1)
        end = min(begin + 1024, values.shape[0])
        rests = 0
        for i in range(begin, end):
            offset = np.int64(values[i]) - first
            product = np.uint64(offset >> power) * inverse
            out[i] = np.int64(product)
            divides = product * np.uint64(divisor) == np.uint64(offset)
            rests += (not divides) | (out[i] > most) | (out[i] < -most)
        if rests:
            for i in range(begin, end):
                a, b = divisor, np.int64(values[i]) - first
                while b:
                    a, b = b, a % b
                divisor = abs(a)
            begin = 0
        else:
            begin = end
    return divisor


@kernel
def _add_up(values: Any, first: Any) -> None:
    running_sum(values, first)


@kernel
def _join(values: Any, first: Any) -> None:
    running_xor(values, first)


class Delta(Transform):
    """Each value minus the previous value. The first value is in the parameters. Child: the differences.

    The delta of deltas is the cascade ``delta>delta``. Random access decodes all earlier values.
    """

    number = 5
    name = "delta"
    difference: np.ufunc = np.subtract
    undo: Callable[[Ints, Any], None] = staticmethod(_add_up)

    def split(self, values: Ints) -> tuple[Ints, Callable[[Node], Node]]:
        """Return the differences."""
        with np.errstate(over="ignore"):
            rest = narrow(self.difference(values[1:], values[:-1]))
        width, count, first = width_code(values), values.size, values[:1].tobytes()
        return rest, lambda child: Node(self.number, width, count, first, children=[child])

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return the running sums."""
        child = _only_child(node)
        check(
            len(node.parameters) == node.dtype.itemsize * bool(node.count), "a first value has a wrong size"
        )
        check(child.count == max(node.count - 1, 0), "the number of differences does not match their parent")
        out = np.zeros(stop, node.dtype)
        if stop:
            out[1:] = decode_stream(child, None, 0, stop - 1)
            self.undo(out, np.frombuffer(node.parameters, node.dtype)[0])
        return out[start:]


class Xor(Delta):
    """Like `Delta`, but stores the bits in which each value differs from the previous (Scabbard Table 2)."""

    number = 6
    name = "xor"
    difference = np.bitwise_xor
    undo = staticmethod(_join)


def _only_child(node: Node) -> Node:
    check(len(node.children) == 1, "differences have a wrong number of children")
    return node.children[0]


register(BaseDelta())
register(Multiple())
register(Delta())
register(Xor())
