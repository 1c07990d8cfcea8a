"""The common parts of stateful operators on Spark: checks, Spark's plan, the state's location."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import Accumulator, TaskContext
from pyspark.errors import PySparkTypeError, UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BinaryType, BooleanType, IntegerType, StringType, StructField, StructType

from penstock._clock import monotonic_s, now_us
from penstock.checkpointing.files import absolute_location, open_files
from penstock.errors import InternalError, InvalidUsageError, PenstockError
from penstock.operators.update_stream.deletes import DELETED_COLUMN
from penstock.operators.update_stream.lives import silent_field
from penstock.operators.update_stream.operator_options import StateOptions
from penstock.operators.update_stream.options import column_names
from penstock.spark_ext.api.metrics import OBSERVATION_PREFIX
from penstock.spark_ext.border.arrow_settings import rows_of_a_batch, skip_size_of_each_row
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.collations import refuse_collations
from penstock.spark_ext.border.connection import (
    analyzed_plan,
    check_own_readers,
    local_processors,
    own_workers_of,
)
from penstock.spark_ext.border.parcels import COORDINATOR, PARCELS, SIDE, Unpacker, from_parcel, to_parcels
from penstock.spark_ext.border.spark_versions import as_arrow_schema
from penstock.spark_ext.foreach_batch import batch_of_setting
from penstock.spark_ext.pacing import Interval, Intervals, pace_of
from penstock.spark_ext.sources.wake import add_wake
from penstock.spark_ext.worker.bucket_task import BucketTask, Operator, Parcel
from penstock.spark_ext.worker.python_workers import prepare_workers
from penstock.spark_ext.worker.restart import forget_with_plan, plan_task
from penstock.state_store.bucket_store import FileId, Pointer, Version

if TYPE_CHECKING:
    import pandas as pd

    # The codecs are loaded only by processes that write.
    from penstock.spark_ext.forwarding.coordinator import Coordinator
    from penstock.spark_ext.sources.p_stream_rows import OperatorRows

__all__ = [
    "STATE_LOCATION_SETTING",
    "Stateful",
    "arrow_schema",
    "check_streaming",
    "columns_of",
    "key_columns",
    "result_frames",
    "with_mark",
    "with_safe_names",
    "with_silent",
]

STATE_LOCATION_SETTING = "spark.penstock.stateLocation"
"""The Spark setting with the default of `state_location`."""

_RESULT_SCHEMA = StructType().add("payload", BinaryType()).add("metrics", StringType())
_TARGETED_SCHEMA = StructType([*_RESULT_SCHEMA, *StructType().add("target", IntegerType())])
"""The output of buckets that have a coordinator; `target` is a bucket's label, or `COORDINATOR`."""
_POINTER_SCHEMA = "version long, file_id string"

_CHECKS_OPERATORS = "spark.sql.streaming.unsupportedOperationCheck"
_SPARK_OPERATOR = "FlatMapGroupsInPandasWithState"
_HELD_BYTES = 32 << 20
"""The bytes of a bucket's output that Spark may buffer."""


