"""Make all writes to a file system durable by one sync."""

from __future__ import annotations

import os
import platform
import re
import weakref
from pathlib import Path

from penstock import _durable
from penstock.errors import UnavailableError

__all__ = ["FileSystem"]

_KINDS = {"ext4", "xfs", "f2fs"}
"""File systems that sync completely. FUSE may leave writes in a cache; overlayfs may not report failures."""
_REPORTS_ERRORS = (5, 8)
"""Since this version of Linux, `syncfs` reports that earlier writes have failed."""


class FileSystem:
    """The file system of a directory.

    The directory stays open, so each sync reports all writes that have failed since the previous sync.

    Parameters
    ----------
    path : Path
        An existing directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._device = os.fstat(self._descriptor).st_dev
        weakref.finalize(self, os.close, self._descriptor)

    @property
    def syncs_all(self) -> bool:
        """Return whether `sync` makes all files durable and reports each failure."""
        version = re.match(r"(\d+)\.(\d+)", platform.release())
        if platform.system() != "Linux" or not version:
            return False
        return tuple(map(int, version.groups())) >= _REPORTS_ERRORS and self._kind() in _KINDS

    def _kind(self) -> str | None:
        device = f"{os.major(self._device)}:{os.minor(self._device)}".encode()
        try:
            mounts = Path("/proc/self/mountinfo").read_bytes()
        except OSError:
            return None
        # See proc_pid_mountinfo(5): the device is the third field, the kind is the first after a dash.
        # A mount point may have any bytes except spaces and line feeds.
        for line in mounts.split(b"\n"):
            fields, _, rest = line.partition(b" - ")
            if fields.split(b" ")[2:3] == [device]:
                return rest.split(b" ")[0].decode(errors="replace")
        return None

    def has(self, path: Path) -> bool:
        """Return whether an existing path is on this file system."""
        return path.stat().st_dev == self._device

    def sync(self) -> None:
        """Make durable what all processes have written so far to this file system.

        Raises
        ------
        UnavailableError
            If the file system refuses, or if a write has failed since the last sync.
        """
        try:
            _durable.sync_descriptor(self._descriptor)
        except OSError as error:
            raise UnavailableError(
                "cannot sync a file system", path=self._path, reason=error.strerror
            ) from error
