"""`transactions`: a stored procedure over any streaming DataFrame."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.cast import fits
from penstock.operators.update_stream.operator_options import StateOptions
from penstock.procedures.engine import REJECTED, event_schema, result_schema
from penstock.procedures.procedure import Procedure
from penstock.procedures.routing import check_routing, routing_attribute
from penstock.procedures.workflows.workflow import Workflow
from penstock.spark_ext.border.parcels import PARCELS
from penstock.spark_ext.border.transaction_packing import TransactionPacker
from penstock.spark_ext.border.types import spark_schema
from penstock.spark_ext.worker.stateful import Stateful, arrow_schema, check_streaming, with_safe_names
from penstock.spark_ext.worker.transaction_operator import TransactionOperator
from penstock.state_store.bucket_store import RETAIN_VERSIONS

__all__ = ["transactions"]

_ORDERS = ("arrival",)
_OURS = ("bucket", "transaction", REJECTED)


def transactions(
    df: DataFrame,
    procedure: Procedure | Workflow,
    *,
    time: str | None = None,
    order: str = "arrival",
    keep: str | Iterable[str] = (),
    buckets: int | None = None,
    compatible_with: str | None = None,
    state_location: str | os.PathLike[str] | None = None,
    retain_versions: int = RETAIN_VERSIONS,
    name: str = "transactions",
) -> DataFrame:
    """Run a transaction for each row of a stream, exactly once; return results and rejections.

    The transactions of a bucket run one after the other, in the order of arrival: micro-batch by micro-batch,
    and in each by `time`, then by position. Each is a row of the result, for ``outputMode("append")``:
    ``bucket``; ``transaction``, its number in the bucket; the columns of `keep`; the procedure's results; and
    ``rejected``, the reason for a rejection, or null if it was committed.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame; its columns are the attributes of the event.
    procedure : Procedure or Workflow
        The stored procedure, or the workflow, of which a round runs for each row.
    time : str, optional
        A timestamp, date or integer column that orders the transactions of a micro-batch.
    order : {"arrival"}
        The order of transactions.
    keep : str or iterable of str
        Columns of `df` that leave with the results.
    buckets : int, optional
        The number of buckets for the rows of tables. A transaction accesses rows of one bucket: all its keys
        have the same event attribute in the partitioning columns of their tables. Otherwise there is one
        bucket for all transactions. By default the number of shuffle partitions, or one. Fixed for the life
        of a checkpoint.
    compatible_with : str, optional
        The digest of the checkpoint's first program, if the procedure has changed since and its new text may
        use the old tables. Without it a changed program is refused.
    state_location : str or path, optional
        The directory for state; by default the state location of the database, or the Spark setting
        ``spark.penstock.stateLocation``.
    retain_versions : int
        The number of versions of each bucket's tables that stay loadable.
    name : str
        The operator's name in metrics and state, the same at a restart.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong, the procedure does not compile for these columns, or its transactions access
        several buckets. A restart with another program, other tables or another number of buckets fails the
        query.

    Examples
    --------
    >>> results = penstock.transactions(transfers, transfer, time="ts", keep="id",
    ...     state_location="/var/lib/penstock")  # doctest: +SKIP
    """
    check_streaming(df)
    if not isinstance(procedure, Procedure | Workflow):
        raise InvalidUsageError(
            "this is no procedure or workflow",
            got=type(procedure).__name__,
            hint="use @database.procedure or database.workflow(...)",
        )
    if order not in _ORDERS:
        raise InvalidUsageError("an option has an unknown value", option="order", got=order, known=_ORDERS)
    large = df.sparkSession.conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"
    given = arrow_schema(df.schema, large=large)
    program = procedure.program(_plain_types(given))
    event = event_schema(program.event)
    for field in event:
        if not fits(given.field(field.name).type, field.type):
            raise InvalidUsageError(
                "a column has another type than the event",
                column=field.name,
                type=given.field(field.name).type,
                declared=field.type,
                hint="cast it",
            )
    kept = (keep,) if isinstance(keep, str) else tuple(keep)
    _check_columns(df, kept, time, result_schema(program).names)
    route = routing_attribute(program)
    options = StateOptions(
        buckets=1 if buckets is None and route is None else buckets,
        state_location=state_location or procedure.location,
        retain_versions=retain_versions,
    )
    place = Stateful.of(df.sparkSession, name, options)
    if place.buckets > 1:
        check_routing(program)
    needed = tuple(dict.fromkeys([*event.names, *kept]))
    operator = TransactionOperator(
        program=program,
        tables=tuple(procedure.tables.values()),
        needed=needed,
        keep=kept,
        time=time,
        identity=compatible_with or program.digest,
    )
    own = pa.schema([field for field in result_schema(program) if field.name != REJECTED])
    output = StructType([
        StructField("bucket", IntegerType()),
        StructField("transaction", LongType()),
        *(df.schema[name] for name in kept),
        *spark_schema(own),
        StructField(REJECTED, StringType()),
    ])  # fmt: skip
    packer = TransactionPacker(given, needed, time, route, place.buckets)
    parcels = with_safe_names(df).mapInArrow(packer, PARCELS)
    return place.run(parcels, operator, output, arrow_schema(output, large=large), waits=False)


def _plain_types(schema: pa.Schema) -> pa.Schema:
    """Return the columns with types that event attributes may have."""
    return pa.schema([
        field.with_type(pa.string()) if pa.types.is_large_string(field.type) else field for field in schema
    ])  # fmt: skip


def _check_columns(df: DataFrame, keep: tuple[str, ...], time: str | None, results: list[str]) -> None:
    for name in (*keep, *([time] if time is not None else [])):
        if name not in df.columns:
            raise InvalidUsageError("there is no such column", column=name)
    names = [*_OURS[:2], *keep, *results]
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise InvalidUsageError(
            "two columns of the result have the same name",
            columns=twice,
            hint="rename those of keep= or returns=",
        )
    if time is not None:
        kind = df.schema[time].dataType.simpleString()
        if kind not in ("timestamp", "timestamp_ntz", "date", "bigint", "int", "smallint", "tinyint"):
            raise InvalidUsageError("a column of this type cannot be the time", column=time, type=kind)
