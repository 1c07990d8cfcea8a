"""The records of a queue's keys, and its accounts of staleness."""

from __future__ import annotations

import numpy as np

from penstock.checkpointing.fields import Fields
from penstock.operators.queues.key_records import BOOKED, ForgetRule, new_key_records
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.staleness import Staleness, StalenessMeter
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import Integers, UpdateStream
from penstock.state_store.tables.working_copy import TableMaker
from penstock.units import NEVER

__all__ = ["NOWHERE", "KeyAccounts"]

NOWHERE = -1
"""Location value of keys that do not wait."""


class KeyAccounts:
    """The key records of one queue and its accounts of staleness.

    Parameters
    ----------
    stream : UpdateStream
        Schema, key and time of the tuples.
    policy : Policy
        The policy; linecutting and freshest also record how often keys update.
    table : TableMaker, optional
        Creates the table for records of idle keys; by default records stay in memory.
    forgetting : ForgetRule, optional
        When records in memory go to the table.
    """

    def __init__(
        self,
        stream: UpdateStream,
        policy: Policy,
        table: TableMaker | None,
        forgetting: ForgetRule | None = None,
    ) -> None:
        columns: dict[str, float] = {
            "emitted": NEVER,
            "seen_us": NEVER,
            "interval_us": 0.0,
            "dequeued_us": 0,
            "delivered_us": 0,
            # Valid only while the key waits.
            "location": NOWHERE,
            "waiting": 0,
            "arrived_us": 0,
            "queue_booked_us": 0,
            "application_booked_us": 0,
            "in_service": 0,
            # 1 if the key has left (`penstock.operators.queues.expiry`), and has not returned.
            "gone": 0,
        }
        if stream.source:
            columns["source"] = 0
        if stream.deleted:
            columns["deleted"] = 0
        stored = ["emitted"]
        if policy.uses_rates:
            stored += ["seen_us", "interval_us"]
        if stream.arrival:
            stored += ["dequeued_us", "delivered_us"]
        if stream.deleted:
            stored.append("deleted")
        self.records = new_key_records(stream, columns, stored, table, forgetting)
        self.queue_meter = StalenessMeter()
        self.application_meter = StalenessMeter()
        self.birth_us: int | None = None
        """Arrival time of the first tuple."""
        self.settled_at_us: int | None = None
        """Time up to which staleness is booked; None before the first arrival."""
        self.served_at_us: int | None = None
        """Time of the last dequeue, or of the first arrival at the empty queue if later."""
        self.in_service = 0
        """Number of tuples dequeued but not yet delivered."""

    def arrive(self, arrivals: Arrivals, now_us: int) -> Integers:
        """Return the arrival time of each arrival."""
        arrived = np.full(len(arrivals), now_us, np.int64)
        if arrivals.first_arrival_us is not None:
            np.minimum(arrivals.first_arrival_us, now_us, out=arrived)
        if self.birth_us is None:
            self.birth_us = self.settled_at_us = int(arrived.min())
        return arrived

    def serve(self, ids: Integers, now_us: int) -> None:
        """Record a dequeued tuple for each of these keys, which may repeat."""
        self.records["dequeued_us"][ids] = now_us
        self.records.dirty[ids] = True
        np.add.at(self.records["in_service"], ids, 1)
        self.in_service += len(ids)
        if len(ids):
            self.served_at_us = now_us

    def deliver(self, ids: Integers, now_us: int) -> None:
        """Record the delivery of results of tuples in service."""
        self.records["delivered_us"][ids] = now_us
        np.subtract.at(self.records["in_service"], ids, 1)
        self.in_service -= len(ids)

    def book_until(self, ids: Integers, now_us: int, *, alone: Integers) -> None:
        """Book the staleness of waiting keys with one pending update each.

        Parameters
        ----------
        alone : int64 array
            The keys among `ids` without a tuple in service. For the other keys, `deliver` books the
            staleness.
        """
        records = self.records
        for meter, booked, some in (
            (self.queue_meter, "queue_booked_us", ids),
            (self.application_meter, "application_booked_us", alone),
        ):
            meter.add(records["arrived_us"][some], records[booked][some], now_us)
            records[booked][some] = np.maximum(records[booked][some], now_us)

    def book_first(
        self, meter: StalenessMeter, booked: str, ids: Integers, arrived_us: Integers, now_us: int
    ) -> None:
        """Book staleness up to now from the first tuple of each key; later tuples add nothing."""
        keys, first = np.unique(ids, return_index=True)
        since, until = arrived_us[first], self.records[booked]
        meter.add(since, np.maximum(since, until[keys]), now_us)
        until[keys] = np.maximum(until[keys], now_us)

    def close_period(self, now_us: int) -> tuple[Staleness, Staleness]:
        """Book all staleness up to now; return queue and application staleness since the last call."""
        begin = now_us if self.settled_at_us is None else self.settled_at_us
        self.settled_at_us = None if self.settled_at_us is None else max(now_us, begin)
        key_time = float(max(now_us - begin, 0)) * self.records.keys
        return self.queue_meter.take(key_time), self.application_meter.take(key_time)

    @property
    def meta(self) -> dict[str, int | None]:
        """The state to store once."""
        return {
            "birth_us": self.birth_us,
            "settled_at_us": self.settled_at_us,
            "served_at_us": self.served_at_us,
        }

    def restore(self, fields: Fields) -> None:
        """Restore `meta`, after the records. No tuple is in service."""
        self.birth_us = fields.number_or_none("birth_us")
        self.settled_at_us = fields.number_or_none("settled_at_us")
        self.served_at_us = fields.number_or_none("served_at_us")
        for booked, until in BOOKED:
            self.records[booked][:] = self.records[until]
        self.records["in_service"][:] = 0
        self.in_service = 0

    def book_restored(self, ids: Integers) -> None:
        """Mark the staleness of waiting keys as booked up to the end of the last period."""
        for booked, _ in BOOKED:
            self.records[booked][ids] = self.settled_at_us or 0
