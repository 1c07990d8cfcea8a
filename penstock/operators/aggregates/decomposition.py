"""Aggregates as partials of panes, and the expressions that assemble windows from them (Scabbard §2.3)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, count
from types import MappingProxyType
from typing import Final

from penstock._extras import need_extra
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.own import find_aggregate, value_expression
from penstock.operators.aggregates.quantiles import DEFAULT_ACCURACY, log2_size_for
from penstock.operators.aggregates.sketches import log2_size_of
from penstock.operators.scan.spec import PANE, Partial, PartialKind
from penstock.sql.expression import Expression, column, edit, is_aggregate
from penstock.sql.syntax.functions import OWN_FUNCTION
from penstock.sql.tree import Tree

__all__ = [
    "Decomposition",
    "aggregates_of",
    "decompose",
    "deviation",
    "own_references",
    "pane_ms",
    "quantile",
    "replace_own",
    "sketch_argument",
]


_SUPPORTED: Final = (
    "count", "approx_count_distinct", "sum", "avg", "min", "max", "first", "last", "stddev", "median",
    "percentile",
)  # fmt: skip
"""The names of aggregates that windows support."""


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Aggregates computed in two steps: partials, then assembly.

    Partials of one pane and group are combined by kind. ``count`` and ``sum`` are added. ``m2`` values are
    added, plus a term for the distance between the means. ``min`` and ``max`` keep the least or greatest
    value. ``first`` and ``last`` take the value with the least or greatest time. A separate partial holds
    that time (see `times`). ``distinct`` counts the values in the union of all fragments; ``sketch``
    estimates that count. ``kll`` estimates quantiles. ``own`` has the states of a user-defined aggregate,
    which the aggregate's `merge` combines.

    Parameters
    ----------
    partials : tuple of Partial
        The partials of a fragment. Aggregates share partials: ``avg(x)`` and ``sum(x)`` both use one
        ``sum(x)``.
    assembly : mapping of str to str
        Maps an aggregate's name to Spark SQL over combined partials: ``avg(x)`` is ``sum_x / count_x``.
    times : mapping of str to str
        Maps the name of a ``first`` or ``last`` partial to the name of the partial with its time.
    """

    partials: tuple[Partial, ...]
    assembly: Mapping[str, str]
    times: Mapping[str, str]

    @property
    def rows(self) -> str | None:
        """The partial that counts all rows, if there is one."""
        return next(
            (
                partial.name
                for partial in self.partials
                if (partial.kind, partial.expression) == ("count", "*")
            ),
            None,
        )

    def add_count(self, taken: Iterable[str] = ()) -> Decomposition:
        """Return the decomposition with a partial that counts rows.

        If there is none, add one under a name that is not `taken`.
        """
        if self.rows is not None:
            return self
        names = {PANE, *taken, *(partial.name for partial in self.partials)}
        name = next(name for name in chain(["rows"], map("rows_{}".format, count(2))) if name not in names)
        return replace(self, partials=(*self.partials, Partial("count", "*", name)))


def pane_ms(size_ms: int, slide_ms: int) -> int:
    """Return the pane length: the greatest common divisor of size and slide.

    Raises
    ------
    InvalidUsageError
        If a length is not positive, or if the slide is longer than the size, which would skip rows.
    """
    if size_ms < 1 or slide_ms < 1:
        raise InvalidUsageError("a window is at least 1 ms long", size_ms=size_ms, slide_ms=slide_ms)
    if slide_ms > size_ms:
        raise InvalidUsageError(
            "a window's slide is longer than its size",
            hint="rows between windows would be in none; filter them out instead",
            size_ms=size_ms,
            slide_ms=slide_ms,
        )
    return math.gcd(size_ms, slide_ms)


