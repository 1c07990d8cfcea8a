"""Store floating-point numbers as integers: decimals without loss, others with a bounded error.

A decimal with some digits after the point is ``n / 10**digits`` for an integer n. If n and the power are
exact in a double, their quotient is the double nearest to the decimal. Then storing n is lossless if the
quotient has the same bits as the number. The encoder checks every quotient; a value that differs from its
quotient (also -0.0, NaN and infinities) is an exception, stored unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._kernels import kernel
from penstock.compression.abc import UnfitError, check
from penstock.compression.codecs.registry import (
    Transform,
    decode_stream,
    encode_light,
    register,
    register_family,
)
from penstock.compression.kernels.bits import Ints
from penstock.compression.node import Node, width_code
from penstock.errors import InvalidUsageError

__all__ = ["MAX_DIGITS", "Decimal", "Quantized", "digits_of"]

MAX_DIGITS = 22
"""10**22 is the greatest power of ten that is exact in a double."""

_POWERS = 10.0 ** np.arange(MAX_DIGITS + 1)
_MIN_VALUES_PER_EXCEPTION = 8  # at most one value in eight may be an exception

Floats = npt.NDArray[np.floating[Any]]


@kernel
def _divide(integers: Ints, power: float, scratch: Any, out: Any) -> None:
    """Write the float nearest to each of up to 1,024 integers divided by `power`.

    A 4-byte float is rounded from a double. To be faster, the kernel first multiplies by the inverse of
    `power`. Each product differs from the quotient only in a few last bits. Both round to the same float,
    unless the product is so close to the midpoint of two floats that these bits decide. If any product is
    that close, the kernel divides all integers.
    """
    n = integers.shape[0]
    doubtful = n if out.itemsize == 8 else 0
    if not doubtful:
        inverse = 1.0 / power
        bits = scratch.view(np.int64)
        for i in range(n):
            scratch[i] = np.float64(integers[i]) * inverse
            doubtful += ((bits[i] - 0x10000000 + 4) & 0x1FFFFFFF) <= 8
            out[i] = scratch[i]
    if doubtful:
        for i in range(n):
            out[i] = np.float64(integers[i]) / power


@kernel
def _to_integers(values: Any, raw: Ints, power: float, out: Ints, positions: Any, most: int) -> int:
    """Write each value's integer, and the positions of exceptions.

    Return the number of exceptions, or -1 if there are too many. `raw` are the bits of `values`. An
    exception gets the integer of the value before it.
    """
    count = 0
    limit = 9007199254740992.0 if values.itemsize == 8 else 2147483520.0
    before = out.dtype.type(0)
    scratch = np.empty(1024)
    quotients = np.empty(1024, values.dtype)
    quotient_bits = quotients.view(raw.dtype)
    for block in range(0, values.shape[0], 1024):
        v, r = values[block : block + 1024], raw[block : block + 1024]
        o = out[block : block + 1024]
        wrong = 0
        for i in range(v.shape[0]):
            scaled = np.rint(np.float64(v[i]) * power)
            fits = np.abs(scaled) < limit
            o[i] = out.dtype.type(scaled if fits else 0.0)
        _divide(o, power, scratch, quotients)
        for i in range(v.shape[0]):
            wrong += quotient_bits[i] != r[i]
        if wrong:
            if count + wrong > most:
                return -1
            for i in range(v.shape[0]):
                if quotient_bits[i] != r[i]:
                    o[i] = before
                    positions[count] = block + i
                    count += 1
                else:
                    before = o[i]
        else:
            before = o[v.shape[0] - 1]
    return count


@kernel
def _from_integers(values: Ints, power: float, out: Any) -> None:
    """Write the float of each integer."""
    scratch = np.empty(1024)
    for block in range(0, values.shape[0], 1024):
        _divide(values[block : block + 1024], power, scratch, out[block : block + 1024])


@kernel
def _to_steps(values: Any, raw: Ints, step: float, bound: float, out: Ints, positions: Any, most: int) -> int:
    """Like `_to_integers`, for multiples of `step`; a value whose error exceeds `bound` is an exception."""
    count = 0
    limit = 9007199254740992.0 if values.itemsize == 8 else 2147483520.0
    before = out.dtype.type(0)
    rounded = np.empty(1, values.dtype)
    for i in range(values.shape[0]):
        value = np.float64(values[i])
        scaled = np.rint(value / step)
        fits = np.abs(scaled) < limit
        if fits:
            rounded[0] = scaled * step
            fits = np.abs(np.float64(rounded[0]) - value) <= bound
        if fits:
            before = out.dtype.type(scaled)
        else:
            if count == most:
                return -1
            positions[count] = i
            count += 1
        out[i] = before
    return count


@kernel
def _from_steps(values: Ints, step: float, out: Any) -> None:
    """Write the float for each number of steps."""
    for i in range(values.shape[0]):
        out[i] = np.float64(values[i]) * step


@kernel
def _count_misfits(values: Any, raw: Ints, power: float, most: int) -> int:
    """Count the values that are not decimals of this power; stop once `most` are found."""
    limit = 9007199254740992.0 if values.itemsize == 8 else 2147483520.0
    quotient = np.empty(1, values.dtype)
    bits = quotient.view(raw.dtype)
    wrong = 0
    for i in range(values.shape[0]):
        scaled = np.rint(np.float64(values[i]) * power)
        fits = np.abs(scaled) < limit
        quotient[0] = np.float64(np.int64(scaled if fits else 0.0)) / power
        if bits[0] != raw[i]:
            wrong += 1
            if wrong > most:
                break
    return wrong


def _floats(values: Ints) -> Floats:
    """Return the stream's bits as floating-point numbers.

    Raises
    ------
    UnfitError
        If the values have neither 4 nor 8 bytes.
    """
    if values.dtype.itemsize < 4:
        raise UnfitError
    return np.ascontiguousarray(values).view(f"f{values.dtype.itemsize}")


def digits_of(values: Ints) -> int | None:
    """Return the fewest decimal places that fit at least 15 in 16 values; None if no number does.

    `values` are a sample of a column: the bits of floating-point numbers.
    """
    floats = _floats(values)
    tolerated = values.size // (2 * _MIN_VALUES_PER_EXCEPTION)
    most = MAX_DIGITS if floats.dtype.itemsize == 8 else 10
    for digits in range(most + 1):
        if _count_misfits(floats, values, float(_POWERS[digits]), tolerated) <= tolerated:
            return digits
    return None


class _AsIntegers(Transform):
    """A codec of floats as integers.

    Children: the integers, the positions of exceptions, and the bits of exceptions.
    """

    def _finish(self, values: Ints, positions: Ints, parameters: bytes) -> Callable[[Node], Node]:
        width, count, exceptions = width_code(values), values.size, values[positions]
        return lambda child: Node(
            self.number,
            width,
            count,
            parameters,
            children=[child, encode_light(positions), encode_light(exceptions)],
        )

    @staticmethod
    def _decode_children(node: Node, start: int, stop: int) -> tuple[Ints, Ints, Ints]:
        """Return the integers, the positions of exceptions, and the exceptions' bits, in a range."""
        check(node.width >= 2 and len(node.children) == 3, "floats have a wrong number of children")
        integers, position_node, exceptions = node.children
        check(integers.width == exceptions.width == node.width, "a child of floats has a wrong type")
        check(position_node.count == exceptions.count, "the numbers of exceptions and positions differ")
        check(position_node.count <= node.count, "there are more exceptions than values")
        positions = decode_stream(position_node).astype(np.int64)
        ascending = bool((np.diff(positions, prepend=-1, append=node.count) > 0).all())
        check(ascending, "an exception lies outside its stream")
        first, last = np.searchsorted(positions, [start, stop]).tolist()
        return (
            decode_stream(integers, node.count, start, stop),
            positions[first:last] - start,
            decode_stream(exceptions, None, first, last),
        )


