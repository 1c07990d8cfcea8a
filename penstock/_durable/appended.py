"""A file that grows by durable appends."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from penstock._durable.direct import write_all
from penstock._failpoints import failpoint
from penstock.errors import ConflictError, UnavailableError

__all__ = ["AppendedFile"]


class AppendedFile:
    """A new file, open for durable appends. For one thread at a time.

    After an error, the file may end with a part of the last append.

    Parameters
    ----------
    path : Path
        The file, in an existing directory.
    header : bytes
        The first bytes of the file.

    Raises
    ------
    ConflictError
        If the file exists already.
    UnavailableError
        If the file system refuses.
    """

    def __init__(self, path: Path, header: bytes) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError as error:
            raise ConflictError("the file exists already", file=path) from error
        except OSError as error:
            raise self._refusal(error) from error
        try:
            self.append(header)
            directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            self.close()
            raise self._refusal(error) from error
        except BaseException:
            self.close()
            raise

    def append(self, *content: bytes | memoryview) -> None:
        """Write `content` to the end of the file, durably.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        """
        try:
            for piece in content:
                write_all(self._descriptor, memoryview(piece).cast("B"))
            failpoint("log.after_write")
            _sync_content(self._descriptor)
        except OSError as error:
            raise self._refusal(error) from error
        failpoint("log.after_sync")

    @property
    def is_linked(self) -> bool:
        """Whether the file still has a name."""
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
