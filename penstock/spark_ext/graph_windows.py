"""The windows of a running graph: assembly of fragments, aggregates of rows, and aggregates of windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import NullType, StructType

from penstock.ddl import quoted
from penstock.errors import InternalError
from penstock.operators.conform import conform
from penstock.operators.graph.nodes import Aggregate, Assemble, Fused, Node, Window
from penstock.operators.graph.types import scan_schema
from penstock.operators.scan import PANE, Fragments
from penstock.operators.stream import RESERVED_PREFIX
from penstock.operators.windows.sliding import in_windows
from penstock.spark_ext.p_stream_types import as_arrow_of_spark, spark_schema
from penstock.spark_ext.parcels import PARCEL_SCHEMA
from penstock.spark_ext.pushed import behind_lookup
from penstock.spark_ext.update_window import service_of, windowed
from penstock.spark_ext.window_packing import EntryPacker, add_rows, row_fragmenter
from penstock.spark_ext.window_plan import WINDOW, Windowed, WindowPlan, typed, value_columns

__all__ = ["START_COLUMN", "ByWindow", "assembled", "of_rows", "of_windows", "packed"]

START_COLUMN = f"{RESERVED_PREFIX}start"
"""Where a window starts, in microseconds, while it is aggregated."""


def assembled(node: Assemble, parcels: DataFrame) -> Windowed:
    """Return windows of fragments, before they are made.

    Parameters
    ----------
    node : Assemble
        Which windows.
    parcels : DataFrame
        Of the fragments, looked up where there is a lookup between.
    """
    fused = _fused(node)
    fragments, schema = _fragments(node)
    plan = WindowPlan(
        fragments=fragments,
        decomposition=node.decomposition,
        schema=schema,
        output=spark_schema(node.schema),
        size_ms=node.window.size_ms,
        slide_ms=node.window.slide_ms,
        delay_ms=node.window.delay_ms,
        local=False,
    )
    columns = [f"{field.name} {field.type}" for field in fused.inputs[0].schema]
    return Windowed(_served(plan, node.window), parcels, tuple(columns))


def packed(node: Assemble, rows: DataFrame, buckets: int) -> DataFrame:
    """Return parcels of fragments that Spark has looked up.

    Parameters
    ----------
    node : Assemble
        Of which windows.
    rows : DataFrame
        The fragments.
    buckets : int
        Into how many parts the groups are divided.
    """
    fragments, schema = _fragments(node)
    packer = _FragmentPacker(schema, EntryPacker.of(fragments, schema, buckets))
    return rows.select(*map(quoted, schema.names)).mapInArrow(packer, PARCEL_SCHEMA)


def _fragments(node: Assemble) -> tuple[Fragments, pa.Schema]:
    """Return what windows are assembled of, and its columns; in Spark's types behind a lookup."""
    fused, above = _fused(node), node.inputs[0]
    fragments = fused.scan.fragments
    if fragments is None:
        raise InternalError("windows are assembled of fragments")
    if above is fused:
        return fragments, scan_schema(fused.scan, fused.inputs[0].schema)
    groups = node.aggregate.group_by
    names = (PANE, *groups, *(one.name for one in fragments.partials))
    # A null is a group of its own, also where the table's column was said to have none.
    fields = [above.schema.field(name).with_nullable(True) for name in names]
    schema = as_arrow_of_spark(spark_schema(pa.schema(fields)))
    return behind_lookup(fragments, schema, groups), schema


def _fused(node: Assemble) -> Fused:
    at: Node = node.inputs[0]
    while not isinstance(at, Fused):
        at = at.inputs[0]
    return at


