"""The update queue: only the newest tuple of each key waits (UpStream §4.1, §5, §7).

The state has three parts: a *record* of each key ever seen (last emission, update rate), the *scheduler* of
waiting keys (`scheduling`), and their tuples in *paged memory* (`pages`, `row_store`). All methods take the
time as an argument; nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import MAX_UNIT_ROWS, PUnit
from penstock.checkpointing.fields import Fields
from penstock.operators.freshness.classes import list_urgent, pop_urgent
from penstock.operators.key_blocks import KEY_BLOCK, OWNER
from penstock.operators.queues.abc import KeyedQueue
from penstock.operators.queues.accounts import NOWHERE, KeyAccounts
from penstock.operators.queues.dropped import find_dropped, find_replaced_duplicates
from penstock.operators.queues.expiry import Expired, KeyExpiry, Lives
from penstock.operators.queues.key_records import BOOKED, ForgetRule
from penstock.operators.queues.pages import PAGE_ROWS, PagedMemory
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.results import Enqueued, Served
from penstock.operators.scheduling.schedulers import new_scheduler
from penstock.operators.scheduling.staleness import Staleness
from penstock.operators.scheduling.weights import KeyWeights, find_shares
from penstock.operators.update_stream.arrivals import Arrivals, conflate
from penstock.operators.update_stream.dropped import DUPLICATE, DroppedTuples
from penstock.operators.update_stream.stream import (
    RESERVED_PREFIX,
    Integers,
    UpdateStream,
    as_int64,
    as_micros,
)
from penstock.state_store.keys.key_words import Keys
from penstock.state_store.tables.row_store import RowStore
from penstock.state_store.tables.working_copy import TableMaker
from penstock.units import NEVER

__all__ = ["KeyHolder", "UpdateQueue"]


_ARRIVED = f"{RESERVED_PREFIX}arrived"


class KeyHolder(Protocol):
    """An object outside of the queue that holds more tuples of the queue's keys."""

    def __len__(self) -> int:
        """Return the number of tuples."""

    def held_keys(self) -> list[Integers]:
        """Return the keys of the tuples, in parts."""

    def renumber(self, numbers: Integers) -> None:
        """Change the number of each held key to ``numbers[number]``."""


