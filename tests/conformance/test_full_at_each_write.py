"""A disk that is full at any one write and freed later: no row is lost or served twice, no file is left."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import PStreamReader, PStreamWriter, _durable
from penstock._clock import SimulatedClock
from penstock.errors import UnavailableError
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.options import Budget
from penstock.spark_ext.api.update_join import JoinOperator
from penstock.spark_ext.border import packing
from penstock.spark_ext.border.parcels import from_parcel
from penstock.spark_ext.border.window_packing import RowPacker
from penstock.spark_ext.worker import bucket_task
from penstock.spark_ext.worker.bucket_task import BucketTask, Parcel
from penstock.spark_ext.worker.window_plan import WindowPlan
from penstock.state_store.bucket_store import Pointer
from penstock.state_store.cache import StateCache
from penstock.state_store.snapshot_rule import SnapshotRule
from tests.checkpoints.states import InlineExecutor
from tests.long_tests import long_but
from tests.oracles.naive import Update
from tests.oracles.naive_join import Tuple
from tests.property.operators.joins.test_update_join import joined_stream, left_of, right_of
from tests.unit.spark_ext.worker.test_window_operator import ROWS, of_update_window, plan_of
from tests.unit.state_store.test_clock_record import parcel, queue_task

BATCHES = 7


class FullDisk:
    """A disk that is full from the write `full_at` on, until it is freed; syncing takes no time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.writes, self.full_at, self.full = 0, 0, False
        for name in ("write", "link", "mkdir", "fsync"):
            patch.setattr(os, name, self._checked(name, getattr(os, name)))

    def _checked(self, name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.writes += 1
            if self.writes == self.full_at:
                self.full = True
                if name == "write":
                    descriptor, content = arguments
                    return do(descriptor, content[: len(content) // 2])
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return None if name == "fsync" else do(*arguments, **options)

        return call


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FullDisk]:
    """Give a disk, and workers that write snapshots before a commit returns."""
    monkeypatch.setattr(bucket_task, "_background", InlineExecutor)
    monkeypatch.setattr(_durable, "sync_everything", lambda: None)
    yield FullDisk(monkeypatch)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Provide a directory, in memory if possible, because thousands of files are made."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as made:
        yield Path(made)


@dataclass(frozen=True)
class Bucket:
    """An operator's bucket: its task in a directory, and what arrives in each micro-batch."""

    task: Callable[[Path], BucketTask[Any]]
    arriving: Sequence[list[Parcel]]

    def served(self, directory: Path, disk: FullDisk) -> tuple[list[list[dict[str, Any]]], int]:
        """Run all micro-batches, each until it succeeds; return their rows, and how many attempts failed."""
        # A snapshot is due after every few commits.
        task, failed = replace(self.task(directory), snapshots=SnapshotRule(max_deltas=1)), 0
        pointer: Pointer | None = None
        served: list[list[dict[str, Any]]] = []
        bucket_task._CACHE, bucket_task._CHECKED = StateCache(1 << 24), set()
        clock = SimulatedClock(1)
        for number, parcels in enumerate(self.arriving):
            done = None
            while done is None:
                try:
                    done = task.run("q", number, 0, pointer, iter(parcels), clock)
                except UnavailableError as error:
                    assert error.context["reason"] == os.strerror(errno.ENOSPC)
                    failed += 1
                    disk.full = False
            pointer, batches, _ = done
            served.append([row for batch in batches for row in batch.to_pylist()])
            clock.advance(1000)
        return served, failed


def _queue(policy: Policy) -> Bucket:
    draw = np.random.default_rng(1)
    arriving = [
        parcel([Update(int(key), 10 * batch + at, at) for at, key in enumerate(draw.integers(0, 8, 6))])
        for batch in range(BATCHES)
    ]
    return Bucket(lambda place: queue_task(place, policy, Budget(rows=3)), arriving)


def _windows(plan: WindowPlan) -> Bucket:
    draw = np.random.default_rng(2)
    packer = RowPacker(ROWS, plan.fragments, plan.packer(1), "error")
    arriving = []
    for batch in range(BATCHES):
        times = np.sort(draw.integers(3 * batch, 3 * batch + 4, 9))
        rows = {"t": times, "k": draw.choice(["a", "b", "c"], 9), "w": [1] * 9, "x": draw.random(9)}
        packed = packer([pa.RecordBatch.from_pydict(rows, schema=ROWS)])
        arriving.append([Parcel(0, from_parcel(row["payload"])) for one in packed for row in one.to_pylist()])
    return Bucket(
        lambda place: BucketTask("windows", str(place), plan.operator(()), buckets=1, parallel=1), arriving
    )


def _join() -> Bucket:
    draw, joined = np.random.default_rng(3), joined_stream(5, 5)
    operator = JoinOperator(joined, (), ())
    arriving = []
    for batch in range(BATCHES):
        sides = [
            [Tuple(int(key), 4 * batch + at, at) for at, key in enumerate(draw.integers(0, 3, 4))]
            for _ in range(2)
        ]
        both = {"left": left_of(sides[0]), "right": right_of(sides[1])}
        arriving.append(
            [
                Parcel(0, one.to_batch().replace_schema_metadata({packing._SIDE: side}))
                for side, one in both.items()
                if one is not None
            ]
        )
    return Bucket(lambda place: BucketTask("join", str(place), operator, buckets=1, parallel=1), arriving)


BUCKETS: dict[str, Callable[[], Bucket]] = {
    "a queue": lambda: _queue(Policy.FIFO),
    "a queue that records the clock": lambda: _queue(Policy.LINECUTTING),
    "windows in append mode": lambda: _windows(plan_of(None)),
    "lazy windows": lambda: _windows(of_update_window(None)),
    "a join": _join,
}


@pytest.mark.parametrize("name", long_but(BUCKETS, *list(BUCKETS)[:2]))
def test_an_operator_serves_the_same_whenever_its_disk_was_full(
    name: str, disk: FullDisk, directory: Path
) -> None:
    bucket = BUCKETS[name]()
    expected, failed = bucket.served(directory / "never", disk)
    assert sum(map(len, expected)) > 5
    assert failed == 0
    writes = disk.writes
    failures = 0
    for full_at in range(1, writes + 1):
        disk.writes, disk.full_at = 0, full_at
        place = directory / str(full_at)
        served, failed = bucket.served(place, disk)
        assert served == expected, f"write {full_at} of {writes}"
        failures += failed
        disk.full = False
        assert not list(place.rglob("*.tmp"))
    print(f"{name}: {writes} writes, {failures} attempts failed")
    assert failures > writes // 2, "but for snapshots, which fail no batch"


SCHEMA = pa.schema({"n": pa.int64(), "text": pa.string()})
TABLES = [pa.table({"n": range(at, at + 5), "text": ["x" * at] * 5}, SCHEMA) for at in range(0, 30, 5)]


def _appended(location: Path, disk: FullDisk) -> int:
    """Append and commit all of `TABLES` by as many writers as it takes; return how many of them failed."""
    failed = 0
    while True:
        try:
            with PStreamWriter(location, SCHEMA, threads=1) as writer:
                for number in range(writer.clock.get("tables", 0), len(TABLES)):
                    writer.append(TABLES[number], clock={"tables": number + 1})
                    writer.flush()
            return failed
        except UnavailableError as error:
            assert error.context["reason"] == os.strerror(errno.ENOSPC)
            failed += 1
            disk.full = False


def test_a_p_stream_has_each_row_once_whenever_its_disk_was_full(disk: FullDisk, directory: Path) -> None:
    assert _appended(directory / "never", disk) == 0
    writes, failures = disk.writes, 0
    for full_at in range(1, writes + 1):
        disk.writes, disk.full_at = 0, full_at
        place = directory / str(full_at)
        failures += _appended(place, disk)
        assert PStreamReader(place).read().equals(pa.concat_tables(TABLES)), f"write {full_at} of {writes}"
    print(f"a p-stream: {writes} writes, {failures} writers failed")
    assert failures > writes // 2
