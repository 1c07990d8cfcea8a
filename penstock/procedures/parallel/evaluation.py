"""Evaluate batches of events on several threads, in a mode that is given or chosen by its measured cost.

A punctuation ends each batch of at most `Evaluation.punctuation` transactions (TStream §IV-B). Before the
punctuation, threads find the rows that the transactions access (the compute mode). After the punctuation,
they run the transactions (the state access mode). No thread starts to run transactions until all threads have
found their rows.

=========  ==================================================================================
serial     the kernel of `TableSet.run`, on the calling thread
chains     a transaction runs once it is at the head of the operation chains of all of its rows
levels     a round runs transactions that conflict with no earlier unfinished transaction
split      rows belong to threads; a thread runs the transactions of its rows in their order
=========  ==================================================================================

Unlike in TStream, one thread evaluates a whole transaction. Nearly every operation may reject the
transaction, because any arithmetic may overflow and any row may be missing. If one thread evaluates the whole
transaction, a rejection need not roll back operations in other chains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._clock import monotonic_s, pause
from penstock.errors import InternalError, InvalidUsageError, did_you_mean
from penstock.procedures.parallel.access_sets import AccessSets
from penstock.procedures.parallel.measured_costs import MeasuredCosts

if TYPE_CHECKING:
    from penstock.procedures.engine import Run, TableSet
    from penstock.procedures.parallel.planning import Plan, Planner

__all__ = ["EVALUATIONS", "Evaluation", "EvaluationMetrics"]

EVALUATIONS = ("serial", "chains", "levels", "split", "adaptive")
"""The values of ``evaluation``."""

_MAX_THREADS = 60
_LONGEST_BATCH = 1 << 24
_MIN_BATCH_FOR_THREADS = 256
"""Adaptive evaluation runs a batch serially if it has fewer transactions than this."""


@dataclass
class EvaluationMetrics:
    """Metrics of the evaluation of one program.

    Attributes
    ----------
    transactions, seconds : dict
        For each mode, the number of transactions, and the seconds that they took, including planning.
    batches : int
        The number of batches that ran on several threads.
    exclusive : int
        The number of exclusive transactions, which ran alone; see `access_sets`.
    stolen : int
        The number of transactions that a thread took from another thread's queue.
    versions : int
        The number of versions of rows that transactions read.
    levels : int
        The number of rounds in the mode ``levels``, summed over all batches.
    """

    transactions: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    batches: int = 0
    exclusive: int = 0
    stolen: int = 0
    versions: int = 0
    levels: int = 0

    def add(self, mode: str, transactions: int, seconds: float) -> None:
        """Count transactions that ran in a mode."""
        self.transactions[mode] = self.transactions.get(mode, 0) + transactions
        self.seconds[mode] = self.seconds.get(mode, 0.0) + seconds


class Evaluation:
    """Evaluates the batches of a set of tables. One thread may call it at a time.

    Parameters
    ----------
    mode : str
        A mode of the module's table, or ``adaptive``, which chooses the mode with the lowest measured cost.
    threads : int
        The number of threads, including the calling thread.
    punctuation : int
        The maximum number of transactions between two punctuations.
    """

    def __init__(self, mode: str = "adaptive", threads: int = 2, punctuation: int = 4096) -> None:
        if mode not in EVALUATIONS:
            raise InvalidUsageError(
                "there is no such evaluation", evaluation=mode, hint=did_you_mean(mode, EVALUATIONS)
            )
        if not 1 <= threads <= _MAX_THREADS:
            raise InvalidUsageError(f"threads is a number from 1 to {_MAX_THREADS}", threads=threads)
        if not 1 <= punctuation <= _LONGEST_BATCH:
            raise InvalidUsageError(
                f"punctuation is a number from 1 to {_LONGEST_BATCH}", punctuation=punctuation
            )
        self.mode, self.threads, self.punctuation = mode, threads, punctuation
        self.metrics: dict[str, EvaluationMetrics] = {}
        self._costs: dict[str, MeasuredCosts] = {}
        self._planners: dict[str, Planner] = {}
        self._pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """End the threads."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def explain(self, name: str) -> str:
        """Describe how the transactions of a procedure were evaluated so far, and at what cost."""
        metrics = self.metrics.get(name)
        if metrics is None:
            return f"{name}: nothing has run"
        lines = [f"{name}: {self.mode}, {self.threads} threads, punctuations after {self.punctuation}"]
        for mode, count in metrics.transactions.items():
            cost = 1e9 * metrics.seconds[mode] / max(count, 1)
            lines.append(f"  {mode}: {count} transactions, {cost:.0f} ns each")
        lines.append(
            f"  {metrics.batches} batches, {metrics.exclusive} exclusive transactions, "
            f"{metrics.stolen} stolen, {metrics.versions} versions, {metrics.levels} levels"
        )
        costs = self._costs.get(name)
        if costs is not None and costs.costs:
            lines.append(f"  chosen now: {costs.best}")
        return "\n".join(lines)

    def run(self, state: TableSet, run: Run) -> None:
        """Run all events of a run that has not started."""
        program = run.program
        metrics = self.metrics.setdefault(program.name, EvaluationMetrics())
        sets = program.access_sets
        if self.mode == "serial" or not isinstance(sets, AccessSets) or not run.rounds:
            self._serial(run, 0, run.rounds, metrics, None)
            return
        costs = None
        if self.mode == "adaptive":
            modes = ("serial", "chains", "levels", "split")
            costs = self._costs.setdefault(program.name, MeasuredCosts(modes))
            if costs.choose() == "serial" and not costs.costs.keys() - {"serial"}:
                self._serial(run, 0, run.rounds, metrics, costs)
                return
        planner = self._planner(state, run, sets)
        bits = planner.bits_of(run.events, run.rounds)
        exclusive = np.flatnonzero(bits & sets.exclusive_bits)
        metrics.exclusive += len(exclusive)
        begin = 0
        for end in [*exclusive.tolist(), run.rounds]:
            for cut in range(begin, end, self.punctuation):
                self._batch(state, run, planner, bits, cut, min(cut + self.punctuation, end), metrics, costs)
            if end < run.rounds:
                # Call the kernel for each exclusive event. Exclusive events are rare, unless all events are
                # exclusive.
                run.advance(end, end + 1)
            begin = end + 1

    def _batch(
        self,
        state: TableSet,
        run: Run,
        planner: Planner,
        bits: Any,
        begin: int,
        end: int,
        metrics: EvaluationMetrics,
        costs: MeasuredCosts | None,
    ) -> None:
        from penstock.procedures.parallel.planning import MODES

        mode = self.mode if costs is None else costs.choose()
        if costs is not None and end - begin < _MIN_BATCH_FOR_THREADS:
            run.advance(begin, end)
            metrics.add("serial", end - begin, 0.0)
            return
        if mode == "serial":
            self._serial(run, begin, end, metrics, costs)
            return
        started = monotonic_s()
        plan = planner.plan(MODES[mode], run.events, bits, begin, end, self.threads, self._apply)
        for spec, count in zip(run.program.tables, plan.versions_of.tolist(), strict=False):
            state[spec.name].reserve(count)
        self._run_plan(run, plan)
        for spec, count in zip(run.program.tables, plan.versions_of.tolist(), strict=False):
            state[spec.name].clear(count)
        state.transactions += end - begin
        seconds = monotonic_s() - started
        metrics.add(mode, end - begin, seconds)
        metrics.batches += 1
        metrics.stolen += plan.stolen
        metrics.versions += int(plan.versions_of.sum())
        metrics.levels += plan.depth
        if costs is not None:
            costs.note(mode, end - begin, seconds)

    def _run_plan(self, run: Run, plan: Plan) -> None:
        from penstock.procedures.parallel.code import FULL, STRAY
        from penstock.procedures.parallel.schedule import ENDED

        kernel = run.program.parallel_kernel
        failed: list[int] = []

        def work(thread: int) -> None:
            room = run.own_room()
            try:
                while not failed:
                    end = kernel(*plan.arguments(thread), *run.arguments(*room))
                    if end == ENDED:
                        return
                    if end == STRAY:
                        raise InternalError("a transaction left its access set", program=run.program.name)
                    if end == FULL:
                        room = run.own_room(2 * len(room[1][0]))
                    else:
                        pause(0)  # lets a thread without a core run
            except BaseException:  # on any error the other threads must end; raise it again
                failed.append(thread)
                raise

        list(self._apply(work, range(self.threads)))

    def _apply(self, function: Callable[[int], Any], threads: Iterable[int]) -> Iterable[Any]:
        """Call a function with the number of each thread, on that thread."""
        first, *others = threads
        if not others:
            return [function(first)]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads - 1, "penstock-evaluation")
        futures = [self._pool.submit(function, thread) for thread in others]
        try:
            own = function(first)
        finally:
            results = [future.result() for future in futures]
        return [own, *results]

    def _serial(
        self, run: Run, begin: int, end: int, metrics: EvaluationMetrics, costs: MeasuredCosts | None
    ) -> None:
        started = monotonic_s()
        run.advance(begin, end)
        seconds = monotonic_s() - started
        metrics.add("serial", end - begin, seconds)
        if costs is not None and end > begin:
            costs.note("serial", end - begin, seconds)

    def _planner(self, state: TableSet, run: Run, sets: AccessSets) -> Planner:
        from penstock.procedures.parallel.planning import Planner

        planner = self._planners.get(run.program.name)
        if planner is None or not planner.plans(state, run.program):
            planner = self._planners[run.program.name] = Planner(state, run.program, sets)
        return planner
