"""The columns of a pipeline's sources and samples, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.checkpointing.files.abc import Content
from penstock.checkpointing.p_stream import PStream
from penstock.conf.kafka_source import CHANGE_COLUMNS, KafkaSource
from penstock.conf.sections import (
    FilesSource,
    MarketSource,
    PStreamSource,
    Source,
    SparkSource,
    TableSection,
)
from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError
from penstock.market import MARKET_SCHEMA

__all__ = ["SAMPLE_ENDINGS", "encoding_of", "read_sample", "schema_of"]

_INSTANT: Final = pa.timestamp("us", "UTC")
_RATE: Final = pa.schema({"timestamp": _INSTANT, "value": pa.int64()})
_HEADERS: Final = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
_KAFKA: Final = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": _INSTANT,
        "timestampType": pa.int32(),
    }
)


SAMPLE_ENDINGS: Final = (".parquet", ".csv", ".json", ".ndjson", ".arrow", ".feather", ".txt")
"""The ends of the names of files that `read_sample` reads."""


def schema_of(source: Source | TableSection) -> pa.Schema:
    """Return the columns of a source or a table.

    Raises
    ------
    InvalidUsageError
        If the files are missing, or a type is unknown.
    """
    if isinstance(source, MarketSource):
        return MARKET_SCHEMA
    if isinstance(source, PStreamSource):
        return PStream(source.path).schema
    if isinstance(source, TableSection | SparkSource):
        return _parse_nullable_schema(source.columns)
    if isinstance(source, KafkaSource):
        return _kafka_schema(source)
    if isinstance(source, FilesSource):
        if source.columns is not None:
            return _parse_nullable_schema(source.columns)
        return pa.schema({"value": pa.string()}) if source.format == "text" else _schema_in_files(source)
    return _RATE


def _kafka_schema(source: KafkaSource) -> pa.Schema:
    own = _KAFKA.append(pa.field("headers", _HEADERS)) if source.has_headers else _KAFKA
    if source.value_format == "raw":
        return own
    declared = _schema_of_values(source) if source.columns is None else _parse_nullable_schema(source.columns)
    if source.has_changes:
        declared = pa.schema([*declared, *parse_schema(CHANGE_COLUMNS)])
    named = [own.field(name).with_name(f"kafka_{name}") for name in source.kafka_columns]
    return pa.schema([*declared, *named])


def _schema_of_values(source: KafkaSource) -> pa.Schema:
    """Return the columns of values whose schema is in a file or a registry."""
    # These modules import pyspark, which the rest of this module does not need.
    from penstock.spark_ext.border.types import as_arrow_of_spark
    from penstock.spark_ext.kafka.binary import known_columns

    schema, message, registry = encoding_of(source).values()
    return as_arrow_of_spark(known_columns(source.decoded_format, schema, message, registry))


def _parse_nullable_schema(text: str) -> pa.Schema:
    """Return the columns of a DDL text, all nullable, as Spark's file readers return them."""
    return pa.schema([field.with_nullable(True) for field in parse_schema(text)])


def encoding_of(source: KafkaSource) -> dict[str, Any]:
    """Return the arguments of `decode_kafka` for the schema of a source's values."""
    from penstock.records.registry import SchemaRegistry

    registry = None if source.registry is None else SchemaRegistry(**source.registry.model_dump())
    return {"value_schema": source.value_schema, "message": source.message, "registry": registry}


def _schema_in_files(source: FilesSource) -> pa.Schema:
    import pyarrow.dataset as ds

    try:
        schema: pa.Schema = ds.dataset(source.path, format=source.format).schema
    except (OSError, pa.ArrowException) as error:
        raise InvalidUsageError(
            f"its columns cannot be read: {str(error).partition('. ')[0]}",
            path=source.path,
            hint=f"check that its files are of the format {source.format}, or write schema",
        ) from None
    return schema


def read_sample(path: Path, content: Content | None = None) -> pa.Table:
    """Return the tuples of a file: Parquet, CSV with names, JSON lines, Arrow, or lines of text.

    Parameters
    ----------
    path : Path
        The file. The end of its name tells its format.
    content : bytes, optional
        The content of the file, if it is not on this machine.

    Raises
    ------
    InvalidUsageError
        If there is no such file, or its name or content has none of these formats.
    """
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.json
    import pyarrow.parquet

    feather, json = pyarrow.feather.read_table, pyarrow.json.read_json
    readers = (
        pyarrow.parquet.read_table, pyarrow.csv.read_csv, json, json, feather, feather, _read_lines
    )  # fmt: skip
    reader = dict(zip(SAMPLE_ENDINGS, readers, strict=True)).get(path.suffix.lower())
    if reader is None:
        known = ", ".join(SAMPLE_ENDINGS)
        raise InvalidUsageError("the sample has an unknown format", file=path, known=known)
    try:
        return reader(path if content is None else pa.BufferReader(content))
    except FileNotFoundError:
        raise InvalidUsageError("there is no such file", file=path) from None
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise InvalidUsageError(f"the sample cannot be read: {error}", file=path) from None


def _read_lines(file: Path | pa.BufferReader) -> pa.Table:
    text = file.read_text() if isinstance(file, Path) else file.read().decode()
    return pa.table({"value": text.splitlines()})
