"""The task of a Python worker for one bucket in one micro-batch: state in, operator, state out.

The pointer protocol. Spark's ``GroupState`` of a bucket holds only a pointer to the newest file of Penstock's
own state. A task 1. takes the state at the pointer, 2. schedules the deletion of the files that this pointer
makes unnecessary (they are deleted once Spark's commit of the pointer is durable), 3. runs the operator, 4.
commits a new immutable version under a unique id, and 5. returns the new pointer to Spark, which commits it
with the batch. The attempt that Spark commits wins; files of other attempts are orphans that no pointer
reaches. If an operator follows the clock, all attempts use the times recorded by the first attempt that
finished step 3.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from penstock._clock import Clock, monotonic_s
from penstock._failpoints import failpoint
from penstock.checkpointing import PUnit, encode
from penstock.checkpointing.files import Files, open_files
from penstock.checkpointing.releases import Releases
from penstock.checkpointing.trace import is_traced, trace
from penstock.errors import ConflictError, CorruptDataError, InternalError, PenstockError
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.update_stream.deletes import adds_deletes
from penstock.state_store.bucket_store import RETAIN_VERSIONS, BucketStore, Handle, Pointer
from penstock.state_store.cache import CachedState, LoadedState, StateCache
from penstock.state_store.clock_record import ClockRecord, Readings, RecordedClock
from penstock.state_store.descriptions import add_columns, changed_setting_error, find_added, read_description
from penstock.state_store.location import QUERY_NAME, SPECIFICATION_FILE
from penstock.state_store.snapshot_rule import SnapshotRule

__all__ = [
    "SPECIFICATION_FILE",
    "BucketTask",
    "Operator",
    "Parcel",
    "TaskShare",
    "missing_state_error",
]

_LOGGER = logging.getLogger(__name__)

S = TypeVar("S", bound=CachedState)

_CACHE_BYTES = 1 << 30
_CACHE: StateCache[Any] = StateCache(_CACHE_BYTES)
_RELEASES = Releases()

_CHECKED: set[tuple[str, str]] = set()
_SERVED: dict[str, str] = {}
"""The run of the query for which this process last served each bucket, by the bucket's location."""


@functools.cache
def _background() -> Executor:
    """Return the worker's background thread for snapshots and sweeps; the first task starts it."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-state")


def _release(store: BucketStore, held: Handle) -> None:
    """In the background, delete the files that `held` makes unnecessary, once Spark's commit is durable."""

    def delete() -> None:
        if not store.release(held):
            store.sweep_later(held)

    _RELEASES.add(store.files.location, delete)
    try:
        _RELEASES.run()
    except PenstockError as error:
        _LOGGER.warning("garbage stays [location=%s error=%s]", store.files.location, error)


@dataclass(frozen=True, slots=True)
class Parcel:
    """Rows of one bucket, as one task of the map side packed them.

    Attributes
    ----------
    dropped : int
        The number of unusable rows that this parcel reports.
    batch : pyarrow.RecordBatch or None
        The operator's input, if any: arrivals for an update queue
        (`penstock.operators.update_stream.arrivals`), entries for windows (`penstock.windows`).
    side : int
        The number of the input, if the operator has several.
    """

    dropped: int
    batch: pa.RecordBatch | None
    side: int = 0


