"""The coordinator: runs the forwarded transactions of a micro-batch, after the buckets and a shuffle.

Steps: 1. run the transactions, over the exported rows or over copies of the buckets' tables; meanwhile, sync
Spark's plan of the micro-batch, so that the micro-batch's number always stands for the same events; 2. after
the sync, publish the continuation (the second new version) of each bucket that takes part; 3. emit the
results. If another attempt repeats a step, the result is the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock._clock import monotonic_s
from penstock._failpoints import failpoint
from penstock.checkpointing.files import Files, open_files
from penstock.checkpointing.spark_checkpoint import make_durable
from penstock.errors import InternalError
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.procedures.analysis.columns import ResultRows
from penstock.procedures.engine import REJECTED
from penstock.procedures.partitions.bucket_forwarding import Changes, Forwarding
from penstock.procedures.partitions.continuations import continuation_of, publish_continuation
from penstock.procedures.schema import TableSpec
from penstock.spark_ext.border.parcels import COORDINATOR, to_parcels
from penstock.spark_ext.border.transaction_packing import sort_rows
from penstock.spark_ext.forwarding.bucket_copies import keep_copies, take_copies
from penstock.spark_ext.forwarding.exports import BUCKET, NUMBER, BucketNote, Exports
from penstock.state_store.bucket_store import BucketStore

if TYPE_CHECKING:
    # The codecs are loaded only by processes that write.
    from penstock.spark_ext.sources.p_stream_rows import OperatorRows

__all__ = ["Coordinator"]


@dataclass(frozen=True)
class Coordinator:
    """Stage 2 of transactions over several buckets, for ``mapInArrow``. Workers use it.

    In each micro-batch, one task gets the exports and results of all buckets. It passes on the results
    unchanged.

    Parameters
    ----------
    name : str
        The operator's name.
    state_location : str
        The state location.
    forwarding : Forwarding
        Runs the transactions.
    tables : tuple of TableSpec
        The tables of the database.
    columns : int
        The number of an event's columns, without the columns that order events.
    rows : ResultRows
        Makes rows of results.
    into : OperatorRows, optional
        Writes the results. If given, the output is descriptors instead of rows.
    """

    name: str
    state_location: str
    forwarding: Forwarding
    tables: tuple[TableSpec, ...]
    columns: int
    rows: ResultRows
    into: OperatorRows | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the results of the buckets, then the results of forwarded transactions."""
        held: list[bytes] = []
        output = None
        for batch in batches:
            is_ours = batch.column("target").to_numpy() == COORDINATOR
            held += batch.column("payload").filter(pa.array(is_ours)).drop_null().to_pylist()
            passed = batch.select(["payload", "metrics"])
            output = passed.schema
            yield passed.filter(pa.array(~is_ours))
        if held and output is not None:
            results, metrics = self.run(Exports.read(held))
            lines: list[tuple[bytes | None, str | None]] = [(parcel, None) for parcel in to_parcels(results)]
            lines.append((None, json.dumps(metrics.to_json())))
            for line in lines:
                arrays = [pa.array([one], column.type) for one, column in zip(line, output, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=output)

    def run(self, exports: Exports) -> tuple[list[pa.RecordBatch], BatchMetrics]:
        """Run the forwarded transactions of a micro-batch; return results, or their descriptors."""
        with ThreadPoolExecutor(1, "penstock-sync") as background:
            # Workers do not know the checkpoint's location, so sync all file systems.
            synced = background.submit(make_durable, None)
            return self._run(exports, synced)

    def _run(self, exports: Exports, synced: Future[None]) -> tuple[list[pa.RecordBatch], BatchMetrics]:
        """Run transactions and, once Spark's plan is `synced`, publish continuations."""
        begin = monotonic_s()
        schemas = self.forwarding.exported
        rows = {
            name: [cast_to_schema(part, schemas[name]) for part in parts]
            for name, parts in exports.rows.items()
        }
        stores = {note.bucket: self._store(note) for note in exports.notes}
        copies = None
        events = sort_rows(exports.events, self.columns + 2)
        given = cast_to_schema(events.select(self.forwarding.event.names), self.forwarding.event)
        query, batch = exports.notes[0].query, exports.notes[0].batch
        if self.forwarding.copies_buckets:
            copies = take_copies(self._files(query).location, self.tables)
            copies.follow(stores, {note.bucket: note.pointer for note in exports.notes})
            results, changes = self.forwarding.run_over(copies.state, given)
        else:
            results, changes = self.forwarding.run(given, rows)
        ran = monotonic_s()
        self._publish(exports.notes, stores, changes, synced)
        if copies is not None:
            copies.advance(
                stores, {note.bucket: continuation_of(note.pointer, batch) for note in exports.notes}
            )
            keep_copies(self._files(query).location, self.tables, copies)
        published = monotonic_s()
        output = [
            self.rows.fill(
                events.column(BUCKET), events.column(NUMBER), events, results, batch=batch, forwarded=True
            )
        ]
        metrics = BatchMetrics(buckets=0, rows_out=results.num_rows)
        metrics.count_outcomes(results.column(results.schema.get_field_index(REJECTED)))
        metrics.rejected = metrics.rows_out - metrics.committed
        metrics.duration_ms = {"coordinate": 1000 * (ran - begin), "continue": 1000 * (published - ran)}
        if self.into is not None:
            descriptors = self.into.write(output, query, batch, self.forwarding.buckets)
            output = [] if descriptors is None else [descriptors]
            metrics.duration_ms["write"] = 1000 * (monotonic_s() - published)
        return output, metrics

    def _publish(
        self,
        notes: Iterable[BucketNote],
        stores: Mapping[int, BucketStore],
        changes: Sequence[Changes],
        synced: Future[None],
    ) -> None:
        """Publish the continuations of buckets once Spark's plan is `synced`."""
        unknown = {bucket for bucket, change in enumerate(changes) if change.blocks} - stores.keys()
        if unknown:
            raise InternalError("forwarded transactions change other buckets", buckets=sorted(unknown))
        failpoint("coordinator.before_continuations")
        synced.result()
        tables = {spec.name: spec for spec in self.tables}
        for note in notes:
            publish_continuation(stores[note.bucket], note.pointer, note.batch, changes[note.bucket], tables)

    def _files(self, query: str) -> Files:
        return open_files(self.state_location).child(query).child(self.name)

    def _store(self, note: BucketNote) -> BucketStore:
        return BucketStore(self._files(note.query).child(f"{note.bucket:05d}"))
