"""Aggregates as partials of panes, and the expressions that assemble windows from them (Scabbard §2.3)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidUsageError
from penstock.operators.expression import Expression, column
from penstock.operators.scan import PANE, Partial, PartialKind
from penstock.operators.sketches import log2_size_of

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["Decomposition", "decompose", "deviation", "is_aggregate", "pane_ms", "sketched"]


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Aggregates in two steps.

    Partials of one pane and group are combined by kind: ``count``, ``sum`` and ``sum_of_squares`` are added;
    of ``min`` and ``max`` the least or greatest is taken; ``first`` and ``last`` come from the fragment
    with the least or greatest time, of which each `times` names the partial; of ``distinct`` a window has
    the number of values that are in any fragment, of ``sketch`` about that number.

    Parameters
    ----------
    partials : tuple of Partial
        What a fragment holds. Aggregates share them: ``avg(x)`` and ``sum(x)`` need one ``sum(x)``.
    assembly : mapping of str to str
        For each aggregate's name, Spark SQL over combined partials: ``avg(x)`` is ``sum_x / count_x``.
    times : mapping of str to str
        For each partial of kind ``first`` or ``last``, the partial that says at what time it was.
    """

    partials: tuple[Partial, ...]
    assembly: Mapping[str, str]
    times: Mapping[str, str]

    @property
    def rows(self) -> str | None:
        """The partial that counts all rows, if there is one."""
        return next((one.name for one in self.partials if (one.kind, one.expression) == ("count", "*")), None)

    def counted(self, taken: Iterable[str] = ()) -> Decomposition:
        """Return the same with a partial that counts all rows, under a name that is not taken."""
        if self.rows is not None:
            return self
        names = {PANE, *taken, *(partial.name for partial in self.partials)}
        name = next(name for name in chain(["rows"], map("rows_{}".format, count(2))) if name not in names)
        return replace(self, partials=(*self.partials, Partial("count", "*", name)))


def pane_ms(size_ms: int, slide_ms: int) -> int:
    """Return the length of the panes that windows are assembled from.

    Raises
    ------
    InvalidUsageError
        If a length is not positive, or the slide is longer than the size: then some rows are in no window.
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
        ``min``, ``max``, ``first``, ``last``, ``stddev``, and what is computed from them, such as
        ``sum(price * volume) / sum(volume)``.
    time : str
        The column of the window's time, by which ``first`` and ``last`` are meant.
    group_by : iterable of str
        The columns of the group, which may also stand outside of aggregates.

    Raises
    ------
    InvalidUsageError
        If one has no aggregate in it, reads a column outside of aggregates, or has no partials, as a median.

    Notes
    -----
    ``stddev`` is that of a sample, as in Spark, and comes from count, sum and sum of squares, which can be
    added and taken away. Its error grows with the ratio of mean to deviation: about 1e-16 times the square
    of that ratio. ``first`` and ``last`` are by time, where Spark's are by order of arrival.
    """
    from sqlglot import exp

    group = tuple(group_by)
    found = _Partials(time, group)
    assembly: dict[str, str] = {}
    for name, text in aggregates.items():
        tree = Expression.parse(text).tree
        holder = exp.Paren(this=tree)
        calls = [node for node in holder.walk() if is_aggregate(node)]
        if not calls:
            raise InvalidUsageError(
                "no aggregate", hint="such as sum(x), avg(x) or count(*)", name=name, expression=text
            )
        for call in calls:
            if any(is_aggregate(node) for node in call.walk() if node is not call):
                raise InvalidUsageError("an aggregate of an aggregate", name=name, expression=text)
            made = found.split(call)
            if made is None:
                raise InvalidUsageError(
                    "an aggregate cannot be made of panes",
                    hint="count, count(DISTINCT x), approx_count_distinct(x), sum, avg, min, max, first, "
                    "last and stddev can, and what is computed from them",
                    name=name,
                    expression=text,
                )
            call.replace(made)
        rest = Expression.of(holder.this)
        outside = sorted(set(rest.columns) - found.names - set(group))
        if outside:
            raise InvalidUsageError(
                "a column outside of aggregates",
                hint="put it into group_by",
                column=outside[0],
                name=name,
                expression=text,
            )
        assembly[name] = rest.text
    return Decomposition(tuple(found.made), MappingProxyType(assembly), MappingProxyType(found.times))


def _counts_distinct(call: exp.Expr) -> bool:
    from sqlglot import exp

    if not isinstance(call, exp.Count) or not isinstance(call.this, exp.Distinct):
        return False
    return len(call.this.expressions) == 1


def is_aggregate(node: exp.Expr) -> bool:
    """Return whether a node of sqlglot's tree is an aggregate, with the filter around it."""
    from sqlglot import exp

    filtered = isinstance(node, exp.Filter)
    inside = isinstance(node.parent, exp.Filter)
    mean = isinstance(node, exp.Anonymous) and node.name.lower() == "mean"
    return filtered or mean or (isinstance(node, exp.AggFunc) and not inside)


