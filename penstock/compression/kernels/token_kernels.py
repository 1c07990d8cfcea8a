"""Kernels over texts as rows of tokens: split texts, encode them by forms, and decode them.

A token is a run of letters and digits, and all other bytes up to the next run. With `split` a run has only
letters or only digits. `penstock.compression.texts.tokens` explains the arguments of these kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import kernel
from penstock.compression.kernels.bits import SUB_BLOCK, Bytes, Ints
from penstock.compression.kernels.vectors import (
    classes_at,
    copy_bytes,
    matches_at,
    put_word,
    trailing_zeros,
    word_at,
)

__all__ = [
    "ANY_END",
    "CHILD",
    "COLUMN",
    "DIGITS",
    "FIRST",
    "FORM",
    "KIND",
    "LEAST",
    "LITERAL",
    "MASK",
    "MOST_DIGITS",
    "NEXT",
    "NUMBER",
    "PARENT",
    "PLACE",
    "ROOM",
    "SIZE",
    "SLOT",
    "SLOTS",
    "SPARE",
    "TEXT",
    "TOKEN_END",
    "UNTIL",
    "WORD",
    "code_rows",
    "join_words",
    "write_rows",
]

LITERAL, WORD, NUMBER = 0, 1, 2
"""Kinds of pieces."""

SPARE = 64
"""The number of bytes behind a text that kernels may read or write."""

MOST_DIGITS = 16

KIND, SIZE, FIRST, MASK, TEXT, CHILD, NEXT, PARENT, FORM, COLUMN, LEAST, SLOTS, SLOT, PLACE, ROOM, UNTIL = (
    range(16)
)
"""Fields of a node.

