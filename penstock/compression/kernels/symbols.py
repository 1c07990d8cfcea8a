"""Kernels of symbol tables: learn one, code bytes by it, and write them out (FSST §4, §5).

A symbol is 1 to 8 bytes, as a word whose first byte is the lowest. Symbols of 3 bytes and more are found by a
table of `SLOTS` slots, hashed by their first 3 bytes: where two share a slot, the better one stays. Shorter
ones are found by the next 2 bytes. What has no symbol is an escape and the byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import kernel
from penstock.compression.kernels.bits import Bytes, Ints
from penstock.compression.kernels.vectors import copy_bytes, put_word, word_at

__all__ = [
    "ESCAPE",
    "LANES",
    "LONGEST",
    "MOST_SYMBOLS",
    "SLOTS",
    "code_symbols",
    "learn_symbols",
    "write_symbols",
]

ESCAPE = 255
"""The code before a byte that has no symbol."""

MOST_SYMBOLS = 255
LONGEST = 8
SLOTS = 1 << 11
LANES = 4

_GENERATIONS = 5
_TOKENS = 512  # codes of symbols, and 256 and a byte
_NO_SYMBOL = np.uint16(ESCAPE | 1 << 8)
_ONE = np.uint64(1)
_BYTE = np.uint64(255)
_HASH = np.uint64(2971215073)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_LOW_BITS = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)
_MOST_CANDIDATES = 1 << 13


@kernel
def _word(source: Bytes, at: Any) -> Any:
    """Return the 8 bytes from a place on, which has no sign."""
    place: Any = np.int64(at)
    return word_at(source, place)


@kernel
def _slot_of(word: Any) -> Any:
    return (((word & np.uint64(0xFFFFFF)) * _HASH) >> np.uint64(20)) & np.uint64(SLOTS - 1)


@kernel
def _look_up(word: Any, shorts: Any, longs: Any, infos: Any) -> Any:
    """Return the code of the longest symbol that a word begins with, and from bit 8 on its bytes.

    Without a branch: which symbol comes next cannot be foreseen.
    """
    slot = _slot_of(word)
    info = np.uint64(infos[slot])
    differs = (word ^ longs[slot]) << (info >> np.uint64(16))
    short = ((differs | (np.uint64(0) - differs)) >> np.uint64(63)) * _ALL
    return (info ^ ((info ^ np.uint64(shorts[word & np.uint64(0xFFFF)])) & short)) & np.uint64(0xFFFF)


@kernel
def _fill_tables(symbols: Any, sizes: Any, count: Any, shorts: Any, longs: Any, infos: Any) -> Any:
    """Fill the tables with the best symbols, which come first; return how many there is room for.

    Symbols that are left out are dropped from `symbols` and `sizes`.
    """
    shorts[:] = _NO_SYMBOL
    # No word differs from these only in bits that count.
    longs[:] = _ALL
    infos[:] = np.uint32(ESCAPE | 1 << 8)
    kept: Any = np.int64(0)
    for i in range(count):
        size: Any = np.int64(sizes[i])
        if size > 2:
            slot = _slot_of(symbols[i])
            if infos[slot] != np.uint32(ESCAPE | 1 << 8):
                continue
            longs[slot] = symbols[i]
            infos[slot] = np.uint32(kept | size << 8 | (64 - 8 * size) << 16)
        symbols[kept], sizes[kept] = symbols[i], size
        kept += 1
        if kept == MOST_SYMBOLS:
            break
    for size in (1, 2):
        for code in range(kept):
            if sizes[code] == size:
                step = 256 if size == 1 else 65536
                for place in range(np.int64(symbols[code]), 65536, step):
                    shorts[place] = np.uint16(code | size << 8)
    return kept


@kernel
def _count_tokens(
    sample: Bytes, end: Any, shorts: Any, longs: Any, infos: Any, singles: Ints, pairs: Any, seen: Any
) -> Any:
    """Count symbols and bytes of a sample, and which follow each other; return how many pairs there are.

    Of a symbol the first byte is counted too. `seen` has the pairs, in the order in which they appear.
    """
    at: Any = np.int64(0)
    found: Any = np.int64(0)
    before: Any = np.int64(-1)
    while at < end:
        info: Any = np.int64(_look_up(word_at(sample, at), shorts, longs, infos))
        token, size = info & 255, info >> 8
        first = 256 + np.int64(sample[at])
        if token == ESCAPE or size > end - at:
            token, size = first, 1
        for one in (token, first):
            singles[one] += 1
            if before >= 0:
                pair = before * _TOKENS + one
                if not pairs[pair]:
                    seen[found] = pair
                    found += 1
                pairs[pair] += 1
            if size == 1:
                break
        before = token
        at += size
    return found


@kernel
def _propose(
    symbol: Any, size: Any, gain: Any, table: Any, words: Any, sizes: Any, gains: Ints, count: Any
) -> Any:
    """Add what a symbol would save to its candidate, or a new one; return how many there are."""
    slot = ((symbol ^ np.uint64(size)) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(50)
    while table[slot] >= 0:
        other = table[slot]
        if words[other] == symbol and sizes[other] == size:
            gains[other] += gain
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
    """Learn symbols from a sample, and fill the tables that find them; return how many there are.

    Parameters
    ----------
    sample, end : Bytes, int
        The sample, and 8 bytes behind it.
    symbols, sizes : arrays of `MOST_SYMBOLS` words and bytes
        The symbols and their bytes, by code.
    shorts, longs, infos
        By the next 2 bytes the code of a short symbol and its size; by slot a longer symbol, and its code,
        its size, and the bits of a word that do not count.
    """
    words, lengths = np.empty(_MOST_CANDIDATES, np.uint64), np.empty(_MOST_CANDIDATES, np.uint8)
    gains, table = np.empty(_MOST_CANDIDATES, np.int64), np.empty(2 * _MOST_CANDIDATES, np.int16)
    singles = np.zeros(_TOKENS, np.int64)
    pairs = np.zeros(_TOKENS * _TOKENS, np.uint16)
    seen = np.empty(2 * end + 2, np.int32)
    count = _fill_tables(words, lengths, 0, shorts, longs, infos)
    for generation in range(_GENERATIONS):
        last = generation == _GENERATIONS - 1
        found = _count_tokens(sample, end, shorts, longs, infos, singles, pairs, seen)
        for code in range(count):
            symbols[code], sizes[code] = words[code], lengths[code]
        table[:] = -1
        count = 0
        for token in range(_TOKENS):
            if singles[token]:
                word = np.uint64(token - 256) if token > 255 else symbols[token]
                size = 1 if token > 255 else np.int64(sizes[token])
                # A byte without a symbol takes two.
                weight = 8 if size == 1 and not last else size
                count = _propose(word, size, singles[token] * weight, table, words, lengths, gains, count)
                singles[token] = 0
        for i in range(found):
            one, other = seen[i] // _TOKENS, seen[i] % _TOKENS
            times = np.int64(pairs[seen[i]])
            pairs[seen[i]] = 0
            if times > 1 and not last:
                word = np.uint64(one - 256) if one > 255 else symbols[one]
                size = 1 if one > 255 else np.int64(sizes[one])
                more = np.uint64(other - 256) if other > 255 else symbols[other]
                if size < LONGEST:
                    word |= more << np.uint64(8 * size)
                    size = min(LONGEST, size + (1 if other > 255 else np.int64(sizes[other])))
                    count = _propose(word, size, times * size, table, words, lengths, gains, count)
        order = np.argsort(-gains[:count], kind="mergesort")
        words[:count], lengths[:count] = words[:count][order], lengths[:count][order]
        count = _fill_tables(words, lengths, count, shorts, longs, infos)
    symbols[:count], sizes[:count] = words[:count], lengths[:count]
    return count


@kernel
def _put_code(info: Any, word: Any, out: Bytes, at: Any) -> Any:
    """Write a code, and the byte itself, which stays where the code is an escape; return where to go on."""
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
    """Code the rest of a lane, and copy its codes behind those of the one before; return where they end."""
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
    """Code a frame; return where its codes end in `out`.

    Four parts of the frame are coded at the same time, each of which has to wait for itself alone.

    Parameters
    ----------
    source, begin, end : Bytes, int
        The frame, and 8 bytes behind it.
    lanes : Bytes
        Room for twice the frame, and 256 bytes.
    out, to : Bytes, int
        What is written, from where on; there is room for twice the frame, and 16 bytes.
    """
    part = np.uint64((end - begin) // LANES)
    room = np.uint64(lanes.shape[0] // LANES)
    a0 = np.uint64(begin)
    a1, a2, a3 = a0 + part, a0 + part + part, a0 + part + part + part
    e0, e1, e2, e3 = a1, a2, a3, np.uint64(end)
    t0, t1, t2, t3 = np.uint64(0), room, room + room, room + room + room
    while True:
        # No symbol has more than 8 bytes: so many can be coded without a look at the end.
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
    """Write what codes stand for; say whether each frame has the bytes that it must have.

    Parameters
    ----------
    codes, ends : Bytes, Ints
        The codes of frames, where the first begins, and where each ends.
    symbols, sizes : arrays of 256 words and sizes
        The symbols by their codes; a size is 0 where there is none.
    frame : int
        Bytes of each frame but the last one.
    out, total : Bytes, int
        What is written, with 64 bytes to spare, and how many bytes there are.
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