def deviation(n: str, s: str, q: str) -> exp.Expr:
    """Return what makes a sample's deviation of the columns of its count, sum and sum of squares."""
    # Rounding may make a variance of zero less than that.
    variance = f"greatest({q} - cast({s} AS DOUBLE) * {s} / {n}, 0.0D) / ({n} - 1)"
    return Expression.parse(f"CASE WHEN {n} > 1 THEN sqrt({variance}) END").tree


class _Partials:
    """Collects the partials of aggregates, each once."""

    def __init__(self, time: str, group_by: tuple[str, ...]) -> None:
        self._time = column(time).text
        self._taken = {PANE, *group_by}
        self.made: list[Partial] = []
        self.times: dict[str, str] = {}

    @property
    def names(self) -> set[str]:
        return {partial.name for partial in self.made}

    def _column(self, kind: PartialKind, expression: str, log2_size: int = 0) -> exp.Expr:
        """Return the column of a partial, which is made where there is none yet."""
        from sqlglot import exp

        for partial in self.made:
            if (partial.kind, partial.expression, partial.log2_size) == (kind, expression, log2_size):
                return exp.column(partial.name)
        words = re.sub(r"\W+", "_", expression).strip("_").lower()[:40]
        plain = kind if expression == "*" else f"{kind}_{words or 'value'}"
        name, taken, number = plain, self.names | self._taken, 2
        while name in taken:
            name, number = f"{plain}_{number}", number + 1
        self.made.append(Partial(kind, expression, name, log2_size))
        return exp.column(name)

    def split(self, call: exp.Expr) -> exp.Expr | None:
        """Return what assembles an aggregate; None if it has no partials."""
        from sqlglot import exp

        condition: exp.Expr | None = None
        if isinstance(call, exp.Filter):
            condition, call = call.expression.this, call.this
        if isinstance(call, exp.Anonymous):
            if len(call.expressions) != 1:
                return None
            call = exp.Avg(this=call.expressions[0])
        if isinstance(call, exp.ApproxDistinct):
            return self._sketch(call, condition)
        argument = call.this
        distinct = _counts_distinct(call)
        if distinct:
            argument = argument.expressions[0]
            if isinstance(argument, exp.Star):
                return None
        if isinstance(argument, exp.Distinct) or call.expressions or call.args.get("expression") is not None:
            return None
        if isinstance(argument, exp.IgnoreNulls | exp.RespectNulls):
            return None
        if condition is not None:
            if isinstance(call, exp.First | exp.Last | exp.FirstValue | exp.LastValue):
                return None
            value = exp.Literal.number(1) if isinstance(argument, exp.Star | exp.Literal) else argument
            argument = exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())])
        if distinct:
            return self._column("distinct", Expression.of(argument).text)
        if isinstance(call, exp.Count) and isinstance(argument, exp.Star | exp.Literal):
            return self._column("count", "*")
        return self._assemble(call, Expression.of(argument).text)

    def _assemble(self, call: exp.Expr, text: str) -> exp.Expr | None:
        from sqlglot import exp

        kind = _KINDS.get(type(call).__name__)
        if kind is not None:
            made = self._column(kind, text)
            if kind in ("first", "last"):
                when = self._column("min" if kind == "first" else "max", self._time)
                self.times[made.name] = when.name
            return made
        if isinstance(call, exp.Avg):
            total, count = self._column("sum", text), self._column("count", text)
            return exp.Paren(this=exp.Div(this=total, expression=count))
        if isinstance(call, exp.Stddev | exp.StddevSamp):
            return self._deviation(text)
        return None

    def _sketch(self, call: exp.ApproxDistinct, condition: exp.Expr | None) -> exp.Expr:
        """Return the estimate of a sketch of hashes."""
        from sqlglot import exp

        accuracy = call.args.get("accuracy")
        if accuracy is not None and not accuracy.is_number:
            raise InvalidUsageError("a relative standard deviation is a number", expression=call.sql())
        deviation = _DEVIATION if accuracy is None else float(accuracy.to_py())
        there: exp.Expr = exp.Not(this=exp.Is(this=exp.Paren(this=call.this), expression=exp.Null()))
        if condition is not None:
            there = exp.And(this=there, expression=exp.Paren(this=condition.copy()))
        hashed = exp.Anonymous(this="xxhash64", expressions=[call.this.copy()])
        text = Expression.of(exp.Case(ifs=[exp.If(this=there, true=hashed)])).text
        return self._column("sketch", text, log2_size_of(deviation))

    def _deviation(self, text: str) -> exp.Expr:
        n, s = self._column("count", text).name, self._column("sum", text).name
        return deviation(n, s, self._column("sum_of_squares", text).name)


def sketched(partial: Partial) -> Expression:
    """Return what the hashes of a ``sketch`` are of."""
    (case,) = Expression.parse(partial.expression).tree.args["ifs"]
    return Expression.of(case.args["true"].expressions[0])


_DEVIATION: Final = 0.05
"""The relative standard deviation of Spark's own ``approx_count_distinct``, unless told otherwise."""

_KINDS: Final[dict[str, PartialKind]] = {
    "Count": "count",
    "Sum": "sum",
    "Min": "min",
    "Max": "max",
    "First": "first",
    "FirstValue": "first",
    "Last": "last",
    "LastValue": "last",
}
"""Aggregates that are their own partial, by sqlglot's names."""
