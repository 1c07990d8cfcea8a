"""`apply`: a user-defined operator over any streaming DataFrame."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError
from penstock.operators.own.abc import Operator, output_schema
from penstock.operators.update_stream.operator_options import StateOptions
from penstock.operators.update_stream.options import check_column
from penstock.spark_ext.border.parcels import PARCELS
from penstock.spark_ext.border.types import spark_schema
from penstock.spark_ext.declared import Schema, declare_columns
from penstock.spark_ext.own.operator import OwnOperator
from penstock.spark_ext.own.packing import KeyPacker
from penstock.spark_ext.worker.stateful import (
    Stateful,
    arrow_schema,
    check_streaming,
    columns_of,
    key_columns,
    with_safe_names,
)
from penstock.state_store.bucket_store import RETAIN_VERSIONS

__all__ = ["PlannedOperator", "apply", "plan_operator", "run_operator"]


@check_keywords
def apply(
    df: DataFrame,
    operator: Operator,
    key: str | Iterable[str],
    *,
    time: str | None = None,
    buckets: int | None = None,
    state_location: str | os.PathLike[str] | None = None,
    retain_versions: int = RETAIN_VERSIONS,
    schema: Schema | None = None,
    name: str = "apply",
) -> DataFrame:
    """Run a user-defined operator over a stream, with exactly-once state; return its results.

    The result is for ``outputMode("append")``. See ``docs/how-to/own-code.md``.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame.
    operator : Operator
        The operator. Spark sends it to the workers, so it must be picklable, and workers must be able to
        import its module.
    key : str or iterable of str
        The columns whose rows go to the same bucket. Nulls are equal to each other.
    time : str, optional
        A timestamp, date or integer column, without nulls, that orders the rows of a micro-batch. Rows of
        equal time are in order of arrival. By default all rows are in order of arrival.
    buckets : int, optional
        The number of buckets for the keys; each has a copy of the operator. Fixed for the life of a
        checkpoint. By default the number of shuffle partitions.
    state_location : str or path, optional
        The directory for state; by default the Spark setting ``spark.penstock.stateLocation``.
    retain_versions : int
        The number of versions of each bucket's state that stay loadable.
    schema : StructType or str, optional
        The columns of `df`, or their DDL; see `penstock.update_queue`.
    name : str
        The operator's name in metrics and state, unique within a query and the same at a restart.

    Returns
    -------
    DataFrame
        A streaming DataFrame with the columns of the operator's `output`.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong. An error of the operator fails the query. A restart with a different class,
        key or columns is refused.

    Examples
    --------
    >>> visits = penstock.apply(clicks, Visits(), key="user",
    ...     state_location="/var/lib/penstock")  # doctest: +SKIP
    """
    options = StateOptions(buckets=buckets, state_location=state_location, retain_versions=retain_versions)
    df, declared = declare_columns(df, schema)
    return run_operator(df, operator, key, time, options, name, declared=declared)


def run_operator(
    df: DataFrame,
    operator: Operator,
    key: str | Iterable[str],
    time: str | None,
    options: StateOptions,
    name: str,
    *,
    declared: bool = False,
) -> DataFrame:
    """Return the results of a user-defined operator; see `apply`."""
    if not declared:
        check_streaming(df)
    place = Stateful.plan(df.sparkSession, name, options, declared=declared)
    large = df.sparkSession.conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"
    planned = plan_operator(df.schema, operator, key, time, place, large=large)
    parcels = with_safe_names(df, declared=declared).mapInArrow(planned.packer, PARCELS)
    return place.run(parcels, planned.operator, planned.output, planned.rows, waits=operator.may_wait)


@dataclass(frozen=True)
class PlannedOperator:
    """A user-defined operator that is planned for a schema.

    Parameters
    ----------
    packer : KeyPacker
        The map side.
    operator : OwnOperator
        The operator of the buckets.
    output : StructType
        The output's columns.
    rows : pyarrow.Schema
        The output's Arrow schema.
    """

    packer: KeyPacker
    operator: OwnOperator
    output: StructType
    rows: pa.Schema


def plan_operator(
    schema: StructType,
    operator: Operator,
    key: str | Iterable[str],
    time: str | None,
    place: Stateful,
    *,
    large: bool = False,
) -> PlannedOperator:
    """Plan a user-defined operator; needs no Spark session.

    Parameters
    ----------
    schema : StructType
        The columns of the input.
    operator, key, time
        See `apply`.
    place : Stateful
        The operator's name, buckets and state location.
    large : bool
        Whether texts and binary values have offsets of 64 bits.
    """
    keys = key_columns(key, schema)
    for option, name in (*(("key", name) for name in keys), *([] if time is None else [("time", time)])):
        check_column(option, name, schema.names)
    columns, output = arrow_schema(schema, large=large), spark_schema(output_schema(operator))
    kind = None if time is None else columns.field(time).type
    if kind is not None and not (pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
        raise InvalidUsageError(
            "a column of this type cannot be the time", column=time, type=str(kind),
            hint="use a timestamp, a date or an integer",
        )  # fmt: skip
    rows = arrow_schema(output, large=large)
    own = OwnOperator(operator, columns, rows, keys, time, columns_of(schema))
    return PlannedOperator(KeyPacker(columns, keys, time, place.buckets), own, output, rows)
