"""The join of windows that end together, in a running graph.

Spark reads each side's sources at its own pace, so one side may be ahead of the other. The fragments of both
sides go to one operator, which closes the windows of both sides by the watermark of the slower side
(`SeveralPanes`). So all windows with the same end close in one micro-batch, and later steps need no state.

In the output of the operator, each row of a side is a struct in the column of that side::

    side        int                     the side of the row
    end         long                    the end of its window, in microseconds
    side_0      struct of the left      null in rows of the right
    side_1      struct of the right     null in rows of the left
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from penstock._clock import Clock
from penstock.dataflow.nodes import Aggregate, Select, Where, WindowJoin
from penstock.ddl import quote
from penstock.operators.scan.spec import PANE
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.spark_ext.border.parcels import SIDE
from penstock.spark_ext.border.types import as_arrow_of_spark, spark_schema
from penstock.spark_ext.border.window_packing import add_rows, row_fragmenter
from penstock.spark_ext.graph.windows import ByWindow
from penstock.spark_ext.worker.bucket_task import Parcel, TaskShare
from penstock.spark_ext.worker.stateful import Stateful
from penstock.spark_ext.worker.window_operator import ParcelInputs
from penstock.spark_ext.worker.window_plan import (
    WINDOW,
    PlannedWindows,
    WindowPlan,
    cast_to_field,
    has_own_workers,
    spark_windows,
    wraps_around,
)
from penstock.windows.layout import WindowLayout
from penstock.windows.shared_watermark import SeveralPanes

__all__ = [
    "END",
    "ROW_SIDE",
    "STRUCTS",
    "Side",
    "SidesOperator",
    "join_windows",
    "match_sides",
    "sides_operator",
]

ROW_SIDE = f"{RESERVED_PREFIX}side"
"""The column with the side of a row."""

STRUCTS = (f"{ROW_SIDE}_0", f"{ROW_SIDE}_1")
"""The columns with the rows of each side."""

END = f"{RESERVED_PREFIX}end"
"""The column with the end of a window, in microseconds."""

_ROW = f"{RESERVED_PREFIX}row"


@dataclass(frozen=True)
class Side:
    """One side of the join.

    Parameters
    ----------
    windows : PlannedWindows
        The plan of the side's windows.
    steps : tuple of Where, Select or Aggregate
        The steps between the windows and the join; each aggregate among them is by window.
    """

    windows: PlannedWindows
    steps: tuple[Where | Select | Aggregate, ...]


@dataclass(frozen=True)
class SidesOperator:
    """The `Operator` for windows of several sides.

    Parameters
    ----------
    layouts : tuple of WindowLayout
        The layout of each side's windows.
    delays : tuple of int
        The delay of each side's watermark behind its newest pane, in panes.
    output : pyarrow.Schema
        The schema of the output: the side's number, and a struct for each side.
    settings : dict
        The settings that are fixed for a checkpoint, as JSON values.
    """

    layouts: tuple[WindowLayout, ...]
    delays: tuple[int, ...]
    output: pa.Schema
    settings: dict[str, Any]

    def specification(self) -> dict[str, Any]:
        """Return the fixed settings; see `Operator.specification`."""
        return self.settings

    @property
    def follows_clock(self) -> bool:
        """See `Operator.follows_clock`."""
        return False

    def new_state(self) -> SeveralPanes:
        """Return panes without entries."""
        return SeveralPanes(self.layouts)

    def run(
        self, state: SeveralPanes, parcels: Iterable[Parcel], task_share: TaskShare, clock: Clock
    ) -> tuple[list[pa.RecordBatch], BatchMetrics]:
        """Add entries and close windows; see `Operator.run`."""
        begin_us = clock()
        numbers = range(len(self.layouts))
        inputs = ParcelInputs(len(self.layouts)).add(parcels)
        results = state.run(
            [inputs.sort_arrivals(number) for number in numbers],
            [inputs.watermark(number, self.delays[number]) for number in numbers],
        )
        batches = [self._row(number, batch) for number in numbers for batch in results[number].windows]
        windows = sum(batch.num_rows for batch in batches)
        metrics = BatchMetrics(
            rows_in=sum(result.rows_in for result in results) + inputs.dropped,
            late=sum(result.late for result in results),
            dropped=inputs.dropped,
            emitted=windows,
            rows_out=windows,
            keys=sum(result.groups for result in results),
        )
        metrics.duration_ms = {"assemble": (clock() - begin_us) / 1000}
        return batches, metrics

    def _row(self, side: int, windows: pa.RecordBatch) -> pa.RecordBatch:
        rows = windows.num_rows
        columns: list[pa.Array[Any]] = [pa.array(np.full(rows, side, np.int32))]
        for number, field in enumerate(list(self.output)[1:]):
            if number != side:
                columns.append(pa.nulls(rows, field.type))
                continue
            kind = pa.schema([field.type.field(place) for place in range(field.type.num_fields)])
            columns.append(
                pa.StructArray.from_arrays(cast_to_schema(windows, kind).columns, fields=list(kind))
            )
        return pa.RecordBatch.from_arrays(columns, schema=self.output)


def sides_operator(
    sides: Sequence[tuple[WindowPlan, tuple[str, ...]]],
) -> tuple[SidesOperator, StructType]:
    """Return the operator that makes the windows of both sides, and its columns.

    Parameters
    ----------
    sides : sequence of (WindowPlan, tuple of str)
        The plan of each side, and the names and types of its fragments' inputs.
    """
    layouts = tuple(plan.layout for plan, _ in sides)
    structs = [
        StructField(name, spark_windows(layout)) for name, layout in zip(STRUCTS, layouts, strict=True)
    ]
    schema = StructType([StructField(ROW_SIDE, IntegerType()), *structs])
    delays = tuple(plan.delay_panes for plan, _ in sides)
    settings = {"sides": [plan.settings(columns) for plan, columns in sides]}
    return SidesOperator(layouts, delays, as_arrow_of_spark(schema), settings), schema


def join_windows(node: WindowJoin, sides: Sequence[Side], place: Stateful) -> DataFrame:
    """Return the windows of two sides that end together.

    Parameters
    ----------
    node : WindowJoin
        The join.
    sides : sequence of Side
        The sides. If both sides have the same windows, these windows are computed only once.
    place : Stateful
        The name, buckets and state location of the operator that makes the windows of both sides.
    """
    left_windows, right_windows = (side.windows for side in sides)
    rows = _share(left_windows.results(place)) if left_windows is right_windows else _make(sides, place)
    ends = [sf.unix_micros(sf.col(f"{name}.{WINDOW}.end")) for name in STRUCTS]
    side_rows = rows.select(ROW_SIDE, sf.coalesce(*ends).alias(END), *STRUCTS).repartition(sf.col(END))
    for number, side in enumerate(sides):
        for step in side.steps:
            if isinstance(step, Where):
                side_rows = _filter_side(side_rows, number, step)
            elif isinstance(step, Select):
                columns = [sf.expr(expression.text).alias(name) for name, expression in step.columns]
                side_rows = _replace_side(side_rows, number, columns)
            else:
                side_rows = _aggregate(side_rows, number, step)
    left, right = (_fields(side_rows, name) for name in STRUCTS)
    kept_fields = [[field for field in left if field.name != WINDOW]]
    kept_fields.append([field for field in right if field.name not in (WINDOW, *node.on)])
    output = StructType([StructField(END, LongType()), *kept_fields[0], *kept_fields[1]])
    match = _Match(
        as_arrow_of_spark(side_rows.schema),
        tuple(tuple(field.name for field in fields) for fields in kept_fields),
        node.on,
        as_arrow_of_spark(output),
    )
    matches = side_rows.mapInArrow(match, output)
    window = sf.struct(
        sf.timestamp_micros(sf.col(END) - 1000 * node.slide_ms).alias("start"),
        sf.timestamp_micros(END).alias("end"),
    )
    result = matches.select(
        *(
            cast_to_field(window if field.name == WINDOW else sf.col(quote(field.name)), field)
            for field in spark_schema(node.schema)
        )
    )
    return result if node.condition is None else result.where(node.condition.text)


def _share(windows: DataFrame) -> DataFrame:
    """Return the windows that both sides share, once in the struct of each side."""
    columns = sf.struct(*(sf.col(quote(name)) for name in windows.columns))
    twice = windows.select(
        sf.explode(sf.array(*(sf.lit(number) for number in range(len(STRUCTS))))).alias(ROW_SIDE),
        columns.alias(STRUCTS[0]),
    )
    structs = (
        sf.when(sf.col(ROW_SIDE) == number, sf.col(STRUCTS[0])).alias(name)
        for number, name in enumerate(STRUCTS)
    )
    return twice.select(ROW_SIDE, *structs)


def _make(sides: Sequence[Side], place: Stateful) -> DataFrame:
    """Return the windows of both sides, each in its struct."""
    operator, schema = sides_operator([(side.windows.plan, side.windows.columns) for side in sides])
    layouts, output = operator.layouts, operator.output
    parcels = reduce(
        DataFrame.union,
        [side.windows.parcels.withColumn(SIDE, sf.lit(number)) for number, side in enumerate(sides)],
    )
    own_workers = any(map(has_own_workers, layouts))
    rows = place.run(parcels, operator, schema, output, waits=False, own_workers=own_workers)
    for number, side in enumerate(sides):
        rows = _replace_side(rows, number, side.windows.plan.compute_columns())
    return rows


def _open(rows: DataFrame, side: int) -> DataFrame:
    """Return rows with all their columns, followed by the fields of a side's struct as columns."""
    return rows.select("*", f"{STRUCTS[side]}.*")


