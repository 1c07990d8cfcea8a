"""Private directories that are removed with their process.

Spark may kill Python workers without warning, so cleanup at process exit is not certain. The owner of a
directory holds a lock on it. A directory without a lock belongs to an ended process. The next process that
creates a directory beside it removes the abandoned directory. Unlike process ids, locks also work between
containers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import weakref
from pathlib import Path

from penstock import _durable

__all__ = ["PREFIX", "Scratch"]

PREFIX = "penstock-rocksdb-"


class Scratch:
    """A private directory.

    The directory is removed by `close`, when the object is deleted, at process exit, or by a later owner of
    a directory.

    Parameters
    ----------
    parent : pathlib.Path, optional
        The parent directory; by default the system's temporary directory.

    Raises
    ------
    OSError
        If the directory cannot be created.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        _remove_abandoned(parent)
        lock = None
        # Until the directory has a lock, another process may treat it as abandoned.
        while lock is None:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            lock = _lock(self.path)
        self._remove = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def close(self) -> None:
        """Remove the directory and its content. Closing twice is not an error."""
        self._remove()


def _lock(path: Path) -> int | None:
    """Return a descriptor that locks a directory; None if another process has locked or removed it."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    if not path.exists():
        os.close(lock)
        return None
    return lock


def _remove(path: Path, lock: int, owner: int) -> None:
    # A forked child also has the object, and must not remove the directory of its parent.
    if os.getpid() == owner:
        _durable.delete_tree(path)
    os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*"):
        # The directory may belong to another user, or to another program.
        with contextlib.suppress(PermissionError, NotADirectoryError):
            lock = _lock(path)
            if lock is not None:
                _durable.delete_tree(path)
                os.close(lock)
