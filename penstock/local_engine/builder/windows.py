"""Compute windows in a local query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataflow.nodes import Aggregate, Assemble, Select, Where
from penstock.errors import InvalidUsageError
from penstock.local_engine.builder.stateless import NodeRows
from penstock.local_engine.checks import USE_SPARK
from penstock.local_engine.operators import LocalOperator, MicroBatch, Rows
from penstock.operators.scan.spec import PANE
from penstock.operators.scheduling.serve import Budget
from penstock.spark_ext.border.types import as_arrow_of_spark, convert, spark_schema
from penstock.spark_ext.graph.steps import step_text
from penstock.spark_ext.graph.windows import (
    SIZE_COLUMN,
    START_COLUMN,
    ByWindow,
    PartitionAccumulator,
    fragment_packer,
    plan_assembled,
    plan_local_windows,
)
from penstock.spark_ext.worker.stateful import Stateful, columns_of
from penstock.spark_ext.worker.window_plan import WINDOW, WindowPlan
from penstock.sql.evaluate import project, type_of
from penstock.sql.expression import Expression
from penstock.windows.finish import Finish

__all__ = [
    "LocalWindows",
    "aggregate_by_window",
    "pack_fragments",
    "pack_rows",
    "run_windows",
    "window_column",
]


@dataclass(frozen=True, slots=True)
class LocalWindows:
    """The plan of windows, and their packed input.

    Parameters
    ----------
    plan : WindowPlan
        The plan of the windows.
    columns : tuple of str
        The names and types of the input columns, which are fixed for a checkpoint.
    parcels : callable
        A function that packs the input of a micro-batch into parcels.
    """

    plan: WindowPlan
    columns: tuple[str, ...]
    parcels: Rows


def pack_rows(node: Aggregate, node_rows: NodeRows, buckets: int) -> LocalWindows:
    """Return windows that aggregate rows."""
    planned = plan_local_windows(node, node_rows.schema, buckets)

    def parcels(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        tables = (pa.Table.from_batches([some]) for some in node_rows.rows(batch))
        rows = (project(table, planned.select).combine_chunks() for table in tables)
        return planned.packer(part for table in rows for part in table.to_batches())

    return LocalWindows(planned.plan, columns_of(planned.needed), parcels)


def pack_fragments(
    node: Assemble, node_rows: NodeRows | None, parcels: Rows | None, buckets: int
) -> LocalWindows:
    """Return windows that merge fragments: either a reader's parcels, or the rows that a lookup returns."""
    plan, columns = plan_assembled(node, wraps=False)
    if parcels is not None:
        return LocalWindows(plan, columns, parcels)
    packer = fragment_packer(node, buckets)
    names = packer.schema.names
    assert node_rows is not None  # noqa: S101  # fragments come from a reader or from a lookup

    def pack(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        return packer(some.select(names) for some in node_rows.rows(batch))

    return LocalWindows(plan, columns, pack)


def run_windows(
    windows: LocalWindows, place: Stateful, steps: Sequence[Where | Select] = ()
) -> tuple[LocalOperator, NodeRows]:
    """Return the operator of windows, and its results after filters and projections.

    Raises
    ------
    InvalidUsageError
        If only Spark can compute the windows.
    """
    plan = windows.plan
    texts = [step_text(step) for step in steps]
    operator = plan.operator(windows.columns, place)
    closing = plan.finish(texts)
    schema = output_schema(closing or plan.finish_emitted(texts))
    if closing is not None:
        held = LocalOperator(place, replace(operator, closing=closing), windows.parcels, schema, waits=False)
        return held, NodeRows(spark_schema(schema), held.run)
    finish = plan.finish_emitted(texts)
    waits = plan.options.limits != Budget()
    held = LocalOperator(place, operator, windows.parcels, finish.windows, waits=waits)

    def rows(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        return map(finish.finish_emitted, held.run(batch))

    return held, NodeRows(spark_schema(schema), rows)


def output_schema(finish: Finish) -> pa.Schema:
    """Return the columns of the results of windows.

    Raises
    ------
    InvalidUsageError
        If only Spark can compute the results.
    """
    schemas = finish.schemas()
    if schemas is None:
        raise InvalidUsageError("the local engine cannot compute these aggregates of windows", hint=USE_SPARK)
    return schemas[-1]


def aggregate_by_window(node: Aggregate, node_rows: NodeRows) -> NodeRows:
    """Aggregate the groups of each window. All groups close in the same micro-batch, so this needs no state.

    Raises
    ------
    InvalidUsageError
        If only Spark can compute the aggregates.
    """
    by_window = ByWindow.build(node, wraps=False)
    read = {name: Expression.parse(text) for name, text in by_window.projection.items()}
    types = {name: type_of(expression, node_rows.arrow) for name, expression in read.items()}
    results = {name: Expression.parse(text) for name, text in by_window.assembly.aggregates.items()}
    schema = spark_schema(node.schema)
    wanted = as_arrow_of_spark(schema)
    values = made = None
    if None not in types.values():
        values = pa.schema({START_COLUMN: pa.int64(), SIZE_COLUMN: pa.int64()} | types)
        made = as_arrow_of_spark(by_window.accumulated_type(values))
    if (
        values is None
        or made is None
        or any(type_of(expression, made) != wanted.field(name).type for name, expression in results.items())
    ):
        raise InvalidUsageError("the local engine cannot compute these aggregates of windows", hint=USE_SPARK)
    accumulate = PartitionAccumulator(values, by_window, made)

    def rows(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        table = node_rows.table(batch)
        if not table.num_rows:
            return
        start, end = (pc.struct_field(table[WINDOW], part).cast(pa.int64()) for part in ("start", "end"))
        columns = dict(zip(read, project(table, read).columns, strict=True))
        given = pa.table({START_COLUMN: start, SIZE_COLUMN: pc.subtract(end, start)} | columns)
        for part in accumulate(given.combine_chunks().to_batches()):
            done = pa.Table.from_batches([part])
            computed = dict(zip(results, project(done, results).columns, strict=True)) if results else {}
            ends = pc.add(part.column(PANE), part.column(SIZE_COLUMN))
            computed[WINDOW] = window_column(part.column(PANE), ends, wanted.field(WINDOW).type)
            made_columns = [computed[name] if name in computed else done[name] for name in wanted.names]
            for some in pa.Table.from_arrays(made_columns, wanted.names).combine_chunks().to_batches():
                yield convert(some, wanted)

    return NodeRows(schema, rows)


def window_column(start: pa.Array, end: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return windows as structs of the type `kind`, given their bounds in microseconds."""
    bounds = [column.cast(pa.int64()).view(kind.field(0).type) for column in (start, end)]
    return pa.StructArray.from_arrays(bounds, fields=list(kind))
