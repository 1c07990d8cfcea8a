"""The rule for windows that are joined with their own maximum or minimum."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa

from penstock.dataflow.nodes import (
    WINDOW,
    Aggregate,
    Extreme,
    Node,
    Window,
    WindowJoin,
    rebuild,
    topological,
)
from penstock.dataflow.rules import Rewritten
from penstock.sql.expression import Expression

__all__ = ["keep_extremes"]

_KINDS = frozenset({"count", "sum", "min", "max"})


def keep_extremes(root: Node) -> Rewritten:
    """Let buckets prune windows that cannot match the maximum or minimum with which the windows are joined.

    The rule applies if windows with a column ``x`` are joined with ``max(x)``, which is grouped by window and
    the join columns. The join's condition must hold only for the maximum, such as ``x = most``. A global
    maximum is also its bucket's maximum, so each bucket can prune on its own.
    """
    readers = Counter(id(above) for node in topological(root) for above in node.inputs)
    extremes: dict[int, Extreme] = {}
    notes: list[str] = []
    for node in topological(root):
        if not isinstance(node, WindowJoin):
            continue
        for windows, extreme_aggregate in (node.inputs, node.inputs[::-1]):
            if not isinstance(windows, Aggregate) or not isinstance(windows.inputs[0], Window):
                continue
            if not isinstance(extreme_aggregate, Aggregate) or extreme_aggregate.inputs[0] is not windows:
                continue
            # No other operator may read the pruned windows or anything derived from them.
            if readers[id(windows)] != 2 or readers[id(extreme_aggregate)] != 1:
                continue
            extreme = _extreme(node, windows, extreme_aggregate)
            if extreme is not None:
                extremes[id(windows)] = extreme
                notes.append(f"{windows.name}: only {extreme.describe()} leaves the buckets")

    def change(node: Node) -> Node:
        if not isinstance(node, Aggregate) or id(node) not in extremes:
            return node
        return replace(node, extreme=extremes[id(node)])

    return rebuild(root, change), tuple(notes)


def _extreme(join: WindowJoin, windows: Aggregate, extreme_aggregate: Aggregate) -> Extreme | None:
    """Describe the windows that can match the maximum or minimum with which the windows are joined.

    Return None if the rule does not apply.
    """
    split = extreme_aggregate.decomposition
    if len(split.partials) != 1 or len(split.assembly) != 1:
        return None
    if set(extreme_aggregate.group_by) != {WINDOW, *join.on} or not set(join.on) <= set(windows.group_by):
        return None
    (partial,), ((name, text),) = split.partials, split.assembly.items()
    value = Expression.parse(partial.expression)
    if partial.kind not in ("min", "max") or not value.is_column or not Expression.parse(text).is_column:
        return None
    (column,), greatest = value.columns, partial.kind == "max"
    if not _is_plain(windows, column) or not _only_equal(join.condition, column, name, greatest=greatest):
        return None
    return Extreme(column, greatest, join.on)


def _is_plain(windows: Aggregate, name: str) -> bool:
    """Return whether an aggregate is a single numeric partial."""
    text = windows.decomposition.assembly.get(name)
    kind = windows.schema.field(name).type
    if text is None or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return False
    expression = Expression.parse(text)
    kinds = {partial.name: partial.kind for partial in windows.decomposition.partials}
    return expression.is_column and kinds.get(expression.columns[0]) in _KINDS


def _only_equal(condition: Expression | None, value: str, extreme_name: str, *, greatest: bool) -> bool:
    """Return whether a condition holds only where a value is the maximum or minimum."""
    for part in () if condition is None else condition.conjuncts():
        tree = part.tree.unnest()
        if tree.kind != "compare" or tree.value not in ("=", ">=", "<="):
            continue
        sides = [part.slice(side.unnest()) for side in tree.parts]
        if not all(side.is_column for side in sides):
            continue
        names = [side.columns[0] for side in sides]
        reaches = (">=", "<=") if greatest else ("<=", ">=")
        if names == [value, extreme_name] and tree.value in ("=", reaches[0]):
            return True
        if names == [extreme_name, value] and tree.value in ("=", reaches[1]):
            return True
    return False
