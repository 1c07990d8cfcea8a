"""A directory on a disk of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from penstock import _durable
from penstock.checkpointing.files.abc import Content, FileFacts, bytes_of, check_name
from penstock.checkpointing.files.locations import refusals

__all__ = ["LocalFiles"]


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A directory on a local disk or mount; see `Files`.

    Files and directories are private to the user. `penstock._durable` does all work.

    Parameters
    ----------
    directory : Path
        The directory.
    direct_io : bool
        Whether files are written, and parts of them read, by direct I/O, which bypasses the page cache.
    sync : callable, optional
        A function that syncs the whole file system, in place of a sync of each new file.
    late : bool
        Whether new files are durable only after a later sync of the file system.
    """

    directory: Path
    direct_io: bool = False
    sync: Callable[[], None] | None = None
    late: bool = False

    @property
    def location(self) -> str:
        """The absolute path."""
        return str(self.directory)

    def publish(self, name: str, *content: Content) -> None:
        """Create the file `name`; see `Files.publish`."""
        path, views = self.directory / check_name(name), bytes_of(content)
        _durable.make_directory(self.directory)
        if self.late:
            _durable.create(path, *views, direct_io=self.direct_io)
        else:
            _durable.publish(path, *views, direct_io=self.direct_io, sync=self.sync)

    def read(self, name: str) -> Content:
        """Return the content of the file `name`; see `Files.read`."""
        return _durable.read(self.directory / check_name(name))

    def read_range(self, name: str, at: int, size: int) -> Content:
        """Return a part of the file `name`; see `Files.read_range`."""
        return _durable.read(self.directory / check_name(name), at, size, direct_io=self.direct_io)

    def delete(self, name: str) -> None:
        """Remove the file `name`; see `Files.delete`."""
        _durable.delete(self.directory / check_name(name))

    def list(self) -> list[FileFacts]:
        """Return the direct children; see `Files.list`."""
        with refusals("cannot list state", self.location):
            try:
                with os.scandir(self.directory) as entries:
                    facts = [fact for entry in entries if (fact := _facts(entry)) is not None]
            except FileNotFoundError:
                return []
        return sorted(facts, key=lambda fact: fact.name)

    def child(self, name: str) -> LocalFiles:
        """Return the directory `name` below this directory; see `Files.child`."""
        return replace(self, directory=self.directory / check_name(name))

    def path_of(self, name: str) -> str:
        """Return the file's path; see `Files.path_of`."""
        return str(self.directory / name)


def _facts(entry: os.DirEntry[str]) -> FileFacts | None:
    """Return the facts of an entry; None if it has been deleted."""
    try:
        if entry.is_dir():
            return FileFacts(entry.name, 0, is_directory=True)
        status = entry.stat()
        return FileFacts(entry.name, status.st_size, written_us=status.st_mtime_ns // 1000)
    except FileNotFoundError:
        return None
