"""Read files of CSV or JSON lines whose records may be bad, without Spark."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from penstock.errors import InvalidUsageError
from penstock.local_engine.file_formats import check_options, convert_columns, read_csv
from penstock.local_engine.inputs import FilesInput
from penstock.local_engine.query_log import Offset
from penstock.local_engine.records.bad_records import BadRecords, RecordInput, Records, read_in_parts
from penstock.local_engine.records.json_decoder import JsonDecoder
from penstock.spark_ext.border.types import as_arrow_of_spark
from penstock.spark_ext.sources.rejected import WRONG_CSV

__all__ = ["RecordFilesInput"]

_BLOCK_BYTES: Final = 64 << 20
"""The number of bytes that are read from a file at once. The line in which they end is read whole."""

_ReadLines = Callable[[pa.Array], tuple[pa.Table, dict[int, str]]]
"""A function that returns the rows of lines, and for each bad line its number and the reason."""


class RecordFilesInput(FilesInput, RecordInput):
    """Files of CSV or JSON lines that appear in a directory or match a pattern, each read once.

    Parameters
    ----------
    path, schema, log
        See `FilesInput`.
    format : {"csv", "json"}
        The format.
    options : mapping of str to str
        Options of Spark's reader.
    zone : str, optional
        The time zone of times without a zone. By default, these times are refused.
    bad_records : BadRecords
        The treatment of bad records.

    Raises
    ------
    InvalidUsageError
        If an option is unknown to this engine, or only Spark can read a type.
    """

    def __init__(
        self,
        path: str,
        schema: StructType,
        log: Path,
        format: str,
        options: Mapping[str, str],
        zone: str | None,
        bad_records: BadRecords,
    ) -> None:
        known = check_options(format, options)
        columns = as_arrow_of_spark(schema)
        self._has_header = format == "csv" and known.get("header", "false").lower() == "true"
        self._read_lines: _ReadLines
        if format == "csv":
            self._read_lines = _CsvLines(columns, known, zone)
        else:
            self._read_lines = partial(_read_json, JsonDecoder(columns, zone, keeps_numbers=True))
        self.bad_records = bad_records
        super().__init__(path, schema, self._read_rows, log)

    def _read_rows(self, path: Path) -> pa.Table:
        empty = as_arrow_of_spark(self.schema).empty_table()
        return pa.concat_tables([empty, *(some.rows for some in self._read_records(path))])

    def read_records(self, start: Offset | None, end: Offset) -> Iterator[Records]:
        """See `RecordInput.read_records`."""
        for path in self.files(start, end):
            yield from self._read_records(path)

    def _read_records(self, path: Path) -> Iterator[Records]:
        for lines in _read_blocks(path, skips_first=self._has_header):
            try:
                rows, reasons = self._read_lines(lines)
            except InvalidUsageError as error:
                place = self.bad_records.place
                raise InvalidUsageError(
                    error.fact, hint=error.hint, source=place, file=path, **error.context
                ) from None
            bad = sorted(reasons)
            yield Records(rows, bad, partial(_facts, lines, reasons, bad, path.as_uri()))


def _facts(lines: pa.Array, reasons: Mapping[int, str], bad: list[int], file: str) -> dict[str, list[Any]]:
    return {
        "value": [lines[number].as_py() for number in bad],
        "file": [file] * len(bad),
        "reason": [reasons[number] for number in bad],
    }


def _read_blocks(path: Path, *, skips_first: bool) -> Iterator[pa.Array]:
    """Yield a file in blocks of whole lines, without blank lines."""
    with path.open("rb") as file:
        if skips_first:
            file.readline()
        while block := file.read(_BLOCK_BYTES):
            block += file.readline()
            lines = pc.split_pattern(pa.scalar(block, pa.binary()), "\n").values
            texts = pc.ascii_rtrim(lines.view(pa.string()), "\r")
            is_blank = pc.equal(pc.binary_length(pc.ascii_trim_whitespace(texts)), 0)
            yield texts.view(pa.binary()).filter(pc.invert(is_blank))


def _read_json(decoder: JsonDecoder, lines: pa.Array) -> tuple[pa.Table, dict[int, str]]:
    rows, reasons = decoder.decode(lines)
    found = {number: reason for number, reason in enumerate(reasons) if reason is not None}
    return pa.Table.from_batches([rows]), found


@dataclass(frozen=True, slots=True)
class _CsvLines:
    """Reads lines of CSV. In a bad line, each field that does not fit its column is null."""

    schema: pa.Schema
    options: Mapping[str, str]
    zone: str | None

    def __call__(self, lines: pa.Array) -> tuple[pa.Table, dict[int, str]]:
        reasons: dict[int, str] = {}

        def read(start: int, stop: int) -> pa.Table | None:
            return self._read(lines.slice(start, stop - start), self.schema)

        def read_alone(number: int) -> pa.Table:
            reasons[number] = WRONG_CSV
            return self._read_fields(lines[number].as_py())

        parts = read_in_parts(len(lines), read, read_alone)
        return pa.concat_tables([self.schema.empty_table(), *parts]), reasons

    def _read(self, lines: pa.Array, schema: pa.Schema) -> pa.Table | None:
        text = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), b"\n")[0].as_buffer()
        try:
            table = read_csv(pa.BufferReader(text), schema, self.options)
            return convert_columns(table, schema, self.zone) if table.num_rows == len(lines) else None
        except pa.ArrowInvalid:
            return None

    def _read_fields(self, line: bytes) -> pa.Table:
        separator = self.options["sep"]
        quote = self.options["quote"]
        text = line.decode("utf-8", errors="replace")
        try:
            cells = next(csv.reader([text], delimiter=separator, quotechar=quote))
        except csv.Error:  # a field is too long, or the line has a lone carriage return
            cells = []
        columns = []
        for number, field in enumerate(self.schema):
            column = None
            if number < len(cells) and cells[number] != self.options.get("nullvalue", ""):
                quoted = quote + cells[number].replace(quote, 2 * quote) + quote
                column = self._read(pa.array([quoted.encode()]), pa.schema([field]))
            columns.append(
                pa.chunked_array([pa.nulls(1, field.type)]) if column is None else column.column(0)
            )
        return pa.Table.from_arrays(columns, schema=self.schema)
