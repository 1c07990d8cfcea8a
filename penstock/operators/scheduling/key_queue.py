"""The queue of keys (QoK) and the three key schedulers (UpStream §5.2, §5.3, §7).

The queue is a doubly-linked list over key numbers, in arrays. Every place also has a rank: ranks grow
from head to tail. Keys that cut the line have negative ranks and stand before all others, in the order in
which they cut. Ranks are what is stored; the list is rebuilt from them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np

from penstock._kernels import kernel
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import grown

__all__ = ["KeyQueue", "Policy"]

_NONE = -1
# Places in the array of registers that the kernels share.
_HEAD, _TAIL, _RESIDENTS, _LAST_CUT, _CUT_RANK, _TAIL_RANK = 0, 1, 2, 3, 4, 5
_FIRST_CUT_RANK = -(1 << 62)


class Policy(StrEnum):
    """A key scheduler: which key is served next.

    FIFO
        Keys in the order of their newest arrivals: an update goes to the tail (UpStream §5.2).
    IN_PLACE
        An update takes the place of the older one; least staleness where keys update equally often
        (UpStream §5.2).
    LINECUTTING
        As IN_PLACE, but an update of a slow key, one with ``u_k < 1 / (c * n)``, goes to the front
        (UpStream §5.3). n counts the key itself, the others that wait and those being served: so many
        services pass until all of them had their turn. Those that cut keep their order and places among
        themselves, so the queue is IN_PLACE where all keys are slow.
    """

    FIFO = "fifo"
    IN_PLACE = "in_place"
    LINECUTTING = "linecutting"


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
    """Link k behind the last key that cut."""
    p = registers[_LAST_CUT]
    if p >= 0:
        n = after[p]
        after[p] = k
    else:
        n = registers[_HEAD]
        registers[_HEAD] = k
        registers[_CUT_RANK] = _FIRST_CUT_RANK
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
    """As `_pop`, but pass by keys that are `held`; they keep their places."""
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


class KeyQueue:
    """The keys that wait, by number, in the order in which `policy` serves them."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._registers = np.array([_NONE, _NONE, 0, _NONE, 0, 0], np.int64)
        self._before = np.zeros(0, np.int64)
        self._after = np.zeros(0, np.int64)
        self._rank = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Return how many keys wait."""
        return int(self._registers[_RESIDENTS])

    @property
    def ranks(self) -> Integers:
        """The rank of each waiting key, by number; meaningless for others."""
        return self._rank

    @property
    def size_bytes(self) -> int:
        """How much memory the list holds."""
        return self._before.nbytes + self._after.nbytes + self._rank.nbytes

    def reserve(self, keys: int) -> None:
        """Make room for key numbers below `keys`."""
        self._before = grown(self._before, keys)
        self._after = grown(self._after, keys)
        self._rank = grown(self._rank, keys)

    def arrive(
        self, ids: Integers, resident: Any, interval_us: Any, cost_us: float, in_service: int = 0
    ) -> None:
        """Give each arriving key its place, one after the other.

        Parameters
        ----------
        ids : int64 array
            The keys, each once.
        resident : bool array
            Whether the key waits already.
        interval_us : float64 array
            ``1 / u_k``: the mean time between updates of the key; used by linecutting only.
        cost_us : float
            ``c``: the time that serving one tuple takes; used by linecutting only.
        in_service : int
            Tuples that were dequeued and are not delivered yet; used by linecutting only.
        """
        links = (self._registers, self._before, self._after, self._rank)
        if self.policy is Policy.FIFO:
            _arrive_fifo(ids, resident, *links)
        elif self.policy is Policy.IN_PLACE:
            _arrive_in_place(ids, resident, *links)
        else:
            _arrive_linecutting(ids, resident, interval_us, cost_us, in_service, *links)

    def pop(self, limit: int, held: Integers | None = None) -> Integers:
        """Remove and return up to `limit` keys from the head.

        Parameters
        ----------
        held : int64 array, optional
            By key number, not zero for keys that are passed by and keep their places.
        """
        if held is not None:
            return _pop_except(limit, held, self._registers, self._before, self._after)
        return _pop(limit, self._registers, self._before, self._after)

    def rebuild(self, ids: Integers, ranks: Integers) -> None:
        """Make `ids` the waiting keys, in the order of their distinct `ranks`."""
        order = np.argsort(ranks, kind="stable")
        sorted_ids = ids[order]
        self._registers[_HEAD] = sorted_ids[0] if len(ids) else _NONE
        self._registers[_TAIL] = sorted_ids[-1] if len(ids) else _NONE
        self._registers[_RESIDENTS] = len(ids)
        cut = int(np.count_nonzero(ranks < 0))
        self._registers[_LAST_CUT] = sorted_ids[cut - 1] if cut else _NONE
        self._registers[_CUT_RANK] = ranks[order[cut - 1]] if cut else _FIRST_CUT_RANK
        self._registers[_TAIL_RANK] = max(int(ranks.max()), 0) if len(ids) else 0
        if len(ids):
            self._before[sorted_ids] = np.concatenate([[_NONE], sorted_ids[:-1]])
            self._after[sorted_ids] = np.concatenate([sorted_ids[1:], [_NONE]])
            self._rank[ids] = ranks

    def subset(self, numbers: Integers, waits: Any) -> KeyQueue:
        """Return a queue of the keys with these numbers, which differ; they become 0, 1, 2, ...

        Parameters
        ----------
        waits : bool array
            Which of them wait; others do not.
        """
        other = KeyQueue(self.policy)
        other.reserve(len(numbers))
        other.rebuild(np.flatnonzero(waits), self._rank[numbers[waits]])
        return other