class UpdateQueue(KeyedQueue):
    """A queue in which only the newest tuple of each key waits; see `KeyedQueue`.

    Parameters
    ----------
    stream, policy, cost_us, weights
        See `KeyedQueue`.
    page_rows : int
        The number of locations in a page of the paged memory.
    table : TableMaker, optional
        Creates the table for records of idle keys; by default records stay in memory.
    holder : KeyHolder, optional
        Holds more tuples of the same keys. Their staleness is counted in the same records.
    forgetting : ForgetRule, optional
        The rule for moving records of idle keys to the table.
    """

    def __init__(
        self,
        stream: UpdateStream,
        policy: Policy,
        *,
        cost_us: float | None = None,
        page_rows: int = PAGE_ROWS,
        weights: KeyWeights | None = None,
        table: TableMaker | None = None,
        holder: KeyHolder | None = None,
        forgetting: ForgetRule | None = None,
    ) -> None:
        super().__init__(stream, policy, KeyAccounts(stream, policy, table, forgetting), cost_us, weights)
        self.memory = PagedMemory(page_rows)
        weighted = weights is not None or stream.weight is not None or stream.costs_by_key
        self._queue = new_scheduler(policy, weighted=weighted)
        self._payload = pa.schema([stream.schema.field(name) for name in stream.payload])
        self._rows = RowStore(self._payload)
        self._holder = holder
        self._records = self.accounts.records
        self.expiry = KeyExpiry()
        places = {f"{RESERVED_PREFIX}{name}": kind for name, kind in self._queue.columns.items()}
        rank = next(iter(places))
        fixed = {OWNER: pa.int64(), rank: places[rank], _ARRIVED: pa.int64(), **places}
        self._row_schema = pa.schema([
            *(pa.field(name, kind, nullable=False) for name, kind in fixed.items()),
            *(field.with_nullable(field.nullable and field.name != stream.time) for field in self._payload),
        ])  # fmt: skip

    def __len__(self) -> int:
        """Return the number of waiting tuples: one for each waiting key."""
        return len(self._queue)

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the state in bytes."""
        parts = (self._records, self._queue, self.memory, self._rows)
        return sum(part.size_bytes for part in parts)

    def enqueue(self, arrivals: Arrivals, now_us: int) -> Enqueued:
        """Enqueue arrivals of the same moment, ordered by position.

        A tuple older than its key's newest emitted tuple is late and dropped. A tuple older than the waiting
        tuple is conflated. If times are equal, the later arrival is newer. In a union (UpStream §3.2) a
        tuple with the time of the newest emitted tuple is a duplicate. If two tuples have equal
        times, the duplicate is the tuple with the greater source number, or else the later arrival.
        """
        total = int(arrivals.count.sum())
        if not total:
            return Enqueued()
        if not len(self):
            self.accounts.served_at_us = now_us
        whole, arrivals = arrivals, self._sort_arrivals(conflate(self.stream, arrivals))
        arrived = self.accounts.arrive(arrivals, now_us)
        keys = self.stream.keys(arrivals.rows)
        ids, records = self.number(keys), self._records
        times = self.stream.times(arrivals.rows)
        count = arrivals.count

        resident = records["location"][ids] != NOWHERE
        accepted, newest, given_way = self._compare(arrivals, ids, times)
        if self.dropped is not None:
            compared = (accepted, newest, given_way, self.expiry.last_horizon)
            self.dropped += find_dropped(self.stream, records, whole, arrivals, ids, *compared)
            if len(replaced := find_replaced_duplicates(self.stream, records, ids, times, newest)):
                self.dropped.append(DroppedTuples(self._rows_of(replaced), DUPLICATE))
        duplicates = int(given_way.sum())
        late = int((count - given_way)[~accepted].sum())
        strangers = ids[~accepted & ~resident & (records["emitted"][ids] == NEVER)]
        if len(strangers):
            records.remove(strangers)
        interval = self.accounts.update_rates(ids[accepted], count[accepted], now_us)
        conflated = int((count - given_way)[accepted].sum()) - int(np.count_nonzero(accepted & ~resident))

        fresh = newest & ~resident
        self._place(ids[fresh], arrived[fresh])
        indices = np.flatnonzero(newest)
        ids, resident = ids[indices], resident[indices]
        records["waiting"][ids] = times[indices]
        if self.stream.classes is not None:
            chosen = arrivals.rows.select(list(self.stream.classes.columns)).take(pa.array(indices))
            records["class"][ids] = self.stream.classes.number(chosen)
        if self.stream.source:
            records["source"][ids] = self.stream.sources(arrivals.rows)[indices]
        self._rows.put(records["location"][ids], self._payload_of(arrivals.rows, indices))
        interval = interval[newest[accepted]]
        cost = np.inf if self.cost_us is None else self.cost_us
        shares = find_shares(self.stream, self.weights, arrivals.rows, keys)
        shares = None if shares is None else shares[indices]
        shares = self.accounts.discount(ids, shares, self.measured_cost_us)
        self._queue.arrive(ids, resident, interval, cost, self._load(), shares, arrived[indices])
        records.dirty[ids] = True
        return Enqueued(total, conflated, late, duplicates)

    def dequeue(self, limit: int, now_us: int) -> Served:
        """Remove up to `limit` tuples in the policy's order."""
        first = self.urgent_us and limit < len(self)
        ids = self._choose(limit, now_us) if first else self._queue.pop(limit, now_us=now_us)
        records = self._records
        locations = records["location"][ids]
        rows = self._rows_of(ids)
        arrived = records["arrived_us"][ids]
        self.accounts.queue_meter.add(arrived, records["queue_booked_us"][ids], now_us)
        self.memory.free(locations)
        records["location"][ids] = NOWHERE
        records["emitted"][ids] = np.maximum(records["emitted"][ids], records["waiting"][ids])
        records["queue_booked_us"][ids] = now_us
        if self.stream.deleted:
            records["deleted"][ids] = rows.column(self.stream.deleted).to_numpy(zero_copy_only=False)
        self.expiry.watch(records, ids)
        self.accounts.serve(ids, now_us)
        booked = records["application_booked_us"][ids]
        return Served(rows, ids, arrived, np.maximum(now_us - arrived, 0), booked)

    def _choose(self, limit: int, now_us: int) -> Integers:
        """Remove keys from the scheduler, first those that would break a promise if they waited."""
        ids, records = self._waiting_keys(), self._records
        classes = None if self.stream.classes is None else records["class"][ids]
        urgent = list_urgent(ids, now_us - records["arrived_us"][ids], classes, self.urgent_us)
        return pop_urgent(self._queue, limit, urgent, len(records), now_us)

    @property
    def waiting_by_promise(self) -> list[int]:
        """Number of waiting keys of each class; if there are no classes, of all keys."""
        if self.stream.classes is None:
            return [len(self)]
        return self.accounts.count_classes(self._records["location"][: len(self._records)] != NOWHERE)

    def deliver(self, served: Served, now_us: int) -> None:
        """Record that the results of dequeued tuples have reached the application."""
        ids, records = served.ids, self._records
        begin = np.maximum(served.booked_us, records["delivered_us"][ids])
        self.accounts.book_application(ids, served.arrived_us, begin, now_us)
        # An update that arrived during the service is now the oldest pending update.
        records["application_booked_us"][ids] = np.maximum(records["application_booked_us"][ids], now_us)
        self.accounts.deliver(ids, now_us)

    def account_staleness(self, now_us: int) -> tuple[Staleness, Staleness]:
        """Count the staleness up to now; see `KeyedQueue.account_staleness`."""
        waiting = self._waiting_keys()
        # A key in service has a pending update older than its waiting update; `deliver` books its whole
        # staleness.
        alone = waiting[self._records["in_service"][waiting] == 0]
        self.accounts.book_until(waiting, now_us, alone=alone)
        staleness = self.accounts.close_period(now_us)
        self._compact()
        return staleness

    def expire(self, newest: int | None, lives: Lives) -> Expired:
        """Remove idle keys that had no update for too long; see `penstock.operators.queues.expiry`.

        Parameters
        ----------
        newest : int, optional
            The newest time of the micro-batch in all buckets.
        """
        if newest is not None:
            self.expiry.advance(newest, lives)
        ids, records = self.expiry.find(self._records, lives), self._records
        # Sort by hash: key numbers depend on what this working copy loaded, hashes do not.
        ids = ids[np.lexsort((records.hashes(ids), records["emitted"][ids]))]
        deleted = records["deleted"][ids] != 0 if self.stream.deleted else np.zeros(len(ids), np.bool_)
        expired = Expired(records.key_columns(ids), records["emitted"][ids], deleted)
        if len(ids):
            records.remove(ids)
            self.expiry.expired += len(ids)
        return expired

    def delta(self) -> PUnit:
        """Return the changes since the last call, to be stored."""
        changed = self._records.take_changed()
        unit = self._unit("delta", changed)
        self._records.update_table(unit.blocks[KEY_BLOCK], changed)
        self._forget()
        return unit

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state, in p-units of bounded size; see `KeyedQueue.snapshot`."""
        ids, others = self._records.split_records(self._held_keys())
        begins = range(0, max(len(ids), 1), MAX_UNIT_ROWS)
        units = [self._unit("snapshot", ids[begin : begin + MAX_UNIT_ROWS]) for begin in begins]
        meta, rows = units[0].meta, self._unit("snapshot", ids[:0]).blocks["rows"]
        return chain(units, (PUnit("snapshot", meta, {KEY_BLOCK: one, "rows": rows}) for one in others))

    def _unit(self, kind: str, ids: Integers) -> PUnit:
        records = self._records
        waits = records["location"][ids] != NOWHERE
        waiting = ids[waits]
        payload = self._rows.take(records["location"][waiting])
        places = {f"{RESERVED_PREFIX}{name}": values for name, values in self._queue.store(waiting).items()}
        places[_ARRIVED] = records["arrived_us"][waiting]
        fixed = [name for name in self._row_schema.names if name in places]
        return PUnit(
            kind=kind,
            meta={
                "rows": self.keys,
                "waiting": len(self),
                **self.accounts.meta,
                "cost_us": self.measured_cost_us,
                **self.expiry.meta,
                **self._queue.meta,
            },
            blocks={
                KEY_BLOCK: records.block(ids),
                "rows": pa.RecordBatch.from_arrays(
                    [
                        pa.array(np.flatnonzero(waits)),
                        *(pa.array(places[name]) for name in fixed),
                        *payload.columns,
                    ],
                    [OWNER, *fixed, *payload.schema.names],
                ),
            },
        )

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply stored `units` in order, to an empty queue or to an older version."""
        fields: Fields | None = None
        for unit in units:
            self._apply(unit)
            fields = unit.fields
        if fields is None:
            return
        self.accounts.restore(fields)
        self.measured_cost_us = fields.real_or_none("cost_us")
        waiting = self._waiting_keys()
        self._queue.rebuild(waiting, fields)
        self.accounts.book_restored(waiting)
        self.expiry.restore(fields)
        if len(gone := self.expiry.find(self._records)):
            self._records.remove(gone)
        self._records.dirty[:] = False

    def _apply(self, unit: PUnit) -> None:
        records_block, rows_block = (
            unit.block(KEY_BLOCK, self._records.schema),
            unit.block("rows", self._row_schema, self.stream.may_add),
        )
        if records_block.num_rows == 0:
            return
        records = self._records
        places = unit.numbers_below("rows", OWNER, records_block.num_rows, ascend=True)
        ids, waiting = records.take_up(records_block, places)
        self._queue.reserve(records.capacity)
        held = records["location"][ids]
        self.memory.free(held[held != NOWHERE])
        records["location"][ids] = NOWHERE
        if rows_block.num_rows == 0:
            return
        self._place(waiting, rows_block.column(_ARRIVED).to_numpy())
        width = len(self._payload)
        columns = rows_block.columns[rows_block.num_columns - width :]
        payload = pa.RecordBatch.from_arrays(columns, schema=self._payload)
        self._rows.put(records["location"][waiting], payload)
        records["waiting"][waiting] = as_int64(payload.column(self.stream.time))
        if self.stream.source:
            records["source"][waiting] = self.stream.sources(payload)
        places = {name: rows_block.column(f"{RESERVED_PREFIX}{name}") for name in self._queue.columns}
        self._queue.put_back(waiting, {name: column.to_numpy() for name, column in places.items()})

    def number(self, keys: Keys) -> Integers:
        """Return the numbers of keys; assign numbers to new keys."""
        ids = self._records.find_or_add(keys)
        self._queue.reserve(self._records.capacity)
        return ids

    def _held_keys(self) -> Integers:
        """Return the keys that must stay in memory: their tuples wait, or they may leave soon."""
        held = [] if self._holder is None else self._holder.held_keys()
        if not held and not len(self.expiry.candidates):
            return self._waiting_keys()
        return np.unique(np.concatenate([self._waiting_keys(), self.expiry.candidates, *held]))

    def _forget(self) -> None:
        """Forget idle keys whose records are in a table, and keys that left, if there are many."""
        count = len(self) + len(self.expiry.candidates) + (0 if self._holder is None else len(self._holder))
        # The numbers of keys in service are still in use.
        if self.accounts.in_service:
            return
        if self._records.may_forget(count):
            ids = self._held_keys()
        elif self._records.has_many_gone:
            ids = self._records.find_present()
        else:
            return
        self.expiry.renumber(ids)
        if self._holder is not None:
            numbers = np.full(len(self._records), NOWHERE, np.int64)
            numbers[ids] = np.arange(len(ids))
            self._holder.renumber(numbers)
        self._queue = self._queue.subset(ids, self._records["location"][ids] != NOWHERE)
        self._records.keep(ids)

    def _compare(
        self, arrivals: Arrivals, ids: Integers, times: Integers
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], Integers]:
        """Return masks of the arrivals that are in time and that will wait; and the counts of duplicates."""
        records = self._records
        emitted, waiting = records["emitted"][ids], records["waiting"][ids]
        resident = records["location"][ids] != NOWHERE
        in_time = ~self.expiry.find_late(emitted, resident, times)
        if arrivals.tied is None:
            accepted = in_time & (times >= emitted)
            return accepted, accepted & ~(resident & (times < waiting)), np.zeros(len(ids), np.int64)
        accepted = in_time & ((times > emitted) | (emitted == NEVER))
        fresh = accepted & ~(resident & (times < waiting))
        again = np.where(accepted, resident & (times == waiting), times == emitted)
        behind = self.stream.sources(arrivals.rows) >= records["source"][ids]
        given_way = np.where(fresh | again, arrivals.tied + again, 0)
        return accepted, fresh & ~(again & behind), given_way

    def _sort_arrivals(self, arrivals: Arrivals) -> Arrivals:
        if self.policy is Policy.FIFO:
            position = arrivals.last
            arrival = as_micros(arrivals.rows.column(self.stream.arrival)) if self.stream.arrival else None
        else:
            position, arrival = arrivals.first, arrivals.first_arrival_us
        if arrival is not None:
            return arrivals.take(np.lexsort((position, arrival)))
        if np.all(position[1:] > position[:-1]):
            return arrivals
        return arrivals.take(np.argsort(position))

    def _place(self, ids: Integers, arrived_us: Integers) -> None:
        """Allocate locations for keys that begin to wait, and start their staleness."""
        records = self._records
        if len(ids):
            locations = self.memory.allocate(len(ids))
            self._rows.resize(self.memory.capacity)
            records["location"][ids] = locations
        records["arrived_us"][ids] = arrived_us
        for booked, until in BOOKED:
            begin = np.maximum(arrived_us, records[until][ids])
            if self._holder is not None:
                # Staleness may have been booked while the holder had another tuple of the key.
                begin = np.maximum(begin, records[booked][ids])
            records[booked][ids] = begin

    def _load(self) -> int:
        size = len(self._records)
        return self._queue.load(self._records["in_service"][:size]) if self.accounts.in_service else 0

    def _payload_of(self, rows: pa.RecordBatch, chosen: Integers) -> pa.RecordBatch:
        payload = rows.select(self.stream.payload)
        return payload if len(chosen) == rows.num_rows else payload.take(pa.array(chosen))

    def _rows_of(self, ids: Integers) -> pa.RecordBatch:
        payload = self._rows.take(self._records["location"][ids])
        keys = dict(zip(self.stream.key, self._records.key_columns(ids), strict=True))
        names = self.stream.schema.names
        arrays = [keys[name] if name in keys else payload.column(name) for name in names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.stream.schema)

    def _waiting_keys(self) -> Integers:
        return np.flatnonzero(self._records["location"][: len(self._records)] != NOWHERE)

    def _compact(self) -> None:
        if self.memory.shrink():
            self._rows.resize(self.memory.capacity)
        self._rows.compact(self._records["location"][self._waiting_keys()])
