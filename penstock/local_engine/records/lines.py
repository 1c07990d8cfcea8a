"""Read the lines of CSV or JSON files without Spark; any line may be bad."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.local_engine.file_formats import convert_columns, read_csv
from penstock.local_engine.records.bad_records import read_in_parts
from penstock.local_engine.records.json_decoder import JsonDecoder
from penstock.spark_ext.sources.rejected import WRONG_CSV

__all__ = ["Lines", "line_reader"]

_BLOCK_BYTES: Final = 64 << 20
"""The number of bytes to read from a file at once, plus the rest of the last line."""

Lines = tuple[pa.Array, pa.Table, dict[int, str]]
"""Lines, their rows, and the reason why a line is bad, by the number of each bad line."""


def line_reader(
    format: str, schema: pa.Schema, options: Mapping[str, str], zone: str
) -> Callable[[Path], Iterator[Lines]]:
    """Return a function that reads the lines of a file in blocks.

    Parameters
    ----------
    format : {"csv", "json"}
        The format.
    schema : pyarrow.Schema
        The columns, in Spark's types.
    options : mapping of str to str
        The result of `check_options`.
    zone : str
        The time zone of times without a zone.

    Raises
    ------
    InvalidUsageError
        If only Spark can read a type.
    """
    read_lines: Callable[[pa.Array], tuple[pa.Table, dict[int, str]]]
    if format == "csv":
        read_lines = _CsvLines(schema, options, zone)
    else:
        read_lines = partial(_read_json, JsonDecoder(schema, zone, keeps_numbers=True))
    has_header = format == "csv" and options.get("header", "false").lower() == "true"

    def read(path: Path) -> Iterator[Lines]:
        for lines in _read_blocks(path, skips_first=has_header):
            yield lines, *read_lines(lines)

    return read


def _read_blocks(path: Path, *, skips_first: bool) -> Iterator[pa.Array]:
    """Yield a file in blocks of whole lines, without blank lines. Lines end at CR, LF or CRLF as on Spark."""
    begin = int(skips_first)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            block = (block + file.readline()).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            lines = pc.split_pattern(pa.scalar(block, pa.binary()), "\n").values.slice(begin)
            begin = 0
            is_blank = pc.equal(pc.binary_length(pc.ascii_trim_whitespace(lines.view(pa.string()))), 0)
            yield lines.filter(pc.invert(is_blank))


def _read_json(decoder: JsonDecoder, lines: pa.Array) -> tuple[pa.Table, dict[int, str]]:
    rows, reasons = decoder.decode(lines)
    found = {number: reason for number, reason in enumerate(reasons) if reason is not None}
    return pa.Table.from_batches([rows]), found


@dataclass(frozen=True, slots=True)
class _CsvLines:
    """Reads lines of CSV. In a bad line, each field that does not fit its column is null."""

    schema: pa.Schema
    options: Mapping[str, str]
    zone: str

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