def _replace_side(rows: DataFrame, side: int, columns: Sequence[Column]) -> DataFrame:
    struct = sf.when(sf.col(ROW_SIDE) == side, sf.struct(*columns)).alias(STRUCTS[side])
    names = [struct if name == STRUCTS[side] else sf.col(name) for name in rows.columns]
    return _open(rows, side).select(*names)


def _filter_side(rows: DataFrame, side: int, step: Where) -> DataFrame:
    condition = (sf.col(ROW_SIDE) != side) | sf.expr(step.predicate.text)
    return _open(rows, side).where(condition).select(*rows.columns)


def _aggregate(rows: DataFrame, side: int, step: Aggregate) -> DataFrame:
    """Aggregate the rows of one side by window; all rows of a window are in one partition."""
    by_window = ByWindow.build(step, wraps=wraps_around(rows.sparkSession))
    rows = _replace_side(rows, side, by_window.values)
    values = as_arrow_of_spark(StructType(_fields(rows, STRUCTS[side])))
    accumulated_type = by_window.accumulated_type(values)
    output = StructType(
        [
            StructField(field.name, accumulated_type) if field.name == STRUCTS[side] else field
            for field in rows.schema
        ]
    )
    kinds = as_arrow_of_spark(rows.schema), as_arrow_of_spark(output)
    accumulate = _SideAccumulator(side, kinds[0], values, by_window, kinds[1])
    return _replace_side(rows.mapInArrow(accumulate, output), side, by_window.compute_columns(step))


