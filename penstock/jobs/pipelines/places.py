"""Checks, before Spark starts, that a pipeline can write to its locations."""

from __future__ import annotations

import csv
import os
import tempfile
from itertools import takewhile
from pathlib import Path
from typing import Final

from penstock.conf.cross_field_checks import side_streams
from penstock.conf.document import Document, FieldPath, PipelineError, describe
from penstock.conf.file_options import csv_marks
from penstock.conf.pipeline import (
    FilesSource,
    ParquetSink,
    Pipeline,
    PStreamSink,
    Source,
    SparkSink,
    TableSection,
    UpsertSink,
)
from penstock.errors import InvalidUsageError

__all__ = [
    "check_headers",
    "check_inputs",
    "check_places",
    "check_upsert",
    "missing_inputs",
    "nearest_directory",
    "read_places",
    "sources_of",
    "written_places",
    "wrong_with",
]

_ELSEWHERE: Final = ("PYSPARK_GATEWAY_PORT", "SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR")
_LONGEST_HEADER: Final = 65_536
"""The most characters of a line that are compared with the names of columns."""
_CORRUPT_RECORD: Final = "_corrupt_record"
"""Spark's default of ``columnNameOfCorruptRecord``."""


def check_places(pipeline: Pipeline, document: Document) -> None:
    """Check the local files and directories that a pipeline writes.

    Locations that name a file system, such as ``s3://bucket``, are left to Spark. If a Spark installation
    configures the run, all locations are left to Spark, because a path may then be on a cluster's file
    system.

    Raises
    ------
    PipelineError
        If a location cannot be written, with a line for each.
    """
    if _is_on_cluster():
        return
    problems = []
    for path, location, directory in written_places(pipeline):
        if location is None or "://" in location:
            continue
        wrong = wrong_with(Path(location), directory=directory)
        if wrong is not None:
            problems.append(describe(document.place(path), path, wrong))
    output = pipeline.sink.path if isinstance(pipeline.sink, ParquetSink | SparkSink) else None
    if not problems and output is not None and _has_foreign_results(output, pipeline.query.checkpoint):
        path = ("sink", "path")
        fact = (
            f"{output} holds the results of another checkpoint, so the micro-batches of a new one would be "
            "taken for repetitions and lost; restore the checkpoint, or set another path"
        )
        problems.append(describe(document.place(path), path, fact))
    if problems:
        raise PipelineError(problems)


def _has_foreign_results(output: str, checkpoint: str | None) -> bool:
    from penstock.checkpointing.spark_checkpoint import has_foreign_results  # imports pyarrow

    return has_foreign_results(output, checkpoint)


def check_upsert(pipeline: Pipeline, document: Document) -> None:
    """Check the address of the store that a pipeline writes, without opening it.

    Raises
    ------
    PipelineError
        If the address is not valid, or a package, the table or the directory of the database is missing.
    """
    sink, path = pipeline.sink, ("sink", "to")
    if not isinstance(sink, UpsertSink):
        return
    from penstock.upserts import check_address  # few pipelines have it

    try:
        check_address(sink.to, sink.table)
    except InvalidUsageError as error:
        place = document.place(path)
        if place.startswith("--set "):
            place = place.partition("=")[0]  # the address may hold a password
        context = "".join(f" {name}={value}" for name, value in error.context.items())
        fact = f"{error.fact}:{context}" if context else error.fact
        raise PipelineError([describe(place, path, fact, error.hint)]) from None


def check_inputs(pipeline: Pipeline, document: Document) -> None:
    """Check that the local files and directories that a pipeline reads exist; see `check_places`.

    Raises
    ------
    PipelineError
        If a file or directory is missing, with a line for each.
    """
    problems = missing_inputs(pipeline, document)
    if problems:
        raise PipelineError(problems)


def missing_inputs(pipeline: Pipeline, document: Document) -> list[str]:
    """Return a line for each local file or directory that a pipeline reads and that does not exist."""
    if _is_on_cluster():
        return []
    return [
        describe(document.place(path), path, f"there is no file or directory {location!r}")
        for path, location in read_places(pipeline)
        if not Path(location).exists()
    ]


def check_headers(pipeline: Pipeline, document: Document) -> None:
    """Check that no header of CSV files is read as a row, and that headers have the columns in order.

    Raises
    ------
    PipelineError
        If the first line of the first file names the columns, and no option says whether it is a header. Or
        if it is a header that has the columns of the schema in a different order. A header with different
        names is allowed, because Spark reads by position: the schema renames the columns.
    """
    from penstock.ddl import parse_schema  # few pipelines read CSV

    if _is_on_cluster():
        return
    problems = []
    for path, files in _file_sections(pipeline):
        found = _read_header(files)
        if found is None or files.columns is None:
            continue
        file, header = found
        try:
            names = parse_schema(files.columns).names
        except InvalidUsageError:
            continue  # another check reports it
        options = {name.lower(): text for name, text in files.options.items()}
        corrupt = options.get("columnnameofcorruptrecord", _CORRUPT_RECORD)
        names = [name for name in names if name != corrupt]  # Spark adds this column, at any position
        if "header" not in options:
            if header == names:
                at = (*path, "path")
                fact, hint = (
                    f"the first line of {file} is a header",
                    "add header: true to the source's options",
                )
                problems.append(describe(document.place(at), at, fact, hint))
            continue
        wanted, given = ([name.lower() for name in one] for one in (names, header))
        if wanted != given and sorted(wanted) == sorted(given):
            at = (*path, "schema")
            first = next(name for name, other in zip(names, given, strict=True) if name.lower() != other)
            fact = f"has column {first!r} at another position than the header of {file}"
            hint = f"Spark reads CSV by position, so write the columns in the order {', '.join(header)}"
            problems.append(describe(document.place(at), at, fact, hint))
    if problems:
        raise PipelineError(problems)


