"""Measure the time of a transaction by part (TStream Fig. 9).

All figures are nanoseconds of thread time a transaction: two threads spend two for each that passes. Peers
count cycles themselves. Of the engine's modes the compute mode and the state access mode are timed from
outside; the useful part of the latter is the time that the serial run takes for the same transactions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np

from benchmarks.paper.t_stream.cycles import cycles_per_ns
from benchmarks.paper.t_stream.schemes import ALL, ENQUEUE, SCHEMES, SYNC, USEFUL, Timing, run_scheme
from benchmarks.paper.t_stream.workloads import Accesses, access, loaded
from penstock.procedures.compiler.program import Program
from penstock.procedures.engine import Run
from penstock.procedures.parallel.evaluation import Evaluation
from penstock.procedures.parallel.planning import Plan

__all__ = ["PARTS", "breakdown"]

PARTS = ("useful", "sync", "enqueue", "plan", "others")
THREADS = 2
Point = dict[str, Any]


class _TimedEvaluation(Evaluation):
    """Counts the seconds of the state access mode."""

    access_s = 0.0

    def _run_plan(self, run: Run, plan: Plan) -> None:
        begin = time.perf_counter()
        super()._run_plan(run, plan)
        self.access_s += time.perf_counter() - begin


def breakdown(
    accesses: Accesses,
    rounds: int,
    modes: tuple[str, ...],
    repeats: int,
    punctuation: int,
    priority: Callable[[], AbstractContextManager[None]],
) -> list[Point]:
    """Return for each scheme and mode the parts of a transaction's time, from the fastest of several runs."""
    serial = min(
        (_mode("serial", accesses, rounds, 0.0, punctuation, priority) for _ in range(repeats + 1)),
        key=lambda point: float(point["all"]),
    )
    points = []
    for scheme in (*SCHEMES, *modes):
        made = [
            _scheme(scheme, accesses, rounds, priority)
            if scheme in SCHEMES
            else _mode(scheme, accesses, rounds, serial["all"], punctuation, priority)
            for _ in range(repeats + 1)
        ]
        points.append({"scheme": scheme, **min(made[1:], key=lambda point: float(point["all"]))})
    return points


def _point(useful: float, sync: float, enqueue: float, plan: float, whole: float) -> Point:
    others = whole - useful - sync - enqueue - plan
    return dict(zip((*PARTS, "all"), (useful, sync, enqueue, plan, others, whole), strict=True))


def _scheme(
    scheme: str, accesses: Accesses, rounds: int, priority: Callable[[], AbstractContextManager[None]]
) -> Point:
    timing = Timing.plan(THREADS, np.zeros(0, np.int64), accesses.count)
    values = np.arange(accesses.keys) % 1000 + 1
    run, _, _ = run_scheme(
        scheme, THREADS, rounds, accesses.offsets, accesses.rows, accesses.writes, values, timing
    )
    with priority():
        run()
    spent = timing.spent.sum(axis=0) / cycles_per_ns() / accesses.count
    return _point(spent[USEFUL], spent[SYNC], spent[ENQUEUE], 0.0, spent[ALL])


def _mode(
    mode: str,
    accesses: Accesses,
    rounds: int,
    useful: float,
    punctuation: int,
    priority: Callable[[], AbstractContextManager[None]],
) -> Point:
    state, evaluation = loaded(accesses.keys), _TimedEvaluation(mode, THREADS, punctuation)
    state.evaluation = evaluation
    run = state.begin(cast(Program, access.program()), accesses.events(rounds))
    with priority():
        begin = time.perf_counter()
        evaluation.run(state, run)
        wall = time.perf_counter() - begin
    state.close()
    threads = 1 if mode == "serial" else THREADS
    ns = threads * 1e9 / accesses.count
    if mode == "serial":
        return _point(ns * wall, 0.0, 0.0, 0.0, ns * wall)
    batches = evaluation.metrics["access"].seconds[mode]
    accessing = ns * evaluation.access_s
    return _point(
        min(useful, accessing),
        max(accessing - useful, 0.0),
        0.0,
        ns * (batches - evaluation.access_s),
        ns * wall,
    )
