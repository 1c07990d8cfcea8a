"""The tree of an index: a treap whose nodes are the slots of a table's rows.

A node is a row of a matrix of int64. It holds the words that order the rows, the slot of the left child plus
one, the slot of the right child plus one, and whether the row is in the tree. The words of integers, times
and booleans are their values. The words of floats sort as Spark sorts floats. The words of texts are their
numbers (`penstock.procedures.texts`); to compare them, the bytes of the texts are compared. The priority of a
node is a hash of its slot. So the shape of the tree depends on slots, but the order of rows depends only on
their content.

The functions take these arguments: `nodes` and `facts` of a table; `root`, the position in `facts` that holds
the slot of the root plus one; `mask`, with a bit for each word that is a text; `offsets` and `data`, the
bytes of all texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._kernels import GOLDEN, MIX_1, kernel

__all__ = [
    "LINKS",
    "Bytes",
    "Nodes",
    "build_tree",
    "compare_bound",
    "find_equal",
    "float_word",
    "insert_all",
    "insert_node",
    "remove_all",
    "remove_node",
    "seek",
    "tree_end",
]

Nodes = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

LINKS = 3
"""The columns of a node after its words."""

_SHIFT = np.uint64(32)
_REST = np.int64(0x7FFFFFFFFFFFFFFF)


@kernel
def float_word(value: float) -> Any:
    """Return the word of a float: NaN is the greatest, and -0.0 equals 0.0."""
    if value != value:  # noqa: PLR0124  # NaN
        return _REST
    bits = np.float64(value + 0.0).view(np.int64)
    return bits if bits >= 0 else bits ^ _REST


@kernel
def _priority(slot: int) -> Any:
    h = np.uint64(slot + 1) * GOLDEN
    h = (h ^ (h >> _SHIFT)) * MIX_1
    return h ^ (h >> _SHIFT)


@kernel
def _compare_texts(a: int, b: int, offsets: Nodes, data: Bytes) -> int:
    first, second = offsets[a], offsets[b]
    length_a, length_b = offsets[a + 1] - first, offsets[b + 1] - second
    for i in range(min(length_a, length_b)):
        x, y = data[first + i], data[second + i]
        if x != y:
            return -1 if x < y else 1
    return -1 if length_a < length_b else 1


@kernel
def compare_bound(nodes: Nodes, slot: int, bound: Any, mask: int, offsets: Nodes, data: Bytes) -> int:
    """Compare the first words of a row with a bound; the result is negative if the row comes first."""
    for c in range(len(bound)):
        x, y = nodes[slot, c], bound[c]
        if x != y:
            if (mask >> c) & 1:
                return _compare_texts(x, y, offsets, data)
            return -1 if x < y else 1
    return 0


@kernel
def _compare(nodes: Nodes, a: int, b: int, mask: int, offsets: Nodes, data: Bytes) -> int:
    """Compare two rows; the result is negative if row `a` comes first."""
    return compare_bound(nodes, a, nodes[b, : nodes.shape[1] - LINKS], mask, offsets, data)


@kernel
def insert_node(
    nodes: Nodes, facts: Nodes, root: int, slot: int, mask: int, offsets: Nodes, data: Bytes
) -> None:
    """Add a row; its words are already set."""
    left = nodes.shape[1] - LINKS
    right = left + 1
    nodes[slot, left + 2] = 1
    priority = _priority(slot)
    parent, side = -1, left
    at = facts[root] - 1
    while at >= 0 and _priority(at) >= priority:
        parent = at
        side = left if _compare(nodes, slot, at, mask, offsets, data) < 0 else right
        at = nodes[at, side] - 1
    if parent < 0:
        facts[root] = slot + 1
    else:
        nodes[parent, side] = slot + 1
    # Split the subtree into the rows before the new row and the rows after it.
    before, before_side, behind, behind_side = slot, left, slot, right
    while at >= 0:
        if _compare(nodes, at, slot, mask, offsets, data) < 0:
            nodes[before, before_side] = at + 1
            before, before_side = at, right
            at = nodes[at, right] - 1
        else:
            nodes[behind, behind_side] = at + 1
            behind, behind_side = at, left
            at = nodes[at, left] - 1
    nodes[before, before_side] = 0
    nodes[behind, behind_side] = 0


@kernel
def remove_node(
    nodes: Nodes, facts: Nodes, root: int, slot: int, mask: int, offsets: Nodes, data: Bytes
) -> None:
    """Remove a row of the tree; its words have not changed since it was added."""
    left = nodes.shape[1] - LINKS
    right = left + 1
    nodes[slot, left + 2] = 0
    parent, side = -1, left
    at = facts[root] - 1
    while at != slot:
        parent = at
        side = left if _compare(nodes, slot, at, mask, offsets, data) < 0 else right
        at = nodes[at, side] - 1
    a, b = nodes[slot, left] - 1, nodes[slot, right] - 1
    while a >= 0 or b >= 0:
        first = b < 0 or (a >= 0 and _priority(a) > _priority(b))
        up = a if first else b
        if parent < 0:
            facts[root] = up + 1
        else:
            nodes[parent, side] = up + 1
        if a < 0 or b < 0:
            return
        parent, side = up, right if first else left
        if first:
            a = nodes[a, right] - 1
        else:
            b = nodes[b, left] - 1
    if parent < 0:
        facts[root] = 0
    else:
        nodes[parent, side] = 0


@kernel
def insert_all(
    nodes: Nodes, facts: Nodes, root: int, slots: Nodes, mask: int, offsets: Nodes, data: Bytes
) -> None:
    """Add rows; their words are already set."""
    for i in range(slots.shape[0]):
        insert_node(nodes, facts, root, slots[i], mask, offsets, data)


@kernel
def remove_all(
    nodes: Nodes, facts: Nodes, root: int, slots: Nodes, mask: int, offsets: Nodes, data: Bytes
) -> None:
    """Remove rows; rows that are not in the tree are skipped."""
    flag = nodes.shape[1] - 1
    for i in range(slots.shape[0]):
        if nodes[slots[i], flag] != 0:
            remove_node(nodes, facts, root, slots[i], mask, offsets, data)


@kernel
def build_tree(nodes: Nodes, facts: Nodes, root: int, slots: Nodes) -> None:
    """Build the tree of the rows at `slots`, which are in the order of the index."""
    left = nodes.shape[1] - LINKS
    right = left + 1
    path = np.empty(slots.shape[0], np.int64)  # the path from the root to the last row
    depth = 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        below = np.int64(0)
        while depth > 0 and _priority(path[depth - 1]) < _priority(slot):
            depth -= 1
            below = path[depth] + 1
        nodes[slot, left] = below
        nodes[slot, right] = 0
        nodes[slot, left + 2] = 1
        if depth > 0:
            nodes[path[depth - 1], right] = slot + 1
        path[depth] = slot
        depth += 1
    facts[root] = path[0] + 1 if slots.shape[0] else 0


@kernel
def tree_end(nodes: Nodes, facts: Nodes, root: int, last: bool) -> Any:
    """Return the slot of the first row, or, with `last`, of the last row; -1 if the tree is empty."""
    side = nodes.shape[1] - LINKS + last
    at = facts[root] - 1
    while at >= 0 and nodes[at, side] != 0:
        at = nodes[at, side] - 1
    return at


@kernel
def seek(
    nodes: Nodes,
    facts: Nodes,
    root: int,
    bound: Any,
    last: bool,
    inclusive: bool,
    mask: int,
    offsets: Nodes,
    data: Bytes,
) -> Any:
    """Return the slot of the first row after a bound; with `last`, the slot of the last row before it.

    Return -1 if there is no such row.

    With `inclusive`, the result may also be a row that equals the bound. The bound may be the words of a
    removed row.
    """
    left = nodes.shape[1] - LINKS
    best = np.int64(-1)
    at = facts[root] - 1
    while at >= 0:
        order = compare_bound(nodes, at, bound, mask, offsets, data)
        if last:
            order = -order
        if order > 0 or (inclusive and order == 0):
            best = at
            at = nodes[at, left + last] - 1
        else:
            at = nodes[at, left + 1 - last] - 1
    return best


@kernel
def find_equal(
    nodes: Nodes, facts: Nodes, root: int, bounds: Nodes, slots: Nodes, mask: int, offsets: Nodes, data: Bytes
) -> Nodes:
    """Write the slots of the rows that equal each bound; return how many rows equal each bound.

    If `slots` is too small, only the returned numbers are complete.
    """
    counts = np.zeros(bounds.shape[0], np.int64)
    size = 0
    words = nodes.shape[1] - LINKS
    for i in range(bounds.shape[0]):
        at = seek(nodes, facts, root, bounds[i], False, True, mask, offsets, data)
        while at >= 0 and compare_bound(nodes, at, bounds[i], mask, offsets, data) == 0:
            if size < slots.shape[0]:
                slots[size] = at
            size += 1
            counts[i] += 1
            at = seek(nodes, facts, root, nodes[at, :words], False, False, mask, offsets, data)
    return counts
