"""All workers know a snapshot that one worker began. No other begins one; any that commits may adopt it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.checkpointing import PUnit
from penstock.checkpointing.files import Content, FileFacts, LocalFiles
from penstock.errors import UnavailableError
from penstock.state_store.bucket_store import BucketStore, Handle, Pointer
from penstock.state_store.cache import StateCache
from penstock.state_store.snapshot_rule import SnapshotRule
from tests.checkpoints.states import DictState, Later, content_of, links_of
from tests.long_tests import long_but

COMMITS = 16
"""The number of commits that may adopt a snapshot."""

FEW_DELTAS = SnapshotRule(max_deltas=3)


class Worker:
    """A Python worker: a cache, and a thread in the background that works when it is told to."""

    def __init__(
        self, directory: Path, cache_bytes: int = 1 << 30, snapshots: SnapshotRule = FEW_DELTAS
    ) -> None:
        self.later = Later()
        self.cache: StateCache[DictState] = StateCache(cache_bytes)
        self.store = BucketStore(LocalFiles(directory), background=self.later, snapshots=snapshots)

    def commit(self, pointer: Pointer | None, changes: dict[int, bytes]) -> Handle:
        """Do what a task does."""
        found = self.cache.take(self.store, pointer, DictState)
        self.store.release(found.handle)
        for key, value in changes.items():
            found.state[key] = value
        handle = self.store.commit(found.state, found.handle)
        self.cache.put(self.store, found.state, handle)
        return handle


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    """Give three workers that take turns at one bucket, whose snapshots have parts of two keys."""
    monkeypatch.setattr(DictState, "part", 2)
    return [Worker(tmp_path / "bucket") for _ in range(3)]


def _turns(workers: list[Worker], count: int, last: Handle | None = None) -> list[Handle]:
    """Let the workers commit in turn; none sees the states of the others."""
    handles = [last or Handle()]
    for _ in range(count):
        version = len(handles[-1].links) and handles[-1].links[-1].pointer.version
        worker = workers[version % len(workers)]
        handles.append(worker.commit(handles[-1].pointer, {version: b"x"}))
    return handles[1:]


def _own_file(handle: Handle) -> str:
    """Return the name of the own file of the snapshot that was begun."""
    assert handle.snapshot is not None
    return handle.snapshot.pointer.file_name


def _work(workers: list[Worker]) -> int:
    return sum(len(worker.later.work) for worker in workers)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the names of the files that are read, found or not; nothing may be listed."""
    names: list[str] = []
    read = LocalFiles.read

    def recorded(files: LocalFiles, name: str) -> Content:
        names.append(name)
        return read(files, name)

    def refuse(files: LocalFiles) -> list[FileFacts]:
        raise AssertionError("a directory is listed")

    monkeypatch.setattr(LocalFiles, "read", recorded)
    monkeypatch.setattr(LocalFiles, "list", refuse)
    return names


def test_a_header_says_what_was_begun_until_it_is_adopted(workers: list[Worker]) -> None:
    handles = _turns(workers, 7)
    assert [handle.snapshot is not None for handle in handles] == [False] * 4 + [True] * 3
    begun = handles[4].snapshot
    assert begun is not None
    assert (begun.last, begun.pointer.version, begun.deltas_begin) == (5 + COMMITS, 5 + COMMITS + 1, 5)
    for handle in handles:
        pointer = handle.links[-1].pointer
        assert workers[0].store.read_version(pointer)[0] == handle
    assert handles[5].snapshot == handles[6].snapshot == begun
    assert _work(workers) == 1
    workers[4 % 3].later.run()
    (after,) = _turns(workers, 1, handles[6])
    assert after.snapshot is None
    assert workers[0].store.read_version(after.links[-1].pointer)[0] == after


@pytest.mark.parametrize("finder", [0, 1, 2])
def test_whoever_commits_adopts_what_is_complete_without_a_listing(
    workers: list[Worker], finder: int, reads: list[str]
) -> None:
    handles = _turns(workers, 5)
    writer = workers[4 % 3]
    writer.later.run()
    worker, own = workers[finder], _own_file(handles[-1])
    reads.clear()
    handle = worker.commit(handles[-1].pointer, {9: b"y"})
    assert reads.count(own) == (worker is not writer), "the writer knows what it wrote"
    assert (handle.base, len(handle.links)) == (3, 4)
    assert handle.superseded == tuple((6, name) for name in [own, *links_of(handles[4])])
    pointer = handle.links[-1].pointer
    assert content_of(worker.store, pointer) == dict.fromkeys(range(5), b"x") | {9: b"y"}


