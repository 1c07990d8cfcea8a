"""The only module that makes files durable or deletes them.

`publish` makes a file appear whole or not at all. It writes the file under a temporary name in the same
directory, syncs the file, links it under its final name, which must be new, and syncs the directory. `create`
writes under the final name at once, so a file that it makes is whole and durable only after a sync of the
file system. Only the user who runs the process can read the files.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock._clock import new_id
from penstock._durable import direct
from penstock._failpoints import failpoint
from penstock.errors import ConflictError, UnavailableError

__all__ = [
    "create",
    "delete",
    "delete_empty_directories",
    "delete_tree",
    "make_directory",
    "publish",
    "read",
    "replace",
    "sync_descriptor",
    "sync_everything",
    "sync_file_system",
]


def publish(
    path: Path,
    *content: bytes | memoryview,
    direct_io: bool = False,
    sync: Callable[[], None] | None = None,
) -> None:
    """Create `path` durably with the pieces of `content`, in order.

    Steps: 1. write a temporary file, 2. sync it, 3. link it under its name, 4. sync the directory.

    Parameters
    ----------
    path : Path
        The file to create.
    *content : bytes-like
        The pieces of the content.
    direct_io : bool
        Whether to write the file by direct I/O, which bypasses the page cache.
    sync : callable, optional
        A function that syncs the whole file system. It is called in step 2 instead of the sync of the file;
        see `FileSystem`.

    Raises
    ------
    ConflictError
        If `path` exists already.
    UnavailableError
        If the file system refuses (no space, no permission, an I/O error). No temporary file is left;
        if only the last step failed, `path` may exist.
    """
    temporary = path.parent / f".{path.name}.{new_id()}.tmp"
    failpoint("state.before_write")
    try:
        _write_file(temporary, content, direct_io, synced=sync is None)
        if sync is not None:
            sync()
        failpoint("state.after_fsync")
        os.link(temporary, path)
        temporary.unlink()
        sync_directory(path.parent)
    except FileExistsError as error:
        _discard(temporary)
        raise ConflictError("the file exists already", file=path) from error
    except UnavailableError:
        _discard(temporary)
        raise
    except OSError as error:
        _discard(temporary)
        hint = _direct_io_hint(error, direct_io) or "check space and permissions"
        raise UnavailableError("cannot write state", file=path, reason=error.strerror, hint=hint) from error
    failpoint("state.after_publish")


def create(path: Path, *content: bytes | memoryview, direct_io: bool = False) -> None:
    """Create `path` without a sync. A crash may leave a part of the file.

    Sync the file system before you write a durable file that refers to `path`; see `FileSystem`.

    Raises
    ------
    ConflictError
        If `path` exists already.
    UnavailableError
        If the file system refuses.
    """
    try:
        _write_file(path, content, direct_io, synced=False)
    except FileExistsError as error:
        raise ConflictError("the file exists already", file=path) from error
    except OSError as error:
        _discard(path)
        hint = _direct_io_hint(error, direct_io) or "check space and permissions"
        raise UnavailableError("cannot write state", file=path, reason=error.strerror, hint=hint) from error


def _write_file(path: Path, content: Iterable[bytes | memoryview], direct_io: bool, *, synced: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    write: Callable[[int, list[memoryview]], None]
    if direct_io:
        descriptor, write = direct.open_file(path, flags), direct.write
    else:
        descriptor, write = os.open(path, flags, 0o600), _write
    try:
        write(descriptor, [memoryview(piece).cast("B") for piece in content])
        failpoint("state.after_write")
        if synced:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: list[memoryview]) -> None:
    for view in content:
        direct.write_all(descriptor, view)


def _direct_io_hint(error: OSError, direct_io: bool) -> str | None:
    return "this file system may have no direct I/O" if direct_io and error.errno == errno.EINVAL else None


def replace(path: Path, source: Path) -> None:
    """Replace `path` by a complete file on the same file system, without a sync."""
    source.rename(path)


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def read(path: Path, at: int = 0, size: int = -1, *, direct_io: bool = False) -> bytes | memoryview:
    """Return the content of `path`, or at most `size` bytes from offset `at` on.

    With `direct_io` the read bypasses the page cache.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    UnavailableError
        If the file system refuses.
    """
    try:
        if direct_io:
            return direct.read(path, at, size)
        with path.open("rb") as file:
            # `size` may come from a damaged file, so read at most the bytes that exist.
            available = max(os.fstat(file.fileno()).st_size - at, 0) if size >= 0 else size
            file.seek(at if available else 0)
            return file.read(min(size, available))
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
    except OSError as error:
        raise UnavailableError(
            "cannot read state", file=path, reason=error.strerror, hint=_direct_io_hint(error, direct_io)
        ) from error


def delete(path: Path) -> None:
    """Remove `path`; a missing file is not an error."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UnavailableError("cannot delete state", file=path, reason=error.strerror) from error


def delete_tree(path: Path) -> None:
    """Remove a scratch directory with its content, as far as the file system allows."""
    shutil.rmtree(path, ignore_errors=True)


def delete_empty_directories(path: Path, top: Path) -> None:
    """Remove the empty directories in `path`, and then those from `path` up to `top`, if they are empty."""
    inside = [Path(directory) for directory, _, _ in os.walk(path, topdown=False)]
    above = [one for one in path.parents if one.is_relative_to(top)]
    for directory in (*inside, *above):
        with contextlib.suppress(OSError):  # it is not empty
            directory.rmdir()


def make_directory(path: Path, mode: int = 0o700) -> None:
    """Create `path` and its missing parents durably; by default, only the user can access them.

    Raises
    ------
    UnavailableError
        If the file system refuses.
    """
    try:
        if path.is_dir():
            return
        make_directory(path.parent, mode)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=mode)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        sync_directory(path.parent)
    except OSError as error:
        raise UnavailableError(
            "cannot create a directory",
            path=path,
            reason=error.strerror,
            hint="choose a location that this user may write",
        ) from error


def sync_directory(path: Path) -> None:
    """Make the names in the directory `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(path: Path) -> None:
    """Make durable what all processes have written so far to the file system of `path`.

    Raises
    ------
    FileNotFoundError
        If `path` does not exist.
    UnavailableError
        If the file system refuses.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            sync_descriptor(descriptor)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnavailableError("cannot sync a file system", path=path, reason=error.strerror) from error


def sync_descriptor(descriptor: int) -> None:
    """Make durable what all processes have written to the file system of an open file, or raise `OSError`."""
    sync = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if sync is None:  # only Linux has this call
        sync_everything()
    elif sync(descriptor) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def sync_everything() -> None:
    """Make durable what all processes on this machine have written so far. Failures are not reported."""
    os.sync()
