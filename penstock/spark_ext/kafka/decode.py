"""The values of Kafka's records as columns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, cast, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructType

from penstock.conf.arguments import check_keywords
from penstock.conf.kafka_source import CHANGE_COLUMNS, TEXT_FORMATS, KafkaColumn, KafkaFormat
from penstock.conf.values import OnError
from penstock.errors import InvalidUsageError
from penstock.records.registry import SchemaRegistry
from penstock.spark_ext.api.bad_records import BAD_RECORD, count_bad_records, json_reason, reject_bad_records
from penstock.spark_ext.kafka.binary import (
    VALUE,
    decode_values,
    envelope_columns,
    make_decoder,
    table_columns,
)
from penstock.spark_ext.kafka.debezium import decode_debezium, read_change

__all__ = ["decode_kafka", "drop_tombstones"]

_RECORD: Final = "__penstock_record"


@check_keywords
def decode_kafka(
    records: DataFrame,
    columns: str | None = None,
    *,
    format: KafkaFormat = "json",
    keep: Sequence[KafkaColumn] = ("timestamp",),
    on_error: OnError = "keep",
    name: str = "kafka",
    reject_to: str | os.PathLike[str] | None = None,
    value_schema: str | os.PathLike[str] | None = None,
    message: str | None = None,
    registry: SchemaRegistry | None = None,
) -> DataFrame:
    """Decode the values of Kafka's records into columns.

    The records may come from a source, or from an update queue over a source. After a queue, only the records
    that leave the queue are decoded. Call this function on the driver, when a query is built.

    Parameters
    ----------
    records : pyspark.sql.DataFrame
        Rows with the column ``value`` and the columns that `keep` names.
    columns : str, optional
        Names and types of the value's columns, as in CREATE TABLE. For Avro and Protobuf, the default is all
        columns of the schema.
    format : {"json", "avro", "protobuf", "debezium", "debezium_avro"}
        ``debezium`` is Debezium's change events as JSON, with or without their schema; ``debezium_avro`` is
        the same events as Avro. For both, `columns` are the columns of the table. The result also has
        ``deleted BOOLEAN``, ``change_op STRING``, ``change_ms BIGINT`` and ``change_lsn BIGINT``. A deleted
        row has its old values, unless the database sends only the key's columns. Tombstones are left out.
    keep : sequence of str
        Kafka's own columns to keep: ``key``, ``topic``, ``partition``, ``offset``, ``timestamp``,
        ``headers``. Each gets the prefix ``kafka_`` and follows the other columns.
    on_error : {"keep", "skip", "fail"}
        The treatment of a value that cannot be read, or has a field of the wrong type: keep it with nulls,
        leave it out, or fail the query. `penstock.metrics` counts such values as ``bad_records``.
    name : str
        The name under which such values are counted. Each call in a query needs a different name.
    reject_to : str or path, optional
        The location of a p-stream to which each record with a value that cannot be read, or with a field of
        the wrong type, is written exactly once: ``source`` (the name), ``value``, ``topic``, ``partition``
        and ``offset`` if `records` have them, and ``reason``. With ``"keep"`` the rows are also kept. See
        ``docs/how-to/late-rows.md``.
    value_schema : str or path, optional
        The Avro or Protobuf schema that defines the columns: a text, an Avro schema's file, a ``.proto``
        file, or a file with a ``FileDescriptorSet``. By default the newest schema in the registry.
    message : str, optional
        The full name of the Protobuf message; may be left out if the schema has only one message.
    registry : SchemaRegistry, optional
        The registry of the values' schemas. If given, each value begins with the number of its schema.
        Otherwise all values have `value_schema` and no such prefix.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong, two columns have the same name, a schema is unknown or does not have the
        columns, or a package is missing.
    UnavailableError
        If the schema registry does not answer.
    """
    choices = {"format": (format, KafkaFormat), "on_error": (on_error, OnError)}
    for argument, (word, words) in choices.items():
        if word not in get_args(words):
            allowed = ", ".join(get_args(words))
            raise InvalidUsageError(f"the {argument} is unknown", given=word, hint=f"it is one of {allowed}")
    declared = None if columns is None else cast("StructType", StructType.fromDDL(columns))
    changes: list[str] = []
    if format in ("debezium", "debezium_avro"):
        records = drop_tombstones(records)
        changes = cast("StructType", StructType.fromDDL(CHANGE_COLUMNS)).names
    place_columns = (
        ["value", *sorted({"topic", "partition", "offset"} & {*records.columns})] if reject_to else []
    )
    reason: Column | None = None
    if format in TEXT_FORMATS:
        if declared is None:
            raise InvalidUsageError("values in JSON need columns", hint="write them as in CREATE TABLE")
        table, text = declared, sf.col("value").cast("string")
        value = _decode_json(text, table) if format == "json" else decode_debezium(text, table)
        reason = json_reason(text)
    else:
        schema = None if value_schema is None else os.fspath(value_schema)
        decoder = make_decoder(format, schema, message, registry)
        if format == "debezium_avro":
            event, table = envelope_columns(decoder, declared)
            value = read_change(sf.col(VALUE), event, table)
        else:
            event = table = table_columns(decoder, declared)
            value = sf.col(VALUE)
        records = decode_values(records, decoder, event, list(dict.fromkeys([*keep, *place_columns])))
    own = [f"kafka_{column}" for column in keep]
    names = [*table.names, *changes, *own]
    twice = sorted({one for one in names if names.count(one) > 1})
    if twice:
        raise InvalidUsageError("two columns have the same name", columns=", ".join(twice))
    columns_to_keep = [sf.col(column).alias(to) for column, to in zip(keep, own, strict=True)]
    if reject_to is None:
        rows = records.select(value.alias(VALUE), *columns_to_keep).select(f"{VALUE}.*", *own)
        return count_bad_records(rows, name, on_error)
    facts = {one: sf.col(one) for one in place_columns}
    if reason is not None:
        facts["reason"] = reason
    record = sf.struct(*(column.alias(one) for one, column in facts.items())).alias(_RECORD)
    rows = records.select(value.alias(VALUE), record, *columns_to_keep).select(f"{VALUE}.*", _RECORD, *own)
    known_facts = {"reason": sf.col(BAD_RECORD)} | {one: sf.col(f"{_RECORD}.{one}") for one in facts}
    rows = reject_bad_records(rows, name, on_error, reject_to, known_facts)
    return count_bad_records(rows.drop(_RECORD), name, on_error)


def _decode_json(text: Column, table: StructType) -> Column:
    schema = StructType([*table, *StructType().add(BAD_RECORD, StringType())])
    return sf.from_json(text, schema, {"columnNameOfCorruptRecord": BAD_RECORD})


def drop_tombstones(records: DataFrame) -> DataFrame:
    """Leave out records without a value, which Debezium sends after each delete for Kafka's compaction."""
    return records.where(sf.col("value").isNotNull())
