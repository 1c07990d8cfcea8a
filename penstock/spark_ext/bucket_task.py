"""What a Python worker does for one bucket in one micro-batch: state in, operator, state out.

The pointer protocol. Spark's ``GroupState`` of a bucket holds only a pointer to the newest file of
Penstock's own state. A task 1. takes the state at the pointer, 2. releases what the pointer's arrival
proves unnecessary, 3. runs the operator, 4. commits a new immutable version under an id that no other
attempt has, and 5. hands the new pointer to Spark, which commits it with the batch. Whichever attempt
Spark commits wins; the files of others are orphans that no pointer reaches.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock._clock import Clock, monotonic_s
from penstock._failpoints import failpoint
from penstock.checkpointing import PUnit, decode, encode
from penstock.checkpointing.files import Files, open_files
from penstock.errors import ConflictError, CorruptDataError, InvalidUsageError
from penstock.operators.arrivals import Arrivals, conflate
from penstock.operators.key_queue import Policy
from penstock.operators.metrics import BatchMetrics
from penstock.operators.serve import Budget, Query, serve
from penstock.operators.stream import UpdateStream
from penstock.operators.update_queue import UpdateQueue
from penstock.state_store.bucket_store import RETAIN_VERSIONS, BucketStore, Pointer
from penstock.state_store.cache import StateCache

__all__ = ["SPECIFICATION_FILE", "BucketTask", "Parcel"]

_CACHE_BYTES = 1 << 30
_HELD_BYTES = 256 << 20
_CACHE: StateCache[UpdateQueue] = StateCache(_CACHE_BYTES)
SPECIFICATION_FILE = "operator.punit"
"""The file of an operator that says what must not change while its checkpoint lives."""

_CHECKED: set[tuple[str, str]] = set()


@functools.cache
def _background() -> Executor:
    """Return the thread that writes snapshots and sweeps: one a worker, made by the first task."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-state")


def _specification_in(files: Files) -> Mapping[str, Any] | None:
    try:
        content = files.read(SPECIFICATION_FILE)
    except FileNotFoundError:
        return None
    return decode(content, files.path_of(SPECIFICATION_FILE)).meta


@dataclass(frozen=True, slots=True)
class Parcel:
    """Rows of one bucket, as one task of the map side packed them.

    Attributes
    ----------
    dropped : int
        Unusable rows that this parcel stands for.
    batch : pyarrow.RecordBatch or None
        Arrivals (`penstock.operators.arrivals`), if there are any.
    """

    dropped: int
    batch: pa.RecordBatch | None


