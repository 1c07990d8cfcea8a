"""Queues of append semantics, and of semantics that switch with the load (UpStream §8).

Under *append* semantics every tuple waits and is served, in the order of arrival. Under *update* semantics
the queue is an `UpdateQueue`. An *adaptive* queue appends while it keeps up. When the waiting and arriving
tuples would take more than `_MAX_TRIGGERS_TO_APPEND` triggers, it switches to update: the waiting tuples are
conflated to the newest tuple of each key. When all waiting and arriving tuples can be served in
`_MAX_TRIGGERS_TO_RESUME` triggers, new tuples are appended again. The tuples in the update queue are served
before these appended tuples. Between the two limits the semantics stay the same. With a freshness contract,
the contract determines the first limit.

An adaptive queue never serves an older tuple of a key after a newer tuple. So even under append semantics a
tuple is late if a newer tuple of its key has arrived. In a plain append queue nothing is late.
"""

from __future__ import annotations

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
from penstock.operators.queues.abc import KeyedQueue
from penstock.operators.queues.accounts import NOWHERE
from penstock.operators.queues.appended import AppendedTuples, TupleChunk
from penstock.operators.queues.key_records import ForgetRule
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.results import Enqueued, Served
from penstock.operators.scheduling.staleness import Staleness
from penstock.operators.scheduling.weights import KeyWeights
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.choices import Semantics
from penstock.operators.update_stream.stream import RESERVED_PREFIX, Integers, UpdateStream
from penstock.state_store.tables.working_copy import TableMaker

__all__ = ["AdaptiveQueue", "Semantics"]

_MAX_TRIGGERS_TO_APPEND = 4
"""An adaptive queue conflates if its tuples would take more triggers than this."""
_MAX_TRIGGERS_TO_RESUME = 1
"""An adaptive queue appends again if its tuples can be served in this many triggers."""
_ARRIVED = f"{RESERVED_PREFIX}arrived"


@dataclass(frozen=True, slots=True)
class _ServedAppended(Served):
    """Served tuples of append semantics; a key may have several."""


