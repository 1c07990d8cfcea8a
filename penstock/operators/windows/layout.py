"""What windows are made of, and what comes out of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from penstock.operators.aggregates.assembly import Assembly
from penstock.operators.scan.spec import Partial
from penstock.operators.update_stream.stream import Integers
from penstock.operators.windows.append.sliding import type_in_windows
from penstock.operators.windows.spec import WindowSpec

__all__ = ["ENTRY_PANE", "START", "Closed", "FinalPanes", "PanesResult", "RowLayout", "WindowLayout"]

ENTRY_PANE = "__penstock_pane"
"""The column of an entry that has its pane's number."""

START = "__penstock_start"
"""The column of a window that has the number of its first pane."""


@dataclass(frozen=True)
class WindowLayout:
    """What windows are made of.

    Parameters
    ----------
    spec : WindowSpec
        Size and slide.
    groups : pyarrow.Schema
        The group columns; none makes one group.
    partials : tuple of Partial
        What an entry holds.
    types : tuple of pyarrow.DataType
        Of the partials.
    times : mapping of str to str
        For each partial of kind ``first`` or ``last`` the partial that says at what time it was.
    rows : str
        The partial that counts the rows of an entry.
    assembly : Assembly, optional
        How aggregates are computed of windows; then these leave with means and deviations, in place of the
        partials that nothing else reads.
    """

    spec: WindowSpec
    groups: pa.Schema
    partials: tuple[Partial, ...]
    types: tuple[pa.DataType, ...]
    times: Mapping[str, str]
    rows: str
    assembly: Assembly | None = field(default=None, kw_only=True)

    @property
    def values(self) -> pa.Schema:
        """The schema of partials."""
        return pa.schema(
            [pa.field(one.name, kind) for one, kind in zip(self.partials, self.types, strict=True)]
        )

    @property
    def fixed_size(self) -> bool:
        """Whether no partial is a set or a sketch, which grow with what they stand for."""
        return all(one.kind not in ("distinct", "sketch") for one in self.partials)

    @property
    def results(self) -> pa.Schema:
        """The schema of partials of windows, and of means and deviations."""
        both, made = zip(self.partials, self.types, strict=True), self.assembly
        kept = [
            pa.field(one.name, type_in_windows(one, kind))
            for one, kind in both
            if made is None or one.name in self._left
        ]
        return pa.schema([*kept, *((name, pa.float64()) for name in (made.derived if made else ()))])

    @cached_property
    def _left(self) -> frozenset[str]:
        """The partials that leave with windows."""
        return self.assembly.read if self.assembly else frozenset()

    def finished(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Return what leaves, of `results`, of the partials of windows.

        Raises
        ------
        InvalidUsageError
            If a sum overflows.
        """
        made = self.assembly
        if made is None:
            return Assembly({}, {}, {}).finish(values, values.schema.names)
        return made.finish(values, [name for name in values.schema.names if name in self._left])

    @property
    def first_pane(self) -> int | None:
        """The first pane that a group can have; None if there is no first one."""
        return None

    def arriving_column(self, partial: str) -> str:
        """Return the column of what arrives from which a partial is taken."""
        return partial

    @property
    def entry(self) -> pa.Schema:
        """The schema of an entry: groups, `ENTRY_PANE`, partials."""
        return pa.schema([*self.groups, pa.field(ENTRY_PANE, pa.int64()), *self.values])

    @property
    def window(self) -> pa.Schema:
        """The schema of a window: groups, `START`, partials."""
        return pa.schema([*self.groups, pa.field(START, pa.int64()), *self.results])


@dataclass(frozen=True)
class RowLayout(WindowLayout):
    """What windows of so many rows are made of; a pane is of rows, too.

    Parameters
    ----------
    pane_rows : int
        How many rows of a group make a pane.
    arriving : pyarrow.Schema
        Of rows: groups, `ENTRY_PANE` with the time, and the values of partials, named as their expressions.
    end : str
        The partial that is the greatest time.
    bounds : tuple of str
        Partials that say which window it is.
    """

    pane_rows: int
    arriving: pa.Schema
    end: str
    bounds: tuple[str, ...] = ()

    @property
    def first_pane(self) -> int:
        """Pane 0, which has the group's first row."""
        return 0

    def arriving_column(self, partial: str) -> str:
        """Return the column of rows from which a partial is computed."""
        return next(one.expression for one in self.partials if one.name == partial)

    @cached_property
    def _left(self) -> frozenset[str]:
        return frozenset({*self.bounds, *(self.assembly.read if self.assembly else ())})


@dataclass(frozen=True, slots=True)
class PanesResult:
    """What one micro-batch did.

    Attributes
    ----------
    windows : list of pyarrow.RecordBatch
        Windows that closed, of `WindowLayout.window`; those of a group in their order.
    rows_in, late : int
        Rows that the entries stand for: all, and those of which no window is open any more.
    groups : int
        Groups that still have an open window.
    closed : int
        How many windows closed.
    """

    windows: list[pa.RecordBatch]
    rows_in: int
    late: int
    groups: int
    closed: int


@dataclass(frozen=True, slots=True)
class Closed:
    """Some windows that closed.

    Attributes
    ----------
    groups : list of pyarrow.Array
        Groups, each once.
    of : pyarrow.Array of int64
        Of each window its place in `groups`.
    starts : pyarrow.Array of int64
        The number of each window's first pane.
    values : pyarrow.RecordBatch
        Its partials.
    """

    groups: list[pa.Array[Any]]
    of: pa.Array[Any]
    starts: pa.Array[Any]
    values: pa.RecordBatch

    def batch(self, layout: WindowLayout) -> pa.RecordBatch:
        """Return them as they leave, with their groups: of `WindowLayout.window`."""
        groups, values = [column.take(self.of) for column in self.groups], layout.finished(self.values)
        return pa.RecordBatch.from_arrays([*groups, self.starts, *values.columns], schema=layout.window)


@dataclass(frozen=True, slots=True)
class FinalPanes:
    """Panes of which nothing more comes.

    Attributes
    ----------
    ids, panes : int64 arrays
        The numbers of groups, and of panes.
    rows : pyarrow.RecordBatch
        Their partials.
    """

    ids: Integers
    panes: Integers
    rows: pa.RecordBatch
