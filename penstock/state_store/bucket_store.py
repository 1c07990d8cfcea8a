"""The files of one bucket's state: immutable versions, each a delta upon a chain of older files.

Every file is a p-unit (`penstock.checkpointing.p_unit`) named ``<number>-<file id>.punit``. The header of a
version's file holds its *chain*: the files that a load needs before it, oldest first. The chain begins with
its *base*, which is self-contained: the parts of a snapshot, or the very first delta. So a load reads the
file that a pointer names, and then the files in its chain, without listing a directory.

A snapshot is written in the background, after the commit of its version. The first later commit that finds
the snapshot complete adopts it: the snapshot replaces that commit's chain. The writer first publishes the
snapshot's parts, and then its *own file*, which only names the parts. The headers of the snapshot's version
and of later versions record that the snapshot was begun, and the name of the snapshot's own file. So any
process can find the snapshot, and no process begins another snapshot while this one may be adopted. If no
commit adopts the snapshot in time, its writer is considered lost. Then the commit that begins the next
snapshot also writes it, because a worker may end before it has written a snapshot in the background.

Spark may commit more than one attempt at a version. With speculation, or if a lost executor still runs, Spark
may have the pointer of one attempt in an executor's memory and the pointer of a *sibling* on disk. A task
gets one of the two pointers and cannot determine which. A later task may get the other pointer, or a
successor of the other.

Invariants:

1. A file never changes. No two attempts share a file id, except for versions of `BucketStore.publish_next`,
   which the first attempt publishes for all attempts.
2. A version is the number of earlier commits plus one; its *parent* is the previous version.
3. The number in a file's name is at least the version that first names the file. For a version's own file,
   the number is that version. For a snapshot, it is the last version that may adopt the snapshot, plus
   ``retain_versions - 1``. So the snapshot's files stay while any such version is retained. Once the
   snapshot's own file may exist, rule 5 alone decides when the snapshot's parts are deleted.
4. The arrival of the pointer of version v proves that v was committed. The pointers of the
   ``retain_versions`` newest versions up to v may still arrive. Instead of each of these pointers, the
   pointer of any sibling may arrive. Attempts that still run and can be committed follow one of these
   versions or version v - ``retain_versions``. All these versions are *recent*.
5. A file is deleted only after a pointer has arrived, and only if two conditions hold. First, no recent
   version, of any attempt, has the file in its chain, or is followed by a version that may adopt a snapshot
   with the file's number. Second, the file's number is below the recent versions, or the file was in the
   chain that arrived before a snapshot replaced it. If a recent version cannot be read, nothing is deleted.
6. The header of every later version names the files that a snapshot replaced, and the snapshot's own file,
   until the files are released. Another snapshot in the meantime does not change this.
7. A commit begins a snapshot only if its lineage has no snapshot that a later commit may adopt, unless this
   process has seen its own snapshot fail.
8. After a snapshot is due, a chain grows by no more than ``SnapshotRule.max_commits`` + 2 deltas, even if
   workers are lost, as long as the file system accepts the snapshot and its writer is dead or done.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from penstock._clock import new_id
from penstock._failpoints import failpoint
from penstock.checkpointing import PUnit, encode_blocks, read_header
from penstock.checkpointing.files import Files
from penstock.checkpointing.trace import trace
from penstock.errors import CorruptDataError, InvalidUsageError, PenstockError
from penstock.state_store.bucket_files import BucketFiles, State
from penstock.state_store.lineage import (
    CLOCK_SUFFIX,
    FileId,
    Handle,
    Link,
    Pointer,
    Snapshot,
    Version,
    next_pointer,
    number_of,
    pointer_of,
)
from penstock.state_store.snapshot_rule import SnapshotRule

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
    "next_pointer",
    "number_of",
    "pointer_of",
]

T = TypeVar("T")

_log = logging.getLogger(__name__)

RETAIN_VERSIONS = 2
"""The default number of loadable versions: the newest committed version and its predecessors."""


class BucketStore(BucketFiles):
    """Loads and commits the state of one bucket.

    One task at a time uses it, in a Python worker. Several attempts of a task may each use their own store on
    the same directory at once.

    Parameters
    ----------
    files : Files
        The bucket's directory.
    retain_versions : int
        The number of committed versions that stay loadable.
    background : concurrent.futures.Executor, optional
        The executor that writes snapshots and collects garbage. By default the caller's thread does both.
    snapshots : SnapshotRule, optional
        The rule for beginning a snapshot.
    """

    def __init__(
        self,
        files: Files,
        *,
        retain_versions: int = RETAIN_VERSIONS,
        background: Executor | None = None,
        snapshots: SnapshotRule | None = None,
    ) -> None:
        if retain_versions < 1:
            raise InvalidUsageError("at least one version must be retained", retain_versions=retain_versions)
        super().__init__(files)
        self.retain_versions = retain_versions
        self._background = background
        self._snapshots = snapshots or SnapshotRule()

    def load(self, pointer: Pointer, state: State) -> Handle:
        """Load the version at `pointer` into the empty `state`.

        Raises
        ------
        CorruptDataError
            If a file is missing, damaged or does not match its name.
        UnavailableError
            If the file system refuses.
        """
        newest, handle = self._open(pointer)
        # Apply one file after the other, because a snapshot may be larger than memory.
        sources: list[Link | PUnit] = [*handle.links[:-1], newest]
        self._restore(state, handle.links, (self._state_unit(source) for source in sources))
        return handle

    def catch_up(self, pointer: Pointer, state: State, held: Handle) -> Handle | None:
        """Advance `state` from `held` to the version at `pointer` by the deltas between the two.

        The call returns None and does not change `state` if `held` is not in the lineage of `pointer`, or if
        a snapshot has replaced the deltas.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `load`.
        """
        newest, handle = self._open(pointer)
        pointers = [link.pointer for link in handle.links]
        if held.pointer not in pointers:
            return None
        deltas = handle.links[pointers.index(held.pointer) + 1 :]
        # Read all deltas before the first is applied, so that a damaged delta changes nothing.
        sources: list[Link | PUnit] = [*deltas[:-1], newest] if deltas else []
        self._restore(state, deltas, [self._state_unit(source) for source in sources])
        if handle.snapshot == held.snapshot:
            # This process may be the writer of the snapshot.
            handle = replace(handle, snapshot=held.snapshot)
        return handle

    def commit(self, state: State, held: Handle) -> Handle:
        """Make the changes of `state` since `held` durable as a new version.

        Call it after `release`, so that the header no longer names deleted files. Steps: 1. adopt a complete
        snapshot, 2. begin a snapshot if it is due and none is begun, 3. publish the delta, which names a
        begun snapshot, 4. write the snapshot: in the background, or before the call returns if the last
        snapshot was lost. If another process writes the snapshot, step 1 tries to read one small file, which
        usually does not exist yet.

        Raises
        ------
        UnavailableError
            If the file system refuses; the version at `held` is untouched.
        """
        pointer = Pointer(Version(1 + (held.pointer.version if held.pointer else 0)), FileId(new_id()))
        released = set(held.releasable_files(self.retain_versions))
        kept = tuple(entry for entry in held.superseded if entry[1] not in released)
        before = self._adopt(replace(held, superseded=kept), pointer.version)
        unit = state.delta()
        begun = None
        coded = encode_blocks(unit)
        if before.snapshot is None and self._snapshots.is_due(before, sum(map(len, coded.values()))):
            begun = self._begin_snapshot(pointer.version, len(before.links) + 1)
            before = replace(before, snapshot=begun)
        link = self._publish(pointer, unit, coded, before, held.pointer)
        handle = replace(before, links=(*before.links, link), parent=held.pointer)
        if begun is not None:
            at, units = begun.pointer, state.snapshot()
            lost = held.snapshot is not None and held.snapshot.is_lost(pointer.version)
            parts = self._run(lambda: self._write_snapshot(at, units), wait=lost)
            handle = replace(handle, snapshot=replace(begun, parts=parts))
        return handle

    def publish_first(self, file_id: FileId, units: Iterable[PUnit]) -> Pointer:
        """Publish one or more units as the first version of an empty bucket.

        Steps: 1. publish all units except the last as parts of the version's base, 2. publish the last unit
        as the version's own file.

        Raises
        ------
        ConflictError
            If the version exists.
        UnavailableError
            If the file system refuses.
        """
        *first, last = units
        pointer = Pointer(Version(1), file_id)
        parts = self._write_parts(pointer.version, iter(first))
        self._publish(pointer, last, encode_blocks(last), Handle(parts, base=len(parts) + 1), None)
        return pointer

    def publish_next(self, pointer: Pointer, file_id: FileId, unit: PUnit) -> Pointer:
        """Publish changes to the version at `pointer` from a process that does not hold the state.

        All attempts at the version use the same `file_id`, and the first attempt wins. So a task can return
        the pointer before the version exists.

        Raises
        ------
        ConflictError
            If the version exists.
        CorruptDataError
            If the file at `pointer` is missing or damaged.
        UnavailableError
            If the file system refuses.
        """
        following = next_pointer(pointer, file_id)
        self._publish(following, unit, encode_blocks(unit), self._open(pointer)[1], pointer)
        return following

    def release(self, held: Handle) -> int:
        """Sweep if `held` proves that a snapshot has replaced files; return the number of replaced files.

        Call it when the pointer of `held` has *arrived* and its state is loaded, never after a commit. It
        sweeps about once per snapshot, in the caller's thread, because a worker may end before it has swept
        in the background. A failure is logged.
        """
        names = held.releasable_files(self.retain_versions)
        if names:
            failpoint("operator.before_release")
            self._try_sweep(held)
        return len(names)

    def sweep_later(self, held: Handle) -> None:
        """Sweep the directory in the background; see `sweep`. A failure is logged."""
        self._run(lambda: self._try_sweep(held))

    def garbage(self, held: Handle) -> list[str]:
        """List the files that the arrival of the pointer of `held` proves unnecessary.

        Garbage is files of failed or lost attempts, files that a snapshot replaced, and snapshots that no
        commit adopted; see rule 5 of the module. The call reads the headers of siblings, which are rare.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        """
        if held.pointer is None:
            return []
        needed = held.needed_files(self.retain_versions)
        released = held.releasable_files(self.retain_versions)
        lowest = held.pointer.version - self.retain_versions
        names: list[str] = []
        siblings: list[tuple[Pointer, int]] = []
        for facts in self.files.list():
            number = number_of(facts.name)
            if number is None or facts.name in needed:
                continue
            if number < lowest or facts.name in released:
                names.append(facts.name)
            elif number <= held.pointer.version and (pointer := pointer_of(facts.name)):
                siblings.append((pointer, facts.size_bytes))
        if names:
            for sibling, size_bytes in siblings:
                handle = self._from_head(sibling, size_bytes)
                if handle is None:
                    return []
                needed.update(link.pointer.file_name for link in handle.links)
                if handle.snapshot is not None:
                    # A successor may adopt the snapshot. All files of a snapshot have the same number.
                    number = handle.snapshot.pointer.version
                    needed.update(name for name in names if number_of(name) == number)
        return [name for name in names if name not in needed]

    def sweep(self, held: Handle) -> int:
        """Delete the `garbage`; return the number of files. Only call it once the pointer has arrived."""
        names = self.garbage(held)
        for name in names:
            trace("deleted", location=self.files.location, file=name)
            self.files.delete(name)
        return len(names)

    def read_version(self, pointer: Pointer) -> tuple[Handle, PUnit]:
        """Return the handle and the unit of the version at `pointer`, without loading the chain."""
        newest, handle = self._open(pointer)
        return handle, PUnit(newest.kind, newest.meta["state"], newest.blocks)

    def attempts_after(self, held: Handle) -> Iterator[Mapping[str, Any]]:
        """Yield the state's facts in the headers of all attempts at the version that follows `held`.

        The call lists the directory, and leaves out files that are not whole.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        """
        version = 1 + (held.pointer.version if held.pointer else 0)
        for facts in self.files.list():
            pointer = pointer_of(facts.name)
            if pointer is not None and pointer.version == version:
                read = partial(self.files.read_range, pointer.file_name)
                with contextlib.suppress(CorruptDataError, FileNotFoundError):
                    unit, _ = read_header(read, facts.size_bytes, self.files.path_of(pointer.file_name))
                    if (
                        self._handle_in(pointer, self._check(pointer, unit), facts.size_bytes).parent
                        == held.pointer
                    ):
                        yield unit.meta["state"]

    def find(self, pointer: Pointer) -> Handle:
        """Return the handle of the version at `pointer`, after checking that all files of its chain exist.

        A caller uses it before it loads a state. The call lists the directory and reads the header of the
        version's own file. If a file is missing or has the wrong length, the call reads that file as `load`
        does, which raises the error. The content of files with the right length is not checked.

        Raises
        ------
        CorruptDataError
            As for `load`, if a file is missing or cut, or its header is damaged.
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

    def _begin_snapshot(self, shown: Version, deltas_begin: int) -> Snapshot:
        """Return a new snapshot of the version `shown`, with a unique name."""
        last = Version(shown + self._snapshots.max_commits)
        number = Version(last + self.retain_versions - 1)
        return Snapshot(Pointer(number, FileId(new_id())), last, deltas_begin)

    def _adopt(self, held: Handle, version: Version) -> Handle:
        """Adopt the snapshot of `held` if the snapshot is complete; return the new handle."""
        snapshot = held.snapshot
        if snapshot is None:
            return held
        ours = snapshot.parts
        if ours is not None and not ours.done():
            # Keep it until its write has ended, because a process writes only one snapshot at a time.
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
        """Return the parts of a snapshot that another process began; None if the snapshot is not complete."""
        try:
            content = self.files.read(snapshot.file_name)
            handle = self._handle_in(snapshot, self._decode(snapshot, content), len(content))
        except FileNotFoundError:
            return None
        except PenstockError as error:
            _log.warning("a snapshot is not adopted [location=%s error=%s]", self.files.location, error)
            return None
        return handle.links[:-1]

    def _write_snapshot(self, pointer: Pointer, units: Iterator[PUnit]) -> tuple[Link, ...]:
        """Publish a snapshot's parts, and then its own file at `pointer`. Log a failure."""
        try:
            parts = self._write_parts(pointer.version, units)
            self._publish(pointer, PUnit("snapshot", {}), {}, Handle(parts, base=0), None)
        except Exception as error:  # no other thread sees the error
            _log.warning("no snapshot was written [location=%s error=%s]", self.files.location, error)
            raise
        return parts

    def _write_parts(self, number: Version, units: Iterator[PUnit]) -> tuple[Link, ...]:
        """Publish the parts of a snapshot; after a failure, delete them, because no file names them yet."""
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
        """Run `work` in the background, or in this thread if `wait` is set or there is no background."""
        if self._background is not None and not wait:
            return self._background.submit(work)
        future: Future[T] = Future()
        try:
            future.set_result(work())
        except PenstockError as error:
            future.set_exception(error)
        return future
