"""Working copies, versions, caches, lost attempts and garbage together, against dictionaries.

Several workers, some with tables in memory and some with tables in RocksDB, run micro-batches upon the same
files: each attempt takes the state at the committed pointer, changes it and commits; one attempt of a batch
wins. Attempts die before or after their commit, stay behind and commit batches later, workers lose their
caches, and snapshots and sweeps happen at any later time, or never because their worker died.
"""

from __future__ import annotations

import gc
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.checkpointing.files import LocalFiles
from penstock.state_store import bucket_store
from penstock.state_store.bucket_store import BucketStore, Handle, Pointer, number_of
from penstock.state_store.cache import Found, StateCache
from penstock.state_store.memory_table import MemoryTable
from penstock.state_store.rocksdb_table import RocksdbTable
from tests.states import Later

SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.string()), ("n", pa.int32())])
RETAIN = 2
KINDS = ("memory", "rocksdb", "memory")

Content = dict[int, tuple[str | None, int]]
PUTS = st.dictionaries(
    st.integers(0, 12), st.tuples(st.none() | st.text(max_size=30), st.integers(-9, 9)), max_size=6
)
DELETES = st.sets(st.integers(0, 12), max_size=4)


def _table(kind: str) -> MemoryTable | RocksdbTable:
    return MemoryTable(SCHEMA, ("k",)) if kind == "memory" else RocksdbTable(SCHEMA, ("k",))


def _content(table: Any) -> Content:
    rows = [row for batch in table.scan() for row in batch.to_pylist()]
    assert len(rows) == len(table)
    return {row["k"]: (row["text"], row["n"]) for row in rows}


def _change(table: Any, puts: Content, deletes: set[int]) -> None:
    rows = [{"k": key, "text": text, "n": number} for key, (text, number) in puts.items()]
    table.put(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    table.delete(pa.RecordBatch.from_pydict({"k": pa.array(sorted(deletes), pa.int64())}))


@dataclass
class Worker:
    """A Python worker: what it keeps between tasks, and what it has begun to do in the background."""

    kind: str
    directory: Path
    later: Later = field(default_factory=Later)
    cache: StateCache[Any] = field(default_factory=lambda: StateCache(1 << 30))

    @property
    def store(self) -> BucketStore:
        return BucketStore(LocalFiles(self.directory), retain_versions=RETAIN, background=self.later)


class Workers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.directory = Path(self.scratch.name) / "bucket"
        self.workers = [Worker(kind, self.directory) for kind in KINDS]
        self.committed: list[tuple[Pointer, Content]] = []
        self.arrived: Handle = Handle()
        self.stalled: list[tuple[Worker, Found[Any]]] = []
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(os, "fsync", lambda descriptor: None)

    @initialize(longest=st.integers(0, 4), least_bytes=st.sampled_from([0, 2000, 1 << 20]))
    def limits(self, longest: int, least_bytes: int) -> None:
        self.patch.setattr(bucket_store, "_LONGEST_CHAIN", longest)
        self.patch.setattr(bucket_store, "_LEAST_CHAIN_BYTES", least_bytes)
        self.patch.setattr(bucket_store, "_SNAPSHOT_COMMITS", 3)

    def _begin(self, worker: Worker) -> Found[Any]:
        pointer = self.committed[-1][0] if self.committed else None
        found = worker.cache.take(worker.store, pointer, lambda: _table(worker.kind))
        assert _content(found.state) == (self.committed[-1][1] if self.committed else {})
        worker.store.release(found.handle)
        self.arrived = found.handle
        return found

    def _attempt(self, worker: Worker, puts: Content, deletes: set[int]) -> Handle:
        found = self._begin(worker)
        _change(found.state, puts, deletes)
        handle = worker.store.commit(found.state, found.handle)
        worker.cache.put(worker.store, found.state, handle)
        return handle

    @rule(
        first=st.sampled_from(range(len(KINDS))),
        second=st.none() | st.sampled_from(range(len(KINDS))),
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
        handles = [self._attempt(self.workers[first], puts, deletes)]
        if second is not None:
            handles.append(self._attempt(self.workers[second], puts, deletes))
        pointer = handles[-1 if second_wins else 0].pointer
        assert pointer is not None
        assert pointer.version == len(self.committed) + 1
        content = dict(self.committed[-1][1]) if self.committed else {}
        content.update(puts)
        for key in deletes:
            content.pop(key, None)
        self.committed.append((pointer, content))

    @rule(number=st.sampled_from(range(len(KINDS))), puts=PUTS)
    def attempt_that_dies_before_its_commit(self, number: int, puts: Content) -> None:
        _change(self._begin(self.workers[number]).state, puts, set())

    @rule(number=st.sampled_from(range(len(KINDS))), puts=PUTS)
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

    @rule(number=st.sampled_from(range(len(KINDS))))
    def worker_has_time(self, number: int) -> None:
        self.workers[number].later.run()

    @rule(number=st.sampled_from(range(len(KINDS))))
    def worker_dies(self, number: int) -> None:
        worker = self.workers[number]
        self.stalled = [entry for entry in self.stalled if entry[0] is not worker]
        worker.cache, worker.later = StateCache(1 << 30), Later()

    @rule()
    def sweep_by_hand(self) -> None:
        if self.arrived.pointer is not None:
            store = BucketStore(LocalFiles(self.directory), retain_versions=RETAIN)
            handle, _ = store.look(self.arrived.pointer)
            store.sweep(handle)
            left = {facts.name for facts in store.files.list()}
            for name in left - handle.needed(RETAIN):
                assert (number_of(name) or 0) > self.arrived.pointer.version

    def _loads(self, kind: str, pointer: Pointer, content: Content) -> None:
        table = _table(kind)
        BucketStore(LocalFiles(self.directory)).load(pointer, table)
        assert _content(table) == content
        table.close()

    @rule()
    def what_any_working_copy_wrote_rocksdb_opens(self) -> None:
        if self.committed:
            self._loads("rocksdb", *self.committed[-1])

    @invariant()
    def every_retained_version_loads(self) -> None:
        newest = self.arrived.pointer.version if self.arrived.pointer else 0
        for pointer, content in self.committed[-RETAIN - 1 :]:
            if pointer.version > newest - RETAIN:
                self._loads("memory", pointer, content)

    def teardown(self) -> None:
        self.patch.undo()
        self.stalled.clear()
        for worker in self.workers:
            for state, _ in worker.cache._entries.values():
                state.close()
        self.workers.clear()
        gc.collect()
        self.scratch.cleanup()


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
class TestWorkers(Workers.TestCase):  # type: ignore[misc,valid-type]  # made by hypothesis
    """Runs the machine. Tables of attempts that died are cleaned up with their objects."""


TestWorkers.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
