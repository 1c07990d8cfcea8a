"""Records of JSON or CSV that cannot be read, or that have a field of the wrong type.

Such records are counted, and kept, skipped or refused. If a p-stream is given, they are also written to it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import BooleanType, StringType

from penstock.checkpointing.files import absolute_location
from penstock.conf.values import OnError
from penstock.errors import InternalError, InvalidUsageError
from penstock.spark_ext.api.metrics import BAD_RECORDS_PREFIX
from penstock.spark_ext.border.types import as_arrow_of_spark
from penstock.spark_ext.sources.p_stream_options import WriteOptions
from penstock.spark_ext.sources.p_stream_rows import SegmentRows, open_stream
from penstock.spark_ext.sources.rejected import NOT_JSON, REFUSAL, REFUSAL_HINT, REJECTED, WRONG_TYPE
from penstock.spark_ext.sources.task_rows import TaskRows

__all__ = ["BAD_RECORD", "count_bad_records", "json_reason", "reject_bad_records"]

BAD_RECORD: Final = "__penstock_bad_record"
"""The column in which Spark's parsers put the text of a bad record; null for good records."""

_FILE_TASKS: Final = "spark.sql.files.minPartitionNum"
_MIN_FILE_TASKS: Final = "32"
"""Spark cuts files into at least this many parts, of 4 MiB or more."""


def count_bad_records(
    rows: DataFrame, place: str, on_error: OnError, file: Column | None = None
) -> DataFrame:
    """Return a source's rows without the column `BAD_RECORD`, and count the bad records.

    Parameters
    ----------
    rows : DataFrame
        The rows of the source, with the column `BAD_RECORD`.
    place : str
        The source's name in the pipeline. Spark observes the count under this name.
    on_error : {"keep", "skip", "fail"}
        The treatment of bad records.
    file : Column, optional
        The file of a record, which the error of ``"fail"`` names.
    """
    is_bad = sf.col(BAD_RECORD).isNotNull()
    rows = rows.observe(BAD_RECORDS_PREFIX + place, sf.count_if(is_bad).alias("records"))
    if on_error == "skip":
        rows = rows.where(~is_bad)
    elif on_error == "fail":
        fact = sf.lit(f"{REFUSAL}: source={place}")
        fact = fact if file is None else sf.concat(fact, sf.lit(" file="), file)
        refusal = sf.raise_error(sf.concat(fact, sf.lit(f". Hint: {REFUSAL_HINT}")))
        rows = rows.where(sf.when(is_bad, refusal.cast("boolean")).otherwise(True))
    return rows.drop(BAD_RECORD)


def json_reason(text: Column) -> Column:
    """Return the reason why a text is not a record of the schema."""
    return sf.when(sf.try_parse_json(text).isNull(), sf.lit(NOT_JSON)).otherwise(sf.lit(WRONG_TYPE))


def reject_bad_records(
    rows: DataFrame,
    place: str,
    on_error: OnError,
    reject_to: str | os.PathLike[str] | None,
    facts: Mapping[str, Column],
) -> DataFrame:
    """Write the bad records of a source to a p-stream, each exactly once.

    The task of a partition commits its bad records before Spark commits the micro-batch. Python receives only
    the `facts` of bad records. This function sets ``spark.sql.files.minPartitionNum``, unless the session has
    set it.

    Parameters
    ----------
    rows : DataFrame
        The rows of the source, with the column `BAD_RECORD`.
    place : str
        The source's name in the pipeline.
    on_error : {"keep", "skip", "fail"}
        See `count_bad_records`.
    reject_to : str or path, optional
        The location of the p-stream, which is created if it does not exist; None to write nothing.
    facts : mapping of str to Column
        An expression for each known column of `REJECTED`, except `source`.

    Raises
    ------
    InvalidUsageError
        If the location holds something else, or `on_error` is ``"fail"``.
    UnavailableError
        If the location cannot be written.
    """
    if reject_to is None:
        return rows
    if on_error == "fail":
        raise InvalidUsageError(
            "records that fail the query cannot be rejected", hint="use on_error: skip or keep with reject_to"
        )
    if not rows.isStreaming:
        raise InvalidUsageError("only a stream can reject records", reject_to=os.fspath(reject_to))
    _fix_division(rows.sparkSession)
    options = WriteOptions.parse({"path": absolute_location(reject_to)})
    to = TaskRows(options.path, SegmentRows(options, open_stream(options, REJECTED, option="reject_to")))
    columns = {"source": sf.lit(place), **facts}
    # pandas would turn integers with nulls into floats.
    texts = {field.name: field.dataType if field.name == "value" else StringType() for field in REJECTED}
    record = sf.struct(
        *(columns.get(name, sf.lit(None)).cast(kind).alias(name) for name, kind in texts.items())
    )
    # PySpark's annotations do not cover functions of iterators of frames.
    reject = cast("Any", pandas_udf)(_rejecter(to, place), BooleanType())
    return rows.where(reject.asNondeterministic()(sf.when(sf.col(BAD_RECORD).isNotNull(), record)))


def _fix_division(spark: SparkSession) -> None:
    """Make Spark divide the same files among tasks in the same way, whatever the number of cores.

    Each task commits its own bad records. If a micro-batch runs again, it must therefore have the same tasks.
    """
    if spark.conf.get(_FILE_TASKS, None) is None:
        spark.conf.set(_FILE_TASKS, _MIN_FILE_TASKS)


def _rejecter(to: TaskRows, place: str) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.Series]]:
    """Return a pandas UDF that is true for each row, and commits the partition's bad records at the end."""
    schema, number = as_arrow_of_spark(REJECTED), zlib.crc32(place.encode())

    def reject(parts: Iterator[pd.DataFrame]) -> Iterator[pd.Series]:
        held = []
        for part in parts:
            bad = part[part["source"].notna()]
            if len(bad):
                held.append(_as_arrow(bad, schema))
            yield pd.Series(np.ones(len(part), np.bool_))
        if held:
            task = TaskContext.get()
            query = task.getLocalProperty("sql.streaming.queryId") if task else None
            batch = task.getLocalProperty("streaming.sql.batchId") if task else None
            if task is None or query is None or batch is None:
                raise InternalError("Spark did not name the query and the batch of this task")
            to.commit(held, f"{query}-{number:08x}-{task.partitionId()}", int(batch), task.partitionId())

    return reject


def _as_arrow(bad: pd.DataFrame, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        values = pa.array(bad[field.name].tolist(), pa.binary() if field.name == "value" else pa.string())
        columns.append(values.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
