"""The schemes that TStream is compared with, over one array of values (TStream §II-C).

A transaction has operations, each on one row: it reads the row or writes a function of it. Thread k of n runs
the transactions k, k + n, ... A counter lets transactions pass in their order while they enqueue for their
rows or partitions. Locks are exclusive. Peers have no look-ups, checks or undo log, which is to their
advantage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock._kernels import kernel
from penstock.procedures.parallel.atomics import load, store, wait_a_little

__all__ = ["PARTITIONS", "SCHEMES", "run_scheme", "work_on"]

PARTITIONS = 16
SCHEMES = ("No-Lock", "LOCK", "MVLK", "PAT")
_NO_LOCK, _LOCK, _MVLK, _PAT = range(4)


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
) -> None:
    for t in range(thread, offsets.shape[0] - 1, threads):
        begin, end = offsets[t], offsets[t + 1]
        if scheme != _NO_LOCK:
            _wait(turn, 0, t)
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
        total = 0
        if scheme in (_LOCK, _PAT):
            for x in range(begin, end):
                if places[x] >= 0:
                    _wait(served, 8 * (rows[x] if scheme == _LOCK else rows[x] % PARTITIONS), places[x])
        for x in range(begin, end):
            if scheme == _MVLK:
                before = places[x]
                value = values[rows[x]]
                if before >= 0:
                    _wait(ended, before, 1)
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
        if scheme in (_LOCK, _PAT):
            for x in range(begin, end):
                if places[x] >= 0:
                    unit = 8 * (rows[x] if scheme == _LOCK else rows[x] % PARTITIONS)
                    store(served, unit, served[unit] + 1)


def run_scheme(
    scheme: str, threads: int, rounds: int, offsets: Any, rows: Any, writes: Any, values: Any
) -> tuple[Callable[[], None], Any, Any]:
    """Return what runs all transactions, the sum of what each has read, and the values (MVLK: versions)."""
    units, operations = len(values), len(rows)
    shared = [
        np.zeros(8, np.int64), np.zeros(units, np.int64), np.zeros(operations, np.int64),
        np.zeros(8 * units, np.int64), np.full(units, -1, np.int64), np.zeros(operations, np.int64),
        np.zeros(operations, np.int64), np.zeros(len(offsets) - 1, np.int64),
    ]  # fmt: skip
    number = SCHEMES.index(scheme)

    def work(thread: int) -> None:
        _run(number, thread, threads, rounds, offsets, rows, writes, values, *shared)

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
