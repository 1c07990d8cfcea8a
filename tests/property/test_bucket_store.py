"""Whatever is committed, tried twice, released or dropped: a pointer gives its version, or an error."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpointing.files import LocalFiles
from penstock.errors import CorruptDataError
from penstock.state_store import bucket_store
from penstock.state_store.bucket_store import RETAIN_VERSIONS, BucketStore, Handle, Pointer
from penstock.state_store.cache import StateCache
from tests.states import DictState, content_of, names_of

CHANGES = st.dictionaries(
    st.integers(0, 9), st.none() | st.integers(0, 300).map(lambda size: b"x" * size), max_size=6
)
# What happens in a micro-batch: which worker's cache does it, what changes, how many attempts are made
# of which the last wins or the first, and whether the winner's worker keeps its state.
BATCHES = st.lists(
    st.tuples(st.integers(0, 1), CHANGES, st.integers(1, 3), st.booleans(), st.booleans()), max_size=30
)


@contextmanager
def _directory() -> Iterator[Path]:
    """Give a directory, and do without syncing, which takes most of the time."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield Path(directory)


@given(BATCHES, st.sampled_from([0, 400, 1 << 20]), st.integers(1, 6))
def test_every_version_is_what_was_committed_and_the_last_ones_stay(
    batches: list[tuple[int, dict[int, bytes | None], int, bool, bool]], least_bytes: int, longest: int
) -> None:
    with _directory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket_store, "_LEAST_CHAIN_BYTES", least_bytes)
        patch.setattr(bucket_store, "_LONGEST_CHAIN", longest)
        caches: list[StateCache[DictState]] = [StateCache(1 << 20) for _ in range(2)]
        store = BucketStore(LocalFiles(directory / "bucket"))
        committed: list[tuple[Pointer, dict[int, bytes]]] = []
        for worker, changes, attempts, last_wins, fails in batches:
            arrived = committed[-1][0] if committed else None
            content = dict(committed[-1][1]) if committed else {}
            content.update({k: v for k, v in changes.items() if v is not None})
            for key in (k for k, v in changes.items() if v is None):
                content.pop(key, None)
            handles = []
            for attempt in range(attempts):
                cache = caches[(worker + attempt) % 2]
                found = cache.take(store, arrived, DictState)
                assert found.state.content == (committed[-1][1] if committed else {})
                assert found.hits + found.catch_ups + found.loads == 1
                store.release(found.handle)
                for key, value in changes.items():
                    found.state[key] = value
                if fails and attempt < attempts - 1:
                    continue
                handles.append(store.commit(found.state, found.handle))
                cache.put(store, found.state, handles[-1])
            winner = handles[-1 if last_wins else 0]
            assert winner.pointer is not None
            assert winner.pointer.version == len(committed) + 1
            # Each worker may have to see that a snapshot is due before one adopts its own; a worker whose
            # attempt lost begins anew.
            if all(batch[2] == 1 for batch in batches):
                assert len(winner.links) - winner.base <= longest + len(caches) + 1
            committed.append((winner.pointer, content))
            # The arrived version, those before it that are retained, and the new one.
            for pointer, expected in committed[-RETAIN_VERSIONS - 1 :]:
                assert content_of(store, pointer) == expected


@given(st.lists(CHANGES, min_size=1, max_size=25), st.integers(1, 5))
def test_disk_use_is_bounded_by_the_chain_and_what_is_retained(
    batches: list[dict[int, bytes | None]], longest: int
) -> None:
    with _directory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket_store, "_LONGEST_CHAIN", longest)
        patch.setattr(bucket_store, "_LEAST_CHAIN_BYTES", 300)
        store, state, handle = BucketStore(LocalFiles(directory)), DictState(), Handle()
        for changes in batches:
            store.release(handle)
            for key, value in changes.items():
                state[key] = value
            handle = store.commit(state, handle)
        # Two chains at most: the present one, and the one before it until it is released; each may have its
        # snapshot's own file beside it.
        for _ in range(2 * RETAIN_VERSIONS + longest + 2):
            store.release(handle)
            handle = store.commit(state, handle)
        assert len(names_of(store)) <= 2 * (longest + 2 + RETAIN_VERSIONS)


@given(st.lists(CHANGES, min_size=2, max_size=6), st.data())
def test_a_damaged_or_missing_file_of_the_chain_is_named(
    batches: list[dict[int, bytes | None]], data: Any
) -> None:
    with _directory() as directory:
        store, state, handle = BucketStore(LocalFiles(directory)), DictState(), Handle()
        for changes in batches:
            for key, value in changes.items():
                state[key] = value
            handle = store.commit(state, handle)
        assert handle.pointer is not None
        link = data.draw(st.sampled_from(handle.links))
        path = Path(store.files.location) / link.pointer.file_name
        content = path.read_bytes()
        damage = data.draw(st.sampled_from(["missing", "torn", "flipped", "empty", "another"]))
        if damage == "missing":
            path.unlink()
        elif damage == "torn":
            path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        elif damage == "flipped":
            position = data.draw(st.integers(0, len(content) - 1))
            path.write_bytes(content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :])
        elif damage == "empty":
            path.write_bytes(b"")
        else:
            others = [other for other in handle.links if other is not link]
            other = Path(store.files.location) / data.draw(st.sampled_from(others)).pointer.file_name
            path.write_bytes(other.read_bytes())
        with pytest.raises(CorruptDataError) as caught:
            store.load(handle.pointer, DictState())
        assert caught.value.context["file"] == str(path)
