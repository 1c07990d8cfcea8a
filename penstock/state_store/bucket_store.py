"""The files of one bucket's state: immutable versions, each a delta or a snapshot.

Every file is a p-unit (`penstock.checkpointing.p_unit`) named ``<version>-<file id>.punit``. Its header
holds the *chain*: the snapshot and the deltas since that a load needs before the file itself, oldest
first. So a load reads the newest file, which a pointer names, and then the files that it names; nothing
lists a directory.

Invariants:

1. A file never changes, and no two attempts share a file id.
2. A version is the number of commits before it, plus one; its file names a chain of lower versions.
3. A file is deleted only after a pointer arrived whose chain does not need it and whose version is at
   least `RETAIN_VERSIONS` above that of the snapshot that superseded it. (The arrival of a pointer
   proves that it was committed.) Files of attempts that were never committed stay.
4. What a snapshot supersedes is named in the header of every later version until it is deleted, also
   where another snapshot follows before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NewType, Protocol

from penstock import _durable
from penstock._clock import new_id
from penstock._failpoints import failpoint
from penstock.checkpointing import PUnit, decode, encode
from penstock.errors import CorruptDataError

__all__ = ["RETAIN_VERSIONS", "BucketStore", "FileId", "Handle", "Pointer", "State", "Version"]

Version = NewType("Version", int)
FileId = NewType("FileId", str)

RETAIN_VERSIONS = 2
"""How many versions stay loadable: the newest committed one and those before it."""

_SNAPSHOT_SHARE = 1.0
"""A snapshot is due when the chain's deltas hold more bytes than this share of its snapshot."""

_LEAST_CHAIN_BYTES = 256 * 1024
"""Below so many bytes of deltas a chain gets no new snapshot, unless it is longer than the limit."""

_LONGEST_CHAIN = 64
_SUFFIX = ".punit"


class State(Protocol):
    """What a store needs of a working copy."""

    def changes(self, *, whole: bool = False) -> PUnit:
        """Return what changed since the last call, or the whole state."""

    def restore(self, units: list[PUnit]) -> None:
        """Apply units in their order."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """What Spark's ``GroupState`` holds of a bucket: which file is its newest version."""

    version: Version
    file_id: FileId

    @property
    def file_name(self) -> str:
        """The name of the file within the bucket's directory."""
        return f"{self.version:012d}-{self.file_id}{_SUFFIX}"


@dataclass(frozen=True, slots=True)
class _Link:
    """One file of a chain."""

    pointer: Pointer
    size_bytes: int

    def to_json(self) -> list[object]:
        return [self.pointer.version, self.pointer.file_id, self.size_bytes]

    @staticmethod
    def from_json(value: Sequence[object]) -> _Link:
        version, file_id, size_bytes = value
        return _Link(Pointer(Version(int(str(version))), FileId(str(file_id))), int(str(size_bytes)))


@dataclass(frozen=True, slots=True)
class Handle:
    """Where a loaded state stands: its chain up to and with its newest file.

    Attributes
    ----------
    links : tuple
        The snapshot and the deltas since, oldest first.
    superseded : tuple of (Version, str)
        Names of files that a snapshot made unnecessary and that may still be there, each with the
        version of that snapshot.
    """

    links: tuple[_Link, ...] = ()
    superseded: tuple[tuple[Version, str], ...] = field(default=())

    @property
    def pointer(self) -> Pointer | None:
        """The newest file; None for the empty state."""
        return self.links[-1].pointer if self.links else None

    def releasable(self) -> list[str]:
        """Return the names of the files that the arrival of `pointer` proves unnecessary."""
        if self.pointer is None:
            return []
        newest = self.pointer.version - RETAIN_VERSIONS
        return [name for version, name in self.superseded if version <= newest]


