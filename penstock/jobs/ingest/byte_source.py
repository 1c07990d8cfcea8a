"""Bytes that records are cut from: files, which can be read again, and pipes, which cannot."""

from __future__ import annotations

import os
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from penstock.errors import InvalidUsageError, UnavailableError

__all__ = ["FileBytes", "Octets", "PipeBytes", "connect"]

_GATHER_S = 0.02
"""How long to wait for more from a pipe that gave something, so that parsing has larger chunks."""
_WAIT_S = 0.1
"""How long to wait for a pipe that gives nothing."""

_COUNTED_BYTES = 1 << 20


class Octets(ABC):
    """The bytes of one source.

    Parameters
    ----------
    name : str
        What messages call it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def read_at(self, at: int, size: int) -> tuple[bytes, bool]:
        """Return up to `size` bytes from `at` on, and whether nothing will ever follow them.

        Raises
        ------
        InvalidUsageError
            If the source cannot be read, or is shorter than `at`.
        UnavailableError
            If the file system or the network refuses.
        """

    @abstractmethod
    def lines_before(self, at: int) -> int:
        """Return how many lines end before byte `at`."""

    @abstractmethod
    def close(self) -> None:
        """Let it go."""


class FileBytes(Octets):
    """The bytes of a file, which may grow. It is not held open, so there may be many.

    Parameters
    ----------
    path : Path
        The file.
    grows : bool
        Whether its end is only its end for now.
    """

    def __init__(self, path: Path, *, grows: bool) -> None:
        super().__init__(str(path))
        self._path, self._grows = path, grows

    def read_at(self, at: int, size: int) -> tuple[bytes, bool]:
        """Return up to `size` bytes from `at` on; see `Octets.read_at`."""
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
                "the file is shorter than what was read of it",
                file=self.name,
                read=at,
                hint="give what replaced it another name, or read it under another --writer",
            )
        return content, len(content) < size and not self._grows

    def lines_before(self, at: int) -> int:
        """Return how many lines end before byte `at`."""
        lines, begin = 0, 0
        while begin < at and (content := self.read_at(begin, min(at - begin, _COUNTED_BYTES))[0]):
            lines += content.count(b"\n")
            begin += len(content)
        return lines

    def close(self) -> None:
        """Do nothing."""


class PipeBytes(Octets):
    """The bytes that come through a pipe or a connection; none from before a position that was asked for.

    Parameters
    ----------
    name : str
        What messages call it.
    descriptor : int
        What is read.
    close : callable, optional
        Lets it go.
    """

    def __init__(self, name: str, descriptor: int, close: Callable[[], None] = lambda: None) -> None:
        super().__init__(name)
        self._descriptor, self._close = descriptor, close
        self._kept = bytearray()
        self._at = self._lines = 0
        self._ended = False

    def read_at(self, at: int, size: int) -> tuple[bytes, bool]:
        """Return up to `size` bytes from `at` on, after a moment in which there may come more."""
        gone = at - self._at
        self._lines += self._kept.count(b"\n", 0, gone)
        del self._kept[:gone]
        self._at, known = at, len(self._kept)
        while len(self._kept) < size and not self._ended:
            patience = _WAIT_S if len(self._kept) == known else _GATHER_S
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
        """Return how many lines ended before byte `at`, since this process reads."""
        return self._lines + self._kept.count(b"\n", 0, at - self._at)

    def close(self) -> None:
        """Let it go."""
        self._close()


def connect(address: str) -> PipeBytes:
    """Return what comes from a server.

    Parameters
    ----------
    address : str
        ``HOST:PORT``.

    Raises
    ------
    InvalidUsageError
        If the address is none.
    UnavailableError
        If nobody answers there.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidUsageError("this is no address", address=address, hint="write HOST:PORT")
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout=10)
    except (OSError, OverflowError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UnavailableError("nobody answers at the address", address=address, reason=reason) from None
    connection.settimeout(None)
    return PipeBytes(address, connection.fileno(), connection.close)
