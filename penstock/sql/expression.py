"""SQL expressions as text, with the columns that they read. They also state whether rules may move them.

Expressions are Spark SQL. `penstock.sql.evaluate` runs them; this module only analyzes them. Rules
combine, split and substitute expressions by editing the user's text.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from penstock.errors import InvalidUsageError, did_you_mean
from penstock.sql.syntax.functions import AGGREGATES, GENERATORS, OTHERS, OWN_FUNCTION, ROW_FUNCTIONS
from penstock.sql.syntax.parser import Parser
from penstock.sql.syntax.tokens import strip_comments
from penstock.sql.tree import Tree

__all__ = [
    "Expression",
    "column",
    "conjunction",
    "edit",
    "is_aggregate",
    "select_item",
    "split_alias",
    "unknown_functions",
]

_FIXED: Final = frozenset({"lambda", "row", "star", "named", "parameter"})
"""Kinds of nodes whose meaning may change if a column is replaced: column names become field names, and
lambda variables hide columns."""
_CHANGING: Final = frozenset({"current", "parameter"})
_CLOSED: Final = frozenset(
    {"column", "string", "boolean", "null", "call", "paren", "case", "typed", "current"}
)
"""Kinds of nodes that never need parentheses."""
_LITERAL_FUNCTIONS: Final = frozenset({"localtimestamp", "localtime"})


@dataclass(frozen=True, slots=True)
class Expression:
    """An SQL expression. `Expression.parse` creates it.

    Parameters
    ----------
    text : str
        The Spark SQL that a user wrote or a rule composed. Two expressions with equal text are equal.
    columns : tuple of str
        The sorted names of the columns that the expression reads. For a field of a struct, the name is the
        struct column's name.
    deterministic : bool
        Whether the expression has the same value for the same row wherever it is evaluated, even after
        columns are replaced by their definitions. If not, rules never move or merge the expression. An
        expression with an unknown function counts as nondeterministic.
    aggregate : bool
        Whether the expression contains an aggregate, such as ``sum(load)``.
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
            If the text is not one expression, or holds a subquery or a window function.
        """
        if not isinstance(text, str):
            hint = 'write the expression as Spark SQL, such as "price > 0"'
            raise InvalidUsageError("an expression is not a text", got=type(text).__name__, hint=hint)
        return _parse(strip_comments(text).strip())

    @property
    def tree(self) -> Tree:
        """The parsed tree."""
        return _parse_tree(self.text)

    @property
    def is_column(self) -> bool:
        """Return whether the expression is only a column."""
        return len(self.columns) == 1 and self == column(self.columns[0])

    @property
    def generates(self) -> bool:
        """Return whether the expression may generate several rows from one row, like ``explode``."""
        return any(node.kind == "call" and node.value in GENERATORS for node in self.tree.walk())

    def slice(self, node: Tree) -> Expression:
        """Return a node of the tree as an expression."""
        return Expression.parse(self.text[node.start : node.stop])

    def occurrences(self) -> Counter[str]:
        """Return how often the expression reads each column."""
        return Counter(str(node.value) for node in _columns(self.tree))

    def conjuncts(self) -> tuple[Expression, ...]:
        """Return the operands of the conjunction: ``a AND b`` has two.

        Constants come first, because Spark folds them before execution and drops the other operands if a
        constant is ``FALSE``.
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
        """Return the expression with some columns replaced by expressions. Other columns stay."""
        tree = self.tree
        edits: list[tuple[Tree, str]] = []
        for node in _columns(tree):
            replacement = columns.get(node.value)
            if replacement is None or replacement == column(node.value):
                continue
            is_closed = node == tree or replacement.tree.kind in _CLOSED
            edits.append((node, replacement.text if is_closed else f"({replacement.text})"))
        return Expression.parse(edit(self.text, edits)) if edits else self

    def resolve(self, names: Iterable[str], **context: object) -> Expression:
        """Return the expression with its columns spelled as in `names`. Like Spark, ignore case.

        Raises
        ------
        InvalidUsageError
            If a column is not among the names. The error suggests a similar name.
        """
        spellings = list(names)
        by_case: dict[str, list[str]] = {}
        for name in spellings:
            by_case.setdefault(name.lower(), []).append(name)
        replacements: dict[str, Expression] = {}
        for name in self.columns:
            if name in spellings:
                continue
            matches = by_case.get(name.lower(), [])
            if not matches and name.lower() in _LITERAL_FUNCTIONS:
                continue
            if len(matches) != 1:
                if self.text != column(name).text:  # a column alone needs no context
                    context = {"expression": self.text, **context}
                hint = did_you_mean(name, spellings)
                raise InvalidUsageError(f"there is no column {name!r}", hint=hint, **context)
            replacements[name] = column(matches[0])
        if _is_fixed(self.tree):
            columns = {
                replacements[name].columns[0] if name in replacements else name for name in self.columns
            }
            if any(node.kind == "star" for node in _stars(self.tree)):
                columns |= set(spellings)
            return replace(self, columns=tuple(sorted(columns & set(spellings))))
        return self.substitute(replacements) if replacements else self


