"""Kernels of symbol tables: learn a table, encode bytes by it, and decode them (FSST §4, §5).

A symbol is 1 to 8 bytes, as a word whose first byte is the lowest. Symbols of 3 bytes and more are in a hash
table of `SLOTS` slots, by their first 3 bytes; if two symbols share a slot, the better symbol stays. Shorter
symbols are looked up by the next 2 bytes. A byte without a symbol is encoded as an escape and the byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import GOLDEN, kernel
from penstock.compression.kernels.bits import Bytes, Ints
from penstock.compression.kernels.byte_vectors import copy_bytes, put_word, word_at

__all__ = [
    "ESCAPE",
    "LANES",
    "LONGEST",
    "MAX_SYMBOLS",
    "SLOTS",
    "code_symbols",
    "learn_symbols",
    "write_symbols",
]

ESCAPE = 255
"""The code before a byte that has no symbol."""

MAX_SYMBOLS = 255
LONGEST = 8
SLOTS = 1 << 11
LANES = 4

_GENERATIONS = 5
_TOKENS = 512  # a token is the code of a symbol, or 256 plus a byte without a symbol
_NO_SYMBOL = np.uint16(ESCAPE | 1 << 8)
_ONE = np.uint64(1)
_BYTE = np.uint64(255)
_HASH = np.uint64(2971215073)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_LOW_BITS = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)
_MAX_CANDIDATES = 1 << 13


@kernel
def _word(source: Bytes, at: Any) -> Any:
    """Return the 8 bytes from an unsigned position on."""
    place: Any = np.int64(at)
    return word_at(source, place)


@kernel
def _slot_of(word: Any) -> Any:
    return (((word & np.uint64(0xFFFFFF)) * _HASH) >> np.uint64(20)) & np.uint64(SLOTS - 1)


@kernel
def _look_up(word: Any, shorts: Any, longs: Any, infos: Any) -> Any:
    """Return the code of the longest symbol that a word begins with; its size is in bits 8 and above.

    The code has no branch, because the next symbol cannot be predicted.
    """
    slot = _slot_of(word)
    info = np.uint64(infos[slot])
    differs = (word ^ longs[slot]) << (info >> np.uint64(16))
    short = ((differs | (np.uint64(0) - differs)) >> np.uint64(63)) * _ALL
    return (info ^ ((info ^ np.uint64(shorts[word & np.uint64(0xFFFF)])) & short)) & np.uint64(0xFFFF)


@kernel
def _fill_tables(symbols: Any, sizes: Any, count: Any, shorts: Any, longs: Any, infos: Any) -> Any:
    """Fill the tables with symbols, best first; return the number that fit.

    Symbols that are left out are dropped from `symbols` and `sizes`.
    """
    shorts[:] = _NO_SYMBOL
    # An empty slot matches only the word of all ones, which then becomes an escape.
    longs[:] = _ALL
    infos[:] = np.uint32(ESCAPE | 1 << 8)
    code_count: Any = np.int64(0)
    for i in range(count):
        size: Any = np.int64(sizes[i])
        if size > 2:
            slot = _slot_of(symbols[i])
            if infos[slot] != np.uint32(ESCAPE | 1 << 8):
                continue
            longs[slot] = symbols[i]
            infos[slot] = np.uint32(code_count | size << 8 | (64 - 8 * size) << 16)
        symbols[code_count], sizes[code_count] = symbols[i], size
        code_count += 1
        if code_count == MAX_SYMBOLS:
            break
    for size in (1, 2):
        for code in range(code_count):
            if sizes[code] == size:
                step = 256 if size == 1 else 65536
                for place in range(np.int64(symbols[code]), 65536, step):
                    shorts[place] = np.uint16(code | size << 8)
    return code_count


@kernel
def _count_tokens(
    sample: Bytes, end: Any, shorts: Any, longs: Any, infos: Any, singles: Ints, pairs: Any, seen: Any
) -> Any:
    """Count the symbols, bytes and adjacent pairs of a sample; return the number of distinct pairs.

    The first byte of each symbol is also counted. `seen` has the pairs in order of appearance.
    """
    at: Any = np.int64(0)
    pair_count: Any = np.int64(0)
    before: Any = np.int64(-1)
    while at < end:
        info: Any = np.int64(_look_up(word_at(sample, at), shorts, longs, infos))
        token, size = info & 255, info >> 8
        first = 256 + np.int64(sample[at])
        if token == ESCAPE or size > end - at:
            token, size = first, 1
        for code in (token, first):
            singles[code] += 1
            if before >= 0:
                pair = before * _TOKENS + code
                if not pairs[pair]:
                    seen[pair_count] = pair
                    pair_count += 1
                pairs[pair] += 1
            if size == 1:
                break
        before = token
        at += size
    return pair_count


@kernel
def _propose(
    symbol: Any, size: Any, gain: Any, table: Any, words: Any, sizes: Any, gains: Ints, count: Any
) -> Any:
    """Add a symbol's saving to its candidate, or to a new candidate; return the number of candidates."""
    slot = ((symbol ^ np.uint64(size)) * GOLDEN) >> np.uint64(50)
    while table[slot] >= 0:
        candidate = table[slot]
        if words[candidate] == symbol and sizes[candidate] == size:
            gains[candidate] += gain
            return count
        slot = (slot + _ONE) & np.uint64(table.shape[0] - 1)
    if count < words.shape[0]:
        table[slot] = count
        words[count], sizes[count], gains[count] = symbol, size, gain
        count += 1
    return count


