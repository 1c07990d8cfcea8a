"""Read files of CSV or JSON lines whose records may be bad, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.local_engine.file_formats import check_options
from penstock.local_engine.inputs import FilesInput
from penstock.local_engine.query_log import Offset
from penstock.local_engine.records.bad_records import BadRecords, RecordInput, Records
from penstock.local_engine.records.lines import line_reader
from penstock.spark_ext.border.types import as_arrow_of_spark

__all__ = ["RecordFilesInput"]

_QUOTED: Final = re.compile(r"[^\w\x80-\U0010ffff/!$&'()*+,;=:@~.-]")
"""The characters of a path that Java's URIs do not keep."""


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
    zone : str
        The time zone of times without a zone.
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
        zone: str,
        bad_records: BadRecords,
    ) -> None:
        known = check_options(format, options)
        columns = as_arrow_of_spark(schema)
        self._read_lines = line_reader(format, columns, known, zone)
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
        for lines, rows, reasons in self._read_lines(path):
            bad = sorted(reasons)
            yield Records(rows, bad, partial(_facts, lines, reasons, bad, _uri_of_spark(path)))


def _uri_of_spark(path: Path) -> str:
    """Return a file's URI as Spark writes it, because both engines must store the same rows."""
    return "file:" + _QUOTED.sub(lambda found: quote(found[0]), str(path))


def _facts(lines: pa.Array, reasons: Mapping[int, str], bad: list[int], file: str) -> dict[str, list[Any]]:
    return {
        "value": [lines[number].as_py() for number in bad],
        "file": [file] * len(bad),
        "reason": [reasons[number] for number in bad],
    }
