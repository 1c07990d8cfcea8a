"""SQL expressions as text that was parsed once: the columns they use, and whether they may be moved.

Expressions are Spark SQL. Nothing here runs them: `penstock.operators.evaluate` does. sqlglot is imported
when the first expression is parsed.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidUsageError

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["Expression", "column", "conjunction", "did_you_mean", "named"]

_DIALECT: Final = "spark"

_CHANGING: Final = frozenset(
    {"Rand", "Randn", "Uuid", "CurrentTimestamp", "CurrentDate", "CurrentTime", "CurrentDatetime", "Shuffle"}
    | {"CurrentUser", "Localtime", "Localtimestamp", "AnyValue", "Randstr", "SessionUser"}
)
"""sqlglot's names of functions that may return something else at the next call."""

_PURE: Final = frozenset(
    {"base64", "bin", "bround", "cbrt", "conv", "crc32", "date_part", "e", "expm1", "format_number", "hypot"}
    | {"isnotnull", "log1p", "negative", "pi", "pmod", "positive", "rint", "shiftrightunsigned", "signum"}
    | {"named_struct", "octet_length", "positive", "timestamp_micros", "timestamp_millis"}
    | {"timestamp_seconds", "unbase64", "unix_date", "unix_micros", "unix_millis", "unix_seconds"}
    | {"url_decode", "url_encode", "width_bucket", "xxhash64", "hash", "mean"}
)
"""Functions of Spark that sqlglot has no name for and that always return the same.

Any other unknown function counts as a user's own, of which nothing is known.
"""


@dataclass(frozen=True, slots=True)
class Expression:
    """One SQL expression; made by `Expression.parse`.

    Parameters
    ----------
    text : str
        Spark SQL, as it was written or as a rule made it. Two expressions of equal text are equal.
    columns : tuple of str
        Names of the columns that it reads, sorted. Of a struct's field it is the struct's name.
    deterministic : bool
        Whether it returns the same for the same row. A function that is not known is taken not to, so it is
        never moved, merged or evaluated elsewhere.
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
        return _parse(text.strip())

    @classmethod
    def of(cls, tree: exp.Expr) -> Expression:
        """Return the expression of sqlglot's tree."""
        return _parse(tree.sql(dialect=_DIALECT))

    @property
    def tree(self) -> exp.Expr:
        """A copy of sqlglot's tree, which the caller may change."""
        return _tree(self.text).copy()

    @property
    def normal(self) -> str:
        """The text in one spelling: letters of keywords and blanks do not count."""
        return _tree(self.text).sql(dialect=_DIALECT)

    @property
    def is_column(self) -> bool:
        """Whether it is a column and nothing else."""
        return len(self.columns) == 1 and self == column(self.columns[0])

    def occurrences(self) -> Counter[str]:
        """Return how often it reads each column."""
        from sqlglot import exp

        return Counter(_name_of(node) for node in _tree(self.text).find_all(exp.Column))

    def conjuncts(self) -> tuple[Expression, ...]:
        """Return what all must be true for it to be true: ``a AND b`` is two."""
        from sqlglot import exp

        parts: list[exp.Expr] = []
        waiting: list[exp.Expr] = [_tree(self.text)]
        while waiting:
            tree = waiting.pop()
            if isinstance(tree, exp.And):
                waiting += [tree.expression, tree.this]
            elif isinstance(tree, exp.Paren):
                waiting.append(tree.this)
            else:
                parts.append(tree)
        return (self,) if len(parts) == 1 else tuple(Expression.of(part) for part in parts)

    def substitute(self, columns: Mapping[str, Expression]) -> Expression:
        """Return it with columns replaced by expressions; a column that is not named stays."""
        from sqlglot import exp

        if all(columns.get(name) in (None, column(name)) for name in self.columns):
            return self

        def replace(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Column):
                return node
            made = columns.get(_name_of(node))
            if made is None:
                return node
            alone = node.parent is None or made.is_column
            inner: exp.Expr = made.tree if alone else exp.Paren(this=made.tree)
            for part in _fields_of(node):
                inner = exp.Dot(this=inner, expression=exp.to_identifier(part))
            return inner

        return Expression.of(self.tree.transform(replace))

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
            if len(found) != 1:
                raise InvalidUsageError(
                    f"there is no column {name!r}",
                    hint=did_you_mean(name, known),
                    expression=self.text,
                    **context,
                )
            respelt[name] = column(found[0])
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
    plain = name.isidentifier() and name.isascii()
    text = name if plain else "`" + name.replace("`", "``") + "`"
    if plain:
        from sqlglot import exp

        try:
            plain = isinstance(_parsed(text), exp.Column)
        except InvalidUsageError:
            plain = False
        text = text if plain else f"`{name}`"
    return Expression(text, (name,), deterministic=True, aggregate=False)


