"""Detect expressions from which Spark's optimizer may remove a part that can fail.

For Spark ``i + 1 > 0 AND FALSE`` is ``FALSE`` even if ``i + 1`` overflows. Evaluating the constants of
``AND`` and ``OR`` first has the same effect (`penstock.operators.sql.evaluate`, `Expression.conjuncts`).
Other expressions that can fail and that Spark may simplify are left to Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator

from penstock.operators.sql.tree import Tree

__all__ = ["may_shorten"]


def may_shorten(tree: Tree, fails: Callable[[Tree], bool]) -> bool:
    """Return whether Spark may drop a part that can fail.

    It may if an expression

    - calculates with a null literal, compares one, or uses one as a condition,
    - compares an expression with itself,
    - has a choice with equal branches,
    - repeats a condition below ``AND`` and ``OR``,
    - binds a column to one value in an ``AND``, because Spark substitutes that value in the other conditions.

    Parameters
    ----------
    tree : Tree
        The expression.
    fails : callable
        Returns whether a part can fail.
    """
    return fails(tree) and (any(_is_shortened(node, fails) for node in tree.walk()) or _has_null(tree))


def _is_shortened(node: Tree, fails: Callable[[Tree], bool]) -> bool:
    if node.kind == "compare":
        return len(set(map(_key, node.parts))) == 1 and fails(node)
    if _is_choice(node):
        return _are_alike(_values(node)) and fails(node)
    if node.kind in ("and", "or"):
        parts = Counter(map(_key, _conditions(node)))
        return (max(parts.values()) > 1 or _binds(node, fails)) and fails(node)
    return False


def _are_alike(values: list[Tree]) -> bool:
    """Return whether Spark may treat two values of a choice as equal; a null may equal false."""
    constants = [value.unnest() for value in values if not _reads(value)]
    computed = [one for one in constants if one.kind not in ("number", "string", "boolean", "null")]
    if computed and len(constants) > 1:
        return True
    keys = [_key(one) for one in values if one.unnest().kind != "null"]
    nulls = len(values) - len(keys)
    falses = sum(one.kind == "boolean" and not one.value for one in constants)
    return len(set(keys)) < len(keys) or nulls > 1 or bool(nulls and falses)


def _reads(node: Tree) -> bool:
    return any(one.kind == "column" for one in node.walk())


def _binds(node: Tree, fails: Callable[[Tree], bool]) -> bool:
    """Return whether a part that can fail reads a column that another part binds to a value."""
    if node.kind != "and":
        return False
    parts = list(_conditions(node, ("and",)))
    bound = [one for part in parts for one in _bound(part)]
    return any(
        other.kind == "column" and other.value in bound
        for part in parts
        if fails(part)
        for other in part.walk()
    )


def _bound(part: Tree) -> Iterator[str]:
    if part.kind != "compare" or part.value not in ("=", "<=>"):
        return
    sides = [side.unnest() for side in part.parts]
    for one, other in (sides, sides[::-1]):
        if one.kind == "column" and not _reads(other):
            yield one.value


def _is_choice(node: Tree) -> bool:
    return node.kind == "case" or (node.kind == "call" and node.value == "if" and len(node.parts) == 3)


def _values(node: Tree) -> list[Tree]:
    """Return the values of a choice; a missing ``ELSE`` is null."""
    if node.kind == "call":
        return list(node.parts[1:])
    based, otherwise = node.value
    parts = list(node.parts[1:] if based else node.parts)
    last = parts.pop() if otherwise else Tree("null", node.stop, node.stop)
    return [*parts[1::2], last]


def _has_null(node: Tree, *, taken: bool = False) -> bool:
    """Return whether a null literal is used other than as a value of a choice or of ``IS``."""
    node = node.unnest()
    if node.kind == "null":
        return not taken
    values = _values(node) if _is_choice(node) else []
    passes = node.kind == "is" or (node.kind == "call" and node.value in ("coalesce", "nvl", "ifnull"))
    return any(_has_null(part, taken=passes or part in values) for part in node.children)


def _conditions(node: Tree, kinds: tuple[str, ...] = ("and", "or", "not")) -> Iterator[Tree]:
    """Yield the conditions below ``AND``, ``OR`` and ``NOT``."""
    node = node.unnest()
    if node.kind not in kinds:
        yield node
        return
    for part in node.parts:
        yield from _conditions(part, kinds)


def _key(node: Tree) -> Hashable:
    """Return a key that is equal for expressions with the same spelling."""
    node = node.unnest()
    value = node.value.lower() if isinstance(node.value, str) and node.kind == "column" else node.value
    return node.kind, str(value), node.modifiers, tuple(map(_key, node.children))
