"""Run an operator with state bucket by bucket in this process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from penstock._clock import Clock, now_us
from penstock.errors import InternalError
from penstock.local_engine.query_log import Offset
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.operators.update_stream.operator_options import QueueOptions, WindowOptions
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.parcels import from_parcel, to_parcels
from penstock.spark_ext.worker.bucket_task import BucketTask, Operator, Parcel, ServedBucket
from penstock.spark_ext.worker.stateful import Stateful
from penstock.state_store.bucket_store import Pointer
from penstock.state_store.clock_record import Readings

if TYPE_CHECKING:
    from penstock.spark_ext.forwarding.coordinator import Coordinator

__all__ = ["LocalOperator", "MicroBatch", "Rows"]

_MAX_UNPUBLISHED: Final = 4
"""The maximum number of buckets whose new versions are not durable yet. Their states are in memory."""


@dataclass(slots=True)
class MicroBatch:
    """One micro-batch of a local query.

    Parameters
    ----------
    number : int
        The micro-batch's number.
    query, query_name, run : str
        The query's id, its name, and an id of this start.
    starts, ends : sequence of Offset
        For each input of the query, the offsets between which the micro-batch reads.
    clock : Clock
        The clock that operators read.
    wakes : bool
        Whether buckets that may have waiting keys run even without rows.
    clocks : mapping of int to Clock
        Clocks that replace `clock` in single buckets, by the bucket's number.
    recorded : mapping of int to Readings
        The records of earlier runs of the micro-batch that buckets repeat, by the bucket's number.
    metrics : list of BatchMetrics
        The metrics of the buckets that have run so far.
    bad_records : int
        The number of records that could not be read so far.
    on_served : callable
        A function that is called with the metrics of all buckets, before the sink gets the last results.
    """

    number: int
    query: str
    query_name: str
    run: str
    starts: list[Offset | None]
    ends: list[Offset | None]
    clock: Clock = now_us
    wakes: bool = False
    clocks: Mapping[int, Clock] = field(default_factory=dict)
    recorded: Mapping[int, Readings] = field(default_factory=dict)
    metrics: list[BatchMetrics] = field(default_factory=list)
    bad_records: int = 0
    on_served: Callable[[Sequence[BatchMetrics]], None] = lambda metrics: None


Rows: TypeAlias = Callable[[MicroBatch], Iterator[pa.RecordBatch]]
"""A function that returns the rows of a micro-batch."""


class LocalOperator:
    """An operator with state in a local query. It runs one task for each bucket.

    Parameters
    ----------
    place : Stateful
        The operator's name, its buckets, and the location of its state.
    operator : Operator
        The operator, which Spark's workers run as well.
    parcels : callable
        A function that returns the input of a micro-batch in parcels: binary values that each hold rows of
        one bucket.
    output : pyarrow.Schema
        The columns of the results.
    waits : bool
        Whether keys may wait for later micro-batches.
    origin : mapping, optional
        Facts of this start; see `BucketTask`.
    coordinator : Coordinator, optional
        The coordinator that runs the transactions that buckets export. A bucket that exports transactions
        gets two versions per micro-batch, so twice as many versions are kept.
    publishes_first : bool
        Whether new versions are durable before the sink gets results. An operator needs this if it looks for
        other attempts at a micro-batch, or if its state comes from user code, which may fail.

    Attributes
    ----------
    pointers : dict of int to Pointer
        The newest committed version of each bucket with state, by label.
    waiting : set of int
        The labels of buckets in which keys wait.
    promised_s : dict of str to float
        The staleness that a freshness contract promises to each class of keys, in seconds.
    """

    def __init__(
        self,
        place: Stateful,
        operator: Operator[Any],
        parcels: Rows,
        output: pa.Schema,
        *,
        waits: bool,
        origin: Mapping[str, Any] | None = None,
        coordinator: Coordinator | None = None,
        publishes_first: bool = False,
    ) -> None:
        versions = place.retain_versions * (1 if coordinator is None else 2)
        self.task = BucketTask(
            *(place.name, place.state_location, operator, place.buckets, place.parallel, versions),
            origin=origin or {},
            processors=1,
        )
        self._coordinator = coordinator
        self._publishes_first = publishes_first or coordinator is not None
        self._publisher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-publish")
        self._open: list[tuple[int, ServedBucket[Any], Future[None]]] = []
        self.name = place.name
        self.waits = waits
        self.pointers: dict[int, Pointer] = {}
        self.waiting: set[int] = set()
        options = getattr(operator, "options", None)
        contract = options.contract if isinstance(options, QueueOptions | WindowOptions) else None
        self.promised_s = {one.name: one.limit_us / 1e6 for one in contract.promises} if contract else {}
        self._parcels = parcels
        self._output = output

    @property
    def buckets(self) -> int:
        """The number of buckets."""
        return self.task.buckets

    def run(self, batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        """Run the buckets that have rows or waiting keys; return their results.

        Call `finish` once the sink has the results, or `abandon` after an error. New versions become durable
        while the sink writes, unless `publishes_first` is set or there is a coordinator.
        """
        arrived: dict[int, list[Parcel]] = defaultdict(list)
        for rows in self._parcels(batch):
            for label, parcel in _parcels_of(rows):
                arrived[label].append(parcel)
        exported: list[pa.RecordBatch] = []
        woken = set(self.pointers) if batch.wakes else self.waiting
        labels = enumerate(bucket_labels(self.buckets))
        due = [(bucket, label) for bucket, label in labels if label in arrived or label in woken]
        for bucket, label in due:
            self._finish_published()
            served = self.task.serve(
                batch.query,
                batch.number,
                bucket,
                self.pointers.get(label),
                arrived.get(label, ()),
                batch.clocks.get(bucket, batch.clock),
                batch.query_name,
                batch.run,
                batch.recorded.get(bucket),
            )
            self._open.append((label, served, self._publisher.submit(served.publish)))
            batch.metrics.append(served.metrics)
            if (bucket, label) == due[-1]:
                batch.on_served(batch.metrics)
            results, served.batches = served.batches, []
            if self._publishes_first:
                self.finish()
            if self._coordinator is not None:
                from penstock.spark_ext.forwarding.exports import take_exports  # loads kernels, see below

                pointer, exports, results = take_exports(
                    batch.query, batch.number, bucket, self.pointers[label], results
                )
                self.pointers[label] = pointer
                exported += exports
            for result in results:
                yield cast_to_schema(result, self._output)
        if self._coordinator is not None and exported:
            from penstock.spark_ext.forwarding.exports import Exports  # loads kernels that few queries need

            results, metrics = self._coordinator.run(Exports.read(to_parcels(exported)))
            batch.metrics.append(metrics)
            for result in results:
                yield cast_to_schema(result, self._output)

    def finish(self) -> None:
        """Wait until the new versions are durable; then update `pointers` and `waiting`."""
        while self._open:
            self._finish_oldest()

    def _finish_published(self) -> None:
        """Finish buckets whose new versions are durable; if too many are not durable, wait for the oldest."""
        while self._open and (len(self._open) >= _MAX_UNPUBLISHED or self._open[0][2].done()):
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        label, served, published = self._open[0]
        published.result()
        pointer = served.finish()
        if pointer is None:
            raise InternalError("a commit gave no pointer")
        self.pointers[label] = pointer
        (self.waiting.add if served.metrics.waiting_keys else self.waiting.discard)(label)
        del self._open[0]

    def abandon(self) -> None:
        """Wait until no thread uses the states of a failed micro-batch, and drop these states."""
        for _, served, published in self._open:
            if published.exception() is None:
                served.close()
        self._open.clear()


def _parcels_of(rows: pa.RecordBatch) -> Iterable[tuple[int, Parcel]]:
    """Yield the parcels of a batch with their buckets' labels. For joins, a fourth column has the side."""
    for label, dropped, payload, *side in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        yield label, Parcel(int(dropped or 0), from_parcel(payload) if payload else None, *side)