@dataclass(frozen=True)
class BucketTask:
    """An update queue as its buckets' tasks see it. Made on the driver, sent to the workers.

    Parameters
    ----------
    name : str
        The operator's name, the same at every restart.
    state_location : str
        The directory that holds the state of all queries: an absolute path or a URI.
    stream, policy, cost_us, query, budget
        See `UpdateQueue` and `serve`; the budget is that of all buckets together.
    buckets : int
        Number of buckets.
    parallel : int
        How many buckets are served at the same time: Spark's shuffle partitions.
    columns : tuple of str
        Names and Spark types of the input's columns, for the check at a restart.
    retain_versions : int
        How many versions of the state stay loadable.
    """

    name: str
    state_location: str
    stream: UpdateStream
    policy: Policy
    cost_us: float | None
    query: Query
    budget: Budget
    buckets: int
    parallel: int
    columns: tuple[str, ...]
    retain_versions: int = RETAIN_VERSIONS

    def run(
        self,
        query_id: str,
        batch_id: int,
        bucket: int,
        pointer: Pointer | None,
        parcels: Iterable[Parcel],
        clock: Clock,
    ) -> tuple[Pointer | None, list[pa.RecordBatch], BatchMetrics]:
        """Run one bucket of one micro-batch; return its new pointer, the rows to emit and metrics.

        Raises
        ------
        InvalidUsageError
            If the checkpoint was made with other settings, or `apply` misbehaves.
        CorruptDataError
            If the state is damaged or missing.
        UnavailableError
            If the state cannot be read or written.
        """
        begin = monotonic_s()
        files = open_files(self.state_location).child(query_id).child(self.name)
        self._check_specification(files, pointer)
        store = BucketStore(
            files.child(f"{bucket:05d}"),
            retain_versions=self.retain_versions,
            background=_background(),
        )
        found = _CACHE.take(store, pointer, self._new_queue)
        if not store.release(found.handle) and found.loads:
            # Whoever had the bucket before may have died and left something.
            store.sweep_later(found.handle)
        loaded = monotonic_s()
        queue = found.state
        queue.given_cost_us = self._cost_us()
        arrivals, dropped = self._arrivals(parcels)
        batches, metrics = serve(
            queue, arrivals, query=self.query, budget=self._share(bucket, batch_id), clock=clock,
            turns=self._turns(),
        )  # fmt: skip
        metrics.dropped = dropped
        metrics.rows_in += dropped
        served = monotonic_s()
        handle = store.commit(queue, found.handle)
        failpoint("operator.after_commit")
        _CACHE.put(store, queue, handle)
        metrics.duration_ms["load"] = 1000 * (loaded - begin)
        metrics.duration_ms["commit"] = 1000 * (monotonic_s() - served)
        metrics.state_bytes_written = handle.written_since(found.handle)
        metrics.state_bytes = queue.size_bytes
        metrics.hits, metrics.catch_ups, metrics.loads = found.hits, found.catch_ups, found.loads
        return handle.pointer, batches, metrics

    def _new_queue(self) -> UpdateQueue:
        return UpdateQueue(self.stream, self.policy)

    def _turns(self) -> int:
        """Return how many buckets share one of Spark's parallel tasks."""
        return -(-self.buckets // min(self.parallel, self.buckets))

    def _cost_us(self) -> float | None:
        """Return the given cost of a tuple as one bucket sees it, which waits for the others' turns."""
        return None if self.cost_us is None else self.cost_us * self._turns()

    def _arrivals(self, parcels: Iterable[Parcel]) -> tuple[Arrivals | None, int]:
        """Return what arrives, conflated as far as memory asks for it, and how many rows were dropped.

        Parcels come in any order: their rows carry their positions.
        """
        dropped = size_bytes = 0
        held: list[Arrivals] = []
        for parcel in parcels:
            dropped += parcel.dropped
            if parcel.batch is None:
                continue
            held.append(Arrivals.from_batch(parcel.batch, self.stream.schema))
            size_bytes += parcel.batch.nbytes
            if size_bytes > _HELD_BYTES:
                held, size_bytes = [conflate(self.stream, Arrivals.concat(held))], 0
        return (Arrivals.concat(held) if held else None), dropped

    def _share(self, bucket: int, batch_id: int) -> Budget:
        """Return the bucket's share of the budget.

        Rows are dealt out so that the shares add up to the budget; who gets one more rotates with the
        batch. Buckets of one partition are served one after the other, so they divide its time.
        """
        rows, duration = self.budget.rows, self.budget.duration_us
        if rows is not None:
            rows = (rows + (bucket + batch_id) % self.buckets) // self.buckets
        if duration is not None:
            duration = max(duration * min(self.parallel, self.buckets) // self.buckets, 1)
        return Budget(rows, duration)

    def _specification(self) -> dict[str, Any]:
        """Return what must not change while a checkpoint lives."""
        return {
            "buckets": self.buckets,
            "key": list(self.stream.key),
            "time": self.stream.time,
            "arrival": self.stream.arrival,
            "policy": str(self.policy),
            "schema": list(self.columns),
            # Spark's own state has another schema with timeouts, which a budget needs.
            "budget": "some" if self.budget != Budget() else "none",
        }

    def _check_specification(self, files: Files, pointer: Pointer | None) -> None:
        """Compare these settings with those that the checkpoint was made with, once per process."""
        ours = json.dumps(self._specification(), sort_keys=True)
        mark = (files.location, hashlib.sha256(ours.encode()).hexdigest())
        if mark in _CHECKED:
            return
        path = files.path_of(SPECIFICATION_FILE)
        theirs = _specification_in(files)
        if theirs is None and pointer is None:
            # If another task was faster, we compare with what it wrote.
            with contextlib.suppress(ConflictError):
                files.publish(SPECIFICATION_FILE, encode(PUnit("operator", self._specification())))
            theirs = _specification_in(files)
        if theirs is None:
            raise CorruptDataError(
                "the state of this checkpoint is missing",
                file=path,
                hint="restore the state location, or start with a new checkpoint",
            )
        for name, value in self._specification().items():
            if theirs.get(name) != value:
                raise InvalidUsageError(
                    f"the checkpoint was made with another {name}",
                    operator=self.name,
                    was=json.dumps(theirs.get(name)),
                    now=json.dumps(value),
                    file=path,
                    hint="set it back, or start with a new checkpoint",
                )
        _CHECKED.add(mark)
