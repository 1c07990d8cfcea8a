"""Change the trees of a table's indexes outside of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.procedures.arithmetic import INT64_MAX
from penstock.procedures.indexes.trees import LINKS, Nodes, build_tree, find_equal, insert_all, remove_all
from penstock.procedures.schema import TableSpec
from penstock.procedures.texts import Numbers, TextNumbers

__all__ = ["TableTrees"]

Columns = Sequence[npt.NDArray[Any]]
Nulls = Sequence[npt.NDArray[np.bool_] | None]


class TableTrees:
    """The trees of a table's indexes.

    Parameters
    ----------
    spec : TableSpec
        The declaration of the table.
    texts : TextNumbers
        The interned texts of the table's bucket.
    facts : numpy.ndarray
        The facts of the table; from index `root` on, they are the roots of the trees.
    root : int
        The position of the first root.
    rows : int
        The number of rows for which the trees have room.
    """

    def __init__(self, spec: TableSpec, texts: TextNumbers, facts: Numbers, root: int, rows: int) -> None:
        self._indexes = spec.indexes
        self._places = [[spec.names.index(word.name) for word in index.words] for index in spec.indexes]
        self._texts = texts
        self._facts = facts
        self._root = root
        self.nodes: list[Nodes] = [
            np.zeros((rows, len(index.words) + LINKS), np.int64) for index in spec.indexes
        ]

    def grow(self, rows: int) -> None:
        """Make room for `rows` rows."""
        for number, old in enumerate(self.nodes):
            larger = np.zeros((rows, old.shape[1]), np.int64)
            larger[: len(old)] = old
            self.nodes[number] = larger

    def remove(self, slots: Numbers) -> None:
        """Remove rows; rows that are not in an index are skipped."""
        for number, index in enumerate(self._indexes):
            remove_all(
                self.nodes[number],
                self._facts,
                self._root + number,
                slots,
                index.text_mask,
                *self._texts.bytes,
            )

    def add(self, slots: Numbers, columns: Columns, nulls: Nulls) -> None:
        """Add rows that are in no index yet."""
        for number, index in enumerate(self._indexes):
            inside = self._set_words(number, slots, columns, nulls)
            insert_all(
                self.nodes[number],
                self._facts,
                self._root + number,
                inside,
                index.text_mask,
                *self._texts.bytes,
            )

    def build(self, slots: Numbers, columns: Columns, nulls: Nulls) -> None:
        """Build the trees of an empty table from its first rows."""
        for number, index in enumerate(self._indexes):
            inside = self._set_words(number, slots, columns, nulls)
            words = self.nodes[number][inside, : len(index.words)].T
            keys = [
                self._texts.ranks(word) if column.kind.is_interned else word
                for word, column in zip(words, index.words, strict=True)
            ]
            order = np.lexsort(keys[::-1])
            build_tree(self.nodes[number], self._facts, self._root + number, inside[order])

    def _set_words(self, number: int, slots: Numbers, columns: Columns, nulls: Nulls) -> Numbers:
        """Set the words of rows; return the slots of the rows that belong in the index."""
        index = self._indexes[number]
        for place, at in enumerate(self._places[number]):
            self.nodes[number][slots, place] = _words(columns[at][slots])
        outside = np.zeros(len(slots), np.bool_)
        for at in self._places[number][: len(index.columns)]:
            null = nulls[at]
            if null is not None:
                outside |= null[slots]
        return slots[~outside]

    def find(
        self, columns: Sequence[str], values: Columns, exists: npt.NDArray[np.bool_]
    ) -> tuple[Numbers, Numbers]:
        """Find rows by the values of all columns of an index; return them in the order of the values.

        Parameters
        ----------
        columns : sequence of str
            The columns of an index.
        values : sequence of ndarray
            The values of each column; texts are given by their numbers.
        exists : ndarray
            For each position in `values`, whether any row can have these values.

        Returns
        -------
        places : ndarray
            For each found row, the position of its values.
        slots : ndarray
            The slot of each found row.
        """
        number = next(place for place, index in enumerate(self._indexes) if index.columns == tuple(columns))
        asked = np.flatnonzero(exists)
        bounds = np.stack([_words(one[asked]) for one in values], axis=1)
        tree = self.nodes[number], self._facts, self._root + number, bounds
        rest = self._indexes[number].text_mask, *self._texts.bytes
        counts = find_equal(*tree, np.empty(0, np.int64), *rest)
        slots = np.empty(int(counts.sum()), np.int64)
        find_equal(*tree, slots, *rest)
        return np.repeat(asked, counts), slots

    def renumber(self, new_numbers: Numbers) -> None:
        """Replace the numbers of texts; the order of rows does not change."""
        for nodes, index in zip(self.nodes, self._indexes, strict=True):
            for place, column in enumerate(index.words):
                if column.kind.is_interned:
                    nodes[:, place] = new_numbers[np.clip(nodes[:, place], 0, len(new_numbers) - 1)]


def _words(values: npt.NDArray[Any]) -> Numbers:
    """Return the words of a column; see `penstock.procedures.indexes.trees.float_word`."""
    if values.dtype.kind != "f":
        return values.astype(np.int64)
    wide = values.astype(np.float64) + 0.0
    bits = wide.view(np.int64)
    return np.where(np.isnan(wide), INT64_MAX, np.where(bits < 0, bits ^ INT64_MAX, bits))
