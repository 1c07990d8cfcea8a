"""Binary values decoded in Python workers, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from penstock.conf.kafka_source import KafkaFormat
from penstock.errors import InvalidUsageError
from penstock.records.avro import avro_decoder
from penstock.records.decoder import Decoder
from penstock.records.protobuf import protobuf_decoder
from penstock.records.registry import SchemaRegistry
from penstock.spark_ext.api.bad_records import BAD_RECORD
from penstock.spark_ext.border.types import as_arrow_of_spark, convert, spark_schema

__all__ = ["VALUE", "decode_values", "envelope_columns", "known_columns", "make_decoder", "table_columns"]

VALUE: Final = "kafka_value"
"""The column with a decoded value: a struct of its columns and of `BAD_RECORD`, the reason if it is bad."""
_WIDER: Final[dict[type[DataType], tuple[type[DataType], ...]]] = {
    ByteType: (ShortType, IntegerType, LongType),
    ShortType: (IntegerType, LongType),
    IntegerType: (LongType, DoubleType),
    FloatType: (DoubleType,),
}
"""For each type, the types that hold all its values."""
_POSITION: Final = ("ts_ms", "lsn")


def make_decoder(
    format: KafkaFormat | None, schema: str | None, message: str | None, registry: SchemaRegistry | None
) -> Decoder:
    """Return the decoder of a format; see `decode_kafka`.

    Raises
    ------
    InvalidUsageError
        If the schema or the message is unknown, or a package is missing.
    UnavailableError
        If the schema registry does not answer.
    """
    if format == "protobuf":
        return protobuf_decoder(schema, message, registry)
    if message is not None:
        raise InvalidUsageError("only Protobuf has messages", message=message)
    return avro_decoder(schema, registry)


def known_columns(
    format: KafkaFormat | None, schema: str | None, message: str | None, registry: SchemaRegistry | None
) -> StructType:
    """Return all columns of values, or of the table in change events; see `make_decoder` for errors."""
    decoder = make_decoder(format, schema, message, registry)
    if format == "debezium_avro":
        return envelope_columns(decoder, None)[1]
    return table_columns(decoder, None)


def table_columns(decoder: Decoder, declared: StructType | None) -> StructType:
    """Make a decoder read only the declared columns, by default all columns; return these columns.

    Raises
    ------
    InvalidUsageError
        If the schema lacks a declared column, or has it with another type.
    """
    columns = _choose(spark_schema(decoder.schema), declared)
    decoder.schema = pa.schema([decoder.schema.field(name) for name in columns.names])
    return columns


def _choose(known: StructType, declared: StructType | None) -> StructType:
    """Return the columns of a schema to read.

    Raises
    ------
    InvalidUsageError
        If the schema lacks a declared column, or has it with another type.
    """
    if declared is None:
        return StructType([StructField(one.name, one.dataType) for one in known])
    for column in declared:
        if column.name not in known.names:
            near = get_close_matches(column.name, known.names, 1)
            raise InvalidUsageError(
                "the schema of the values has no such field",
                column=column.name,
                known=", ".join(known.names),
                hint=f"did you mean {near[0]}?" if near else None,
            )
        theirs = known[column.name].dataType
        if not _holds(column.dataType, theirs):
            raise InvalidUsageError(
                "the schema of the values has a field with another type",
                column=column.name,
                type=theirs.simpleString(),
                declared=column.dataType.simpleString(),
            )
    return declared


def _holds(wide: DataType, narrow: DataType) -> bool:
    # The texts of declared columns do not include nullability.
    return isinstance(wide, _WIDER.get(type(narrow), ())) or wide.simpleString() == narrow.simpleString()


def envelope_columns(decoder: Decoder, declared: StructType | None) -> tuple[StructType, StructType]:
    """Make a decoder read the needed columns of Debezium's events; return them and the table's columns.

    Raises
    ------
    InvalidUsageError
        If the schema is not a schema of change events, or does not fit the declared columns of the table.
    """
    known = spark_schema(decoder.schema)
    kinds = {one.name: one.dataType for one in known}
    before, row, source = (kinds.get(name) for name in ("before", "after", "source"))
    if (
        not (
            isinstance(row, StructType) and isinstance(before, StructType) and isinstance(source, StructType)
        )
        or "op" not in kinds
    ):
        raise InvalidUsageError(
            "the schema is not a schema of Debezium's change events",
            known=", ".join(known.names),
            hint="an event has the fields before, after, source and op",
        )
    table = _choose(row, declared)
    position = StructType([source[name] for name in _POSITION if name in source.names])
    native = {field.name: field for field in decoder.schema}
    wanted = {"before": table.names, "after": table.names, "source": position.names, "op": None}
    decoder.schema = pa.schema([_select(native[name], names) for name, names in wanted.items()])
    columns = StructType([StructField("before", table), StructField("after", table)])
    return columns.add("source", position).add("op", StringType()), table


def _select(field: pa.Field, names: Sequence[str] | None) -> pa.Field:
    return field if names is None else field.with_type(pa.struct([field.type.field(name) for name in names]))


def decode_values(
    records: DataFrame, decoder: Decoder, columns: StructType, keep: Sequence[str]
) -> DataFrame:
    """Return records with the column `VALUE` in place of their value.

    Parameters
    ----------
    records : DataFrame
        Rows with the column ``value``.
    decoder : Decoder
        The decoder. Its columns are `columns`, with the same or narrower types.
    columns : StructType
        The columns of the value.
    keep : sequence of str
        The columns of `records` to keep. If they include ``value``, the undecoded value is kept, too.
    """
    given = records.select("value", *(one for one in keep if one != "value"))
    value = StructType([*columns, StructField(BAD_RECORD, StringType())])
    output = StructType([StructField(VALUE, value), *(given.schema[one] for one in keep)])
    return given.mapInArrow(_Decode(decoder, as_arrow_of_spark(columns), tuple(keep)), output)


@dataclass(frozen=True)
class _Decode:
    """Decodes the batches of a partition, for ``mapInArrow``."""

    decoder: Decoder
    columns: pa.Schema
    keep: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch with its values decoded."""
        for batch in batches:
            decoded, reasons = self.decoder.decode(batch.column("value"))
            decoded = convert(decoded, self.columns)
            fields = [*self.columns, pa.field(BAD_RECORD, pa.string())]
            parts = [*decoded.columns, pa.array(reasons, pa.string())]
            value = pa.StructArray.from_arrays(parts, fields=fields)
            yield pa.RecordBatch.from_arrays(
                [value, *(batch.column(name) for name in self.keep)], [VALUE, *self.keep]
            )
