"""The windows of a running graph: assembly of fragments, aggregates of rows, and aggregates of windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from penstock.errors import InternalError, InvalidUsageError
from penstock.operators.conform import conform
from penstock.operators.graph.nodes import Aggregate, Assemble, Fused, Node, Window
from penstock.operators.graph.types import scan_schema
from penstock.operators.scan import PANE, Fragments
from penstock.operators.stream import RESERVED_PREFIX
from penstock.operators.windows.finish import Finish
from penstock.spark_ext.p_stream_rows import OperatorRows
from penstock.spark_ext.p_stream_types import as_arrow_of_spark, spark_schema
from penstock.spark_ext.parcels import PARCEL_SCHEMA
from penstock.spark_ext.stateful import Stateful
from penstock.spark_ext.update_window import update_window
from penstock.spark_ext.window_packing import EntryPacker, add_rows, row_fragmenter
from penstock.spark_ext.window_plan import WINDOW, WindowPlan, quoted, typed, value_columns

__all__ = ["Windows", "assembled", "of_rows", "of_windows"]

_START = f"{RESERVED_PREFIX}start"


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of fragments, which Spark may finish, or their operator.

    Parameters
    ----------
    plan : WindowPlan
        Which windows.
    place : Stateful
        The operator's place.
    parcels : DataFrame
        What they are made of.
    columns : tuple of str
        Names and types of what the fragments are made of.
    """

    plan: WindowPlan
    place: Stateful
    parcels: DataFrame
    columns: tuple[str, ...]

    def results(self) -> DataFrame:
        """Return the windows."""
        return self.plan.results(self.place, self.parcels, self.columns)

    def written(self, finish: Finish, into: OperatorRows) -> DataFrame:
        """Return descriptors of the results, which the operator writes."""
        return self.plan.written(self.place, self.parcels, self.columns, finish, into)


def assembled(node: Assemble, rows: DataFrame, place: Stateful) -> Windows:
    """Return windows of fragments.

    Parameters
    ----------
    node : Assemble
        Which windows.
    rows : DataFrame
        The parcels of a reader's fragments; or fragments, where there is a lookup between.
    place : Stateful
        The operator's place.
    """
    fused = _fused(node)
    fragments = fused.scan.fragments
    if fragments is None:
        raise InternalError("windows are assembled of fragments")
    made = scan_schema(fused.scan, fused.inputs[0].schema)
    parcels = rows
    if node.inputs[0] is not fused:
        # What crossed to the JVM has Spark's types.
        groups = node.aggregate.group_by
        rows = rows.select(*map(quoted, (PANE, *groups, *(one.name for one in fragments.partials))))
        made = as_arrow_of_spark(rows.schema)
        unit = "us" if pa.types.is_timestamp(made.field(PANE).type) else fragments.time_unit
        fragments = Fragments(fragments.pane_ms, PANE, unit, groups, fragments.partials)
        packer = _FragmentPacker(made, EntryPacker.of(fragments, made, place.buckets))
        parcels = rows.mapInArrow(packer, PARCEL_SCHEMA)
    plan = WindowPlan(
        fragments=fragments,
        decomposition=node.decomposition,
        schema=made,
        output=spark_schema(node.schema),
        size_ms=node.window.size_ms,
        slide_ms=node.window.slide_ms,
        delay_ms=node.window.delay_ms,
        local=False,
    )
    columns = tuple(f"{field.name} {field.type}" for field in fused.inputs[0].schema)
    return Windows(plan, place, parcels, columns)


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


def of_rows(node: Aggregate, rows: DataFrame, place: Stateful) -> DataFrame:
    """Return windows of rows, where no reader makes fragments."""
    window = node.inputs[0]
    if not isinstance(window, Window):
        raise InternalError("rows are put into windows")
    made = update_window(
        rows,
        node.group_by,
        window.time,
        f"{window.size_ms} ms",
        f"{window.slide_ms} ms",
        {name: expression.text for name, expression in node.aggregates},
        "append",
        delay=f"{window.delay_ms} ms",
        unit=None if pa.types.is_timestamp(window.schema.field(window.time).type) else window.time_unit,
        buckets=place.buckets,
        nulls="drop",
        state_location=place.state_location,
        retain_versions=place.retain_versions,
        name=place.name,
    )
    return made.select(*(typed(sf.col(quoted(f.name)), f) for f in spark_schema(node.schema)))


def of_windows(node: Aggregate, windows: DataFrame) -> DataFrame:
    """Return aggregates of windows, without state.

    All groups of a window close in the same micro-batch, because all buckets know the same watermark. So what
    is aggregated by window is complete in it.
    """
    split = node.decomposition
    if split is None:
        raise InvalidUsageError(
            "an aggregate of windows that has no partials of fixed size cannot run", node=node.name
        )
    split = split.counted(node.group_by)
    groups = tuple(name for name in node.group_by if name != WINDOW)
    start = sf.unix_micros(sf.col(f"{WINDOW}.start"))
    size = sf.unix_micros(sf.col(f"{WINDOW}.end")) - start
    values, partials = value_columns(split)
    rows = windows.select(
        start.alias(_START), size.alias(_SIZE), *(sf.col(quoted(name)) for name in groups), *values
    )
    fragments = Fragments(1, _START, "us", (_SIZE, *groups), partials)
    schema = as_arrow_of_spark(rows.schema)
    made = spark_schema(row_fragmenter(schema, fragments).schema)
    folded = rows.repartition(sf.col(_START)).mapInArrow(
        _Fold(schema, fragments, as_arrow_of_spark(made)), made
    )
    end = sf.col(PANE) + sf.col(_SIZE)
    window = sf.struct(sf.timestamp_micros(PANE).alias("start"), sf.timestamp_micros(end).alias("end"))
    columns = {name: sf.col(quoted(name)) for name in groups} | {WINDOW: window}
    columns |= {name: sf.expr(text) for name, text in split.assembly.items()}
    return folded.select(*(typed(columns[field.name], field) for field in spark_schema(node.schema)))


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
        yield conform(fragmenter.finish(), self.made)
