"""Measure whether the predictions for each optimization are right for a transaction (H-Store §5.5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from penstock.designing.traces.queries import Query
from penstock.predicting.models.estimates import Estimate, finished_partitions
from penstock.predicting.models.markov import MarkovModel, bits

__all__ = ["Accuracy", "Verdict", "find_ends", "judge"]

_UNNEEDED_UNDO_PENALTY = 0.1
"""The penalty of an unneeded undo log; it is small because such a log only takes time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The correctness of the predictions for a transaction.

    Attributes
    ----------
    base : bool
        OP1: no partition was accessed more often than the predicted partition.
    partitions : bool
        OP2: exactly the predicted partitions were accessed.
    undo : bool
        OP3: the transaction had an undo log if it was rejected.
    finish : bool
        OP4: no partition was accessed after it was considered finished. Also, in a distributed transaction,
        each partition that only earlier queries accessed was considered finished before the last query.
    no_undo : bool
        Whether the transaction ran without an undo log, from its start or from a later query on.
    early : bool
        Whether a partition was rightly considered finished before the last query.
    idle_undo : bool
        Whether a single-partition transaction had an unneeded undo log.
    """

    base: bool
    partitions: bool
    undo: bool
    finish: bool
    no_undo: bool
    early: bool
    idle_undo: bool

    @property
    def total(self) -> bool:
        """Return whether all predictions were right."""
        return self.base and self.partitions and self.undo and self.finish

    @property
    def penalty(self) -> float:
        """The cost of wrong predictions; very high for a rejected transaction that could not be undone."""
        wrong = (not self.base) + (not self.partitions) + (not self.finish)
        return wrong + _UNNEEDED_UNDO_PENALTY * self.idle_undo + (0.0 if self.undo else 1e6)


class Accuracy:
    """Counts verdicts."""

    def __init__(self) -> None:
        self.transactions = 0
        self._counts = dict.fromkeys([field.name for field in fields(Verdict)] + ["total"], 0)
        self.penalty = 0.0

    def add(self, verdict: Verdict) -> None:
        """Count a verdict."""
        self.transactions += 1
        self.penalty += verdict.penalty
        for name in self._counts:
            self._counts[name] += getattr(verdict, name)

    def merge(self, other: Accuracy) -> None:
        """Add the verdicts of `other`."""
        self.transactions += other.transactions
        self.penalty += other.penalty
        for name, count in other._counts.items():
            self._counts[name] += count

    def share(self, name: str) -> float:
        """Return the share of transactions for which a field of `Verdict`, or ``total``, is true."""
        return self._counts[name] / max(self.transactions, 1)


def find_ends(
    estimate: Estimate, model: MarkovModel, queries: Sequence[Query], path: Sequence[int], threshold: float
) -> dict[int, int]:
    """Return, for each partition, the number of the query after which it is considered finished (OP4).

    Parameters
    ----------
    estimate : Estimate
        The estimate of the transaction.
    model : MarkovModel
        The model that made the estimate.
    queries, path : sequence
        The queries that the transaction executed, and its vertices in the model from `BEGIN` to the end.
    threshold : float
        The least probability at which a partition is considered finished.
    """
    considered = estimate.partitions
    for query in queries:
        considered |= query.partitions
    ends: dict[int, int] = {}
    follows = True
    for step, vertex in enumerate(path[1:-1]):
        follows = follows and step < len(estimate.masks) and estimate.masks[step] == queries[step].partitions
        follows = follows and model.states[estimate.path[step + 1]].name == queries[step].name
        mask = finished_partitions(model, estimate, step, vertex, threshold, follows=follows)
        for partition in bits(mask & considered):
            ends.setdefault(partition, step)
    return ends


def judge(
    estimate: Estimate, model: MarkovModel, queries: Sequence[Query], *, aborted: bool, threshold: float
) -> Verdict:
    """Compare an estimate, and its updates during the transaction, with the accesses of the transaction."""
    counts: dict[int, int] = {}
    last: dict[int, int] = {}
    for place, query in enumerate(queries):
        for partition in bits(query.partitions):
            counts[partition] = counts.get(partition, 0) + 1
            last[partition] = place
    accessed = sum(1 << partition for partition in counts)
    most = max(counts.values(), default=0)
    path = model.path(queries, aborted=aborted)
    known = model.processed
    has_undo = estimate.needs_undo
    for vertex in path[1:-1] if estimate.is_single else ():
        if not has_undo or not 0 <= vertex < known:
            break
        has_undo = bool(model.risk[vertex] > 0.0)
    is_distributed = accessed & (accessed - 1) != 0
    is_alone = estimate.is_single and not is_distributed
    declared = {} if is_alone else find_ends(estimate, model, queries, path, threshold)
    end = len(queries) - 1
    wrong = any(declared.get(partition, end) < step for partition, step in last.items())
    over = [partition for partition, step in last.items() if is_distributed and step < end]
    missed = any(declared.get(partition, end) >= end for partition in over)
    return Verdict(
        base=not counts or counts.get(estimate.base, 0) == most,
        partitions=estimate.partitions == accessed,
        undo=has_undo or not aborted,
        finish=not (wrong or missed),
        no_undo=not has_undo,
        early=bool(over) and not wrong and not missed,
        idle_undo=has_undo and not aborted and not is_distributed,
    )
