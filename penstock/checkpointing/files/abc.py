"""The interface of directories; `penstock.checkpointing.files` says what each kind promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.errors import InvalidUsageError

__all__ = ["Content", "FileFacts", "Files", "bytes_of", "checked", "is_name"]

Content = bytes | memoryview
"""The content of a file."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One entry of a directory. A directory's `size_bytes` is 0.

    `written_us` is when it was written, as far as the file system says. It is shown, and decides nothing.
    """

    name: str
    size_bytes: int
    is_directory: bool = False
    written_us: int | None = field(default=None, compare=False)

    @property
    def is_unfinished(self) -> bool:
        """Whether this is the temporary file of an attempt that runs or was killed."""
        return self.name.startswith(".") and self.name.endswith(".tmp")


class Files(Protocol):
    """One directory of immutable files.

    Used in the driver and in Python workers, by any number of threads and processes at once. It is
    small, holds no connection, and may be pickled; the connection is made by the first call in each
    process, so a process that forks before that call leaves nothing of it to its children.
    """

    @property
    def location(self) -> str:
        """The location as users know it: an absolute path, or a URI in which secrets are ``***``.

        It is for messages. Where a URI holds secrets, or where it is that of a child, pickle the object
        instead of opening its location.
        """

    def publish(self, name: str, *content: Content) -> None:
        """Create the file `name`: whole or not at all, and durable when this returns.

        Parameters
        ----------
        name : str
            A name without directories.
        *content : bytes or memoryview
            Its pieces, one after the other: at least one byte in all. They are read before this returns,
            and stay the caller's.

        Raises
        ------
        ConflictError
            If there is a file of this name, where the file system can tell (see the module).
        UnavailableError
            If the file system refuses. The file may be there all the same, and is then whole: an answer
            can get lost.
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
        """Return `size` bytes of the file `name` from `at` on; fewer where the file ends before.

        Raises
        ------
        FileNotFoundError, UnavailableError, InvalidUsageError
            As `read`.
        """

    def delete(self, name: str) -> None:
        """Remove the file `name`; one that is gone already is no error.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        InvalidUsageError
            If the name or the location is not possible.
        """

    def list(self) -> list[FileFacts]:
        """Return the direct children, unfinished ones too, by name; none if there is no directory.

        For operators and garbage collection, never where a batch waits. What is published or deleted
        meanwhile may be in it or not.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        InvalidUsageError
            If the location is not possible.
        """

    def child(self, name: str) -> Files:
        """Return the directory `name` below this one, which is made when a file is published into it.

        Raises
        ------
        InvalidUsageError
            If the name is not possible.
        """

    def path_of(self, name: str) -> str:
        """Return the file's full name, for messages."""


def is_name(name: str) -> bool:
    """Say whether a name is one of a file or directory, and does not lead elsewhere."""
    return name not in {"", ".", ".."} and not any(character in name for character in "/\\\0")


def checked(name: str) -> str:
    """Return `name`, a file's or directory's, if it does not lead elsewhere."""
    if not is_name(name):
        raise InvalidUsageError("a file's name is empty or leads elsewhere", name=repr(name))
    return name


def bytes_of(content: Sequence[Content]) -> list[memoryview]:
    """Return the bytes to publish, of which there is at least one in all."""
    views = [memoryview(piece).cast("B") for piece in content]
    if not any(views):
        raise InvalidUsageError("a file has at least one byte", hint="do not publish what is empty")
    return views
