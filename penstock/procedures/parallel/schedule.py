"""Choose the next transaction of each thread.

The array `state` holds all numbers; the numbers of different threads are in different cache lines::

    0   the next head of a chain, or the next place of the order, that a thread takes
    16  `LINES` numbers of thread 0, then the numbers of thread 1, and so on

``levels`` takes transactions in the order of their levels, once all transactions of lower levels are done. In
``split``, each row belongs to a thread. Each thread goes through the transactions in order. If rows of a
transaction belong to several threads, the one with the lowest number waits until all of them have arrived at
the transaction, and then runs it. The others wait until it has ended. ``chains`` runs a transaction that is
at the head of all of its operation chains. Such a transaction is in the queue of the thread that found it; a
thread whose queue is empty steals from the queues of other threads (TStream §IV-C, §IV-E).

A place in a queue is never reused within a run, because each transaction enters only one queue, once. So if a
thread reads a place and then swaps the queue's head successfully, the place still holds the same transaction.
"""

from __future__ import annotations

from typing import Any

from penstock._kernels import kernel
from penstock.procedures.parallel.atomics import fetch_add, load, store, swap_if, wait_a_little

__all__ = [
    "CHAINS", "ENDED", "FIRST_LINE", "IDLE", "LEVELS", "LINES", "SPLIT", "STOLEN",
    "end_transaction", "next_transaction", "push", "run_again",
]  # fmt: skip

CHAINS, LEVELS, SPLIT = range(3)

ENDED, IDLE = -1, -2
"""`ENDED`: no transaction is left for this thread. `IDLE`: no transaction is ready now."""

TAKEN = 0
"""The position in `state` of the number that all threads change."""
FIRST_LINE = 16
LINES = 32
HEAD, TAIL, DONE, HELD, AGAIN, STOLEN, ARRIVED, RELEASED = 0, 8, 16, 17, 18, 19, 24, 25
"""The positions of a thread's numbers, from its first line on.

`HEAD` and `TAIL` are the ends of its queue. `DONE` and `STOLEN` count its finished and its stolen
transactions. `HELD` is the place in the order that it works on; in ``levels``, plus one. `AGAIN` is the
transaction that it must run again, plus one. `ARRIVED` is the transaction at which it last waited for another
thread, plus one. `RELEASED` is the last transaction that it ran for several threads, plus one.
"""

_MAX_SPINS = 1 << 18


@kernel
def _count_done(state: Any, threads: int) -> int:
    """Return the number of finished transactions."""
    total = 0
    for thread in range(threads):
        total += load(state, FIRST_LINE + thread * LINES + DONE)
    return total


@kernel
def push(state: Any, queues: Any, thread: int, transaction: int) -> None:
    """Add a transaction to the queue of this thread."""
    at = FIRST_LINE + thread * LINES + TAIL
    queues[thread, state[at]] = transaction
    store(state, at, state[at] + 1)


@kernel
def _pop(state: Any, queues: Any, thread: int, threads: int, count: int) -> int:
    spins = 0
    while True:
        for turn in range(threads):
            victim = (thread + turn) % threads
            at = FIRST_LINE + victim * LINES
            while True:
                head = load(state, at + HEAD)
                if head >= load(state, at + TAIL):
                    break
                transaction = queues[victim, head]
                if swap_if(state, at + HEAD, head, head + 1):
                    if turn > 0:
                        state[FIRST_LINE + thread * LINES + STOLEN] += 1
                    return transaction
        if _count_done(state, threads) >= count:
            return ENDED
        spins += 1
        wait_a_little(spins)
        if spins > _MAX_SPINS:
            return IDLE


@kernel
def _next_of_level(state: Any, thread: int, threads: int, count: int, order: Any, begins: Any) -> int:
    own = FIRST_LINE + thread * LINES
    if state[own + HELD] == 0:
        state[own + HELD] = fetch_add(state, TAKEN, 1) + 1
    place = state[own + HELD] - 1
    if place >= count:
        return ENDED
    spins = 0
    while _count_done(state, threads) < begins[place]:
        spins += 1
        wait_a_little(spins)
        if spins > _MAX_SPINS:
            return IDLE
    state[own + HELD] = 0
    return order[place]


@kernel
def _next_of_rows(state: Any, thread: int, threads: int, count: int, owners: Any) -> int:
    own = FIRST_LINE + thread * LINES
    bit = 1 << thread
    while state[own + HELD] < count:
        at = state[own + HELD]
        if owners[at] & bit == 0:
            state[own + HELD] += 1
            continue
        if owners[at] != bit:
            runs_it = owners[at] & (bit - 1) == 0
            if not runs_it:
                store(state, own + ARRIVED, at + 1)
            spins = 0
            for other in range(threads):
                if other == thread or owners[at] >> other & 1 == 0:
                    continue
                line = FIRST_LINE + other * LINES
                while load(state, line + (ARRIVED if runs_it else RELEASED)) < at + 1:
                    spins += 1
                    wait_a_little(spins)
                    if spins > _MAX_SPINS:
                        return IDLE
                if not runs_it:
                    break
            if not runs_it:
                state[own + HELD] += 1
                continue
        state[own + HELD] += 1
        return at
    return ENDED


@kernel
def next_transaction(
    mode: int, state: Any, thread: int, threads: int, count: int, order: Any, begins: Any, queues: Any
) -> int:
    """Return the transaction that this thread runs next, `ENDED` or `IDLE`."""
    again = FIRST_LINE + thread * LINES + AGAIN
    if state[again] > 0:
        transaction = state[again] - 1
        state[again] = 0
        return transaction
    if mode == CHAINS:
        return _pop(state, queues, thread, threads, count)
    if mode == LEVELS:
        return _next_of_level(state, thread, threads, count, order, begins)
    return _next_of_rows(state, thread, threads, count, order)


@kernel
def run_again(state: Any, thread: int, transaction: int) -> None:
    """Let this thread run a transaction again that was undone because the undo log was full."""
    state[FIRST_LINE + thread * LINES + AGAIN] = transaction + 1


@kernel
def end_transaction(mode: int, state: Any, thread: int, transaction: int, order: Any) -> None:
    """Record that a transaction is done."""
    own = FIRST_LINE + thread * LINES
    store(state, own + DONE, state[own + DONE] + 1)
    if mode == SPLIT and order[transaction] != 1 << thread:
        store(state, own + RELEASED, transaction + 1)
