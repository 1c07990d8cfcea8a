"""Queues over Kafka's encoded records. Only the records that leave the queue are decoded.

If the key and time of a queue are Kafka's own columns, the queue can choose the newest record of a key
without decoding values. Such a pipeline runs as ``source -> queue -> decode -> results -> sink``. The results
are the same as if the records were decoded before the queue: in both cases an unreadable record is a row,
which may be the newest of its key. `Pipeline.decodes_late` says which pipelines run in this way.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from penstock.conf.pipeline import KafkaSource, Pipeline
from penstock.errors import InternalError
from penstock.jobs.pipelines.graph import SOURCE
from penstock.jobs.pipelines.schemas import encoding_of
from penstock.jobs.pipelines.sources import kafka_records, section
from penstock.spark_ext.kafka.decode import decode_kafka, drop_tombstones

__all__ = ["decode_results", "read_encoded"]

_VALUE: Final = "kafka_value"


def read_encoded(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame | str]:
    """Return the source of a pipeline that decodes late, with Kafka's columns and the encoded value."""
    source = _source(pipeline)
    with section(SOURCE):
        records = kafka_records(spark, source)
        if source.has_changes:
            records = drop_tombstones(records)
        own = [sf.col(column).alias(f"kafka_{column}") for column in source.kafka_columns]
        return {SOURCE: records.select(*own, sf.col("value").alias(_VALUE))}


def decode_results(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Decode the rows that the queue emits, and apply the filter and projection of `results`."""
    source = _source(pipeline)
    own = [sf.col(f"kafka_{column}").alias(column) for column in source.kafka_columns]
    rows = decode_kafka(
        rows.select(*own, sf.col(_VALUE).alias("value")),
        source.columns,
        format=source.decoded_format or "json",
        keep=source.kafka_columns,
        **encoding_of(source),
        name=SOURCE,
    )
    results = pipeline.results
    if results is not None and results.filter is not None:
        rows = rows.where(results.filter)
    if results is not None and results.projection is not None:
        rows = rows.selectExpr(*results.projection)
    return rows


def _source(pipeline: Pipeline) -> KafkaSource:
    if not isinstance(pipeline.source, KafkaSource):
        raise InternalError("only records of Kafka are decoded late")
    return pipeline.source
