"""Convert Kafka's records to columns: raw columns, or the columns of decoded values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.conf.kafka_source import CHANGE_COLUMNS, TEXT_FORMATS, KafkaSource
from penstock.ddl import parse_schema
from penstock.local_engine.records.bad_records import Records
from penstock.local_engine.records.json_decoder import JsonDecoder, check_json_types
from penstock.records.registry import SchemaRegistry
from penstock.spark_ext.border.types import convert, spark_schema
from penstock.spark_ext.kafka.binary import envelope_columns, make_decoder, table_columns
from penstock.spark_ext.kafka.debezium import DELETE, NO_ROW, ROW_OPERATIONS
from penstock.spark_ext.sources.rejected import WRONG_TYPE

__all__ = ["RecordDecoder", "check_text_types", "read_messages"]

_POSITION: Final = pa.struct({"ts_ms": pa.int64(), "lsn": pa.int64()})
_PAYLOAD: Final = "payload"
_HEADERS: Final = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
_FACTS: Final = ("value", "topic", "partition", "offset")


def read_messages(messages: Sequence[Any]) -> pa.Table:
    """Return messages of confluent-kafka as the columns of Spark's connector."""
    # The client returns one Python object for each record.
    times = [message.timestamp() for message in messages]
    headers = [message.headers() for message in messages]
    return pa.table(
        {
            "key": pa.array([message.key() for message in messages], pa.binary()),
            "value": pa.array([message.value() for message in messages], pa.binary()),
            "topic": pa.array([message.topic() for message in messages], pa.string()),
            "partition": pa.array([message.partition() for message in messages], pa.int32()),
            "offset": pa.array([message.offset() for message in messages], pa.int64()),
            "timestamp": pa.array([1000 * ms for _, ms in times], pa.timestamp("us", "UTC")),
            "timestampType": pa.array([kind - 1 for kind, _ in times], pa.int32()),
            "headers": pa.array([_as_structs(some) for some in headers], _HEADERS),
        }
    )


def _as_structs(headers: list[tuple[str, bytes]] | None) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": value} for key, value in headers] if headers else None


class RecordDecoder:
    """Decodes the records of a source.

    Parameters
    ----------
    source : KafkaSource
        The source of the pipeline.
    schema : pyarrow.Schema
        The source's columns, in Spark's types.
    zone : str
        The time zone of times in JSON without a zone.
    value_schema, message, registry
        See `penstock.decode_kafka`.

    Raises
    ------
    InvalidUsageError
        If a schema is unknown or does not have the columns, or a package is missing.
    UnavailableError
        If the schema registry does not answer.
    """

    def __init__(
        self,
        source: KafkaSource,
        schema: pa.Schema,
        zone: str,
        value_schema: str | None,
        message: str | None,
        registry: SchemaRegistry | None,
    ) -> None:
        self._schema = schema
        self._format = source.decoded_format
        self._has_changes = source.has_changes
        self._is_text = self._format in TEXT_FORMATS
        if self._format is None:
            return
        table = _decoded_columns(source, schema)
        self._table = pa.struct(table)
        if self._is_text:
            check_text_types(source, schema)
            self._decoder: Any = JsonDecoder(_envelope(self._table) if self._has_changes else table, zone)
            return
        self._decoder = make_decoder(self._format, value_schema, message, registry)
        if self._has_changes:
            envelope_columns(self._decoder, spark_schema(table))
        else:
            table_columns(self._decoder, spark_schema(table))

    def decode(self, records: pa.Table) -> Records:
        """Return the rows of raw records."""
        if self._format is None:
            return Records(records.select(self._schema.names), (), dict)
        if self._has_changes:
            # Debezium sends a record without a value after each delete, for Kafka's compaction.
            records = records.filter(pc.is_valid(records["value"]))
        decoded, reasons = self._decoder.decode(records["value"].combine_chunks())
        columns = dict(zip(decoded.schema.names, decoded.columns, strict=True))
        if self._has_changes:
            columns, has_row = self._read_changes(columns)
            reason = WRONG_TYPE if self._is_text else NO_ROW
            for number in np.flatnonzero(~has_row):
                reasons[number] = reasons[number] or reason
        own = {f"kafka_{name}": records[name].combine_chunks() for name in records.column_names}
        columns = own | columns
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], self._schema.names)
        rows = pa.Table.from_batches([convert(batch, self._schema)])
        bad = [number for number, reason in enumerate(reasons) if reason is not None]
        return Records(rows, bad, partial(_facts, records, bad, reasons))

    def _read_changes(
        self, event: Mapping[str, pa.Array]
    ) -> tuple[dict[str, pa.Array], np.ndarray[Any, Any]]:
        """Return the columns of change events, and whether each event has a row."""
        wanted = ("before", "after", "op", "source")
        fields = {name: event[name] for name in wanted}
        if self._is_text:
            payload = event[_PAYLOAD]
            fields = {
                name: pc.if_else(pc.is_valid(field), field, pc.struct_field(payload, name))
                for name, field in fields.items()
            }
        operation, source = fields["op"], fields["source"]
        is_delete = pc.equal(operation, DELETE)
        before, after = (fields[name].cast(self._table) for name in ("before", "after"))
        has_after = pc.is_in(operation, pa.array([one for one in ROW_OPERATIONS if one != DELETE]))
        row = pc.if_else(pc.fill_null(is_delete, False), before, pc.if_else(has_after, after, None))
        columns = dict(zip(self._table.names, row.flatten(), strict=True))
        columns |= {"deleted": is_delete, "change_op": operation}
        for name in _POSITION.names:
            known = name in source.type.names
            place = pc.struct_field(source, name) if known else pa.nulls(len(row), pa.int64())
            columns[f"change_{name.removeprefix('ts_')}"] = place
        return columns, row.is_valid().to_numpy(zero_copy_only=False)


def check_text_types(source: KafkaSource, schema: pa.Schema) -> None:
    """If a source has values in JSON, check that they can have the types of its columns.

    Raises
    ------
    InvalidUsageError
        If only Spark can read a type.
    """
    if source.decoded_format in TEXT_FORMATS:
        check_json_types(_decoded_columns(source, schema), with_times=not source.has_changes)


def _decoded_columns(source: KafkaSource, schema: pa.Schema) -> pa.Schema:
    changes = parse_schema(CHANGE_COLUMNS).names if source.has_changes else []
    own = len(changes) + len(source.kafka_columns)
    return pa.schema(list(schema)[: len(schema) - own])


def _envelope(table: pa.StructType) -> pa.Schema:
    fields = {"before": table, "after": table, "op": pa.string(), "source": _POSITION}
    return pa.schema(fields | {_PAYLOAD: pa.struct(fields)})


def _facts(records: pa.Table, bad: list[int], reasons: Sequence[str | None]) -> dict[str, list[Any]]:
    found = records.select(_FACTS).take(pa.array(bad, pa.int64()))
    return {name: found[name].to_pylist() for name in _FACTS} | {"reason": [reasons[one] for one in bad]}
