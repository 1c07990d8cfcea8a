"""Texts as numbers: equal texts have one number, so kernels compare, copy and look up words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Numbers", "TextNumbers"]

Numbers = npt.NDArray[np.int64]


class TextNumbers:
    """An interning dictionary. Numbers are of this process and are never stored."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        """Return how many texts there are."""
        return len(self._texts)

    def number(self, text: str) -> int:
        """Return the number of a text, which gets one if it has none."""
        number = self._numbers.setdefault(text, len(self._texts))
        if number == len(self._texts):
            self._texts.append(text)
            self.size_bytes += 120 + len(text)
        return number

    def numbers(self, column: pa.Array[Any]) -> Numbers:
        """Return the numbers of a column of texts; 0 where it is null."""
        if not len(column):
            return np.zeros(0, np.int64)
        coded = column.dictionary_encode()
        known = np.array([self.number(text) for text in coded.dictionary.to_pylist()] or [0], np.int64)
        indices = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return known[indices]

    def column(
        self, numbers: Numbers, kind: pa.DataType, mask: npt.NDArray[np.bool_] | None
    ) -> pa.Array[Any]:
        """Return texts by their numbers, null where the mask says so."""
        if mask is not None:
            numbers = np.where(mask, 0, numbers)
        used, places = np.unique(numbers, return_inverse=True)
        texts = pa.array([self._texts[number] if self._texts else "" for number in used], kind)
        return texts.take(pa.array(places, mask=mask))

    def keep(self, used: Iterable[Numbers]) -> Numbers:
        """Forget all texts but those in use; return the new number of each old one."""
        renumbered = np.zeros(max(len(self._texts), 1), np.int64)
        kept = np.unique(np.concatenate([*used, np.zeros(0, np.int64)]))
        texts = [self._texts[number] for number in kept if number < len(self._texts)]
        renumbered[kept[: len(texts)]] = np.arange(len(texts))
        self._numbers = {text: number for number, text in enumerate(texts)}
        self._texts = texts
        self.size_bytes = sum(120 + len(text) for text in texts)
        return renumbered
