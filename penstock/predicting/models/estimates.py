"""Estimates of what a transaction will do, and which optimizations follow (H-Store §5.3.2, §5.3.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from operator import or_

from penstock.predicting.models.markov import ABORT, BEGIN, COMMIT, MarkovModel, bits
from penstock.predicting.models.parameters import IMPOSSIBLE, UNKNOWN

__all__ = ["Estimate", "choose_base", "estimate", "finished"]

_MOST_QUERIES = 1_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a transaction will do, before it begins.

    Attributes
    ----------
    path : tuple of int
        The vertices that it will reach.
    masks : tuple of int
        For each query of the path a bit for each partition that it accesses.
    later : tuple of int
        For each query of the path a bit for each partition that the following ones access.
    base : int
        The partition that it will access most (OP1); -1 if it needs none.
    partitions : int
        A bit for each partition that it will need (OP2).
    written : int
        A bit for each of them in which it will write.
    is_complete : bool
        Whether the path reaches an end, by states of the model.
    is_resolved : bool
        Whether the event says the partitions of all its queries.
    confidence : float
        The probability of the path, given the event.
    abort : float
        The greatest probability that it will abort, in all states of the path; see `MarkovModel.risk`.
    """

    path: tuple[int, ...]
    masks: tuple[int, ...]
    later: tuple[int, ...]
    base: int
    partitions: int
    written: int
    is_complete: bool
    is_resolved: bool
    confidence: float
    abort: float

    @property
    def is_single(self) -> bool:
        """Whether it will need at most one partition."""
        return self.partitions & (self.partitions - 1) == 0

    @property
    def needs_undo(self) -> bool:
        """Whether it needs an undo log from the begin (OP3): in doubt it does."""
        return not (self.is_single and self.is_complete and self.abort == 0.0)


def estimate(
    model: MarkovModel, partitions_of: Callable[[int, int], int], threshold: float, writes: list[bool]
) -> Estimate:
    """Return the most likely path of a transaction, and what follows from it.

    At each vertex the query follows that most transactions execute there, of those that the event allows.
    Of its states, that follows which accesses the partitions that the event says. If there is none, since no
    transaction of the trace had this combination of partitions, one of the others follows; the partitions
    are those of the event all the same (departure from H-Store §5.3.2, where the path ends).

    Parameters
    ----------
    model : MarkovModel
        The model.
    partitions_of : callable
        Maps the name of a query and a counter to what `EventParameters.partitions` returns.
    threshold : float
        The least probability with which a partition counts as needed.
    writes : list of bool
        For each name of a query whether it writes.
    """
    vertex, path, accessed, written = BEGIN, [BEGIN], 0, 0
    confidence, abort, is_exact = 1.0, 0.0, True
    masks: list[int] = []
    is_resolved = True
    first: dict[int, float] = {}
    counts: dict[int, int] = {}
    for _ in range(_MOST_QUERIES):
        groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
        weights: dict[tuple[int, int], int] = {}
        for child, count in model.edges[vertex].items():
            if child in (COMMIT, ABORT):
                key = (-1, child)
            else:
                key = model.states[child][:2]
                if partitions_of(*key) == IMPOSSIBLE:
                    continue
            groups.setdefault(key, []).append((count, child))
            weights[key] = weights.get(key, 0) + count
        if not weights:
            break
        chosen = max(weights, key=weights.__getitem__)
        confidence *= weights[chosen] / sum(weights.values())
        if chosen[0] < 0:
            path.append(chosen[1])
            break
        partitions = partitions_of(*chosen)
        count, child = max(groups[chosen])
        if partitions == UNKNOWN:
            partitions = model.states[child].partitions
            confidence *= count / weights[chosen]
            is_resolved = False
        else:
            exact = [
                one for one in groups[chosen] if model.states[one[1]][2:] == (partitions, accessed)
            ] or [one for one in groups[chosen] if model.states[one[1]].partitions == partitions]  # fmt: skip
            is_exact = is_exact and bool(exact)
            child = max(exact)[1] if exact else child
        for place in bits(partitions):
            first.setdefault(place, confidence)
            counts[place] = counts.get(place, 0) + 1
        accessed |= partitions
        written |= partitions if writes[chosen[0]] else 0
        masks.append(partitions)
        path.append(child)
        vertex = child
        abort = max(abort, float(model.risk[child]))
    is_complete = path[-1] in (COMMIT, ABORT) and is_exact
    needed = sum(1 << place for place, one in first.items() if one >= threshold)
    if confidence < 1.0 and len(model.reads):
        doubt = (1.0 - confidence) * model.reads[BEGIN].clip(model.changes[BEGIN])
        needed |= sum(1 << int(place) for place in (doubt >= threshold).nonzero()[0])
    if len(path) <= 2:
        abort = float(model.abort[BEGIN])
    later = [*accumulate(reversed(masks[1:]), or_, initial=0)][::-1] if masks else []
    return Estimate(
        tuple(path), tuple(masks), tuple(later), choose_base(counts), needed, written & needed, is_complete,
        is_resolved, confidence, abort,
    )  # fmt: skip


def finished(
    model: MarkovModel, found: Estimate, step: int, vertex: int, threshold: float, *, follows: bool
) -> int:
    """Return a bit for each partition that a transaction has finished with its query number `step` (OP4).

    While a transaction follows an estimate whose partitions the event says, these are all partitions that
    the rest of the path does not access. Else the probability table decides.

    Parameters
    ----------
    model : MarkovModel
        The model.
    found : Estimate
        The estimate.
    step : int
        The number of the query.
    vertex : int
        The vertex that the transaction has reached; -1 for one that the model does not have.
    threshold : float
        The least probability.
    follows : bool
        Whether it has executed the queries of the estimate so far.
    """
    if follows and found.is_resolved and found.confidence >= threshold:
        return ((1 << model.partitions) - 1) & ~found.later[step]
    if not 0 <= vertex < model.processed:
        return 0
    return sum(1 << int(place) for place in (model.finish[vertex] >= threshold).nonzero()[0])


def choose_base(counts: dict[int, int]) -> int:
    """Return the partition that is accessed most, of several the one that is accessed first; -1 for none."""
    return max(counts, key=counts.__getitem__, default=-1)