@lru_cache(maxsize=4096)
def column(name: str) -> Expression:
    """Return a column as an expression, quoted if necessary."""
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
"""Words that can be column names only in backquotes."""


def conjunction(parts: Iterable[Expression]) -> Expression:
    """Return the conjunction of all parts."""
    first, *others = parts
    if not others:
        return first
    texts = [f"({part.text})" if part.tree.kind == "or" else part.text for part in (first, *others)]
    return Expression.parse(" AND ".join(texts))


def split_alias(text: str) -> tuple[str, Expression]:
    """Parse one entry of a select list, ``price * volume AS turnover`` or ``price``.

    Raises
    ------
    InvalidUsageError
        If the text is not an expression, or if it is more than a column and has no name.
    """
    text = strip_comments(text).strip()
    tree, name = _parse_named(text)
    expression = Expression.parse(text[tree.start : tree.stop])
    if name is None and tree.kind in ("column", "field"):
        name = str(tree.value)
    if name is None:
        raise InvalidUsageError(
            "a computed column has no name", hint="write 'expression AS name'", expression=text
        )
    return name, expression


def edit(text: str, edits: Iterable[tuple[Tree, str]]) -> str:
    """Replace disjoint nodes of a text by other texts."""
    parts: list[str] = []
    at = 0
    for node, replacement in sorted(edits, key=lambda edit: edit[0].start):
        parts += [text[at : node.start], replacement]
        at = node.stop
    return "".join([*parts, text[at:]])


def unknown_functions(expression: Expression) -> Iterator[InvalidUsageError]:
    """Yield an error, with a similar name, for each function that Spark itself does not have."""
    known = {*ROW_FUNCTIONS, *AGGREGATES, *GENERATORS, *OTHERS, OWN_FUNCTION}
    for node in expression.tree.walk():
        name = str(node.value)
        # Spark's operators are functions, too, such as `+`.
        if node.kind == "call" and name.isidentifier() and name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "use functions of Spark SQL"
            yield InvalidUsageError(f"there is no function {name!r}", hint=hint)


def is_aggregate(node: Tree) -> bool:
    """Return whether a node calls an aggregate function."""
    if node.kind != "call":
        return False
    return (
        node.value in AGGREGATES
        or node.value == OWN_FUNCTION
        or node.filter is not None
        or "DISTINCT" in node.modifiers
    )


def _columns(tree: Tree, bound: frozenset[str] = frozenset()) -> Iterator[Tree]:
    """Yield the nodes that read a column; names that a lambda binds are not columns."""
    if tree.kind == "column":
        if tree.value.lower() not in bound:
            yield tree
        return
    if tree.kind == "lambda":
        bound |= set(tree.value)
    for part in tree.children:
        yield from _columns(part, bound)


def _stars(tree: Tree) -> Iterator[Tree]:
    """Yield the ``*`` nodes that stand for all columns. The star of ``count(*)`` does not."""
    if tree.kind == "star" and not tree.parts:
        yield tree
    elif not (tree.kind == "call" and tree.value == "count"):
        for part in tree.children:
            yield from _stars(part)


def _is_fixed(tree: Tree) -> bool:
    """Return whether columns of an expression must not be replaced."""
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
        If the text is not an expression, or contains a subquery.
    """
    parser = Parser(text)
    tree = parser.expression()
    parser.end()
    return tree


def _parse_named(text: str) -> tuple[Tree, str | None]:
    """Return the tree and the name of a select-list entry.

    Raises
    ------
    InvalidUsageError
        See `_parse_tree`.
    """
    parser = Parser(text)
    tree = parser.expression()
    name = parser.alias()
    parser.end()
    return tree, name


def select_item(name: str, expression: Expression) -> str:
    """Return a column of a select list."""
    return f"{expression.text} AS {column(name).text}"
