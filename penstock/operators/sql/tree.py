"""A parsed expression: a tree whose nodes know where they stand in the text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Tree"]


@dataclass(frozen=True, slots=True)
class Tree:
    """A node: an expression that stands at ``text[start:stop]``.

    Parameters
    ----------
    kind : str
        What it is: ``column``, ``field``, ``number``, ``string``, ``boolean``, ``null``, ``typed``,
        ``interval``, ``parameter``, ``star``, ``unary``, ``binary``, ``compare``, ``not``, ``and``, ``or``,
        ``between``, ``in``, ``match``, ``is``, ``case``, ``cast``, ``call``, ``lambda``, ``named``, ``row``,
        ``index``, ``collate``, ``current`` or ``paren``.
    start, stop : int
        Where it stands.
    value : object
        A name, an operator, a literal as it is written, or what else tells it from others of its kind.
    parts : tuple of Tree
        What it is made of, in the order in which that stands in the text.
    filter : Tree, optional
        The condition of an aggregate's ``FILTER``.
    modifiers : tuple of str
        Of a call: ``DISTINCT``, ``WITHIN GROUP``, ``IGNORE NULLS``, ``RESPECT NULLS``, ``OVER``.
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
        """All nodes right below it."""
        return self.parts if self.filter is None else (*self.parts, self.filter)

    def walk(self) -> Iterator[Tree]:
        """Yield it and all nodes below."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children)

    def unnest(self) -> Tree:
        """Return what is in parentheses."""
        return self.parts[0].unnest() if self.kind == "paren" else self
