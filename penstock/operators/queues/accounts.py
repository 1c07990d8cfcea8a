"""The records of a queue's keys, and its accounts of staleness."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.checkpointing.fields import Fields
from penstock.operators.freshness.controller import ControllerState
from penstock.operators.queues.key_records import BOOKED, ForgetRule, new_key_records
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.rates import correct_costs, mean_interval
from penstock.operators.scheduling.staleness import Staleness, StalenessMeter
from penstock.operators.scheduling.weights import ONE
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
        The rule for moving records from memory to the table.
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
            # The following columns, down to `in_service`, are valid only while the key waits.
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
        classes = () if stream.classes is None else stream.classes.names
        if classes:
            columns["class"] = len(classes) - 1
        stored = ["emitted"]
        if policy.uses_rates:
            stored += ["seen_us", "interval_us"]
        if stream.arrival:
            stored += ["dequeued_us", "delivered_us"]
        if stream.deleted:
            stored.append("deleted")
        if classes:
            stored.append("class")
        if stream.costs_by_key:
            columns["cost_us"] = 0.0  # 0 means unknown
            stored.append("cost_us")
        self._policy = policy
        self.records = new_key_records(stream, columns, stored, table, forgetting)
        self.queue_meter = StalenessMeter()
        self.application_meter = StalenessMeter()
        self._class_meters = [StalenessMeter() for _ in classes]
        self.by_class: list[Staleness] = []
        """Application staleness of each class in the last closed period."""
        self.controller: ControllerState | None = None
        """The state of the freshness controller, if the queue has a contract."""
        self.birth_us: int | None = None
        """Arrival time of the first tuple."""
        self.accounted_until_us: int | None = None
        """Time up to which staleness is counted; None before the first arrival."""
        self.served_at_us: int | None = None
        """The time of the last dequeue or, if later, of the first arrival after the queue was empty."""
        self.in_service = 0
        """Number of tuples dequeued but not yet delivered."""

    def arrive(self, arrivals: Arrivals, now_us: int) -> Integers:
        """Return the arrival time of each arrival."""
        arrived = np.full(len(arrivals), now_us, np.int64)
        if arrivals.first_arrival_us is not None:
            np.minimum(arrivals.first_arrival_us, now_us, out=arrived)
        if self.birth_us is None:
            self.birth_us = self.accounted_until_us = int(arrived.min())
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
        """Count the staleness of waiting keys up to now; each key has one pending update.

        Parameters
        ----------
        alone : int64 array
            The keys among `ids` without a tuple in service. For the other keys, `deliver` counts the
            staleness.
        """
        records = self.records
        self.queue_meter.add(records["arrived_us"][ids], records["queue_booked_us"][ids], now_us)
        begin_us = records["application_booked_us"][alone]
        self.book_application(alone, records["arrived_us"][alone], begin_us, now_us)
        for booked, some in (("queue_booked_us", ids), ("application_booked_us", alone)):
            records[booked][some] = np.maximum(records[booked][some], now_us)

    def book_application(self, ids: Integers, arrived_us: Integers, begin_us: Integers, now_us: int) -> None:
        """Count application staleness from `begin_us` until now, for all keys and by class."""
        self.application_meter.add(arrived_us, begin_us, now_us)
        if self._class_meters:
            classes = self.records["class"][ids]
            for number, meter in enumerate(self._class_meters):
                own = classes == number
                meter.add(arrived_us[own], begin_us[own], now_us)

    def update_rates(self, ids: Integers, count: Integers, now_us: int) -> npt.NDArray[np.float64]:
        """Update and return the keys' mean time between updates.

        The mean is exponentially weighted. If `count` tuples arrived since the key was last seen, they are
        counted as that many equal intervals. The first interval of a key begins at the queue's first arrival,
        so a key that appears late starts as a slow updater.
        """
        records = self.records
        if not self._policy.uses_rates:
            return np.zeros(len(ids), np.float64)
        seen = records["seen_us"][ids]
        birth = now_us if self.birth_us is None else self.birth_us
        gap = np.maximum(now_us - np.where(seen == NEVER, birth, seen), 0) / count
        interval = mean_interval(records["interval_us"][ids], gap, count)
        records["interval_us"][ids] = interval
        records["seen_us"][ids] = now_us
        records.dirty[ids] = True
        return interval

    def observe_costs(self, ids: Integers, elapsed_us: float, mean_us: float | None) -> None:
        """Correct the cost of keys that were served together in `elapsed_us`.

        For keys whose cost is unknown, `mean_us`, the mean cost of a tuple, is used. The caller need not mark
        the keys as changed, because `serve` has done so.
        """
        costs = self.records["cost_us"]
        costs[ids] = correct_costs(costs[ids], elapsed_us, mean_us)

    def discount(self, ids: Integers, shares: Integers | None, mean_us: float | None) -> Integers | None:
        """Return the shares of keys.

        If costs are measured by key, each weight is divided by the key's cost.
        """
        if not self.records.has("cost_us") or mean_us is None:
            return shares
        costs = self.records["cost_us"][ids]
        known = np.where(costs > 0.0, costs, mean_us)
        root = np.sqrt(mean_us / known) * (ONE if shares is None else shares)
        return np.maximum(np.rint(root), 1).astype(np.int64)

    def count_classes(self, mask: npt.NDArray[np.bool_]) -> list[int]:
        """Return, for each class, the number of its keys that `mask` marks."""
        classes = self.records["class"][: len(mask)][mask]
        return np.bincount(classes, minlength=len(self._class_meters)).tolist()

    def book_first(
        self, meter: StalenessMeter, booked: str, ids: Integers, arrived_us: Integers, now_us: int
    ) -> None:
        """Count the staleness of each key from its first tuple up to now; later tuples add nothing."""
        keys, first = np.unique(ids, return_index=True)
        since, until = arrived_us[first], self.records[booked]
        meter.add(since, np.maximum(since, until[keys]), now_us)
        until[keys] = np.maximum(until[keys], now_us)

    def close_period(self, now_us: int) -> tuple[Staleness, Staleness]:
        """Count all staleness up to now; return queue and application staleness since the last call."""
        begin = now_us if self.accounted_until_us is None else self.accounted_until_us
        self.accounted_until_us = None if self.accounted_until_us is None else max(now_us, begin)
        period_us = float(max(now_us - begin, 0))
        if self._class_meters:
            keys = self.count_classes(self.records["gone"][: len(self.records)] == 0)
            pairs = zip(self._class_meters, keys, strict=True)
            self.by_class = [meter.take(period_us * count) for meter, count in pairs]
        key_time = period_us * self.records.keys
        return self.queue_meter.take(key_time), self.application_meter.take(key_time)

    @property
    def meta(self) -> dict[str, Any]:
        """The state that is stored once for all keys."""
        controller = {} if self.controller is None else {"controller": self.controller.to_json()}
        return {
            **controller,
            "birth_us": self.birth_us,
            "settled_at_us": self.accounted_until_us,
            "served_at_us": self.served_at_us,
        }

    def restore(self, fields: Fields) -> None:
        """Restore the output of `meta`, after the records were restored. No tuple is in service then."""
        self.birth_us = fields.number_or_none("birth_us")
        self.accounted_until_us = fields.number_or_none("settled_at_us")
        self.served_at_us = fields.number_or_none("served_at_us")
        if fields.has("controller"):
            self.controller = ControllerState.from_fields(fields.fields("controller"))
        for booked, until in BOOKED:
            self.records[booked][:] = self.records[until]
        self.records["in_service"][:] = 0
        self.in_service = 0

    def book_restored(self, ids: Integers) -> None:
        """Mark the staleness of waiting keys as counted up to the end of the last period."""
        for booked, _ in BOOKED:
            self.records[booked][ids] = self.accounted_until_us or 0
