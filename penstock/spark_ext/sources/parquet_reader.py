"""Read Parquet files for a scan in Penstock, while Spark lists and commits the files.

Spark's own reader is fast, but its rows cross to Python one value at a time. So if a source's rows are
reduced to fragments of windows, or to the newest tuple of each key, Python reads the files itself. Then no
row crosses from the JVM. Spark's file stream lists the files of a micro-batch and divides them into tasks.
Each task passes only a range of row numbers to Python. Python decodes the columns that the scan needs and
runs the scan on them, as a p-stream's reader does.

Tasks are assigned *ranges* of a fixed length. The first row of range ``k`` of a file is ``k * RANGE``, and
exactly one task has this row, however Spark divides a file. That task reads the whole range::

    row groups   |     0     |     1     |     2     |
    tasks        |        A              |     B     |
    ranges       |   0   |   1   |   2   |   3   |  4|
                         A: 0, 1, 2      B: 3, 4

So Spark reads only row counts, and no column. Spark's file log, file limits and exactly-once guarantee are
unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.checkpointing.files.locations import file_system, refusals
from penstock.dataflow.nodes import Source
from penstock.ddl import quote
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.operators.scan.spec import Scan
from penstock.operators.update_stream.cast import cast, fits
from penstock.spark_ext.border.arrow_settings import skip_size_of_each_row
from penstock.spark_ext.border.types import spark_schema
from penstock.spark_ext.sources.pushed import Pushed

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

__all__ = ["RANGE", "parquet_files", "ranges_of", "read_parquet", "rows_in"]

RANGE = 1 << 16
"""Rows of a range, a power of two."""

_BATCH_ROWS = 1 << 20
_BATCH_BYTES = 1 << 27
"""The rows, and approximate bytes, to decode at a time."""

_LENGTH_BYTES = 4
"""The size of the length stored with each text."""


def parquet_files(spark: SparkSession, source: Source) -> DataFrame:
    """Return the rows of a source's files, read by Spark.

    Raises
    ------
    InvalidUsageError
        If the source has no path.
    """
    # Spark adds columns for partition directories.
    return _files(spark, source).select(*map(quote, source.columns.names))


def _files(spark: SparkSession, source: Source) -> DataFrame:
    options = dict(source.options)
    path = options.pop("path", None)
    if not path:
        raise InvalidUsageError(
            "the path of the files is missing",
            hint=f"pass options={{'path': ...}}, or sources={{{source.name!r}: PATH}}",
            source=source.name,
        )
    reader = spark.readStream.schema(spark_schema(source.columns)).options(**options)
    return reader.parquet(path)


def read_parquet(
    spark: SparkSession, source: Source, scan: Scan, buckets: int | None, lookup: str | None = None
) -> DataFrame:
    """Return the result of a scan over a source's files, as from a p-stream's reader.

    Parameters
    ----------
    source : Source
        A source of the kind ``parquet``.
    scan : Scan
        The scan.
    buckets : int, optional
        The number of buckets for parcels of the scan's fragments.
    lookup : str, optional
        The text of a `Lookup` for the fragments, before they become parcels.

    Raises
    ------
    InvalidUsageError
        If the source has no path, or the scan does not fit its columns.
    """
    pushed = Pushed.bind(source.columns, scan, buckets, lookup)
    skip_size_of_each_row(spark)
    files = _files(spark, source)
    # Spark reads only row numbers. Here `&` is a fifth faster than a remainder.
    ranges = files.select("_metadata.file_path", "_metadata.row_index").where(f"row_index & {RANGE - 1} = 0")
    return ranges.mapInArrow(_ReadRanges(pushed), pushed.spark)


@dataclass(frozen=True)
class _ReadRanges:
    """Reads a task's ranges, for ``mapInArrow``."""

    pushed: Pushed

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.pushed.scan_tables(self._rows(batches))

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        columns = pa.schema([self.pushed.stored.field(name) for name in self.pushed.scan.columns])
        for file, ranges in ranges_of(batches):
            yield from rows_in(file, ranges, columns)


