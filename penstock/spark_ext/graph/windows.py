"""The windows of a running graph: windows of fragments, windows of rows, and aggregates of windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import NullType, StructType

from penstock.dataflow.nodes import Aggregate, Assemble, Node, PushedScan, SessionWindow, Window
from penstock.ddl import quote
from penstock.errors import InternalError
from penstock.operators.aggregates.assembly import Assembly
from penstock.operators.aggregates.wide import WIDE
from penstock.operators.scan.spec import PANE, Fragments, Partial, TimeUnit
from penstock.operators.types import scan_schema
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.spark_ext.api.update_window import plan_windows
from penstock.spark_ext.border.parcels import PARCELS
from penstock.spark_ext.border.types import as_arrow_of_spark, same_types, spark_schema
from penstock.spark_ext.border.window_packing import EntryPacker, add_rows, row_fragmenter
from penstock.spark_ext.sources.pushed import look_up_fragments
from penstock.spark_ext.window_plans import CountWindows, make_count_windows
from penstock.spark_ext.worker.time_windows import TimeWindowPlan
from penstock.spark_ext.worker.window_plan import (
    WINDOW,
    PlannedWindows,
    WindowPlan,
    cast_to_field,
    partials_of_values,
    value_names,
    wraps_around,
)
from penstock.windows.append.sliding import partials_of_windows
from penstock.windows.finish import Step
from penstock.windows.window_aggregates import ACCUMULATED_KINDS, WindowAccumulator

__all__ = [
    "SIZE_COLUMN",
    "START_COLUMN",
    "ByWindow",
    "FragmentPacker",
    "PartitionAccumulator",
    "aggregate_windows",
    "finish_aggregate",
    "fragment_packer",
    "pack_rows",
    "plan_assembled",
    "plan_assembly",
    "plan_count_windows",
    "plan_local_windows",
    "window_accumulator",
]

START_COLUMN = f"{RESERVED_PREFIX}start"
"""The column of a window's start, in microseconds, while it is aggregated."""

SIZE_COLUMN = f"{RESERVED_PREFIX}size"
"""The column of a window's length, while it is aggregated."""


def plan_assembly(node: Assemble, parcels: DataFrame) -> PlannedWindows:
    """Return the plan of windows of fragments.

    Parameters
    ----------
    node : Assemble
        The windows.
    parcels : DataFrame
        The parcels of the fragments, after a lookup if there is one.
    """
    plan, columns = plan_assembled(node, wraps=wraps_around(parcels.sparkSession))
    return PlannedWindows(plan, parcels, columns)


def plan_assembled(node: Assemble, *, wraps: bool) -> tuple[WindowPlan, tuple[str, ...]]:
    """Return the plan of windows of fragments, and names and types of their inputs; needs no Spark session.

    Parameters
    ----------
    node : Assemble
        The windows.
    wraps : bool
        As in `Assembly`.
    """
    reader = _pushed_scan(node)
    fragments, schema = _fragments(node)
    plan = TimeWindowPlan(
        fragments=fragments,
        decomposition=node.decomposition,
        schema=schema,
        output=spark_schema(node.schema),
        size_ms=node.window.size_ms,
        slide_ms=node.window.slide_ms,
        delay_ms=node.window.delay_ms,
        wraps=wraps,
        local=False,
        extreme=node.aggregate.extreme,
    )
    columns = tuple(f"{field.name} {field.type}" for field in reader.inputs[0].schema)
    return plan.replace_options(node.window.options), columns


def pack_rows(node: Assemble, rows: DataFrame, buckets: int) -> DataFrame:
    """Return parcels of fragments that Spark has looked up.

    Parameters
    ----------
    node : Assemble
        The windows.
    rows : DataFrame
        The fragments.
    buckets : int
        The number of buckets for the groups.
    """
    packer = fragment_packer(node, buckets)
    return rows.select(*map(quote, packer.schema.names)).mapInArrow(packer, PARCELS)


def fragment_packer(node: Assemble, buckets: int) -> FragmentPacker:
    """Return the packer of fragments that are looked up in a table after they have left their reader."""
    fragments, schema = _fragments(node)
    return FragmentPacker(schema, EntryPacker.build(fragments, schema, buckets))


def _fragments(node: Assemble) -> tuple[Fragments, pa.Schema]:
    """Return the fragments of windows and their columns; after a lookup, the columns have Spark's types."""
    reader, above = _pushed_scan(node), node.inputs[0]
    fragments = reader.scan.fragments
    if fragments is None:
        raise InternalError("windows are assembled of fragments")
    if above is reader:
        return fragments, scan_schema(reader.scan, reader.inputs[0].schema)
    groups = node.aggregate.group_by
    names = (PANE, *groups, *(partial.name for partial in fragments.partials))
    # Nulls form a separate group, even if the table's column is declared without nulls.
    fields = [above.schema.field(name).with_nullable(True) for name in names]
    schema = as_arrow_of_spark(spark_schema(pa.schema(fields)))
    return look_up_fragments(fragments, schema, groups), schema


