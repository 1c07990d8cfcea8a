"""Null suppression: the kernels that pack sub-blocks of integers into few bits, and unpack them.

A sub-block has `SUB_BLOCK` values. Each value is packed as its offset from zero, from the sub-block's least
value, from the previous value, or from a straight line through the previous two (`Step`). Steps and packing
run in one pass over a sub-block, which stays in the first cache. All arithmetic wraps around, so every value
of a type round-trips; all values are signed integers.

A full sub-block of width w takes ``128 * w`` bytes. The offsets are arranged in rows of ``1024 / T`` lanes,
where T is the least of 8, 16, 32 and 64 that is at least w: offset i is in lane ``i % lanes`` of row ``i //
lanes``. The offsets of a lane follow one another without gaps in words of T bits, bit 0 first. Word k of all
lanes comes before word k + 1 of any lane. So one shift serves all lanes of a row, and compilers turn rows
into vector instructions. The last sub-block, when it is not full, is one run of bits instead, bit 0 of the
first byte first, in ``ceil(count * w / 8)`` bytes.

If `patched`, a width may be less than the widest offset needs. The high bits of the few offsets that do not
fit are exceptions, stored separately with their positions.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from penstock._kernels import kernel
from penstock.compression.kernels.integer_vectors import (
    bit_length,
    pack_words,
    running_sum,
    running_xor,
    unpack_words,
)

__all__ = [
    "SUB_BLOCK",
    "Bytes",
    "Ints",
    "Packed",
    "Step",
    "ends_of",
    "finish",
    "pack",
    "seal",
    "unpack",
    "unpack_offsets",
]

SUB_BLOCK = 1024
"""Values in a sub-block, the unit of random access."""

Ints = npt.NDArray[np.signedinteger[Any]]
Bytes = npt.NDArray[np.uint8]
Words = TypeVar("Words", bound=npt.NDArray[Any])


def seal(values: Words) -> Words:
    """Return a stream read-only, so that kernels are compiled only for read-only arrays."""
    if values.flags.writeable:
        values = values.view()
        values.flags.writeable = False
    return values


class Step(IntEnum):
    """The reference from which offsets are counted."""

    NONE = 0
    BASE_DELTA = 1
    DELTA = 2
    DELTA_OF_DELTA = 3
    XOR = 4


class Packed(NamedTuple):
    """Sub-blocks of packed offsets, and the data to decode them.

    Parameters
    ----------
    step : Step
        The reference of the offsets.
    widths : (sub-blocks,) int8
        The number of bits of an offset.
    bases : (sub-blocks,) of the values' type
        The least offset, which is subtracted from all offsets; for XOR, the number of low zero bits cut off;
        for NONE, 0.
    firsts : (sub-blocks, 2) of the values' type
        The first values, which have no predecessor: one for DELTA and XOR, two for DELTA_OF_DELTA.
    exceptions : (sub-blocks,) or (0,) int16
        The number of offsets that do not fit; empty without patching.
    positions, highs : (all exceptions,) int16 and of the values' width
        The positions of exceptions in the sub-block, and the exceptions' bits beyond the width.
    payload : Bytes
        The sub-blocks, one after the other.
    """

    step: Step
    widths: Ints
    bases: Ints
    firsts: Ints
    exceptions: Ints
    positions: Ints
    highs: Ints
    payload: Bytes


@kernel
def _pack_run(values: Any, base: Any, width: int, out: Bytes) -> None:
    """Subtract `base` from values, and pack them as one run of bits."""
    for i in range((values.shape[0] * width + 7) // 8):
        out[i] = 0
    at = 0
    for i in range(values.shape[0]):
        value = np.uint64(values[i]) - np.uint64(base)
        left = width
        while left > 0:
            room = 8 - (at & 7)
            take = min(room, left)
            out[at >> 3] |= np.uint8((value & np.uint64((1 << take) - 1)) << np.uint64(at & 7))
            value >>= np.uint64(take)
            at += take
            left -= take


@kernel
def _unpack_run(x: Bytes, width: int, base: Any, out: Any) -> None:
    """Undo `_pack_run`."""
    at = 0
    for i in range(out.shape[0]):
        value = np.uint64(0)
        count = 0
        while count < width:
            room = 8 - (at & 7)
            take = min(room, width - count)
            bits = (np.uint64(x[at >> 3]) >> np.uint64(at & 7)) & np.uint64((1 << take) - 1)
            value |= bits << np.uint64(count)
            at += take
            count += take
        out[i] = out.dtype.type(value) + base


@kernel
def _pack_offsets(values: Any, base: Any, width: int, out: Bytes, at: int) -> int:
    """Pack a sub-block's values less `base` in the narrowest words that hold them; return the size."""
    count = values.shape[0]
    if count < 1024:
        _pack_run(values, base, width, out[at:])
        return (count * width + 7) // 8
    if width == 0:
        return 0
    if width <= 8:
        pack_words(values, base, width, np.uint8(0), out, at)
    elif width <= 16:
        pack_words(values, base, width, np.uint16(0), out, at)
    elif width <= 32:
        pack_words(values, base, width, np.uint32(0), out, at)
    else:
        pack_words(values, base, width, np.uint64(0), out, at)
    return 128 * width


