"""Constants of the pieces that texts consist of, for the kernels that encode and decode them."""

from __future__ import annotations

import numpy as np

__all__ = ["ANY_END", "ASCII_ZEROS", "LITERAL", "MAX_DIGITS", "NUMBER", "SPARE", "TOKEN_END", "WORD"]

LITERAL, WORD, NUMBER = 0, 1, 2
"""Kinds of pieces."""

SPARE = 64
"""The number of bytes after a text that kernels may read or write."""

MAX_DIGITS = 16
"""The greatest number of digits of a number."""

TOKEN_END, ANY_END = 256, 257
"""The ends of a word: `TOKEN_END`, at the end of its letters or digits; `ANY_END`, at the end of the text."""

ASCII_ZEROS = np.uint64(0x3030303030303030)
"""Eight times the digit 0."""
