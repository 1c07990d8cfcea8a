"""`transactions`: a stored procedure over any streaming DataFrame."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.operator_options import (
    TransactionArguments,
    TransactionOptions,
)
from penstock.operators.update_stream.options import column_names
from penstock.procedures.analysis.columns import ResultRows, batch_column, program_for, transaction_schema
from penstock.procedures.analysis.routing import routing_attribute
from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.engine import event_schema
from penstock.procedures.partitions.bucket_forwarding import Forwarding
from penstock.procedures.procedure import Procedure
from penstock.procedures.workflows.workflow import Workflow
from penstock.spark_ext.border.initial_rows import Given, InitialRows
from penstock.spark_ext.border.parcels import PARCELS
from penstock.spark_ext.border.transaction_packing import Route, TransactionPacker
from penstock.spark_ext.border.types import as_arrow_of_spark, spark_schema
from penstock.spark_ext.declared import Schema, declare_columns
from penstock.spark_ext.forwarding.coordinator import Coordinator
from penstock.spark_ext.sources.p_stream_rows import DESCRIPTORS, OperatorRows
from penstock.spark_ext.sources.transaction_scan import PieceReader, parcels_of_p_stream
from penstock.spark_ext.worker.requests import PlannedRequests
from penstock.spark_ext.worker.stateful import Stateful, arrow_schema, check_streaming, with_safe_names
from penstock.spark_ext.worker.transaction_operator import TransactionOperator
from penstock.state_store.bucket_store import RETAIN_VERSIONS

__all__ = [
    "choose_buckets",
    "plan_procedure",
    "plan_transactions",
    "transactions",
    "write_transactions",
]


@check_keywords
def transactions(
    df: DataFrame,
    procedure: Procedure | Workflow,
    *,
    time: str | None = None,
    order: str = "arrival",
    keep: str | Iterable[str] = (),
    buckets: int | None = None,
    initial: Given | None = None,
    requests: str | os.PathLike[str] | None = None,
    batch: str | int | None = None,
    compatible_with: str | None = None,
    state_location: str | os.PathLike[str] | None = None,
    retain_versions: int = RETAIN_VERSIONS,
    schema: Schema | None = None,
    name: str = "transactions",
) -> DataFrame:
    """Run a transaction for each row of a stream, exactly once; return results and rejections.

    The transactions of a bucket run one after the other, in the order of arrival: micro-batch by micro-batch,
    and within a micro-batch by `time`, then by position.

    The result is for ``outputMode("append")`` and has one row for each transaction. Its columns are
    ``bucket``; ``transaction``, the transaction's number in the bucket; the columns of `keep`; the
    procedure's results; and ``rejected``, the reason for a rejection, or null if the transaction was
    committed.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame; its columns are the attributes of the event.
    procedure : Procedure or Workflow
        The stored procedure; or the workflow, which runs one round for each row.
    time : str, optional
        A timestamp, date or integer column that orders the transactions of a micro-batch.
    order : {"arrival", "any"}
        The order of transactions. With ``"arrival"``, results and tables are the same as in a serial run in
        the order of arrival. With ``"any"``, transactions over several buckets run after all other
        transactions of their micro-batch, so fewer transactions are forwarded. The results have two more
        columns, ``batch`` and ``forwarded``. The transactions ran in the order of ``batch``, then
        ``forwarded``, then arrival.
    keep : str or iterable of str
        Columns of `df` to add to the results.
    buckets : int, optional
        The number of buckets among which the rows of tables are divided. By default this is the number of
        shuffle partitions if each transaction accesses only one bucket, otherwise one. A transaction accesses
        only one bucket if one attribute of the event is the value of the partitioning column in all keys that
        the transaction uses. With more than one bucket, a transaction over several buckets is forwarded to a
        coordinator. For this, the event must determine the transaction's buckets: the value of each
        partitioning column must be an attribute of the event, an element of one of its lists, or a value of
        the procedure's route. Tables without a partitioning column are replicated, and a transaction that
        writes a replicated table needs all buckets. The number of buckets is fixed for the life of a
        checkpoint.
    initial : mapping, optional
        The initial rows of tables by name, each a batch DataFrame or an Arrow table with the columns of the
        table. Initial rows are loaded once, with the first micro-batch of a checkpoint; restarts ignore them.
        All initial rows pass through the driver.
    requests : str or path, optional
        The location of clients' requests, which run in the same query: ``database.connect(requests)`` makes a
        client that calls procedures. The requests of a micro-batch run before its events, in the order in
        which they were sent; each runs once and gets one answer. The location is fixed for the life of a
        checkpoint.
    batch : str or int, optional
        Groups the rows of a workflow into atomic batches; each batch is one round. With a column, a batch is
        consecutive rows with the same value in this column. With a number, a batch is this many consecutive
        rows. A batch runs when it is complete. A batch of equal values is complete when a row with a
        different value arrives. Atomic batches need `buckets` = 1, and this argument is fixed for the life of
        a checkpoint.
    compatible_with : str, optional
        The digest of the checkpoint's first program. Pass it if the procedure has changed since the
        checkpoint was made and its new text works with the old tables. Without this argument, a changed
        program is refused. If the old program has begun a micro-batch, finish that micro-batch with the old
        program first.
    state_location : str or path, optional
        The directory for state; by default the state location of the database, or the Spark setting
        ``spark.penstock.stateLocation``.
    retain_versions : int
        The number of versions of each bucket's tables that stay loadable.
    schema : StructType or str, optional
        The columns of `df`, or their DDL; see `penstock.update_queue`. If given, the rows of `initial` must
        be Arrow tables, and `requests` are not available.
    name : str
        The operator's name in metrics and state, the same at a restart.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong; if the procedure does not compile for these columns; or if its transactions
        access several buckets and the event does not determine these buckets. A restart with a different
        program, different tables or a different number of buckets fails the query.

    Examples
    --------
    >>> results = penstock.transactions(transfers, transfer, time="ts", keep="id",
    ...     state_location="/var/lib/penstock")  # doctest: +SKIP
    """
    options = TransactionOptions(
        order=order,
        buckets=buckets,
        requests=requests,
        batch=batch,
        compatible_with=compatible_with,
        state_location=state_location,
        retain_versions=retain_versions,
    )
    keep_names = column_names("keep", keep)
    df, declared = declare_columns(df, schema)
    return plan_transactions(
        df, procedure, time, keep_names, options, name, initial, declared=declared
    ).results()


@check_keywords
def write_transactions(
    df: DataFrame,
    procedure: Procedure | Workflow,
    path: str | os.PathLike[str],
    *,
    time: str | None = None,
    keep: str | Iterable[str] = (),
    initial: Given | None = None,
    name: str = "transactions",
    sink: Mapping[str, Any] | None = None,
    **options: Unpack[TransactionArguments],
) -> DataStreamWriter:
    """Run a transaction for each row of a stream; write results and rejections to a p-stream.

    Works like `transactions`, except that the tasks of the buckets write the results themselves, so the
    results do not pass through Spark.

    Parameters
    ----------
    df, procedure, time, keep, initial, name, **options
        See `transactions`.
    path : str or path
        The location of the p-stream, which is created if it does not exist.
    sink : mapping, optional
        Options of the data source ``pstream`` for writing, such as ``goal``, which is ``"fast"`` by default.

    Returns
    -------
    DataStreamWriter
        The writer; give it a checkpoint and a trigger, and start it.

    Raises
    ------
    InvalidUsageError
        As for `transactions`; or if the results do not fit the p-stream, or an option is wrong.

    Examples
    --------
    >>> writer = penstock.write_transactions(transfers, transfer, "/data/results",
    ...     state_location="/var/lib/penstock")  # doctest: +SKIP
    >>> writer.option("checkpointLocation", "/data/checkpoint").start()  # doctest: +SKIP
    """
    keep_names = column_names("keep", keep)
    planned = plan_transactions(df, procedure, time, keep_names, TransactionOptions(**options), name, initial)
    sink_options = {key: str(value) for key, value in (sink or {}).items()} | {"path": os.fspath(path)}
    writer = planned.descriptors(sink_options).writeStream.format("pstream")
    return writer.options(**sink_options).options(descriptors="true", deterministic="true")


@dataclass(frozen=True)
class PlannedTransactions:
    """Transactions in a query. The driver makes this object.

    Parameters
    ----------
    place : Stateful
        The name, buckets and state location of the transactions.
    parcels : DataFrame
        The input.
    operator : TransactionOperator
        The operator to run for each bucket.
    schema : StructType
        The columns of results.
    rows : pyarrow.Schema
        The Arrow schema of results.
    route : Route
        How rows reach their bucket. Spark's plans show it as a part of the operator's name.
    coordinator : Coordinator, optional
        Runs the transactions that need several buckets.
    """

    place: Stateful
    parcels: DataFrame
    operator: TransactionOperator
    schema: StructType
    rows: pa.Schema
    route: Route
    coordinator: Coordinator | None = None

    def results(self) -> DataFrame:
        """Return the results."""
        return self.place.run(
            self.parcels,
            self.operator,
            self.schema,
            self.rows,
            waits=False,
            route=self.route.value,
            origin=self.operator.origin,
            own_workers=self.coordinator is not None,
            coordinator=self.coordinator,
        )

    def descriptors(self, sink: Mapping[str, str]) -> DataFrame:
        """Return the descriptors of results that tasks write to a p-stream.

        Parameters
        ----------
        sink : mapping of str to str
            Options of the data source ``pstream``, with the path.

        Raises
        ------
        InvalidUsageError
            If an option is wrong, or the results do not fit the p-stream.
        """
        return self.place.run(
            self.parcels,
            self.operator,
            DESCRIPTORS,
            as_arrow_of_spark(DESCRIPTORS),
            waits=False,
            into=OperatorRows.bind(sink, self.schema),
            route=self.route.value,
            origin=self.operator.origin,
            own_workers=self.coordinator is not None,
            coordinator=self.coordinator,
        )


def plan_transactions(
    df: DataFrame,
    procedure: Procedure | Workflow,
    time: str | None,
    keep: tuple[str, ...],
    options: TransactionOptions,
    name: str,
    initial: Given | None = None,
    *,
    declared: bool = False,
) -> PlannedTransactions:
    """Plan transactions in a query; see `transactions`."""
    if time is not None:
        column_names("time", time)
    if not declared:
        check_streaming(df)
    elif options.requests is not None:
        raise InvalidUsageError("transactions take requests only without schema=")
    large = df.sparkSession.conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"
    columns = arrow_schema(df.schema, large=large)
    program = program_for(procedure, columns)
    options, route = choose_buckets(program, options)
    options = replace(options, state_location=options.state_location or procedure.location)
    place = Stateful.plan(df.sparkSession, name, options, declared=declared)
    kind = None if route is None else columns.field(route).type
    rows = None
    if initial:
        rows = InitialRows.read(df.sparkSession, initial, procedure.tables.values(), place.buckets, kind)
    planned = plan_procedure(df.schema, columns, procedure, program, time, keep, options, place, route, rows)
    rows_schema = arrow_schema(planned.schema, large=large)
    parcels, reader, way = _parcels_of(df, planned.packer, declared=declared)
    operator = replace(planned.operator, reader=reader)
    if options.requests is not None:
        asked = PlannedRequests.plan(
            df.sparkSession, options.requests, procedure.catalog, place.buckets, kind, name
        )
        parcels = parcels.union(asked.parcels)
        operator = replace(operator, requests=asked.programs, answers=asked.answers)
    return PlannedTransactions(
        place, parcels, operator, planned.schema, rows_schema, way, planned.coordinator
    )


@dataclass(frozen=True)
class PlannedProcedure:
    """Planned transactions without their input. Planning them needs no Spark session.

    Parameters
    ----------
    operator : TransactionOperator
        The operator to run for each bucket.
    packer : TransactionPacker
        Packs the events.
    schema : StructType
        The columns of results.
    coordinator : Coordinator, optional
        Runs the transactions that need several buckets.
    """

    operator: TransactionOperator
    packer: TransactionPacker
    schema: StructType
    coordinator: Coordinator | None


def choose_buckets(
    program: Program | PlainProgram, options: TransactionOptions
) -> tuple[TransactionOptions, str | None]:
    """Return the options, and the event attribute that determines the bucket.

    If the number of buckets is not given and no attribute determines the bucket, the returned options have
    one bucket.
    """
    route = routing_attribute(program) if options.batch is None else None
    return replace(
        options, buckets=1 if options.buckets is None and route is None else options.buckets
    ), route


def plan_procedure(
    given: StructType,
    columns: pa.Schema,
    procedure: Procedure | Workflow,
    program: Program | PlainProgram,
    time: str | None,
    keep: tuple[str, ...],
    options: TransactionOptions,
    place: Stateful,
    route: str | None,
    initial: InitialRows | None,
) -> PlannedProcedure:
    """Plan the transactions of a program over rows with the Spark columns `given` and the Arrow `columns`.

    Raises
    ------
    InvalidUsageError
        As for `transactions`.
    """
    schema = transaction_schema(program, columns, keep, time, options.order)
    batch = batch_column(program, columns, options.batch)
    forwarding = None
    if place.buckets > 1:
        if options.batch is not None:
            raise InvalidUsageError(
                "atomic batches need one bucket", buckets=place.buckets, hint="leave out buckets="
            )
        if route is None:
            forwarding = Forwarding.plan(program, place.buckets, options.order)
    needed = tuple(dict.fromkeys([*event_schema(program.event).names, *batch, *keep]))
    operator = TransactionOperator(
        program=program,
        tables=tuple(procedure.tables.values()),
        needed=needed,
        keep=keep,
        time=time,
        identity=options.compatible_with or program.digest,
        initial=initial,
        batch=options.batch,
        order=options.order,
        forwarding=forwarding,
    )
    own = spark_schema(pa.schema([field for field in schema if field.name not in keep]))
    output = StructType([given[field.name] if field.name in keep else own[field.name] for field in schema])
    wakes = initial is not None
    packer = TransactionPacker(columns, needed, time, route, place.buckets, wakes, forwarding)
    coordinator = None
    if forwarding is not None:
        made = ResultRows(keep, options.order)
        coordinator = Coordinator(
            place.name, place.state_location, forwarding, operator.tables, len(needed), made
        )
    return PlannedProcedure(operator, packer, output, coordinator)


def _parcels_of(
    df: DataFrame, packer: TransactionPacker, *, declared: bool
) -> tuple[DataFrame, PieceReader | None, Route]:
    """Return the parcels of events, the reader of rows that bypass the parcels, and the route."""
    from_stream = None if packer.forwarding is not None else parcels_of_p_stream(df, packer)
    if from_stream is None:
        return with_safe_names(df, declared=declared).mapInArrow(packer, PARCELS), None, Route.SPARK
    parcels, reader = from_stream
    return (parcels, None, Route.READERS) if packer.buckets > 1 else (parcels, reader, Route.BUCKET)
