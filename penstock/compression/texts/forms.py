"""Forms: the patterns of texts, learned from a sample.

A text is cut into tokens: runs of letters and digits, and runs of other bytes. Texts that begin with the same
pieces share them, so forms are paths of a tree. A piece is a literal, a number, or a word of a dictionary. A
word may span several tokens and end before a separator byte, if the sample has few distinct words of this
kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from penstock.compression.kernels.bits import Bytes, Ints
from penstock.compression.kernels.token_pieces import ANY_END, LITERAL, MAX_DIGITS, NUMBER, TOKEN_END, WORD

__all__ = ["MAX_FORMS", "MAX_WORDS", "Forms", "Piece", "learn_forms", "sample_rows"]

MAX_FORMS = 126
"""The limit of learned forms. One more form stands for texts without a form."""

MAX_WORDS = (1 << 15) - 1
"""The limit of the words of a piece."""

_SAMPLE_ROWS = 1 << 9
_SAMPLE_BYTES = 1 << 16
_MAX_TEXT_BYTES = 1 << 12
"""Longer texts are left out of the sample."""
_MAX_DEPTH = 100
_MAX_SHARE_TO_ACCEPT = 1 / 8
"""If texts split in one way take no more than this share of the bytes, the other way to split is not
tried."""
_MAX_PIECES = 400
_MIN_ROWS_OF_PIECE = 3
_MIN_ROWS_OF_LITERAL = 16
_MIN_ROOM = 1 << 10
_MAX_WORDS_AS_LITERALS = 8
"""If the following pieces depend on a word with at most this many values, each value becomes a literal."""
_MIN_REPETITIONS = 8
"""A dictionary is worth it if its words occur this often on average."""
_UNIQUE_SHARE = 0.97
"""If more than this share of the words are distinct, they are stored verbatim."""
_TOKEN = re.compile(rb"[0-9A-Za-z\x80-\xff]*")
_SPLIT_TOKEN = re.compile(rb"[0-9]+|[A-Za-z\x80-\xff]*")
_SEPARATORS = re.compile(rb"[^0-9A-Za-z\x80-\xff]*")
_NO_SEPARATORS = re.compile(rb"[0-9A-Za-z\x80-\xff]+")


@dataclass(slots=True)
class Piece:
    """A piece, and the pieces that may follow it.

    Parameters
    ----------
    kind : int
        `LITERAL`, `WORD` or `NUMBER`.
    text : bytes
        The literal.
    room : int
        The limit of the piece's words.
    least : int
        The minimum number of digits of a number.
    until : int
        The byte that ends a word, or `TOKEN_END` or `ANY_END`.
    ends : bool
        Whether a text may end here.
    after : list of Piece
        The pieces that may follow.
    """

    kind: int
    text: bytes = b""
    room: int = 0
    least: int = 0
    until: int = TOKEN_END
    ends: bool = False
    after: list[Piece] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Forms:
    """The patterns of texts.

    Parameters
    ----------
    split : bool
        Whether adjacent digits and letters are two tokens.
    pieces : list of Piece
        The first pieces of texts.
    share : float
        The approximate size of the encoded sample, as a share of the sample's bytes.
    """

    split: bool
    pieces: list[Piece]
    share: float


def sample_rows(rows: int, mean_bytes: int) -> Ints:
    """Return the rows from which to learn forms: distant rows, because neighbours are alike."""
    count = min(rows, _SAMPLE_ROWS, max(_SAMPLE_BYTES // max(mean_bytes, 1), _MIN_ROWS_OF_LITERAL))
    return np.linspace(0, max(rows - 1, 0), count).astype(np.int64)


def learn_forms(offsets: Ints, source: Bytes) -> Forms:
    """Learn the forms of a sample of texts, with the value of `Forms.split` that makes the sample smaller.

    Parameters
    ----------
    offsets, source : Ints, Bytes
        The offsets of the texts, and the buffer that holds their bytes.
    """
    rows = sample_rows(offsets.size - 1, (int(offsets[-1]) - int(offsets[0])) // max(offsets.size - 1, 1))
    bounds = zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)
    texts = [source[begin:end].tobytes() for begin, end in bounds if end - begin <= _MAX_TEXT_BYTES]
    forms = _Learner(texts, split=False).forms()
    if forms.share > _MAX_SHARE_TO_ACCEPT:
        forms = min(forms, _Learner(texts, split=True).forms(), key=lambda forms: forms.share)
    return forms


_Row = tuple[bytes, int]
"""A text, and the number of its bytes in earlier pieces."""


class _Learner:
    """Learns the pieces of a sample of texts, one after the other."""

    def __init__(self, texts: list[bytes], *, split: bool) -> None:
        self._texts = texts
        self._split = split
        self._token = _SPLIT_TOKEN if split else _TOKEN
        self._least_rows = max(_MIN_ROWS_OF_PIECE, len(texts) // 256)
        self._pieces = self._ends = self._depth = 0
        self._bits = 0.0

    def forms(self) -> Forms:
        top = Piece(LITERAL)
        self._learn_followers(top, [(text, 0) for text in self._texts])
        if top.ends:
            top.after.append(Piece(LITERAL, ends=True))
        return Forms(self._split, top.after, self._bits / 8.0 / max(sum(map(len, self._texts)), 1))

    def _keep_piece(self, some: list[_Row], rows: list[_Row]) -> bool:
        """Return whether some rows get their own piece; if not, add their bytes to the estimated size."""
        enough = len(some) >= min(self._least_rows, len(rows)) and self._pieces < _MAX_PIECES
        if not enough:
            self._bits += sum(8.0 * len(text) for text, _ in some)
        return enough

    def _add(self, piece: Piece, after: Piece) -> Piece:
        self._pieces += 1
        piece.after.append(after)
        return after

    def _learn_followers(self, piece: Piece, rows: list[_Row]) -> None:
        """Find the pieces that follow a piece in these rows."""
        ended = [row for row in rows if len(row[0]) == row[1]]
        if ended and self._keep_piece(ended, rows):
            self._end_form(piece)
        rows = [row for row in rows if len(row[0]) > row[1]]
        if not rows:
            return
        rests = [text[at:] for text, at in rows]
        if self._depth == _MAX_DEPTH or (len(set(rests)) > 1 and self._suits_dictionary(rests)):
            self._end_form(self._add(piece, self._word(rests, ANY_END)))
            return
        self._depth += 1
        heads = [self._token_at(row) for row in rows]
        groups: dict[int, list[_Row]] = {}
        kinds = [1 if _is_number(head) else 2 if head else 0 for head in heads]
        if 10 * sum(kind == 1 for kind in kinds) < len(rows):
            kinds = [min(kind, 1) * 2 for kind in kinds]
        for kind, row in zip(kinds, rows, strict=True):
            groups.setdefault(kind, []).append(row)
        for kind, some in sorted(groups.items(), key=lambda group: -len(group[1])):
            if self._keep_piece(some, rows):
                if kind:
                    self._learn_values(piece, some, numbers=kind == 1)
                else:
                    self._learn_literals(piece, [(row, self._separators_at(row)) for row in some])
        self._depth -= 1

    def _end_form(self, piece: Piece) -> None:
        if self._ends < MAX_FORMS:
            piece.ends = True
            self._ends += 1

    def _token_at(self, row: _Row) -> bytes:
        match = self._token.match(*row)
        return match[0] if match else b""

    def _separators_at(self, row: _Row) -> bytes:
        match = _SEPARATORS.match(*row)
        return match[0] if match else b""

    def _learn_literals(self, piece: Piece, rows: list[tuple[_Row, bytes]]) -> None:
        """Follow each literal that comes next in these rows."""
        groups: dict[bytes, list[_Row]] = {}
        for (text, at), literal in rows:
            groups.setdefault(literal, []).append((text, at + len(literal)))
        everything = [row for row, _ in rows]
        if len(groups) > 1:
            self._bits += 2.0 * len(rows)
        for literal, some in sorted(groups.items(), key=lambda group: -len(group[1])):
            if self._keep_piece(some, everything):
                self._learn_followers(
                    self._add(piece, Piece(LITERAL, text=literal)) if literal else piece, some
                )

    def _learn_values(self, piece: Piece, rows: list[_Row], *, numbers: bool) -> None:
        """Find the numbers or words that come next in these rows, and their followers."""
        heads = [self._token_at(row) for row in rows]
        count = len(set(heads))
        if count == 1 and len(rows) >= _MIN_ROWS_OF_LITERAL:
            self._learn_literals(piece, list(zip(rows, heads, strict=True)))
            return
        until, words = (
            self._extend_words(rows, heads) if self._suits_dictionary(heads) else (TOKEN_END, heads)
        )
        if until == TOKEN_END and not numbers and count <= _MAX_WORDS_AS_LITERALS:
            ends = {
                self._separators_at((text, at + len(head)))
                for (text, at), head in zip(rows, heads, strict=True)
            }
            if len(ends) > 1:
                # The pieces that follow depend on the word.
                self._learn_literals(piece, list(zip(rows, heads, strict=True)))
                return
        least = _least_digits(set(heads)) if numbers and not self._suits_dictionary(heads) else 0
        if least:
            values = [int(head) for head in heads]
            self._bits += len(rows) * float(np.log2(max(values) - min(values) + 1))
            after = Piece(NUMBER, least=least)
        else:
            after = self._word(words, until)
        after = self._add(piece, after)
        rows = [(text, at + len(word)) for (text, at), word in zip(rows, words, strict=True)]
        self._learn_literals(after, [(row, self._separators_at(row)) for row in rows])

    def _suits_dictionary(self, words: list[bytes]) -> bool:
        """Return whether words are few enough for a dictionary."""
        return len(set(words)) <= max(2, len(words) // _MIN_REPETITIONS)

    def _word(self, words: list[bytes], until: int) -> Piece:
        distinct = set(words)
        count = len(distinct)
        if count > _UNIQUE_SHARE * len(words) and len(words) > _MIN_ROWS_OF_LITERAL:
            self._bits += sum(8.0 * len(word) for word in words)
            return Piece(WORD, until=until)
        self._bits += len(words) * float(np.log2(count)) + sum(map(len, distinct)) / 16
        return Piece(
            WORD, until=until, room=_MIN_ROOM + 8 * count if self._suits_dictionary(words) else MAX_WORDS
        )

    def _extend_words(self, rows: list[_Row], heads: list[bytes]) -> tuple[int, list[bytes]]:
        """Return the end byte that makes words longest and still few, and these words."""
        until, longest = TOKEN_END, heads
        (text, at), size = rows[0], sum(map(len, heads))
        for byte in dict.fromkeys(_NO_SEPARATORS.sub(b"", text[at:])):
            separator = bytes((byte,))
            ends = [text.find(separator, at) for text, at in rows]
            if min(ends) < 0:
                continue
            words = [text[at:end] for (text, at), end in zip(rows, ends, strict=True)]
            longer = sum(map(len, words))
            if longer > size and self._suits_dictionary(words):
                until, longest, size = byte, words, longer
        return until, longest


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) <= MAX_DIGITS


def _least_digits(distinct: set[bytes]) -> int:
    """Return the minimum number of digits of numbers; 0 if it varies."""
    if not all(map(_is_number, distinct)):
        return 0
    least = min((len(text) for text in distinct if text[:1] == b"0" and len(text) > 1), default=1)
    return (
        least
        if all(len(text) == least or (len(text) > least and text[:1] != b"0") for text in distinct)
        else 0
    )
