"""Change events of Debezium as rows.

An event (an envelope) has the row before and after a change, the operation, and the position of the change in
the source's log. If the converter's setting ``schemas.enable`` is true, these fields are in ``payload``, next
to ``schema``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType, StructType

from penstock.spark_ext.api.bad_records import BAD_RECORD

__all__ = ["DELETE", "NO_ROW", "ROW_OPERATIONS", "decode_debezium", "read_change"]

DELETE: Final = "d"
ROW_OPERATIONS: Final = ("c", "u", DELETE, "r")
"""Create, update, delete and read (a snapshot's row). A truncation or a message has no row."""

NO_ROW: Final = "the event has no row"


def decode_debezium(text: Column, table: StructType) -> Column:
    """Return a change event as a struct of the table's columns, `CHANGE_COLUMNS` and `BAD_RECORD`.

    Parameters
    ----------
    text : pyspark.sql.Column
        The event as JSON, not null.
    table : pyspark.sql.types.StructType
        The columns of the table.
    """
    position = StructType().add("ts_ms", LongType()).add("lsn", LongType())
    envelope = (
        StructType().add("before", table).add("after", table).add("op", StringType()).add("source", position)
    )
    schema = StructType([*envelope, *StructType().add("payload", envelope).add(BAD_RECORD, StringType())])
    event = sf.from_json(text, schema, {"columnNameOfCorruptRecord": BAD_RECORD})

    def field(name: str) -> Column:
        return sf.coalesce(event[name], event["payload"][name])

    return _change(field, table, {"ts_ms", "lsn"}, text, event[BAD_RECORD])


def read_change(event: Column, columns: StructType, table: StructType) -> Column:
    """Return a decoded envelope as the struct that `decode_debezium` returns.

    Parameters
    ----------
    event : pyspark.sql.Column
        A struct of ``before``, ``after``, ``op``, ``source`` and `BAD_RECORD`, which holds the reason.
    columns : pyspark.sql.types.StructType
        The fields of the struct, except the reason.
    table : pyspark.sql.types.StructType
        The columns of the table.
    """
    position = columns["source"].dataType
    known = set(position.names) if isinstance(position, StructType) else set()
    return _change(lambda name: event[name], table, known, sf.lit(NO_ROW), event[BAD_RECORD])


def _change(
    field: Callable[[str], Column], table: StructType, position: set[str], no_row: Column, reason: Column
) -> Column:
    operation, source = field("op"), field("source")

    def place(name: str) -> Column:
        return source[name] if name in position else sf.lit(None).cast(LongType())

    row = sf.when(operation == DELETE, field("before")).when(operation.isin(*ROW_OPERATIONS), field("after"))
    return sf.struct(
        *(row.getField(column.name).alias(column.name) for column in table),
        (operation == DELETE).alias("deleted"),
        operation.alias("change_op"),
        place("ts_ms").alias("change_ms"),
        place("lsn").alias("change_lsn"),
        sf.coalesce(reason, sf.when(row.isNull(), no_row)).alias(BAD_RECORD),
    )
