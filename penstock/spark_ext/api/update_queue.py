"""`update_queue`: an update queue over any streaming DataFrame."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, DataType, DoubleType, StructField, StructType

from penstock.checkpointing.files import absolute_location
from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError
from penstock.operators.freshness.classes import KeyClasses
from penstock.operators.queues.expiry import Lives
from penstock.operators.scheduling.serve import STALENESS_COLUMN, Budget, Query
from penstock.operators.scheduling.weights import KeyWeights
from penstock.operators.update_stream.deletes import DELETED_COLUMN, check_delete_results, mark_deletes
from penstock.operators.update_stream.lives import Ttl, life_steps
from penstock.operators.update_stream.operator_options import Apply, QueueOptions
from penstock.operators.update_stream.stream import UpdateStream
from penstock.spark_ext.border.packing import Packer
from penstock.spark_ext.border.parcels import PARCELS
from penstock.spark_ext.declared import Schema, declare_columns, parse_columns, with_column
from penstock.spark_ext.sources.task_rows import LateStream, dropped_columns
from penstock.spark_ext.worker.queue_operator import QueueOperator
from penstock.spark_ext.worker.stateful import (
    STATE_LOCATION_SETTING,
    Stateful,
    arrow_schema,
    check_streaming,
    columns_of,
    key_columns,
    with_safe_names,
    with_silent,
)
from penstock.sql.expression import select_item
from penstock.state_store.bucket_store import RETAIN_VERSIONS

__all__ = [
    "STATE_LOCATION_SETTING",
    "PlannedQueue",
    "add_delete_column",
    "plan_queue",
    "run_queue",
    "update_queue",
]


@check_keywords
def update_queue(
    df: DataFrame,
    key: str | Iterable[str],
    time: str,
    policy: str = "in_place",
    budget: int | str | None = None,
    apply: Apply | None = None,
    output_schema: StructType | str | None = None,
    buckets: int | None = None,
    *,
    freshness: Mapping[str, Any] | None = None,
    arrival: str | None = None,
    cost: str | None = None,
    weight: str | Mapping[Any, float] | None = None,
    nulls: str = "error",
    combine: bool | str = "auto",
    staleness_column: bool = False,
    delete_when: str | None = None,
    ttl: Ttl | None = None,
    delete_ttl: Ttl | None = None,
    on_silent: str | None = None,
    semantics: str = "update",
    working_copy: str = "memory",
    late_to: str | os.PathLike[str] | None = None,
    state_location: str | os.PathLike[str] | None = None,
    retain_versions: int = RETAIN_VERSIONS,
    schema: Schema | None = None,
    name: str = "update_queue",
) -> DataFrame:
    """Keep only the newest tuple of each key; serve as many keys per trigger as the budget allows.

    Each micro-batch puts its tuples into the queue, where a newer tuple of a key replaces an older tuple.
    Then up to `budget` keys leave the queue in the order of `policy`. Keys that still wait are served in
    later triggers, even without new input. The result is for ``outputMode("append")``.

    With a budget or a freshness contract, Spark runs micro-batches all the time. To wait until the available
    input is processed and no key waits, call ``processAllAvailable`` on the query that ``start()`` returns.
    With the trigger ``availableNow``, such a query does not end by itself; ``penstock.run`` ends it.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame. All its columns and types are kept.
    key : str or iterable of str
        The update key's columns.
    time : str
        The column that orders the updates of a key; the later arrival wins a tie.
    policy : {"in_place", "fifo", "linecutting", "freshest"}
        The order in which waiting keys are served (UpStream §5.2, §5.3). ``"freshest"``,
        which is not in the paper, first serves the keys whose service lowers staleness most.
    budget : int, str or None
        How much to serve in a trigger: a number of rows; or, with `apply`, a duration such as ``"800ms"``; or
        None to serve all waiting keys. In local mode, the duration applies to the whole trigger; on a
        cluster, to each of Spark's shuffle partitions.
    freshness : mapping, optional
        A contract instead of a budget: how stale results may be, such as ``{"p95": "2 s"}``. The limits may
        differ by class of key: ``{"p95": {"gold": "500 ms", "other": "5 s"}, "by": "tier"}``, with the most
        important class first. A controller then sets the budget, and the metrics show whether the promise
        holds. See ``docs/concepts/freshness.md``.
    apply : callable, optional
        An expensive step, run inside the operator: a function from a ``pyarrow.Table`` of newest tuples to a
        table of results. It may drop rows or return several rows for one row, but must keep the key's
        columns unchanged.
    output_schema : StructType or str, optional
        The schema of the results of `apply`, or its DDL; required with `apply`, and must have the key.
    buckets : int, optional
        The number of buckets for the keys; a multiple of the shuffle partitions spreads evenly. Fixed for the
        life of a checkpoint. By default the number of shuffle partitions.
    arrival : str, optional
        A timestamp column with the arrival time of a tuple, from which staleness is measured. By default a
        tuple arrives with its micro-batch.
    cost : str, optional
        The time to serve one tuple, such as ``"2ms"``, for the policy ``"linecutting"``; measured by default.
        With ``"by key"``, the policy ``"freshest"`` measures the cost of each key; this needs `apply`.
    weight : str or mapping, optional
        The weight of each key, a positive and finite number: either a numeric column, whose value in the
        key's newest tuple is the weight; or, for a key of one column, a mapping from key values to weights
        (keys that are not in the mapping have weight 1). Keys are served in proportion to the square roots of
        their weights. Equal weights do not change the order.
    nulls : {"error", "drop"}
        The treatment of rows with a null key, time or arrival (or a NaN time), or with a weight that is not
        positive and finite: fail the query, or drop and count them.
    combine : bool or "auto"
        Whether the map side conflates rows before the shuffle. With ``"auto"``, it does so if that reduces
        the work.
    semantics : {"update", "append", "adaptive"}
        The effect of a newer tuple on a waiting tuple of its key. With ``"update"`` the newer tuple replaces
        the waiting tuple. With ``"append"`` both tuples wait, so every tuple is served, in the order of
        arrival. ``"adaptive"`` appends while the queue keeps up, and updates under overload. See "Semantics"
        in ``docs/concepts/update-queue.md``.
    working_copy : {"memory", "rocksdb"}
        Where workers hold the keys that do not wait: in memory, or on local disk (``"rocksdb"``) if the keys
        do not fit in memory. Waiting keys are always in memory. The durable state is the same, so a restart
        may change this argument.
    staleness_column : bool
        Whether to add ``queue_staleness_ms``, the wait of the key until it was served. `apply` sees it;
        it is in the output only if it is in `output_schema`.
    delete_when : str, optional
        An SQL condition for the rows that delete their key, such as ``"op = 'd'"``. The queue adds the
        boolean column ``deleted``, which is true in such rows; in all other respects these rows are ordinary
        updates. `apply` sees the column, and `output_schema` must have it. An update that is older than the
        delete does not bring the key back. See "Deletes" in ``docs/concepts/update-queue.md``.
    ttl : str, timedelta or int, optional
        How long a key stays in the state after its last update, such as ``"1 day"``; by default for ever. If
        `time` is an integer, `ttl` is a number in the same unit. The newest `time` of all rows so far counts
        as the current time. See "Keys that go silent" in ``docs/concepts/update-queue.md``.
    delete_ttl : str, timedelta or int, optional
        The same for deleted keys; by default `ttl`.
    on_silent : {"row"}, optional
        With ``"row"``, the output gets a row with the key and its last time when a key leaves after `ttl`.
        The output has the boolean column ``silent``, which is true in such rows.
    late_to : str or path, optional
        The location of a p-stream to which each dropped row is written exactly once. The columns are all
        columns of `df`, ``reason`` (``"late"``, or why the row is refused), and ``watermark``. If the row is
        late, ``watermark`` is the time of the key's newest emitted tuple. Tuples that were replaced by a
        newer tuple are not written. With this option all rows cross the shuffle, because the map side does
        not conflate. See ``docs/how-to/late-rows.md``.
    state_location : str or path, optional
        The directory for state: a path, or a URI of a file system that pyarrow supports (``s3://``,
        ``gs://``, ``abfss://``, ``hdfs://``); by default the Spark setting ``spark.penstock.stateLocation``.
    retain_versions : int
        The number of versions of each bucket's state that stay loadable.
    schema : StructType or str, optional
        The columns of `df`, or their DDL; `df` is cast to these columns as by `DataFrame.to`. If given,
        Penstock does not ask Spark Connect for the columns; flows of declarative pipelines need this. See
        ``docs/reference/spark-versions.md``.
    name : str
        The operator's name in metrics and state, unique within a query and the same at a restart.

    Returns
    -------
    DataFrame
        A streaming DataFrame.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong. Problems at run time (null keys, wrong results of `apply`, a restart with
        different settings, damaged state) fail the query with an error of `penstock.errors`.

    Examples
    --------
    >>> newest = penstock.update_queue(
    ...     quotes, key="symbol", time="time", policy="linecutting", budget=1000,
    ...     state_location="/var/lib/penstock",
    ... )  # doctest: +SKIP
    """
    options = QueueOptions(
        policy=policy, budget=budget, freshness=freshness, apply=apply,
        output_schema=output_schema, buckets=buckets, arrival=arrival, cost=cost, weight=weight,
        nulls=nulls, combine=combine, staleness_column=staleness_column, delete_when=delete_when, ttl=ttl,
        delete_ttl=delete_ttl, on_silent=on_silent, semantics=semantics,
        working_copy=working_copy, late_to=late_to, state_location=state_location,
        retain_versions=retain_versions,
    )  # fmt: skip
    df, declared = declare_columns(df, schema)
    return run_queue(df, key, time, options, name, declared=declared)


def run_queue(
    df: DataFrame,
    key: str | Iterable[str],
    time: str,
    options: QueueOptions,
    name: str,
    source: str | None = None,
    *,
    declared: bool = False,
) -> DataFrame:
    """Return the output of an update queue; see `update_queue`.

    Parameters
    ----------
    source : str, optional
        The column that decides ties in a union (`penstock.operators.update_stream.stream.UpdateStream`). The
        output does not have this column.
    declared : bool
        Whether the schema was given, so that Spark must not be asked for columns.
    """
    if not declared:
        check_streaming(df)
    if options.delete_when is not None:
        df = add_delete_column(df, options.delete_when, declared=declared)
    place = Stateful.plan(df.sparkSession, name, options, declared=declared)
    large = df.sparkSession.conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"
    planned = plan_queue(df.schema, key, time, options, place, source, large=large)
    parcels = with_safe_names(df, declared=declared).mapInArrow(planned.packer, PARCELS)
    return place.run(
        parcels, planned.operator, planned.output, planned.rows, waits=planned.waits,
        paces=options.contract is not None,
    )  # fmt: skip


@dataclass(frozen=True)
class PlannedQueue:
    """An update queue that is planned for a schema.

    Parameters
    ----------
    packer : Packer
        The map side.
    operator : QueueOperator
        The operator of the buckets.
    output : StructType
        The output's columns.
    rows : pyarrow.Schema
        The output's Arrow schema.
    waits : bool
        Whether keys may be left for later triggers.
    """

    packer: Packer
    operator: QueueOperator
    output: StructType
    rows: pa.Schema
    waits: bool


def plan_queue(
    schema: StructType,
    key: str | Iterable[str],
    time: str,
    options: QueueOptions,
    place: Stateful,
    source: str | None = None,
    *,
    large: bool = False,
) -> PlannedQueue:
    """Plan an update queue; needs no Spark session.

    Parameters
    ----------
    schema : StructType
        The columns of the input, with `DELETED_COLUMN` if there are deletes.
    key, time, options, source
        See `run_queue`.
    place : Stateful
        The operator's name, buckets and state location.
    large : bool
        Whether texts and binary values have offsets of 64 bits.
    """
    name = place.name

    def arrow(schema: StructType) -> pa.Schema:
        return arrow_schema(schema, large=large)

    weight = options.weight
    column, by_key = (weight, None) if isinstance(weight, str) else (None, weight)
    arrow_columns = arrow(schema)
    lives_end = options.ttl is not None or options.delete_ttl is not None
    deleted = DELETED_COLUMN if lives_end and _marks_deletes(arrow_columns) else None
    stream = UpdateStream(
        arrow_columns, key_columns(key, schema), time, options.arrival, source, column, deleted,
        None if options.contract is None else KeyClasses.of(options.contract), options.costs_by_key,
    )  # fmt: skip
    columns = StructType([one for one in schema if one.name != source])
    output = _output_schema(columns, options, declared=place.declared)
    if options.delete_when is not None:
        check_delete_results(arrow(output))
    results = output if options.on_silent is None else with_silent(output, (*stream.key, stream.time))
    late = None
    if options.late_to is not None:
        dropped = dropped_columns(columns, columns[time].dataType)
        late = LateStream.open(absolute_location(options.late_to), name, dropped, place.state_location)
    operator = QueueOperator(
        stream,
        options,
        Query(options.apply, arrow(output), stream.key, options.staleness_column),
        columns_of(schema),
        None if by_key is None else KeyWeights(stream, by_key),
        _lives(stream, options),
        None if results is output else arrow(results),
        late,
    )
    combine = None if options.combine == "auto" and options.may_conflate else bool(options.may_conflate)
    form = None if late is None else late.form
    packer = Packer(stream, place.buckets, options.nulls, combine, name, tells_newest=lives_end, dropped=form)
    return PlannedQueue(packer, operator, results, arrow(results), options.limits != Budget())


def _marks_deletes(columns: pa.Schema) -> bool:
    return DELETED_COLUMN in columns.names and columns.field(DELETED_COLUMN).type == pa.bool_()


def _lives(stream: UpdateStream, options: QueueOptions) -> Lives:
    """Return how long keys live, in units of the column `time`."""
    if options.delete_ttl is not None and stream.deleted is None:
        raise InvalidUsageError("delete_ttl is for streams with deletes", hint="pass delete_when, too")
    kind = stream.schema.field(stream.time).type
    key = life_steps("ttl", options.ttl, kind)
    deleted = life_steps("delete_ttl", options.delete_ttl, kind)
    return Lives(key, key if deleted is None else deleted)


def add_delete_column(df: DataFrame, delete_when: str, *, declared: bool = False) -> DataFrame:
    """Return the rows with a column that marks deletes."""
    condition, columns = mark_deletes(delete_when, df.columns)
    if not declared:
        kind = df.selectExpr(condition.text).schema[0].dataType
        if not isinstance(kind, BooleanType):
            raise InvalidUsageError(
                "delete_when is not a condition", delete_when=delete_when, type=kind.simpleString()
            )
    marked = df.selectExpr(*(select_item(name, expression) for name, expression in columns))
    return marked.to(with_column(df.schema, DELETED_COLUMN, BooleanType())) if declared else marked


def _output_schema(schema: StructType, options: QueueOptions, *, declared: bool) -> StructType:
    given = options.output_schema
    if options.staleness_column and STALENESS_COLUMN in schema.names:
        raise InvalidUsageError("the stream has this column already", column=STALENESS_COLUMN)
    if options.apply is None:
        added = [StructField(STALENESS_COLUMN, DoubleType())] if options.staleness_column else []
        return StructType([*schema.fields, *added])
    if declared:
        return parse_columns(given, "output_schema")
    parsed = DataType.fromDDL(given) if isinstance(given, str) else given
    if not isinstance(parsed, StructType):
        raise InvalidUsageError("output_schema is not a list of columns", output_schema=given)
    repeated = sorted({name for name in parsed.names if parsed.names.count(name) > 1})
    if repeated:
        raise InvalidUsageError("column names of output_schema repeat", columns=repeated)
    return parsed