class Decimal(_AsIntegers):
    """Decimals as integers, bit for bit. Parameters: one byte, the number of digits after the point.

    By default the codec uses the fewest digits that fit the values.
    """

    number = 16

    def __init__(self, digits: int | None = None) -> None:
        self._digits = digits
        self.name = "decimal" if digits is None else f"decimal_{digits}"

    def split(self, values: Ints) -> tuple[Ints, Callable[[Node], Node]]:
        """Return the integers.

        Raises
        ------
        UnfitError
            If more than one value in eight is not such a decimal.
        """
        floats = _floats(values)
        digits = digits_of(values[:4096]) if self._digits is None else self._digits
        if digits is None:
            raise UnfitError
        integers, most = np.empty_like(values), values.size // _MIN_VALUES_PER_EXCEPTION
        positions = np.empty(most, np.int32)
        count = _to_integers(floats, values, float(_POWERS[digits]), integers, positions, most)
        if count < 0:
            raise UnfitError
        return integers, self._finish(values, positions[:count], bytes([digits]))

    def name_of(self, node: Node) -> str:
        """Return the name with its digits."""
        return f"decimal_{node.parameters[0]}"

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return the bits of the floats in the range."""
        has_digits = len(node.parameters) == 1 and node.parameters[0] <= MAX_DIGITS
        check(has_digits, "decimals have an impossible number of digits")
        integers, positions, exceptions = self._decode_children(node, start, stop)
        out = np.empty(integers.size, f"f{integers.dtype.itemsize}")
        _from_integers(integers, float(_POWERS[node.parameters[0]]), out)
        raw: Ints = out.view(node.dtype)
        raw[positions] = exceptions
        return raw


class Quantized(_AsIntegers):
    """Values rounded to multiples of twice an error bound. Only users choose this codec, because it is lossy.

    Parameters: the bound, a double.
    """

    number = 17
    prefix = "quantized_"

    def __init__(self, bound: float) -> None:
        if not (bound > 0.0 and np.isfinite(bound)):
            raise InvalidUsageError("an error bound must be a positive number", bound=bound)
        self._bound = float(bound)
        self.name = f"{self.prefix}{self._bound!r}"

    def split(self, values: Ints) -> tuple[Ints, Callable[[Node], Node]]:
        """Return the integers.

        Raises
        ------
        UnfitError
            If the error of more than one value in eight would exceed the bound.
        """
        floats = _floats(values)
        integers, most = np.empty_like(values), values.size // _MIN_VALUES_PER_EXCEPTION
        positions = np.empty(most, np.int32)
        count = _to_steps(floats, values, 2.0 * self._bound, self._bound, integers, positions, most)
        if count < 0:
            raise UnfitError
        return integers, self._finish(values, positions[:count], np.float64(self._bound).tobytes())

    def name_of(self, node: Node) -> str:
        """Return the name with its bound."""
        return f"{self.prefix}{float(np.frombuffer(node.parameters, np.float64)[0])!r}"

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return approximate floats as the integers with the same bits.

        Each float differs from the original by at most the bound.
        """
        check(len(node.parameters) == 8, "an error bound has a wrong size")
        bound = float(np.frombuffer(node.parameters, np.float64)[0])
        check(bool(np.isfinite(bound)) and bound > 0, "an error bound is no positive number")
        integers, positions, exceptions = self._decode_children(node, start, stop)
        out = np.empty(integers.size, f"f{integers.dtype.itemsize}")
        _from_steps(integers, 2.0 * bound, out)
        raw: Ints = out.view(node.dtype)
        raw[positions] = exceptions
        return raw


def _make_quantized(bound: str) -> Quantized:
    try:
        return Quantized(float(bound))
    except ValueError as error:
        raise InvalidUsageError("an error bound must be a positive number", bound=bound) from error


register(Decimal())
for fixed_digits in range(MAX_DIGITS + 1):
    register(Decimal(fixed_digits))
register_family(Quantized.prefix, _make_quantized, reader=Quantized(1.0))
