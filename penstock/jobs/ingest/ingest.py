"""Append the records of sources to a p-stream, each exactly once."""

from __future__ import annotations

import glob
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from penstock._clock import monotonic_s
from penstock.checkpointing.p_stream import PStream, PStreamWriter
from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError, PenstockError
from penstock.jobs.ingest.byte_source import FileBytes, PipeBytes, connect
from penstock.jobs.ingest.messages import Messages, MessageSource
from penstock.jobs.ingest.mqtt import MqttMessages
from penstock.jobs.ingest.records import CsvDialect, Dialect, JsonDialect
from penstock.jobs.ingest.sources import (
    ArrowFile,
    BadRecord,
    ParquetFile,
    ReadSizes,
    Rows,
    Source,
    TextSource,
)
from penstock.jobs.ingest.websocket import WebSocketMessages

__all__ = ["KINDS", "ReadSizes", "Report", "Settings", "Totals", "ingest_sources"]

_TABLES = {"parquet": ParquetFile, "arrow": ArrowFile}
_TEXTS = ("csv", "json", "ndjson")
_LINES = ("csv", "ndjson")
_MESSAGES = ("mqtt", "websocket")
_PIPES = ("stdin", "socket", *_MESSAGES)
KINDS = (*_TEXTS, *_TABLES, *_PIPES)
"""The formats that rows can be read from."""

_IDLE_S = 0.1
"""The poll interval of growing files and their directories."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The input, its format and the p-stream that takes it.

    Parameters
    ----------
    location : str
        The p-stream.
    kind : str
        The kind of input, one of `KINDS`.
    sources : tuple of str
        Files and file patterns, or the address of a socket, a broker or a WebSocket.
    line_format : str
        The format of a pipe's lines, or of messages: ``csv`` or ``ndjson``.
    schema : str, optional
        The stream's columns; see `penstock.ddl.parse_schema`.
    header, delimiter, multiline, null
        See `CsvDialect`.
    follow : bool
        For files: whether to wait for new rows and new files. For a WebSocket: whether to connect again.
    topic_column : str, optional
        The column that gets the topics of a broker's messages.
    greetings : tuple of str
        The messages to send to a WebSocket after each connect.
    skip_bad : bool
        Whether to skip records that cannot be read.
    writer, goal, interval
        See `PStreamWriter`.
    sizes : ReadSizes
        The amounts to read at a time.

    Raises
    ------
    InvalidUsageError
        If the settings exclude each other.
    """

    location: str
    kind: str
    sources: tuple[str, ...] = ()
    line_format: str = "ndjson"
    schema: str | None = None
    header: bool = True
    delimiter: str = ","
    multiline: bool = False
    null: tuple[str, ...] = ()
    follow: bool = False
    topic_column: str | None = None
    greetings: tuple[str, ...] = ()
    skip_bad: bool = False
    writer: str = "ingest"
    goal: str = "balanced"
    interval: str = "200ms"
    sizes: ReadSizes = field(default_factory=ReadSizes)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidUsageError("the kind of input is unknown", kind=self.kind, known=", ".join(KINDS))
        if self.line_format not in _LINES:
            raise InvalidUsageError(
                "the format of lines is unknown", format=self.line_format, known=", ".join(_LINES)
            )
        if self.kind == "stdin":
            if self.sources:
                raise InvalidUsageError("stdin and a file are both given", hint="leave it out")
        elif self.kind in _PIPES:
            if len(self.sources) != 1:
                example = {"socket": "HOST:PORT", "mqtt": "mqtt://HOST:PORT/TOPIC"}.get(self.kind)
                raise InvalidUsageError(
                    f"the kind {self.kind} needs exactly one address",
                    hint=f"write {example or 'ws://HOST:PORT/PATH'}",
                )
        elif not self.sources:
            raise InvalidUsageError("no file is given", hint="name one or more files, or a quoted pattern")
        if self.follow and self.kind in _PIPES and self.kind != "websocket":
            raise InvalidUsageError(
                "only files and a WebSocket can be followed",
                hint="leave --follow out; a pipe, socket or broker is read to its end anyway",
            )
        if self.topic_column is not None and self.kind != "mqtt":
            raise InvalidUsageError("only messages of MQTT have topics", hint="leave --topic-column out")
        if self.greetings and self.kind != "websocket":
            raise InvalidUsageError("only a WebSocket is sent messages", hint="leave --send out")

    @property
    def text_format(self) -> str | None:
        """The dialect of text; None for binary formats."""
        return self.line_format if self.kind in _PIPES else self.kind if self.kind in _TEXTS else None

    def dialect(self, names: tuple[str, ...]) -> Dialect:
        """Return the dialect; `names` are the columns of files without a header."""
        if self.text_format == "csv":
            return CsvDialect(self.header, self.delimiter, self.multiline, self.null, names)
        return JsonDialect(arrays=self.text_format == "json")


