"""A file that grows by durable appends."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from penstock._durable.direct import write_all
from penstock._failpoints import failpoint
from penstock.errors import ConflictError, UnavailableError

__all__ = ["AppendedFile"]


class AppendedFile:
    """A new file, open for durable appends. One thread at a time uses it.

    After an error, the file may end with a part of the last append. If `room_bytes` is given, zeros follow
    the appended bytes. An append that overwrites zeros does not change the file's size, so its sync does not
    wait for the file system's journal.

    Parameters
    ----------
    path : Path
        The file, in an existing directory.
    header : bytes
        The first bytes of the file.
    room_bytes : int
        The size to which the file is filled with zeros. Appends may go beyond it.

    Attributes
    ----------
    size_bytes : int
        The number of appended bytes.

    Raises
    ------
    ConflictError
        If the file exists already.
    UnavailableError
        If the file system refuses. Then the file is deleted.
    """

    def __init__(self, path: Path, header: bytes, room_bytes: int = 0) -> None:
        self.path = path
        self.size_bytes = 0
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise ConflictError("the file exists already", file=path) from error
        except OSError as error:
            raise self._refusal(error) from error
        try:
            if room_bytes:
                self._write_zeros(room_bytes)
            failpoint("log.before_header")
            self.append(header)
            directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except BaseException as error:
            self.close()
            with contextlib.suppress(OSError):
                path.unlink()
            if isinstance(error, OSError):
                raise self._refusal(error) from error
            raise

    def _write_zeros(self, count: int) -> None:
        """Write `count` zeros at the file's start, if at least `count` bytes then stay free on the disk."""
        free = os.fstatvfs(self._descriptor)
        if free.f_bavail * free.f_frsize < 2 * count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(self._descriptor, memoryview(bytes(count)))
        os.lseek(self._descriptor, 0, os.SEEK_SET)

    def append(self, *content: bytes | memoryview) -> None:
        """Append `content` durably.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        """
        try:
            for piece in content:
                write_all(self._descriptor, memoryview(piece).cast("B"))
                self.size_bytes += len(piece)
            failpoint("log.after_write")
            _sync_content(self._descriptor)
        except OSError as error:
            raise self._refusal(error) from error
        failpoint("log.after_sync")

    @property
    def is_linked(self) -> bool:
        """Return whether the file still has a name, so that nobody has deleted it."""
        return os.fstat(self._descriptor).st_nlink > 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _refusal(self, error: OSError) -> UnavailableError:
        hint = "free some space" if error.errno == errno.ENOSPC else "check space and permissions"
        return UnavailableError("cannot append to a log", file=self.path, reason=error.strerror, hint=hint)


def _sync_content(descriptor: int) -> None:
    # macOS has no fdatasync.
    getattr(os, "fdatasync", os.fsync)(descriptor)
