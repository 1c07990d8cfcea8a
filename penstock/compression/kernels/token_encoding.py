"""Split texts into tokens and encode them by forms.

A token is a run of letters and digits, or a run of all other bytes. With `split`, a run of the first kind has
only letters or only digits. `penstock.compression.texts.token_streams` describes the streams.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import GOLDEN, kernel
from penstock.compression.kernels.bits import SUB_BLOCK, Bytes, Ints
from penstock.compression.kernels.byte_vectors import (
    classes_at,
    copy_bytes,
    matches_at,
    trailing_zeros,
    word_at,
)
from penstock.compression.kernels.token_pieces import (
    ANY_END,
    ASCII_ZEROS,
    LITERAL,
    MAX_DIGITS,
    NUMBER,
    SPARE,
    TOKEN_END,
    WORD,
)

__all__ = [
    "CHILD",
    "COLUMN",
    "FIRST",
    "FORM",
    "KIND",
    "MASK",
    "MIN_DIGITS",
    "NEXT",
    "NODE_FIELDS",
    "PARENT",
    "PLACE",
    "ROOM",
    "SIZE",
    "SLOT",
    "SLOTS",
    "TEXT",
    "UNTIL",
    "code_rows",
]

NODE_FIELDS = 16
KIND, SIZE, FIRST, MASK, TEXT, CHILD, NEXT, PARENT = range(8)
FORM, COLUMN, MIN_DIGITS, SLOTS, SLOT, PLACE, ROOM, UNTIL = range(8, NODE_FIELDS)
"""Fields of a node.

