"""After any commits, repeated attempts, releases and drops, a pointer gives its version or an error."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpointing.files import LocalFiles
from penstock.errors import CorruptDataError
from penstock.state_store.bucket_store import RETAIN_VERSIONS, BucketStore, Handle, Pointer
from penstock.state_store.cache import StateCache
from penstock.state_store.snapshot_rule import SnapshotRule
from tests.checkpoints.states import DictState, Later, content_of, names_of

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
    """Provide a directory; leave out syncs, which would take most of the time."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield Path(directory)


@given(BATCHES, st.sampled_from([0, 400, 1 << 20]), st.integers(1, 6))
def test_every_version_is_what_was_committed_and_the_last_ones_stay(
    batches: list[tuple[int, dict[int, bytes | None], int, bool, bool]], least_bytes: int, longest: int
) -> None:
    with _directory() as directory:
        caches: list[StateCache[DictState]] = [StateCache(1 << 20) for _ in range(2)]
        rule = SnapshotRule(max_deltas=longest, min_delta_bytes=least_bytes)
        store = BucketStore(LocalFiles(directory / "bucket"), snapshots=rule)
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


# An attempt in a micro-batch where more than one may commit: its worker, which of the pointers that Spark may
# have it gets, how many commits later than its own batch it ends (as one that was given up may), whether it
# ends at all, whether its worker has time for work in the background, and whether the worker lives on.
ATTEMPT = st.tuples(
    st.integers(0, 2), st.integers(0, 3), st.integers(0, 3), st.booleans(), st.booleans(), st.booleans()
)


class Siblings:
    """A bucket, in memory and on disk. Spark commits every attempt that ends.

    Spark gives the next batch any pointer of the version that one attempt committed.
    """

    def __init__(self, directory: Path, retain_versions: int, snapshots: SnapshotRule) -> None:
        self.files, self.retain_versions, self.snapshots = LocalFiles(directory), retain_versions, snapshots
        self.caches: list[StateCache[DictState]] = [StateCache(1 << 20) for _ in range(3)]
        self.background = [Later() for _ in range(3)]
        self.versions: list[list[tuple[Pointer | None, dict[int, bytes]]]] = [[(None, {})]]
        self.late: list[tuple[int, int, Callable[[], None]]] = []
        self.attempts = self.arrived = 0

    def run_batch(self, attempts: list[tuple[int, int, int, bool, bool, bool]]) -> None:
        version = len(self.versions)
        self.versions.append([])
        for number, (worker, choice, delay, ends, has_time, lives) in enumerate(attempts):
            if has_time:
                self.background[worker].run()
            end = self._begin(worker, version, choice)
            if number == len(attempts) - 1 and not self.versions[version]:
                end()
            elif ends and delay:
                self.late.append((version + delay - 1, version, end))
            elif ends:
                end()
            if not lives:
                self.caches[worker], self.background[worker] = StateCache(1 << 20), Later()
            self.check()
        for batch, old, end in self.late:
            # One that no version still follows is of no use to anybody.
            if batch == version and old >= self.arrived - self.retain_versions + 1:
                end()
        self.late = [entry for entry in self.late if entry[0] > version]
        self.check()

    def _begin(self, worker: int, version: int, choice: int) -> Callable[[], None]:
        """Begin an attempt at `version`; return what ends it."""
        arriving = self.versions[version - 1]
        pointer, content = arriving[choice % len(arriving)]
        store = BucketStore(
            self.files,
            retain_versions=self.retain_versions,
            background=self.background[worker],
            snapshots=self.snapshots,
        )
        found = self.caches[worker].take(store, pointer, DictState)
        assert found.state.content == content
        store.release(found.handle)
        if found.loads:
            store.sweep_later(found.handle)
        self.arrived = max(self.arrived, version - 1)
        self.attempts += 1
        found.state[self.attempts % 10] = str(self.attempts).encode()

        def end() -> None:
            handle = store.commit(found.state, found.handle)
            self.caches[worker].put(store, found.state, handle)
            self.versions[version].append((handle.pointer, dict(found.state.content)))

        return end

    def check(self) -> None:
        """Load all that Spark may ask for: what arrived last, the retained versions, and what is newer."""
        for version in range(max(self.arrived - self.retain_versions + 1, 1), len(self.versions)):
            for pointer, content in self.versions[version]:
                assert pointer is not None
                assert content_of(BucketStore(self.files), pointer) == content


@given(
    st.lists(st.lists(ATTEMPT, min_size=1, max_size=3), max_size=25),
    st.sampled_from([0, 400, 1 << 20]),
    st.integers(0, 4),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_whichever_attempts_were_committed_spark_may_go_on_from_any(
    batches: list[list[tuple[int, int, int, bool, bool, bool]]],
    least_bytes: int,
    longest: int,
    snapshot_commits: int,
    retain_versions: int,
) -> None:
    rule = SnapshotRule(max_deltas=longest, min_delta_bytes=least_bytes, max_commits=snapshot_commits)
    with _directory() as directory:
        bucket = Siblings(directory / "bucket", retain_versions, rule)
        for attempts in batches:
            bucket.run_batch(attempts)


@given(st.lists(CHANGES, min_size=1, max_size=25), st.integers(1, 5))
def test_disk_use_is_bounded_by_the_chain_and_what_is_retained(
    batches: list[dict[int, bytes | None]], longest: int
) -> None:
    with _directory() as directory:
        rule = SnapshotRule(max_deltas=longest, min_delta_bytes=300)
        store, state, handle = BucketStore(LocalFiles(directory), snapshots=rule), DictState(), Handle()
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
