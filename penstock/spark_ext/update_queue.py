"""`update_queue`: an update queue over any streaming DataFrame."""

from __future__ import annotations

import json
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkTypeError, UnsupportedOperationException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import DataType, DoubleType, StructField, StructType

from penstock._clock import now_us
from penstock.checkpointing.files import open_files
from penstock.errors import InternalError, InvalidUsageError, PenstockError
from penstock.operators.key_queue import Policy
from penstock.operators.serve import STALENESS_COLUMN, Apply, Budget, Query
from penstock.operators.stream import UpdateStream
from penstock.spark_ext.arrow_settings import skip_size_of_each_row
from penstock.spark_ext.bucket_task import BucketTask, Parcel
from penstock.spark_ext.buckets import bucket_labels
from penstock.spark_ext.metrics import OBSERVATION_PREFIX
from penstock.spark_ext.packing import Packer
from penstock.spark_ext.parcels import PARCEL_SCHEMA, Unpacker, from_parcel, to_parcels
from penstock.spark_ext.wake_source import with_wake
from penstock.state_store.bucket_store import RETAIN_VERSIONS, FileId, Pointer, Version
from penstock.units import parse_duration_us

__all__ = ["STATE_LOCATION_SETTING", "update_queue"]

STATE_LOCATION_SETTING = "spark.penstock.stateLocation"
"""The Spark setting that says where state lives when no `state_location` is given."""

