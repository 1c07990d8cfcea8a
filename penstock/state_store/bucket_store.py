"""The files of one bucket's state: immutable versions, each a delta upon a chain of older files.

Every file is a p-unit (`penstock.checkpointing.p_unit`) named ``<number>-<file id>.punit``. The header of
a version's file holds its *chain*: the files that a load needs before it, oldest first. The chain
begins with its *base*, which stands alone: the parts of a snapshot, or the first delta of all. So a load
reads the newest file, which a pointer names, and then the files that it names; nothing lists a directory.

A snapshot is written in the background, after the commit of the version that it shows, and replaces the
chain of the first commit that finds it complete.

Invariants:

1. A file never changes, and no two attempts share a file id.
2. A version is the number of commits before it, plus one; its *parent* is the version before it.
3. The number in a file's name is at least the version that first names it: of a version's own file the
   version, of a snapshot that of the last commit which may adopt it.
4. The arrival of a pointer proves that it was committed. Only then, and only a file whose number is at most
   the pointer's version, and that neither the pointer's chain nor those of the ``retain_versions - 1``
   versions before it have, is deleted. So whatever an attempt in flight writes stays.
5. What a snapshot replaced is named in the header of every later version until it is released, also where
   another snapshot follows before that.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import NewType, Protocol, TypeVar

from penstock._clock import new_id
from penstock._failpoints import failpoint
from penstock.checkpointing import PUnit, decode, encode
from penstock.checkpointing.files import Files
from penstock.compression import Chooser
from penstock.errors import CorruptDataError, InvalidUsageError, PenstockError

__all__ = [
    "RETAIN_VERSIONS",
    "BucketStore",
    "FileId",
    "Handle",
    "Link",
    "Pointer",
    "State",
    "Version",
    "number_of",
]

T = TypeVar("T")

_log = logging.getLogger(__name__)

Version = NewType("Version", int)
FileId = NewType("FileId", str)

RETAIN_VERSIONS = 2
"""How many versions stay loadable by default: the newest committed one and those before it."""

_SNAPSHOT_SHARE = 1.0
"""A snapshot is due when the chain's deltas hold more bytes than this share of its base."""

_LEAST_CHAIN_BYTES = 256 * 1024
"""Below so many bytes of deltas a chain gets no snapshot, unless it is longer than the limit."""

_LONGEST_CHAIN = 64
"""A snapshot is due when more deltas than this follow the base."""

_SNAPSHOT_COMMITS = 16
"""How many commits a snapshot may take to be written; one that takes longer is given up."""

_SUFFIX = ".punit"
_NAME = re.compile(r"\.?([0-9]{12,})-[^./\\]+\.punit(\.[^./\\]+\.tmp)?")


class State(Protocol):
    """What a store needs of a working copy."""

    def delta(self) -> PUnit:
        """Return what changed since the last call of `delta` or `restore`."""

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole state of this moment, in units of bounded size; later changes do not show."""

    def restore(self, units: Iterable[PUnit]) -> None:
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
class Link:
    """One file of a chain. Of a part of a snapshot, the pointer's version is the file's number."""

    pointer: Pointer
    size_bytes: int

    def to_json(self) -> list[object]:
        """Return what `from_json` takes."""
        return [self.pointer.version, self.pointer.file_id, self.size_bytes]

    @staticmethod
    def from_json(value: Sequence[object]) -> Link:
        """Return the link in a header."""
        version, file_id, size_bytes = value
        return Link(Pointer(Version(int(str(version))), FileId(str(file_id))), int(str(size_bytes)))


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A snapshot that is being written."""

    number: Version
    """The number of its files: the last version that may adopt it."""
    deltas_begin: int
    """Where, in the chains of its version and of those after it, the deltas begin that it does not hold."""
    links: Future[tuple[Link, ...]]