def _pushed_scan(node: Assemble) -> PushedScan:
    at: Node = node.inputs[0]
    while not isinstance(at, PushedScan):
        at = at.inputs[0]
    return at


def _widen(schema: pa.Schema, partials: Sequence[Partial]) -> pa.Schema:
    """Return the columns, with a wide type for sums of 64-bit integers, which may need two words."""
    sums = {partial.name for partial in partials if partial.kind == "sum"}
    fields = [
        field.with_type(WIDE) if field.name in sums and field.type == pa.int64() else field
        for field in schema
    ]
    return pa.schema(fields)


@dataclass(frozen=True)
class FragmentPacker:
    """Makes parcels of fragments, for ``mapInArrow``."""

    schema: pa.Schema
    packer: EntryPacker

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the parcels of one partition."""
        return self.packer.pack(cast_to_schema(batch, self.schema) for batch in batches)


def plan_count_windows(node: Aggregate, rows: DataFrame, buckets: int) -> PlannedWindows:
    """Return the plan of windows over rows, for a graph in which no reader makes fragments."""
    window, arguments = _arguments(node)
    planned = plan_windows(rows, *arguments, session=_gap(window), unit=_unit(window), buckets=buckets)
    return replace(planned, plan=_in_graph(planned.plan, node, window))


def plan_local_windows(node: Aggregate, columns: StructType, buckets: int) -> CountWindows:
    """Plan windows as `plan_count_windows` does, over rows with given columns; needs no Spark session.

    Raises
    ------
    InvalidUsageError
        If only Spark can determine the type of an expression.
    """
    window, arguments = _arguments(node)
    gap, unit = _gap(window), _unit(window)
    planned = make_count_windows(columns, *arguments, session=gap, unit=unit, buckets=buckets)
    return replace(planned, plan=_in_graph(planned.plan, node, window))


def _arguments(node: Aggregate) -> tuple[Window, tuple[Any, ...]]:
    """Return the window of an aggregate, and its arguments for `plan_windows`."""
    window = node.inputs[0]
    if not isinstance(window, Window):
        raise InternalError("rows are put into windows")
    size, slide = (None, None) if isinstance(window, SessionWindow) else window.lengths
    texts = {name: expression.text for name, expression in node.aggregates}
    options = replace(window.options, watermark_delay=f"{window.delay_ms} ms", nulls="drop")
    return window, (node.group_by, window.time, size, slide, texts, options)


def _gap(window: Window) -> str | None:
    return window.gap if isinstance(window, SessionWindow) else None


def _unit(window: Window) -> TimeUnit | None:
    return None if pa.types.is_timestamp(window.schema.field(window.time).type) else window.time_unit


def _in_graph(plan: WindowPlan, node: Aggregate, window: Window) -> WindowPlan:
    plan = plan.replace_options(window.options)
    # A time without zone is in UTC, as in a reader's fragments.
    output = [
        theirs if isinstance(ours.dataType, NullType) else ours
        for ours, theirs in zip(spark_schema(node.schema), plan.output, strict=True)
    ]
    return replace(plan, output=StructType(output), local=False, extreme=node.extreme)


def aggregate_windows(node: Aggregate, windows: DataFrame) -> DataFrame:
    """Return aggregates of windows, without state.

    All groups of a window close in the same micro-batch, because all buckets have the same watermark. So an
    aggregate by window is complete in that micro-batch.
    """
    by_window = ByWindow.build(node, wraps=wraps_around(windows.sparkSession))
    rows = windows.select(*by_window.values)
    schema = as_arrow_of_spark(rows.schema)
    value_schema = by_window.accumulated_type(schema)
    accumulator = PartitionAccumulator(schema, by_window, as_arrow_of_spark(value_schema))
    values = rows.repartition(sf.col(START_COLUMN)).mapInArrow(accumulator, value_schema)
    return values.select(*by_window.compute_columns(node))


def window_accumulator(
    node: Aggregate,
    windows: WindowPlan,
    rows: DataFrame,
    steps: Sequence[Step],
    schemas: Sequence[StructType],
) -> WindowAccumulator | None:
    """Return the accumulator of windows in their buckets; None if only Spark can aggregate them.

    Parameters
    ----------
    node : Aggregate
        The aggregate by window, after the steps.
    windows : WindowPlan
        The windows.
    rows : DataFrame
        The windows after the steps, as Spark makes them.
    steps : sequence of Step
        The steps between the windows and the aggregate.
    schemas : sequence of StructType
        The schema of the windows, and the schema after each projection.
    """
    by_window = ByWindow.build(node, wraps=wraps_around(rows.sparkSession))
    if not {partial.kind for partial in by_window.fragments.partials} <= ACCUMULATED_KINDS:
        return None
    read = rows.select(*by_window.read)
    finish = windows.finish([*steps, by_window.projection])
    if finish is None or not same_types(finish.schemas(), [*schemas, read.schema]):
        return None
    schema = as_arrow_of_spark(rows.select(*by_window.values).schema)
    values = spark_schema(row_fragmenter(schema, by_window.fragments).schema)
    return WindowAccumulator(
        finish, by_window.fragments, _widen(as_arrow_of_spark(values), by_window.fragments.partials)
    )


def finish_aggregate(node: Aggregate, values: DataFrame, accumulator: WindowAccumulator) -> DataFrame:
    """Return aggregates of windows that each bucket has accumulated."""
    by_window = ByWindow.build(node, wraps=wraps_around(values.sparkSession))
    empty = pa.RecordBatch.from_pylist([], accumulator.made)
    schema = by_window.finish(empty).schema
    merge = _Merge(accumulator, by_window, schema)
    results = values.repartition(sf.col(PANE)).mapInArrow(merge, spark_schema(schema))
    return results.select(*by_window.compute_columns(node))


@dataclass(frozen=True)
class ByWindow:
    """An aggregate of windows, in three steps: compute values, accumulate them in Python, compute results.

    Parameters
    ----------
    projection : mapping of str to str
        Groups, and the values of partials: Spark SQL over windows with their aggregates.
    fragments : Fragments
        The aggregation of values, grouped by `START_COLUMN`, the window's length, and the groups. Each window
        is one pane.
    assembly : Assembly
        Computes aggregates from partials.
    """

    projection: Mapping[str, str]
    fragments: Fragments
    assembly: Assembly

    @classmethod
    def build(cls, node: Aggregate, *, wraps: bool) -> ByWindow:
        """Return the steps of an aggregate."""
        split = node.decomposition.add_count(node.group_by)
        groups = tuple(name for name in node.group_by if name != WINDOW)
        names, partials = value_names(split.partials), partials_of_values(split.partials)
        projection = {name: quote(name) for name in groups} | {name: text for text, name in names.items()}
        fragments = Fragments(1, START_COLUMN, "us", (SIZE_COLUMN, *groups), partials)
        return cls(projection, fragments, Assembly.from_decomposition(split, wraps=wraps))

    @property
    def read(self) -> list[Column]:
        """The projection's columns."""
        return [sf.expr(text).alias(name) for name, text in self.projection.items()]

    @property
    def values(self) -> list[Column]:
        """The columns to accumulate: `START_COLUMN`, the window's length, and `read`."""
        start = sf.unix_micros(sf.col(f"{WINDOW}.start"))
        size = sf.unix_micros(sf.col(f"{WINDOW}.end")) - start
        return [start.alias(START_COLUMN), size.alias(SIZE_COLUMN), *self.read]

    def accumulated_type(self, schema: pa.Schema) -> StructType:
        """Return the columns of the accumulated values, given the columns of the values."""
        return spark_schema(self.finish(row_fragmenter(schema, self.fragments).finish()).schema)

    def finish(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Return accumulated values in Spark's types.

        Raises
        ------
        InvalidUsageError
            If a sum overflows.
        """
        partials = partials_of_windows(self.fragments.partials, values)
        names = {PANE, *self.fragments.group_by, *self.assembly.read}
        return self.assembly.finish(partials, [name for name in partials.schema.names if name in names])

    def compute_columns(self, node: Aggregate) -> list[Column]:
        """Return groups, window and aggregates, computed by Spark from accumulated values."""
        end = sf.col(PANE) + sf.col(SIZE_COLUMN)
        window = sf.struct(sf.timestamp_micros(PANE).alias("start"), sf.timestamp_micros(end).alias("end"))
        columns = {name: sf.col(quote(name)) for name in self.fragments.group_by} | {WINDOW: window}
        columns |= {name: sf.expr(text) for name, text in self.assembly.aggregates.items()}
        return [cast_to_field(columns[field.name], field) for field in spark_schema(node.schema)]


@dataclass(frozen=True)
class PartitionAccumulator:
    """Accumulates all rows of a partition, for ``mapInArrow``."""

    rows: pa.Schema
    by_window: ByWindow
    output: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return one row for each start and group."""
        fragments = self.by_window.fragments
        fragmenter = row_fragmenter(self.rows, fragments)
        for batch in batches:
            add_rows(fragmenter, fragments, cast_to_schema(batch, self.rows))
        yield cast_to_schema(self.by_window.finish(fragmenter.finish()), self.output)


@dataclass(frozen=True)
class _Merge:
    """Merges the accumulated values of a window from several buckets, for ``mapInArrow``."""

    accumulator: WindowAccumulator
    by_window: ByWindow
    output: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return one row for each start and group."""
        for values in self.accumulator.combine(cast_to_schema(one, self.accumulator.made) for one in batches):
            yield cast_to_schema(self.by_window.finish(values), self.output)
