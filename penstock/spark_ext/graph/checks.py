"""Check the DataFrames that are passed to the start of a graph, and name nodes in errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.dataflow.nodes import (
    Node,
    PushedScan,
    Source,
    StreamTableJoin,
)
from penstock.ddl import quote
from penstock.errors import InvalidUsageError
from penstock.operators.types import scan_schema
from penstock.spark_ext.api.failure import spark_message
from penstock.spark_ext.border.types import check_same
from penstock.sql.evaluate import needs_ansi
from penstock.sql.expression import Expression

__all__ = [
    "check_frame",
    "check_one_row_each",
    "errors_named",
    "find_ansi_expressions",
]


@contextmanager
def errors_named(node: Node) -> Iterator[None]:
    """Add a node's name to errors while its DataFrame is built, unless the node is a source.

    Raises
    ------
    InvalidUsageError
        In place of an error of Spark's analyser, with the node's name.
    """
    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise InvalidUsageError(spark_message(error), node=node.name) from error
    except InvalidUsageError as error:
        if isinstance(node, Source) or "node" in error.context:
            raise
        raise InvalidUsageError(error.fact, hint=error.hint, **error.context, node=node.name) from error


def find_ansi_expressions(node: PushedScan) -> Iterator[Expression]:
    """Yield a reader's expressions that Spark may compute differently outside ANSI mode."""
    scan, read = node.scan, node.inputs[0].schema
    texts = [] if scan.where is None else [scan.where]
    output = scan_schema(replace(scan, fragments=None, latest_by=None), read)
    pairs = [(text, read) for text in [*texts, *(scan.select or {}).values()]]
    if scan.fragments is not None:
        pairs += [
            (partial.expression, output) for partial in scan.fragments.partials if partial.expression != "*"
        ]
    for text, schema in pairs:
        expression = Expression.parse(text)
        if needs_ansi(expression, schema):
            yield expression


def check_frame(df: DataFrame, schema: StructType, name: str, *, streaming: bool) -> DataFrame:
    """Check the columns of a DataFrame, and select the columns of `schema`.

    Raises
    ------
    InvalidUsageError
        If a column is missing or has the wrong type, or the DataFrame is a stream but must be a batch, or the
        other way round.
    """
    if df.isStreaming != streaming:
        raise InvalidUsageError(
            "a source must be a streaming DataFrame, and a table a static one",
            name=name,
            is_streaming=df.isStreaming,
        )
    columns = df.select(*(quote(name) for name in schema.names if name in df.columns))
    try:
        check_same(columns.schema, schema, name)
    except InvalidUsageError as error:
        raise InvalidUsageError(
            "a DataFrame does not have the columns that the graph declares",
            name=name,
            missing=error.context["missing"],
            types=error.context["types"],
        ) from None
    return columns


def check_one_row_each(table: DataFrame, node: StreamTableJoin) -> None:
    """Refuse a table in which one update would match several rows (UpStream §3.2)."""
    keys = [quote(name) for name in node.on]
    # A null key matches nothing.
    table = table.where(" AND ".join(f"{name} IS NOT NULL" for name in keys))
    if table.groupBy(*keys).count().where("count > 1").limit(1).count():
        raise InvalidUsageError(
            "a lookup table has several rows for one update",
            hint="look up by columns that are unique in the table, or aggregate it first",
            table=node.table,
            columns=", ".join(node.on),
        )
