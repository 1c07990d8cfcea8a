"""Large-neighbourhood search for the design with the least cost (H-Store §4.3).

A round relaxes some tables of the best design so far, and the routes of the procedures that access these
tables. A local search explores the options of the relaxed tables by branch and bound, and then chooses routes
for one procedure after the other. All draws depend on the seed alone, so a search finds the same design again
unless the time or Ctrl-C ends it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock import _clock
from penstock.designing.cost import Choice, Cost, CostModel
from penstock.designing.cost_kernels import Masks, merge
from penstock.designing.initial import initial_choices, route_by_frequency
from penstock.operators.simulation.draws import draws
from penstock.procedures.texts import Numbers

__all__ = ["Limits", "Progress", "SearchResult", "search"]

_FIRST_SHARE, _LAST_SHARE = 0.25, 0.5
"""The shares of tables that the first and the last rounds relax."""
_LOOKUP_TABLE_WEIGHT = 0.1
"""A replicated table that is only read is relaxed less often than other tables, by this factor."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a search.

    Attributes
    ----------
    seconds : float
        The duration of the search so far.
    designs : int
        The number of designs whose cost was estimated.
    cost : Cost
        The cost of the best design.
    """

    seconds: float
    designs: int
    cost: Cost


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a search.

    Attributes
    ----------
    seconds : float
        The longest duration of the search.
    rounds : int
        The search ends after this many rounds in a row without a better design.
    backtracks : int
        A round ends after it has dropped this many incomplete designs for each relaxed table.
    round_seconds : float
        The longest duration of a round.
    exhaustive : int
        The search explores all designs if the tables' options have at most this many combinations.
    """

    seconds: float = 10.0
    rounds: int = 60
    backtracks: int = 100
    round_seconds: float = math.inf
    exhaustive: int = 2_000


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    Attributes
    ----------
    choice : Choice
        The best design.
    cost : Cost
        The cost of the best design.
    designs : int
        The number of designs whose cost was estimated.
    seconds : float
        The duration of the search.
    interrupted : bool
        Whether Ctrl-C ended the search.
    """

    choice: Choice
    cost: Cost
    designs: int
    seconds: float
    interrupted: bool


def search(
    model: CostModel,
    *,
    seed: int = 0,
    limits: Limits | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> SearchResult:
    """Return the best design that the search finds; Ctrl-C ends it early.

    Parameters
    ----------
    model : CostModel
        The cost model of the workload.
    seed : int
        The seed of the draws.
    limits : Limits, optional
        The limits at which the search ends.
    progress : callable, optional
        Called after each round.

    Raises
    ------
    InvalidUsageError
        If no initial design fits into the memory of a partition.
    """
    return _Search(model, seed, limits or Limits(), progress).run()


class _Search:
    def __init__(
        self, model: CostModel, seed: int, limits: Limits, progress: Callable[[Progress], None] | None
    ) -> None:
        self._model, self._seed, self._limits, self._progress = model, seed, limits, progress
        workload = model.workload
        self._tables = len(workload.options)
        self._levels = [np.empty_like(workload.fixed) for _ in range(self._tables)]
        by_procedure = np.bincount(workload.procedure, workload.weights, len(workload.attributes))
        self._procedures = np.argsort(-by_procedure, kind="stable").tolist()
        trace = workload.trace
        pairs = np.unique(np.stack([trace.procedure[trace.transaction], trace.table]), axis=1)
        self._accessed = {(int(procedure), int(table)) for procedure, table in pairs.T}
        self.best, self.cost = initial_choices(model)
        # The time starts here, because the initial designs may compile the kernels.
        self._begin_s = self._round_s = _clock.monotonic_s()

    def _seconds(self) -> float:
        return _clock.monotonic_s() - self._begin_s

    def _is_late(self) -> bool:
        """Return whether the search or its round has used up its time."""
        now = _clock.monotonic_s()
        return now - self._begin_s > self._limits.seconds or now - self._round_s > self._limits.round_seconds

    def run(self) -> SearchResult:
        interrupted = False
        try:
            self._rounds()
        except KeyboardInterrupt:
            interrupted = True
        return SearchResult(self.best, self.cost, self._model.designs, self._seconds(), interrupted)

    def _rounds(self) -> None:
        limits = self._limits
        choices = math.prod(len(options) for options in self._model.workload.options)
        if choices <= limits.exhaustive:
            self._explore(list(range(self._tables)), choices)
            self._report()
            return
        without = number = 0
        while without < limits.rounds and self._seconds() < limits.seconds and self.cost.total > 0.0:
            # The share grows while the search finds no better design.
            share = _FIRST_SHARE + (_LAST_SHARE - _FIRST_SHARE) * without / limits.rounds
            count = min(max(math.ceil(share * self._tables), 2), self._tables)
            before = self.cost.total
            self._explore(self._relax(number, count), limits.backtracks * count)
            number += 1
            without = 0 if self.cost.total < before else without + 1
            self._report()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(Progress(self._seconds(), self._model.designs, self.cost))

    def _relax(self, number: int, count: int) -> list[int]:
        """Draw the tables to relax; tables with more accesses are drawn more often."""
        workload = self._model.workload
        weights = workload.heat.astype(np.float64)
        for table, option in enumerate(self.best.tables.tolist()):
            if workload.options[table][option].column is None and not workload.writes[table]:
                weights[table] *= _LOOKUP_TABLE_WEIGHT
        fractions = draws(self._seed, number * self._tables, self._tables)
        # The tables with the largest keys are a weighted draw without replacement.
        keys = np.log(np.maximum(fractions, 1e-300)) / weights
        return np.argsort(-keys, kind="stable")[:count].tolist()

    def _explore(self, relaxed: Sequence[int], backtracks: int) -> None:
        """Search the designs that differ from the best design only in relaxed tables and their routes.

        The routes of all procedures that access a relaxed table may change.
        """
        workload = self._model.workload
        order = sorted(relaxed, key=lambda table: -int(workload.heat[table]))
        tables = self.best.tables.copy()
        tables[order] = -1
        self._round_s = _clock.monotonic_s()
        routed = [
            procedure
            for procedure in self._procedures
            if len(workload.attributes[procedure]) > 1
            and any((procedure, workload.tables[table]) in self._accessed for table in order)
        ]
        self._descend(order, 0, tables, self._model.masks(tables), routed, [backtracks])

    def _descend(
        self,
        order: Sequence[int],
        level: int,
        tables: Numbers,
        masks: Masks,
        routed: Sequence[int],
        backtracks: list[int],
    ) -> None:
        model, workload = self._model, self._model.workload
        if level == len(order):
            self._finish(tables, masks, routed)
            return
        table, merged = order[level], self._levels[level]
        for option in range(len(workload.options[table])):
            if backtracks[0] <= 0 or self._is_late():
                break
            tables[table] = option
            if model.is_feasible(tables):
                merge(masks, workload.row(table, option), merged)
                if model.bound(merged) < self.cost.total:
                    self._descend(order, level + 1, tables, merged, routed, backtracks)
                    continue
            backtracks[0] -= 1
        tables[table] = -1

    def _finish(self, tables: Numbers, masks: Masks, routed: Sequence[int]) -> None:
        """Choose routes for one procedure after the other; keep the design if it is the best so far."""
        model = self._model
        routing = self.best.routing.copy()
        if routed:
            routing[routed] = route_by_frequency(model.workload, masks)[routed]
        cost = model.cost(masks, routing)
        for procedure in routed:
            for place in range(len(model.workload.attributes[procedure])):
                tried = routing.copy()
                tried[procedure] = place
                other = model.cost(masks, tried)
                if other.total < cost.total:
                    routing, cost = tried, other
        if cost.total < self.cost.total:
            self.best, self.cost = Choice(tables.copy(), routing), cost
