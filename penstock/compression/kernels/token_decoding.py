"""Decode texts from rows of tokens.

`penstock.compression.texts.token_streams` describes the streams.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import kernel
from penstock.compression.kernels.bits import Bytes, Ints
from penstock.compression.kernels.byte_vectors import copy_bytes, put_word, trailing_zeros
from penstock.compression.kernels.token_pieces import ASCII_ZEROS, NUMBER, SPARE, WORD

__all__ = ["DIGITS", "join_words", "write_rows"]

_ONE = np.uint64(1)

DIGITS = np.array(
    [int.from_bytes(b"%04d" % number, "little") | len(str(number)) << 32 for number in range(10_000)]
)
"""The argument `digits` of `write_rows`."""


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
    put_word(out, at, (digits | ASCII_ZEROS) >> np.uint64(8 * (8 - size)))
    return at + size


@kernel
def join_words(
    texts: Ints, begins: Ints, words: Bytes, firsts: Ints, counts: Ints, alone: Any, offsets: Ints, out: Bytes
) -> None:
    """Write each word after the literal of its piece.

    Parameters
    ----------
    texts, firsts, counts : Ints
        For each piece, the index of its literal and of its first word in `begins`, and its number of words.
    begins, words : Ints, Bytes
        The offsets and the bytes of literals and words.
    alone : array of bool
        Whether a piece is only a literal, which is then treated as its word.
    offsets, out : Ints, Bytes
        The output. Both `words` and `out` are followed by padding.
    """
    at: Any = np.int64(0)
    word = 0
    for piece in range(texts.shape[0]):
        first, size = begins[texts[piece]], begins[texts[piece] + 1] - begins[texts[piece]]
        for number in range(firsts[piece], firsts[piece] + counts[piece]):
            if not alone[piece]:
                copy_bytes(words, first, out, at, size)
                at += size
            word_size = begins[number + 1] - begins[number]
            copy_bytes(words, begins[number], out, at, word_size)
            at += word_size
            word += 1
            offsets[word] = at


@kernel
def write_rows(
    forms: Any,
    flat: Ints,
    firsts: Ints,
    pieces: Ints,
    offsets: Ints,
    pool: Bytes,
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
        For each piece: its kind; the minimum digits of a number; the number of words, including a literal
        that is treated as a word; the first word; the next value of its column, which is advanced; the
        position of its literal in `pool`, and the literal's size.
    offsets, pool : Ints, Bytes
        `pool` holds each word after the literal of its piece, and then all literals. `offsets` are the
        offsets of the words. Padding follows `pool`, `others` and `out`.
    codes, numbers, lengths, others
        The streams; `codes` and `numbers` have exactly as many values as the forms need.
    digits : Ints
        For each number below 10,000: its four digits, the first digit lowest, and from bit 32 on its number
        of digits.
    out_offsets, out : Ints, Bytes
        The output.
    """
    limit = out.shape[0] - SPARE
    rest = others.shape[0] - SPARE
    at: Any = np.int64(0)
    other_number: Any = np.int64(0)
    others_at: Any = np.int64(0)
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
                copy_bytes(pool, begin, out, at, size)
                at += size
                continue
            size = pieces[piece, 6]
            if size > limit - at:
                return -1
            copy_bytes(pool, pieces[piece, 5], out, at, size)
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
                if other_number == lengths.shape[0]:
                    return -1
                size = lengths[other_number] + 0
                if size < 0 or size > limit - at or size > rest - others_at:
                    return -1
                copy_bytes(others, others_at, out, at, size)
                at += size
                others_at += size
                other_number += 1
        if at > limit:
            return -1
        out_offsets[i + 1] = at
    return at