_RESULT_SCHEMA = "payload binary, metrics string"
_POINTER_SCHEMA = "version long, file_id string"
_SCHEME = re.compile("[a-z0-9+.-]+:", re.IGNORECASE)
_NULLS = ("error", "drop")
_COMBINE: dict[Any, bool | None] = {"auto": None, True: True, False: False}


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
    arrival: str | None = None,
    cost: str | None = None,
    nulls: str = "error",
    combine: bool | str = "auto",
    staleness_column: bool = False,
    state_location: str | os.PathLike[str] | None = None,
    retain_versions: int = RETAIN_VERSIONS,
    name: str = "update_queue",
) -> DataFrame:
    """Keep only the newest tuple of each key, and serve as many keys a trigger as the budget allows.

    Each micro-batch puts its tuples into the queue, where a newer tuple of a key takes the place of
    an older one; then up to `budget` keys leave it in the order of `policy`. What still waits is
    served in later triggers, also without new input. The result is for ``outputMode("append")``.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame. All its columns and types are kept.
    key : str or iterable of str
        The update key's columns.
    time : str
        The column that orders the updates of a key; the later arrival wins a tie.
    policy : {"in_place", "fifo", "linecutting"}
        Which waiting key is served next (UpStream §5.2, §5.3).
    budget : int, str or None
        What a trigger may serve: so many rows; or, with `apply`, so much time such as ``"800ms"``,
        in each of Spark's parallel tasks; or all that waits.
    apply : callable, optional
        The query, run inside the operator: from a ``pyarrow.Table`` of newest tuples to one of
        results. It may drop or multiply rows but not lose or change their key.
    output_schema : StructType or str, optional
        Schema of the results of `apply` (a DDL string will do); needed with `apply`, must have the key.
    buckets : int, optional
        Into how many parts the keys are divided; a multiple of the shuffle partitions spreads evenly.
        Fixed for the life of a checkpoint. By default the number of shuffle partitions.
    arrival : str, optional
        A timestamp column that says when a tuple arrived; staleness counts from it. By default a tuple
        arrives when its micro-batch does.
    cost : str, optional
        The time that one tuple costs, such as ``"2ms"``, for linecutting; measured by default.
    nulls : {"error", "drop"}
        What happens to rows with a null key, time or arrival (or a NaN time): the query fails, or
        they are dropped and counted.
    combine : bool or "auto"
        Whether the map side conflates before the shuffle; ``"auto"`` does where that pays.
    staleness_column : bool
        Add ``queue_staleness_ms``, how long the key had waited when it was served. `apply` sees it.
    state_location : str or path, optional
        The directory for state: a path, or a URI of a file system that pyarrow knows (``s3://``, ``gs://``,
        ``abfss://``, ``hdfs://``); by default the Spark setting ``spark.penstock.stateLocation``.
    retain_versions : int
        How many versions of each bucket's state stay loadable.
    name : str
        The operator's name in metrics and state, unique within a query and the same at a restart.

    Returns
    -------
    DataFrame
        A streaming DataFrame.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong. What can only be seen later (null keys, an `apply` that misbehaves,
        a restart with other settings, damaged state) fails the query with an error of `penstock.errors`.

    Examples
    --------
    >>> newest = penstock.update_queue(
    ...     quotes, key="symbol", time="time", policy="linecutting", budget=1000,
    ...     state_location="/var/lib/penstock",
    ... )  # doctest: +SKIP
    """
    spark = df.sparkSession
    if not df.isStreaming:
        raise InvalidUsageError("the DataFrame is not streaming", hint="use spark.readStream")
    if not _is_name(name):
        raise InvalidUsageError(
            "the name is not usable", name=repr(name), hint="use letters, digits, _ and -"
        )
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
    if buckets is not None and not _is_positive(buckets):
        raise InvalidUsageError("the number of buckets is no positive integer", buckets=repr(buckets))
    if not _is_positive(retain_versions):
        raise InvalidUsageError(
            "the number of retained versions is no positive integer", retain_versions=repr(retain_versions)
        )
    large = spark.conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"

    def arrow(schema: StructType) -> pa.Schema:
        return _arrow_schema(schema, large=large)

    stream = UpdateStream(arrow(df.schema), _key_columns(key), time, arrival)
    output = _output_schema(df.schema, apply, output_schema, staleness_column=staleness_column)
    limit = _budget(budget, apply)
    task = BucketTask(
        name=name,
        state_location=_state_location(df, state_location),
        stream=stream,
        policy=_one_of("policy", policy, Policy),
        cost_us=None if cost is None else _positive("cost", cost),
        query=Query(apply, arrow(output), stream.key, staleness_column),
        budget=limit,
        buckets=buckets or partitions,
        parallel=partitions,
        columns=tuple(f"{column.name} {column.dataType.simpleString()}" for column in df.schema),
        retain_versions=retain_versions,
    )
    if nulls not in _NULLS:
        raise InvalidUsageError("there is no such option", option="nulls", got=nulls, known=_NULLS)
    if combine not in _COMBINE:
        raise InvalidUsageError(
            "there is no such option", option="combine", got=combine, known=list(_COMBINE)
        )
    skip_size_of_each_row(spark)
    waits = limit != Budget()
    timeout = GroupStateTimeout.ProcessingTimeTimeout if waits else GroupStateTimeout.NoTimeout
    packer = Packer(stream, task.buckets, nulls, _COMBINE[combine], name)
    parcels = _findable(df).mapInArrow(packer, PARCEL_SCHEMA)
    if waits:
        parcels = with_wake(parcels)
    results = parcels.groupBy("bucket").applyInPandasWithState(
        _BucketFunction(task, waits), _RESULT_SCHEMA, _POINTER_SCHEMA, "append", timeout
    )
    observed = results.observe(
        OBSERVATION_PREFIX + name, sf.listagg("metrics", sf.lit("\n")).alias("metrics")
    )
    return observed.mapInArrow(Unpacker(arrow(output)), output)


