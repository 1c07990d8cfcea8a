"""Convert a task's rows before they cross to the JVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.checkpointing.p_stream import Piece
from penstock.errors import InternalError, InvalidUsageError
from penstock.operators.scan.spec import PANE, Fragments, Scan
from penstock.spark_ext.border.collations import refuse_collations
from penstock.spark_ext.border.parcels import PARCELS
from penstock.spark_ext.border.types import as_arrow_of_spark, convert, spark_schema
from penstock.sql.expression import Expression

if TYPE_CHECKING:
    from penstock.compression import TableBlock
    from penstock.operators.scan.scanner import Scanner

__all__ = ["Columns", "Pushed", "look_up_fragments", "split_large"]

_BATCH_BYTES = 32 << 20
"""The bytes per batch that crosses to the JVM."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Selects columns of p-units and converts them to Spark's types, before rows cross to the JVM.

    Parameters
    ----------
    names : tuple of str
        The columns to select.
    spark : StructType
        The Spark types of these columns.
    """

    names: tuple[str, ...]
    spark: StructType

    @classmethod
    def select(cls, stored: pa.Schema, names: Sequence[str] | None) -> Columns:
        """Return the selection of columns of a p-stream by name; by default all.

        Raises
        ------
        InvalidUsageError
            If a column does not exist, is named twice, or has a type that Spark lacks.
        """
        selection = stored.names if names is None else list(names)
        unknown = [name for name in selection if name not in stored.names]
        if unknown or len(set(selection)) < len(selection):
            raise InvalidUsageError(
                "the p-stream has no such columns, or one is named twice",
                columns=", ".join(unknown or selection),
                known=", ".join(stored.names),
            )
        fields = pa.schema([stored.field(name) for name in selection], stored.metadata)
        return cls(tuple(selection), spark_schema(fields))

    def run(self, blocks: Iterable[tuple[Piece, TableBlock]]) -> Iterator[pa.RecordBatch]:
        """Return the rows of p-units in the form in which they cross to the JVM.

        Raises
        ------
        InvalidUsageError
            If a value has no counterpart in Spark.
        CorruptDataError
            If a p-unit is damaged.
        """
        schema = as_arrow_of_spark(self.spark)
        for piece, block in blocks:
            yield convert(block.read(self.names, piece.first, piece.stop), schema)


@dataclass(frozen=True, slots=True)
class Pushed:
    """Runs the `Scan` of a graph's planner on a task's rows.

    Parameters
    ----------
    scan : Scan
        The reader's scan.
    stored : pyarrow.Schema
        The columns of the p-stream, or of Parquet files.
    spark : StructType
        The output's Spark types.
    buckets : int, optional
        The number of buckets for parcels of fragments.
    lookup : str, optional
        The text of a `Lookup` for the fragments, before they become parcels.
    """

    scan: Scan
    stored: pa.Schema
    spark: StructType
    buckets: int | None = None
    lookup: str | None = None

    @classmethod
    def bind(
        cls, stored: pa.Schema, scan: Scan, buckets: int | None = None, lookup: str | None = None
    ) -> Pushed:
        """Return the scan for these stored columns.

        Raises
        ------
        InvalidUsageError
            If the scan does not fit the stream, compares text with a collation, or returns a type that Spark
            lacks.
        """
        from penstock.operators.scan.scanner import Scanner

        refuse_collations(spark_schema(stored), _compared_columns(scan))
        schema = spark_schema(Scanner(scan, stored).schema)
        return cls(scan, stored, schema if buckets is None else PARCELS, buckets, lookup)

    def run(self, blocks: Iterable[tuple[Piece, TableBlock]]) -> Iterator[pa.RecordBatch]:
        """Return the scan's output for p-units, in the form in which it crosses to the JVM.

        Raises
        ------
        InvalidUsageError
            If a value has no counterpart in Spark, or an integer overflows.
        CorruptDataError
            If a p-unit is damaged.
        """
        from penstock.operators.scan.scanner import Scanner

        scanner = Scanner(self.scan, self.stored)
        return self._convert(scanner, scanner.run(blocks))

    def scan_tables(self, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Return the scan's output for rows with its columns, as `run` does."""
        from penstock.operators.scan.scanner import Scanner
        from penstock.spark_ext.border.window_packing import MAX_FRAGMENTS

        scanner = Scanner(self.scan, self.stored)
        return self._convert(scanner, scanner.scan_tables(tables, MAX_FRAGMENTS))

    def _convert(self, scanner: Scanner, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self.buckets is not None:
            return self._parcels(scanner, batches, self.buckets)
        schema = as_arrow_of_spark(self.spark)
        return (part for rows in batches for part in split_large(convert(rows, schema)))

    def _parcels(
        self, scanner: Scanner, fragments: Iterable[pa.RecordBatch], buckets: int
    ) -> Iterator[pa.RecordBatch]:
        from penstock.operators.aggregates.wide import schema_like
        from penstock.operators.scan.lookup import Lookup
        from penstock.spark_ext.border.window_packing import EntryPacker, look_up

        made, schema = self.scan.fragments, scanner.schema
        if made is None:
            raise InternalError("parcels are made of fragments")
        if self.lookup is not None:
            lookup = Lookup.from_text(self.lookup)
            crossing = as_arrow_of_spark(spark_schema(schema))
            made, schema = look_up_fragments(made, crossing, lookup.group_by), lookup.schema(crossing)
            typed = (convert(batch, schema_like(crossing, batch.schema)) for batch in fragments)
            fragments = look_up(made, lookup, typed)
        packer = EntryPacker.build(made, schema, buckets)
        yield from packer.pack(fragments, lambda: scanner.null_times)


def _compared_columns(scan: Scan) -> Iterator[str]:
    """Yield the columns whose values a scan may compare."""
    if scan.where is not None:
        yield from Expression.parse(scan.where).columns
    keys: tuple[str, ...] = () if scan.latest_by is None else scan.latest_by.key
    if scan.fragments is not None:
        keys = scan.fragments.group_by
        keys += tuple(one.expression for one in scan.fragments.partials if one.kind == "distinct")
    for name, text in (scan.select or {}).items():
        expression = Expression.parse(text)
        if name in keys or not expression.is_column:
            yield from expression.columns
    if scan.select is None:
        yield from keys


def look_up_fragments(fragments: Fragments, schema: pa.Schema, group_by: tuple[str, ...]) -> Fragments:
    """Return the definition of fragments after a lookup.

    Parameters
    ----------
    fragments : Fragments
        The fragments before the lookup.
    schema : pyarrow.Schema
        The columns of the fragments, in Spark's types.
    group_by : tuple of str
        The groups after the lookup.
    """
    unit = "us" if pa.types.is_timestamp(schema.field(PANE).type) else fragments.time_unit
    return replace(fragments, time=PANE, time_unit=unit, group_by=group_by)


def split_large(rows: pa.RecordBatch, batch_bytes: int = _BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Split large batches of rows before they cross to the JVM."""
    parts = min(rows.num_rows, 1 + rows.nbytes // batch_bytes)
    edges = [rows.num_rows * part // parts for part in range(parts + 1)] if parts else []
    for low, high in pairwise(edges):
        yield rows.slice(low, high - low)