def decompose(aggregates: Mapping[str, str], time: str, group_by: Iterable[str] = ()) -> Decomposition:
    """Split aggregates into partials and assembly.

    Parameters
    ----------
    aggregates : mapping of str to str
        Names and Spark SQL: ``count``, ``count(DISTINCT x)``, ``approx_count_distinct(x)``, ``sum``, ``avg``,
        ``min``, ``max``, ``first``, ``last``, ``stddev``, ``median``, ``percentile``, ``approx_percentile``,
        and expressions over them, such as ``sum(price * volume) / sum(volume)``.
    time : str
        The window's time column, which orders ``first`` and ``last``.
    group_by : iterable of str
        The group columns, which expressions may also use outside of aggregates.

    Raises
    ------
    InvalidUsageError
        If an expression contains no aggregate, contains one that cannot be split into partials (such as
        ``mode``), or uses, outside of aggregates, a column that is not a group column.

    Notes
    -----
    ``stddev`` is the sample standard deviation, as in Spark. It is computed from the count and the sum of
    squared deviations from the mean, and so stays precise for large means. ``first`` and ``last`` order by
    time; in Spark they order by arrival.
    """
    group = tuple(group_by)
    partials = _Partials(time, group)
    assembly: dict[str, str] = {}
    for name, text in aggregates.items():
        whole = Expression.parse(text)
        calls = aggregates_of(whole.tree)
        if not calls:
            raise InvalidUsageError(
                "the expression has no aggregate",
                hint=_similar_aggregate(whole.tree)
                or "write an aggregate such as sum(x), avg(x) or count(*)",
                name=name,
                expression=text,
            )
        edits: list[tuple[Tree, str]] = []
        for call in calls:
            if any(is_aggregate(node) for part in call.children for node in part.walk()):
                raise InvalidUsageError("an aggregate contains another aggregate", name=name, expression=text)
            expression = partials.split(whole, call)
            if expression is None:
                raise InvalidUsageError(
                    "windows do not support this aggregate",
                    hint="use count, count(DISTINCT x), approx_count_distinct(x), sum, avg, min, max, first, "
                    "last, stddev, median, percentile(x, p), and expressions of these; to count some rows, "
                    "count(*) FILTER (WHERE condition)",
                    name=name,
                    expression=text,
                )
            edits.append((call, expression))
        rest = Expression.parse(edit(whole.text, edits))
        outside = sorted(set(rest.columns) - partials.names - set(group))
        if outside:
            raise InvalidUsageError(
                "a column is neither grouped nor aggregated",
                hint="add it to group_by, or use it in an aggregate",
                column=outside[0],
                name=name,
                expression=text,
            )
        assembly[name] = rest.text
    return Decomposition(tuple(partials.made), MappingProxyType(assembly), MappingProxyType(partials.times))


def aggregates_of(tree: Tree) -> list[Tree]:
    """Return the outermost aggregate calls in a tree."""
    if is_aggregate(tree):
        return [tree]
    return [call for part in tree.children for call in aggregates_of(part)]


def _similar_aggregate(tree: Tree) -> str | None:
    """Return a hint with an aggregate that is similar to a function in a tree; None if there is none."""
    for node in tree.walk():
        if node.kind == "call" and (near := get_close_matches(node.value, _SUPPORTED, n=1)):
            return f"did you mean {near[0]!r}?"
    return None


def deviation(n: str, m2: str) -> str:
    """Return the SQL of a sample standard deviation, given its count and M2 columns."""
    return f"CASE WHEN {n} > 1 THEN SQRT({m2} / ({n} - 1)) END"


