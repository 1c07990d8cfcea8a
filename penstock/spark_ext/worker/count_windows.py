"""Windows of a number of rows as an operator of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column

from penstock.operators.scan.fragments.keys import bare_values
from penstock.operators.scan.spec import PANE, Fragments, Partial, TimeUnit
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.spark_ext.border.window_packing import EntryPacker, WholeRows, null_time_error
from penstock.spark_ext.worker.window_plan import WindowPlan, to_micros, to_steps
from penstock.windows.finish import Span
from penstock.windows.layout import ENTRY_PANE, RowLayout
from penstock.windows.spec import WindowSpec

__all__ = [
    "FIRST_TIME",
    "LAST_TIME",
    "CountWindowPlan",
    "RowOrderPacker",
    "arriving_rows",
    "row_fragments",
]

FIRST_TIME, LAST_TIME = f"{RESERVED_PREFIX}first_time", f"{RESERVED_PREFIX}last_time"
"""The partials with the times of the first and last row of a pane."""

_CHUNK_ROWS = 1 << 20


def arriving_rows(rows: pa.Schema, time: str, keys: tuple[str, ...]) -> pa.Schema:
    """Return the schema of rows arriving at a bucket, with time, groups and values."""
    values = [column for column in rows if column.name not in (time, *keys)]
    return pa.schema([*map(rows.field, keys), pa.field(ENTRY_PANE, pa.int64()), *values])


def row_fragments(unit: TimeUnit, keys: tuple[str, ...], partials: Iterable[Partial]) -> Fragments:
    """Return the fragments for panes of rows, with their first and last times."""
    bounds = (Partial("min", ENTRY_PANE, FIRST_TIME), Partial("max", ENTRY_PANE, LAST_TIME))
    pane_ms = 1000 if unit == "s" else 1
    return Fragments(pane_ms, ENTRY_PANE, unit, keys, (*partials, *bounds))


@dataclass(frozen=True, kw_only=True)
class CountWindowPlan(WindowPlan):
    """Windows of a number of rows. Whole rows cross the shuffle, and buckets make panes from them.

    Parameters
    ----------
    size_rows, slide_rows : int
        The size and the slide of the windows, in rows.
    arriving : pyarrow.Schema
        See `RowLayout`.
    """

    size_rows: int
    slide_rows: int
    arriving: pa.Schema

    @property
    def layout(self) -> RowLayout:
        """The layout of the windows."""
        rows = self.decomposition.rows
        assert rows is not None  # noqa: S101  # the planner has counted them
        pane = gcd(self.size_rows, self.slide_rows)
        partials = self.fragments.partials
        return RowLayout(
            WindowSpec(self.size_rows // pane, self.slide_rows // pane),
            pa.schema([self.schema.field(name) for name in self.fragments.group_by]),
            partials,
            tuple(self.schema.field(partial.name).type for partial in partials),
            dict(self.decomposition.times),
            rows,
            pane,
            self.arriving,
            LAST_TIME,
            bounds=(FIRST_TIME, LAST_TIME),
            assembly=self.assembly,
        )

    def packer(self, buckets: int) -> EntryPacker:
        """Return the packer of rows."""
        return EntryPacker(1, self.arriving, buckets)

    @property
    def window(self) -> list[Any]:
        """Size, slide and delay, as stored with the settings."""
        return [f"{self.size_rows} rows", f"{self.slide_rows} rows", self.delay_ms]

    @property
    def _span(self) -> Span:
        return Span(FIRST_TIME, LAST_TIME, to_steps(1000, self.fragments.time_unit))

    def _bounds(self) -> tuple[Column, Column]:
        first, last = (to_micros(name, self.fragments.time_unit) for name in (FIRST_TIME, LAST_TIME))
        return first, last


@dataclass(frozen=True)
class RowOrderPacker:
    """Makes parcels of rows that buckets sort, for ``mapInArrow``. A worker calls it once per partition.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the rows: the time column, the group columns, and one column for each aggregated
        expression, named after the expression.
    time : str
        The column of the time.
    packer : EntryPacker
        Makes parcels.
    nulls : str
        ``"error"`` or ``"drop"``: the treatment of rows without a time.
    whole : WholeRows, optional
        Also sends whole rows.
    """

    schema: pa.Schema
    time: str
    packer: EntryPacker
    nulls: str
    whole: WholeRows | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the parcels of one partition's rows."""
        dropped = np.zeros(1, np.int64)
        yield from self.packer.pack(self._chunks(batches, dropped), lambda: int(dropped[0]))

    def _chunks(self, batches: Iterable[pa.RecordBatch], dropped: Any) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        for batch in batches:
            rows = cast_to_schema(batch.select(range(len(self.schema))), self.schema)
            missing = rows.column(self.time).null_count
            if missing and self.nulls == "error":
                raise null_time_error(missing)
            dropped += missing
            if self.whole is not None:
                yield from self.whole.parcels(batch, rows, self.time)
            held.append(rows.filter(rows.column(self.time).is_valid()) if missing else rows)
            if sum(one.num_rows for one in held) >= _CHUNK_ROWS:
                yield self._add_times(held)
                held = []
        if held:
            yield self._add_times(held)

    def _add_times(self, held: list[pa.RecordBatch]) -> pa.RecordBatch:
        rows = pa.concat_batches(held)
        named = {name: rows.column(name) for name in self.schema.names if name != self.time}
        time = pa.array(bare_values(rows.column(self.time)).astype(np.int64, copy=False))
        return pa.RecordBatch.from_arrays([time, *named.values()], [PANE, *named])
