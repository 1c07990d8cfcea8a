"""Null suppression: the kernels that pack sub-blocks of integers into few bits, and unpack them.

A sub-block has `SUB_BLOCK` values. What is packed is not the value but its offset: from nothing, from
the sub-block's least value, from the value before, or from a straight line through the two before
(`Step`). Steps and packing run in one pass over a sub-block, which stays in the first cache. All
arithmetic wraps around, so every value of a type round-trips; all values are signed integers.

A full sub-block of width w takes ``128 * w`` bytes. Its offsets are cut to the narrowest word of T = 8,
16, 32 or 64 bits that holds w, and lie in ``1024 / T`` lanes: offset i is in lane ``i % lanes`` at row
``i // lanes``, and the rows of a lane follow one another in its words without gaps, bit 0 first; word k
of all lanes comes before word k + 1 of any. So one shift serves all lanes of a row, and compilers turn
rows into vector instructions. The last sub-block, when it is not full, is one run of bits instead, bit 0
of the first byte first, in ``ceil(count * w / 8)`` bytes.

Where `patched`, a width may be less than the widest offset needs. The high bits of the few offsets that
do not fit are exceptions, kept apart with their positions.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock._kernels import kernel

__all__ = [
    "SUB_BLOCK",
    "Bytes",
    "Ints",
    "Packed",
    "Step",
    "finish",
    "pack",
    "scratch",
    "sizes_of",
    "unpack",
    "unpack_offsets",
]

SUB_BLOCK = 1024
"""Values in a sub-block, the unit of random access."""

Ints = npt.NDArray[np.signedinteger[Any]]
Bytes = npt.NDArray[np.uint8]


class Step(IntEnum):
    """What an offset is counted from."""

    NONE = 0
    BASE_DELTA = 1
    DELTA = 2
    DELTA_OF_DELTA = 3
    XOR = 4


class Packed(NamedTuple):
    """Sub-blocks of packed offsets, and what turns them into values again.

    Parameters
    ----------
    step : Step
        What the offsets are counted from.
    widths : (sub-blocks,) int8
        Bits of an offset.
    bases : (sub-blocks,) of the values' type
        The least offset, which is not part of the others; of XOR the number of zero bits cut off at the
        low end; 0 of NONE.
    firsts : (sub-blocks, 2) of the values' type
        The values before which there is nothing to count from: one for DELTA and XOR, two for
        DELTA_OF_DELTA.
    exceptions : (sub-blocks,) or (0,) int16
        How many offsets did not fit; empty where nothing is patched.
    positions, highs : (exceptions in all,) int16 and of the values' width
        Where in their sub-block they are, and the bits beyond the width.
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
def _bit_length(value: Any) -> int:
    """Return the number of bits of an unsigned integer."""
    v = np.uint64(value)
    bits = 0
    for shift in (32, 16, 8, 4, 2, 1):
        if v >> np.uint64(shift):
            v >>= np.uint64(shift)
            bits += shift
    return bits + int(v)


@kernel
def _pack_words(x: Any, width: int, out: Any) -> None:
    """Pack the 1,024 words of `x` into `out`, `width` bits each, in lanes."""
    word = x.itemsize * 8
    lanes = 1024 // word
    for i in range(width * lanes):
        out[i] = 0
    for row in range(word):
        at = row * width
        k = at // word
        shift = at - k * word
        source = x[row * lanes : row * lanes + lanes]
        low = out[k * lanes : k * lanes + lanes]
        s = x.dtype.type(shift)
        for lane in range(lanes):
            low[lane] |= source[lane] << s
        if shift + width > word:
            high = out[k * lanes + lanes : k * lanes + lanes + lanes]
            s = x.dtype.type(word - shift)
            for lane in range(lanes):
                high[lane] |= source[lane] >> s


@kernel
def _unpack_words(x: Any, width: int, out: Any) -> None:
    """Undo `_pack_words`: `x` has the packed words, `out` gets 1,024."""
    word = out.itemsize * 8
    lanes = 1024 // word
    one = out.dtype.type(1)
    mask = ~out.dtype.type(0) if width == word else (one << out.dtype.type(width)) - one
    for row in range(word):
        at = row * width
        k = at // word
        shift = at - k * word
        target = out[row * lanes : row * lanes + lanes]
        low = x[k * lanes : k * lanes + lanes]
        s = out.dtype.type(shift)
        if shift + width <= word:
            for lane in range(lanes):
                target[lane] = (low[lane] >> s) & mask
        else:
            high = x[k * lanes + lanes : k * lanes + lanes + lanes]
            t = out.dtype.type(word - shift)
            for lane in range(lanes):
                target[lane] = ((low[lane] >> s) | (high[lane] << t)) & mask