@kernel
def unpack_offsets(x: Bytes, at: int, width: int, base: Any, out: Any) -> None:
    """Unpack a sub-block's offsets from byte `at` on, each plus `base`."""
    if out.shape[0] < 1024:
        _unpack_run(x[at:], width, base, out)
    elif width == 0:
        for i in range(1024):
            out[i] = base
    elif width <= 8:
        unpack_words(x, at, width, np.uint8(0), base, out)
    elif width <= 16:
        unpack_words(x, at, width, np.uint16(0), base, out)
    elif width <= 32:
        unpack_words(x, at, width, np.uint32(0), base, out)
    else:
        unpack_words(x, at, width, np.uint64(0), base, out)


@kernel
def _cheapest_width(offsets: Any, widest: int, counts: Any) -> int:
    """Return the width that takes the fewest bits.

    An exception takes 16 bits for its position, plus its high bits.
    """
    for width in range(65):
        counts[width] = 0
    for i in range(offsets.shape[0]):
        counts[bit_length(offsets[i])] += 1
    count = offsets.shape[0]
    best, best_cost, exceptions = widest, widest * count, 0
    for width in range(widest - 1, -1, -1):
        exceptions += counts[width + 1]
        if exceptions * 8 > count:
            break
        cost = width * count + exceptions * (16 + widest - width)
        if cost < best_cost:
            best, best_cost = width, cost
    return best


@kernel
def _steps(v: Any, step: int, firsts: Any, deltas: Any, out: Any) -> None:
    """Write the differences of a sub-block's values, and its first values, which have no predecessor.

    `deltas` is a scratch of 1,024 values.
    """
    # Index shifted views: for an index such as ``i - 1``, the compiler must assume that it may be negative.
    n = v.shape[0]
    firsts[0] = v[0]
    following, rest = v[1:], out[1:]
    if step == 4:
        for i in range(n - 1):
            rest[i] = following[i] ^ v[i]
        out[0] = 0
        return
    for i in range(n - 1):
        rest[i] = following[i] - v[i]
    out[0] = rest[0] if n > 1 else 0
    if step == 3:
        firsts[1] = v[1] if n > 1 else v[0]
        # Copy in a loop: for a slice, Numba would compile an error message for two seconds.
        for i in range(n):
            deltas[i] = out[i]
        following, rest = deltas[2:n], out[2:]
        before = deltas[1:n]
        for i in range(n - 2):
            rest[i] = following[i] - before[i]
        out[: min(2, n)] = rest[0] if n > 2 else 0


@kernel
def _cut_zeros(out: Any, bits: Any) -> int:
    """Shift out the low bits that are 0 in all values; return their number. `bits` is the values' OR."""
    tail = 0
    if bits:
        while not (bits >> tail) & 1:
            tail += 1
        if tail:
            for i in range(out.shape[0]):
                out[i] >>= out.dtype.type(tail)
    return tail


@kernel
def _pack(
    values: Any,
    unsigned: Any,
    step: int,
    patched: bool,
    bases: Any,
    firsts: Any,
    widths: Any,
    exceptions: Any,
    positions: Any,
    highs: Any,
    payload: Bytes,
) -> tuple[int, int]:
    """Pack all sub-blocks; return the bytes of payload and the number of exceptions.

    `unsigned` is a scratch of 1,024 words of the values' width. `values` are signed.
    """
    signed = unsigned.view(values.dtype)
    counts = np.empty(65, np.int64)
    deltas = np.empty_like(signed)
    zero = values.dtype.type(0)
    all_bits = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - 8 * values.itemsize)
    # Convert literals: Numba gives a literal a type of its own, and would compile callees for it, too.
    used: Any = np.int64(0)
    exception_count: Any = np.int64(0)
    for b in range(widths.shape[0]):
        v = values[b * 1024 : min(b * 1024 + 1024, values.shape[0])]
        n = v.shape[0]
        if step > 1:
            _steps(v, step, firsts[b], deltas, signed[:n])
            v = signed[:n]
        base = zero
        if step in (0, 4):
            or_of_values = zero
            for i in range(n):
                or_of_values |= v[i]
            bits = np.uint64(or_of_values) & all_bits
            bases[b] = 0
            if step == 4:
                tail = _cut_zeros(unsigned[:n], bits)
                bases[b] = tail
                bits >>= np.uint64(tail)
        else:
            least = v[0]
            most = v[0]
            for i in range(n):
                least = min(least, v[i])
                most = max(most, v[i])
            base = least
            bases[b] = base
            bits = np.uint64(np.int64(most) - np.int64(least)) & all_bits
        width = bit_length(bits)
        if patched:
            offsets = unsigned[:n]
            for i in range(n):
                signed[i] = v[i] - base
            v = signed[:n]
            base = zero
            widest = width
            width = _cheapest_width(offsets, widest, counts)
            before = exception_count
            if width < widest:
                limit = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
                for i in range(n):
                    offset = np.uint64(offsets[i])
                    if offset > limit:
                        positions[exception_count] = i
                        highs[exception_count] = offset >> np.uint64(width)
                        exception_count += 1
                        offsets[i] = offset & limit
            exceptions[b] = exception_count - before
        widths[b] = width
        used += _pack_offsets(v, base, width, payload, used)
    return used, exception_count


