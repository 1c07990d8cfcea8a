"""Texts as rows of tokens: the common parts of a form are stored once, and numbers and words form columns.

A form (`penstock.compression.texts.forms`) is a list of pieces, each a literal followed by a number, a
dictionary word, or nothing. A word for which the dictionary has no room, or a text without a form, is stored
verbatim among the *others*. (The idea is from Rodrigues, Luo, Yuan: "CLP: Efficient and Scalable Search on
Compressed Text Logs", OSDI 2021; columns of tokens, with codecs for numbers, replace its segments.)

The streams of a column, each encoded independently::

    0  forms     for each row, the number of its form
    1  codes     the codes of words, -1 for a word among the others; all rows of one piece, then of the next
    2  numbers   the numbers, in the same order as the codes
    3  marks     the number of others before row 0, 1024, 2048, ...
    4  pieces    the bytes of all texts; then, for each piece: its kind, plus 4 if a form ends with it; the
                 number of its words, or the least digits of its numbers; and the piece before it, or -1
    5  lengths   the lengths of the literal and of the words of each piece
    6  words     the literals and words
    7  lengths   the lengths of others, row after row
    8  others    the texts and words that are stored verbatim

A form has the number of its last piece; form 0 is for texts without a form. Columns of codes are in
descending order of their numbers of words, so neighbouring columns take about the same number of bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.compression.kernels.bits import Ints

__all__ = ["STREAMS", "allocate", "fits"]

STREAMS = (
    *("forms", "codes", "numbers", "marks", "pieces"),
    *("lengths of words", "words", "lengths of others", "others"),
)
"""The names of the streams, in order."""


def fits(streams: tuple[Ints, ...]) -> bool:
    """Return whether at most a quarter of the texts' bytes are others."""
    return 4 * streams[8].size <= int(streams[4][0])


def allocate(count: int, kind: npt.DTypeLike) -> Any:
    """Allocate values with Arrow, which reuses freed memory; NumPy returns it to the system."""
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(kind).itemsize), kind)
