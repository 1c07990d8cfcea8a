"""A table as a block: its columns' blocks, and a directory of them.

Bytes, little-endian::

    0    4   magic "PTAB"
    4    2   format version (1)
    6    2   flags (0)
    8    4   D, length of the directory
    12   8   xxh3-64 of the bytes 0 to 11 followed by the directory
    20   D   directory: rows, number of columns, and of each column the length of its name, the name in
             UTF-8, a byte that is 1 if it may have nulls, and the length of its block; integers as
             variable bytes (`penstock.compression.node`)
    ...      the columns' blocks (`penstock.compression.column`) in that order

Any number of such blocks may follow one another in a file. Each block has a part of the rows.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from penstock.compression.abc import check_version
from penstock.compression.choice.chooser import Chooser
from penstock.compression.column import MAX_BYTES, Block, encode
from penstock.compression.empty_rows import rows_without_columns
from penstock.compression.node import Reader, put_varint
from penstock.errors import CorruptDataError, InvalidUsageError

__all__ = ["BlockReader", "BlockWriter", "TableBlock", "blocks_in", "encode_table"]

FORMAT_VERSION = 1
"""The newest format that this code reads, and the format that it writes."""

_MAGIC = b"PTAB"
_PREFIX = struct.Struct("<4sHHI")
_CHECKSUM = struct.Struct("<Q")
_DIRECTORY_AT = _PREFIX.size + _CHECKSUM.size


def encode_table(
    table: pa.RecordBatch | pa.Table,
    *,
    chooser: Chooser | None = None,
    codecs: Mapping[str, str] | None = None,
    schema: pa.Schema | None = None,
) -> bytes:
    """Return a table as one block.

    Parameters
    ----------
    table : pyarrow.RecordBatch or pyarrow.Table
        The table; its column names must be distinct.
    chooser : Chooser, optional
        Decides how to encode columns; by default a new chooser with the goal "balanced".
    codecs : mapping of str to str, optional
        Cascades that replace the chooser's decision, by column.
    schema : pyarrow.Schema, optional
        The schema of the block; by default the table's. The table may differ from it only in
        dictionary-encoded texts.

    Raises
    ------
    InvalidUsageError
        If two columns have the same name, or there is no such codec or column.
    """
    codecs = codecs or {}
    schema = table.schema if schema is None else schema
    names = schema.names
    if len(set(names)) < len(names):
        raise InvalidUsageError("two columns of a table have the same name", columns=names)
    if unknown := set(codecs) - set(names):
        raise InvalidUsageError("the table has no such columns", columns=sorted(unknown))
    chooser = chooser if chooser is not None else Chooser()
    blocks = [
        encode(
            table.column(field.name),
            codecs.get(field.name, "auto"),
            chooser=chooser,
            column=field.name,
            kind=field.type,
        )
        for field in schema
    ]
    directory = bytearray()
    put_varint(table.num_rows, directory)
    put_varint(len(names), directory)
    for field, block in zip(schema, blocks, strict=True):
        text = field.name.encode()
        put_varint(len(text), directory)
        directory += text
        directory.append(field.nullable)
        put_varint(len(block), directory)
    start = _PREFIX.pack(_MAGIC, FORMAT_VERSION, 0, len(directory))
    return b"".join((start, _CHECKSUM.pack(_checksum(start, directory)), directory, *blocks))


def _checksum(prefix: bytes, directory: Any) -> int:
    digest = xxhash.xxh3_64(prefix)
    digest.update(directory)
    return digest.intdigest()


class _Directory(NamedTuple):
    """The start of a table's block."""

    rows: int
    places: dict[str, tuple[int, int]]
    """The offset and the size of each column's block."""
    nullable: dict[str, bool]
    size_bytes: int
    """The size of the whole block."""


