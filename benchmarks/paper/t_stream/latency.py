"""The time from the moment at which an event is due to its result, at one rate (TStream Fig. 13).

A peer begins a transaction once it is due. The serial engine runs all events that are due in one call. A mode
runs a batch once the last event before its punctuation is due, so its first event waits for the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np

from benchmarks.paper.t_stream.cycles import cycles_per_ns, read_cycles
from benchmarks.paper.t_stream.schemes import SCHEMES, Timing, run_scheme
from benchmarks.paper.t_stream.workloads import Accesses, access, loaded
from penstock.procedures.compiler.program import Program
from penstock.procedures.parallel.evaluation import Evaluation

__all__ = ["PERCENTILES", "latencies"]

PERCENTILES = (50, 95, 99)
THREADS = 2
_LEAD_NS = 2_000_000
"""The time before the first event is due, in which the threads start."""


def latencies(
    scheme: str,
    accesses: Accesses,
    rounds: int,
    rate: float,
    punctuation: int,
    priority: Callable[[], AbstractContextManager[None]],
) -> list[float]:
    """Return percentiles of the latency of transactions that are due at a rate a second, in microseconds."""
    due_ns = (_LEAD_NS + np.arange(accesses.count) * (1e9 / rate)).astype(np.int64)
    run = _run_scheme if scheme in SCHEMES else _run_mode
    ended_ns = run(scheme, accesses, rounds, due_ns, punctuation, priority)
    return [float(one) for one in np.percentile((ended_ns - due_ns) / 1e3, PERCENTILES)]


def _run_scheme(
    scheme: str,
    accesses: Accesses,
    rounds: int,
    due_ns: Any,
    punctuation: int,
    priority: Callable[[], AbstractContextManager[None]],
) -> Any:
    """Return when each transaction has ended."""
    del punctuation  # they have none
    speed = cycles_per_ns()
    values = np.arange(accesses.keys) % 1000 + 1
    with priority():
        timing = Timing.plan(THREADS, (due_ns * speed).astype(np.int64), accesses.count, read_cycles())
        run, _, _ = run_scheme(
            scheme, THREADS, rounds, accesses.offsets, accesses.rows, accesses.writes, values, timing
        )
        run()
    return timing.ended / speed


def _run_mode(
    mode: str,
    accesses: Accesses,
    rounds: int,
    due_ns: Any,
    punctuation: int,
    priority: Callable[[], AbstractContextManager[None]],
) -> Any:
    """Return when each transaction has ended."""
    state, events = loaded(accesses.keys), accesses.events(rounds)
    state.evaluation = Evaluation(mode, THREADS, punctuation)
    program, count = cast(Program, access.program()), accesses.count
    ended, begin = np.zeros(count, np.int64), 0
    state.run(program, events.slice(0, punctuation))  # starts the threads
    with priority():
        origin = time.perf_counter_ns()
        while begin < count:
            least = begin + 1 if mode == "serial" else min(begin + punctuation, count)
            while time.perf_counter_ns() - origin < due_ns[least - 1]:
                pass
            end = least
            if mode == "serial":
                now = time.perf_counter_ns() - origin
                end = max(int(np.searchsorted(due_ns, now, "right")), least)
            state.run(program, events.slice(begin, end - begin))
            ended[begin:end] = time.perf_counter_ns() - origin
            begin = end
    state.close()
    return ended
