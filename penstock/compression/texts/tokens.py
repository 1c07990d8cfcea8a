"""Texts as rows of tokens: the common parts of a form are stored once, numbers and words in columns.

A form (`penstock.compression.texts.forms`) is a list of pieces, each a literal followed by a number, a
dictionary word, or nothing. A word that the dictionary has no room for is stored verbatim among the *others*;
so is a text without a form. (The idea is from Rodrigues, Luo, Yuan: "CLP: Efficient and Scalable Search on
Compressed Text Logs", OSDI 2021; columns of tokens, with codecs for numbers, replace its segments.)

The streams of a column, each encoded independently::

    0  forms     of each row, the number of its form
    1  codes     of words, -1 for one of the others; all rows of one piece, then of the next
    2  numbers   likewise
    3  marks     how many others there are before row 0, 1024, 2048, ...
    4  pieces    bytes of all texts; of each piece its kind, and 4 where a form ends with it; the number of
                 its words or the least digits of its numbers; and the piece before it, -1 if none
    5  lengths of the literal and the words of each piece
    6  words
    7  lengths of others, row after row
    8  others

A form has the number of its last piece; form 0 is for texts without a form. Columns of codes are in
descending order of their numbers of words, so neighbours take about as many bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.compression.abc import check
from penstock.compression.codecs.registry import decode_stream
from penstock.compression.kernels.bits import SUB_BLOCK, Bytes, Ints, sealed
from penstock.compression.kernels.text import counts_of, offsets_of
from penstock.compression.kernels.token_kernels import (
    CHILD,
    COLUMN,
    DIGITS,
    FIRST,
    FORM,
    KIND,
    LEAST,
    LITERAL,
    MASK,
    MOST_DIGITS,
    NEXT,
    NUMBER,
    PARENT,
    PLACE,
    ROOM,
    SIZE,
    SLOT,
    SLOTS,
    SPARE,
    TEXT,
    UNTIL,
    WORD,
    code_rows,
    join_words,
    write_rows,
)
from penstock.compression.node import Node
from penstock.compression.texts.forms import MOST_FORMS, MOST_WORDS, Forms, Piece, learn_forms
from penstock.errors import CorruptDataError

__all__ = [
    "STREAMS",
    "fits",
    "part_of",
    "texts_of_tokens",
    "to_tokens",
]

STREAMS = (
    *("forms", "codes", "numbers", "marks", "pieces"),
    *("lengths of words", "words", "lengths of others", "others"),
)
"""Of a column's texts."""

_TYPES = ("i1", "i2", "i8", "i4", "i4", "i1", "i4", "i1")
_MOST_NODES = 1 << 12
_FIELDS = 16
_CHUNK = 1 << 14
_ROOM = 1 << 22