KIND is the piece's kind. SIZE, FIRST, MASK and TEXT describe the literal before it: its size, its first 8
bytes as a word, the significant bits of the word, and its position. CHILD, NEXT and PARENT are nodes, or -1.
FORM is the form that ends here, or 0. COLUMN is the column of the values. MIN_DIGITS is the minimum number of
digits. SLOTS (a power of two less 1), SLOT, PLACE and ROOM describe a piece's words: the slots, the first
slot, the first word, the limit of words. UNTIL is the byte that ends a word, `TOKEN_END` or `ANY_END`.
"""

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_BEHIND = np.uint64(1 << 32)
_OTHER_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)
_HIGH_BITS = np.uint64(0x8080808080808080)
_ABOVE_9 = np.uint64(0x7676767676767676)


@kernel
def _run(source: Bytes, at: int, end: int, kind: Any) -> Any:
    """Return the end of a run of bytes of `kind`: bit 0 for digits, bit 1 for letters, bit 2 for others."""
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
        mask = matches_at(source, at, wanted)
        if mask:
            return min(at + trailing_zeros(mask), end)
        at += 32
    return end


@kernel
def _mask(word: Any, size: int) -> Any:
    """Return the first `size` bytes of a word, padded with zeros, without a branch."""
    half = np.uint64(4 * (8 - min(max(size, 0), 8)))
    return word & ((_ALL >> half) >> half)


@kernel
def _eight_digits(word: Any) -> Any:
    """Return the number that eight digits stand for.

    Each byte is a digit less 48; the first digit is lowest.
    """
    pairs = word * np.uint64(10) + (word >> np.uint64(8))
    low = (pairs & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
    high = ((pairs >> np.uint64(16)) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
    return (low + high) >> np.uint64(32)


@kernel
def _digits_of(word: Any, size: int) -> Any:
    """Subtract 48 from the first `size` of 8 bytes and align them to the end.

    Bytes other than digits give values above 9.
    """
    return (word ^ ASCII_ZEROS) << np.uint64(8 * (8 - size))


@kernel
def _number_at(source: Bytes, at: int, size: int, least: int) -> Any:
    """Parse `size` digits as a number of at least `least` digits; return -1 if that fails."""
    if size < least or size < 1 or size > 16 or (size > least and source[at] == 48):
        return np.int64(-1)
    first = min(size, 8)
    word = _digits_of(word_at(source, at), first)
    strange = (word | (word + _ABOVE_9)) & _HIGH_BITS
    number = _eight_digits(word)
    if size > 8:
        # Parse the last eight digits and the earlier digits separately.
        word = _digits_of(word_at(source, at), size - 8)
        last = word_at(source, at + size - 8) ^ ASCII_ZEROS
        strange |= (last | (last + _ABOVE_9)) & _HIGH_BITS
        number = _eight_digits(word) * np.uint64(100_000_000) + _eight_digits(last)
    return np.int64(-1) if strange else np.int64(number)


@kernel
def _equal_bytes(source: Bytes, at: int, pool: Bytes, begin: int, size: int) -> bool:
    """Return whether `size` bytes are equal; both texts are followed by padding."""
    checked = 0
    while checked < size:
        difference = word_at(source, at + checked) ^ word_at(pool, begin + checked)
        if _mask(difference, size - checked):
            return False
        checked += 8
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
    pool: Bytes,
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
            and (size <= 16 or _equal_bytes(source, at, pool, words[word, 3], size))
        ):
            return code
        slot = (slot + 1) & mask
    code, end = counters[node], counters[-1]
    if code == room or end + size + SPARE > pool.shape[0]:
        return np.int64(-1)
    slots[first + slot] = code + 1
    words[begin + code, 0], words[begin + code, 1] = low, high
    words[begin + code, 2], words[begin + code, 3] = size, end
    copy_bytes(source, at, pool, end, size)
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
    pool: Bytes,
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
        The texts, followed by `SPARE` bytes of padding.
    split : bool
        Whether adjacent digits and letters are two tokens.
    nodes : Ints
        The tree of pieces. Each piece is a row of `NODE_FIELDS` fields; the first row is for texts without a
        form.
    slots, words : Ints
        `slots` has, for each piece with words, a table from hashes to codes. `words` has, for each word, its
        first 8 bytes, its next 8 bytes, its size, and its position in `pool`.
    pool : Bytes
        The bytes of literals and words.
    counters : Ints
        The number of words of each piece; the last element is the size of `pool`.
    cursors : Ints
        The number of values in the column of each piece.
    before : Ints
        A buffer with an element for each piece.
    forms, codes, numbers, lengths, others, marks : Ints
        The output: the streams that `penstock.compression.texts.token_streams` describes, columns as rows.
    used : Ints
        The number of lengths, the number of bytes of others, and the number of lengths of earlier texts.
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
            row = np.uint64(node)
            start = at + nodes[row, SIZE]
            fits = start <= end and not (word_at(source, at) ^ np.uint64(nodes[row, FIRST])) & np.uint64(
                nodes[row, MASK]
            )
            if nodes[row, SIZE] > 8 and fits:
                fits = _equal_bytes(source, at + 8, pool, nodes[row, TEXT] + 8, nodes[row, SIZE] - 8)
            kind = nodes[row, KIND]
            stop = start
            if fits and kind != LITERAL:
                if kind == NUMBER:
                    word = word_at(source, start) ^ ASCII_ZEROS
                    size = trailing_zeros((word | (word + _ABOVE_9)) & _HIGH_BITS) >> 3
                    if size < 8:
                        size = min(size, end - start)
                        stop = start + size
                        number = np.int64(_eight_digits(word << np.uint64(8 * (8 - size) & 63)))
                        least = nodes[row, MIN_DIGITS]
                        fits = (size >= least) & ((size == least) | (word & np.uint64(255) != 0)) & (size > 0)
                    else:
                        stop = _run(source, start, min(end, start + MAX_DIGITS + 1), 1)
                        number = _number_at(source, start, stop - start, nodes[row, MIN_DIGITS])
                        fits = number >= 0
                    numbers[np.uint64(nodes[row, COLUMN]), np.uint64(cursors[row])] = number
                else:
                    until = nodes[row, UNTIL]
                    if until < 256:
                        stop = _find(source, start, end, until)
                    elif until == ANY_END:
                        stop = end
                    elif start < end:
                        stop = _run(source, start, end, _kind_of(source, start, split))
                    size = stop - start
                    fits = size > 0 or until != TOKEN_END
                    mask = nodes[row, SLOTS]
                    code = np.int64(-1)
                    if mask:
                        low = np.int64(_mask(word_at(source, start), size))
                        high = np.int64(_mask(word_at(source, start + 8), size - 8))
                        hash_ = (
                            np.uint64(low) ^ (np.uint64(high) * _OTHER_MULTIPLIER) ^ np.uint64(size)
                        ) * GOLDEN
                        slot = np.int64(hash_ >> np.uint64(40)) & mask
                        first = nodes[row, SLOT]
                        code = np.int64(slots[np.uint64(first + slot)]) - 1
                        word = np.uint64(nodes[row, PLACE] + max(code, 0))
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
                                nodes[row, PLACE],
                                nodes[row, ROOM],
                                slots,
                                words,
                                pool,
                                counters,
                                node,
                            )
                    if code < 0 and fits:
                        lengths[count] = size
                        copy_bytes(source, start, others, filled, size)
                        count += 1
                        filled += size
                    codes[np.uint64(nodes[row, COLUMN]), np.uint64(cursors[row])] = code
            if fits:
                cursors[row] += 1
                before[row] = at
                at = stop
                if at == end and nodes[row, FORM]:
                    form = nodes[row, FORM]
                    break
                if nodes[row, CHILD] >= 0:
                    node = nodes[row, CHILD]
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
