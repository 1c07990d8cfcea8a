"""Rows of operators without state."""

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

__all__ = ["Made", "concat_rows", "filter_made", "look_up", "mark_made", "pack_made", "select_columns"]


@dataclass(frozen=True, slots=True)
class Made:
    """The rows of a node, and their columns as Spark has them."""

    schema: StructType
    rows: Rows

    @property
    def arrow(self) -> pa.Schema:
        """The columns."""
        return as_arrow_of_spark(self.schema)

    def table(self, batch: MicroBatch) -> pa.Table:
        """Return all rows of a micro-batch."""
        return pa.Table.from_batches(list(self.rows(batch)), self.arrow)


def filter_made(made: Made, predicate: Expression) -> Made:
    """Return the rows for which a predicate is true."""

    def run(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        for some in made.rows(batch):
            yield from filter_rows(pa.Table.from_batches([some]), predicate).to_batches()

    return Made(made.schema, run)


def select_columns(made: Made, columns: Mapping[str, Expression], schema: StructType) -> Made:
    """Return computed columns in the types of `schema`."""
    arrow = as_arrow_of_spark(schema)

    def run(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        for some in made.rows(batch):
            table = project(pa.Table.from_batches([some]), columns)
            yield from (convert(part, arrow) for part in table.combine_chunks().to_batches())

    return Made(schema, run)


def mark_made(made: Made, delete_when: str) -> Made:
    """Return rows with the column that marks deletes.

    Raises
    ------
    InvalidUsageError
        If only Spark can evaluate the condition.
    """
    condition, columns = mark_deletes(delete_when, made.arrow.names)
    if type_of(condition, made.arrow) != pa.bool_():
        raise InvalidUsageError(
            "the local engine cannot evaluate delete_when",
            delete_when=delete_when,
            hint="it is no condition, or use engine: spark",
        )
    fields = {one.name: one for one in made.schema}
    mark = spark_schema(pa.schema([pa.field(DELETED_COLUMN, pa.bool_())])).fields[0]
    schema = StructType([fields.get(name, mark) if name != DELETED_COLUMN else mark for name, _ in columns])
    return select_columns(made, dict(columns), schema)


def concat_rows(sides: list[Made]) -> Made:
    """Return the rows of several inputs with the same columns."""
    names = sides[0].schema.names

    def rows(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        return (some.select(names) for side in sides for some in side.rows(batch))

    return Made(sides[0].schema, rows)


def look_up(made: Made, table: pa.Table, on: tuple[str, ...]) -> Made:
    """Return the rows that match a table, with the table's other columns."""
    lookup = Lookup(table, on, ())
    others = spark_schema(lookup.schema(pa.schema([])))
    return Made(
        StructType([*made.schema.fields, *others.fields]), lambda batch: map(lookup.join, made.rows(batch))
    )


def pack_made(packer: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], rows: Rows) -> Rows:
    """Return the parcels that a packer makes of rows."""
    return lambda batch: packer(rows(batch))
