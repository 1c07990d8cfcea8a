"""Windows and their aggregates, in a graph that is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self, Unpack

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.operators.graph.builder.written import Written
from penstock.operators.graph.nodes import Aggregate, RowWindow, Select, Window, WindowJoin
from penstock.operators.scan.spec import WEIGHT, TimeUnit
from penstock.operators.sql.expression import Expression, column
from penstock.operators.update_stream.operator_options import WindowArguments, WindowOptions, make_options
from penstock.operators.update_stream.options import milliseconds
from penstock.units import window_rows

__all__ = ["Windows"]


@dataclass(frozen=True, slots=True)
class Windows(Written):
    """The methods of `Graph` that are about windows."""

    def window(
        self,
        time: str,
        *,
        size: str | timedelta,
        slide: str | timedelta | None = None,
        unit: TimeUnit | None = None,
        name: str | None = None,
        **options: Unpack[WindowArguments],
    ) -> Self:
        """Say into which windows, of time or of so many tuples, the aggregate that follows puts tuples.

        In lazy and eager mode what the aggregate makes is an update stream, whose key are the groups: of each
        the most recent window, served group by group. Windows of several groups do not come out together
        then, and those of rows never do, so they are neither joined nor aggregated by window.

        Parameters
        ----------
        time : str
            A column of timestamps, or of integers with a `unit`.
        size, slide : str or timedelta
            Such as ``"60 s"``; without a slide, windows do not overlap. Or both in rows, such as
            ``"100 rows"``: of so many tuples of a group, as of `penstock.update_window`.
        unit : str, optional
            Of integers: ``s``, ``ms``, ``us`` or ``ns`` since 1970-01-01T00:00:00Z.
        **options
            ``watermark_delay``, how long tuples may be behind the newest one: a window closes that much
            later; ``mode``, which windows come out; and in lazy and eager mode ``budget``, ``policy``,
            ``cost`` and ``weight``: as of `penstock.update_window`.

        Raises
        ------
        InvalidUsageError
            If there is no such time, weight, mode or policy, the slide is longer than the size, or there is
            a budget, a policy, a cost or a weight in append mode.
        """
        own = self._open("window", name)
        made = make_options(WindowOptions, options, (*WindowArguments.__annotations__, "unit"), node=own)
        time = self._column(time, own)
        found = _unit(self.schema.field(time).type)
        if found is not None and unit not in (None, found):
            raise InvalidUsageError("the time has another unit", unit=unit, type=self.schema.field(time).type)
        found = found or unit
        if found is None or not _countable(self.schema.field(time).type):
            raise InvalidUsageError(
                "the time of a window is a timestamp, or an integer with a unit",
                hint="such as unit='s' for seconds",
                column=time,
                type=self.schema.field(time).type,
                node=own,
            )
        if isinstance(made.weight, str):
            made = replace(made, weight=self._column(made.weight, own))
        if (rows := window_rows(size, slide)) is not None:
            return self._with(
                RowWindow(own, (self.root,), time, found, made, size_rows=rows[0], slide_rows=rows[1])
            )
        size_ms = milliseconds("size", size)
        slide_ms = size_ms if slide is None else milliseconds("slide", slide)
        return self._with(Window(own, (self.root,), time, found, size_ms, slide_ms, made))

    def group_by(self, *columns: str, **expressions: str) -> Self:
        """Group the aggregate that follows by columns, and by expressions that get a name.

        After an aggregate, grouping by ``"window"`` aggregates its windows.

        Raises
        ------
        InvalidUsageError
            If a column is not there, or `agg` did not follow the last `group_by`.
        """
        if self.groups is not None:
            raise InvalidUsageError("group_by twice", hint="call agg between")
        groups = tuple(self._column(each, "group_by") for each in columns)
        computed = self._beneath(expressions) if expressions else self
        return replace(computed, groups=(*groups, *expressions))

    def _beneath(self, expressions: Mapping[str, str]) -> Self:
        """Return the graph in which a select makes more columns, below the window if there is one."""
        window = self.root if isinstance(self.root, Window) else None
        below = self if window is None else replace(self, root=window.inputs[0])
        own = below._open("select", None)
        columns = [(each, column(each)) for each in below.schema.names]
        columns += [(label, below._expression(text, own)) for label, text in expressions.items()]
        wider = below._with(Select(own, (below.root,), tuple(columns)))
        return wider if window is None else wider._with(replace(window, inputs=(wider.root,)))

    def agg(self, aggs: Mapping[str, str] | None = None, /, *, name: str | None = None, **more: str) -> Self:
        """Aggregate each group of each window: ``agg(load="avg(value)", n="count(*)")``.

        The output has the group's columns, ``window`` (``start`` and ``end``; of windows of rows, the times
        of the first and the last one), and the aggregates.

        Raises
        ------
        InvalidUsageError
            If there is no window, or an expression is no aggregate over the columns that panes can make.
        """
        own = self._named("aggregate", name)
        texts = {**(aggs or {}), **more}
        made = tuple((label, self._expression(text, own)) for label, text in texts.items())
        at = self.root
        if isinstance(at, Window) and isinstance(at.options.weight, str):
            made = (*made, (WEIGHT, self._expression(f"last({column(at.options.weight).text})", own)))
        return self._with(Aggregate(own, (at,), self.groups or (), made))

    def join_windows(
        self,
        other: Self,
        *,
        on: str | Sequence[str] = (),
        condition: str | None = None,
        name: str | None = None,
    ) -> Self:
        """Join the windows of this aggregate with those of another that end at the same time.

        Both have the same slide; their sizes may differ. It is a join in tumbling windows as long as the
        slide, each of which has the windows that end with it. The output has the columns of both, those of
        the join once, and ``window`` is the tumbling one.

        Parameters
        ----------
        other : Graph
            One with an aggregate of windows at its end, but for `where` and `select`; both may be built on
            one.
        on : str or sequence of str
            Columns that both have; by default windows that end together are joined, each with each.
        condition : str, optional
            What else must be true, over the columns of both.

        Raises
        ------
        InvalidUsageError
            If windows do not end together, a column is not on both sides, or others have the same name.
        """
        own = self._open("join_windows", name)
        names = (on,) if isinstance(on, str) else tuple(on)
        columns = tuple(self._column(each, own) for each in names)
        joined = WindowJoin(own, (self.root, other._ready()), columns)
        if condition is not None:
            predicate = Expression.parse(condition).resolve(joined.schema.names, node=own)
            joined = replace(joined, condition=predicate)
        return self._with(joined)


def _unit(kind: pa.DataType) -> TimeUnit | None:
    return kind.unit if pa.types.is_timestamp(kind) else None


def _countable(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_integer(kind)