def test_a_writer_that_catches_up_knows_what_it_wrote(workers: list[Worker], reads: list[str]) -> None:
    handles = _turns(workers, 5)
    writer, other = workers[4 % 3], workers[5 % 3]
    held = other.commit(handles[-1].pointer, {})
    writer.later.run()
    reads.clear()
    assert writer.commit(held.pointer, {}).base == 3
    assert reads == [links_of(held)[-1]]


def test_a_writer_that_forgot_its_state_finds_its_snapshot_all_the_same(tmp_path: Path) -> None:
    worker = Worker(tmp_path / "bucket", cache_bytes=0)
    handles = _turns([worker], 5)
    worker.later.run()
    assert worker.commit(handles[-1].pointer, {}).base == 1
    assert len(worker.later.work) == 0


def test_the_looks_for_a_snapshot_are_bounded_and_the_commit_after_them_writes_the_next_one(
    workers: list[Worker], reads: list[str]
) -> None:
    handles = _turns(workers, 5)
    first = _own_file(handles[-1])
    writer = workers[4 % 3]
    writer.later = Later()  # It died, and what it began never appears.
    writer.store = BucketStore(writer.store.files, background=writer.later, snapshots=FEW_DELTAS)
    writer.cache = StateCache(1 << 30)
    reads.clear()
    handles += _turns(workers, COMMITS, handles[-1])
    assert {_own_file(handle) for handle in handles[4:]} == {first}
    assert reads.count(first) == COMMITS
    assert _work(workers) == 0
    (handle,) = _turns(workers, 1, handles[-1])
    assert reads.count(first) == COMMITS, "it cannot be adopted any more"
    assert _own_file(handle) != first
    assert _work(workers) == 0
    (handle,) = _turns(workers, 1, handle)
    assert (handle.base, len(handle.links)) == (11, 12)


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("reused", long_but([False, True], True))
def test_a_chain_is_bounded_and_garbage_goes_though_no_worker_lives_to_do_anything_in_the_background(
    tmp_path: Path, reused: bool
) -> None:
    """A worker ends with its task, or after two when it was idle."""
    longest, handle, content, usual = 0, Handle(), {}, SnapshotRule()
    worker = Worker(tmp_path / "bucket", snapshots=usual)
    for number in range(200):
        if not reused or number % 2:
            worker = Worker(tmp_path / "bucket", snapshots=usual)
        content[number % 20] = b"%d" % number
        handle = worker.commit(handle.pointer, {number % 20: content[number % 20]})
        longest = max(longest, len(handle.links) - handle.base)
    assert longest == usual.max_deltas + COMMITS + 2
    assert handle.pointer is not None
    assert content_of(worker.store, handle.pointer) == content
    # The chain, the one before it, and what the last of the snapshots that were begun and lost has left.
    assert len(worker.store.files.list()) <= 3 * longest