@kernel
def _pack_run(x: Any, count: int, width: int, out: Bytes) -> None:
    """Pack `count` words of `x` as one run of bits."""
    for i in range((count * width + 7) // 8):
        out[i] = 0
    at = 0
    for i in range(count):
        value = np.uint64(x[i])
        left = width
        while left > 0:
            room = 8 - (at & 7)
            take = min(room, left)
            out[at >> 3] |= np.uint8((value & np.uint64((1 << take) - 1)) << np.uint64(at & 7))
            value >>= np.uint64(take)
            at += take
            left -= take


@kernel
def _unpack_run(x: Bytes, count: int, width: int, out: Any) -> None:
    """Undo `_pack_run`."""
    at = 0
    for i in range(count):
        value = np.uint64(0)
        done = 0
        while done < width:
            room = 8 - (at & 7)
            take = min(room, width - done)
            bits = (np.uint64(x[at >> 3]) >> np.uint64(at & 7)) & np.uint64((1 << take) - 1)
            value |= bits << np.uint64(done)
            at += take
            done += take
        out[i] = out.dtype.type(value)


@kernel
def _pack_offsets(offsets: Any, count: int, width: int, w8: Any, w16: Any, w32: Any, out: Bytes) -> int:
    """Pack a sub-block's offsets by the narrowest words that hold them; return the bytes written."""
    if count < 1024:
        _pack_run(offsets, count, width, out)
        return (count * width + 7) // 8
    size = 128 * width
    if width == 0:
        return 0
    if width <= 8:
        for i in range(1024):
            w8[i] = np.uint8(offsets[i])
        _pack_words(w8, width, out[:size])
    elif width <= 16 and offsets.itemsize > 1:
        for i in range(1024):
            w16[i] = np.uint16(offsets[i])
        _pack_words(w16, width, out[:size].view(np.uint16))
    elif width <= 32 and offsets.itemsize > 2:
        for i in range(1024):
            w32[i] = np.uint32(offsets[i])
        _pack_words(w32, width, out[:size].view(np.uint32))
    else:
        _pack_words(offsets, width, out[:size].view(offsets.dtype))
    return size


@kernel
def unpack_offsets(x: Bytes, count: int, width: int, w8: Any, w16: Any, w32: Any, offsets: Any) -> None:
    """Undo `_pack_offsets`; `x` begins with the sub-block."""
    if count < 1024:
        _unpack_run(x, count, width, offsets)
        return
    size = 128 * width
    if width == 0:
        for i in range(1024):
            offsets[i] = 0
    elif width <= 8:
        _unpack_words(x[:size], width, w8)
        for i in range(1024):
            offsets[i] = w8[i]
    elif width <= 16 and offsets.itemsize > 1:
        _unpack_words(x[:size].view(np.uint16), width, w16)
        for i in range(1024):
            offsets[i] = w16[i]
    elif width <= 32 and offsets.itemsize > 2:
        _unpack_words(x[:size].view(np.uint32), width, w32)
        for i in range(1024):
            offsets[i] = w32[i]
    else:
        _unpack_words(x[:size].view(offsets.dtype), width, offsets)


@kernel
def _cheapest_width(offsets: Any, count: int, widest: int) -> int:
    """Return the width that takes the fewest bits, each exception costing 16 more than its high bits."""
    counts = np.zeros(65, np.int64)
    for i in range(count):
        counts[_bit_length(offsets[i])] += 1
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
def _pack(
    values: Any,
    w8: Any,
    w16: Any,
    w32: Any,
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
    one = unsigned.dtype.type(1)
    signed = unsigned.view(values.dtype)
    used, found = 0, 0
    for b in range(widths.shape[0]):
        v = values[b * 1024 : min(b * 1024 + 1024, values.shape[0])]
        n = v.shape[0]
        if step <= 1:
            for i in range(n):
                signed[i] = v[i]
        elif step == 2:
            firsts[b, 0] = v[0]
            for i in range(1, n):
                signed[i] = v[i] - v[i - 1]
            signed[0] = signed[1] if n > 1 else 0
        elif step == 3:
            firsts[b, 0] = v[0]
            firsts[b, 1] = v[1] if n > 1 else v[0]
            for i in range(2, n):
                signed[i] = (v[i] - v[i - 1]) - (v[i - 1] - v[i - 2])
            filler = signed[2] if n > 2 else 0
            signed[0] = filler
            signed[1] = filler
        else:
            firsts[b, 0] = v[0]
            for i in range(1, n):
                signed[i] = v[i] ^ v[i - 1]
            signed[0] = 0
        bits = unsigned.dtype.type(0)
        if step in (0, 4):
            for i in range(n):
                bits |= unsigned[i]
            bases[b] = 0
            if step == 4 and bits:
                tail = 0
                while not (bits >> unsigned.dtype.type(tail)) & one:
                    tail += 1
                t = unsigned.dtype.type(tail)
                bases[b] = tail
                bits >>= t
                for i in range(n):
                    unsigned[i] >>= t
        else:
            least = signed[0]
            for i in range(n):
                least = min(least, signed[i])
            bases[b] = least
            base = unsigned.dtype.type(least)
            for i in range(n):
                unsigned[i] -= base
                bits |= unsigned[i]
        width = _bit_length(bits)
        if patched:
            widest = width
            width = _cheapest_width(unsigned, n, widest)
            if width < widest:
                before = found
                for i in range(n):
                    high = unsigned[i] >> unsigned.dtype.type(width)
                    if high:
                        positions[found] = i
                        highs[found] = high
                        found += 1
                        unsigned[i] &= (one << unsigned.dtype.type(width)) - one
                exceptions[b] = found - before
            else:
                exceptions[b] = 0
        widths[b] = width
        used += _pack_offsets(unsigned, n, width, w8, w16, w32, payload[used:])
    return used, found


@kernel
def finish(unsigned: Any, step: int, base: Any, first: Any, second: Any, out: Any) -> None:
    """Turn the offsets of a sub-block into values."""
    signed = unsigned.view(out.dtype)
    n = out.shape[0]
    if step == 0:
        for i in range(n):
            out[i] = signed[i]
    elif step == 1:
        for i in range(n):
            out[i] = signed[i] + base
    elif step == 2:
        value = first
        out[0] = value
        for i in range(1, n):
            value += signed[i] + base
            out[i] = value
    elif step == 3:
        out[0] = first
        if n > 1:
            delta = second - first
            value = second
            out[1] = value
            for i in range(2, n):
                delta += signed[i] + base
                value += delta
                out[i] = value
    else:
        value = first
        out[0] = value
        for i in range(1, n):
            value ^= signed[i] << base
            out[i] = value


@kernel
def _unpack(
    payload: Bytes,
    w8: Any,
    w16: Any,
    w32: Any,
    unsigned: Any,
    step: int,
    bases: Any,
    firsts: Any,
    widths: Any,
    exceptions: Any,
    positions: Any,
    highs: Any,
    out: Any,
) -> None:
    """Undo `_pack`. `exceptions` is empty where nothing was patched."""
    used, found = 0, 0
    for b in range(widths.shape[0]):
        o = out[b * 1024 : min(b * 1024 + 1024, out.shape[0])]
        n = o.shape[0]
        width: Any = np.int64(widths[b])
        unpack_offsets(payload[used:], n, width, w8, w16, w32, unsigned)
        used += (n * width + 7) // 8
        if exceptions.shape[0] > 0:
            for k in range(found, found + exceptions[b]):
                unsigned[positions[k]] |= highs[k] << unsigned.dtype.type(width)
            found += exceptions[b]
        finish(unsigned, step, bases[b], firsts[b, 0], firsts[b, 1], o)


def scratch(dtype: np.dtype[Any]) -> tuple[Any, Any, Any, Any]:
    """Return the arrays in which one sub-block is worked on: words of 8, 16 and 32 bits, and of `dtype`."""
    one, two, four, own = (np.empty(SUB_BLOCK, name) for name in ("u1", "u2", "u4", f"u{dtype.itemsize}"))
    return one, two, four, own


def pack(values: Ints, step: Step, *, patched: bool) -> Packed:
    """Pack `values`, signed integers of any width, at least one."""
    count, dtype = values.size, values.dtype
    blocks = -(-count // SUB_BLOCK)
    widths, bases = np.empty(blocks, np.int8), np.empty(blocks, dtype)
    firsts = np.empty((blocks, 2), dtype)
    # A width is chosen only if at most an eighth of the offsets are exceptions.
    room = count // 8 + blocks if patched else 0
    exceptions = np.empty(blocks if patched else 0, np.int16)
    positions, highs = np.empty(room, np.int16), np.empty(room, f"u{dtype.itemsize}")
    payload = np.empty(blocks * SUB_BLOCK * dtype.itemsize, np.uint8)
    used, found = _pack(
        np.ascontiguousarray(values),
        *scratch(dtype),
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
        positions[:found],
        highs[:found].view(dtype),
        payload[:used],
    )


def unpack(packed: Packed, out: Ints) -> None:
    """Undo `pack` into `out`, whose size is the number of values.

    The caller has checked that widths are those of the type, positions below `SUB_BLOCK`, and that there
    are as many bytes and exceptions as they say.
    """
    _unpack(
        packed.payload,
        *scratch(out.dtype),
        int(packed.step),
        packed.bases,
        packed.firsts,
        packed.widths,
        packed.exceptions,
        packed.positions,
        packed.highs.view(f"u{out.dtype.itemsize}"),
        out,
    )


def sizes_of(widths: Ints, count: int) -> npt.NDArray[np.int64]:
    """Return the bytes of the sub-blocks of `count` values."""
    counts = np.full(widths.size, SUB_BLOCK, np.int64)
    if widths.size:
        counts[-1] = count - SUB_BLOCK * (widths.size - 1)
    return (counts * widths.astype(np.int64) + 7) >> 3
