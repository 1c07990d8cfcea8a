"""Columns that a caller declares, so that Spark Connect analyses nothing while an operator is created.

Flows of declarative pipelines need this: in a flow, a client cannot ask the server for columns, because the
server refuses or the table does not exist yet. `DataFrame.to` tells the client the columns. Operators call it
again after each step whose columns the client cannot know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    DataType,
    DateType,
    IntegralType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError
from penstock.operators.types import UNKNOWN, aggregate_type, declared_type
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.spark_ext.border.connection import check_own_readers, is_connect
from penstock.spark_ext.border.types import as_arrow_of_spark, spark_schema
from penstock.sql.expression import Expression

__all__ = [
    "TIME",
    "Schema",
    "aggregate_fields",
    "declare_columns",
    "declare_sides",
    "parse_columns",
    "whole_name",
    "window_columns",
    "with_column",
]

TIME = "__penstock_time"
"""The name of the time column in the rows that windows read."""

Schema = StructType | str
"""Columns, or their DDL."""


def declare_columns(df: DataFrame, schema: Schema | None) -> tuple[DataFrame, bool]:
    """Cast the input of an operator to the columns that its caller declares.

    Parameters
    ----------
    df : DataFrame
        The input.
    schema : StructType or str, optional
        The declared columns; by default the columns of the input. A classic session analyses the input in any
        case.

    Returns
    -------
    tuple of DataFrame and bool
        The input with these columns, in this order, and whether Spark must not be asked for columns.

    Raises
    ------
    InvalidUsageError
        If the schema is not a list of columns, or two sources of the input read a p-stream under the same
        reader name.
    """
    if schema is None:
        return df, False
    check_own_readers(df)
    return df.to(parse_columns(schema, "schema")), is_connect(df.sparkSession)


def declare_sides(
    left: DataFrame, right: DataFrame, schema: Schema | Mapping[str, Schema] | None
) -> tuple[DataFrame, DataFrame, bool]:
    """Cast both sides of a join to the declared columns; see `declare_columns`.

    Raises
    ------
    InvalidUsageError
        As for `declare_columns`; or if a mapping of schemas has a key other than ``left`` and ``right``.
    """
    schemas = schema if isinstance(schema, Mapping) else {"left": schema, "right": schema}
    if schemas.keys() != {"left", "right"}:
        raise InvalidUsageError("schema= of a join names other sides than left and right", sides=[*schemas])
    left, declared = declare_columns(left, schemas["left"])
    right, _ = declare_columns(right, schemas["right"])
    return left, right, declared


def parse_columns(schema: Schema, option: str) -> StructType:
    """Return columns without asking Spark.

    Raises
    ------
    InvalidUsageError
        If `schema` is neither columns nor their DDL, or two columns have the same name.
    """
    if isinstance(schema, str):
        return spark_schema(parse_schema(schema))
    if not isinstance(schema, StructType):
        raise InvalidUsageError(
            f"{option} is not a list of columns", got=repr(schema), hint="write 'symbol string, price double'"
        )
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise InvalidUsageError(f"column names of {option} repeat", columns=twice)
    return schema


def with_column(columns: StructType, name: str, kind: DataType) -> StructType:
    """Add a last column without nulls; it replaces any column of the same name."""
    kept = [field for field in columns if field.name.lower() != name.lower()]
    return StructType([*kept, StructField(name, kind, nullable=False)])


def whole_name(place: int) -> str:
    """Return a unique name for the input column at this position, for use in the rows that windows read."""
    return f"{RESERVED_PREFIX}whole_{place}"


def window_columns(
    columns: StructType,
    keys: Iterable[str],
    time: str,
    values: Mapping[str, str],
    flags: Iterable[str],
    *,
    whole: bool,
) -> StructType:
    """Return the columns of the rows that windows read.

    Parameters
    ----------
    columns : StructType
        The columns of the input.
    keys : iterable of str
        The columns of the group.
    time : str
        The column of the time.
    values : mapping of str to str
        Further columns, and the expressions that compute them.
    flags : iterable of str
        The names of columns whose values are 0 and 1.
    whole : bool
        Whether to append all columns of the input, under the names of `whole_name`.

    Raises
    ------
    InvalidUsageError
        If only Spark can determine the type of an expression.
    """
    at = columns[time].dataType
    if isinstance(at, DateType):
        at = TimestampType()
    elif isinstance(at, IntegralType):
        at = LongType()
    arrow = as_arrow_of_spark(columns)
    types = {name: (text, declared_type(Expression.parse(text), arrow)) for text, name in values.items()}
    fields = [StructField(TIME, at), *(columns[name] for name in keys), *_fields(types)]
    fields += [StructField(name, LongType()) for name in flags]
    kept = enumerate(columns) if whole else ()
    return StructType([*fields, *(StructField(whole_name(place), one.dataType) for place, one in kept)])


def aggregate_fields(aggregates: Mapping[str, str], columns: StructType) -> list[StructField]:
    """Return the columns that aggregates make.

    Raises
    ------
    InvalidUsageError
        If only Spark can determine the type of an aggregate.
    """
    arrow = as_arrow_of_spark(columns)
    return _fields(
        {name: (text, aggregate_type(Expression.parse(text), arrow)) for name, text in aggregates.items()}
    )


def _fields(found: Mapping[str, tuple[str, pa.DataType]]) -> list[StructField]:
    for text, kind in found.values():
        if kind == UNKNOWN:
            raise InvalidUsageError(
                "only Spark knows the type of an expression, and with schema= Spark is not asked",
                expression=text,
                hint="write its argument as a cast, such as sum(cast(... AS DOUBLE)), or make it a column of "
                "the input, whose type schema= declares",
            )
    return list(spark_schema(pa.schema([pa.field(name, kind) for name, (_, kind) in found.items()])))