def _fields(rows: DataFrame, name: str) -> list[StructField]:
    kind = rows.schema[name].dataType
    return list(kind.fields) if isinstance(kind, StructType) else []


@dataclass(frozen=True)
class _SideAccumulator:
    """Accumulates the rows of one side in a partition and passes on all other rows, for ``mapInArrow``."""

    side: int
    rows: pa.Schema
    values: pa.Schema
    by_window: ByWindow
    output: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return one row for each window and group of the side, and the rows of the other side."""
        place = self.output.get_field_index(STRUCTS[self.side])
        fragments = self.by_window.fragments
        fragmenter = row_fragmenter(self.values, fragments)
        for batch in batches:
            rows = cast_to_schema(batch, self.rows)
            is_own = pc.equal(rows[ROW_SIDE], self.side)
            columns = pa.StructArray.flatten(rows.filter(is_own).column(place))
            values = pa.RecordBatch.from_arrays(columns, schema=self.values)
            add_rows(fragmenter, fragments, values)
            other_rows = rows.filter(pc.invert(is_own))
            nulls = pa.nulls(other_rows.num_rows, self.output.field(place).type)
            other_columns = [nulls if at == place else column for at, column in enumerate(other_rows.columns)]
            yield pa.RecordBatch.from_arrays(other_columns, schema=self.output)
        made = self.by_window.finish(fragmenter.finish())
        kind = self.output.field(place).type
        fields = pa.schema([kind.field(number) for number in range(kind.num_fields)])
        struct = pa.StructArray.from_arrays(cast_to_schema(made, fields).columns, fields=list(fields))
        start, size = (made[name].cast(pa.int64()) for name in (PANE, fragments.group_by[0]))
        values_by_name = {
            ROW_SIDE: pa.array(np.full(made.num_rows, self.side, np.int32)),
            END: pc.add(start, size),
        }
        output_columns = [
            struct if at == place else values_by_name.get(field.name, pa.nulls(made.num_rows, field.type))
            for at, field in enumerate(self.output)
        ]
        yield pa.RecordBatch.from_arrays(output_columns, schema=self.output)


@dataclass(frozen=True)
class _Match:
    """Joins the rows of a partition, for ``mapInArrow``; holds all windows that closed in a micro-batch."""

    rows: pa.Schema
    fields: tuple[tuple[str, ...], ...]
    on: tuple[str, ...]
    output: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the matches."""
        rows = pa.Table.from_batches([cast_to_schema(batch, self.rows) for batch in batches], self.rows)
        sides = [self._side(rows, number) for number in range(len(STRUCTS))]
        yield from match_sides(sides, self.fields, self.on, self.output)

    def _side(self, table: pa.Table, number: int) -> pa.Table:
        rows = table.filter(pc.equal(table[ROW_SIDE], number))
        columns = rows.select([STRUCTS[number]]).flatten()
        names = [name.removeprefix(f"{STRUCTS[number]}.") for name in columns.column_names]
        return columns.rename_columns(names).append_column(END, rows[END])


def match_sides(
    sides: Sequence[pa.Table], fields: Sequence[Sequence[str]], on: Sequence[str], output: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Join windows that end together.

    Parameters
    ----------
    sides : sequence of pyarrow.Table
        All windows of each side that closed in a micro-batch, with `END`.
    fields : sequence of sequences of str
        The columns of each side in the output, which begins with `END`.
    on : sequence of str
        The columns of the join besides `END`.
    output : pyarrow.Schema
        The columns of the output.
    """
    if not all(side.num_rows for side in sides):
        return
    keys = [END, *on]
    numbered = [
        side.select(keys).append_column(f"{_ROW}_{number}", pa.array(np.arange(side.num_rows)))
        for number, side in enumerate(sides)
    ]
    pairs = numbered[0].join(numbered[1], keys, join_type="inner", use_threads=False)
    left, right = (side.take(pairs[f"{_ROW}_{number}"].combine_chunks()) for number, side in enumerate(sides))
    columns = [left[END], *(left[name] for name in fields[0]), *(right[name] for name in fields[1])]
    matches = pa.Table.from_arrays(columns, names=output.names)
    for batch in matches.combine_chunks().to_batches():
        yield cast_to_schema(batch, output)
