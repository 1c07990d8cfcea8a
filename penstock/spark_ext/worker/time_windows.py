"""Windows of time as an operator of Spark: the map side makes pane partials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as sf

from penstock.ddl import quote
from penstock.spark_ext.border.types import as_arrow_of_spark
from penstock.spark_ext.border.window_packing import EntryPacker
from penstock.spark_ext.worker.window_plan import WINDOW, WindowPlan, spark_windows
from penstock.windows.finish import Finish, Step
from penstock.windows.layout import START, WindowLayout
from penstock.windows.spec import WindowSpec

__all__ = ["TimeWindowPlan"]


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
    def window(self) -> list[Any]:
        """Size, slide and delay, as stored with the settings."""
        return [self.size_ms, self.slide_ms, self.delay_ms]

    def _bounds(self) -> tuple[Column, Column]:
        """Return the starts and ends of windows, in microseconds."""
        start = sf.col(quote(START)) * sf.lit(1000 * self.fragments.pane_ms)
        return start, start + 1000 * self.size_ms
