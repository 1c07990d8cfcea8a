"""Sources of `penstock ingest`: they return rows, and the position after them as a vector clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import xxhash

from penstock.errors import InvalidUsageError
from penstock.jobs.ingest.byte_source import ByteSource
from penstock.jobs.ingest.records import Bad, Dialect, Records, parse_records
from penstock.operators.update_stream.cast import cast

__all__ = ["ArrowFile", "BadRecord", "ParquetFile", "ReadSizes", "Rows", "Source", "TableFile", "TextSource"]

_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ReadSizes:
    """The amounts of a source that are read at a time.

    Parameters
    ----------
    chunk_bytes : int
        The bytes of text that are parsed together.
    most_record_bytes : int
        The largest size of a record of text.
    batch_rows : int
        The rows of a Parquet file that are read together.
    """

    chunk_bytes: int = 8 << 20
    most_record_bytes: int = 256 << 20
    batch_rows: int = 65_536


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a source.

    Parameters
    ----------
    table : pyarrow.Table
        The rows, with the stream's columns.
    size_bytes : int
        The bytes read for these rows.
    clock : mapping of str to int
        The position in the source after these rows.
    """

    table: pa.Table
    size_bytes: int
    clock: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot be parsed: its position, and the reason.

    Parameters
    ----------
    source : str
        The file.
    line : int
        The line on which the record starts, from 1 on.
    offset : int
        The byte at which the record starts.
    why : str
        The reason, without the record's content.
    remedy : str
        The hint for the error.
    size_bytes : int
        The bytes read for this record, if they are known.
    """

    source: str
    line: int
    offset: int
    why: str
    remedy: str = (
        "correct it and run the same command again, skip such records with --on-error skip, or make a new "
        "p-stream whose types are given by --schema"
    )
    size_bytes: int = 0

    def error(self) -> InvalidUsageError:
        """Return an error for the record."""
        error = InvalidUsageError(
            f"a record cannot be read: {self.why}",
            file=self.source,
            line=self.line,
            offset=self.offset,
            hint=self.remedy,
        )
        error.while_running = True
        return error


class Source(ABC):
    """A source of rows.

    The order of calls: `infer` if there is no stream yet, `begin`, then `read` until it is `done`.
    """

    name: str
    done: bool = False
    """True if everything was read and no more can follow."""
    left_out: tuple[str, ...] = ()
    """The source's columns that the stream lacks, among the columns seen so far."""

    @abstractmethod
    def infer(self) -> pa.Schema | None:
        """Infer the columns from the first rows; None while there are no rows.

        Raises
        ------
        InvalidUsageError
            If these rows cannot be read.
        """

    @abstractmethod
    def begin(self, schema: pa.Schema, clock: Mapping[str, int]) -> None:
        """Go to the position in a vector clock.

        Raises
        ------
        InvalidUsageError
            If the clock describes a different source.
        """

    @abstractmethod
    def read(self) -> Iterator[Rows | BadRecord]:
        """Return the available rows that were not read yet.

        Raises
        ------
        InvalidUsageError
            If the source cannot be read, or has different columns.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the source."""

    def _compare(self, names: Sequence[str], schema: pa.Schema, *, sparse: bool) -> None:
        """Compare the source's columns with the stream's; refuse missing columns unless `sparse`."""
        self.left_out = tuple(name for name in names if name not in schema.names)
        missing = [name for name in schema.names if name not in names]
        if missing and not sparse:
            raise InvalidUsageError(
                "the file lacks columns of the p-stream",
                file=self.name,
                missing=", ".join(missing),
                known=", ".join(names),
            )