def _file_sections(pipeline: Pipeline) -> list[tuple[FieldPath, FilesSource | TableSection]]:
    found: list[tuple[FieldPath, FilesSource | TableSection]] = [
        (path, source) for path, source in sources_of(pipeline).values() if isinstance(source, FilesSource)
    ]
    if pipeline.lookup is not None:
        found.append((("lookup", "table"), pipeline.lookup.table))
    if pipeline.database is not None:
        found += [(("database", "initial", name), one) for name, one in pipeline.database.initial.items()]
    return found


def sources_of(pipeline: Pipeline) -> dict[str, tuple[FieldPath, Source]]:
    """Return the sections of a pipeline's sources, and their paths, by their names in the graph."""
    from penstock.jobs.pipelines.graph import OTHER, SOURCE  # slow to import

    found: dict[str, tuple[FieldPath, Source]] = {SOURCE: (("source",), pipeline.source)}
    if pipeline.union is not None:
        for name, other in pipeline.union.inputs.items():
            found[name] = ("union", "inputs", name, "source"), other.source
    if pipeline.join is not None:
        found[OTHER] = ("join", "with", "source"), pipeline.join.other.source
    return found


def _read_header(source: FilesSource | TableSection) -> tuple[Path, list[str]] | None:
    """Return a section's first CSV file and the fields of its first line, if this line may be a header.

    Empty lines and comments do not count, as in Spark.
    """
    options = {name.lower(): text for name, text in source.options.items()}
    is_header = options.get("header", "true").lower() == "true"
    if source.format != "csv" or source.columns is None or not is_header:
        return None
    try:
        place = Path(source.path)
        files = place.iterdir() if place.is_dir() else [place]
        file = min((one for one in files if one.name[0] not in "._" and one.is_file()), default=None)
        if file is None:
            return None
        comment = options.get("comment") or None
        with file.open(encoding="utf-8-sig", errors="replace") as lines:
            while line := lines.readline(_LONGEST_HEADER):
                text = line.strip()
                if text and (comment is None or not text.startswith(comment)):
                    break
    except OSError:
        return None  # another check reports it
    return file, _fields(line.rstrip("\r\n"), *csv_marks(options))


def _fields(line: str, separator: str, quote: str) -> list[str]:
    """Return the fields of a line of CSV, without white space around them."""
    if len(separator) != 1 or len(quote) != 1:  # the module csv takes only characters
        return [field.strip() for field in line.split(separator or None)]
    row = next(csv.reader([line], delimiter=separator, quotechar=quote), [])
    return [field.strip() for field in row]


def written_places(pipeline: Pipeline) -> list[tuple[FieldPath, str | None, bool]]:
    """Return each location that a pipeline writes, with its field and whether it is a directory."""
    query, sink = pipeline.query, pipeline.sink
    return [
        (("query", "checkpoint"), query.checkpoint, True),
        (("query", "state_location"), query.state_location, True),
        (("query", "metrics"), query.metrics, False),
        (("sink", "path"), sink.path if isinstance(sink, ParquetSink | PStreamSink) else None, True),
        *((path, location, True) for path, location in side_streams(pipeline)),
    ]


def read_places(pipeline: Pipeline) -> list[tuple[FieldPath, str]]:
    """Return the local files and directories that a pipeline reads, with their fields.

    Of a pattern, the result has the directory in which Spark looks for files.
    """
    places: list[tuple[FieldPath, str]] = []
    if isinstance(pipeline.source, FilesSource):
        places.append((("source", "path"), pipeline.source.path))
    if pipeline.lookup is not None:
        places.append((("lookup", "table", "path"), pipeline.lookup.table.path))
    if pipeline.database is not None:
        tables = pipeline.database.initial.items()
        places += [(("database", "initial", name, "path"), table.path) for name, table in tables]
    return [(path, _fixed_part(location)) for path, location in places if "://" not in location]


def _fixed_part(pattern: str) -> str:
    """Return a path up to its first part with a wildcard."""
    parts = Path(pattern).parts
    fixed = list(takewhile(lambda part: not any(mark in part for mark in "*?[{,"), parts))
    return pattern if len(fixed) == len(parts) else str(Path(*fixed))


def nearest_directory(path: Path) -> Path:
    """Return the path, or the nearest directory above it that exists."""
    return next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())


def _is_on_cluster() -> bool:
    return any(name in os.environ for name in _ELSEWHERE)


def wrong_with(path: Path, *, directory: bool) -> str | None:
    """Return why a file or directory cannot be written; None if it can."""
    try:
        if path.exists() and path.is_dir() != directory:
            return f"{path} is {'no directory' if directory else 'a directory'}"
        there = nearest_directory(path)
    except OSError as error:
        return f"{path} cannot be used: {error.strerror}"
    if there != path.absolute() and not there.is_dir():
        return f"{path} cannot be made: {there} is no directory"
    try:
        # Permissions are not enough: a file system may be read-only, or refuse files.
        if there.is_dir():
            tempfile.TemporaryFile(dir=there).close()
        else:
            there.open("ab").close()
    except OSError as error:
        return f"{path} cannot be written: {there}: {error.strerror}"
    return None