@dataclass(frozen=True, slots=True)
class Handle:
    """Where a loaded state stands: its chain up to and with its newest file.

    Attributes
    ----------
    links : tuple of Link
        The base and the deltas since, oldest first.
    base : int
        How many of the links are the base.
    superseded : tuple of (Version, str)
        Names of files that a snapshot replaced and that may still be there, each with the version that
        adopted the snapshot.
    parent : Pointer or None
        The version before.
    snapshot : optional
        What this process writes in the background, of this version or one before it.
    """

    links: tuple[Link, ...] = ()
    base: int = 1
    superseded: tuple[tuple[Version, str], ...] = ()
    parent: Pointer | None = None
    snapshot: _Snapshot | None = field(default=None, compare=False)

    @property
    def pointer(self) -> Pointer | None:
        """The newest file; None for the empty state."""
        return self.links[-1].pointer if self.links else None

    @property
    def size_bytes(self) -> int:
        """Bytes of all files of the chain."""
        return sum(link.size_bytes for link in self.links)

    def written_since(self, before: Handle) -> int:
        """Return how many bytes the commit wrote that led from `before` here, its new base included."""
        known = {link.pointer.file_name for link in before.links}
        return sum(link.size_bytes for link in self.links if link.pointer.file_name not in known)

    def releasable(self, retain_versions: int) -> list[str]:
        """Return the superseded files that neither `pointer` nor the retained versions before it need."""
        if self.pointer is None:
            return []
        newest = self.pointer.version - retain_versions + 1
        return [name for version, name in self.superseded if version <= newest]

    def needed(self, retain_versions: int) -> set[str]:
        """Return the files that `pointer` and the retained versions before it need."""
        released = set(self.releasable(retain_versions))
        names = {link.pointer.file_name for link in self.links}
        return names | {name for _, name in self.superseded if name not in released}

    def snapshot_is_due(self) -> bool:
        """Say whether the deltas have outgrown the base."""
        deltas = self.links[self.base :]
        if len(deltas) > _LONGEST_CHAIN:
            return True
        base_bytes = sum(link.size_bytes for link in self.links[: self.base])
        return sum(link.size_bytes for link in deltas) > max(_SNAPSHOT_SHARE * base_bytes, _LEAST_CHAIN_BYTES)


