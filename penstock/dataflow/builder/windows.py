"""The graph builder: windows and their aggregates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self, Unpack

import pyarrow as pa

from penstock.conf.arguments import check_keywords
from penstock.dataflow.builder.base import GraphBase, mark_input
from penstock.dataflow.nodes import Aggregate, Node, RowWindow, Select, SessionWindow, Window, WindowJoin
from penstock.ddl import type_text
from penstock.errors import InvalidUsageError
from penstock.operators.scan.spec import WEIGHT, TimeUnit
from penstock.operators.update_stream.deletes import DELETED_COLUMN
from penstock.operators.update_stream.operator_options import (
    WindowArguments,
    WindowOptions,
    make_options,
)
from penstock.operators.update_stream.options import column_names, parse_ms, session_gap
from penstock.sql.expression import Expression, column
from penstock.units import window_rows

__all__ = ["Windows"]


@check_keywords
@dataclass(frozen=True, slots=True)
class Windows(GraphBase):
    """The window methods of `Graph`."""

    def window(
        self,
        time: str,
        *,
        size: str | timedelta | None = None,
        slide: str | timedelta | None = None,
        session: str | timedelta | None = None,
        unit: TimeUnit | None = None,
        name: str | None = None,
        **options: Unpack[WindowArguments],
    ) -> Self:
        """Define the windows of the next `agg`.

        Windows are bounded by time or by row count. In lazy and eager mode the aggregate is an update stream
        with the most recent window of each group; its key is the group. In these modes, windows of different
        groups are emitted at different times. The same holds for row windows and session windows in every
        mode. Such windows can be the input of neither `join_windows` nor an aggregate with
        ``group_by("window")``.

        Parameters
        ----------
        time : str
            A column of timestamps, or of integers with a `unit`.
        size, slide : str or timedelta
            Durations such as ``"60 s"``, or numbers of a group's rows such as ``"100 rows"``. By default the
            slide equals the size, so windows do not overlap.
        session : str or timedelta, optional
            The gap of session windows, such as ``"10 minutes"``, instead of size and slide; append mode only.
        unit : str, optional
            The unit of an integer time since 1970-01-01T00:00:00Z: ``s``, ``ms``, ``us`` or ``ns``.
        **options
            Other arguments of `penstock.update_window`. ``watermark_delay`` is the maximum lateness of
            tuples, ``mode`` chooses the windows to emit, ``delete_when`` selects the rows that delete their
            group, and ``late_to`` is the destination of late rows. ``budget``, ``policy``, ``cost``,
            ``weight``, ``ttl`` and ``on_silent`` are for lazy and eager mode.

        Raises
        ------
        InvalidUsageError
            If a column, the mode or the policy is unknown, the slide is longer than the size, or windows of
            this kind or mode do not support an option.
        """
        node_name = self._open("window", name)
        window_options = make_options(WindowOptions, options, node=node_name)
        time = self._column(time, node_name)
        time_unit = _unit(self.schema.field(time).type)
        if time_unit is not None and unit not in (None, time_unit):
            raise InvalidUsageError(
                "the unit differs from the unit of the time column",
                unit=unit,
                type=type_text(self.schema.field(time).type),
            )
        time_unit = time_unit or unit
        if time_unit is None or not _countable(self.schema.field(time).type):
            raise InvalidUsageError(
                "the time of a window is neither a timestamp nor an integer with a unit",
                hint="cast it, or pass a unit, such as unit='s' for seconds",
                column=time,
                type=type_text(self.schema.field(time).type),
                node=node_name,
            )
        if isinstance(window_options.weight, str):
            window_options = replace(window_options, weight=self._column(window_options.weight, node_name))
        root = self.root
        if window_options.delete_when is not None:
            root = mark_input(root, window_options.delete_when, f"{node_name}_deletes")
            window_options = replace(window_options, delete_when=DELETED_COLUMN)
        if (gap_ms := session_gap(session, size, slide, window_options)) is not None:
            return self._append(
                SessionWindow(node_name, (root,), time, time_unit, window_options, gap_ms=gap_ms)
            )
        assert size is not None  # noqa: S101  # session_gap has checked it
        if (rows := window_rows(size, slide)) is not None:
            return self._append(
                RowWindow(
                    node_name,
                    (root,),
                    time,
                    time_unit,
                    window_options,
                    size_rows=rows[0],
                    slide_rows=rows[1],
                )
            )
        size_ms = parse_ms("size", size)
        slide_ms = size_ms if slide is None else parse_ms("slide", slide)
        return self._append(Window(node_name, (root,), time, time_unit, size_ms, slide_ms, window_options))

    def group_by(self, *columns: str, **expressions: str) -> Self:
        """Group the following aggregate by columns and by named expressions.

        After an aggregate, grouping by ``"window"`` aggregates its windows.

        Raises
        ------
        InvalidUsageError
            If a column is missing, or the previous `group_by` has no `agg`.
        """
        if self.groups is not None:
            raise InvalidUsageError("group_by is called twice", hint="call agg between the two calls")
        groups = tuple(self._column(column_name, "group_by", "group_by") for column_name in columns)
        graph = self._select_below(expressions) if expressions else self
        return replace(graph, groups=(*groups, *expressions))

    def _select_below(self, expressions: Mapping[str, str]) -> Self:
        """Return the graph with a projection that adds columns, before the window if there is a window."""
        window = self.root if isinstance(self.root, Window) else None
        below = self if window is None else replace(self, root=window.inputs[0])
        node_name = below._open("select", None)
        columns = [(column_name, column(column_name)) for column_name in below.schema.names]
        columns += [(label, below._expression(text, node_name)) for label, text in expressions.items()]
        wider = below._append(Select(node_name, (below.root,), tuple(columns)))
        return wider if window is None else wider._append(replace(window, inputs=(wider.root,)))

    def agg(self, aggs: Mapping[str, str] | None = None, /, *, name: str | None = None, **more: str) -> Self:
        """Aggregate each group of each window: ``agg(load="avg(value)", n="count(*)")``.

        The output has the group's columns, ``window`` and the aggregates. ``window`` holds ``start`` and
        ``end``. For row windows, these are the times of the first and last row.

        Raises
        ------
        InvalidUsageError
            If there is no window, or an expression is not an aggregate that panes can compute.
        """
        node_name = self._choose_name("aggregate", name)
        texts = {**(aggs or {}), **more}
        aggregates = tuple((label, self._expression(text, node_name)) for label, text in texts.items())
        root = self.root
        if isinstance(root, Window) and isinstance(root.options.weight, str):
            aggregates = (
                *aggregates,
                (WEIGHT, self._expression(f"last({column(root.options.weight).text})", node_name)),
            )
        return self._append(Aggregate(node_name, (root,), self.groups or (), aggregates))

    def join_windows(
        self,
        other: Self,
        *,
        on: str | Sequence[str] = (),
        condition: str | None = None,
        name: str | None = None,
    ) -> Self:
        """Join the windows of this aggregate with windows of another aggregate that end at the same time.

        Both aggregates must have the same slide; their sizes may differ. The join runs in tumbling windows
        whose length is the slide. Each tumbling window joins the windows that end when it ends. The output
        has the columns of both sides, with the join columns once, and ``window`` is the tumbling window.

        Parameters
        ----------
        other : Graph
            A graph with an aggregate of windows. After the aggregate, only `where`, `select` and
            ``group_by("window")`` may follow. Both graphs may share operators.
        on : str or sequence of str
            Columns of both sides. By default every pair of windows that end together is joined.
        condition : str, optional
            A further condition over the columns of both sides.

        Raises
        ------
        InvalidUsageError
            If windows do not end together, a join column is missing on one side, columns other than the join
            columns and ``window`` share a name, or the windows have `late_to`.
        """
        node_name = self._open("join_windows", name)
        names = column_names("on", on)
        columns = tuple(self._column(column_name, node_name) for column_name in names)
        join = WindowJoin(node_name, (self.root, self._input_of(other, node_name)), columns)
        if any(_window_of(side).options.late_to is not None for side in join.inputs):
            raise InvalidUsageError(
                "windows that are joined cannot write their late rows",
                hint="leave out late_to=",
                node=node_name,
            )
        if condition is not None:
            predicate = Expression.parse(condition).resolve(join.schema.names, node=node_name)
            join = replace(join, condition=predicate)
        return self._append(join)


def _window_of(node: Node) -> Window:
    """Return the closest windows above a node."""
    return node if isinstance(node, Window) else _window_of(node.inputs[0])


def _unit(kind: pa.DataType) -> TimeUnit | None:
    return kind.unit if pa.types.is_timestamp(kind) else None


def _countable(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_integer(kind)
