"""The files of one bucket's state: immutable versions, each a delta upon a chain of older files.

Every file is a p-unit (`penstock.checkpointing.p_unit`) named ``<number>-<file id>.punit``. The header of
a version's file holds its *chain*: the files that a load needs before it, oldest first. The chain
begins with its *base*, which stands alone: the parts of a snapshot, or the first delta of all. So a load
reads the newest file, which a pointer names, and then the files that it names; nothing lists a directory.

A snapshot is written in the background, after the commit of the version that it shows, and replaces the
chain of the first commit that finds it complete. Its parts come first, and then its *own file*, which names
them and holds nothing else. The header of the version that it shows, and of those after it, says that it was
begun and under which name its own file will be, so any process may find it, and none begins another as long
as this one may be adopted. If nobody adopts it by then, whoever writes it is given up for lost, and the next
one is written by the commit that begins it: workers may be too short-lived to write any in the background.

More than one attempt at a version may be committed: with speculation, or where an executor is given up and
still runs, Spark may have the pointer of one attempt in an executor's memory and that of its *sibling* on
disk. A task gets either, and cannot tell which; a later one may get the other, or a version that follows it.

Invariants:

1. A file never changes, and no two attempts share a file id.
2. A version is the number of commits before it, plus one; its *parent* is the version before it.
3. The number in a file's name is at least the version that first names it: of a version's own file the
   version, of a snapshot that of the last commit which may adopt it. A snapshot's is higher by the
   ``retain_versions - 1``, so that its files stay as long as a version is retained upon which it may be
   adopted; and once its own file may be there, its parts go by rule 5 alone.
4. The arrival of the pointer of version v proves that v was committed. The ``retain_versions`` newest
   versions up to v may arrive later, each as any of its siblings; whatever is still in flight and of use
   follows one of these or one of version v - ``retain_versions``. All of those are *recent* versions.
5. A file is deleted only once a pointer has arrived, if no recent version that is there has it in its chain,
   whichever attempt wrote that version, and if its number is below the recent ones, or the chain that arrived
   had it before a snapshot replaced it. If a recent version cannot be read, nothing is deleted.
6. What a snapshot replaced, and its own file, are named in the header of every later version until they are
   released, also where another snapshot follows before that.
7. A commit begins a snapshot only where its lineage has none begun that a later commit may adopt, unless
   this process knows that the one which it began has failed.
8. After a snapshot is due, a chain grows by no more than ``_MAX_SNAPSHOT_COMMITS`` + 2 deltas, whatever
   becomes of workers, as long as the file system takes the snapshot and its writer is dead or done.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import TypeVar

from penstock._clock import new_id
from penstock._failpoints import failpoint
from penstock.checkpointing import PUnit, encode_blocks
from penstock.checkpointing.files import Files
from penstock.checkpointing.trace import trace
from penstock.errors import InvalidUsageError, PenstockError
from penstock.state_store.bucket_files import BucketFiles, State
from penstock.state_store.lineage import (
    CLOCK_SUFFIX,
    FileId,
    Handle,
    Link,
    Pointer,
    Snapshot,
    Version,
    number_of,
    pointer_of,
)

__all__ = [
    "CLOCK_SUFFIX",
    "RETAIN_VERSIONS",
    "BucketStore",
    "FileId",
    "Handle",
    "Link",
    "Pointer",
    "State",
    "Version",
    "number_of",
    "pointer_of",
]

T = TypeVar("T")

_log = logging.getLogger(__name__)

RETAIN_VERSIONS = 2
"""Versions that stay loadable by default: the newest committed one and those before it."""

_DELTAS_PER_BASE = 1.0
"""A snapshot is due when the deltas of a chain hold more bytes than this multiple of its base."""

_MIN_BYTES_FOR_SNAPSHOT = 256 * 1024
"""Below so many bytes of deltas a chain gets no snapshot, unless it is longer than the limit."""

_MAX_DELTAS = 64
"""A snapshot is due when more deltas than this follow the base."""

_MAX_SNAPSHOT_COMMITS = 16
"""Commits within which a snapshot must be complete; one that takes longer counts as lost."""


class BucketStore(BucketFiles):
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
    """

    def __init__(
        self,
        files: Files,
        *,
        retain_versions: int = RETAIN_VERSIONS,
        background: Executor | None = None,
    ) -> None:
        if retain_versions < 1:
            raise InvalidUsageError("less than one version is retained", retain_versions=retain_versions)
        super().__init__(files)
        self.retain_versions = retain_versions
        self._background = background

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
        self._restore(state, handle.links, (self._state_unit(source) for source in sources))
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
        self._restore(state, deltas, [self._state_unit(source) for source in sources])
        if handle.snapshot == held.snapshot:
            # It may be this process that writes it.
            handle = replace(handle, snapshot=held.snapshot)
        return handle

    def commit(self, state: State, held: Handle) -> Handle:
        """Make the changes of `state` since `held` durable as a new version.

        Call it after `release`: what that has deleted is not named any more. Steps: 1. adopt a complete
        snapshot, 2. begin one if it is due and none is begun, 3. publish the delta, which names what was
        begun, 4. write the snapshot: in the background, or before this returns if the last one was lost.

        Where another process writes the snapshot, step 1 is a read of one small file, which is mostly not
        there yet: at most one for each of the commits that may adopt it.

        Raises
        ------
        UnavailableError
            If the file system refuses; the version at `held` is untouched.
        """
        pointer = Pointer(Version(1 + (held.pointer.version if held.pointer else 0)), FileId(new_id()))
        released = set(held.releasable(self.retain_versions))
        kept = tuple(entry for entry in held.superseded if entry[1] not in released)
        before = self._adopted(replace(held, superseded=kept), pointer.version)
        unit = state.delta()
        begun = None
        coded = encode_blocks(unit)
        if before.snapshot is None and _snapshot_is_due(before, sum(map(len, coded.values()))):
            begun = self._begun(pointer.version, len(before.links) + 1)
            before = replace(before, snapshot=begun)
        link = self._publish(pointer, unit, coded, before, held.pointer)
        handle = replace(before, links=(*before.links, link), parent=held.pointer)
        if begun is not None:
            at, units = begun.pointer, state.snapshot()
            lost = held.snapshot is not None and held.snapshot.is_lost(pointer.version)
            parts = self._run(lambda: self._write_snapshot(at, units), wait=lost)
            handle = replace(handle, snapshot=replace(begun, parts=parts))
        return handle

    def release(self, held: Handle) -> int:
        """Sweep if `held` proves unnecessary what a snapshot replaced; return how many files that may be.

        Call it when the pointer of `held` has *arrived* and its state is loaded, never after a commit. It
        sweeps about once a snapshot, in the caller's thread, because a worker may not live long enough for
        the background. A failure is logged.
        """
        names = held.releasable(self.retain_versions)
        if names:
            failpoint("operator.before_release")
            self._try_sweep(held)
        return len(names)

    def sweep_later(self, held: Handle) -> None:
        """Have the directory swept in the background; see `sweep`. A failure is logged."""
        self._run(lambda: self._try_sweep(held))

    def garbage(self, held: Handle) -> list[str]:
        """List the directory for all that the arrival of the pointer of `held` proves unnecessary.

        These are the files of attempts that failed or lost, what a snapshot replaced, and snapshots that
        nothing adopted; see rule 5 of the module. The headers of siblings are read, of which there are mostly
        none.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        """
        if held.pointer is None:
            return []
        needed = held.needed(self.retain_versions)
        released = held.releasable(self.retain_versions)
        lowest = held.pointer.version - self.retain_versions
        found: list[str] = []
        siblings: list[tuple[Pointer, int]] = []
        for facts in self.files.list():
            number = number_of(facts.name)
            if number is None or facts.name in needed:
                continue
            if number < lowest or facts.name in released:
                found.append(facts.name)
            elif number <= held.pointer.version and (pointer := pointer_of(facts.name)):
                siblings.append((pointer, facts.size_bytes))
        if found:
            for sibling, size_bytes in siblings:
                handle = self._from_head(sibling, size_bytes)
                if handle is None:
                    return []
                needed.update(link.pointer.file_name for link in handle.links)
                if handle.snapshot is not None:
                    # Whoever follows it may adopt that, and all its files have one number.
                    number = handle.snapshot.pointer.version
                    needed.update(name for name in found if number_of(name) == number)
        return [name for name in found if name not in needed]

    def sweep(self, held: Handle) -> int:
        """Delete the `garbage`; return how many files. As `release`, only once the pointer has arrived."""
        names = self.garbage(held)
        for name in names:
            trace("deleted", location=self.files.location, file=name)
            self.files.delete(name)
        return len(names)

    def look(self, pointer: Pointer) -> tuple[Handle, PUnit]:
        """Return where the version at `pointer` stands, and its own unit, without loading the chain."""
        newest, handle = self._open(pointer)
        return handle, PUnit(newest.kind, newest.meta["state"], newest.blocks)

    def find(self, pointer: Pointer) -> Handle:
        """Return where the version at `pointer` stands, once all that a load of it reads is seen to be there.

        Called where nothing is loaded yet. The directory is listed, and the header of the version's own file
        is read. Only what is missing, or not as long as it should be, is read whole, as `load` does it,
        which says what is wrong. What else is in a file of the right length is not looked at.

        Raises
        ------
        CorruptDataError
            As `load`, if a file is missing, cut, or its header is damaged.
        UnavailableError
            If the file system refuses.
        """
        sizes = {facts.name: facts.size_bytes for facts in self.files.list()}
        handle = self._from_head(pointer, sizes.get(pointer.file_name, 0))
        if handle is None:
            handle = self._open(pointer)[1]
        for link in handle.links[:-1]:
            if sizes.get(link.pointer.file_name) != link.size_bytes:
                self._read(link.pointer)
        return handle

    def _try_sweep(self, held: Handle) -> None:
        try:
            freed = self.sweep(held)
        except PenstockError as error:
            _log.warning("garbage stays [location=%s error=%s]", self.files.location, error)
        else:
            _log.debug("garbage is gone [location=%s files=%d]", self.files.location, freed)

    def _begun(self, shown: Version, deltas_begin: int) -> Snapshot:
        """Return a snapshot of the version `shown`, under a name that no other has."""
        last = Version(shown + _MAX_SNAPSHOT_COMMITS)
        number = Version(last + self.retain_versions - 1)
        return Snapshot(Pointer(number, FileId(new_id())), last, deltas_begin)

    def _adopted(self, held: Handle, version: Version) -> Handle:
        """Return `held`, upon which `version` is committed, with the snapshot if it is complete by now."""
        snapshot = held.snapshot
        if snapshot is None:
            return held
        ours = snapshot.parts
        if ours is not None and not ours.done():
            # However late it is: a process writes one at a time.
            return held
        without = replace(held, snapshot=None)
        if version > snapshot.last or (ours is not None and ours.exception() is not None):
            return without
        parts = self._parts_of(snapshot.pointer) if ours is None else ours.result()
        if parts is None:
            return held
        replaced = (snapshot.pointer, *(link.pointer for link in held.links[: snapshot.deltas_begin]))
        return replace(
            without,
            links=(*parts, *held.links[snapshot.deltas_begin :]),
            base=len(parts),
            superseded=held.superseded + tuple((version, pointer.file_name) for pointer in replaced),
        )

    def _parts_of(self, snapshot: Pointer) -> tuple[Link, ...] | None:
        """Return the parts of a snapshot that another process began; None if it is not complete."""
        try:
            content = self.files.read(snapshot.file_name)
            handle = self._handle_in(snapshot, self._decoded(snapshot, content), len(content))
        except FileNotFoundError:
            return None
        except PenstockError as error:
            _log.warning("a snapshot is not adopted [location=%s error=%s]", self.files.location, error)
            return None
        return handle.links[:-1]

    def _write_snapshot(self, pointer: Pointer, units: Iterator[PUnit]) -> tuple[Link, ...]:
        """Publish a snapshot: 1. its parts, 2. its own file at `pointer`. If that fails, say so."""
        try:
            parts = self._write_parts(pointer.version, units)
            self._publish(pointer, PUnit("snapshot", {}), {}, Handle(parts, base=0), None)
        except Exception as error:  # of whatever kind: this thread is the only one to see it
            _log.warning("no snapshot was written [location=%s error=%s]", self.files.location, error)
            raise
        return parts

    def _write_parts(self, number: Version, units: Iterator[PUnit]) -> tuple[Link, ...]:
        """Publish the parts of a snapshot; if that fails, leave none, for no file names them yet."""
        parts: list[Link] = []
        try:
            for unit in units:
                pointer = Pointer(number, FileId(new_id()))
                coded = encode_blocks(unit)
                parts.append(self._publish(pointer, unit, coded, Handle(base=0), None))
        except Exception:
            for link in parts:
                with contextlib.suppress(PenstockError):
                    self.files.delete(link.pointer.file_name)
            raise
        return tuple(parts)

    def _run(self, work: Callable[[], T], *, wait: bool = False) -> Future[T]:
        """Have `work` done in the background, or here if there is none or its end is waited for."""
        if self._background is not None and not wait:
            return self._background.submit(work)
        future: Future[T] = Future()
        try:
            future.set_result(work())
        except PenstockError as error:
            future.set_exception(error)
        return future


def _snapshot_is_due(held: Handle, more_bytes: int) -> bool:
    """Say whether the deltas outgrow the base with one more, of about `more_bytes`."""
    sizes = [*(link.size_bytes for link in held.links), more_bytes]
    base, deltas = sizes[: held.base], sizes[held.base :]
    return len(deltas) > _MAX_DELTAS or sum(deltas) > max(
        _DELTAS_PER_BASE * sum(base), _MIN_BYTES_FOR_SNAPSHOT
    )
