"""Split text into records, and parse records into rows, one chunk of a file at a time.

A *record* is a line of CSV, a line of NDJSON, or an element of a JSON array. Parsing is pyarrow's.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from penstock.ddl import type_text
from penstock.errors import InvalidUsageError
from penstock.jobs.ingest.column_types import cast_column, choose_type, find_times, parse_type

__all__ = ["Bad", "CsvDialect", "Dialect", "JsonDialect", "Records", "parse_records"]

_NEWLINE, _QUOTE, _COMMA = b"\n", b'"', ord(",")
_BLOCK_BYTES = 1 << 20
"""The bytes that one thread of pyarrow's parsers takes at a time."""

_SAMPLE_BYTES = 1 << 16

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ESCAPED = re.compile(rb"\\.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that cannot be parsed.

    Parameters
    ----------
    at : int
        The offset in the chunk.
    why : str
        The problem, without the record's content.
    """

    at: int
    why: str


class Records(ABC):
    """Splits and parses the records of one file; the first record begins at byte `begin`."""

    begin: int = 0
    sparse: bool = False
    """True if a record may lack columns, which are then null."""

    @abstractmethod
    def ends(self, content: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the end offsets of the complete records in `content`, which begins with a record."""

    def cut(self, content: bytes) -> int:
        """Return the end of the last complete record in `content`; 0 if there is none."""
        ends = self.ends(content)
        return int(ends[-1]) if ends.size else 0

    def middle_end(self, content: bytes) -> int:
        """Return the end of a record near the middle of `content`; 0 if there is only one record."""
        ends = self.ends(content)
        half = int(ends[(ends.size - 1) // 2]) if ends.size else 0
        return half if half < len(content) else 0

    def names_in(self, content: bytes) -> tuple[str, ...]:
        """Return the names of the columns in records, if they are known."""
        try:
            return tuple(self.infer(content[: self.cut(content[:_SAMPLE_BYTES])]).names)
        except pa.ArrowInvalid:
            return ()

    def infer(self, content: bytes) -> pa.Schema:
        """Infer the columns from records.

        Raises
        ------
        pyarrow.ArrowInvalid
            If the records cannot be parsed.
        """
        rows = self._rows(content, None)
        return pa.schema([pa.field(name, choose_type(rows[name])) for name in rows.schema.names])

    def parse(self, content: bytes, schema: pa.Schema) -> pa.Table:
        """Parse whole records to rows, with all of pyarrow's threads.

        Raises
        ------
        pyarrow.ArrowInvalid
            If a record cannot be parsed, or has different columns.
        """
        kinds = {field.name: parse_type(field.type) for field in schema}
        rows = self._rows(content, pa.schema(list(kinds.items())))
        if any(not field.nullable and rows[field.name].null_count for field in schema):
            raise pa.ArrowInvalid("there are nulls")
        return pa.table([cast_column(rows[field.name], field.type) for field in schema], schema)

    @abstractmethod
    def _rows(self, content: bytes, schema: pa.Schema | None) -> pa.Table:
        """Parse records; infer the columns if there is no schema."""

    @abstractmethod
    def explain_failure(self, record: bytes, schema: pa.Schema) -> str:
        """Return why a record cannot be parsed, without its content."""

    def _wrong_column(self, record: bytes, schema: pa.Schema) -> str:
        for field in schema:
            try:
                rows = self.parse(record, pa.schema([field.with_nullable(True)]))
            except pa.ArrowInvalid:
                return f"column {field.name} is no {type_text(field.type)}"
            if not field.nullable and rows[field.name].null_count:
                return f"column {field.name} is null"
        return "it cannot be parsed"


class Dialect(ABC):
    """The format of text files of one kind."""

    @abstractmethod
    def records(self, head: bytes, *, whole: bool) -> Records | None:
        """Return the reader of a file's records, chosen by its first bytes.

        Parameters
        ----------
        head : bytes
            The file's first bytes.
        whole : bool
            Whether `head` is the whole file, and the file will not grow.

        Returns
        -------
        Records or None
            None if more bytes are needed to decide.

        Raises
        ------
        InvalidUsageError
            If the file cannot be of this kind.
        """


# --------------------------------------------------------------------------------------------- CSV


@dataclass(frozen=True, slots=True)
class CsvDialect(Dialect):
    """Lines of fields.

    Parameters
    ----------
    header : bool
        Whether the first line has the names of the columns.
    delimiter : str
        The separator of fields: one ASCII character.
    multiline : bool
        Whether quoted fields may have line breaks. If so, quotes may only be at the start and the end of a
        field.
    null : tuple of str
        Unquoted texts that mean null, in addition to the empty text.
    names : tuple of str
        The columns of files without a header, if known.

    Raises
    ------
    InvalidUsageError
        If the delimiter is invalid.
    """

    header: bool = True
    delimiter: str = ","
    multiline: bool = False
    null: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n':
            raise InvalidUsageError(
                "the delimiter is not one character", hint="use one character, such as , or ; or a tab"
            )

    def records(self, head: bytes, *, whole: bool) -> Records | None:
        """Return the reader of the file's records; see `Dialect.records`."""
        mark = len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0
        if not self.header and self.names:
            return CsvRecords(self, self.names, mark)
        end = self._first(head) or (len(head) if whole else 0)
        if not end:
            return None
        names = self._fields(head[mark:end])
        if len(set(names)) < len(names):
            raise InvalidUsageError(
                "two columns have the same name",
                columns=", ".join(names),
                hint="if the file has no header line, pass --no-header",
            )
        return CsvRecords(self, names, end if self.header else mark)

    def _first(self, head: bytes) -> int:
        """Return the end of the first line that is not blank; 0 if it is incomplete."""
        blank = len(head) - len(head.lstrip(b"\r\n"))
        ends = CsvRecords(self, (), 0).ends(head[blank:])
        return blank + int(ends[0]) if ends.size else 0

    def _fields(self, line: bytes) -> tuple[str, ...]:
        options = pyarrow.csv.ReadOptions(autogenerate_column_names=not self.header, use_threads=False)
        try:
            names = pyarrow.csv.read_csv(_end_last_line(line), options, self.parse_options()).schema.names
        except (pa.ArrowInvalid, UnicodeDecodeError):
            raise InvalidUsageError("the first line is not valid CSV") from None
        return tuple(names)

    def parse_options(self) -> Any:
        """Return the options of pyarrow's parser."""
        return pyarrow.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=self.multiline)


def _end_last_line(lines: bytes) -> pa.Buffer:
    """Add a line break after the last line, because pyarrow ignores a single line without a line break."""
    return pa.py_buffer(lines if lines.endswith(_NEWLINE) else lines + _NEWLINE)


class CsvRecords(Records):
    """The lines of a file of CSV."""

    def __init__(self, dialect: CsvDialect, names: tuple[str, ...], begin: int) -> None:
        self._dialect, self._names, self.begin = dialect, names, begin

    def names_in(self, content: bytes) -> tuple[str, ...]:
        """Return the names of the fields."""
        return self._names

    def ends(self, content: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the ends of lines; a line break between quotes is not an end."""
        codes = np.frombuffer(content, np.uint8)
        ends = np.flatnonzero(codes == _NEWLINE[0])
        if self._dialect.multiline:
            quotes = np.flatnonzero(codes == _QUOTE[0])
            ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
        return ends + 1

    def cut(self, content: bytes) -> int:
        """Return the number of bytes up to the end of the last whole line."""
        return super().cut(content) if self._dialect.multiline else content.rfind(_NEWLINE) + 1

    def _rows(self, content: bytes, schema: pa.Schema | None) -> pa.Table:
        if not content.strip(b"\r\n"):
            return (schema or pa.schema([(name, pa.null()) for name in self._names])).empty_table()
        try:
            return self._read(content, schema, _BLOCK_BYTES if schema is not None else len(content))
        except pa.ArrowInvalid:
            # A record may be longer than a block.
            return self._read(content, schema, len(content))

    def _read(self, content: bytes, schema: pa.Schema | None, block_bytes: int) -> pa.Table:
        return pyarrow.csv.read_csv(
            _end_last_line(content),
            pyarrow.csv.ReadOptions(column_names=list(self._names), block_size=max(block_bytes, 1)),
            self._dialect.parse_options(),
            pyarrow.csv.ConvertOptions(
                column_types=schema,
                include_columns=None if schema is None else schema.names,
                null_values=["", *self._dialect.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def explain_failure(self, record: bytes, schema: pa.Schema) -> str:
        """Return why a line cannot be parsed."""
        options = pyarrow.csv.ReadOptions(autogenerate_column_names=True)
        try:
            fields = pyarrow.csv.read_csv(
                _end_last_line(record), options, self._dialect.parse_options()
            ).num_columns
        except pa.ArrowInvalid:
            return "a quote does not end"
        if fields != len(self._names):
            return f"it has {fields:,} fields, not {len(self._names):,}"
        return self._wrong_column(record, schema)


# -------------------------------------------------------------------------------------------- JSON


@dataclass(frozen=True, slots=True)
class JsonDialect(Dialect):
    """JSON objects, each on its own line, or in one array.

    Parameters
    ----------
    arrays : bool
        Whether a file may be an array.
    """

    arrays: bool = False

    def records(self, head: bytes, *, whole: bool) -> Records | None:
        """Return the reader of the file's records; see `Dialect.records`."""
        begin = len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0
        if not self.arrays:
            return JsonRecords(begin)
        first = head[begin:].lstrip()
        if not first and not whole:
            return None
        if not first.startswith(b"["):
            return JsonRecords(begin)
        return ArrayRecords(head.index(b"[") + 1)


class JsonRecords(Records):
    """The lines of a file of NDJSON."""

    sparse = True

    def __init__(self, begin: int) -> None:
        self.begin = begin

    def ends(self, content: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the ends of lines."""
        return np.flatnonzero(np.frombuffer(content, np.uint8) == _NEWLINE[0]) + 1

    def cut(self, content: bytes) -> int:
        """Return the number of bytes up to the end of the last whole line."""
        return content.rfind(_NEWLINE) + 1

    def _rows(self, content: bytes, schema: pa.Schema | None) -> pa.Table:
        lines = self._lines(content)
        if not lines or lines.isspace():
            return (schema or pa.schema([])).empty_table()
        try:
            return _read_json(lines, schema, _BLOCK_BYTES)
        except pa.ArrowInvalid:
            # An object may be longer than a block.
            return _read_json(lines, schema, len(lines))

    def infer(self, content: bytes) -> pa.Schema:
        """Infer the columns from objects; see `Records.infer`.

        Texts that are all times become times. If any time of a column has a zone, the column's type has the
        zone UTC.
        """
        schema = super().infer(content)
        text_types = pa.schema([(field.name, parse_type(field.type)) for field in schema])
        texts = self._rows(content, text_types)
        return pa.schema([(field.name, find_times(field.type, texts[field.name])) for field in schema])

    def _lines(self, content: bytes) -> bytes:
        return content

    def explain_failure(self, record: bytes, schema: pa.Schema) -> str:
        """Return why an object cannot be parsed."""
        try:
            value = json.loads(self._lines(record))
        except json.JSONDecodeError as error:
            return f"it is no JSON, at its byte {error.pos}: {error.msg}"
        except UnicodeDecodeError:
            return "it is not UTF-8"
        if not isinstance(value, dict):
            return "it is no object"
        return self._wrong_column(record, schema)


def _read_json(lines: bytes, schema: pa.Schema | None, block_bytes: int) -> pa.Table:
    rows = pyarrow.json.read_json(
        pa.py_buffer(lines),
        pyarrow.json.ReadOptions(block_size=block_bytes if schema is not None else len(lines)),
        pyarrow.json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
        ),
    )
    # Check that texts are UTF-8, because pyarrow's parser accepts any bytes.
    rows.validate(full=True)
    return rows


class ArrayRecords(JsonRecords):
    """The elements of a JSON array, after its opening bracket; an element includes the comma after it."""

    def ends(self, content: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the ends of elements: after the comma of each, and after the array's closing bracket."""
        codes, depth = _outside_text(content)
        ends = np.flatnonzero(((codes == _COMMA) & (depth == 0)) | ((codes == ord("]")) & (depth < 0)))
        return ends + 1

    def cut(self, content: bytes) -> int:
        """Return the number of bytes up to the end of the last whole element."""
        return Records.cut(self, content)

    def _lines(self, content: bytes) -> bytes:
        """Return the elements on separate lines; all bytes keep their offsets."""
        codes, depth = _outside_text(content)
        lines = np.where(codes == _NEWLINE[0], np.uint8(ord(" ")), np.frombuffer(content, np.uint8))
        lines[(codes == _COMMA) & (depth == 0)] = _NEWLINE[0]
        lines[(codes == ord("]")) & (depth < 0)] = ord(" ")
        return lines.tobytes()


def _outside_text(
    content: bytes,
) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, np.dtype[np.int32]]]:
    """Return the bytes with quoted bytes set to 0, and the bracket depth of each byte."""
    plain = _ESCAPED.sub(b"  ", content) if b"\\" in content else content
    codes = np.frombuffer(plain, np.uint8)
    quotes = codes == _QUOTE[0]
    within = np.logical_xor.accumulate(quotes) | quotes
    outside = np.where(within, np.uint8(0), codes)
    opening = (outside == ord("{")) | (outside == ord("["))
    closing = (outside == ord("}")) | (outside == ord("]"))
    depth = np.cumsum(opening.view(np.int8) - closing.view(np.int8), dtype=np.int32)
    return outside, depth


def parse_records(
    records: Records, content: bytes, schema: pa.Schema, at: int = 0
) -> Iterator[tuple[int, pa.Table | Bad]]:
    """Parse complete records part by part; yield the end of each part, and its rows or its bad record.

    A chunk that cannot be parsed is halved until the bad records are isolated.
    """
    try:
        rows = records.parse(content, schema)
    except pa.ArrowInvalid:
        half = records.middle_end(content)
        if not half:
            yield at + len(content), Bad(at, records.explain_failure(content, schema))
            return
        yield from parse_records(records, content[:half], schema, at)
        yield from parse_records(records, content[half:], schema, at + half)
    else:
        yield at + len(content), rows
