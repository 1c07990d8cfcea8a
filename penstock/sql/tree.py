"""A parsed expression: a tree whose nodes hold their positions in the text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Tree"]


@dataclass(frozen=True, slots=True)
class Tree:
    """A node: the expression at ``text[start:stop]``.

    Parameters
    ----------
    kind : str
        The kind of node: ``column``, ``field``, ``number``, ``string``, ``boolean``, ``null``, ``typed``,
        ``interval``, ``parameter``, ``star``, ``unary``, ``binary``, ``compare``, ``not``, ``and``, ``or``,
        ``between``, ``in``, ``match``, ``is``, ``case``, ``cast``, ``call``, ``lambda``, ``named``, ``row``,
        ``index``, ``collate``, ``current`` or ``paren``.
    start, stop : int
        The position of the expression in the text.
    value : object
        The name, the operator, the literal as written, or whatever else distinguishes nodes of one kind.
    parts : tuple of Tree
        The operands in text order.
    filter : Tree, optional
        The condition of an aggregate's ``FILTER``.
    modifiers : tuple of str
        Modifiers of a call: ``DISTINCT``, ``WITHIN GROUP``, ``IGNORE NULLS``, ``RESPECT NULLS``, ``OVER``.
    """

    kind: str
    start: int
    stop: int
    value: Any = None
    parts: tuple[Tree, ...] = ()
    filter: Tree | None = None
    modifiers: tuple[str, ...] = ()

    @property
    def children(self) -> tuple[Tree, ...]:
        """The direct child nodes."""
        return self.parts if self.filter is None else (*self.parts, self.filter)

    def walk(self) -> Iterator[Tree]:
        """Yield this node and all nodes below it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children)

    def unnest(self) -> Tree:
        """Return the node without the parentheses around it."""
        return self.parts[0].unnest() if self.kind == "paren" else self
