"""Survey a bucket without Spark: find its versions, chains, sizes, damage and garbage.

`penstock.state_store.location.find_operators` finds the buckets, `survey_bucket` examines a bucket, and
`delete_garbage` deletes its garbage.

The committed version is stored only in the checkpoint (`penstock.spark_ext.state_reader.committed`). With the
checkpoint's pointers a survey is exact. The files alone prove less. A task writes version w only after the
pointer to w - 1 has arrived, which proves that w - 1 was committed (`bucket_store`). The header of w names
that pointer as its parent. So the newest *proven* pointer is the parent of any file of the highest version.
Files of the highest version itself may be committed, in flight or lost. Also, a version that was once
committed is not always committed now: after a checkpoint is restored to an older state, the first version
that the query commits looks like a lost attempt.

Invariants:

1. If the committed pointer is known, garbage is the files that a task would find unnecessary when this
   pointer arrives: `BucketStore.garbage`.
2. If the committed pointer is not known, the checkpoint may point at any loadable version. A file is garbage
   if no loadable version has it in its chain and its number is at most the lowest loadable version. A task
   that continues from a loadable version writes higher numbers, and adopts no snapshot with such a low
   number.
3. Garbage stays garbage, because later versions name only files that earlier versions name, or files with
   higher numbers. So garbage may be deleted at any later time, even while the query runs. Files of running
   attempts stay.
4. Nothing is deleted from a bucket if the committed version cannot be loaded. Without a committed pointer,
   nothing is deleted if any file is damaged or one of the newest versions lacks a file: then the loadable
   versions do not show which files are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.checkpointing import PUnit
from penstock.checkpointing.files import FileFacts, Files
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.state_store.bucket_store import (
    RETAIN_VERSIONS,
    BucketStore,
    Handle,
    Pointer,
    Version,
    number_of,
    pointer_of,
)
from penstock.state_store.location import Damage, names_in

__all__ = ["BucketSurvey", "Chain", "delete_garbage", "likely_pointer", "survey_bucket"]

_MAX_ATTEMPTS = 5
"""The number of attempts to get a consistent view of a bucket while the query deletes files."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The files that a load of one version reads.

    Attributes
    ----------
    base_files, base_bytes : int
        The number and the size of the base's files: the parts of a snapshot, or the bucket's first delta.
    deltas, delta_bytes : int
        The number and the size of the deltas after the base, including the version's own file.
    """

    base_files: int
    base_bytes: int
    deltas: int
    delta_bytes: int


@dataclass(frozen=True, slots=True)
class BucketSurvey:
    """The result of the survey of one bucket.

    Attributes
    ----------
    location : str
        The bucket's directory, for messages.
    files, size_bytes : int
        The number and the size of all files on disk, including unfinished files.
    written_us : int or None
        The newest modification time, as the file system reports it.
    newest : tuple of Pointer
        The readable files of the highest version, one for each attempt at the version.
    proven : Pointer or None
        The committed pointer, if given; otherwise the newest pointer that the files prove to be committed, or
        None.
    likely : Pointer or None
        The most likely current version: the committed pointer, if given; otherwise the file of the highest
        version, if there is only one; otherwise `proven`. `chain`, `rows`, `waiting` and `expired` describe
        this version.
    chain : Chain or None
        The files that a load of `likely` reads.
    rows, waiting, expired : int or None
        The number of keys, of waiting keys, and of keys that were removed after their time to live. A number
        that the operator does not store is None.
    versions : tuple of Version
        The versions up to `proven` that can be loaded and that garbage collection keeps, oldest first.
    garbage : tuple of FileFacts
        The files that garbage collection deletes.
    withheld : str or None
        The reason why garbage collection deletes nothing although there may be garbage.
    damage : tuple of Damage
        Files that cannot be read, and files that are missing.
    """

    location: str
    files: int = 0
    size_bytes: int = 0
    written_us: int | None = None
    newest: tuple[Pointer, ...] = ()
    proven: Pointer | None = None
    likely: Pointer | None = None
    chain: Chain | None = None
    rows: int | None = None
    waiting: int | None = None
    expired: int | None = None
    versions: tuple[Version, ...] = ()
    garbage: tuple[FileFacts, ...] = ()
    withheld: str | None = None
    damage: tuple[Damage, ...] = ()

    @property
    def name(self) -> str:
        """The name of the bucket's directory."""
        return names_in(self.location)[-1]

    @property
    def garbage_bytes(self) -> int:
        """The number of bytes that garbage collection frees."""
        return sum(facts.size_bytes for facts in self.garbage)


