"""Compute the rows of nodes without state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.errors import InvalidUsageError
from penstock.local_engine.operators import MicroBatch, Rows
from penstock.operators.scan.lookup import Lookup
from penstock.operators.update_stream.deletes import DELETED_COLUMN, mark_deletes
from penstock.spark_ext.border.types import as_arrow_of_spark, convert, spark_schema
from penstock.sql.evaluate import filter_rows, project, type_of
from penstock.sql.expression import Expression

__all__ = [
    "NodeRows",
    "concat_rows",
    "keep_matching",
    "look_up",
    "make_parcels",
    "mark_deleted",
    "select_columns",
]


@dataclass(frozen=True, slots=True)
class NodeRows:
    """The output of a node: its columns in Spark's types, and a function that computes its rows."""

    schema: StructType
    rows: Rows

    @property
    def arrow(self) -> pa.Schema:
        """The columns in Arrow's types."""
        return as_arrow_of_spark(self.schema)

    def table(self, batch: MicroBatch) -> pa.Table:
        """Return all rows of a micro-batch."""
        return pa.Table.from_batches(list(self.rows(batch)), self.arrow)


def keep_matching(node_rows: NodeRows, predicate: Expression) -> NodeRows:
    """Return the rows for which a predicate is true."""

    def run(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        for some in node_rows.rows(batch):
            yield from filter_rows(pa.Table.from_batches([some]), predicate).to_batches()

    return NodeRows(node_rows.schema, run)


def select_columns(node_rows: NodeRows, columns: Mapping[str, Expression], schema: StructType) -> NodeRows:
    """Return computed columns in the types of `schema`."""
    arrow = as_arrow_of_spark(schema)

    def run(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        for some in node_rows.rows(batch):
            table = project(pa.Table.from_batches([some]), columns)
            yield from (convert(part, arrow) for part in table.combine_chunks().to_batches())

    return NodeRows(schema, run)


def mark_deleted(node_rows: NodeRows, delete_when: str) -> NodeRows:
    """Add the column that marks deletes.

    Raises
    ------
    InvalidUsageError
        If only Spark can evaluate the condition.
    """
    condition, columns = mark_deletes(delete_when, node_rows.arrow.names)
    if type_of(condition, node_rows.arrow) != pa.bool_():
        raise InvalidUsageError(
            "the local engine cannot evaluate delete_when",
            delete_when=delete_when,
            hint="write a condition that the local engine can evaluate, or use engine: spark",
        )
    fields = {one.name: one for one in node_rows.schema}
    mark = spark_schema(pa.schema([pa.field(DELETED_COLUMN, pa.bool_())])).fields[0]
    schema = StructType([fields.get(name, mark) if name != DELETED_COLUMN else mark for name, _ in columns])
    return select_columns(node_rows, dict(columns), schema)


def concat_rows(sides: list[NodeRows]) -> NodeRows:
    """Return the rows of several inputs with the same columns."""
    names = sides[0].schema.names

    def rows(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        return (some.select(names) for side in sides for some in side.rows(batch))

    return NodeRows(sides[0].schema, rows)


def look_up(node_rows: NodeRows, table: pa.Table, on: tuple[str, ...]) -> NodeRows:
    """Return the rows whose key is in a table, with the table's other columns."""
    lookup = Lookup(table, on, ())
    others = spark_schema(lookup.schema(pa.schema([])))
    return NodeRows(
        StructType([*node_rows.schema.fields, *others.fields]),
        lambda batch: map(lookup.join, node_rows.rows(batch)),
    )


def make_parcels(packer: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], rows: Rows) -> Rows:
    """Return a function that packs rows into parcels: binary values that hold the rows of one bucket."""
    return lambda batch: packer(rows(batch))
