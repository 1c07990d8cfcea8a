"""Layouts of windows, and the results of a micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from penstock.operators.aggregates.assembly import Assembly
from penstock.operators.scan.spec import GROWING, Partial
from penstock.operators.update_stream.stream import Integers
from penstock.windows.append.sliding import type_of_windows
from penstock.windows.spec import WindowSpec

__all__ = [
    "ENTRY_PANE",
    "START",
    "ClosedWindows",
    "DeletingLayout",
    "FinalPanes",
    "PanesResult",
    "RowLayout",
    "SessionLayout",
    "WindowLayout",
]

ENTRY_PANE = "__penstock_pane"
"""The column of an entry with its pane number."""

START = "__penstock_start"
"""The column of a window with the number of its first pane."""


@dataclass(frozen=True)
class WindowLayout:
    """The layout of windows: their spec, groups and partials.

    Parameters
    ----------
    spec : WindowSpec
        The size and the slide of the windows.
    groups : pyarrow.Schema
        The group columns. Without group columns, all rows are one group.
    partials : tuple of Partial
        The partials of an entry.
    types : tuple of pyarrow.DataType
        The types of the partials.
    times : mapping of str to str
        Maps the name of a ``first`` or ``last`` partial to the name of the partial with its time.
    rows : str
        The partial that counts the rows of an entry.
    assembly : Assembly, optional
        Computes aggregates. If given, emitted windows have means and deviations, and lack the partials that
        are needed only to compute these.
    bounds : tuple of str
        Further partials of emitted windows: the times of the first and last row.
    """

    spec: WindowSpec
    groups: pa.Schema
    partials: tuple[Partial, ...]
    types: tuple[pa.DataType, ...]
    times: Mapping[str, str]
    rows: str
    assembly: Assembly | None = field(default=None, kw_only=True)
    bounds: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def values(self) -> pa.Schema:
        """The schema of partials."""
        return pa.schema(
            [pa.field(partial.name, kind) for partial, kind in zip(self.partials, self.types, strict=True)]
        )

    @property
    def fixed_size(self) -> bool:
        """Return whether no partial is a set or a sketch, whose size grows with the values."""
        return all(partial.kind not in GROWING for partial in self.partials)

    @property
    def results(self) -> pa.Schema:
        """The schema of window partials, means and deviations."""
        both, assembly = zip(self.partials, self.types, strict=True), self.assembly
        fields = [
            pa.field(partial.name, type_of_windows(partial, kind))
            for partial, kind in both
            if assembly is None or partial.name in self._left
        ]
        return pa.schema(
            [*fields, *((name, pa.float64()) for name in (assembly.derived_names if assembly else ()))]
        )

    @cached_property
    def _left(self) -> frozenset[str]:
        """The partials that emitted windows have."""
        return frozenset({*self.bounds, *(self.assembly.read if self.assembly else ())})

    def finish(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Compute the columns of `results` from the partials of windows.

        Raises
        ------
        InvalidUsageError
            If a sum overflows.
        """
        assembly = self.assembly
        if assembly is None:
            return Assembly({}, {}, {}).finish(values, values.schema.names)
        return assembly.finish(values, [name for name in values.schema.names if name in self._left])

    @property
    def first_pane(self) -> int | None:
        """The first pane that a group can have; None if panes have no lower bound."""
        return None

    def arriving_column(self, partial: str) -> str:
        """Return the input column with the values of a partial."""
        return partial

    @property
    def pane_schema(self) -> pa.Schema:
        """The schema of pane partials: groups, `ENTRY_PANE`, partials."""
        return pa.schema([*self.groups, pa.field(ENTRY_PANE, pa.int64()), *self.values])

    @property
    def window(self) -> pa.Schema:
        """The schema of a window: groups, `START`, partials."""
        return pa.schema([*self.groups, pa.field(START, pa.int64()), *self.results])