def survey_bucket(
    bucket: Files, *, committed: Pointer | None = None, retain_versions: int = RETAIN_VERSIONS
) -> BucketSurvey:
    """Survey one bucket: read and check all of its files, one after the other.

    Damage is a finding, not an error. The query may be running. Files that the query deletes meanwhile are
    not reported as missing.

    Parameters
    ----------
    bucket : Files
        The bucket's directory.
    committed : Pointer, optional
        The bucket's pointer in the newest committed micro-batch. If not given, every loadable version is
        kept, because the checkpoint may point at any of them.
    retain_versions : int
        The number of versions up to `committed` that garbage collection keeps loadable.

    Raises
    ------
    InvalidUsageError
        If less than one version is retained.
    UnavailableError
        If the file system refuses.
    """
    store = BucketStore(bucket, retain_versions=retain_versions)
    view = _read_view(store, _list(bucket), committed)
    for _ in range(_MAX_ATTEMPTS):
        if not view.unreadable:
            break
        after = _list(bucket)
        if view.unreadable.keys() <= after.keys() or after.keys() == view.facts.keys():
            break
        view = _read_view(store, after, committed)
    else:
        # The query deletes files faster than the survey reads, so missing files are deleted files.
        present = _list(bucket)
        view.unreadable = {name: error for name, error in view.unreadable.items() if name in present}
    return _survey(store, view, committed)


def delete_garbage(bucket: Files, survey: BucketSurvey) -> Iterator[FileFacts]:
    """Delete the garbage in `survey`; yield each file once it is deleted.

    `survey` may be old, and the query may run; see invariant 3. If the caller stops early, only the yielded
    files are deleted.

    Raises
    ------
    UnavailableError
        If the file system refuses.
    """
    for facts in survey.garbage:
        bucket.delete(facts.name)
        yield facts


def likely_pointer(bucket: Files) -> Pointer | None:
    """Return the most likely current pointer of `bucket`; None if no version is proven.

    The likely pointer is the file of the highest version if only one attempt wrote it, and otherwise the
    newest proven pointer. Only the files with the highest numbers are read.

    Raises
    ------
    CorruptDataError
        If one of these files is damaged.
    InvalidUsageError
        If the attempts at the highest version have different parents.
    UnavailableError
        If the file system refuses.
    """
    store = BucketStore(bucket)
    for _ in range(_MAX_ATTEMPTS):
        handles, damaged = _newest(store, _list(bucket))
        if damaged is None:
            break
        name, error = damaged
        if name in _list(bucket):
            raise error
    else:
        raise CorruptDataError(
            "the bucket changes faster than it can be read", file=bucket.location, hint="try again"
        )
    if len(handles) == 1:
        return next(iter(handles))
    parents = {handle.parent for handle in handles.values()}
    if len(parents) > 1:
        raise InvalidUsageError(
            "attempts of the newest version have different parents",
            location=bucket.location,
            hint="pass the checkpoint, which shows what was committed",
        )
    return parents.pop() if parents else None


@dataclass(slots=True)
class _BucketView:
    """The result of one pass over all files of a bucket."""

    facts: dict[str, FileFacts]
    unreadable: dict[str, CorruptDataError] = field(default_factory=dict)
    handles: dict[Pointer, Handle] = field(default_factory=dict)
    """The handle of each version."""
    meta: dict[Pointer, Mapping[str, Any]] = field(default_factory=dict)
    """The metadata in the file of each version."""


def _list(bucket: Files) -> dict[str, FileFacts]:
    return {facts.name: facts for facts in bucket.list() if not facts.is_directory}


def _open(store: BucketStore, pointer: Pointer) -> tuple[Handle, PUnit]:
    """Return the handle of the version at `pointer`, and the unit in its file.

    `pointer` may also point to a part of a snapshot.
    """
    handle, unit = store.read_version(pointer)
    if handle.parent is not None and handle.parent.version != pointer.version - 1:
        path = store.files.path_of(pointer.file_name)
        raise CorruptDataError("the file's parent is not the previous version", file=path)
    return handle, unit


def _read_view(store: BucketStore, facts: dict[str, FileFacts], committed: Pointer | None) -> _BucketView:
    view = _BucketView(facts)
    for name in facts:
        pointer = pointer_of(name)
        if pointer is None:
            continue
        try:
            handle, unit = _open(store, pointer)
        except CorruptDataError as error:
            view.unreadable[name] = error
            continue
        if handle.base:
            view.handles[pointer] = handle
            view.meta[pointer] = unit.meta
    # Files outside of the committed lineage need not be whole.
    for pointer in [committed] if committed else [_find_proven(view.handles), *_highest(view.handles)]:
        if pointer in view.handles:
            _note_missing(store, view, [link.pointer.file_name for link in view.handles[pointer].links])
        elif pointer is not None:
            _note_missing(store, view, [pointer.file_name])
    return view