@dataclass(frozen=True)
class _FragmentPacker:
    """Makes parcels of fragments that crossed to the JVM, for ``mapInArrow``."""

    schema: pa.Schema
    packer: EntryPacker

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the parcels of one partition."""
        return self.packer.pack(conform(batch, self.schema) for batch in batches)


def of_rows(node: Aggregate, rows: DataFrame, buckets: int) -> Windowed:
    """Return windows of rows, where no reader makes fragments, before they are made."""
    window = node.inputs[0]
    if not isinstance(window, Window):
        raise InternalError("rows are put into windows")
    made = windowed(
        rows,
        node.group_by,
        window.time,
        *window.lengths,
        {name: expression.text for name, expression in node.aggregates},
        delay=f"{window.delay_ms} ms",
        unit=None if pa.types.is_timestamp(window.schema.field(window.time).type) else window.time_unit,
        buckets=buckets,
        nulls="drop",
    )
    plan = _served(made.plan, window)
    # A time without zone is one of UTC, as in a reader's fragments.
    output = [
        theirs if isinstance(ours.dataType, NullType) else ours
        for ours, theirs in zip(spark_schema(node.schema), plan.output, strict=True)
    ]
    return replace(made, plan=replace(plan, output=StructType(output), local=False))


def _served(plan: WindowPlan, window: Window) -> WindowPlan:
    """Return windows that are emitted as a graph says."""
    service = service_of(window.mode, window.budget, window.policy, window.cost, window.weight)
    return plan.served(service, window.weight)


def of_windows(node: Aggregate, windows: DataFrame) -> DataFrame:
    """Return aggregates of windows, without state.

    All groups of a window close in the same micro-batch, because all buckets know the same watermark. So what
    is aggregated by window is complete in it.
    """
    by_window = ByWindow.of(node)
    rows = windows.select(*by_window.values)
    schema = as_arrow_of_spark(rows.schema)
    made = by_window.folded(schema)
    fold = _Fold(schema, by_window.fragments, as_arrow_of_spark(made))
    folded = rows.repartition(sf.col(START_COLUMN)).mapInArrow(fold, made)
    return folded.select(*by_window.computed(node))


@dataclass(frozen=True)
class ByWindow:
    """An aggregate of windows, in three steps: values, which are folded in Python, and what comes of that.

    Parameters
    ----------
    values : tuple of Column
        What is folded: `START_COLUMN`, the window's size, groups, and the values of partials.
    fragments : Fragments
        How that is folded; windows are of a pane each.
    assembly : mapping of str to str
        For each aggregate's name, Spark SQL over the partials.
    """

    values: tuple[Column, ...]
    fragments: Fragments
    assembly: Mapping[str, str]

    @classmethod
    def of(cls, node: Aggregate) -> ByWindow:
        """Return the steps of an aggregate."""
        split = node.decomposition.counted(node.group_by)
        groups = tuple(name for name in node.group_by if name != WINDOW)
        start = sf.unix_micros(sf.col(f"{WINDOW}.start"))
        size = sf.unix_micros(sf.col(f"{WINDOW}.end")) - start
        values, partials = value_columns(split)
        columns = (start.alias(START_COLUMN), size.alias(_SIZE), *(sf.col(quoted(one)) for one in groups))
        fragments = Fragments(1, START_COLUMN, "us", (_SIZE, *groups), partials)
        return cls((*columns, *values), fragments, split.assembly)

    def folded(self, schema: pa.Schema) -> StructType:
        """Return the columns of what is folded of values of a schema."""
        made = row_fragmenter(schema, self.fragments)
        return spark_schema(in_windows(self.fragments.partials, made.finish()).schema)

    def computed(self, node: Aggregate) -> list[Column]:
        """Return groups, window and aggregates as Spark computes them of what was folded."""
        end = sf.col(PANE) + sf.col(_SIZE)
        window = sf.struct(sf.timestamp_micros(PANE).alias("start"), sf.timestamp_micros(end).alias("end"))
        columns = {name: sf.col(quoted(name)) for name in self.fragments.group_by} | {WINDOW: window}
        columns |= {name: sf.expr(text) for name, text in self.assembly.items()}
        return [typed(columns[field.name], field) for field in spark_schema(node.schema)]


_SIZE = f"{RESERVED_PREFIX}size"


@dataclass(frozen=True)
class _Fold:
    """Folds all rows of a partition, for ``mapInArrow``."""

    rows: pa.Schema
    fragments: Fragments
    made: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return one row for each start and group."""
        fragmenter = row_fragmenter(self.rows, self.fragments)
        for batch in batches:
            add_rows(fragmenter, self.fragments, conform(batch, self.rows))
        yield conform(in_windows(self.fragments.partials, fragmenter.finish()), self.made)