@kernel
def finish(step: int, shift: Any, first: Any, second: Any, out: Any) -> None:
    """Turn the differences of a sub-block into values, in place."""
    if step == 2:
        out[0] = 0
        running_sum(out, first)
    elif step == 3:
        out[: min(2, out.shape[0])] = 0
        running_sum(out, second - first)
        out[0] = 0
        running_sum(out, first)
    elif step == 4:
        if shift:
            for i in range(out.shape[0]):
                out[i] <<= shift
        out[0] = 0
        running_xor(out, first)


@kernel
def _unpack(
    payload: Bytes,
    step: int,
    bases: Any,
    firsts: Any,
    widths: Any,
    exceptions: Any,
    positions: Any,
    highs: Any,
    out: Any,
) -> None:
    """Undo `_pack`. `exceptions` is empty without patching."""
    # Convert literals: Numba gives a literal a type of its own, and would compile callees for it, too.
    used: Any = np.int64(0)
    exception_count: Any = np.int64(0)
    for b in range(widths.shape[0]):
        o = out[b * 1024 : min(b * 1024 + 1024, out.shape[0])]
        width: Any = np.int64(widths[b])
        base = bases[b]
        unpack_offsets(payload, used, width, base if step < 4 else out.dtype.type(0), o)
        used += (o.shape[0] * width + 7) // 8
        if exceptions.shape[0] > 0:
            for k in range(exception_count, exception_count + exceptions[b]):
                o[positions[k]] += highs[k] << out.dtype.type(width)
            exception_count += exceptions[b]
        if step > 1:
            finish(step, base, firsts[b, 0], firsts[b, 1], o)


def pack(values: Ints, step: Step, *, patched: bool) -> Packed:
    """Pack `values`: one or more signed integers of any width."""
    count, dtype = values.size, values.dtype
    blocks = -(-count // SUB_BLOCK)
    widths, bases = np.empty(blocks, np.int8), np.empty(blocks, dtype)
    firsts = np.empty((blocks, 2), dtype)
    # There is room for all exceptions: a width is chosen only if at most an eighth of the offsets do not fit.
    room = count // 8 + blocks if patched else 0
    exceptions = np.empty(blocks if patched else 0, np.int16)
    positions, highs = np.empty(room, np.int16), np.empty(room, dtype)
    payload = np.empty(blocks * SUB_BLOCK * dtype.itemsize, np.uint8)
    used, exception_count = _pack(
        values if values.flags.c_contiguous else np.ascontiguousarray(values),
        np.empty(SUB_BLOCK, f"u{dtype.itemsize}"),
        int(step),
        patched,
        bases,
        firsts,
        widths,
        exceptions,
        positions,
        highs,
        payload,
    )
    return Packed(
        step,
        widths,
        bases,
        firsts,
        exceptions,
        positions[:exception_count],
        highs[:exception_count],
        payload[:used],
    )


def unpack(packed: Packed, out: Ints) -> None:
    """Undo `pack` into `out`, whose size is the number of values.

    The caller has checked that widths suit the type, that positions are within their sub-block, and that the
    numbers of bytes and exceptions are right.
    """
    _unpack(
        packed.payload,
        int(packed.step),
        packed.bases,
        packed.firsts,
        packed.widths,
        packed.exceptions,
        packed.positions,
        packed.highs,
        out,
    )


@kernel
def _add_up(widths: Any, count: int, widest: int, ends: Any) -> bool:
    """Write the offsets of sub-blocks and the last end; return whether all widths are valid."""
    at = 0
    for b in range(widths.shape[0]):
        width: Any = np.int64(widths[b])
        if width < 0 or width > widest:
            return False
        ends[b] = at
        at += (min(1024, count - b * 1024) * width + 7) // 8
    ends[widths.shape[0]] = at
    return True


def ends_of(widths: Ints, count: int, widest: int) -> npt.NDArray[np.int64] | None:
    """Return the offsets of sub-blocks of `count` values, and the total size; None if a width is invalid."""
    ends = np.empty(widths.size + 1, np.int64)
    return ends if _add_up(widths, count, widest, ends) else None
