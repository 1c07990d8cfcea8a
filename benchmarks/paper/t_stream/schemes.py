"""The schemes that TStream is compared with, over one array of values (TStream §II-C).

A transaction has operations, each on one row: it reads the row or writes a function of it. Thread k of n runs
the transactions k, k + n, ... A counter lets transactions pass in their order while they enqueue for their
rows or partitions. Locks are exclusive. Peers have no look-ups, checks or undo log, which is to their
advantage.

If asked, each thread counts the cycles that it spends (`USEFUL` and so on), and a transaction is not begun
before it is due.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.paper.t_stream.cycles import cycles
from penstock._kernels import kernel
from penstock.procedures.parallel.atomics import load, store, wait_a_little

__all__ = ["ALL", "ENQUEUE", "PARTITIONS", "SCHEMES", "SYNC", "USEFUL", "Timing", "run_scheme", "work_on"]

PARTITIONS = 16
SCHEMES = ("No-Lock", "LOCK", "MVLK", "PAT")
_NO_LOCK, _LOCK, _MVLK, _PAT = range(4)
USEFUL, SYNC, ENQUEUE, ALL = range(4)
"""The cycles that a thread counts: of accesses and their work, of waiting, of enqueueing, and all."""
_COUNTS = 8
"""The places of a thread's counts, which fill a cache line."""


@dataclass(frozen=True)
class Timing:
    """The counts of a timed run.

    Parameters
    ----------
    due : ndarray
        The cycle at which each transaction is due, after `origin`; none if all are due at once.
    origin : int
        The cycle from which they count.

    Attributes
    ----------
    spent : ndarray
        The cycles of each thread, in the order of `USEFUL` to `ALL`.
    ended : ndarray
        The cycle at which each transaction ended, after `origin`.
    """

    due: Any
    origin: int
    spent: Any
    ended: Any

    @staticmethod
    def plan(threads: int, due: Any, count: int, origin: int = 0) -> Timing:
        """Return space for the counts of a run."""
        return Timing(due, origin, np.zeros((threads, _COUNTS), np.int64), np.zeros(count, np.int64))


_UNTIMED = Timing.plan(0, np.zeros(0, np.int64), 0)


@kernel
def work_on(value: int, rounds: int) -> int:
    """Return a function of a value that takes time."""
    for _ in range(rounds):
        value = value * 5 % 1000003
    return value


@kernel
def _wait(numbers: Any, at: int, least: int) -> None:
    turn = 0
    while load(numbers, at) < least:
        turn += 1
        wait_a_little(turn)


@kernel
def _run(
    scheme: int,
    thread: int,
    threads: int,
    rounds: int,
    offsets: Any,
    rows: Any,
    writes: Any,
    values: Any,
    turn: Any,
    tickets: Any,
    places: Any,
    served: Any,
    last: Any,
    versions: Any,
    ended: Any,
    sums: Any,
    due: Any,
    origin: int,
    spent: Any,
    done: Any,
) -> None:
    timed = done.shape[0] > 0
    began = cycles() if timed else 0
    useful = sync = enqueue = 0
    for t in range(thread, offsets.shape[0] - 1, threads):
        begin, end = offsets[t], offsets[t + 1]
        if due.shape[0] > 0:
            pause = 0
            while cycles() - origin < due[t]:
                pause += 1
                wait_a_little(pause)
        at = cycles() if timed else 0
        if scheme != _NO_LOCK:
            _wait(turn, 0, t)
            if timed:
                now = cycles()
                sync += now - at
                at = now
            for x in range(begin, end):
                if scheme == _MVLK:
                    places[x] = last[rows[x]]
                    if writes[x]:
                        last[rows[x]] = x
                    continue
                unit = rows[x] if scheme == _LOCK else rows[x] % PARTITIONS
                held = False
                for y in range(begin, x):
                    other = rows[y] if scheme == _LOCK else rows[y] % PARTITIONS
                    held = held or other == unit
                places[x] = -1 if held else tickets[unit]
                if not held:
                    tickets[unit] += 1
            store(turn, 0, t + 1)
            if timed:
                now = cycles()
                enqueue += now - at
                at = now
        total = 0
        if scheme in (_LOCK, _PAT):
            for x in range(begin, end):
                if places[x] >= 0:
                    _wait(served, 8 * (rows[x] if scheme == _LOCK else rows[x] % PARTITIONS), places[x])
            if timed:
                now = cycles()
                sync += now - at
                at = now
        waited = 0
        for x in range(begin, end):
            if scheme == _MVLK:
                before = places[x]
                value = values[rows[x]]
                if before >= 0:
                    waiting = cycles() if timed else 0
                    _wait(ended, before, 1)
                    if timed:
                        waited += cycles() - waiting
                    value = versions[before]
                made = work_on(value, rounds)
                if writes[x]:
                    versions[x] = made
                    store(ended, x, 1)
            else:
                made = work_on(values[rows[x]], rounds)
                if writes[x]:
                    values[rows[x]] = made
            if not writes[x]:
                total += made
        sums[t] = total
        if timed:
            useful += cycles() - at - waited
            sync += waited
        if scheme in (_LOCK, _PAT):
            for x in range(begin, end):
                if places[x] >= 0:
                    unit = 8 * (rows[x] if scheme == _LOCK else rows[x] % PARTITIONS)
                    store(served, unit, served[unit] + 1)
        if timed:
            done[t] = cycles() - origin
    if timed:
        spent[thread, USEFUL], spent[thread, SYNC], spent[thread, ENQUEUE] = useful, sync, enqueue
        spent[thread, ALL] = cycles() - began


def run_scheme(
    scheme: str,
    threads: int,
    rounds: int,
    offsets: Any,
    rows: Any,
    writes: Any,
    values: Any,
    timing: Timing = _UNTIMED,
) -> tuple[Callable[[], None], Any, Any]:
    """Return what runs all transactions, the sum of what each has read, and the values (MVLK: versions)."""
    units, operations = len(values), len(rows)
    shared = [
        np.zeros(8, np.int64), np.zeros(units, np.int64), np.zeros(operations, np.int64),
        np.zeros(8 * units, np.int64), np.full(units, -1, np.int64), np.zeros(operations, np.int64),
        np.zeros(operations, np.int64), np.zeros(len(offsets) - 1, np.int64),
    ]  # fmt: skip
    number = SCHEMES.index(scheme)
    arguments: list[Any] = [*shared, timing.due, timing.origin, timing.spent, timing.ended]

    def work(thread: int) -> None:
        _run(number, thread, threads, rounds, offsets, rows, writes, values, *arguments)

    def run() -> None:
        others = [threading.Thread(target=work, args=(thread,)) for thread in range(1, threads)]
        for other in others:
            other.start()
        work(0)
        for other in others:
            other.join()
        if scheme == "MVLK":
            # All versions but the last of each row are garbage now.
            changed = np.flatnonzero(shared[4] >= 0)
            values[changed] = shared[5][shared[4][changed]]

    return run, shared[7], values