@dataclass(slots=True)
class Totals:
    """Counts of rows and bytes read and written so far.

    Attributes
    ----------
    rows, bad : int
        The number of rows, and of records that were skipped.
    read_bytes, written_bytes : int
        Bytes of the sources, and bytes of p-units that are durable.
    seconds : float
        The duration.
    """

    rows: int = 0
    bad: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    seconds: float = 0.0


class Report:
    """Callbacks that are called while rows are read. A subclass overrides those that it needs."""

    def report_schema(self, schema: pa.Schema) -> None:
        """Report that the stream was created, with columns inferred from the first rows."""

    def report_left_out(self, source: str, names: tuple[str, ...]) -> None:
        """Report columns that the stream lacks."""

    def report_bad(self, record: BadRecord) -> None:
        """Report a skipped record."""

    def report_progress(self, totals: Totals) -> None:
        """Report progress."""


def ingest_sources(
    settings: Settings, report: Report | None = None, stopped: Callable[[], bool] = bool
) -> Totals:
    """Append all rows of the sources to a p-stream, and return once they are durable.

    Call this function in a separate process. Each commit holds the position in the files. However the process
    ends, the same call continues from the last commit. Pipes and sockets cannot be read again.

    Parameters
    ----------
    settings : Settings
        The input and the p-stream.
    report : Report, optional
        Receives progress.
    stopped : callable
        Returns whether to end early; called several times per second.

    Raises
    ------
    InvalidUsageError
        If a source or a record cannot be read. Earlier records are durable.
    FencedError
        If another process has started to write under the same name.
    CorruptDataError, UnavailableError
        If the stream is damaged, or a file system or server refuses.
    """
    return _Ingest(settings, report or Report(), stopped).run()