def test_a_snapshot_that_cannot_be_written_before_a_commit_returns_fails_no_commit(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handles = _turns(workers, 5 + COMMITS)
    publish = LocalFiles.publish

    def refuse(files: LocalFiles, name: str, content: Content) -> None:
        if len(list(Path(files.location).iterdir())) > 5 + COMMITS:
            raise UnavailableError("cannot write state", reason="no space")
        publish(files, name, content)

    others = [Worker(Path(workers[0].store.files.location)) for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "publish", refuse)
        handle = others[0].commit(handles[-1].pointer, {9: b"y"})
    assert "no snapshot was written" in caplog.text
    assert len(others[0].commit(handle.pointer, {}).links) == 5 + COMMITS + 2
    assert len(others[0].later.work) == 1, "it knows of the failure, and tries again"
    assert len(others[1].commit(handle.pointer, {}).links) == 5 + COMMITS + 2


def test_a_snapshot_is_adopted_by_the_last_commit_that_may_and_not_later(workers: list[Worker]) -> None:
    handles = _turns(workers, 5 + COMMITS)
    assert handles[4].snapshot is not None
    assert handles[4].snapshot.last == 5 + COMMITS
    workers[4 % 3].later.run()
    for held, base in ((handles[-2], 3), (handles[-1], 1)):
        other = Worker(Path(workers[0].store.files.location))
        assert other.commit(held.pointer, {}).base == base


def test_a_damaged_snapshot_is_not_adopted_and_fails_no_commit(
    workers: list[Worker], caplog: pytest.LogCaptureFixture
) -> None:
    handles = _turns(workers, 5)
    writer, other = workers[4 % 3], workers[5 % 3]
    writer.later.run()
    path = Path(other.store.files.path_of(_own_file(handles[-1])))
    path.write_bytes(path.read_bytes()[:-1])
    handle = other.commit(handles[-1].pointer, {})
    assert len(handle.links) == 6
    assert handle.snapshot == handles[-1].snapshot
    assert "a snapshot is not adopted" in caplog.text
    assert str(path) in caplog.text


def test_parts_stay_when_their_snapshot_may_be_there_although_its_writer_was_told_otherwise(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last reply was lost: the writer believes that its snapshot failed, but others may adopt it."""
    handles = _turns(workers, 5)
    own, publish = _own_file(handles[-1]), LocalFiles.publish

    def lost(files: LocalFiles, name: str, content: Content) -> None:
        publish(files, name, content)
        if name == own:
            raise UnavailableError("cannot write state", reason="the answer was lost")

    writer, other = workers[4 % 3], workers[5 % 3]
    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "publish", lost)
        writer.later.run()
    adopted = other.commit(handles[-1].pointer, {})
    assert adopted.base == 3
    again = writer.commit(handles[-1].pointer, {})
    assert _own_file(again) != own, "it knows of the failure, and tries again"
    for handle in (adopted, again):
        assert len(content_of(other.store, handle.links[-1].pointer)) == 5


class SlowState(DictState):
    """An event happens between the first part of a snapshot and the others."""

    meanwhile: Callable[[], None]

    def snapshot(self) -> Iterator[PUnit]:
        units = super().snapshot()

        def slow() -> Iterator[PUnit]:
            yield next(units)
            self.meanwhile()
            yield from units

        return slow()


@pytest.mark.parametrize("retain", [1, 2, 3])
@pytest.mark.parametrize("passed", range(8))
def test_parts_stay_as_long_as_a_version_is_retained_upon_which_they_may_be_adopted(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch, passed: int, retain: int
) -> None:
    """A writer stalls between two parts while others commit and sweep; then the checkpoint is set back."""
    rule = SnapshotRule(max_deltas=3, max_commits=3)

    def bucket_store(background: Later | None = None) -> BucketStore:
        files = workers[0].store.files
        return BucketStore(files, retain_versions=retain, background=background, snapshots=rule)

    store = bucket_store()
    state, handles = SlowState(), [Handle()]

    def others_go_on() -> None:
        other = bucket_store(Later())
        follower = DictState()
        handle = other.load(handles[-1].links[-1].pointer, follower)
        for _ in range(passed):
            other.sweep(handle)
            handle = other.commit(follower, handle)
            handles.append(handle)

    monkeypatch.setattr(state, "meanwhile", others_go_on, raising=False)
    for version in range(1, 6):
        state[version] = b"x"
        if version == 5:
            break
        handles.append(store.commit(state, handles[-1]))
    later = Later()
    handles.append(bucket_store(later).commit(state, handles[-1]))
    later.run()
    arrived = len(handles) - 1 - (passed > 0)
    for held in handles[max(arrived - retain + 1, 1) :]:
        again = DictState()
        handle = store.load(held.links[-1].pointer, again)
        pointer = store.commit(again, handle).links[-1].pointer
        assert set(content_of(store, pointer)) == set(range(1, min(pointer.version, 6)))


@pytest.mark.parametrize("every", long_but([1, 2, 5, 15], 2))
def test_workers_that_take_turns_write_no_more_than_one_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """A state of 200 kB changes by 10 kB in each of 60 batches; snapshots are written after each `every`."""
    written: list[int] = []
    publish = LocalFiles.publish

    def counted(files: LocalFiles, name: str, content: Content) -> None:
        written.append(len(content))
        publish(files, name, content)

    monkeypatch.setattr(LocalFiles, "publish", counted)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    sums = {}
    for count, cache_bytes in ((1, 1 << 30), (1, 0), (4, 1 << 30), (4, 0)):
        written.clear()
        workers = [
            Worker(tmp_path / f"{count}-{cache_bytes}", cache_bytes, SnapshotRule()) for _ in range(count)
        ]
        handle = Handle()
        for batch in range(60):
            keys = range(200) if batch == 0 else range(10 * batch % 200, 10 * batch % 200 + 10)
            changes = dict.fromkeys(keys, bytes([batch]) * 1000)
            handle = workers[batch % count].commit(handle.pointer, changes)
            if batch % every == 0:
                for worker in workers:
                    worker.later.run()
        sums[count, cache_bytes] = sum(written)
    assert len(set(sums.values())) == 1, sums
    assert sums[4, 0] < 200_000 + 3 * 60 * 10_000