@kernel
def learn_symbols(
    sample: Bytes, end: Any, symbols: Any, sizes: Any, shorts: Any, longs: Any, infos: Any
) -> Any:
    """Learn symbols from a sample, and fill the look-up tables; return the number of symbols.

    Parameters
    ----------
    sample, end : Bytes, int
        The sample, followed by 8 bytes.
    symbols, sizes : arrays of `MAX_SYMBOLS` words and bytes
        The symbols and their bytes, by code.
    shorts, longs, infos
        `shorts` has, for each value of 2 bytes, the code and size of a short symbol. `longs` has a longer
        symbol for each slot. `infos` has, for the same slots, the symbol's code, its size, and the number of
        bits of a word to ignore.
    """
    words, lengths = np.empty(_MAX_CANDIDATES, np.uint64), np.empty(_MAX_CANDIDATES, np.uint8)
    gains, table = np.empty(_MAX_CANDIDATES, np.int64), np.empty(2 * _MAX_CANDIDATES, np.int16)
    singles = np.zeros(_TOKENS, np.int64)
    pairs = np.zeros(_TOKENS * _TOKENS, np.uint16)
    seen = np.empty(2 * end + 2, np.int32)
    count = _fill_tables(words, lengths, 0, shorts, longs, infos)
    for generation in range(_GENERATIONS):
        last = generation == _GENERATIONS - 1
        pair_count = _count_tokens(sample, end, shorts, longs, infos, singles, pairs, seen)
        for code in range(count):
            symbols[code], sizes[code] = words[code], lengths[code]
        table[:] = -1
        count = 0
        for token in range(_TOKENS):
            if singles[token]:
                word = np.uint64(token - 256) if token > 255 else symbols[token]
                size = 1 if token > 255 else np.int64(sizes[token])
                # A byte without a symbol takes two bytes.
                weight = 8 if size == 1 and not last else size
                count = _propose(word, size, singles[token] * weight, table, words, lengths, gains, count)
                singles[token] = 0
        for i in range(pair_count):
            first, second = seen[i] // _TOKENS, seen[i] % _TOKENS
            times = np.int64(pairs[seen[i]])
            pairs[seen[i]] = 0
            if times > 1 and not last:
                word = np.uint64(first - 256) if first > 255 else symbols[first]
                size = 1 if first > 255 else np.int64(sizes[first])
                suffix = np.uint64(second - 256) if second > 255 else symbols[second]
                if size < LONGEST:
                    word |= suffix << np.uint64(8 * size)
                    size = min(LONGEST, size + (1 if second > 255 else np.int64(sizes[second])))
                    count = _propose(word, size, times * size, table, words, lengths, gains, count)
        order = np.argsort(-gains[:count], kind="mergesort")
        words[:count], lengths[:count] = words[:count][order], lengths[:count][order]
        count = _fill_tables(words, lengths, count, shorts, longs, infos)
    symbols[:count], sizes[:count] = words[:count], lengths[:count]
    return count


@kernel
def _put_code(info: Any, word: Any, out: Bytes, at: Any) -> Any:
    """Write a code and the next byte. Return the next position, which skips the byte only after an escape."""
    code = info & _BYTE
    out[at], out[at + _ONE] = np.uint8(code), np.uint8(word & _BYTE)
    return at + _ONE + np.uint64(code == _BYTE)


@kernel
def _end_lane(
    source: Bytes,
    at: Any,
    end: Any,
    shorts: Any,
    longs: Any,
    infos: Any,
    lanes: Bytes,
    first: Any,
    last: Any,
    out: Bytes,
    to: Any,
) -> Any:
    """Encode the rest of a lane, and append its codes to the codes of the previous lane; return their end."""
    while at < end:
        word = _word(source, at)
        info = _look_up(word, shorts, longs, infos)
        if info >> np.uint64(8) > end - at:
            info = np.uint64(_NO_SYMBOL)
        last = _put_code(info, word, lanes, last)
        at += info >> np.uint64(8)
    begin: Any = np.int64(first)
    size: Any = np.int64(last) - begin
    copy_bytes(lanes, begin, out, to, size)
    return to + size


