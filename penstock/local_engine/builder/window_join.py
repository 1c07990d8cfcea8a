"""Join windows that end at the same time, in a local query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import LongType, StructField, StructType

from penstock.dataflow.nodes import Aggregate, Select, Where, WindowJoin
from penstock.local_engine.builder.stateless import NodeRows, keep_matching, select_columns
from penstock.local_engine.builder.windows import (
    LocalWindows,
    aggregate_by_window,
    output_schema,
    run_windows,
    window_column,
)
from penstock.local_engine.operators import LocalOperator, MicroBatch
from penstock.spark_ext.border.parcels import SIDE
from penstock.spark_ext.border.types import as_arrow_of_spark, convert, spark_schema
from penstock.spark_ext.graph.window_join import END, ROW_SIDE, STRUCTS, match_sides, sides_operator
from penstock.spark_ext.worker.stateful import Stateful
from penstock.spark_ext.worker.window_plan import WINDOW
from penstock.sql.evaluate import filter_rows

__all__ = ["WindowSide", "join_windows"]


@dataclass(frozen=True, slots=True)
class WindowSide:
    """One side of a join: its windows, and the steps between the windows and the join."""

    windows: LocalWindows
    steps: Sequence[Where | Select | Aggregate]

    def apply(self, node_rows: NodeRows) -> NodeRows:
        """Apply the steps to the rows of windows."""
        for step in self.steps:
            if isinstance(step, Where):
                node_rows = keep_matching(node_rows, step.predicate)
            elif isinstance(step, Select):
                node_rows = select_columns(node_rows, dict(step.columns), spark_schema(step.schema))
            else:
                node_rows = aggregate_by_window(step, node_rows)
        return node_rows


def join_windows(
    node: WindowJoin, sides: Sequence[WindowSide], place: Stateful
) -> tuple[LocalOperator, NodeRows]:
    """Return the operator that computes the windows of both sides, and the rows of the join.

    If both sides have the same windows, the operator computes them once.

    Raises
    ------
    InvalidUsageError
        If only Spark can compute the windows.
    """
    held: dict[int, list[pa.RecordBatch]] = {}

    def read(number: int, batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        return iter(held[number])

    if sides[0].windows is sides[1].windows:
        operator, windows = run_windows(sides[0].windows, place)
        joined_sides = [side.apply(NodeRows(windows.schema, partial(read, 0))) for side in sides]

        def run(batch: MicroBatch) -> None:
            held[0] = list(windows.rows(batch))
    else:
        plans = [(side.windows.plan, side.windows.columns) for side in sides]
        of_sides, _ = sides_operator(plans)
        operator = LocalOperator(
            place, of_sides, lambda batch: _parcels(sides, batch), of_sides.output, waits=False
        )
        finishes = [plan.finish_emitted() for plan, _ in plans]
        joined_sides = [
            side.apply(NodeRows(spark_schema(output_schema(finish)), partial(read, number)))
            for number, (side, finish) in enumerate(zip(sides, finishes, strict=True))
        ]

        def run(batch: MicroBatch) -> None:
            for number in range(len(sides)):
                held[number] = []
            for rows in operator.run(batch):
                if rows.num_rows:
                    number = rows.column(ROW_SIDE)[0].as_py()  # all rows of a batch belong to one side
                    windows = rows.column(STRUCTS[number]).flatten()
                    named = pa.RecordBatch.from_arrays(windows, schema=finishes[number].windows)
                    held[number].append(finishes[number].finish_emitted(named))

    return operator, _match(node, joined_sides, run)


def _parcels(sides: Sequence[WindowSide], batch: MicroBatch) -> Iterator[pa.RecordBatch]:
    for number, side in enumerate(sides):
        for rows in side.windows.parcels(batch):
            yield rows.append_column(SIDE, pa.array([number] * rows.num_rows, pa.int32()))


def _match(node: WindowJoin, sides: Sequence[NodeRows], run: Callable[[MicroBatch], None]) -> NodeRows:
    left, right = (side.schema.fields for side in sides)
    kept = [
        [field for field in left if field.name != WINDOW],
        [field for field in right if field.name not in (WINDOW, *node.on)],
    ]
    names = [[field.name for field in fields] for fields in kept]
    matched = as_arrow_of_spark(StructType([StructField(END, LongType()), *kept[0], *kept[1]]))
    schema = spark_schema(node.schema)
    wanted = as_arrow_of_spark(schema)
    condition = node.condition

    def rows(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        run(batch)
        tables = [side.table(batch) for side in sides]
        ended = [
            table.append_column(END, pc.struct_field(table[WINDOW], "end").cast(pa.int64()))
            for table in tables
        ]
        for some in match_sides(ended, names, node.on, matched):
            end = some.column(END)
            start = pc.subtract(end, 1000 * node.slide_ms)
            window = window_column(start, end, wanted.field(WINDOW).type)
            found = convert(some.append_column(WINDOW, window), wanted)
            if condition is None:
                yield found
            else:
                yield from filter_rows(pa.Table.from_batches([found]), condition).to_batches()

    return NodeRows(schema, rows)
