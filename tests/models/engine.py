"""A query of a graph in micro-batches, with the runtime's own classes but without Spark, killed anywhere.

It takes Spark's steps: it logs offsets, plans, runs the tasks of each bucket, commits the sink, keeps the
pointers, logs the commit, and tells the source. A kill drops all objects; files on disk stay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import obstore
import pyarrow as pa
import pytest

from penstock import _durable, _failpoints
from penstock._clock import Clock
from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.p_stream import PStreamWriter
from penstock.checkpointing.p_stream.stream import PStream
from penstock.checkpointing.releases import Releases
from penstock.checkpointing.trace import trace, tracing
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.types import spark_schema
from penstock.spark_ext.graph.recovery import GraphRecovery, QueryStreams
from penstock.spark_ext.graph.state import StatePlace
from penstock.spark_ext.sources import p_stream_sink
from penstock.spark_ext.sources.p_stream_options import WriteOptions
from penstock.spark_ext.sources.p_stream_source import PStreamDataSource
from penstock.spark_ext.state_reader.spark_state import SPARK_OPERATOR
from penstock.spark_ext.worker import bucket_task
from penstock.spark_ext.worker.bucket_task import BucketTask, Parcel, TaskShare
from penstock.state_store.bucket_store import FileId, Pointer, Version
from penstock.state_store.cache import StateCache
from tests.checkpoints.states import DictState, InlineExecutor

__all__ = ["Engine", "Killed", "stroll"]

SCHEMA = pa.schema({"n": pa.int64()})
_QUERY_ID, _GRAPH, _BUCKETS = "0b3c", "graph", 2


class Killed(BaseException):
    """The process is killed here. No code of the process catches this."""


class KillPoints(dict[str, str]):
    """Fail points, each of which kills at random."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw

    def get(self, name: str, default: Any = None) -> Any:
        if self.draw.random() < 0.005:
            raise Killed(name)
        return default


class Remember:
    """An operator that keeps its rows, and emits them."""

    follows_clock = False

    def specification(self) -> dict[str, Any]:
        return {}

    def new_state(self) -> DictState:
        return DictState()

    def run(
        self, state: DictState, parcels: Iterable[Parcel], task_share: TaskShare, clock: Clock
    ) -> tuple[list[pa.RecordBatch], BatchMetrics]:
        batches = [parcel.batch for parcel in parcels if parcel.batch is not None]
        for batch in batches:
            for n in batch["n"].to_pylist():
                state[n % 20] = Random(n).randbytes(4000)
        return batches, BatchMetrics()


