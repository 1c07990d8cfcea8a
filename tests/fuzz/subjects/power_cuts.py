"""Power cuts at any step, on a disk that loses unsynced data, under a model of Spark's micro-batches.

The reader, the operator's task and the sink are the real ones. The model does what Spark does on the driver,
in its order: it writes its files and does not sync them. A cut leaves some of the files since the last sync
whole, and others empty, truncated or missing. With one sync, the sink is that of the local engine, whose
segments are such files, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import struct
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from penstock import _durable
from penstock._durable.file_system import FileSystem
from penstock.checkpointing.p_stream import PStreamReader, PStreamWriter
from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.checkpointing.releases import Releases
from penstock.checkpointing.spark_checkpoint import repair_checkpoint
from penstock.local_engine.outputs import PStreamOutput
from penstock.operators.scheduling.serve import Query
from penstock.operators.update_stream.operator_options import QueueOptions
from penstock.spark_ext.border.spark_versions import ReadMaxRows
from penstock.spark_ext.sources import p_stream_sink, p_stream_source
from penstock.spark_ext.worker import bucket_task
from penstock.spark_ext.worker.bucket_task import BucketTask, Parcel
from penstock.spark_ext.worker.queue_operator import QueueOperator
from penstock.state_store.bucket_store import FileId, Pointer, Version
from penstock.state_store.cache import StateCache
from penstock.state_store.snapshot_rule import SnapshotRule
from tests.checkpoints.states import InlineExecutor
from tests.fuzz.case import Case
from tests.oracles.naive import Update
from tests.samples.streams import STREAM, arrivals_of, rows_of

__all__ = ["check", "run_case"]

_KEYS = 7
_KEPT_BATCHES = 10
_MAX_CUTS = 8


def check(case: Case) -> None:
    """Cut the power of several plain queries and queues."""
    for number in range(4):
        place = case.directory / str(number)
        place.mkdir()
        run_case(place, case.random, queue=bool(number % 2), one_sync=number >= 2)


class PowerCutError(BaseException):
    """The power is gone; nothing that handles errors may handle this."""


class _Disk:
    """The files written since the last sync, and the moment of the next power cut."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._unsynced: list[Path] = []
        self.rate = 0.0

    def tick(self) -> None:
        """Lose power, perhaps."""
        if self._draw.random() < self.rate:
            raise PowerCutError

    def write(self, path: Path, content: bytes) -> None:
        """Write a file as Spark does."""
        self.tick()
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = [zlib.crc32(content[at : at + 512]) for at in range(0, len(content), 512)]
        sums = b"crc\0" + struct.pack(f">i{len(parts)}I", 512, *parts)
        for one, data in ((path.with_name(f".{path.name}.crc"), sums), (path, content)):
            one.write_bytes(data)
            self.wrote(one)

    def wrote(self, path: Path) -> None:
        """Note a file that is not durable."""
        self._unsynced.append(path)

    def sync(self, _: Path | int | None = None) -> None:
        """Make all durable, before or after which the power may go."""
        self.tick()
        self._unsynced.clear()
        self.tick()

    def forget(self) -> None:
        """Lose the data that a power cut takes."""
        named = self._draw.randint(0, len(self._unsynced))
        for number, path in enumerate(self._unsynced):
            if number >= named:
                path.unlink(missing_ok=True)
            elif path.exists() and self._draw.random() < 0.7:
                os.truncate(path, self._draw.randint(0, path.stat().st_size - 1) * self._draw.randint(0, 1))
        self._unsynced.clear()


class _Source(p_stream_source.PStreamDataSource):
    """A source that releases often."""

    releases = p_stream_source.ReleaseRule(batches=3)
    cleanup = CleanupRule(min_trim_commits=2)


