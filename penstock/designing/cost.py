"""The cost of designs for a workload (H-Store §4.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.designing.cost_kernels import (
    Masks,
    add_bases,
    count_distributed,
    count_loads,
    merge,
    skew_factor,
)
from penstock.designing.workload import Workload
from penstock.errors import InvalidUsageError
from penstock.procedures.texts import Numbers

__all__ = ["Choice", "Cost", "CostModel"]


@dataclass(frozen=True)
class Choice:
    """A design for a workload, possibly incomplete.

    Attributes
    ----------
    tables : ndarray of int64
        The position of each table's option in `Workload.options`; -1 if no option is chosen yet.
    routing : ndarray of int64
        For each procedure, the position of its routing attribute in `Workload.attributes`; -1 if it has none.
    """

    tables: Numbers
    routing: Numbers


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a design.

    Attributes
    ----------
    total : float
        The weighted mean of `coordination` and `skew`; the search minimizes it.
    coordination : float
        The coordination cost: 0 if no transaction is distributed.
    skew : float
        The skew factor: 0 if all partitions have the same load, 1 if only one partition is busy.
    single : float
        The share of single-partition transactions.
    """

    total: float
    coordination: float
    skew: float
    single: float


class CostModel:
    """Estimates the cost of designs of one workload. Only one thread at a time may use a model.

    The cost of an incomplete design counts the coordination that the chosen tables and routes cause, and
    assumes a skew of 0. So the cost never falls when one more table or route is chosen. The paper assumes
    that unknown queries run in all partitions, which may overestimate the skew of the complete design
    (departure from H-Store §4.4.3).

    Parameters
    ----------
    workload : Workload
        The workload.
    alpha, beta : float
        The weights of coordination and skew.
    memory_bytes : int, optional
        The memory of a partition. Designs that need more memory are not feasible.

    Attributes
    ----------
    designs : int
        The number of designs, including incomplete designs, whose cost was estimated.
    """

    def __init__(
        self, workload: Workload, alpha: float = 5.0, beta: float = 1.0, memory_bytes: int | None = None
    ) -> None:
        if not (alpha >= 0 and beta >= 0 and alpha + beta > 0):
            raise InvalidUsageError("alpha and beta are negative, or both are zero", alpha=alpha, beta=beta)
        self.workload = workload
        self._alpha, self._beta, self._memory_bytes = alpha, beta, memory_bytes
        self._transactions = int(workload.weights.sum())
        self._loads = workload.empty_loads()
        self._based = np.empty(workload.records, np.uint64)
        self.designs = 0

    def masks(self, tables: Numbers) -> Masks:
        """Return the partitions that each record needs with the chosen options, as in `Workload.masks`."""
        out = self.workload.fixed.copy()
        for table, option in enumerate(tables.tolist()):
            if option >= 0:
                merge(out, self.workload.row(table, option), out)
        return out

    def bound(self, masks: Masks) -> float:
        """Return a lower bound of a design's cost, if each record needs at least these partitions."""
        self.designs += 1
        workload = self.workload
        counts = count_distributed(masks[: workload.records], workload.weights)
        return self._total(self._coordination(*counts), 0.0)

    def cost(self, masks: Masks, routing: Numbers) -> Cost:
        """Return the cost of a complete design, from the masks of its tables and its routes."""
        self.designs += 1
        workload = self.workload
        self._add_bases(masks, routing, self._based)
        accessed, distributed = count_loads(
            self._based, workload.weights, workload.interval, workload.partitions, self._loads
        )
        coordination = self._coordination(accessed, distributed)
        skew = skew_factor(self._loads, workload.interval_weights)
        total = self._total(coordination, skew)
        return Cost(total, coordination, skew, 1.0 - distributed / self._transactions)

    def measure(self, choice: Choice) -> Cost:
        """Return the cost of a complete design."""
        return self.cost(self.masks(choice.tables), choice.routing)

    def _coordination(self, accessed: int, distributed: int) -> float:
        count = self._transactions
        return accessed / (count * self.workload.partitions) * (1.0 + distributed / count)

    def _total(self, coordination: float, skew: float) -> float:
        return (self._alpha * coordination + self._beta * skew) / (self._alpha + self._beta)

    def is_feasible(self, tables: Numbers) -> bool:
        """Return whether the rows of the tables chosen so far fit into each partition's memory."""
        if self._memory_bytes is None:
            return True
        workload = self.workload
        size_bytes = 0.0
        for table, option in enumerate(tables.tolist()):
            if option >= 0:
                is_shared = workload.options[table][option].column is not None
                bytes_of_table = int(workload.trace.sizes[workload.tables[table]])
                size_bytes += bytes_of_table / (workload.partitions if is_shared else 1)
        return size_bytes <= self._memory_bytes

    def needed(self, choice: Choice) -> Masks:
        """Return the partitions that each record needs, including its base partition."""
        out = np.empty(self.workload.records, np.uint64)
        self._add_bases(self.masks(choice.tables), choice.routing, out)
        return out

    def _add_bases(self, masks: Masks, routing: Numbers, out: Masks) -> None:
        workload = self.workload
        every = np.uint64((1 << workload.partitions) - 1)
        add_bases(masks, workload.bases, routing, workload.procedure, workload.declared_place, every, out)

    def speed_up(self, choice: Choice) -> float:
        """Estimate the throughput with a thread per partition, relative to the throughput of one partition.

        While a distributed transaction runs, no other transaction runs. All other transactions run in their
        own partitions, and an interval takes as long as its busiest partition. The estimate assumes that all
        transactions take equally long, so it ignores the time to move rows.
        """
        workload = self.workload
        needed = self.needed(choice)
        counts = np.bitwise_count(needed)
        single: npt.NDArray[np.bool_] = counts <= 1
        loads = workload.empty_loads()
        count_loads(
            needed[single], workload.weights[single], workload.interval[single], workload.partitions, loads
        )
        forwarded = int(workload.weights[~single].sum())
        return self._transactions / (float(loads.max(axis=1).sum()) + forwarded)
