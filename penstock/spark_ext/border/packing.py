"""Packing of rows at the border between JVM and Python, in whole Arrow batches.

Rows travel through Spark as *parcels*: binary values, each an Arrow IPC stream. Spark shuffles and groups a
few parcels instead of millions of rows, and no type is lost in pandas.

The packer runs on the map side of the shuffle. It drops or refuses unusable rows. If that reduces the work,
it conflates rows: for each key it keeps the newest row, the count and the first arrival. Then it makes one
parcel for each bucket and batch of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.operators.update_stream.conflation import Conflation
from penstock.operators.update_stream.dropped import DroppedForm
from penstock.operators.update_stream.stream import UpdateStream, concat
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.parcels import PARCELS, ParcelLimits, to_parcels
from penstock.spark_ext.border.types import as_arrow_of_spark

__all__ = ["DROPPED", "Packer", "PackingLimits", "mark_side", "newest_of", "parcel_row", "side_of"]

_SIDE = b"penstock.side"
"""The key in a parcel's schema metadata for the rows' side."""

_NEWEST = b"penstock.newest"
"""The key in a parcel's schema metadata for the newest time of a task's rows, over all buckets."""

DROPPED = "dropped"
"""The name of the side whose rows a task dropped before the shuffle. The rows have their final form."""

_ARROW_PARCELS = as_arrow_of_spark(PARCELS)


@dataclass(frozen=True, slots=True)
class PackingLimits:
    """The limits of chunks and parcels, and the size of the sample that decides whether to conflate.

    Parameters
    ----------
    chunk_rows, chunk_bytes : int
        The size of a chunk. The first chunk shows whether conflation pays off. Without conflation, all chunks
        have this size.
    held_bytes : int
        The limit of the conflated rows in memory.
    remembered_rows, remembered_partitions : int
        A measurement of at least `remembered_rows` rows is valid for the worker's next
        `remembered_partitions` partitions.
    parcels : ParcelLimits
        The limits of a parcel.
    """

    chunk_rows: int = 1_000_000
    chunk_bytes: int = 64 << 20
    held_bytes: int = 256 << 20
    remembered_rows: int = 100_000
    remembered_partitions: int = 16
    parcels: ParcelLimits = field(default_factory=ParcelLimits)

    def fill_chunk(self, rows: int, size_bytes: int) -> bool:
        """Return whether rows are a whole chunk."""
        return rows >= self.chunk_rows or size_bytes >= self.chunk_bytes


@dataclass(slots=True)
class _Choice:
    """The worker's last measurement of whether conflating pays off for an operator.

    To measure, the packer conflates one chunk, which is wasted work if keys rarely repeat. So a worker
    remembers the answer.
    """

    combine: bool | None = None
    uses_left: int = 0

    def recall(self) -> bool | None:
        """Return the last answer; None if a new measurement is due."""
        if self.uses_left == 0:
            return None
        self.uses_left -= 1
        return self.combine

    def remember(self, partitions: int, *, combine: bool) -> None:
        """Remember an answer for the next `partitions` partitions."""
        self.combine, self.uses_left = combine, partitions


_CHOICES: dict[tuple[str, str], _Choice] = {}


@dataclass(slots=True)
class _Facts:
    """Facts about the rows of one partition.

    Attributes
    ----------
    rows : int
        Number of unusable rows.
    newest : int or None
        The newest time of the usable rows.
    """

    rows: int = 0
    newest: int | None = None
    held: list[pa.RecordBatch] = field(default_factory=list)


def parcel_row(label: int, dropped: int, payload: bytes | None) -> pa.RecordBatch:
    """Return one parcel as a batch for Spark."""
    values = (label, dropped, payload)
    arrays = [pa.array([value], column.type) for value, column in zip(values, _ARROW_PARCELS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_PARCELS)


def mark_side(batch: pa.RecordBatch, side: str) -> pa.RecordBatch:
    """Mark rows with the side that they belong to, for an operator with several inputs; see `side_of`."""
    return batch.replace_schema_metadata({_SIDE: side})


def side_of(batch: pa.RecordBatch) -> str:
    """Return the side that a parcel's rows belong to; empty for operators with one input."""
    side: bytes = (batch.schema.metadata or {}).get(_SIDE, b"")
    return side.decode()


def newest_of(batch: pa.RecordBatch) -> int | None:
    """Return the newest time that a parcel sends to all buckets; None if the parcel has no such time."""
    newest: bytes | None = (batch.schema.metadata or {}).get(_NEWEST)
    return None if newest is None else int(newest)