class BucketStore:
    """Loads and commits the state of one bucket.

    Used in a Python worker by one task at a time. Several attempts of a task may use their own stores
    on the same directory at once.

    Parameters
    ----------
    files : Files
        The bucket's directory.
    retain_versions : int
        How many versions stay loadable once they are committed.
    background : concurrent.futures.Executor, optional
        What writes snapshots and looks for garbage; by default the caller's thread does.
    chooser : Chooser, optional
        What decides how the columns of deltas are coded. It may serve many stores, one after the other.
    """

    def __init__(
        self,
        files: Files,
        *,
        retain_versions: int = RETAIN_VERSIONS,
        background: Executor | None = None,
        chooser: Chooser | None = None,
    ) -> None:
        if retain_versions < 1:
            raise InvalidUsageError("less than one version is retained", retain_versions=retain_versions)
        self.files = files
        self.retain_versions = retain_versions
        self._background = background
        self._chooser = chooser if chooser is not None else Chooser()

    def load(self, pointer: Pointer, state: State) -> Handle:
        """Bring `state`, which is empty, to the version at `pointer`.

        Raises
        ------
        CorruptDataError
            If a file is missing, damaged or not what its name says.
        UnavailableError
            If the file system refuses.
        """
        newest, handle = self._open(pointer)
        # One file after the other, for a snapshot may be larger than memory.
        sources: list[Link | PUnit] = [*handle.links[:-1], newest]
        state.restore(self._state_unit(source) for source in sources)
        return handle

    def catch_up(self, pointer: Pointer, state: State, held: Handle) -> Handle | None:
        """Bring `state`, which stands at `held`, to the version at `pointer` by the deltas between.

        Returns None, and leaves `state` as it is, if `held` is no part of the lineage of `pointer` or a
        snapshot has taken the place of the deltas.

        Raises
        ------
        CorruptDataError, UnavailableError
            As `load`.
        """
        newest, handle = self._open(pointer)
        pointers = [link.pointer for link in handle.links]
        if held.pointer not in pointers:
            return None
        deltas = handle.links[pointers.index(held.pointer) + 1 :]
        # All are read before the first is applied, so that a damaged one changes nothing.
        sources: list[Link | PUnit] = [*deltas[:-1], newest] if deltas else []
        state.restore([self._state_unit(source) for source in sources])
        if handle.links[: len(held.links)] == held.links:
            # What this process began to write of the version that it held is still of use.
            handle = replace(handle, snapshot=held.snapshot)
        return handle

    def commit(self, state: State, held: Handle) -> Handle:
        """Make the changes of `state` since `held` durable as a new version.

        Call it after `release`: what that has deleted is not named any more. Steps: 1. adopt a complete
        snapshot, 2. publish the delta, 3. begin a snapshot if one is due.

        Raises
        ------
        UnavailableError
            If the file system refuses; the version at `held` is untouched.
        """
        pointer = Pointer(Version(1 + (held.pointer.version if held.pointer else 0)), FileId(new_id()))
        released = set(held.releasable(self.retain_versions))
        kept = tuple(entry for entry in held.superseded if entry[1] not in released)
        before = _adopted(replace(held, superseded=kept), pointer.version)
        unit = state.delta()
        meta = _meta(pointer, unit, before, held.pointer)
        content = encode(PUnit(unit.kind, meta, unit.blocks), self._chooser)
        self.files.publish(pointer.file_name, content)
        links = (*before.links, Link(pointer, len(content)))
        handle = replace(before, links=links, parent=held.pointer)
        if handle.snapshot is None and handle.snapshot_is_due():
            number = Version(pointer.version + _SNAPSHOT_COMMITS)
            units = state.snapshot()
            written = self._run(lambda: self._write_snapshot(number, units))
            handle = replace(handle, snapshot=_Snapshot(number, len(links), written))
        return handle

    def release(self, held: Handle) -> int:
        """Delete what a snapshot replaced and `held` proves unnecessary; return how many files.

        Call it when the pointer of `held` has *arrived* and its state is loaded, never after a commit. When
        it deletes anything, which is about once a snapshot, it also has the directory swept.
        """
        names = held.releasable(self.retain_versions)
        if not names:
            return 0
        failpoint("operator.before_release")
        for name in names:
            self.files.delete(name)
        self.sweep_later(held)
        return len(names)

    def sweep_later(self, held: Handle) -> None:
        """Have the directory swept in the background; see `sweep`. A failure is logged."""
        self._run(lambda: self._try_sweep(held))

    def garbage(self, held: Handle) -> list[str]:
        """List the directory for all that the arrival of the pointer of `held` proves unnecessary.

        These are the files of attempts that failed or lost, and snapshots that nothing adopted, with a
        number that is at most the pointer's version.
        """
        if held.pointer is None:
            return []
        needed = held.needed(self.retain_versions)
        found = []
        for facts in self.files.list():
            number = number_of(facts.name)
            if number is not None and number <= held.pointer.version and facts.name not in needed:
                found.append(facts.name)
        return found

    def sweep(self, held: Handle) -> int:
        """Delete the `garbage`; return how many files. As `release`, only once the pointer has arrived."""
        names = self.garbage(held)
        for name in names:
            self.files.delete(name)
        return len(names)

    def look(self, pointer: Pointer) -> tuple[Handle, PUnit]:
        """Return where the version at `pointer` stands, and its own unit, without loading the chain."""
        newest, handle = self._open(pointer)
        return handle, PUnit(newest.kind, newest.meta["state"], newest.blocks)

    def _try_sweep(self, held: Handle) -> None:
        try:
            freed = self.sweep(held)
        except PenstockError as error:
            _log.warning("garbage stays [location=%s error=%s]", self.files.location, error)
        else:
            _log.debug("garbage is gone [location=%s files=%d]", self.files.location, freed)

    def _write_snapshot(self, number: Version, units: Iterator[PUnit]) -> tuple[Link, ...]:
        """Publish the parts of a snapshot; if that fails, leave none and say so."""
        links: list[Link] = []
        # Its own: the store's serves the thread that commits.
        chooser = Chooser()
        try:
            for unit in units:
                pointer = Pointer(number, FileId(new_id()))
                content = encode(
                    PUnit(unit.kind, _meta(pointer, unit, Handle(base=0), None), unit.blocks), chooser
                )
                self.files.publish(pointer.file_name, content)
                links.append(Link(pointer, len(content)))
        except Exception as error:  # of whatever kind: this thread is the only one to see it
            _log.warning("no snapshot was written [location=%s error=%s]", self.files.location, error)
            for link in links:
                with contextlib.suppress(PenstockError):
                    self.files.delete(link.pointer.file_name)
            raise
        return tuple(links)

    def _run(self, work: Callable[[], T]) -> Future[T]:
        """Have `work` done in the background, or at once if there is none."""
        if self._background is not None:
            return self._background.submit(work)
        future: Future[T] = Future()
        try:
            future.set_result(work())
        except PenstockError as error:
            future.set_exception(error)
        return future

    def _open(self, pointer: Pointer) -> tuple[PUnit, Handle]:
        """Read the file at `pointer` and the chain in its header."""
        newest, size_bytes = self._read(pointer)
        meta = newest.meta
        path = self.files.path_of(pointer.file_name)
        try:
            before = tuple(Link.from_json(value) for value in meta["chain"])
            superseded = tuple((Version(version), str(name)) for version, name in meta["superseded"])
            # The first files of the format named neither base, which was one file, nor parent.
            base, parent = int(meta.get("base", 1)), meta.get("parent")
            before_it = Pointer(Version(int(parent[0])), FileId(str(parent[1]))) if parent else None
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CorruptDataError("the header of a state file is not as it should be", file=path) from error
        names = [link.pointer.file_name for link in before] + [name for _, name in superseded]
        if any(number_of(name) is None for name in names):
            raise CorruptDataError("the file names others outside its directory", file=path)
        return newest, Handle((*before, Link(pointer, size_bytes)), base, superseded, before_it)

    def _state_unit(self, source: Link | PUnit) -> PUnit:
        unit = source if isinstance(source, PUnit) else self._read(source.pointer)[0]
        return PUnit(unit.kind, unit.meta["state"], unit.blocks)

    def _read(self, pointer: Pointer) -> tuple[PUnit, int]:
        path = self.files.path_of(pointer.file_name)
        try:
            content = self.files.read(pointer.file_name)
        except FileNotFoundError:
            raise CorruptDataError(
                "a state file is missing", file=path, hint="restore it, or start a new checkpoint"
            ) from None
        unit = decode(content, path)
        if (unit.meta.get("version"), unit.meta.get("file_id")) != (pointer.version, pointer.file_id):
            raise CorruptDataError("the file holds another version than its name says", file=path)
        return unit, len(content)


def number_of(name: str) -> Version | None:
    """Return the number in a file's name, finished or not; None if it is no file of a bucket."""
    match = _NAME.fullmatch(name)
    return Version(int(match[1])) if match else None


def _adopted(held: Handle, version: Version) -> Handle:
    """Return `held` with its snapshot in the place of what that holds, if it is complete by now."""
    snapshot = held.snapshot
    if snapshot is None or not snapshot.links.done():
        return held
    held = replace(held, snapshot=None)
    if snapshot.links.exception() is not None or version > snapshot.number:
        return held
    parts, replaced = snapshot.links.result(), held.links[: snapshot.deltas_begin]
    names = tuple((version, link.pointer.file_name) for link in replaced)
    links = (*parts, *held.links[snapshot.deltas_begin :])
    return replace(held, links=links, base=len(parts), superseded=held.superseded + names)


def _meta(pointer: Pointer, unit: PUnit, before: Handle, parent: Pointer | None) -> dict[str, object]:
    return {
        "version": pointer.version,
        "file_id": pointer.file_id,
        "parent": parent and [parent.version, parent.file_id],
        "base": before.base,
        "chain": [link.to_json() for link in before.links],
        "superseded": [list(entry) for entry in before.superseded],
        "state": unit.meta,
    }