class BucketStore:
    """Loads and commits the state of one bucket in `directory`.

    Used in a Python worker by one task at a time. Several attempts of a task may use their own stores
    on the same directory at once.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def load(self, pointer: Pointer, state: State) -> Handle:
        """Bring `state`, which is empty, to the version at `pointer`.

        Raises
        ------
        CorruptDataError
            If a file is missing, damaged or not what its name says.
        """
        newest, handle = self._open(pointer)
        return self._replay(state, newest, handle, 0)

    def catch_up(self, pointer: Pointer, state: State, held: Handle) -> Handle | None:
        """Bring `state`, which stands at `held`, to the version at `pointer` by the deltas between.

        Returns None, and leaves `state` as it is, if `held` is no part of the chain of `pointer`.

        Raises
        ------
        CorruptDataError
            As `load`.
        """
        newest, handle = self._open(pointer)
        pointers = [link.pointer for link in handle.links]
        if held.pointer not in pointers:
            return None
        return self._replay(state, newest, handle, pointers.index(held.pointer) + 1)

    def commit(self, state: State, held: Handle) -> Handle:
        """Make the changes of `state` since `held` durable as a new version.

        Call it after `release`: what that has deleted is not named any more.

        Raises
        ------
        UnavailableError
            If the file system refuses; the version at `held` is untouched.
        """
        version = Version(1 + (held.pointer.version if held.pointer else 0))
        pointer = Pointer(version, FileId(new_id()))
        whole = _snapshot_is_due(held)
        unit = state.changes(whole=whole)
        before = () if whole else held.links
        released = set(held.releasable())
        superseded = tuple(entry for entry in held.superseded if entry[1] not in released)
        if whole:
            superseded += tuple((version, link.pointer.file_name) for link in held.links)
        meta = {
            "version": version,
            "file_id": pointer.file_id,
            "chain": [link.to_json() for link in before],
            "superseded": superseded,
            "state": unit.meta,
        }
        content = encode(PUnit(unit.kind, meta, unit.blocks))
        _durable.make_directory(self.directory)
        _durable.publish(self.directory / pointer.file_name, content)
        link = _Link(pointer, len(content))
        return Handle((*before, link), superseded)

    def release(self, held: Handle) -> int:
        """Delete what the committed pointer of `held` proves unnecessary; return how many files.

        Call it when a pointer has *arrived* and its state is loaded, never after a commit.
        """
        names = held.releasable()
        if names:
            failpoint("operator.before_release")
        for name in names:
            _durable.delete(self.directory / name)
        return len(names)

    def _open(self, pointer: Pointer) -> tuple[PUnit, Handle]:
        """Read the file at `pointer` and the chain in its header."""
        newest, size_bytes = self._read(pointer)
        before = tuple(_Link.from_json(value) for value in newest.meta["chain"])
        links = (*before, _Link(pointer, size_bytes))
        superseded = tuple((Version(version), str(name)) for version, name in newest.meta["superseded"])
        if any(Path(name).name != name or not name.endswith(_SUFFIX) for _, name in superseded):
            raise CorruptDataError("the file names others outside its directory", file=pointer.file_name)
        return newest, Handle(links, superseded)

    def _replay(self, state: State, newest: PUnit, handle: Handle, begin: int) -> Handle:
        units = [self._read(link.pointer)[0] for link in handle.links[begin:-1]]
        units += [newest] if begin < len(handle.links) else []
        state.restore([PUnit(unit.kind, unit.meta["state"], unit.blocks) for unit in units])
        return handle

    def _read(self, pointer: Pointer) -> tuple[PUnit, int]:
        path = self.directory / pointer.file_name
        try:
            content = _durable.read(path)
        except FileNotFoundError:
            raise CorruptDataError(
                "a state file is missing", file=path, hint="restore it, or start a new checkpoint"
            ) from None
        unit = decode(content, path)
        if (unit.meta.get("version"), unit.meta.get("file_id")) != (pointer.version, pointer.file_id):
            raise CorruptDataError("the file holds another version than its name says", file=path)
        return unit, len(content)


def _snapshot_is_due(held: Handle) -> bool:
    """Say whether the next version is a snapshot: the first one, and when deltas outgrow the last."""
    if not held.links:
        return True
    deltas = sum(link.size_bytes for link in held.links[1:])
    if len(held.links) > _LONGEST_CHAIN:
        return True
    return deltas > max(_SNAPSHOT_SHARE * held.links[0].size_bytes, _LEAST_CHAIN_BYTES)