class AdaptiveQueue(KeyedQueue):
    """A queue of append or adaptive semantics; see `KeyedQueue`.

    Its length is the number of waiting tuples.

    Parameters
    ----------
    stream, policy, cost_us, weights, table, forgetting
        See `UpdateQueue`; policy, cost and weights apply only under update semantics.
    semantics : Semantics
        APPEND or ADAPTIVE.

    Raises
    ------
    InvalidUsageError
        If the semantics are UPDATE, or if the stream is a union, because a union breaks ties differently.
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
        forgetting: ForgetRule | None = None,
    ) -> None:
        if semantics is Semantics.UPDATE or stream.source is not None:
            raise InvalidUsageError("only an update queue has these semantics", semantics=str(semantics))
        self._appended = AppendedTuples(stream.schema)
        self._update = UpdateQueue(
            stream,
            policy,
            cost_us=cost_us,
            weights=weights,
            table=table,
            holder=self._appended,
            forgetting=forgetting,
        )
        super().__init__(stream, policy, self._update.accounts, cost_us, weights)
        self.semantics = semantics
        self.appending = True
        self.switches = 0
        self.capacity: float | None = None
        """Tuples that a trigger can serve; None if unknown or if a trigger empties the queue."""
        self.patience: float = _MAX_TRIGGERS_TO_APPEND
        """Tuples are conflated if all would take more triggers than this."""
        self._written = 0
        """Appended tuples before this number are stored."""

    def __len__(self) -> int:
        """Return the number of waiting tuples."""
        return len(self._update) + len(self._appended)

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the state in bytes."""
        return self._update.size_bytes + self._appended.size_bytes

    def enqueue(self, arrivals: Arrivals, now_us: int) -> Enqueued:
        """Enqueue arrivals under the semantics that the load requires.

        Raises
        ------
        InvalidUsageError
            If `arrivals` are conflated, because the queue must see all tuples.
        """
        if not len(arrivals):
            return Enqueued()
        if int(arrivals.count.max()) > 1:
            raise InvalidUsageError("an append queue needs arrivals that are not conflated")
        conflated = 0
        if self.semantics is Semantics.ADAPTIVE:
            load = len(self) + len(arrivals)
            if self.appending and self.capacity is not None and load > self.patience * self.capacity:
                self.appending = False
                self.switches += 1
                conflated = self._conflate(now_us)
            elif not self.appending and (
                self.capacity is None or load <= _MAX_TRIGGERS_TO_RESUME * self.capacity
            ):
                self.appending = True
                self.switches += 1
        if self.appending:
            return self._append(arrivals, now_us)
        entered = self._enqueue_update(arrivals, now_us)
        return replace(entered, conflated=entered.conflated + conflated)

    def dequeue(self, limit: int, now_us: int) -> Served:
        """Remove up to `limit` tuples from the update queue; if it is empty, from the appended tuples."""
        if len(self._update) or not len(self._appended):
            return self._update.dequeue(limit, now_us)
        chunk, accounts = self._appended.take(limit), self.accounts
        booked = accounts.records["application_booked_us"][chunk.ids]
        accounts.book_first(accounts.queue_meter, "queue_booked_us", chunk.ids, chunk.arrived_us, now_us)
        accounts.serve(chunk.ids, now_us)
        staleness = np.maximum(now_us - chunk.arrived_us, 0)
        return _ServedAppended(chunk.rows, chunk.ids, chunk.arrived_us, staleness, booked)

    def deliver(self, served: Served, now_us: int) -> None:
        """Record that the results of dequeued tuples have reached the application."""
        if not isinstance(served, _ServedAppended):
            self._update.deliver(served, now_us)
            return
        ids, accounts = served.ids, self.accounts
        meter = accounts.application_meter
        accounts.book_first(meter, "application_booked_us", ids, served.arrived_us, now_us)
        accounts.deliver(ids, now_us)
        accounts.records.dirty[ids] = True

    def account_staleness(self, now_us: int) -> tuple[Staleness, Staleness]:
        """Count the staleness up to now; see `KeyedQueue.account_staleness`."""
        if parts := self._appended.held_keys():
            ids, arrived = np.concatenate(parts), np.concatenate(self._appended.arrivals())
            accounts, records = self.accounts, self.accounts.records
            # If a key waits in the update queue, its oldest update is there.
            alone = records["location"][ids] == NOWHERE
            idle = alone & (records["in_service"][ids] == 0)
            for meter, booked, some in (
                (accounts.queue_meter, "queue_booked_us", alone),
                (accounts.application_meter, "application_booked_us", idle),
            ):
                accounts.book_first(meter, booked, ids[some], arrived[some], now_us)
        return self._update.account_staleness(now_us)

    def delta(self) -> PUnit:
        """Return the changes since the last call, to be stored."""
        begin = max(self._written, self._appended.head)
        meta, block = self._meta(begin), self._block(begin)
        self._written = self._appended.tail
        return _extend(self._update_unit(self._update.delta()), meta, block)

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state. The first p-unit also has the tuples that wait in append mode."""
        head, tail = self._appended.head, self._appended.tail
        first, nothing = (self._meta(head), self._block(head)), (self._meta(tail), self._block(tail))
        units = map(self._update_unit, self._update.snapshot())
        return chain([_extend(next(units), *first)], (_extend(unit, *nothing) for unit in units))

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply stored `units` in order, to an empty queue or to an older version."""
        appended: list[tuple[Fields, pa.RecordBatch]] = []
        fields = [
            field.with_nullable(field.nullable and field.name not in (*self.stream.key, self.stream.time))
            for field in self.stream.schema
        ]
        schema = pa.schema([*fields, pa.field(_ARRIVED, pa.int64(), nullable=False)])

        def collect() -> Iterator[PUnit]:
            for unit in units:
                appended.append((unit.fields, unit.block("appended", schema, self.stream.may_add)))
                yield unit

        self._update.restore(collect())
        self.measured_cost_us = self._update.measured_cost_us
        held = self._appended
        for stored, block in appended:
            tail = stored.count("tail")
            first = stored.number("first", tail - block.num_rows, tail - block.num_rows)
            head = stored.count("head", most=tail)
            if first < held.tail:
                raise stored.damage_error("first", "the number after the unit before")
            if first > held.tail or not held.held_keys():
                held.begin_at(first)
            held.take(max(head - held.head, 0))
            held.head = max(held.head, head)
            if block.num_rows:
                rows = pa.RecordBatch.from_arrays(block.columns[:-1], schema=self.stream.schema)
                ids = self._update.number(self.stream.keys(rows))
                held.append(TupleChunk(rows, ids, block.column(_ARRIVED).to_numpy()))
            held.tail = self._written = tail
            self.appending, self.switches = stored.flag("appending"), stored.count("switches")
        # Later units remove tuples of earlier units.
        for ids in held.held_keys():
            self.accounts.book_restored(ids)

    def _meta(self, begin: int) -> dict[str, Any]:
        """Return the fields that are stored once, with the appended tuples from number `begin` on."""
        return {
            "first": begin,
            "head": self._appended.head,
            "tail": self._appended.tail,
            "appending": self.appending,
            "switches": self.switches,
        }

    def _block(self, begin: int) -> pa.RecordBatch:
        """Return the appended tuples from number `begin` on, to be stored."""
        chunk = self._appended.rows_since(begin)
        return pa.RecordBatch.from_arrays(
            [*chunk.rows.columns, pa.array(chunk.arrived_us)], [*self.stream.schema.names, _ARRIVED]
        )

    def _update_unit(self, unit: PUnit) -> PUnit:
        """Return a unit of the update queue; its metadata has the length and cost of the whole queue."""
        return replace(unit, meta={**unit.meta, "waiting": len(self), "cost_us": self.measured_cost_us})

    def _enqueue_update(self, arrivals: Arrivals, now_us: int) -> Enqueued:
        """Copy this queue's cost and weights to the inner update queue, then enqueue arrivals in it."""
        self._update.given_cost_us, self._update.measured_cost_us = self.given_cost_us, self.measured_cost_us
        self._update.weights = self.weights
        return self._update.enqueue(arrivals, now_us)

    def _append(self, arrivals: Arrivals, now_us: int) -> Enqueued:
        count = len(arrivals)
        if not len(self):
            self.accounts.served_at_us = now_us
        arrived = self.accounts.arrive(arrivals, now_us)
        order = np.lexsort((arrivals.first, arrived))
        rows, arrived = arrivals.rows.take(pa.array(order)), arrived[order]
        ids = self._update.number(self.stream.keys(rows))
        records, times = self.accounts.records, self.stream.times(rows)
        newest = np.maximum(
            records["emitted"], np.where(records["location"] < 0, records["emitted"], records["waiting"])
        )
        mask = _not_behind(ids, times, newest[ids])
        if self.semantics is Semantics.APPEND:
            mask[:] = True
        np.maximum.at(records["emitted"], ids[mask], times[mask])
        records.dirty[ids] = True
        kept = int(np.count_nonzero(mask))
        if kept:
            self._appended.append(TupleChunk(rows.filter(pa.array(mask)), ids[mask], arrived[mask]))
        return Enqueued(count, 0, count - kept)

    def _conflate(self, now_us: int) -> int:
        """Move the appended tuples to the update queue; return the number of conflated tuples."""
        chunk = self._appended.take(len(self._appended))
        count = len(chunk.ids)
        if not count:
            return 0
        places = np.arange(count)
        arrivals = Arrivals(chunk.rows, np.ones(count, np.int64), places, places, chunk.arrived_us)
        return self._enqueue_update(arrivals, now_us).conflated


def _not_behind(ids: Integers, times: Integers, newest: Integers) -> npt.NDArray[np.bool_]:
    """Mark tuples that are at least as new as the key's newest tuple and as all earlier tuples of the key."""
    order = np.argsort(ids, kind="stable")
    key = ids[order]
    first = np.ones(len(key), np.bool_)
    first[1:] = key[1:] != key[:-1]
    # Offset the time ranks per key, so that one running maximum serves all keys.
    _, rank = np.unique(np.concatenate([newest[order], times[order]]), return_inverse=True)
    known, own = rank[: len(key)], rank[len(key) :]
    lift = np.cumsum(first) * (len(rank) + 1)
    running = np.maximum.accumulate(np.maximum(known, own) + lift)
    mask = np.empty(len(key), np.bool_)
    mask[order] = own + lift >= running
    return mask


def _extend(unit: PUnit, meta: dict[str, Any], block: pa.RecordBatch) -> PUnit:
    return PUnit(unit.kind, {**unit.meta, **meta}, {**unit.blocks, "appended": block})