class Coder:
    """Encodes texts by forms into columns, a chunk at a time."""

    def __init__(self, forms: Forms) -> None:
        self._split = forms.split
        self._flat: list[Piece] = []
        self._texts: list[bytes] = []
        rows: list[list[int]] = []
        self._literals = b""
        self._columns = {WORD: 0, NUMBER: 0}
        self._ends = 0
        slots = words = 0

        def put(piece: Piece, parent: int) -> int:
            nonlocal slots, words
            # Merge a literal with the piece that always follows it.
            text = piece.text
            while piece.kind == LITERAL and not piece.ends and len(piece.after) == 1:
                (piece,) = piece.after
                text += piece.text
            number = len(rows)
            row = [0] * _FIELDS
            rows.append(row)
            self._flat.append(piece)
            self._texts.append(text)
            row[KIND], row[PARENT], row[CHILD], row[NEXT] = piece.kind, parent, -1, -1
            row[SIZE], row[TEXT] = len(text), len(self._literals)
            row[LEAST], row[UNTIL] = piece.least, piece.until
            row[FIRST] = int.from_bytes(text[:8].ljust(8, b"\0"), "little", signed=True)
            row[MASK] = int.from_bytes(
                b"\xff" * min(len(text), 8) + bytes(8 - min(len(text), 8)), "little", signed=True
            )
            self._literals += text
            if piece.ends:
                row[FORM] = self._ends
                self._ends += 1
            if piece.kind != LITERAL:
                row[COLUMN] = self._columns[piece.kind]
                self._columns[piece.kind] += 1
            if piece.room:
                size = 1 << (2 * piece.room - 1).bit_length()
                row[SLOTS], row[SLOT], row[PLACE], row[ROOM] = size - 1, slots, words, piece.room
                slots, words = slots + size, words + piece.room
            below = [put(after, number) for after in piece.after]
            if below:
                row[CHILD] = below[0]
            for one, other in pairwise(below):
                rows[one][NEXT] = other
            return number

        put(Piece(WORD, ends=True), -1)
        top = [0, *(put(piece, -1) for piece in forms.pieces)]
        for one, other in pairwise(top):
            rows[one][NEXT] = other
        self._nodes = np.array(rows, np.int64)
        self._slots = np.zeros(slots, np.uint16)
        self._words = np.empty((words, 4), np.int64)
        self._known = np.empty(len(self._literals) + _ROOM, np.uint8)
        self._known[: len(self._literals)] = np.frombuffer(self._literals, np.uint8)
        self._counters = np.zeros(len(rows) + 1, np.int64)
        self._counters[-1] = len(self._literals)
        # Allocate once for all chunks, since the system zeroes new memory.
        self._scratch = (
            np.empty((self._columns[WORD], _CHUNK), np.int16),
            np.empty((self._columns[NUMBER], _CHUNK), np.int64),
        )
        self._forms: list[Ints] = []
        self._codes: list[list[Ints]] = [[] for _ in range(self._columns[WORD])]
        self._numbers: list[list[Ints]] = [[] for _ in range(self._columns[NUMBER])]
        self._lengths: list[Ints] = []
        self._others: list[Bytes] = []
        self._marks: list[Ints] = []
        self._count = self._total = 0

    def add(self, offsets: Ints, source: Bytes) -> None:
        """Encode at most one chunk of texts. Each text has padding behind it."""
        rows = offsets.size - 1
        size = int(offsets[-1]) - int(offsets[0])
        forms, marks = np.empty(rows, np.int8), np.empty(-(-rows // SUB_BLOCK), np.int64)
        cursors = np.zeros(len(self._flat), np.int64)
        codes, numbers = self._scratch
        lengths, others = _memory(size + rows, np.int32), _memory(size + SPARE, np.uint8)
        used = np.array([0, 0, self._count])
        code_rows(
            sealed(source),
            sealed(offsets),
            self._split,
            self._nodes,
            self._slots,
            self._words,
            self._known,
            self._counters,
            cursors,
            np.empty(len(self._flat), np.int64),
            forms,
            codes,
            numbers,
            lengths,
            others,
            marks,
            used,
        )
        for piece, node, count in zip(self._flat, self._nodes, cursors, strict=True):
            if piece.kind == WORD:
                self._codes[node[COLUMN]].append(codes[node[COLUMN], :count].copy())
            elif piece.kind == NUMBER:
                self._numbers[node[COLUMN]].append(numbers[node[COLUMN], :count].copy())
        self._forms.append(forms)
        self._lengths.append(lengths[: used[0]].copy())
        self._others.append(others[: used[1]].copy())
        self._marks.append(marks)
        self._count += int(used[0])
        self._total += size

    @property
    def others_bytes(self) -> int:
        """The number of bytes stored verbatim."""
        return sum(part.size for part in self._others)

    def streams(self) -> tuple[Ints, ...]:
        """Return the streams of all texts."""
        pieces = [self._total]
        lengths, words, counts = [], [], []
        for piece, text, node, count in zip(
            self._flat, self._texts, self._nodes, self._counters.tolist(), strict=False
        ):
            pieces += (
                piece.kind | piece.ends << 2,
                piece.least if piece.kind == NUMBER else count,
                node[PARENT],
            )
            lengths.append(np.array([len(text)]))
            words.append(np.frombuffer(text, np.uint8))
            if piece.kind == WORD:
                counts.append(count)
                places = self._words[node[PLACE] : node[PLACE] + count, 2:]
                lengths.append(places[:, 0])
                words += [self._known[begin : begin + size] for size, begin in places.tolist()]
        order = np.argsort(-np.array(counts), kind="stable").tolist()
        codes = [part for column in order for part in self._codes[column]]
        numbers = [part for column in self._numbers for part in column]
        return (
            _joined(self._forms, np.int8),
            _joined(codes, np.int16),
            _joined(numbers, np.int64),
            _joined(self._marks, np.int32),
            np.array(pieces, np.int64),
            _joined(lengths, np.int32),
            _joined(words, np.uint8).view(np.int8),
            _joined(self._lengths, np.int32),
            _joined(self._others, np.uint8).view(np.int8),
        )


def _memory(count: int, kind: npt.DTypeLike) -> Any:
    """Allocate values with Arrow, which reuses freed memory; NumPy returns it to the system."""
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(kind).itemsize), kind)


def _joined(parts: Sequence[Any], kind: npt.DTypeLike) -> Any:
    parts = [np.empty(0, kind), *parts]
    out = _memory(sum(part.size for part in parts), kind)
    return np.concatenate(parts, out=out, casting="same_kind")


