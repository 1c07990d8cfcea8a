"""A worker's cache returns the requested version, never a partly changed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.checkpointing.files import LocalFiles
from penstock.errors import CorruptDataError
from penstock.state_store.bucket_store import BucketStore, Handle, Pointer
from penstock.state_store.cache import LoadedState, StateCache
from tests.checkpoints.states import DictState, links_of

Cache = StateCache[DictState]


@pytest.fixture
def store(tmp_path: Path) -> BucketStore:
    return BucketStore(LocalFiles(tmp_path / "00000"))


def _counts(found: LoadedState[DictState]) -> tuple[int, int, int]:
    return found.hits, found.catch_ups, found.loads


def _pointer(handle: Handle) -> Pointer:
    assert handle.pointer is not None
    return handle.pointer


def _advance(
    cache: Cache, store: BucketStore, pointer: Pointer | None, key: int
) -> tuple[Handle, LoadedState[DictState]]:
    """Do what a task does."""
    found = cache.take(store, pointer, DictState)
    found.state[key] = b"x"
    handle = store.commit(found.state, found.handle)
    cache.put(store, found.state, handle)
    return handle, found


def test_a_state_that_stayed_is_a_hit(store: BucketStore) -> None:
    cache = Cache(1 << 20)
    first, found = _advance(cache, store, None, 1)
    assert _counts(found) == (1, 0, 0)
    _, found = _advance(cache, store, _pointer(first), 2)
    assert _counts(found) == (1, 0, 0)
    assert found.state.content == {1: b"x", 2: b"x"}


def test_a_state_that_cannot_be_loaded_or_caught_up_is_closed(store: BucketStore) -> None:
    cache = Cache(1 << 20)
    handle, found = _advance(cache, store, None, 1)
    newer, _ = _advance(Cache(1 << 20), store, _pointer(handle), 2)
    store.files.delete(_pointer(newer).file_name)
    loaded: list[DictState] = []

    def new() -> DictState:
        loaded.append(DictState())
        return loaded[-1]

    with pytest.raises(CorruptDataError):
        cache.take(store, _pointer(newer), new)
    assert found.state.closed
    with pytest.raises(CorruptDataError):
        cache.take(store, _pointer(newer), new)
    assert [state.closed for state in loaded] == [True]


def test_a_worker_that_missed_versions_catches_up(store: BucketStore) -> None:
    ours, theirs = Cache(1 << 20), Cache(1 << 20)
    handle, _ = _advance(ours, store, None, 1)
    for key in (2, 3):
        handle, _ = _advance(theirs, store, _pointer(handle), key)
    found = ours.take(store, _pointer(handle), DictState)
    assert _counts(found) == (0, 1, 0)
    assert found.handle == handle
    assert set(found.state.content) == {1, 2, 3}


def test_a_worker_that_never_held_a_state_loads_it(store: BucketStore) -> None:
    handle, _ = _advance(Cache(1 << 20), store, None, 1)
    found = Cache(1 << 20).take(store, _pointer(handle), DictState)
    assert _counts(found) == (0, 0, 1)
    assert found.state.content == {1: b"x"}


def test_a_task_that_fails_before_its_commit_leaves_nothing_half_done(store: BucketStore) -> None:
    cache = Cache(1 << 20)
    handle, _ = _advance(cache, store, None, 1)
    broken = cache.take(store, _pointer(handle), DictState)
    broken.state[2] = b"half done"
    assert len(cache) == 0
    again = cache.take(store, _pointer(handle), DictState)
    assert _counts(again) == (0, 0, 1)
    assert again.state.content == {1: b"x"}


def test_a_commit_that_spark_did_not_take_is_forgotten(store: BucketStore) -> None:
    cache = Cache(1 << 20)
    handle, _ = _advance(cache, store, None, 1)
    _advance(cache, store, _pointer(handle), 2)
    again = cache.take(store, _pointer(handle), DictState)
    assert _counts(again) == (0, 0, 1)
    assert again.state.content == {1: b"x"}


def test_another_attempts_version_is_not_taken_for_ones_own(store: BucketStore) -> None:
    ours, theirs = Cache(1 << 20), Cache(1 << 20)
    handle, _ = _advance(ours, store, None, 1)
    _advance(ours, store, _pointer(handle), 2)
    winner, _ = _advance(theirs, store, _pointer(handle), 3)
    found = ours.take(store, _pointer(winner), DictState)
    assert _counts(found) == (0, 0, 1)
    assert set(found.state.content) == {1, 3}


def test_a_bucket_that_begins_anew_does_not_get_its_old_state(store: BucketStore) -> None:
    cache = Cache(1 << 20)
    _advance(cache, store, None, 1)
    found = cache.take(store, None, DictState)
    assert found.state.content == {}
    assert found.handle == Handle()
    assert len(cache) == 0


def test_a_damaged_delta_is_an_error_and_not_a_reset(store: BucketStore) -> None:
    ours, theirs = Cache(1 << 20), Cache(1 << 20)
    handle, _ = _advance(ours, store, None, 1)
    for key in (2, 3):
        handle, _ = _advance(theirs, store, _pointer(handle), key)
    (Path(store.files.location) / links_of(handle)[1]).write_bytes(b"torn")
    for _ in range(2):
        with pytest.raises(CorruptDataError):
            ours.take(store, _pointer(handle), DictState)
    assert len(ours) == 0


def _stores(tmp_path: Path, count: int) -> list[BucketStore]:
    return [BucketStore(LocalFiles(tmp_path / f"{number:05d}")) for number in range(count)]


def _kept(cache: Cache, stores: list[BucketStore]) -> list[int]:
    return [number for number, store in enumerate(stores) if store.files.location in cache._entries]


def test_the_least_recently_used_state_goes_first(tmp_path: Path) -> None:
    stores = _stores(tmp_path, 4)
    cache = Cache(3 * 108)
    for store in stores[:3]:
        cache.put(store, DictState({0: b"x" * 100}), Handle())
    found = cache.take(stores[0], None, DictState)
    cache.put(stores[0], DictState({0: b"x" * 100}), found.handle)
    cache.put(stores[3], DictState({0: b"x" * 100}), Handle())
    assert _kept(cache, stores) == [0, 2, 3]
    assert cache.size_bytes == 3 * 108


def test_the_bound_is_in_bytes_also_when_a_state_grows(tmp_path: Path) -> None:
    stores = _stores(tmp_path, 4)
    cache = Cache(1000)
    for store in stores:
        cache.put(store, DictState({0: b"x" * 192}), Handle())
    assert _kept(cache, stores) == [0, 1, 2, 3]
    cache.put(stores[1], DictState({0: b"x" * 592}), Handle())
    assert _kept(cache, stores) == [1, 2, 3]
    assert cache.size_bytes == 1000
    cache.put(stores[3], DictState({0: b"x" * 193}), Handle())
    assert _kept(cache, stores) == [1, 3]


def test_a_state_larger_than_the_bound_is_not_kept(tmp_path: Path) -> None:
    stores = _stores(tmp_path, 2)
    cache = Cache(500)
    cache.put(stores[0], DictState({0: b"x" * 1000}), Handle())
    assert len(cache) == 0
    assert cache.size_bytes == 0


def test_states_of_different_buckets_do_not_mix(tmp_path: Path) -> None:
    one, two = _stores(tmp_path, 2)
    cache = Cache(1 << 20)
    first, _ = _advance(cache, one, None, 1)
    second, _ = _advance(cache, two, None, 2)
    assert cache.take(one, _pointer(first), DictState).state.content == {1: b"x"}
    assert cache.take(two, _pointer(second), DictState).state.content == {2: b"x"}


def test_states_that_are_let_go_are_closed(store: BucketStore, tmp_path: Path) -> None:
    ours, theirs = Cache(1 << 20), Cache(1 << 20)
    handle, found = _advance(ours, store, None, 1)
    _advance(ours, store, _pointer(handle), 2)
    winner, _ = _advance(theirs, store, _pointer(handle), 3)
    ours.take(store, _pointer(winner), DictState)
    assert found.state.closed, "its lineage was lost"
    _, found = _advance(theirs, store, _pointer(winner), 4)
    theirs.take(store, None, DictState)
    assert found.state.closed, "its bucket began anew"
    small = Cache(10)
    (first, second) = _stores(tmp_path / "more", 2)
    _, found = _advance(small, first, None, 1)
    _, other = _advance(small, second, None, 1)
    _, another = _advance(small, first, None, 1)
    assert (found.state.closed, other.state.closed, another.state.closed) == (True, True, False)
    assert len(small) == 1
