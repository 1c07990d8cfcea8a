"""Dictionary: store each distinct value once, and a code for each value (Scabbard Table 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock._kernels import GOLDEN, kernel
from penstock.compression.abc import UnfitError, check
from penstock.compression.codecs.registry import Transform, decode_stream, encode_light, register
from penstock.compression.kernels.bits import Ints, seal
from penstock.compression.kernels.integer_vectors import bit_length
from penstock.compression.kernels.text import code_type
from penstock.compression.node import Node, width_code

__all__ = ["MAX_DISTINCT", "Dictionary", "codes_of", "look_up"]

MAX_DISTINCT = 1 << 16
"""A stream with more distinct values gets no dictionary."""

_EMPTY = -1
_MAX_DISTINCT_IN_SMALL_TABLE = 1 << 10
_ROWS_FOR_TABLE = 1 << 14
"""For at least this many two-byte values, a table of all possible values is faster than hashing."""


@kernel
def _assign_codes(values: Ints, table: Any, distinct: Any, codes: Any, most: int) -> int:
    """Assign codes to distinct values in order of appearance; return their number, or -1 if too many.

    The number of slots of `table` is a power of two, and at least twice `most`. Each slot is -1 at first.
    """
    mask = np.uint64(table.shape[0] - 1)
    # Use the highest bits of the product as the hash, because they depend on all bits of the value.
    unused = np.uint64(65 - bit_length(np.uint64(table.shape[0])))
    count = 0
    for i in range(values.shape[0]):
        value = values[i]
        slot = (np.uint64(value) * GOLDEN) >> unused
        code = table[slot]
        while code >= 0 and distinct[code] != value:
            slot = (slot + np.uint64(1)) & mask
            code = table[slot]
        if code < 0:
            if count == most:
                return -1
            code = count
            table[slot] = code
            distinct[code] = value
            count += 1
        codes[i] = code
    return count


@kernel
def _mark(values: Any, marks: Any) -> None:
    """Mark the values that occur; they are unsigned."""
    for i in range(values.shape[0]):
        marks[values[i]] = 1


@kernel
def _recode(codes: Any, rank: Any, out: Any) -> None:
    """Replace each code by its rank."""
    for i in range(codes.shape[0]):
        out[i] = rank[codes[i]]


@kernel
def _look_up(codes: Any, values: Ints, out: Ints) -> int:
    """Write the value of each code that has one; return the number of codes without a value."""
    size = np.uint64(values.shape[0])
    wrong: Any = 0
    for i in range(codes.shape[0]):
        wrong += np.uint64(np.int64(codes[i])) >= size
    if not wrong:
        for i in range(codes.shape[0]):
            out[i] = values[np.uint64(np.int64(codes[i]))]
    return wrong


def codes_of(values: Ints, most: int = MAX_DISTINCT) -> tuple[Ints, Ints] | None:
    """Return the distinct values in ascending order, and each value's index among them.

    Return None if there are more than `most`.
    """
    most = max(1, min(most, values.size))
    if values.dtype.itemsize == 1 or (values.dtype.itemsize == 2 and values.size >= _ROWS_FOR_TABLE):
        return _codes_by_table(values, most)
    codes = np.empty(values.size, np.int32)
    # Try a small table first: it stays in the first-level cache, and most streams that suit a dictionary fit.
    distinct = _distinct(values, codes, min(most, _MAX_DISTINCT_IN_SMALL_TABLE))
    if distinct is None and most > _MAX_DISTINCT_IN_SMALL_TABLE:
        distinct = _distinct(values, codes, most)
    if distinct is None:
        return None
    order = np.argsort(distinct)
    rank: Ints = np.empty(order.size, code_type(order.size))
    rank[order] = np.arange(order.size, dtype=rank.dtype)
    out: Ints = np.empty(values.size, rank.dtype)
    _recode(codes, rank, out)
    return distinct[order], out


def _codes_by_table(values: Ints, most: int) -> tuple[Ints, Ints] | None:
    """Like `codes_of`, for values of one or two bytes, with a table of all possible values."""
    places = seal(values).view(f"u{values.dtype.itemsize}")
    marks = np.zeros(1 << 8 * values.dtype.itemsize, np.uint8)
    _mark(places, marks)
    distinct = np.sort(np.flatnonzero(marks).astype(places.dtype).view(values.dtype))
    if distinct.size > most:
        return None
    rank: Ints = np.empty(marks.size, code_type(distinct.size))
    rank[distinct.view(places.dtype)] = np.arange(distinct.size, dtype=rank.dtype)
    out: Ints = np.empty(values.size, rank.dtype)
    _recode(places, rank, out)
    return distinct, out


def _distinct(values: Ints, codes: Any, most: int) -> Ints | None:
    """Return the distinct values in order of appearance, and write the codes; None if they exceed `most`."""
    table = np.full(1 << (2 * most - 1).bit_length(), _EMPTY, np.int32)
    distinct = np.empty(most, values.dtype)
    count = _assign_codes(values, table, distinct, codes, most)
    return None if count < 0 else distinct[:count]


def look_up(codes: Ints, values: Ints) -> Ints:
    """Return the value of each code.

    Raises
    ------
    CorruptDataError
        If a code has no value.
    """
    out = np.empty(codes.size, values.dtype)
    check(_look_up(codes, values, out) == 0, "a code has no value in its dictionary")
    return out


class Dictionary(Transform):
    """Children: the codes, and the distinct values in ascending order."""

    number = 8
    name = "dictionary"

    def split(self, values: Ints) -> tuple[Ints, Callable[[Node], Node]]:
        """Return the codes.

        Raises
        ------
        UnfitError
            If there are more than `MAX_DISTINCT` distinct values.
        """
        result = codes_of(values)
        if result is None:
            raise UnfitError
        distinct, codes = result
        width, count = width_code(values), values.size
        return codes, lambda child: Node(self.number, width, count, children=[child, encode_light(distinct)])

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return the values, looked up for the codes in the range."""
        check(len(node.children) == 2, "a dictionary has a wrong number of children")
        codes, values = node.children
        check(values.width == node.width, "a dictionary's values have a wrong type")
        return look_up(decode_stream(codes, node.count, start, stop), decode_stream(values))


register(Dictionary())
