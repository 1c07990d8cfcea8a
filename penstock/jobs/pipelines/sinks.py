"""A pipeline's sink as a writer of Spark."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.conf.pipeline import (
    ConsoleSink,
    ForeachBatchSink,
    KafkaSink,
    MemorySink,
    ParquetSink,
    Pipeline,
    SparkSink,
    UpsertSink,
)
from penstock.ddl import quote
from penstock.errors import InternalError
from penstock.jobs.pipelines.functions import import_function
from penstock.jobs.pipelines.sources import resolve, spark_options
from penstock.spark_ext.api.upsert import upsert
from penstock.sql.expression import split_alias

__all__ = ["pack_values", "sink_writer"]


def sink_writer(spark: SparkSession, rows: DataFrame, pipeline: Pipeline) -> DataStreamWriter:
    """Return the writer of a pipeline's results."""
    sink = pipeline.sink
    if isinstance(sink, ConsoleSink):
        options = spark_options(numRows=sink.rows, truncate=sink.truncate)
        return rows.writeStream.format("console").options(**options)
    if isinstance(sink, ParquetSink):
        writer = rows.writeStream.format("parquet").options(**sink.options)
        return writer.option("path", resolve(spark, sink.path))
    if isinstance(sink, KafkaSink):
        records = pack_values(rows, _record_key(pipeline, rows.columns))
        return records.writeStream.format("kafka").options(**sink.options)
    if isinstance(sink, SparkSink):
        writer = rows.writeStream.format(sink.format).options(**sink.options)
        return writer if sink.path is None else writer.option("path", resolve(spark, sink.path))
    if isinstance(sink, UpsertSink):
        return _upsert_writer(rows, pipeline, sink)
    if isinstance(sink, ForeachBatchSink):
        return rows.writeStream.foreachBatch(import_function(sink.function, "sink.function"))
    return rows.writeStream.format("memory" if isinstance(sink, MemorySink) else "noop")


def _upsert_writer(rows: DataFrame, pipeline: Pipeline, sink: UpsertSink) -> DataStreamWriter:
    step = pipeline.step
    key, time = sink.key or (step and step.key), sink.time or (step and step.time)
    if not key or not time:
        raise InternalError("an upsert without key and time passed the checks")
    return upsert(
        rows, to=sink.to, table=sink.table, key=key, time=time,
        delete_when=sink.delete_when, forget_deletes_after=sink.forget_deletes_after,
        create=sink.create, patience=sink.patience,
    )  # fmt: skip


def pack_values(rows: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Return Kafka records of rows.

    Parameters
    ----------
    rows : pyspark.sql.DataFrame
        The rows to send; a record's value is all columns as JSON.
    key : tuple of str
        The columns of the record's key: one column becomes text, several columns become JSON, none becomes
        null.
    """
    columns = [sf.col(quote(name)) for name in rows.columns]
    keys = [sf.col(quote(name)) for name in key]
    name = keys[0].cast("string") if len(keys) == 1 else sf.to_json(sf.struct(*keys))
    if not keys:
        name = sf.lit(None).cast("string")
    return rows.select(name.alias("key"), sf.to_json(sf.struct(*columns)).alias("value"))


def _record_key(pipeline: Pipeline, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a record's key: the update key, the windows' groups, or a transaction's key."""
    if pipeline.database is not None:
        names = pipeline.database.keep or ("bucket", "transaction")
        return tuple(name for name in names if name in columns)
    if pipeline.window is None:
        return pipeline.step.key if pipeline.step is not None else ()
    last = pipeline if pipeline.by_window is None else pipeline.by_window
    return tuple(split_alias(text)[0] for text in last.group_by or ()) or ("window",)
