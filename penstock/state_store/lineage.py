"""The lineage of the versions of a bucket's state: pointers, chains of files, and file names.

`penstock.state_store.bucket_store` explains these terms and their invariants.
"""

from __future__ import annotations

import re
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NewType

from penstock.checkpointing.fields import Fields

__all__ = [
    "CLOCK_SUFFIX",
    "FileId",
    "Handle",
    "Link",
    "Pointer",
    "Snapshot",
    "Version",
    "next_pointer",
    "number_of",
    "pointer_of",
]

Version = NewType("Version", int)
FileId = NewType("FileId", str)

_SUFFIX = ".punit"
CLOCK_SUFFIX = ".clock"
"""The suffix of clock records' names (`penstock.state_store.clock_record`)."""

_NAME = re.compile(r"\.?([0-9]{12,})-[^./\\\0]+\.(punit|clock)(\.[^./\\\0]+\.tmp)?")


@dataclass(frozen=True, slots=True)
class Pointer:
    """A reference to the file of a version. Spark's ``GroupState`` of a bucket holds the newest pointer."""

    version: Version
    file_id: FileId

    @property
    def file_name(self) -> str:
        """The name of the file within the bucket's directory."""
        return f"{self.version:012d}-{self.file_id}{_SUFFIX}"


@dataclass(frozen=True, slots=True)
class Link:
    """One file of a chain. For a part of a snapshot, the pointer's version is the file's number."""

    pointer: Pointer
    size_bytes: int

    def to_json(self) -> list[object]:
        """Return the JSON value that `from_json` takes."""
        return [self.pointer.version, self.pointer.file_id, self.size_bytes]

    @staticmethod
    def from_json(value: Fields) -> Link:
        """Return the link that a header holds."""
        return Link(Pointer(Version(value.count(0)), FileId(value.text(1))), value.count(2))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that was begun. The headers of the snapshot's version and of later versions name it."""

    pointer: Pointer
    """The snapshot's own file; all its parts have the same number."""
    last: Version
    """The last version that may adopt the snapshot."""
    deltas_begin: int
    """The index of the first delta after the snapshot, in the chains of its version and of later versions."""
    parts: Future[tuple[Link, ...]] | None = field(default=None, compare=False)
    """The parts that this process writes; None if another process writes or wrote them."""

    def is_lost(self, version: Version) -> bool:
        """Return whether the snapshot's writer is considered lost at the commit of `version`."""
        return self.parts is None and version > self.last

    def to_json(self) -> list[object]:
        """Return the JSON value that `from_json` takes."""
        return [self.pointer.version, self.pointer.file_id, self.last, self.deltas_begin]

    @staticmethod
    def from_json(value: Fields) -> Snapshot:
        """Return the snapshot that a header holds."""
        pointer = Pointer(Version(value.count(0)), FileId(value.text(1)))
        return Snapshot(pointer, Version(value.count(2)), value.count(3))


@dataclass(frozen=True, slots=True)
class Handle:
    """The version of a loaded state: its chain, including its newest file.

    Attributes
    ----------
    links : tuple of Link
        The base and the deltas after it, oldest first.
    base : int
        The number of links that form the base.
    superseded : tuple of (Version, str)
        For each file that a snapshot replaced and that may still exist, and for the snapshot's own file:
        the version that adopted the snapshot, and the file's name.
    parent : Pointer or None
        The previous version.
    snapshot : optional
        A snapshot of this or an earlier version that was begun and is not adopted yet.
    """

    links: tuple[Link, ...] = ()
    base: int = 1
    superseded: tuple[tuple[Version, str], ...] = ()
    parent: Pointer | None = None
    snapshot: Snapshot | None = None

    @property
    def pointer(self) -> Pointer | None:
        """The newest file; None for the empty state."""
        return self.links[-1].pointer if self.links else None

    @property
    def size_bytes(self) -> int:
        """The total size of the files of the chain."""
        return sum(link.size_bytes for link in self.links)

    def bytes_since(self, before: Handle) -> int:
        """Return the bytes that the commit from `before` to this version wrote, including a new base."""
        held = set(before.links)
        return sum(link.size_bytes for link in self.links if link not in held)

    def releasable_files(self, retain_versions: int) -> list[str]:
        """Return superseded files that `pointer` and the `retain_versions` versions before it do not need."""
        if self.pointer is None:
            return []
        lowest = self.pointer.version - retain_versions
        return [name for version, name in self.superseded if version <= lowest]

    def needed_files(self, retain_versions: int) -> set[str]:
        """Return the files that `pointer` and the `retain_versions` versions before it need."""
        released = set(self.releasable_files(retain_versions))
        names = {link.pointer.file_name for link in self.links}
        return names | {name for _, name in self.superseded if name not in released}


def next_pointer(pointer: Pointer, file_id: FileId) -> Pointer:
    """Return the pointer to the version after `pointer`."""
    return Pointer(Version(pointer.version + 1), file_id)


def number_of(name: str) -> Version | None:
    """Return the number in a file's name, even of an unfinished file; None if the name has no such number."""
    match = _NAME.fullmatch(name)
    return Version(int(match[1])) if match else None


def pointer_of(name: str) -> Pointer | None:
    """Return the pointer to the finished file `name` of a chain; None if the name is not of this form."""
    number = number_of(name)
    if number is None or name.startswith("."):
        return None
    _, _, rest = name.partition("-")
    pointer = Pointer(number, FileId(rest.removesuffix(_SUFFIX)))
    return pointer if pointer.file_name == name else None