@dataclass(frozen=True, slots=True)
class Stateful:
    """A stateful operator's name, buckets and state location in a query. The driver makes this object.

    Parameters
    ----------
    name : str
        The operator's name in metrics and state.
    buckets : int
        The number of buckets for the keys.
    parallel : int
        The number of Spark's shuffle partitions.
    state_location : str
        The state location: an absolute path or a URI.
    retain_versions : int
        The number of versions of the state that stay loadable.
    declared : bool
        Whether Spark must not be asked for columns; see `penstock.spark_ext.declared`.
    """

    name: str
    buckets: int
    parallel: int
    state_location: str
    retain_versions: int
    declared: bool = False

    @staticmethod
    def plan(spark: SparkSession, name: str, options: StateOptions, *, declared: bool = False) -> Stateful:
        """Return the name, buckets and state location of an operator in a query of a session.

        Raises
        ------
        InvalidUsageError
            If the name or the location is wrong, or workers on a cluster run a Python without Penstock's
            dependencies.
        """
        prepare_workers(spark)
        if not _is_name(name):
            raise InvalidUsageError(
                "the name is not allowed", name=repr(name), hint="use letters, digits, _ and -"
            )
        partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
        location = _state_location(spark, options.state_location)
        buckets = options.buckets or partitions
        return Stateful(name, buckets, partitions, location, options.retain_versions, declared)

    def run(
        self,
        parcels: DataFrame,
        operator: Operator[Any],
        output: StructType,
        rows: pa.Schema,
        *,
        waits: bool,
        paces: bool = False,
        own_workers: bool = False,
        into: OperatorRows | None = None,
        route: str = "",
        origin: Mapping[str, Any] | None = None,
        coordinator: Coordinator | None = None,
    ) -> DataFrame:
        """Return the output of an operator.

        Parameters
        ----------
        parcels : DataFrame
            The input, with `PARCELS`, and with `SIDE` if there are several inputs.
        operator : Operator
            The operator to run for each bucket.
        output : StructType
            The output's columns.
        rows : pyarrow.Schema
            The output's Arrow schema.
        waits : bool
            Whether keys may be left for later triggers. If so, Spark triggers even without new input.
        paces : bool
            Whether the operator has a freshness contract, which chooses the trigger interval.
        own_workers : bool
            Whether the operator runs in separate workers, because its state is slow to reload. If workers
            also read rows, a bucket rarely gets the worker that holds its state, because Spark assigns idle
            workers in turn. Separate workers take more than a second to start.
        into : OperatorRows, optional
            Writes the operator's results. If given, the output is descriptors instead of rows.
        route : str
            How rows reach the operator; a part of its name in Spark's plans.
        origin : mapping, optional
            See `BucketTask`.
        coordinator : Coordinator, optional
            Runs the transactions that buckets export, in one task after the buckets. Both can make a
            version of a bucket in one micro-batch, so twice as many versions are kept.
        """
        skip_size_of_each_row(parcels.sparkSession)
        versions = self.retain_versions * (1 if coordinator is None else 2)
        task = BucketTask(
            *(self.name, self.state_location, operator, self.buckets, self.parallel, versions),
            origin=origin or {},
            processors=local_processors(parcels.sparkSession),
        )
        timeout = GroupStateTimeout.ProcessingTimeTimeout if waits else GroupStateTimeout.NoTimeout
        if waits:
            parcels = add_wake(parcels)
        if self.declared:
            parcels = parcels.to(PARCELS)
        spark = parcels.sparkSession
        planned = plan_task(spark, task, route, waits=waits)
        pace = pace_of(spark) if paces else None
        function = _BucketFunction(
            planned, task, waits, rows_of_a_batch(spark), into, coordinator is not None, pace
        )
        schema = _RESULT_SCHEMA if coordinator is None else _TARGETED_SCHEMA
        with own_workers_of(parcels.sparkSession, enabled=own_workers):
            grouped = parcels.groupBy("bucket")
            results = grouped.applyInPandasWithState(function, schema, _POINTER_SCHEMA, "append", timeout)
            forget_with_plan(planned, function, results)
        if self.declared:
            results = results.to(schema)
        if coordinator is not None:
            # The shuffle needs rows. A projection that computes a column turns Arrow batches into rows.
            targeted = results.selectExpr("payload", "metrics", f"coalesce(target, {COORDINATOR}) AS target")
            # Descriptors are few, so one task is fastest. Rows may be too many for one task.
            targeted = targeted.repartition(1) if into else targeted.repartition(self.parallel, "target")
            # Copies of tables stay in separate workers, which run nothing but the coordinator.
            copies = coordinator.forwarding.copies_buckets
            with own_workers_of(parcels.sparkSession, enabled=copies, kind="coordinator"):
                results = targeted.mapInArrow(replace(coordinator, into=into), _RESULT_SCHEMA)
        observed = results.observe(
            OBSERVATION_PREFIX + self.name, sf.listagg("metrics", sf.lit("\n")).alias("metrics")
        )
        return observed.mapInArrow(Unpacker(rows), output)