KIND is the piece's kind. SIZE, FIRST, MASK and TEXT describe the literal before it: its size, its first 8
bytes as a word, the significant bits of the word, and its position. CHILD, NEXT and PARENT are nodes, or -1.
FORM is the form that ends here, or 0. COLUMN is the column of the values. LEAST is the minimum number of
digits. SLOTS (a power of two less 1), SLOT, PLACE and ROOM describe a piece's words: the slots, the first
slot, the first word, the most words. UNTIL is the byte that ends a word, or one of the constants below.
"""

TOKEN_END, ANY_END = 256, 257
"""A word ends with its letters or digits, or at the end of the text."""

_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_BEHIND = np.uint64(1 << 32)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_OTHER_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)
_ZEROS = np.uint64(0x3030303030303030)
_HIGH_BITS = np.uint64(0x8080808080808080)
_ABOVE_9 = np.uint64(0x7676767676767676)


@kernel
def _run(source: Bytes, at: int, end: int, kind: Any) -> Any:
    """Return the end of a run of bytes of some kinds: bit 0 of `kind` is digits, 1 letters, 2 others."""
    while at < end:
        digits, letters = classes_at(source, at)
        some = np.uint64(0)
        if kind & 1:
            some |= digits
        if kind & 2:
            some |= letters
        if kind & 4:
            some |= ~(digits | letters)
        size = trailing_zeros(~some | _BEHIND)
        if size < 32:
            return min(at + size, end)
        at += 32
    return end


@kernel
def _kind_of(source: Bytes, at: int, split: bool) -> Any:
    """Return the kinds of bytes that belong to the token at `at`."""
    if not split:
        return 3
    return 1 if np.uint8(source[at] - 48) < 10 else 2


@kernel
def _find(source: Bytes, at: int, end: int, wanted: int) -> Any:
    """Return the first position of a byte from `at` on; `end` if there is none."""
    while at < end:
        found = matches_at(source, at, wanted)
        if found:
            return min(at + trailing_zeros(found), end)
        at += 32
    return end


@kernel
def _masked(word: Any, size: int) -> Any:
    """Return the first `size` bytes of a word, padded with zeros. Branch-free."""
    half = np.uint64(4 * (8 - min(max(size, 0), 8)))
    return word & ((_ALL >> half) >> half)


@kernel
def _eight_digits(word: Any) -> Any:
    """Return the number of eight digits, each less 48; the first digit is the lowest byte."""
    pairs = word * np.uint64(10) + (word >> np.uint64(8))
    low = (pairs & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
    high = ((pairs >> np.uint64(16)) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
    return (low + high) >> np.uint64(32)


@kernel
def _digits_of(word: Any, size: int) -> Any:
    """Align the first `size` of 8 digits to the end, each less 48; bytes that are not digits are above 9."""
    return (word ^ _ZEROS) << np.uint64(8 * (8 - size))


DIGITS = np.array(
    [int.from_bytes(b"%04d" % number, "little") | len(str(number)) << 32 for number in range(10_000)]
)
"""For `write_rows`."""


@kernel
def _number_at(source: Bytes, at: int, size: int, least: int) -> Any:
    """Parse `size` digits as a number of at least `least` digits; return -1 if they are not one."""
    if size < least or size < 1 or size > 16 or (size > least and source[at] == 48):
        return np.int64(-1)
    first = min(size, 8)
    word = _digits_of(word_at(source, at), first)
    strange = (word | (word + _ABOVE_9)) & _HIGH_BITS
    number = _eight_digits(word)
    if size > 8:
        # Parse the last eight digits, and the earlier ones.
        word = _digits_of(word_at(source, at), size - 8)
        last = word_at(source, at + size - 8) ^ _ZEROS
        strange |= (last | (last + _ABOVE_9)) & _HIGH_BITS
        number = _eight_digits(word) * np.uint64(100_000_000) + _eight_digits(last)
    return np.int64(-1) if strange else np.int64(number)


@kernel
def _same(source: Bytes, at: int, known: Bytes, begin: int, size: int) -> bool:
    """Say whether `size` bytes are equal; both have padding behind them."""
    done = 0
    while done < size:
        difference = word_at(source, at + done) ^ word_at(known, begin + done)
        if _masked(difference, size - done):
            return False
        done += 8
    return True


@kernel
def _add_word(
    source: Bytes,
    at: int,
    size: int,
    low: Any,
    high: Any,
    slot: int,
    first: int,
    mask: int,
    begin: int,
    room: int,
    slots: Any,
    words: Any,
    known: Bytes,
    counters: Ints,
    node: int,
) -> Any:
    """Find or add a word that is not in the first slot; return its code, or -1 if there is no room."""
    while slots[first + slot]:
        code = np.int64(slots[first + slot]) - 1
        word = begin + code
        if (
            words[word, 0] == low
            and words[word, 1] == high
            and words[word, 2] == size
            and (size <= 16 or _same(source, at, known, words[word, 3], size))
        ):
            return code
        slot = (slot + 1) & mask
    code, end = counters[node], counters[-1]
    if code == room or end + size + SPARE > known.shape[0]:
        return np.int64(-1)
    slots[first + slot] = code + 1
    words[begin + code, 0], words[begin + code, 1] = low, high
    words[begin + code, 2], words[begin + code, 3] = size, end
    copy_bytes(source, at, known, end, size)
    counters[node] += 1
    counters[-1] += size
    return code


@kernel
def code_rows(
    source: Bytes,
    offsets: Any,
    split: bool,
    nodes: Any,
    slots: Any,
    words: Any,
    known: Bytes,
    counters: Ints,
    cursors: Ints,
    before: Ints,
    forms: Any,
    codes: Any,
    numbers: Ints,
    lengths: Any,
    others: Bytes,
    marks: Ints,
    used: Ints,
) -> None:
    """Encode texts.

    Parameters
    ----------
    source, offsets : Bytes, Ints
        The texts, with `SPARE` bytes of padding behind them.
    split : bool
        Whether adjacent digits and letters are two tokens.
    nodes : Ints
        The tree of pieces, each a row of `FIELDS`; the first is for texts without a form.
    slots, words : Ints
        For each piece with words, a table from hashes to codes; for each word its first and its next 8 bytes,
        its size, and its position in `known`.
    known : Bytes
        Literals and words.
    counters : Ints
        The number of words of each piece, and last the size of `known`.
    cursors : Ints
        The number of values in the column of each piece.
    before : Ints
        Scratch with an element for each piece.
    forms, codes, numbers, lengths, others, marks : Ints
        The output: the streams that `penstock.compression.texts.tokens` describes, columns as rows.
    used : Ints
        The numbers of lengths and of bytes of others, and the lengths of earlier texts.
    """
    count, filled = used[0], used[1]
    root = nodes[0, NEXT]
    for i in range(forms.shape[0]):
        if i % SUB_BLOCK == 0:
            marks[i // SUB_BLOCK] = used[2] + count
        begin: Any = np.int64(offsets[i])
        end: Any = np.int64(offsets[i + 1])
        at = begin
        node = root
        form = 0
        while node >= 0:
            # Unsigned indices need no check for negative values.
            own = np.uint64(node)
            start = at + nodes[own, SIZE]
            fits = start <= end and not (word_at(source, at) ^ np.uint64(nodes[own, FIRST])) & np.uint64(
                nodes[own, MASK]
            )
            if nodes[own, SIZE] > 8 and fits:
                fits = _same(source, at + 8, known, nodes[own, TEXT] + 8, nodes[own, SIZE] - 8)
            kind = nodes[own, KIND]
            stop = start
            if fits and kind != LITERAL:
                if kind == NUMBER:
                    word = word_at(source, start) ^ _ZEROS
                    size = trailing_zeros((word | (word + _ABOVE_9)) & _HIGH_BITS) >> 3
                    if size < 8:
                        size = min(size, end - start)
                        stop = start + size
                        number = np.int64(_eight_digits(word << np.uint64(8 * (8 - size) & 63)))
                        least = nodes[own, LEAST]
                        fits = (size >= least) & ((size == least) | (word & np.uint64(255) != 0)) & (size > 0)
                    else:
                        stop = _run(source, start, min(end, start + MOST_DIGITS + 1), 1)
                        number = _number_at(source, start, stop - start, nodes[own, LEAST])
                        fits = number >= 0
                    numbers[np.uint64(nodes[own, COLUMN]), np.uint64(cursors[own])] = number
                else:
                    until = nodes[own, UNTIL]
                    if until < 256:
                        stop = _find(source, start, end, until)
                    elif until == ANY_END:
                        stop = end
                    elif start < end:
                        stop = _run(source, start, end, _kind_of(source, start, split))
                    size = stop - start
                    fits = size > 0 or until != TOKEN_END
                    mask = nodes[own, SLOTS]
                    code = np.int64(-1)
                    if mask:
                        low = np.int64(_masked(word_at(source, start), size))
                        high = np.int64(_masked(word_at(source, start + 8), size - 8))
                        mixed = (
                            np.uint64(low) ^ (np.uint64(high) * _OTHER_MULTIPLIER) ^ np.uint64(size)
                        ) * _MULTIPLIER
                        slot = np.int64(mixed >> np.uint64(40)) & mask
                        first = nodes[own, SLOT]
                        code = np.int64(slots[np.uint64(first + slot)]) - 1
                        word = np.uint64(nodes[own, PLACE] + max(code, 0))
                        if (
                            code < 0
                            or size > 16
                            or words[word, 0] != low
                            or words[word, 1] != high
                            or words[word, 2] != size
                        ):
                            code = _add_word(
                                source,
                                start,
                                size,
                                low,
                                high,
                                slot,
                                first,
                                mask,
                                nodes[own, PLACE],
                                nodes[own, ROOM],
                                slots,
                                words,
                                known,
                                counters,
                                node,
                            )
                    if code < 0 and fits:
                        lengths[count] = size
                        copy_bytes(source, start, others, filled, size)
                        count += 1
                        filled += size
                    codes[np.uint64(nodes[own, COLUMN]), np.uint64(cursors[own])] = code
            if fits:
                cursors[own] += 1
                before[own] = at
                at = stop
                if at == end and nodes[own, FORM]:
                    form = nodes[own, FORM]
                    break
                if nodes[own, CHILD] >= 0:
                    node = nodes[own, CHILD]
                    continue
            # Try the next sibling, or the next sibling of an ancestor.
            while True:
                if fits:
                    cursors[node] -= 1
                    at = before[node]
                    if nodes[node, KIND] == WORD and codes[nodes[node, COLUMN], cursors[node]] < 0:
                        count -= 1
                        filled -= np.int64(lengths[count])
                if nodes[node, NEXT] >= 0 or nodes[node, PARENT] < 0:
                    break
                node = nodes[node, PARENT]
                fits = True
            node = nodes[node, NEXT]
        if not form:
            codes[0, cursors[0]] = -1
            cursors[0] += 1
            lengths[count] = end - begin
            copy_bytes(source, begin, others, filled, end - begin)
            count += 1
            filled += end - begin
        forms[i] = form
    used[0], used[1] = count, filled


@kernel
def _put_number(out: Bytes, at: int, number: Any, least: int) -> Any:
    """Write a number below 10**8 with at least `least` digits; return the end."""
    high = number // np.uint64(10_000)
    halves = high | ((number - high * np.uint64(10_000)) << np.uint64(32))
    hundreds = ((halves * np.uint64(10_486)) >> np.uint64(20)) & np.uint64(0x0000007F0000007F)
    pairs = hundreds | ((halves - hundreds * np.uint64(100)) << np.uint64(16))
    tens = ((pairs * np.uint64(103)) >> np.uint64(10)) & np.uint64(0x000F000F000F000F)
    digits = tens | ((pairs - tens * np.uint64(10)) << np.uint64(8))
    size = max(8 - trailing_zeros(digits | (_ONE << np.uint64(56))) // 8, least)
    put_word(out, at, (digits | _ZEROS) >> np.uint64(8 * (8 - size)))
    return at + size


@kernel
def join_words(
    texts: Ints, begins: Ints, words: Bytes, firsts: Ints, counts: Ints, alone: Any, offsets: Ints, out: Bytes
) -> None:
    """Write each word after the literal of its piece.

    Parameters
    ----------
    texts, firsts, counts : Ints
        For each piece the index of its literal and of its first word in `begins`, and its number of words.
    begins, words : Ints, Bytes
        Literals and words.
    alone : array of bool
        Whether a piece is only a literal, which then counts as its word.
    offsets, out : Ints, Bytes
        The output. Both `words` and `out` have padding behind them.
    """
    at: Any = np.int64(0)
    word = 0
    for piece in range(texts.shape[0]):
        first, size = begins[texts[piece]], begins[texts[piece] + 1] - begins[texts[piece]]
        for number in range(firsts[piece], firsts[piece] + counts[piece]):
            if not alone[piece]:
                copy_bytes(words, first, out, at, size)
                at += size
            own = begins[number + 1] - begins[number]
            copy_bytes(words, begins[number], out, at, own)
            at += own
            word += 1
            offsets[word] = at


@kernel
def write_rows(
    forms: Any,
    flat: Ints,
    firsts: Ints,
    pieces: Ints,
    offsets: Ints,
    known: Bytes,
    codes: Any,
    numbers: Ints,
    lengths: Any,
    others: Bytes,
    digits: Any,
    out_offsets: Any,
    out: Bytes,
) -> int:
    """Decode texts; return their size, or -1 if they do not fit `out` or are invalid.

    Parameters
    ----------
    forms : Ints
        The form of each text; validated here.
    flat, firsts : Ints
        The pieces of all forms, and the offset of each form in them.
    pieces : Ints
        For each piece: its kind; the minimum digits of a number; the number of words, where a literal counts
        as one; the first word; the next value of its column, which is advanced; the position of its literal
        in `known`, and the literal's size.
    offsets, known : Ints, Bytes
        Words with the literals of their pieces before them, and literals. `known`, `others` and `out` have
        padding.
    codes, numbers, lengths, others
        The streams; `codes` and `numbers` have exactly as many values as the forms need.
    digits : Ints
        For each number below 10,000: its four digits, the first one lowest, and from bit 32 on its number of
        digits.
    out_offsets, out : Ints, Bytes
        The output.
    """
    limit = out.shape[0] - SPARE
    rest = others.shape[0] - SPARE
    at: Any = np.int64(0)
    other: Any = np.int64(0)
    taken: Any = np.int64(0)
    for i in range(forms.shape[0]):
        form = np.uint64(np.int64(forms[i]))
        for place in range(firsts[form], firsts[form + _ONE]):
            piece = np.uint64(flat[np.uint64(place)])
            cursor = np.uint64(pieces[piece, 4])
            pieces[piece, 4] += 1
            code = np.int64(0)
            if pieces[piece, 0] == WORD:
                code = np.int64(codes[cursor])
            if pieces[piece, 0] != NUMBER and code >= 0:
                if code >= pieces[piece, 2]:
                    return -1
                word = np.uint64(pieces[piece, 3] + code)
                begin = offsets[word]
                size = offsets[word + _ONE] - begin
                if size > limit - at:
                    return -1
                copy_bytes(known, begin, out, at, size)
                at += size
                continue
            size = pieces[piece, 6]
            if size > limit - at:
                return -1
            copy_bytes(known, pieces[piece, 5], out, at, size)
            at += size
            if pieces[piece, 0] == NUMBER:
                number = np.uint64(numbers[cursor])
                least = pieces[piece, 1]
                if number < np.uint64(10_000) and least <= 4:
                    entry = np.uint64(digits[number])
                    size = max(np.int64(entry >> np.uint64(32)), least)
                    put_word(out, at, (entry & np.uint64(0xFFFFFFFF)) >> np.uint64(8 * (4 - size)))
                    at += size
                elif number < np.uint64(100_000_000) and least <= 8:
                    at = _put_number(out, at, number, least)
                elif number < np.uint64(10_000_000_000_000_000):
                    high = number // np.uint64(100_000_000)
                    at = _put_number(out, at, high, least - 8)
                    at = _put_number(out, at, number - high * np.uint64(100_000_000), 8)
                else:
                    return -1
            else:
                if other == lengths.shape[0]:
                    return -1
                size = lengths[other] + 0
                if size < 0 or size > limit - at or size > rest - taken:
                    return -1
                copy_bytes(others, taken, out, at, size)
                at += size
                taken += size
                other += 1
        if at > limit:
            return -1
        out_offsets[i + 1] = at
    return at
