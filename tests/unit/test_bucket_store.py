"""The files of a bucket: named by version and attempt, chained by headers, released when proven needless."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from penstock import _durable
from penstock.checkpointing import PUnit, decode, encode
from penstock.errors import CorruptDataError, UnavailableError
from penstock.state_store import bucket_store
from penstock.state_store.bucket_store import RETAIN_VERSIONS, BucketStore, FileId, Handle, Pointer, Version
from tests.golden import make_fixtures
from tests.states import DictState, content_of, links_of, names_of


@pytest.fixture
def store(tmp_path: Path) -> BucketStore:
    return BucketStore(tmp_path / "query" / "operator" / "00000")


def _commits(store: BucketStore, count: int, size: int = 10) -> tuple[DictState, list[Handle]]:
    """Commit `count` versions, as tasks do: each releases what its pointer proves needless."""
    state, handles = DictState(), [Handle()]
    for number in range(count):
        store.release(handles[-1])
        state[number] = bytes([number]) * size
        handles.append(store.commit(state, handles[-1]))
    return state, handles[1:]


def _header(store: BucketStore, handle: Handle) -> PUnit:
    path = store.directory / links_of(handle)[-1]
    return decode(path.read_bytes(), path)


def test_the_first_version_is_a_snapshot_and_the_next_are_deltas(store: BucketStore) -> None:
    _, handles = _commits(store, 3)
    assert [_header(store, handle).kind for handle in handles] == ["snapshot", "delta", "delta"]
    assert [handle.pointer.version for handle in handles if handle.pointer] == [1, 2, 3]
    assert [len(links_of(handle)) for handle in handles] == [1, 2, 3]


def test_the_chain_is_in_every_header_with_sizes(store: BucketStore) -> None:
    _, handles = _commits(store, 3)
    meta = _header(store, handles[-1]).meta
    first, second = (handle.links[-1] for handle in handles[:2])
    assert meta["chain"] == [
        [1, first.pointer.file_id, first.size_bytes],
        [2, second.pointer.file_id, second.size_bytes],
    ]
    for handle in handles:
        path = store.directory / links_of(handle)[-1]
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
    assert not store.directory.exists()


def test_a_snapshot_is_due_when_the_deltas_outgrow_the_last(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_store, "_LEAST_CHAIN_BYTES", 0)
    state = DictState({0: b"x" * 10_000})
    handle = store.commit(state, Handle())
    for number in range(1, 4):
        state[number] = b"y" * 4_000
        handle = store.commit(state, handle)
        assert len(handle.links) == number + 1
    state[4] = b"z"
    handle = store.commit(state, handle)
    assert len(handle.links) == 1
    assert _header(store, handle).kind == "snapshot"
    assert content_of(store, handle.links[-1].pointer) == state.content


def test_small_states_get_no_snapshot_until_the_chain_is_long(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_store, "_LONGEST_CHAIN", 5)
    _, handles = _commits(store, 14)
    assert [len(handle.links) for handle in handles] == [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2]


def test_release_deletes_what_a_snapshot_superseded_and_nothing_else(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_store, "_LONGEST_CHAIN", 3)
    state, handles = _commits(store, 5)
    old = set(links_of(handles[3]))
    assert len(handles[4].links) == 1
    orphan = store.commit(DictState({99: b"other attempt"}), handles[4])
    handle = handles[4]
    for version in range(6, 12):
        released = store.release(handle)
        expected = len(old) if version == 5 + RETAIN_VERSIONS + 1 else 0
        assert released == expected, version
        if released:
            assert not old & names_of(store)
            assert store.release(handle) == len(old), "a task that is tried again may release again"
        handle = store.commit(state, handle)
        assert set(links_of(handle)) <= names_of(store)
    assert links_of(orphan)[-1] in names_of(store)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_snapshots_in_quick_succession_leave_no_file_behind(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(bucket_store, "_LONGEST_CHAIN", every - 1)
    _, handles = _commits(store, 30)
    assert {len(handle.links) for handle in handles} == set(range(1, every + 1))
    assert len(names_of(store)) <= RETAIN_VERSIONS + 1 + every
    for handle in handles[-RETAIN_VERSIONS:]:
        assert set(links_of(handle)) <= names_of(store)


def test_the_versions_that_are_retained_stay_loadable_after_each_release(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_store, "_LONGEST_CHAIN", 2)
    state, handle = DictState(), Handle()
    expected: list[tuple[Pointer, dict[int, bytes]]] = []
    for number in range(20):
        store.release(handle)
        for pointer, content in expected[-RETAIN_VERSIONS:]:
            assert content_of(store, pointer) == content
        state[number % 7] = bytes([number])
        handle = store.commit(state, handle)
        assert handle.pointer is not None
        expected.append((handle.pointer, dict(state.content)))


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

    def recorded(path: Path) -> bytes:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(_durable, "read", recorded)
    caught_up = store.catch_up(handles[5].links[-1].pointer, follower, held)
    assert caught_up == handles[5]
    assert sorted(read) == links_of(handles[5])[3:]
    assert follower.content == content_of(store, handles[5].links[-1].pointer)


def test_catching_up_to_a_chain_without_the_held_version_changes_nothing(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_store, "_LONGEST_CHAIN", 2)
    _, handles = _commits(store, 4)
    assert len(handles[3].links) == 1
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
    path = store.directory / links_of(handles[3])[2]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptDataError) as caught:
        store.catch_up(handles[3].links[-1].pointer, follower, held)
    assert caught.value.context["file"] == path
    assert follower.content == before


def test_a_missing_file_is_named_with_a_hint(store: BucketStore) -> None:
    pointer = Pointer(Version(7), FileId("0" * 32))
    with pytest.raises(CorruptDataError, match="Hint") as caught:
        store.load(pointer, DictState())
    assert caught.value.context["file"] == store.directory / f"000000000007-{'0' * 32}.punit"


def test_a_renamed_file_is_not_taken_for_another(store: BucketStore) -> None:
    _, handles = _commits(store, 2)
    pointer = Pointer(Version(2), FileId("f" * 32))
    (store.directory / links_of(handles[1])[-1]).rename(store.directory / pointer.file_name)
    with pytest.raises(CorruptDataError, match="another version") as caught:
        store.load(pointer, DictState())
    assert caught.value.context["file"] == store.directory / pointer.file_name


def test_a_p_unit_of_another_kind_is_not_taken_for_state(store: BucketStore) -> None:
    _, handles = _commits(store, 2)
    path = store.directory / links_of(handles[1])[0]
    for unit in (PUnit("other", {}), make_fixtures.p_unit(), PUnit("other", {"version": 1, "file_id": 5})):
        path.write_bytes(encode(unit))
        with pytest.raises(CorruptDataError) as caught:
            store.load(handles[1].links[-1].pointer, DictState())
        assert caught.value.context["file"] == path


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
    store = BucketStore(tmp_path / "file" / "bucket")
    with pytest.raises(UnavailableError, match="state_location"):
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