def conjunction(parts: Iterable[Expression]) -> Expression:
    """Return the expression that is true where all parts are."""
    from sqlglot import exp

    trees = [part.tree for part in parts]
    return Expression.of(exp.and_(*trees)) if len(trees) > 1 else Expression.of(trees[0])


def named(text: str) -> tuple[str, Expression]:
    """Parse one entry of a select list, ``price * volume AS turnover`` or ``price``.

    Raises
    ------
    InvalidUsageError
        If it is not an expression, or it is more than a column and has no name.
    """
    from sqlglot import exp

    tree = _parsed(text.strip())
    if isinstance(tree, exp.Alias):
        return tree.alias, Expression.of(tree.this)
    expression = Expression.parse(text)
    if isinstance(tree, exp.Column):
        fields = _fields_of(tree)
        return fields[-1] if fields else _name_of(tree), expression
    raise InvalidUsageError(
        "an expression has no name", hint="write it as 'expression AS name'", expression=text
    )


def _parts_of(node: exp.Column) -> list[str]:
    return [part.name for part in node.parts]


def _name_of(node: exp.Column) -> str:
    return _parts_of(node)[0]


def _fields_of(node: exp.Column) -> list[str]:
    return _parts_of(node)[1:]


def _parsed(text: str) -> exp.Expr:
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    if not text:
        raise InvalidUsageError("an expression is empty", hint="write a SQL expression")
    try:
        # As a select list, because a column may be called load or show, which begin statements.
        statements = sqlglot.parse(f"SELECT {text}", dialect=_DIALECT)
    except SqlglotError as error:
        details = getattr(error, "errors", [])
        reason = details[0]["description"].rstrip(".") if details else "it is not SQL"
        raise InvalidUsageError(f"an expression cannot be parsed: {reason}", expression=text) from None
    whole = statements[0]
    parts = {} if whole is None else {name for name, part in whole.args.items() if part}
    if len(statements) != 1 or not isinstance(whole, exp.Select) or parts != {"expressions"}:
        raise InvalidUsageError("not an expression", expression=text)
    if len(whole.expressions) != 1:
        raise InvalidUsageError("more than one expression", expression=text)
    tree: exp.Expr = whole.expressions[0].pop()
    return tree


@lru_cache(maxsize=4096)
def _tree(text: str) -> exp.Expr:
    return _parsed(text)


@lru_cache(maxsize=4096)
def _parse(text: str) -> Expression:
    from sqlglot import exp

    tree = _tree(text)
    refused = (exp.Query, exp.DDL, exp.DML, exp.Command, exp.Alias)
    if isinstance(tree, refused) or tree.find(exp.Query) is not None:
        raise InvalidUsageError("not a SQL expression of one row", expression=text)
    if tree.find(exp.Window) is not None:
        raise InvalidUsageError(
            "a window function is not an expression of one row", hint="use window and agg", expression=text
        )
    columns: set[str] = set()
    deterministic, aggregate = True, False
    for node in tree.walk():
        if isinstance(node, exp.Column):
            columns.add(_name_of(node))
        elif isinstance(node, exp.Anonymous):
            deterministic = deterministic and node.name.lower() in _PURE
            aggregate = aggregate or node.name.lower() == "mean"
        elif type(node).__name__ in _CHANGING:
            deterministic = False
        aggregate = aggregate or isinstance(node, exp.AggFunc)
    return Expression(text, tuple(sorted(columns)), deterministic, aggregate)