def ranges_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Return the row ranges of each file that a task reads, in order, with adjacent ranges merged.

    Parameters
    ----------
    batches : iterable of RecordBatch
        The files, and the numbers of the first rows of ranges.
    """
    numbers: dict[str, list[int]] = {}
    for batch in batches:
        for file, first in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            numbers.setdefault(file, []).append(first)
    for file, firsts in numbers.items():
        begins = sorted(firsts)
        breaks = [at for at, (one, other) in enumerate(pairwise(begins), 1) if other - one != RANGE]
        yield (
            file,
            [(begins[low], begins[high - 1] + RANGE) for low, high in pairwise([0, *breaks, len(begins)])],
        )


def rows_in(
    file: str, ranges: Iterable[tuple[int, int]], columns: pa.Schema, batch_bytes: int = _BATCH_BYTES
) -> Iterator[pa.Table]:
    """Return rows of a Parquet file, up to a million at a time; encoded texts stay dictionary-encoded.

    Parameters
    ----------
    file : str
        The file's URI, in Spark's form.
    ranges : iterable of pair of int
        The first row, and the end row; rows beyond the file are ignored.
    columns : pyarrow.Schema
        The columns to read, with their result types.
    batch_bytes : int
        How many bytes of a row group to decode at a time, approximately, over all its columns.

    Raises
    ------
    InvalidUsageError
        If the file lacks a column, or a value has no counterpart in its type.
    CorruptDataError
        If the file is damaged.
    UnavailableError
        If the file system refuses.
    """
    with _translate_errors(file):
        opened = _open(file, columns)
    for first, stop in ranges:
        for batch in _decode(opened, file, (first, stop), columns.names, batch_bytes):
            yield _cast(batch, file, columns, opened)


def _open(file: str, columns: pa.Schema) -> ParquetFile:
    """Open a file; dictionary-encoded text columns are read as dictionaries."""
    from pyarrow.parquet import ParquetFile

    system, path = _place(file)
    handle = system.open_input_file(path)
    plain = ParquetFile(handle)
    missing = [name for name in columns.names if name not in plain.schema_arrow.names]
    if missing:
        raise InvalidUsageError(
            "a Parquet file lacks columns of the source",
            file=file,
            missing=", ".join(missing),
            known=", ".join(plain.schema_arrow.names),
        )
    # Arrow detects damaged metadata only when it reads rows. Inspecting damaged metadata may crash the
    # process, so read a row first.
    next(plain.iter_batches(1, columns=columns.names, use_threads=False), None)
    texts = [field.name for field in columns if pa.types.is_string(field.type)]
    coded = [name for name in texts if _is_coded(plain, name)]
    return ParquetFile(
        handle, metadata=plain.metadata, read_dictionary=coded, coerce_int96_timestamp_unit="us"
    )


def _is_coded(file: ParquetFile, column: str) -> bool:
    """Return whether a column is dictionary-encoded in a file."""
    if not file.metadata.num_row_groups:
        return False
    group = file.metadata.row_group(0)
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema == column:
            return bool(chunk.total_uncompressed_size < _LENGTH_BYTES * chunk.num_values)
    return False


def _decode(
    opened: ParquetFile, file: str, rows: tuple[int, int], names: list[str], batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Return a range of rows in the file's types."""
    (first, stop), begin = rows, 0
    for group in range(opened.metadata.num_row_groups):
        end = begin + opened.metadata.row_group(group).num_rows
        low, high = max(first, begin), min(stop, end)
        if low < high:
            at, size = begin, min(high - begin, _batch_rows(opened, group, batch_bytes))
            with _translate_errors(file):
                batches = opened.iter_batches(size, row_groups=[group], columns=names, use_threads=False)
            while at < high:
                with _translate_errors(file):
                    batch = next(batches, None)
                if batch is None:
                    raise CorruptDataError("a Parquet file has fewer rows than its footer states", file=file)
                count = batch.num_rows
                if at + count > low:
                    skipped = max(0, low - at)
                    yield batch.slice(skipped, min(high - at, count) - skipped)
                at += count
        begin = end


def _batch_rows(opened: ParquetFile, group: int, batch_bytes: int) -> int:
    """Return how many rows of a row group, with all columns, fit into `batch_bytes`."""
    facts = opened.metadata.row_group(group)
    return max(1, min(_BATCH_ROWS, batch_bytes * facts.num_rows // max(1, facts.total_byte_size)))


def _cast(batch: pa.RecordBatch, file: str, columns: pa.Schema, opened: ParquetFile) -> pa.Table:
    """Return rows in the source's types; encoded texts stay dictionary-encoded."""
    made = []
    for field in columns:
        column = batch.column(field.name)
        kind = column.type
        if kind == field.type or (pa.types.is_dictionary(kind) and kind.value_type == field.type):
            made.append(column)
            continue
        if _is_int96(opened, field.name):
            # Arrow reads Spark's legacy timestamps as times without a zone, but they are in UTC.
            column = column.cast(pa.timestamp("us", "UTC"))
        if not fits(column.type, field.type):
            raise _unlike(file, field, kind)
        try:
            made.append(cast(column, field.type))
        except pa.ArrowInvalid:
            raise _unlike(file, field, kind) from None
    return pa.Table.from_arrays(made, names=columns.names)


def _is_int96(opened: ParquetFile, column: str) -> bool:
    at = opened.schema_arrow.get_field_index(column)
    return pa.types.is_timestamp(opened.schema_arrow.field(at).type) and any(
        one.path == column and one.physical_type == "INT96"
        for one in map(opened.schema.column, range(len(opened.schema)))
    )


def _unlike(file: str, field: pa.Field, kind: pa.DataType) -> InvalidUsageError:
    return InvalidUsageError(
        "a column of a Parquet file is not of the type that the source has, or a value does not fit it",
        file=file,
        column=field.name,
        stored=str(kind),
        wanted=str(field.type),
    )


@contextlib.contextmanager
def _translate_errors(file: str) -> Iterator[None]:
    """Turn errors of a file system or a decoder into Penstock errors."""
    with refusals("a file of a source cannot be read", file, file):
        try:
            yield
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise CorruptDataError("a Parquet file is damaged", file=file, reason=str(error)) from None
        except OSError as error:
            if error.errno is not None:
                raise
            raise CorruptDataError("a Parquet file is damaged", file=file, reason=str(error)) from None


def _place(file: str) -> tuple[Any, str]:
    """Return the file system and the path of a file."""
    parts = urlsplit(file)
    path = unquote(parts.path)
    if parts.scheme in ("", "file"):
        system, _ = file_system("file:///")
        return system, path
    scheme = "s3" if parts.scheme in ("s3a", "s3n") else parts.scheme
    system, base = file_system(f"{scheme}://{parts.netloc}/")
    return system, base + path
