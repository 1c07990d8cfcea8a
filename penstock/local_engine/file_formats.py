"""Read files of CSV, JSON lines, Parquet, ORC or text as Spark reads them, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError
from penstock.sql.expression import did_you_mean

__all__ = ["OPTIONS", "check_options", "convert_columns", "file_reader", "read_csv", "readable_field"]

OPTIONS: Final[dict[str, frozenset[str]]] = {
    "csv": frozenset({"header", "sep", "delimiter", "quote", "nullvalue"}),
    "json": frozenset(),
    "parquet": frozenset(),
    "orc": frozenset(),
    "text": frozenset(),
}
"""The options of Spark's readers that are known here, by format, in lower case."""


def file_reader(
    format: str, schema: pa.Schema, options: Mapping[str, str], zone: str | None = None
) -> Callable[[Path], pa.Table]:
    """Return a function that reads a file.

    Parameters
    ----------
    format : str
        ``csv``, ``json``, ``parquet``, ``orc`` or ``text``.
    schema : pyarrow.Schema
        The columns, in Spark's types.
    options : mapping of str to str
        Options of Spark's reader.
    zone : str, optional
        The time zone of times that have no zone; by default such times are refused.

    Raises
    ------
    InvalidUsageError
        If an option is not known here.
    """
    known = check_options(format, options)

    def read(path: Path) -> pa.Table:
        try:
            return convert_columns(_READERS[format](path, schema, known), schema, zone)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            # The error's text may contain values.
            raise InvalidUsageError(
                "a file has records that do not fit the schema",
                file=path,
                error=type(error).__name__,
                hint="correct the file or the schema; engine: spark can count, keep or drop such records",
            ) from None

    return read


def check_options(format: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return options of Spark's reader of a format, by their names in lower case.

    Raises
    ------
    InvalidUsageError
        If an option is not known here.
    """
    known = {name.lower(): text for name, text in options.items()}
    if unknown := sorted(known.keys() - OPTIONS[format]):
        names = sorted(OPTIONS[format])
        leave_out = "leave them out, or use engine: spark"
        raise InvalidUsageError(
            "the local engine does not know options of the reader",
            format=format,
            options=", ".join(unknown),
            hint=did_you_mean(unknown[0], names, "options that it knows") if names else leave_out,
        )
    return known


def convert_columns(table: pa.Table, schema: pa.Schema, zone: str | None) -> pa.Table:
    """Return columns by name in the types of a schema; a missing column is null."""
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
            continue
        column = table.column(field.name)
        is_time = pa.types.is_timestamp(field.type) and pa.types.is_string(column.type)
        columns.append(_times(column, field, zone) if is_time else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _times(texts: pa.ChunkedArray[Any], field: pa.Field[Any], zone: str | None) -> pa.ChunkedArray[Any]:
    if field.type.tz is None:
        return texts.cast(field.type)
    has_zone = pc.match_substring_regex(texts, r"[0-9](Z|[+-][0-9]{2}(:?[0-9]{2})?)$")
    has_zone = pc.fill_null(has_zone, True)
    if pc.all(has_zone).as_py():
        return texts.cast(field.type)
    # Texts that are no times raise ArrowInvalid here: they are bad records, with or without a zone.
    bare = pc.if_else(has_zone, None, texts).cast(pa.timestamp("us"))
    if zone is None:
        raise InvalidUsageError(
            "times in a file have no zone",
            column=field.name,
            hint="set query.spark.spark.sql.session.timeZone to the zone, such as UTC",
        )
    zoned = pc.if_else(has_zone, texts, None).cast(field.type)
    local = pc.assume_timezone(bare, zone, ambiguous="earliest", nonexistent="earliest")
    # As in Spark, a time that the clocks skip is later by the length of the gap.
    local = pc.add(local, pc.subtract(bare, pc.local_timestamp(local)))
    return pc.coalesce(zoned, local.cast(field.type))


def readable_field(field: pa.Field[Any]) -> pa.Field[Any]:
    """Return a column as it is read from text; texts of times and dates are converted later."""
    is_text = pa.types.is_timestamp(field.type) or pa.types.is_date(field.type)
    return field.with_type(pa.string()) if is_text else field


def _csv(path: Path, schema: pa.Schema, options: Mapping[str, str]) -> pa.Table:
    has_header = options.get("header", "false").lower() == "true"
    return read_csv(path, schema, options, skip=1 if has_header else 0)


def read_csv(
    text: Path | pa.NativeFile, schema: pa.Schema, options: Mapping[str, str], skip: int = 0
) -> pa.Table:
    """Return the rows of CSV after the first `skip` lines; texts of times and dates stay texts.

    Raises
    ------
    pyarrow.ArrowInvalid
        If they do not fit the schema.
    """
    import pyarrow.csv

    separator = options.get("sep", options.get("delimiter", ","))
    return pyarrow.csv.read_csv(
        text,
        pyarrow.csv.ReadOptions(column_names=list(schema.names), skip_rows=skip, use_threads=False),
        pyarrow.csv.ParseOptions(delimiter=separator, quote_char=options.get("quote", '"')),
        pyarrow.csv.ConvertOptions(
            column_types=pa.schema(map(readable_field, schema)),
            null_values=[options.get("nullvalue", "")],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _json(path: Path, schema: pa.Schema, options: Mapping[str, str]) -> pa.Table:
    import pyarrow.json

    if path.stat().st_size == 0:
        return schema.empty_table()
    fields = pa.schema(map(readable_field, schema))
    return pyarrow.json.read_json(
        path,
        pyarrow.json.ReadOptions(use_threads=False),
        pyarrow.json.ParseOptions(explicit_schema=fields, unexpected_field_behavior="ignore"),
    )


def _parquet(path: Path, schema: pa.Schema, options: Mapping[str, str]) -> pa.Table:
    import pyarrow.parquet

    there = pyarrow.parquet.read_schema(path).names
    columns = [name for name in schema.names if name in there]
    return pyarrow.parquet.ParquetFile(path).read(columns, use_threads=False)


def _orc(path: Path, schema: pa.Schema, options: Mapping[str, str]) -> pa.Table:
    import pyarrow.orc

    return pyarrow.orc.read_table(path)


def _text(path: Path, schema: pa.Schema, options: Mapping[str, str]) -> pa.Table:
    return pa.table({"value": pa.array(path.read_text(encoding="utf-8").splitlines(), pa.string())})


_READERS: Final[dict[str, Callable[[Path, pa.Schema, Mapping[str, str]], pa.Table]]] = {
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
    "orc": _orc,
    "text": _text,
}
