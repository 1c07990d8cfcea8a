"""The push-up rules: pure functions from a graph to an equivalent graph (Scabbard §3.4).

A p-stream should store few bytes, so the rules move operators that reduce the stream up, towards the source.
These operators then run before the stream is persisted. Each rule visits every node in topological order, and
returns the new graph with a list of the changes. No rule moves a stateful operator, or moves another operator
past it: a stateful operator may amplify the stream, and checkpoints hold its state. No rule moves, merges or
duplicates a nondeterministic expression. Unused columns are pruned, unless their expression generates
several rows from one row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from penstock.dataflow.nodes import (
    Node,
    Select,
    Source,
    StreamTableJoin,
    Union,
    Where,
    Window,
    rebuild,
    topological,
)
from penstock.operators.types import fixed_bytes
from penstock.sql.evaluate import can_fail, type_of
from penstock.sql.expression import Expression, column, conjunction

__all__ = ["Rewritten", "merge", "prune", "push_where", "split_conjunctions", "to_fixed_point"]

Rewritten: TypeAlias = tuple[Node, tuple[str, ...]]
"""A rewritten graph, and a line of text for each change."""

Rule: TypeAlias = Callable[[Node], Rewritten]

_MAX_PASSES = 100


def to_fixed_point(root: Node, *rules: Rule) -> tuple[Node, list[tuple[str, str]]]:
    """Apply rules in turn until none changes the graph; return the changes by rule name.

    Raises
    ------
    RuntimeError
        If the rules do not terminate, which is a defect of a rule.
    """
    changes: list[tuple[str, str]] = []
    for _ in range(_MAX_PASSES):
        before = len(changes)
        for rule in rules:
            root, notes = rule(root)
            changes += [(rule.__name__, note) for note in notes]
        if len(changes) == before:
            return root, changes
    raise RuntimeError("the rules do not terminate")


def split_conjunctions(root: Node) -> Rewritten:
    """Split ``where a AND b`` into ``where a`` and ``where b``, so that each selection can move up alone."""
    notes: list[str] = []

    def change(node: Node) -> Node:
        if not isinstance(node, Where) or not node.predicate.deterministic:
            return node
        parts = node.predicate.conjuncts()
        schema = node.inputs[0].schema
        if len(parts) == 1 or not all(_is_condition(part, schema) for part in parts):
            return node
        supported = [part for part in parts if type_of(part, schema) is not None]
        fails = len(supported) == len(parts) or any(can_fail(part, schema) for part in supported)
        if fails and type_of(node.predicate, schema) is None:
            return node  # Spark may skip an operand that can fail, so it must evaluate the whole condition
        notes.append(f"where {node.predicate.text}: {len(parts)} conditions")
        above: Node = node.inputs[0]
        for part in parts:
            above = Where(node.name, (above,), part)
        return above

    return rebuild(root, change), tuple(notes)


def _is_condition(part: Expression, schema: pa.Schema) -> bool:
    """Return whether an operand of ``AND`` is boolean by itself, without the cast that ``AND`` adds."""
    return part.tree.kind in _CONDITIONS or type_of(part, schema) == pa.bool_()


_CONDITIONS = frozenset({"compare", "not", "or", "between", "in", "match", "is", "boolean"})


def push_where(root: Node) -> Rewritten:
    """Move a selection up: through a projection, into all inputs of a union, and before a lookup."""
    notes: list[str] = []

    def change(node: Node) -> Node:
        if not isinstance(node, Where) or not node.predicate.deterministic:
            return node
        above, predicate = node.inputs[0], node.predicate
        if isinstance(above, Select) and all(expression.deterministic for _, expression in above.columns):
            pushed = Where(node.name, above.inputs, predicate.substitute(dict(above.columns)))
            notes.append(f"where {predicate.text}: through select {above.describe()}")
            return replace(above, inputs=(change(pushed),))
        if isinstance(above, Union) and not above.stateful:
            notes.append(f"where {predicate.text}: into {len(above.inputs)} inputs of a union")
            return replace(
                above, inputs=tuple(change(Where(node.name, (input,), predicate)) for input in above.inputs)
            )
        stream = isinstance(above, StreamTableJoin) and set(predicate.columns) <= set(
            above.inputs[0].schema.names
        )
        # A selection that can fail must not see additional rows.
        if stream and _never_fails(predicate, node.inputs[0].schema):
            notes.append(f"where {predicate.text}: before the lookup {above.describe()}")
            return replace(above, inputs=(change(Where(node.name, above.inputs, predicate)),))
        is_fixed = isinstance(above, Where) and above.predicate.deterministic
        if is_fixed and _never_fails(predicate, node.inputs[0].schema):
            # `above` cannot move further. Try to move this selection past the operator that `above` reads.
            moved_up = Where(node.name, above.inputs, predicate)
            result = change(moved_up)
            if result is not moved_up:
                return change(replace(above, inputs=(result,)))
        return node

    return rebuild(root, change), tuple(notes)


def _never_fails(predicate: Expression, schema: pa.Schema) -> bool:
    return type_of(predicate, schema) is not None and not can_fail(predicate, schema)


def prune(root: Node) -> Rewritten:
    """Drop unused columns with projections after sources, selections and lookups."""
    nodes = list(topological(root))
    required: dict[int, frozenset[str]] = {id(root): frozenset(root.schema.names)}
    for node in reversed(nodes):
        required_here = required[id(node)] | set(node.key)
        if isinstance(node, Select):
            # The column of a generator stays even if it is unused, because it determines the number of rows.
            required_here |= {name for name, expression in node.columns if expression.generates}
            required[id(node)] = required_here
        for above, needed in zip(node.inputs, node.needs(required_here), strict=True):
            required_above = needed | set(above.key)
            if not required_above and not isinstance(above, Window):
                required_above = frozenset({_narrowest(above)})  # one column must stay, to count its rows
            required[id(above)] = required.get(id(above), frozenset()) | required_above
    notes: list[str] = []
    rebuilt: dict[int, Node] = {}
    for node in nodes:
        inputs = tuple(rebuilt[id(above)] for above in node.inputs)
        is_unchanged = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
        required_here = required[id(node)]
        unused_columns = [name for name in node.schema.names if name not in required_here]
        result: Node = node
        if isinstance(node, Select) and unused_columns:
            result = replace(
                node, inputs=inputs, columns=tuple(item for item in node.columns if item[0] in required_here)
            )
            notes.append(f"{node.name}: drops {', '.join(unused_columns)}")
        elif isinstance(node, Union):
            # The inputs must keep the same columns.
            used = required_here | node.needs(required_here)[0]
            result = _union(node, inputs, [name for name in node.inputs[0].schema.names if name in used])
        elif not is_unchanged:
            result = replace(node, inputs=inputs)
        narrow = isinstance(node, Source | Where | StreamTableJoin)
        unused_names = [name for name in result.schema.names if name not in required_here]
        if narrow and unused_names:
            kept_columns = tuple(
                (name, column(name)) for name in result.schema.names if name in required_here
            )
            result = Select(f"prune {node.name}", (result,), kept_columns)
            notes.append(f"{node.name}: without {', '.join(unused_names)}")
        rebuilt[id(node)] = result
    return rebuilt[id(root)], tuple(notes)


def _narrowest(node: Node) -> str:
    return min(node.schema, key=lambda field: (fixed_bytes(field.type) or math.inf, field.name)).name


def _union(node: Union, inputs: tuple[Node, ...], names: list[str]) -> Node:
    projected = [node if node.schema.names == names else _only(node, names) for node in inputs]
    if all(new is old for new, old in zip(projected, node.inputs, strict=True)):
        return node
    return replace(node, inputs=tuple(projected))


def _only(node: Node, names: list[str]) -> Node:
    return Select(f"prune {node.name}", (node,), tuple((name, column(name)) for name in names))


def merge(root: Node) -> Rewritten:
    """Merge adjacent selections and adjacent projections; remove projections without effect.

    Two projections are merged only if the merged projection evaluates no computed column twice.
    """
    notes: list[str] = []

    def change(node: Node) -> Node:
        above = node.inputs[0] if node.inputs else None
        if isinstance(node, Where) and isinstance(above, Where):
            if node.predicate.deterministic and above.predicate.deterministic:
                joint = conjunction([above.predicate, node.predicate])
                notes.append(f"where {joint.text}: one selection")
                return Where(above.name, above.inputs, joint)
        elif isinstance(node, Select) and above is not None:
            if [(name, column(name)) for name in above.schema.names] == list(node.columns):
                notes.append(f"{node.name}: selects all columns unchanged")
                return above
            if isinstance(above, Select):
                columns = _compose(node, above)
                if columns is not None:
                    notes.append(f"{node.name} and {above.name}: one projection")
                    return Select(node.name, above.inputs, columns)
        return node

    return rebuild(root, change), tuple(notes)


def _compose(below: Select, above: Select) -> tuple[tuple[str, Expression], ...] | None:
    definitions = dict(above.columns)
    uses: Counter[str] = Counter()
    for _, expression in below.columns:
        uses += expression.occurrences()
    for name, expression in definitions.items():
        if (uses[name] or expression.generates) and not expression.deterministic:
            return None
        if uses[name] > 1 and not expression.is_column:
            return None
    if not all(expression.deterministic for _, expression in below.columns):
        return None
    return tuple((name, expression.substitute(definitions)) for name, expression in below.columns)
