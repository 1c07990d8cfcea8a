"""Windows of time and session windows as operators of Spark: the map side makes pane partials."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as sf

from penstock.ddl import quote
from penstock.operators.scan.spec import Fragments, Partial, TimeUnit
from penstock.spark_ext.border.types import as_arrow_of_spark
from penstock.spark_ext.border.window_packing import EntryPacker
from penstock.spark_ext.worker.count_windows import FIRST_TIME, LAST_TIME, to_micros, to_steps
from penstock.spark_ext.worker.window_plan import WINDOW, WindowPlan, spark_windows
from penstock.windows.finish import Finish, Step
from penstock.windows.layout import START, SessionLayout, WindowLayout
from penstock.windows.spec import WindowSpec

__all__ = ["SESSION", "SessionWindowPlan", "TimeWindowPlan", "session_fragments"]

SESSION = "session"
"""The mark of session windows in the settings of a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class TimeWindowPlan(WindowPlan):
    """Windows of a length in time.

    Parameters
    ----------
    size_ms, slide_ms : int
        Size and slide of the windows.
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
        """Return the function that makes results of windows without Spark; see `WindowPlan.finish`."""
        if self.local or self.options.by_key:
            return None
        return Finish(
            as_arrow_of_spark(spark_windows(self.layout)),
            as_arrow_of_spark(self.output),
            WINDOW,
            self.fragments.pane_ms,
            self.size_ms,
            self.assembly,
            tuple(steps),
        )

    @property
    def delay_panes(self) -> int:
        """The delay of the watermark behind the newest pane, in panes."""
        return -(-self.delay_ms // self.fragments.pane_ms)

    @property
    def steps(self) -> int:
        """The length of a pane in steps of the time."""
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
    """Return the fragments of sessions, with their first and last times; panes are at most a gap long."""
    bounds = (Partial("min", time, FIRST_TIME), Partial("max", time, LAST_TIME))
    # In a time column of seconds, a pane of one second has one time, so it may be longer than the gap.
    pane_ms = gap_ms if unit != "s" else max(gap_ms // 1000, 1) * 1000
    return Fragments(pane_ms, time, unit, keys, (*partials, *bounds))


@dataclass(frozen=True, kw_only=True)
class SessionWindowPlan(WindowPlan):
    """Session windows.

    Parameters
    ----------
    gap_ms : int
        The distance from which on an event begins a new session.
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
    def delay_panes(self) -> int:
        """The delay of the watermark behind the newest row, in steps of the time."""
        return to_steps(self.delay_ms, self.fragments.time_unit)

    @property
    def window(self) -> list[Any]:
        """The mark of sessions, gap, delay, gap in steps and pane length, as stored with the settings."""
        return [SESSION, self.gap_ms, self.delay_ms, self.layout.gap, self.fragments.pane_ms]

    def finish(self, steps: Sequence[Step]) -> Finish | None:
        """Return None: only Spark makes results of these windows."""
        return None

    def _bounds(self) -> tuple[Column, Column]:
        first, last = (to_micros(name, self.fragments.time_unit) for name in (FIRST_TIME, LAST_TIME))
        return first, last + 1000 * self.gap_ms
