"""The initial rows of tables: DataFrames or Arrow tables, loaded once into the buckets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import InvalidUsageError
from penstock.procedures.in_process.arrow_rows import batches_of
from penstock.procedures.schema import TableSpec
from penstock.spark_ext.border.connection import Shared, share
from penstock.spark_ext.border.parcels import from_parcel, to_parcels
from penstock.spark_ext.border.transaction_packing import bucket_of_values

if TYPE_CHECKING:
    from pyspark import Broadcast

__all__ = ["Given", "InitialRows"]

Given: TypeAlias = Mapping[str, DataFrame | pa.Table | pa.RecordBatch]
"""Rows of tables by name."""

_Parcels: TypeAlias = list[dict[str, list[bytes]]]


@dataclass(frozen=True)
class InitialRows:
    """The initial rows of tables, broadcast to Spark's tasks.

    Parameters
    ----------
    parcels : pyspark.Broadcast or Shared
        For each bucket and table, the rows as parcels.
    """

    parcels: Broadcast[_Parcels] | Shared[_Parcels]

    @staticmethod
    def read(
        spark: SparkSession,
        given: Given,
        tables: Iterable[TableSpec],
        buckets: int,
        route: pa.DataType | None,
    ) -> InitialRows:
        """Read rows, check them, and split them by bucket. The driver calls this method.

        Parameters
        ----------
        spark : SparkSession
            The session.
        given : mapping
            The rows.
        tables : iterable of TableSpec
            The tables of the database.
        buckets : int
            The number of buckets.
        route : pyarrow.DataType, optional
            The type of the event attribute that determines the bucket; None if there is only one bucket or no
            such attribute.

        Raises
        ------
        InvalidUsageError
            If a table or a column is unknown, rows do not fit their table, or two rows have the same key.
        """
        parcels = InitialRows.split(given, tables, buckets, route).parcels.value
        return InitialRows(share(spark, parcels, "the initial rows of the tables"))

    @staticmethod
    def split(
        given: Given, tables: Iterable[TableSpec], buckets: int, route: pa.DataType | None
    ) -> InitialRows:
        """Read rows, check them, and split them by bucket, for this process; see `read`."""
        specs = {spec.name: spec for spec in tables}
        parcels: list[dict[str, list[bytes]]] = [{} for _ in range(buckets)]
        for name, rows in given.items():
            if name not in specs:
                raise InvalidUsageError("there is no such table", table=name, known=", ".join(specs))
            spec = specs[name]
            if not isinstance(rows, DataFrame | pa.Table | pa.RecordBatch):
                raise InvalidUsageError(
                    "initial rows of this type are not supported",
                    table=name,
                    got=type(rows).__name__,
                    hint="pass a DataFrame or a pyarrow.Table",
                )
            spec.check_known(rows.columns if isinstance(rows, DataFrame) else rows.schema.names)
            read = rows.toArrow() if isinstance(rows, DataFrame) else rows
            table = pa.Table.from_batches(batches_of(read, spec.schema, owner=name), spec.schema)
            if table.group_by(list(spec.key)).aggregate([]).num_rows < table.num_rows:
                raise InvalidUsageError("two rows have the same key", table=name, key=", ".join(spec.key))
            if spec.partition_by is None:  # each bucket has a copy; Spark sends equal objects once
                copied = list(to_parcels(table.to_batches()))
                for own in parcels:
                    own[name] = copied
                continue
            for bucket, part in _partition(table, spec.name, spec.partition_by, buckets, route):
                parcels[bucket][name] = list(to_parcels(part.to_batches()))
        return InitialRows(Shared(parcels))

    def read_bucket(self, bucket: int) -> Iterable[tuple[str, pa.RecordBatch]]:
        """Return the rows of a bucket, by table. Workers call this method."""
        for name, parcels in self.parcels.value[bucket].items():
            for parcel in parcels:
                yield name, from_parcel(parcel)


def _partition(
    rows: pa.Table, table: str, partition_by: str, buckets: int, route: pa.DataType | None
) -> Iterable[tuple[int, pa.Table]]:
    if buckets == 1:
        yield 0, rows
        return
    values: pa.Array[Any] = rows.column(partition_by).combine_chunks()
    try:
        values = values if route is None else values.cast(route)
    except pa.ArrowInvalid as error:
        raise InvalidUsageError(
            "a row's partitioning value does not fit the type of the events' attribute",
            table=table,
            column=partition_by,
            type=route,
            hint="cast the event's attribute to the type of the column",
        ) from error
    number = bucket_of_values(values, buckets)
    for bucket in range(buckets):
        part = rows.filter(pa.array(number == bucket))
        if part.num_rows:
            yield bucket, part
