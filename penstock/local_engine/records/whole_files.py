"""Read whole files of CSV, JSON lines, Parquet, ORC or text as Spark reads them, without Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.local_engine.file_formats import check_options, read_file

__all__ = ["file_reader"]

_LOGGER = logging.getLogger(__name__)


def file_reader(
    format: str, schema: pa.Schema, options: Mapping[str, str], zone: str
) -> Callable[[Path], pa.Table]:
    """Return a function that reads a file.

    A value in a CSV or JSON file that does not fit its column is null, as in Spark. A warning counts the
    records with such values.

    Parameters
    ----------
    format : str
        ``csv``, ``json``, ``parquet``, ``orc`` or ``text``.
    schema : pyarrow.Schema
        The columns, in Spark's types.
    options : mapping of str to str
        Options of Spark's reader.
    zone : str
        The time zone of times without a zone.

    Raises
    ------
    InvalidUsageError
        If an option is unknown to this engine, or only Spark can read a type.
    """
    known = check_options(format, options)
    if format in ("csv", "json"):
        # Few tables and sources have these formats.
        from penstock.local_engine.records.lines import line_reader

        read_lines = line_reader(format, schema, known, zone)

    def read(path: Path) -> pa.Table:
        try:
            if format not in ("csv", "json"):
                return read_file(format, path, schema, zone)
            parts, bad = [schema.empty_table()], 0
            for _, rows, reasons in read_lines(path):
                parts.append(rows)
                bad += len(reasons)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            # The error's text may contain values.
            raise InvalidUsageError(
                "a file does not fit the schema",
                file=path,
                error=type(error).__name__,
                hint="correct the file or the schema",
            ) from None
        if bad:
            _LOGGER.warning("records do not fit the schema, and have nulls [file=%s records=%s]", path, bad)
        return pa.concat_tables(parts)

    return read
