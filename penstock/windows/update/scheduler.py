"""The scheduler of a window queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.checkpointing.fields import Fields
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.rates import mean_interval
from penstock.operators.scheduling.schedulers import new_scheduler
from penstock.operators.scheduling.weights import ONE
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import grow
from penstock.units import NEVER

__all__ = ["WindowScheduler"]


class WindowScheduler:
    """The waiting keys of a `WindowQueue` in service order, with their update rates and weights.

    Keys are given as key numbers.

    Parameters
    ----------
    policy : Policy
        The policy that chooses the next key.
    weighted : bool
        Whether the scheduler uses weights, which `weigh` takes as shares.
    """

    def __init__(self, policy: Policy, *, weighted: bool) -> None:
        self.policy = policy
        self._weighted = weighted
        self._queue = new_scheduler(policy, weighted=weighted)
        self._shares = np.zeros(0, np.int64)
        self._seen_us = np.zeros(0, np.int64)
        self._interval_us = np.zeros(0, np.float64)

    def __len__(self) -> int:
        """Return the number of waiting keys."""
        return len(self._queue)

    @property
    def size_bytes(self) -> int:
        """Memory of the scheduler's arrays in bytes."""
        arrays = (self._shares, self._seen_us, self._interval_us)
        return sum(array.nbytes for array in arrays) + self._queue.size_bytes

    def reserve(self, keys: int) -> None:
        """Grow the arrays for key numbers below `keys`."""
        size = len(self._seen_us)
        self._shares = grow(self._shares, keys)
        self._seen_us = grow(self._seen_us, keys)
        self._seen_us[size:] = NEVER
        self._interval_us = grow(self._interval_us, keys)
        self._queue.reserve(keys)

    def weigh(self, ids: Integers, shares: Integers) -> None:
        """Set the shares of keys, which apply from their next arrival on."""
        self._shares[ids] = shares

    def forget(self, ids: Integers) -> None:
        """Forget the shares, update times and intervals of keys that do not wait."""
        self._shares[ids] = 0
        self._seen_us[ids] = NEVER
        self._interval_us[ids] = 0

    def arrive(
        self,
        ids: Integers,
        resident: Integers,
        now_us: int,
        birth_us: int,
        cost_us: float | None,
        under_way: Integers,
    ) -> None:
        """Add keys, one after the other. A key that already waits now waits with a newer window.

        Parameters
        ----------
        resident : int64 array
            Nonzero for keys that already wait.
        birth_us : int
            The time at which the first interval of every key begins.
        cost_us : float, optional
            The cost of serving a window, for linecutting.
        under_way : int64 array
            Number of dequeued but undelivered windows by key number; may be empty if all are delivered.
        """
        interval = np.zeros(len(ids))
        if self.policy.uses_rates and len(ids):
            # Several updates at one moment are counted as that many equal intervals.
            _, first, count = np.unique(ids, return_index=True, return_counts=True)
            order = np.argsort(first)
            ids, resident, count = ids[first[order]], resident[first[order]], count[order]
            seen_us = self._seen_us[ids]
            gap = np.maximum(now_us - np.where(seen_us == NEVER, birth_us, seen_us), 0) / count
            interval = self._interval_us[ids] = mean_interval(self._interval_us[ids], gap, count)
            self._seen_us[ids] = now_us
        ids, waits, cost = np.ascontiguousarray(ids), resident != 0, np.inf if cost_us is None else cost_us
        shares = self._shares[ids] if self._weighted else None
        arrived_us = np.full(len(ids), now_us, np.int64)
        self._queue.arrive(ids, waits, interval, cost, self._queue.load(under_way), shares, arrived_us)

    def line_up(self, ids: Integers, since_us: Integers, interval_us: Any) -> None:
        """Let keys that did not wait begin to wait, in this order, from the times in `since_us` on."""
        shares = self._shares[ids] if self._weighted else None
        waits = np.zeros(len(ids), np.bool_)
        self._queue.arrive(ids, waits, interval_us, np.inf, 0, shares, since_us)

    def pop(self, limit: int, held: Integers, now_us: int) -> Integers:
        """Remove and return up to `limit` keys; skip `held` keys, which keep their places."""
        return self._queue.pop(limit, held, now_us=now_us)

    @property
    def meta(self) -> dict[str, float]:
        """The state that is stored once for all keys."""
        return self._queue.meta

    def store(self, ids: Integers) -> dict[str, Any]:
        """Return the state of keys that is stored for each key, as columns."""
        places = self._queue.store(ids)
        columns = {"rank": places.pop("rank")}
        if self.policy.uses_rates:
            columns |= {"seen_us": self._seen_us[ids], "interval_us": self._interval_us[ids]}
        if self._weighted:
            # The share of a key may have changed since the key began to wait.
            columns["share"] = self._shares[ids]
            if "start" in places:
                columns["start"] = places["start"]
            columns["waits_by"] = places["share"]
        return columns

    def put_back(self, ids: Integers, columns: Mapping[str, Any]) -> None:
        """Restore the state of keys from the output of `store`. `rebuild` must follow.

        Parameters
        ----------
        columns : mapping
            The output of `store`. The column ``since_us`` is the time at which each waiting key began to
            wait.
        """
        if self.policy.uses_rates:
            self._seen_us[ids] = columns["seen_us"]
            self._interval_us[ids] = columns["interval_us"]
        if self._weighted:
            self._shares[ids] = columns["share"]
        places = {**columns, "share": columns["waits_by"] if self._weighted else ONE}
        if self.policy is Policy.FRESHEST:
            # The scheduler uses other names: for it, a key arrives when the key begins to wait.
            places |= {"arrived": columns["since_us"], "interval": columns["interval_us"]}
        self._queue.put_back(ids, places)

    def rebuild(self, waiting: Integers, fields: Fields) -> None:
        """Make `waiting` the waiting keys, in the order of their restored state."""
        self._queue.rebuild(waiting, fields)