@dataclass(frozen=True, slots=True)
class TaskShare:
    """The part of a micro-batch to run.

    Attributes
    ----------
    bucket, buckets : int
        The bucket, and the number of buckets.
    batch_id : int
        The micro-batch.
    served_at_once : int
        The number of buckets that are served at the same time.
    description : callable
        Returns the operator's stored description, which the first start wrote.
    query_id : str
        The query.
    other_attempts : callable
        Returns the facts that other attempts at this micro-batch have stored with their state. Returns
        nothing if this process has already served the bucket in this run of the query, because no other run
        can have made a later attempt.
    """

    bucket: int
    buckets: int
    batch_id: int
    served_at_once: int
    description: Callable[[], Mapping[str, Any]] = dict
    query_id: str = ""
    other_attempts: Callable[[], Iterable[Mapping[str, Any]]] = tuple

    @property
    def buckets_per_task(self) -> int:
        """The number of buckets that are served one after the other."""
        return -(-self.buckets // min(self.served_at_once, self.buckets))


class Operator(Protocol[S]):
    """The operator of a bucket's task. The driver makes this object and sends it to workers."""

    def specification(self) -> dict[str, Any]:
        """Return the settings that are fixed for the life of a checkpoint, as JSON values."""

    @property
    def follows_clock(self) -> bool:
        """Return whether the output also depends on the clock."""

    def new_state(self) -> S:
        """Return an empty state."""

    def run(
        self, state: S, parcels: Iterable[Parcel], task_share: TaskShare, clock: Clock
    ) -> tuple[list[pa.RecordBatch], BatchMetrics]:
        """Apply arrivals to the state; return the rows to emit, and metrics without the state's metrics."""


@runtime_checkable
class GrowingOperator(Protocol):
    """An operator that accepts new input columns at a restart, which are null in stored tuples."""

    @property
    def may_add(self) -> Mapping[str, Collection[str]]:
        """The columns that a restart may add, as "name type", for each setting that lists columns."""


@dataclass(frozen=True)
class BucketTask(Generic[S]):
    """The task of a stateful operator's buckets. The driver makes this object and sends it to workers.

    Parameters
    ----------
    name : str
        The operator's name, the same at every restart.
    state_location : str
        The directory that holds the state of all queries: an absolute path or a URI.
    operator : Operator
        The operator to run.
    buckets : int
        Number of buckets.
    parallel : int
        The number of Spark's shuffle partitions, each of which serves its buckets one after the other.
    retain_versions : int
        The number of versions of the state that stay loadable.
    snapshots : SnapshotRule
        The rule for snapshots of a bucket's state.
    sweep_batches : int
        The number of micro-batches between two syncs and sweeps of a bucket's directory.
    origin : mapping
        Facts about this start of the query, as JSON values. Only the facts of the first start are stored,
        with the operator's description.
    processors : int, optional
        The number of processors that serve the shuffle partitions, if known.
    """

    name: str
    state_location: str
    operator: Operator[S]
    buckets: int
    parallel: int
    retain_versions: int = RETAIN_VERSIONS
    snapshots: SnapshotRule = field(default_factory=SnapshotRule)
    sweep_batches: int = 16
    origin: Mapping[str, Any] = field(default_factory=dict)
    processors: int | None = None

    def run(
        self,
        query_id: str,
        batch_id: int,
        bucket: int,
        pointer: Pointer | None,
        parcels: Iterable[Parcel],
        clock: Clock,
        query_name: str | None = None,
        run_id: str | None = None,
    ) -> tuple[Pointer | None, list[pa.RecordBatch], BatchMetrics]:
        """Run one bucket of one micro-batch; return its new pointer, the rows to emit and metrics.

        The query's name is stored with the operator's description, for people who inspect the state. The run
        identifies one start of the query.

        Raises
        ------
        InvalidUsageError
            If the checkpoint was made with different settings, or the operator's user code misbehaves.
        CorruptDataError
            If the state is damaged or missing.
        UnavailableError
            If the state cannot be read or written.
        """
        served = self.serve(query_id, batch_id, bucket, pointer, parcels, clock, query_name, run_id)
        served.publish()
        return served.finish(), served.batches, served.metrics

    def serve(
        self,
        query_id: str,
        batch_id: int,
        bucket: int,
        pointer: Pointer | None,
        parcels: Iterable[Parcel],
        clock: Clock,
        query_name: str | None = None,
        run_id: str | None = None,
        recorded: Readings | None = None,
    ) -> ServedBucket[S]:
        """Run one bucket as `run` does, or repeat a recorded run; let the caller publish the new version."""
        begin = monotonic_s()
        files = open_files(self.state_location).child(query_id).child(self.name)
        self._check_specification(files, pointer, query_name)
        store = BucketStore(
            files.child(f"{bucket:05d}"),
            retain_versions=self.retain_versions,
            background=_background(),
            snapshots=self.snapshots,
        )
        place = {"location": store.files.location, "batch": batch_id}
        trace("arrived", **place, file=pointer and pointer.file_name)
        held = _CACHE.take(store, pointer, self.operator.new_state)
        try:
            # The previous owner of the bucket may have died and left files.
            has_garbage = held.loads or held.handle.releasable_files(self.retain_versions)
            if has_garbage or self._sweeps(bucket, batch_id):
                _background().submit(_release, store, held.handle)
            loaded = monotonic_s()
            task_share = TaskShare(
                *(bucket, self.buckets, batch_id),
                min(self.parallel, self.processors or self.parallel),
                lambda: read_description(files) or {},
                query_id,
                tuple
                if run_id is not None and _SERVED.get(store.files.location) == run_id
                else functools.partial(store.attempts_after, held.handle),
            )
            if self.operator.follows_clock:
                batches, metrics = self._run_recorded(store, held, parcels, task_share, clock, recorded)
            else:
                batches, metrics = self.operator.run(held.state, parcels, task_share, clock)
        except BaseException:
            # A failed attempt may have changed the state.
            held.state.close()
            raise
        metrics.duration_ms["load"] = 1000 * (loaded - begin)
        return ServedBucket(self.name, query_id, batch_id, bucket, run_id, store, held, batches, metrics)

    def _sweeps(self, bucket: int, batch_id: int) -> bool:
        """Return whether to sync and sweep now.

        A sweep deletes old clock records. A sync is needed because Spark deletes old files of its log even if
        newer files are not durable yet.
        """
        if self.operator.follows_clock:
            return (batch_id + bucket) % self.sweep_batches == 0
        return bucket == 0 and batch_id % self.sweep_batches == 0

    def _run_recorded(
        self,
        store: BucketStore,
        held: LoadedState[S],
        parcels: Iterable[Parcel],
        task_share: TaskShare,
        clock: Clock,
        recorded: Readings | None,
    ) -> tuple[list[pa.RecordBatch], BatchMetrics]:
        """Repeat the recorded attempt at a micro-batch; if there is none, run the operator and record."""
        record = ClockRecord(store.files, held.handle)
        parcels = list(parcels)  # the operator may run a second time
        recorded = recorded or record.read()
        if recorded is None:
            heard = RecordedClock(clock)
            served = self.operator.run(held.state, parcels, task_share, heard)
            try:
                record.publish(Readings(heard.readings, task_share.served_at_once))
                return served
            except ConflictError:
                # Another attempt recorded first, and its output may have been seen.
                held.state.close()
                held.replace_with(_CACHE.take(store, held.handle.pointer, self.operator.new_state))
                recorded = record.read() or Readings([], task_share.served_at_once)
        task_share = replace(task_share, served_at_once=recorded.served_at_once or self.parallel)
        return self.operator.run(held.state, parcels, task_share, RecordedClock(clock, recorded.times_us))

    def specification(self) -> dict[str, Any]:
        """Return the settings that are fixed for the life of a checkpoint."""
        return {"buckets": self.buckets, **self.operator.specification()}

    def _check_specification(self, files: Files, pointer: Pointer | None, query_name: str | None) -> None:
        """Compare these settings with the checkpoint's, once per process."""
        mark = (files.location, json.dumps(self.specification(), sort_keys=True))
        if mark in _CHECKED:
            return
        path = files.path_of(SPECIFICATION_FILE)
        theirs = read_description(files)
        if theirs is None and pointer is None:
            # If another task wrote first, compare with its file.
            with contextlib.suppress(ConflictError):
                described = self.specification() | dict(self.origin)
                described |= {QUERY_NAME: query_name} if query_name else {}
                files.publish(SPECIFICATION_FILE, encode(PUnit("operator", described)))
            theirs = read_description(files)
        if theirs is None:
            raise missing_state_error(path)
        if added := self.check_same(theirs, path):
            add_columns(files, {name: self.specification()[name] for name in added})
            self.check_same(read_description(files) or {}, path)
        # Cached states of an earlier start may lack columns.
        _CACHE.forget(files.location)
        _CHECKED.add(mark)

    def check_known(self, query_id: str, *, in_graph: bool = False) -> bool:
        """Check these settings, as `check_same` does, against a query; return whether the query has state."""
        files = open_files(self.state_location).child(query_id).child(self.name)
        theirs = read_description(files)
        if theirs is not None:
            self.check_same(theirs, files.location, in_graph=in_graph)
        return theirs is not None

    def check_same(self, theirs: Mapping[str, Any], path: str, *, in_graph: bool = False) -> list[str]:
        """Check that a checkpoint was made with the same settings; return the settings with added columns.

        The error of a graph's checkpoint does not suggest a copy.

        Raises
        ------
        InvalidUsageError
            If the settings differ.
        """
        growing = self.operator.may_add if isinstance(self.operator, GrowingOperator) else {}
        more = []
        for name, value in self.specification().items():
            if theirs.get(name) == value:
                continue
            if name in growing and find_added(theirs.get(name) or (), value, growing[name]):
                more.append(name)
            else:
                # The value may be the user's `compatible_with`, so show the digest of the program.
                now = getattr(self.operator, "digest", value) if name == "program" else value
                setting = "delete_when" if adds_deletes(theirs.get(name), value) else name
                facts: Any = {"operator": self.name, "file": path, "may_add": growing.get(setting)}
                raise changed_setting_error(setting, theirs.get(name), now, in_graph=in_graph, **facts)
        return more


@dataclass
class ServedBucket(Generic[S]):
    """A served bucket of a micro-batch, whose new version is not stored yet.

    Call `publish` on any thread, and then `finish`, which completes the metrics. After an error, call `close`
    instead.
    """

    name: str
    query_id: str
    batch_id: int
    bucket: int
    run_id: str | None
    store: BucketStore
    held: LoadedState[S]
    batches: list[pa.RecordBatch]
    metrics: BatchMetrics
    _handle: Handle | None = None

    def publish(self) -> None:
        """Make the new version durable; raise an `UnavailableError` if it cannot be written."""
        begin = monotonic_s()
        store, held = self.store, self.held
        try:
            handle = store.commit(held.state, held.handle)
            if is_traced():
                chain = [link.pointer.file_name for link in handle.links]
                trace("checkpointed", location=store.files.location, batch=self.batch_id, chain=chain)
            failpoint("operator.after_commit")
            self.metrics.state_bytes = held.state.size_bytes
        except BaseException:
            self.close()
            raise
        self.metrics.duration_ms["commit"] = 1000 * (monotonic_s() - begin)
        self._handle = handle

    def finish(self) -> Pointer | None:
        """Keep the state for the next micro-batch; return the pointer of the new version."""
        handle, held, metrics = self._handle, self.held, self.metrics
        if handle is None:
            raise InternalError("a version is not published")
        _CACHE.put(self.store, held.state, handle)
        if self.run_id is not None:
            _SERVED[self.store.files.location] = self.run_id
        metrics.state_bytes_written = handle.bytes_since(held.handle)
        metrics.hits, metrics.catch_ups, metrics.loads = held.hits, held.catch_ups, held.loads
        _LOGGER.info(
            "state written [query=%s operator=%s batch=%d bucket=%d version=%d bytes=%d]",
            self.query_id, self.name, self.batch_id, self.bucket,
            handle.links[-1].pointer.version, metrics.state_bytes_written,
        )  # fmt: skip
        return handle.pointer

    def close(self) -> None:
        """Drop the state, which a failed attempt may have changed."""
        self.held.state.close()


def missing_state_error(path: str) -> CorruptDataError:
    """Return the error for a checkpoint with pointers to state but no file that describes the operator."""
    return CorruptDataError(
        "the state of this checkpoint is missing",
        file=path,
        hint="restore the state location, or start with a new checkpoint",
    )
