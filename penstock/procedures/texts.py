"""Interning of texts and bytes: each distinct text has a number, so kernels handle only integers.

A decimal of more than 18 digits is interned as 16 bytes, which sort like the decimals of its type.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Numbers", "TextNumbers", "interned_values", "wide_bytes"]

Numbers = npt.NDArray[np.int64]

_MAX_TIMES_TO_MARK = 4
"""If there are more texts than this for each number, sorting the numbers is faster than marking them."""


class TextNumbers:
    """An interning dictionary. Numbers are valid in this process and are never stored."""

    def __init__(self) -> None:
        self._numbers: dict[str | bytes, int] = {}
        self._texts: list[str | bytes] = []
        self._offsets = np.zeros(2, np.int64)
        self._data = np.zeros(0, np.uint8)
        self._stored = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._texts)

    def number(self, text: str | bytes) -> int:
        """Return the number of a text; add the text if it is new."""
        number = self._numbers.setdefault(text, len(self._texts))
        if number == len(self._texts):
            self._texts.append(text)
            self.size_bytes += 120 + len(text)
        return number

    def numbers(self, column: pa.Array[Any]) -> Numbers:
        """Return the number of each text of a column, or 0 for a null; add new texts."""
        if not len(column):
            return np.zeros(0, np.int64)
        encoded = column.dictionary_encode()
        texts = interned_values(encoded.dictionary).to_pylist()
        text_numbers = np.array([self.number(text) for text in texts] or [0], np.int64)
        indices = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return text_numbers[indices]

    def known_numbers(self, column: pa.Array[Any]) -> Numbers:
        """Return the number of each text of a column, or -1 for a null or a text without a number."""
        encoded = column.dictionary_encode()
        known = [self._numbers.get(text, -1) for text in interned_values(encoded.dictionary).to_pylist()]
        indices = encoded.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)
        return np.array([*known, -1], np.int64)[indices]

    def column(
        self, numbers: Numbers, kind: pa.DataType, mask: npt.NDArray[np.bool_] | None
    ) -> pa.Array[Any]:
        """Return the text of each number as an Arrow array; `mask` marks nulls."""
        inside = numbers if mask is None else numbers[~mask]
        if not len(inside):
            return pa.nulls(len(numbers), kind)
        used, places = _ranked(inside, len(self._texts))
        texts = _array([self._texts[number] for number in used], kind)
        if mask is None:
            return texts.take(pa.array(places))
        spread = np.zeros(len(numbers), np.int64)
        spread[~mask] = places
        return texts.take(pa.array(spread, mask=mask))

    def freeze(self) -> TextNumbers:
        """Return a copy of the current texts, which a later `keep` does not change."""
        frozen = TextNumbers()
        frozen._texts = self._texts
        return frozen

    @property
    def bytes(self) -> tuple[Numbers, npt.NDArray[np.uint8]]:
        """The bytes of all texts, as offsets and data. Kernels use them to order texts."""
        new = [_bytes(text) for text in self._texts[self._stored :]]
        if new:
            ends = self._offsets[self._stored] + np.cumsum([len(text) for text in new])
            self._offsets = _write_from(self._offsets, self._stored + 1, ends)
            data = np.frombuffer(b"".join(new), np.uint8)
            self._data = _write_from(self._data, int(self._offsets[self._stored]), data)
            self._stored = len(self._texts)
        return self._offsets, self._data

    def ranks(self, numbers: Numbers) -> Numbers:
        """Return the rank of each number's text among the texts of `numbers`, in the order of their bytes."""
        used, places = np.unique(numbers, return_inverse=True)
        texts = [_bytes(self._texts[number]) for number in used]
        ranks = np.empty(len(used), np.int64)
        ranks[sorted(range(len(used)), key=texts.__getitem__)] = np.arange(len(used))
        return ranks[places]

    def keep(self, used: Iterable[Numbers]) -> Numbers:
        """Forget all texts whose numbers are not in `used`; return the new number of each old number."""
        new_numbers = np.zeros(max(len(self._texts), 1), np.int64)
        used_numbers = np.unique(np.concatenate([*used, np.zeros(0, np.int64)]))
        texts = [self._texts[number] for number in used_numbers if number < len(self._texts)]
        new_numbers[used_numbers[: len(texts)]] = np.arange(len(texts))
        self._numbers = {text: number for number, text in enumerate(texts)}
        self._texts = texts
        self._stored = 0
        self.size_bytes = sum(120 + len(text) for text in texts)
        return new_numbers


def interned_values(values: pa.Array[Any]) -> pa.Array[Any]:
    """Return texts and bytes unchanged, and decimals as 16 bytes; no decimal may be null."""
    if not pa.types.is_decimal128(values.type):
        return values
    words = np.frombuffer(values.buffers()[1] or b"", np.uint8).reshape(-1, 16)
    words = words[values.offset : values.offset + len(values), ::-1].copy()
    words[:, 0] ^= 0x80
    return pa.Array.from_buffers(pa.binary(16), len(words), [None, pa.py_buffer(words)])


def wide_bytes(digits: int) -> bytes:
    """Return the 16 bytes that stand for a decimal with these digits."""
    return (digits + (1 << 127)).to_bytes(16)


def _array(texts: list[Any], kind: pa.DataType) -> pa.Array[Any]:
    if not pa.types.is_decimal128(kind):
        return pa.array(texts, kind)
    words = np.frombuffer(b"".join(texts), np.uint8).reshape(-1, 16)[:, ::-1].copy()
    words[:, -1] ^= 0x80
    return pa.Array.from_buffers(kind, len(texts), [None, pa.py_buffer(words)])


def _ranked(numbers: Numbers, limit: int, *, most_times: int = _MAX_TIMES_TO_MARK) -> tuple[Numbers, Numbers]:
    """Return the distinct values of `numbers`, and the position of each number among them.

    All numbers are below `limit`. If `limit` is more than `most_times` times the count of numbers, the
    numbers are sorted; otherwise they are marked in an array.
    """
    if limit > most_times * len(numbers):
        return np.unique(numbers, return_inverse=True)
    exists = np.zeros(limit, np.bool_)
    exists[numbers] = True
    return np.flatnonzero(exists), (np.cumsum(exists) - 1)[numbers]


def _write_from(array: npt.NDArray[Any], begin: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Write values into an array from `begin` on; return a larger array if they do not fit."""
    end = begin + len(values)
    if end > len(array):
        larger = np.zeros(2 * end, array.dtype)
        larger[:begin] = array[:begin]
        array = larger
    array[begin:end] = values
    return array


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