class TextSource(Source):
    """Records of text.

    Parameters
    ----------
    content : ByteSource
        The bytes.
    dialect : Dialect
        The format.
    key : str, optional
        The source's name in vector clocks. A clock holds the number of bytes that were read, and the checksum
        of the first 4,096 bytes. Without a name, the source cannot be read again.
    sizes : ReadSizes, optional
        The amounts to read at a time.
    """

    def __init__(
        self, content: ByteSource, dialect: Dialect, key: str | None = None, sizes: ReadSizes | None = None
    ) -> None:
        self.name = content.name
        self._content, self._dialect, self._key = content, dialect, key
        self._sizes = sizes or ReadSizes()
        self._records: Records | None = None
        self._schema = pa.schema([])
        self._compared = False
        self._at = self._counted = 0
        self._head = (0, 0)

    def infer(self) -> pa.Schema | None:
        """Infer the columns from the first records; see `Source.infer`."""
        opened = self._next()
        if opened is None:
            return None
        records, chunk = opened
        schema = self._infer_records(records, chunk)
        return schema if schema.names else None

    def _infer_records(self, records: Records, chunk: bytes) -> pa.Schema:
        """Infer the columns from as many of the first records as can be parsed together."""
        while True:
            try:
                return records.infer(chunk)
            except pa.ArrowInvalid:
                half = records.middle_end(chunk)
                if not half:
                    why = records.explain_failure(chunk, pa.schema([]))
                    raise BadRecord(self.name, self._line(self._at), self._at, why).error() from None
                chunk = chunk[:half]

    def begin(self, schema: pa.Schema, clock: Mapping[str, int]) -> None:
        """Go to the position in a vector clock; see `Source.begin`."""
        self._schema = schema
        read = clock.get(f"bytes:{self._key}", 0)
        if read:
            self._at = self._counted = read
            self._head = min(read, _HEAD_BYTES), clock[f"head:{self._key}"]
            self._check_head()

    def read(self) -> Iterator[Rows | BadRecord]:
        """Return the rows available now; see `Source.read`."""
        self._check_head()
        while (opened := self._next()) is not None:
            records, chunk = opened
            if not self._compared:
                self._compare(records.names_in(chunk), self._schema, sparse=records.sparse)
                self._compared = True
            try:
                yield from self._rows(records, chunk, self._schema)
            except pa.ArrowNotImplementedError as error:  # only the parsers can tell which types they support
                raise InvalidUsageError(
                    "text cannot be read as one of these types", file=self.name, schema=_line(self._schema)
                ) from error

    def _rows(self, records: Records, chunk: bytes, schema: pa.Schema) -> Iterator[Rows | BadRecord]:
        for end, item in parse_records(records, chunk, schema, self._at):
            # What precedes the records, such as a header, counts with the first rows.
            size_bytes, self._at, self._counted = end - self._counted, end, end
            if isinstance(item, Bad):
                yield BadRecord(self.name, self._line(item.at), item.at, item.why, size_bytes=size_bytes)
            else:
                yield Rows(item, size_bytes, self._clock())

    def _line(self, at: int) -> int:
        return self._content.lines_before(at) + 1

    def _next(self) -> tuple[Records, bytes] | None:
        """Return the next complete records and their reader; None if there are no more now."""
        size = self._sizes.chunk_bytes
        while True:
            content, last = self._content.read_at(self._at if self._records else 0, size)
            if self._records is None:
                self._records = self._dialect.records(content, whole=last)
                if self._records is not None:
                    self._at = max(self._at, self._records.begin)
                    continue
            elif whole_bytes := len(content) if last else self._records.cut(content):
                return self._records, content[:whole_bytes]
            if len(content) < size:
                self.done = last
                return None
            if size >= self._sizes.most_record_bytes:
                raise InvalidUsageError(
                    "a record has no end",
                    file=self.name,
                    offset=self._at,
                    most_bytes=self._sizes.most_record_bytes,
                    hint="check the format",
                )
            size *= 2

    def _clock(self) -> dict[str, int]:
        if self._key is None:
            return {}
        size = min(self._at, _HEAD_BYTES)
        if size > self._head[0]:
            self._head = (size, self._checksum(size))
        return {f"bytes:{self._key}": self._at, f"head:{self._key}": self._head[1]}

    def _check_head(self) -> None:
        """Use the checksum of the first bytes to check that the file was not replaced."""
        size, checksum = self._head
        if size and self._checksum(size) != checksum:
            raise InvalidUsageError(
                "the beginning of the file has changed since it was read",
                file=self.name,
                hint="rename the new file, or read it under another --writer",
            )

    def _checksum(self, size: int) -> int:
        # Keep 63 bits, because the values of a clock are signed 64-bit integers.
        return xxhash.xxh3_64_intdigest(self._content.read_at(0, size)[0]) >> 1

    def close(self) -> None:
        """Close the source."""
        self._content.close()