@dataclass(frozen=True)
class _BucketFunction:
    """The function of ``applyInPandasWithState``: called once per bucket and micro-batch, in a worker."""

    task: BucketTask
    waits: bool

    def __call__(
        self, key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        context = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch_id = context.getLocalProperty("streaming.sql.batchId") if context else None
        if not query_id or batch_id is None:
            raise InternalError("Spark did not say which query and batch this task belongs to")
        bucket = bucket_labels(self.task.buckets).index(int(key[0]))
        pointer = None
        if state.exists:
            version, file_id = state.get
            pointer = Pointer(Version(int(version)), FileId(str(file_id)))
        parcels = (
            Parcel(int(dropped), from_parcel(payload) if payload else None)
            for frame in frames
            for dropped, payload in zip(frame["dropped"], frame["payload"], strict=True)
        )
        try:
            pointer, batches, metrics = self.task.run(
                query_id, int(batch_id), bucket, pointer, parcels, now_us
            )
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
        for payload in to_parcels(batches):
            yield pd.DataFrame({"payload": [payload], "metrics": [None]}, dtype=object)
        yield pd.DataFrame({"payload": [None], "metrics": [json.dumps(metrics.to_json())]}, dtype=object)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name != "" and all(c.isalnum() or c in "_-" for c in name)


def _is_positive(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number > 0


def _key_columns(key: str | Iterable[str]) -> tuple[str, ...]:
    if isinstance(key, str):
        return (key,)
    if not isinstance(key, Iterable):
        raise InvalidUsageError("the update key is no column name, nor several of them", key=repr(key))
    return tuple(key)


def _arrow_schema(schema: StructType, *, large: bool) -> pa.Schema:
    fields: list[Any] = []
    for column in schema:
        try:
            one = to_arrow_schema(StructType([column]), timezone="UTC", prefers_large_types=large)
        except (PySparkTypeError, UnsupportedOperationException) as error:
            raise InvalidUsageError(
                "a column of this type cannot go through an update queue",
                column=column.name,
                type=column.dataType.simpleString(),
                hint="cast it or drop it first",
            ) from error
        fields += one
    return pa.schema(fields)


def _findable(df: DataFrame) -> DataFrame:
    """Return `df` with columns that mapInArrow, which looks them up by name, finds.

    It does not find names with dots, nor tell apart those that differ only in case. Other names stay, for
    new ones cost a copy of each row.
    """
    names = df.columns
    if len({name.lower() for name in names}) == len(names) and all(name.isidentifier() for name in names):
        return df
    return df.toDF(*(f"c{place}" for place in range(len(names))))


def _state_location(df: DataFrame, given: str | os.PathLike[str] | None) -> str:
    location = given or df.sparkSession.conf.get(STATE_LOCATION_SETTING, None)
    if not location:
        raise InvalidUsageError(
            "nothing says where state lives",
            hint=f"pass state_location= or set {STATE_LOCATION_SETTING}; it must survive restarts, "
            "as the checkpoint does",
        )
    if not _SCHEME.match(os.fspath(location)):
        # Workers, and the next start, may have other working directories.
        location = Path(location).absolute()
    open_files(location)
    return os.fspath(location)


def _budget(budget: int | str | None, apply: Apply | None) -> Budget:
    if budget is None:
        return Budget()
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise InvalidUsageError(
            "the budget is neither rows nor a duration",
            budget=repr(budget),
            hint="pass a number of rows, a text such as '800ms', or None",
        )
    if isinstance(budget, int):
        if budget <= 0:
            raise InvalidUsageError(
                "the budget is not positive", budget=budget, hint="None serves all that waits"
            )
        return Budget(rows=budget)
    duration_us = _positive("budget", budget)
    if apply is None:
        raise InvalidUsageError(
            "a budget of time needs apply=, whose time it measures",
            budget=budget,
            hint="pass a number of rows instead",
        )
    return Budget(duration_us=duration_us)


def _positive(option: str, text: str) -> int:
    duration_us = parse_duration_us(text)
    if duration_us <= 0:
        raise InvalidUsageError("a duration is not positive", option=option, got=text)
    return duration_us


def _one_of(option: str, got: str, kind: Callable[[str], Policy]) -> Policy:
    try:
        return kind(got)
    except ValueError:
        raise InvalidUsageError(
            "there is no such option", option=option, got=got, known=[str(p) for p in Policy]
        ) from None


def _output_schema(
    schema: StructType,
    apply: Apply | None,
    given: StructType | str | None,
    *,
    staleness_column: bool,
) -> StructType:
    if staleness_column and STALENESS_COLUMN in schema.names:
        raise InvalidUsageError("the stream has this column already", column=STALENESS_COLUMN)
    if apply is None:
        if given is not None:
            raise InvalidUsageError("output_schema is for the results of apply, which is missing")
        added = [StructField(STALENESS_COLUMN, DoubleType())] if staleness_column else []
        return StructType([*schema.fields, *added])
    if not callable(apply):
        raise InvalidUsageError("apply is not callable", got=type(apply).__name__)
    if given is None:
        raise InvalidUsageError("apply needs output_schema, the schema of its results")
    parsed = DataType.fromDDL(given) if isinstance(given, str) else given
    if not isinstance(parsed, StructType):
        raise InvalidUsageError("output_schema is no list of columns", output_schema=given)
    repeated = sorted({name for name in parsed.names if parsed.names.count(name) > 1})
    if repeated:
        raise InvalidUsageError("column names of output_schema repeat", columns=repeated)
    return parsed
