"""SQL expressions as text: the columns they use, and whether they may be moved.

Expressions are Spark SQL. Nothing here runs them: `penstock.operators.sql.evaluate` does. A text is what the
user wrote; where rules combine, divide or substitute expressions, they do it with pieces of such texts.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from penstock.errors import InvalidUsageError
from penstock.operators.sql.functions import AGGREGATES, GENERATORS, ROW_FUNCTIONS
from penstock.operators.sql.parser import Parser
from penstock.operators.sql.tokens import without_comments
from penstock.operators.sql.tree import Tree

__all__ = ["Expression", "column", "conjunction", "did_you_mean", "edited", "is_aggregate", "named"]

_FIXED: Final = frozenset({"lambda", "row", "star", "named", "parameter"})
"""Kinds of nodes that may mean something else where a column is replaced: names of columns become names of
fields, and variables of lambdas hide columns."""
_CHANGING: Final = frozenset({"current", "parameter"})
_CLOSED: Final = frozenset(
    {"column", "string", "boolean", "null", "call", "paren", "case", "typed", "current"}
)
"""Kinds of nodes that need no parentheses, whatever stands beside them."""
_LITERAL_FUNCTIONS: Final = frozenset({"localtimestamp", "localtime"})


@dataclass(frozen=True, slots=True)
class Expression:
    """One SQL expression; made by `Expression.parse`.

    Parameters
    ----------
    text : str
        Spark SQL, as it was written or as a rule put it together. Two expressions of equal text are equal.
    columns : tuple of str
        Names of the columns that it reads, sorted. Of a struct's field it is the struct's name.
    deterministic : bool
        Whether it returns the same for the same row, wherever it is evaluated, and also when columns in it
        are replaced by what made them. A function that is not known is taken not to, so it is never moved,
        merged or evaluated elsewhere.
    aggregate : bool
        Whether it has an aggregate in it, such as ``sum(load)``.
    """

    text: str
    columns: tuple[str, ...]
    deterministic: bool
    aggregate: bool

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Parse Spark SQL.

        Raises
        ------
        InvalidUsageError
            If it is not one expression, or holds a subquery or a window function.
        """
        return _parse(without_comments(text).strip())

    @property
    def tree(self) -> Tree:
        """Its tree, whose nodes know where they stand in the text."""
        return _parse_tree(self.text)

    @property
    def is_column(self) -> bool:
        """Whether it is a column and nothing else."""
        return len(self.columns) == 1 and self == column(self.columns[0])

    @property
    def generates(self) -> bool:
        """Whether it may make several rows of one, as ``explode``."""
        return any(node.kind == "call" and node.value in GENERATORS for node in self.tree.walk())

    def slice(self, node: Tree) -> Expression:
        """Return the expression that a node of its tree is."""
        return Expression.parse(self.text[node.start : node.stop])

    def occurrences(self) -> Counter[str]:
        """Return how often it reads each column."""
        return Counter(str(node.value) for node in _columns(self.tree))

    def conjuncts(self) -> tuple[Expression, ...]:
        """Return what all must be true for it to be true: ``a AND b`` is two.

        Constants come first, as Spark computes them before it runs, and drops the others for ``FALSE``.
        """
        parts: list[Tree] = []
        waiting = [self.tree]
        while waiting:
            tree = waiting.pop()
            if tree.kind == "and":
                waiting += reversed(tree.parts)
            elif tree.kind == "paren":
                waiting.append(tree.parts[0])
            else:
                parts.append(tree)
        if self.deterministic:
            parts.sort(key=lambda part: any(node.kind == "column" for node in part.walk()))
        return (self,) if len(parts) == 1 else tuple(map(self.slice, parts))

    def substitute(self, columns: Mapping[str, Expression]) -> Expression:
        """Return it with columns replaced by expressions; a column that is not named stays."""
        whole = self.tree
        edits: list[tuple[Tree, str]] = []
        for node in _columns(whole):
            made = columns.get(node.value)
            if made is None or made == column(node.value):
                continue
            closed = node == whole or made.tree.kind in _CLOSED
            edits.append((node, made.text if closed else f"({made.text})"))
        return Expression.parse(edited(self.text, edits)) if edits else self

    def resolve(self, names: Iterable[str], **context: object) -> Expression:
        """Return it with columns spelt as in `names`; capitals do not matter, as in Spark.

        Raises
        ------
        InvalidUsageError
            If a column is not among the names; it tells which, and what may have been meant.
        """
        known = list(names)
        by_case: dict[str, list[str]] = {}
        for name in known:
            by_case.setdefault(name.lower(), []).append(name)
        respelt: dict[str, Expression] = {}
        for name in self.columns:
            if name in known:
                continue
            found = by_case.get(name.lower(), [])
            if not found and name.lower() in _LITERAL_FUNCTIONS:
                continue
            if len(found) != 1:
                raise InvalidUsageError(
                    f"there is no column {name!r}",
                    hint=did_you_mean(name, known),
                    expression=self.text,
                    **context,
                )
            respelt[name] = column(found[0])
        if _is_fixed(self.tree):
            columns = {respelt[name].columns[0] if name in respelt else name for name in self.columns}
            if any(node.kind == "star" for node in _stars(self.tree)):
                columns |= set(known)
            return replace(self, columns=tuple(sorted(columns & set(known))))
        return self.substitute(respelt) if respelt else self


