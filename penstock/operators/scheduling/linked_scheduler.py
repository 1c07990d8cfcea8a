"""The queue of keys (QoK) of the paper: keys of equal weight (UpStream §5.2, §5.3, §7).

The queue is a doubly linked list of key numbers, in arrays. Every place has a rank; ranks increase from head
to tail. Keys that cut the line have negative ranks, which increase in the order in which the keys cut. So
these keys precede all other keys. Only ranks are stored. The list is rebuilt from the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock._kernels import kernel
from penstock.operators.scheduling.abc import FIRST_CUT_RANK, Scheduler
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import grow

if TYPE_CHECKING:
    from penstock.checkpointing.fields import Fields

__all__ = ["LinkedScheduler"]

_NONE = -1
# Indices into the array of registers that the kernels share.
_HEAD, _TAIL, _RESIDENTS, _LAST_CUT, _CUT_RANK, _TAIL_RANK = 0, 1, 2, 3, 4, 5


@kernel
def _unlink(k: int, registers: Integers, before: Integers, after: Integers) -> None:
    p, n = before[k], after[k]
    if p >= 0:
        after[p] = n
    else:
        registers[_HEAD] = n
    if n >= 0:
        before[n] = p
    else:
        registers[_TAIL] = p
    if registers[_LAST_CUT] == k:
        registers[_LAST_CUT] = p
    registers[_RESIDENTS] -= 1


@kernel
def _link_tail(k: int, registers: Integers, before: Integers, after: Integers, rank: Integers) -> None:
    tail = registers[_TAIL]
    before[k], after[k] = tail, _NONE
    if tail >= 0:
        after[tail] = k
    else:
        registers[_HEAD] = k
    registers[_TAIL] = k
    registers[_RESIDENTS] += 1
    registers[_TAIL_RANK] += 1
    rank[k] = registers[_TAIL_RANK]


@kernel
def _link_cut(k: int, registers: Integers, before: Integers, after: Integers, rank: Integers) -> None:
    """Link k after the last key that cut the line."""
    p = registers[_LAST_CUT]
    if p >= 0:
        n = after[p]
        after[p] = k
    else:
        n = registers[_HEAD]
        registers[_HEAD] = k
        registers[_CUT_RANK] = FIRST_CUT_RANK
    before[k], after[k] = p, n
    if n >= 0:
        before[n] = k
    else:
        registers[_TAIL] = k
    registers[_LAST_CUT] = k
    registers[_RESIDENTS] += 1
    registers[_CUT_RANK] += 1
    rank[k] = registers[_CUT_RANK]


@kernel
def _arrive_fifo(
    ids: Integers,
    resident: Any,
    registers: Integers,
    before: Integers,
    after: Integers,
    rank: Integers,
) -> None:
    for i in range(ids.shape[0]):
        k = ids[i]
        if resident[i]:
            _unlink(k, registers, before, after)
        _link_tail(k, registers, before, after, rank)


@kernel
def _arrive_in_place(
    ids: Integers,
    resident: Any,
    registers: Integers,
    before: Integers,
    after: Integers,
    rank: Integers,
) -> None:
    for i in range(ids.shape[0]):
        if not resident[i]:
            _link_tail(ids[i], registers, before, after, rank)


@kernel
def _arrive_linecutting(
    ids: Integers,
    resident: Any,
    interval_us: Any,
    cost_us: float,
    in_service: int,
    registers: Integers,
    before: Integers,
    after: Integers,
    rank: Integers,
) -> None:
    for i in range(ids.shape[0]):
        k = ids[i]
        n = registers[_RESIDENTS] + in_service
        if not resident[i]:
            n += 1
        # u_k < 1 / (c n), with u_k = 1 / interval.
        if interval_us[i] > cost_us * n:
            if resident[i]:
                if rank[k] < 0:
                    continue
                _unlink(k, registers, before, after)
            _link_cut(k, registers, before, after, rank)
        elif not resident[i]:
            _link_tail(k, registers, before, after, rank)


@kernel
def _pop(limit: int, registers: Integers, before: Integers, after: Integers) -> Integers:
    count = min(limit, registers[_RESIDENTS])
    out = np.empty(count, np.int64)
    for i in range(count):
        k = registers[_HEAD]
        out[i] = k
        _unlink(k, registers, before, after)
    return out


@kernel
def _pop_except(
    limit: int, held: Integers, registers: Integers, before: Integers, after: Integers
) -> Integers:
    """Pop like `_pop`, but skip `held` keys, which keep their places."""
    out = np.empty(min(limit, registers[_RESIDENTS]), np.int64)
    count = 0
    k = registers[_HEAD]
    while k >= 0 and count < out.shape[0]:
        following = after[k]
        if held[k] == 0:
            out[count] = k
            count += 1
            _unlink(k, registers, before, after)
        k = following
    return out[:count]


class LinkedScheduler(Scheduler):
    """A scheduler of keys with equal weights; see `Scheduler`."""

    columns = {"rank": pa.int64()}  # noqa: RUF012  # declared as a ClassVar by the interface

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._registers = np.array([_NONE, _NONE, 0, _NONE, 0, 0], np.int64)
        self._before = np.zeros(0, np.int64)
        self._after = np.zeros(0, np.int64)
        self._rank = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Return the number of waiting keys."""
        return int(self._registers[_RESIDENTS])

    @property
    def size_bytes(self) -> int:
        """Memory of the scheduler's arrays in bytes."""
        return self._before.nbytes + self._after.nbytes + self._rank.nbytes

    def reserve(self, keys: int) -> None:
        """Grow the arrays for key numbers below `keys`."""
        self._before = grow(self._before, keys)
        self._after = grow(self._after, keys)
        self._rank = grow(self._rank, keys)

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
        links = (self._registers, self._before, self._after, self._rank)
        if self.policy is Policy.FIFO:
            _arrive_fifo(ids, resident, *links)
        elif self.policy is Policy.IN_PLACE:
            _arrive_in_place(ids, resident, *links)
        else:
            _arrive_linecutting(ids, resident, interval_us, cost_us, in_service, *links)

    def load(self, in_service: Integers) -> int:
        """Return the number of tuples in service."""
        return int(in_service.sum())

    def pop(self, limit: int, held: Integers | None = None, *, now_us: int = 0) -> Integers:
        """Remove and return up to `limit` keys from the head; see `Scheduler.pop`."""
        if held is not None:
            return _pop_except(limit, held, self._registers, self._before, self._after)
        return _pop(limit, self._registers, self._before, self._after)

    @property
    def meta(self) -> dict[str, float]:
        """An empty mapping: the ranks are the whole state."""
        return {}

    def store(self, ids: Integers) -> dict[str, Any]:
        """Return the ranks of keys."""
        return {"rank": self._rank[ids]}

    def put_back(self, ids: Integers, columns: Mapping[str, Any]) -> None:
        """Set the ranks of keys."""
        self._rank[ids] = columns["rank"]

    def rebuild(self, ids: Integers, fields: Fields) -> None:
        """Make `ids` the waiting keys, in the order of their distinct ranks."""
        self._link(ids)

    def _link(self, ids: Integers) -> None:
        ranks = self._rank[ids]
        order = np.argsort(ranks, kind="stable")
        sorted_ids = ids[order]
        self._registers[_HEAD] = sorted_ids[0] if len(ids) else _NONE
        self._registers[_TAIL] = sorted_ids[-1] if len(ids) else _NONE
        self._registers[_RESIDENTS] = len(ids)
        cut = int(np.count_nonzero(ranks < 0))
        self._registers[_LAST_CUT] = sorted_ids[cut - 1] if cut else _NONE
        self._registers[_CUT_RANK] = ranks[order[cut - 1]] if cut else FIRST_CUT_RANK
        self._registers[_TAIL_RANK] = max(int(ranks.max()), 0) if len(ids) else 0
        if len(ids):
            self._before[sorted_ids] = np.concatenate([[_NONE], sorted_ids[:-1]])
            self._after[sorted_ids] = np.concatenate([sorted_ids[1:], [_NONE]])

    def subset(self, numbers: Integers, waits: Any) -> LinkedScheduler:
        """Return a scheduler of some keys; see `Scheduler.subset`."""
        other = LinkedScheduler(self.policy)
        other.reserve(len(numbers))
        other._rank[: len(numbers)] = self._rank[numbers]
        other._link(np.flatnonzero(waits))
        return other
