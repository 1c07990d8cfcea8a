"""Private directories for what lives as long as its process, at most.

Python workers are killed without warning, by Spark too, so nothing that is left to the end of a process is
certain to be done. Who holds a directory has a lock on it; one that nobody has a lock on is that of a process
that is gone, and whoever makes a new one beside it removes it. Unlike numbers of processes, locks tell that
between containers, too.
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
    """A private directory. It goes with `close`, with the object or with the process, or else with the next.

    Parameters
    ----------
    parent : pathlib.Path, optional
        Where it is made; in the system's temporary directory by default.

    Raises
    ------
    OSError
        If it cannot be made.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        _remove_abandoned(parent)
        lock = None
        # Until it has a lock, another process may take it for one that is abandoned.
        while lock is None:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            lock = _locked(self.path)
        self._remove = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def close(self) -> None:
        """Remove the directory and what is in it. Closing twice is no error."""
        self._remove()


def _locked(path: Path) -> int | None:
    """Return a descriptor that has the lock on a directory; None where another has it, or removed it."""
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
    # A child that was forked has the object, too, and must leave its parent's directory alone.
    if os.getpid() == owner:
        _durable.delete_tree(path)
    os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    """Remove the directories whose processes are gone."""
    for path in parent.glob(f"{PREFIX}*"):
        # It may be another user's, or no directory of ours.
        with contextlib.suppress(PermissionError, NotADirectoryError):
            lock = _locked(path)
            if lock is not None:
                _durable.delete_tree(path)
                os.close(lock)
