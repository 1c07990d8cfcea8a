"""The queue of keys with weights (the paper's future work, UpStream §8).

The scheduler minimizes the weighted sum of the keys' staleness. If every key updates before it is served
again, a key that is served every ``T_k`` has a staleness of ``T_k / 2`` on average. One service takes the
time ``c``, so ``sum c / T_k = 1``. Under this condition, ``sum w_k T_k / 2`` is least if ``T_k`` is
proportional to ``1 / sqrt(w_k)``. So keys are served in proportion to the *square roots* of their weights.
This square root is the key's share ``s_k``.

Keys are served by virtual finish times (after self-clocked fair queueing): a key that begins to wait at the
virtual time V is due at ``V + 1 / s_k``. Serving the key advances V to the key's due time, but by at least
``1 / S``, where S is the sum of the waiting keys' shares. Without this minimum, keys that arrive together
would be due together for ever. Keys with the same due time are served in order of arrival. V never decreases,
so of two keys of equal weight, the later key is never due earlier. If all weights are equal, the order is
exactly the order of `LinkedScheduler`.

Waiting keys are in a heap. Two keys compare by rank if one of them has cut the line (a negative rank), else
by due time and then rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._kernels import kernel
from penstock.errors import InternalError
from penstock.operators.scheduling.abc import FIRST_CUT_RANK, Scheduler
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.weights import ONE
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import grow

if TYPE_CHECKING:
    from penstock.checkpointing.fields import Fields

__all__ = ["WeightedScheduler"]

Floats = npt.NDArray[np.float64]

# Indices into the array of registers that the kernels share.
_RESIDENTS, _SHARES, _CUT_RANK, _TAIL_RANK = 0, 1, 2, 3
_POLICIES = {Policy.FIFO: 0, Policy.IN_PLACE: 1, Policy.LINECUTTING: 2}
_NO_KEYS = np.zeros(0, np.int64)
_FIFO, _LINECUTTING = _POLICIES[Policy.FIFO], _POLICIES[Policy.LINECUTTING]


@kernel
def _due(k: int, start: Floats, share: Integers) -> float:
    """Return the virtual time at which k is due: a key of weight 1 waits one unit."""
    return start[k] + ONE / share[k]


@kernel
def _precedes(a: int, b: int, rank: Integers, start: Floats, share: Integers) -> bool:
    if rank[a] < 0 or rank[b] < 0:
        return rank[a] < rank[b]
    due_a, due_b = _due(a, start, share), _due(b, start, share)
    if due_a != due_b:
        return due_a < due_b
    return rank[a] < rank[b]


@kernel
def _sift(i: int, size: int, heap: Integers, at: Integers, rank: Integers, start: Any, share: Any) -> None:
    """Move the key at index i of the heap to its place."""
    k = heap[i]
    while i > 0:
        parent = (i - 1) // 2
        if not _precedes(k, heap[parent], rank, start, share):
            break
        heap[i] = heap[parent]
        at[heap[i]] = i
        i = parent
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and _precedes(heap[child + 1], heap[child], rank, start, share):
            child += 1
        if not _precedes(heap[child], k, rank, start, share):
            break
        heap[i] = heap[child]
        at[heap[i]] = i
        i = child
    heap[i] = k
    at[k] = i


@kernel
def _arrive_weighted(
    ids: Integers,
    resident: Any,
    shares: Integers,
    interval_us: Any,
    cost_us: float,
    in_service: int,
    policy: int,
    registers: Integers,
    virtual: Floats,
    heap: Integers,
    at: Integers,
    rank: Integers,
    start: Floats,
    share: Integers,
) -> None:
    for i in range(ids.shape[0]):
        k, own, waits = ids[i], shares[i], resident[i]
        if waits:
            registers[_SHARES] -= share[k]
        else:
            heap[registers[_RESIDENTS]] = k
            at[k] = registers[_RESIDENTS]
            registers[_RESIDENTS] += 1
        share[k] = own
        registers[_SHARES] += own
        # u_k < s_k / (c S), with u_k = 1 / interval. With equal shares, S / s_k is exactly n.
        all_shares = registers[_SHARES] + in_service
        if policy == _LINECUTTING and interval_us[i] > cost_us * (all_shares / own):
            if not waits or rank[k] >= 0:
                registers[_CUT_RANK] += 1
                rank[k] = registers[_CUT_RANK]
                start[k] = virtual[0]
        elif not waits or policy == _FIFO:
            registers[_TAIL_RANK] += 1
            rank[k] = registers[_TAIL_RANK]
            start[k] = virtual[0]
        _sift(at[k], registers[_RESIDENTS], heap, at, rank, start, share)


@kernel
def _pop_weighted(
    limit: int,
    held: Integers,
    registers: Integers,
    virtual: Floats,
    heap: Integers,
    at: Integers,
    rank: Integers,
    start: Floats,
    share: Integers,
) -> Integers:
    size = registers[_RESIDENTS]
    out = np.empty(min(limit, size), np.int64)
    count, passed = 0, 0
    # heap[:size] is the heap; skipped keys come after it.
    while size > 0 and count < out.shape[0]:
        k = heap[0]
        size -= 1
        last = heap[size]
        if held.shape[0] and held[k] != 0:
            heap[size] = k
            passed += 1
        else:
            out[count] = k
            count += 1
            # A key that cut the line was not due yet, so V does not advance.
            if rank[k] >= 0:
                virtual[0] = max(virtual[0] + ONE / registers[_SHARES], _due(k, start, share))
            registers[_SHARES] -= share[k]
            if passed:
                heap[size] = heap[size + passed]
        if size > 0:
            heap[0] = last
            _sift(0, size, heap, at, rank, start, share)
    for _ in range(passed):
        size += 1
        _sift(size - 1, size, heap, at, rank, start, share)
    registers[_RESIDENTS] = size
    if size == 0:
        virtual[0] = 0.0
    return out[:count]


class WeightedScheduler(Scheduler):
    """A scheduler of weighted keys; see `Scheduler`.

    IN_PLACE
        An update does not restart the wait. Before the key k is served, each other key j is served at most
        ``floor(s_j / s_k) + 1`` times.
    FIFO
        An update restarts the wait, as in the paper. So a key that updates all the time is perhaps never
        served.
    LINECUTTING
        As IN_PLACE, but a slow key (``u_k < s_k / (c * S)``) goes to the front. S is the sum of the shares of
        all keys that wait or are in service. A slow key updates less often than its share allows, so it
        cannot exceed its share. Keys that cut the line keep their order, whatever their weights.
    """

    columns = {"rank": pa.int64(), "start": pa.float64(), "share": pa.int64()}  # noqa: RUF012  # a ClassVar

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._registers = np.array([0, 0, FIRST_CUT_RANK, 0], np.int64)
        self._virtual = np.zeros(1, np.float64)
        self._heap = np.zeros(0, np.int64)
        self._at = np.zeros(0, np.int64)
        self._rank = np.zeros(0, np.int64)
        self._start = np.zeros(0, np.float64)
        self._share = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Return the number of waiting keys."""
        return int(self._registers[_RESIDENTS])

    @property
    def size_bytes(self) -> int:
        """Memory of the scheduler's arrays in bytes."""
        return sum(array.nbytes for array in (self._heap, self._at, self._rank, self._start, self._share))

    def reserve(self, keys: int) -> None:
        """Grow the arrays for key numbers below `keys`."""
        for name in ("_heap", "_at", "_rank", "_start", "_share"):
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
        if shares is None:
            raise InternalError("a scheduler with weights was given no shares", keys=len(ids))
        _arrive_weighted(
            ids, resident, shares, interval_us, cost_us, in_service, _POLICIES[self.policy],
            self._registers, self._virtual, self._heap, self._at, self._rank, self._start, self._share,
        )  # fmt: skip

    def load(self, in_service: Integers) -> int:
        """Return the sum of the shares of the tuples in service."""
        return int(self._share[: len(in_service)] @ in_service)

    def pop(self, limit: int, held: Integers | None = None, *, now_us: int = 0) -> Integers:
        """Remove and return up to `limit` keys from the head; see `Scheduler.pop`."""
        return _pop_weighted(
            limit, _NO_KEYS if held is None else held, self._registers, self._virtual,
            self._heap, self._at, self._rank, self._start, self._share,
        )  # fmt: skip

    @property
    def meta(self) -> dict[str, float]:
        """The virtual time V; an empty queue starts at 0."""
        return {"virtual_time": float(self._virtual[0])}

    def store(self, ids: Integers) -> dict[str, Any]:
        """Return each key's rank, virtual start of waiting, and share."""
        return {"rank": self._rank[ids], "start": self._start[ids], "share": self._share[ids]}

    def put_back(self, ids: Integers, columns: Mapping[str, Any]) -> None:
        """Set the rank, start and share of keys."""
        self._rank[ids] = columns["rank"]
        self._start[ids] = columns["start"]
        self._share[ids] = columns["share"]

    def rebuild(self, ids: Integers, fields: Fields) -> None:
        """Make `ids` the waiting keys, ordered by their ranks, starts and shares."""
        self._heapify(ids, fields.real("virtual_time"))

    def _heapify(self, ids: Integers, virtual_time: float) -> None:
        rank, share = self._rank[ids], self._share[ids]
        cut = rank < 0
        due = np.where(cut, -np.inf, self._start[ids] + ONE / np.maximum(share, 1))
        # A sorted array is a heap.
        self._heap[: len(ids)] = ids[np.lexsort((rank, due))]
        self._at[self._heap[: len(ids)]] = np.arange(len(ids))
        self._registers[_RESIDENTS] = len(ids)
        self._registers[_SHARES] = share.sum()
        self._registers[_CUT_RANK] = rank[cut].max() if cut.any() else FIRST_CUT_RANK
        self._registers[_TAIL_RANK] = max(int(rank.max()), 0) if len(ids) else 0
        self._virtual[0] = virtual_time

    def subset(self, numbers: Integers, waits: Any) -> WeightedScheduler:
        """Return a scheduler of some keys; see `Scheduler.subset`."""
        other = WeightedScheduler(self.policy)
        other.reserve(len(numbers))
        other.put_back(np.arange(len(numbers)), self.store(numbers))
        other._heapify(np.flatnonzero(waits), float(self._virtual[0]))
        return other
