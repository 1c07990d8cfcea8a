"""Queues over Kafka's encoded records, as in `penstock.jobs.pipelines.late_decoding`, on the local engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.conf.kafka_source import KafkaSource
from penstock.dataflow import Graph
from penstock.dataflow.nodes import Where
from penstock.jobs.pipelines.schemas import encoding_of, schema_of
from penstock.local_engine.builder.stateless import NodeRows, keep_matching, select_columns
from penstock.local_engine.operators import MicroBatch
from penstock.local_engine.records.bad_records import BadRecords, Records
from penstock.spark_ext.border.types import as_arrow_of_spark, spark_schema, stored_schema
from penstock.spark_ext.graph.steps import split_steps

__all__ = ["EncodedRecords", "decode_results", "encoded_schema"]

_PREFIX: Final = "kafka_"


def encoded_schema(source: KafkaSource) -> pa.Schema:
    """Return the columns before the queue: Kafka's own columns, and the encoded value."""
    raw = schema_of(source.model_copy(update={"value_format": "raw"}))
    names = [*source.kafka_columns, "value"]
    encoded = pa.schema([raw.field(name).with_name(f"{_PREFIX}{name}") for name in names])
    return stored_schema(spark_schema(encoded))  # the types with which p-streams store Spark's columns


class EncodedRecords:
    """A decoder for `KafkaInput` that decodes nothing: it selects the columns that the queue needs.

    Parameters
    ----------
    source : KafkaSource
        The source.
    """

    def __init__(self, source: KafkaSource) -> None:
        self._names = encoded_schema(source).names
        self._has_changes = source.has_changes

    def decode(self, records: pa.Table) -> Records:
        """Return the rows of raw records."""
        if self._has_changes:
            # Debezium sends a record without a value after each delete, for Kafka's compaction.
            records = records.filter(pc.is_valid(records["value"]))
        rows = records.select([name.removeprefix(_PREFIX) for name in self._names])
        return Records(rows.rename_columns(self._names), (), dict)


def decode_results(node_rows: NodeRows, graph: Graph, source: KafkaSource, place: str, zone: str) -> NodeRows:
    """Decode the rows that the queue emits, and apply the steps after the queue.

    Parameters
    ----------
    node_rows : NodeRows
        The rows that leave the queue.
    graph : Graph
        The pipeline's graph, in which records are decoded first. Only its steps after the queue are applied.
    source : KafkaSource
        The source.
    place : str
        The source's name in the pipeline.
    zone : str
        The time zone of times in JSON that have no zone.
    """
    from penstock.local_engine.records.kafka_values import RecordDecoder  # the client of Kafka is an extra

    schema = spark_schema(schema_of(source))
    decoder = RecordDecoder(source, as_arrow_of_spark(schema), zone, **encoding_of(source))
    bad_records = BadRecords(place, source.on_error)

    def rows(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        records = (decoder.decode(_plain(some)) for some in node_rows.rows(batch))
        return bad_records.treat(records, batch, writes=False)

    decoded = NodeRows(schema, rows)
    for step in split_steps(graph.root)[1]:
        if isinstance(step, Where):
            decoded = keep_matching(decoded, step.predicate)
        else:
            decoded = select_columns(decoded, dict(step.columns), spark_schema(step.schema))
    return decoded


def _plain(rows: pa.RecordBatch) -> pa.Table:
    """Return rows under the column names of Kafka's records."""
    return pa.Table.from_batches([rows]).rename_columns(
        [name.removeprefix(_PREFIX) for name in rows.schema.names]
    )
