"""The values of Kafka's records as columns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, cast, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructType

from penstock.conf.sections import CHANGE_COLUMNS, KafkaColumn, KafkaFormat, OnError
from penstock.errors import InvalidUsageError
from penstock.spark_ext.api.bad_records import BAD_RECORD, count_bad_records, json_reason, reject_bad_records
from penstock.spark_ext.kafka.debezium import decode_debezium

__all__ = ["decode_kafka", "without_tombstones"]

_VALUE: Final = "kafka_value"
_RECORD: Final = "__penstock_record"


def decode_kafka(
    records: DataFrame,
    columns: str,
    *,
    format: KafkaFormat = "json",
    keep: Sequence[KafkaColumn] = ("timestamp",),
    on_error: OnError = "keep",
    name: str = "kafka",
    reject_to: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Return the columns that the values of Kafka's records hold.

    The records may come from a source, or from an update queue over it. In the second case only the records
    that leave the queue are decoded. Called on the driver when a query is made.

    Parameters
    ----------
    records : pyspark.sql.DataFrame
        Rows with the column ``value``, and those that `keep` names.
    columns : str
        Names and types of the value's columns, as in CREATE TABLE.
    format : {"json", "debezium"}
        ``debezium`` is the JSON of Debezium's change events, with or without their schema. `columns` are
        those of the table; ``deleted BOOLEAN``, ``change_op STRING``, ``change_ms BIGINT`` and
        ``change_lsn BIGINT`` follow. A deleted row has its old columns; the database may send only those of
        the key. Tombstones are left out.
    keep : sequence of str
        Kafka's own columns to keep: ``key``, ``topic``, ``partition``, ``offset``, ``timestamp``,
        ``headers``. Each gets the prefix ``kafka_`` and follows the others.
    on_error : {"keep", "skip", "fail"}
        The treatment of a value that cannot be read, or has a field of another type: kept with nulls, left
        out, or a failure of the query. `penstock.metrics` counts them as ``bad_records``.
    name : str
        The name under which they are counted; another one for each call in a query.
    reject_to : str or path, optional
        The location of a p-stream for such records, each exactly once: ``source`` (the name), ``value``,
        ``topic``, ``partition`` and ``offset`` if `records` have them, and ``reason``. With ``"keep"`` the
        rows are kept, too. See ``docs/how-to/late-rows.md``.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong, or two columns have the same name.
    """
    choices = {"format": (format, KafkaFormat), "on_error": (on_error, OnError)}
    for argument, (word, words) in choices.items():
        if word not in get_args(words):
            allowed = ", ".join(get_args(words))
            raise InvalidUsageError(f"the {argument} is unknown", given=word, hint=f"it is one of {allowed}")
    table = cast("StructType", StructType.fromDDL(columns))
    own = [f"kafka_{column}" for column in keep]
    changes = cast("StructType", StructType.fromDDL(CHANGE_COLUMNS)).names if format == "debezium" else []
    names = [*table.names, *changes, *own]
    twice = sorted({one for one in names if names.count(one) > 1})
    if twice:
        raise InvalidUsageError("two columns have the same name", columns=", ".join(twice))
    if format == "debezium":
        records = without_tombstones(records)
        value = decode_debezium(sf.col("value").cast("string"), table)
    else:
        value = _decode_json(sf.col("value").cast("string"), table)
    columns_to_keep = [sf.col(column).alias(to) for column, to in zip(keep, own, strict=True)]
    if reject_to is None:
        rows = records.select(value.alias(_VALUE), *columns_to_keep).select(f"{_VALUE}.*", *own)
        return count_bad_records(rows, name, on_error)
    place_columns = {"value", "topic", "partition", "offset"} & {*records.columns}
    facts = {one: sf.col(one) for one in sorted(place_columns)}
    facts["reason"] = json_reason(sf.col("value").cast("string"))
    record = sf.struct(*(column.alias(one) for one, column in facts.items())).alias(_RECORD)
    rows = records.select(value.alias(_VALUE), record, *columns_to_keep).select(f"{_VALUE}.*", _RECORD, *own)
    rows = reject_bad_records(
        rows, name, on_error, reject_to, {one: sf.col(f"{_RECORD}.{one}") for one in facts}
    )
    return count_bad_records(rows.drop(_RECORD), name, on_error)


def _decode_json(text: Column, table: StructType) -> Column:
    schema = StructType([*table, *StructType().add(BAD_RECORD, StringType())])
    return sf.from_json(text, schema, {"columnNameOfCorruptRecord": BAD_RECORD})


def without_tombstones(records: DataFrame) -> DataFrame:
    """Leave out records without a value, which Debezium sends after each delete for Kafka's compaction."""
    return records.where(sf.col("value").isNotNull())
