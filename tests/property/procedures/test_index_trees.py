"""The trees of indexes equal a sorted list."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.procedures.indexes import trees
from penstock.procedures.indexes.table_trees import _words
from penstock.procedures.texts import TextNumbers

_SLOTS = 40
_VALUES = ["", "a", "ab", "b", "\u00e9", "\U0001f600", "\uffff", "aa"]

CHANGES = st.lists(
    st.tuples(st.integers(0, _SLOTS - 1), st.integers(-3, 3), st.integers(0, len(_VALUES) - 1)), max_size=80
)


class Tree:
    """A tree of two words, an integer and a text, and the slots as a sorted list."""

    def __init__(self) -> None:
        self.texts = TextNumbers()
        self.numbers = [self.texts.number(text) for text in reversed(_VALUES)][::-1]
        self.nodes = np.zeros((_SLOTS, 3 + trees.LINKS), np.int64)
        self.facts = np.zeros(1, np.int64)
        self.rows: dict[int, tuple[int, bytes]] = {}

    @property
    def order(self) -> tuple[Any, ...]:
        return (0b10, *self.texts.bytes)

    def change(self, slot: int, number: int, text: int) -> None:
        if slot in self.rows:
            trees.remove_node(self.nodes, self.facts, 0, slot, *self.order)
            del self.rows[slot]
            return
        self.nodes[slot, :3] = number, self.numbers[text], slot
        trees.insert_node(self.nodes, self.facts, 0, slot, *self.order)
        self.rows[slot] = number, _VALUES[text].encode()

    @property
    def sorted(self) -> list[int]:
        return sorted(self.rows, key=lambda slot: (*self.rows[slot], slot))

    def walked(self, *, back: bool = False) -> list[int]:
        found = []
        at = trees.tree_end(self.nodes, self.facts, 0, back)
        while at >= 0:
            found.append(int(at))
            at = self.seek(self.nodes[at, : -trees.LINKS], last=back, inclusive=False)
        return found

    def seek(self, bound: Any, *, last: bool, inclusive: bool) -> int:
        return int(trees.seek(self.nodes, self.facts, 0, bound, last, inclusive, *self.order))


@given(CHANGES)
def test_a_tree_walks_in_order_after_any_changes(changes: list[tuple[int, int, int]]) -> None:
    tree = Tree()
    for change in changes:
        tree.change(*change)
    assert tree.walked() == tree.sorted
    assert tree.walked(back=True) == tree.sorted[::-1]


@given(CHANGES, st.integers(-4, 4), st.integers(0, len(_VALUES) - 1))
def test_a_tree_finds_the_rows_at_a_bound(
    changes: list[tuple[int, int, int]], number: int, text: int
) -> None:
    tree = Tree()
    for change in changes:
        tree.change(*change)
    for bound, word in (
        ((number,), (number,)),
        ((number, _VALUES[text].encode()), (number, tree.numbers[text])),
    ):
        width = len(bound)
        for inclusive in (False, True):
            equal = [slot for slot in tree.sorted if inclusive and tree.rows[slot][:width] == bound]
            behind = [*equal, *(slot for slot in tree.sorted if tree.rows[slot][:width] > bound), -1]
            before = [-1, *(slot for slot in tree.sorted if tree.rows[slot][:width] < bound), *equal]
            assert tree.seek(word, last=False, inclusive=inclusive) == behind[0]
            assert tree.seek(word, last=True, inclusive=inclusive) == before[-1]


@given(CHANGES)
def test_a_tree_that_is_built_at_once_takes_the_same_changes(changes: list[tuple[int, int, int]]) -> None:
    tree = Tree()
    for change in changes[::2]:
        tree.change(*change)
    slots = np.array(tree.sorted, np.int64)
    tree.nodes[:, 3:] = 0
    trees.build_tree(tree.nodes, tree.facts, 0, slots)
    assert tree.walked() == tree.sorted
    for change in changes[1::2]:
        tree.change(*change)
    assert tree.walked() == tree.sorted


def test_a_tree_of_rows_that_come_in_order_is_not_deep() -> None:
    count = 1 << 14
    nodes, facts = np.zeros((count, 1 + trees.LINKS), np.int64), np.zeros(1, np.int64)
    nodes[:, 0] = np.arange(count)
    trees.insert_all(nodes, facts, 0, np.arange(count), 0, np.zeros(2, np.int64), np.zeros(0, np.uint8))
    depth = np.zeros(count, np.int64)
    waiting = [int(facts[0]) - 1]
    while waiting:
        at = waiting.pop()
        for link in (1, 2):
            below = int(nodes[at, link]) - 1
            if below >= 0:
                depth[below] = depth[at] + 1
                waiting.append(below)
    assert depth.max() < 5 * math.log2(count)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_words_of_floats_are_in_spark_s_order(kind: type[np.floating[Any]]) -> None:
    values = np.array([-math.inf, -1e30, -1.5, -1e-40, 0.0, -0.0, 1e-40, 1.5, 1e30, math.inf, math.nan], kind)
    words = [int(trees.float_word(float(one))) for one in values]
    assert words == sorted(words)
    assert words[4] == words[5]
    assert words[-1] > words[-2]
    assert _words(values).tolist() == words


def test_texts_have_their_bytes_however_many_come() -> None:
    texts = TextNumbers()
    for begin in range(0, 300, 100):
        numbers = [texts.number(f"text {i}") for i in range(begin, begin + 100)]
        offsets, data = texts.bytes
        for i, number in enumerate(numbers, start=begin):
            assert bytes(data[offsets[number] : offsets[number + 1]]) == f"text {i}".encode()
    texts.keep([np.array([7, 250])])
    offsets, data = texts.bytes
    assert bytes(data[: offsets[2]]) == b"text 7text 250"
    assert texts.ranks(np.array([0, 1, 0])).tolist() == [1, 0, 1]