def _directory_in(content: Any, file: object, offset: int) -> _Directory:
    """Return the checked directory of the block at the start of `content`."""
    if content.size < _DIRECTORY_AT:
        raise CorruptDataError("a table's block is cut", file=file, offset=offset)
    prefix = content[: _PREFIX.size].tobytes()
    magic, version, flags, size = _PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise CorruptDataError("this is not a table's block", file=file, offset=offset)
    check_version(version, FORMAT_VERSION, "block", file)
    (checksum,) = _CHECKSUM.unpack(content[_PREFIX.size : _DIRECTORY_AT].tobytes())
    directory = content[_DIRECTORY_AT : _DIRECTORY_AT + size]
    if directory.size < size or _checksum(prefix, directory.tobytes()) != checksum or flags or not version:
        raise CorruptDataError("the directory of a table's block is damaged", file=file, offset=offset)
    reader = Reader(directory, file)
    rows, count = reader.varint(), reader.varint()
    places: dict[str, tuple[int, int]] = {}
    nullable: dict[str, bool] = {}
    at = _DIRECTORY_AT + size
    for _ in range(count):
        text = reader.bytes(reader.varint()).tobytes()
        try:
            name = text.decode()
        except UnicodeDecodeError as error:
            raise reader.damage_error("a column's name is not UTF-8") from error
        nullable[name] = bool(reader.byte())
        length = reader.varint()
        places[name] = (at, length)
        at += length
    if not reader.at_end or len(places) != count:
        raise CorruptDataError("the directory of a table's block is damaged", file=file, offset=offset)
    return _Directory(rows, places, nullable, at)


