"""Decode texts from rows of tokens (`token_streams`), all of them or a range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.compression.abc import check
from penstock.compression.codecs.registry import decode_stream
from penstock.compression.kernels.bits import SUB_BLOCK, Bytes, Ints, seal
from penstock.compression.kernels.text import counts_of, offsets_of
from penstock.compression.kernels.token_decoding import DIGITS, join_words, write_rows
from penstock.compression.kernels.token_pieces import LITERAL, MAX_DIGITS, NUMBER, SPARE, WORD
from penstock.compression.node import Node
from penstock.compression.texts.forms import MAX_FORMS, MAX_WORDS
from penstock.compression.texts.token_streams import allocate
from penstock.errors import CorruptDataError

__all__ = ["decode_part", "decode_tokens"]

_MAX_PIECES = 1 << 12
_TYPES = tuple(map(np.dtype, ("i1", "i2", "i8", "i4", "i4", "i1", "i4", "i1")))
"""The types of the streams' values; the values of pieces may have any type."""


class _Description(NamedTuple):
    """The content of a stream of pieces: the texts' size; each piece's kind, number, literal; the forms."""

    total: int
    kinds: Ints
    numbers: Ints
    texts: Ints
    flat: Ints
    firsts: Ints


def _parse_pieces(pieces: Ints, words: int) -> _Description:
    """Return the content of a stream of pieces.

    Raises
    ------
    CorruptDataError
        If the stream contradicts itself or the number of words.
    """
    check(
        pieces.size % 3 == 1 and 1 < pieces.size <= 3 * _MAX_PIECES + 1,
        "forms have too many pieces, or none",
    )
    total, *rest = pieces.tolist()
    paths: list[list[int]] = []
    forms: list[list[int]] = []
    texts = [0]
    for at, (kind, number, parent) in enumerate(zip(*[iter(rest)] * 3, strict=True)):
        check(-1 <= parent < at, "a piece follows an unknown piece")
        paths.append([*(paths[parent] if parent >= 0 else ()), at])
        if kind & 4:
            forms.append(paths[-1])
        limits = (0, 0) if kind & 3 == LITERAL else (0, MAX_WORDS) if kind & 3 == WORD else (1, MAX_DIGITS)
        check(0 <= kind < 8 and kind & 3 <= NUMBER, "a form has a piece of an unknown kind")
        check(limits[0] <= number <= limits[1], "a piece has more words or digits than it can have")
        texts.append(texts[-1] + 1 + (number if kind & 3 == WORD else 0))
    check(texts.pop() == words and len(forms) <= MAX_FORMS + 1, "the pieces' words do not match the words")
    fields = np.array(rest, np.int64).reshape(-1, 3)
    return _Description(
        total,
        fields[:, 0] & 3,
        fields[:, 1],
        np.array(texts),
        np.array([at for form in forms for at in form], np.int64),
        np.cumsum([0, *map(len, forms)]),
    )