@dataclass(frozen=True)
class RowLayout(WindowLayout):
    """The layout of windows of rows, whose panes are a number of rows.

    Parameters
    ----------
    pane_rows : int
        Number of rows of a group in a pane.
    arriving : pyarrow.Schema
        Schema of input rows: groups, `ENTRY_PANE` with the time, and one column for each aggregated
        expression, named after the expression.
    end : str
        The partial with the greatest time.
    """

    pane_rows: int
    arriving: pa.Schema
    end: str

    @property
    def first_pane(self) -> int:
        """Pane 0, which holds the group's first row."""
        return 0

    def arriving_column(self, partial: str) -> str:
        """Return the input column with the values of a partial."""
        return next(one.expression for one in self.partials if one.name == partial)


@dataclass(frozen=True)
class DeletingLayout(WindowLayout):
    """The layout of windows of time whose rows may delete their group.

    Parameters
    ----------
    arriving : pyarrow.Schema
        Schema of input rows: groups, `ENTRY_PANE` with the time, and one column for each aggregated
        expression, named after the expression.
    pane_steps : int
        The length of a pane in units of the time column.
    mark : str
        The partial of deletes: `NO_DELETE`, `DELETE_INSIDE` or `DELETE_LAST`. Its input column is 1 in rows
        that delete their group, and 0 in other rows.
    """

    NO_DELETE: ClassVar[int] = 0
    """The pane has no delete."""
    DELETE_INSIDE: ClassVar[int] = 1
    """The pane has a delete, and its partials are computed from the rows after its last delete."""
    DELETE_LAST: ClassVar[int] = 2
    """The pane's last row is a delete. Its other partials have no meaning."""

    arriving: pa.Schema
    pane_steps: int
    mark: str

    @property
    def fixed_size(self) -> bool:
        """False, so that no partials are combined across panes that may have a delete."""
        return False


@dataclass(frozen=True)
class SessionLayout(WindowLayout):
    """The layout of session windows; `bounds` are the times of a session's first and last event.

    Parameters
    ----------
    gap : int
        The gap, in units of the time column. An event at least this long after the previous event begins a
        new session.
    """

    gap: int


@dataclass(frozen=True, slots=True)
class PanesResult:
    """The result of one micro-batch.

    Attributes
    ----------
    windows : list of pyarrow.RecordBatch
        Closed windows with the schema `WindowLayout.window`. The windows of a group are in order.
    rows_in, late : int
        Number of input rows, and of late rows: rows whose windows had all closed.
    groups : int
        Number of groups that still have an open window.
    closed : int
        Number of closed windows.
    """

    windows: list[pa.RecordBatch]
    rows_in: int
    late: int
    groups: int
    closed: int


@dataclass(frozen=True, slots=True)
class ClosedWindows:
    """A set of closed windows.

    Attributes
    ----------
    groups : list of pyarrow.Array
        The columns of the distinct groups.
    of : pyarrow.Array of int64
        For each window, the index of its group in `groups`.
    starts : pyarrow.Array of int64
        The number of each window's first pane.
    values : pyarrow.RecordBatch
        The partials of each window.
    """

    groups: list[pa.Array[Any]]
    of: pa.Array[Any]
    starts: pa.Array[Any]
    values: pa.RecordBatch

    def batch(self, layout: WindowLayout) -> pa.RecordBatch:
        """Return the windows with their groups, in the schema `WindowLayout.window`."""
        groups, values = [column.take(self.of) for column in self.groups], layout.finish(self.values)
        return pa.RecordBatch.from_arrays([*groups, self.starts, *values.columns], schema=layout.window)


@dataclass(frozen=True, slots=True)
class FinalPanes:
    """Final panes: panes that get no more rows.

    Attributes
    ----------
    ids, panes : int64 arrays
        Group numbers, and pane numbers.
    rows : pyarrow.RecordBatch
        The partials of each pane.
    """

    ids: Integers
    panes: Integers
    rows: pa.RecordBatch
