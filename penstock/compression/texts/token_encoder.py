"""Encode texts as rows of tokens (`token_streams`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.compression.kernels.bits import SUB_BLOCK, Bytes, Ints, seal
from penstock.compression.kernels.token_encoding import (
    CHILD,
    COLUMN,
    FIRST,
    FORM,
    KIND,
    MASK,
    MIN_DIGITS,
    NEXT,
    NODE_FIELDS,
    PARENT,
    PLACE,
    ROOM,
    SIZE,
    SLOT,
    SLOTS,
    TEXT,
    UNTIL,
    code_rows,
)
from penstock.compression.kernels.token_pieces import LITERAL, NUMBER, SPARE, WORD
from penstock.compression.texts.forms import Forms, Piece, learn_forms
from penstock.compression.texts.token_streams import allocate

__all__ = ["encode_tokens"]

_CHUNK_ROWS = 1 << 14
_WORD_BYTES = 1 << 22
"""The limit of the bytes of a column's words."""


class _Encoder:
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
            row = [0] * NODE_FIELDS
            rows.append(row)
            self._flat.append(piece)
            self._texts.append(text)
            row[KIND], row[PARENT], row[CHILD], row[NEXT] = piece.kind, parent, -1, -1
            row[SIZE], row[TEXT] = len(text), len(self._literals)
            row[MIN_DIGITS], row[UNTIL] = piece.least, piece.until
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
            for node, sibling in pairwise(below):
                rows[node][NEXT] = sibling
            return number

        put(Piece(WORD, ends=True), -1)
        top = [0, *(put(piece, -1) for piece in forms.pieces)]
        for node, sibling in pairwise(top):
            rows[node][NEXT] = sibling
        self._nodes = np.array(rows, np.int64)
        self._slots = np.zeros(slots, np.uint16)
        self._words = np.empty((words, 4), np.int64)
        self._known = np.empty(len(self._literals) + _WORD_BYTES, np.uint8)
        self._known[: len(self._literals)] = np.frombuffer(self._literals, np.uint8)
        self._counters = np.zeros(len(rows) + 1, np.int64)
        self._counters[-1] = len(self._literals)
        # Allocate once for all chunks, because the system zeroes new memory.
        self._scratch = (
            np.empty((self._columns[WORD], _CHUNK_ROWS), np.int16),
            np.empty((self._columns[NUMBER], _CHUNK_ROWS), np.int64),
        )
        self._forms: list[Ints] = []
        self._codes: list[list[Ints]] = [[] for _ in range(self._columns[WORD])]
        self._numbers: list[list[Ints]] = [[] for _ in range(self._columns[NUMBER])]
        self._lengths: list[Ints] = []
        self._others: list[Bytes] = []
        self._marks: list[Ints] = []
        self._count = self._total = 0

    def add(self, offsets: Ints, source: Bytes) -> None:
        """Encode at most one chunk of texts. Padding follows each text."""
        rows = offsets.size - 1
        size = int(offsets[-1]) - int(offsets[0])
        forms, marks = np.empty(rows, np.int8), np.empty(-(-rows // SUB_BLOCK), np.int64)
        cursors = np.zeros(len(self._flat), np.int64)
        codes, numbers = self._scratch
        lengths, others = allocate(size + rows, np.int32), allocate(size + SPARE, np.uint8)
        used = np.array([0, 0, self._count])
        code_rows(
            seal(source),
            seal(offsets),
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

    def streams(self) -> tuple[Ints, ...]:
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
            _concatenate(self._forms, np.int8),
            _concatenate(codes, np.int16),
            _concatenate(numbers, np.int64),
            _concatenate(self._marks, np.int32),
            np.array(pieces, np.int64),
            _concatenate(lengths, np.int32),
            _concatenate(words, np.uint8).view(np.int8),
            _concatenate(self._lengths, np.int32),
            _concatenate(self._others, np.uint8).view(np.int8),
        )


def _concatenate(parts: Sequence[Any], kind: npt.DTypeLike) -> Any:
    parts = [np.empty(0, kind), *parts]
    out = allocate(sum(part.size for part in parts), kind)
    return np.concatenate(parts, out=out, casting="same_kind")


def encode_tokens(offsets: Ints, source: Bytes, forms: Forms | None = None) -> tuple[Ints, ...]:
    """Return the streams of texts.

    Parameters
    ----------
    offsets, source : Ints, Bytes
        The offsets of the texts, and the buffer that holds their bytes.
    forms : Forms, optional
        The patterns of the texts; by default learned from the texts.

    """
    encoder = _Encoder(learn_forms(offsets, source) if forms is None else forms)
    rows = offsets.size - 1
    # Copy the last texts, so that padding follows them.
    last = int(np.searchsorted(offsets, max(source.size - SPARE, -1), "right")) - 1
    last = max(0, min(last, rows)) // SUB_BLOCK * SUB_BLOCK
    for begin in range(0, last, _CHUNK_ROWS):
        encoder.add(offsets[begin : min(begin + _CHUNK_ROWS, last) + 1].astype(np.int64), source)
    first = int(offsets[last])
    rest = np.append(source[first : int(offsets[-1])], np.zeros(SPARE, np.uint8))
    for begin in range(last, rows, _CHUNK_ROWS):
        encoder.add(offsets[begin : begin + _CHUNK_ROWS + 1].astype(np.int64) - first, rest)
    return encoder.streams()