@kernel
def code_symbols(
    source: Bytes,
    begin: Any,
    end: Any,
    shorts: Any,
    longs: Any,
    infos: Any,
    lanes: Bytes,
    out: Bytes,
    to: Any,
) -> Any:
    """Encode a frame; return the end of its codes in `out`.

    Four parts of the frame are encoded in an interleaved loop, so that their latencies overlap.

    Parameters
    ----------
    source, begin, end : Bytes, int
        The frame, followed by 8 bytes.
    lanes : Bytes
        A buffer with room for twice the frame, and 256 bytes.
    out, to : Bytes, int
        The output and the start position; there is room for twice the frame, and 16 bytes.
    """
    part = np.uint64((end - begin) // LANES)
    room = np.uint64(lanes.shape[0] // LANES)
    a0 = np.uint64(begin)
    a1, a2, a3 = a0 + part, a0 + part + part, a0 + part + part + part
    e0, e1, e2, e3 = a1, a2, a3, np.uint64(end)
    t0, t1, t2, t3 = np.uint64(0), room, room + room, room + room + room
    while True:
        # No symbol exceeds 8 bytes, so this many symbols can be encoded without checking for the end.
        sure = min(e0 - a0, e1 - a1, e2 - a2, e3 - a3) >> np.uint64(3)
        if not sure:
            break
        for _ in range(sure):
            w0, w1 = _word(source, a0), _word(source, a1)
            w2, w3 = _word(source, a2), _word(source, a3)
            i0, i1 = _look_up(w0, shorts, longs, infos), _look_up(w1, shorts, longs, infos)
            i2, i3 = _look_up(w2, shorts, longs, infos), _look_up(w3, shorts, longs, infos)
            t0, t1 = _put_code(i0, w0, lanes, t0), _put_code(i1, w1, lanes, t1)
            t2, t3 = _put_code(i2, w2, lanes, t2), _put_code(i3, w3, lanes, t3)
            a0, a1 = a0 + (i0 >> np.uint64(8)), a1 + (i1 >> np.uint64(8))
            a2, a3 = a2 + (i2 >> np.uint64(8)), a3 + (i3 >> np.uint64(8))
    to = _end_lane(source, a0, e0, shorts, longs, infos, lanes, np.uint64(0), t0, out, to)
    to = _end_lane(source, a1, e1, shorts, longs, infos, lanes, room, t1, out, to)
    to = _end_lane(source, a2, e2, shorts, longs, infos, lanes, room + room, t2, out, to)
    return _end_lane(source, a3, e3, shorts, longs, infos, lanes, room + room + room, t3, out, to)


@kernel
def write_symbols(
    codes: Bytes, ends: Ints, symbols: Any, sizes: Any, frame: int, out: Bytes, total: int
) -> bool:
    """Decode symbols; return whether each frame has its expected size.

    Parameters
    ----------
    codes, ends : Bytes, Ints
        The codes of frames; the start of the first frame's codes, and the end of each frame's codes.
    symbols, sizes : arrays of 256 words and sizes
        The symbols by their codes; the size of an unused code is 0.
    frame : int
        The number of bytes of each frame except the last.
    out, total : Bytes, int
        The output, with 64 bytes of padding, and the total size.
    """
    none = np.uint64(0)
    at: Any = np.int64(0)
    for number in range(ends.shape[0] - 1):
        i, end = ends[number], ends[number + 1]
        stop = min(np.int64((number + 1) * frame), total)
        while i < end:
            word = word_at(codes, i) if i + 8 <= end else np.uint64(0)
            plain = ~word
            plain = (plain - _LOW_BITS) & ~plain & _HIGH_BITS
            if i + 8 <= end and not plain:
                for _ in range(8):
                    code = word & _BYTE
                    size = np.uint64(sizes[code])
                    put_word(out, at, symbols[code])
                    none |= size - _ONE
                    at += np.int64(size)
                    word >>= np.uint64(8)
                i += 8
            else:
                code = np.uint64(codes[i])
                i += 1
                if code == _BYTE:
                    if i == end or at >= stop:
                        return False
                    out[at] = codes[i]
                    at += 1
                    i += 1
                else:
                    size = np.uint64(sizes[code])
                    put_word(out, at, symbols[code])
                    none |= size - _ONE
                    at += np.int64(size)
            if at > stop:
                return False
        if at != stop:
            return False
    return none >> np.uint64(63) == np.uint64(0)