class TableFile(Source):
    """The rows of a file of Parquet, or of Arrow IPC; the file is complete when it appears.

    Parameters
    ----------
    path : Path
        The file.
    key : str
        The file's name in vector clocks. A clock holds the number of rows that were read.
    sizes : ReadSizes, optional
        The amounts to read at a time.
    """

    def __init__(self, path: Path, key: str, sizes: ReadSizes | None = None) -> None:
        self.name = str(path)
        self._sizes = sizes or ReadSizes()
        self._path, self._key = path, f"rows:{key}"
        self._schema = pa.schema([])
        self._read = 0

    def infer(self) -> pa.Schema | None:
        """Return the file's columns; see `Source.infer`."""
        with self._refusals():
            schema, _ = self._open()
        return pa.schema([pa.field(column.name, _plain(column.type), column.nullable) for column in schema])

    def begin(self, schema: pa.Schema, clock: Mapping[str, int]) -> None:
        """Go to the position in a vector clock; see `Source.begin`."""
        self._schema = schema
        self._read = clock.get(self._key, 0)

    def read(self) -> Iterator[Rows | BadRecord]:
        """Return the rows that were not read yet; see `Source.read`."""
        with self._refusals():
            schema, batches = self._open()
            self._compare(schema.names, self._schema, sparse=False)
            at = 0
            for batch in batches:
                begin, at = at, at + batch.num_rows
                if at > self._read:
                    rows = self._fit(batch.slice(max(self._read - begin, 0)), schema, begin)
                    yield Rows(rows, rows.nbytes, {self._key: at})
        if at < self._read:
            raise InvalidUsageError(
                "the file has fewer rows than were already read",
                file=self.name,
                read=self._read,
                rows=at,
                hint="rename the new file, or read it under another --writer",
            )
        self.done = True

    def _fit(self, batch: pa.RecordBatch, schema: pa.Schema, at: int) -> pa.Table:
        try:
            return cast(pa.Table.from_batches([batch]).select(self._schema.names), self._schema)
        except ValueError:
            raise self._wrong(schema, at) from None

    def _wrong(self, schema: pa.Schema, row: int) -> InvalidUsageError:
        others = [
            f"{column.name} is {schema.field(column.name).type}, not {column.type}"
            for column in self._schema
            if not schema.field(column.name).type.equals(column.type)
        ]
        return InvalidUsageError(
            "the file has rows that do not fit the p-stream's columns",
            file=self.name,
            row=row,
            types="; ".join(others) or "as they should; there are nulls where none may be",
        )

    def close(self) -> None:
        """Do nothing: the file is open only while it is read."""

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or "it is damaged"
            raise InvalidUsageError("the file cannot be read", file=self.name, reason=reason) from None
        except pa.ArrowInvalid:
            raise InvalidUsageError("the file has another format or is damaged", file=self.name) from None

    @abstractmethod
    def _open(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the columns of the file, and its rows."""


class ParquetFile(TableFile):
    """A file of Parquet."""

    def _open(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        file = pyarrow.parquet.ParquetFile(self._path)
        return file.schema_arrow, file.iter_batches(self._sizes.batch_rows)


class ArrowFile(TableFile):
    """A file in one of Arrow's IPC formats, file or stream."""

    def _open(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        # Do not map the file: if another process truncated it, a read beyond its end would kill this process.
        file = pa.OSFile(str(self._path))
        try:
            reader = pa.ipc.open_file(file)
        except pa.ArrowInvalid:
            file.seek(0)
            stream = pa.ipc.open_stream(file)
            return stream.schema, iter(stream)
        return reader.schema, (reader.get_batch(number) for number in range(reader.num_record_batches))


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _line(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)