@dataclass(frozen=True)
class Packer:
    """The map side of an update queue, for ``mapInArrow``. A worker calls it once per partition.

    Parameters
    ----------
    stream : UpdateStream
        Schema, key and time of the rows.
    buckets : int
        Number of buckets.
    nulls : str
        ``"error"`` or ``"drop"``: the treatment of rows without key or time.
    combine : bool or None
        Whether to conflate before the shuffle. With None, the effect on the first chunk decides.
    name : str
        The operator's name, under which a worker stores this decision.
    side : str
        The rows' side of a join, which `side_of` reads from a parcel.
    tells_newest : bool
        Whether each bucket gets an additional parcel without rows, which holds the newest time of all rows
        (`newest_of`).
    most_left : float
        With `combine` None, conflation continues only if it leaves at most this share of the rows.
    limits : PackingLimits
        The sizes of chunks and parcels.
    dropped : DroppedForm, optional
        The columns in which dropped rows are stored; these rows go to the first bucket.
    """

    stream: UpdateStream
    buckets: int
    nulls: str
    combine: bool | None
    name: str = ""
    side: str = ""
    tells_newest: bool = False
    most_left: float = 0.4
    limits: PackingLimits = PackingLimits()
    dropped: DroppedForm | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the parcels of one partition's rows; the last parcel holds the number of dropped rows."""
        context = TaskContext.get()
        part = context.partitionId() if context else 0
        facts = _Facts()
        query_id = (context.getLocalProperty("sql.streaming.queryId") if context else None) or ""
        choice = _CHOICES.setdefault((query_id, self.name), _Choice())
        for arrivals in self._conflate(self._usable(batches, facts), part, choice):
            for label, payload in self._split_by_bucket(arrivals):
                yield parcel_row(label, 0, payload)
            yield from self._dropped_parcels(facts)
        yield from self._dropped_parcels(facts)
        if self.tells_newest and facts.newest is not None:
            yield from self._tell(facts.newest)
        if facts.rows:
            yield parcel_row(bucket_labels(self.buckets)[0], facts.rows, None)

    def _tell(self, newest: int) -> Iterator[pa.RecordBatch]:
        """Return, for each bucket, a parcel without rows that has the newest time of this partition."""
        nothing = Arrivals.from_rows(
            self.stream, pa.RecordBatch.from_pylist([], self.stream.schema)
        ).to_batch()
        facts = {_NEWEST: str(newest)} | ({_SIDE: self.side} if self.side else {})
        (payload,) = to_parcels([nothing.replace_schema_metadata(facts)], self.limits.parcels)
        for label in bucket_labels(self.buckets):
            yield parcel_row(label, 0, payload)

    def _dropped_parcels(self, facts: _Facts) -> Iterator[pa.RecordBatch]:
        if facts.held:
            rows, facts.held = mark_side(concat(facts.held), DROPPED), []
            for payload in to_parcels([rows], self.limits.parcels):
                yield parcel_row(bucket_labels(self.buckets)[0], 0, payload)

    def _usable(self, batches: Iterable[pa.RecordBatch], facts: _Facts) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            given = cast_to_schema(batch, self.stream.schema)
            rows, dropped = self.stream.drop_unusable(given, self.nulls)
            facts.rows += dropped
            if dropped and self.dropped is not None:
                unusable = given.filter(pa.array(self.stream.find_unusable(given)))
                reasons = self.stream.say_why_unusable(unusable)
                facts.held.append(self.dropped.fill(unusable, reasons, side=self.side))
            if rows.num_rows:
                if self.tells_newest:
                    newest = int(self.stream.times(rows).max())
                    facts.newest = newest if facts.newest is None else max(facts.newest, newest)
                yield rows

    def _conflate(self, usable: Iterator[pa.RecordBatch], part: int, choice: _Choice) -> Iterator[Arrivals]:
        """Conflate arrivals while that pays off, and collect the remaining arrivals in chunks."""
        combine = self.combine if self.combine is not None else choice.recall()
        position = 0
        if combine is not False:
            conflation = Conflation(self.stream, part)
            for rows in usable:
                conflation.add(rows, position)
                position += rows.num_rows
                if combine is None and self.limits.fill_chunk(conflation.rows_seen, conflation.bytes_seen):
                    combine = self._pays(conflation, choice)
                    if not combine:
                        break
                if conflation.newest_bytes > self.limits.held_bytes // 2:
                    yield conflation.finish()
            if combine is None and conflation.rows_seen:
                self._pays(conflation, choice)
            if len(conflation):
                yield conflation.finish()
        yield from self._chunks(usable, position, part)

    def _pays(self, conflation: Conflation, choice: _Choice) -> bool:
        """Return whether conflating leaves few enough of the first rows; remember the answer."""
        combine = len(conflation) <= self.most_left * conflation.rows_seen
        if conflation.rows_seen >= self.limits.remembered_rows:
            choice.remember(self.limits.remembered_partitions, combine=combine)
        return combine

    def _chunks(self, usable: Iterable[pa.RecordBatch], position: int, part: int) -> Iterator[Arrivals]:
        """Collect rows in chunks."""
        chunk: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        for batch in usable:
            chunk.append(batch)
            rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
            if self.limits.fill_chunk(rows, size_bytes):
                yield Arrivals.from_rows(self.stream, concat(chunk), position, part)
                position += rows
                chunk, rows, size_bytes = [], 0, 0
        if chunk:
            yield Arrivals.from_rows(self.stream, concat(chunk), position, part)

    def _split_by_bucket(self, arrivals: Arrivals) -> Iterator[tuple[int, bytes]]:
        """Cut arrivals into parcels, each for one bucket's label."""
        number = self.stream.keys(arrivals.rows).bucket(self.buckets)
        order = np.argsort(number, kind="stable")
        bounds = np.searchsorted(number[order], np.arange(self.buckets + 1))
        sorted_rows = arrivals.take(order).to_batch()
        if self.side:
            sorted_rows = mark_side(sorted_rows, self.side)
        for bucket, label in enumerate(bucket_labels(self.buckets)):
            begin, end = int(bounds[bucket]), int(bounds[bucket + 1])
            if begin == end:
                continue
            for parcel in to_parcels([sorted_rows.slice(begin, end - begin)], self.limits.parcels):
                yield label, parcel