def decode_part(nodes: Sequence[Node], start: int, stop: int) -> tuple[Ints, ...]:
    """Decode the streams of a range of texts.

    Parameters
    ----------
    nodes : sequence of Node
        The coded streams.
    start, stop : int
        The texts; the first text must be the first of a sub-block.

    Raises
    ------
    CorruptDataError
        If the streams contradict one another.
    """
    all_forms = decode_stream(nodes[0])
    pieces, sizes, words = map(decode_stream, nodes[4:7])
    description = _parse_pieces(pieces, sizes.size)
    values, before, counts = (
        _values(forms, description) for forms in (all_forms, all_forms[:start], all_forms[start:stop])
    )
    columns = []
    for kind, node in ((WORD, nodes[1]), (NUMBER, nodes[2])):
        pieces_of_kind, begins = _places(values, description, kind, node.count)
        begins += before[pieces_of_kind]
        bounds = zip(begins.tolist(), (begins + counts[pieces_of_kind]).tolist(), strict=True)
        parts = [decode_stream(node, None, begin, end) for begin, end in bounds if begin < end]
        columns.append(np.concatenate([np.empty(0, node.dtype), *parts]))
    marks = decode_stream(nodes[3])
    check(marks.size == -(-all_forms.size // SUB_BLOCK), "the number of marks does not match the texts")
    first, last = (
        int(marks[row]) if row < marks.size else nodes[7].count
        for row in (start // SUB_BLOCK, -(-stop // SUB_BLOCK))
    )
    check(0 <= first <= last <= nodes[7].count, "a mark is beyond the others")
    lengths = decode_stream(nodes[7], None, 0, last)
    ends = np.cumsum(lengths, dtype=np.int64)
    possible = not last or (int(lengths.min()) >= 0 and int(ends[-1]) <= nodes[8].count)
    check(possible, "the lengths of others do not match their bytes")
    begin, end = (int(ends[at - 1]) if at else 0 for at in (first, last))
    pieces = pieces.copy()
    pieces[0] = -1 - description.total
    others = decode_stream(nodes[8], None, begin, end)
    return all_forms[start:stop], *columns, marks, pieces, sizes, words, lengths[first:], others


def decode_tokens(streams: tuple[Ints, ...], kind: npt.DTypeLike, most: int) -> tuple[Ints, Bytes] | None:
    """Return the offsets and bytes of texts; None if there are more than `most` bytes.

    Raises
    ------
    CorruptDataError
        If the streams contradict one another.
    """
    forms, codes, numbers, _, pieces, sizes, words, lengths, others = streams
    description = _parse_pieces(pieces, sizes.size)
    # For a part of the texts, only the total size of all texts is known.
    total = description.total if description.total >= 0 else -1 - description.total
    if total > most:
        return None
    types = [stream.dtype for stream in streams if stream is not pieces]
    check(tuple(types) == _TYPES, "streams have values of wrong sizes")
    values = _values(forms, description)
    columns = np.zeros(description.kinds.size, np.int64)
    for number, stream in ((WORD, codes), (NUMBER, numbers)):
        pieces_of_kind, places = _places(values, description, number, stream.size)
        columns[pieces_of_kind] = places
    spare = np.zeros(SPARE, np.int8)
    begins = offsets_of(sizes, np.int64, words.size)
    if begins is None or int(begins[-1]) != words.size:
        raise CorruptDataError("the lengths of words do not add up to their bytes")
    table, word_offsets, word_bytes = _join_words(
        description, begins, np.append(words, spare).view(np.uint8), most
    )
    offsets = allocate(forms.size + 1, np.int64)
    offsets[0] = 0
    out = allocate(total + SPARE, np.uint8)
    table[:, 4] = columns
    size = write_rows(
        seal(forms),
        description.flat,
        description.firsts,
        table,
        word_offsets,
        word_bytes,
        seal(codes),
        seal(numbers),
        seal(lengths),
        np.append(others, spare).view(np.uint8),
        DIGITS,
        offsets,
        out,
    )
    check(size == total or (description.total < 0 <= size), "decoded texts have another size than stated")
    return offsets.astype(kind, copy=False), out[:size]


def _values(forms: Ints, description: _Description) -> Ints:
    """Return the number of values in the column of each piece.

    Raises
    ------
    CorruptDataError
        If there is no such form.
    """
    count = description.firsts.size - 1
    possible = not forms.size or (int(forms.min()) >= 0 and int(forms.max()) < count)
    check(possible, "a text has an unknown form")
    rows = np.repeat(counts_of(forms, count), np.diff(description.firsts))
    return np.bincount(description.flat, rows, description.kinds.size).astype(np.int64)


def _places(values: Ints, description: _Description, kind: int, size: int) -> tuple[Ints, Ints]:
    """Return the pieces of a kind in the order of their columns, and the columns' offsets in the stream.

    Raises
    ------
    CorruptDataError
        If the stream does not have the size that these pieces need.
    """
    pieces_of_kind = np.flatnonzero(description.kinds == kind)
    if kind == WORD:
        pieces_of_kind = pieces_of_kind[np.argsort(-description.numbers[pieces_of_kind], kind="stable")]
    ends = np.cumsum(values[pieces_of_kind])
    check(
        (int(ends[-1]) if ends.size else 0) == size, "the number of a column's values does not match its rows"
    )
    return pieces_of_kind, ends - values[pieces_of_kind]


def _join_words(description: _Description, begins: Ints, words: Bytes, most: int) -> tuple[Ints, Ints, Bytes]:
    """Return the arguments of `write_rows`: a table of pieces; the offsets of words; words and literals."""
    is_word, is_literal = description.kinds == WORD, description.kinds == LITERAL
    literals = np.diff(begins)[description.texts]
    counts = np.where(is_word, description.numbers, is_literal)
    # Treat a lone literal as a word without a literal.
    firsts = description.texts + ~is_literal
    sizes = (literals * is_word) @ description.numbers + int(begins[-1])
    check(int(sizes) <= most + words.size, "words have too many bytes")
    offsets = np.zeros(int(counts.sum()) + 1, np.int64)
    out = np.empty(int(sizes) + words.size + SPARE, np.uint8)
    join_words(description.texts, begins, words, firsts, counts, is_literal, offsets, out)
    places = np.cumsum(counts) - counts
    # Append the literals, because literals before numbers and others are read from there.
    end = int(offsets[-1])
    out[end : end + words.size] = words
    table = [
        description.kinds,
        description.numbers,
        counts,
        places,
        places,
        end + begins[description.texts],
        literals,
    ]
    return np.stack(table, axis=1), offsets, out
