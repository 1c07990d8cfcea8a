"""An index policy for staleness: serve first the keys whose service lowers staleness most per unit of cost.

Staleness (UpStream §3.3), the time since a key's oldest unseen update arrived, is also known as the *age of
synchronization*. One server is shared among many keys. Whittle (1988) relaxes such problems: each service has
a price C, and each key chooses on its own when to pay this price. Let a key have weight w and updates that
arrive at random (Poisson) with a mean time 1/u between them. If the key is always served at staleness s, the
time from service to service is ``1/u + s`` on average, and the cost of this time is ``w s**2 / 2 + C``. The
cost per unit of time is least where ``C = w (s**2 / 2 + s / u)``. So at staleness s a service is worth

    w s (s / 2 + 1 / u)

The key's *index* is this worth, divided by the time that a service takes. The key with the greatest index
goes first. Only the relative times of services matter. A queue that measures the cost of each key divides the
key's weight by this cost; other queues assume equal costs.

- H. Tang, J. Wang, Z. Tang, J. Song, "Scheduling to Minimize Age of Synchronization in Wireless Broadcast
  Networks with Random Updates", IEEE Transactions on Wireless Communications, 2020: an index in slotted time,
  with lossy channels.
- Y.-P. Hsu, "Age of Information: Whittle Index for Scheduling Stochastic Arrivals", IEEE ISIT, 2018; V.
  Tripathi, E. Modiano, "A Whittle Index Approach to Minimizing Functions of Age of Information", Allerton,
  2019: indexes of the age of information, which also grows while there is no update.
- P. Whittle, "Restless Bandits: Activity Allocation in a Changing World", Journal of Applied Probability 25A,
  1988.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._kernels import kernel
from penstock.errors import InternalError
from penstock.operators.scheduling.abc import Scheduler
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.weights import ONE
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import grow

if TYPE_CHECKING:
    from penstock.checkpointing.fields import Fields

__all__ = ["SKIPPED", "FreshestScheduler", "take_greatest"]

Floats = npt.NDArray[np.float64]

SKIPPED = -1.0
"""The index of keys to skip; all other indexes are at least 0."""
_NO_KEYS = np.zeros(0, np.int64)


@kernel
def _compute_indexes(
    line: Integers, held: Integers, now_us: int, arrived_us: Integers, interval_us: Floats, share: Integers
) -> Floats:
    """Return the index of each waiting key."""
    indexes = np.empty(line.shape[0])
    for i in range(line.shape[0]):
        k = line[i]
        if held.shape[0] and held[k] != 0:
            indexes[i] = SKIPPED
            continue
        stale = float(max(now_us - arrived_us[k], 0))
        root = share[k] / ONE
        index = root * root * stale * (0.5 * stale + interval_us[k])
        # Damaged state may have an interval that is not a number.
        indexes[i] = index if index >= 0.0 else 0.0
    return indexes


@kernel
def take_greatest(limit: int, line: Integers, indexes: Floats) -> tuple[Integers, int]:
    """Remove the keys with the greatest indexes from `line`. If indexes are equal, remove the earlier key.

    Returns
    -------
    chosen : int64 array
        The removed keys, in the order of the line.
    size : int
        The length of the line without them.
    """
    size = line.shape[0]
    count = max(min(limit, int(np.count_nonzero(indexes >= 0.0))), 0)
    chosen = np.empty(count, np.int64)
    if count == 0:
        return chosen, size
    least = np.partition(indexes, size - count)[size - count]
    ties = count - int(np.count_nonzero(indexes > least))
    taken = kept = 0
    for i in range(size):
        k, index = line[i], indexes[i]
        if index > least or (index == least and ties > 0):
            ties -= index == least
            chosen[taken] = k
            taken += 1
        else:
            line[kept] = k
            kept += 1
    return chosen, kept


class FreshestScheduler(Scheduler):
    """A scheduler of keys with or without weights, by their index; see `Scheduler`.

    The keys that one `pop` chooses are served together. They leave in the order in which they began to wait.
    Choosing takes time proportional to the number of waiting keys.
    """

    columns = {  # noqa: RUF012  # declared as a ClassVar by the interface
        "rank": pa.int64(),
        "arrived": pa.int64(),
        "interval": pa.float64(),
        "share": pa.int64(),
    }

    def __init__(self, policy: Policy = Policy.FRESHEST) -> None:
        super().__init__(policy)
        self._size = 0
        self._last_rank = 0
        # The waiting keys, in the order in which they began to wait.
        self._line = np.zeros(0, np.int64)
        self._rank = np.zeros(0, np.int64)
        self._arrived = np.zeros(0, np.int64)
        self._interval = np.zeros(0, np.float64)
        self._share = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Return the number of waiting keys."""
        return self._size

    @property
    def size_bytes(self) -> int:
        """Memory of the scheduler's arrays in bytes."""
        arrays = (self._line, self._rank, self._arrived, self._interval, self._share)
        return sum(array.nbytes for array in arrays)

    def reserve(self, keys: int) -> None:
        """Grow the arrays for key numbers below `keys`."""
        for name in ("_line", "_rank", "_arrived", "_interval", "_share"):
            setattr(self, name, grow(getattr(self, name), keys))

    def arrive(
        self,
        ids: Integers,
        resident: Any,
        interval_us: Any,
        cost_us: float,
        in_service: int = 0,
        shares: Integers | None = None,
        arrived_us: Integers | None = None,
    ) -> None:
        """Add the arriving keys; see `Scheduler.arrive`."""
        if arrived_us is None:
            raise InternalError("a scheduler by staleness was given no arrival times", keys=len(ids))
        self._interval[ids] = interval_us
        self._share[ids] = ONE if shares is None else shares
        new = ids[~resident]
        self._arrived[new] = arrived_us[~resident]
        self._line[self._size : self._size + len(new)] = new
        self._size += len(new)
        self._rank[new] = np.arange(self._last_rank + 1, self._last_rank + len(new) + 1)
        self._last_rank += len(new)

    def load(self, in_service: Integers) -> int:
        """Return the number of tuples in service."""
        return int(in_service.sum())

    def pop(self, limit: int, held: Integers | None = None, *, now_us: int = 0) -> Integers:
        """Remove and return the keys with the greatest indexes, at most `limit`; see `Scheduler.pop`."""
        line, held = self._line[: self._size], _NO_KEYS if held is None else held
        indexes = _compute_indexes(line, held, now_us, self._arrived, self._interval, self._share)
        chosen, self._size = take_greatest(limit, line, indexes)
        return chosen

    @property
    def meta(self) -> dict[str, float]:
        """An empty mapping: the columns are the whole state."""
        return {}

    def store(self, ids: Integers) -> dict[str, Any]:
        """Return each key's rank, arrival of its oldest unseen update, mean interval, and share."""
        return {
            "rank": self._rank[ids],
            "arrived": self._arrived[ids],
            "interval": self._interval[ids],
            "share": self._share[ids],
        }

    def put_back(self, ids: Integers, columns: Mapping[str, Any]) -> None:
        """Set the stored values of keys."""
        self._rank[ids] = columns["rank"]
        self._arrived[ids] = columns["arrived"]
        self._interval[ids] = columns["interval"]
        self._share[ids] = columns["share"]

    def rebuild(self, ids: Integers, fields: Fields) -> None:
        """Make `ids` the waiting keys, in the order of their ranks."""
        self._line_up(ids)

    def _line_up(self, ids: Integers) -> None:
        ranks = self._rank[ids]
        self._size = len(ids)
        self._line[: len(ids)] = ids[np.argsort(ranks, kind="stable")]
        self._last_rank = max(int(ranks.max()), 0) if len(ids) else 0

    def subset(self, numbers: Integers, waits: Any) -> FreshestScheduler:
        """Return a scheduler of some keys; see `Scheduler.subset`."""
        other = FreshestScheduler(self.policy)
        other.reserve(len(numbers))
        other.put_back(np.arange(len(numbers)), self.store(numbers))
        other._line_up(np.flatnonzero(waits))
        return other