def did_you_mean(name: str, known: Iterable[str], what: str = "columns") -> str:
    """Return the hint for a name that is not known."""
    names = list(known)
    by_case = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), list(by_case), n=1)
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"did you mean {by_case[near[0]]!r}?" if near else f"the {what} are {listed}"


@lru_cache(maxsize=4096)
def column(name: str) -> Expression:
    """Return the expression that is a column, whatever letters its name has."""
    plain = name.isidentifier() and name.isascii() and name.upper() not in _RESERVED
    text = name if plain else "`" + name.replace("`", "``") + "`"
    return Expression(text, (name,), deterministic=True, aggregate=False)


_RESERVED: Final = frozenset(
    """
    ALL AND ANTI ANY AS AUTHORIZATION BETWEEN BOTH CASE CAST CHECK COLLATE COLUMN CONSTRAINT CREATE CROSS
    CURRENT CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER DISTINCT DIV ELSE END ESCAPE EXCEPT
    EXISTS FALSE FETCH FILTER FOR FOREIGN FROM FULL GRANT GROUP HAVING IN INNER INTERSECT INTERVAL INTO IS
    JOIN LATERAL LEADING LEFT LIKE LIMIT LOCALTIME LOCALTIMESTAMP MINUS NATURAL NOT NULL OFFSET ON ONLY OR
    ORDER OUTER OVER OVERLAPS PRIMARY REFERENCES REGEXP RIGHT RLIKE ILIKE SELECT SEMI SESSION_USER SOME
    TABLE THEN TO TRAILING TRUE UNION UNIQUE UNKNOWN USER USING VALUES WHEN WHERE WITH WITHIN
    """.split()  # noqa: SIM905
)
"""Words that are written in backquotes where they are names of columns."""


def conjunction(parts: Iterable[Expression]) -> Expression:
    """Return the expression that is true where all parts are."""
    first, *others = parts
    if not others:
        return first
    texts = [f"({part.text})" if part.tree.kind == "or" else part.text for part in (first, *others)]
    return Expression.parse(" AND ".join(texts))


def named(text: str) -> tuple[str, Expression]:
    """Parse one entry of a select list, ``price * volume AS turnover`` or ``price``.

    Raises
    ------
    InvalidUsageError
        If it is not an expression, or it is more than a column and has no name.
    """
    text = without_comments(text).strip()
    tree, name = _parse_named(text)
    expression = Expression.parse(text[tree.start : tree.stop])
    if name is None and tree.kind in ("column", "field"):
        name = str(tree.value)
    if name is None:
        raise InvalidUsageError(
            "an expression has no name", hint="write it as 'expression AS name'", expression=text
        )
    return name, expression


def edited(text: str, edits: Iterable[tuple[Tree, str]]) -> str:
    """Return a text with other texts in the place of nodes, none of which is in another."""
    parts: list[str] = []
    at = 0
    for node, made in sorted(edits, key=lambda edit: edit[0].start):
        parts += [text[at : node.start], made]
        at = node.stop
    return "".join([*parts, text[at:]])


def is_aggregate(node: Tree) -> bool:
    """Return whether a node is a call of an aggregate."""
    if node.kind != "call":
        return False
    return node.value in AGGREGATES or node.filter is not None or "DISTINCT" in node.modifiers


def _columns(tree: Tree, bound: frozenset[str] = frozenset()) -> Iterator[Tree]:
    """Yield the nodes that are columns, which variables of lambdas are not."""
    if tree.kind == "column":
        if tree.value.lower() not in bound:
            yield tree
        return
    if tree.kind == "lambda":
        bound |= set(tree.value)
    for part in tree.children:
        yield from _columns(part, bound)


def _stars(tree: Tree) -> Iterator[Tree]:
    """Yield the stars that stand for all columns: any but that of ``count(*)``."""
    if tree.kind == "star" and not tree.parts:
        yield tree
    elif not (tree.kind == "call" and tree.value == "count"):
        for part in tree.children:
            yield from _stars(part)


def _is_fixed(tree: Tree) -> bool:
    """Say whether no column may be replaced in an expression."""
    if next(_stars(tree), None) is not None:
        return True
    return any(
        node.kind in _FIXED - {"star"} or (node.kind == "call" and node.value == "struct")
        for node in tree.walk()
    )


@lru_cache(maxsize=4096)
def _parse(text: str) -> Expression:
    tree = _parse_tree(text)
    if tree.kind == "column":
        return column(tree.value)
    calls = {str(node.value) for node in tree.walk() if node.kind == "call"}
    changing = any(node.kind in _CHANGING for node in tree.walk())
    columns = {str(node.value) for node in _columns(tree)}
    return Expression(
        text,
        tuple(sorted(columns)),
        deterministic=calls <= ROW_FUNCTIONS and not changing and not _is_fixed(tree),
        aggregate=any(map(is_aggregate, tree.walk())),
    )


@lru_cache(maxsize=4096)
def _parse_tree(text: str) -> Tree:
    """Return the tree of one expression.

    Raises
    ------
    InvalidUsageError
        If it is none, or has a subquery in it.
    """
    parser = Parser(text)
    tree = parser.expression()
    parser.end()
    return tree


def _parse_named(text: str) -> tuple[Tree, str | None]:
    """Return the tree of an entry of a select list, and the name it gives.

    Raises
    ------
    InvalidUsageError
        As `_parse_tree`.
    """
    parser = Parser(text)
    tree = parser.expression()
    name = parser.alias()
    parser.end()
    return tree, name
