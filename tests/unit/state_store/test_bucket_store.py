"""A bucket's files: named by version and attempt, linked by headers, deleted when surely not needed."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from penstock import _durable
from penstock.checkpointing import PUnit, decode, encode
from penstock.checkpointing.files import LocalFiles
from penstock.errors import CorruptDataError, InvalidUsageError, UnavailableError
from penstock.state_store.bucket_store import (
    RETAIN_VERSIONS,
    BucketStore,
    FileId,
    Handle,
    Pointer,
    Version,
    number_of,
)
from penstock.state_store.snapshot_rule import SnapshotRule
from tests.checkpoints.states import DictState, Later, content_of, links_of, names_of
from tests.golden import make_fixtures


@pytest.fixture
def store(tmp_path: Path) -> BucketStore:
    return BucketStore(LocalFiles(tmp_path / "query" / "operator" / "00000"))


def _directory(store: BucketStore) -> Path:
    return Path(store.files.location)


def _ahead(store: BucketStore, handle: Handle) -> set[str]:
    """Return the files that an attempt or a snapshot in flight may have written."""
    version = handle.links[-1].pointer.version
    return {name for name in names_of(store) if (number_of(name) or 0) > version}


def _commits(store: BucketStore, count: int, size: int = 10) -> tuple[DictState, list[Handle]]:
    """Commit `count` versions, as tasks do: each releases what its pointer proves needless."""
    state, handles = DictState(), [Handle()]
    for number in range(count):
        store.release(handles[-1])
        state[number] = bytes([number]) * size
        handles.append(store.commit(state, handles[-1]))
    return state, handles[1:]


def _header(store: BucketStore, handle: Handle) -> PUnit:
    path = _directory(store) / links_of(handle)[-1]
    return decode(path.read_bytes(), path)


def test_versions_are_deltas_each_upon_those_before(store: BucketStore) -> None:
    _, handles = _commits(store, 3)
    assert [_header(store, handle).kind for handle in handles] == ["delta", "delta", "delta"]
    assert [handle.pointer.version for handle in handles if handle.pointer] == [1, 2, 3]
    assert [len(links_of(handle)) for handle in handles] == [1, 2, 3]
    assert [handle.parent for handle in handles] == [None, *(handle.pointer for handle in handles[:2])]


def test_the_chain_is_in_every_header_with_sizes(store: BucketStore) -> None:
    _, handles = _commits(store, 3)
    meta = _header(store, handles[-1]).meta
    first, second = (handle.links[-1] for handle in handles[:2])
    assert meta["chain"] == [
        [1, first.pointer.file_id, first.size_bytes],
        [2, second.pointer.file_id, second.size_bytes],
    ]
    for handle in handles:
        path = _directory(store) / links_of(handle)[-1]
        assert path.stat().st_size == handle.links[-1].size_bytes


def test_a_loaded_handle_equals_the_committed_one(store: BucketStore) -> None:
    state, handles = _commits(store, 4)
    for handle in handles:
        assert handle.pointer is not None
        assert store.load(handle.pointer, DictState()) == handle
    assert content_of(store, handles[-1].links[-1].pointer) == state.content


def test_the_empty_state_has_no_file_and_no_pointer(store: BucketStore) -> None:
    assert Handle().pointer is None
    assert store.release(Handle()) == 0
    assert not _directory(store).exists()


def test_a_snapshot_takes_the_place_of_the_chain_when_the_deltas_outgrow_the_base(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BucketStore(store.files, snapshots=SnapshotRule(min_delta_bytes=0))
    monkeypatch.setattr(DictState, "part", 2)
    draw = random.Random(1)  # nothing that can be compressed
    state = DictState({0: draw.randbytes(10_000)})
    handle = store.commit(state, Handle())
    for number in range(1, 4):
        state[number] = draw.randbytes(4_000)
        handle = store.commit(state, handle)
        assert len(handle.links) == number + 1
    assert handle.snapshot is not None
    shown = dict(state.content)
    state[4] = b"z"
    handle = store.commit(state, handle)
    assert (len(handle.links), handle.base) == (3, 2), "two parts, and the delta since"
    assert _header(store, handle).kind == "delta"
    assert content_of(store, handle.links[-1].pointer) == shown | {4: b"z"}


def test_small_states_get_no_snapshot_until_the_chain_is_long(store: BucketStore) -> None:
    store = BucketStore(store.files, snapshots=SnapshotRule(max_deltas=5))
    _, handles = _commits(store, 14)
    assert [len(handle.links) for handle in handles] == [1, 2, 3, 4, 5, 6, 7, 2, 3, 4, 5, 6, 7, 2]


@pytest.mark.parametrize("commits", [0, 1, 5, 15, 16, 20])
def test_a_snapshot_may_be_written_while_commits_go_on(store: BucketStore, commits: int) -> None:
    later = Later()
    store = BucketStore(store.files, background=later, snapshots=SnapshotRule(max_deltas=3))
    state, handles = _commits(store, 5)
    assert len(later.work) == 1
    handle = handles[-1]
    for number in range(commits):
        store.release(handle)
        state[100 + number] = b"meanwhile"
        handle = store.commit(state, handle)
        assert len(handle.links) == 6 + number
    assert len(later.work) == 1, "one snapshot at a time"
    later.run()
    state[99] = b"after"
    handle = store.commit(state, handle)
    assert handle.pointer is not None
    # The snapshot of version 5 is of use to versions up to 5 + 16.
    adopted = commits < 16
    assert len(handle.links) == (2 + commits if adopted else 6 + commits)
    assert content_of(store, handle.pointer) == state.content
    store.release(handle)
    for _ in range(20):
        store.sweep(handle)
        assert content_of(store, handle.links[-1].pointer) == state.content
        handle = store.commit(state, handle)
        later.run()
    store.sweep(handle)
    assert names_of(store) == handle.needed_files(RETAIN_VERSIONS) | _ahead(store, handle)


def test_a_snapshot_that_cannot_be_written_fails_no_commit_and_leaves_nothing(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(DictState, "part", 2)
    later = Later()
    store = BucketStore(store.files, background=later, snapshots=SnapshotRule(max_deltas=3))
    state, handles = _commits(store, 5)
    names, link = names_of(store), os.link
    calls: list[Any] = []

    def refuse(*paths: Any) -> Any:
        calls.append(paths)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return link(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        later.run()
    assert len(calls) == 2
    assert names_of(store) == names
    assert "No space left" in caplog.text
    handle = store.commit(state, handles[-1])
    assert len(handle.links) == 6
    assert len(later.work) == 1, "it is tried again"
    later.run()
    assert store.commit(state, handle).base == 3


def test_release_deletes_what_a_snapshot_superseded_and_what_no_attempt_can_need(store: BucketStore) -> None:
    store = BucketStore(store.files, snapshots=SnapshotRule(max_deltas=3))
    state, handles = _commits(store, 6)
    assert handles[4].snapshot is not None
    old = {*links_of(handles[4]), handles[4].snapshot.pointer.file_name}
    assert len(handles[5].links) == 2
    handle = handles[5]
    orphan = links_of(store.commit(DictState({99: b"other attempt"}), handle))[-1]
    assert number_of(orphan) == 7
    for version in range(6, 12):
        late = links_of(store.commit(DictState({99: b"in flight"}), handle))[-1]
        released = store.release(handle)
        assert released == (len(old) if version == 6 + RETAIN_VERSIONS else 0), version
        if released:
            assert not old & names_of(store)
            assert store.release(handle) == len(old), "a task that is tried again may release again"
            assert orphan in names_of(store), "it may be committed, too"
        assert late in names_of(store)
        handle = store.commit(state, handle)
        assert set(links_of(handle)) <= names_of(store)
    store.sweep(handle)
    assert orphan not in names_of(store), "no recent version follows it"
    assert handle.needed_files(RETAIN_VERSIONS) <= names_of(store)


@pytest.mark.parametrize("first", [0, 1])
def test_attempts_at_a_version_that_are_all_committed_stay_until_no_recent_version_follows_them(
    store: BucketStore, first: int
) -> None:
    """Each of two executors has its own lineage in memory; both lineages are on disk."""
    later = [Later(), Later()]
    stores = [
        BucketStore(store.files, background=work, snapshots=SnapshotRule(max_deltas=2)) for work in later
    ]
    states = [DictState(), DictState()]
    held = [stores[0].commit(states[0], Handle())] * 2
    stores[1].load(held[0].links[-1].pointer, states[1])
    for number in range(12):
        for one in (first, 1 - first):
            stores[one].release(held[one])
            stores[one].sweep(held[one])
            states[one][number] = bytes([one])
            held[one] = stores[one].commit(states[one], held[one])
            if number % 3 == one:
                later[one].run()
            for handle, state in zip(held, states, strict=True):
                assert content_of(store, handle.links[-1].pointer) == state.content
    lost = set(links_of(held[1 - first]))
    assert not lost & set(links_of(held[first])), "each has a snapshot of its own"
    version = held[first].links[-1].pointer.version
    for _ in range(RETAIN_VERSIONS + 1):
        assert content_of(store, held[1 - first].links[-1].pointer) == states[1 - first].content
        held[first] = stores[first].commit(states[first], held[first])
        stores[first].sweep(held[first])
    assert all((number_of(name) or 0) > version for name in lost & names_of(store)), "but for a snapshot"


def test_a_snapshot_stays_that_a_committed_sibling_may_yet_adopt(store: BucketStore) -> None:
    """The snapshot is complete, and the other lineage uses it, but its writer does not know that yet."""
    later, rule = Later(), SnapshotRule(max_deltas=1)
    store = BucketStore(store.files, snapshots=rule)
    writer = BucketStore(store.files, background=later, snapshots=rule)
    state, handles = _commits(writer, 3)
    copy, held = DictState(), handles[-1]
    other = store.load(held.links[-1].pointer, copy)
    ((future, write),) = later.work
    parts = write()
    for _ in range(8):
        store.release(other)
        other = store.commit(copy, other)
        held = writer.commit(state, held)
    future.set_result(parts)
    adopted = writer.commit(state, held)
    assert adopted.links[0] == parts[0]
    assert content_of(store, adopted.links[-1].pointer) == state.content


@pytest.mark.parametrize("on_disk", [0, 1])
def test_spark_may_go_on_from_memory_and_then_load_the_other_attempt_from_disk(
    store: BucketStore, on_disk: int
) -> None:
    """The executor goes on, and dies before its batch is committed: the other attempt arrives."""
    state, handles = _commits(store, 3)
    attempts = []
    for name in (b"first", b"second"):
        copy = DictState()
        held = store.load(handles[-1].links[-1].pointer, copy)
        copy[50] = name
        attempts.append((store.commit(copy, held), copy))
    (memory, state), (disk, other) = attempts[1 - on_disk], attempts[on_disk]
    for _ in range(3):  # each time another executor that has it dies
        store.sweep(memory)
        store.commit(state, memory)
        assert content_of(store, disk.links[-1].pointer) == other.content
        store.sweep(disk)
        assert content_of(store, memory.links[-1].pointer) == state.content


def test_a_sweep_takes_unfinished_files_and_leaves_what_it_does_not_know(store: BucketStore) -> None:
    _, handles = _commits(store, 4 + RETAIN_VERSIONS)
    directory = _directory(store)
    name = f"{3:012d}-{'a' * 32}.punit"
    (directory / f".{name}.{'b' * 32}.tmp").write_bytes(b"torn")
    (directory / name).write_bytes(b"torn")
    kept = {
        "notes.txt",
        "3-x.punit",
        f".{4:012d}-{'a' * 32}.punit.{'b' * 32}.tmp",
        f"{4 + RETAIN_VERSIONS + 1:012d}-{'a' * 32}.punit",
    }
    for other in kept:
        (directory / other).write_bytes(b"")
    assert sorted(store.garbage(handles[-1])) == sorted([name, f".{name}.{'b' * 32}.tmp"])
    assert store.sweep(handles[-1]) == 2
    assert names_of(store) == set(links_of(handles[-1])) | kept
    assert store.garbage(Handle()) == []


@pytest.mark.parametrize("retain", [1, 2, 3, 5])
@pytest.mark.parametrize("every", [0, 1, 2, 7])
def test_exactly_the_retained_versions_and_the_one_before_stay_loadable_after_each_sweep(
    store: BucketStore, retain: int, every: int
) -> None:
    store = BucketStore(store.files, retain_versions=retain, snapshots=SnapshotRule(max_deltas=every))
    state, handle = DictState(), Handle()
    expected: list[tuple[Handle, dict[int, bytes]]] = []
    for number in range(20):
        store.release(handle)
        store.sweep(handle)
        for version, content in expected[-retain - 1 :]:
            assert content_of(store, version.links[-1].pointer) == content
        needed = {name for version, _ in expected[-retain - 1 :] for name in links_of(version)}
        left = names_of(store) - needed
        # A snapshot's own file has a number of its own.
        assert all((number_of(name) or 0) >= number - retain for name in left)
        state[number % 7] = bytes([number])
        handle = store.commit(state, handle)
        expected.append((handle, dict(state.content)))


def test_less_than_one_retained_version_is_refused(store: BucketStore) -> None:
    with pytest.raises(InvalidUsageError, match="retain_versions"):
        BucketStore(store.files, retain_versions=0)


@pytest.mark.parametrize("winner", [0, 1])
def test_of_two_attempts_at_a_version_either_may_win(store: BucketStore, winner: int) -> None:
    _, handles = _commits(store, 2)
    attempts = []
    for name in (b"first", b"second"):
        state = DictState()
        held = store.load(handles[-1].links[-1].pointer, state)
        state[50] = name
        attempts.append((store.commit(state, held), state))
    (won, state), (lost, other) = attempts[winner], attempts[1 - winner]
    assert won.pointer is not None
    assert lost.pointer is not None
    assert won.pointer.version == lost.pointer.version == 3
    assert won.pointer.file_name != lost.pointer.file_name
    state[51] = b"next"
    final = store.commit(state, won)
    assert content_of(store, final.links[-1].pointer) == state.content
    assert content_of(store, lost.pointer) == other.content
    assert lost.pointer.file_name not in links_of(final)


def test_catching_up_reads_only_the_deltas_between(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, handles = _commits(store, 6)
    follower = DictState()
    held = store.load(handles[2].links[-1].pointer, follower)
    read: list[str] = []
    real = _durable.read

    def recorded(path: Path) -> bytes | memoryview:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(_durable, "read", recorded)
    caught_up = store.catch_up(handles[5].links[-1].pointer, follower, held)
    assert caught_up == handles[5]
    assert sorted(read) == links_of(handles[5])[3:]
    assert follower.content == content_of(store, handles[5].links[-1].pointer)


def test_catching_up_to_a_chain_without_the_held_version_changes_nothing(store: BucketStore) -> None:
    store = BucketStore(store.files, snapshots=SnapshotRule(max_deltas=1))
    _, handles = _commits(store, 4)
    assert len(handles[3].links) == 2
    follower = DictState()
    held = store.load(handles[1].links[-1].pointer, follower)
    before = dict(follower.content)
    assert store.catch_up(handles[3].links[-1].pointer, follower, held) is None
    assert follower.content == before
    ahead = store.commit(follower, held)
    assert store.catch_up(handles[0].links[-1].pointer, follower, ahead) is None


def test_catching_up_to_where_one_stands_is_nothing(store: BucketStore) -> None:
    state, handles = _commits(store, 2)
    assert store.catch_up(handles[1].links[-1].pointer, state, handles[1]) == handles[1]


def test_a_damaged_delta_leaves_the_state_that_should_catch_up_untouched(store: BucketStore) -> None:
    _, handles = _commits(store, 4)
    follower = DictState()
    held = store.load(handles[0].links[-1].pointer, follower)
    before = dict(follower.content)
    path = _directory(store) / links_of(handles[3])[2]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptDataError) as caught:
        store.catch_up(handles[3].links[-1].pointer, follower, held)
    assert caught.value.context["file"] == str(path)
    assert follower.content == before


def test_a_missing_file_is_named_with_a_hint(store: BucketStore) -> None:
    pointer = Pointer(Version(7), FileId("0" * 32))
    with pytest.raises(CorruptDataError, match="Hint") as caught:
        store.load(pointer, DictState())
    assert caught.value.context["file"] == str(_directory(store) / f"000000000007-{'0' * 32}.punit")


def test_a_renamed_file_is_not_taken_for_another(store: BucketStore) -> None:
    _, handles = _commits(store, 2)
    pointer = Pointer(Version(2), FileId("f" * 32))
    (_directory(store) / links_of(handles[1])[-1]).rename(_directory(store) / pointer.file_name)
    with pytest.raises(CorruptDataError, match="another version") as caught:
        store.load(pointer, DictState())
    assert caught.value.context["file"] == str(_directory(store) / pointer.file_name)


def test_a_p_unit_of_another_kind_is_not_taken_for_state(store: BucketStore) -> None:
    _, handles = _commits(store, 2)
    path = _directory(store) / links_of(handles[1])[0]
    for unit in (PUnit("other", {}), make_fixtures.p_unit(), PUnit("other", {"version": 1, "file_id": 5})):
        path.write_bytes(encode(unit))
        with pytest.raises(CorruptDataError) as caught:
            store.load(handles[1].links[-1].pointer, DictState())
        assert caught.value.context["file"] == str(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", None), ("state", 7), ("chain", None), ("chain", 7), ("chain", [[1, "x"]]),
        ("chain", ["xyz"]), ("chain", [[-1, "x", 5]]), ("chain", [[1, "../x", 5]]), ("superseded", 7),
        ("superseded", [[1, "/x"]]), ("superseded", [[1, "../000000000001-x.punit"]]),
        ("base", float("inf")), ("base", []),
        ("parent", [1]), ("parent", "x"), ("snapshot", [1, "x"]), ("snapshot", [3, "../x", 4, 5]),
    ],
)  # fmt: skip
def test_a_header_that_nothing_writes_is_refused_though_its_checksum_is_right(
    store: BucketStore, name: str, value: object
) -> None:
    state, handles = _commits(store, 2)
    pointer = handles[1].links[-1].pointer
    path = _directory(store) / pointer.file_name
    unit = decode(path.read_bytes(), path)
    path.write_bytes(encode(PUnit(unit.kind, {**unit.meta, name: value}, unit.blocks)))
    with pytest.raises(CorruptDataError) as caught:
        store.load(pointer, DictState())
    assert caught.value.context["file"] == str(path)
    assert store.commit(state, handles[1]).links[-1].pointer.version == 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_a_disk_that_refuses_a_commit_leaves_the_version_before(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    state, handles = _commits(store, 3)
    content, names = dict(state.content), names_of(store)

    def refuse(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    state[99] = b"lost"
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(UnavailableError) as caught:
            store.commit(state, handles[-1])
    assert caught.value.context["reason"] == os.strerror(number)
    assert names_of(store) == names
    again = DictState()
    held = store.load(handles[-1].links[-1].pointer, again)
    assert again.content == content
    assert store.commit(again, held).links[-1].pointer.version == 4


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = BucketStore(LocalFiles(tmp_path / "file" / "bucket"))
    with pytest.raises(
        UnavailableError, match=r"path=.*/file reason=.* choose a location that this user may"
    ):
        store.commit(DictState(), Handle())


def test_a_directory_that_lost_its_write_permission_is_an_error_with_a_hint(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, handles = _commits(store, 1)

    def refuse(*_: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UnavailableError, match=r"Permission denied.*Hint"):
        store.commit(state, handles[-1])


def test_files_sort_by_version(store: BucketStore) -> None:
    _, handles = _commits(store, 12)
    names = [links_of(handle)[-1] for handle in handles]
    assert sorted(names) == names
