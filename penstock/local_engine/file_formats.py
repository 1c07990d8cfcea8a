"""Read CSV, Parquet, ORC and text, and convert values to Spark's types, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.conf.file_options import csv_marks
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.local_engine.field_texts import JSON_DECIMAL, WIDE_DECIMAL, parse_texts, round_decimals

__all__ = ["OPTIONS", "check_options", "convert_columns", "json_type", "read_csv", "read_file"]

OPTIONS: Final[dict[str, frozenset[str]]] = {
    "csv": frozenset({"header", "sep", "delimiter", "quote", "nullvalue"}),
    "json": frozenset(),
    "parquet": frozenset(),
    "orc": frozenset(),
    "text": frozenset(),
}
"""For each format, the options of Spark's reader that this module supports, in lower case."""


def check_options(format: str, options: Mapping[str, str]) -> dict[str, str]:
    """Check the options of Spark's reader of a format, and return them by their names in lower case.

    For CSV, the result always has ``sep`` and ``quote``.

    Raises
    ------
    InvalidUsageError
        If this module does not support an option, or the option's value.
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
    if format == "csv":
        known.pop("delimiter", None)
        known["sep"], known["quote"] = csv_marks(options)
        for name in ("sep", "quote"):
            if len(known[name]) != 1:
                raise InvalidUsageError(
                    "the local engine takes only one character for an option",
                    options=name,
                    hint="use engine: spark",
                )
    return known


def read_file(format: str, path: Path, schema: pa.Schema, zone: str) -> pa.Table:
    """Return the rows of a whole file of Parquet, ORC or text.

    Parameters
    ----------
    format : {"parquet", "orc", "text"}
        The format.
    path : Path
        The file.
    schema : pyarrow.Schema
        The columns, in Spark's types.
    zone : str
        The time zone of times without a zone.

    Raises
    ------
    pyarrow.ArrowException, UnicodeDecodeError
        If the file is damaged or does not fit the schema.
    """
    return convert_columns(_READERS[format](path, schema), schema, zone)


def convert_columns(table: pa.Table, schema: pa.Schema, zone: str) -> pa.Table:
    """Return the columns of a schema, converted to its types. A column that the table lacks is null.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a value does not fit.
    """
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
            continue
        column = table.column(field.name)
        if pa.types.is_string(column.type) and not _is_text(field.type):
            columns.append(parse_texts(column, field.type, zone))
        elif column.type == json_type(field.type):
            columns.append(pa.chunked_array([_convert(column.combine_chunks(), field.type, zone)]))
        else:
            columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def json_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which pyarrow reads JSON values that `convert_columns` then converts to `kind`."""
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_decimal128(kind):
        return JSON_DECIMAL
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(json_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(json_type(kind.value_type)))
    return kind


def _convert(values: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    """Round decimals and parse times, also in structs and lists."""
    if pa.types.is_temporal(kind):
        return parse_texts(pa.chunked_array([values]), kind, zone).combine_chunks()
    if pa.types.is_decimal128(kind):
        return round_decimals(values.view(WIDE_DECIMAL), kind)
    if values.type == kind:
        return values
    mask = pc.is_null(values)
    if pa.types.is_struct(kind):
        parts = [_convert(part, field.type, zone) for part, field in zip(values.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    items = _convert(values.flatten(), kind.value_type, zone)
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=kind, mask=mask)


def read_csv(text: pa.NativeFile, schema: pa.Schema, options: Mapping[str, str]) -> pa.Table:
    """Return the rows of CSV. All values are still texts.

    Raises
    ------
    pyarrow.ArrowInvalid
        If the rows do not fit the schema.
    """
    import pyarrow.csv

    return pyarrow.csv.read_csv(
        text,
        pyarrow.csv.ReadOptions(column_names=list(schema.names), use_threads=False),
        pyarrow.csv.ParseOptions(delimiter=options["sep"], quote_char=options["quote"]),
        pyarrow.csv.ConvertOptions(
            column_types={
                field.name: field.type if _is_text(field.type) else pa.string() for field in schema
            },
            null_values=[options.get("nullvalue", "")],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _parquet(path: Path, schema: pa.Schema) -> pa.Table:
    import pyarrow.parquet

    existing = pyarrow.parquet.read_schema(path).names
    columns = [name for name in schema.names if name in existing]
    return pyarrow.parquet.ParquetFile(path).read(columns, use_threads=False)


def _orc(path: Path, schema: pa.Schema) -> pa.Table:
    import pyarrow.orc

    return pyarrow.orc.read_table(path)


def _text(path: Path, schema: pa.Schema) -> pa.Table:
    return pa.table({"value": pa.array(path.read_text(encoding="utf-8").splitlines(), pa.string())})


_READERS: Final[dict[str, Callable[[Path, pa.Schema], pa.Table]]] = {
    "parquet": _parquet,
    "orc": _orc,
    "text": _text,
}