class _Ingest:
    """One run. Steps: 1. find the columns, 2. open the writer, 3. read sources to their ends."""

    def __init__(self, settings: Settings, report: Report, stopped: Callable[[], bool]) -> None:
        self._settings, self._report, self._stopped = settings, report, stopped
        self._totals = Totals()
        self._begun_s = monotonic_s()
        self._sources: dict[str, Source] = {}
        self._left_out: set[tuple[str, ...]] = set()

    def run(self) -> Totals:
        settings = self._settings
        schema = parse_schema(settings.schema) if settings.schema else None
        existing = _known_schema(settings.location)
        columns = schema or existing
        dialect = settings.dialect(tuple(columns.names) if columns else ())
        self._open_new(dialect)
        try:
            if schema is not None and existing is None and settings.kind not in _PIPES:
                self._try_schema(schema, dialect)
            if columns is None and (schema := self._infer(dialect)) is None:
                return self._totals
            with PStreamWriter(
                settings.location,
                schema,
                writer=settings.writer,
                goal=settings.goal,
                interval=settings.interval,
            ) as writer:
                if columns is None:
                    self._report.report_schema(writer.schema)
                try:
                    self._read_all(writer, dialect)
                except PenstockError:
                    # Rows read before the error are kept.
                    writer.flush()
                    raise
                finally:
                    self._count(writer)
            self._count(writer)
            self._report.report_progress(self._totals)
        finally:
            for source in self._sources.values():
                source.close()
        return self._totals

    def _open_new(self, dialect: Dialect) -> list[Source]:
        settings, new = self._settings, []
        if settings.kind == "stdin":
            sources: Iterator[tuple[str, Source]] = iter(
                [("stdin", TextSource(PipeBytes("stdin", sys.stdin.fileno()), dialect, sizes=settings.sizes))]
            )
        elif settings.kind in _MESSAGES:
            sources = iter([(settings.kind, self._messages(dialect))] if not self._sources else [])
        elif settings.kind == "socket":
            sources = iter(
                [("socket", TextSource(connect(settings.sources[0]), dialect, sizes=settings.sizes))]
            )
        else:
            sources = (
                (path, self._file(path, dialect))
                for path in _paths(settings.sources, follow=settings.follow)
                if path not in self._sources
            )
        for name, source in sources:
            self._sources[name] = source
            new.append(source)
        return new

    def _messages(self, dialect: Dialect) -> MessageSource:
        settings, address = self._settings, self._settings.sources[0]
        messages: Messages
        if settings.kind == "mqtt":
            messages = MqttMessages(address, f"penstock-{settings.writer}")
        else:
            messages = WebSocketMessages(address, settings.greetings, reconnects=settings.follow)
        return MessageSource(messages, dialect, settings.topic_column, settings.sizes.chunk_bytes)

    def _file(self, path: str, dialect: Dialect) -> Source:
        settings = self._settings
        if settings.kind in _TABLES:
            return _TABLES[settings.kind](Path(path), path, settings.sizes)
        return TextSource(FileBytes(Path(path), grows=settings.follow), dialect, path, settings.sizes)

    def _infer(self, dialect: Dialect) -> pa.Schema | None:
        """Return the columns of the first source that has rows; None if the run stops before that."""
        while not self._stopped():
            sources = self._sources.values()
            for source in sources:
                schema = source.infer()
                if schema is not None:
                    return schema
            if not self._settings.follow and all(source.done for source in sources):
                raise InvalidUsageError("there are no rows to infer the columns from", hint="pass --schema")
            self._wait()
            self._open_new(dialect)
        return None

    def _try_schema(self, schema: pa.Schema, dialect: Dialect) -> None:
        """Read the first rows, so that no p-stream is created with a schema that does not fit them.

        Raises
        ------
        InvalidUsageError
            If the first record cannot be read with these columns.
        """
        for path in self._sources:
            source = self._file(path, dialect)
            try:
                source.begin(schema, {})
                rows = next(source.read(), None)
            finally:
                source.close()
            if isinstance(rows, BadRecord) and not self._settings.skip_bad:
                raise rows.error()
            if rows is not None:
                return

    def _read_all(self, writer: PStreamWriter, dialect: Dialect) -> None:
        clock = writer.clock
        pending = list(self._sources.values())
        for source in pending:
            source.begin(writer.schema, clock)
        while not self._stopped():
            rows = self._totals.rows
            for source in pending:
                self._read(source, writer)
                if isinstance(source, MessageSource) and source.acknowledges:
                    writer.flush()
                    source.acknowledge()
            pending = [source for source in pending if not source.done]
            if self._settings.follow:
                for source in self._open_new(dialect):
                    source.begin(writer.schema, clock)
                    pending.append(source)
                if self._totals.rows == rows:
                    self._count_written(writer)
                    self._report.report_progress(self._totals)
                    self._wait()
            elif not pending:
                return

    def _read(self, source: Source, writer: PStreamWriter) -> None:
        first = True
        for item in source.read():
            if isinstance(item, BadRecord):
                if not self._settings.skip_bad:
                    raise item.error()
                self._totals.bad += 1
                self._totals.read_bytes += item.size_bytes
                self._report.report_bad(item)
            else:
                self._append(item, writer)
            if first and source.left_out and source.left_out not in self._left_out:
                self._left_out.add(source.left_out)
                self._report.report_left_out(source.name, source.left_out)
            first = False
            if self._stopped():
                return

    def _append(self, rows: Rows, writer: PStreamWriter) -> None:
        if rows.table.num_rows or rows.clock:
            writer.append(rows.table, clock=rows.clock)
        self._totals.rows += rows.table.num_rows
        self._totals.read_bytes += rows.size_bytes
        self._count(writer)
        self._report.report_progress(self._totals)

    def _count(self, writer: PStreamWriter) -> None:
        self._count_written(writer)
        self._totals.seconds = monotonic_s() - self._begun_s

    def _count_written(self, writer: PStreamWriter) -> None:
        """Count the bytes that are committed by now: the writer commits later than it takes rows."""
        self._totals.written_bytes = writer.metrics()["written_bytes"]

    def _wait(self) -> None:
        """Wait a moment; the caller then checks for signals."""
        threading.Event().wait(_IDLE_S)


def _known_schema(location: str) -> pa.Schema | None:
    """Return the columns of the stream; None if there is none."""
    try:
        return PStream(location).schema
    except InvalidUsageError:
        # An invalid location is refused when the stream is created.
        return None


def _paths(patterns: tuple[str, ...], *, follow: bool) -> Iterator[str]:
    """Return the absolute paths of files, each once."""
    for pattern in patterns:
        # A pattern may be absolute, which `Path.glob` does not take.
        paths = sorted(glob.iglob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207
        if not paths and not follow:
            raise InvalidUsageError("there is no such file", pattern=pattern)
        for path in paths:
            if not Path(path).is_dir():
                yield str(Path(path).absolute())
