"""The append queue that update queues are compared with: every tuple waits its turn (UpStream §5.2).

It has the methods of `penstock.operators.queues.update_queue.UpdateQueue` that a server calls, and the same
meters. It serves every tuple except those that random load shedding drops on arrival.

Pending updates are defined as everywhere (UpStream §3.3): an update is pending until a result that is at
least as new has been delivered. In the plain append queue, these are the queued tuples of the key. A shed
tuple is never served; it becomes pending when it arrives, as the application does not know it, and stops
being pending with the delivery of the next accepted tuple of its key.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.operators.scheduling.results import Served
from penstock.operators.scheduling.staleness import Staleness, StalenessMeter
from penstock.operators.simulation.draws import draws
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import Integers, UpdateStream, concat
from penstock.state_store.keys.key_index import KeyIndex, grow
from penstock.units import NEVER

__all__ = ["Accepted", "AppendQueue"]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of one `AppendQueue.enqueue`: the numbers of arrived and of shed tuples."""

    rows_in: int = 0
    shed: int = 0


@dataclass(slots=True)
class _Chunk:
    """Waiting tuples in order, each with the arrival of the oldest update that its delivery settles."""

    rows: pa.RecordBatch
    ids: Integers
    since_us: Integers


class AppendQueue:
    """A queue of all tuples in the order of their arrival, optionally with random load shedding.

    Not thread-safe. Used as an `UpdateQueue` is: `enqueue`, `dequeue`, `deliver`, then `account_staleness`.
    Time is an argument; nothing here reads a clock. A tuple dequeued must be delivered before
    `account_staleness` knows how stale the application was meanwhile.

    Parameters
    ----------
    stream : UpdateStream
        Schema, key and time of the tuples.
    accept : float
        The share of tuples that enter, above 0 to 1. Random load shedding that matches a load factor above 1
        takes its inverse, so that the accepted load equals the capacity.
    seed : int
        Decides which tuples are shed; the decision on the n-th tuple depends on `seed` and n only.

    Raises
    ------
    InvalidUsageError
        If `accept` is out of its range.
    """

    def __init__(self, stream: UpdateStream, *, accept: float = 1.0, seed: int = 0) -> None:
        if not 0 < accept <= 1:
            raise InvalidUsageError("the accepted share is not in (0, 1]", accept=accept)
        self.stream = stream
        self._accept = accept
        self._seed = seed
        self._seen = 0
        self._index = KeyIndex()
        self._chunks: deque[_Chunk] = deque()
        self._size = 0
        self._accounted_until_us: int | None = None
        self._queue_meter = StalenessMeter()
        self._application_meter = StalenessMeter()
        # One element per key.
        self._shed_since = np.zeros(0, np.int64)
        self._queue_booked = np.zeros(0, np.int64)
        self._application_booked = np.zeros(0, np.int64)
        self._in_service = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Return how many tuples wait."""
        return self._size

    @property
    def keys(self) -> int:
        """Return the number of keys that were ever seen."""
        return len(self._index)

    def enqueue(self, arrivals: Arrivals, now_us: int) -> Accepted:
        """Let `arrivals` in, or shed them.

        Raises
        ------
        InvalidUsageError
            If `arrivals` were conflated: the queue would not see all tuples.
        """
        count = len(arrivals)
        if not count:
            return Accepted()
        if int(arrivals.count.max()) > 1:
            raise InvalidUsageError("an append queue needs arrivals that are not conflated")
        known = arrivals.first_arrival_us
        arrived = np.full(count, now_us, np.int64) if known is None else np.minimum(known, now_us)
        order = np.lexsort((arrivals.first, arrived))
        arrived = arrived[order]
        if self._accounted_until_us is None:
            self._accounted_until_us = int(arrived[0])
        ids = self._index.find_or_add(self.stream.keys(arrivals.rows))[order]
        self._make_cells()
        taken = draws(self._seed, self._seen, count) < self._accept
        self._seen += count
        since = self._pending_since(ids, arrived, taken)
        chosen = order[taken]
        if len(chosen):
            rows = arrivals.rows.take(pa.array(chosen))
            self._chunks.append(_Chunk(rows, ids[taken], since[taken]))
            self._size += len(chosen)
        return Accepted(count, count - len(chosen))

    def dequeue(self, limit: int, now_us: int) -> Served:
        """Remove up to `limit` tuples in the order of their arrival."""
        parts: list[_Chunk] = []
        missing = limit
        while missing > 0 and self._chunks:
            chunk = self._chunks[0]
            if len(chunk.ids) <= missing:
                parts.append(self._chunks.popleft())
                missing -= len(chunk.ids)
                continue
            head, tail = slice(None, missing), slice(missing, None)
            parts.append(_Chunk(chunk.rows[head], chunk.ids[head], chunk.since_us[head]))
            self._chunks[0] = _Chunk(chunk.rows[tail], chunk.ids[tail], chunk.since_us[tail])
            missing = 0
        if not parts:
            nothing = np.zeros(0, np.int64)
            return Served(
                pa.RecordBatch.from_pylist([], self.stream.schema), nothing, nothing, nothing, nothing
            )
        rows = concat([part.rows for part in parts])
        ids = np.concatenate([part.ids for part in parts])
        since = np.concatenate([part.since_us for part in parts])
        self._size -= len(ids)
        self._book(self._queue_meter, self._queue_booked, ids, since, now_us)
        np.add.at(self._in_service, ids, 1)
        return Served(rows, ids, since, np.maximum(now_us - since, 0), self._application_booked[ids])

    def deliver(self, served: Served, now_us: int) -> None:
        """Note that the results of `served`, dequeued before, have reached the application."""
        self._book(self._application_meter, self._application_booked, served.ids, served.arrived_us, now_us)
        np.subtract.at(self._in_service, served.ids, 1)

    def account_staleness(self, now_us: int) -> tuple[Staleness, Staleness]:
        """Book the staleness up to now and return queue and application staleness since last time."""
        begin = now_us if self._accounted_until_us is None else self._accounted_until_us
        ids, since = self._oldest_pending()
        self._book(self._queue_meter, self._queue_booked, ids, since, now_us)
        idle = self._in_service[ids] == 0
        self._book(self._application_meter, self._application_booked, ids[idle], since[idle], now_us)
        self._accounted_until_us = None if self._accounted_until_us is None else max(now_us, begin)
        key_time = float(max(now_us - begin, 0)) * self.keys
        return self._queue_meter.take(key_time), self._application_meter.take(key_time)

    def _make_cells(self) -> None:
        known, needed = len(self._shed_since), self.keys
        if needed <= known:
            return
        for name in ("_shed_since", "_queue_booked", "_application_booked"):
            larger = grow(getattr(self, name), needed)
            larger[known:] = NEVER
            setattr(self, name, larger)
        self._in_service = grow(self._in_service, needed)

    def _pending_since(self, ids: Integers, arrived: Integers, taken: npt.NDArray[np.bool_]) -> Integers:
        """Return for each tuple the arrival of the oldest update that its delivery settles.

        That is the first tuple of its key after the last accepted one. What remains pending behind the last
        accepted tuple of a key is noted for later calls.
        """
        order = np.argsort(ids, kind="stable")
        key, time, accepted = ids[order], arrived[order], taken[order]
        first_of_key = np.ones(len(key), np.bool_)
        first_of_key[1:] = key[1:] != key[:-1]
        begins = first_of_key.copy()
        begins[1:] |= accepted[:-1]
        carried = self._shed_since[key]
        oldest = np.where(first_of_key & (carried != NEVER), np.minimum(carried, time), time)
        oldest = oldest[begins][np.cumsum(begins) - 1]
        last_of_key = np.append(first_of_key[1:], True)
        self._shed_since[key[last_of_key]] = np.where(accepted, NEVER, oldest)[last_of_key]
        since = np.empty_like(oldest)
        since[order] = oldest
        return since

    def _oldest_pending(self) -> tuple[Integers, Integers]:
        """Return the keys with updates that were not dequeued, and since when the oldest is pending."""
        since = self._shed_since[: self.keys].copy()
        if self._chunks:
            ids, first = np.unique(np.concatenate([chunk.ids for chunk in self._chunks]), return_index=True)
            since[ids] = np.concatenate([chunk.since_us for chunk in self._chunks])[first]
        pending = np.flatnonzero(since != NEVER)
        return pending, since[pending]

    @staticmethod
    def _book(
        meter: StalenessMeter, booked: Integers, ids: Integers, since_us: Integers, now_us: int
    ) -> None:
        """Book up to now for the first tuple of each key; the others of that key take no time."""
        keys, first = np.unique(ids, return_index=True)
        since = since_us[first]
        meter.add(since, np.maximum(since, booked[keys]), now_us)
        booked[keys] = np.maximum(booked[keys], now_us)
