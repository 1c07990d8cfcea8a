"""Windows of time and session windows as operators of Spark.

The map side makes pane partials, which cross the shuffle. For windows with deletes, whole rows cross the
shuffle, and buckets make the partials.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, StructField, StructType

from penstock.ddl import quote
from penstock.errors import InvalidUsageError
from penstock.operators.scan.spec import Fragments, Partial, TimeUnit
from penstock.operators.update_stream.deletes import DELETED_COLUMN, parse_delete_when
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.spark_ext.border.window_packing import EntryPacker
from penstock.spark_ext.worker.count_windows import FIRST_TIME, LAST_TIME
from penstock.spark_ext.worker.window_plan import WindowPlan, to_micros, to_steps
from penstock.windows.finish import Finish, Span, Step
from penstock.windows.layout import ENTRY_PANE, START, DeletingLayout, SessionLayout, WindowLayout
from penstock.windows.spec import WindowSpec

__all__ = [
    "DELETES",
    "MARK",
    "SESSION",
    "DeletingWindowPlan",
    "SessionWindowPlan",
    "TimeWindowPlan",
    "add_mark",
    "delete_flags",
    "deleting_fragments",
    "session_fragments",
]

SESSION = "session"
"""The mark of session windows in the settings of a checkpoint."""

DELETES, _MARK = f"{RESERVED_PREFIX}deletes", f"{RESERVED_PREFIX}delete_mark"
"""The column of rows that is 1 in deletes, otherwise 0."""

MARK = Partial("max", DELETES, _MARK)
"""The partial of deletes; see `DeletingLayout`."""


@dataclass(frozen=True, kw_only=True)
class TimeWindowPlan(WindowPlan):
    """Windows of a fixed length in time.

    Parameters
    ----------
    size_ms, slide_ms : int
        The size and the slide of the windows.
    """

    size_ms: int
    slide_ms: int

    @property
    def layout(self) -> WindowLayout:
        """The layout of the windows."""
        rows = self.decomposition.rows
        assert rows is not None  # noqa: S101  # the planner has counted them
        pane = self.fragments.pane_ms
        partials = self.fragments.without_watermark.partials
        return WindowLayout(
            WindowSpec(self.size_ms // pane, self.slide_ms // pane),
            pa.schema([self.schema.field(name) for name in self.fragments.group_by]),
            partials,
            tuple(self.schema.field(partial.name).type for partial in partials),
            dict(self.decomposition.times),
            rows,
            assembly=self.assembly,
        )

    def packer(self, buckets: int) -> EntryPacker:
        """Return the packer of fragments."""
        return EntryPacker.build(self.fragments, self.schema, buckets)

    def finish(self, steps: Sequence[Step]) -> Finish | None:
        """Return a function that computes results of windows without Spark; see `WindowPlan.finish`."""
        return None if self.local or self.options.by_key else self.finish_emitted(steps)

    @property
    def delay_panes(self) -> int:
        """The delay of the watermark behind the newest pane, in panes."""
        return -(-self.delay_ms // self.fragments.pane_ms)

    @property
    def steps(self) -> int:
        """The length of a pane in units of the time column."""
        return self.fragments.pane_steps

    @property
    def window(self) -> list[Any]:
        """Size, slide and delay, as stored with the settings."""
        return [self.size_ms, self.slide_ms, self.delay_ms]

    def _bounds(self) -> tuple[Column, Column]:
        """Return the starts and ends of windows, in microseconds."""
        start = sf.col(quote(START)) * sf.lit(1000 * self.fragments.pane_ms)
        return start, start + 1000 * self.size_ms


def session_fragments(
    gap_ms: int, time: str, unit: TimeUnit, keys: tuple[str, ...], partials: Iterable[Partial]
) -> Fragments:
    """Return the fragments of sessions, with their first and last times.

    A pane is no longer than the gap, except that in a time column of seconds it is at least one second.
    """
    bounds = (Partial("min", time, FIRST_TIME), Partial("max", time, LAST_TIME))
    # In a time column of seconds, a pane of one second has only one time, so it may exceed the gap.
    pane_ms = gap_ms if unit != "s" else max(gap_ms // 1000, 1) * 1000
    return Fragments(pane_ms, time, unit, keys, (*partials, *bounds))


@dataclass(frozen=True, kw_only=True)
class SessionWindowPlan(WindowPlan):
    """Session windows.

    Parameters
    ----------
    gap_ms : int
        The gap. An event at least this long after the previous event begins a new session.
    """

    gap_ms: int

    @property
    def layout(self) -> SessionLayout:
        """The layout of the sessions."""
        rows = self.decomposition.rows
        assert rows is not None  # noqa: S101  # the planner has counted them
        partials = self.fragments.partials
        return SessionLayout(
            WindowSpec(1, 1),
            pa.schema([self.schema.field(name) for name in self.fragments.group_by]),
            partials,
            tuple(self._in_steps.field(partial.name).type for partial in partials),
            dict(self.decomposition.times),
            rows,
            to_steps(self.gap_ms, self.fragments.time_unit),
            bounds=(FIRST_TIME, LAST_TIME),
            assembly=self.assembly,
        )

    @property
    def _in_steps(self) -> pa.Schema:
        """The schema of the fragments, with times as numbers."""
        return pa.schema(
            [
                field.with_type(pa.int64()) if field.name in (FIRST_TIME, LAST_TIME) else field
                for field in self.schema
            ]
        )

    def packer(self, buckets: int) -> EntryPacker:
        """Return the packer of fragments."""
        return EntryPacker.build(self.fragments, self._in_steps, buckets, newest=LAST_TIME)

    @property
    def window(self) -> list[Any]:
        """Stored settings: mark of sessions, gap, delay, gap in units of the time column, pane length."""
        return [SESSION, self.gap_ms, self.delay_ms, self.layout.gap, self.fragments.pane_ms]

    @property
    def _span(self) -> Span:
        steps = to_steps(1000, self.fragments.time_unit)
        return Span(FIRST_TIME, LAST_TIME, steps, self.gap_ms)

    def _bounds(self) -> tuple[Column, Column]:
        first, last = (to_micros(name, self.fragments.time_unit) for name in (FIRST_TIME, LAST_TIME))
        return first, last + 1000 * self.gap_ms


def delete_flags(df: DataFrame, delete_when: str, *, declared: bool = False) -> dict[str, Column]:
    """Return the column `DELETES`, which is 1 where the condition is true, otherwise 0.

    Raises
    ------
    InvalidUsageError
        If `delete_when` is not a condition over the columns of `df`.
    """
    condition = parse_delete_when(delete_when).resolve(df.columns, option="delete_when")
    kind = BooleanType() if declared else df.selectExpr(condition.text).schema[0].dataType
    if not isinstance(kind, BooleanType):
        raise InvalidUsageError(
            "delete_when is not a condition", delete_when=delete_when, type=kind.simpleString()
        )
    return {DELETES: sf.when(sf.expr(condition.text), 1).otherwise(0).cast("long")}


def deleting_fragments(
    pane_ms: int, unit: TimeUnit, keys: tuple[str, ...], partials: Iterable[Partial]
) -> Fragments:
    """Return the fragments that buckets make of rows."""
    return Fragments(pane_ms, ENTRY_PANE, unit, keys, (*partials, MARK))


def add_mark(output: StructType, name: str, option: str) -> StructType:
    """Return the output's columns, with a column that marks rows without aggregates.

    Raises
    ------
    InvalidUsageError
        If there is a column of this name.
    """
    if name in (one.lower() for one in output.names):
        raise InvalidUsageError(
            "two columns have the same name",
            columns=[name],
            hint=f"windows with {option} have this column; give the aggregate or the key another name",
        )
    return StructType([*output.fields, StructField(name, BooleanType())])


@dataclass(frozen=True, kw_only=True)
class DeletingWindowPlan(TimeWindowPlan):
    """Windows of a fixed length in time whose rows may delete their group.

    Parameters
    ----------
    arriving : pyarrow.Schema
        See `DeletingLayout`.
    """

    arriving: pa.Schema

    @property
    def layout(self) -> DeletingLayout:
        """The layout of the windows."""
        rows = self.decomposition.rows
        assert rows is not None  # noqa: S101  # the planner has counted them
        pane = self.fragments.pane_ms
        partials = self.fragments.partials
        return DeletingLayout(
            WindowSpec(self.size_ms // pane, self.slide_ms // pane),
            pa.schema([self.schema.field(name) for name in self.fragments.group_by]),
            partials,
            tuple(self.schema.field(partial.name).type for partial in partials),
            dict(self.decomposition.times),
            rows,
            self.arriving,
            self.fragments.pane_steps,
            MARK.name,
            bounds=(MARK.name,),
            assembly=self.assembly,
        )

    def packer(self, buckets: int) -> EntryPacker:
        """Return the packer of rows."""
        return EntryPacker(1, self.arriving, buckets)

    def finish(self, steps: Sequence[Step]) -> Finish | None:
        """Return None, because only Spark can compute results of these windows."""
        return None

    @property
    def delay_panes(self) -> int:
        """The delay in units of the time column, because rows wait with their own times, not with panes."""
        return to_steps(self.delay_ms, self.fragments.time_unit)

    def settings(self, columns: Iterable[str]) -> dict[str, Any]:
        """Return the settings that are fixed for the life of a checkpoint, as JSON values."""
        return super().settings(columns) | {"deletes": self.fragments.pane_steps}

    @property
    def _mark_texts(self) -> dict[str, str]:
        return {DELETED_COLUMN: f"{quote(MARK.name)} = {DeletingLayout.DELETE_LAST}"}