def to_tokens(offsets: Ints, source: Bytes, forms: Forms | None = None) -> tuple[Ints, ...]:
    """Return the streams of texts.

    Parameters
    ----------
    offsets, source : Ints, Bytes
        The offsets of the texts, and the buffer that holds their bytes.
    forms : Forms, optional
        Their patterns; by default learned from the texts.

    """
    coder = Coder(learn_forms(offsets, source) if forms is None else forms)
    rows = offsets.size - 1
    # Copy the last texts, so that they have padding behind them.
    last = int(np.searchsorted(offsets, max(source.size - SPARE, -1), "right")) - 1
    last = max(0, min(last, rows)) // SUB_BLOCK * SUB_BLOCK
    for begin in range(0, last, _CHUNK):
        coder.add(offsets[begin : min(begin + _CHUNK, last) + 1].astype(np.int64), source)
    first = int(offsets[last])
    rest = np.append(source[first : int(offsets[-1])], np.zeros(SPARE, np.uint8))
    for begin in range(last, rows, _CHUNK):
        coder.add(offsets[begin : begin + _CHUNK + 1].astype(np.int64) - first, rest)
    return coder.streams()


class _Description(NamedTuple):
    """The content of a stream of pieces: the texts' size; each piece's kind, number and literal; forms."""

    total: int
    kinds: Ints
    numbers: Ints
    texts: Ints
    flat: Ints
    firsts: Ints


def _described(pieces: Ints, words: int) -> _Description:
    """Return the content of a stream of pieces.

    Raises
    ------
    CorruptDataError
        If it contradicts itself, or the number of words.
    """
    check(
        pieces.size % 3 == 1 and 1 < pieces.size <= 3 * _MOST_NODES + 1, "forms have too many pieces, or none"
    )
    total, *rest = pieces.tolist()
    paths: list[list[int]] = []
    forms: list[list[int]] = []
    texts = [0]
    for at, (kind, number, parent) in enumerate(zip(*[iter(rest)] * 3, strict=True)):
        check(-1 <= parent < at, "a piece follows none")
        paths.append([*(paths[parent] if parent >= 0 else ()), at])
        if kind & 4:
            forms.append(paths[-1])
        known = (0, 0) if kind & 3 == LITERAL else (0, MOST_WORDS) if kind & 3 == WORD else (1, MOST_DIGITS)
        check(0 <= kind < 8 and kind & 3 <= NUMBER, "a form has a piece of a kind that nothing writes")
        check(known[0] <= number <= known[1], "a piece has more words or digits than it can have")
        texts.append(texts[-1] + 1 + (number if kind & 3 == WORD else 0))
    check(texts.pop() == words and len(forms) <= MOST_FORMS + 1, "pieces have other words than there are")
    fields = np.array(rest, np.int64).reshape(-1, 3)
    return _Description(
        total,
        fields[:, 0] & 3,
        fields[:, 1],
        np.array(texts),
        np.array([at for form in forms for at in form], np.int64),
        np.cumsum([0, *map(len, forms)]),
    )


def fits(streams: tuple[Ints, ...]) -> bool:
    """Say whether at most a fourth of the texts' bytes are others."""
    return 4 * streams[8].size <= int(streams[4][0])