def _note_missing(store: BucketStore, view: _BucketView, names: list[str]) -> None:
    for name in names:
        if name not in view.facts and name not in view.unreadable:
            path = store.files.path_of(name)
            view.unreadable[name] = CorruptDataError("a state file is missing", file=path)


def _survey(store: BucketStore, view: _BucketView, committed: Pointer | None) -> BucketSurvey:
    newest = _highest(view.handles)
    proven = committed or _find_proven(view.handles)
    likely = newest[0] if len(newest) == 1 and committed is None else proven
    handle = view.handles.get(likely) if likely else None
    meta = view.meta[likely] if likely and handle else {}
    loadable = _loadable(view)
    garbage, withheld = _garbage(store, view, loadable, committed)
    names = {facts.name for facts in garbage}
    return BucketSurvey(
        location=store.files.location,
        files=len(view.facts),
        size_bytes=sum(facts.size_bytes for facts in view.facts.values()),
        written_us=max((facts.written_us for facts in view.facts.values() if facts.written_us), default=None),
        newest=tuple(newest),
        proven=proven,
        likely=likely,
        chain=_chain(handle) if handle else None,
        rows=_count(meta, "rows"),
        waiting=_count(meta, "waiting"),
        expired=_count(meta, "expired"),
        versions=tuple(
            sorted(
                {
                    pointer.version
                    for pointer, chain in loadable.items()
                    if proven is not None and pointer.version <= proven.version and not chain & names
                }
            )
        ),
        garbage=garbage,
        withheld=withheld,
        damage=tuple(
            Damage(store.files.path_of(name), error.fact) for name, error in sorted(view.unreadable.items())
        ),
    )


def _loadable(view: _BucketView) -> dict[Pointer, set[str]]:
    """Return the versions with complete chains, and the names in these chains."""
    readable = view.facts.keys() - view.unreadable.keys()
    chains = {p: {link.pointer.file_name for link in at.links} for p, at in view.handles.items()}
    return {pointer: chain for pointer, chain in chains.items() if chain <= readable}


def _garbage(
    store: BucketStore,
    view: _BucketView,
    loadable: Mapping[Pointer, set[str]],
    committed: Pointer | None,
) -> tuple[tuple[FileFacts, ...], str | None]:
    """Return the files that garbage collection deletes, or the reason why it deletes nothing."""
    if committed is not None:
        if committed not in loadable:
            return (), f"the committed version, {committed.version}, cannot be loaded"
        names = store.garbage(view.handles[committed])
        return tuple(view.facts[name] for name in names if name in view.facts), None
    if view.unreadable:
        return (), "files are damaged or missing, and only the checkpoint says whether they are needed"
    lowest = min((pointer.version for pointer in loadable), default=0)
    needed = set().union(*loadable.values())
    return tuple(
        facts
        for name, facts in view.facts.items()
        if (number_of(name) or lowest + 1) <= lowest and name not in needed
    ), None


def _highest(handles: Mapping[Pointer, Handle]) -> list[Pointer]:
    highest = max((pointer.version for pointer in handles), default=0)
    return sorted((p for p in handles if p.version == highest), key=lambda pointer: pointer.file_id)


def _find_proven(handles: Mapping[Pointer, Handle]) -> Pointer | None:
    """Return the newest pointer whose commit the files prove.

    Return None if the files prove no commit, or contradict each other.
    """
    parents = {handles[pointer].parent for pointer in _highest(handles)}
    return parents.pop() if len(parents) == 1 else None


def _newest(
    store: BucketStore, facts: Mapping[str, FileFacts]
) -> tuple[dict[Pointer, Handle], tuple[str, CorruptDataError] | None]:
    """Return the handles of the highest version, and the first unreadable file."""
    pointers = [pointer for name in facts if (pointer := pointer_of(name)) is not None]
    handles: dict[Pointer, Handle] = {}
    for pointer in sorted(pointers, key=lambda pointer: pointer.version, reverse=True):
        if handles and pointer.version < next(iter(handles)).version:
            break
        try:
            handle, _ = _open(store, pointer)
        except CorruptDataError as error:
            return handles, (pointer.file_name, error)
        if handle.base:
            handles[pointer] = handle
    return handles, None


def _chain(handle: Handle) -> Chain:
    base, deltas = handle.links[: handle.base], handle.links[handle.base :]
    return Chain(
        len(base),
        sum(link.size_bytes for link in base),
        len(deltas),
        sum(link.size_bytes for link in deltas),
    )


def _count(meta: Mapping[str, Any], name: str) -> int | None:
    value = meta.get(name)
    return value if isinstance(value, int) else None