class Engine:
    """One query: a p-stream, an operator with state, and a p-stream."""

    def __init__(self, place: Path, data: str, draw: Random) -> None:
        self.data, self.draw = data, draw
        self.directory = GraphDirectory(place / "checkpoint")
        self.logs = place / "checkpoint" / "queries" / "results"
        self.task = BucketTask("rows", f"{data}/state", Remember(), _BUCKETS, _BUCKETS)

    def append(self, commits: int) -> None:
        """Append rows to the source, each part as a commit."""
        with PStreamWriter(f"{self.data}/source", SCHEMA, threads=1, interval="1ms") as writer:
            at = writer.clock.get("n", 0)
            for _ in range(commits):
                end = at + self.draw.randint(1, 4)
                writer.append(pa.table({"n": range(at, end)}, SCHEMA), clock={"n": end})
                writer.flush()
                at = end

    def kill_sometimes(self) -> None:
        if self.draw.random() < 0.03:
            raise Killed

    def log(self, name: str, batch: int, *lines: object) -> None:
        (self.logs / name).mkdir(parents=True, exist_ok=True)
        (self.logs / name / str(batch)).write_text("\n".join(["v1", *map(json.dumps, lines)]))

    def pointers(self, batch: int) -> dict[int, Pointer]:
        """Return the pointers in Spark's state of the operator before a micro-batch."""
        file = self.logs / "pointers" / str(batch - 1)
        found = json.loads(file.read_text().splitlines()[1]) if batch else {}
        return {int(bucket): Pointer(Version(one[0]), FileId(one[1])) for bucket, one in found.items()}

    def start(self) -> None:
        """Start the query, or recover it."""
        source = f"{self.data}/source"
        reads = {"results": {"reads": [[source, _GRAPH]], "writes": None, "state": "rows"}}
        trace("graph", graph=_GRAPH, queries=reads)
        if (self.logs / "metadata").exists():
            labels = bucket_labels(_BUCKETS)
            committed = self.directory.progress("results").committed
            held = {0: {labels[bucket]: one for bucket, one in self.pointers(committed + 1).items()}}
            queries = [QueryStreams("results", (source,), StatePlace(f"{self.data}/state", "rows"))]
            GraphRecovery(_GRAPH, self.directory, queries, held_by_spark=lambda _: held)
        else:
            # Spark's state is of a kind that only Spark reads: `held_by_spark` is asked.
            known = {"operatorInfo": {"operatorName": SPARK_OPERATOR}, "stateStoreInfo": [{"storeName": "?"}]}
            metadata = self.logs / "state" / "0" / "_metadata"
            metadata.mkdir(parents=True)
            (metadata / "metadata").write_text(f"v1\n{json.dumps(known)}")
            (self.logs / "metadata").write_text(json.dumps({"id": _QUERY_ID}))
        PStream(source).subscribe(_GRAPH)
        made = PStreamDataSource({"path": source, "reader": _GRAPH, "maxRows": "9"})
        self.reader: Any = made.streamReader(made.schema())
        progress = self.directory.progress("results")
        self.batch = progress.committed + 1
        self.is_planned = progress.planned > progress.committed
        self.at = self.reader.initialOffset()
        if self.batch:
            self.at = self.offsets(self.batch - 1)

    def offsets(self, batch: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.logs / "offsets" / str(batch)).read_text().splitlines()[2])
        return found

    def run_batch(self) -> None:
        """Run one micro-batch as Spark does."""
        self.kill_sometimes()
        if self.is_planned:
            end = self.offsets(self.batch)
        else:
            end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
            self.log("offsets", self.batch, {}, end)
        self.is_planned = False
        self.kill_sometimes()
        if self.batch:
            self.reader.commit(self.at)
        self.kill_sometimes()
        tables = [
            pa.Table.from_batches([rows]).combine_chunks()
            for partition in self.reader.partitions(self.at, end)
            for rows in self.reader.read(partition)
        ]
        rows = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
        pointers = self.pointers(self.batch)
        results: list[pa.RecordBatch] = []
        for bucket in self.draw.sample(range(_BUCKETS), _BUCKETS):
            mine = [n for n in rows["n"].to_pylist() if n % _BUCKETS == bucket]
            parcels = [Parcel(0, pa.record_batch({"n": mine}, SCHEMA))]
            made, batches = None, list[pa.RecordBatch]()
            for _ in range(self.draw.choice([1, 1, 1, 2])):  # an attempt may come twice
                self.kill_sometimes()
                made, batches, _ = self.task.run(
                    _QUERY_ID, self.batch, bucket, pointers.get(bucket), parcels, lambda: 0
                )
            assert made is not None
            results += batches
            pointers[bucket] = made
        self.kill_sometimes()
        self.show(results)
        self.kill_sometimes()
        self.log("pointers", self.batch, {b: [one.version, one.file_id] for b, one in pointers.items()})
        self.log("commits", self.batch, {})
        self.batch, self.at = self.batch + 1, end

    def show(self, results: list[pa.RecordBatch]) -> None:
        options = WriteOptions.parse({"path": f"{self.data}/out"})
        writer = p_stream_sink.StreamWriter(options, spark_schema(SCHEMA), overwrite=False)
        assert writer._rows is not None
        segments = writer._rows.write(results, _QUERY_ID, self.batch, 0)
        self.kill_sometimes()
        writer.commit([p_stream_sink._Written(_QUERY_ID, _QUERY_ID, self.batch, 0, segments)], self.batch)


def stroll(
    place: Path,
    seed: int,
    patch: pytest.MonkeyPatch,
    *,
    steps: int = 50,
    events: list[dict[str, Any]] | None = None,
    data: str | None = None,
) -> list[dict[str, Any]]:
    """Run a query with kills at moments drawn from `seed`; return the trace, or add it to `events`.

    State and p-streams are in `data`, for example in an object store, or by default in `place`.
    """
    events = [] if events is None else events
    draw = Random(seed)
    data = str(place) if data is None else data
    engine = Engine(place, data, draw)
    # A kill takes nothing that was written, so nothing is synced.
    patch.setattr(_durable, "sync_everything", lambda: None)
    patch.setattr(os, "fsync", lambda _: None)
    patch.setattr(_failpoints, "_ARMED", KillPoints(draw))
    put = obstore.put

    def put_or_die(*arguments: Any, **options: Any) -> Any:
        """Create an object, unless the process is killed before that, or before the reply comes."""
        if draw.random() < 0.005:
            raise Killed("before an object")
        made = put(*arguments, **options)
        if draw.random() < 0.005:
            raise Killed("after an object")
        return made

    patch.setattr(obstore, "put", put_or_die)
    patch.setattr(bucket_task, "_background", InlineExecutor)
    with tracing(lambda event: events.append(json.loads(json.dumps(event)))):
        PStream(f"{data}/source", SCHEMA)
        down = True
        for _ in range(steps):
            try:
                engine.append(draw.choice([0, 1, 1, 3]))
                if down:
                    patch.setattr(bucket_task, "_CACHE", StateCache(1 << 30))
                    patch.setattr(bucket_task, "_RELEASES", Releases())
                    engine.start()
                    down = False
                engine.run_batch()
            except Killed:
                down = True
    return events
