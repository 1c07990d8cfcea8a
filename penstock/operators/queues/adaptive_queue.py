"""A durable queue of append semantics, and one that is append or update as the load has it (UpStream §8).

Under *append* semantics every tuple waits and is served, in the order of arrival. Under *update* semantics
the queue is an `UpdateQueue`. An *adaptive* queue is append while it keeps up. When what waits and what
arrives would take more than `_HIGH` triggers, it becomes update: what waits is conflated to the newest tuple
of each key. When what waits and what arrives can be served in `_LOW` triggers, new tuples are appended again;
what the update queue still holds is served before them. Between the two marks it stays what it is.

An adaptive queue never serves an older tuple of a key after a newer one: a tuple that is older than the
newest one taken in is late under append semantics, too. In a plain append queue nothing is late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.checkpointing.fields import Fields
from penstock.errors import InvalidUsageError
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.results import Enqueued, Served
from penstock.operators.scheduling.staleness import Staleness, StalenessMeter
from penstock.operators.scheduling.weights import KeyWeights
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.choices import Semantics
from penstock.operators.update_stream.stream import RESERVED_PREFIX, Integers, UpdateStream, concat
from penstock.state_store.tables.working_copy import TableMaker

__all__ = ["AdaptiveQueue", "Semantics"]

_LOW, _HIGH = 1, 4
_ARRIVED = f"{RESERVED_PREFIX}arrived"
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class _Appended(Served):
    """Tuples that were appended; a key may have several."""


@dataclass(slots=True)
class _Chunk:
    """Tuples that wait, in the order of their arrival."""

    rows: pa.RecordBatch
    ids: Integers
    arrived_us: Integers

    def cut(self, count: int) -> tuple[_Chunk, _Chunk]:
        """Return the first `count` tuples, and the others."""
        head, tail = slice(None, count), slice(count, None)
        return (
            _Chunk(self.rows[head], self.ids[head], self.arrived_us[head]),
            _Chunk(self.rows[tail], self.ids[tail], self.arrived_us[tail]),
        )


class AdaptiveQueue(UpdateQueue):
    """A queue of append or adaptive semantics; in Spark, the part of it that one bucket holds.

    Used as an `UpdateQueue` is. Its length is the number of tuples that wait.

    Parameters
    ----------
    stream, policy, cost_us, weights, table
        As of `UpdateQueue`; policy, cost and weights matter under update semantics only.
    semantics : Semantics
        APPEND or ADAPTIVE.

    Raises
    ------
    InvalidUsageError
        If the stream is a union, whose ties have an order of their own, or the semantics are UPDATE.
    """

    def __init__(
        self,
        stream: UpdateStream,
        policy: Policy,
        semantics: Semantics,
        *,
        cost_us: float | None = None,
        weights: KeyWeights | None = None,
        table: TableMaker | None = None,
    ) -> None:
        if semantics is Semantics.UPDATE or stream.source is not None:
            raise InvalidUsageError("only an update queue has these semantics", semantics=str(semantics))
        super().__init__(stream, policy, cost_us=cost_us, weights=weights, table=table)
        self.semantics = semantics
        self.appending = True
        self.switches = 0
        self.capacity: float | None = None
        """How many tuples a trigger can serve; None while all that waits is served, or nothing is known."""
        self._chunks: deque[_Chunk] = deque()
        # Appended tuples have numbers: those from head to tail wait, those before `_written` were stored.
        self._head = self._tail = self._written = 0

    def __len__(self) -> int:
        """Return how many tuples wait."""
        return len(self._queue) + self._tail - self._head

    @property
    def servable(self) -> int:
        """How many tuples a `dequeue` without a limit would serve in the end: all that wait."""
        return len(self)

    @property
    def size_bytes(self) -> int:
        """How much memory the state holds, roughly."""
        return super().size_bytes + sum(chunk.rows.nbytes + 16 * len(chunk.ids) for chunk in self._chunks)

    def enqueue(self, arrivals: Arrivals, now_us: int) -> Enqueued:
        """Let `arrivals` in under the semantics that the load asks for.

        Raises
        ------
        InvalidUsageError
            If `arrivals` were conflated: the queue would not see all tuples.
        """
        if not len(arrivals):
            return Enqueued()
        if int(arrivals.count.max()) > 1:
            raise InvalidUsageError("an append queue needs arrivals that are not conflated")
        conflated = 0
        if self.semantics is Semantics.ADAPTIVE:
            load = len(self) + len(arrivals)
            if self.appending and self.capacity is not None and load > _HIGH * self.capacity:
                self.appending = False
                self.switches += 1
                conflated = self._conflate(now_us)
            elif not self.appending and (self.capacity is None or load <= _LOW * self.capacity):
                self.appending = True
                self.switches += 1
        if self.appending:
            return self._append(arrivals, now_us)
        entered = super().enqueue(arrivals, now_us)
        return replace(entered, conflated=entered.conflated + conflated)

    def dequeue(self, limit: int, now_us: int) -> Served:
        """Remove up to `limit` tuples: those of the update queue alone, or where it is empty the appended."""
        if len(self._queue) or self._head == self._tail:
            return super().dequeue(limit, now_us)
        chunk = self._take(limit)
        ids, records = chunk.ids, self._records
        booked = records["application_booked_us"][ids]
        self._book(self._queue_meter, "queue_booked_us", chunk, now_us)
        records["dequeued_us"][ids] = now_us
        self._records.dirty[ids] = True
        np.add.at(records["in_service"], ids, 1)
        self._in_service += len(ids)
        if len(ids):
            self._served_at = now_us
        staleness = np.maximum(now_us - chunk.arrived_us, 0)
        return _Appended(chunk.rows, ids, chunk.arrived_us, staleness, booked)

    def deliver(self, served: Served, now_us: int) -> None:
        """Note that the results of `served`, dequeued before, have reached the application."""
        if not isinstance(served, _Appended):
            super().deliver(served, now_us)
            return
        ids, records = served.ids, self._records
        chunk = _Chunk(served.rows, ids, served.arrived_us)
        self._book(self._application_meter, "application_booked_us", chunk, now_us)
        records["delivered_us"][ids] = now_us
        self._records.dirty[ids] = True
        np.subtract.at(records["in_service"], ids, 1)
        self._in_service -= len(ids)

    def account_staleness(self, now_us: int) -> tuple[Staleness, Staleness]:
        """Book the staleness up to now and return queue and application staleness since last time."""
        if self._chunks:
            ids = np.concatenate([chunk.ids for chunk in self._chunks])
            arrived = np.concatenate([chunk.arrived_us for chunk in self._chunks])
            # A key that waits in the update queue has its oldest update there.
            alone = self._records["location"][ids] == _NOWHERE
            idle = alone & (self._records["in_service"][ids] == 0)
            for meter, booked, some in (
                (self._queue_meter, "queue_booked_us", alone),
                (self._application_meter, "application_booked_us", idle),
            ):
                self._book(meter, booked, _Chunk(self._chunks[0].rows, ids[some], arrived[some]), now_us)
        return super().account_staleness(now_us)

    def delta(self) -> PUnit:
        """Return what changed since the last call, to be stored."""
        appended = self._appended(max(self._written, self._head))
        self._written = self._tail
        return _with(super().delta(), appended)

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole state of this moment; what was appended is in the first unit."""
        first, nothing = self._appended(self._head), self._appended(self._tail)
        units = super().snapshot()
        return chain([_with(next(units), first)], (_with(unit, nothing) for unit in units))

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply stored `units` in their order: to an empty queue, or to catch up."""
        appended: list[tuple[Fields, pa.RecordBatch]] = []
        fields = [
            field.with_nullable(field.nullable and field.name not in (*self.stream.key, self.stream.time))
            for field in self.stream.schema
        ]
        schema = pa.schema([*fields, pa.field(_ARRIVED, pa.int64(), nullable=False)])

        def passing() -> Iterator[PUnit]:
            for unit in units:
                appended.append((unit.fields, unit.block("appended", schema)))
                yield unit

        super().restore(passing())
        for stored, block in appended:
            tail = stored.count("tail")
            first = stored.number("first", tail - block.num_rows, tail - block.num_rows)
            head = stored.count("head", most=tail)
            if first < self._tail:
                raise stored.damaged("first", "the number after the unit before")
            if first > self._tail or not self._chunks:
                self._chunks.clear()
                self._head = self._tail = first
            self._take(max(head - self._head, 0))
            self._head = max(self._head, head)
            if block.num_rows:
                rows = pa.RecordBatch.from_arrays(block.columns[:-1], schema=self.stream.schema)
                ids = self._numbered(self.stream.keys(rows))
                self._chunks.append(_Chunk(rows, ids, block.column(_ARRIVED).to_numpy()))
            self._tail = self._written = tail
            self.appending, self.switches = stored.flag("appending"), stored.count("switches")
        # Later units take away what earlier ones let in.
        for chunk in self._chunks:
            self._book_waiting(chunk.ids)

    def _held(self) -> Integers:
        """Return the keys that have more than what is stored of every key: a tuple that waits."""
        return np.unique(np.concatenate([super()._held(), *(chunk.ids for chunk in self._chunks)]))

    def _keep(self, ids: Integers) -> None:
        """Let go of all keys in memory but these."""
        number = np.full(len(self._records), _NOWHERE, np.int64)
        number[ids] = np.arange(len(ids))
        for chunk in self._chunks:
            chunk.ids = number[chunk.ids]
        super()._keep(ids)

    def _appended(self, begin: int) -> tuple[dict[str, Any], pa.RecordBatch]:
        """Return the appended tuples from number `begin` on, and what is stored of the queue of them."""
        parts, number = [], self._head
        for chunk in self._chunks:
            _, rest = chunk.cut(max(begin - number, 0))
            number += len(chunk.ids)
            if len(rest.ids):
                parts.append(rest)
        rows = [part.rows for part in parts] or [pa.RecordBatch.from_pylist([], self.stream.schema)]
        arrived = np.concatenate([part.arrived_us for part in parts]) if parts else np.zeros(0, np.int64)
        block = pa.RecordBatch.from_arrays(
            [*concat(rows).columns, pa.array(arrived)], [*self.stream.schema.names, _ARRIVED]
        )
        meta = {
            "first": begin,
            "head": self._head,
            "tail": self._tail,
            "appending": self.appending,
            "switches": self.switches,
        }
        return meta, block

    def _append(self, arrivals: Arrivals, now_us: int) -> Enqueued:
        count = len(arrivals)
        if not len(self):
            self._served_at = now_us
        arrived = np.full(count, now_us, np.int64)
        if arrivals.first_arrival_us is not None:
            np.minimum(arrivals.first_arrival_us, now_us, out=arrived)
        if self._birth_us is None:
            self._birth_us = self._settled_at = int(arrived.min())
        order = np.lexsort((arrivals.first, arrived))
        rows, arrived = arrivals.rows.take(pa.array(order)), arrived[order]
        ids = self._numbered(self.stream.keys(rows))
        records, times = self._records, self.stream.times(rows)
        newest = np.maximum(
            records["emitted"], np.where(records["location"] < 0, records["emitted"], records["waiting"])
        )
        taken = _not_behind(ids, times, newest[ids])
        if self.semantics is Semantics.APPEND:
            taken[:] = True
        np.maximum.at(records["emitted"], ids[taken], times[taken])
        self._records.dirty[ids] = True
        kept = int(np.count_nonzero(taken))
        if kept:
            self._chunks.append(_Chunk(rows.filter(pa.array(taken)), ids[taken], arrived[taken]))
            self._tail += kept
        return Enqueued(count, 0, count - kept)

    def _conflate(self, now_us: int) -> int:
        """Move what was appended to the update queue; return how many tuples that conflates."""
        chunk = self._take(self._tail - self._head)
        count = len(chunk.ids)
        if not count:
            return 0
        places = np.arange(count)
        entered = super().enqueue(
            Arrivals(chunk.rows, np.ones(count, np.int64), places, places, chunk.arrived_us), now_us
        )
        return entered.conflated

    def _place(self, ids: Integers, arrived_us: Integers) -> None:
        """Give keys that begin to wait a location; what was booked while they were appended stays booked."""
        booked = {name: self._records[name][ids] for name in ("queue_booked_us", "application_booked_us")}
        super()._place(ids, arrived_us)
        for name, until in booked.items():
            self._records[name][ids] = np.maximum(self._records[name][ids], until)

    def _take(self, count: int) -> _Chunk:
        """Remove and return up to `count` appended tuples from the head."""
        parts: list[_Chunk] = []
        while count > 0 and self._chunks:
            part, rest = self._chunks.popleft().cut(count)
            if len(rest.ids):
                self._chunks.appendleft(rest)
            parts.append(part)
            count -= len(part.ids)
            self._head += len(part.ids)
        if not parts:
            nothing = np.zeros(0, np.int64)
            return _Chunk(pa.RecordBatch.from_pylist([], self.stream.schema), nothing, nothing)
        return _Chunk(
            concat([part.rows for part in parts]),
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.arrived_us for part in parts]),
        )

    def _book(self, meter: StalenessMeter, booked: str, chunk: _Chunk, now_us: int) -> None:
        """Book up to now for the first tuple of each key; the others of that key take no time."""
        keys, first = np.unique(chunk.ids, return_index=True)
        since, until = chunk.arrived_us[first], self._records[booked]
        meter.add(since, np.maximum(since, until[keys]), now_us)
        until[keys] = np.maximum(until[keys], now_us)


def _not_behind(ids: Integers, times: Integers, newest: Integers) -> npt.NDArray[np.bool_]:
    """Return which tuples are at least as new as their key's newest one and all that come before them."""
    order = np.argsort(ids, kind="stable")
    key = ids[order]
    first = np.ones(len(key), np.bool_)
    first[1:] = key[1:] != key[:-1]
    # Ranks of times, moved up from key to key, so that one running maximum serves all keys.
    _, rank = np.unique(np.concatenate([newest[order], times[order]]), return_inverse=True)
    known, own = rank[: len(key)], rank[len(key) :]
    lift = np.cumsum(first) * (len(rank) + 1)
    running = np.maximum.accumulate(np.maximum(known, own) + lift)
    found = np.empty(len(key), np.bool_)
    found[order] = own + lift >= running
    return found


def _with(unit: PUnit, appended: tuple[dict[str, Any], pa.RecordBatch]) -> PUnit:
    meta, block = appended
    return PUnit(unit.kind, {**unit.meta, **meta}, {**unit.blocks, "appended": block})
