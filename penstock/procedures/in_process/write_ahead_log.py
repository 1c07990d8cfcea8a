"""The write-ahead log of a database in one process: calls that are durable, but not yet in its p-stream.

To sync one appended file takes a fraction of the time of a p-stream's commit, which publishes two files. So
calls are appended to this log first, and reach the p-stream within a second. A process that opens the log
begins a session, and writes a sequence of files, the parts of the session. Files and bytes::

    00000000000000000007-00000002.wal     part 2 of session 7

    "PENSTWAL" | version: u32 | 0: u32                                            the header
    "CALL" | size: u32 | offset: u64 | CRC-32 of the stream: u32 | CRC-32 of these 20 bytes: u32
        | Arrow stream of `size` bytes                                            a record, and so on
    zeros, if the part was filled with them before its first record

A record holds the calls of one sync; `offset` is the number of calls before them in the log. Once a part has
`bytes_before_room` bytes, a thread fills the next part with zeros, and the log continues there. If a file
does not grow, its sync need not wait for the file system's journal. Invariants:

1. A session begins with part 0, created exclusively. A process acknowledges calls only if, after their sync,
   the next session's part 0 does not exist, and the oldest part that the process has not deleted itself
   still has a name. A new session creates its part 0 before it reads earlier parts, and deletes earlier parts
   before its own part 0. So it reads every acknowledged call, and an older process acknowledges no call
   afterwards.
2. Parts are deleted in ascending order, and only once the p-stream holds their calls.
3. A session creates part 1 once the p-stream holds the calls of all earlier sessions. So if session s has a
   part other than part 0, the parts of sessions before s are not read. The process of such a session may have
   created them after session s began.
4. Only the last record of a part can be incomplete, because a record is durable before the next record is
   written. An incomplete record is cut off, or some of its sectors are zero. A record is damaged if it is
   invalid in a different way, or if another record follows it.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from penstock import _durable
from penstock._durable.appended import AppendedFile
from penstock.checkpointing.p_stream.threads import Threads
from penstock.errors import ConflictError, CorruptDataError, FencedError, UnavailableError

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

    @property
    def following(self) -> _Part:
        return _Part(self.session, self.number + 1)


class WriteAheadLog:
    """A session of the log in a local directory. One thread at a time uses it.

    Parameters
    ----------
    directory : Path
        The directory, which is created if it does not exist.

    Attributes
    ----------
    bytes_before_room : int
        Once a part that was not filled with zeros has this size, the next part is filled with zeros.
    part_bytes : int
        The size of a part that is filled with zeros.

    Raises
    ------
    UnavailableError
        If the file system refuses.
    """

    bytes_before_room = 128 << 10
    part_bytes = 4 << 20

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        _durable.make_directory(directory)
        self._room_bytes = 0
        self._refused_at = 0
        self._threads: Threads | None = None
        self._next: Future[AppendedFile] | None = None
        while True:
            parts = self._parts()
            self._part = _Part(parts[-1].session + 1 if parts else 1, 0)
            with contextlib.suppress(ConflictError):  # another process has begun this session
                self._oldest = self._file = self._create(self._part)
                return

    def _parts(self) -> list[_Part]:
        found = map(_NAME.fullmatch, (path.name for path in self._directory.iterdir()))
        return sorted(_Part(int(name["session"]), int(name["number"])) for name in found if name)

    def _create(self, part: _Part, room_bytes: int = 0) -> AppendedFile:
        return AppendedFile(self._directory / part.name, _HEADER.pack(_MAGIC, _VERSION, 0), room_bytes)

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
        self._continue_in_next_part(_RECORD_HEADER_BYTES + len(content))
        self._file.append(header + _CHECKSUM.pack(zlib.crc32(header)), content)
        self._check_newest()

    def _check_newest(self) -> None:
        """Check that no other process has begun a session; the order of the two checks matters."""
        next_session = self._directory / _Part(self._part.session + 1, 0).name
        if next_session.exists() or not self._oldest.is_linked:
            raise FencedError("another process has opened this database", location=self._directory.parent)

    def _continue_in_next_part(self, size_bytes: int) -> None:
        """Continue with the next part if this part has no room for a record and the next part is ready."""
        used = self._file.size_bytes
        if self._next is None:
            if used < self._refused_at + (self._room_bytes // 2 or self.bytes_before_room):
                return
            self._threads = self._threads or Threads(1, "penstock-log-room")
            self._next = self._threads.submit(self._create, self._part.following, self.part_bytes)
        if self._next.done() and self._room_bytes - used < size_bytes:
            if (made := self._take_next()) is None:
                self._refused_at = used
                return
            if self._file is not self._oldest:
                self._file.close()
            self._use(*made)

    def _take_next(self) -> tuple[AppendedFile, int] | None:
        """Return the file of the next part and its size; None if the file could not be created."""
        made, self._next = self._next, None
        try:
            return None if made is None else (made.result(), self.part_bytes)
        except UnavailableError:
            return None  # this part can grow instead

    def _use(self, file: AppendedFile, room_bytes: int) -> None:
        self._file, self._part, self._room_bytes = file, self._part.following, room_bytes
        self._refused_at = 0

    def read_earlier(self) -> Iterator[tuple[int, pa.Table]]:
        """Read the records of earlier parts; yield the offset and the calls of each record.

        Raises
        ------
        CorruptDataError
            If a part is damaged, or has a newer format.
        UnavailableError
            If the file system refuses.
        """
        earlier = [part for part in self._parts() if part < self._part]
        newest = max((part.session for part in earlier if part.number), default=0)
        for part in earlier:
            if part.session >= newest:
                path = self._directory / part.name
                yield from _records(bytes(_durable.read(path)), path)

    def begin_part(self) -> None:
        """Begin a part, and delete earlier parts, whose calls the p-stream holds.

        Raises
        ------
        FencedError
            If another process has begun a session.
        UnavailableError
            If the file system refuses.
        """
        file, room_bytes = self._take_next() or (self._create(self._part.following), 0)
        try:
            self._check_newest()  # the next session deletes parts that exist when it begins
        except BaseException:
            file.close()
            raise
        self._close_files()
        self._oldest = file
        self._use(file, room_bytes)
        self._delete_earlier()

    def _close_files(self) -> None:
        for file in {self._oldest, self._file}:
            file.close()

    def _delete_earlier(self) -> None:
        for part in self._parts():
            if part < self._part:
                _durable.delete(self._directory / part.name)

    def close(self) -> None:
        """End the session; its parts stay."""
        if self._threads is not None:
            self._threads.close()
        if self._next is not None and self._next.exception() is None:
            self._next.result().close()
        self._close_files()


def _records(content: bytes, path: Path) -> Iterator[tuple[int, pa.Table]]:
    if len(content) < _HEADER.size or not content.rstrip(b"\0"):
        return  # the process ended while it created the part
    magic, version, _ = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise CorruptDataError("the file is not a write-ahead log", file=path)
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
    """Return whether an invalid record may be the result of an interrupted append."""
    header = _header_at(content, place)
    written = len(content.rstrip(b"\0"))
    end = written if header is None else place + _RECORD_HEADER_BYTES + header[0]
    later = place
    while (later := content.find(_MARK, later + 1)) >= 0:
        if _header_at(content, later) is not None:
            return False
    if end > len(content) or written - place < _RECORD_HEADER_BYTES:
        return True
    borders = [place, *range(place - place % _SECTOR_BYTES + _SECTOR_BYTES, end, _SECTOR_BYTES), end]
    return any(not any(content[begin:stop]) for begin, stop in itertools.pairwise(borders))


def _header_at(content: bytes, place: int) -> tuple[int, int, int] | None:
    """Return the size, offset and checksum of a record; None if its header is not intact."""
    header = content[place : place + _RECORD.size]
    checksum = content[place + _RECORD.size : place + _RECORD_HEADER_BYTES]
    if len(checksum) < _CHECKSUM.size or _CHECKSUM.unpack(checksum)[0] != zlib.crc32(header):
        return None
    mark, size, offset, content_checksum = _RECORD.unpack(header)
    return (size, offset, content_checksum) if mark == _MARK else None


def _record_at(content: bytes, place: int) -> tuple[int, int, int] | None:
    """Return the offset of a record, and where its calls begin and end; None if it is not intact."""
    header = _header_at(content, place)
    if header is None:
        return None
    size, offset, checksum = header
    begin, end = place + _RECORD_HEADER_BYTES, place + _RECORD_HEADER_BYTES + size
    if end > len(content) or zlib.crc32(memoryview(content)[begin:end]) != checksum:
        return None
    return offset, begin, end
