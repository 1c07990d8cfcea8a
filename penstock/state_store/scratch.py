"""Private directories for what lives as long as its process, at most.

Python workers are killed without warning, by Spark too, so nothing that is left to the end of a process is
certain to be done. Who holds a directory has a lock on a file in it; a directory with a lock that nobody has
is that of a process that is gone, and whoever makes a new one beside it removes it. Unlike numbers of
processes, locks tell that between containers, too.
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
_LOCK = "lock"


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
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        # It is there under its name only once it is locked.
        made = self.path / f"{_LOCK}.new"
        lock = os.open(made, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        _durable.replace(self.path / _LOCK, made)
        self._remove = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove the directory and what is in it. Closing twice is no error."""
        self._remove()


def _remove(path: Path, lock: int) -> None:
    _durable.delete_tree(path)
    os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    """Remove the directories whose processes are gone."""
    for path in parent.glob(f"{PREFIX}*"):
        # It may be removed meanwhile, or be another user's.
        with contextlib.suppress(OSError):
            lock = os.open(path / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _durable.delete_tree(path)
            finally:
                os.close(lock)
