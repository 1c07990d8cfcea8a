"""What a bucket's task does for windows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock._clock import Clock
from penstock._failpoints import failpoint
from penstock.operators.metrics import BatchMetrics
from penstock.operators.windows.panes import Panes, WindowLayout
from penstock.spark_ext.bucket_task import Parcel, Turn
from penstock.spark_ext.window_packing import facts_of

__all__ = ["WindowOperator"]


@dataclass(frozen=True)
class WindowOperator:
    """Windows in append mode as an `Operator`.

    Parameters
    ----------
    layout : WindowLayout
        What windows are made of.
    delay : int
        How many panes the watermark is behind the newest one.
    settings : dict
        What must not change while a checkpoint lives, as JSON values.
    """

    layout: WindowLayout
    delay: int
    settings: dict[str, Any]

    def specification(self) -> dict[str, Any]:
        """Return what must not change; see `Operator.specification`."""
        return self.settings

    def new_state(self) -> Panes:
        """Return panes without entries."""
        return Panes(self.layout)

    def run(
        self, state: Panes, parcels: Iterable[Parcel], turn: Turn, clock: Clock
    ) -> tuple[list[pa.RecordBatch], BatchMetrics]:
        """Let entries in and close windows; see `Operator.run`."""
        started = clock()
        dropped = 0
        newest: int | None = None
        arriving: list[tuple[int, pa.RecordBatch]] = []
        for parcel in parcels:
            dropped += parcel.dropped
            if parcel.batch is None:
                continue
            theirs, part = facts_of(parcel.batch)
            newest = theirs if newest is None else max(newest, theirs)
            arriving.append((part, parcel.batch))
        # Parcels come in any order, rows do not.
        arriving.sort(key=lambda one: one[0])
        failpoint("operator.after_enqueue")
        done = state.run([batch for _, batch in arriving], None if newest is None else newest - self.delay)
        failpoint("operator.after_apply")
        windows = sum(batch.num_rows for batch in done.windows)
        metrics = BatchMetrics(
            rows_in=done.rows_in + dropped,
            late=done.late,
            dropped=dropped,
            emitted=windows,
            rows_out=windows,
            keys=done.groups,
        )
        metrics.duration_ms = {"assemble": (clock() - started) / 1000}
        return done.windows, metrics
