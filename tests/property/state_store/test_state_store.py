"""Working copies, versions, caches, lost attempts and garbage together, against dictionaries.

Several workers run micro-batches upon the same files: each attempt takes the state at the committed pointer,
changes it and commits; one attempt of a batch wins. Attempts die before or after their commit, stay behind
and commit batches later, workers lose their caches, and snapshots and sweeps happen at any later time, or
never because their worker died, or in part because it died meanwhile. The checkpoint is set back to versions
that are retained.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.checkpointing.files import LocalFiles
from penstock.state_store import bucket_store
from penstock.state_store.bucket_store import BucketStore, FileId, Handle, Pointer, number_of, pointer_of
from penstock.state_store.cache import LoadedState, StateCache
from penstock.state_store.snapshot_rule import SnapshotRule
from tests.checkpoints.states import Later, RowState
from tests.long_tests import examples

SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.string()), ("n", pa.int32())])
RETAIN = 2
COMMITS = 3
EXAMPLES = int(os.environ.get("PENSTOCK_STATE_EXAMPLES") or examples(75))
"""`script/fuzz` has more."""

WORKERS = 3

Content = dict[int, tuple[str | None, int]]

KEYS = st.integers(0, 6)  # so few that most of those deleted were there
PUTS = st.dictionaries(KEYS, st.tuples(st.none() | st.text(max_size=30), st.integers(-9, 9)), max_size=5)
DELETES = st.sets(KEYS, max_size=3)
ATTEMPT = 7
"""The key under which each attempt of a batch writes another row, so that it shows which one won."""


def _table() -> RowState:
    return RowState(SCHEMA, part=4)


def _content(table: RowState) -> Content:
    return {key: (row["text"], row["n"]) for key, row in table.content.items()}


def _change(table: Any, puts: Content, deletes: set[int]) -> None:
    rows = [{"k": key, "text": text, "n": number} for key, (text, number) in puts.items()]
    table.put(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    table.delete(sorted(deletes))


class Version(NamedTuple):
    """A committed version: its pointer, its content, and the snapshot that may be adopted after it."""

    pointer: Pointer
    content: Content
    begun: Pointer | None
    last: int


NOTHING = Version(Pointer(bucket_store.Version(0), FileId("")), {}, None, 0)


class Killed(BaseException):
    """Ends a process; none of our code may catch it or clean up."""


@dataclass
class Worker:
    """A Python worker: its cache, and its unfinished background work."""

    directory: Path
    snapshots: SnapshotRule = field(default_factory=SnapshotRule)
    later: Later = field(default_factory=Later)
    cache: StateCache[Any] = field(default_factory=lambda: StateCache(1 << 30))

    @property
    def store(self) -> BucketStore:
        return BucketStore(
            LocalFiles(self.directory),
            retain_versions=RETAIN,
            background=self.later,
            snapshots=self.snapshots,
        )

    def die(self) -> None:
        """Replace it by a new process with an empty cache."""
        self.cache, self.later = StateCache(1 << 30), Later()

    def die_after(self, operations: int) -> None:
        """Do the background work until this many files were published or deleted; then die."""
        left = operations

        def counted(do: Callable[..., None]) -> Callable[..., None]:
            def one(files: LocalFiles, *arguments: Any) -> None:
                nonlocal left
                if not left:
                    raise Killed
                left -= 1
                do(files, *arguments)

            return one

        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
            for name in ("publish", "delete"):
                patch.setattr(LocalFiles, name, counted(getattr(LocalFiles, name)))
            self.later.run()
        self.die()


class Workers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.directory = Path(self.scratch.name) / "bucket"
        self.workers = [Worker(self.directory) for _ in range(WORKERS)]
        self.committed: list[Version] = []
        self.arrived: Handle = Handle()
        self.retained = 0
        """The oldest version that every pointer that ever arrived retains."""
        self.snapshots: list[Pointer] = []
        """The snapshots that any attempt began."""
        self.stalled: list[tuple[Worker, LoadedState[Any]]] = []
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(os, "fsync", lambda descriptor: None)
        begin = BucketStore._begin_snapshot

        def noted(store: BucketStore, shown: Any, deltas_begin: int) -> Any:
            begun = begin(store, shown, deltas_begin)
            self.snapshots.append(begun.pointer)
            return begun

        self.patch.setattr(BucketStore, "_begin_snapshot", noted)

    @initialize(longest=st.integers(0, 4), least_bytes=st.sampled_from([0, 2000, 1 << 20]))
    def limits(self, longest: int, least_bytes: int) -> None:
        for worker in self.workers:
            worker.snapshots = SnapshotRule(
                max_deltas=longest, min_delta_bytes=least_bytes, max_commits=COMMITS
            )

    @property
    def newest(self) -> Version:
        """The committed version."""
        return self.committed[-1] if self.committed else NOTHING

    def _begin(self, worker: Worker) -> LoadedState[Any]:
        pointer = self.newest.pointer if self.committed else None
        found = worker.cache.take(worker.store, pointer, _table)
        assert _content(found.state) == self.newest.content
        worker.store.release(found.handle)
        self.arrived = found.handle
        self.retained = max(self.retained, (pointer.version if pointer else 0) - RETAIN + 1)
        return found

    def _attempt(self, worker: Worker, puts: Content, deletes: set[int]) -> Handle:
        found = self._begin(worker)
        _change(found.state, puts, deletes)
        handle = worker.store.commit(found.state, found.handle)
        worker.cache.put(worker.store, found.state, handle)
        return handle

    @rule(
        first=st.sampled_from(range(WORKERS)),
        second=st.none() | st.sampled_from(range(WORKERS)),
        second_wins=st.booleans(),
        puts=PUTS,
        deletes=DELETES,
        idle=st.booleans(),
    )
    def batch(
        self, first: int, second: int | None, second_wins: bool, puts: Content, deletes: set[int], idle: bool
    ) -> None:
        if idle:
            for worker in self.workers:
                worker.later.run()
        self._batch([first] if second is None else [first, second], second_wins, puts, deletes)

    @rule(turns=st.lists(st.sampled_from(range(WORKERS)), min_size=1, max_size=6), puts=PUTS)
    def batches_without_time_for_anything_else(self, turns: list[int], puts: Content) -> None:
        for number in turns:
            self._batch([number], False, puts, set())

    def _batch(self, attempts: list[int], last_wins: bool, puts: Content, deletes: set[int]) -> None:
        there = {facts.name for facts in LocalFiles(self.directory).list()}
        handles, begun = [], []
        rows = [{**puts, ATTEMPT: (None, place)} for place in range(len(attempts))]
        for number, own in zip(attempts, rows, strict=True):
            before = len(self.snapshots)
            handles.append(self._attempt(self.workers[number], own, deletes))
            begun.append(self.snapshots[before:])
        winner = -1 if last_wins else 0
        pointer = handles[winner].pointer
        assert pointer is not None
        assert pointer.version == len(self.committed) + 1
        content = dict(self.newest.content)
        content.update(rows[winner])
        for key in deletes:
            content.pop(key, None)
        handle, _ = BucketStore(LocalFiles(self.directory)).read_version(pointer)
        snapshot, last = self.newest.begun, self.newest.last
        if snapshot is not None:
            adopted = (pointer.version, snapshot.file_name) in handle.superseded
            assert adopted == (pointer.version <= last and snapshot.file_name in there), "by whoever commits"
            if adopted or pointer.version > last:
                snapshot = None
        if begun[winner]:
            assert snapshot is None, "one at a time, as long as it may be adopted"
            (snapshot,) = begun[winner]
            last = pointer.version + COMMITS
        self.committed.append(Version(pointer, content, snapshot, last))

    @rule(number=st.sampled_from(range(WORKERS)), puts=PUTS)
    def attempt_that_dies_before_its_commit(self, number: int, puts: Content) -> None:
        _change(self._begin(self.workers[number]).state, puts, set())

    @rule(number=st.sampled_from(range(WORKERS)), puts=PUTS)
    def attempt_that_stalls(self, number: int, puts: Content) -> None:
        if len(self.stalled) < 2:
            worker = self.workers[number]
            found = self._begin(worker)
            _change(found.state, puts, {1, 2, 3})
            self.stalled.append((worker, found))

    @rule()
    def stalled_attempt_commits_late(self) -> None:
        if self.stalled:
            worker, found = self.stalled.pop()
            worker.store.commit(found.state, found.handle)

    @rule(number=st.sampled_from(range(WORKERS)))
    def worker_has_time(self, number: int) -> None:
        self.workers[number].later.run()

    @rule(number=st.sampled_from(range(WORKERS)))
    def worker_dies(self, number: int) -> None:
        worker = self.workers[number]
        self.stalled = [entry for entry in self.stalled if entry[0] is not worker]
        worker.die()

    @rule(number=st.sampled_from(range(WORKERS)), operations=st.integers(0, 5))
    def worker_dies_while_it_writes_or_sweeps(self, number: int, operations: int) -> None:
        worker = self.workers[number]
        self.stalled = [entry for entry in self.stalled if entry[0] is not worker]
        worker.die_after(operations)

    @precondition(lambda self: len(self.committed) > 1)
    @rule(versions=st.integers(1, 4))
    def checkpoint_is_set_back(self, versions: int) -> None:
        for worker in self.workers:
            worker.die()
        self.stalled.clear()
        while versions and len(self.committed) > max(self.retained, 1):
            self.committed.pop()
            versions -= 1
        self.arrived = Handle()

    @rule()
    def sweep_by_hand(self) -> None:
        if self.arrived.pointer is not None:
            store = BucketStore(LocalFiles(self.directory), retain_versions=RETAIN)
            handle, _ = store.read_version(self.arrived.pointer)
            store.sweep(handle)
            left = {facts.name for facts in store.files.list()}
            lowest = self.arrived.pointer.version - RETAIN
            recent = [p for name in left if (p := pointer_of(name)) and lowest <= p.version]
            for pointer in recent:
                sibling, _ = store.read_version(pointer)
                left -= {link.pointer.file_name for link in sibling.links}
                if (snapshot := sibling.snapshot) is not None:  # a successor of the sibling may adopt it
                    left -= {name for name in left if number_of(name) == snapshot.pointer.version}
            for name in left - handle.needed_files(RETAIN):
                assert (number_of(name) or 0) >= lowest

    @invariant()
    def every_retained_version_loads(self) -> None:
        for pointer, content, _, _ in self.committed[-RETAIN - 1 :]:
            if pointer.version >= self.retained:
                table = _table()
                BucketStore(LocalFiles(self.directory)).load(pointer, table)
                assert _content(table) == content

    def teardown(self) -> None:
        self.patch.undo()
        self.stalled.clear()
        for worker in self.workers:
            worker.die()
        self.scratch.cleanup()


class TestWorkers(Workers.TestCase):  # type: ignore[misc,valid-type]  # made by hypothesis
    """Runs the machine."""


TestWorkers.settings = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None)
