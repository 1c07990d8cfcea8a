"""Sources of bytes: files, which can be read again, and pipes, which cannot."""

from __future__ import annotations

import os
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from penstock.errors import InvalidUsageError, UnavailableError

__all__ = ["ByteSource", "FileBytes", "PipeBytes", "connect"]

_COUNTED_BYTES = 1 << 20


class ByteSource(ABC):
    """The bytes of one source.

    Parameters
    ----------
    name : str
        The source's name in messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def read_at(self, at: int, size: int) -> tuple[bytes, bool]:
        """Return up to `size` bytes from `at` on, and whether they are the last bytes.

        Raises
        ------
        InvalidUsageError
            If the source cannot be read, or is shorter than `at`.
        UnavailableError
            If the file system or the network refuses.
        """

    @abstractmethod
    def lines_before(self, at: int) -> int:
        """Count the lines that end before byte `at`."""

    @abstractmethod
    def close(self) -> None:
        """Close the source."""


class FileBytes(ByteSource):
    """The bytes of a file, which may grow. The file is not kept open, so there may be many files.

    Parameters
    ----------
    path : Path
        The file.
    grows : bool
        Whether the file may still grow.
    """

    def __init__(self, path: Path, *, grows: bool) -> None:
        super().__init__(str(path))
        self._path, self._grows = path, grows

    def read_at(self, at: int, size: int) -> tuple[bytes, bool]:
        """Return up to `size` bytes from `at` on; see `ByteSource.read_at`."""
        try:
            with self._path.open("rb", buffering=0) as file:
                length = os.fstat(file.fileno()).st_size
                content = os.pread(file.fileno(), size, at)
        except OSError as error:
            raise InvalidUsageError(
                "the file cannot be read", file=self.name, reason=error.strerror
            ) from None
        if length < at:
            raise InvalidUsageError(
                "the file is shorter than the part already read",
                file=self.name,
                read=at,
                hint="rename the new file, or read it under another --writer",
            )
        return content, len(content) < size and not self._grows

    def lines_before(self, at: int) -> int:
        """Count the lines that end before byte `at`."""
        lines, begin = 0, 0
        while begin < at and (content := self.read_at(begin, min(at - begin, _COUNTED_BYTES))[0]):
            lines += content.count(b"\n")
            begin += len(content)
        return lines

    def close(self) -> None:
        """Do nothing."""


class PipeBytes(ByteSource):
    """The bytes from a pipe or a connection. Bytes before the position of the last read are dropped.

    Parameters
    ----------
    name : str
        The source's name in messages.
    descriptor : int
        The descriptor to read.
    close : callable, optional
        Closes the source.
    wait_s : float
        How long to wait for a pipe that delivers nothing.
    gather_s : float
        How long to wait for more bytes after the first bytes, so that larger chunks are parsed.
    """

    def __init__(
        self,
        name: str,
        descriptor: int,
        close: Callable[[], None] = lambda: None,
        *,
        wait_s: float = 0.1,
        gather_s: float = 0.02,
    ) -> None:
        super().__init__(name)
        self._descriptor, self._close = descriptor, close
        self._wait_s, self._gather_s = wait_s, gather_s
        self._kept = bytearray()
        self._at = self._lines = 0
        self._ended = False

    def read_at(self, at: int, size: int) -> tuple[bytes, bool]:
        """Return up to `size` bytes from `at` on, after a short wait for more."""
        gone = at - self._at
        self._lines += self._kept.count(b"\n", 0, gone)
        del self._kept[:gone]
        self._at, known = at, len(self._kept)
        while len(self._kept) < size and not self._ended:
            patience = self._wait_s if len(self._kept) == known else self._gather_s
            if not select.select([self._descriptor], [], [], patience)[0]:
                break
            self._take(size - len(self._kept))
        return bytes(self._kept[:size]), self._ended and len(self._kept) <= size

    def _take(self, size: int) -> None:
        try:
            content = os.read(self._descriptor, size)
        except OSError as error:
            raise UnavailableError("cannot read", source=self.name, reason=error.strerror) from error
        self._kept += content
        self._ended = not content

    def lines_before(self, at: int) -> int:
        """Count the lines that ended before byte `at`, since this process began to read."""
        return self._lines + self._kept.count(b"\n", 0, at - self._at)

    def close(self) -> None:
        """Close the source."""
        self._close()


def connect(address: str) -> PipeBytes:
    """Connect to a server; return its bytes.

    Parameters
    ----------
    address : str
        The address of the server, as ``HOST:PORT``.

    Raises
    ------
    InvalidUsageError
        If the address is invalid.
    UnavailableError
        If no server answers at the address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidUsageError("the address is not valid", address=address, hint="write HOST:PORT")
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout=10)
    except (OSError, OverflowError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UnavailableError("nothing answers at the address", address=address, reason=reason) from None
    connection.settimeout(None)
    return PipeBytes(address, connection.fileno(), connection.close)