class _Spark:
    """One start of a query."""

    def __init__(self, place: Path, disk: _Disk, draw: random.Random, *, queue: bool, one_sync: bool) -> None:
        self._checkpoint = place / "checkpoint"
        self._disk = disk
        self._draw = draw
        source = _Source({"path": str(place / "source"), "reader": "query"})
        self._schema = source.schema()
        self._reader = source.streamReader(self._schema)
        self._options = {"path": str(place / "sink"), "checkpointLocation": str(self._checkpoint)}
        self._task: BucketTask[Any] | None = None
        if queue:
            query = Query(None, STREAM.schema, STREAM.key)
            operator = QueueOperator(STREAM, QueueOptions(policy="linecutting", budget=3), query, ())
            self._task = BucketTask(
                "queue",
                str(place / "state"),
                operator,
                buckets=1,
                parallel=1,
                snapshots=SnapshotRule(max_deltas=3),
                sweep_batches=3,
            )
        self._waiting = 1 if queue else 0
        metadata = self._checkpoint / "metadata"
        if not metadata.exists():
            disk.write(metadata, json.dumps({"id": uuid.UUID(int=draw.getrandbits(128)).hex}).encode())
        self._id = json.loads(metadata.read_bytes())["id"]
        self._output = PStreamOutput(self._options, self._schema, str(self._checkpoint)) if one_sync else None

    def run(self) -> None:
        """Run micro-batches until all is read and nothing waits."""
        batch = self._newest("offsets")
        if batch >= 0 and self._newest("commits") < batch:
            self._run(batch, self._end(batch - 1), self._end(batch))
        while True:
            batch = self._newest("offsets") + 1
            start = self._end(batch - 1)
            end = self._reader.latestOffset(start, ReadMaxRows(self._draw.randint(1, 9)))
            if end == start and not self._waiting:
                return
            plan = f"v1\n{json.dumps({'time': self._draw.random()})}\n{json.dumps(end)}"
            self._disk.write(self._checkpoint / "offsets" / str(batch), plan.encode())
            if batch > 0:
                self._reader.commit(self._end(batch - 1))
            for log in ("offsets", "commits"):
                for name in (f"{batch - _KEPT_BATCHES}", f".{batch - _KEPT_BATCHES}.crc"):
                    (self._checkpoint / log / name).unlink(missing_ok=True)
            self._run(batch, start, end)

    def _newest(self, log: str) -> int:
        return max((int(path.name) for path in (self._checkpoint / log).glob("[0-9]*")), default=-1)

    def _end(self, batch: int) -> dict[str, Any]:
        if batch < 0:
            return self._reader.initialOffset()
        found: dict[str, Any] = json.loads(
            (self._checkpoint / f"offsets/{batch}").read_text().splitlines()[2]
        )
        return found

    def _run(self, batch: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        parts = self._reader.partitions(start, end)
        rows = [some for part in parts for some in self._reader.read(part)]
        if self._task is not None:
            rows = self._served(batch, rows)
        if self._output is not None:
            self._output.write(iter(rows), self._id, batch)
        else:
            self._write(rows, batch)
        self._disk.write(self._checkpoint / "commits" / str(batch), b'v1\n{"nextBatchWatermarkMs":0}')

    def _write(self, rows: list[pa.RecordBatch], batch: int) -> None:
        writer: Any = p_stream_source.PStreamDataSource(self._options).streamWriter(
            self._schema, overwrite=False
        )
        segments = writer._rows.write(rows, self._id, batch, 0)
        writer.commit([p_stream_sink._Written(self._id, self._id, batch, 0, segments)], batch)

    def _served(self, batch: int, rows: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        assert self._task is not None
        state = self._checkpoint / "state/0/0"
        pointer = None
        if batch > 0:
            version, file_id = json.loads((state / f"{batch}.delta").read_bytes())
            pointer = Pointer(Version(version), FileId(file_id))
        updates = [Update(one["key"], one["time"], one["value"]) for some in rows for one in some.to_pylist()]
        arrived = [Parcel(0, arrivals_of(STREAM, updates).to_batch())] if updates else []
        pointer, served, metrics = self._task.run(self._id, batch, 0, pointer, arrived, self._clock)
        assert pointer is not None
        self._waiting = metrics.waiting_keys
        self._disk.write(
            state / f"{batch + 1}.delta", json.dumps([pointer.version, pointer.file_id]).encode()
        )
        return served

    def _clock(self) -> int:
        return self._draw.randrange(10**9)


@contextlib.contextmanager
def _patched(disk: _Disk, *, broken: bool) -> Iterator[None]:
    """Route all writes and syncs to the disk."""
    publish, create, delete = _durable.publish, _durable.create, _durable.delete

    def ticking_publish(path: Path, *content: Any, **options: Any) -> None:
        disk.tick()
        publish(path, *content, **options)
        disk.tick()

    def noted_create(path: Path, *content: Any, **options: Any) -> None:
        disk.tick()
        create(path, *content, **options)
        disk.wrote(path)
        disk.tick()

    def ticking_delete(path: Path) -> None:
        disk.tick()
        delete(path)

    def nothing(_: Path | int | None = None) -> None:
        """Sync nothing."""

    sync = nothing if broken else disk.sync
    values: list[tuple[Any, str, Any]] = [
        (os, "fsync", lambda _: None),
        (_durable, "publish", ticking_publish),
        (_durable, "create", noted_create),
        (_durable, "sync_descriptor", sync),
        (FileSystem, "syncs_all", True),
        (_durable, "delete", ticking_delete),
        (_durable, "sync_file_system", sync),
        (_durable, "sync_everything", sync),
        (bucket_task, "_background", InlineExecutor),
    ]
    if broken:
        values.append((p_stream_sink, "_check_same_batch", lambda *_: None))
    with contextlib.ExitStack() as stack:
        for owner, name, value in values:
            stack.enter_context(patch.object(owner, name, value))
        yield


@contextlib.contextmanager
def _new_worker() -> Iterator[None]:
    with (
        patch.object(bucket_task, "_CACHE", StateCache(1 << 24)),
        patch.object(bucket_task, "_CHECKED", set()),
        patch.object(bucket_task, "_RELEASES", Releases()),
    ):
        yield


def run_case(
    place: Path, draw: random.Random, *, queue: bool, one_sync: bool = False, broken: bool = False
) -> int:
    """Run one query to its end, with power cuts; return how many there were.

    Raises
    ------
    AssertionError
        If rows were lost, came twice or went back.
    """
    disk = _Disk(draw)
    count = draw.randint(30, 120)
    updates = [Update(draw.randrange(_KEYS), n, draw.randrange(10**6)) for n in range(count)]
    cuts = 0
    with _patched(disk, broken=broken):
        with PStreamWriter(place / "source", STREAM.schema, threads=1) as writer:
            for at in range(0, count, 4):
                writer.append(pa.Table.from_batches([rows_of(STREAM, updates[at : at + 4])]))
                writer.flush()
        disk.rate = draw.choice([0.002, 0.01, 0.03])
        while True:
            try:
                with _new_worker():
                    repair_checkpoint(place / "checkpoint", dry_run=False)
                    _Spark(place, disk, draw, queue=queue, one_sync=one_sync).run()
                break
            except PowerCutError:
                disk.forget()
                cuts += 1
                disk.rate = disk.rate if cuts < _MAX_CUTS else 0.0
    found = PStreamReader(place / "sink").read().to_pylist()
    pairs = [(row["key"], row["time"], row["value"]) for row in found]
    if not queue:
        assert pairs == [(u.key, u.time, u.value) for u in updates], (
            f"{len(pairs)} rows of {count}, or others"
        )
        return cuts
    last: dict[int, int] = {}
    for key, time, value in pairs:
        assert updates[time] == Update(key, time, value), "no such row"
        assert time > last.get(key, -1), f"key {key} went back to {time} after {last[key]}"
        last[key] = time
    assert last == {u.key: u.time for u in updates}, "the newest row of a key never came out"
    return cuts
