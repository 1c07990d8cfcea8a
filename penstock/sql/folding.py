"""Detect expressions from which Spark's optimizer may remove a part that can fail.

For Spark ``i + 1 > 0 AND FALSE`` is ``FALSE`` even if ``i + 1`` overflows, and a filter ``i + 1 > j``
tests first whether ``j`` is null. So Spark evaluates all expressions that can fail, except the shapes that
`may_drop_failure` lists: Penstock evaluates these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final

import pyarrow as pa

from penstock.sql.tree import Tree

__all__ = ["may_drop_failure"]

_CALCULATIONS: Final = frozenset({"column", "field", "number", "unary", "binary", "paren"})
_Type = Callable[[Tree], tuple[Any, bool]]


def may_drop_failure(tree: Tree, typed: _Type) -> bool:
    """Return whether Spark may drop a part that can fail.

    Spark never drops such a part from these expressions:

    - calculations with columns and numbers, and casts, ``abs`` and ``sqrt`` of these,
    - ``CASE`` or ``IF`` expressions whose conditions cannot fail and whose branches are calculations, and
      ``COALESCE`` of calculations,
    - a ``NAMED_STRUCT`` that is the whole expression and whose fields are such expressions,
    - comparisons of a calculation with a number, if each part of the calculation that can fail contains all
      columns of the comparison,
    - an ``AND`` that ends with such a comparison, if the operands before the comparison cannot fail and
      contain none of its columns.

    Parameters
    ----------
    tree : Tree
        The expression.
    typed : callable
        A function that returns the type of a part, and whether the part can fail.
    """
    if not typed(tree)[1]:
        return False
    *others, last = _conjuncts(tree)
    if last.kind == "compare":
        is_independent = all(
            not typed(other)[1] and _columns(other).isdisjoint(_columns(last)) for other in others
        )
        return not (is_independent and _is_plain_comparison(last, typed))
    # Spark drops fields of a struct only if the expression takes other fields of it.
    makes_struct = last.kind == "call" and last.value == "named_struct"
    values = last.parts[1::2] if makes_struct else (last,)
    return bool(others) or not all(_is_value(value, typed) for value in values)


def _is_value(node: Tree, typed: _Type) -> bool:
    """Return whether a node cannot fail, or is a calculation, or is a choice between calculations."""
    node = node.unnest()
    if not typed(node)[1]:
        return node.kind != "null"
    chooses = node.kind == "case" or (node.kind == "call" and node.value == "if")
    if chooses and any(typed(part)[1] for part in _conditions(node)):
        return False
    if chooses or (node.kind == "call" and node.value in ("coalesce", "nvl", "ifnull")):
        return all(part.unnest().kind == "null" or _is_value(part, typed) for part in node.parts)
    calculates = node.kind in _CALCULATIONS or node.kind == "cast" or node.value in ("abs", "sqrt")
    return calculates and all(_is_value(part, typed) for part in node.parts)


def _conditions(node: Tree) -> tuple[Tree, ...]:
    """Return the parts of a ``CASE`` or ``IF`` that decide which value is chosen."""
    if node.kind == "call":
        return node.parts[:1]
    based, otherwise = node.value
    pairs = node.parts[based : len(node.parts) - otherwise]
    return (*node.parts[:based], *pairs[::2])


def _is_plain_comparison(node: Tree, typed: _Type) -> bool:
    """Return whether a node compares a calculation with a number literal whose type is not wider."""
    left, right = sorted(node.parts, key=lambda part: not _columns(part))
    types = [typed(part)[0] for part in (left, right)]
    return (
        right.kind == "number"
        and all(pa.types.is_signed_integer(kind) for kind in types)
        and types[0].bit_width >= types[1].bit_width
        and all(node.kind in _CALCULATIONS for node in left.walk())
        and all(_columns(node) == _columns(left) for node in left.walk() if typed(node)[1])
    )


def _conjuncts(node: Tree) -> Iterator[Tree]:
    node = node.unnest()
    if node.kind != "and":
        yield node
        return
    for part in node.parts:
        yield from _conjuncts(part)


def _columns(node: Tree) -> set[Hashable]:
    """Return the columns and fields that an expression reads, in a form that sets can hold and compare."""
    return {_key(leaf) for leaf in node.walk() if leaf.kind in ("column", "field")}


def _key(node: Tree) -> Hashable:
    node = node.unnest()
    return str(node.value).lower(), tuple(map(_key, node.parts))