@dataclass(frozen=True)
class _BucketFunction:
    """The function of ``applyInPandasWithState``: called once per bucket and micro-batch, in a worker."""

    plan_name: str
    task: BucketTask[Any]
    waits: bool
    batch_rows: int
    into: OperatorRows | None = None
    exports: bool = False
    pace: Accumulator[Intervals] | None = None

    def __post_init__(self) -> None:
        # Spark's plans and errors show a function by this name.
        object.__setattr__(self, "__name__", self.plan_name)

    def __call__(
        self, key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        context = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch_id = context.getLocalProperty("streaming.sql.batchId") if context else None
        name = _query_name(context)
        # Spark puts all jobs of a query's run into one job group.
        run_id = context.getLocalProperty("spark.jobGroup.id") if context else None
        if not query_id or batch_id is None:
            query_id, batch_id, name = batch_of_setting(context, self.plan_name)
            run_id = None
        if not query_id or batch_id is None:
            raise InternalError("Spark did not name the query and the batch of this task")
        bucket = bucket_labels(self.task.buckets).index(int(key[0]))
        pointer = None
        if state.exists:
            version, file_id = state.get
            pointer = Pointer(Version(int(version)), FileId(str(file_id)))
        parcels = (
            Parcel(int(dropped), from_parcel(payload) if payload else None, int(side))
            for frame in frames
            for dropped, payload, side in zip(
                frame["dropped"],
                frame["payload"],
                frame[SIDE] if SIDE in frame else [0] * len(frame),
                strict=True,
            )
        )
        try:
            pointer, batches, metrics = self.task.run(
                query_id, int(batch_id), bucket, pointer, parcels, now_us, name, run_id
            )
            exports: list[pa.RecordBatch] = []
            if self.exports and pointer is not None:
                # The packer's kernels are loaded only by processes that forward transactions.
                from penstock.spark_ext.forwarding.exports import take_exports

                pointer, exports, batches = take_exports(query_id, int(batch_id), bucket, pointer, batches)
            if self.into is not None:
                begin = monotonic_s()
                descriptors = self.into.write(batches, query_id, int(batch_id), bucket)
                batches = [] if descriptors is None else [descriptors]
                metrics.duration_ms["write"] = 1000 * (monotonic_s() - begin)
        except PenstockError as error:
            # Spark shows an exception without its cause, but with its notes.
            if error.__cause__ is not None:
                error.add_note("Caused by: " + "".join(traceback.format_exception(error.__cause__)).rstrip())
            raise
        if pointer is None:
            raise InternalError("a commit gave no pointer")
        state.update((pointer.version, pointer.file_id))
        if self.waits and metrics.waiting_keys:
            state.setTimeoutDuration(1)
        if self.pace is not None:
            self.pace.add({query_id: Interval(int(batch_id), round(metrics.interval_ms))})
        frames = result_frames(to_parcels(batches), self.batch_rows, json.dumps(metrics.to_json()))
        if not self.exports:
            yield from frames
            return
        for frame in frames:
            yield frame.assign(target=np.int32(key[0]))
        for frame in result_frames(to_parcels(exports), self.batch_rows):
            yield frame.assign(target=np.int32(COORDINATOR))


def _query_name(context: TaskContext | None) -> str | None:
    """Return the name of the query whose task runs: Spark describes its jobs as ``NAME<br/>id = ...``."""
    described = context and context.getLocalProperty("spark.job.description")
    name, separator, _ = (described or "").partition("id = ")
    return name.removesuffix("<br/>").strip() or None if separator else None


def result_frames(
    parcels: Iterable[bytes], batch_rows: int, metrics: str | None = None, held_bytes: int = _HELD_BYTES
) -> Iterator[pd.DataFrame]:
    """Return parcels as rows of `_RESULT_SCHEMA`, in frames that bound Spark's buffering.

    The metrics, if any, are in the first row, so that a small result is one row. Spark passes a task's output
    on only when it has more than `batch_rows` rows, whatever their size. So it would hold all windows of a
    large micro-batch at once, in four copies. So after every `held_bytes` bytes, a frame of empty rows makes
    Spark pass the output on.
    """
    import pandas as pd  # only workers of Spark load it

    held = 0
    for parcel in parcels:
        yield pd.DataFrame({"payload": [parcel], "metrics": [metrics]}, dtype=object)
        metrics = None
        held += len(parcel)
        if held >= held_bytes and batch_rows > 0:
            nothing = np.full(batch_rows, None, object)
            yield pd.DataFrame({"payload": nothing, "metrics": nothing})
            held = 0
    if metrics is not None:
        yield pd.DataFrame({"payload": [None], "metrics": [metrics]}, dtype=object)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name != "" and all(c.isalnum() or c in "_-" for c in name)


def key_columns(key: str | Iterable[str], *schemas: StructType) -> tuple[str, ...]:
    """Return the columns that a user's `key` names.

    Raises
    ------
    InvalidUsageError
        If `key` is neither a name nor several names, or a column of `schemas` has a collation.
    """
    names = column_names("key", key)
    for schema in schemas:
        refuse_collations(schema, names)
    return names


def arrow_schema(schema: StructType, *, large: bool) -> pa.Schema:
    """Return the Arrow schema in which Spark passes rows of a schema.

    Raises
    ------
    InvalidUsageError
        If a column's type has no counterpart in Arrow.
    """
    fields: list[Any] = []
    for column in schema:
        try:
            one = as_arrow_schema(StructType([column]), large=large)
        except (PySparkTypeError, UnsupportedOperationException) as error:
            raise InvalidUsageError(
                "a column of this type cannot go through an update queue",
                column=column.name,
                type=column.dataType.simpleString(),
                hint="cast it or drop it first",
            ) from error
        fields += one
    return pa.schema(fields)


def with_safe_names(df: DataFrame, *, declared: bool = False) -> DataFrame:
    """Return `df` with column names that are safe for mapInArrow, which looks columns up by name.

    mapInArrow does not find names with dots, and does not distinguish names that differ only in case. Only
    such columns get new names, because renaming costs a copy of each row.
    """
    names = df.columns
    if len({name.lower() for name in names}) == len(names) and all(name.isidentifier() for name in names):
        return df
    fields = [StructField(f"c{place}", one.dataType, one.nullable) for place, one in enumerate(df.schema)]
    renamed = df.toDF(*(field.name for field in fields))
    return renamed.to(StructType(fields)) if declared else renamed


def with_silent(output: StructType, known: Iterable[str]) -> StructType:
    """Add a mark for rows of silent keys, in which only `known` columns have values.

    Raises
    ------
    InvalidUsageError
        If the output has a column with the name of the mark.
    """
    return with_mark(output, (*known, DELETED_COLUMN), silent_field(output.names).name)


def with_mark(output: StructType, known: Iterable[str], mark: str) -> StructType:
    """Add a mark for rows in which only `known` columns have values; all other columns may be null."""
    never_null = set(known)
    columns = [
        StructField(one.name, one.dataType, one.nullable or one.name not in never_null) for one in output
    ]
    return StructType([*columns, StructField(mark, BooleanType())])


def _state_location(spark: SparkSession, given: str | os.PathLike[str] | None) -> str:
    location = given or spark.conf.get(STATE_LOCATION_SETTING, None)
    if not location:
        raise InvalidUsageError(
            "no location for state is given",
            hint=f"pass state_location= or set {STATE_LOCATION_SETTING}; it must survive restarts, "
            "as the checkpoint does",
        )
    location = absolute_location(location)
    open_files(location)
    return location


def columns_of(schema: StructType) -> tuple[str, ...]:
    """Return names and Spark types of columns, for the check at a restart."""
    return tuple(f"{column.name} {column.dataType.simpleString()}" for column in schema)


def check_streaming(df: DataFrame) -> None:
    """Check that a DataFrame is streaming, and that its query has no operator with state yet.

    Raises
    ------
    InvalidUsageError
        If the DataFrame is not streaming, its query already has an operator with state, or two of its sources
        read a p-stream under one name.
    """
    if not getattr(df, "isStreaming", False):
        raise InvalidUsageError("this is not a streaming DataFrame", hint="use spark.readStream")
    check_own_readers(df)
    if df.sparkSession.conf.get(_CHECKS_OPERATORS, "true") == "true" and _SPARK_OPERATOR in analyzed_plan(df):
        raise InvalidUsageError(
            "a Spark query can hold only one window, update queue, union or join of update streams",
            hint="write the output of the first into a p-stream, and read that in another query; or build a "
            "graph, with persist= after the first",
        )