class _Partials:
    """Collect the distinct partials of aggregates."""

    def __init__(self, time: str, group_by: tuple[str, ...]) -> None:
        self._time = column(time).text
        self._taken = {PANE, *group_by}
        self.made: list[Partial] = []
        self.times: dict[str, str] = {}

    @property
    def names(self) -> set[str]:
        return {partial.name for partial in self.made}

    def _column(self, kind: PartialKind, expression: str, log2_size: int = 0, function: str = "") -> str:
        """Return the column name of a partial; add the partial if it is new."""
        same = (kind, expression, log2_size, function)
        for partial in self.made:
            if (partial.kind, partial.expression, partial.log2_size, partial.function) == same:
                return column(partial.name).text
        words = re.sub(r"\W+", "_", expression).strip("_").lower()[:40]
        plain = kind if expression == "*" else f"{kind}_{words or 'value'}"
        name, names, number = plain, self.names | self._taken, 2
        while name in names:
            name, number = f"{plain}_{number}", number + 1
        self.made.append(Partial(kind, expression, name, log2_size, function))
        return column(name).text

    def split(self, whole: Expression, call: Tree) -> str | None:
        """Return the assembly expression of an aggregate; None if it has no partials."""
        condition = None if call.filter is None else whole.slice(call.filter).text
        texts = [whole.slice(part).text for part in call.parts]
        if call.value == "approx_count_distinct" and not call.modifiers and len(texts) in (1, 2):
            return self._sketch(call, texts, condition)
        if call.value in _QUANTILES and not call.modifiers:
            return self._quantile(call, texts, condition)
        if call.value == OWN_FUNCTION and not call.modifiers:
            return self._own(call, texts, condition)
        distinct = call.modifiers == ("DISTINCT",) and call.value == "count"
        if len(texts) != 1 or not (distinct or call.modifiers in ((), ("ALL",))):
            return None
        (argument,), (text,) = call.parts, texts
        if argument.kind == "star" and (distinct or call.value != "count"):
            return None
        rows = call.value == "count" and argument.kind in ("star", "number", "string", "boolean")
        if condition is not None:
            if _KINDS.get(call.value) in ("first", "last"):
                return None
            text = f"CASE WHEN {condition} THEN {1 if argument.kind == 'star' else text} END"
        if distinct:
            return self._column("distinct", text)
        if rows and condition is None:
            return self._column("count", "*")
        return self._assemble(call.value, text)

    def _assemble(self, function: str, text: str) -> str | None:
        kind = _KINDS.get(function)
        if kind is not None:
            made = self._column(kind, text)
            if kind in ("first", "last"):
                self._add_time(kind, made)
            return made
        if function in ("avg", "mean"):
            total, count = self._column("sum", text), self._column("count", text)
            return f"({total} / {count})"
        if function in ("stddev", "stddev_samp"):
            count = self._column("count", text)
            self._column("sum", text)
            return deviation(count, self._column("m2", text))
        return None

    def _add_time(self, kind: PartialKind, made: str) -> None:
        """Add the partial with the time of a first or last value."""
        when = self._column("min" if kind == "first" else "max", self._time)
        (name,), (time,) = Expression.parse(made).columns, Expression.parse(when).columns
        self.times[name] = time

    def _sketch(self, call: Tree, texts: list[str], condition: str | None) -> str:
        """Return the expression of a sketch's distinct-count estimate."""
        value, *accuracy = texts
        if accuracy and call.parts[1].kind != "number":
            raise InvalidUsageError("the relative standard deviation is not a number", expression=accuracy[0])
        deviation = float(accuracy[0].rstrip("dDfF")) if accuracy else _DEVIATION
        there = f"NOT ({value}) IS NULL" + ("" if condition is None else f" AND ({condition})")
        text = f"CASE WHEN {there} THEN XXHASH64({value}) END"
        need_extra("sketch", "approx_count_distinct")
        return self._column("sketch", text, log2_size_of(deviation))

    def _quantile(self, call: Tree, texts: list[str], condition: str | None) -> str | None:
        """Return the expression of a quantile of a sketch; None if Spark has no such aggregate."""
        interpolates = call.value in ("median", "percentile")
        value, *numbers = texts
        if len(numbers) != (0 if call.value == "median" else 1) and (
            interpolates or len(numbers) not in (1, 2)
        ):
            return None
        for part, text in zip(call.parts[1:], numbers, strict=True):
            if part.kind != "number":
                raise InvalidUsageError(
                    "a percentage or accuracy is not a number",
                    expression=text,
                    hint="write percentile(x, 0.9), with a number of its own for each aggregate",
                )
        fraction, *accuracy = (float(text.rstrip("dDfF").removesuffix("BD")) for text in numbers or ["0.5"])
        if not 0 <= fraction <= 1:
            raise InvalidUsageError("a percentage is not between 0 and 1", percentage=fraction)
        text = value if condition is None else f"CASE WHEN {condition} THEN {value} END"
        need_extra("sketch", call.value)
        size = log2_size_for(int(accuracy[0]) if accuracy else DEFAULT_ACCURACY)
        return quantile(self._column("kll", text, size), str(fraction), interpolates=interpolates)

    def _own(self, call: Tree, texts: list[str], condition: str | None) -> str:
        """Return the expression of a user-defined aggregate."""
        values = call.parts[1:]
        if not values or call.parts[0].kind != "string" or any(value.kind == "star" for value in values):
            raise InvalidUsageError(
                "a user-defined aggregate is not called with its name and values",
                expression=f"{OWN_FUNCTION}({', '.join(texts)})",
                hint=f"write {OWN_FUNCTION}('module:Class', x)",
            )
        reference = str(call.parts[0].value)[1:-1]
        text = value_expression(find_aggregate(reference), texts[1:], condition)
        return own(reference, self._column("own", text, function=reference))


def replace_own(text: str) -> str:
    """Return the text of an aggregate with user-defined aggregates replaced by averages of the same type.

    Spark can then determine the type of the whole.
    """
    whole = Expression.parse(text)
    calls = [call for call in aggregates_of(whole.tree) if call.value == OWN_FUNCTION]
    return edit(whole.text, [(call, f"AVG({whole.slice(call.parts[-1]).text})") for call in calls])


def own_references(texts: Iterable[str]) -> list[str]:
    """Return the user-defined aggregates in these texts, each as ``module:Class``."""
    calls = [call for text in texts for call in aggregates_of(Expression.parse(text).tree)]
    return [str(call.parts[0].value)[1:-1] for call in calls if call.value == OWN_FUNCTION and call.parts]


def own(reference: str, name: str) -> str:
    """Return the text of a user-defined aggregate, given its states. Only `Assembly` can compute it."""
    return f"{OWN_FUNCTION.upper()}('{reference}', {name})"


def quantile(name: str, fraction: str, *, interpolates: bool) -> str:
    """Return the text of a quantile, given its column of sketches. Only `Assembly` can compute it."""
    return f"{'PERCENTILE' if interpolates else 'APPROX_PERCENTILE'}({name}, {fraction})"


def sketch_argument(partial: Partial) -> Expression:
    """Return the expression that a ``sketch`` hashes."""
    case = Expression.parse(partial.expression)
    hashed = case.tree.parts[1]
    return case.slice(hashed.parts[0])


_DEVIATION: Final = 0.05
"""The default relative standard deviation of Spark's ``approx_count_distinct``."""

_QUANTILES: Final = frozenset({"median", "percentile", "approx_percentile", "percentile_approx"})

_KINDS: Final[dict[str, PartialKind]] = {
    "count": "count",
    "sum": "sum",
    "min": "min",
    "max": "max",
    "first": "first",
    "first_value": "first",
    "last": "last",
    "last_value": "last",
}
"""Aggregates that map to a single partial of the same kind."""
