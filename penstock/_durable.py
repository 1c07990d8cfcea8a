"""The only door through which files become durable or go away.

A file is published whole or not at all: written under a temporary name in the same directory, synced,
linked under its final name (which must be new), and the directory synced. Files are private to the
user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from penstock._clock import new_id
from penstock._failpoints import failpoint
from penstock.errors import ConflictError, UnavailableError

__all__ = ["delete", "delete_tree", "make_directory", "publish", "read", "replace"]


def publish(path: Path, *content: bytes | memoryview) -> None:
    """Create `path` with `content`, one piece after the other, durably.

    Steps: 1. write a temporary file, 2. sync it, 3. link it under its name, 4. sync the directory.

    Raises
    ------
    ConflictError
        If `path` exists already.
    UnavailableError
        If the file system refuses (no space, no permission, an I/O error). No temporary file is left;
        if only the last step failed, `path` may be there.
    """
    temporary = path.parent / f".{path.name}.{new_id()}.tmp"
    failpoint("state.before_write")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            for piece in content:
                view = memoryview(piece).cast("B")
                written = 0
                while written < len(view):
                    written += os.write(descriptor, view[written:])
            failpoint("state.after_write")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        failpoint("state.after_fsync")
        os.link(temporary, path)
        temporary.unlink()
        sync_directory(path.parent)
    except FileExistsError as error:
        _forget(temporary)
        raise ConflictError("the file exists already", file=path) from error
    except OSError as error:
        _forget(temporary)
        raise UnavailableError(
            "cannot write state", file=path, reason=error.strerror, hint="check space and permissions"
        ) from error
    failpoint("state.after_publish")


def replace(path: Path, made: Path) -> None:
    """Let a whole file, on the same file system, take the place of `path`; not synced."""
    made.rename(path)


def _forget(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def read(path: Path, at: int = 0, size: int = -1) -> bytes:
    """Return the content of `path`, or `size` bytes of it from `at` on, fewer where it ends before.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    UnavailableError
        If the file system refuses.
    """
    try:
        with path.open("rb") as file:
            file.seek(at)
            return file.read(size)
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
    except OSError as error:
        raise UnavailableError("cannot read state", file=path, reason=error.strerror) from error


def delete(path: Path) -> None:
    """Remove `path`; a file that is gone already is no error."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UnavailableError("cannot delete state", file=path, reason=error.strerror) from error


def delete_tree(path: Path) -> None:
    """Remove a directory of scratch with all that is in it, as far as the file system lets it."""
    shutil.rmtree(path, ignore_errors=True)


def make_directory(path: Path) -> None:
    """Create `path` and its parents, private to the user, durably.

    Raises
    ------
    UnavailableError
        If the file system refuses.
    """
    try:
        if path.is_dir():
            return
        make_directory(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        sync_directory(path.parent)
    except OSError as error:
        raise UnavailableError(
            "cannot create a directory for state",
            path=path,
            reason=error.strerror,
            hint="choose a state_location that this user may write",
        ) from error


def sync_directory(path: Path) -> None:
    """Make the names in the directory `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