def part_of(nodes: Sequence[Node], start: int, stop: int) -> tuple[Ints, ...]:
    """Decode the streams of a range of texts.

    Parameters
    ----------
    nodes : sequence of Node
        The coded streams.
    start, stop : int
        The texts; the first one is the first of a sub-block.

    Raises
    ------
    CorruptDataError
        If the streams contradict one another.
    """
    every = decode_stream(nodes[0])
    pieces, sizes, words = map(decode_stream, nodes[4:7])
    known = _described(pieces, sizes.size)
    values, before, here = (_values(forms, known) for forms in (every, every[:start], every[start:stop]))
    columns = []
    for kind, node in ((WORD, nodes[1]), (NUMBER, nodes[2])):
        chosen, begins = _places(values, known, kind, node.count)
        begins += before[chosen]
        bounds = zip(begins.tolist(), (begins + here[chosen]).tolist(), strict=True)
        parts = [decode_stream(node, None, begin, end) for begin, end in bounds if begin < end]
        columns.append(np.concatenate([np.empty(0, node.dtype), *parts]))
    marks = decode_stream(nodes[3])
    check(marks.size == -(-every.size // SUB_BLOCK), "there are other marks than texts")
    first, last = (
        int(marks[row]) if row < marks.size else nodes[7].count
        for row in (start // SUB_BLOCK, -(-stop // SUB_BLOCK))
    )
    check(0 <= first <= last <= nodes[7].count, "a mark is beyond the others")
    lengths = decode_stream(nodes[7], None, 0, last)
    ends = np.cumsum(lengths, dtype=np.int64)
    possible = not last or (int(lengths.min()) >= 0 and int(ends[-1]) <= nodes[8].count)
    check(possible, "others have other lengths than bytes")
    begin, end = (int(ends[at - 1]) if at else 0 for at in (first, last))
    pieces = pieces.copy()
    pieces[0] = -1 - known.total
    others = decode_stream(nodes[8], None, begin, end)
    return every[start:stop], *columns, marks, pieces, sizes, words, lengths[first:], others


def texts_of_tokens(streams: tuple[Ints, ...], kind: npt.DTypeLike, most: int) -> tuple[Ints, Bytes] | None:
    """Return the offsets and bytes of texts; None if there are more than `most` bytes.

    Raises
    ------
    CorruptDataError
        If the streams contradict one another.
    """
    forms, codes, numbers, _, pieces, sizes, words, lengths, others = streams
    known = _described(pieces, sizes.size)
    # For a part of the texts only the total size is known.
    total = known.total if known.total >= 0 else -1 - known.total
    if total > most:
        return None
    found = [stream.dtype for stream in streams if stream is not pieces]
    check(found == [np.dtype(name) for name in _TYPES], "streams have values of other sizes than they need")
    values = _values(forms, known)
    columns = np.zeros(known.kinds.size, np.int64)
    for number, stream in ((WORD, codes), (NUMBER, numbers)):
        chosen, places = _places(values, known, number, stream.size)
        columns[chosen] = places
    spare = np.zeros(SPARE, np.int8)
    begins = offsets_of(sizes, np.int64, words.size)
    if begins is None or int(begins[-1]) != words.size:
        raise CorruptDataError("words have other lengths than bytes")
    table, word_offsets, joined = _joined_words(known, begins, np.append(words, spare).view(np.uint8), most)
    offsets = _memory(forms.size + 1, np.int64)
    offsets[0] = 0
    out = _memory(total + SPARE, np.uint8)
    table[:, 4] = columns
    written = write_rows(
        sealed(forms),
        known.flat,
        known.firsts,
        table,
        word_offsets,
        joined,
        sealed(codes),
        sealed(numbers),
        sealed(lengths),
        np.append(others, spare).view(np.uint8),
        DIGITS,
        offsets,
        out,
    )
    check(written == total or (known.total < 0 <= written), "texts have other words than bytes")
    return offsets.astype(kind, copy=False), out[:written]


def _values(forms: Ints, known: _Description) -> Ints:
    """Return the number of values in the column of each piece.

    Raises
    ------
    CorruptDataError
        If there is no such form.
    """
    count = known.firsts.size - 1
    possible = not forms.size or (int(forms.min()) >= 0 and int(forms.max()) < count)
    check(possible, "a text has a form that there is not")
    rows = np.repeat(counts_of(forms, count), np.diff(known.firsts))
    return np.bincount(known.flat, rows, known.kinds.size).astype(np.int64)


def _places(values: Ints, known: _Description, kind: int, size: int) -> tuple[Ints, Ints]:
    """Return the pieces of a kind in the order of their columns, and the columns' offsets in the stream.

    Raises
    ------
    CorruptDataError
        If the stream has another size than they need.
    """
    chosen = np.flatnonzero(known.kinds == kind)
    if kind == WORD:
        chosen = chosen[np.argsort(-known.numbers[chosen], kind="stable")]
    ends = np.cumsum(values[chosen])
    check((int(ends[-1]) if ends.size else 0) == size, "columns have other values than their rows")
    return chosen, ends - values[chosen]


def _joined_words(known: _Description, begins: Ints, words: Bytes, most: int) -> tuple[Ints, Ints, Bytes]:
    """Return the arguments of `write_rows`: a table of pieces; the offsets of words; words and literals."""
    is_word, is_literal = known.kinds == WORD, known.kinds == LITERAL
    literals = np.diff(begins)[known.texts]
    counts = np.where(is_word, known.numbers, is_literal)
    # Treat a lone literal as a word without a literal.
    firsts = known.texts + ~is_literal
    sizes = (literals * is_word) @ known.numbers + int(begins[-1])
    check(int(sizes) <= most + words.size, "words have too many bytes")
    offsets = np.zeros(int(counts.sum()) + 1, np.int64)
    out = np.empty(int(sizes) + words.size + SPARE, np.uint8)
    join_words(known.texts, begins, words, firsts, counts, is_literal, offsets, out)
    places = np.cumsum(counts) - counts
    # Literals before numbers and others are read where they are.
    end = int(offsets[-1])
    out[end : end + words.size] = words
    table = [known.kinds, known.numbers, counts, places, places, end + begins[known.texts], literals]
    return np.stack(table, axis=1), offsets, out
