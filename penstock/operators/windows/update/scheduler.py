"""Which of a window queue's waiting keys is served next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.checkpointing.fields import Fields
from penstock.operators.scheduling.key_queue import KeyQueue, Policy
from penstock.operators.scheduling.rates import mean_interval
from penstock.operators.scheduling.weighted_key_queue import WeightedKeyQueue
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import grown

__all__ = ["WindowScheduler"]

_NEVER = np.iinfo(np.int64).min


class WindowScheduler:
    """The keys that wait in a window queue, and what their order depends on: rates of updates, and weights.

    Used by a `WindowQueue` only. Keys are numbers.

    Parameters
    ----------
    policy : Policy
        Which waiting key is served next.
    weighted : bool
        Whether some keys matter more than others, by the shares that `weigh` is told.
    """

    def __init__(self, policy: Policy, *, weighted: bool) -> None:
        self.policy = policy
        self._queue = WeightedKeyQueue(policy) if weighted else KeyQueue(policy)
        self._shares = np.zeros(0, np.int64)
        self._seen_us = np.zeros(0, np.int64)
        self._interval_us = np.zeros(0, np.float64)

    def __len__(self) -> int:
        """Return how many keys wait."""
        return len(self._queue)

    @property
    def size_bytes(self) -> int:
        """How much memory it holds."""
        arrays = (self._shares, self._seen_us, self._interval_us)
        return sum(array.nbytes for array in arrays) + self._queue.size_bytes

    def reserve(self, keys: int) -> None:
        """Make room for key numbers below `keys`."""
        known = len(self._seen_us)
        self._shares = grown(self._shares, keys)
        self._seen_us = grown(self._seen_us, keys)
        self._seen_us[known:] = _NEVER
        self._interval_us = grown(self._interval_us, keys)
        self._queue.reserve(keys)

    def weigh(self, ids: Integers, shares: Integers) -> None:
        """Note the shares of keys, by which they begin or go on to wait from now on."""
        self._shares[ids] = shares

    def arrive(
        self,
        ids: Integers,
        resident: Integers,
        now_us: int,
        birth_us: int,
        cost_us: float | None,
        under_way: Integers,
    ) -> None:
        """Let keys wait, or go on waiting with a newer window, one after the other.

        Parameters
        ----------
        resident : int64 array
            Not zero for keys that wait already.
        birth_us : int
            Since when keys are watched.
        cost_us : float, optional
            What serving a window takes, for linecutting.
        under_way : int64 array
            By key number, how many of its windows were dequeued and are not delivered; may be empty if none.
        """
        interval = np.zeros(len(ids))
        if self.policy is Policy.LINECUTTING and len(ids):
            # Several updates of one moment are as many equal intervals.
            _, first, count = np.unique(ids, return_index=True, return_counts=True)
            order = np.argsort(first)
            ids, resident, count = ids[first[order]], resident[first[order]], count[order]
            seen = self._seen_us[ids]
            gap = np.maximum(now_us - np.where(seen == _NEVER, birth_us, seen), 0) / count
            interval = self._interval_us[ids] = mean_interval(self._interval_us[ids], gap, count)
            self._seen_us[ids] = now_us
        ids, waits, cost = np.ascontiguousarray(ids), resident != 0, np.inf if cost_us is None else cost_us
        if isinstance(self._queue, WeightedKeyQueue):
            in_service = int(self._queue.shares[: len(under_way)] @ under_way)
            self._queue.arrive(ids, waits, self._shares[ids], interval, cost, in_service)
        else:
            self._queue.arrive(ids, waits, interval, cost, int(under_way.sum()))

    def pop(self, limit: int, held: Integers) -> Integers:
        """Remove and return up to `limit` keys; those that are `held` are passed by and keep their places."""
        return self._queue.pop(limit, held)

    @property
    def meta(self) -> dict[str, Any]:
        """What is stored once."""
        queue = self._queue
        return {"virtual_time": queue.virtual_time} if isinstance(queue, WeightedKeyQueue) else {}

    def store(self, ids: Integers) -> dict[str, Any]:
        """Return what is stored of keys, as columns."""
        queue = self._queue
        cells: dict[str, Any] = {"rank": queue.ranks[ids]}
        if self.policy is Policy.LINECUTTING:
            cells |= {"seen_us": self._seen_us[ids], "interval_us": self._interval_us[ids]}
        if isinstance(queue, WeightedKeyQueue):
            cells |= {"share": self._shares[ids], "start": queue.starts[ids], "waits_by": queue.shares[ids]}
        return cells

    def put_back(self, ids: Integers, cells: Mapping[str, Any]) -> None:
        """Take up what `store` gave; `rebuild` comes after it."""
        queue = self._queue
        queue.ranks[ids] = cells["rank"]
        if self.policy is Policy.LINECUTTING:
            self._seen_us[ids] = cells["seen_us"]
            self._interval_us[ids] = cells["interval_us"]
        if isinstance(queue, WeightedKeyQueue):
            self._shares[ids] = cells["share"]
            queue.starts[ids] = cells["start"]
            queue.shares[ids] = cells["waits_by"]

    def rebuild(self, waiting: Integers, fields: Fields) -> None:
        """Make `waiting` the keys that wait, in the order that was put back."""
        if isinstance(self._queue, WeightedKeyQueue):
            self._queue.rebuild(waiting, fields.real("virtual_time"))
        else:
            self._queue.rebuild(waiting, self._queue.ranks[waiting].copy())
