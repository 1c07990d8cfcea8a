"""Estimates of transactions by a plain walk of their Markov model."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import accumulate
from operator import or_

from penstock.predicting.models.estimates import Estimate
from penstock.predicting.models.markov import ABORT, BEGIN, COMMIT, MarkovModel, bits
from penstock.predicting.models.walk_kernels import IMPOSSIBLE, UNKNOWN

__all__ = ["estimate"]


def estimate(
    model: MarkovModel,
    partitions_of: Callable[[int, int], int],
    threshold: float,
    writes: list[bool],
    required: list[bool],
    last: list[bool],
) -> Estimate:
    """Return the estimate of a transaction; `partitions_of` maps a query and its counter to partitions.

    While a query of `required` is possible, a transaction neither commits nor executes one of `last`.
    """
    vertex, path, accessed, written = BEGIN, [BEGIN], 0, 0
    confidence, abort, is_exact = 1.0, 0.0, True
    masks: list[int] = []
    is_resolved = True
    first: dict[int, float] = {}
    counts: dict[int, int] = {}
    for _ in range(1_000):
        groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
        weights: dict[tuple[int, int], int] = {}
        following = [model.states[child][:2] for child in model.edges[vertex] if child not in (COMMIT, ABORT)]
        goes_on = any(required[name] and partitions_of(name, at) != IMPOSSIBLE for name, at in following)
        for child, count in model.edges[vertex].items():
            if child == COMMIT and goes_on:
                continue
            if child in (COMMIT, ABORT):
                key = (-1, child)
            else:
                key = model.states[child][:2]
                if partitions_of(*key) == IMPOSSIBLE or (goes_on and last[key[0]]):
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
        possible = partitions
        if partitions == UNKNOWN:
            possible = reduce(or_, (model.states[one].partitions for _, one in groups[chosen]))
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
        written |= possible if writes[chosen[0]] else 0
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
    base = max(counts, key=counts.__getitem__, default=-1)
    return Estimate(
        tuple(path), tuple(masks), tuple(later), base, needed, written & needed, is_complete, is_resolved,
        confidence, abort,
    )  # fmt: skip
