"""The write-ahead log of a database in one process: calls that are durable, but not yet in its p-stream.

A sync of one appended file takes a fraction of a p-stream's commit, which publishes two files. So calls are
appended here first, and reach the p-stream within a second. Files and bytes::

    00000000000000000007-00000002.wal     part 2 of session 7

    "PENSTWAL" | version: u32 | 0: u32                                            the header
    "CALL" | size: u32 | offset: u64 | CRC-32 of what follows: u32 | CRC-32 of these 20 bytes: u32
        | Arrow stream of `size` bytes                                            a record, and so on

A record holds the calls of one sync; `offset` is the number of calls before them in the log. Invariants:

1. A session begins with part 0, created exclusively. A process acknowledges calls only if, after their sync,
   its own part still has a name and the next session's part 0 does not exist. A new session begins before it
   reads earlier parts. So it reads every acknowledged call, and an older process acknowledges no call
   afterwards.
2. Parts are deleted in ascending order, and only once the p-stream holds their calls.
3. Only the last record of a part can be incomplete, because a record is durable before the next record is
   written. An incomplete record is cut, or some of its sectors are zero. A record that is invalid in another
   way, or that another record follows, is damaged.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from penstock import _durable
from penstock._durable.appended import AppendedFile
from penstock.errors import ConflictError, CorruptDataError, FencedError

__all__ = ["WriteAheadLog"]

_NAME = re.compile(r"(?P<session>\d{20})-(?P<number>\d{8})\.wal")
_MAGIC, _VERSION = b"PENSTWAL", 1
_HEADER = struct.Struct("<8sII")
_RECORD = struct.Struct("<4sIQI")
_MARK = b"CALL"
_CHECKSUM = struct.Struct("<I")
_SECTOR_BYTES = 512
_RECORD_HEADER_BYTES = _RECORD.size + _CHECKSUM.size


class _Part(NamedTuple):
    """One file of the log."""

    session: int
    number: int

    @property
    def name(self) -> str:
        return f"{self.session:020}-{self.number:08}.wal"


class WriteAheadLog:
    """A session of the log in a local directory. For one thread at a time.

    Parameters
    ----------
    directory : Path
        The directory, which is created if it does not exist.

    Raises
    ------
    UnavailableError
        If the file system refuses.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        _durable.make_directory(directory)
        while True:
            parts = self._parts()
            self._part = _Part(parts[-1].session + 1 if parts else 1, 0)
            with contextlib.suppress(ConflictError):  # another process has begun this session
                self._file = self._create()
                return

    def _parts(self) -> list[_Part]:
        found = map(_NAME.fullmatch, (path.name for path in self._directory.iterdir()))
        return sorted(_Part(int(name["session"]), int(name["number"])) for name in found if name)

    def _create(self) -> AppendedFile:
        return AppendedFile(self._directory / self._part.name, _HEADER.pack(_MAGIC, _VERSION, 0))

    def append(self, offset: int, calls: pa.Table) -> None:
        """Make calls durable.

        Raises
        ------
        FencedError
            If another process has begun a session.
        UnavailableError
            If the file system refuses.
        """
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, calls.schema) as writer:
            writer.write_table(calls)
        content = memoryview(sink.getvalue())
        header = _RECORD.pack(_MARK, len(content), offset, zlib.crc32(content))
        self._file.append(header + _CHECKSUM.pack(zlib.crc32(header)), content)
        next_session = self._directory / _Part(self._part.session + 1, 0).name
        if next_session.exists() or not self._file.is_linked:
            raise FencedError("another process has opened this database", location=self._directory.parent)

    def read_earlier(self) -> Iterator[tuple[int, pa.Table]]:
        """Read the records of earlier parts: the number of calls before each, and its calls.

        Raises
        ------
        CorruptDataError
            If a part is damaged, or has a newer format.
        UnavailableError
            If the file system refuses.
        """
        for part in self._parts():
            if part < self._part:
                path = self._directory / part.name
                yield from _records(bytes(_durable.read(path)), path)

    def begin_part(self) -> None:
        """Begin a part, and delete earlier parts, whose calls the p-stream holds.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        """
        self._file.close()
        self._part = _Part(self._part.session, self._part.number + 1)
        self._file = self._create()
        self._delete_earlier()

    def _delete_earlier(self) -> None:
        for part in self._parts():
            if part < self._part:
                _durable.delete(self._directory / part.name)

    def close(self) -> None:
        """End the session; its parts stay."""
        self._file.close()


def _records(content: bytes, path: Path) -> Iterator[tuple[int, pa.Table]]:
    if len(content) < _HEADER.size:
        return  # the process ended while it created the part
    magic, version, _ = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise CorruptDataError("the file is no write-ahead log", file=path)
    if version != _VERSION:
        raise CorruptDataError(
            "the log has another format", file=path, version=version, known=_VERSION, hint="update Penstock"
        )
    place = _HEADER.size
    while (record := _record_at(content, place)) is not None:
        offset, begin, end = record
        with pa.ipc.open_stream(pa.py_buffer(content[begin:end])) as reader:
            yield offset, reader.read_all()
        place = end
    if not _is_incomplete(content, place):
        raise CorruptDataError("a record of the log is damaged", file=path, offset=place)


def _is_incomplete(content: bytes, place: int) -> bool:
    """Return whether an invalid record may be the result of an append that did not end."""
    header = _header_at(content, place)
    end = len(content) if header is None else place + _RECORD_HEADER_BYTES + header[0]
    later = place
    while (later := content.find(_MARK, later + 1)) >= 0:
        if _header_at(content, later) is not None:
            return False
    if end > len(content) or len(content) - place < _RECORD_HEADER_BYTES:
        return True
    borders = [place, *range(place - place % _SECTOR_BYTES + _SECTOR_BYTES, end, _SECTOR_BYTES), end]
    return any(not any(content[begin:stop]) for begin, stop in itertools.pairwise(borders))


def _header_at(content: bytes, place: int) -> tuple[int, int, int] | None:
    """Return the size, offset and checksum of a record, if there is an intact header."""
    header = content[place : place + _RECORD.size]
    checksum = content[place + _RECORD.size : place + _RECORD_HEADER_BYTES]
    if len(checksum) < _CHECKSUM.size or _CHECKSUM.unpack(checksum)[0] != zlib.crc32(header):
        return None
    mark, size, offset, content_checksum = _RECORD.unpack(header)
    return (size, offset, content_checksum) if mark == _MARK else None


def _record_at(content: bytes, place: int) -> tuple[int, int, int] | None:
    """Return the offset of an intact record, and where its calls begin and end."""
    header = _header_at(content, place)
    if header is None:
        return None
    size, offset, checksum = header
    begin, end = place + _RECORD_HEADER_BYTES, place + _RECORD_HEADER_BYTES + size
    if end > len(content) or zlib.crc32(memoryview(content)[begin:end]) != checksum:
        return None
    return offset, begin, end
