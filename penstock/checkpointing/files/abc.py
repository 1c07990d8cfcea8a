"""The interface of directories. `penstock.checkpointing.files` lists the guarantees of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.errors import InvalidUsageError

__all__ = ["Content", "FileFacts", "Files", "bytes_of", "check_name", "is_name"]

Content = bytes | memoryview
"""The content of a file."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """An entry of a directory. The `size_bytes` of a subdirectory is 0.

    `written_us` is the modification time, as the file system reports it, and only for display.
    """

    name: str
    size_bytes: int
    is_directory: bool = False
    written_us: int | None = field(default=None, compare=False)

    @property
    def is_unfinished(self) -> bool:
        """Return whether this is the temporary file of an attempt that is running or was killed."""
        return self.name.startswith(".") and self.name.endswith(".tmp")


class Files(Protocol):
    """One directory of immutable files.

    The driver and Python workers use a `Files` object, in any number of threads and processes at once. The
    object is small, holds no connection, and can be pickled. The first call in each process connects. So a
    process that forks before its first call passes no connection to its children.
    """

    @property
    def location(self) -> str:
        """The location to show in messages: an absolute path, or a URI in which secrets are ``***``.

        This text cannot reopen a child directory, or a directory whose URI has secrets. Pickle the object
        instead.
        """

    def publish(self, name: str, *content: Content) -> None:
        """Create the file `name` atomically. The file is durable when the call returns.

        Parameters
        ----------
        name : str
            A name without directories.
        *content : bytes or memoryview
            The consecutive parts of the content, at least one byte in total. The call does not keep them.

        Raises
        ------
        ConflictError
            If a file of this name exists, and the file system can detect this (see the module).
        UnavailableError
            If the file system refuses. The file may exist nevertheless, because a reply can get lost. If it
            exists, it is complete.
        InvalidUsageError
            If the name or the location is not possible, or the content is empty.
        """

    def read(self, name: str) -> Content:
        """Return the content of the file `name`.

        Raises
        ------
        FileNotFoundError
            If there is no such file, or no such bucket.
        UnavailableError
            If the file system refuses.
        InvalidUsageError
            If the name or the location is not possible.
        """

    def read_range(self, name: str, at: int, size: int) -> Content:
        """Return `size` bytes of the file `name` from offset `at` on, or fewer bytes at the end of the file.

        Raises
        ------
        FileNotFoundError, UnavailableError, InvalidUsageError
            As for `read`.
        """

    def delete(self, name: str) -> None:
        """Remove the file `name`. A missing file is not an error.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        InvalidUsageError
            If the name or the location is not possible.
        """

    def list(self) -> list[FileFacts]:
        """Return the direct children by name, including unfinished files; empty if there is no directory.

        Commands and garbage collection use it; it is too slow for every batch. Files that are published or
        deleted during the call may or may not be listed.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        InvalidUsageError
            If the location is not possible.
        """

    def child(self, name: str) -> Files:
        """Return the subdirectory `name`, which is created when a file is published into it.

        Raises
        ------
        InvalidUsageError
            If the name is not possible.
        """

    def path_of(self, name: str) -> str:
        """Return the file's full name, for messages."""


def is_name(name: str) -> bool:
    """Return whether a name is valid for a file or directory, and stays inside its parent."""
    return name not in {"", ".", ".."} and not any(character in name for character in "/\\\0")


def check_name(name: str) -> str:
    """Return `name` if it is a valid name of a file or directory; see `is_name`."""
    if not is_name(name):
        raise InvalidUsageError("a file name is empty or leaves its directory", name=repr(name))
    return name


def bytes_of(content: Sequence[Content]) -> list[memoryview]:
    """Return the pieces of content as bytes; refuse content without any byte."""
    views = [memoryview(piece).cast("B") for piece in content]
    if not any(views):
        raise InvalidUsageError("a file has at least one byte", hint="do not publish empty content")
    return views
