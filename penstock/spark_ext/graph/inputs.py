"""Check the DataFrames passed to a graph's start."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.dataflow.nodes import StreamTableJoin
from penstock.ddl import quote
from penstock.errors import InvalidUsageError
from penstock.spark_ext.border.types import check_same

__all__ = ["check_frame", "check_one_row_each"]


def check_frame(df: DataFrame, wanted: StructType, name: str, *, streaming: bool) -> DataFrame:
    """Check a DataFrame, and select the wanted columns.

    Raises
    ------
    InvalidUsageError
        If a column is missing or of another type, or the DataFrame is wrongly streaming or not streaming.
    """
    if df.isStreaming != streaming:
        raise InvalidUsageError(
            "a source must be a streaming DataFrame, and a table a static one",
            name=name,
            is_streaming=df.isStreaming,
        )
    there = df.select(*(quote(name) for name in wanted.names if name in df.columns))
    try:
        check_same(there.schema, wanted, name)
    except InvalidUsageError as error:
        raise InvalidUsageError(
            "a DataFrame does not have the columns that the graph declares",
            name=name,
            missing=error.context["missing"],
            types=error.context["types"],
        ) from None
    return there


def check_one_row_each(table: DataFrame, node: StreamTableJoin) -> None:
    """Refuse a table that would turn one update into several tuples (UpStream §3.2)."""
    keys = [quote(name) for name in node.on]
    # A null matches no key.
    table = table.where(" AND ".join(f"{name} IS NOT NULL" for name in keys))
    if table.groupBy(*keys).count().where("count > 1").limit(1).count():
        raise InvalidUsageError(
            "a lookup table has several rows for one update",
            hint="look up by columns that are unique in the table, or aggregate it first",
            table=node.table,
            columns=", ".join(node.on),
        )