class TableBlock:
    """An encoded table; any column and any range of rows can be decoded independently.

    Parameters
    ----------
    data : bytes-like
        The result of `encode_table`; more bytes may follow it.
    file : object
        Names the file in errors.
    offset : int
        The offset of `data` in the file, for errors.
    max_bytes : int
        The limit of the memory of one decoded column.
    schema : pyarrow.Schema, optional
        Columns that the table must have, with these types and this nullability.

    Raises
    ------
    CorruptDataError
        If the directory is cut, changed, of a newer format, or lacks a column of `schema`. Columns are
        checked when they are read.
    """

    def __init__(
        self,
        data: Any,
        *,
        file: object = None,
        offset: int = 0,
        max_bytes: int = MAX_BYTES,
        schema: pa.Schema | None = None,
    ) -> None:
        content = np.frombuffer(data, np.uint8)
        self._file, self._offset, self._max_bytes = file, offset, max_bytes
        self.rows, self.places, self._nullable, self.size_bytes = _directory_in(content, file, offset)
        if self.size_bytes > content.size:
            raise CorruptDataError(
                "a table's block is cut", file=file, offset=offset, size_bytes=content.size
            )
        self._content = content[: self.size_bytes]
        self._expected = {} if schema is None else {field.name: field for field in schema}
        for name, field in self._expected.items():
            if name not in self.places:
                raise CorruptDataError(
                    "a table's block lacks a column", file=file, offset=offset, column=name
                )
            self._nullable[name] = field.nullable

    @property
    def names(self) -> list[str]:
        """The columns' names, in their order."""
        return list(self.places)

    def column(self, name: str) -> Block:
        """Return one column, still encoded.

        Raises
        ------
        InvalidUsageError
            If there is no such column.
        CorruptDataError
            If the column's block is damaged.
        """
        if name not in self.places:
            raise InvalidUsageError("the block has no such column", column=name, known=", ".join(self.names))
        at, length = self.places[name]
        file = f"{self._file}, column {name}, offset {self._offset + at}"
        block = Block(self._content[at : at + length], file=file, max_bytes=self._max_bytes)
        if block.rows != self.rows:
            raise CorruptDataError("a column has another number of rows than its table", file=file)
        expected = self._expected.get(name)
        if expected is not None and not block.type.equals(expected.type):
            raise CorruptDataError(
                "a column has another type than its table", file=file, type=block.type, expected=expected.type
            )
        return block

    def read(
        self,
        columns: Sequence[str] | None = None,
        start: int = 0,
        stop: int | None = None,
        *,
        keep_dictionary: bool = False,
    ) -> pa.RecordBatch:
        """Return some columns of some rows; by default all. For dictionaries see `Block.read`.

        Raises
        ------
        InvalidUsageError
            If there are no such columns or rows.
        CorruptDataError
            If a column that is read is damaged.
        """
        names = self.names if columns is None else list(columns)
        stop = self.rows if stop is None else stop
        arrays = [self.column(name).read(start, stop, keep_dictionary=keep_dictionary) for name in names]
        for name, array in zip(names, arrays, strict=True):
            if array.null_count and name in self._expected and not self._nullable[name]:
                raise CorruptDataError(
                    "a column that is not nullable has nulls",
                    file=self._file,
                    offset=self._offset,
                    column=name,
                )
        if not arrays:
            return rows_without_columns(stop - start)
        fields = [
            pa.field(name, array.type, self._nullable[name])
            for name, array in zip(names, arrays, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class BlockWriter:
    """Writes tables to a file as consecutive blocks.

    Parameters
    ----------
    sink : binary file
        The file to write to, which stays open.
    chooser : Chooser, optional
        Decides how to encode columns; by default a new chooser with the goal "balanced".
    codecs : mapping of str to str, optional
        Cascades that replace the chooser's decision, by column.

    Examples
    --------
    >>> import io
    >>> sink = io.BytesIO()
    >>> writer = BlockWriter(sink)
    >>> size = writer.write(pa.table({"n": list(range(1000))}))
    >>> BlockReader(sink.getvalue()).read().num_rows
    1000
    """

    def __init__(
        self, sink: BinaryIO, *, chooser: Chooser | None = None, codecs: Mapping[str, str] | None = None
    ) -> None:
        self._sink = sink
        self.chooser = chooser if chooser is not None else Chooser()
        self._codecs = codecs
        self._schema: pa.Schema | None = None

    def write(self, table: pa.RecordBatch | pa.Table) -> int:
        """Write a table as one block; return the block's size in bytes.

        Raises
        ------
        InvalidUsageError
            If the table's schema differs from the schema of earlier tables, or `encode_table` refuses the
            table.
        """
        if self._schema is not None and not table.schema.equals(self._schema):
            raise InvalidUsageError("a table's schema differs from the schema of the table before it")
        block = encode_table(table, chooser=self.chooser, codecs=self._codecs)
        self._schema = table.schema
        self._sink.write(block)
        return len(block)


class BlockReader:
    """Reads the blocks that `BlockWriter` wrote.

    Parameters
    ----------
    data : bytes-like
        A whole file: bytes, or a memory map.
    file : object
        Names the file in errors.
    max_bytes : int
        The limit of the memory of one decoded column of a block.

    Raises
    ------
    CorruptDataError
        If a directory is damaged or the last block is cut.

    Notes
    -----
    Map only files that no process truncates: reading beyond the end kills the process. `blocks_in` reads a
    file instead of mapping it.
    """

    def __init__(self, data: Any, *, file: object = None, max_bytes: int = MAX_BYTES) -> None:
        content = np.frombuffer(data, np.uint8)
        self.blocks: list[TableBlock] = []
        at = 0
        while at < content.size:
            block = TableBlock(content[at:], file=file, offset=at, max_bytes=max_bytes)
            self.blocks.append(block)
            at += block.size_bytes

    def __iter__(self) -> Iterator[TableBlock]:
        """Return the blocks in their order."""
        return iter(self.blocks)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return some columns of all rows.

        Raises
        ------
        InvalidUsageError
            If there is no such column, or there is no block.
        CorruptDataError
            If a column that is read is damaged.
        """
        if not self.blocks:
            raise InvalidUsageError("there is no block to read a schema from")
        return pa.Table.from_batches([block.read(columns) for block in self.blocks])


def blocks_in(path: Path) -> Iterator[TableBlock]:
    """Read the blocks of a file one at a time, so that memory holds only one block.

    Raises
    ------
    CorruptDataError
        If a directory is damaged, or the file ends within a block.
    OSError
        If the file cannot be read.
    """
    with path.open("rb") as file:
        at, end = 0, os.fstat(file.fileno()).st_size

        def more(content: bytes, size: int) -> bytes:
            # Check a block's size against the file before allocating memory.
            return content + file.read(max(min(size - len(content), end - file.tell()), 0))

        while at < end:
            head = more(b"", _DIRECTORY_AT)
            if len(head) == _DIRECTORY_AT:
                head = more(head, _DIRECTORY_AT + _PREFIX.unpack_from(head)[-1])
            directory = _directory_in(np.frombuffer(head, np.uint8), path, at)
            yield TableBlock(more(head, directory.size_bytes), file=path, offset=at)
            at += directory.size_bytes
